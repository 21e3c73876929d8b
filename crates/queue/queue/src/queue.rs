//! One queue: what a send, a receive, a delete, a change of visibility does to it (BDQS, section III.B).
//!
//! No input, no output, no clock: whoever calls says what time it is, and that time never goes back. What is called
//! `apply_…` follows from a journal record that is durable, on the way as at recovery; the same records in the same
//! order make the same queue. Nothing here ever looks at more messages than it answers with: not for a backlog, and
//! not for a group that has one. Two do, and have to: a purge, and a change of a FIFO queue's delay.

mod changes;
mod fifo;
mod standard;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::deduplication::{Deduplication, DeduplicationKey, DeduplicationSeen};
use crate::groups::Groups;
use crate::ids::{Number, Sequence, Token};
use crate::index::{Index, Tuple};
use crate::limits::{IN_FLIGHT_MAX, INVISIBLE_MS_MAX};
use crate::pages::{DELAYED, DIRTY, IN_FLIGHT, IN_TREE, MOVING, PageEntry, Pages, STORED};
use crate::settings::{OrderHint, Settings};

pub(crate) use changes::{ChangesState, Delta};
use fifo::Attempts;

/// A message that was sent: what its journal record says, but for its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) sequence: Sequence,
    pub(crate) number: Number,
    pub(crate) sent_at: u64,
    pub(crate) visible_at: u64,
    pub(crate) group: Option<Arc<str>>,
    pub(crate) deduplication: Option<DeduplicationKey>,
}

/// What a receive asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) count: usize,
    /// How long what is received is invisible, in milliseconds.
    pub(crate) visibility_ms: u64,
    /// The receive's name, by which a FIFO queue answers it again.
    pub(crate) attempt: Option<String>,
    /// Whether there is a dead-letter queue to go to.
    pub(crate) may_redrive: bool,
}

/// A message that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) sequence: Sequence,
    pub(crate) entry: PageEntry,
    /// The queue that it was moved away from, if it was.
    pub(crate) source: Option<Arc<str>>,
}

/// A message on its way to another queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) entry: PageEntry,
    pub(crate) group: Option<Arc<str>>,
    pub(crate) source: Option<Arc<str>>,
}

/// What a receive did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueReceived {
    pub(crate) taken: Vec<Taken>,
    /// Messages that were received too often: they are out of the index, and wait for their move to be durable.
    pub(crate) overdue: Vec<Sequence>,
    /// Whether there may not be more in flight.
    pub(crate) is_full: bool,
}

/// Why a receipt does not delete, or change, its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    /// The message was received again since, or its visibility timeout is over: a FIFO queue wants to know.
    #[error("the receipt has expired")]
    Expired,
    /// There is no such message, or it was received again since.
    #[error("the message does not exist or is not available for a change of its visibility timeout")]
    Unavailable,
    /// The message is visible: a FIFO queue wants to know.
    #[error("the message is not in flight")]
    NotInFlight,
    /// It would be invisible for more than 12 hours since it was received.
    #[error("the message would be invisible for more than 12 hours")]
    TooLong,
}

/// How many messages a queue has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// That can be received.
    pub visible: u64,
    /// Received, and neither deleted nor visible again.
    pub in_flight: u64,
    /// Whose delay is not over.
    pub delayed: u64,
}

/// What happened in a queue since its start here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Happened {
    /// Messages sent.
    pub sent: u64,
    /// Messages received, as often as they were.
    pub received: u64,
    /// Messages deleted.
    pub deleted: u64,
    /// Messages that became visible again because they were not deleted in time.
    pub timeouts: u64,
    /// Messages that were kept for as long as the queue keeps messages.
    pub expired: u64,
    /// Messages moved to the dead-letter queue.
    pub redriven: u64,
    /// Older visible messages that receives passed over, for each message that they took: what the order hint costs.
    /// Not counted with a hint of infinity.
    pub displaced: u64,
    /// Receives after which it was looked whether another receiver has the same message ([`crate::shared`]).
    pub looked: u64,
    /// Of these, those where one did.
    pub duplicates: u64,
}

/// One queue.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) settings: Settings,
    pages: Pages,
    /// All tuples; in a FIFO queue those of the groups' first messages.
    index: Index,
    groups: Groups,
    /// In a FIFO queue, the tuples of everything that is invisible.
    timeouts: BTreeSet<Tuple>,
    pub(crate) deduplication: Deduplication,
    attempts: Attempts,
    /// The number that the next message gets.
    pub(crate) next: Sequence,
    in_flight: u64,
    delayed: u64,
    /// Messages on their way to another queue.
    moving: BTreeSet<Sequence>,
    /// When the newest message was sent.
    newest_sent_at: u64,
    /// Messages that were sent earlier than one before them: they came from another queue.
    aged: BTreeSet<Tuple>,
    /// Names of queues that messages came from; an entry's `source` is a place in it, and 0 none.
    sources: Vec<Arc<str>>,
    changes: changes::QueueChanges,
    pub(crate) happened: Happened,
}

impl Queue {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings, next: Sequence(1), ..Self::default() }
    }

    pub(crate) fn is_fifo(&self) -> bool {
        self.settings.fifo.is_some()
    }

    /// Changes how it behaves. In a FIFO queue another delay is also that of what is there and was not received yet.
    pub(crate) fn set(&mut self, settings: Settings, now: u64) {
        let before = std::mem::replace(&mut self.settings, settings);
        let [before, after] =
            [before.delay_s, self.settings.delay_s].map(|seconds| u64::from(seconds) * 1_000);
        if !self.is_fifo() || before == after {
            return;
        }
        let is_delayed = |entry: &PageEntry| {
            entry.receives == 0 && !entry.is(MOVING) && entry.visible_at == entry.sent_at + before
        };
        let entries = self.pages.iter_from(Sequence(0)).filter(|(_, entry)| is_delayed(entry));
        for sequence in entries.map(|(sequence, _)| sequence).collect::<Vec<_>>() {
            self.unlist(sequence);
            let Some(entry) = self.pages.get_mut(sequence) else { continue };
            entry.visible_at = entry.sent_at + after;
            entry.set(DELAYED, true);
            self.list(sequence, now);
            self.note_changed(sequence);
        }
    }

    /// Lets the time be `now`: what is too old goes, and what becomes visible by itself does.
    pub(crate) fn advance(&mut self, now: u64) {
        let Self { index, pages, in_flight, delayed, happened, .. } = self;
        let mut ripened = |pages: &mut Pages, sequence| {
            let Some(entry) = pages.get_mut(sequence) else { return };
            if entry.is(IN_FLIGHT) {
                *in_flight -= 1;
                happened.timeouts += 1;
            }
            if entry.is(DELAYED) {
                *delayed -= 1;
            }
            entry.set(IN_FLIGHT | DELAYED, false);
        };
        if self.settings.fifo.is_some() {
            // The heads' own flags are looked after with everybody else's.
            index.ripen(now, |_| {});
            while let Some(tuple) = self.timeouts.first().copied().filter(|(at, _)| *at <= now) {
                self.timeouts.pop_first();
                ripened(pages, tuple.1);
            }
        } else {
            index.ripen(now, |sequence| ripened(pages, sequence));
        }
        self.expire(now);
    }

    fn expire(&mut self, now: u64) {
        let kept_ms = self.kept_ms();
        let is_over = |sent_at: u64| sent_at.saturating_add(kept_ms) <= now;
        while let Some((sequence, entry)) = self.pages.first()
            && is_over(entry.sent_at)
            && !entry.is(MOVING)
        {
            self.remove(sequence, now);
            self.happened.expired += 1;
        }
        while let Some((sent_at, sequence)) = self.aged.first().copied().filter(|(at, _)| is_over(*at)) {
            self.aged.pop_first();
            let is_there = self.pages.get(sequence);
            if is_there.is_some_and(|entry| entry.sent_at == sent_at && !entry.is(MOVING)) {
                self.remove(sequence, now);
                self.happened.expired += 1;
            }
        }
        self.deduplication.expire(now);
    }

    /// When something happens by itself that a receive may wait for: a message becomes visible, or one goes that others
    /// of its group are behind.
    pub(crate) fn next_at(&self) -> Option<u64> {
        let expires_at = if self.is_fifo() { self.expires_at() } else { None };
        self.index.next_at().into_iter().chain(expires_at).min()
    }

    /// When [`Queue::expire`] removes something next.
    fn expires_at(&self) -> Option<u64> {
        // While it moves it stays, and so does what is behind it.
        let first = self.pages.first().filter(|(_, entry)| !entry.is(MOVING)).map(|(_, entry)| entry.sent_at);
        let oldest = first.into_iter().chain(self.aged.first().map(|(at, _)| *at)).min();
        oldest.map(|sent_at| sent_at.saturating_add(self.kept_ms()))
    }

    /// How long messages are kept.
    fn kept_ms(&self) -> u64 {
        u64::from(self.settings.retention_s) * 1_000
    }

    pub(crate) fn counts(&self) -> Counts {
        let hidden = self.in_flight + self.delayed + self.moving.len() as u64;
        Counts {
            visible: self.pages.len().saturating_sub(hidden),
            in_flight: self.in_flight,
            delayed: self.delayed,
        }
    }

    /// When the oldest message was sent.
    pub(crate) fn oldest_sent_at(&self) -> Option<u64> {
        let first = self.pages.first().map(|(_, entry)| entry.sent_at);
        first.into_iter().chain(self.aged.first().map(|(at, _)| *at)).min()
    }

    /// When the newest message was sent.
    pub(crate) fn newest_sent_at(&self) -> u64 {
        self.newest_sent_at
    }

    /// Contents that the tree does not have.
    pub(crate) fn contents_in_memory(&self) -> impl Iterator<Item = Number> {
        let entries = self.pages.iter_from(Sequence(0));
        entries.filter(|(_, entry)| !entry.is(STORED)).map(|(_, entry)| entry.number)
    }

    /// The newest message's number, whether or not it is still there.
    pub(crate) fn last(&self) -> Sequence {
        Sequence(self.next.0 - 1)
    }

    /// A message's entry.
    pub(crate) fn entry(&self, sequence: Sequence) -> Option<PageEntry> {
        self.pages.get(sequence)
    }

    /// A message was sent here, or came from another queue.
    pub(crate) fn apply_arrival(&mut self, arrival: &Arrival, now: u64) {
        let Arrival { sequence, number, sent_at, visible_at, group, deduplication } = arrival;
        if let Some(key) = deduplication {
            let seen = DeduplicationSeen { number: *number, sequence: *sequence, at: *sent_at };
            self.deduplication.insert(*key, seen, true);
        }
        let mut entry = PageEntry::new(*number, *sent_at, *visible_at);
        entry.set(DELAYED, *visible_at > now);
        self.put(*sequence, entry, group.as_ref(), None, now);
        self.happened.sent += 1;
    }

    /// Puts a message in: sent, moved here, or read from the checkpoint.
    fn put(
        &mut self,
        sequence: Sequence,
        mut entry: PageEntry,
        group: Option<&Arc<str>>,
        source: Option<&Arc<str>>,
        now: u64,
    ) {
        // A replay may bring what the checkpoint has already.
        if let Some(known) = self.pages.get(sequence).map(|known| known.flags) {
            self.unlist(sequence);
            self.pages.remove(sequence);
            entry.flags |= known & (IN_TREE | STORED);
        }
        self.next = self.next.max(Sequence(sequence.0 + 1));
        if entry.sent_at < self.newest_sent_at {
            self.aged.insert((entry.sent_at, sequence));
        }
        self.newest_sent_at = self.newest_sent_at.max(entry.sent_at);
        entry.source = source.map_or(0, |source| self.source_place(source));
        if self.is_fifo() {
            entry.group = self.groups.place(group.map_or("", |group| group));
            let messages = &mut self.groups.get_mut(entry.group).messages;
            let at = messages.partition_point(|other| *other < sequence);
            if messages.get(at) != Some(&sequence) {
                messages.insert(at, sequence);
            }
        }
        self.pages.insert(sequence, entry);
        self.list(sequence, now);
        self.note_changed(sequence);
    }

    fn source_place(&mut self, source: &Arc<str>) -> u32 {
        let place = self.sources.iter().position(|known| known == source).unwrap_or_else(|| {
            self.sources.push(Arc::clone(source));
            self.sources.len() - 1
        });
        u32::try_from(place + 1).expect("queues are in memory")
    }

    fn source_of(&self, entry: &PageEntry) -> Option<Arc<str>> {
        self.sources.get((entry.source as usize).checked_sub(1)?).cloned()
    }

    fn group_of(&self, entry: &PageEntry) -> Option<Arc<str>> {
        self.is_fifo().then(|| Arc::clone(&self.groups.get(entry.group).name))
    }

    /// Takes a message's tuple, and what is counted of it, out.
    fn unlist(&mut self, sequence: Sequence) {
        let is_fifo = self.is_fifo();
        let Some(entry) = self.pages.get_mut(sequence) else { return };
        let tuple = (entry.visible_at, sequence);
        self.in_flight -= u64::from(entry.is(IN_FLIGHT));
        self.delayed -= u64::from(entry.is(DELAYED));
        entry.set(IN_FLIGHT | DELAYED, false);
        if is_fifo {
            self.timeouts.remove(&tuple);
        } else if !entry.is(MOVING) {
            self.index.remove(tuple);
        }
    }

    /// Puts a message's tuple in, and counts it by its flags.
    fn list(&mut self, sequence: Sequence, now: u64) {
        let is_fifo = self.is_fifo();
        let Some(entry) = self.pages.get_mut(sequence) else { return };
        let tuple = (entry.visible_at, sequence);
        if entry.visible_at <= now {
            entry.set(IN_FLIGHT | DELAYED, false);
        }
        self.in_flight += u64::from(entry.is(IN_FLIGHT));
        self.delayed += u64::from(entry.is(DELAYED));
        if is_fifo {
            let group = entry.group;
            if entry.visible_at > now {
                self.timeouts.insert(tuple);
            }
            self.refresh(group, now);
        } else {
            self.index.insert(tuple, now);
        }
    }

    /// Takes a message away.
    fn remove(&mut self, sequence: Sequence, now: u64) -> Option<PageEntry> {
        self.unlist(sequence);
        let entry = self.pages.remove(sequence)?;
        self.moving.remove(&sequence);
        if !self.aged.is_empty() {
            self.aged.remove(&(entry.sent_at, sequence));
        }
        if self.is_fifo() {
            self.refresh(entry.group, now);
        }
        self.note_removed(sequence, &entry, true);
        Some(entry)
    }

    /// Receives: up to `want.count` messages become invisible and are handed out.
    pub(crate) fn receive(
        &mut self,
        now: u64,
        want: &Want,
        random_below: &mut dyn FnMut(u64) -> u64,
    ) -> QueueReceived {
        self.advance(now);
        if self.in_flight >= IN_FLIGHT_MAX {
            return QueueReceived { is_full: true, ..QueueReceived::default() };
        }
        match self.is_fifo() {
            true => self.receive_fifo(now, want, random_below),
            false => self.receive_standard(now, want, random_below),
        }
    }

    /// Whether a message was received so often that it goes to the dead-letter queue instead.
    fn is_overdue(&self, entry: &PageEntry, want: &Want) -> bool {
        want.may_redrive
            && self.settings.redrive.as_ref().is_some_and(|redrive| entry.receives >= redrive.receives_max)
    }

    /// Hands a message out that is in no index.
    fn hand_out(&mut self, sequence: Sequence, now: u64, visibility_ms: u64, token: Token) -> Option<Taken> {
        let entry = self.pages.get_mut(sequence)?;
        let after = u32::try_from(now.saturating_sub(entry.sent_at)).unwrap_or(u32::MAX);
        if entry.receives == 0 {
            entry.first_after = after;
        }
        entry.last_after = after;
        entry.receives = entry.receives.saturating_add(1);
        entry.token = token.0;
        entry.visible_at = now + visibility_ms;
        entry.set(IN_FLIGHT, true);
        let entry = *entry;
        self.happened.received += 1;
        self.note_changed(sequence);
        Some(Taken { sequence, source: self.source_of(&entry), entry })
    }

    /// A received message is what the record of its receive says.
    pub(crate) fn apply_receive(
        &mut self,
        sequence: Sequence,
        token: Token,
        receives: u16,
        at: u64,
        visible_at: u64,
        now: u64,
    ) {
        if self.pages.get(sequence).is_none() {
            return;
        }
        self.unlist(sequence);
        let entry = self.pages.get_mut(sequence).expect("it was there");
        let after = u32::try_from(at.saturating_sub(entry.sent_at)).unwrap_or(u32::MAX);
        if entry.receives == 0 {
            entry.first_after = after;
        }
        (entry.last_after, entry.receives, entry.token) = (after, receives, token.0);
        entry.visible_at = visible_at;
        entry.set(IN_FLIGHT, true);
        self.list(sequence, now);
        self.note_changed(sequence);
    }

    /// Whether the receipt deletes its message. A message that is gone is deleted already.
    pub(crate) fn check_delete(
        &mut self,
        sequence: Sequence,
        token: Token,
        now: u64,
    ) -> Result<(), ReceiptError> {
        self.advance(now);
        let Some(entry) = self.pages.get(sequence) else { return Ok(()) };
        match self.is_fifo() && !(entry.is(IN_FLIGHT) && entry.token == token.0) {
            true => Err(ReceiptError::Expired),
            false => Ok(()),
        }
    }

    /// A message was deleted; its content's number, if it was there.
    pub(crate) fn apply_delete(&mut self, sequence: Sequence, now: u64) -> Option<Number> {
        let entry = self.remove(sequence, now)?;
        self.happened.deleted += 1;
        Some(entry.number)
    }

    /// Whether the receipt may make its message visible in so many milliseconds.
    pub(crate) fn check_change(
        &mut self,
        sequence: Sequence,
        token: Token,
        visibility_ms: u64,
        now: u64,
    ) -> Result<(), ReceiptError> {
        self.advance(now);
        let entry = self.pages.get(sequence).ok_or(ReceiptError::Unavailable)?;
        if entry.token != token.0 {
            return Err(ReceiptError::Unavailable);
        }
        // As Amazon has it: a standard queue takes it as long as nobody else has received the message.
        if self.is_fifo() && !entry.is(IN_FLIGHT) {
            return Err(ReceiptError::NotInFlight);
        }
        let received_at = entry.sent_at + u64::from(entry.last_after);
        match now + visibility_ms > received_at + INVISIBLE_MS_MAX {
            true => Err(ReceiptError::TooLong),
            false => Ok(()),
        }
    }

    /// Whether a message was not received again, nor went, since the receive with this token.
    pub(crate) fn is_last_receive(&self, sequence: Sequence, token: Token) -> bool {
        self.pages.get(sequence).is_some_and(|entry| entry.token == token.0 && !entry.is(MOVING))
    }

    /// A message's visibility was changed; without effect if it was received again since.
    pub(crate) fn apply_change(&mut self, sequence: Sequence, token: Token, visible_at: u64, now: u64) {
        if !self.is_last_receive(sequence, token) {
            return;
        }
        self.unlist(sequence);
        let entry = self.pages.get_mut(sequence).expect("it was there");
        entry.visible_at = visible_at;
        entry.set(IN_FLIGHT, true);
        self.list(sequence, now);
        self.note_changed(sequence);
    }

    /// Nobody took what was received: it is visible again, and as if it had not been received. A restart may find that
    /// it was.
    pub(crate) fn give_back(&mut self, sequence: Sequence, token: Token, now: u64) {
        if !self.is_last_receive(sequence, token) {
            return;
        }
        self.apply_change(sequence, token, now, now);
        let Some(entry) = self.pages.get_mut(sequence) else { return };
        // Nobody has this receipt: given back twice it is given back once.
        entry.token = !entry.token;
        entry.receives = entry.receives.saturating_sub(1);
        if entry.receives == 0 {
            (entry.first_after, entry.last_after) = (0, 0);
        }
    }

    /// Everything up to a message was purged, and with it the deduplication ids that were taken for that.
    pub(crate) fn apply_purge(&mut self, upto: Sequence, now: u64) {
        while let Some((sequence, _)) = self.pages.first()
            && sequence <= upto
        {
            self.unlist(sequence);
            let Some(entry) = self.pages.remove(sequence) else { break };
            self.moving.remove(&sequence);
            if self.is_fifo() {
                self.refresh(entry.group, now);
            }
            self.note_purged(&entry);
        }
        while self.aged.first().is_some_and(|(_, sequence)| self.pages.get(*sequence).is_none()) {
            self.aged.pop_first();
        }
        self.deduplication.forget(upto);
        self.changes.purged_upto = self.changes.purged_upto.max(Some(upto));
    }

    /// A message is on its way to another queue: until that is durable, or lost, nobody can receive it, nor what is
    /// behind it in its group.
    pub(crate) fn begin_move(&mut self, sequence: Sequence, now: u64) -> Option<Sequence> {
        let group = self.begin_move_within(sequence)?;
        if self.is_fifo() {
            self.refresh(group, now);
        }
        Some(sequence)
    }

    /// The same, of a message whose group is looked after later; the group's place.
    fn begin_move_within(&mut self, sequence: Sequence) -> Option<u32> {
        let entry = self.pages.get(sequence).filter(|entry| !entry.is(MOVING))?;
        self.unlist(sequence);
        self.pages.get_mut(sequence)?.set(MOVING, true);
        self.moving.insert(sequence);
        Some(entry.group)
    }

    /// The move was lost: the message is here as before.
    pub(crate) fn abort_move(&mut self, sequence: Sequence, now: u64) {
        if !self.moving.remove(&sequence) {
            return;
        }
        let Some(entry) = self.pages.get_mut(sequence) else { return };
        entry.set(MOVING, false);
        self.list(sequence, now);
    }

    /// Whether a receive may find more once the moves that are under way are durable: what is behind them in their
    /// groups.
    pub(crate) fn is_held(&self) -> bool {
        self.is_fifo() && !self.moving.is_empty()
    }

    /// Whether messages are on their way to another queue.
    pub(crate) fn is_moving(&self) -> bool {
        !self.moving.is_empty()
    }

    /// The move is durable: the message is here no more. What arrives where it goes, if it was still here.
    pub(crate) fn finish_move(&mut self, sequence: Sequence, now: u64) -> Option<Carried> {
        let entry = self.pages.get(sequence)?;
        let carried = Carried { group: self.group_of(&entry), source: self.source_of(&entry), entry };
        self.unlist(sequence);
        self.pages.remove(sequence);
        self.moving.remove(&sequence);
        self.aged.remove(&(entry.sent_at, sequence));
        if self.is_fifo() {
            self.forget_in_group(entry.group, sequence);
            self.refresh(entry.group, now);
        }
        self.note_removed(sequence, &entry, false);
        Some(carried)
    }

    /// A message came from another queue.
    pub(crate) fn apply_moved(
        &mut self,
        sequence: Sequence,
        carried: &Carried,
        sent_at: u64,
        source: Option<&Arc<str>>,
        is_new: bool,
        (at, now): (u64, u64),
    ) {
        let mut entry = PageEntry::new(carried.entry.number, sent_at, at);
        entry.generation = carried.entry.generation.wrapping_add(u8::from(is_new));
        entry.set(STORED, carried.entry.is(STORED));
        self.put(sequence, entry, carried.group.as_ref(), source, now);
    }

    /// Name of the queue that a message was moved away from.
    pub(crate) fn came_from(&self, sequence: Sequence) -> Option<Arc<str>> {
        self.source_of(&self.pages.get(sequence)?)
    }

    /// Messages as they would be received, without receiving them, and what is behind them: oldest first.
    pub(crate) fn peek(&self, from: Sequence, count: usize) -> Vec<(Taken, Option<Arc<str>>)> {
        let entries = self.pages.iter_from(from).filter(|(_, entry)| !entry.is(MOVING)).take(count);
        entries
            .map(|(sequence, entry)| {
                let taken = Taken { sequence, entry, source: self.source_of(&entry) };
                (taken, self.group_of(&entry))
            })
            .collect()
    }

    /// The next messages for a move task, those that can be received: oldest first, in a FIFO queue one group after the
    /// other.
    pub(crate) fn movable(&mut self, upto: Sequence, count: usize, now: u64) -> Vec<Sequence> {
        self.advance(now);
        let Self { index, pages, .. } = self;
        let at = |sequence| pages.get(sequence).map_or(0, |entry| entry.visible_at);
        let oldest = index.oldest(count, at).into_iter().map(|(_, sequence)| sequence);
        match self.is_fifo() {
            true => self.movable_fifo(oldest, upto, count, now),
            false => oldest.filter(|sequence| *sequence <= upto).collect(),
        }
    }

    /// Some of the messages that the next receives will take whose contents the tree has, in about that order; `taken`
    /// were received just now.
    pub(crate) fn upcoming(&self, taken: &[Taken], count: usize) -> Vec<(Sequence, Number)> {
        let at = |sequence| self.pages.get(sequence).map_or(0, |entry| entry.visible_at);
        let oldest = self.index.oldest(count, at).into_iter().map(|(_, sequence)| sequence);
        let upcoming: Vec<Sequence> = match (self.is_fifo(), self.settings.order_hint) {
            (true, _) => self.upcoming_fifo(taken, oldest, count),
            (false, OrderHint::Infinity) => Vec::new(),
            (false, _) => oldest.collect(),
        };
        let entries = upcoming.into_iter().filter_map(|sequence| Some((sequence, self.pages.get(sequence)?)));
        let stored = entries.filter(|(_, entry)| entry.is(STORED));
        stored.map(|(sequence, entry)| (sequence, entry.number)).collect()
    }

    #[cfg(test)]
    pub(crate) fn groups_len(&self) -> usize {
        self.groups.len()
    }

    fn note_changed(&mut self, sequence: Sequence) {
        if let Some(entry) = self.pages.get_mut(sequence)
            && !entry.is(DIRTY)
        {
            entry.set(DIRTY, true);
            self.changes.changed.push(sequence);
        }
    }

    fn note_removed(&mut self, sequence: Sequence, entry: &PageEntry, with_content: bool) {
        if entry.is(IN_TREE) {
            self.changes.removed.push((sequence, with_content.then_some(entry.number)));
        } else if with_content && entry.is(STORED) {
            self.changes.contents_removed.push(entry.number);
        }
        if with_content {
            self.changes.dropped.push(entry.number);
        }
    }

    fn note_purged(&mut self, entry: &PageEntry) {
        // What is in the tree under its own number is swept there; a content that came with a move is not.
        if entry.is(STORED) && !entry.is(IN_TREE) {
            self.changes.contents_removed.push(entry.number);
        }
        self.changes.dropped.push(entry.number);
    }
}
