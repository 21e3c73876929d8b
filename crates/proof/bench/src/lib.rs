//! Measurements from end to end, on real processes: what is measured is what a user would run.
//!
//! What runs, and how it checks what it counts, is in [`tailwater_load`]; here is what is varied and what is reported.
//! All processes are this same binary, and end with the one that started them, however it ends.
//!
//! With `-o json` a bench ends with one JSON object on the last line of standard output.

// It measures real processes, real clocks and real disks; nothing of it runs in a simulated world.
#![allow(clippy::disallowed_methods)]

mod ablation;
mod acs;
mod append;
mod broadcast;
mod cache;
mod charts;
pub mod compare;
mod disk;
mod fanout;
pub mod figures;
mod idle;
#[cfg(feature = "bookkeeper")]
mod ledger_servers;
#[cfg(feature = "bookkeeper")]
mod ledgers;
#[cfg(feature = "bookkeeper")]
mod log;
mod memcached;
mod pingpong;
mod plot;
mod program;
mod queue;
mod quota;
mod restart;
mod svg;
mod target;
mod tls;
mod tree;

use clap::Subcommand;

/// What to measure.
#[derive(Subcommand)]
pub enum Command {
    /// One producer, and many consumers. Each consumer reads and checks everything that it follows.
    Fanout(fanout::Args),
    /// A chain of clusters with long lines between them, and many consumers in the last one.
    Tree(tree::Args),
    /// Durable appends, with a fixed number of records in flight.
    Append(append::Args),
    /// Reads and writes of a data cell.
    Cache(cache::Args),
    /// Delay and durable reads over time, while the cells are taken away one after the other.
    Ablation(ablation::Args),
    /// What consumers cost that wait while nothing happens.
    Idle(idle::Args),
    /// The native client of BookKeeper beside Apache's for Java.
    #[cfg(feature = "bookkeeper")]
    Ledgers(ledgers::Args),
    /// Streams whose segments are in ledgers: the experiments of the DistributedLog paper.
    #[cfg(feature = "bookkeeper")]
    #[command(subcommand)]
    Log(log::Command),
    /// How long readers go without when a node is killed under load and started again.
    Restart(restart::Args),
    /// Acknowledgements of a client of Kafka's protocol, alone and beside one that pushes as hard as its quota lets it.
    Quota(quota::Args),
    /// What TLS costs: appends, fan-out over TCP and Kafka's protocol, with and without it in turn.
    Tls(tls::Args),
    /// The experiments of the Fast ACS paper with a process for each consumer.
    #[command(subcommand)]
    Acs(acs::Command),
    /// The experiments of the Sprinkler paper, by the numbers of its figures.
    #[command(subcommand)]
    Broadcast(broadcast::Command),
    /// Queues: throughput, response times, order and duplicates, failures.
    #[command(subcommand)]
    Queue(queue::Command),
    /// A process full of listeners to a broadcast; reads what to do from standard input.
    #[command(hide = true)]
    Worker,
}

/// Runs one of them.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Fanout(args) => fanout::run(args),
        Command::Tree(args) => tree::run(args),
        Command::Append(args) => append::run(args),
        Command::Cache(args) => cache::run(args),
        Command::Ablation(args) => ablation::run(args),
        Command::Idle(args) => idle::run(args),
        #[cfg(feature = "bookkeeper")]
        Command::Ledgers(args) => ledgers::run(args),
        #[cfg(feature = "bookkeeper")]
        Command::Log(command) => log::run(command),
        Command::Restart(args) => restart::run(args),
        Command::Quota(args) => quota::run(args),
        Command::Tls(args) => tls::run(args),
        Command::Acs(command) => acs::run(command),
        Command::Broadcast(command) => broadcast::run(command),
        Command::Queue(command) => queue::run(command),
        Command::Worker => broadcast::run_worker(),
    }
}
