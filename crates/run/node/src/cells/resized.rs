//! Changes of the backends of cells that were created: begun by a request, carried on by the cell's node.
//!
//! What is to be is in the cell's configuration, phase by phase, and that is in metadata. So a node that starts again
//! while a change is under way goes on with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_cache::limits::BACKENDS_MAX;
use tailwater_cache::{BackendPlace, Cell, CellLoadError, Configuration, ConfigurationError};
use tailwater_env::Env;
use tailwater_meta::{Expect, Meta, MetaError};
use tailwater_rma::Address;

use super::created::{CellRecord, CreatedCell, CreatedCells, OWN_BACKENDS_MAX};
use super::{CellError, mode_of, owned};
use crate::api::{CellView, LoadCell, ResizeCell};
use crate::backend::ServedBackend;

/// The pause before it is looked again whether the backends are ready for the next phase.
const PHASE_POLL: Duration = Duration::from_millis(50);

/// The backends of a cell that a node runs, by their numbers in the cell.
pub(super) type OwnBackends = Arc<Mutex<BTreeMap<u32, ServedBackend>>>;

impl CreatedCells {
    /// Begins a change to another number of backends that the node runs, or to more backends elsewhere.
    pub async fn resize(&self, name: &str, asked: ResizeCell) -> Result<CellView, CellError> {
        let mut cells = self.cells.lock().await;
        let created = cells.get_mut(name).ok_or_else(|| self.no_such(name))?;
        refuse_while_rolling(name, created)?;
        let configuration = created.cell.configuration();
        if asked.spares.is_some() || !asked.spare_addresses.is_empty() {
            return self.resize_spares(name, created, asked).await;
        }
        refuse_while_drained(name, &configuration)?;
        let mut after = sorted(&configuration);
        let mut record = created.record.clone();
        let mut started = BTreeMap::new();
        match (asked.backends, record.addresses.is_empty()) {
            (Some(count), true) if asked.addresses.is_empty() => {
                let least = mode_of(record.mode).replicas();
                let most = OWN_BACKENDS_MAX.saturating_sub(configuration.spares.len());
                if !(least..=most).contains(&count) {
                    return Err(CellError::Invalid(format!(
                        "the cell {name} has {least} to {most} backends of the node, not {count}"
                    )));
                }
                refuse_while_changing(name, &configuration)?;
                after.truncate(count);
                while after.len() < count {
                    let number = record.take_number(&configuration);
                    let (served, addresses) =
                        self.start_own(name, &record, number).await.map_err(unavailable)?;
                    started.insert(number, served);
                    after.push(BackendPlace::new(number, addresses));
                }
            }
            (None, false) if !asked.addresses.is_empty() => {
                check_addresses(&asked.addresses, after.len()).map_err(CellError::Invalid)?;
                for addresses in asked.addresses {
                    after.push(BackendPlace::new(record.take_number(&configuration), addresses));
                }
            }
            (_, true) => {
                return Err(CellError::Invalid(format!(
                    "the node runs the backends of the cell {name}: say how many there are to be, with --backends"
                )));
            }
            (_, false) => {
                return Err(CellError::Invalid(format!(
                    "the backends of the cell {name} are processes of their own: name each that is to be one more, \
                     with --backend; `tailwater cell drain {name} NUMBER` takes one away"
                )));
            }
        }
        self.begin(name, created, record, after, started).await
    }

    /// Begins a change to the backends `after`, of which the node has `started` some.
    pub(super) async fn begin(
        &self,
        name: &str,
        created: &mut CreatedCell,
        mut record: CellRecord,
        after: Vec<BackendPlace>,
        started: BTreeMap<u32, ServedBackend>,
    ) -> Result<CellView, CellError> {
        let next = next_of(&created.cell, after)?;
        // First of all: what is to run is started again with the node, whatever comes next.
        let numbers = |own: &BTreeMap<u32, ServedBackend>| own.keys().copied().collect::<Vec<_>>();
        if record.addresses.is_empty() {
            record.own_numbers = Some([numbers(&created.own.lock()), numbers(&started)].concat());
        }
        let put = record.put(name, Expect::Present);
        self.meta.commit(vec![put]).await.map_err(|error| unavailable(error.into()))?;
        created.record = record;
        owned::store(&*self.meta, &next).await.map_err(unavailable)?;
        created.own.lock().extend(started);
        configure(&created.cell, next).await?;
        Ok(created.view())
    }

    /// Has a load read that all backends of the cell have.
    pub async fn load(&self, name: &str, asked: LoadCell) -> Result<CellView, CellError> {
        let mut cells = self.cells.lock().await;
        let created = cells.get_mut(name).ok_or_else(|| self.no_such(name))?;
        let configuration = created.cell.configuration();
        if configuration.id != asked.config_id {
            return Err(changing(name));
        }
        let next = configuration.loaded(asked.generation).map_err(|error| match error {
            ConfigurationError::Changing => changing(name),
            error => CellError::Invalid(error.to_string()),
        })?;
        // Whoever asks may be late, or mistaken: by then another load may have begun.
        created.cell.check_load(asked.generation, asked.config_id).await.map_err(|error| match error {
            CellLoadError::Changing => changing(name),
            error => CellError::Unavailable(format!("load {} can't be read: {error}", asked.generation)),
        })?;
        owned::store(&*self.meta, &next).await.map_err(unavailable)?;
        let is_read = created.cell.configure(next).await;
        if !is_read.map_err(|error| CellError::Invalid(error.to_string()))? {
            return Err(changing(name));
        }
        tracing::info!(cell = name, generation = asked.generation, "another load of the cell is read");
        Ok(created.view())
    }

    pub(super) fn no_such(&self, name: &str) -> CellError {
        match crate::backend::CellKind::named(name) {
            Some(_) => CellError::Invalid(format!(
                "the backends of the cell {name}, which is the log's, are in the node's configuration: [{name}_cell]"
            )),
            None => CellError::Unknown(name.to_owned()),
        }
    }
}

/// Begins a change of a cell's backends, none of which the node runs.
pub(super) async fn change(meta: &dyn Meta, cell: &Cell, after: Vec<BackendPlace>) -> Result<(), CellError> {
    let next = next_of(cell, after)?;
    owned::store(meta, &next).await.map_err(unavailable)?;
    configure(cell, next).await
}

/// The configuration with which a change to the backends `after` begins.
fn next_of(cell: &Cell, after: Vec<BackendPlace>) -> Result<Configuration, CellError> {
    let configuration = cell.configuration();
    configuration.changing_to(after).map_err(|error| match error {
        ConfigurationError::Changing => changing(&configuration.name),
        error => CellError::Invalid(error.to_string()),
    })
}

/// Tells the cell the configuration that was stored.
async fn configure(cell: &Cell, next: Configuration) -> Result<(), CellError> {
    let (name, id) = (next.name.clone(), next.id);
    let is_begun = cell.configure(next).await;
    if !is_begun.map_err(|error| CellError::Invalid(error.to_string()))? {
        // Somebody else was here meanwhile.
        return Err(changing(&name));
    }
    tracing::info!(cell = name, id, "the cell's backends change");
    Ok(())
}

/// A cell's backends by their numbers.
pub(super) fn sorted(configuration: &Configuration) -> Vec<BackendPlace> {
    let mut backends = configuration.backends.clone();
    backends.sort_by_key(|place| place.number);
    backends
}

pub(super) fn changing(name: &str) -> CellError {
    CellError::Changing(name.to_owned())
}

pub(super) fn refuse_while_changing(name: &str, configuration: &Configuration) -> Result<(), CellError> {
    if configuration.change.is_some() { Err(changing(name)) } else { Ok(()) }
}

pub(super) fn unavailable(error: anyhow::Error) -> CellError {
    CellError::Unavailable(format!("{error:#}"))
}

pub(super) fn refuse_while_rolling(name: &str, created: &CreatedCell) -> Result<(), CellError> {
    match created.record.rolling {
        Some(_) => Err(CellError::Rolling(name.to_owned())),
        None => Ok(()),
    }
}

/// Who stands for another backend stays until that one is back, or forgotten.
pub(super) fn refuse_while_drained(name: &str, configuration: &Configuration) -> Result<(), CellError> {
    let is_out = |spare: &&BackendPlace| configuration.stand_in_of(spare.number).is_some();
    match configuration.spares.iter().find(is_out) {
        None => Ok(()),
        Some(BackendPlace { number, .. }) => Err(CellError::Invalid(format!(
            "backend {number} is drained: `tailwater cell restore {name} {number}` puts it back, or `tailwater cell \
             drain {name} {number} --for-good` forgets it"
        ))),
    }
}

/// Whether these may be addresses of more backends of a cell that has so many.
pub(super) fn check_addresses(added: &[Vec<String>], backends: usize) -> Result<(), String> {
    if added.iter().any(Vec::is_empty) {
        return Err("a backend that runs elsewhere has an address".to_owned());
    }
    if backends + added.len() > BACKENDS_MAX {
        return Err(format!("a cell has {BACKENDS_MAX} backends at most"));
    }
    for text in added.iter().flatten() {
        text.parse::<Address>().map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// What carries on the changes of one cell.
pub(super) struct ChangeDriver {
    pub(super) env: Env,
    pub(super) meta: Arc<dyn Meta>,
    pub(super) cell: Cell,
    pub(super) own: OwnBackends,
}

impl ChangeDriver {
    /// That of one of the log's cells, whose backends are all processes of their own.
    pub(super) fn of_log(env: &Env, meta: &Arc<dyn Meta>, cell: &Cell) -> Self {
        Self { env: env.clone(), meta: Arc::clone(meta), cell: cell.clone(), own: OwnBackends::default() }
    }

    /// Begins each next phase when the backends are ready for it, for as long as there is a node.
    pub(super) async fn run(self) {
        loop {
            let known = self.cell.configuration();
            if known.change.is_none() {
                self.settle(&known).await;
                self.cell.configured_after(known.id).await;
                continue;
            }
            if let Some(next) = self.cell.next_phase().await {
                let (cell, id, is_over) = (&next.name, next.id, next.change.is_none());
                match owned::store(&*self.meta, &next).await {
                    Ok(()) => {
                        tracing::info!(cell, id, is_over, "the cell's change goes on");
                        let configured = self.cell.configure(next.clone()).await;
                        if let Err(error) = configured {
                            tracing::error!(cell, %error, "the cell's change does not go on");
                        }
                        continue;
                    }
                    Err(error) => tracing::warn!(cell, "the cell's change waits for metadata: {error:#}"),
                }
            }
            self.env.sleep(PHASE_POLL).await;
        }
    }

    /// Stops what the node runs and the cell does not have any more, and notes what is left.
    async fn settle(&self, configuration: &Configuration) {
        let left: Vec<ServedBackend> = {
            let mut own = self.own.lock();
            let is_spare = |number: u32| configuration.free_spares().any(|spare| spare.number == number);
            let has_left = |number: &u32| configuration.place_of(*number).is_none() && !is_spare(*number);
            let numbers: Vec<u32> = own.keys().copied().filter(has_left).collect();
            numbers.iter().filter_map(|number| own.remove(number)).collect()
        };
        drop(left);
        let noted = loop {
            let noted = self.note(configuration).await;
            // Somebody else noted something meanwhile.
            let is_conflict = |error: &anyhow::Error| {
                matches!(error.downcast_ref::<MetaError>(), Some(MetaError::Conflict { .. }))
            };
            if !noted.as_ref().is_err_and(is_conflict) {
                break noted;
            }
        };
        if let Err(error) = noted {
            tracing::warn!(
                cell = configuration.name,
                "what the node runs of the cell is not noted: {error:#}"
            );
        }
    }

    async fn note(&self, configuration: &Configuration) -> anyhow::Result<()> {
        let name = &configuration.name;
        // Before a cell that is just created is noted itself there is nothing to change.
        let Some((mut record, version)) = CellRecord::stored(&*self.meta, name).await? else { return Ok(()) };
        let before = serde_json::to_vec(&record)?;
        match record.addresses.is_empty() {
            true => record.own_numbers = Some(self.own.lock().keys().copied().collect()),
            false => {
                record.addresses = sorted(configuration).into_iter().map(|place| place.addresses).collect()
            }
        }
        if serde_json::to_vec(&record)? != before {
            self.meta.commit(vec![record.put(name, Expect::Version(version))]).await?;
        }
        Ok(())
    }
}
