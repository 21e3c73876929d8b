//! A connection to a backend that changes what is SET through it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use tailwater_cache::layout::{Item, encode_item};
use tailwater_cache::protocol::{METHOD_MUTATE, MutateReply, MutateRequest, Outcome, encode_mutate};
use tailwater_format::{ChunkKey, Position, SegmentId, ShardId, StreamId, TailPage, Term};
use tailwater_rma::testing::{ConnectionHooks, Decorated};
use tailwater_rma::{CallDone, Connection};

use super::Plant;

/// Has CALLs go over another connection.
pub(super) struct ReadsElsewhere(Arc<dyn Connection>);

impl ReadsElsewhere {
    pub(super) fn by(reads: Arc<dyn Connection>, calls: Arc<dyn Connection>) -> Arc<dyn Connection> {
        Arc::new(Decorated { inner: reads, hooks: Self(calls) })
    }
}

impl ConnectionHooks for ReadsElsewhere {
    fn call<'a>(&'a self, _: &'a dyn Connection, method: u16, payload: Bytes) -> CallDone<'a> {
        self.0.call(method, payload)
    }
}

/// How far apart terms are that are taken for one, at most.
const TERMS_ALIKE: u32 = 3;

pub(super) struct PlantedConnection {
    plant: Plant,
    /// How much of each chunk was sent before.
    sent: Mutex<BTreeMap<Bytes, usize>>,
    /// What was sent last of each chunk, whichever stream it is of, and of which it was.
    last: Mutex<BTreeMap<Bytes, (StreamId, Vec<u8>)>>,
}

impl PlantedConnection {
    pub(super) fn in_front_of(inner: Arc<dyn Connection>, plant: Plant) -> Arc<dyn Connection> {
        let hooks = Self { plant, sent: Mutex::default(), last: Mutex::default() };
        Arc::new(Decorated { inner, hooks })
    }

    /// The request with each item as the bug makes it.
    fn change(&self, payload: &Bytes) -> Option<Bytes> {
        let request = MutateRequest::decode(payload.clone()).ok()?;
        let mut rest = &request.items[..];
        let mut items = Vec::new();
        while !rest.is_empty() {
            let item = Item::parse(rest).ok()?;
            rest = &rest[item.bytes.len()..];
            let value = (!item.tombstone).then(|| self.change_value(item.key, item.value));
            items.push(encode_item(item.key, item.version, value.as_deref()));
        }
        Some(encode_mutate(request.config_id, items.iter()).concat().into())
    }

    /// The request with each chunk under the keys of other terms too, and how many items it had.
    fn with_other_terms(payload: &Bytes) -> Option<(Bytes, usize)> {
        let request = MutateRequest::decode(payload.clone()).ok()?;
        let mut rest = &request.items[..];
        let (mut items, mut aliases) = (Vec::new(), Vec::new());
        while !rest.is_empty() {
            let item = Item::parse(rest).ok()?;
            rest = &rest[item.bytes.len()..];
            let value = (!item.tombstone).then_some(item.value);
            items.push(encode_item(item.key, item.version, value));
            let Some(chunk) = ChunkKey::from_bytes(item.key) else { continue };
            let term = chunk.segment.term.0;
            for other in
                (term.saturating_sub(TERMS_ALIKE)..=term + TERMS_ALIKE).filter(|other| *other != term)
            {
                let segment = SegmentId { term: Term(other), ..chunk.segment };
                let key = ChunkKey { segment, ..chunk }.to_bytes();
                aliases.push(encode_item(&key, item.version, value));
            }
        }
        let count = items.len();
        items.append(&mut aliases);
        Some((encode_mutate(request.config_id, items.iter()).concat().into(), count))
    }

    /// The answer for the first `count` items.
    fn for_the_first(answer: &Bytes, count: usize) -> Option<Bytes> {
        let answer = MutateReply::decode(answer.clone()).ok()?;
        let outcomes = answer.outcomes(answer.codes.len())?;
        Some(MutateReply::of(outcomes.get(..count)?).encode_to_vec().into())
    }

    /// A chunk, or what another stream's writer has sent of it, if that was as much.
    fn of_any_stream(&self, chunk: ChunkKey, value: &[u8]) -> Vec<u8> {
        let stream = chunk.segment.shard.stream;
        let shard = ShardId { stream: StreamId(uuid::Uuid::nil()), ..chunk.segment.shard };
        let key = ChunkKey { segment: SegmentId { shard, ..chunk.segment }, ..chunk }.to_bytes();
        let mut last = self.last.lock();
        let (of, sent) = last.entry(key).or_insert_with(|| (stream, Vec::new()));
        if *of == stream || sent.len() < value.len() {
            (*of, *sent) = (stream, value.to_vec());
        }
        sent.clone()
    }

    fn change_value(&self, key: &[u8], value: &[u8]) -> Vec<u8> {
        match self.plant {
            Plant::ChunkKeyWithoutStream => match ChunkKey::from_bytes(key) {
                Some(chunk) => self.of_any_stream(chunk, value),
                None => value.to_vec(),
            },
            Plant::PartialChunkFromItsMiddle if ChunkKey::from_bytes(key).is_some() => {
                let before = self.sent.lock().insert(Bytes::copy_from_slice(key), value.len());
                // Only what was added since, as if the chunk were a file that is appended to.
                value[before.filter(|before| *before < value.len()).unwrap_or(0)..].to_vec()
            }
            Plant::LengthTooEarly => match TailPage::decode(value) {
                Ok(mut page) => {
                    for tail in page.tails.iter_mut().flatten().filter(|tail| !tail.sealed) {
                        tail.durable = Position(tail.durable.0 + 512);
                        tail.cached = tail.durable;
                    }
                    page.encode().to_vec()
                }
                Err(_) => value.to_vec(),
            },
            _ => value.to_vec(),
        }
    }

    /// The answer of a backend that applied everything.
    fn applied(payload: &Bytes) -> Option<Bytes> {
        let request = MutateRequest::decode(payload.clone()).ok()?;
        let mut rest = &request.items[..];
        let mut count = 0;
        while !rest.is_empty() {
            rest = &rest[Item::parse(rest).ok()?.bytes.len()..];
            count += 1;
        }
        Some(MutateReply::of(&vec![Outcome::Applied; count]).encode_to_vec().into())
    }
}

impl ConnectionHooks for PlantedConnection {
    fn call<'a>(&'a self, inner: &'a dyn Connection, method: u16, payload: Bytes) -> CallDone<'a> {
        if method != METHOD_MUTATE {
            return inner.call(method, payload);
        }
        if self.plant == Plant::SetAcknowledgedUnapplied
            && let Some(answer) = Self::applied(&payload)
        {
            return Box::pin(std::future::ready(Ok(answer)));
        }
        if self.plant == Plant::ChunkKeyWithoutTerm
            && let Some((payload, count)) = Self::with_other_terms(&payload)
        {
            return Box::pin(async move {
                let answer = inner.call(method, payload).await?;
                Ok(Self::for_the_first(&answer, count).unwrap_or(answer))
            });
        }
        inner.call(method, self.change(&payload).unwrap_or(payload))
    }
}
