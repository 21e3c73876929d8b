//! What is known of messages from outside, by what is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tailwater_env::Instant;

use crate::checkers::{Violation, ensure};
use crate::scenarios::outcome::{Noted, Outcome};

use super::{FIFO, FIFO_DEAD, WORK};

/// A message's name: what its body begins with.
pub(super) type QueueName = u64;

/// What a queue's clock may be off: it counts in milliseconds.
pub(super) const SLACK: Duration = Duration::from_millis(2);

/// A message of a queue, as it was received or looked at.
#[derive(Clone, Debug)]
pub(super) struct ModelSeen {
    pub(super) queue: &'static str,
    pub(super) name: QueueName,
    pub(super) sequence: u64,
    /// How often it was brought back from a dead-letter queue.
    pub(super) generation: u8,
}

#[derive(Default)]
pub(super) struct Model {
    pub(super) noted: Noted,
    /// Sends that were answered.
    pub(super) answered: u64,
    names: QueueName,
    attempted: BTreeSet<QueueName>,
    sent: BTreeSet<QueueName>,
    deleting: BTreeSet<QueueName>,
    /// When the delete of each was answered.
    deleted: BTreeMap<QueueName, Instant>,
    /// Of this life, of each message's last receive: when it was answered, and until when there can't be another.
    hidden: BTreeMap<(&'static str, QueueName), (Instant, Instant)>,
    /// Of the FIFO queue: each message's group, and the number that it was answered or seen with before it was brought
    /// back.
    groups: BTreeMap<QueueName, u64>,
    sequences: BTreeMap<QueueName, u64>,
    /// Of the FIFO queue and its dead letters: where each message was seen last, or was acknowledged.
    places: BTreeMap<(&'static str, QueueName), u64>,
    /// Places of messages that others of their group have passed, since when, and the first that did: there is nothing
    /// any more.
    passed: BTreeMap<(&'static str, u64), (Instant, QueueName)>,
    /// When those were purged that were, and that had been acknowledged before.
    purged: BTreeMap<QueueName, Instant>,
    /// Purges that are not answered: they may take what is sent now, too.
    purging: usize,
    /// The last message that a purge which has ended may have taken.
    purged_up_to: QueueName,
    /// Messages that are being sent again.
    resending: BTreeSet<QueueName>,
    /// Messages that were sent again when a purge may have taken them with their deduplication ids: each may be several
    /// messages, one behind the other.
    anew: BTreeSet<QueueName>,
    /// What was sent to queues that are deleted in time.
    works: BTreeMap<String, Vec<QueueName>>,
    works_ever: u64,
}

impl Outcome for Model {
    fn noted(&mut self) -> &mut Noted {
        &mut self.noted
    }

    fn begin_life(&mut self) {
        if self.purging > 0 {
            self.purged_up_to = self.names;
        }
        self.purging = 0;
        self.resending.clear();
        self.hidden.clear();
        // Receives that were not durable may not have been. But one whose delete is durable was.
        let deleted = &self.deleted;
        self.passed.retain(|_, (_, by)| deleted.contains_key(by));
    }
}

impl Model {
    /// A message that is about to be sent.
    pub(super) fn begin_send(&mut self, group: Option<u64>) -> QueueName {
        self.names += 1;
        self.attempted.insert(self.names);
        self.groups.extend(group.map(|group| (self.names, group)));
        if group.is_some() && self.purging > 0 {
            self.deleting.insert(self.names);
        }
        self.names
    }

    /// A message is about to be sent again, by the same deduplication id.
    pub(super) fn begin_resend(&mut self, name: QueueName) {
        self.resending.insert(name);
        if self.purging > 0 || name <= self.purged_up_to {
            self.anew.insert(name);
        }
    }

    pub(super) fn end_resend(&mut self, name: QueueName) {
        self.resending.remove(&name);
    }

    pub(super) fn sent(&mut self, name: QueueName, sequence: u64) {
        self.answered += 1;
        self.sent.insert(name);
        self.count("sent", 1);
        if self.groups.contains_key(&name) {
            self.places.entry((FIFO, name)).or_insert(sequence);
            let one = self.one_message(name, sequence);
            self.note(one);
        }
    }

    /// A deduplication id stands for one message, whoever sent it how often, until a purge takes it.
    fn one_message(&mut self, name: QueueName, sequence: u64) -> Result<(), Violation> {
        let known = *self.sequences.entry(name).or_insert(sequence);
        ensure(known == sequence || self.anew.contains(&name), || {
            format!(
                "message {name} was sent once, by its deduplication id, and is there as {known} and as {sequence}"
            )
        })
    }

    /// The number of a queue that is about to be made.
    pub(super) fn begin_work(&mut self) -> u64 {
        self.works_ever += 1;
        self.works_ever
    }

    /// These are about to be sent to a queue.
    pub(super) fn sends_to(&mut self, queue: &str, names: &[QueueName]) {
        if queue.starts_with(WORK) {
            self.works.entry(queue.to_owned()).or_default().extend(names);
        }
    }

    /// A queue is about to be deleted, with what is not in its dead-letter queue by now.
    pub(super) fn begin_end_work(&mut self, queue: &str, there: &[ModelSeen]) {
        let there: BTreeSet<QueueName> = there.iter().map(|seen| seen.name).collect();
        let names = self.works.get(queue).into_iter().flatten();
        let (moved, left): (Vec<QueueName>, Vec<QueueName>) =
            names.copied().partition(|name| there.contains(name));
        self.deleting.extend(left);
        self.count("dead letters", moved.len() as u64);
    }

    /// The FIFO queue is about to be purged; what was acknowledged there.
    pub(super) fn begin_purge(&mut self) -> Vec<QueueName> {
        self.purging += 1;
        self.anew.extend(&self.resending);
        self.deleting.extend(self.groups.keys());
        self.groups.keys().filter(|name| self.sent.contains(name)).copied().collect()
    }

    pub(super) fn end_purge(&mut self) {
        self.purging -= 1;
        self.purged_up_to = self.names;
    }

    /// The FIFO queue was purged, at that time.
    pub(super) fn purged(&mut self, before: Vec<QueueName>, at: Instant) {
        for name in before {
            self.purged.entry(name).or_insert(at);
        }
        self.count("purges", 1);
    }

    pub(super) fn begin_delete(&mut self, name: QueueName) {
        self.deleting.insert(name);
    }

    pub(super) fn deleted(&mut self, name: QueueName, at: Instant) {
        self.deleted.entry(name).or_insert(at);
        self.count("deleted", 1);
    }

    /// Nothing is known of how long it is invisible.
    pub(super) fn forget_hidden(&mut self, queue: &'static str, name: QueueName) {
        self.hidden.remove(&(queue, name));
    }

    /// A change of visibility, begun and answered at these times, made a message invisible for so long.
    pub(super) fn changed(
        &mut self,
        queue: &'static str,
        name: QueueName,
        (begun, ended): (Instant, Instant),
        visibility: Duration,
    ) -> Result<(), Violation> {
        let until = begun + visibility;
        if self.anew.contains(&name) {
            return Ok(());
        }
        // What was known was forgotten when it began: this receive was told meanwhile.
        if let Some((other_ended, other_until)) = self.hidden.get(&(queue, name)) {
            let was_before = *other_until <= begun + SLACK;
            let is_after = *other_ended + SLACK >= until;
            ensure(was_before || is_after, || {
                format!(
                    "message {name} of {queue} was received although the timeout of its receiver was changed"
                )
            })?;
            if is_after {
                return Ok(());
            }
        }
        self.hidden.insert((queue, name), (ended, until));
        Ok(())
    }

    /// A message that was seen by something that began at that time.
    fn check_known(&self, seen: &ModelSeen, begun: Instant) -> Result<(), Violation> {
        let ModelSeen { queue, name, sequence, generation } = seen;
        let is_one = !self.anew.contains(name);
        // What had gone to the dead-letter queue was not there to be purged, and may come back from there.
        let is_as_sent = is_one && *queue == FIFO && *generation == 0;
        ensure(!is_as_sent || self.purged.get(name).is_none_or(|at| begun <= *at), || {
            format!("message {name} was purged and came back in {queue}")
        })?;
        ensure(self.passed.get(&(*queue, *sequence)).is_none_or(|(at, _)| begun <= *at), || {
            format!(
                "message {name} of {queue} is still there, and others of its group were received before it"
            )
        })?;
        ensure(self.attempted.contains(name), || format!("message {name} in {queue} was never sent"))?;
        // A receive that waits for a slow disk may be answered when its message was received again, and deleted by that
        // receipt.
        ensure(!is_one || self.deleted.get(name).is_none_or(|at| begun <= *at), || {
            format!("message {name} was deleted and came back in {queue}")
        })
    }

    /// A receive, begun and answered at these times, which made its messages invisible for so long.
    pub(super) fn received(
        &mut self,
        seen: &[ModelSeen],
        (begun, ended): (Instant, Instant),
        visibility: Duration,
    ) -> Result<(), Violation> {
        for (at, message) in seen.iter().enumerate() {
            self.check_known(message, begun)?;
            let ModelSeen { queue, name, .. } = *message;
            let until = begun + visibility;
            let mut is_last = true;
            if let Some((other_ended, other_until)) = self.hidden.get(&(queue, name)) {
                is_last = ended + SLACK >= *other_until;
                // One that took long to be answered may have come before one that is known already.
                let was_before = begun <= *other_ended && *other_ended + SLACK >= until;
                ensure(is_last || was_before || self.anew.contains(&name), || {
                    format!("message {name} of {queue} was received while it was invisible")
                })?;
            }
            if is_last {
                self.hidden.insert((queue, name), (ended, until));
            }
            self.see_in_group(message)?;
            if self.groups.contains_key(&name) {
                self.pass(message, &seen[..at], ended);
            }
            self.count("received", 1);
        }
        Ok(())
    }

    /// Where a message of a group is.
    fn see_in_group(&mut self, seen: &ModelSeen) -> Result<(), Violation> {
        let ModelSeen { queue, name, sequence, generation } = *seen;
        if !self.groups.contains_key(&name) {
            return Ok(());
        }
        if queue == FIFO_DEAD {
            self.count("dead letters of groups", 1);
        }
        self.count("brought back to groups", u64::from(queue == FIFO && generation > 0));
        self.places.insert((queue, name), sequence);
        if queue == FIFO && generation == 0 { self.one_message(name, sequence) } else { Ok(()) }
    }

    /// A message was received: all that is before it in its group and was not received just before it has to have left
    /// its place, for the dead-letter queue, or from there. Where it is now is not known: but it is not seen there
    /// again.
    fn pass(&mut self, seen: &ModelSeen, before: &[ModelSeen], now: Instant) {
        let group = self.groups.get(&seen.name);
        for ((queue, other), place) in &self.places {
            let is_before = *queue == seen.queue && *place < seen.sequence && self.groups.get(other) == group;
            let is_in_hand = before.iter().any(|seen| seen.name == *other);
            if is_before && !is_in_hand {
                self.passed.entry((*queue, *place)).or_insert((now, seen.name));
            }
        }
    }

    /// What is in the queues after a start.
    pub(super) fn recovered(&mut self, found: &[ModelSeen], now: Instant) -> Result<(), Violation> {
        let mut numbers = BTreeSet::new();
        for seen in found {
            self.check_known(seen, now)?;
            // Looked at twice it may be seen twice, but there it is once.
            numbers.insert((seen.queue, seen.name, seen.sequence));
            self.see_in_group(seen)?;
        }
        let names: BTreeSet<QueueName> = found.iter().map(|seen| seen.name).collect();
        self.check_all_there(&names)?;
        let mut once = BTreeSet::new();
        for (queue, name, _) in numbers {
            ensure(once.insert((queue, name)) || self.anew.contains(&name), || {
                format!("message {name} is twice in {queue}")
            })?;
        }
        self.count("recovered", names.len() as u64);
        Ok(())
    }

    fn check_all_there(&self, names: &BTreeSet<QueueName>) -> Result<(), Violation> {
        let missing = self.sent.difference(&self.deleting).find(|name| !names.contains(name));
        ensure(missing.is_none(), || {
            format!("message {} was acknowledged and is not there", missing.expect("there is one"))
        })
    }

    /// All queues were received from until they were empty.
    pub(super) fn drained(&self) -> Result<(), Violation> {
        self.check_all_there(&BTreeSet::new())
    }
}
