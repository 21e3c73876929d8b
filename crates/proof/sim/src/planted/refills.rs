//! A connection to a backend that changes what backends tell each other when one is refilled, or what they say before
//! they are.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use prost::Message;
use tailwater_cache::Version;
use tailwater_cache::layout::{BUCKET_BYTES, FLAGS_OFFSET, Item, encode_item};
use tailwater_cache::protocol::{
    JoinReply, LOOKUP_UNKNOWN, Looked, LookupReply, LookupRequest, METHOD_JOIN, METHOD_LOOKUP, METHOD_SCAN,
    ScanReply,
};
use tailwater_rma::testing::{ConnectionHooks, Decorated};
use tailwater_rma::{CallDone, Connection, ReadOp, ScarOp, ScarResults};

use super::Plant;

pub(super) struct PlantedRefill {
    plant: Plant,
    backend: usize,
}

impl PlantedRefill {
    pub(super) fn in_front_of(
        inner: Arc<dyn Connection>,
        plant: Plant,
        backend: usize,
    ) -> Arc<dyn Connection> {
        Arc::new(Decorated { inner, hooks: Self { plant, backend } })
    }

    /// A scan's answer as the bug makes it.
    fn told(&self, answer: Bytes) -> Bytes {
        let Ok(reply) = ScanReply::decode(answer.clone()) else { return answer };
        let nothing = Bytes::copy_from_slice(&Version::ZERO.to_bytes());
        let reply = match self.plant {
            // One of both others does not count.
            Plant::RefilledFromOne if self.backend % 2 == 1 => {
                ScanReply { held: Bytes::new(), erased: Bytes::new(), is_known: true, ..reply }
            }
            Plant::ErasuresNotTold => ScanReply { erased: Bytes::new(), forgotten: nothing, ..reply },
            _ => reply,
        };
        reply.encode_to_vec().into()
    }

    /// Items for another backend as the bug makes them.
    fn sent(&self, answer: Bytes) -> Bytes {
        let Ok(reply) = LookupReply::decode(answer.clone()) else { return answer };
        if self.plant == Plant::LifeBegunAgain {
            let ages_ms = vec![0; reply.ages_ms.len()];
            return LookupReply { ages_ms, ..reply }.encode_to_vec().into();
        }
        let Some(parts) = reply.parts(reply.lengths.len()) else { return answer };
        let mut items = BytesMut::new();
        for part in parts {
            let Looked::Item(bytes) = part else { continue };
            let Ok(item) = Item::parse(&bytes) else { return answer };
            let version = Version { timestamp_us: item.version.timestamp_us + 1, ..item.version };
            items.extend_from_slice(&encode_item(item.key, version, Some(item.value)));
        }
        // An item with extras would be shorter now: none of the scenario's has any.
        LookupReply { items: items.freeze(), ..reply }.encode_to_vec().into()
    }
}

/// A bucket that does not say that its backend is not refilled.
fn without_flag(bucket: &mut [u8]) {
    if bucket.len() == BUCKET_BYTES {
        let flags = &mut bucket[FLAGS_OFFSET as usize];
        // A chain is asked for as before.
        *flags = if *flags & 4 == 0 { 0 } else { 5 };
    }
}

impl ConnectionHooks for PlantedRefill {
    fn after_read(&self, ops: &[ReadOp], out: &mut [u8]) {
        if self.plant != Plant::UnfilledNotSaid {
            return;
        }
        let mut rest = out;
        for op in ops {
            let (of_op, behind) = rest.split_at_mut(op.len as usize);
            without_flag(of_op);
            rest = behind;
        }
    }

    fn scar<'a>(&'a self, inner: &'a dyn Connection, ops: &'a [ScarOp]) -> BoxFuture<'a, ScarResults> {
        Box::pin(async move {
            let mut replies = inner.scar(ops).await?;
            for reply in replies.iter_mut().flatten().filter(|_| self.plant == Plant::UnfilledNotSaid) {
                let mut bucket = reply.bucket.to_vec();
                without_flag(&mut bucket);
                reply.bucket = bucket.into();
            }
            Ok(replies)
        })
    }

    fn call<'a>(&'a self, inner: &'a dyn Connection, method: u16, payload: Bytes) -> CallDone<'a> {
        Box::pin(async move {
            match (self.plant, method) {
                (Plant::StartNotTold, METHOD_JOIN) => Ok(JoinReply::of(Version::ZERO).encode_to_vec().into()),
                (Plant::RefilledFromOne | Plant::ErasuresNotTold, METHOD_SCAN) => {
                    inner.call(method, payload).await.map(|answer| self.told(answer))
                }
                (Plant::CopiedAtNewVersion | Plant::LifeBegunAgain, METHOD_LOOKUP) => {
                    let with_ages =
                        LookupRequest::decode(payload.clone()).is_ok_and(|request| request.with_ages);
                    let answer = inner.call(method, payload).await?;
                    Ok(if with_ages { self.sent(answer) } else { answer })
                }
                (Plant::UnfilledNotSaid, METHOD_LOOKUP) => {
                    let answer = inner.call(method, payload).await?;
                    let Ok(mut reply) = LookupReply::decode(answer.clone()) else { return Ok(answer) };
                    reply.lengths.iter_mut().filter(|len| **len == LOOKUP_UNKNOWN).for_each(|len| *len = 0);
                    Ok(reply.encode_to_vec().into())
                }
                _ => inner.call(method, payload).await,
            }
        })
    }
}
