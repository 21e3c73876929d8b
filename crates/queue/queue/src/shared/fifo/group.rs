//! One group, as its cells say: what a send, a receive, a delete does to it. No input, no output, no clock.
//!
//! ```text
//! key of a cell        value, in JSON
//! 0                    [`GroupState`], and the version that every change of the group compares
//! 1, sequence          [`GroupSlot`]: a message                          big-endian: by key is by sequence
//! 2, 16 bytes          [`GroupSeen`]: a deduplication id, for 5 minutes, or what came from another queue,
//!                      for as long as messages are kept
//! ```
//!
//! Everything that is invisible because it was received is among the first [`BATCH_MAX`] messages: nothing after an
//! invisible one is received. So these and the next one ([`FIRST`]) are all that a receive, a delete or a change of
//! visibility looks at.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::deduplication::DeduplicationKey;
use crate::ids::{Number, Sequence, Token};
use crate::limits::{BATCH_MAX, GROUP_TTL_S, INVISIBLE_MS_MAX};
use crate::queue::ReceiptError;
use crate::request::QueueError;
use crate::shared::numbers::sent_at;
use crate::shared::rows::RowCell;

/// Messages that are read from a group's first one on.
pub(super) const FIRST: usize = BATCH_MAX + 1;

/// The key of a group's first cell.
pub(super) const STATE: Bytes = Bytes::from_static(&[0]);

/// Where a group's tuple was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GroupListed {
    pub(super) visible_at: u64,
    pub(super) moves: u32,
}

/// What a group's first cell says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GroupState {
    /// The greatest sequence that was given to a message.
    pub(super) last: u64,
    /// No message is before it.
    pub(super) head: u64,
    /// Its tuple in the index: there is one as long as there are messages.
    pub(super) tuple: Option<GroupListed>,
}

/// A message of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GroupSlot {
    /// Its place in the group; of the cell's key.
    #[serde(skip)]
    pub(super) sequence: u64,
    /// Where its body is.
    pub(super) number: u64,
    pub(super) visible_at: u64,
    /// That of its last receive.
    pub(super) token: u32,
    pub(super) receives: u16,
    pub(super) first_received_at: u64,
    pub(super) received_at: u64,
}

/// The message that a deduplication id was taken with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GroupSeen {
    pub(super) number: u64,
    pub(super) sequence: u64,
}

/// The key of a message's cell.
pub(super) fn slot_key(sequence: u64) -> Bytes {
    let mut key = BytesMut::with_capacity(9);
    key.put_u8(1);
    key.put_u64(sequence);
    key.freeze()
}

/// The key of a deduplication id's cell.
pub(super) fn seen_key(key: &DeduplicationKey) -> Bytes {
    let mut bytes = BytesMut::with_capacity(17);
    bytes.put_u8(2);
    bytes.put_slice(&key.0);
    bytes.freeze()
}

/// What a cell says.
pub(super) fn read<T: DeserializeOwned>(cell: &RowCell) -> Result<T, QueueError> {
    serde_json::from_slice(&cell.value)
        .map_err(|error| QueueError::Unavailable(format!("a cell of a group makes no sense: {error}")))
}

/// A message's cell.
pub(super) fn read_slot(cell: &RowCell) -> Result<GroupSlot, QueueError> {
    let sequence = cell.key.get(1..).and_then(|key| Some(u64::from_be_bytes(key.try_into().ok()?)));
    let sequence =
        sequence.ok_or_else(|| QueueError::Unavailable("a cell's key makes no sense".to_owned()))?;
    Ok(GroupSlot { sequence, ..read(cell)? })
}

fn write<T: Serialize>(value: &T) -> Bytes {
    Bytes::from(serde_json::to_vec(value).expect("it is plain data"))
}

/// What a receive asks of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) count: usize,
    pub(super) visibility_ms: u64,
    pub(super) token: Token,
    /// How long messages are kept.
    pub(super) kept_ms: u64,
    /// Receives after which a message goes to the dead-letter queue, if there is one: see [`Group::claim`].
    pub(super) receives_max: Option<u16>,
}

impl GroupSlot {
    fn is_expired(&self, now: u64, kept_ms: u64) -> bool {
        sent_at(Number(self.number)).saturating_add(kept_ms) <= now
    }
}

/// What a receive finds in a group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GroupReceived {
    pub(super) taken: Vec<GroupSlot>,
    /// Kept for long enough: they are out already.
    pub(super) expired: Vec<GroupSlot>,
}

/// A group, read and changed but not written yet.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// 0 if it is not there.
    pub(super) version: u64,
    pub(super) state: GroupState,
    /// Its first messages, [`FIRST`] of them or all; none where they were not read.
    slots: BTreeMap<u64, GroupSlot>,
    /// When the first was visible as it was read.
    head_before: Option<u64>,
    /// Whether its tuple is to be put again, wherever it is.
    is_lost: bool,
    /// What is to be written: cells, or that they go.
    changes: BTreeMap<Bytes, Option<(Bytes, u32)>>,
}

impl Group {
    /// As it was read.
    pub(super) fn new(version: u64, state: GroupState, slots: Vec<GroupSlot>) -> Self {
        let head_before = slots.first().map(|slot| slot.visible_at);
        let slots = slots.into_iter().map(|slot| (slot.sequence, slot)).collect();
        Self { version, state, slots, head_before, ..Self::default() }
    }

    /// A message that is in the first ones.
    pub(super) fn slot(&self, sequence: Sequence) -> Option<&GroupSlot> {
        self.slots.get(&sequence.0)
    }

    /// The first message.
    pub(super) fn first(&self) -> Option<&GroupSlot> {
        self.slots.values().next()
    }

    fn put(&mut self, slot: GroupSlot) {
        self.slots.insert(slot.sequence, slot);
        self.changes.insert(slot_key(slot.sequence), Some((write(&slot), GROUP_TTL_S)));
    }

    /// Takes a message out.
    pub(super) fn remove(&mut self, sequence: Sequence) {
        if self.slots.remove(&sequence.0).is_some() {
            self.changes.insert(slot_key(sequence.0), None);
            self.state.head = self.slots.keys().next().map_or(self.state.last + 1, |first| *first);
        }
    }

    /// Takes everything out.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.state.head = self.state.last + 1;
    }

    /// Its tuple is not where it should be.
    pub(super) fn list_again(&mut self) {
        self.is_lost = true;
    }

    /// Puts a message behind all others; of its key nothing may have been seen. It is seen for so many seconds.
    pub(super) fn append(
        &mut self,
        number: Number,
        visible_at: u64,
        key: Option<(&DeduplicationKey, u32)>,
    ) -> GroupSeen {
        let sequence = number.0.max(self.state.last + 1);
        if self.state.tuple.is_none() && self.slots.is_empty() {
            self.state.head = self.state.head.max(self.state.last + 1);
        }
        self.state.last = sequence;
        self.put(GroupSlot { sequence, number: number.0, visible_at, ..GroupSlot::default() });
        let seen = GroupSeen { number: number.0, sequence };
        if let Some((key, ttl_s)) = key {
            self.changes.insert(seen_key(key), Some((write(&seen), ttl_s)));
        }
        seen
    }

    /// Makes the first messages, as far as they are visible and were received too often, this claim's until then:
    /// nobody else can delete or receive them while they are brought to the dead-letter queue.
    pub(super) fn claim(&mut self, now: u64, until: u64, want: &Want) -> Vec<GroupSlot> {
        let mut claimed = Vec::new();
        let first: Vec<GroupSlot> = self.slots.values().copied().take(BATCH_MAX).collect();
        for mut slot in first.into_iter().filter(|slot| !slot.is_expired(now, want.kept_ms)) {
            if slot.visible_at > now || want.receives_max.is_none_or(|most| slot.receives < most) {
                break;
            }
            (slot.visible_at, slot.token) = (until, want.token.0);
            self.put(slot);
            claimed.push(slot);
        }
        claimed
    }

    /// Takes out what a claim has brought to the dead-letter queue, as far as it still has it: that.
    pub(super) fn take_claimed(&mut self, claimed: &[GroupSlot]) -> Vec<GroupSlot> {
        let is_there =
            |slot: &&GroupSlot| self.slots.get(&slot.sequence).is_some_and(|now| now.token == slot.token);
        let taken: Vec<GroupSlot> = claimed.iter().filter(is_there).copied().collect();
        taken.iter().for_each(|slot| self.remove(Sequence(slot.sequence)));
        taken
    }

    /// Receives from the first message on until one is invisible, or has to go to the dead-letter queue first.
    pub(super) fn receive(&mut self, now: u64, want: &Want) -> GroupReceived {
        let mut received = GroupReceived::default();
        let first: Vec<GroupSlot> = self.slots.values().copied().take(BATCH_MAX).collect();
        for mut slot in first {
            if slot.is_expired(now, want.kept_ms) {
                self.remove(Sequence(slot.sequence));
                received.expired.push(slot);
                continue;
            }
            let is_overdue = want.receives_max.is_some_and(|most| slot.receives >= most);
            if slot.visible_at > now || is_overdue || received.taken.len() == want.count {
                break;
            }
            if slot.receives == 0 {
                slot.first_received_at = now;
            }
            slot.receives = slot.receives.saturating_add(1);
            (slot.received_at, slot.visible_at, slot.token) = (now, now + want.visibility_ms, want.token.0);
            self.put(slot);
            received.taken.push(slot);
        }
        received
    }

    /// Takes out what was kept for long enough of the first messages, [`BATCH_MAX`] of them: these.
    pub(super) fn expire(&mut self, now: u64, kept_ms: u64) -> Vec<GroupSlot> {
        let first = self.slots.values().copied().take(BATCH_MAX);
        let expired: Vec<GroupSlot> = first.filter(|slot| slot.is_expired(now, kept_ms)).collect();
        expired.iter().for_each(|slot| self.remove(Sequence(slot.sequence)));
        expired
    }

    /// Whether a message is in flight by the receive with this token.
    pub(super) fn is_held(&self, sequence: Sequence, token: Token, now: u64) -> bool {
        self.slot(sequence)
            .is_some_and(|slot| slot.token == token.0 && slot.receives > 0 && slot.visible_at > now)
    }

    /// Deletes a message. One that is gone is deleted already.
    pub(super) fn delete(
        &mut self,
        sequence: Sequence,
        token: Token,
        now: u64,
    ) -> Result<Option<GroupSlot>, ReceiptError> {
        match self.slot(sequence).copied() {
            None => Ok(None),
            Some(_) if !self.is_held(sequence, token, now) => Err(ReceiptError::Expired),
            Some(slot) => {
                self.remove(sequence);
                Ok(Some(slot))
            }
        }
    }

    /// Makes a message visible in so many milliseconds.
    pub(super) fn change(
        &mut self,
        sequence: Sequence,
        token: Token,
        visibility_ms: u64,
        now: u64,
    ) -> Result<(), ReceiptError> {
        let mut slot = *self.slot(sequence).ok_or(ReceiptError::Unavailable)?;
        if slot.token != token.0 {
            return Err(ReceiptError::Unavailable);
        }
        if slot.visible_at <= now {
            return Err(ReceiptError::NotInFlight);
        }
        if now.saturating_add(visibility_ms) > slot.received_at + INVISIBLE_MS_MAX {
            return Err(ReceiptError::TooLong);
        }
        slot.visible_at = now + visibility_ms;
        self.put(slot);
        Ok(())
    }

    /// Nobody took what was received: it is visible, and as if it had not been received.
    pub(super) fn give_back(&mut self, sequence: Sequence, token: Token, now: u64) {
        let Some(mut slot) = self.slot(sequence).copied().filter(|slot| slot.token == token.0) else {
            return;
        };
        // Nobody has this receipt: given back twice it is given back once.
        slot.token = !slot.token;
        slot.receives = slot.receives.saturating_sub(1);
        if slot.receives == 0 {
            (slot.first_received_at, slot.received_at) = (0, 0);
        }
        slot.visible_at = now;
        self.put(slot);
    }

    /// Whether there is something to be written.
    pub(super) fn is_changed(&self) -> bool {
        !self.changes.is_empty()
    }

    /// When its tuple is to be, if not where it is; the inner `None` is that it has to go.
    pub(super) fn to_be_listed(&self) -> Option<Option<u64>> {
        let head = self.slots.values().next().map(|slot| slot.visible_at);
        match (self.state.tuple, head) {
            (None, head) => head.map(Some),
            (Some(_), head) if self.is_lost => Some(head),
            // Those before what was appended were not read.
            (Some(_), _) if self.head_before.is_none() && !self.slots.is_empty() => None,
            (Some(_), head) => (head != self.head_before || head.is_none()).then_some(head),
        }
    }

    /// What is to be written: its cells that stay, with the first of them, and the keys of those that go.
    pub(super) fn into_cells(self) -> (Vec<RowCell>, Vec<Bytes>) {
        let mut cells = vec![RowCell {
            key: STATE,
            value: write(&self.state),
            version: self.version + 1,
            ttl_s: GROUP_TTL_S,
        }];
        let mut gone = Vec::new();
        for (key, change) in self.changes {
            match change {
                Some((value, ttl_s)) => cells.push(RowCell { key, value, version: 0, ttl_s }),
                None => gone.push(key),
            }
        }
        (cells, gone)
    }
}
