//! Sprinkler's experiments.

mod region_sim;

use clap::Subcommand;

/// Which experiment.
#[derive(Subcommand)]
pub enum Command {
    /// Throughput by fan-out and shuffle time, in simulated regions (figure 5b).
    #[command(name = "5b")]
    Figure5b(region_sim::figures::Args),
    /// Delay and throughput as load grows, by fan-out, in simulated regions (figure 6).
    #[command(name = "6")]
    Figure6(region_sim::figures::Args),
    /// The link between two simulated regions is cut and healed (figure 7).
    #[command(name = "7")]
    Figure7(region_sim::figures::Args),
    /// Ten simulated regions of ten thousand clients.
    Many(region_sim::figures::Args),
}

/// Runs one of them.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Figure5b(args) => region_sim::figures::figure_5b(&args),
        Command::Figure6(args) => region_sim::figures::figure_6(&args),
        Command::Figure7(args) => region_sim::figures::figure_7(&args),
        Command::Many(args) => region_sim::figures::many(&args),
    }
}
