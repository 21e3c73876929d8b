//! How many records a second the log takes, durably, on this machine's disk:
//! `cargo run --release -p tailwater-log --example append_rate -- SHARDS BATCHES_IN_FLIGHT RECORDS_PER_BATCH SECONDS`
//!
//! 128-byte records, immediate flush, one process; the batches are made beforehand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tailwater_env::Env;
use tailwater_format::{BatchBuilder, Codec, ShardNumber};
use tailwater_log::{AppendOptions, Log, LogConfig, StreamConfig};

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).map(|text| text.parse().expect("a number")).collect();
    let [shards, in_flight, records, seconds] = arguments.try_into().unwrap_or([1, 64, 64, 5]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("a runtime").block_on(async move {
        let env = Env::real();
        let dir = tempfile::tempdir_in(".").expect("a directory");
        let log = Log::open(&env, LogConfig::default(), dir.path(), None).await.expect("opened");
        let config = StreamConfig { shards: shards as u32, ..StreamConfig::default() };
        let stream = log.create_stream("rate", config).await.expect("created").id;
        let mut builder = BatchBuilder::new();
        for _ in 0..records {
            builder.append(None, Some(&[7; 128]), &[], env.wall_ms()).expect("small");
        }
        let batch = builder.finish(Codec::None);
        for shard in 0..shards {
            log.append(stream, ShardNumber(shard as u32), batch.clone()).await.expect("appended");
        }

        let (stop, acks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (slowest, began) = (Arc::new(AtomicU64::new(0)), env.now());
        let writers = (0..in_flight.min(64)).map(|writer| {
            let (log, env, batch) = (log.clone(), env.clone(), batch.clone());
            let (stop, acks, slowest) = (Arc::clone(&stop), Arc::clone(&acks), Arc::clone(&slowest));
            let (done, answer) = tokio::sync::oneshot::channel();
            let work = env.clone().spawn("writer", async move {
                let each = in_flight / in_flight.min(64);
                let mut shard = writer;
                while !stop.load(Ordering::Relaxed) {
                    let began = env.now();
                    let pending: Vec<_> = (0..each)
                        .map(|_| {
                            shard += 1;
                            let shard = ShardNumber((shard * 31 % shards) as u32);
                            log.submit(stream, shard, batch.clone(), AppendOptions::default())
                        })
                        .collect();
                    for pending in pending {
                        pending.expect("room").outcome().await.expect("appended");
                        acks.fetch_add(1, Ordering::Relaxed);
                    }
                    slowest.fetch_max(env.now().since(began).as_micros() as u64, Ordering::Relaxed);
                }
                let _ = done.send(());
            });
            work.detach();
            answer
        });
        let writers: Vec<_> = writers.collect();
        env.sleep(Duration::from_secs(seconds)).await;
        stop.store(true, Ordering::Relaxed);
        join_all(writers).await;
        let elapsed = env.now().since(began).as_secs_f64();
        let appends = acks.load(Ordering::Relaxed) as f64 / elapsed;
        let stats = log.journal().stats();
        println!(
            "{shards} shards, {in_flight} batches of {records} in flight: {:.0} records/s in {appends:.0} appends/s, \
             {:.0} entries/s, {:.0} syncs/s of {:?}, slowest round {} us",
            appends * records as f64,
            log.stats().entries as f64 / elapsed,
            stats.sync_times.count() as f64 / elapsed,
            stats.sync_times.quantile(0.5),
            slowest.load(Ordering::Relaxed),
        );
        let began = env.now();
        log.store().flush().await.expect("flushed");
        let flushed = env.now();
        log.close().await;
        println!("segment files filled in {:?}, closed in {:?} more", flushed.since(began), env.now().since(flushed));
    });
}
