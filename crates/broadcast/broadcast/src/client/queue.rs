//! What a publisher has not been answered of one stream, as a step function: what is to be sent, and who is told what.
//!
//! Each event keeps the number that it was given, whoever refuses what: a head that was removed from its chain, and
//! does not know that, may have been sent it after another one that took it. So what is sent again is known for what it
//! is by all who count, and what the others answer does no harm.
//!
//! The head takes the numbers of a publisher in order only. Those that it does not know are no gap if they were
//! answered: the chain may have forgotten them, and a refused one was never there. So each message says up to which
//! number that is so.
//!
//! What follows a refused message is sent again at once, so several copies of a message may be on their way. A refusal
//! does not say which one it is about, and an earlier copy's says nothing of a later one, which the head may take. But
//! each copy is answered once, so they are counted: only the refusal of the last one counts.

use std::collections::VecDeque;

use crate::batch::{Batch, Writer};
use crate::message::{Message, PublisherId, Reason};
use crate::name::Stream;

/// Batches on their way.
const IN_FLIGHT_MAX: usize = 8;
/// Bytes of events in one message.
const MESSAGE_BYTES: usize = 256 << 10;

/// What a publisher is told of an event that all replicas of its region hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// The event's number in its stream. If it was `repeated`, a number up to which all replicas hold the stream, which
    /// is not smaller.
    pub seq: u64,
    /// Whether an earlier try had published it, so that its own number is not known any more.
    pub repeated: bool,
}

/// A message's worth of events, with who waits for which of them.
#[derive(Debug)]
struct PendingPublish<A> {
    first: u64,
    /// What was given, in order; one batch once it was sent.
    batches: Vec<Batch>,
    count: u64,
    bytes: usize,
    answers: Vec<(u64, A)>,
    /// Up to which number the head was told, with it, that all is answered; `None` if it is to be sent.
    sent: Option<u64>,
    /// How often it was sent through this connection and was not refused.
    copies: u32,
    /// Whether the head misses events before it.
    gap: bool,
    /// Whether nothing is put together with it: something was, and was refused, or the head may have it already.
    alone: bool,
}

impl<A> PendingPublish<A> {
    /// What each one asked for, by itself.
    fn apart(mut self) -> Vec<Self> {
        let whole = self.joined();
        let mut next = self.first;
        let each = self.answers.into_iter().map(|(last, answer)| {
            let first = std::mem::replace(&mut next, last + 1);
            let part = whole.rest(whole.after + (first - self.first)).ok().flatten();
            let part = part.and_then(|rest| rest.up_to(whole.after + (next - self.first)).ok().flatten());
            let batch = part.expect("each has events, and no tombstones");
            let (count, bytes) = (u64::from(batch.count), batch.bytes.len());
            let (batches, answers) = (vec![batch], vec![(last, answer)]);
            Self { first, batches, count, bytes, answers, sent: None, copies: 0, gap: false, alone: true }
        });
        each.collect()
    }

    /// All of it as one batch.
    fn joined(&mut self) -> Batch {
        if let [first, .., _] = self.batches.as_slice() {
            let mut writer = Writer::new(first.after);
            for batch in &self.batches {
                writer.extend(batch).expect("they were checked when they were given");
            }
            self.batches = vec![writer.finish(0)];
        }
        self.batches[0].clone()
    }
}

/// What of one stream is not answered yet. `A` is who waits for an answer.
#[derive(Debug)]
pub struct Queue<A> {
    /// As whom it publishes in this stream.
    client: PublisherId,
    /// If it goes on from an earlier publisher's numbers: up to which of them the chain need not know any.
    resumed: Option<u64>,
    /// Whether any of it was published.
    began: bool,
    pending: VecDeque<PendingPublish<A>>,
    next: u64,
}

impl<A> Queue<A> {
    /// A new publisher's.
    pub fn new(client: PublisherId) -> Self {
        Self { client, resumed: None, began: false, pending: VecDeque::new(), next: 1 }
    }

    /// That of a publisher that goes on from `next`: all before it was answered, and up to `forgotten` of that need not
    /// be known to the chain any more.
    pub fn resume(client: PublisherId, next: u64, forgotten: u64) -> Self {
        Self { resumed: Some(forgotten), began: true, next, ..Self::new(client) }
    }

    /// Whether nothing waits, and nothing was ever published.
    pub fn is_unused(&self) -> bool {
        self.pending.is_empty() && !self.began
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether it is worth to give it more.
    pub fn has_room(&self) -> bool {
        self.pending.len() < 2 * IN_FLIGHT_MAX
    }

    /// Adds events to the last message that was not sent, or begins another one.
    pub fn push(&mut self, batch: Batch, answer: A) {
        let first = self.next;
        let (count, bytes) = (u64::from(batch.count), batch.bytes.len());
        self.next += count;
        let answer = (self.next - 1, answer);
        match self.pending.back_mut() {
            Some(pending)
                if pending.sent.is_none() && !pending.alone && pending.bytes + bytes <= MESSAGE_BYTES =>
            {
                pending.batches.push(batch);
                pending.count += count;
                pending.bytes += bytes;
                pending.answers.push(answer);
            }
            _ => {
                let (batches, answers) = (vec![batch], vec![answer]);
                self.pending.push_back(PendingPublish {
                    first,
                    batches,
                    count,
                    bytes,
                    answers,
                    sent: None,
                    copies: 0,
                    gap: false,
                    alone: false,
                });
            }
        }
    }

    /// There is another connection: nothing was sent through it, and somebody may have all of what was sent before.
    pub fn reconnected(&mut self) {
        for pending in &mut self.pending {
            // What a head may have is sent as it was, so that it has all of it or nothing.
            pending.alone |= pending.sent.take().is_some();
            (pending.copies, pending.gap) = (0, false);
        }
    }

    /// What is to be sent next, if there is something, and not too much on its way.
    pub fn next(&mut self, stream: &Stream) -> Option<Message> {
        let at = self.pending.iter().take(IN_FLIGHT_MAX).position(|pending| pending.sent.is_none())?;
        let answered = self.answered();
        let pending = &mut self.pending[at];
        (pending.sent, pending.gap) = (Some(answered), false);
        pending.copies += 1;
        let (first, batch) = (pending.first, pending.joined());
        Some(Message::Publish { stream: stream.clone(), client: self.client, answered, first, batch })
    }

    /// The number up to which all is answered, as far as the head is told.
    fn answered(&self) -> u64 {
        let all = self.pending.front().map_or(self.next, |oldest| oldest.first) - 1;
        self.resumed.unwrap_or(all)
    }

    /// All replicas hold the events up to `number`, which is `seq` in the stream; who is told so. Of copies of them
    /// that are left the head takes none, as it has the events, and whoever waited needs no other answer.
    pub fn published(&mut self, number: u64, seq: u64, repeated: bool) -> Vec<(A, Acknowledged)> {
        self.began = true;
        let mut told = Vec::new();
        while let Some(pending) = self.pending.pop_front_if(|p| p.first + p.count - 1 <= number) {
            for (last, answer) in pending.answers {
                // The numbers of one message follow each other, and no two events have the same.
                let seq = seq.saturating_sub(number - last);
                told.push((answer, Acknowledged { seq, repeated }));
            }
        }
        self.close_gap();
        told
    }

    /// The head refused a copy of the message that begins with `first`; who is told that what they wait for is not
    /// published.
    pub fn refused(&mut self, first: u64, reason: Reason) -> Vec<A> {
        let was_sent = |pending: &PendingPublish<A>| pending.first == first && pending.copies > 0;
        let Some(at) = self.pending.iter().position(was_sent) else { return Vec::new() };
        self.pending[at].copies -= 1;
        if self.pending[at].copies > 0 || self.pending[at].sent.is_none() {
            // Another copy is on its way, or is going to be, and may be taken.
            return Vec::new();
        }
        if reason == Reason::Gap {
            if at == 0 && self.resumed.is_some() {
                let all = self.pending.drain(..).flat_map(|pending| pending.answers);
                return all.map(|(_, answer)| answer).collect();
            }
            // What was refused before it is sent again, or nothing else waits.
            self.pending[at].gap = true;
            self.close_gap();
            return Vec::new();
        }
        let Some(refused) = self.pending.remove(at) else { return Vec::new() };
        let mut told = Vec::new();
        if matches!(reason, Reason::Invalid | Reason::Limit | Reason::Full) && refused.answers.len() > 1 {
            // One of those who asked did so for something that can't be: each is asked for alone.
            for (place, pending) in refused.apart().into_iter().enumerate() {
                self.pending.insert(at + place, pending);
            }
        } else {
            told.extend(refused.answers.into_iter().map(|(_, answer)| answer));
        }
        // The head refused what follows it as well, for the gap.
        self.pending.iter_mut().skip(at).for_each(|pending| pending.sent = None);
        told
    }

    /// Sends the oldest again if the head misses events before it and was not told that all of them are answered.
    fn close_gap(&mut self) {
        let answered = self.answered();
        if let Some(oldest) = self.pending.front()
            && oldest.gap
            && oldest.sent.is_some_and(|told| told < answered)
        {
            self.pending.iter_mut().for_each(|pending| pending.sent = None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Content;

    fn stream() -> Stream {
        Stream::parse("here/news").unwrap()
    }

    fn batch(count: u64) -> Batch {
        let mut writer = Writer::new(0);
        (0..count).for_each(|_| writer.publish(&Content::default(), None).unwrap());
        writer.finish(0)
    }

    /// Pushes so many events, each as a message of its own that is on its way.
    fn sent(queue: &mut Queue<u64>, count: u64) {
        for _ in 0..count {
            let number = queue.next;
            queue.push(batch(1), number);
            assert_eq!(numbers(queue).last().map(|(_, first, _)| *first), Some(number));
        }
    }

    /// Of the messages to be sent: up to where all is answered, and the first and the last number.
    fn numbers(queue: &mut Queue<u64>) -> Vec<(u64, u64, u64)> {
        let mut numbers = Vec::new();
        while let Some(message) = queue.next(&stream()) {
            let Message::Publish { answered, first, batch, .. } = message else { panic!("{message:?}") };
            numbers.push((answered, first, first + u64::from(batch.count) - 1));
        }
        numbers
    }

    #[test]
    fn what_is_sent_again_has_its_number_and_its_publisher_whoever_misses_what_is_before_it() {
        let mut queue = Queue::new(7);
        sent(&mut queue, 5);
        assert_eq!(queue.published(5, 50, false).len(), 5);
        sent(&mut queue, 2);
        queue.reconnected();
        assert_eq!(numbers(&mut queue), [(5, 6, 6), (5, 7, 7)]);
        // One that does not know what it was told can't be helped, and does no harm.
        assert!(queue.refused(6, Reason::Gap).is_empty());
        assert!(numbers(&mut queue).is_empty());
        queue.reconnected();
        let Some(Message::Publish { client: 7, first: 6, .. }) = queue.next(&stream()) else { panic!() };
    }

    #[test]
    fn what_follows_a_refused_event_keeps_its_number_and_is_sent_once_all_before_it_is_answered() {
        let mut queue = Queue::new(7);
        sent(&mut queue, 3);
        assert_eq!(queue.refused(2, Reason::Invalid), [2]);
        assert_eq!(numbers(&mut queue), [(0, 3, 3)]);
        // The head has 1, and refuses 3 twice.
        assert!(queue.refused(3, Reason::Gap).is_empty());
        assert!(queue.refused(3, Reason::Gap).is_empty());
        assert!(numbers(&mut queue).is_empty());
        assert_eq!(queue.published(1, 1, false).len(), 1);
        assert_eq!(numbers(&mut queue), [(2, 3, 3)]);
        assert_eq!(queue.published(3, 2, false).len(), 1);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_publisher_that_was_forgotten_between_two_messages_tells_the_head_what_is_answered() {
        let mut queue = Queue::new(7);
        sent(&mut queue, 2);
        // The refusal overtakes the answer, or comes behind it.
        assert!(queue.refused(2, Reason::Gap).is_empty());
        assert!(numbers(&mut queue).is_empty());
        assert_eq!(queue.published(1, 1, false).len(), 1);
        assert_eq!(numbers(&mut queue), [(1, 2, 2)]);
        let mut queue = Queue::new(7);
        sent(&mut queue, 2);
        assert_eq!(queue.published(1, 1, false).len(), 1);
        assert!(queue.refused(2, Reason::Gap).is_empty());
        assert_eq!(numbers(&mut queue), [(1, 2, 2)]);
    }

    #[test]
    fn a_late_refusal_of_a_copy_sends_nothing_again_and_takes_nothing_for_refused_that_is_on_its_way() {
        for reason in [Reason::Limit, Reason::Invalid] {
            let mut queue = Queue::new(7);
            sent(&mut queue, 8);
            assert_eq!(queue.refused(1, reason), [1]);
            assert_eq!(numbers(&mut queue), (2..=8).map(|number| (1, number, number)).collect::<Vec<_>>());
            // The first copies' refusals come when the second ones are in the head's queue, of which it takes 2.
            for number in 2..=8 {
                assert!(queue.refused(number, Reason::Gap).is_empty());
            }
            assert_eq!(queue.published(2, 1, false).len(), 1);
            assert!(numbers(&mut queue).is_empty(), "{reason:?}: 3 is on its way, and would be so twice");
            // So nothing of what is told to be refused is on its way.
            assert_eq!(queue.refused(3, reason), [3]);
            assert_eq!(numbers(&mut queue), (4..=8).map(|number| (3, number, number)).collect::<Vec<_>>());
            for number in 4..=8 {
                assert!(queue.refused(number, Reason::Gap).is_empty());
            }
            assert_eq!(queue.published(8, 6, false).len(), 5);
            assert!(queue.is_empty());
        }
    }

    #[test]
    fn of_several_copies_the_last_one_s_refusal_counts_and_any_one_s_acknowledgement() {
        let several = || {
            let mut queue = Queue::new(7);
            sent(&mut queue, 3);
            assert_eq!(queue.refused(1, Reason::Limit), [1]);
            assert_eq!(numbers(&mut queue), [(1, 2, 2), (1, 3, 3)]);
            queue
        };
        let mut queue = several();
        assert!(queue.refused(2, Reason::Limit).is_empty());
        assert!(queue.refused(3, Reason::Gap).is_empty());
        assert!(numbers(&mut queue).is_empty());
        assert_eq!(queue.refused(2, Reason::Limit), [2]);
        // 3 is to be sent again, whatever is said of its copies until then, and they count all the same.
        assert!(queue.refused(3, Reason::Limit).is_empty());
        assert_eq!(numbers(&mut queue), [(2, 3, 3)]);
        assert_eq!(queue.refused(3, Reason::Limit), [3]);
        assert!(queue.is_empty());
        // What is published up to 3 is so whatever is said of copies of 2 and of 3 that are left.
        let mut queue = several();
        assert_eq!(queue.published(3, 2, true).len(), 2);
        for number in [2, 3] {
            assert!(queue.refused(number, Reason::Limit).is_empty());
            assert!(queue.published(number, 2, true).is_empty());
        }
        // Those of an earlier connection are not answered in this one.
        let mut queue = several();
        queue.reconnected();
        assert_eq!(numbers(&mut queue), [(1, 2, 2), (1, 3, 3)]);
        assert_eq!(queue.refused(2, Reason::Limit), [2]);
    }

    #[test]
    fn those_that_were_put_together_and_refused_are_asked_for_alone_with_their_numbers() {
        let mut queue = Queue::new(7);
        sent(&mut queue, 1);
        // Three requests for six events, in one message.
        for (number, count) in [(2, 1), (3, 2), (5, 3)] {
            queue.push(batch(count), number);
        }
        assert_eq!(numbers(&mut queue), [(0, 2, 7)]);
        assert_eq!(queue.published(1, 10, false), [(1, Acknowledged { seq: 10, repeated: false })]);
        assert!(queue.refused(2, Reason::Invalid).is_empty());
        assert_eq!(numbers(&mut queue), [(1, 2, 2), (1, 3, 4), (1, 5, 7)]);
        assert_eq!(queue.published(2, 11, false), [(2, Acknowledged { seq: 11, repeated: false })]);
        assert_eq!(queue.refused(3, Reason::Invalid), [3]);
        assert_eq!(numbers(&mut queue), [(4, 5, 7)]);
    }

    #[test]
    fn one_that_goes_on_from_an_earlier_one_s_numbers_is_told_of_a_gap_unless_it_says_that_it_is_none() {
        let mut queue = Queue::resume(7, 6, 0);
        sent(&mut queue, 2);
        assert_eq!(queue.refused(6, Reason::Gap), [6, 7]);
        let mut queue = Queue::resume(7, 6, 5);
        queue.push(batch(1), 6);
        assert_eq!(numbers(&mut queue), [(5, 6, 6)]);
        assert_eq!(queue.published(6, 1, false).len(), 1);
        queue.push(batch(1), 7);
        // Of what it publishes itself the chain has to know.
        assert_eq!(numbers(&mut queue), [(5, 7, 7)]);
        assert_eq!(queue.refused(7, Reason::Gap), [7]);
    }
}
