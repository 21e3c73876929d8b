//! How several front ends give one quota together: each has a share of it, and shares go to where they are used.
//!
//! A step function over ticks and messages. Once a round each front end puts a *report* where all of them read it, in
//! place of its last one, and then reads those of the others. A report says, of each taker whose quota is not simply
//! divided, how much the front end *wants*, *claims* and *holds*. Where the reports are, and when a round is, the
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
//!   claim was put, to what is left by the claims that were read after that; and a claim is lowered only after its
//!   share was. Of two front ends that claim the same, the one that reads last sees the other's claim. No clock is
//!   compared with another one.
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
/// Bytes of what a report says of one taker.
const ENTRY_BYTES: usize = 32;

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
    /// What the last report says of that; 0 if that was not known.
    told: u64,
    /// An equal share is a quota divided by this: as many as are counted, or more as long as others may not know that
    /// there are fewer.
    base: u64,
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
    /// Of a taker that is not among its entries it claims, and has, the quota divided by this at most. 0 is as many as
    /// are counted here.
    fronts: u64,
    entries: BTreeMap<u64, ShareEntry>,
}

/// What a report says of one taker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ShareEntry {
    want: u64,
    claim: u64,
    held: u64,
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
            told: 0,
            base: 1,
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
        let share = match self.takers.get(&taker).and_then(|state| state.held) {
            Some(held) if self.is_exchanging(now) => held.min(in_millionths(quota)),
            _ => part(in_millionths(quota), self.base),
        };
        match quota {
            0 => 0.0,
            _ => share as f64 / MILLIONTHS as f64,
        }
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
        let (base, shared) = (self.base, self.shared());
        // Who has asked nobody yet does not know.
        self.told = if self.exchanged_at.is_some() { self.fronts } else { 0 };
        let mut report = vec![REPORT_VERSION];
        report.extend_from_slice(&u32::try_from(self.told).unwrap_or(u32::MAX).to_le_bytes());
        for (taker, state) in &mut self.takers {
            state.claim = shared.get(taker).copied();
            // Lowered before the claim is.
            let claim = state.claim.unwrap_or(part(state.quota, self.told.max(1)));
            state.hold(state.held(base).min(claim), base);
            if state.claim.is_some() {
                for number in [*taker, state.want, claim, state.held(base)] {
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
        let shared = self.shared();
        let others: Vec<&OtherFront> = self.others.values().filter(|other| !other.is_gone).collect();
        let (fronts, told, before) = (self.fronts, self.told, self.base);
        // What was not told is not raised to.
        self.base = fronts.max(told);
        for (taker, state) in &mut self.takers {
            let shared = shared.get(taker).copied();
            if shared.is_none() && state.held.is_none() && self.base >= before {
                // The usual: an equal share, which is no more than it was.
                continue;
            }
            let left_of = |of: fn(ShareEntry) -> u64| {
                let numbers = others.iter().map(|other| of(other.entry(*taker, state.quota, fronts)));
                state.quota.saturating_sub(numbers.fold(0, u64::saturating_add))
            };
            let (equal, target) = (part(state.quota, self.base), shared.unwrap_or(part(state.quota, fronts)));
            let claim = state.claim.unwrap_or(part(state.quota, told.max(1)));
            let held = state.held(before);
            let share = match target <= held {
                // The others may want more by now.
                true => target,
                false => held.max(target.min(claim).min(left_of(|entry| entry.claim))),
            };
            // Where somebody came, or came back, all together may have too much: whoever has more than an equal share
            // has less of it.
            let share = share.min(equal.max(left_of(|entry| entry.held)));
            state.hold(share, self.base);
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
                let (fronts, entries) = read(value);
                let other = OtherFront { number, changed_at: now, is_gone: false, fronts, entries };
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
            let equal = part(state.quota, self.fronts);
            if state.want <= equal && !told.contains(taker) {
                continue;
            }
            let mut wants = vec![state.want];
            wants.extend(others.iter().map(|other| other.entry(*taker, state.quota, self.fronts).want));
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
    /// What it says of a taker. Of one that its report leaves out it wants no more than an equal share, of so many
    /// front ends, and has no more than what was equal when it told.
    fn entry(&self, taker: u64, quota: u64, fronts: u64) -> ShareEntry {
        let known = self.entries.get(&taker).copied();
        let equal = part(quota, if self.fronts == 0 { fronts } else { self.fronts });
        known.unwrap_or(ShareEntry { want: part(quota, fronts), claim: equal, held: equal })
    }
}

impl TakerShare {
    /// What this front end may give, where an equal share is the quota divided by `base`.
    fn held(&self, base: u64) -> u64 {
        self.held.unwrap_or(part(self.quota, base))
    }

    fn hold(&mut self, share: u64, base: u64) {
        self.held = (share != part(self.quota, base)).then_some(share);
    }
}

/// An equal part; never nothing, which would be any number.
fn part(quota: u64, fronts: u64) -> u64 {
    (quota / fronts).max(1)
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

/// What a report says: how many front ends its own one counts, and what it says of takers. One that is damaged, or of a
/// later version, claims everything.
///
/// ```text
///       0    1  version
///       1    4  front ends; 0 before the first round has ended
///       5       entries: taker, want, claim, held; 8 bytes each
/// ```
/// Numbers are little-endian, rates in millionths a second.
fn read(report: &[u8]) -> (u64, BTreeMap<u64, ShareEntry>) {
    let Some((&REPORT_VERSION, rest)) = report.split_first() else { return (1, BTreeMap::new()) };
    let Some((fronts, entries)) = rest.split_first_chunk() else { return (1, BTreeMap::new()) };
    let fronts = u64::from(u32::from_le_bytes(*fronts));
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a number has eight bytes"));
    let entry = |bytes: &[u8]| {
        let [want, claim, held] = [8, 16, 24].map(|at| number(&bytes[at..at + 8]));
        (number(&bytes[..8]), ShareEntry { want, claim, held })
    };
    (fronts, entries.chunks_exact(ENTRY_BYTES).take(SHARED_TAKERS_MAX).map(entry).collect())
}

#[cfg(test)]
mod tests;
