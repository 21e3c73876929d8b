//! The paper's figures 4 to 8, drawn from what was measured.

use super::Run;
use crate::charts::{self, Row};

/// Draws the runs of one bench.
pub fn draw(bench: &str, store: &str, runs: &[Run]) -> String {
    match bench {
        "scale" => {
            let values = |run: &Run| {
                vec![("sends", run.measured.sends_per_s), ("receives + deletes", run.measured.cycles_per_s)]
            };
            let rows = rows(runs, |run| format!("{} queues", run.measured.queues), values);
            charts::bars(&format!("Throughput, {store}"), "/s", false, &rows)
        }
        "response" => {
            let label = |run: &Run| {
                format!("{} queues, {:.0} sends/s", run.measured.queues, run.measured.sends_per_s)
            };
            let values = |run: &Run| {
                let (send, receive) = (run.measured.send_ms, run.measured.receive_ms);
                vec![
                    ("send p50", send.p50),
                    ("send p99", send.p99),
                    ("receive p50", receive.p50),
                    ("receive p99", receive.p99),
                ]
            };
            charts::bars(&format!("Response times, {store}"), "ms", true, &rows(runs, label, values))
        }
        _ => {
            let label = |run: &Run| match bench {
                "consistency" => format!("{} receivers, K = {}", run.receivers, run.order_hint),
                _ => format!("p = {}, {} kills, K = {}", run.chance, run.kills, run.order_hint),
            };
            let values = |run: &Run| {
                let measured = &run.measured;
                vec![
                    ("duplicates, %", 100.0 * measured.duplication_rate),
                    ("out of order, %", 100.0 * measured.out_of_order_rate),
                    ("displacement", measured.average_displacement),
                ]
            };
            charts::bars(&format!("Duplicates and order, {store}"), "", false, &rows(runs, label, values))
        }
    }
}

fn rows(
    runs: &[Run],
    label: impl Fn(&Run) -> String,
    values: impl Fn(&Run) -> Vec<(&'static str, f64)>,
) -> Vec<Row<'static>> {
    runs.iter().map(|run| Row { label: label(run), values: values(run) }).collect()
}
