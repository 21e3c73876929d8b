//! How all backends of a cell start again, one after another, while it is used: a *roll*.
//!
//! A spare takes over what a backend holds. Then the backend ends, whoever runs it starts it again, and it takes its
//! keys back. The next one follows when every backend was compared with the others, and had missed nothing. Free
//! spares hold nothing, so they start again first.
//!
//! What is still to be done is the numbers of backends, each with the start of it that is to end. All else follows from
//! the cell. So whoever has these numbers goes on with it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::future::join_all;
use tailwater_rma::CallError;

use super::backends::instance_of;
use super::{Cell, Mode};
use crate::configuration::{BackendPlace, Configuration};
use crate::protocol::{BackendStats, METHOD_END};

/// What is next in a roll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RollStep {
    /// Nothing, until something has happened: what that is.
    Wait(String),
    /// A change in which a spare takes over what a backend holds.
    Drain {
        /// The backend.
        number: u32,
        /// The spare's number.
        spare: u32,
    },
    /// A backend that holds nothing is to end.
    End(u32),
    /// A change in which a backend takes its keys back.
    Restore(u32),
    /// A backend has started again, or is gone: no more is to be done about it.
    Over(u32),
    /// All of it is done.
    Done,
}

/// What a roll goes by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RollSeen {
    /// Which start it is of each backend that is reached, spares among them.
    pub instances: BTreeMap<u32, u64>,
    /// Those that were compared with the others under this configuration, and had missed nothing.
    pub clean: BTreeSet<u32>,
    /// Those that have ended, and start with their return.
    pub stopped: BTreeSet<u32>,
}

impl RollStep {
    /// What is next, with these backends still to start again, each with the start of it that is to end.
    pub fn next(configuration: &Configuration, pending: &BTreeMap<u32, u64>, seen: &RollSeen) -> Self {
        if configuration.change.is_some() {
            return RollStep::Wait("the cell's backends to be changed".to_owned());
        }
        let is_spare = |number: u32| configuration.spares.iter().any(|spare| spare.number == number);
        let is_out = |number: u32| is_spare(number) && configuration.stand_in_of(number).is_some();
        let again = |number: u32| RollStep::Wait(format!("backend {number} to start again"));
        if let Some((number, before)) = pending.iter().find(|(number, _)| is_out(**number)) {
            return match seen.instances.get(number) {
                _ if seen.stopped.contains(number) => RollStep::Restore(*number),
                Some(now) if now == before => RollStep::End(*number),
                Some(_) => RollStep::Restore(*number),
                None => again(*number),
            };
        }
        let is_over = |(number, before): &(&u32, &u64)| {
            let is_there = is_spare(**number) || configuration.place_of(**number).is_some();
            !is_there || seen.instances.get(*number).is_some_and(|now| now != *before)
        };
        if let Some((number, _)) = pending.iter().find(is_over) {
            return RollStep::Over(*number);
        }
        if let Some(number) = pending.keys().copied().find(|number| is_spare(*number)) {
            return match seen.instances.contains_key(&number) {
                true => RollStep::End(number),
                false => again(number),
            };
        }
        let dirty = configuration.backends.iter().find(|place| !seen.clean.contains(&place.number));
        if let Some(place) = dirty {
            return RollStep::Wait(format!("a clean scan of backend {}", place.number));
        }
        let Some(number) = pending.keys().copied().next() else { return RollStep::Done };
        let mut spares = configuration.free_spares().map(|spare| spare.number);
        match spares.find(|spare| seen.instances.contains_key(spare)) {
            Some(spare) => RollStep::Drain { number, spare },
            None => RollStep::Wait("a spare that is reached".to_owned()),
        }
    }
}

impl Cell {
    /// What a roll goes by, as far as this client reaches the backends.
    pub async fn roll_seen(&self) -> RollSeen {
        let configuration = self.configuration();
        let stats = self.backend_stats().await;
        let mut instances: BTreeMap<u32, u64> = self.spare_instances().await;
        let members = self.backends().into_iter();
        instances.extend(members.filter_map(|(place, instance)| Some((place.number, instance?))));
        let is_clean = |(_, of): &&(u32, BackendStats)| is_clean(&configuration, of);
        let clean = stats.iter().filter(is_clean).map(|(number, _)| *number).collect();
        RollSeen { instances, clean, stopped: BTreeSet::new() }
    }

    /// Of each spare that is reached now, which start of it that is ([`instance_of`]).
    pub async fn spare_instances(&self) -> BTreeMap<u32, u64> {
        let configuration = self.configuration();
        let ask = async |spare: &BackendPlace| {
            let connecting = self.shared.connector.connect(spare);
            let connected = self.shared.env.timeout(self.shared.keep.connect_deadline, connecting).await?;
            Some((spare.number, instance_of(&*connected.ok()?)?))
        };
        join_all(configuration.spares.iter().map(ask)).await.into_iter().flatten().collect()
    }

    /// Asks a spare to end, for whoever runs it to start it again; one that is not reached has ended. An error is why
    /// it does not.
    pub async fn end_spare(&self, number: u32) -> Result<(), String> {
        let configuration = self.configuration();
        let spare = configuration.spares.iter().find(|spare| spare.number == number);
        let spare = spare.ok_or_else(|| format!("backend {number} is no spare"))?;
        let ending = async {
            let Ok(connection) = self.shared.connector.connect(spare).await else { return Ok(()) };
            match connection.call(METHOD_END, Bytes::new()).await {
                Ok(_) | Err(CallError::Lost(_)) => Ok(()),
                Err(error) => Err(format!("backend {number} does not end: {error}")),
            }
        };
        let ended = self.shared.env.timeout(self.shared.keep.connect_deadline, ending).await;
        ended.unwrap_or_else(|| Err(format!("backend {number} does not answer in time")))
    }
}

/// Whether a backend of that configuration was compared with the others, and had missed nothing.
fn is_clean(configuration: &Configuration, of: &BackendStats) -> bool {
    let is_compared = of.scanned_config_id == configuration.id && of.dirty == 0;
    // With one replica of each key there is nobody to be compared with.
    of.config_id == configuration.id
        && of.unfilled_buckets == 0
        && of.hindrance.is_empty()
        && (is_compared || configuration.mode == Mode::R1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(instances: &[(u32, u64)], clean: &[u32]) -> RollSeen {
        let (instances, clean) = (instances.iter().copied().collect(), clean.iter().copied().collect());
        RollSeen { instances, clean, stopped: BTreeSet::new() }
    }

    fn done(of: &Configuration, after: Option<Vec<BackendPlace>>) -> Configuration {
        let copying = of.changing_to(after.expect("backends")).expect("a change");
        copying.next_phase().and_then(|of| of.next_phase()).expect("phases")
    }

    #[test]
    fn spares_start_again_and_then_each_backend_while_a_spare_stands_for_it() {
        let first = Configuration::first(1 << 32 | 1, "tiles", Mode::R32, vec![Vec::new(); 3]);
        let cell = first.and_then(|of| of.with_spares(vec![Vec::new()])).expect("a cell");
        let mut pending: BTreeMap<u32, u64> = [(0, 10), (1, 11), (3, 13)].into();
        let all = [(0, 10), (1, 11), (2, 12), (3, 13)];
        let next = |of: &Configuration, pending: &_, seen: &_| RollStep::next(of, pending, seen);
        let wait = |what: &str| RollStep::Wait(what.to_owned());
        assert_eq!(next(&cell, &pending, &seen(&all, &[0, 1, 2])), RollStep::End(3));
        assert_eq!(next(&cell, &pending, &seen(&all[..3], &[0, 1, 2])), wait("backend 3 to start again"));
        let other_spare = [(0, 10), (1, 11), (2, 12), (3, 23)];
        assert_eq!(next(&cell, &pending, &seen(&other_spare, &[0, 1, 2])), RollStep::Over(3));
        pending.remove(&3);
        assert_eq!(next(&cell, &pending, &seen(&other_spare, &[0, 2])), wait("a clean scan of backend 1"));
        assert_eq!(next(&cell, &pending, &seen(&all[..3], &[0, 1, 2])), wait("a spare that is reached"));
        let drain = RollStep::Drain { number: 0, spare: 3 };
        assert_eq!(next(&cell, &pending, &seen(&other_spare, &[0, 1, 2])), drain);

        let spare = cell.spares[0].clone();
        let copying = cell.changing_to(cell.drained_onto(0, &spare).expect("backends")).expect("a change");
        assert_eq!(next(&copying, &pending, &seen(&all, &[])), wait("the cell's backends to be changed"));
        let drained = done(&cell, cell.drained_onto(0, &spare));
        assert_eq!(next(&drained, &pending, &seen(&all, &[])), RollStep::End(0), "clean or not");
        assert_eq!(next(&drained, &pending, &seen(&all[1..], &[])), wait("backend 0 to start again"));
        let stopped = RollSeen { stopped: [0].into(), ..RollSeen::default() };
        assert_eq!(next(&drained, &pending, &stopped), RollStep::Restore(0));
        let back = [(0, 20), (1, 11), (2, 12), (3, 23)];
        assert_eq!(next(&drained, &pending, &seen(&back, &[])), RollStep::Restore(0));
        let restored = done(&drained, drained.restored(&drained.spares[0]));
        assert_eq!(next(&restored, &pending, &seen(&back, &[])), RollStep::Over(0));
        pending.remove(&0);
        assert_eq!(next(&restored, &pending, &seen(&back, &[1, 2])), wait("a clean scan of backend 0"));
        let died = [(0, 20), (1, 21), (2, 12)];
        assert_eq!(
            next(&restored, &pending, &seen(&died, &[])),
            RollStep::Over(1),
            "it has started by itself"
        );
        pending.clear();
        assert_eq!(next(&restored, &pending, &seen(&back, &[1, 2])), wait("a clean scan of backend 0"));
        assert_eq!(next(&restored, &pending, &seen(&back, &[0, 1, 2])), RollStep::Done);
    }

    #[test]
    fn a_backend_is_clean_that_was_compared_under_this_configuration_and_had_missed_nothing() {
        let id = 1 << 32 | 1;
        let cell = Configuration::first(id, "tiles", Mode::R32, vec![Vec::new(); 3]).expect("a cell");
        let clean = BackendStats { config_id: id, scanned_config_id: id, ..BackendStats::default() };
        assert!(is_clean(&cell, &clean));
        assert!(!is_clean(&cell, &BackendStats { dirty: 1, ..clean.clone() }));
        assert!(!is_clean(&cell, &BackendStats { unfilled_buckets: 1, ..clean.clone() }));
        assert!(!is_clean(&cell, &BackendStats { hindrance: "not reached".to_owned(), ..clean.clone() }));
        let before = BackendStats { scanned_config_id: id - 1, ..clean };
        assert!(!is_clean(&cell, &before));
        let single = Configuration::first(id, "tiles", Mode::R1, vec![Vec::new(); 1]).expect("a cell");
        assert!(is_clean(&single, &before));
    }
}
