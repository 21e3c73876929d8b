//! Restarts of all backends of a cell, one after another. What is still to be done is in the cell's record in metadata,
//! so a node that starts again goes on with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_cache::RollStep;
use tailwater_env::Task;
use tailwater_meta::Expect;
use tokio::sync::Notify;

use super::CellError;
use super::created::{CellRecord, CreatedCells};
use super::resized::{refuse_while_changing, refuse_while_drained, refuse_while_rolling, unavailable};
use crate::api::CellView;

/// The pause before it is looked again what is next.
const ROLL_POLL: Duration = Duration::from_millis(100);

/// What carries rolls on.
#[derive(Default)]
pub(super) struct CellRolls {
    /// One may have begun.
    begun: Arc<Notify>,
    task: Mutex<Option<Task>>,
}

impl CreatedCells {
    /// Begins to restart the backends of a cell one after another, or ends that with `stop`.
    pub async fn roll(&self, name: &str, stop: bool) -> Result<CellView, CellError> {
        let cell = self.cell(name).await.ok_or_else(|| self.no_such(name))?;
        let seen = cell.roll_seen().await;
        let mut cells = self.cells.lock().await;
        let created = cells.get_mut(name).ok_or_else(|| self.no_such(name))?;
        let mut record = created.record.clone();
        let invalid = |why: String| Err(CellError::Invalid(why));
        if stop {
            if record.rolling.take().is_none() {
                return invalid(format!("the backends of the cell {name} are not being restarted"));
            }
        } else {
            refuse_while_rolling(name, created)?;
            let configuration = created.cell.configuration();
            refuse_while_changing(name, &configuration)?;
            refuse_while_drained(name, &configuration)?;
            if configuration.spares.is_empty() {
                return invalid(format!(
                    "the cell {name} has no spare: add one before, with `tailwater cell resize {name}`, by --spares or \
                     --spare"
                ));
            }
            // The node's own spares hold nothing, and end with the node.
            let is_own = record.addresses.is_empty();
            let spares = configuration.spares.iter().filter(|_| !is_own);
            let mut pending = BTreeMap::new();
            for place in configuration.backends.iter().chain(spares) {
                let number = place.number;
                let instance = seen.instances.get(&number).ok_or_else(|| {
                    CellError::Unavailable(format!("backend {number} of the cell {name} is not reached"))
                })?;
                pending.insert(number, *instance);
            }
            record.rolling = Some(pending);
        }
        self.store_record(name, &record).await.map_err(unavailable)?;
        created.record = record;
        created.rolling.clear();
        self.rolls.begun.notify_one();
        Ok(created.view())
    }

    async fn store_record(&self, name: &str, record: &CellRecord) -> anyhow::Result<()> {
        self.meta.commit(vec![record.put(name, Expect::Present)]).await?;
        Ok(())
    }

    /// Carries all rolls on, for as long as there is a node.
    pub(super) fn drive_rolls(self: &Arc<Self>) {
        let (created, begun, env) = (Arc::downgrade(self), Arc::clone(&self.rolls.begun), self.env.clone());
        let driving = async move {
            loop {
                let Some(of) = created.upgrade() else { return };
                let cells = of.cells.lock().await;
                let rolled: Vec<String> = cells
                    .iter()
                    .filter(|(_, created)| created.record.rolling.is_some())
                    .map(|(name, _)| name.clone())
                    .collect();
                drop(cells);
                for name in &rolled {
                    if let Err(error) = of.roll_on(name).await {
                        tracing::warn!(cell = name, %error, "the restarts of the cell's backends do not go on");
                        of.note_waiting(name, error.to_string()).await;
                    }
                }
                drop(of);
                match rolled.is_empty() {
                    true => begun.notified().await,
                    false => env.sleep(ROLL_POLL).await,
                }
            }
        };
        *self.rolls.task.lock() = Some(self.env.spawn("cell-rolls", driving));
    }

    async fn note_waiting(&self, name: &str, what: String) {
        if let Some(created) = self.cells.lock().await.get_mut(name) {
            created.rolling = what;
        }
    }

    /// One step of a cell's roll.
    async fn roll_on(&self, name: &str) -> Result<(), CellError> {
        let Some(cell) = self.cell(name).await else { return Ok(()) };
        let mut seen = cell.roll_seen().await;
        let mut cells = self.cells.lock().await;
        let Some(created) = cells.get_mut(name) else { return Ok(()) };
        let Some(pending) = created.record.rolling.clone() else { return Ok(()) };
        let configuration = created.cell.configuration();
        if created.record.addresses.is_empty() {
            let own = created.own.lock();
            let has_ended = |number: &u32| !own.contains_key(number);
            seen.stopped = pending.keys().copied().filter(has_ended).collect();
        }
        let step = RollStep::next(&configuration, &pending, &seen);
        match &step {
            RollStep::Wait(what) => {
                created.rolling.clone_from(what);
                return Ok(());
            }
            RollStep::Drain { number, spare } => {
                drop(self.drain_onto(name, created, *number, *spare).await?);
            }
            RollStep::Restore(number) => drop(self.take_back(name, created, *number).await?),
            RollStep::End(number) => {
                let number = *number;
                created.rolling = format!("backend {number} to start again");
                drop(cells);
                cell.end_spare(number).await.map_err(CellError::Unavailable)?;
                tracing::info!(cell = name, number, "asked a backend to end");
                return Ok(());
            }
            RollStep::Over(number) => {
                let mut record = created.record.clone();
                if let Some(pending) = &mut record.rolling {
                    pending.remove(number);
                }
                self.store_record(name, &record).await.map_err(unavailable)?;
                created.record = record;
            }
            RollStep::Done => {
                let mut record = created.record.clone();
                record.rolling = None;
                self.store_record(name, &record).await.map_err(unavailable)?;
                created.record = record;
                created.rolling.clear();
            }
        }
        tracing::info!(cell = name, ?step, "the restarts of the cell's backends go on");
        Ok(())
    }
}
