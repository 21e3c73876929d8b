//! The owner's process: started again whenever it is down, and opening the log each time.

use std::path::Path;
use std::time::Duration;

use tailwater_env::Env;
use tailwater_format::SegmentNumber;
use tailwater_journal::JournalConfig;
use tailwater_log::{Durability, Flush, Log, LogConfig, StreamConfig};
use tailwater_meta::MetaConfig;
use tailwater_store::StoreConfig;

use crate::checkers::Violation;
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Crashed};

use super::Cluster;

const STREAM: &str = "stream";

/// Keeps the owner up, for as long as the scenario lasts.
pub(super) async fn supervise(shared: Cluster, mut rng: Rng) {
    let config = draw_config(&mut rng);
    let stream = draw_stream(&mut rng, &shared);
    while !shared.is_over() {
        if !shared.owner.is_up() {
            shared.outside.sleep(Duration::from_micros(rng.between(100, 20_000))).await;
            shared.owner.start();
        }
        let env = shared.owner.env_with_disk(|disk| shared.plant.disk(disk));
        let opening = open(shared.clone(), env.clone(), config.clone(), stream.clone());
        match shared.owner.run("open", opening).await {
            Ok(Ok(log)) => {
                shared.count("starts of the owner");
                *shared.log.lock() = Some((log, env));
                shared.owner.died().await;
                *shared.log.lock() = None;
            }
            Ok(Err(why)) => {
                // The process ends with what is wrong, and is started again.
                let excused =
                    why.contains("injected") || why.contains("space") || why.contains("not available");
                if !excused && shared.owner.is_up() {
                    shared.note(Err(Violation::new(format!("the log can't be opened: {why}"))));
                }
                shared.count("failed starts of the owner");
                shared.owner.crash(Crash::Power);
            }
            Err(Crashed) => shared.count("crashes while starting"),
        }
    }
}

async fn open(shared: Cluster, env: Env, config: LogConfig, stream: StreamConfig) -> Result<Log, String> {
    let cells = shared.cells(&shared.owner, &env, shared.plant).await;
    let log = Log::open(&env, config, Path::new("/data"), Some(cells)).await;
    let log = log.map_err(|error| error.to_string())?;
    if log.shards_damaged() > 0 {
        return Err("shards are damaged, and no disk here loses what was synced".to_owned());
    }
    let found = match log.stream(STREAM) {
        Ok(found) => found,
        // Once it was there it has to be there.
        Err(error) if shared.stream().is_some() => return Err(format!("the stream is gone: {error}")),
        Err(_) => log.create_stream(STREAM, stream).await.map_err(|error| error.to_string())?,
    };
    shared.state.lock().stream = Some(found.id);
    for shard in (0..shared.shards).filter_map(|number| shared.shard(number)) {
        for segment in log.segments(shard, SegmentNumber(0)).unwrap_or_default() {
            shared.outside.record("opened with segment", segment.number.0, segment.length.0);
        }
    }
    Ok(log)
}

fn draw_config(rng: &mut Rng) -> LogConfig {
    LogConfig {
        owners: rng.between(1, 2) as usize,
        in_flight_bytes: 64 << 10,
        timestamp_after_max: Duration::from_secs(3_600),
        tick: Duration::from_millis(rng.between(5, 50)),
        close_timeout: Duration::from_secs(5),
        journal: JournalConfig {
            file_bytes: 256 << 10,
            files_max: rng.between(4, 8) as u32,
            reserve_bytes: 16 << 10,
            backlog_bytes: 128 << 10,
            record_bytes_max: 128 << 10,
            sync_interval: Duration::from_millis(rng.between(1, 20)),
        },
        store: StoreConfig {
            pending_bytes_max: rng.between(128, 512) << 10,
            fill_bytes: rng.between(1, 16) << 10,
            sync_bytes: rng.between(8, 64) << 10,
            journal_bytes: 256 << 10,
            sync_age: Duration::from_millis(rng.between(5, 100)),
            tick: Duration::from_millis(rng.between(1, 20)),
            index_step: 1 << 10,
        },
        meta: MetaConfig { snapshot_bytes: rng.between(1, 32) as usize * 1024 },
    }
}

fn draw_stream(rng: &mut Rng, shared: &Cluster) -> StreamConfig {
    StreamConfig {
        shards: shared.shards,
        retention_ms: None,
        retention_bytes: None,
        segment_bytes: rng.between(4, 32) << 10,
        segment_ms: rng.between(50, 1_000),
        chunk_bytes: 512 << rng.below(4),
        flush: if rng.below(2) == 0 { Flush::Immediate } else { Flush::EveryMs(rng.between(1, 10)) },
        flush_bytes: 8 << 10,
        durability: match shared.plant {
            Plant::IntervalAsFsync => Durability::Interval,
            _ => Durability::Fsync,
        },
    }
}
