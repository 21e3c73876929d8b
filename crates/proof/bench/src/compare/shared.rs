//! Many consumers in shared memory: what they cost, beside Aeron IPC.

use serde_json::Value;

use super::Effort;
use super::markdown::MarkdownTable;
use super::peers::{Peer, java, words};
use super::runner::{Missing, Runner, number, ratios};
use super::series::Series;
use crate::charts::{self, Row};

const CONSUMERS: usize = 256;
const RATE_MBIT: u32 = 240;

/// What all rounds brought.
pub struct Results {
    tailwater: Vec<Result<Value, Missing>>,
    aeron: Vec<Result<Value, Missing>>,
}

/// Runs all of them.
pub fn run(runner: &mut Runner, effort: &Effort) -> anyhow::Result<Results> {
    let mut results = Results { tailwater: Vec::new(), aeron: Vec::new() };
    let load = format!("--consumers {CONSUMERS} --rate-mbit {RATE_MBIT} --duration-s {}", effort.shared_s);
    for round in 0..effort.rounds {
        runner.begin_round("shared memory", round);
        let warmup_s = effort.warmup_s;
        // Each consumer computes each checksum.
        let args = words(&format!(
            "fanout {load} --warmup-s {warmup_s} --flush 5 --every-us 5000 --validate consumer"
        ));
        results.tailwater.push(runner.tailwater(
            "shm-tailwater",
            &args,
            effort.warmup_s + effort.shared_s,
        )?);
        results.aeron.push(aeron(runner, effort, &load)?);
    }
    Ok(results)
}

fn aeron(runner: &mut Runner, effort: &Effort, load: &str) -> anyhow::Result<Result<Value, Missing>> {
    if let Err(missing) = Peer::Aeron.check(runner.root()) {
        return Ok(Err(missing));
    }
    let warmup_s = effort.cold_jvm_s.min(10);
    let mut command = java(runner, "aeron", "AeronFanout");
    command.args(words(load)).args(words(&format!("--warmup-s {warmup_s}")));
    runner.run("shm-aeron", command, warmup_s + effort.shared_s)
}

/// Node, backends, consumers and producer of Tailwater; Aeron is one process.
fn cores(value: &Value) -> f64 {
    match value.get("cpu_cores") {
        Some(_) => ["/node", "/consumers", "/producer"]
            .map(|of| number(value, &format!("/cpu_cores{of}")))
            .iter()
            .sum(),
        None => number(value, "/cores"),
    }
}

/// The table and the plot.
pub fn show(runner: &Runner, results: &Results) -> anyhow::Result<String> {
    let columns =
        ["system", "what is stored", "keeps up", "Gbit/s", "delay p50, ms", "delay p99, ms", "cores in all"];
    let mut table = MarkdownTable::new(
        "256 consumers in shared memory, 240 Mbit/s of 1 KiB messages, each reads everything",
        &columns,
    );
    let aeron = Peer::Aeron.title("Aeron IPC", runner.root());
    let systems = [
        ("Tailwater", "everything, fdatasync every 5 ms", &results.tailwater),
        (aeron.as_str(), "nothing", &results.aeron),
    ];
    let mut rows = Vec::new();
    for (name, stored, runs) in systems {
        let values: Vec<&Value> = runs.iter().flatten().collect();
        for missing in
            runs.iter().filter_map(|run| run.as_ref().err()).take(if values.is_empty() { 1 } else { 9 })
        {
            table.missing(name, &missing.0);
        }
        if values.is_empty() {
            continue;
        }
        let series = |pointer| Series::of(values.iter().map(|value| number(value, pointer)));
        let kept = values.iter().filter(|value| value["keeps_up"] == true).count();
        let used = Series::of(values.iter().map(|value| cores(value)));
        table.row(&[
            name,
            stored,
            &format!("{kept} of {} times", values.len()),
            &series("/delivered_gbit_s").show(1),
            &series("/delay_ms/p50").show(3),
            &series("/delay_ms/p99").show(3),
            &used.show(3),
        ]);
        rows.push(Row { label: name.to_owned(), values: vec![("cores", used.median())] });
    }
    let ratio = ratios(&results.tailwater, &results.aeron, cores);
    runner.write(
        "cpu-of-256-consumers.svg",
        &charts::bars("CPU of 256 consumers at 240 Mbit/s", "cores", false, &rows),
    )?;
    Ok(table.end(&format!(
        "- Tailwater over Aeron, cores: {}\n\nTailwater: `--flush 5 --every-us 5000`, a producer, a node, six cache \
         backends and the consumers, each a process, and a checksum over every record by every consumer. Aeron: one \
         process with the driver, the producer and one thread that polls all subscriptions; no log, no checksum.\n\n\
         ![](cpu-of-256-consumers.svg)",
        ratio.show(2),
    )))
}
