//! How fast the journal acknowledges, beside what the disk itself does in the same run.
//!
//! ```text
//! cargo run --release -p tailwater-journal --example sync_rate [DIR [SECONDS_EACH]]
//! ```
//!
//! The host drifts, so raw and journal rounds alternate; look at the ratios. Latencies are in microseconds,
//! from before the append until its acknowledgement is seen by the appender.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hdrhistogram::Histogram;
use tailwater_env::{Env, Instant, OpenMode};
use tailwater_journal::{
    Journal, JournalAppendError, JournalAppendOptions, JournalConfig, JournalPosition, Tag,
};

const TAG: Tag = Tag(1);
const ROUNDS: usize = 3;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from).join("sync_rate");
    let seconds: f64 = arguments.next().map_or(2.0, |text| text.parse().expect("seconds"));
    let duration = Duration::from_secs_f64(seconds);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .expect("a runtime starts");
    let _entered = runtime.enter();
    let env = Env::real();
    // What an earlier run left would be replayed first.
    let _ = env.disk().remove_dir_all(&dir);
    env.disk().create_dir_all(&dir).expect("the directory can be made");

    println!("{:<46} {:>11} {:>9} {:>8} {:>8} {:>8}", "", "records/s", "MB/s", "p50", "p99", "max");
    for round in 0..ROUNDS {
        raw(&env, &dir.join(format!("growing{round}")), false, duration);
        raw(&env, &dir.join(format!("written{round}")), true, duration);
        for (bytes, in_flight, preallocated) in [
            (4072, 1, false),
            (4072, 1, true),
            (128, 1, true),
            (128, 64, true),
            (128, 4096, true),
            (128, 65536, true),
            (1024, 4096, true),
        ] {
            let journal_dir = dir.join(format!("journal{round}-{bytes}-{in_flight}-{preallocated}"));
            runtime.block_on(journal(&env, &journal_dir, bytes, in_flight, preallocated, duration));
            env.disk().remove_dir_all(&journal_dir).expect("removed");
        }
    }
    env.disk().remove_dir_all(&dir).expect("removed");
}

fn print(name: &str, count: u64, bytes: u64, took: Duration, latencies: &Histogram<u64>) {
    let per_second = count as f64 / took.as_secs_f64();
    let us = |ns: u64| ns as f64 / 1000.0;
    println!(
        "{name:<46} {per_second:>11.0} {:>9.1} {:>8.0} {:>8.0} {:>8.0}",
        per_second * bytes as f64 / 1e6,
        us(latencies.value_at_quantile(0.5)),
        us(latencies.value_at_quantile(0.99)),
        us(latencies.max()),
    );
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

/// 4 KiB write + fdatasync, one after the other: to a growing file, or over written bytes.
fn raw(env: &Env, path: &Path, preallocated: bool, duration: Duration) {
    const BYTES: u64 = 4096;
    const FILE_BYTES: u64 = 64 << 20;
    let file = env.disk().open(path, OpenMode::CreateNew).expect("created");
    if preallocated {
        for slice in 0..FILE_BYTES >> 20 {
            file.write_all_at(&vec![0; 1 << 20], slice << 20).expect("written");
        }
        file.sync_data().expect("synced");
    }
    let mut latencies = histogram();
    let begun = env.now();
    let mut position = 0;
    let mut before = begun;
    while before.since(begun) < duration {
        file.write_all_at(&[1; BYTES as usize], position).expect("written");
        file.sync_data().expect("synced");
        position = if preallocated { (position + BYTES) % FILE_BYTES } else { position + BYTES };
        let after = env.now();
        latencies.record(after.since(before).as_nanos() as u64).expect("in range");
        before = after;
    }
    let name = if preallocated { "raw 4 KiB over written bytes" } else { "raw 4 KiB to a growing file" };
    print(name, latencies.len(), BYTES, before.since(begun), &latencies);
    env.disk().remove_file(path).expect("removed");
}

/// One task that keeps `in_flight` records on their way.
async fn journal(
    env: &Env,
    dir: &Path,
    bytes: usize,
    in_flight: usize,
    preallocated: bool,
    duration: Duration,
) {
    let config = JournalConfig { backlog_bytes: 64 << 20, ..JournalConfig::default() };
    let journal = Journal::open(env, dir, config.clone(), &mut |_, _, _| Ok(())).expect("opened");
    let append = JournalAppendOptions::new(journal.incarnation());
    let durable = journal.durable();
    if preallocated {
        // The first file grows, as none was ready: fill it, so that those written ahead are measured.
        while journal.stats().spares < 2 {
            env.sleep(Duration::from_millis(10)).await;
        }
        let filler = vec![0; 1 << 20];
        let mut filled = 0;
        while filled < config.file_bytes {
            filled += filler.len() as u64;
            let position = journal.append(TAG, &[&filler], append).expect("room");
            durable.wait_for(position).await.expect("durable");
            journal.trim(TAG, position);
        }
    }
    let groups_before = journal.stats().groups;
    let record = vec![7; bytes];
    let mut latencies = histogram();
    let mut sent: VecDeque<(JournalPosition, Instant)> = VecDeque::with_capacity(in_flight);
    let begun = env.now();
    let mut now = begun;
    while now.since(begun) < duration {
        now = env.now();
        while sent.len() < in_flight {
            match journal.append(TAG, &[&record], append) {
                Ok(position) => sent.push_back((position, now)),
                Err(JournalAppendError::Backlog { .. } | JournalAppendError::Full(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let Some((oldest, _)) = sent.front() else {
            journal.ready().await;
            continue;
        };
        durable.wait_for(*oldest).await.expect("durable");
        now = env.now();
        let position = durable.position();
        while let Some((_, at)) = sent.pop_front_if(|(end, _)| *end <= position) {
            latencies.record(now.since(at).as_nanos() as u64).expect("in range");
        }
        journal.trim(TAG, position);
    }
    let took = now.since(begun);
    let count = latencies.len();
    let name =
        format!("journal {bytes} B, {in_flight} in flight{}", if preallocated { "" } else { ", growing" });
    print(&name, count, bytes as u64, took, &latencies);
    let stats = journal.stats();
    println!(
        "{:<46} {:>11.0} {:>9} {:>8.0} {:>8.0}",
        format!("   its groups of {}, and their fdatasyncs", count / (stats.groups - groups_before).max(1)),
        (stats.groups - groups_before) as f64 / took.as_secs_f64(),
        "",
        stats.sync_times.quantile(0.5).as_nanos() as f64 / 1000.0,
        stats.sync_times.quantile(0.99).as_nanos() as f64 / 1000.0,
    );
    journal.close().await.expect("closed");
}
