//! Reading buckets and data of one replica: what is asked, and what the answer means.
//!
//! Nothing here decides between replicas. An answer is either proven by the bytes (a value with its key, version
//! and checksum, which may be left to whoever asked) or a statement of this one replica (absent, this version).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesOrdered;
use prost::Message;
use tailwater_rma::{CallError, OpError, READ_BYTES_MAX, ReadOp, ScarOp, ScarReply};

use super::CellInner;
use super::replica::{LiveReplica, Replica};
use crate::layout::{
    BUCKET_BYTES, BucketView, Item, ItemApart, ItemExtras, KeyHash, Pointer, bucket_offset, head_bytes,
    parse_apart, scan_bucket,
};
use crate::limits::{DATA_BYTES_PER_READ, LOOKUP_KEYS_MAX, SCAR_OPS_MAX, TORN_RETRIES_MAX};
use crate::protocol::{Looked, LookupReply, LookupRequest, METHOD_LOOKUP, REFUSED_CONFIG};
use crate::version::Version;

/// The keys of one call, hashed.
pub(super) struct Keys<'a> {
    pub(super) keys: &'a [Bytes],
    pub(super) hashes: Vec<KeyHash>,
    /// Values of so many bytes or more, which came apart from their heads, are not checked.
    unchecked_from: usize,
}

impl<'a> Keys<'a> {
    /// Whose values are all checked.
    pub(super) fn new(keys: &'a [Bytes]) -> Self {
        Self::unchecked_from(keys, usize::MAX)
    }

    pub(super) fn unchecked_from(keys: &'a [Bytes], unchecked_from: usize) -> Self {
        Self { keys, hashes: keys.iter().map(|key| KeyHash::of(key)).collect(), unchecked_from }
    }
}

/// A value that proved itself, or is to be proven by whoever asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) version: Version,
    pub(super) value: Bytes,
    pub(super) extras: ItemExtras,
    /// What the value borrows from. Values that came together lie next to each other in it.
    pub(super) frame: Bytes,
}

/// One replica's answer for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LookupAnswer {
    Hit(Hit),
    Miss,
    /// Torn or inconsistent as often as we looked.
    Torn,
    /// No answer, because the replica is gone.
    Unreachable,
}

/// What one replica's bucket says of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// At this version, there.
    At(Version, Pointer),
    /// Overflowed; the backend sent the item itself.
    Sent(Hit),
    Absent,
    /// The backend is not refilled, and does not know.
    Unknown,
    /// The backend's answer made no sense; as good as none.
    Torn,
    Unreachable,
}

/// Why a replica is of no use: see [`Replica::failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The connection is, for good.
    Lost,
    /// The backend goes by another configuration of the cell.
    OtherConfig,
}

/// Asks one replica for some of the keys, and tries again what is torn. `wanted` are indexes into `keys`.
pub(super) async fn read_from(
    cell: &CellInner,
    replica: &Replica,
    keys: &Keys<'_>,
    wanted: Vec<usize>,
) -> Vec<(usize, LookupAnswer)> {
    let Some(live) = replica.live() else {
        return wanted.into_iter().map(|key| (key, LookupAnswer::Unreachable)).collect();
    };
    let mut answers = Vec::with_capacity(wanted.len());
    let mut wanted = wanted;
    for _ in 0..=TORN_RETRIES_MAX {
        let torn = if live.can.scar && !live.can.memory {
            scan_and_read(cell, &live, keys, &wanted, &mut answers).await
        } else {
            read_twice(cell, &live, keys, &wanted, &mut answers).await
        };
        match torn {
            Ok(torn) if torn.is_empty() => return answers,
            Ok(torn) => {
                cell.counters.torn.add(torn.len() as u64);
                wanted = torn;
            }
            Err(why) => {
                replica.failed(&live, why);
                wanted.retain(|key| !answers.iter().any(|(answered, _)| answered == key));
                answers.extend(wanted.iter().map(|key| (*key, LookupAnswer::Unreachable)));
                return answers;
            }
        }
    }
    call_for_torn(cell, replica, &live, keys, wanted, &mut answers).await;
    answers
}

/// The last resort: the backend's own code looks up what was torn each time.
async fn call_for_torn(
    cell: &CellInner,
    replica: &Replica,
    live: &Arc<LiveReplica>,
    keys: &Keys<'_>,
    wanted: Vec<usize>,
    answers: &mut Vec<(usize, LookupAnswer)>,
) {
    cell.counters.called.add(wanted.len() as u64);
    match look_up(cell, live, keys, wanted.clone()).await {
        Ok(named) => answers.extend(named.into_iter().map(|(key, named)| match named {
            Named::Sent(hit) => (key, LookupAnswer::Hit(hit)),
            Named::Absent => (key, LookupAnswer::Miss),
            Named::At(..) | Named::Torn => (key, LookupAnswer::Torn),
            Named::Unknown | Named::Unreachable => (key, LookupAnswer::Unreachable),
        })),
        Err(why) => {
            replica.failed(live, why);
            answers.extend(wanted.into_iter().map(|key| (key, LookupAnswer::Unreachable)));
        }
    }
}

/// 2xR from one replica: buckets, then data. Returns what was torn.
async fn read_twice(
    cell: &CellInner,
    live: &LiveReplica,
    keys: &Keys<'_>,
    wanted: &[usize],
    answers: &mut Vec<(usize, LookupAnswer)>,
) -> Result<Vec<usize>, NoAnswer> {
    let mut found = Vec::with_capacity(wanted.len());
    let mut torn = Vec::new();
    for (key, named) in read_buckets(cell, live, keys, wanted).await? {
        sort_out(key, named, answers, &mut found, &mut torn);
    }
    read_data(cell, live, keys, &found, |key, hit| match hit {
        Some(hit) => answers.push((key, LookupAnswer::Hit(hit))),
        None => torn.push(key),
    })
    .await?;
    Ok(torn)
}

fn sort_out(
    key: usize,
    named: Named,
    answers: &mut Vec<(usize, LookupAnswer)>,
    found: &mut Vec<(usize, Pointer)>,
    torn: &mut Vec<usize>,
) {
    match named {
        Named::At(_, pointer) => found.push((key, pointer)),
        Named::Sent(hit) => answers.push((key, LookupAnswer::Hit(hit))),
        Named::Absent => answers.push((key, LookupAnswer::Miss)),
        Named::Torn => torn.push(key),
        Named::Unreachable | Named::Unknown => answers.push((key, LookupAnswer::Unreachable)),
    }
}

/// One round trip: the far side scans the buckets and sends the data along. Returns what was torn.
async fn scan_and_read(
    cell: &CellInner,
    live: &LiveReplica,
    keys: &Keys<'_>,
    wanted: &[usize],
    answers: &mut Vec<(usize, LookupAnswer)>,
) -> Result<Vec<usize>, NoAnswer> {
    let mut torn = Vec::new();
    let mut without_data = Vec::new();
    for scanned in scan(cell, live, keys, wanted).await? {
        match scanned {
            LookupScanned { key, named, apart: None } => {
                sort_out(key, named, answers, &mut without_data, &mut torn);
            }
            LookupScanned { key, named: _, apart: Some(reply) } => match proven_apart(reply, keys, key) {
                Some(hit) => answers.push((key, LookupAnswer::Hit(hit))),
                None => torn.push(key),
            },
        }
    }
    read_data(cell, live, keys, &without_data, |key, hit| match hit {
        Some(hit) => answers.push((key, LookupAnswer::Hit(hit))),
        None => torn.push(key),
    })
    .await?;
    Ok(torn)
}

/// What a SCAR found of one key.
struct LookupScanned {
    key: usize,
    named: Named,
    /// What lies where the bucket points, if that was sent along.
    apart: Option<ScarReply>,
}

/// SCARs of some keys; asks for the items of those that overflowed.
async fn scan(
    cell: &CellInner,
    live: &LiveReplica,
    keys: &Keys<'_>,
    wanted: &[usize],
) -> Result<Vec<LookupScanned>, NoAnswer> {
    let mut scanned = Vec::with_capacity(wanted.len());
    let mut overflowed = Vec::new();
    let ops: Vec<ScarOp> = wanted
        .iter()
        .map(|key| (keys.hashes[*key], head_bytes(&keys.keys[*key])))
        .map(|(hash, apart)| ScarOp {
            bucket: hash.bucket(live.buckets),
            key_hash: hash.0,
            apart: apart as u32,
        })
        .collect();
    // All at once: the far side works on one while another is on its way.
    let mut asked: FuturesOrdered<_> = ops
        .chunks(SCAR_OPS_MAX)
        .map(|ops| async {
            let replies = live.connection.scar(ops).await;
            live.note_answer(&cell.env);
            replies
        })
        .collect();
    for wanted in wanted.chunks(SCAR_OPS_MAX) {
        let replies = asked.next().await.expect("one for each").map_err(|_| NoAnswer::Lost)?;
        for (key, reply) in wanted.iter().copied().zip(replies) {
            // A server that refuses what it said it has was replaced by another one.
            let reply = reply.map_err(|_| NoAnswer::Lost)?;
            cell.count_bytes(reply.bucket.len() + reply.head.len() + reply.data.len());
            let (named, apart) = match scan_bucket(&reply.bucket, keys.hashes[key], cell.config_id) {
                BucketView::Found { version, pointer } => {
                    (Named::At(version, pointer), Some(reply).filter(|reply| !reply.head.is_empty()))
                }
                // The copy of the bucket may be older in its beginning than behind it, and the load have gone between.
                BucketView::Absent if cell.mode.is_immutable() => {
                    overflowed.push(key);
                    continue;
                }
                BucketView::Absent => (Named::Absent, None),
                BucketView::Unknown => (Named::Unknown, None),
                BucketView::Overflowed => {
                    overflowed.push(key);
                    continue;
                }
                BucketView::OtherConfig => {
                    cell.agreed.doubt();
                    return Err(NoAnswer::OtherConfig);
                }
            };
            scanned.push(LookupScanned { key, named, apart });
        }
    }
    let looked_up = look_up(cell, live, keys, overflowed).await?;
    scanned.extend(looked_up.into_iter().map(|(key, named)| LookupScanned { key, named, apart: None }));
    Ok(scanned)
}

/// Reads the buckets of some keys, and asks for the items of those that overflowed.
pub(super) async fn read_buckets(
    cell: &CellInner,
    live: &LiveReplica,
    keys: &Keys<'_>,
    wanted: &[usize],
) -> Result<Vec<(usize, Named)>, NoAnswer> {
    let ops: Vec<ReadOp> = wanted.iter().map(|key| bucket_op(live, keys.hashes[*key])).collect();
    let total = wanted.len() * BUCKET_BYTES;
    let mut buffer = cell.buffers.take(total);
    let results =
        live.connection.read(&ops, &mut buffer.as_mut()[..total]).await.map_err(|_| NoAnswer::Lost)?;
    live.note_answer(&cell.env);
    cell.count_bytes(total);
    let mut named = Vec::with_capacity(wanted.len());
    let mut overflowed = Vec::new();
    let buckets = buffer.as_ref().chunks_exact(BUCKET_BYTES);
    for ((key, bucket), result) in wanted.iter().copied().zip(buckets).zip(results) {
        // The bucket lies in the region as it was told to us: whoever refuses it is another server.
        result.map_err(|_| NoAnswer::Lost)?;
        match scan_bucket(bucket, keys.hashes[key], cell.config_id) {
            BucketView::Found { version, pointer } => named.push((key, Named::At(version, pointer))),
            // As in `scan`.
            BucketView::Absent if cell.mode.is_immutable() => overflowed.push(key),
            BucketView::Absent => named.push((key, Named::Absent)),
            BucketView::Unknown => named.push((key, Named::Unknown)),
            BucketView::Overflowed => overflowed.push(key),
            BucketView::OtherConfig => {
                cell.agreed.doubt();
                return Err(NoAnswer::OtherConfig);
            }
        }
    }
    named.extend(look_up(cell, live, keys, overflowed).await?);
    Ok(named)
}

/// The READ of a key's bucket.
pub(super) fn bucket_op(live: &LiveReplica, hash: KeyHash) -> ReadOp {
    ReadOp {
        region: live.index.id,
        generation: live.index.generation,
        offset: bucket_offset(hash.bucket(live.buckets)),
        len: BUCKET_BYTES as u32,
    }
}

/// Reads items, in batches that fit a buffer each, and tells `each` what proved itself; `None` for what
/// did not.
pub(super) async fn read_data(
    cell: &CellInner,
    live: &LiveReplica,
    keys: &Keys<'_>,
    found: &[(usize, Pointer)],
    mut each: impl FnMut(usize, Option<Hit>),
) -> Result<(), NoAnswer> {
    let mut rest = found;
    let mut ops = Vec::with_capacity(found.len());
    while !rest.is_empty() {
        let (now, later) = rest.split_at(count_that_fits(rest));
        rest = later;
        ops.clear();
        let total: usize = now.iter().map(|(_, pointer)| pointer.len as usize).sum();
        for (_, pointer) in now {
            push_ops(live, *pointer, &mut ops);
        }
        let mut buffer = cell.buffers.take(total);
        let results =
            live.connection.read(&ops, &mut buffer.as_mut()[..total]).await.map_err(|_| NoAnswer::Lost)?;
        live.note_answer(&cell.env);
        cell.count_bytes(total);
        if results.iter().any(|result| matches!(result, Err(OpError::StaleRegion | OpError::Unsupported))) {
            return Err(NoAnswer::Lost);
        }
        // What else failed was out of bounds: a pointer that was torn. Its bytes are an earlier user's of the
        // buffer, and might be that very item, so the result counts and not the bytes.
        let mut results = results.into_iter();
        let buffer = Bytes::from_owner(buffer);
        let mut at = 0;
        for (key, pointer) in now.iter().copied() {
            let range = at..at + pointer.len as usize;
            at = range.end;
            let read = results.by_ref().take(ops_for(pointer)).all(|result| result.is_ok());
            each(key, if read { proven(&buffer, range, &keys.keys[key]) } else { None });
        }
    }
    Ok(())
}

/// How many of `found`, at least one, are read into one buffer.
pub(super) fn count_that_fits(found: &[(usize, Pointer)]) -> usize {
    let mut total = 0;
    let fitting = found.iter().take_while(|(_, pointer)| {
        total += pointer.len as usize;
        total <= DATA_BYTES_PER_READ
    });
    fitting.count().max(1)
}

/// READs that an item takes.
pub(super) fn ops_for(pointer: Pointer) -> usize {
    pointer.len.div_ceil(READ_BYTES_MAX) as usize
}

pub(super) fn push_ops(live: &LiveReplica, pointer: Pointer, ops: &mut Vec<ReadOp>) {
    let mut at = 0;
    while at < pointer.len {
        let len = (pointer.len - at).min(READ_BYTES_MAX);
        let offset = pointer.offset + u64::from(at);
        ops.push(ReadOp { region: live.data.id, generation: live.data.generation, offset, len });
        at += len;
    }
}

/// The value in `bytes[range]`, if those bytes are an item of `key`.
pub(super) fn proven(bytes: &Bytes, range: std::ops::Range<usize>, key: &[u8]) -> Option<Hit> {
    let range = range.start..range.end.min(bytes.len());
    let item = Item::parse(bytes.get(range.clone())?).ok()?;
    if item.key != key || item.tombstone {
        return None;
    }
    let begin = range.start + item.value_offset();
    let (version, extras, end) = (item.version, item.extras, begin + item.value.len());
    Some(Hit { version, value: bytes.slice(begin..end), extras, frame: bytes.clone() })
}

/// The same of a reply whose head is what comes before a value of key number `key`.
fn proven_apart(reply: ScarReply, keys: &Keys<'_>, key: usize) -> Option<Hit> {
    let ItemApart { version, value_len, extras } =
        parse_apart(&keys.keys[key], &reply.head, &reply.data, keys.unchecked_from)?;
    Some(Hit { version, value: reply.data.slice(..value_len), extras, frame: reply.frame })
}

/// Asks the backend itself for items that may be in its chains.
async fn look_up(
    cell: &CellInner,
    live: &LiveReplica,
    keys: &Keys<'_>,
    mut wanted: Vec<usize>,
) -> Result<Vec<(usize, Named)>, NoAnswer> {
    let mut named = Vec::new();
    while !wanted.is_empty() {
        let later = wanted.split_off(wanted.len().min(LOOKUP_KEYS_MAX));
        let hashes = wanted.iter().map(|key| keys.hashes[*key]);
        let payload = LookupRequest::of(cell.config_id, hashes).encode_to_vec();
        let reply = match live.connection.call(METHOD_LOOKUP, payload.into()).await {
            Ok(reply) => reply,
            Err(CallError::Refused { code: REFUSED_CONFIG, .. }) => {
                cell.agreed.doubt();
                return Err(NoAnswer::OtherConfig);
            }
            Err(CallError::Lost(_) | CallError::Refused { .. }) => return Err(NoAnswer::Lost),
            Err(CallError::Overloaded { .. }) => {
                named.extend(wanted.into_iter().chain(later).map(|key| (key, Named::Unreachable)));
                return Ok(named);
            }
        };
        cell.count_bytes(reply.len());
        let parts = LookupReply::decode(reply)
            .ok()
            .and_then(|reply| reply.parts(wanted.len()))
            .ok_or(NoAnswer::Lost)?;
        let asked = wanted.len();
        let mut again = Vec::new();
        for (key, part) in wanted.into_iter().zip(parts) {
            match part {
                Looked::Absent => named.push((key, Named::Absent)),
                Looked::Unknown => named.push((key, Named::Unknown)),
                Looked::Deferred => again.push(key),
                Looked::Item(bytes) => {
                    let hit = proven(&bytes, 0..usize::MAX, &keys.keys[key]);
                    named.push((key, hit.map_or(Named::Torn, Named::Sent)));
                }
            }
        }
        if again.len() == asked {
            // The first item always has room: whoever defers all is not one of our backends.
            return Err(NoAnswer::Lost);
        }
        again.extend(later);
        wanted = again;
    }
    Ok(named)
}

/// What a replica is asked to name in a consistent read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupAsk {
    /// What its buckets say.
    Buckets,
    /// The values as well, if they come in the same round trip.
    Values,
    /// The values, by a CALL that its own code answers.
    Call,
}

/// For a mean.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The connection of a replica and what it names for some keys; for the consistent read.
pub(super) async fn name_from(
    cell: &CellInner,
    replica: &Replica,
    keys: &Keys<'_>,
    wanted: Vec<usize>,
    ask: LookupAsk,
) -> (Option<Arc<LiveReplica>>, Vec<(usize, Named)>) {
    let unreachable = |wanted: Vec<usize>| wanted.into_iter().map(|key| (key, Named::Unreachable)).collect();
    let Some(live) = replica.live() else { return (None, unreachable(wanted)) };
    let began = (!live.can.memory).then(|| cell.env.now());
    let named = match ask {
        LookupAsk::Values if live.can.scar && !live.can.memory => {
            name_with_values(cell, &live, keys, &wanted).await
        }
        LookupAsk::Values | LookupAsk::Buckets => read_buckets(cell, &live, keys, &wanted).await,
        LookupAsk::Call => look_up(cell, &live, keys, wanted.clone()).await,
    };
    match named {
        Ok(named) => {
            if let Some(began) = began {
                replica.latency.note(nanoseconds(cell.env.now().since(began)));
            }
            (Some(live), named)
        }
        Err(why) => {
            replica.failed(&live, why);
            (None, unreachable(wanted))
        }
    }
}

/// What the buckets of some keys say, and the values that came along and proved themselves.
async fn name_with_values(
    cell: &CellInner,
    live: &LiveReplica,
    keys: &Keys<'_>,
    wanted: &[usize],
) -> Result<Vec<(usize, Named)>, NoAnswer> {
    let scanned = scan(cell, live, keys, wanted).await?.into_iter();
    let named = scanned.map(|LookupScanned { key, named, apart }| match &named {
        // A value of another version, or that is torn, was replaced meanwhile: the bucket's word stands.
        Named::At(version, _) => {
            let hit = apart.and_then(|reply| proven_apart(reply, keys, key));
            (key, hit.filter(|hit| hit.version == *version).map_or(named, Named::Sent))
        }
        _ => (key, named),
    });
    Ok(named.collect())
}
