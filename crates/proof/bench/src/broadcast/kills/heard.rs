//! What is heard of a stream, and whether it is what was published.

use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use tailwater_broadcast::{Batch, Event};
use tailwater_client::broadcast::Acknowledged;
use tailwater_load::check::ShardCheck;
use tailwater_load::messages::{FaultFlags, ShardTotal};
use tailwater_load::stats::Durations;

/// Which event it is: its publisher, and that one's own number for it, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeardOrigin {
    pub publisher: u16,
    pub number: u64,
}

/// An event's payload: what it is, and when it was made.
pub fn payload(origin: HeardOrigin, made_ns: u64) -> Bytes {
    let mut payload = BytesMut::with_capacity(18);
    payload.put_u16_le(origin.publisher);
    payload.put_u64_le(origin.number);
    payload.put_u64_le(made_ns);
    payload.freeze()
}

/// What an event is, and when it was made; `None` if it is none of ours.
pub fn read(event: &Event) -> Option<(HeardOrigin, u64)> {
    let (publisher, rest) = event.content()?.payload.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    let made_ns = u64::from_le_bytes(rest.try_into().ok()?);
    Some((
        HeardOrigin { publisher: u16::from_le_bytes(*publisher), number: u64::from_le_bytes(*number) },
        made_ns,
    ))
}

/// What the listener got that follows the stream all the time.
#[derive(Default)]
pub struct KillsHeard {
    /// What each number is, from 1 on.
    events: Vec<HeardOrigin>,
    /// Of each publisher.
    checks: Vec<ShardCheck>,
    pub faults: FaultFlags,
    /// From before an event was published to after it was heard.
    pub delays: Durations,
    last_ns: Option<u64>,
    pause_ns: u64,
    /// Why it hears nothing more.
    pub ended: Option<String>,
}

impl KillsHeard {
    /// Nothing yet, of so many publishers.
    pub fn new(publishers: usize) -> Self {
        Self { checks: vec![ShardCheck::default(); publishers], ..Self::default() }
    }

    /// The last number that was heard.
    pub fn last(&self) -> u64 {
        self.events.len() as u64
    }

    /// Fails if it hears nothing more.
    pub fn goes_on(&self) -> anyhow::Result<()> {
        self.ended.as_ref().map_or(Ok(()), |why| anyhow::bail!("the listener has ended: {why}"))
    }

    /// Takes in what came at a time.
    pub fn take(&mut self, batch: &Batch, now_ns: u64) -> anyhow::Result<()> {
        let pause_ns = self.last_ns.map_or(0, |last_ns| now_ns.saturating_sub(last_ns));
        self.pause_ns = self.pause_ns.max(pause_ns);
        self.last_ns = Some(now_ns);
        for event in batch.events() {
            let event = event?;
            ensure!(event.after() == self.last(), "event {} came after {}", event.seq, self.last());
            ensure!(
                !event.is_tombstone(),
                "the listener was so late that events up to {} were collected before: give a greater --keep-last",
                event.seq
            );
            let (origin, made_ns) = read(&event).context("an event that nobody published")?;
            let check =
                self.checks.get_mut(usize::from(origin.publisher)).context("a publisher that is none")?;
            check.accept(origin.number, 0, &mut self.faults);
            self.delays.record(now_ns.saturating_sub(made_ns));
            self.events.push(origin);
        }
        Ok(())
    }

    /// How many of the numbers that an event covers it does not cover as it was heard before. A tombstone may stand for
    /// those before `collected`.
    pub fn differing(&self, event: &Event, collected: u64) -> u64 {
        match read(event) {
            _ if event.is_tombstone() => {
                event.seq.saturating_sub(event.after().max(collected.saturating_sub(1)))
            }
            Some((origin, _)) => {
                u64::from(self.events.get(event.after() as usize).is_some_and(|heard| *heard != origin))
            }
            None => 1,
        }
    }

    /// The longest time in which nothing came, since this was asked before; one that is not over counts up to now.
    pub fn pause(&mut self, now_ns: u64) -> Duration {
        let going_on_ns = self.last_ns.map_or(0, |last_ns| now_ns.saturating_sub(last_ns));
        Duration::from_nanos(std::mem::take(&mut self.pause_ns).max(going_on_ns))
    }

    /// Whether everything was heard of which each publisher has given so much.
    pub fn is_complete(&self, given: &[u64]) -> bool {
        let mut each = self.checks.iter().zip(given);
        each.all(|(check, &records)| check.is_complete(ShardTotal { records, checksums: 0 }))
    }

    /// Compares with what each publisher was answered, at the end; how many answers name another event's number.
    pub fn finish(&mut self, acknowledged: &[Vec<Acknowledged>]) -> u64 {
        let mut misnumbered = 0;
        let mut found: Vec<Vec<Option<u64>>> =
            acknowledged.iter().map(|answers| vec![None; answers.len()]).collect();
        for (seq, origin) in (1..).zip(&self.events) {
            let of_one = found.get_mut(usize::from(origin.publisher));
            if let Some(place) = of_one.and_then(|of_one| of_one.get_mut(origin.number as usize)) {
                place.get_or_insert(seq);
            }
        }
        for ((check, answers), found) in self.checks.iter().zip(acknowledged).zip(found) {
            check.finish(ShardTotal { records: answers.len() as u64, checksums: 0 }, &mut self.faults);
            let is_wrong = |(answer, seq): &(&Acknowledged, Option<u64>)| match *seq {
                Some(seq) if answer.repeated => answer.seq < seq,
                Some(seq) => answer.seq != seq,
                // It counts as lost.
                None => false,
            };
            misnumbered += answers.iter().zip(found).filter(is_wrong).count() as u64;
        }
        misnumbered
    }
}

#[cfg(test)]
mod tests {
    use tailwater_broadcast::{Content, Kind, Writer};

    use super::*;

    /// A batch of these events of publisher 0, the next ones after `after`.
    fn batch(after: u64, numbers: &[u64]) -> Batch {
        let mut writer = Writer::new(after);
        for &number in numbers {
            let payload = payload(HeardOrigin { publisher: 0, number }, 5);
            writer.publish(&Content { payload, ..Content::default() }, None).expect("it fits");
        }
        writer.finish(after + numbers.len() as u64)
    }

    fn answers(seqs: &[u64]) -> Vec<Acknowledged> {
        seqs.iter().map(|&seq| Acknowledged { seq, repeated: false }).collect()
    }

    #[test]
    fn what_is_lost_reordered_or_comes_again_is_counted() {
        let mut heard = KillsHeard::new(1);
        heard.take(&batch(0, &[0, 2, 1]), 10).expect("it continues");
        heard.take(&batch(3, &[2, 4]), 20).expect("it continues");
        assert!(heard.is_complete(&[5]) && !heard.is_complete(&[6]));
        assert_eq!(heard.finish(&[answers(&[1, 3, 2, 4, 5, 6])]), 0);
        let faults = FaultFlags { lost: 2, reordered: 1, duplicated: 1, corrupted: 0 };
        assert_eq!((heard.faults, heard.last(), heard.delays.count()), (faults, 5, 5));
        assert!(heard.take(&batch(6, &[6]), 30).is_err(), "event 6 is missing");
    }

    #[test]
    fn an_answer_with_another_event_s_number_is_counted_but_a_repeated_one_may_be_greater() {
        let mut heard = KillsHeard::new(1);
        heard.take(&batch(0, &[0, 1, 2]), 10).expect("it continues");
        assert_eq!(heard.finish(&[answers(&[1, 3, 3])]), 1);
        let repeated = |seq| Acknowledged { seq, repeated: true };
        assert_eq!(heard.finish(&[vec![repeated(3), repeated(1), repeated(3)]]), 1);
    }

    #[test]
    fn a_pause_is_the_longest_since_it_was_asked_for_and_may_not_be_over() {
        let mut heard = KillsHeard::new(1);
        for (after, at) in [(0, 10), (1, 30), (2, 35)] {
            heard.take(&batch(after, &[after]), at).expect("it continues");
        }
        let mut pause = |now_ns| heard.pause(now_ns).as_nanos();
        assert_eq!((pause(40), pause(41), pause(75)), (20, 6, 40));
    }

    #[test]
    fn another_event_under_a_number_and_a_tombstone_too_early_differ() {
        let mut heard = KillsHeard::new(1);
        heard.take(&batch(0, &[0, 1, 2, 3]), 10).expect("it continues");
        let events: Vec<Event> = batch(0, &[0, 1, 7]).events().map(|event| event.expect("ours")).collect();
        assert_eq!(events.iter().map(|event| heard.differing(event, 0)).sum::<u64>(), 1);
        let tombstone = Event { seq: 3, range: 3, time_ms: 0, kind: Kind::Tombstone };
        // Numbers 1 and 2 may be gone, 3 may not; all; none.
        assert_eq!([3, 4, 1, 0].map(|collected| heard.differing(&tombstone, collected)), [1, 0, 3, 3]);
    }
}
