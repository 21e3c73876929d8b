//! A shard's change as one metadata commit.

use std::sync::Arc;

use tailwater_meta::{Expect, Meta, MetaError, Op};

use crate::shard::{Change, ChangeError};
use crate::stream::{ShardRecord, producers_key, segment_key, shard_key, stream_key, truncated_key};

/// Commits `change`; the shard record's new version, or why not. The commit has the stream's record for a
/// condition too, so that nothing of a deleted stream appears again.
pub(crate) async fn commit(meta: Arc<dyn Meta>, change: Change) -> Result<u64, ChangeError> {
    let shard = change.shard;
    let key = shard_key(shard);
    let mut ops = vec![Op::Check { key: stream_key(shard.stream), expect: Expect::Present }];
    let expect = if change.version == 0 { Expect::Absent } else { Expect::Version(change.version) };
    ops.push(Op::Put { key: key.clone(), value: change.record.encode(), expect });
    for segment in change.completed.iter().chain(&change.updated).chain(&change.restored) {
        let key = segment_key(shard, segment.number);
        ops.push(Op::Put { key, value: segment.encode(), expect: Expect::Any });
    }
    for number in &change.deleted {
        ops.push(Op::Delete { key: segment_key(shard, *number), expect: Expect::Any });
    }
    for truncated in &change.truncated {
        let key = truncated_key(shard, truncated.segment.number);
        ops.push(Op::Put { key, value: truncated.encode(), expect: Expect::Any });
    }
    for number in change.forgotten.iter().chain(change.restored.iter().map(|segment| &segment.number)) {
        ops.push(Op::Delete { key: truncated_key(shard, *number), expect: Expect::Any });
    }
    if let Some(producers) = &change.producers {
        ops.push(Op::Put { key: producers_key(shard), value: producers.encode(), expect: Expect::Any });
    }
    match meta.commit(ops).await {
        Ok(version) => Ok(version),
        Err(MetaError::Conflict { .. }) => match meta.get(&key).await {
            Ok(found) => {
                let found = found.and_then(|found| {
                    ShardRecord::decode(&key, &found.value).ok().map(|record| (record, found.version))
                });
                Err(ChangeError::Conflict(found))
            }
            Err(error) => Err(ChangeError::Unavailable(error.to_string())),
        },
        Err(error @ MetaError::Invalid(_)) => Err(ChangeError::Refused(error.to_string())),
        Err(error) => Err(ChangeError::Unavailable(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use tailwater_env::Env;
    use tailwater_format::{Offset, ShardId, ShardNumber};

    use super::*;
    use crate::producer::ProducerState;
    use crate::stream::ProducersRecord;
    use crate::{Log, LogConfig, StreamConfig};

    #[test]
    fn what_metadata_can_not_take_is_not_said_to_be_unavailable() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
        runtime.expect("a runtime").block_on(refuse());
    }

    async fn refuse() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::open(&Env::real(), LogConfig::default(), dir.path(), None).await.expect("it opens");
        let stream = log.create_stream("a", StreamConfig::default()).await.expect("created").id;
        let producer = ProducerState { producer: i64::MAX, last_ms: i64::MAX, batches: Vec::new() };
        let change = |producers| Change {
            shard: ShardId { stream, shard: ShardNumber(0) },
            record: ShardRecord::default(),
            version: 0,
            completed: Vec::new(),
            deleted: Vec::new(),
            producers: Some(ProducersRecord {
                term: tailwater_format::Term(1),
                upto: Offset(0),
                producers: vec![producer.clone(); producers],
            }),
            updated: Vec::new(),
            truncated: Vec::new(),
            forgotten: Vec::new(),
            restored: Vec::new(),
        };
        let refused = commit(Arc::clone(log.meta()), change(1 << 17)).await;
        let Err(ChangeError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("1048576 at most"), "{why}");
        assert!(commit(Arc::clone(log.meta()), change(1)).await.is_ok());
    }
}
