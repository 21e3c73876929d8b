//! How far a change of a cell's backends is ([`crate::Configuration`] has its phases).

use std::collections::BTreeMap;

use super::Cell;
use crate::configuration::Configuration;
use crate::protocol::BackendStats;

impl Cell {
    /// The configuration of the next phase of the change that is under way, if one is and the backends are ready for
    /// it; whoever owns the cell goes on with it. Any client may ask, so a change goes on whoever began it.
    pub async fn next_phase(&self) -> Option<Configuration> {
        let configuration = self.configuration();
        configuration.change.as_ref()?;
        let stats: BTreeMap<u32, BackendStats> = self.backend_stats().await.into_iter().collect();
        is_ready(&configuration, &stats).then(|| configuration.next_phase()).flatten()
    }
}

/// Whether the next phase may begin. `stats` are of the backends that answer, by their numbers.
fn is_ready(configuration: &Configuration, stats: &BTreeMap<u32, BackendStats>) -> bool {
    let Some(change) = &configuration.change else { return false };
    let id = configuration.id;
    let of = |number: u32| stats.get(&number).filter(|of| of.config_id == id);
    // Each has what it is to hold: it went through all that a quorum of those before holds, who took no mutations by
    // the configuration before any more, and were not read by it.
    let has_all = |of: &BackendStats| of.scanned_config_id == id && of.unfilled_buckets == 0;
    if !change.backends.iter().all(|place| of(place.number).is_some_and(has_all)) {
        return false;
    }
    if !change.is_copied {
        return true;
    }
    // Nobody finds a quorum of those before any more that goes by the phase before this one.
    let Some(before) = configuration.other_placement() else { return false };
    let numbers: Vec<u32> = configuration.members().map(|place| place.number).collect();
    let follows =
        |place: &&u16| numbers.get(usize::from(**place)).is_some_and(|number| of(*number).is_some());
    let quorum = configuration.mode.quorum();
    let rows = configuration.ring.rows;
    (0..rows).all(|row| before.row(row, rows).iter().filter(follows).count() >= quorum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Mode;
    use crate::configuration::BackendPlace;

    fn stats(numbers: &[u32], config_id: u64, scanned_config_id: u64) -> BTreeMap<u32, BackendStats> {
        let of = BackendStats { config_id, scanned_config_id, ..BackendStats::default() };
        numbers.iter().map(|number| (*number, of.clone())).collect()
    }

    #[test]
    fn a_phase_begins_when_all_is_copied_and_the_last_one_when_nobody_finds_the_former_quorums() {
        let before =
            Configuration::first(1 << 32 | 1, "tiles", Mode::R32, vec![Vec::new(); 3]).expect("a cell");
        let place = |number| BackendPlace::new(number, Vec::new());
        let copying = before.changing_to([0, 1, 3].map(place).to_vec()).expect("a change");
        let id = copying.id;
        assert!(!is_ready(&before, &stats(&[0, 1, 2], before.id, before.id)));
        assert!(
            !is_ready(&copying, &stats(&[0, 1, 3], id, before.id)),
            "not compared under this configuration yet"
        );
        assert!(!is_ready(&copying, &stats(&[0, 1, 2], id, id)), "one of those after does not answer");
        let mut half = stats(&[0, 1, 3], id, id);
        half.entry(1).or_default().unfilled_buckets = 7;
        assert!(!is_ready(&copying, &half));
        assert!(is_ready(&copying, &stats(&[0, 1, 3], id, id)), "the one that leaves may be gone");

        let leaving = copying.next_phase().expect("the next one");
        assert!(!is_ready(&leaving, &stats(&[0, 1, 2, 3], leaving.id, id)), "not compared once more yet");
        let mut some = stats(&[0, 1, 2, 3], leaving.id, leaving.id);
        assert!(is_ready(&leaving, &some));
        some.remove(&2);
        assert!(is_ready(&leaving, &some), "two of three before follow");
        some.insert(1, BackendStats { config_id: id, ..BackendStats::default() });
        assert!(!is_ready(&leaving, &some));
    }
}
