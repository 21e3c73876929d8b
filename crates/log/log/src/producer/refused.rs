//! Where producers that a shard does not know have to go on.
//!
//! Such a producer may begin with any sequence number. If its first batch is refused for a reason that passes (no room
//! at the moment, no space, a sync that failed), those that it has sent behind it would be taken in before it, and its
//! repetition refused: out of order, for good. So the first that was refused is remembered, and what comes behind it
//! is refused until it is there.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tailwater_env::HashMap;

use super::Claim;
use crate::limits::REFUSED_PRODUCERS;

/// The first refused batch of each of the last [`REFUSED_PRODUCERS`] producers that had one refused, of one shard.
///
/// Shared: what finds no room is refused before it reaches the shard's owner.
#[derive(Debug, Default)]
pub struct Refused {
    /// So that an append costs nothing where nothing was refused.
    count: AtomicUsize,
    firsts: Mutex<Firsts>,
}

#[derive(Debug, Default)]
struct Firsts {
    of: HashMap<i64, First>,
    /// Counts those that were put in.
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct First {
    epoch: i16,
    sequence: i32,
    /// Its place among all that were put in.
    place: u64,
}

impl Refused {
    /// Notes that the batch that makes this claim was refused, and may come again.
    pub fn note(&self, claim: Claim) {
        let firsts = &mut *self.firsts.lock();
        let is_later = |first: &First| match first.epoch == claim.epoch {
            true => !is_before(claim.first, first.sequence),
            false => first.epoch > claim.epoch,
        };
        let place = match firsts.of.get(&claim.producer) {
            Some(first) if is_later(first) => return,
            Some(first) => first.place,
            None => firsts.next,
        };
        if place == firsts.next {
            firsts.next += 1;
            if firsts.of.len() == REFUSED_PRODUCERS {
                let oldest = firsts.of.iter().min_by_key(|(_, first)| first.place).map(|(id, _)| *id);
                oldest.and_then(|id| firsts.of.remove(&id));
            }
        }
        firsts.of.insert(claim.producer, First { epoch: claim.epoch, sequence: claim.first, place });
        self.count.store(firsts.of.len(), Ordering::Relaxed);
    }

    /// What the producer has to send before the batch that makes this claim, if there is something.
    pub(super) fn comes_before(&self, claim: Claim) -> Option<i32> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let first = *self.firsts.lock().of.get(&claim.producer)?;
        (first.epoch == claim.epoch && is_before(first.sequence, claim.first)).then_some(first.sequence)
    }

    /// Forgets what was refused of the producer: it is there, or nobody knows of the producer any more.
    pub(super) fn forget(&self, producer: i64) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut firsts = self.firsts.lock();
        firsts.of.remove(&producer);
        self.count.store(firsts.of.len(), Ordering::Relaxed);
    }
}

/// Whether a sequence number is before another one; after 2^31-1 comes 0.
fn is_before(one: i32, other: i32) -> bool {
    let distance = other.wrapping_sub(one) & i32::MAX;
    distance != 0 && distance < 1 << 30
}
