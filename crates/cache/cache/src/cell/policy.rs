//! How a lookup by quorum goes about it: pure decisions, as a table of cases. [`super::consistent`] carries them out.
//!
//! What is chosen between:
//! - *Two, then the third*: a quorum is asked, and the third replica if those do not agree or one of them is late. The
//!   least work for both sides, where cores are the limit.
//! - *All*: all three are asked at once, and the first two that agree are the answer. So a slow replica slows nobody.
//! - The *values* come in a round trip of their own from the first replica that named the version (2xR), or along with
//!   what the preferred replica says, or with what all say (SCAR).
//! - *Calls*: the backends' own code looks keys up. The last resort, where the one-sided rounds were inconclusive.

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::placement::Mode;
use crate::limits::QUORUM_ROUNDS_MAX;

/// What a client wants of its lookups by quorum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookupWay {
    /// By transport, size of values and batch: all at once over a wire, two and then the third over mapped memory.
    #[default]
    Auto,
    /// Two replicas, and the third when they do not agree or one is late; the first one sends values along.
    Two,
    /// All replicas at once; the preferred one sends values along.
    All,
    /// All replicas at once; values are read from the first one that named them.
    TwiceRead,
    /// All replicas at once, and all send values along.
    Scar,
    /// All replicas at once, by a CALL that their own code answers.
    Call,
}

impl LookupWay {
    /// All of them, in the order in which people are told.
    pub const ALL: [LookupWay; 6] = [
        LookupWay::Auto,
        LookupWay::Two,
        LookupWay::All,
        LookupWay::TwiceRead,
        LookupWay::Scar,
        LookupWay::Call,
    ];

    /// Its name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            LookupWay::Auto => "auto",
            LookupWay::Two => "two",
            LookupWay::All => "all",
            LookupWay::TwiceRead => "2xr",
            LookupWay::Scar => "scar",
            LookupWay::Call => "call",
        }
    }
}

impl FromStr for LookupWay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|way| way.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("{text:?} is no way to look up: use one of {names}")
        })
    }
}

/// What there is to decide by, for some keys that are looked up together.
#[derive(Clone, Copy, Debug)]
pub(super) struct LookupCase {
    pub(super) way: LookupWay,
    pub(super) mode: Mode,
    /// Rounds that came to nothing before.
    pub(super) round: u32,
    /// So few replicas are mapped that a quorum takes round trips.
    pub(super) is_wire: bool,
    /// Bytes that the values have, as far as the values before them tell.
    pub(super) bytes: u64,
    /// Whether values of so many bytes are there sooner when all replicas send them ([`LookupTimes`]).
    pub(super) all_are_quicker: bool,
}

/// Who sends the values along with what it says. Where that takes no fewer round trips, nobody does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupValues {
    Nobody,
    /// Of the replica that is asked first.
    Preferred,
    Everybody,
}

/// What is done in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LookupPlan {
    /// Replicas that are asked at once.
    pub(super) at_once: usize,
    pub(super) values: LookupValues,
    /// Their own code is asked.
    pub(super) by_call: bool,
}

/// Bytes of values up to which all replicas send them, as long as nothing else was measured: what a link of 10 Gbit/s
/// takes in 13 us, less than a round trip.
const ALL_VALUES_BYTES: u64 = 16 << 10;

/// Bytes of values above which that is not even tried: three copies come in together.
const ALL_VALUES_BYTES_MAX: u64 = 1 << 20;

/// One-sided rounds, after which the backends themselves are asked.
pub(super) const ONE_SIDED_ROUNDS: u32 = QUORUM_ROUNDS_MAX - 1;

/// What is done next.
pub(super) fn plan(case: &LookupCase) -> LookupPlan {
    let replicas = case.mode.replicas();
    let quorum = case.mode.quorum();
    if case.way == LookupWay::Call || case.round >= ONE_SIDED_ROUNDS {
        return LookupPlan { at_once: replicas, values: LookupValues::Everybody, by_call: true };
    }
    let all_at_once = match case.way {
        LookupWay::Two => false,
        LookupWay::Auto => case.is_wire,
        LookupWay::All | LookupWay::TwiceRead | LookupWay::Scar | LookupWay::Call => true,
    };
    // Where one replica is enough, the others are for when it fails.
    let at_once = if all_at_once && quorum > 1 { replicas } else { quorum };
    let are_few = at_once > quorum && case.bytes <= ALL_VALUES_BYTES_MAX;
    let values = match case.way {
        LookupWay::TwiceRead => LookupValues::Nobody,
        LookupWay::Scar => LookupValues::Everybody,
        LookupWay::Auto if are_few && case.all_are_quicker => LookupValues::Everybody,
        LookupWay::Auto | LookupWay::Two | LookupWay::All | LookupWay::Call => LookupValues::Preferred,
    };
    LookupPlan { at_once, values, by_call: false }
}

/// A mean in which the last values count most; 0: there was none.
#[derive(Debug, Default)]
pub(super) struct RecentMean(AtomicU64);

impl RecentMean {
    /// One value counts for one in so many.
    const ONE_IN: u64 = 8;

    pub(super) fn note(&self, value: u64) {
        // Of two that are noted at once one may be forgotten.
        let mean = self.get();
        let next = if mean == 0 { value } else { mean - mean / Self::ONE_IN + value / Self::ONE_IN };
        self.0.store(next.max(1), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How long a replica took lately to answer, in nanoseconds; 0: it is not known, or takes no round trip.
#[derive(Debug, Default)]
pub(super) struct LookupLatency {
    mean: RecentMean,
    /// What was waited for it in vain since its last answer.
    in_vain_ns: AtomicU64,
}

impl LookupLatency {
    /// It has answered, and taken so long.
    pub(super) fn note(&self, took_ns: u64) {
        self.in_vain_ns.store(0, Ordering::Relaxed);
        self.mean.note(took_ns);
    }

    /// Nobody waits for its answer any more, after so long. Where others are quicker each time, all of those times
    /// together tell how slow it is at least.
    pub(super) fn note_unanswered(&self, waited_ns: u64) {
        let before = self.in_vain_ns.fetch_add(waited_ns, Ordering::Relaxed);
        let at_least = before.saturating_add(waited_ns);
        if at_least > self.mean.get() {
            self.mean.note(at_least);
        }
    }

    /// From now on nothing is known.
    pub(super) fn forget(&self) {
        self.in_vain_ns.store(0, Ordering::Relaxed);
        self.mean.0.store(0, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.mean.get()
    }
}

/// Classes of how many bytes values have, each of four times as many as the one before.
const CLASSES: usize = 16;

/// One lookup in so many goes about it in the other way, so that what is known does not grow old.
const TRIED_ONE_IN: u32 = 32;

/// Of a way that is to take over, its time has to be less than so many eighths of the other one's.
const TAKES_OVER_BELOW_EIGHTHS: u64 = 7;

/// How long lookups took by how many bytes their values have, and who sent them along.
#[derive(Debug, Default)]
pub(super) struct LookupTimes {
    /// Of the preferred replica alone, and of all.
    took_ns: [[RecentMean; 2]; CLASSES],
    tries: AtomicU32,
    value_bytes: RecentMean,
}

impl LookupTimes {
    fn class_of(bytes: u64) -> usize {
        (bytes.max(1).ilog2() as usize / 2).min(CLASSES - 1)
    }

    /// Bytes that the values of so many keys have, as the last ones had them; 0: there were none.
    pub(super) fn bytes_of(&self, keys: usize) -> u64 {
        self.value_bytes.get().saturating_mul(keys as u64)
    }

    /// So many values had so many bytes.
    pub(super) fn note_values(&self, values: usize, bytes: usize) {
        if let Some(mean) = bytes.checked_div(values) {
            self.value_bytes.note(mean as u64);
        }
    }

    /// A lookup of values of so many bytes, which began as `values` says, took so long.
    pub(super) fn note(&self, bytes: u64, values: LookupValues, took: Duration) {
        let way = match values {
            LookupValues::Nobody => return,
            LookupValues::Preferred => 0,
            LookupValues::Everybody => 1,
        };
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.took_ns[Self::class_of(bytes)][way].note(took_ns);
    }

    /// Whether the next lookup of so many bytes does well to have all replicas send values. Now and then the other way,
    /// to see.
    pub(super) fn all_are_quicker(&self, bytes: u64) -> bool {
        let [one, all] = [0, 1].map(|way| self.took_ns[Self::class_of(bytes)][way].get());
        let by_size = (1..=ALL_VALUES_BYTES).contains(&bytes);
        let [one, all] = [u128::from(one), u128::from(all)];
        let is_better = |this: u128, than: u128| this * 8 < than * u128::from(TAKES_OVER_BELOW_EIGHTHS);
        let known = match by_size {
            _ if one == 0 || all == 0 => by_size,
            true => !is_better(one, all),
            false => is_better(all, one),
        };
        let tries = self.tries.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let is_tried = bytes > 0 && tries.is_multiple_of(TRIED_ONE_IN);
        known ^ is_tried
    }
}

#[cfg(test)]
mod tests {
    use LookupValues::{Everybody, Nobody, Preferred};

    use super::*;

    const WIRE: LookupCase = LookupCase {
        way: LookupWay::Auto,
        mode: Mode::R32,
        round: 0,
        is_wire: true,
        bytes: 1_000,
        all_are_quicker: true,
    };

    #[test]
    fn decision_table_of_a_lookup() {
        let with = |way| LookupCase { way, ..WIRE };
        let memory = LookupCase { is_wire: false, ..WIRE };
        let large = LookupCase { bytes: 64 << 10, all_are_quicker: false, ..WIRE };
        let huge = LookupCase { bytes: 2 << 20, ..WIRE };
        let one = LookupCase { mode: Mode::R1, ..WIRE };
        let cases: &[(&str, LookupCase, usize, LookupValues, bool)] = &[
            ("over a wire all are asked, and send values where that is quicker", WIRE, 3, Everybody, false),
            ("or else one does", large, 3, Preferred, false),
            ("three copies of so much are never asked for", huge, 3, Preferred, false),
            ("memory is read of as few as can be", memory, 2, Preferred, false),
            ("one copy is asked for once", one, 1, Preferred, false),
            ("as it is said: two", with(LookupWay::Two), 2, Preferred, false),
            ("all", with(LookupWay::All), 3, Preferred, false),
            ("2xR", with(LookupWay::TwiceRead), 3, Nobody, false),
            ("SCAR", with(LookupWay::Scar), 3, Everybody, false),
            ("CALLs", with(LookupWay::Call), 3, Everybody, true),
            ("also over memory", LookupCase { way: LookupWay::All, ..memory }, 3, Preferred, false),
            ("a round that came to nothing", LookupCase { round: 1, ..memory }, 2, Preferred, false),
            ("the last resort", LookupCase { round: ONE_SIDED_ROUNDS, ..memory }, 3, Everybody, true),
            ("of one copy, too", LookupCase { round: ONE_SIDED_ROUNDS, ..one }, 1, Everybody, true),
        ];
        for (name, case, at_once, values, by_call) in cases {
            let expected = LookupPlan { at_once: *at_once, values: *values, by_call: *by_call };
            assert_eq!(plan(case), expected, "{name}");
        }
    }

    #[test]
    fn a_way_has_one_name() {
        for way in LookupWay::ALL {
            assert_eq!(way.name().parse(), Ok(way));
        }
        let error = "three".parse::<LookupWay>().expect_err("none");
        assert!(error.contains("auto, two, all, 2xr, scar, call"), "{error}");
    }

    /// What most of the next lookups of so many bytes do.
    fn mostly(times: &LookupTimes, bytes: u64) -> bool {
        let all = (0..TRIED_ONE_IN).filter(|_| times.all_are_quicker(bytes)).count() as u32;
        // One of them tries the other way.
        assert!(all == 1 || all == TRIED_ONE_IN - 1, "{all} of {TRIED_ONE_IN}");
        all > 1
    }

    #[test]
    fn the_way_follows_what_was_measured_for_so_many_bytes_and_the_other_one_is_tried_now_and_then() {
        let us = Duration::from_micros;
        let times = LookupTimes::default();
        assert!(mostly(&times, 4_096) && !mostly(&times, 65_536), "nothing was measured");
        times.note(4_096, Everybody, us(50));
        times.note(4_096, Preferred, us(49));
        assert!(mostly(&times, 4_096), "by so little nothing changes");
        (0..50).for_each(|_| times.note(4_096, Preferred, us(30)));
        assert!(!mostly(&times, 4_096));
        (0..50).for_each(|_| times.note(65_536, Preferred, us(90)));
        times.note(65_536, Everybody, us(40));
        assert!(mostly(&times, 65_536));
        assert!(!mostly(&times, 1 << 20), "another class");
        times.note(0, Nobody, us(1));
        times.note(u64::MAX, Everybody, Duration::MAX);
    }

    #[test]
    fn as_many_bytes_are_expected_as_the_last_values_had() {
        let times = LookupTimes::default();
        assert_eq!(times.bytes_of(8), 0);
        times.note_values(0, 0);
        times.note_values(4, 4_000);
        assert_eq!(times.bytes_of(8), 8_000);
        (0..100).for_each(|_| times.note_values(1, 100_000));
        assert!(times.bytes_of(1) > 90_000);
        assert_eq!(times.bytes_of(usize::MAX), u64::MAX);
    }

    #[test]
    fn a_replica_that_is_waited_for_in_vain_again_and_again_is_known_to_be_slow_until_it_answers() {
        let latency = LookupLatency::default();
        latency.note(800);
        latency.note_unanswered(700);
        assert_eq!(latency.get(), 800, "it may have been about to answer");
        (0..10).for_each(|_| latency.note_unanswered(700));
        assert!(latency.get() > 1_600);
        (0..50).for_each(|_| latency.note(800));
        assert!(latency.get() < 900);
        latency.forget();
        assert_eq!(latency.get(), 0);
    }
}
