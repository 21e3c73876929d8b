//! `bench broadcast`: the experiments of the Sprinkler paper (section 5), by the numbers of its figures.

mod collection;
mod hearing;
mod keys;
mod kills;
mod members;
mod node;
mod proxies;
mod region_sim;
mod workload;

use clap::Subcommand;
use tailwater_load::worker;

/// Which figure.
#[derive(Subcommand)]
pub enum Command {
    /// Throughput of proxies, a process for each region: events are published, and heard in every region.
    #[command(name = "4")]
    Proxies(proxies::Args),
    /// Garbage collection: how often keys are invalidated by the time since they were added.
    #[command(name = "9")]
    Ages(collection::AgesArgs),
    /// Garbage collection: events that are kept, where new keys come all the time.
    #[command(name = "10a")]
    Growing(collection::KeptArgs),
    /// Garbage collection: events that are kept, with 100,000 keys from the start.
    #[command(name = "10b")]
    Finite(collection::KeptArgs),
    /// What an event that collects by key costs a proxy, with few events stored and with many.
    Keys(keys::Args),
    /// Throughput by fan-out and shuffle time, in simulated regions.
    #[command(name = "5b")]
    Shuffle(region_sim::figures::Args),
    /// Delay and throughput as load grows, by fan-out, in simulated regions.
    #[command(name = "6")]
    Load(region_sim::figures::Args),
    /// Throughput while the link between two simulated regions is cut and healed.
    #[command(name = "7")]
    Cut(region_sim::figures::Args),
    /// One region on real connections: listeners that share events with each other, in processes of up to 500.
    Members(members::Args),
    /// Loss and pauses while the replicas of one region's chain are killed in turn under load. Nothing may be lost.
    Kills(kills::Args),
    /// Ten simulated regions of ten thousand clients.
    Many(region_sim::figures::Args),
}

/// Runs it.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Proxies(args) => proxies::run(args),
        Command::Ages(args) => collection::ages(args),
        Command::Growing(args) => collection::growing(args),
        Command::Finite(args) => collection::finite(args),
        Command::Keys(args) => keys::run(&args),
        Command::Shuffle(args) => region_sim::figures::figure_5b(&args),
        Command::Load(args) => region_sim::figures::figure_6(&args),
        Command::Cut(args) => region_sim::figures::figure_7(&args),
        Command::Members(args) => members::run(&args),
        Command::Kills(args) => kills::run(&args),
        Command::Many(args) => region_sim::figures::many(&args),
    }
}

/// Runs a process full of listeners.
pub fn run_worker() -> anyhow::Result<()> {
    worker::run_as(|config, orders| worker::alone(members::be_members(config, orders)))
}
