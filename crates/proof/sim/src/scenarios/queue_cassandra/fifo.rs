//! Clients of a FIFO queue, and what they check beyond what holds for all queues.
//!
//! Everybody sends again, through any front end, what nobody was told of, and now and then what somebody was told of,
//! also to another group: it is one message, with one sequence. Whatever is received, all of its group that is before
//! it is gone, or in the same hand; and what is received is not received again within its timeout, as far as clocks
//! agree.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Instant;
use tailwater_queue::{Message, QueueStore, ReceiptError, Receive, Send};

use crate::checkers::{Violation, ensure};

use super::fronts::{SKEW, number_of};
use super::{Model, SimFront};

/// Groups of the queue; a message's is its number's rest.
const GROUPS: u64 = 3;

/// What is known of groups.
#[derive(Default)]
pub(super) struct FifoGroups {
    /// The sequence that each message was answered or received with.
    sequences: BTreeMap<u64, u64>,
    /// Of each message's last receive: when it was answered, and until when there can't be another.
    hidden: BTreeMap<u64, (Instant, Instant)>,
    /// Whose sends were not answered.
    unsure: Vec<u64>,
}

impl FifoGroups {
    fn one_message(&mut self, number: u64, sequence: u64) -> Result<(), Violation> {
        let known = *self.sequences.entry(number).or_insert(sequence);
        ensure(known == sequence, || {
            format!(
                "message {number} was sent once, by its deduplication id, and is there as {known} and {sequence}"
            )
        })
    }
}

impl Model {
    /// A receive that made its messages invisible for so long.
    fn received(
        &mut self,
        received: &[(u64, u64)],
        (begun, ended): (Instant, Instant),
        visibility: Duration,
    ) -> Result<(), Violation> {
        for (at, (number, sequence)) in received.iter().enumerate() {
            self.groups.one_message(*number, *sequence)?;
            let until = begun + visibility.saturating_sub(SKEW);
            if let Some((other_ended, other_until)) = self.groups.hidden.get(number) {
                let is_after = ended >= *other_until;
                // One that took long to be answered may have come before one that is known already.
                let was_before = begun <= *other_ended && *other_ended >= until;
                ensure(is_after || was_before, || {
                    format!("message {number} was received while it was invisible")
                })?;
            }
            self.groups.hidden.insert(*number, (ended, until));
            let before = &received[..at];
            for (other, place) in &self.groups.sequences {
                let is_before = place < sequence && other % GROUPS == number % GROUPS;
                let is_there = self.seen.sent.contains(other) && !self.seen.going.has(*other);
                let is_in_hand = before.iter().any(|(one, _)| one == other);
                ensure(!is_before || !is_there || is_in_hand, || {
                    format!("message {number} was received before message {other} of its group")
                })?;
            }
        }
        Ok(())
    }
}

impl SimFront {
    pub(super) async fn send_fifo(&self) {
        let numbers: Vec<u64> = {
            let mut model = self.model.lock();
            match self.env.random_below(4) {
                0 if !model.groups.unsure.is_empty() => vec![model.groups.unsure.remove(0)],
                1 if !model.seen.sent.is_empty() => {
                    let at = self.env.random_below(model.seen.sent.len() as u64) as usize;
                    model.seen.sent.iter().nth(at).copied().into_iter().collect()
                }
                _ => model.begin_sends(1 + self.env.random_below(5), self.env.now()).collect(),
            }
        };
        // Somewhere else only what surely is where it belongs.
        let is_sent = self.model.lock().seen.sent.contains(&numbers[0]);
        let elsewhere = u64::from(is_sent && self.env.random_below(3) == 0);
        let sends = numbers.iter().map(|number| Send {
            content: Bytes::copy_from_slice(&number.to_le_bytes()),
            delay: None,
            group: Some(((number + elsewhere) % GROUPS).to_string()),
            deduplication: Some(number.to_string()),
        });
        let answer = self.store.send(&self.queue, sends.collect()).await;
        let mut model = self.model.lock();
        match answer {
            Ok(sent) => {
                for (number, sent) in numbers.into_iter().zip(sent) {
                    model.seen.sent.insert(number);
                    let checked = model.groups.one_message(number, sent.sequence.0);
                    model.seen.note(checked);
                }
            }
            Err(_) => {
                model.seen.report.count("failed sends", 1);
                model.groups.unsure.extend(numbers);
            }
        }
    }

    /// Receives, and checks it.
    pub(super) async fn receive_checked(
        &self,
        receive: Receive,
        visibility: Duration,
    ) -> Option<Vec<Message>> {
        let begun = self.env.now();
        let Ok(messages) = self.store.receive(&self.queue, receive).await else {
            self.model.lock().seen.report.count("failed receives", 1);
            return None;
        };
        let received: Vec<(u64, u64)> =
            messages.iter().map(|message| (number_of(message), message.receipt.sequence.0)).collect();
        let mut model = self.model.lock();
        let checked = model.received(&received, (begun, self.env.now()), visibility);
        model.seen.note(checked);
        Some(messages)
    }

    pub(super) async fn receive_fifo(&self) {
        let gone = self.model.lock().deleted.clone();
        let visibility = Duration::from_millis(500 + self.env.random_below(20_000));
        let receive = Receive {
            count: 1 + self.env.random_below(4) as usize,
            visibility: Some(visibility),
            wait: Some(Duration::from_millis(self.env.random_below(300))),
            attempt: None,
        };
        let Some(messages) = self.receive_checked(receive, visibility).await else { return };
        for message in &messages {
            let number = number_of(message);
            self.check(number, &gone);
            match self.env.random_below(10) {
                0 => self.model.lock().seen.report.count("forgotten", 1),
                1 => {
                    self.model.lock().groups.hidden.remove(&number);
                    let change = (message.receipt, Duration::from_millis(self.env.random_below(3_000)));
                    let _ = self.store.change_visibility(&self.queue, vec![change]).await;
                }
                _ => self.delete_fifo(message).await,
            }
            // Its worker takes its time.
            if self.env.random_below(4) == 0 {
                self.env.sleep(Duration::from_millis(self.env.random_below(8_000))).await;
            }
        }
    }

    pub(super) async fn delete_fifo(&self, message: &Message) {
        let number = number_of(message);
        self.model.lock().seen.going.begin([number]);
        let Ok(outcomes) = self.store.delete(&self.queue, vec![message.receipt]).await else { return };
        let mut model = self.model.lock();
        match outcomes[0] {
            Ok(()) => drop(model.deleted.insert(number)),
            // It is surely not deleted by this one; by others it may be.
            Err(ReceiptError::Expired) => model.seen.going.in_vain(number),
            Err(_) => {}
        }
    }
}
