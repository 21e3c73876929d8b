//! Spares of cells that were created: what a backend holds moves to one, and back.

use std::collections::BTreeMap;

use tailwater_cache::limits::SPARES_MAX;
use tailwater_cache::{BackendPlace, Configuration};
use tailwater_meta::Expect;

use super::created::{CellRecord, CreatedCell, CreatedCells, OWN_BACKENDS_MAX};
use super::resized::{
    changing, check_addresses, refuse_while_changing, refuse_while_drained, refuse_while_rolling, sorted,
    unavailable,
};
use super::{CellError, owned};
use crate::api::{CellView, DrainCell, ResizeCell};
use crate::backend::ServedBackend;

impl CreatedCells {
    /// Begins a change in which a spare takes over what a backend holds; or its neighbours on the ring, if it leaves
    /// for good or there are no spares. A spare leaves at once.
    pub async fn drain(&self, name: &str, asked: DrainCell) -> Result<CellView, CellError> {
        let DrainCell { backend: number, for_good } = asked;
        let mut cells = self.cells.lock().await;
        let created = cells.get_mut(name).ok_or_else(|| self.no_such(name))?;
        refuse_while_rolling(name, created)?;
        let configuration = created.cell.configuration();
        if configuration.spares.iter().any(|spare| spare.number == number) {
            if let Some(stand_in) = configuration.stand_in_of(number).filter(|_| !for_good) {
                return Err(CellError::Invalid(format!(
                    "backend {number} is drained: backend {} stands for it; restore it, or say --for-good",
                    stand_in.number
                )));
            }
            let spares = configuration.spares.iter().filter(|spare| spare.number != number).cloned();
            let (spares, record) = (spares.collect(), created.record.clone());
            return self.change_spares(name, created, record, spares, BTreeMap::new()).await;
        }
        if configuration.place_of(number).is_none() {
            let numbers: Vec<String> =
                sorted(&configuration).iter().map(|place| place.number.to_string()).collect();
            return Err(CellError::Invalid(format!(
                "the cell {name} has no backend {number}: it has {}",
                numbers.join(", ")
            )));
        }
        refuse_while_changing(name, &configuration)?;
        if for_good || configuration.free_spares().next().is_none() {
            return self.remove(name, created, &configuration, number).await;
        }
        let live = created.cell.spare_instances().await;
        let spare = configuration.free_spares().find(|spare| live.contains_key(&spare.number));
        let spare = spare.ok_or_else(|| {
            CellError::Unavailable(format!(
                "no spare of the cell {name} is reached: start one, or say --for-good to have others take over what \
                 backend {number} holds"
            ))
        })?;
        let spare = spare.number;
        self.drain_onto(name, created, number, spare).await
    }

    /// Begins a change in which that spare stands for that backend.
    pub(super) async fn drain_onto(
        &self,
        name: &str,
        created: &mut CreatedCell,
        number: u32,
        spare: u32,
    ) -> Result<CellView, CellError> {
        let configuration = created.cell.configuration();
        let spare = configuration.free_spares().find(|of| of.number == spare);
        let after = spare.and_then(|spare| configuration.drained_onto(number, spare));
        let after = after.ok_or_else(|| changing(name))?;
        let record = created.record.clone();
        self.begin(name, created, record, after, BTreeMap::new()).await
    }

    /// Begins a change to the same backends without the one that has that number.
    async fn remove(
        &self,
        name: &str,
        created: &mut CreatedCell,
        configuration: &Configuration,
        number: u32,
    ) -> Result<CellView, CellError> {
        if configuration.backends.iter().any(|place| place.number == number && place.stands_for.is_some()) {
            refuse_while_drained(name, configuration)?;
        }
        let mut after = sorted(configuration);
        after.retain(|place| place.number != number);
        let least = configuration.mode.replicas();
        if after.len() < least {
            return Err(CellError::Invalid(format!(
                "a cell in mode {} has {least} backends at least: add one before, with `tailwater cell resize {name}`, \
                 by --backends or --spares",
                configuration.mode.name()
            )));
        }
        let record = created.record.clone();
        self.begin(name, created, record, after, BTreeMap::new()).await
    }

    /// Begins a change in which a backend that is drained takes back what it held.
    pub async fn restore(&self, name: &str, number: u32) -> Result<CellView, CellError> {
        let mut cells = self.cells.lock().await;
        let created = cells.get_mut(name).ok_or_else(|| self.no_such(name))?;
        refuse_while_rolling(name, created)?;
        self.take_back(name, created, number).await
    }

    /// The same while its cell is rolled, too.
    pub(super) async fn take_back(
        &self,
        name: &str,
        created: &mut CreatedCell,
        number: u32,
    ) -> Result<CellView, CellError> {
        let configuration = created.cell.configuration();
        refuse_while_changing(name, &configuration)?;
        let spare = configuration.spares.iter().find(|spare| spare.number == number);
        let drained = spare.filter(|_| configuration.stand_in_of(number).is_some());
        let mut place = drained.cloned().ok_or_else(|| {
            CellError::Invalid(format!(
                "backend {number} of the cell {name} is not drained: no other stands for it"
            ))
        })?;
        let mut started = BTreeMap::new();
        if created.record.addresses.is_empty() {
            // One that has not ended yet has to go before another one is at its socket.
            drop(created.own.lock().remove(&number));
            let (served, addresses) =
                self.start_own(name, &created.record, number).await.map_err(unavailable)?;
            place.addresses = addresses;
            started.insert(number, served);
        } else if !created.cell.spare_instances().await.contains_key(&number) {
            return Err(CellError::Unavailable(format!(
                "backend {number} of the cell {name} is not reached: start it before, with `tailwater cache serve`"
            )));
        }
        let after = configuration.restored(&place).ok_or_else(|| changing(name))?;
        let record = created.record.clone();
        self.begin(name, created, record, after, started).await
    }

    /// Has other spares from now on.
    pub(super) async fn resize_spares(
        &self,
        name: &str,
        created: &mut CreatedCell,
        asked: ResizeCell,
    ) -> Result<CellView, CellError> {
        let configuration = created.cell.configuration();
        refuse_while_changing(name, &configuration)?;
        let mut record = created.record.clone();
        let mut spares = configuration.spares.clone();
        let mut started = BTreeMap::new();
        let ResizeCell { backends, addresses, spares: count, spare_addresses } = asked;
        let (is_own, no_others) = (record.addresses.is_empty(), backends.is_none() && addresses.is_empty());
        match count {
            Some(count) if is_own && no_others && spare_addresses.is_empty() => {
                let backends = configuration.backends.len();
                if backends + count > OWN_BACKENDS_MAX {
                    return Err(CellError::Invalid(format!(
                        "a node runs {OWN_BACKENDS_MAX} backends and spares of a cell at most, and the cell {name} has \
                         {backends} backends"
                    )));
                }
                // What is drained is to come back, and counts as a spare then.
                let drained = |spare: &BackendPlace| configuration.stand_in_of(spare.number).is_some();
                while spares.len() > count {
                    match spares.iter().rposition(|spare| !drained(spare)) {
                        Some(at) => drop(spares.remove(at)),
                        None => break,
                    }
                }
                while spares.len() < count {
                    let number = record.take_number(&configuration);
                    let (served, addresses) =
                        self.start_own(name, &record, number).await.map_err(unavailable)?;
                    started.insert(number, served);
                    spares.push(BackendPlace::new(number, addresses));
                }
            }
            None if !is_own && no_others => {
                check_addresses(&spare_addresses, configuration.backends.len())
                    .map_err(CellError::Invalid)?;
                for addresses in spare_addresses {
                    spares.push(BackendPlace::new(record.take_number(&configuration), addresses));
                }
            }
            _ => {
                return Err(CellError::Invalid(format!(
                    "change either backends or spares of the cell {name}; say how many there are to be where the node \
                     runs them, and otherwise the addresses of each that is to be one more"
                )));
            }
        }
        if spares.len() > SPARES_MAX {
            return Err(CellError::Invalid(format!("a cell has {SPARES_MAX} spares at most")));
        }
        self.change_spares(name, created, record, spares, started).await
    }

    async fn change_spares(
        &self,
        name: &str,
        created: &mut CreatedCell,
        mut record: CellRecord,
        spares: Vec<BackendPlace>,
        started: BTreeMap<u32, ServedBackend>,
    ) -> Result<CellView, CellError> {
        let configuration = created.cell.configuration();
        refuse_while_changing(name, &configuration)?;
        let next = configuration.with_other_spares(spares);
        let next = next.map_err(|error| CellError::Invalid(error.to_string()))?;
        if record.addresses.is_empty() {
            let own = created.own.lock();
            record.own_numbers = Some(own.keys().chain(started.keys()).copied().collect());
        }
        let put = record.put(name, Expect::Present);
        self.meta.commit(vec![put]).await.map_err(|error| unavailable(error.into()))?;
        created.record = record;
        owned::store(&*self.meta, &next).await.map_err(unavailable)?;
        created.own.lock().extend(started);
        let is_done = created.cell.configure(next).await;
        match is_done.map_err(|error| CellError::Invalid(error.to_string()))? {
            true => Ok(created.view()),
            false => Err(changing(name)),
        }
    }
}
