//! How far most of a stream's listeners are that the tail feeds, and up to where its publishers may be answered for it.
//!
//! What is held is acknowledged at once while they keep up. Once most of them lag by more than [`LAG_MS`], an event is
//! acknowledged as much later as they lag more than that: a publisher with so much on its way at most publishes as fast
//! as they get it. (Events that come faster than listeners can be sent them are sent the more often the longer they are
//! on their way, and all listeners get fewer.)
//!
//! No listener can do harm by it: it takes more than half of at least three, and what is held back is so for
//! [`HELD_BACK_MS_MAX`] and [`HELD_BACK_BYTES_MAX`] at most. So the chain moves on whatever listeners do, and nobody is
//! taken for one who keeps it waiting (`waits.rs`).

use std::collections::VecDeque;

use crate::limits::UNSETTLED_BYTES_MAX;
use crate::name::Stream;
use crate::replica::Replica;

/// Milliseconds that most listeners may lag while publishers are answered at once: some of the proxy's rounds.
pub const LAG_MS: u64 = 200;
/// Milliseconds for which an answer waits for listeners at most; `silence_ms` if that is less.
pub const HELD_BACK_MS_MAX: u64 = 1_000;
/// Bytes of a stream's events whose answers wait for listeners at most: they are still on their way up the chain, where
/// publishers are refused beyond twice as many.
pub const HELD_BACK_BYTES_MAX: u64 = UNSETTLED_BYTES_MAX as u64 / 2;
/// Milliseconds whose growth is looked at together.
const STEP_MS: u64 = 10;

/// A stream was held up to a number.
#[derive(Clone, Copy, Debug)]
struct Grew {
    at_ms: u64,
    last: u64,
    /// Of all events so far.
    bytes: u64,
}

/// What a tail knows of a stream's listeners, and since when the stream is held up to where.
#[derive(Debug, Default)]
pub(super) struct ReaderLags {
    /// How far the middle one of them is; `None` while there are too few.
    have: Option<u64>,
    /// In the order of time; as much of it as counts.
    grew: VecDeque<Grew>,
}

impl ReaderLags {
    /// The stream is held up to `last`, and has had so many bytes of events.
    pub(super) fn grew(&mut self, at_ms: u64, last: u64, bytes: u64, held_back_ms: u64) {
        let counts = LAG_MS + held_back_ms + STEP_MS;
        while self.grew.front().is_some_and(|front| front.at_ms + counts < at_ms) {
            self.grew.pop_front();
        }
        match self.grew.back_mut() {
            Some(back) if at_ms < back.at_ms + STEP_MS => (back.last, back.bytes) = (last, bytes),
            _ => self.grew.push_back(Grew { at_ms, last, bytes }),
        }
    }

    /// The last number that may be acknowledged now, if it is held.
    pub(super) fn may_be_told(&self, now_ms: u64, held_back_ms: u64) -> u64 {
        let (Some(have), Some(newest)) = (self.have, self.grew.back()) else { return u64::MAX };
        let lacks = self.grew.partition_point(|grew| grew.last <= have);
        let Some(lacks) = self.grew.get(lacks) else { return u64::MAX };
        let until_ms = (lacks.at_ms + LAG_MS).max(now_ms.saturating_sub(held_back_ms));
        let told = self.grew.partition_point(|grew| {
            grew.at_ms <= until_ms || newest.bytes - grew.bytes > HELD_BACK_BYTES_MAX
        });
        if told == self.grew.len() {
            return u64::MAX;
        }
        told.checked_sub(1).and_then(|at| self.grew.get(at)).map_or(0, |grew| grew.last)
    }
}

impl Replica {
    /// How far the middle one is of the listeners that this tail feeds with a stream of this region; `None` if it feeds
    /// fewer than three. To be said with each tick. Of what a replica is told that is no tail, or of another region's
    /// stream, nothing follows.
    pub fn readers_have(&mut self, stream: &Stream, have: Option<u64>) {
        let have = have.filter(|_| self.is_tail() && self.is_local(stream));
        if let Some(state) = self.streams.get_mut(stream) {
            state.readers.have = have;
        }
    }

    /// Events of a stream that all replicas hold and whose answers wait for listeners; the tail knows.
    pub fn held_back(&self, stream: &Stream) -> u64 {
        let held_back_ms = self.held_back_ms();
        self.streams.get(stream).map_or(0, |state| {
            state.held().saturating_sub(state.readers.may_be_told(self.now_ms, held_back_ms))
        })
    }

    /// Milliseconds for which an answer waits for listeners at most.
    pub(super) fn held_back_ms(&self) -> u64 {
        HELD_BACK_MS_MAX.min(self.config.silence_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One event of a hundred bytes every ten milliseconds, up to `ms`; `have` of them most listeners have.
    fn readers(ms: u64, have: Option<u64>) -> ReaderLags {
        let mut readers = ReaderLags { have, grew: VecDeque::new() };
        (1..=ms / 10).for_each(|n| readers.grew(10 * n, n, 100 * n, 1_000));
        readers
    }

    #[test]
    fn what_is_held_may_be_told_at_once_while_most_listeners_keep_up_or_there_are_too_few() {
        assert_eq!(readers(5_000, None).may_be_told(5_000, 1_000), u64::MAX);
        assert_eq!(readers(5_000, Some(500)).may_be_told(5_000, 1_000), u64::MAX);
        // The first event that they lack came 190 ms ago.
        assert_eq!(readers(5_000, Some(480)).may_be_told(5_000, 1_000), u64::MAX);
    }

    #[test]
    fn an_event_is_told_as_much_later_as_listeners_lag_more_than_they_may_and_never_later_than_the_bound() {
        // They lack what came 500 ms ago, which is 300 more than they may.
        assert_eq!(readers(5_000, Some(449)).may_be_told(5_000, 1_000), 470);
        assert_eq!(readers(5_000, Some(429)).may_be_told(5_000, 1_000), 450);
        // However far they are behind.
        assert_eq!(readers(5_000, Some(200)).may_be_told(5_000, 1_000), 400);
        assert_eq!(readers(5_000, Some(0)).may_be_told(5_000, 1_000), 400);
        assert_eq!(readers(5_000, Some(0)).may_be_told(6_000, 1_000), u64::MAX);
        // A bound of 300 ms is one for each.
        assert_eq!(readers(5_000, Some(300)).may_be_told(5_000, 300), 470);
    }

    #[test]
    fn no_more_bytes_than_that_wait_for_listeners_and_what_is_kept_is_bounded() {
        let mut readers = ReaderLags { have: Some(0), grew: VecDeque::new() };
        (1..=100).for_each(|n| readers.grew(10 * n, n, n << 20, 1_000));
        assert_eq!(readers.may_be_told(1_000, 1_000), 100 - (HELD_BACK_BYTES_MAX >> 20) - 1);
        (1_001..100_000).for_each(|n| readers.grew(n, n, n << 20, 1_000));
        assert!(readers.grew.len() <= ((LAG_MS + HELD_BACK_MS_MAX) / STEP_MS + 3) as usize);
    }
}
