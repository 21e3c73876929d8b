//! The owner's process: started again, where the disk is, whenever it is down or replaced, and opening the log each
//! time.

use std::time::Duration;

use tailwater_env::Env;
use tailwater_format::SegmentNumber;
use tailwater_journal::JournalConfig;
use tailwater_log::{FlushPolicy, Log, LogConfig, StreamConfig, StreamDurability};
use tailwater_meta::MetaConfig;
use tailwater_store::StoreConfig;
use tailwater_tail::WriterConfig;

use crate::checkers::Violation;
use crate::rng::Rng;
use crate::scenarios::cells;
use crate::scenarios::lives::open_undamaged;
use crate::world::{Crash, Crashed};

use super::{Cluster, STREAM, shard_id};

/// Keeps an owner up, for as long as the scenario lasts.
pub(super) async fn supervise(shared: Cluster, mut rng: Rng) {
    let config = draw_config(&mut rng);
    while !shared.is_over() {
        let place = shared.current();
        let owner = &shared.owners[place];
        if !owner.is_up() {
            shared.outside.sleep(Duration::from_micros(rng.between(100, 20_000))).await;
            if shared.current() != place {
                continue;
            }
            owner.start();
        }
        let env = owner.env_with_disk(|disk| shared.plant.disk(disk));
        let opened = owner.run("open", open(shared.clone(), place, env.clone(), config.clone())).await;
        if shared.current() != place {
            // It lost the disk before it had begun.
            owner.crash(Crash::Process);
            continue;
        }
        match opened {
            Ok(Ok(log)) => {
                shared.count("starts of the owner");
                shared.logs.lock()[place] = Some((log, env));
                shared.died_or_replaced(place).await;
                if shared.current() == place {
                    shared.logs.lock()[place] = None;
                }
            }
            Ok(Err(why)) => {
                // The process ends with what is wrong, and is started again.
                let excused = why.contains("injected") || why.contains("not available");
                if !excused && owner.is_up() {
                    shared.note(Err(Violation::new(format!("the log can't be opened: {why}"))));
                }
                shared.count("failed starts of the owner");
                owner.crash(if shared.kills_only { Crash::Process } else { Crash::Power });
            }
            Err(Crashed) => shared.count("crashes while starting"),
        }
    }
}

impl super::ClusterShared {
    async fn died_or_replaced(&self, place: usize) {
        let mut current = self.current.subscribe();
        let replaced = std::pin::pin!(current.wait_for(|current| *current != place));
        let died = std::pin::pin!(self.owners[place].died());
        futures::future::select(died, replaced).await;
    }
}

async fn open(shared: Cluster, place: usize, env: Env, config: LogConfig) -> Result<Log, String> {
    let cells = cells::both(&shared.net, &shared.owners[place], &env, shared.plant).await;
    let log = open_undamaged(&env, config, Some(cells)).await?;
    let found = match log.stream(STREAM) {
        Ok(found) => found,
        // Once it was there it has to be there, unless it was to be deleted.
        Err(error) if shared.state.lock().streams.last().is_some_and(|last| !last.deleting) => {
            return Err(format!("the stream is gone: {error}"));
        }
        Err(_) => {
            let created = log.create_stream(STREAM, shared.stream_config.clone()).await;
            created.map_err(|error| error.to_string())?
        }
    };
    if shared.current() != place {
        return Err("not the owner any more".to_owned());
    }
    shared.found(found.id);
    let generation = shared.state.lock().streams.len() - 1;
    for shard in 0..shared.stream_config.shards {
        let id = shard_id(found.id, shard);
        for segment in log.segments(id, SegmentNumber(0)).unwrap_or_default() {
            shared.outside.record("opened with segment", segment.number.0, segment.length.0);
        }
        let start = log.view(id).map_err(|error| error.to_string())?.tail.log_start;
        shared.told_of_start(generation, shard, start);
        let checked = shared.checker(generation, shard).starts_at(start.0);
        shared.note(checked);
    }
    Ok(log)
}

pub(in crate::scenarios) fn draw_config(rng: &mut Rng) -> LogConfig {
    LogConfig {
        owners: rng.between(1, 2) as usize,
        in_flight_bytes: 64 << 10,
        timestamp_after_max: Duration::from_secs(3_600),
        decompressed_bytes_max: LogConfig::default().decompressed_bytes_max,
        hot_bytes: 0,
        tick: Duration::from_millis(rng.between(5, 50)),
        close_timeout: Duration::from_secs(5),
        sweep_every: Duration::ZERO,
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
        segments: None,
        cold: None,
        // So few that they are reached now and then.
        tail: WriterConfig { shadow_writes_per_s: 500, ..WriterConfig::default() },
        meta: MetaConfig { snapshot_bytes: rng.between(1, 32) as usize * 1024 },
        metadata: None,
    }
}

pub(in crate::scenarios) fn draw_stream(
    rng: &mut Rng,
    shards: u32,
    durability: StreamDurability,
) -> StreamConfig {
    StreamConfig {
        shards,
        retention_ms: None,
        retention_bytes: (rng.below(4) == 0).then(|| rng.between(8, 64) << 10),
        segment_bytes: rng.between(4, 32) << 10,
        segment_ms: rng.between(50, 1_000),
        chunk_bytes: 512 << rng.below(4),
        flush: if rng.below(2) == 0 {
            FlushPolicy::Immediate
        } else {
            FlushPolicy::EveryMs(rng.between(1, 10))
        },
        flush_bytes: 8 << 10,
        durability,
        ..StreamConfig::default()
    }
}
