//! Load from end to end, on real processes: what is measured is what a user would run.
//!
//! Every bench starts its own system under test ([`system`]): cache backends, a node, processes full of consumers
//! ([`worker`]) and one producer ([`load`]), all of them this same binary. They end with the process that started
//! them, however it ends. What a consumer counts it has checked: a sequence number for each shard, a checksum over
//! each record ([`payload`]), and at the end how many records the producer had acknowledged.
//!
//! With `-o json` a bench ends with one JSON object on the last line of standard output.

// It measures real processes, real clocks and real disks; nothing of it runs in a simulated world.
#![allow(clippy::disallowed_methods)]

mod ablation;
mod acks;
mod append;
mod appender;
mod broadcast;
mod cache;
mod charts;
mod check;
mod child;
mod clock;
pub mod compare;
pub mod demo;
mod disk;
mod experiment;
mod fanout;
pub mod figures;
mod idle;
mod interrupt;
mod kafka;
mod limits;
mod load;
mod memcached;
mod messages;
mod payload;
mod pingpong;
mod plot;
mod queue;
mod reading;
mod report;
mod stats;
mod stopping;
mod svg;
mod system;
mod tally;
mod target;
mod text;
mod ticks;
mod worker;

pub use system::free_address;

use clap::Subcommand;

/// What to measure.
#[derive(Subcommand)]
pub enum Command {
    /// One producer, and many consumers. Each consumer reads and checks everything that it follows.
    Fanout(fanout::Args),
    /// Durable appends, with a fixed number of records in flight.
    Append(append::Args),
    /// Reads and writes of a data cell.
    Cache(cache::Args),
    /// Delay and durable reads over time, while the cells are taken away one after the other.
    Ablation(ablation::Args),
    /// What consumers cost that wait while nothing happens.
    Idle(idle::Args),
    /// The experiments of the Sprinkler paper, by the numbers of its figures.
    #[command(subcommand)]
    Broadcast(broadcast::Command),
    /// Queues: throughput, response times, order and duplicates, failures.
    #[command(subcommand)]
    Queue(queue::Command),
    /// One process of a bench; reads what to do from standard input.
    #[command(hide = true)]
    Worker,
    /// Becomes another command of this program that dies with process PARENT.
    #[command(hide = true)]
    Child(child::Args),
}

/// Runs one of them.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Fanout(args) => fanout::run(args),
        Command::Append(args) => append::run(args),
        Command::Cache(args) => cache::run(args),
        Command::Ablation(args) => ablation::run(args),
        Command::Idle(args) => idle::run(args),
        Command::Broadcast(command) => broadcast::run(command),
        Command::Queue(command) => queue::run(command),
        Command::Worker => worker::run(),
        Command::Child(args) => child::run(args),
    }
}
