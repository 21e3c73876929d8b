use std::collections::BTreeMap;

use super::*;

const TAKER: u64 = 7;
const QUOTA: u64 = 300;

fn at(ms: u64) -> Instant {
    Instant::default() + Duration::from_millis(ms)
}

/// Front ends that read what the others have put, each a round after the other.
#[derive(Default)]
struct Table {
    now_ms: u64,
    fronts: Vec<QuotaShares>,
    reports: BTreeMap<u64, (u64, Vec<u8>)>,
}

impl Table {
    fn of(fronts: u64) -> Self {
        let mut table = Self { fronts: (0..fronts).map(QuotaShares::new).collect(), ..Self::default() };
        // Until all have heard of each other, shares may come to more.
        for _ in 0..2 {
            table.now_ms += 1_000;
            (0..table.fronts.len()).for_each(|front| table.round(front, 0));
        }
        table
    }

    /// A round of one front end, where `asked` a second was asked for since the last one.
    fn round(&mut self, front: usize, asked: u64) {
        let now = at(self.now_ms);
        let share = self.share(front);
        let taken = (asked as f64).min(share) as u64;
        let used = ShareUse { taker: TAKER, quota: QUOTA, taken, is_refused: asked as f64 > share };
        let shares = &mut self.fronts[front];
        let (number, report) = shares.begin(now, [used]);
        self.reports.insert(shares.front(), (number, report));
        let all = self.reports.iter().map(|(front, (number, report))| (*front, *number, &report[..]));
        shares.end(now, all);
    }

    /// Rounds of all that are there, a second each; what is asked of each.
    fn rounds(&mut self, count: usize, asked: &[u64]) {
        for _ in 0..count {
            self.now_ms += 1_000;
            for front in 0..self.fronts.len() {
                self.round(front, asked.get(front).copied().unwrap_or(0));
                assert!(self.sum() <= QUOTA as f64, "{} in all", self.sum());
            }
        }
    }

    fn share(&self, front: usize) -> f64 {
        self.fronts[front].share(TAKER, QUOTA, at(self.now_ms))
    }

    fn sum(&self) -> f64 {
        let known =
            self.fronts.iter().filter(|front| front.is_exchanging(at(self.now_ms)) && front.fronts() > 1);
        known.map(|front| front.share(TAKER, QUOTA, at(self.now_ms))).sum()
    }
}

#[test]
fn a_front_end_that_knows_of_no_other_gives_all_of_a_quota() {
    let shares = QuotaShares::new(1);
    assert_eq!(shares.share(TAKER, QUOTA, at(0)), QUOTA as f64);
    assert_eq!(shares.share(TAKER, 0, at(0)), 0.0, "any number");
}

#[test]
fn shares_are_equal_where_nobody_wants_more_and_no_report_says_anything_of_them() {
    let mut table = Table::of(3);
    table.rounds(3, &[10, 20, 30]);
    assert_eq!([0, 1, 2].map(|front| table.share(front)), [100.0; 3]);
    assert!(table.reports.values().all(|(_, report)| report[..] == [REPORT_VERSION, 3, 0, 0, 0]));
}

#[test]
fn a_share_goes_to_where_it_is_used_within_some_rounds_and_moves_on_with_that() {
    let mut table = Table::of(3);
    for busy in [0, 1, 2, 0] {
        let mut asked = [0; 3];
        asked[busy] = 1_000;
        table.rounds(8, &asked);
        assert!(table.share(busy) >= 0.9 * QUOTA as f64, "{busy} has {}", table.share(busy));
        assert!(table.share((busy + 1) % 3) >= 10.0, "the others keep a tenth of their equal shares");
    }
}

#[test]
fn small_wants_are_met_and_large_ones_have_equally_much_of_the_rest() {
    let mut table = Table::of(3);
    table.rounds(10, &[1_000, 1_000, 40]);
    let shares = [0, 1, 2].map(|front| table.share(front));
    assert!(shares[2] >= 40.0 && shares[2] < 60.0, "{shares:?}");
    assert!((shares[0] - shares[1]).abs() < 1.0 && shares[0] > 115.0, "{shares:?}");
}

#[test]
fn of_two_front_ends_that_want_the_same_at_the_same_time_none_takes_it_before_the_other_knows() {
    let mut table = Table::of(2);
    table.rounds(8, &[1_000, 0]);
    // Both begin before either reads what the other claims.
    let used = |taken| ShareUse { taker: TAKER, quota: QUOTA, taken, is_refused: true };
    for second in 1..8 {
        let now = at(table.now_ms + second * 1_000);
        let begun: Vec<_> = table.fronts.iter_mut().map(|front| front.begin(now, [used(250)])).collect();
        for (front, (number, report)) in begun.into_iter().enumerate() {
            table.reports.insert(front as u64, (number, report));
        }
        for front in &mut table.fronts {
            let all = table.reports.iter().map(|(front, (number, report))| (*front, *number, &report[..]));
            front.end(now, all);
        }
        let shares: Vec<f64> = table.fronts.iter().map(|front| front.share(TAKER, QUOTA, now)).collect();
        assert!(shares.iter().sum::<f64>() <= QUOTA as f64, "{shares:?}");
        if second == 7 {
            assert_eq!(shares, [150.0, 150.0]);
        }
    }
}

#[test]
fn a_front_end_whose_rounds_do_not_end_gives_an_equal_share_and_one_that_is_silent_leaves_its_own_to_the_others()
 {
    let mut table = Table::of(3);
    table.rounds(8, &[1_000, 0, 0]);
    assert!(table.share(0) > 250.0);
    let mut cut_off = table.fronts.remove(0);
    let share_at = |front: &QuotaShares, ms| front.share(TAKER, QUOTA, at(ms));
    assert!(share_at(&cut_off, table.now_ms + 3_000) > 250.0);
    assert_eq!(share_at(&cut_off, table.now_ms + 5_000), 100.0);
    table.rounds(9, &[1_000, 0]);
    assert!(table.share(0) < 100.0, "nobody knows what the other one gives: {}", table.share(0));
    table.rounds(8, &[1_000, 0]);
    assert!(table.share(0) > 270.0, "{}", table.share(0));
    assert_eq!(table.fronts[0].fronts(), 2);
    // It is back, and has an equal share until the others have heard of it.
    let now = at(table.now_ms);
    cut_off.begin(now, []);
    assert_eq!(cut_off.share(TAKER, QUOTA, now), 100.0);
    table.fronts.push(cut_off);
    table.now_ms += 1_000;
    for front in [2, 0, 1] {
        table.round(front, 0);
    }
    table.rounds(6, &[0, 0, 1_000]);
    assert!(table.share(2) > 250.0 && table.fronts.iter().all(|front| front.fronts() == 3));
}

#[test]
fn a_taker_whose_quota_is_changed_or_removed_has_what_is_left_of_it() {
    let mut table = Table::of(2);
    table.rounds(8, &[1_000, 0]);
    let shares = &mut table.fronts[0];
    assert_eq!(shares.share(TAKER, 10, at(table.now_ms)), 10.0);
    shares.begin(at(table.now_ms + 1_000), []);
    assert_eq!(
        shares.share(TAKER, QUOTA, at(table.now_ms + 1_000)),
        150.0,
        "nothing is known of it any more"
    );
}

#[test]
fn reports_have_a_bound_and_what_they_leave_out_is_divided_equally() {
    let mut fronts = [QuotaShares::new(1), QuotaShares::new(2)];
    let uses = |is_refused| {
        (0..2 * SHARED_TAKERS_MAX as u64).map(move |taker| ShareUse {
            taker,
            quota: QUOTA,
            taken: if is_refused { 200 } else { 0 },
            is_refused,
        })
    };
    let mut reports = [(0, Vec::new()), (0, Vec::new())];
    for second in 0..8 {
        for front in [0, 1] {
            reports[front] = fronts[front].begin(at(second * 1_000), uses(front == 0));
            let all = reports
                .iter()
                .enumerate()
                .map(|(at, (number, report))| (at as u64 + 1, *number, &report[..]));
            fronts[front].end(at(second * 1_000), all);
        }
    }
    assert_eq!(reports[0].1.len(), 5 + SHARED_TAKERS_MAX * ENTRY_BYTES);
    let last = 2 * SHARED_TAKERS_MAX as u64 - 1;
    let shares = [0, last].map(|taker| fronts[0].share(taker, QUOTA, at(7_000)));
    assert!(shares[0] > 250.0 && shares[1] == 150.0, "{shares:?}");
}

#[test]
fn any_bytes_are_a_report_and_of_those_that_are_none_nothing_is_believed() {
    for report in [
        &[][..],
        &[REPORT_VERSION, 255, 255, 255, 255],
        &[2, 0, 0],
        &[REPORT_VERSION, 1, 2, 3],
        &[REPORT_VERSION; 5_000],
        &[255; 64],
    ] {
        let mut shares = QuotaShares::new(1);
        let used = ShareUse { taker: 0x0101_0101_0101_0101, quota: QUOTA, taken: 400, is_refused: true };
        for second in 0..4 {
            shares.begin(at(second * 1_000), [used]);
            shares.end(at(second * 1_000), [(2, u64::MAX, report)]);
            let share = shares.share(used.taker, QUOTA, at(second * 1_000));
            assert!(share > 0.0 && share <= QUOTA as f64, "{share}");
        }
    }
}

#[test]
fn what_is_wanted_follows_from_what_was_taken_however_much_was_refused() {
    let mut shares = QuotaShares::new(1);
    let used = |taken| ShareUse { taker: TAKER, quota: 1_000_000, taken, is_refused: true };
    shares.begin(at(0), [used(1_000)]);
    assert_eq!(shares.takers[&TAKER].want, 0, "for how long is not known");
    shares.begin(at(1_000), [used(1_000)]);
    assert_eq!(shares.takers[&TAKER].want, 4_000 * MILLIONTHS);
    for second in 2..40 {
        shares.begin(at(second * 1_000), [used(0)]);
    }
    assert_eq!(shares.takers[&TAKER].want, 0, "refusals alone want nothing");
}
