//! What goes wrong in the cluster.

use std::time::Duration;

use crate::disk::{Fault, Faults};
use crate::net::Weather;
use crate::rng::Rng;
use crate::scenarios::cells::{self, Kind};
use crate::world::{Crash, Node};

use super::Cluster;

/// Breaks one thing after the other until it is calm.
pub(super) async fn trouble(shared: Cluster, readers: Vec<Node>, mut rng: Rng) {
    loop {
        shared.outside.sleep(Duration::from_micros(rng.between(500, 60_000))).await;
        if shared.state.lock().calm || shared.is_over() {
            return;
        }
        let mut others = shared.backends.clone();
        others.extend(readers.iter().cloned());
        let any = others[rng.index(others.len())].clone();
        match rng.below(12) {
            0 => {
                shared.count("kills of the owner");
                shared.owner.crash(Crash::Process);
            }
            1 => {
                shared.count("power failures of the owner");
                shared.owner.crash(Crash::Power);
            }
            2 | 3 => {
                shared.count("crashes of the owner at an I/O");
                shared.owner.disk().crash_at_change(Some(1 + rng.below(60)));
            }
            4 | 5 => restart_backends(&shared, &mut rng).await,
            6 => readers[rng.index(readers.len())].crash(Crash::Process),
            7 => {
                shared.count("partitions");
                let with = if rng.below(2) == 0 { shared.owner.clone() } else { readers[0].clone() };
                shared.net.partition(&with, &any);
                shared.outside.sleep(Duration::from_micros(rng.between(1_000, 150_000))).await;
                shared.net.heal(&with, &any);
            }
            8 => {
                let foul = rng.below(2) == 0;
                shared.net.set_weather(if foul { Weather::FOUL } else { Weather::FAIR });
            }
            9 => {
                shared.count("disk faults");
                let faults = Faults {
                    sync: Fault::Next(rng.below(2) as u32),
                    write: Fault::Next(rng.below(2) as u32),
                    sync_dir: Fault::Next(rng.below(2) as u32),
                    ..Faults::default()
                };
                shared.owner.disk().set_faults(faults);
            }
            10 => {
                shared.count("full disks");
                let disk = shared.owner.disk();
                disk.set_capacity(disk.used() + rng.below(64 << 10));
                shared.outside.sleep(Duration::from_micros(rng.between(1_000, 100_000))).await;
                disk.set_capacity(u64::MAX);
            }
            _ => {
                // Up to half a minute, in either direction.
                let by = rng.below(60_000) as i64 - 30_000;
                shared.owner.skew_wall_ms(by);
            }
        }
    }
}

/// One backend process, or two, or the whole cell; or one backend that only forgets.
async fn restart_backends(shared: &Cluster, rng: &mut Rng) {
    shared.count("deaths of backends");
    let dying: Vec<usize> = match rng.below(4) {
        0 => (0..shared.backends.len()).collect(),
        1 => vec![0, 1],
        _ => vec![rng.index(shared.backends.len())],
    };
    for &number in &dying {
        shared.backends[number].crash(Crash::Process);
    }
    shared.outside.sleep(Duration::from_micros(rng.between(100, 100_000))).await;
    for &number in &dying {
        start(shared, number);
    }
}

fn start(shared: &Cluster, number: usize) {
    let node = &shared.backends[number];
    if !node.is_up() {
        node.start();
        for kind in [Kind::Data, Kind::Metadata] {
            cells::start_backend(&shared.net, node, number, kind, shared.buckets);
        }
    }
}

/// Lets everything work again.
pub(super) fn mend(shared: &Cluster, readers: &[Node]) {
    shared.net.set_weather(Weather::FAIR);
    let disk = shared.owner.disk();
    disk.set_faults(Faults::default());
    disk.set_capacity(u64::MAX);
    disk.crash_at_change(None);
    for number in 0..shared.backends.len() {
        start(shared, number);
    }
    let nodes: Vec<&Node> = shared.backends.iter().chain(readers).chain([&shared.owner]).collect();
    for (place, a) in nodes.iter().enumerate() {
        for b in &nodes[place + 1..] {
            shared.net.heal(a, b);
        }
    }
}
