//! Child processes: this same binary, which dies with its parent and whose words at the end are heard.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use serde::Serialize;

use crate::clock::{child_with_command, cpu_of, sleeps_of};
use crate::limits::ERROR_LINES;
use crate::measuring::until;

/// Flags of the hidden command `load child`.
#[derive(clap::Args)]
pub struct Args {
    /// The process to die with.
    parent: i32,
    /// Flags of the command to become.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

/// Becomes the command; returns only if that fails.
pub fn run(args: Args) -> anyhow::Result<()> {
    die_with_parent(args.parent)?;
    let error = Command::new(std::env::current_exe()?).args(args.command).exec();
    Err(error).context("this program can't be started again")
}

/// The kernel kills this process when the thread that started it ends. It stays so through `exec`.
fn die_with_parent(parent: i32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before.
    let alive = getppid().map(Pid::as_raw_pid) == Some(parent);
    ensure!(alive, "process {parent}, which this one belongs to, is gone");
    Ok(())
}

/// One child. Dropping it kills it, and reaps it.
pub struct Child {
    name: String,
    process: std::process::Child,
    log: PathBuf,
    input: Option<ChildStdin>,
}

impl Child {
    /// Starts this binary with `args`; its standard error goes to a file in `dir`.
    ///
    /// The child lives no longer than the calling thread: call it from one that stays.
    pub fn start(name: &str, args: &[&str], dir: &Path) -> anyhow::Result<Self> {
        Self::start_with(name, args, dir, Stdio::null(), Stdio::null())
    }

    /// Starts this binary with `args` as a process that takes lines of JSON and answers with such ([`crate::worker`]);
    /// what it answers is on the second one.
    pub fn start_worker(name: &str, args: &[&str], dir: &Path) -> anyhow::Result<(Self, ChildStdout)> {
        let mut child = Self::start_with(name, args, dir, Stdio::piped(), Stdio::piped())?;
        child.input = child.process.stdin.take();
        let output = child.process.stdout.take().context("a worker without output")?;
        Ok((child, output))
    }

    fn start_with(
        name: &str,
        args: &[&str],
        dir: &Path,
        input: Stdio,
        output: Stdio,
    ) -> anyhow::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let errors = std::fs::OpenOptions::new().create(true).append(true).open(&log)?;
        let parent = std::process::id().to_string();
        let process = Command::new(std::env::current_exe()?)
            .args(["load", "child", &parent, "--"])
            .args(args)
            .stdin(input)
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("{name} can't be started"))?;
        Ok(Self { name: name.to_owned(), process, log, input: None })
    }

    /// Sends a line to a worker.
    pub fn tell(&mut self, what: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        let sent = match &mut self.input {
            Some(input) => input.write_all(&line),
            None => Ok(()),
        };
        match sent {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure("does not listen any more")),
        }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// CPU time since its start; zero if it is gone.
    pub fn cpu(&self) -> Duration {
        cpu_of(self.process.id()).unwrap_or_default()
    }

    /// How often its threads went to sleep so far.
    pub fn sleeps(&self) -> u64 {
        sleeps_of(self.process.id())
    }

    /// CPU time so far of a child of its own that runs this command; zero if there is none.
    pub fn cpu_of_its(&self, command: &str) -> Duration {
        child_with_command(self.process.id(), command).and_then(cpu_of).unwrap_or_default()
    }

    /// Memory that is in use (resident), in bytes; zero if it is gone.
    pub fn rss_bytes(&self) -> u64 {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.process.id())).unwrap_or_default();
        let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
        pages * rustix::param::page_size() as u64
    }

    /// Fails if it has ended, with what it wrote last.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => Err(self.failure(&format!("ended with {status}"))),
        }
    }

    /// Waits until `holds` says so.
    ///
    /// # Errors
    /// It has ended; `what` is wrong with it after `limit`, as in "does not listen"; the user wants it to end.
    pub fn until(
        &mut self,
        what: &str,
        limit: Duration,
        mut holds: impl FnMut() -> bool,
    ) -> anyhow::Result<()> {
        let begin = Instant::now();
        until(what, Duration::MAX, || {
            self.check()?;
            let holds = holds();
            ensure!(holds || begin.elapsed() < limit, self.failure(what));
            Ok(holds.then_some(()))
        })
    }

    /// Waits for its end, which has begun.
    ///
    /// # Errors
    /// It failed.
    pub fn end(&mut self) -> anyhow::Result<()> {
        let status = self.process.wait()?;
        ensure!(status.success(), self.failure(&format!("ended with {status}")));
        Ok(())
    }

    /// What went wrong, with the last lines of its standard error.
    pub fn failure(&self, what: &str) -> anyhow::Error {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        let last = lines[lines.len().saturating_sub(ERROR_LINES)..].join("\n  ");
        anyhow::anyhow!("{} {what}; it wrote last:\n  {last}", self.name)
    }

    /// Sends it a signal; an error says that it is gone.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.process.id().cast_signed()).context("a process without an id")?;
        kill_process(pid, signal).with_context(|| format!("{} takes no signal", self.name))
    }

    /// Kills it, and waits until it is gone.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().and_then(|()| self.process.wait()).context("a process that can't be killed")?;
        Ok(())
    }

    /// Asks it to end, and waits for that.
    pub fn stop(&mut self, limit: Duration) -> anyhow::Result<()> {
        // It may be gone already.
        let _ = self.signal(Signal::TERM);
        let begin = Instant::now();
        while self.process.try_wait()?.is_none() {
            if begin.elapsed() > limit {
                self.process.kill()?;
                self.process.wait()?;
                bail!("{} did not stop within {limit:?} and was killed", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only if it is gone.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
