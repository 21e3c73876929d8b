//! Tailwater beside Kafka, NATS, Aeron IPC and Redis, interleaved in one run on the same cores.
//!
//! ```text
//!   compare --cores 0,1
//!     | becomes: bench/peers/cubic taskset -c 0,1 compare --in-namespace
//!     v
//!   for each comparison, for each round: system A, system B, ... one after the other
//!     | `tailwater bench ...`, KafkaBench, nats-bench, AeronFanout,
//!     |     `compare broadcast-peer ...`: each ends with one JSON object   (runner)
//!     v
//!   OUT/NNN-*.json, compare.md, *.svg
//! ```
//!
//! Everything that runs inherits the network namespace, where TCP uses cubic, and the cores. A server of a peer is
//! started before the run that needs it and stopped behind it, so that no system runs beside another. No figure is
//! made up: a peer that is not installed is skipped with that reason, a run that failed is shown as failed with the
//! place of its log.

mod append;
mod broadcast;
mod fanout;
mod machine;
mod markdown;
mod peers;
mod runner;
pub(crate) mod search;
pub(crate) mod series;
mod shared;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::Parser;

use runner::Runner;
use tailwater_load::interrupt;
use tailwater_load::system::Workspace;

/// Flags.
#[derive(Parser)]
#[command(
    name = "compare",
    about = "Tailwater beside its peers in one run. Needs root, for a network namespace."
)]
struct Args {
    /// Cores that everything runs on.
    #[arg(long, default_value = "0,1", value_name = "LIST")]
    cores: String,
    /// Where results go: every run's JSON and log, compare.md, plots. What earlier runs left there is removed.
    #[arg(long, default_value = "target/compare", value_name = "DIR")]
    out: PathBuf,
    /// One comparison alone.
    #[arg(long, value_enum)]
    only: Option<Only>,
    /// How often each is run, in turn with the others.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Most settings of each system that are tried before the rounds; the first ones are the likeliest.
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    settings: usize,
    /// Short runs, to see whether everything works; the figures are no results.
    #[arg(long)]
    quick: bool,
    /// A directory on the disk to measure, in which one is made and removed again.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Tailwater's binary; the one beside this program if not given.
    #[arg(long, value_name = "FILE")]
    tailwater: Option<PathBuf>,
    /// It runs where it should.
    #[arg(long, hide = true)]
    in_namespace: bool,
    #[command(subcommand)]
    load: Option<Load>,
}

/// What this program starts itself for.
#[derive(clap::Subcommand)]
enum Load {
    /// Loads a peer of the broadcasts.
    #[command(hide = true)]
    BroadcastPeer(broadcast::load::Args),
}

/// One comparison.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Only {
    /// Durable appends.
    Append,
    /// Many consumers over TCP.
    Tcp,
    /// Many consumers in shared memory.
    Shm,
    /// Many subscribers of a broadcast.
    Broadcast,
}

/// How much is run, in seconds unless said.
struct Effort {
    /// Interleaved rounds.
    rounds: usize,
    /// Measured time of an append.
    append_s: u64,
    /// Most settings that are tried of each system.
    settings: usize,
    /// Measured time of each attempt at choosing settings.
    choose_s: u64,
    /// Measured time of each attempt at a number of consumers.
    attempt_s: u64,
    /// Measured time of a fan-out in shared memory.
    shared_s: u64,
    /// Measured time of a broadcast.
    broadcast_s: u64,
    /// Warm-up of a JVM, client and broker, that has just started.
    cold_jvm_s: u64,
    /// Warm-up of a client's JVM beside a broker that is warm, and of Tailwater where it is compared with that over
    /// TCP.
    warm_jvm_s: u64,
    /// Warm-up of a broadcast: by then listeners that share keep as many bytes for others as they may, and servers'
    /// buffers are as large as they get. Memory that is touched for the first time costs much on a virtual machine.
    broadcast_warmup_s: u64,
    /// Warm-up of everything else.
    warmup_s: u64,
    /// How exactly the number of consumers is found: a part in so many.
    exact: usize,
}

impl Effort {
    fn of(args: &Args) -> Self {
        let rounds = args.rounds;
        if args.quick {
            Effort {
                rounds,
                append_s: 3,
                settings: args.settings.min(2),
                choose_s: 2,
                attempt_s: 3,
                shared_s: 3,
                broadcast_s: 3,
                cold_jvm_s: 3,
                warm_jvm_s: 2,
                broadcast_warmup_s: 1,
                warmup_s: 1,
                exact: 1,
            }
        } else {
            Effort {
                rounds,
                append_s: 15,
                settings: args.settings,
                choose_s: 8,
                attempt_s: 10,
                shared_s: 20,
                broadcast_s: 10,
                cold_jvm_s: 30,
                warm_jvm_s: 10,
                broadcast_warmup_s: 15,
                warmup_s: 3,
                exact: 8,
            }
        }
    }
}

/// Runs what the command line says. The current directory is the repository's.
pub fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(Load::BroadcastPeer(args)) = &args.load {
        return broadcast::load::run(args);
    }
    let root = std::env::current_dir()?;
    let cubic = root.join("bench/peers/cubic");
    anyhow::ensure!(
        cubic.is_file(),
        "{} is missing: start this in the repository's directory",
        cubic.display()
    );
    anyhow::ensure!(args.rounds > 0 && args.settings > 0, "--rounds and --settings: at least one");
    if !args.in_namespace {
        return enter(&cubic, &args.cores);
    }
    interrupt::listen()?;
    let tailwater = match &args.tailwater {
        Some(file) => file.clone(),
        None => std::env::current_exe()?.with_file_name("tailwater"),
    };
    anyhow::ensure!(tailwater.is_file(), "{} is missing: make build", tailwater.display());
    let out = fresh_directory(&root.join(&args.out))?;
    let workspace = Workspace::create(args.dir.as_deref(), false)?;
    let mut runner = Runner::new(root, out, workspace.path().to_owned(), tailwater);
    let effort = Effort::of(&args);
    let wants = |one| args.only.is_none_or(|only| only == one);

    let mut text = markdown::heading(&args, &effort, runner.work())?;
    let mut end = |runner: &Runner, part: String| -> anyhow::Result<()> {
        text += &part;
        // After each comparison: what comes later may fail.
        runner.write("compare.md", &text)
    };
    if wants(Only::Append) {
        let results = append::run(&mut runner, &effort)?;
        end(&runner, append::show(&runner, &effort, &results)?)?;
    }
    if wants(Only::Shm) {
        let results = shared::run(&mut runner, &effort)?;
        end(&runner, shared::show(&runner, &results)?)?;
    }
    if wants(Only::Tcp) {
        let results = fanout::run(&mut runner, &effort)?;
        end(&runner, fanout::show(&runner, &effort, &results)?)?;
    }
    if wants(Only::Broadcast) {
        let results = broadcast::run(&mut runner, &effort)?;
        end(&runner, broadcast::show(&runner, &results)?)?;
    }
    let drift = runner.core_to_core();
    end(&runner, format!("\nA cache line's round trip between the cores, before each round: {drift} ns.\n"))?;
    println!("\n{text}");
    eprintln!("everything is in {}", runner.out().display());
    Ok(())
}

/// Becomes the same program in a network namespace with cubic, on `cores`; returns only if that fails.
fn enter(cubic: &Path, cores: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "this needs root, for the network namespace that bench/peers/cubic makes: sudo make bench-compare"
    );
    let this = std::env::current_exe()?;
    let mut command = Command::new(cubic);
    command.args(["taskset", "-c", cores]).arg(this).args(std::env::args_os().skip(1)).arg("--in-namespace");
    Err(command.exec()).with_context(|| format!("{} can't be started", cubic.display()))
}

/// Makes a directory, or removes what an earlier run of this program left there: nothing but its files.
fn fresh_directory(path: &Path) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(path).with_context(|| format!("{} can't be made", path.display()))?;
    for entry in std::fs::read_dir(path)? {
        let file = entry?.path();
        let known =
            file.extension().is_some_and(|kind| ["json", "log", "md", "svg"].iter().any(|k| kind == *k));
        if known && file.is_file() {
            std::fs::remove_file(&file)?;
        }
    }
    Ok(path.canonicalize()?)
}
