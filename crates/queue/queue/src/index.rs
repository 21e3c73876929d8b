//! The message index of a queue (BDQS, section III.B): tuples (T, message), ordered by T, the time from which on the
//! message can be received.
//!
//! Time itself makes messages visible: there is no timer. The tuples are kept in three parts that follow each other
//! in no particular order, so that each costs what it needs:
//! - *fresh*: sent and never touched since, in the order of sending. Ranges of numbers, because a backlog is mostly
//!   one range: ten million messages take as much memory here as one.
//! - *ripe*: all others whose T is over.
//! - *hidden*: those whose T is to come.
//!
//! [`Index::ripen`] moves tuples from hidden to ripe; each goes that way once, so nothing is ever searched for.

use std::collections::{BTreeSet, VecDeque};

use crate::ids::Sequence;
use crate::order_hint::choose;

/// A tuple: T in milliseconds since the epoch, and the message.
pub(crate) type Tuple = (u64, Sequence);

/// The tuples of one queue.
#[derive(Default)]
pub(crate) struct Index {
    /// Ranges of fresh messages, from included to excluded, ascending in number and in T.
    fresh: VecDeque<(u64, u64)>,
    /// T and number of the newest fresh one that ever was.
    fresh_last: Tuple,
    ripe: BTreeSet<Tuple>,
    hidden: BTreeSet<Tuple>,
}

impl Index {
    /// Puts a tuple in.
    pub(crate) fn insert(&mut self, tuple: Tuple, now: u64) {
        let (at, Sequence(number)) = tuple;
        if at > now {
            self.hidden.insert(tuple);
        } else if at >= self.fresh_last.0 && number > self.fresh_last.1.0 {
            match self.fresh.back_mut() {
                Some((_, end)) if *end == number => *end += 1,
                _ => self.fresh.push_back((number, number + 1)),
            }
            self.fresh_last = tuple;
        } else {
            self.ripe.insert(tuple);
        }
    }

    /// Takes a tuple out, if it is there.
    pub(crate) fn remove(&mut self, tuple: Tuple) {
        if !self.hidden.remove(&tuple) && !self.ripe.remove(&tuple) {
            self.remove_fresh(tuple.1.0);
        }
    }

    fn remove_fresh(&mut self, number: u64) {
        let index = self.fresh.partition_point(|(_, end)| *end <= number);
        let Some((start, end)) = self.fresh.get_mut(index).filter(|(start, _)| *start <= number) else {
            return;
        };
        if *start == number {
            *start += 1;
            if start == end {
                self.fresh.remove(index);
            }
        } else if *end == number + 1 {
            *end -= 1;
        } else {
            let before = (*start, number);
            *start = number + 1;
            self.fresh.insert(index, before);
        }
    }

    /// Makes visible what has become so, and tells of each message.
    pub(crate) fn ripen(&mut self, now: u64, mut ripened: impl FnMut(Sequence)) {
        while let Some(tuple) = self.hidden.first().copied().filter(|(at, _)| *at <= now) {
            self.hidden.pop_first();
            self.ripe.insert(tuple);
            ripened(tuple.1);
        }
    }

    /// When the next message becomes visible by itself.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.hidden.first().map(|(at, _)| *at)
    }

    /// Messages that are visible, as far as [`Index::ripen`] has seen.
    #[cfg(test)]
    pub(crate) fn visible_len(&self) -> u64 {
        self.fresh.iter().map(|(start, end)| end - start).sum::<u64>() + self.ripe.len() as u64
    }

    /// The oldest `count` visible tuples, in order; `at` knows the T of a fresh message.
    pub(crate) fn oldest(&self, count: usize, at: impl Fn(Sequence) -> u64) -> Vec<Tuple> {
        let fresh = self.fresh.iter().flat_map(|(start, end)| *start..*end).map(Sequence);
        let mut fresh = fresh.take(count).map(|sequence| (at(sequence), sequence)).peekable();
        let mut ripe = self.ripe.iter().take(count).copied().peekable();
        let mut oldest = Vec::with_capacity(count.min(1024));
        while oldest.len() < count {
            let next = match (fresh.peek(), ripe.peek()) {
                (Some(young), Some(old)) if young <= old => fresh.next(),
                (_, Some(_)) => ripe.next(),
                (_, None) => fresh.next(),
            };
            let Some(next) = next else { break };
            oldest.push(next);
        }
        oldest
    }

    /// Takes `count` tuples out: a random choice among the oldest `hint + count - 1` visible ones, in the order of the
    /// index (BDQS, section III.B.2). With a hint of 1 they are the oldest. The second is how many older ones they
    /// passed over.
    pub(crate) fn take(
        &mut self,
        count: usize,
        hint: u32,
        at: impl Fn(Sequence) -> u64,
        random_below: impl FnMut(u64) -> u64,
    ) -> (Vec<Tuple>, u64) {
        let oldest = self.oldest(count.saturating_add(hint as usize - 1), at);
        let (chosen, passed) = choose(oldest, count, random_below);
        for tuple in &chosen {
            self.remove(*tuple);
        }
        (chosen, passed)
    }

    /// Takes `count` tuples out, any of the visible ones: random sampling, without order.
    pub(crate) fn take_any(
        &mut self,
        count: usize,
        at: impl Fn(Sequence) -> u64,
        mut random_below: impl FnMut(u64) -> u64,
    ) -> Vec<Tuple> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let fresh: u64 = self.fresh.iter().map(|(start, end)| end - start).sum();
            let all = fresh + self.ripe.len() as u64;
            if all == 0 {
                break;
            }
            let mut place = random_below(all);
            let tuple = if place < fresh {
                let range = self.fresh.iter().find_map(|(start, end)| {
                    let length = end - start;
                    let found = (place < length).then(|| start + place);
                    place = place.saturating_sub(length);
                    found
                });
                let sequence = Sequence(range.expect("it is below the sum"));
                (at(sequence), sequence)
            } else {
                // The one behind a random time: not evenly, but in no order either.
                let (first, last) = (self.ripe.first().expect("some"), self.ripe.last().expect("some"));
                let from = first.0 + random_below(last.0 - first.0 + 1);
                *self.ripe.range((from, Sequence(0))..).next().expect("the last one, if no other")
            };
            self.remove(tuple);
            taken.push(tuple);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index_of(count: u64) -> Index {
        let mut index = Index::default();
        for number in 1..=count {
            index.insert((number * 10, Sequence(number)), u64::MAX);
        }
        index
    }

    fn numbers(tuples: &[Tuple]) -> Vec<u64> {
        tuples.iter().map(|(_, sequence)| sequence.0).collect()
    }

    #[test]
    fn a_backlog_is_one_range() {
        let index = index_of(1_000_000);
        assert_eq!((index.fresh.len(), index.visible_len()), (1, 1_000_000));
    }

    #[test]
    fn tuples_come_in_the_order_of_their_times_wherever_they_are_kept() {
        let mut index = index_of(5);
        index.remove((20, Sequence(2)));
        index.insert((35, Sequence(2)), 100);
        index.remove((10, Sequence(1)));
        index.insert((1_000, Sequence(1)), 100);
        let at = |sequence: Sequence| sequence.0 * 10;
        assert_eq!(numbers(&index.oldest(9, at)), [3, 2, 4, 5]);
        assert_eq!(index.next_at(), Some(1_000));
        let mut ripened = Vec::new();
        index.ripen(1_000, |sequence| ripened.push(sequence.0));
        assert_eq!((ripened, index.next_at()), (vec![1], None));
        assert_eq!(numbers(&index.oldest(9, at)), [3, 2, 4, 5, 1]);
    }

    #[test]
    fn a_batch_of_n_is_n_of_the_oldest_k_and_n_less_one_in_order() {
        let at = |sequence: Sequence| sequence.0 * 10;
        let mut seed = 1_u64;
        let mut random_below = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % bound
        };
        let mut seen = BTreeSet::new();
        for _ in 0..200 {
            let taken = numbers(&index_of(20).take(3, 4, at, &mut random_below).0);
            assert_eq!(taken.len(), 3);
            assert!(taken.is_sorted() && taken.iter().all(|number| *number <= 6), "{taken:?}");
            seen.extend(taken);
        }
        assert_eq!(seen.len(), 6, "each of the six comes up");
        assert_eq!(numbers(&index_of(20).take(3, 1, at, &mut random_below).0), [1, 2, 3]);
        assert_eq!(numbers(&index_of(2).take(3, 9, at, &mut random_below).0), [1, 2]);
    }

    #[test]
    fn a_fresh_message_can_be_taken_out_anywhere() {
        let mut index = index_of(10);
        for number in [5, 1, 10, 6, 4] {
            index.remove((number * 10, Sequence(number)));
            index.remove((number * 10, Sequence(number)));
        }
        assert_eq!(numbers(&index.oldest(10, |sequence| sequence.0 * 10)), [2, 3, 7, 8, 9]);
        assert_eq!(index.visible_len(), 5);
    }
}
