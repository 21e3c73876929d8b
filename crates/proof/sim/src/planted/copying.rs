//! A connection to another cluster that changes what is said over it of a copy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tailwater_copy::CopyTree;
use tailwater_format::call::{
    CopiedShard, CopyEntries, CopyNext, CopyOpened, CopyPlan, CopyPlanKept, CopyPush, CopyPushed, Method,
    decode_call, encode_call,
};
use tailwater_format::{EntryFields, Offset, batches, encode_entry, parse_entry};
use tailwater_rma::testing::{ConnectionHooks, Decorated};
use tailwater_rma::{CallDone, Connection};

use super::Plant;

pub(super) struct PlantedLink {
    plant: Plant,
    /// How far entries of each shard are moved back.
    moved: Mutex<BTreeMap<u32, u64>>,
    answers: AtomicU64,
}

impl PlantedLink {
    pub(super) fn in_front_of(inner: Arc<dyn Connection>, plant: Plant) -> Arc<dyn Connection> {
        let hooks = Self { plant, moved: Mutex::default(), answers: AtomicU64::new(0) };
        Arc::new(Decorated { inner, hooks })
    }

    fn opened(&self, answer: Bytes) -> Option<Bytes> {
        let mut opened: CopyOpened = decode_call(answer).ok()?;
        opened.way.clear();
        Some(encode_call(&opened))
    }

    fn entries(&self, answer: Bytes) -> Option<Bytes> {
        let mut entries: CopyEntries = decode_call(answer).ok()?;
        if self.plant == Plant::WayNotTold {
            entries.way.clear();
        }
        for news in &mut entries.shards {
            let apart = apart(&news.entries)?;
            let is_chosen = apart.len() > 1 && self.answers.fetch_add(1, Ordering::Relaxed).is_multiple_of(4);
            match self.plant {
                Plant::CopyGapNotTold if is_chosen => leave_first_out(news, &apart)?,
                Plant::CopiedElsewhere => self.move_back(news, &apart, is_chosen)?,
                _ => {}
            }
        }
        Some(encode_call(&entries))
    }

    /// What a worker is told that pushes entries, one time in two.
    fn forgotten(&self, method: Option<Method>, payload: &Bytes) -> Option<Bytes> {
        if (self.plant, method) != (Plant::PushForgotten, Some(Method::CopyPush)) {
            return None;
        }
        let push: CopyPush = decode_call(payload.clone()).ok()?;
        let has_entries = push.shards.iter().any(|news| !news.entries.is_empty());
        let is_chosen = has_entries && self.answers.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        is_chosen.then(|| encode_call(&CopyPushed::default()))
    }

    /// Leaves the second entry out, and has all that follow follow the first one.
    fn move_back(&self, news: &mut CopiedShard, apart: &[Bytes], is_chosen: bool) -> Option<()> {
        let mut moved = self.moved.lock();
        let back = moved.entry(news.shard).or_default();
        let mut all = BytesMut::new();
        for (index, entry) in apart.iter().enumerate() {
            let parsed = parse_entry(entry).ok()?;
            if is_chosen && index == 1 {
                *back += u64::from(parsed.header.record_count);
                continue;
            }
            let header = parsed.header;
            let fields = EntryFields {
                segment: header.segment_id(),
                entry_id: header.entry_id,
                base_offset: Offset(header.base_offset.0 - *back),
                record_count: header.record_count,
                transaction_id: header.transaction_id,
            };
            let mut body = parsed.batches.to_vec();
            let mut at = 0;
            for batch in batches(parsed.batches) {
                let of = *batch.ok()?.header();
                body[at..at + 8].copy_from_slice(&(of.base_offset.0 - *back).to_be_bytes());
                at += of.len;
            }
            all.extend_from_slice(&encode_entry(&fields, &[body.into()]));
        }
        news.entries = all.freeze();
        Some(())
    }
}

/// The plan that is told.
fn told(payload: &Bytes) -> Option<CopyTree> {
    let told: CopyPlan = decode_call(payload.clone()).ok()?;
    CopyTree::decode(&told.plan).ok()
}

/// A question that says of no shard that it goes on.
fn without_resumptions(payload: &Bytes) -> Option<Bytes> {
    let question: CopyNext = decode_call(payload.clone()).ok()?;
    Some(encode_call(&CopyNext { from: Vec::new(), ..question }))
}

/// An answer to what was pushed that says of no shard that it goes on, but for where a session begins.
fn without_places(pushed: Bytes, answer: &Bytes) -> Option<Bytes> {
    let push: CopyPush = decode_call(pushed).ok()?;
    let pushed: CopyPushed = decode_call(answer.clone()).ok()?;
    (!push.is_first).then(|| encode_call(&CopyPushed { from: Vec::new(), ..pushed }))
}

/// A plan that says of no forced move what others have too much.
fn without_ends(mut plan: CopyTree) -> Bytes {
    for fork in &mut plan.forks {
        fork.ends.fill(Offset(u64::MAX));
    }
    encode_call(&CopyPlan { plan: plan.to_bytes() })
}

/// Leaves the first entry out, and says that the source has removed it.
fn leave_first_out(news: &mut CopiedShard, apart: &[Bytes]) -> Option<()> {
    let (first, rest) = apart.split_first()?;
    news.log_start = news.log_start.max(parse_entry(first).ok()?.header.next_offset().0);
    news.entries = rest.concat().into();
    Some(())
}

/// Entries one by one.
fn apart(entries: &Bytes) -> Option<Vec<Bytes>> {
    let mut rest = entries.clone();
    let mut apart = Vec::new();
    while !rest.is_empty() {
        let len = parse_entry(&rest).ok()?.header.len as usize;
        apart.push(rest.split_to(len));
    }
    Some(apart)
}

impl ConnectionHooks for PlantedLink {
    fn call<'a>(&'a self, inner: &'a dyn Connection, method: u16, payload: Bytes) -> CallDone<'a> {
        Box::pin(async move {
            let method_asked = Method::from_number(method);
            let mut payload = payload;
            if let (Some(Method::CopyPlan), Some(told)) = (method_asked, told(&payload)) {
                match self.plant {
                    Plant::OlderPlanKept if told.number > 1 => {
                        return Ok(encode_call(&CopyPlanKept {
                            number: told.number,
                            cluster: String::new(),
                        }));
                    }
                    Plant::SurplusCopied => payload = without_ends(told),
                    _ => {}
                }
            }
            if self.plant == Plant::ResumeNotTold && method_asked == Some(Method::CopyNext) {
                payload = without_resumptions(&payload).unwrap_or(payload);
            }
            if let Some(forgotten) = self.forgotten(method_asked, &payload) {
                return Ok(forgotten);
            }
            let pushed = payload.clone();
            let answer = inner.call(method, payload).await?;
            let planted = match (self.plant, method_asked) {
                (Plant::WayNotTold, Some(Method::CopyOpen)) => self.opened(answer.clone()),
                (
                    Plant::WayNotTold | Plant::CopiedElsewhere | Plant::CopyGapNotTold,
                    Some(Method::CopyNext),
                ) => self.entries(answer.clone()),
                (Plant::PushedPlaceNotTold, Some(Method::CopyPush)) => without_places(pushed, &answer),
                _ => None,
            };
            Ok(planted.unwrap_or(answer))
        })
    }
}
