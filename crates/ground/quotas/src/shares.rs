//! How several front ends give one quota together: each has a share of it, and shares go to where they are used.
//!
//! A step function over ticks and messages. Once a round each front end puts a *report* where all of them read it, in
//! place of its last one, and then reads those of the others. A report says, of each taker whose quota is not simply
//! divided, how much the front end *wants* and how much it *claims*. Where the reports are, and when a round is, the
//! caller says.
//!
//! ```text
//!  begin   what was used -> what is wanted -> targets; shares above them are lowered; claims
//!          put the report, then read all reports
//!  end     shares below their claims are raised, as far as nobody else claims it
//! ```
//!
//! What holds:
//! - **Shares of front ends that exchange reports come to no more than the quota.** A share is raised only after its
//!   claim was put, to what is left by the claims that were read after that; and a claim is lowered only after its share
//!   was. Of two front ends that claim the same, the one that reads last sees the other's claim. No clock is compared
//!   with another one.
//! - **A front end that exchanges nothing** for [`SHARE_ROUNDS_MAX`] rounds gives an equal share, as does one that has
//!   just come: the quota divided by the front ends that it knows. So long it may come on top of the others' shares.
//! - **A front end that is silent** for [`GONE_ROUNDS`] rounds is not counted any more, and its share is free.
//! - What is wanted follows from what was taken, which only those do who showed who they are. Refusals, which anybody
//!   can bring about, only say that it was too little.
//! - A share is never nothing: a front end keeps [`FLOOR_PART`] of its equal share, so that whoever comes there first
//!   is answered.
//!
//! Rates are in millionths a second here: of a small quota many front ends have a part of a request each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tailwater_env::Instant;

use crate::limits::{FLOOR_PART, GONE_ROUNDS, SHARE_ROUND, SHARE_ROUNDS_MAX, SHARED_TAKERS_MAX, SHARERS_MAX};

/// Millionths of one.
const MILLIONTHS: u64 = 1_000_000;
/// What a report begins with.
const REPORT_VERSION: u8 = 1;
/// Bytes of what a report says of one taker: who it is, what is wanted and what is claimed.
const ENTRY_BYTES: usize = 24;

/// What a taker has used of its quota since the last round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareUse {
    /// The taker, by the number that all front ends know it by.
    pub taker: u64,
    /// What it may have in a second, of all front ends together; not 0.
    pub quota: u64,
    /// What it has taken.
    pub taken: u64,
    /// Whether it was refused something.
    pub is_refused: bool,
}

/// The shares that one front end gives, of all takers.
#[derive(Debug)]
pub struct QuotaShares {
    front: u64,
    /// Of the report that was made last.
    number: u64,
    begun_at: Option<Instant>,
    is_under_way: bool,
    /// When the last round began that came to its end.
    exchanged_at: Option<Instant>,
    /// Front ends that are counted, this one among them.
    fronts: u64,
    others: BTreeMap<u64, OtherFront>,
    takers: BTreeMap<u64, TakerShare>,
}

/// What another front end has told.
#[derive(Debug)]
struct OtherFront {
    number: u64,
    /// When this front end saw that its report had changed.
    changed_at: Instant,
    is_gone: bool,
    entries: BTreeMap<u64, ShareEntry>,
}

/// What a report says of one taker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ShareEntry {
    want: u64,
    claim: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct TakerShare {
    quota: u64,
    /// What is taken in a second, and half as much a round after that.
    peak: u64,
    want: u64,
    /// What this front end may give; nothing if it is an equal share.
    held: Option<u64>,
    /// What the last report claims; nothing if it left the taker out, which claims an equal share.
    claim: Option<u64>,
}

impl QuotaShares {
    /// Those of a front end with this number, which no other one has, that knows of nobody else.
    pub fn new(front: u64) -> Self {
        Self {
            front,
            number: 0,
            begun_at: None,
            is_under_way: false,
            exchanged_at: None,
            fronts: 1,
            others: BTreeMap::new(),
            takers: BTreeMap::new(),
        }
    }

    /// The number of this front end.
    pub fn front(&self) -> u64 {
        self.front
    }

    /// Front ends that are counted at the moment, this one among them.
    pub fn fronts(&self) -> u64 {
        self.fronts
    }

    /// How long a round is: the more front ends there are, the more each of them reads.
    pub fn round(&self) -> Duration {
        SHARE_ROUND * u32::try_from(self.fronts.div_ceil(SHARERS_MAX)).unwrap_or(u32::MAX)
    }

    /// Whether the last round that came to its end is not too old: otherwise shares are equal.
    pub fn is_exchanging(&self, now: Instant) -> bool {
        self.exchanged_at.is_some_and(|at| now.since(at) <= self.round() * SHARE_ROUNDS_MAX)
    }

    /// What this front end gives in a second of what `taker` may have of all of them; 0 is any number.
    pub fn share(&self, taker: u64, quota: u64, now: Instant) -> f64 {
        let equal = self.equal(in_millionths(quota));
        let share = match self.takers.get(&taker).and_then(|state| state.held) {
            Some(held) if self.is_exchanging(now) => held.min(in_millionths(quota)),
            _ => equal,
        };
        match quota {
            0 => 0.0,
            _ => share as f64 / MILLIONTHS as f64,
        }
    }

    fn equal(&self, quota: u64) -> u64 {
        (quota / self.fronts).max(1)
    }

    /// Begins a round, with the use of all takers that have a quota: the number of the report that is to be put now,
    /// and what it says.
    pub fn begin(&mut self, now: Instant, uses: impl IntoIterator<Item = ShareUse>) -> (u64, Vec<u8>) {
        if !self.is_exchanging(now) {
            // Equal shares are what it gives, so that is what it has.
            self.takers.values_mut().for_each(|state| state.held = None);
        }
        let elapsed = self.begun_at.replace(now).map(|before| now.since(before));
        let mut takers = std::mem::take(&mut self.takers);
        self.takers = uses.into_iter().map(|used| (used.taker, note(&mut takers, used, elapsed))).collect();
        let (fronts, shared) = (self.fronts, self.shared());
        let mut report = vec![REPORT_VERSION];
        for (taker, state) in &mut self.takers {
            let equal = (state.quota / fronts).max(1);
            state.claim = shared.get(taker).copied();
            // Lowered before the claim is.
            let share = state.held.unwrap_or(equal).min(state.claim.unwrap_or(equal));
            state.held = (share != equal).then_some(share);
            if let Some(claim) = state.claim {
                for number in [*taker, state.want, claim] {
                    report.extend_from_slice(&number.to_le_bytes());
                }
            }
        }
        self.number += 1;
        self.is_under_way = true;
        (self.number, report)
    }

    /// Ends the round that was begun last: its report was put, and then these were read, each with its front end and
    /// its number. A round that failed is not ended.
    pub fn end<'a>(&mut self, now: Instant, reports: impl IntoIterator<Item = (u64, u64, &'a [u8])>) {
        let Some(begun_at) = self.begun_at.filter(|_| std::mem::take(&mut self.is_under_way)) else { return };
        let was_exchanging = self.is_exchanging(now);
        self.hear(now, was_exchanging, reports);
        self.exchanged_at = Some(begun_at);
        let (fronts, shared) = (self.fronts, self.shared());
        let others: Vec<&OtherFront> = self.others.values().filter(|other| !other.is_gone).collect();
        for (taker, state) in &mut self.takers {
            let equal = (state.quota / fronts).max(1);
            let target = shared.get(taker).copied();
            if target.is_none() && state.held.is_none() {
                continue;
            }
            let (target, current) = (target.unwrap_or(equal), state.held.unwrap_or(equal));
            let share = match target <= current {
                // The others may want more by now.
                true => target,
                false => {
                    let claimed = others.iter().map(|other| other.entry(*taker, equal).claim);
                    let left = state.quota.saturating_sub(claimed.fold(0, u64::saturating_add));
                    current.max(target.min(state.claim.unwrap_or(equal)).min(left))
                }
            };
            state.held = (share != equal).then_some(share);
        }
    }

    /// Takes in what was read of the others.
    fn hear<'a>(
        &mut self,
        now: Instant,
        was_exchanging: bool,
        reports: impl IntoIterator<Item = (u64, u64, &'a [u8])>,
    ) {
        let mut listed = BTreeSet::new();
        for (front, number, value) in reports {
            if front == self.front {
                continue;
            }
            listed.insert(front);
            if self.others.get(&front).is_none_or(|known| known.number < number) {
                let other =
                    OtherFront { number, changed_at: now, is_gone: false, entries: entries_of(value) };
                self.others.insert(front, other);
            }
        }
        self.others.retain(|front, _| listed.contains(front));
        let gone_after = self.round() * GONE_ROUNDS;
        for other in self.others.values_mut() {
            if !was_exchanging {
                // Who did not look does not know for how long they were silent.
                other.changed_at = now;
            }
            other.is_gone = now.since(other.changed_at) > gone_after;
        }
        self.fronts = 1 + self.others.values().filter(|other| !other.is_gone).count() as u64;
    }

    /// The takers whose quota is not simply divided, with what this front end should have of it: those of whom some
    /// front end wants more than an equal share.
    fn shared(&self) -> BTreeMap<u64, u64> {
        let others: Vec<&OtherFront> = self.others.values().filter(|other| !other.is_gone).collect();
        if self.fronts == 1 || self.fronts > SHARERS_MAX {
            return BTreeMap::new();
        }
        let told: BTreeSet<u64> = others.iter().flat_map(|other| other.entries.keys().copied()).collect();
        let mut shared: Vec<(bool, u64, u64)> = Vec::new();
        for (taker, state) in &self.takers {
            let equal = self.equal(state.quota);
            if state.want <= equal && !told.contains(taker) {
                continue;
            }
            let mut wants = vec![state.want];
            wants.extend(others.iter().map(|other| other.entry(*taker, equal).want));
            if wants.iter().any(|want| *want > equal) {
                shared.push((state.held.is_none(), *taker, target(state.quota, &wants)));
            }
        }
        // Those that are shared already go on. The others have to be as they were.
        shared.sort_unstable();
        shared.truncate(SHARED_TAKERS_MAX);
        shared.into_iter().map(|(_, taker, target)| (taker, target)).collect()
    }
}

impl OtherFront {
    /// What it says of a taker. Of one that its report leaves out it has an equal share at most.
    fn entry(&self, taker: u64, equal: u64) -> ShareEntry {
        self.entries.get(&taker).copied().unwrap_or(ShareEntry { want: equal, claim: equal })
    }
}

fn in_millionths(rate: u64) -> u64 {
    rate.saturating_mul(MILLIONTHS)
}

/// A taker's share as it was, with what it has used since.
fn note(before: &mut BTreeMap<u64, TakerShare>, used: ShareUse, elapsed: Option<Duration>) -> TakerShare {
    let mut state = before.remove(&used.taker).unwrap_or_default();
    state.quota = in_millionths(used.quota);
    let micros = elapsed.map_or(0, |elapsed| elapsed.as_micros());
    let rate = u128::from(used.taken) * 1_000_000 * u128::from(MILLIONTHS) / micros.max(1);
    let rate = if micros == 0 { 0 } else { u64::try_from(rate).unwrap_or(u64::MAX) };
    state.peak = rate.max(state.peak / 2);
    // What is refused is not counted, as anybody may have asked for it.
    let want = match used.is_refused {
        true => state.peak.saturating_mul(4),
        false => state.peak.saturating_add(state.peak / 4),
    };
    state.want = want.min(state.quota);
    state
}

/// What the first of several front ends should have of a quota, by what each of them wants. Small wants are met, and
/// the others have equally much of the rest; what nobody wants is divided.
fn target(quota: u64, wants: &[u64]) -> u64 {
    let count = wants.len() as u64;
    let floor = (quota / count / FLOOR_PART).max(1);
    let own = wants[0].max(floor);
    let mut wants: Vec<u64> = wants.iter().map(|want| (*want).max(floor)).collect();
    wants.sort_unstable();
    let mut left = quota;
    for (at, want) in wants.iter().enumerate() {
        let level = left / (count - at as u64);
        if *want > level {
            return own.min(level).max(1);
        }
        left -= *want;
    }
    own + left / count
}

/// What a report says: of a damaged one, or of one of a later version, nothing.
fn entries_of(report: &[u8]) -> BTreeMap<u64, ShareEntry> {
    let Some((&REPORT_VERSION, entries)) = report.split_first() else { return BTreeMap::new() };
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a number has eight bytes"));
    let entry = |bytes: &[u8]| {
        let entry = ShareEntry { want: number(&bytes[8..16]), claim: number(&bytes[16..24]) };
        (number(&bytes[..8]), entry)
    };
    entries.chunks_exact(ENTRY_BYTES).take(SHARED_TAKERS_MAX).map(entry).collect()
}

#[cfg(test)]
mod tests;
