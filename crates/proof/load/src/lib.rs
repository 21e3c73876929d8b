//! Load from end to end, on real processes: a node and its cells, a producer, and consumers that check what they read.
//! The demo, and what the benches are made of.
//!
//! Whoever loads something starts a system ([`system`]): cache backends, a node, processes full of consumers
//! ([`worker`], [`reading`]) and one producer ([`appending`]), all of them this same binary by its hidden commands
//! `load` ([`Command`]). They end with the process that started them, however it ends. What a consumer counts it has
//! checked: a sequence number for each shard, a checksum over each record ([`payload`]), and at the end how many
//! records the producer had acknowledged.

// It runs real processes, with real clocks and real disks; nothing of it runs in a simulated world.
#![allow(clippy::disallowed_methods)]

mod acks;
pub mod address;
pub mod appender;
mod appending;
pub mod arrivals;
pub mod check;
pub mod child;
pub mod clock;
pub mod clusters;
pub mod demo;
pub mod experiment;
pub mod follower;
mod hopping;
pub mod interrupt;
mod kafka;
pub mod limits;
pub mod measuring;
pub mod messages;
pub mod payload;
mod reading;
pub mod report;
pub mod stats;
pub mod stopping;
pub mod system;
mod tally;
mod text;
pub mod ticks;
pub mod worker;
pub mod workers;

pub use system::free_address;

use clap::Subcommand;

/// A part of a load, as a process of its own.
#[derive(Subcommand)]
pub enum Command {
    /// Consumers or a producer; reads what to do from standard input.
    Worker,
    /// Becomes another command of this program that dies with process PARENT.
    Child(child::Args),
}

/// Runs one of them.
///
/// # Errors
/// What it could not do, and why.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Worker => worker::run(),
        Command::Child(args) => child::run(args),
    }
}
