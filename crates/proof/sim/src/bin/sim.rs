//! Runs scenarios over seeds; on failure prints the seed and the command that shows it again.

use std::num::NonZero;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::thread;

use clap::Parser;
use tailwater_sim::scenarios::{self, Scenario, ScenarioFailure};
use tailwater_sim::{Plant, Report};

/// Seeded simulation of the real code: crashes, lost writes, a bad network.
#[derive(Parser)]
#[command(version)]
struct SimFlags {
    /// Number of seeds to run, for each scenario.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Which scenario, or `all`.
    #[arg(long, default_value = "all")]
    scenario: String,
    /// Runs this seed only, twice, and compares the traces.
    #[arg(long)]
    seed: Option<u64>,
    /// Prints every event of the world to standard error; with --seed.
    #[arg(long, requires = "seed")]
    events: bool,
    /// How many seeds run at the same time; as many as there are processors, if it is not said.
    #[arg(long)]
    jobs: Option<NonZero<usize>>,
    /// Goes on after a failure, and counts.
    #[arg(long)]
    keep_going: bool,
    /// Lists the scenarios and ends.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let options = SimFlags::parse();
    if options.list {
        for scenario in scenarios::ALL {
            println!("{:<20} {}", scenario.name, scenario.about);
        }
        return ExitCode::SUCCESS;
    }
    let chosen: Vec<&Scenario> = match options.scenario.as_str() {
        "all" => {
            scenarios::ALL.iter().filter(|scenario| !scenarios::FIGURES.contains(&scenario.name)).collect()
        }
        name => scenarios::find(name).into_iter().collect(),
    };
    if chosen.is_empty() {
        eprintln!("there is no scenario {:?}; --list shows those there are", options.scenario);
        return ExitCode::from(2);
    }
    let mut failures = 0;
    for scenario in chosen {
        failures += match options.seed {
            Some(seed) => replay(scenario, seed, options.events),
            None => run_seeds(scenario, &options),
        };
        if failures > 0 && !options.keep_going {
            break;
        }
    }
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay(scenario: &Scenario, seed: u64, events: bool) -> u64 {
    let first = scenario.run_seed(seed, Plant::None, events);
    let again = scenario.run_seed(seed, Plant::None, false);
    match (first, again) {
        (Ok(first), Ok(again)) if first.trace == again.trace => {
            println!("{}: seed {seed} holds, trace {:016x}: {first}", scenario.name, first.trace);
            0
        }
        (Ok(first), Ok(again)) => {
            let (first, again) = (first.trace, again.trace);
            println!("{}: seed {seed} is not repeatable: {first:016x}, {again:016x}", scenario.name);
            1
        }
        (Err(failure), _) | (_, Err(failure)) => {
            for event in &failure.recent {
                println!("{event}");
            }
            report(&failure);
            1
        }
    }
}

fn run_seeds(scenario: &Scenario, options: &SimFlags) -> u64 {
    let jobs = options.jobs.or_else(|| thread::available_parallelism().ok()).unwrap_or(NonZero::<usize>::MIN);
    let (mut held, mut failures) = (0, 0);
    let mut total = Report::default();
    let seeds = options.start..options.start.saturating_add(options.seeds);
    scenarios::run_seeds(scenario, seeds, jobs, |result| {
        match result {
            Ok(one) => {
                total.add(&one);
                held += 1;
            }
            Err(failure) => {
                report(&failure);
                failures += 1;
                if !options.keep_going {
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    });
    println!("{}: {} seeds, {failures} failed; {total}", scenario.name, held + failures);
    failures
}

fn report(failure: &ScenarioFailure) {
    eprintln!("FAILED {failure}");
    eprintln!("replay with: {}", failure.replay());
}
