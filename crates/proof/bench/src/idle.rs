//! `bench idle`: what consumers cost that wait while nothing happens.

use std::time::Duration;

use serde::Serialize;
use tailwater_load::experiment::{self, Cpu, ExperimentPlan};
use tailwater_load::interrupt;
use tailwater_load::messages::{ConsumersConfig, TransportFlag};
use tailwater_load::report::{self, ReportFormat};
use tailwater_load::stats::round;
use tailwater_load::system::{CellProcesses, System, SystemArgs};

/// Flags of `bench idle`.
#[derive(clap::Args)]
pub struct Args {
    /// How many consumers.
    #[arg(long, default_value_t = 10_000)]
    consumers: usize,
    /// How the consumers would read.
    #[arg(long, value_enum, default_value_t = TransportFlag::Shm)]
    transport: TransportFlag,
    /// Shards of the stream.
    #[arg(long, default_value_t = 1)]
    shards: u32,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 15.0, value_name = "SECONDS")]
    duration_s: f64,
    #[command(flatten)]
    system: SystemArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// What it reports.
#[derive(Serialize)]
struct Report {
    bench: &'static str,
    consumers: usize,
    processes: usize,
    transport: TransportFlag,
    shards: u32,
    cells: CellProcesses,
    duration_s: f64,
    cpu_s: Cpu,
    /// Of one core, all processes together.
    cores: f64,
    consumers_started_ms: f64,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    interrupt::listen()?;
    let reading = ConsumersConfig {
        shards_per_consumer: 1,
        window_bytes: 1 << 20,
        // Reports are no part of what is measured.
        tick_ms: 3_600_000,
        ..ConsumersConfig::new(args.shards, args.transport)
    };
    let times = [Duration::from_secs(3), Duration::from_secs_f64(args.duration_s)];
    let plan = ExperimentPlan::new(args.consumers, reading, None, times);
    let mut system = System::start(&args.system)?;
    let outcome = experiment::run(&mut system, &plan, |_, _| Ok(()))?;
    let cpu = outcome.cpu;
    let report = Report {
        bench: "idle",
        consumers: args.consumers,
        processes: outcome.processes,
        transport: args.transport,
        shards: args.shards,
        cells: args.system.cells(),
        duration_s: args.duration_s,
        cpu_s: Cpu { window: round(cpu.window, 3), producer: 0.0, ..cpu.over(1.0, 2) },
        cores: round((cpu.node + cpu.consumers) / outcome.wall_s, 4),
        consumers_started_ms: round(outcome.started_ms, 1),
    };
    report::print(args.output, &report)
}
