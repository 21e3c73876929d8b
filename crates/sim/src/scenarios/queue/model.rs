//! What is known of messages from outside, by what is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tailwater_env::Instant;

use crate::checkers::{Report, Violation, ensure};
use crate::scenarios::lives::Outcome;

use super::FIFO;

/// A message's name: what its body begins with.
pub(super) type Name = u64;

/// What a queue's clock may be off: it counts in milliseconds.
pub(super) const SLACK: Duration = Duration::from_millis(2);

/// A message of a queue, as it was received or looked at.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) queue: &'static str,
    pub(super) name: Name,
    pub(super) sequence: u64,
}

#[derive(Default)]
pub(super) struct Model {
    pub(super) report: Report,
    pub(super) violation: Option<Violation>,
    pub(super) stop: bool,
    pub(super) clients: usize,
    /// Sends that were answered.
    pub(super) answered: u64,
    names: Name,
    attempted: BTreeSet<Name>,
    sent: BTreeSet<Name>,
    deleting: BTreeSet<Name>,
    deleted: BTreeSet<Name>,
    /// Of this life, of each message's last receive: when it was answered, and until when there can't be another.
    hidden: BTreeMap<(&'static str, Name), (Instant, Instant)>,
    /// Of the FIFO queue: each message's group, and the number that it was answered or seen with.
    groups: BTreeMap<Name, u64>,
    sequences: BTreeMap<Name, u64>,
}

impl Outcome for Model {
    fn report(&mut self) -> &mut Report {
        &mut self.report
    }

    fn violation(&mut self) -> &mut Option<Violation> {
        &mut self.violation
    }
}

impl Model {
    /// Nothing is left of the life before.
    pub(super) fn begin_life(&mut self) {
        self.clients = 0;
        self.hidden.clear();
        self.report.count("lives", 1);
    }

    /// A message that is about to be sent.
    pub(super) fn begin_send(&mut self, group: Option<u64>) -> Name {
        self.names += 1;
        self.attempted.insert(self.names);
        self.groups.extend(group.map(|group| (self.names, group)));
        self.names
    }

    pub(super) fn sent(&mut self, name: Name, sequence: u64) {
        self.answered += 1;
        self.sent.insert(name);
        self.report.count("sent", 1);
        if self.groups.contains_key(&name) {
            let one = self.one_message(name, sequence);
            self.note(one);
        }
    }

    /// A deduplication id stands for one message, whoever sent it how often.
    fn one_message(&mut self, name: Name, sequence: u64) -> Result<(), Violation> {
        let known = *self.sequences.entry(name).or_insert(sequence);
        ensure(known == sequence, || {
            format!(
                "message {name} was sent once, by its deduplication id, and is there as {known} and as {sequence}"
            )
        })
    }

    pub(super) fn begin_delete(&mut self, name: Name) {
        self.deleting.insert(name);
    }

    pub(super) fn deleted(&mut self, name: Name) {
        self.deleted.insert(name);
        self.report.count("deleted", 1);
    }

    /// Nothing is known of how long it is invisible.
    pub(super) fn forget_hidden(&mut self, queue: &'static str, name: Name) {
        self.hidden.remove(&(queue, name));
    }

    fn check_known(&self, seen: &Seen) -> Result<(), Violation> {
        let Seen { queue, name, .. } = seen;
        ensure(self.attempted.contains(name), || format!("message {name} in {queue} was never sent"))?;
        ensure(!self.deleted.contains(name), || {
            format!("message {name} was deleted and came back in {queue}")
        })
    }

    /// A receive, begun and answered at these times, which made its messages invisible for so long.
    pub(super) fn received(
        &mut self,
        seen: &[Seen],
        (begun, ended): (Instant, Instant),
        visibility: Duration,
    ) -> Result<(), Violation> {
        for (at, message) in seen.iter().enumerate() {
            self.check_known(message)?;
            let Seen { queue, name, sequence } = *message;
            let until = begun + visibility;
            let mut is_last = true;
            if let Some((other_ended, other_until)) = self.hidden.get(&(queue, name)) {
                is_last = ended + SLACK >= *other_until;
                // One that took long to be answered may have come before one that is known already.
                let was_before = begun <= *other_ended && *other_ended + SLACK >= until;
                ensure(is_last || was_before, || {
                    format!("message {name} of {queue} was received while it was invisible")
                })?;
            }
            if is_last {
                self.hidden.insert((queue, name), (ended, until));
            }
            if queue == FIFO {
                self.one_message(name, sequence)?;
                self.check_order(name, sequence, &seen[..at])?;
            }
            self.report.count("received", 1);
        }
        Ok(())
    }

    /// Everything that was acknowledged before it in its group is gone, or was received just before it.
    fn check_order(&self, name: Name, sequence: u64, before: &[Seen]) -> Result<(), Violation> {
        let group = self.groups.get(&name);
        for (other, number) in &self.sequences {
            let is_before = *number < sequence && self.groups.get(other) == group;
            let is_there = self.sent.contains(other) && !self.deleting.contains(other);
            let is_in_hand = before.iter().any(|seen| seen.name == *other);
            ensure(!is_before || !is_there || is_in_hand, || {
                format!("message {name} was received before message {other} of its group")
            })?;
        }
        Ok(())
    }

    /// What is in the queues after a start.
    pub(super) fn recovered(&mut self, found: &[Seen]) -> Result<(), Violation> {
        let mut numbers = BTreeSet::new();
        for seen in found {
            self.check_known(seen)?;
            // Looked at twice it may be seen twice, but there it is once.
            numbers.insert((seen.queue, seen.name, seen.sequence));
            if seen.queue == FIFO {
                self.one_message(seen.name, seen.sequence)?;
            }
        }
        let names: BTreeSet<Name> = found.iter().map(|seen| seen.name).collect();
        self.check_all_there(&names)?;
        let mut once = BTreeSet::new();
        for (queue, name, _) in numbers {
            ensure(once.insert((queue, name)), || format!("message {name} is twice in {queue}"))?;
        }
        self.report.count("recovered", names.len() as u64);
        Ok(())
    }

    fn check_all_there(&self, names: &BTreeSet<Name>) -> Result<(), Violation> {
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
