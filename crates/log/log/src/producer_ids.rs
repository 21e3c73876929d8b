//! Producer ids: unique for ever, handed out from blocks that metadata reserves.

use tailwater_meta::{Expect, Meta, MetaError, Op};
use tokio::sync::Mutex;

use crate::error::StreamError;
use crate::limits::PRODUCER_ID_BLOCK;
use crate::stream::{PRODUCER_IDS_KEY, decode_producer_ids, encode_producer_ids};

/// Attempts at reserving a block while others do the same.
const ATTEMPTS: u32 = 8;

/// Hands out ids.
#[derive(Debug, Default)]
pub(crate) struct ProducerIds {
    /// The next id, and the end of its block. Held over the commit that reserves one, so that one task does.
    block: Mutex<(i64, i64)>,
}

impl ProducerIds {
    /// An id that was never handed out and never will be again.
    pub(crate) async fn next(&self, meta: &dyn Meta) -> Result<i64, StreamError> {
        let mut block = self.block.lock().await;
        if block.0 == block.1 {
            *block = reserve(meta).await?;
        }
        block.0 += 1;
        Ok(block.0 - 1)
    }
}

async fn reserve(meta: &dyn Meta) -> Result<(i64, i64), StreamError> {
    let unavailable = |error: MetaError| StreamError::Unavailable(error.to_string());
    for _ in 0..ATTEMPTS {
        let found = meta.get(PRODUCER_IDS_KEY).await.map_err(unavailable)?;
        let (first, expect) = match found {
            None => (0, Expect::Absent),
            Some(found) => {
                let next = decode_producer_ids(&found.value);
                let next = next.map_err(|error| StreamError::Unavailable(error.to_string()))?;
                (next, Expect::Version(found.version))
            }
        };
        let end = first
            .checked_add(PRODUCER_ID_BLOCK)
            .ok_or_else(|| StreamError::Unavailable("all producer ids are used up".to_owned()))?;
        let key = PRODUCER_IDS_KEY.to_owned();
        match meta.commit(vec![Op::Put { key, value: encode_producer_ids(end), expect }]).await {
            Ok(_) => return Ok((first, end)),
            Err(MetaError::Conflict { .. }) => {}
            Err(error) => return Err(unavailable(error)),
        }
    }
    Err(StreamError::Unavailable("others reserve producer ids all the time".to_owned()))
}
