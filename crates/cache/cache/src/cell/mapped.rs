//! The short way: reads of mapped memory, which take no round trip and so need no waiting.
//!
//! Answers here and now every key whose replicas are mapped, connected and of one mind, which is nearly all of
//! them, and leaves the others open for [`super::relaxed`] and [`super::consistent`], which wait, retry, hedge
//! and CALL. The rules for what counts as an answer are the same.
//!
//! It is the path that a process with many readers spends its time on: it allocates the answers, one buffer for
//! the values of a batch, and what a transport allocates for a read.

use std::cell::RefCell;

use bytes::Bytes;
use futures::FutureExt;
use tailwater_rma::ReadOp;

use super::lookup::{Hit, bucket_op, count_that_fits, ops_for, proven, push_ops};
use super::placement::Mode;
use super::relaxed::first_of;
use super::replica::{LiveReplica, Replica};
use super::{CellInner, Lookup};
use crate::layout::{BUCKET_BYTES, BucketView, KeyHash, Pointer, scan_bucket};
use crate::version::Version;

/// A bucket to be read.
#[derive(Clone, Copy)]
struct Pick {
    backend: usize,
    key: usize,
    /// Which of the votes of a consistent read it is.
    vote: usize,
    hash: KeyHash,
}

/// An item to be read.
#[derive(Clone, Copy)]
struct MappedFetch {
    backend: usize,
    key: usize,
    pointer: Pointer,
    /// Only this version will do.
    agreed: Option<Version>,
}

/// What one bucket says of a key; `None` if that is not a matter for this path.
type Said = Option<Option<(Version, Pointer)>>;

/// Memory that is used again by the next call on the same thread. Bounded by the keys of one call.
#[derive(Default)]
struct Scratch {
    picks: Vec<Pick>,
    said: Vec<[Said; 2]>,
    fetches: Vec<MappedFetch>,
    ops: Vec<ReadOp>,
    items: Vec<(usize, Pointer)>,
    buckets: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Relaxed: one live replica of each key, chosen at random.
pub(super) fn relaxed(cell: &CellInner, keys: &[Bytes], lookups: &mut [Option<Lookup>]) {
    let random = cell.env.random_u64();
    with_scratch(|scratch| {
        for (key, bytes) in keys.iter().enumerate() {
            let hash = KeyHash::of(bytes);
            let first = first_of(random, hash, &cell.placement, cell.replicas.len());
            let replicas = cell.placement.of(hash);
            let mut backends =
                (0..replicas.len()).map(|step| usize::from(replicas[(first + step) % replicas.len()]));
            let usable = backends.find(|backend| cell.replicas[*backend].is_quick(&cell.env));
            if let Some(backend) = usable {
                scratch.picks.push(Pick { backend, key, vote: 0, hash });
            }
        }
        scratch.read_buckets(cell, |pick, said, fetches| match said {
            Some(Some((_, pointer))) => {
                fetches.push(MappedFetch { backend: pick.backend, key: pick.key, pointer, agreed: None });
            }
            Some(None) => lookups[pick.key] = Some(Lookup::Miss),
            None => {}
        });
        scratch.read_data(cell, keys, lookups);
    });
}

/// Consistent: two replicas of each key that agree; over memory there is nothing to gain from asking the third.
pub(super) fn consistent(cell: &CellInner, keys: &[Bytes], lookups: &mut [Option<Lookup>]) {
    let random = cell.env.random_u64();
    let votes = cell.mode.quorum();
    const { assert!(Mode::R32.quorum() == 2 && Mode::R1.quorum() == 1 && Mode::R2Immutable.quorum() == 1) };
    with_scratch(|scratch| {
        for (key, bytes) in keys.iter().enumerate() {
            let hash = KeyHash::of(bytes);
            let first = first_of(random, hash, &cell.placement, cell.replicas.len());
            let replicas = cell.placement.of(hash);
            for vote in 0..votes {
                let backend = usize::from(replicas[(first + vote) % replicas.len()]);
                scratch.picks.push(Pick { backend, key, vote, hash });
            }
        }
        let mut said = std::mem::take(&mut scratch.said);
        said.resize(keys.len(), [None; 2]);
        scratch.read_buckets(cell, |pick, says, fetches| {
            let votes_for = &mut said[pick.key];
            votes_for[pick.vote] = says;
            let (Some(one), Some(other)) = (votes_for[0], votes_for[votes - 1]) else { return };
            match (one, other) {
                (Some((version, _)), Some((same, _))) if version == same => {
                    // Over memory no replica is quicker than another: the one at hand serves the data.
                    if let Some(Some((agreed, pointer))) = says {
                        let (backend, key) = (pick.backend, pick.key);
                        fetches.push(MappedFetch { backend, key, pointer, agreed: Some(agreed) });
                    }
                }
                (None, None) => lookups[pick.key] = Some(Lookup::Miss),
                _ => {}
            }
        });
        said.clear();
        scratch.said = said;
        scratch.read_data(cell, keys, lookups);
    });
}

fn with_scratch(read: impl FnOnce(&mut Scratch)) {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.picks.clear();
        scratch.fetches.clear();
        read(scratch);
    });
}

/// The connection of a backend, if it is one to mapped memory.
fn mapped(replica: &Replica) -> Option<std::sync::Arc<LiveReplica>> {
    replica.live().filter(|live| live.can.memory)
}

impl Scratch {
    /// Reads the buckets that were picked, and tells `each` what they say.
    fn read_buckets(&mut self, cell: &CellInner, mut each: impl FnMut(&Pick, Said, &mut Vec<MappedFetch>)) {
        self.picks.sort_unstable_by_key(|pick| pick.backend);
        for group in self.picks.chunk_by(|one, next| one.backend == next.backend) {
            let replica = &cell.replicas[group[0].backend];
            let Some(live) = mapped(replica) else { continue };
            self.ops.clear();
            self.ops.extend(group.iter().map(|pick| bucket_op(&live, pick.hash)));
            let total = group.len() * BUCKET_BYTES;
            if self.buckets.len() < total {
                self.buckets.resize(total, 0);
            }
            let buckets = &mut self.buckets[..total];
            let Some(read) = live.connection.read(&self.ops, buckets).now_or_never() else { continue };
            let Ok(results) = read else {
                replica.give_up(&live);
                continue;
            };
            cell.count_bytes(total);
            for ((pick, bucket), result) in group.iter().zip(buckets.chunks_exact(BUCKET_BYTES)).zip(results)
            {
                let said = match result {
                    Ok(()) => match scan_bucket(bucket, pick.hash, cell.config_id) {
                        BucketView::Found { version, pointer } => Some(Some((version, pointer))),
                        // Of a cell that is loaded the backend says so: the load may have gone meanwhile.
                        BucketView::Absent if cell.mode.is_immutable() => None,
                        BucketView::Absent => Some(None),
                        BucketView::Overflowed | BucketView::Unknown | BucketView::OtherConfig => None,
                    },
                    Err(_) => None,
                };
                each(pick, said, &mut self.fetches);
            }
        }
    }

    /// Reads the data that was asked for. What does not prove itself, or not as the version agreed on, stays open.
    fn read_data(&mut self, cell: &CellInner, keys: &[Bytes], lookups: &mut [Option<Lookup>]) {
        self.fetches.sort_unstable_by_key(|fetch| fetch.backend);
        for group in self.fetches.chunk_by(|one, next| one.backend == next.backend) {
            let replica = &cell.replicas[group[0].backend];
            let Some(live) = mapped(replica) else { continue };
            self.items.clear();
            self.items.extend(group.iter().map(|fetch| (fetch.key, fetch.pointer)));
            let mut done = 0;
            while done < group.len() {
                let some = count_that_fits(&self.items[done..]);
                let now = &group[done..done + some];
                done += some;
                self.ops.clear();
                now.iter().for_each(|fetch| push_ops(&live, fetch.pointer, &mut self.ops));
                let total: usize = now.iter().map(|fetch| fetch.pointer.len as usize).sum();
                let mut buffer = cell.buffers.take(total);
                let read = live.connection.read(&self.ops, &mut buffer.as_mut()[..total]).now_or_never();
                let Some(read) = read else { continue };
                let Ok(results) = read else {
                    replica.give_up(&live);
                    break;
                };
                cell.count_bytes(total);
                let buffer = Bytes::from_owner(buffer);
                let mut results = results.into_iter();
                let mut at = 0;
                for fetch in now {
                    let range = at..at + fetch.pointer.len as usize;
                    at = range.end;
                    // Bytes that were not read are another item's, of an earlier use of the buffer.
                    if !results.by_ref().take(ops_for(fetch.pointer)).all(|result| result.is_ok()) {
                        continue;
                    }
                    let hit = proven(&buffer, range, &keys[fetch.key]);
                    if let Some(hit) =
                        hit.filter(|hit| fetch.agreed.is_none_or(|agreed| agreed == hit.version))
                    {
                        let Hit { version, value, extras, .. } = hit;
                        lookups[fetch.key] = Some(Lookup::Hit { version, value, extras });
                    }
                }
            }
        }
    }
}
