//! Runs a program to its end and takes its result, one JSON object on the last line of its output.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tailwater_load::measuring::until;

/// How long a program that is asked to end may take to stop what it has started.
const STOP: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);

/// Runs a program to its end, which it comes to at `limit` or when the user wants everything to end. What it says goes
/// to the file `said`, and its standard error to `log`. Why it failed, if it did, is in the result; an error is the end
/// of everything.
pub fn run_to_end(
    mut command: Command,
    said: &Path,
    log: &Path,
    limit: Duration,
) -> anyhow::Result<Result<(), String>> {
    command.stdin(Stdio::null()).stdout(File::create(said)?).stderr(File::create(log)?);
    let child = command.spawn();
    wait(child.with_context(|| format!("{:?} can't be started", command.get_program()))?, limit)
}

/// The result among what a program said, and its line. One that has `ended` with a failure behind it has it, too: how
/// it went is in there.
pub fn result_of(said: &Path, ended: Result<(), String>) -> Result<(Value, String), String> {
    let said = std::fs::read_to_string(said).unwrap_or_default();
    let line = said.lines().last().unwrap_or_default();
    match serde_json::from_str(line) {
        Ok(value @ Value::Object(_)) => Ok((value, line.to_owned())),
        _ => Err(ended.err().unwrap_or_else(|| "it printed no result".to_owned())),
    }
}

fn wait(mut child: Child, limit: Duration) -> anyhow::Result<Result<(), String>> {
    let begin = Instant::now();
    let ended = until("it ends", Duration::MAX, || {
        let late = || Err(format!("not done within {} s", limit.as_secs()));
        Ok(match child.try_wait()? {
            Some(status) if status.success() => Some(Ok(())),
            Some(status) => Some(Err(status.to_string())),
            None => (begin.elapsed() > limit).then(late),
        })
    });
    stop(&mut child)?;
    ended
}

/// Asks it to end, if it has not, so that a script stops what it has started; kills it if it does not.
fn stop(child: &mut Child) -> anyhow::Result<()> {
    let asked = Instant::now();
    if child.try_wait()?.is_none()
        && let Some(pid) = Pid::from_raw(child.id().cast_signed())
    {
        // It may be gone by now.
        let _ = kill_process(pid, Signal::TERM);
    }
    while child.try_wait()?.is_none() && asked.elapsed() < STOP {
        std::thread::sleep(LOOK);
    }
    child.kill()?;
    child.wait()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let child = shell("exec sleep 1000").spawn().expect("started");
        let ended = wait(child, Duration::ZERO).expect("waited");
        assert!(ended.is_err_and(|why| why.contains("not done within")));
    }

    #[test]
    fn a_script_that_is_ended_stops_what_it_has_started() {
        let script = "trap 'echo stopped; exit' TERM; echo ready; while :; do sleep 0.01; done";
        let mut child = shell(script).stdout(Stdio::piped()).spawn().expect("started");
        let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        assert_eq!(said.next().as_deref(), Some("ready"));
        stop(&mut child).expect("it is gone");
        assert_eq!(said.next().as_deref(), Some("stopped"));
    }
}
