//! The lock of a tail page: a lease in the metadata cell that can be poisoned (Fast ACS, section 3, "Dueling
//! Writers").
//!
//! It saves work and nothing else: two writers that both believe they hold it overwrite one another's chunks
//! with shorter ones and move published lengths back, which readers survive (appendix A). What a page's writer
//! writes as one value is what the lock covers: one lock for one tail page.
//!
//! A newcomer that finds the lock held *poisons* it, waits for the holder to notice and give it up, and seizes it
//! after [`LockTiming::seize_after`] if the holder does not. A holder that finds the lock poisoned, or another's,
//! stops.
//!
//! ```text
//! offset size  lock value, little-endian
//!      0    8  writer: which process
//!      8    8  nonce: which of its attempts
//!     16    1  1 if poisoned
//! ```

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tailwater_env::Instant;

/// The times of the protocol, the same for all writers of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockTiming {
    /// How often a holder looks whether it was poisoned, and a newcomer whether the lock is free.
    pub check_every: Duration,
    /// How long a newcomer waits for a poisoned holder before it seizes the lock: some looks of the holder's.
    pub seize_after: Duration,
    /// How long a writer that lost a lock waits before it tries to get it back.
    pub retry_after: Duration,
}

impl Default for LockTiming {
    fn default() -> Self {
        Self {
            check_every: Duration::from_millis(100),
            seize_after: Duration::from_millis(500),
            retry_after: Duration::from_secs(10),
        }
    }
}

const VALUE_BYTES: usize = 17;

/// Who holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The process.
    pub writer: u64,
    /// Random for each attempt to acquire.
    pub nonce: u64,
}

/// A lock's value in the metadata cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockValue {
    /// Who holds it.
    pub holder: Signature,
    /// Whether somebody asked the holder to stop.
    pub poisoned: bool,
}

impl LockValue {
    /// The bytes for the cell.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(VALUE_BYTES);
        bytes.put_u64_le(self.holder.writer);
        bytes.put_u64_le(self.holder.nonce);
        bytes.put_u8(u8::from(self.poisoned));
        bytes.freeze()
    }

    /// The value in `bytes`, or `None` if they are no lock value.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; VALUE_BYTES] = bytes.try_into().ok()?;
        let (writer, rest) = bytes.split_first_chunk::<8>()?;
        let (nonce, rest) = rest.split_first_chunk::<8>()?;
        let holder = Signature { writer: u64::from_le_bytes(*writer), nonce: u64::from_le_bytes(*nonce) };
        match rest {
            [0] => Some(Self { holder, poisoned: false }),
            [1] => Some(Self { holder, poisoned: true }),
            _ => None,
        }
    }
}

/// What the lock's owner has to do after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing until the next look.
    None,
    /// Write this value.
    Write(LockValue),
    /// Remove the lock.
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockState {
    /// Not ours; `since` is when we poisoned the holder that is named, if we did.
    Waiting {
        poisoned: Option<(Signature, Instant)>,
    },
    Held,
    Lost {
        at: Instant,
    },
}

/// One writer's view of one lock: a step function over what a look at the cell found.
#[derive(Debug)]
pub struct Lock {
    me: Signature,
    timing: LockTiming,
    state: LockState,
    /// Since when the replicas disagree about it, without a look in between at which they agreed.
    disagree_since: Option<Instant>,
}

impl Lock {
    /// A lock that `me` wants.
    pub fn new(me: Signature, timing: LockTiming) -> Self {
        Self { me, timing, state: LockState::Waiting { poisoned: None }, disagree_since: None }
    }

    /// Whether writing what the lock covers is this writer's work.
    pub fn is_held(&self) -> bool {
        self.state == LockState::Held
    }

    /// Takes in what a look found: the value, `None` if there is none. Call it every
    /// [`LockTiming::check_every`], and not when the look failed: without the cell there is nothing to fight over.
    pub fn step(&mut self, now: Instant, found: Option<LockValue>) -> Action {
        self.disagree_since = None;
        let mine = found.is_some_and(|value| value.holder == self.me);
        match (self.state, found) {
            (LockState::Held, Some(value)) if mine && value.poisoned => {
                self.state = LockState::Lost { at: now };
                Action::Release
            }
            (LockState::Held, Some(_)) if mine => Action::None,
            (LockState::Held, Some(_)) => {
                self.state = LockState::Lost { at: now };
                Action::None
            }
            // The cell lost it: write it again.
            (LockState::Held, None) => Action::Write(LockValue { holder: self.me, poisoned: false }),
            (LockState::Lost { at }, _) if now < at + self.timing.retry_after => Action::None,
            (LockState::Lost { .. }, _) => {
                self.state = LockState::Waiting { poisoned: None };
                self.step(now, found)
            }
            // Our own write came through.
            (LockState::Waiting { .. }, Some(value)) if mine && !value.poisoned => {
                self.state = LockState::Held;
                Action::None
            }
            (LockState::Waiting { .. }, Some(_)) if mine => {
                self.state = LockState::Lost { at: now };
                Action::Release
            }
            (LockState::Waiting { .. }, None) => {
                Action::Write(LockValue { holder: self.me, poisoned: false })
            }
            (LockState::Waiting { poisoned: Some((holder, since)) }, Some(value))
                if holder == value.holder =>
            {
                if now >= since + self.timing.seize_after {
                    Action::Write(LockValue { holder: self.me, poisoned: false })
                } else {
                    Action::None
                }
            }
            (LockState::Waiting { .. }, Some(value)) => {
                self.state = LockState::Waiting { poisoned: Some((value.holder, now)) };
                Action::Write(LockValue { holder: value.holder, poisoned: true })
            }
        }
    }
}

/// What no look can tell.
impl Lock {
    /// Takes in that a look found replicas that hold different values. That passes while somebody writes; but a
    /// writer that died in the middle leaves them so until they expire, and then whoever waits seizes the lock.
    pub fn disagreed(&mut self, now: Instant) -> Action {
        let since = *self.disagree_since.get_or_insert(now);
        let is_waiting = matches!(self.state, LockState::Waiting { .. });
        if is_waiting && now >= since + self.timing.seize_after {
            Action::Write(LockValue { holder: self.me, poisoned: false })
        } else {
            Action::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_whose_replicas_disagree_for_good_is_seized_by_who_waits_and_kept_by_who_holds() {
        let timing = LockTiming::default();
        let me = Signature { writer: 1, nonce: 1 };
        let (mut waiting, mut holder) = (Lock::new(me, timing), Lock::new(me, timing));
        let mine = LockValue { holder: me, poisoned: false };
        assert_eq!(holder.step(Instant::default(), Some(mine)), Action::None);
        let begin = Instant::default() + Duration::from_secs(1);
        assert_eq!(waiting.disagreed(begin), Action::None);
        // Looks that agree in between begin it anew.
        let other = LockValue { holder: Signature { writer: 2, nonce: 2 }, poisoned: true };
        waiting.step(begin + timing.check_every, Some(other));
        assert_eq!(waiting.disagreed(begin + timing.seize_after), Action::None);
        let late = begin + timing.seize_after * 2;
        assert_eq!(waiting.disagreed(late), Action::Write(mine));
        assert_eq!(holder.disagreed(begin), Action::None);
        assert_eq!(holder.disagreed(late), Action::None);
        assert!(holder.is_held());
    }

    /// Lets writers take turns at one cell value; each turn is one look and its action, 100 ms apart.
    fn run(writers: &mut [Lock], cell: &mut Option<LockValue>, now: &mut Instant, turns: usize) {
        for _ in 0..turns {
            for writer in writers.iter_mut() {
                match writer.step(*now, *cell) {
                    Action::None => {}
                    Action::Write(value) => *cell = Some(value),
                    Action::Release => *cell = None,
                }
            }
            *now = *now + LockTiming::default().check_every;
        }
    }

    fn lock(writer: u64) -> Lock {
        Lock::new(signature(writer), LockTiming::default())
    }

    fn signature(writer: u64) -> Signature {
        Signature { writer, nonce: writer * 7 }
    }

    #[test]
    fn a_free_lock_is_held_after_two_looks() {
        let (mut cell, mut now) = (None, Instant::from_ns(0));
        let mut writers = [lock(1)];
        run(&mut writers, &mut cell, &mut now, 2);
        assert!(writers[0].is_held());
    }

    #[test]
    fn a_newcomer_takes_over_from_a_living_holder_which_stops() {
        let (mut cell, mut now) = (None, Instant::from_ns(0));
        let mut writers = [lock(1), lock(2)];
        run(&mut writers[..1], &mut cell, &mut now, 2);
        run(&mut writers, &mut cell, &mut now, 4);
        assert!(!writers[0].is_held());
        assert!(writers[1].is_held());
    }

    #[test]
    fn a_dead_holder_s_lock_is_seized_after_the_delay() {
        let mut cell = Some(LockValue { holder: signature(9), poisoned: false });
        let mut now = Instant::from_ns(0);
        let mut writers = [lock(1)];
        run(&mut writers, &mut cell, &mut now, 5);
        assert!(!writers[0].is_held(), "the holder still has time to notice");
        run(&mut writers, &mut cell, &mut now, 3);
        assert!(writers[0].is_held());
    }

    #[test]
    fn a_lock_that_the_cell_lost_is_written_again() {
        let (mut cell, mut now) = (None, Instant::from_ns(0));
        let mut writers = [lock(1)];
        run(&mut writers, &mut cell, &mut now, 2);
        cell = None;
        run(&mut writers, &mut cell, &mut now, 1);
        assert!(writers[0].is_held());
        assert_eq!(cell, Some(LockValue { holder: signature(1), poisoned: false }));
    }

    #[test]
    fn values_survive_the_round_trip_and_others_are_refused() {
        let value = LockValue { holder: signature(3), poisoned: true };
        assert_eq!(LockValue::decode(&value.encode()), Some(value));
        assert_eq!(LockValue::decode(b"short"), None);
        assert_eq!(LockValue::decode(&[2; VALUE_BYTES]), None);
    }
}
