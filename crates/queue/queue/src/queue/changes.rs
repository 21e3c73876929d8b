//! What a checkpoint has to write of a queue: the messages that have changed since the last one.
//!
//! Most messages are sent and deleted between two checkpoints. They never get there.

use std::sync::Arc;

use super::Queue;
use crate::deduplication::{DeduplicationKey, DeduplicationSeen};
use crate::ids::{Number, Sequence};
use crate::pages::{DELAYED, DIRTY, IN_FLIGHT, IN_TREE, PageEntry, Pages, STORED};

/// What has changed since the last checkpoint.
#[derive(Default)]
pub(super) struct QueueChanges {
    /// Messages with another state, each once; some may be gone.
    pub(super) changed: Vec<Sequence>,
    /// Messages that the tree has and that are gone, with their contents' numbers if those go with them.
    pub(super) removed: Vec<(Sequence, Option<Number>)>,
    /// Contents to be removed, of messages that the tree does not have.
    pub(super) contents_removed: Vec<Number>,
    /// Contents that nobody will ask for: memory may forget them.
    pub(super) dropped: Vec<Number>,
    /// Everything up to here was purged.
    pub(super) purged_upto: Option<Sequence>,
}

/// A message whose state is to be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Upsert {
    pub(crate) sequence: Sequence,
    pub(crate) state: Vec<u8>,
    /// The content that is to be written with it.
    pub(crate) content: Option<Number>,
}

/// What a checkpoint writes of one queue.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(crate) next: Sequence,
    pub(crate) purged_upto: Option<Sequence>,
    pub(crate) removed: Vec<(Sequence, Option<Number>)>,
    pub(crate) contents_removed: Vec<Number>,
    pub(crate) upserts: Vec<Upsert>,
    pub(crate) seen: Vec<(DeduplicationKey, DeduplicationSeen)>,
    pub(crate) forgotten: Vec<DeduplicationKey>,
}

/// A message's state as the tree keeps it. Little-endian:
///
/// ```text
/// offset width
///   0      8   number       of its content
///   8      8   sent at      milliseconds since the epoch
///  16      8   visible at
///  24      4   first after  received first, after it was sent
///  28      4   last after   received last
///  32      4   token        of that receive
///  36      2   receives
///  38      1   generation
///  39      1   flags        1 in flight, 2 delayed
///  40      1   length of the group's name, which follows
///   .      1   length of the name of the queue that it came from, which follows
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangesState {
    pub(crate) entry: PageEntry,
    pub(crate) group: Option<Arc<str>>,
    pub(crate) source: Option<Arc<str>>,
}

/// Bytes that are no message's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the state of a message can't be read")]
pub(crate) struct StateError;

const FIXED_BYTES: usize = 40;

impl ChangesState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let PageEntry { number, sent_at, visible_at, first_after, last_after, token, receives, .. } =
            self.entry;
        let mut bytes = Vec::with_capacity(64);
        for field in [number.0, sent_at, visible_at] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        for field in [first_after, last_after, token] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&receives.to_le_bytes());
        bytes.push(self.entry.generation);
        bytes.push(self.entry.flags & (IN_FLIGHT | DELAYED));
        for name in [&self.group, &self.source] {
            let name = name.as_deref().unwrap_or_default();
            bytes.push(u8::try_from(name.len()).expect("names are bounded by the front"));
            bytes.extend_from_slice(name.as_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let (fixed, mut rest) = bytes.split_at_checked(FIXED_BYTES).ok_or(StateError)?;
        let u64_at = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("8 bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().expect("4 bytes"));
        let mut entry = PageEntry::new(Number(u64_at(0)), u64_at(8), u64_at(16));
        (entry.first_after, entry.last_after, entry.token) = (u32_at(24), u32_at(28), u32_at(32));
        entry.receives = u16::from_le_bytes([fixed[36], fixed[37]]);
        entry.generation = fixed[38];
        entry.flags = fixed[39] & (IN_FLIGHT | DELAYED);
        let mut name = || {
            let (length, after) = rest.split_first().ok_or(StateError)?;
            let (name, after) = after.split_at_checked(usize::from(*length)).ok_or(StateError)?;
            rest = after;
            let name = std::str::from_utf8(name).map_err(|_| StateError)?;
            Ok((!name.is_empty()).then(|| Arc::from(name)))
        };
        let (group, source) = (name()?, name()?);
        if rest.is_empty() { Ok(Self { entry, group, source }) } else { Err(StateError) }
    }
}

impl Queue {
    /// Whether there is nothing that a checkpoint would write.
    pub(crate) fn is_clean(&self) -> bool {
        let changes = &self.changes;
        changes.changed.is_empty()
            && changes.removed.is_empty()
            && changes.contents_removed.is_empty()
            && changes.purged_upto.is_none()
            && self.deduplication.added.is_empty()
            && self.deduplication.expired.is_empty()
    }

    /// What the next checkpoint writes; as of now it counts as written.
    pub(crate) fn take_delta(&mut self) -> Delta {
        let changes = std::mem::take(&mut self.changes);
        self.changes.dropped = changes.dropped;
        let mut upserts = Vec::with_capacity(changes.changed.len());
        for sequence in changes.changed {
            let Some(entry) = self.pages.get_mut(sequence) else { continue };
            if !entry.is(DIRTY) {
                continue;
            }
            // One that is on its way to another queue is here, as far as is durable.
            let content = (!entry.is(STORED)).then_some(entry.number);
            entry.set(DIRTY, false);
            entry.set(IN_TREE | STORED, true);
            let entry = *entry;
            let state = ChangesState { entry, group: self.group_of(&entry), source: self.source_of(&entry) };
            upserts.push(Upsert { sequence, state: state.encode(), content });
        }
        let removed = changes.removed.iter().map(|(sequence, _)| *sequence);
        self.pages.pack(upserts.iter().map(|upsert| upsert.sequence).chain(removed));
        let (seen, forgotten) = self.deduplication.take_changes();
        Delta {
            next: self.next,
            purged_upto: changes.purged_upto,
            removed: changes.removed,
            contents_removed: changes.contents_removed,
            upserts,
            seen,
            forgotten,
        }
    }

    /// Contents that nobody will ask for any more, since the last call.
    pub(crate) fn take_dropped(&mut self) -> Vec<Number> {
        std::mem::take(&mut self.changes.dropped)
    }

    /// A message that the checkpoint has.
    pub(crate) fn restore(&mut self, sequence: Sequence, state: ChangesState, now: u64) {
        let ChangesState { mut entry, group, source } = state;
        entry.set(IN_TREE | STORED | DIRTY, true); // dirty: it need not be noted as changed
        self.put(sequence, entry, group.as_ref(), source.as_ref(), now);
        if let Some(entry) = self.pages.get_mut(sequence) {
            entry.set(DIRTY, false);
        }
        // Nothing comes into the page before that of this one any more.
        self.pages.pack(Pages::page_before(sequence).into_iter());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_state_comes_back_as_it_was() {
        let mut entry = PageEntry::new(Number(1), 2, 3);
        (entry.first_after, entry.last_after, entry.token, entry.receives) = (4, 5, 6, 7);
        (entry.generation, entry.flags) = (8, IN_FLIGHT);
        for (group, source) in [(None, None), (Some("g".into()), Some("queue".into()))] {
            let state = ChangesState { entry, group, source };
            assert_eq!(ChangesState::decode(&state.encode()), Ok(state));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_decoding_panic(bytes: Vec<u8>) {
            let _ = ChangesState::decode(&bytes);
        }
    }
}
