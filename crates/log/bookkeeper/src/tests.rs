//! The protocols in a simulated world: bookies, a metadata store and a network that are told by a seed what goes wrong.

mod actors;
mod bookie;
mod checks;
mod world;

use world::{Outcome, Setting, run};

use crate::planted::Planted;

const SETTINGS: [Setting; 4] = [
    Setting { bookies: 5, quorums: (3, 3, 2) },
    Setting { bookies: 7, quorums: (5, 3, 2) },
    Setting { bookies: 4, quorums: (3, 2, 2) },
    Setting { bookies: 6, quorums: (4, 4, 3) },
];

fn seeds() -> u64 {
    std::env::var("BOOKKEEPER_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(400)
}

#[test]
fn nothing_acknowledged_is_lost_or_changed_whatever_dies_and_whoever_recovers() {
    let mut all = Outcome::default();
    for setting in SETTINGS {
        for seed in 0..seeds() {
            match run(setting, Planted::Nothing, seed) {
                Ok(outcome) => all.add(&outcome),
                Err(why) => panic!("{setting:?}, seed {seed}: {why}"),
            }
        }
    }
    // The world does what it is for.
    assert!(all.closed > all.runs / 2, "{all:?}");
    let happened = [all.acknowledged, all.ensembles, all.crashes, all.fenced_writers, all.died_recoveries];
    assert!(happened.iter().all(|count| *count > all.runs / 20), "{all:?}");
    assert!(all.closed_by_two > 0 && all.written_back > 0 && all.read_entries > 0, "{all:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..20 {
        let runs = [(); 2].map(|()| run(SETTINGS[1], Planted::Nothing, seed).map(|outcome| outcome.history));
        assert_eq!(runs[0], runs[1]);
    }
}

/// A mistake is found by some seed of some setting.
fn is_caught(planted: Planted) {
    let found = (0..5_000).find_map(|seed| {
        SETTINGS.iter().find_map(|setting| run(*setting, planted, seed).err().map(|why| (setting, seed, why)))
    });
    let (setting, seed, why) = found.unwrap_or_else(|| panic!("no seed finds {planted:?}"));
    println!("{planted:?}: {setting:?}, seed {seed}: {why}");
}

#[test]
fn a_recovery_that_takes_silence_for_absence_is_caught() {
    is_caught(Planted::SilenceEnds);
}

#[test]
fn a_recovery_that_ends_at_one_absence_is_caught() {
    is_caught(Planted::OneAbsence);
}

#[test]
fn a_recovery_that_fences_one_bookie_is_caught() {
    is_caught(Planted::FenceOne);
}

#[test]
fn a_recovery_that_fences_one_write_set_is_caught() {
    is_caught(Planted::FenceOneSet);
}

#[test]
fn a_recovery_whose_reads_do_not_fence_is_caught() {
    is_caught(Planted::ReadsDoNotFence);
}

#[test]
fn a_recovery_that_does_not_write_back_is_caught() {
    is_caught(Planted::NotWrittenBack);
}

#[test]
fn a_recovery_that_closes_without_comparing_is_caught() {
    is_caught(Planted::NoCompare);
}

#[test]
fn a_writer_that_acknowledges_while_its_bookies_change_is_caught() {
    is_caught(Planted::AckWhileChanging);
}

#[test]
fn a_writer_that_counts_what_a_replaced_bookie_acknowledged_is_caught() {
    is_caught(Planted::ReplacedCounts);
}

#[test]
fn a_writer_whose_new_ensemble_begins_too_late_is_caught() {
    is_caught(Planted::EnsembleTooLate);
}

#[test]
fn a_writer_that_acknowledges_with_one_copy_is_caught() {
    is_caught(Planted::OneAck);
}
