//! A log that does not tell its readers what it has to, and forgets what its producers have sent.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use tailwater_env::Env;
use tailwater_format::{Offset, ShardId, ShardNumber, StreamId, Term};
use tailwater_log::{AppendAnswer, AppendError, Fetched, Log, ReadError};
use tailwater_meta::{Expect, Op};

use super::Plant;

/// What was read once, whichever stream of the name it was of.
#[derive(Default)]
pub struct OldAnswers(Mutex<BTreeMap<(ShardNumber, Offset), (StreamId, Fetched)>>);

/// Where metadata keeps the producers of shards.
const PRODUCERS: &str = "log/producers/";
/// How soon what metadata has of producers is spoilt.
const SPOIL_EVERY: Duration = Duration::from_micros(200);

/// A shard's producers as metadata has them, those from some offset on left out.
#[derive(Clone, PartialEq, prost::Message)]
struct PlantedProducers {
    #[prost(uint64, tag = "1")]
    upto: u64,
    #[prost(bytes = "vec", repeated, tag = "2")]
    producers: Vec<Vec<u8>>,
}

impl Plant {
    /// Reads of a shard, as the bug answers it.
    pub async fn fetch(
        self,
        log: &Log,
        shard: ShardId,
        from: Offset,
        bytes_max: usize,
        old: &OldAnswers,
    ) -> Result<Fetched, ReadError> {
        match (self, log.fetch(shard, from, bytes_max, true).await) {
            (Plant::TruncationNotTold, Err(ReadError::Truncated { log_start })) => {
                log.fetch(shard, log_start, bytes_max, true).await
            }
            (Plant::OldStreamRead, Ok(fetched)) if !fetched.pieces.is_empty() => {
                let mut old = old.0.lock();
                let (_, first) = old.entry((shard.shard, from)).or_insert((shard.stream, fetched));
                Ok(first.clone())
            }
            (_, fetched) => fetched,
        }
    }

    /// Where a one-sided reader goes on that is told that what is before `log_start` was removed, and with the bug is
    /// not.
    pub fn untold(self, log_start: Offset) -> Option<Offset> {
        (self == Plant::TruncationNotTold).then_some(log_start)
    }

    /// Appends what is on its way already; with the bug, it is answered as what comes `next`.
    pub async fn append_again(
        self,
        log: &Log,
        shard: ShardId,
        batch: Bytes,
        next: Offset,
        count: usize,
    ) -> Result<AppendAnswer, AppendError> {
        if self == Plant::DuplicateAnsweredEarly {
            let last_offset = Offset(next.0 + count as u64 - 1);
            return Ok(AppendAnswer {
                base_offset: next,
                last_offset,
                append_time_ms: 0,
                term: Term(0),
                dlsn: None,
            });
        }
        log.append(shard.stream, shard.shard, batch).await
    }

    /// What spoils, for as long as the process lives, what metadata has of the shards' producers, if that is the bug.
    pub fn spoil_producers(self, env: &Env, log: &Log) -> Option<impl Future<Output = ()> + Send + use<>> {
        let spoil: fn(&mut PlantedProducers) = match self {
            Plant::ProducersSnapshotEmpty => |stored| stored.producers.clear(),
            Plant::ProducersNotReplayed => |stored| stored.upto = i64::MAX as u64,
            _ => return None,
        };
        let (env, log) = (env.clone(), log.clone());
        Some(async move {
            loop {
                env.sleep(SPOIL_EVERY).await;
                for (key, found) in log.meta().list(PRODUCERS).await.unwrap_or_default() {
                    let Ok(mut stored) = PlantedProducers::decode(found.value.clone()) else { continue };
                    spoil(&mut stored);
                    let value = Bytes::from(stored.encode_to_vec());
                    if value != found.value {
                        let put = Op::Put { key, value, expect: Expect::Version(found.version) };
                        // The owner may have been quicker: the next round sees what it put.
                        let _ = log.meta().commit(vec![put]).await;
                    }
                }
            }
        })
    }
}
