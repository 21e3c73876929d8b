//! Relaxed reads: each key from one replica, chosen at random, those of one call from as few as can be; from another
//! one if that one is late or of no use.
//!
//! What is answered was current at that replica when it was read: a replica that missed a SET answers an older
//! value, or a miss. Whoever needs the latest reads consistently.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tailwater_env::Instant;

use super::hedge::{BUDGET_FACTOR, STUCK_FACTOR};
use super::lookup::{Hit, Keys, LookupAnswer, read_from};
use super::placement::Placement;
use super::quorum::Asked;
use super::{CellFailure, CellInner, Lookup, mapped};
use crate::layout::KeyHash;

/// What a replica answers for some keys, by their index.
type RelaxedReply = Vec<(usize, LookupAnswer)>;

/// For how many hedging delays a replica that was late is not the first to be asked.
pub(super) const SUSPECT_FACTOR: u32 = 10;

/// The part of a hedging delay that one may be late itself, divided by this.
const IN_TIME_ONE_IN: u32 = 4;

/// Reads a bounded number of keys. Ends at `end` at the latest, which begins to count when something takes time. Adds
/// frames that values borrow from to `frames`. Values in them of `unchecked_from` bytes or more are not checked.
pub(super) async fn get(
    cell: &CellInner,
    keys: &[Bytes],
    unchecked_from: usize,
    end: &mut Option<Instant>,
    frames: &mut Vec<Bytes>,
) -> Vec<Lookup> {
    let mut lookups = vec![None; keys.len()];
    mapped::relaxed(cell, keys, &mut lookups);
    if lookups.iter().any(Option::is_none) {
        let keys = Keys::unchecked_from(keys, unchecked_from);
        get_open(cell, &keys, &mut lookups, end, frames).await;
    }
    lookups.into_iter().map(|lookup| lookup.unwrap_or(Lookup::Failed(CellFailure::Deadline))).collect()
}

/// Reads the keys that have no answer yet; at the deadline some may still have none.
async fn get_open(
    cell: &CellInner,
    keys: &Keys<'_>,
    lookups: &mut [Option<Lookup>],
    end: &mut Option<Instant>,
    frames: &mut Vec<Bytes>,
) {
    let wanted: Vec<usize> = (0..lookups.len()).filter(|key| lookups[*key].is_none()).collect();
    let mut read = Relaxed {
        cell,
        keys,
        asked: vec![Asked::new(cell.mode); lookups.len()],
        lookups,
        frames,
        random: cell.env.random_u64(),
        open: wanted.len(),
    };
    let mut groups = Vec::with_capacity(wanted.len());
    for key in wanted {
        match read.ask(key) {
            Some(backend) => groups.push((backend, key)),
            None => read.finish(key, Lookup::Failed(CellFailure::Unreachable)),
        }
    }

    let mut under_way = FuturesUnordered::new();
    let mut timers = None;
    let mut began = None;
    loop {
        // Ask, and take at once what answers at once: reads of mapped memory do.
        while !groups.is_empty() {
            for (backend, wanted) in by_backend(&mut groups) {
                let replica = &cell.replicas[backend];
                let mut asking: BoxFuture<'_, RelaxedReply> =
                    Box::pin(read_from(cell, replica, keys, wanted));
                match futures::poll!(&mut asking) {
                    std::task::Poll::Ready(reply) => read.answered(reply, &mut groups),
                    std::task::Poll::Pending => under_way.push(asking),
                }
            }
        }
        if read.open == 0 || under_way.is_empty() {
            break;
        }
        // From here on something takes time, so there is a deadline to it.
        let (hedge, deadline) = timers.get_or_insert_with(|| {
            let now = *began.insert(cell.env.now());
            let end = *end.get_or_insert(now + cell.deadline);
            (Some((now + cell.hedge_after, cell.env.sleep(cell.hedge_after))), cell.env.sleep_until(end))
        });
        let late = async {
            match hedge {
                Some((at, hedge)) => {
                    hedge.await;
                    *at
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(reply) = under_way.next() => read.answered(reply, &mut groups),
            at = late => {
                let again = read.hedge(at, began, &mut groups);
                let next = || (cell.env.now() + cell.hedge_after, cell.env.sleep(cell.hedge_after));
                *hedge = again.then(next);
            }
            () = deadline => break,
        }
    }
    if let Some(began) = began {
        cell.usual.note(cell.env.now().since(began));
    }
}

struct Relaxed<'a> {
    cell: &'a CellInner,
    keys: &'a Keys<'a>,
    asked: Vec<Asked>,
    lookups: &'a mut [Option<Lookup>],
    frames: &'a mut Vec<Bytes>,
    random: u64,
    /// Keys without an answer.
    open: usize,
}

impl Relaxed<'_> {
    /// Picks the next replica of a key: a live one at random, and one that is not slow if there is a choice.
    fn ask(&mut self, key: usize) -> Option<usize> {
        let (cell, hash) = (self.cell, self.keys.hashes[key]);
        let backend = |replica| cell.placement.backend_of(hash, replica);
        let start = first_of(self.random, hash, &cell.placement, cell.replicas.len());
        let asked = &mut self.asked[key];
        let live = |replica: usize| cell.replicas[backend(replica)].is_live();
        let quick = |replica: usize| cell.replicas[backend(replica)].is_quick(&cell.env);
        asked.ask(start, quick).or_else(|| asked.ask(start, live)).map(backend)
    }

    fn answered(&mut self, answers: Vec<(usize, LookupAnswer)>, groups: &mut Vec<(usize, usize)>) {
        for (key, answer) in answers {
            let others = self.asked[key].answered();
            if self.lookups[key].is_some() {
                continue;
            }
            let failure = match answer {
                LookupAnswer::Hit(Hit { version, value, extras, frame }) => {
                    if self.frames.last().is_none_or(|last| last.as_ptr() != frame.as_ptr()) {
                        self.frames.push(frame);
                    }
                    self.finish(key, Lookup::Hit { version, value, extras });
                    continue;
                }
                LookupAnswer::Miss => {
                    self.finish(key, Lookup::Miss);
                    continue;
                }
                LookupAnswer::Torn => CellFailure::Torn,
                LookupAnswer::Unreachable => CellFailure::Unreachable,
            };
            match self.ask(key) {
                Some(backend) => groups.push((backend, key)),
                None if others => {}
                None => self.finish(key, Lookup::Failed(failure)),
            }
        }
    }

    /// Asks another replica for the keys that wait for a backend which is stuck while another one is not, and notes it;
    /// for the others as far as the budget goes; both only if the read, which `began` then, waits longer than usual. It
    /// was to be done at `at`: if that was some time ago this process has too much to do, and no backend is to blame.
    /// Whether some are left that may have to be asked of another one later.
    fn hedge(&mut self, at: Instant, began: Option<Instant>, groups: &mut Vec<(usize, usize)>) -> bool {
        let cell = self.cell;
        let now = cell.env.now();
        let waited = began.map_or(Duration::ZERO, |began| now.since(began));
        // Where reads take so long that there would be no time left, half of it is enough.
        let is_unusual = |factor| waited >= cell.usual.times(factor).min(cell.deadline / 2);
        let [is_unusual_for_stuck, is_unusual_for_others] = [STUCK_FACTOR, BUDGET_FACTOR].map(is_unusual);
        let is_in_time = now.since(at) < cell.hedge_after / IN_TIME_ONE_IN;
        let mut left = false;
        for key in 0..self.lookups.len() {
            if self.lookups[key].is_some() {
                continue;
            }
            let late = cell.placement.backend_of(self.keys.hashes[key], self.asked[key].last());
            let late = &cell.replicas[late];
            let is_stuck = is_in_time && !late.has_answered_since(now - cell.hedge_after);
            if is_stuck {
                late.suspect(now + SUSPECT_FACTOR * cell.hedge_after);
            }
            // Where all are late it is this process, or the network, that has too much to do: more reads make that
            // worse.
            let is_sure = is_unusual_for_stuck && is_stuck && self.has_quick(key);
            if !(is_sure || is_unusual_for_others && cell.hedges.spend()) {
                left = true;
            } else if let Some(backend) = self.ask(key) {
                cell.counters.hedged.add(1);
                groups.push((backend, key));
            }
        }
        left
    }

    /// Whether a replica of a key was not late lately.
    fn has_quick(&self, key: usize) -> bool {
        let (cell, hash) = (self.cell, self.keys.hashes[key]);
        let backend = |replica| cell.placement.backend_of(hash, replica);
        (0..cell.mode.replicas()).any(|replica| cell.replicas[backend(replica)].is_quick(&cell.env))
    }

    fn finish(&mut self, key: usize, lookup: Lookup) {
        self.lookups[key] = Some(lookup);
        self.open -= 1;
    }
}

/// Where among a key's replicas to begin. The backend is random for each call, and the same for all of its keys that
/// it has: what one backend answers together costs both sides less. For the others it is random for each key.
pub(super) fn first_of(random: u64, hash: KeyHash, placement: &Placement, backends: usize) -> usize {
    let favourite = (random % backends as u64) as usize;
    let replicas = placement.of(hash).len();
    placement.replica_at(hash, favourite).unwrap_or_else(|| {
        let bits = (random ^ hash.0 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((bits >> 32) as usize) % replicas
    })
}

/// Takes everything out of `groups`, ordered by backend.
pub(super) fn by_backend(groups: &mut Vec<(usize, usize)>) -> Vec<(usize, Vec<usize>)> {
    groups.sort_unstable();
    let sorted = groups.chunk_by(|a, b| a.0 == b.0);
    let grouped = sorted.map(|group| (group[0].0, group.iter().map(|(_, key)| *key).collect())).collect();
    groups.clear();
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::placement::{HashRing, Mode};

    #[test]
    fn every_replica_is_the_first_as_often_and_the_keys_of_a_call_keep_together() {
        for backends in [3, 4, 7] {
            let numbers: Vec<u32> = (0..backends as u32).collect();
            let placement = Placement::new(Mode::R32, HashRing::for_backends(backends), &numbers);
            let mut firsts = [0_usize; 3];
            let mut asked = vec![0_usize; backends];
            let mut together = 0;
            for call in 0..1_000_u64 {
                let random = call.wrapping_mul(0xd134_2543_de82_ef95) >> 7;
                let mut of_call = vec![0_usize; backends];
                for n in 0..30_u32 {
                    let hash = KeyHash::of(&n.to_le_bytes());
                    let first = first_of(random, hash, &placement, backends);
                    firsts[first] += 1;
                    of_call[placement.backend_of(hash, first)] += 1;
                }
                together += of_call.iter().max().expect("there are some");
                asked.iter_mut().zip(of_call).for_each(|(asked, more)| *asked += more);
            }
            assert!(firsts.iter().all(|first| first.abs_diff(10_000) < 2_500), "{backends}: {firsts:?}");
            let mean = 30_000 / backends;
            assert!(asked.iter().all(|asked| asked.abs_diff(mean) < mean / 3), "{backends}: {asked:?}");
            assert!(backends > 3 || together == 30_000, "{backends}: {together}");
        }
    }
}
