//! FIFO queues: groups in order, and one message for each deduplication id.
//!
//! A group's messages are cells of one partition that are only changed together, by a conditional write on the group's
//! version ([`group`]). That write decides everything: which message comes after which, who has the first ones and
//! until when, whether an id was seen. There are no leases and no owner: whoever receives makes the first messages
//! invisible, and when their timeout is over the next one does. The rest follows it, or goes before it:
//!
//! ```text
//!  send     body -> tuple, if the group has none -> write (message, id seen)
//!  receive  oldest tuples -> group -> bodies -> new tuple -> write (invisible) -> the old tuple goes
//!  delete   new tuple, if it was the first -> write (gone) -> the old tuple, and the body, go
//! ```
//!
//! - **One tuple for a group**, of when its first message is visible, whatever is behind that: the index only says
//!   where to look. It is put before the write that needs it, so a group with messages always has one, whoever dies
//!   where.
//! - **A tuple that its group does not have** is left from a write that was lost, or whose front end died: whoever
//!   finds it removes it, after it is sure that the write will not come any more: it is not later than the group's
//!   version. If it is, that is made so.
//! - **A body in no group** is what a send left that died before its write. The sweeper deletes it once nobody can
//!   finish that send; it also puts the tuple of a group again that has lost it.
//! - **An id's scope.** What a group has seen is in the group. Where the scope is the queue, a record says which group
//!   an id belongs to, and that group decides: an id whose send in another group was not finished is refused until that
//!   is long over.
//!
//! What a front end knows is nothing that the others would have to know: its own requests wait for each other at a
//! group, which saves writes that would be lost.

mod deleting;
mod group;
mod receiving;
mod sending;
mod sweeping;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};
use tailwater_env::HashMap;

use super::heads::begin_of;
use super::rows::{GroupKey, RowCell, RowKind, Tuple};
use super::{KnownQueue, SharedFront};
use crate::deduplication::DeduplicationKey;
use crate::ids::Number;
use crate::limits::{COUNTED_MAX, GROUP_LOCKS, ROWS_READ, WRITE_MS};
use crate::request::{Figures, QueueError};
use crate::settings::Consistency;
use group::{
    FIRST, Group, GroupListed, GroupSeen, GroupSlot, GroupState, STATE, read, read_slot, seen_key, slot_key,
};

/// All that a FIFO queue has is at this level.
pub(super) const LEVEL: Consistency = Consistency::Quorum;

/// Others' changes came between again and again.
const BUSY: QueueError =
    QueueError::Overloaded("a group of the queue is being changed by others all the time");

/// A group's key. As the number of its tuple it is one that was long ago: its timestamps are behind those of all that
/// is sent.
fn group_key(name: &str) -> GroupKey {
    let hash = Sha256::digest(name);
    GroupKey(u64::from_le_bytes(hash[..8].try_into().expect("8 bytes")) >> 5)
}

/// One front end's requests wait for each other at a group.
pub(super) struct FifoTurns([tokio::sync::Mutex<()>; GROUP_LOCKS]);

impl Default for FifoTurns {
    fn default() -> Self {
        Self(std::array::from_fn(|_| tokio::sync::Mutex::new(())))
    }
}

impl FifoTurns {
    async fn take(&self, group: GroupKey) -> tokio::sync::MutexGuard<'_, ()> {
        self.0[group.0 as usize % GROUP_LOCKS].lock().await
    }
}

impl KnownQueue {
    pub(super) fn is_fifo(&self) -> bool {
        self.record().settings.fifo.is_some()
    }
}

impl SharedFront {
    /// A group's state, and which of some deduplication ids it has seen.
    async fn state(
        &self,
        known: &KnownQueue,
        at: GroupKey,
        keys: &[DeduplicationKey],
    ) -> Result<(Group, HashMap<DeduplicationKey, GroupSeen>), QueueError> {
        let wanted = [STATE].into_iter().chain(keys.iter().map(seen_key)).collect();
        let cells = self.rows.cells(known.id, at, wanted).await?;
        let (version, state) = state_of(cells.first())?;
        let mut seen = HashMap::default();
        for key in keys {
            let name = seen_key(key);
            if let Some(cell) = cells.iter().find(|cell| cell.key == name) {
                seen.insert(*key, read(cell)?);
            }
        }
        Ok((Group::new(version, state, Vec::new()), seen))
    }

    /// A group with its first messages. They are read after its version: if that stays, they are what it has.
    async fn group(&self, known: &KnownQueue, at: GroupKey) -> Result<Group, QueueError> {
        let cells = self.rows.cells(known.id, at, vec![STATE]).await?;
        let (version, state) = state_of(cells.first())?;
        let slots = match state.tuple {
            None => Vec::new(),
            Some(_) => self.slots(known, at, state.head, FIRST).await?,
        };
        Ok(Group::new(version, state, slots))
    }

    async fn slots(
        &self,
        known: &KnownQueue,
        at: GroupKey,
        from: u64,
        most: usize,
    ) -> Result<Vec<GroupSlot>, QueueError> {
        let upto = slot_key(u64::MAX);
        let cells = self.rows.cells_from(known.id, at, slot_key(from), upto, most).await?;
        cells.iter().map(read_slot).collect()
    }

    /// Writes a group as it was changed, unless others changed it since it was read: then it is `false`, and as if
    /// nothing had been done. After an error it may be done, now or later.
    async fn write(&self, known: &KnownQueue, at: GroupKey, mut group: Group) -> Result<bool, QueueError> {
        let before = group.state.tuple;
        match group.to_be_listed() {
            None => {}
            Some(None) => group.state.tuple = None,
            Some(Some(visible_at)) => {
                group.state.tuple = Some(self.list(known, at, visible_at, group.version).await?);
            }
        }
        let (tuple, expected) = (group.state.tuple, group.version);
        let (cells, gone) = group.into_cells();
        if !self.rows.write_cells(known.id, at, expected, cells, gone).await? {
            return Ok(false);
        }
        let place = |listed: Option<GroupListed>| listed.map(|listed| listed.visible_at);
        if let Some(before) = before.filter(|_| place(before) != place(tuple)) {
            // If that fails, whoever finds it does it.
            let _ = self.unlist(known, at, before).await;
        }
        Ok(true)
    }

    /// Puts a group's tuple, for the change that follows this version. As with all tuples, one that took long may be
    /// where nobody looks any more, and is put again.
    async fn list(
        &self,
        known: &KnownQueue,
        at: GroupKey,
        visible_at: u64,
        version: u64,
    ) -> Result<GroupListed, QueueError> {
        let moves = u32::try_from(version + 1).unwrap_or(u32::MAX);
        let mut visible_at = visible_at;
        for _ in 0..3 {
            let floor = begin_of(known.heads.lock().floor());
            visible_at = visible_at.max(self.now()).max(floor);
            let tuple = tuple_of(at, GroupListed { visible_at, moves });
            let place = known.tuples_at(visible_at, tuple.number);
            if !known.heads.lock().is_registered(place.bucket) {
                self.rows.put_bucket(LEVEL, known.id, RowKind::Tuples, place.bucket).await?;
                known.heads.lock().register(place.bucket, self.now(), self.margin());
            }
            self.rows.put_tuple(LEVEL, place, tuple).await?;
            if self.now() <= visible_at + WRITE_MS {
                break;
            }
        }
        Ok(GroupListed { visible_at, moves })
    }

    /// Takes a tuple out that its group does not have, and will not have any more.
    async fn unlist(&self, known: &KnownQueue, at: GroupKey, listed: GroupListed) -> Result<(), QueueError> {
        let tuple = tuple_of(at, listed);
        let place = known.tuples_at(listed.visible_at, tuple.number);
        Ok(self.rows.delete_tuple(LEVEL, place, tuple).await?)
    }

    /// The groups that have a tuple: all that have messages.
    async fn groups(&self, known: &KnownQueue) -> Result<BTreeSet<GroupKey>, QueueError> {
        let mut groups = BTreeSet::new();
        self.each_tuple(known, COUNTED_MAX, |tuple| {
            groups.insert(GroupKey(tuple.number.0));
        })
        .await?;
        Ok(groups)
    }

    /// Whether a group has something up to a number, visible or not.
    pub(super) async fn group_has_upto(
        &self,
        known: &KnownQueue,
        at: GroupKey,
        upto: Number,
    ) -> Result<bool, QueueError> {
        // The others of the group are greater.
        Ok(self.group(known, at).await?.first().is_some_and(|slot| slot.sequence <= upto.0))
    }

    /// A group that has, and how many rows were read for it.
    pub(super) async fn group_with_upto(
        &self,
        known: &KnownQueue,
        upto: Number,
    ) -> Result<(Option<GroupKey>, u64), QueueError> {
        let groups = self.groups(known).await?;
        let mut read = groups.len() as u64;
        for at in groups {
            read += FIRST as u64;
            if self.group_has_upto(known, at, upto).await? {
                return Ok((Some(at), read));
            }
        }
        Ok((None, read))
    }

    /// Tells of all messages of a group, in order; `most` of them.
    async fn each_slot(
        &self,
        known: &KnownQueue,
        at: GroupKey,
        most: usize,
        mut tell: impl FnMut(&GroupSlot),
    ) -> Result<(), QueueError> {
        let cells = self.rows.cells(known.id, at, vec![STATE]).await?;
        let (_, state) = state_of(cells.first())?;
        if state.tuple.is_none() {
            return Ok(());
        }
        let (mut from, mut told) = (state.head, 0);
        while told < most {
            let slots = self.slots(known, at, from, ROWS_READ).await?;
            slots.iter().for_each(&mut tell);
            told += slots.len();
            match slots.last() {
                Some(last) if slots.len() == ROWS_READ => from = last.sequence + 1,
                _ => break,
            }
        }
        Ok(())
    }

    /// How many messages a queue has.
    pub(super) async fn count_groups(&self, known: &KnownQueue, now: u64) -> Result<Figures, QueueError> {
        let mut figures = Figures { now, ..Figures::default() };
        for at in self.groups(known).await? {
            self.each_slot(known, at, COUNTED_MAX, |slot| {
                if known.is_expired(Number(slot.number), now) {
                    return;
                }
                figures.count(Number(slot.number), slot.visible_at, slot.receives);
            })
            .await?;
        }
        Ok(figures)
    }

    /// How messages stand, as tuples by their numbers; `most` of them.
    pub(super) async fn slots_by_number(
        &self,
        known: &KnownQueue,
        most: usize,
    ) -> Result<HashMap<Number, Tuple>, QueueError> {
        let mut tuples: HashMap<Number, Tuple> = HashMap::default();
        for at in self.groups(known).await? {
            let left = most.saturating_sub(tuples.len());
            self.each_slot(known, at, left, |slot| {
                let number = Number(slot.number);
                let GroupSlot { visible_at, receives, first_received_at, received_at, .. } = *slot;
                let tuple = Tuple { visible_at, number, moves: 0, receives, first_received_at, received_at };
                tuples.insert(number, tuple);
            })
            .await?;
        }
        Ok(tuples)
    }
}

fn state_of(cell: Option<&RowCell>) -> Result<(u64, GroupState), QueueError> {
    match cell.filter(|cell| cell.key == STATE) {
        None => Ok((0, GroupState::default())),
        Some(cell) => Ok((cell.version, read(cell)?)),
    }
}

/// The index's tuple of a group: its number is the group's key.
fn tuple_of(at: GroupKey, GroupListed { visible_at, moves }: GroupListed) -> Tuple {
    Tuple::new(visible_at, Number(at.0), moves)
}
