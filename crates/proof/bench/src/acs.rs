//! `bench acs`: the experiments of the Fast ACS paper. 1(a) is in the form that is hardest for us: nobody shares. Each
//! of them is also computed at the paper's size ([`flows`]).

mod costs;
mod flows;
mod live;
mod model;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use serde_json::Value;
use tailwater_load::interrupt;
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::system::Workspace;

use self::live::AcsLiveArgs;
use self::model::{AcsExperiment, ModelArgs};
use crate::compare::search::largest;
use crate::program::{result_of, run_to_end};
use crate::tree;

/// Added to the measured time before a run is ended as hanging: some hundred processes take minutes to start.
const GRACE: Duration = Duration::from_secs(900);

/// An experiment of the paper.
#[derive(Subcommand)]
pub enum Command {
    /// Experiment 1(a) with a process for each consumer: how many keep up, and what each of them costs
    #[command(name = "1a")]
    Apart(ApartArgs),
    /// Experiment 1(b): all consumers begin at once
    #[command(name = "1b")]
    Spike(AcsLiveArgs),
    /// Experiment 1(c): the same in each cluster of a chain
    #[command(name = "1c")]
    Hops(AcsHopsArgs),
    /// Experiment 1(d): replicas of the cells are killed one after the other
    #[command(name = "1d")]
    Kills(AcsLiveArgs),
    /// Experiment 2(a): more and more consumers, and a data cell that grows with them
    #[command(name = "2a")]
    Smooth(AcsLiveArgs),
    /// Experiment 2(b): all consumers at once, and a data cell that grows then
    #[command(name = "2b")]
    Abrupt(AcsLiveArgs),
    /// Experiment 2(c): a producer that stands still, and then appends all that is due
    #[command(name = "2c")]
    Backlog(AcsLiveArgs),
}

/// Flags of `bench acs 1a`.
#[derive(clap::Args)]
pub struct ApartArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Numbers of processes to run with, rising. A system is not run with more than the first number that it doesn't
    /// keep up with; where that lies is then searched, to one part in eight.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,128,256,512", value_name = "N,...")]
    processes: Vec<usize>,
    /// Mbit/s of messages of 1 KiB, which each process reads.
    #[arg(long, default_value_t = 240, value_name = "MBIT")]
    rate_mbit: u32,
    /// Seconds that are measured, of each run.
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    duration_s: u32,
    /// Runs the numbers of --processes, and searches for no others.
    #[arg(long)]
    no_search: bool,
    /// Another system, beside which Tailwater is run in turn: `aeron=bench/peers/aeron-readers`. The command is given
    /// --consumers, --rate-mbit and --duration-s, and ends with a JSON object on its last line. May be given again.
    #[arg(long, value_name = "NAME=COMMAND", value_parser = peer)]
    peer: Vec<Compared>,
    /// Flags of `bench fanout` besides, in one argument: `--fanout '--flush immediate --dir /mnt/disk'`.
    #[arg(long, default_value = "--flush 5", allow_hyphen_values = true, value_name = "FLAGS")]
    fanout: String,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// Flags of `bench acs 1c`: those of `bench tree`, of which `--everywhere` and `--at-once` are given.
#[derive(clap::Args)]
pub struct AcsHopsArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    tree: tree::Args,
}

/// A system and the command that runs it.
#[derive(Clone, Debug)]
struct Compared {
    name: String,
    program: PathBuf,
    args: Vec<String>,
}

fn peer(text: &str) -> Result<Compared, String> {
    let (name, command) = text.split_once('=').ok_or("a name, `=`, and a command")?;
    let mut words = command.split_ascii_whitespace().map(str::to_owned);
    let program = words.next().ok_or("a command behind `=`")?.into();
    Ok(Compared { name: name.to_owned(), program, args: words.collect() })
}

/// One run of one system.
#[derive(Default, Serialize)]
struct ApartRun {
    system: String,
    processes: usize,
    keeps_up: bool,
    delivered_gbit_s: f64,
    delay_p50_ms: f64,
    delay_p99_ms: f64,
    /// Of the producer's acknowledgements; `None` of those who tell of none.
    #[serde(skip_serializing_if = "Option::is_none")]
    ack_p99_ms: Option<f64>,
    /// `ack_p99_ms` over that of the same system's run with one process, if there is one: how far readers hold the
    /// producer back.
    #[serde(skip_serializing_if = "Option::is_none")]
    ack_times_alone: Option<f64>,
    /// All processes.
    cores: f64,
    cores_each: f64,
    /// How often threads of one reader went to sleep in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    wakes_s_each: Option<f64>,
    /// What cells and the durable layer sent to readers, the window's among them, for each byte that was delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_for_delivered: Option<f64>,
    /// Why there is nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl ApartRun {
    /// A line on standard error for each run, as they take minutes together and may be interrupted.
    fn tell(&self) {
        let Self { system, processes, cores, delay_p50_ms, delay_p99_ms, .. } = self;
        let verdict = if self.keeps_up { "keep up" } else { "do not keep up" };
        eprintln!(
            "{system}: {processes} processes {verdict}, {cores:.2} cores, delay p50 {delay_p50_ms} ms, p99 {delay_p99_ms} ms"
        );
    }
}

#[derive(Serialize)]
struct ApartReport {
    bench: &'static str,
    rate_mbit: u32,
    duration_s: u32,
    fanout: String,
    /// The most processes that kept up, of each system; 0 if none did.
    most: BTreeMap<String, usize>,
    runs: Vec<ApartRun>,
}

/// Runs one of them.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Apart(args) if args.model.model => {
            model::run(AcsExperiment::Ideal, &args.model, args.output)
        }
        Command::Apart(args) => run_apart(args),
        Command::Spike(args) => live::run(AcsExperiment::Spike, &args),
        Command::Hops(args) if args.model.model => {
            model::run(AcsExperiment::Hops, &args.model, args.tree.output())
        }
        Command::Hops(args) => tree::run(args.tree.spiked()),
        Command::Kills(args) => live::run(AcsExperiment::Kills, &args),
        Command::Smooth(args) => live::run(AcsExperiment::Smooth, &args),
        Command::Abrupt(args) => live::run(AcsExperiment::Abrupt, &args),
        Command::Backlog(args) => live::run(AcsExperiment::Backlog, &args),
    }
}

fn run_apart(args: ApartArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.processes.is_sorted() && args.processes.iter().all(|n| (1..=512).contains(n)),
        "--processes: rising numbers from 1 to 512"
    );
    interrupt::listen()?;
    let workspace = Workspace::create(None, false)?;
    let own = ["bench", "fanout", "--own-reader", "-o", "json"].map(str::to_owned);
    let own = own.into_iter().chain(args.fanout.split_ascii_whitespace().map(str::to_owned));
    let own =
        Compared { name: "tailwater".to_owned(), program: std::env::current_exe()?, args: own.collect() };
    let systems: Vec<Compared> = std::iter::once(own).chain(args.peer.iter().cloned()).collect();
    let mut line = ProgressLine::default();
    let mut run = |system: &Compared, processes| {
        line.show(&format!("{} with {processes} processes", system.name));
        let run = attempt(&args, workspace.path(), system, processes)?;
        run.tell();
        anyhow::Ok(run)
    };
    let (mut runs, mut bad) = (Vec::new(), BTreeMap::new());
    // In turn, so that what changes of the machine meanwhile is the same for all.
    for &processes in &args.processes {
        for system in &systems {
            if bad.contains_key(&system.name) {
                continue;
            }
            runs.push(run(system, processes)?);
            if runs.last().is_some_and(|run| !run.keeps_up) {
                bad.insert(system.name.clone(), processes);
            }
        }
    }
    for system in systems.iter().filter(|_| !args.no_search) {
        let good = runs.iter().filter(|run| run.system == system.name && run.keeps_up);
        let good = good.map(|run| run.processes).max();
        if let (Some(good), Some(&first_bad)) = (good, bad.get(&system.name)) {
            largest(good, first_bad, 8, |processes| {
                if processes <= good || processes >= first_bad {
                    return anyhow::Ok(processes <= good);
                }
                runs.push(run(system, processes)?);
                Ok(runs.last().is_some_and(|run| run.keeps_up))
            })?;
        }
    }
    drop(line);
    let mut most: BTreeMap<_, _> = systems.iter().map(|system| (system.name.clone(), 0)).collect();
    for run in runs.iter().filter(|run| run.keeps_up) {
        most.entry(run.system.clone()).and_modify(|most| *most = run.processes.max(*most));
    }
    runs.sort_by(|a, b| (&a.system, a.processes).cmp(&(&b.system, b.processes)));
    compare_with_one(&mut runs);
    let ApartArgs { rate_mbit, duration_s, fanout, .. } = args;
    report::print(args.output, &ApartReport { bench: "acs-1a", rate_mbit, duration_s, fanout, most, runs })
}

/// Acknowledgements of each run beside those of the same system with one process.
fn compare_with_one(runs: &mut [ApartRun]) {
    let one: BTreeMap<String, f64> = runs
        .iter()
        .filter(|run| run.processes == 1)
        .filter_map(|run| Some((run.system.clone(), run.ack_p99_ms?)))
        .collect();
    for run in runs {
        let times = run.ack_p99_ms.zip(one.get(&run.system)).map(|(ms, one)| ms / one);
        run.ack_times_alone = times.map(|times| tailwater_load::stats::round(times, 2));
    }
}

/// One run. What does not run at all does not keep up; the report says why.
fn attempt(args: &ApartArgs, dir: &Path, system: &Compared, processes: usize) -> anyhow::Result<ApartRun> {
    let mut command = Process::new(&system.program);
    command.args(&system.args).args(["--consumers", &processes.to_string()]);
    command.args(["--rate-mbit", &args.rate_mbit.to_string()]);
    command.args(["--duration-s", &args.duration_s.to_string()]);
    let (said, log) = (dir.join("said"), dir.join("log"));
    let ended = run_to_end(command, &said, &log, Duration::from_secs(args.duration_s.into()) + GRACE)?;
    Ok(match result_of(&said, ended) {
        Ok((value, _)) => measured(system, processes, &value),
        Err(why) => {
            let last = std::fs::read_to_string(&log).unwrap_or_default();
            let last = last.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it wrote no error");
            ApartRun {
                system: system.name.clone(),
                processes,
                error: Some(format!("{why}: {last}")),
                ..ApartRun::default()
            }
        }
    })
}

fn measured(system: &Compared, processes: usize, value: &Value) -> ApartRun {
    let number = |pointer: &str| value.pointer(pointer).and_then(Value::as_f64);
    let sum = |of: &str| {
        value
            .get(of)
            .and_then(Value::as_object)
            .map(|all| all.values().filter_map(Value::as_f64).sum::<f64>())
    };
    let each = number("/own_reader/cpu_cores").or_else(|| Some(number("/cores/readers")? / processes as f64));
    // The window reads everything once for all of them.
    let by_readers = number("/own_reader/read_by_itself");
    let through = number("/own_reader/through_window").unwrap_or(0.0);
    let window = if through > 0.0 { 1.0 / processes as f64 } else { 0.0 };
    let round = |value: f64, digits| tailwater_load::stats::round(value, digits);
    ApartRun {
        system: system.name.clone(),
        processes,
        keeps_up: value.get("keeps_up") == Some(&Value::Bool(true)),
        delivered_gbit_s: round(number("/delivered_gbit_s").unwrap_or(0.0), 2),
        delay_p50_ms: round(number("/delay_ms/p50").unwrap_or(0.0), 2),
        delay_p99_ms: round(number("/delay_ms/p99").unwrap_or(0.0), 2),
        ack_p99_ms: number("/ack_ms/p99").map(|ms| round(ms, 2)),
        ack_times_alone: None,
        cores: round(sum("cpu_cores").or_else(|| sum("cores")).unwrap_or(0.0), 3),
        cores_each: round(each.unwrap_or(0.0), 4),
        wakes_s_each: number("/own_reader/wakes_s"),
        sent_for_delivered: by_readers.map(|own| round(own + window, 4)),
        error: value.get("error").and_then(Value::as_str).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_name_and_a_command() {
        let given = peer("aeron=java -cp x AeronReaders").expect("both are there");
        assert_eq!((given.name.as_str(), given.program.to_str()), ("aeron", Some("java")));
        assert_eq!(given.args, ["-cp", "x", "AeronReaders"]);
        assert!(peer("aeron").is_err() && peer("aeron=").is_err());
    }

    #[test]
    fn what_a_run_prints_is_read_whether_it_is_ours_or_a_peer_s() {
        let system = peer("x=y").expect("both are there");
        let ours = serde_json::json!({
            "keeps_up": true, "delivered_gbit_s": 3.84, "delay_ms": {"p50": 2.0, "p99": 9.0}, "ack_ms": {"p99": 7.0},
            "cpu_cores": {"node": 0.25, "consumers": 0.5}, "error": null,
            "own_reader": {"cpu_cores": 0.125, "wakes_s": 50.0, "read_by_itself": 0.5, "through_window": 0.5},
        });
        let run = measured(&system, 4, &ours);
        assert!(run.keeps_up && run.error.is_none());
        assert_eq!((run.cores, run.cores_each, run.sent_for_delivered), (0.75, 0.125, Some(0.75)));
        let theirs = serde_json::json!({
            "keeps_up": false, "delay_ms": {"p50": 2.0, "p99": 9.0}, "cores": {"server": 1.0, "readers": 0.5},
        });
        let run = measured(&system, 4, &theirs);
        assert_eq!((run.keeps_up, run.cores, run.cores_each, run.ack_p99_ms), (false, 1.5, 0.125, None));
    }

    #[test]
    fn acknowledgements_are_compared_with_those_of_the_same_system_with_one_process() {
        let run = |system: &str, processes, ack: f64| {
            let system = peer(&format!("{system}=y")).expect("both are there");
            measured(&system, processes, &serde_json::json!({ "ack_ms": {"p99": ack} }))
        };
        let mut runs = [run("a", 1, 8.0), run("a", 16, 12.0), run("b", 16, 9.0)];
        compare_with_one(&mut runs);
        assert_eq!(runs.map(|run| run.ack_times_alone), [Some(1.0), Some(1.5), None]);
    }
}
