//! Runs one program after the other, and keeps what each of them said.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;

use super::series::Series;
use crate::pingpong::core_to_core_ns;
use crate::program::{result_of, run_to_end};

/// Added to the time that a run should take before it is ended as hanging.
const GRACE: Duration = Duration::from_secs(240);

/// Why there is no result: not installed, or failed with the place of its log.
#[derive(Clone, Debug)]
pub struct Missing(pub String);

/// Where programs run and what they leave.
pub struct Runner {
    root: PathBuf,
    out: PathBuf,
    work: PathBuf,
    tailwater: PathBuf,
    runs: usize,
    core_to_core: Vec<f64>,
}

impl Runner {
    /// `root` is the repository, `out` keeps results, `work` holds data while it is needed.
    pub fn new(root: PathBuf, out: PathBuf, work: PathBuf, tailwater: PathBuf) -> Self {
        Self { root, out, work, tailwater, runs: 0, core_to_core: Vec::new() }
    }

    /// The repository.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where results are kept.
    pub fn out(&self) -> &Path {
        &self.out
    }

    /// Where data is put, on the disk to measure.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// Notes how far apart the cores are at this moment.
    pub fn begin_round(&mut self, what: &str, round: usize) {
        self.core_to_core.extend(core_to_core_ns());
        eprintln!("== {what}, round {}", round + 1);
    }

    /// What was noted of the cores.
    pub fn core_to_core(&self) -> String {
        Series::of(self.core_to_core.iter().copied()).range(0)
    }

    /// Writes a file among the results.
    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let file = self.out.join(name);
        std::fs::write(&file, text).with_context(|| format!("{} can't be written", file.display()))
    }

    /// `tailwater bench ARGS -o json`.
    pub fn tailwater(
        &mut self,
        label: &str,
        args: &[String],
        takes_s: u64,
    ) -> anyhow::Result<Result<Value, Missing>> {
        let mut command = self.command(&self.tailwater);
        command.arg("bench").args(args).args(["-o", "json", "--dir"]).arg(&self.work);
        self.run(label, command, takes_s)
    }

    /// A command that starts in the repository and dies with this process.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program).current_dir(&self.root);
        command
    }

    /// Runs a program that ends with one JSON object on the last line of its output. One that fails after it has
    /// printed it has a result too: how it went is in there. An error is the end of everything.
    pub fn run(
        &mut self,
        label: &str,
        command: Command,
        takes_s: u64,
    ) -> anyhow::Result<Result<Value, Missing>> {
        let begin = Instant::now();
        let (name, ended) = self.finish(label, command, Duration::from_secs(takes_s) + GRACE)?;
        let result = match result_of(&self.said(&name), ended) {
            Ok((value, line)) => {
                self.write(&format!("{name}.json"), &format!("{line}\n"))?;
                Ok(value)
            }
            Err(why) => Err(self.failed(&name, &why)),
        };
        let word = result.as_ref().map_or_else(|missing| missing.0.clone(), brief);
        eprintln!("   {name} ({:.0} s): {word}", begin.elapsed().as_secs_f64());
        Ok(result)
    }

    /// Runs a program that only has to succeed; its output is in its log.
    pub fn call(
        &mut self,
        label: &str,
        command: Command,
        limit: Duration,
    ) -> anyhow::Result<Result<(), Missing>> {
        let (name, ended) = self.finish(label, command, limit)?;
        // Nothing else is told by it.
        let _ = std::fs::remove_file(self.said(&name));
        Ok(ended.map_err(|why| self.failed(&name, &why)))
    }

    /// Keeps a result that no program printed.
    pub fn keep(&mut self, label: &str, value: &Value) -> anyhow::Result<()> {
        let name = self.next_name(label);
        eprintln!("   {name}: {}", brief(value));
        self.write(&format!("{name}.json"), &format!("{value}\n"))
    }

    /// Keeps a file, under the next number.
    pub fn keep_log(&mut self, label: &str, file: &Path) {
        let name = self.next_name(label);
        // A log that can't be copied is missed only when something went wrong besides.
        let _ = std::fs::copy(file, self.log(&name));
    }

    fn next_name(&mut self, label: &str) -> String {
        self.runs += 1;
        format!("{:03}-{label}", self.runs)
    }

    fn failed(&self, name: &str, why: &str) -> Missing {
        Missing(format!("failed ({why}): {}", self.log(name).display()))
    }

    /// Runs a command under the next number, until `limit`; the number with the label, and how it ended.
    fn finish(
        &mut self,
        label: &str,
        command: Command,
        limit: Duration,
    ) -> anyhow::Result<(String, Result<(), String>)> {
        let name = self.next_name(label);
        let ended = run_to_end(command, &self.said(&name), &self.log(&name), limit)?;
        Ok((name, ended))
    }

    fn said(&self, name: &str) -> PathBuf {
        self.out.join(format!("{name}.json"))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.out.join(format!("{name}.log"))
    }
}

/// The few words of a result that tell how it went.
fn brief(value: &Value) -> String {
    const FIELDS: [&str; 9] = [
        "/records_per_s",
        "/ack_ms/p99",
        "/consumers",
        "/keeps_up",
        "/delivered_gbit_s",
        "/delay_ms/p50",
        "/delay_ms/p99",
        "/fdatasync_ms/p50",
        "/cores",
    ];
    let words = FIELDS.iter().filter_map(|field| Some(format!("{} {}", &field[1..], value.pointer(field)?)));
    words.collect::<Vec<_>>().join(", ")
}

/// A number of a result; NaN, which no table shows as a figure, if it is not there.
pub fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// The quotients of a figure of two systems, round by round; a round in which one of them failed has none.
pub fn ratios(
    own: &[Result<Value, Missing>],
    other: &[Result<Value, Missing>],
    figure: impl Fn(&Value) -> f64,
) -> Series {
    let figures = |runs: &[Result<Value, Missing>]| -> Vec<f64> {
        runs.iter().map(|run| run.as_ref().map_or(f64::NAN, &figure)).collect()
    };
    Series::ratios(&figures(own), &figures(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn runner() -> (tempfile::TempDir, Runner) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().to_owned();
        (dir, Runner::new(path.clone(), path.clone(), path, "tailwater".into()))
    }

    #[test]
    fn the_last_line_is_the_result_even_of_a_program_that_then_fails() {
        let (_dir, mut runner) = runner();
        let command = shell("echo words; echo '{\"keeps_up\":false}'; exit 3");
        let value = runner.run("a", command, 60).expect("it ran").expect("a result");
        assert_eq!(value["keeps_up"], false);
        let kept = std::fs::read_to_string(runner.out().join("001-a.json")).expect("kept");
        assert_eq!(kept, "{\"keeps_up\":false}\n");
    }

    #[test]
    fn a_program_without_a_result_is_shown_as_failed_with_the_place_of_its_log() {
        let (_dir, mut runner) = runner();
        let missing = runner.run("b", shell("echo no >&2; exit 3"), 60).expect("it ran").expect_err("failed");
        assert!(missing.0.contains("exit status: 3") && missing.0.ends_with("001-b.log"), "{missing:?}");
        let log = std::fs::read_to_string(runner.out().join("001-b.log")).expect("a log");
        assert_eq!(log, "no\n");
        let missing = runner.run("c", shell("echo done"), 60).expect("it ran").expect_err("no result");
        assert!(missing.0.contains("no result"), "{missing:?}");
    }
}
