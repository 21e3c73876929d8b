//! A connection to a backend that applies what it must not, or forgets that something was erased; and one that reads
//! memory which its backend has left.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use prost::Message;
use tailwater_cache::Version;
use tailwater_cache::layout::{Item, KeyHash, encode_item};
use tailwater_cache::protocol::{
    Looked, LookupReply, LookupRequest, METHOD_LOOKUP, METHOD_MUTATE, MutateReply, MutateRequest, Outcome,
    encode_mutate,
};
use tailwater_rma::testing::{ConnectionHooks, Decorated};
use tailwater_rma::{CallDone, CallError, Connection, ReadOp, ScarOp, ScarResults};

use super::Plant;

/// The items of a mutation.
fn items_of(request: &MutateRequest) -> Option<Vec<Item<'_>>> {
    let mut rest = &request.items[..];
    let mut items = Vec::new();
    while !rest.is_empty() {
        let item = Item::parse(rest).ok()?;
        rest = &rest[item.bytes.len()..];
        items.push(item);
    }
    Some(items)
}

fn mutation(config_id: u64, item: Bytes) -> Bytes {
    encode_mutate(config_id, [item].iter()).concat().into()
}

fn just_above(version: Version) -> Version {
    Version { timestamp_us: version.timestamp_us + 1, ..version }
}

pub(super) struct PlantedMutations(Plant);

impl PlantedMutations {
    pub(super) fn in_front_of(inner: Arc<dyn Connection>, plant: Plant) -> Arc<dyn Connection> {
        Arc::new(Decorated { inner, hooks: Self(plant) })
    }

    /// What comes last is applied, above whatever is there.
    async fn whichever_version(inner: &dyn Connection, payload: Bytes) -> Result<Bytes, CallError> {
        let answer = inner.call(METHOD_MUTATE, payload.clone()).await?;
        let (Ok(request), Ok(reply)) = (MutateRequest::decode(payload), MutateReply::decode(answer.clone()))
        else {
            return Ok(answer);
        };
        let items = items_of(&request).unwrap_or_default();
        let Some(outcomes) = reply.outcomes(items.len()) else { return Ok(answer) };
        for (item, outcome) in items.iter().zip(&outcomes) {
            let (Outcome::Superseded(held) | Outcome::BelowSummary(held)) = outcome else { continue };
            let value = (!item.tombstone).then_some(item.value);
            let again = encode_item(item.key, just_above(*held), value);
            inner.call(METHOD_MUTATE, mutation(request.config_id, again)).await?;
        }
        Ok(MutateReply::of(&vec![Outcome::Applied; outcomes.len()]).encode_to_vec().into())
    }

    /// An ERASE removes what is there, and leaves nothing that stands against an earlier SET which comes later.
    async fn without_tombstones(inner: &dyn Connection, payload: Bytes) -> Result<Bytes, CallError> {
        let Ok(request) = MutateRequest::decode(payload.clone()) else {
            return inner.call(METHOD_MUTATE, payload).await;
        };
        let items = items_of(&request).unwrap_or_default();
        if !items.iter().any(|item| item.tombstone) {
            return inner.call(METHOD_MUTATE, payload).await;
        }
        let mut outcomes = Vec::new();
        for item in &items {
            let mut item_bytes = Bytes::copy_from_slice(item.bytes);
            if item.tombstone {
                let hash = std::iter::once(KeyHash::of(item.key));
                let lookup = LookupRequest::of(request.config_id, hash).encode_to_vec();
                let reply = inner.call(METHOD_LOOKUP, lookup.into()).await?;
                let looked = LookupReply::decode(reply).ok().and_then(|reply| reply.parts(1)?.pop());
                let Some(Looked::Item(held)) = looked else {
                    outcomes.push(Outcome::Applied);
                    continue;
                };
                if let Ok(held) = Item::parse(&held)
                    && held.version < item.version
                {
                    item_bytes = encode_item(item.key, just_above(held.version).min(item.version), None);
                }
            }
            let answer = inner.call(METHOD_MUTATE, mutation(request.config_id, item_bytes)).await?;
            let outcome = MutateReply::decode(answer).ok().and_then(|reply| reply.outcomes(1)?.pop());
            outcomes.push(outcome.unwrap_or(Outcome::Applied));
        }
        Ok(MutateReply::of(&outcomes).encode_to_vec().into())
    }
}

impl ConnectionHooks for PlantedMutations {
    fn call<'a>(&'a self, inner: &'a dyn Connection, method: u16, payload: Bytes) -> CallDone<'a> {
        Box::pin(async move {
            match (self.0, method) {
                (Plant::VersionIgnored, METHOD_MUTATE) => Self::whichever_version(inner, payload).await,
                (Plant::TombstoneDropped, METHOD_MUTATE) => Self::without_tombstones(inner, payload).await,
                _ => inner.call(method, payload).await,
            }
        })
    }
}

/// Reads before the memory moves.
const READS_BEFORE: usize = 12;

/// What was read of the old place: nobody writes there any more.
#[derive(Default)]
pub(super) struct OldPlace(Mutex<OldBytes>);

#[derive(Default)]
struct OldBytes {
    reads: usize,
    /// By region, offset and length.
    kept: BTreeMap<(u32, u64, u32), Vec<u8>>,
    scans: BTreeMap<(u64, u128), tailwater_rma::ScarReply>,
}

impl OldPlace {
    pub(super) fn in_front_of(inner: Arc<dyn Connection>) -> Arc<dyn Connection> {
        Arc::new(Decorated { inner, hooks: Self::default() })
    }
}

impl ConnectionHooks for OldPlace {
    fn after_read(&self, ops: &[ReadOp], out: &mut [u8]) {
        let mut old = self.0.lock();
        old.reads += 1;
        let has_moved = old.reads > READS_BEFORE;
        let mut rest = out;
        for op in ops {
            let (of_op, behind) = rest.split_at_mut(op.len as usize);
            rest = behind;
            let place = (op.region.0, op.offset, op.len);
            match old.kept.get(&place) {
                Some(kept) if has_moved => of_op.copy_from_slice(kept),
                _ => drop(old.kept.insert(place, of_op.to_vec())),
            }
        }
    }

    fn scar<'a>(&'a self, inner: &'a dyn Connection, ops: &'a [ScarOp]) -> BoxFuture<'a, ScarResults> {
        Box::pin(async move {
            let mut replies = inner.scar(ops).await?;
            let mut old = self.0.lock();
            old.reads += 1;
            let has_moved = old.reads > READS_BEFORE;
            for (op, reply) in ops.iter().zip(&mut replies) {
                let Ok(reply) = reply else { continue };
                let place = (op.bucket, op.key_hash);
                match old.scans.get(&place) {
                    // What came apart then is what comes apart now: a key's head has one length.
                    Some(kept) if has_moved => *reply = kept.clone(),
                    _ => drop(old.scans.insert(place, reply.clone())),
                }
            }
            Ok(replies)
        })
    }
}
