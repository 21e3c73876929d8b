//! What goes wrong in the cluster.

use std::time::Duration;

use tailwater_format::{Offset, ShardNumber};
use tailwater_log::StreamError;

use crate::checkers::Violation;
use crate::disk::{Fault, Faults};
use crate::net::Weather;
use crate::rng::Rng;
use crate::scenarios::cells;
use crate::world::{Crash, Node, run_on};

use super::{Cluster, STREAM};

/// Breaks one thing after the other until it is calm.
pub(super) async fn trouble(shared: Cluster, readers: Vec<Node>, mut rng: Rng) {
    loop {
        shared.outside.sleep(Duration::from_micros(rng.between(500, 35_000))).await;
        if shared.state.lock().calm || shared.is_over() {
            return;
        }
        let mut others = shared.backends.clone();
        others.extend(readers.iter().cloned());
        let any = others[rng.index(others.len())].clone();
        let what = match rng.below(16) {
            1..=3 | 9 | 10 if shared.kills_only => 0,
            // The disk's next owner does not see what the one before has not synced, as no kernel's would.
            13 if shared.is_interval() => 0,
            what => what,
        };
        match what {
            0 => {
                shared.count("kills of the owner");
                shared.owner().crash(Crash::Process);
            }
            1 => {
                shared.count("power failures of the owner");
                shared.owner().crash(Crash::Power);
            }
            2 | 3 => {
                shared.count("crashes of the owner at an I/O");
                shared.owner().disk().crash_at_change(Some(1 + rng.below(60)));
            }
            4 | 5 => restart_backends(&shared, &mut rng).await,
            6 => readers[rng.index(readers.len())].crash(Crash::Process),
            7 => {
                shared.count("partitions");
                let with = if rng.below(2) == 0 { shared.owner().clone() } else { readers[0].clone() };
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
                shared.owner().disk().set_faults(faults);
            }
            10 => {
                shared.count("full disks");
                let disk = shared.owner().disk();
                disk.set_capacity(disk.used() + rng.below(64 << 10));
                shared.outside.sleep(Duration::from_micros(rng.between(1_000, 100_000))).await;
                disk.set_capacity(u64::MAX);
            }
            11 | 12 => truncate(&shared, &mut rng).await,
            13 => replace_owner(&shared),
            14 => delete_and_create(&shared).await,
            _ => {
                // Up to half a minute, in either direction.
                let by = rng.below(60_000) as i64 - 30_000;
                shared.owner().skew_wall_ms(by);
            }
        }
    }
}

/// Removes records of a shard, all of them if it comes to that.
async fn truncate(shared: &Cluster, rng: &mut Rng) {
    let shard = rng.below(u64::from(shared.stream_config.shards)) as u32;
    let (Some((log, env)), Some((generation, _))) = (shared.log(), shared.generation()) else { return };
    let before = rng.below(shared.checker(generation, shard).acknowledged_end() + 1);
    shared.checker(generation, shard).truncating(before);
    let truncating = async move { log.truncate(STREAM, ShardNumber(shard), Offset(before)).await };
    match run_on(&env, "truncate", truncating).await {
        Some(Ok(start)) => {
            shared.count("truncations");
            shared.told_of_start(generation, shard, start);
            let truncated = shared.checker(generation, shard).truncated(start.0);
            shared.note(truncated);
        }
        Some(Err(StreamError::BeyondEnd { .. })) if shared.state.lock().may_lose => {}
        Some(Err(error @ (StreamError::BeyondEnd { .. } | StreamError::NoShard { .. }))) => {
            shared.note(Err(Violation::new(format!("a correct truncation was refused: {error}"))));
        }
        Some(Err(_)) | None => {}
    }
}

/// The disk goes to the other node, where the log is opened. The owner before goes on without it: it writes to the
/// cells what it has, and takes appends, until the disk comes back to its node.
fn replace_owner(shared: &Cluster) {
    shared.count("owners replaced");
    let before = shared.current();
    let after = 1 - before;
    shared.owners[after].crash(Crash::Process);
    shared.logs.lock()[after] = None;
    let disk = shared.owners[before].disk();
    disk.crash_at_change(None);
    shared.owners[after].take_disk_of(&shared.owners[before]);
    shared.current.send_replace(after);
}

/// The stream is deleted, and created again under its name.
async fn delete_and_create(shared: &Cluster) {
    let (Some((log, env)), Some((generation, _))) = (shared.log(), shared.generation()) else { return };
    shared.state.lock().streams[generation].deleting = true;
    let deleting = log.clone();
    match run_on(&env, "delete", async move { deleting.delete_stream(STREAM).await }).await {
        Some(Ok(())) => {
            shared.count("deletions");
            shared.state.lock().streams[generation].deleted = true;
        }
        // Whether it happened is seen at the next start.
        Some(Err(_)) | None => return,
    }
    let place = shared.current();
    while shared.current() == place && !shared.is_over() {
        let (creating, config) = (log.clone(), shared.stream_config.clone());
        let created = run_on(&env, "create", async move { creating.create_stream(STREAM, config).await });
        match created.await {
            Some(Ok(created)) => return shared.found(created.id),
            // The disk, for a while.
            Some(Err(_)) => shared.outside.sleep(Duration::from_millis(1)).await,
            // The next start does it.
            None => return,
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
        cells::start_backends(&shared.net, node, number, shared.buckets);
    }
}

/// Lets everything work again.
pub(super) fn mend(shared: &Cluster, readers: &[Node]) {
    shared.net.set_weather(Weather::FAIR);
    let disk = shared.owner().disk();
    disk.set_faults(Faults::default());
    disk.set_capacity(u64::MAX);
    disk.crash_at_change(None);
    for number in 0..shared.backends.len() {
        start(shared, number);
    }
    let nodes: Vec<&Node> = shared.backends.iter().chain(readers).chain(&shared.owners).collect();
    for (place, a) in nodes.iter().enumerate() {
        for b in &nodes[place + 1..] {
            shared.net.heal(a, b);
        }
    }
}
