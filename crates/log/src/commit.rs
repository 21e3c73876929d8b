//! A shard's change as one metadata commit.

use std::sync::Arc;

use tailwater_meta::{Expect, Meta, MetaError, Op};

use crate::shard::{Change, ChangeError};
use crate::stream::{ShardRecord, producers_key, segment_key, shard_key, stream_key};

/// Commits `change`; the shard record's new version, or why not. The commit has the stream's record for a
/// condition too, so that nothing of a deleted stream appears again.
pub(crate) async fn commit(meta: Arc<dyn Meta>, change: Change) -> Result<u64, ChangeError> {
    let shard = change.shard;
    let key = shard_key(shard);
    let mut ops = vec![Op::Check { key: stream_key(shard.stream), expect: Expect::Present }];
    let expect = if change.version == 0 { Expect::Absent } else { Expect::Version(change.version) };
    ops.push(Op::Put { key: key.clone(), value: change.record.encode(), expect });
    for segment in &change.completed {
        let key = segment_key(shard, segment.number);
        ops.push(Op::Put { key, value: segment.encode(), expect: Expect::Any });
    }
    for number in &change.deleted {
        ops.push(Op::Delete { key: segment_key(shard, *number), expect: Expect::Any });
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
        Err(error) => Err(ChangeError::Unavailable(error.to_string())),
    }
}
