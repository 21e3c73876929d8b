//! Bookies, and the metadata of ledgers: a segment is a ledger on three bookies, of which two acknowledge.
//!
//! It is the protocol of BookKeeper as `bookkeeper` has it, without ensemble changes: a ledger is fenced when no ack
//! quorum of unfenced bookies is left, its end is where so many bookies have nothing that no quorum can have, and it is
//! closed by compare-and-set.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tailwater_format::{SegmentId, ShardId};

use crate::planted::Plant;

use super::links::{LinkPlace, NodeLink};

/// Each ledger is on all of them.
pub(super) const BOOKIES: usize = 3;
/// So many acknowledge an entry.
const ACK_QUORUM: usize = 2;
/// Without so many there is no ack quorum.
const BLOCKING: usize = BOOKIES - ACK_QUORUM + 1;

/// What is known of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimLedgerState {
    /// Its writer may write it.
    Open,
    /// Somebody looks for its end.
    Recovering,
    /// It has so many entries, and bytes.
    Closed { entries: usize, length: u64 },
}

#[derive(Default)]
struct Bookie {
    entries: BTreeMap<(SegmentId, usize), Bytes>,
    fenced: BTreeSet<SegmentId>,
}

#[derive(Default)]
struct BookiesState {
    ledgers: BTreeMap<SegmentId, SimLedgerState>,
    /// Ledgers that sweeps have deleted.
    swept_away: u64,
    bookies: [Bookie; BOOKIES],
}

/// A bookie takes nothing of a ledger any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fenced;

/// All bookies, and the ledgers that there are.
#[derive(Default)]
pub(super) struct Bookies(Mutex<BookiesState>);

impl Bookies {
    /// A new ledger; the same again is the same.
    pub(super) fn create(&self, id: SegmentId) {
        self.0.lock().ledgers.entry(id).or_insert(SimLedgerState::Open);
    }

    pub(super) fn list(&self, wanted: impl Fn(&ShardId) -> bool) -> Vec<SegmentId> {
        self.0.lock().ledgers.keys().filter(|id| wanted(&id.shard)).copied().collect()
    }

    /// All ledgers, as they are.
    pub(super) fn states(&self) -> Vec<(SegmentId, SimLedgerState)> {
        self.0.lock().ledgers.iter().map(|(id, state)| (*id, *state)).collect()
    }

    /// Deletes a ledger that is still as it was seen.
    pub(super) fn sweep_away(&self, id: &SegmentId, seen: SimLedgerState) {
        if self.0.lock().ledgers.get(id) != Some(&seen) {
            return;
        }
        self.delete(id);
        self.0.lock().swept_away += 1;
    }

    /// How many of them there were.
    pub(super) fn swept_away(&self) -> u64 {
        self.0.lock().swept_away
    }

    /// Its writer's close, which is in vain where somebody recovers it.
    pub(super) fn close_open(&self, id: &SegmentId, entries: usize, length: u64) -> Option<SimLedgerState> {
        let state = &mut *self.0.lock();
        let ledger = state.ledgers.get_mut(id)?;
        if *ledger == SimLedgerState::Open {
            *ledger = SimLedgerState::Closed { entries, length };
        }
        Some(*ledger)
    }

    fn begin_recovery(&self, id: &SegmentId) -> Option<SimLedgerState> {
        let state = &mut *self.0.lock();
        let ledger = state.ledgers.get_mut(id)?;
        if *ledger == SimLedgerState::Open {
            *ledger = SimLedgerState::Recovering;
        }
        Some(*ledger)
    }

    /// The first one who has recovered it closes it.
    fn close(&self, id: &SegmentId, entries: usize, length: u64) -> Option<SimLedgerState> {
        let state = &mut *self.0.lock();
        let ledger = state.ledgers.get_mut(id)?;
        if !matches!(ledger, SimLedgerState::Closed { .. }) {
            *ledger = SimLedgerState::Closed { entries, length };
        }
        Some(*ledger)
    }

    pub(super) fn delete(&self, id: &SegmentId) {
        let state = &mut *self.0.lock();
        state.ledgers.remove(id);
        for bookie in &mut state.bookies {
            bookie.entries.retain(|(ledger, _), _| ledger != id);
        }
    }

    fn add(
        &self,
        bookie: usize,
        id: &SegmentId,
        entry: usize,
        bytes: &Bytes,
        recovers: bool,
    ) -> Result<(), Fenced> {
        let bookie = &mut self.0.lock().bookies[bookie];
        if bookie.fenced.contains(id) && !recovers {
            return Err(Fenced);
        }
        bookie.entries.insert((*id, entry), bytes.clone());
        Ok(())
    }

    fn read(&self, bookie: usize, id: &SegmentId, entry: usize, fences: bool) -> Option<Bytes> {
        let bookie = &mut self.0.lock().bookies[bookie];
        if fences {
            bookie.fenced.insert(*id);
        }
        bookie.entries.get(&(*id, entry)).cloned()
    }

    /// Adds an entry until an ack quorum has it. A bookie that is slow may never get it.
    pub(super) async fn add_to_quorum(
        &self,
        link: &NodeLink,
        id: &SegmentId,
        entry: usize,
        bytes: &Bytes,
        recovers: bool,
    ) -> Result<(), Fenced> {
        let adds = link.bookies().map(|bookie| async move {
            link.ask_until(LinkPlace::Bookie(bookie), || self.add(bookie, id, entry, bytes, recovers)).await
        });
        let mut adds: FuturesUnordered<_> = adds.into_iter().collect();
        let mut acknowledged = 0;
        while let Some(added) = adds.next().await {
            added?;
            acknowledged += 1;
            if acknowledged == ACK_QUORUM {
                break;
            }
        }
        Ok(())
    }

    /// An entry of a closed ledger, or `None` if nobody who answers has it.
    pub(super) async fn read_one(&self, link: &NodeLink, id: &SegmentId, entry: usize) -> Option<Bytes> {
        for bookie in link.bookies() {
            if let Some(Some(bytes)) =
                link.ask(LinkPlace::Bookie(bookie), || self.read(bookie, id, entry, false)).await
            {
                return Some(bytes);
            }
        }
        None
    }

    /// An entry, or that there is none that was acknowledged, and never will be.
    async fn read_or_end(
        &self,
        link: &NodeLink,
        id: &SegmentId,
        entry: usize,
        plant: Plant,
    ) -> Option<Bytes> {
        let fences = plant != Plant::TakenOverUnfenced;
        let needed = if plant == Plant::EndOfOneBookie { 1 } else { BLOCKING };
        let reads = link.bookies().map(|bookie| async move {
            link.ask_until(LinkPlace::Bookie(bookie), || self.read(bookie, id, entry, fences)).await
        });
        let mut reads: FuturesUnordered<_> = reads.into_iter().collect();
        let mut missing = 0;
        while let Some(read) = reads.next().await {
            match read {
                Some(bytes) => return Some(bytes),
                None => missing += 1,
            }
            if missing == needed {
                break;
            }
        }
        None
    }

    /// Shuts a ledger's writer out, and finds its end: entries and bytes. `None` if there is no such ledger.
    pub(super) async fn recover(
        &self,
        link: &NodeLink,
        id: &SegmentId,
        plant: Plant,
    ) -> Option<(usize, u64)> {
        let state = link.ask_until(LinkPlace::Metadata, || self.begin_recovery(id)).await?;
        if let SimLedgerState::Closed { entries, length } = state {
            return Some((entries, length));
        }
        let (mut entries, mut length) = (0, 0);
        // The first read fences, and each one behind it: so many bookies that no ack quorum is left. What a bookie
        // acknowledges that has not answered yet, no other one does.
        while let Some(bytes) = self.read_or_end(link, id, entries, plant).await {
            let kept = self.add_to_quorum(link, id, entries, &bytes, true).await;
            assert_eq!(kept, Ok(()), "a recovery is not fenced");
            entries += 1;
            length += bytes.len() as u64;
        }
        match link.ask_until(LinkPlace::Metadata, || self.close(id, entries, length)).await? {
            SimLedgerState::Closed { entries, length } => Some((entries, length)),
            state => unreachable!("it was just closed, and is {state:?}"),
        }
    }

    /// Deletes a ledger in which nothing is.
    pub(super) async fn discard(&self, link: &NodeLink, id: &SegmentId, plant: Plant) {
        if self.recover(link, id, plant).await == Some((0, 0)) {
            link.ask_until(LinkPlace::Metadata, || self.delete(id)).await;
        }
    }

    /// Deletes all ledgers of some shards.
    pub(super) async fn delete_all(&self, link: &NodeLink, wanted: impl Fn(&ShardId) -> bool) {
        let ledgers = link.ask_until(LinkPlace::Metadata, || self.list(&wanted)).await;
        let deletions = ledgers.iter().map(|id| link.ask_until(LinkPlace::Metadata, || self.delete(id)));
        join_all(deletions).await;
    }

    /// What nobody asked for: for whoever describes what went wrong.
    pub(super) fn describe(&self) -> String {
        let state = self.0.lock();
        let ledgers = state.ledgers.iter().map(|(id, ledger)| format!("{id}: {ledger:?}"));
        ledgers.collect::<Vec<_>>().join(", ")
    }
}
