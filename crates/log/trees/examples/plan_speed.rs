//! How long a plan takes: `cargo run --release -p tailwater-trees --example plan_speed -- CLUSTERS FAN_OUT DEPTH`
//!
//! Clusters are in 6 continents of up to 8 metros each, with links between all of them.

#![allow(clippy::disallowed_methods)] // it measures, and no simulator runs it

use std::time::Instant;

use tailwater_trees::{ClusterEntry, LinkEntry, TreeCosts, TreeRequest, plan};

fn main() {
    let arguments: Vec<usize> =
        std::env::args().skip(1).map(|text| text.parse().expect("a number")).collect();
    let [clusters, fan_out_max, depth_max] = arguments.try_into().unwrap_or([300, 8, 4]);
    let place = |cluster: usize| (cluster % 6, cluster % 48);
    let name = |cluster: usize| format!("continent{}-metro{}-{cluster}", cluster % 6, cluster % 48);
    let link = |a: usize, b: usize| {
        let (cost_per_gb, delay_ms) = match (place(a), place(b)) {
            ((continent, _), (other, _)) if continent != other => {
                (0.05 + ((a * 7 + b * 7) % 11) as f64 / 100.0, 90.0)
            }
            ((_, metro), (_, other)) if metro != other => (0.02 + ((a + b) % 5) as f64 / 500.0, 15.0),
            _ => (0.01, 1.0),
        };
        LinkEntry {
            between: [name(a), name(b)],
            cost_per_gb,
            delay_ms,
            bandwidth_bytes_per_s: None,
            failing: false,
        }
    };
    let costs = TreeCosts {
        clusters: (0..clusters)
            .map(|of| ClusterEntry { name: name(of), ..ClusterEntry::default() })
            .collect(),
        links: (0..clusters).flat_map(|a| (0..a).map(move |b| (a, b))).map(|(a, b)| link(a, b)).collect(),
    };
    let request = TreeRequest { depth_max, fan_out_max, ..TreeRequest::new("s", &name(0)) };
    let started = Instant::now();
    let found = plan(&costs, &request).unwrap_or_else(|error| panic!("{error}"));
    println!(
        "{} clusters, {} links: {} hops, fan-out {}, cost {:.3} for each GB, {} ms; planned in {:?}",
        found.clusters,
        costs.links.len(),
        found.depth,
        found.fan_out,
        found.cost_per_gb,
        found.delay_ms,
        started.elapsed()
    );
}
