//! `bench queue`: the evaluation of BDQS, section V, for the embedded store and for Cassandra.

mod client;
mod cycles;
mod depth;
mod load;
mod neighbours;
mod nodes;
mod order;
mod plot;
mod traffic;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;

use load::{Load, Measured};
use nodes::{Nodes, StoreArgs, create_queues};
use tailwater_load::measuring::on_threads;
use tailwater_load::report::{self, ReportFormat};
use tailwater_load::stats::round;

/// What to measure of queues.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Throughput at several numbers of queues (figure 4).
    Scale(Args),
    /// Response times at several loads (figure 5).
    Response(Args),
    /// Duplicates and order for 1 to 3 receivers and several order hints (figure 6).
    Consistency(Args),
    /// Duplicates, order and loss while requests and answers are dropped, receivers quit and nodes are killed (figures
    /// 7, 8).
    Failures(Args),
    /// Sends, receives and deletes in a closed loop. `--endpoint` measures another server.
    Cycles(cycles::Args),
    /// How long a receive takes, and the node's memory: with many messages in a queue, and after many have passed
    /// through one.
    Depth(depth::Args),
    /// Response times of an account that keeps within its quota, alone and beside one that does not.
    Neighbours(neighbours::Args),
}

/// Flags of all of them.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Numbers of queues, one run for each.
    #[arg(long, value_delimiter = ',', default_value = "4")]
    queues: Vec<usize>,
    /// Receivers of each queue, one run for each number. By default 3, for `consistency` 1 to 3.
    #[arg(long, value_delimiter = ',')]
    receivers: Vec<usize>,
    /// Order hints, one run for each. By default 1, for `consistency` 1, 2, 3, auto and infinity.
    #[arg(long, value_delimiter = ',')]
    order_hint: Vec<tailwater_queue::OrderHint>,
    /// Messages of each of the three senders of a queue.
    #[arg(long, default_value_t = 100)]
    messages: u32,
    /// Bytes of a body.
    #[arg(long, default_value_t = 2_048, value_name = "BYTES")]
    body_bytes: usize,
    /// Pauses between two sends of a sender, in milliseconds. `response` makes a run for each.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "MS")]
    send_pause_ms: Vec<u64>,
    /// How long a receiver works on a message, in milliseconds.
    #[arg(long, default_value_t = 0, value_name = "MS")]
    receive_pause_ms: u64,
    /// `failures`: chances that a request is dropped, that an answer is dropped, and that a receiver quits. There is
    /// one run for each.
    #[arg(long, value_delimiter = ',', default_value = "0.0001,0.001,0.01,0.1", value_name = "P")]
    chance: Vec<f64>,
    /// `failures`: mean time between kills of a node, in seconds, in place of the chances. 0 kills none.
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS")]
    mttf_s: f64,
    /// `failures`: how long a killed node is away, in seconds.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    mttr_s: f64,
    /// Draw the figure into this file, as an SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// What is reported.
#[derive(Serialize)]
struct Report {
    bench: String,
    store: &'static str,
    consistency: tailwater_queue::Consistency,
    nodes: usize,
    messages: u32,
    body_bytes: usize,
    receive_pause_ms: u64,
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Run {
    receivers: usize,
    order_hint: String,
    send_pause_ms: u64,
    chance: f64,
    kills: u32,
    /// CPU of the nodes for one message, sent, received and deleted, in milliseconds.
    node_ms: f64,
    #[serde(flatten)]
    measured: Measured,
}

/// One run of several.
struct QueuePlan {
    queues: usize,
    order_hint: tailwater_queue::OrderHint,
    load: Load,
}

/// Runs one of them.
pub fn run(command: Command) -> anyhow::Result<()> {
    use tailwater_queue::OrderHint::{Auto, Infinity, K};
    let (name, args) = match command {
        Command::Scale(args) => ("scale", args),
        Command::Response(args) => ("response", args),
        Command::Consistency(args) => ("consistency", args),
        Command::Failures(args) => ("failures", args),
        Command::Cycles(args) => return cycles::run(args),
        Command::Depth(args) => return depth::run(args),
        Command::Neighbours(args) => return neighbours::run(args),
    };
    let or =
        |given: &[usize], usual: &[usize]| if given.is_empty() { usual.to_vec() } else { given.to_vec() };
    let all = name == "consistency";
    let receivers = or(&args.receivers, if all { &[1, 2, 3] } else { &[3] });
    let hints = match (args.order_hint.is_empty(), all) {
        (false, _) => args.order_hint.clone(),
        (true, true) => vec![K(1), K(2), K(3), Auto, Infinity],
        (true, false) => vec![K(1)],
    };
    let chances = if name == "failures" && args.mttf_s == 0.0 { args.chance.clone() } else { vec![0.0] };
    let mut runs = Vec::new();
    let mut nodes = Nodes::start(&args.store)?;
    let count = nodes.addresses().len();
    for queues in &args.queues {
        for receivers in &receivers {
            for order_hint in &hints {
                for send_pause_ms in &args.send_pause_ms {
                    for chance in &chances {
                        let load = Load {
                            receivers: *receivers,
                            messages: args.messages,
                            body_bytes: args.body_bytes,
                            send_pause: Duration::from_millis(*send_pause_ms),
                            receive_pause: Duration::from_millis(args.receive_pause_ms),
                            chance: *chance,
                        };
                        let plan = QueuePlan { queues: *queues, order_hint: *order_hint, load };
                        runs.push(run_one(&args, &mut nodes, &plan, runs.len())?);
                    }
                }
            }
        }
    }
    if let Some(file) = &args.plot {
        std::fs::write(file, plot::draw(name, args.store.name(), &runs))
            .with_context(|| format!("{} can't be written", file.display()))?;
    }
    let report = Report {
        bench: format!("queue {name}"),
        store: args.store.name(),
        consistency: args.store.consistency,
        nodes: count,
        messages: args.messages,
        body_bytes: args.body_bytes,
        receive_pause_ms: args.receive_pause_ms,
        runs,
    };
    report::print(args.output, &report)
}

fn run_one(args: &Args, nodes: &mut Nodes, plan: &QueuePlan, number: usize) -> anyhow::Result<Run> {
    let addresses = nodes.addresses();
    let names = (0..plan.queues).map(|queue| format!("run-{number}-{queue}"));
    let hint = plan.order_hint.to_string();
    let urls = create_queues(addresses[0], names, &hint, args.store.consistency)?;
    let load = &plan.load;
    let send_pause_ms = load.send_pause.as_millis() as u64;
    let before = nodes.cpu();
    let (measured, kills) = match args.mttf_s > 0.0 {
        false => (load.run(&addresses, &urls)?, 0),
        true => killing(args, nodes, || load.run(&addresses, &urls))?,
    };
    let cpu = nodes.cpu().saturating_sub(before);
    eprintln!(
        "{} receivers, K {hint}, pause {send_pause_ms} ms, p {}: {measured:?}",
        load.receivers, load.chance
    );
    Ok(Run {
        receivers: load.receivers,
        order_hint: hint,
        send_pause_ms,
        chance: load.chance,
        kills,
        node_ms: round(cpu.as_secs_f64() * 1e3 / measured.order.sent.max(1) as f64, 3),
        measured,
    })
}

/// Kills nodes while `during` runs: one after the other, each away for the time of its repair.
fn killing(
    args: &Args,
    nodes: &mut Nodes,
    during: impl Fn() -> anyhow::Result<Measured> + Sync,
) -> anyhow::Result<(Measured, u32)> {
    let over = AtomicBool::new(false);
    let load = |_| {
        let done = during();
        over.store(true, Ordering::Release);
        done
    };
    // Each node fails once in the mean time: all of them together that much more often.
    let count = nodes.addresses().len();
    let between = Duration::from_secs_f64(args.mttf_s / count as f64);
    let wait = |duration: Duration| {
        let begin = Instant::now();
        while begin.elapsed() < duration && !over.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(20));
        }
        !over.load(Ordering::Acquire)
    };
    let (mut measured, kills) = on_threads(1, load, || {
        let mut kills = 0;
        while wait(between) {
            let number = kills as usize % count;
            nodes.kill(number);
            kills += 1;
            wait(Duration::from_secs_f64(args.mttr_s));
            nodes.restart(number)?;
        }
        Ok(kills)
    })?;
    Ok((measured.remove(0), kills))
}
