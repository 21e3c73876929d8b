//! `bench broadcast`: the experiments of the Sprinkler paper (section 5), by the numbers of its figures.

mod collection;
mod workload;

use clap::Subcommand;

/// Which figure.
#[derive(Subcommand)]
pub enum Command {
    /// Garbage collection: how often keys are invalidated by the time since they were added.
    #[command(name = "9")]
    Ages(collection::AgesArgs),
    /// Garbage collection: events that are kept, where new keys come all the time.
    #[command(name = "10a")]
    Growing(collection::KeptArgs),
    /// Garbage collection: events that are kept, with 100,000 keys from the start.
    #[command(name = "10b")]
    Finite(collection::KeptArgs),
}

/// Runs it.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ages(args) => collection::ages(args),
        Command::Growing(args) => collection::growing(args),
        Command::Finite(args) => collection::finite(args),
    }
}
