//! Loads into a cell whose keys can't be changed one by one ([`Mode::R2Immutable`](crate::Mode::R2Immutable)).
//!
//! A load is a *generation*: a number with which the keys of all that it sets begin. It is set beside what is read,
//! and nobody reads it. When all of it is at all backends, each says so, and the cell's next configuration names it:
//! then what was read before is forgotten. A backend takes SETs of the load that is under way, and no other mutation.
//! One that starts again meanwhile knows of no load, so it neither takes the rest of it nor says that it has all of
//! it.

use bytes::Bytes;
use prost::Message;
use tailwater_rma::Refusal;

use super::told::ToldPlaces;
use super::{Backend, malformed};
use crate::configuration::Configuration;
use crate::layout::Item;
use crate::protocol::{LoadReply, LoadRequest, REFUSED_IMMUTABLE};

/// Buckets of which the keys are looked at under one hold of the table's lock.
const BUCKETS_PER_LOOK: u64 = 128;

/// How far loads are.
#[derive(Debug, Default)]
pub(super) struct BackendLoads {
    /// The cell takes nothing else.
    is_immutable: bool,
    /// The one that is under way; 0: none.
    under_way: u64,
    /// What had been removed for room when it began.
    evicted: u64,
    /// The last one all of which is here.
    complete: u64,
}

/// The generation that a key belongs to; 0 if it is too short for one.
fn generation_of(key: &[u8]) -> u64 {
    key.first_chunk().map_or(0, |begin| u64::from_be_bytes(*begin))
}

/// Whether a cell that goes by this configuration has any use for the key.
pub(super) fn is_of_use(configuration: &Configuration, key: &[u8]) -> bool {
    !configuration.mode.is_immutable() || generation_of(key) >= configuration.generation
}

fn refused(why: &str) -> Refusal {
    Refusal { code: REFUSED_IMMUTABLE, message: why.to_owned() }
}

impl Backend {
    /// Begins or ends a load.
    pub(super) fn load(&self, payload: Bytes) -> Result<Bytes, Refusal> {
        let request = LoadRequest::decode(payload).map_err(|error| malformed(&error.to_string()))?;
        let told = self.told().filter(|told| told.configuration.mode.is_immutable());
        let told = told.ok_or_else(|| malformed("this cell is not one that is loaded"))?;
        Self::check_config(self.config_id(), request.config_id)?;
        self.check_joined()?;
        let read = told.configuration.generation;
        if request.generation <= read {
            return Err(refused("a later load is read already: load again"));
        }
        match request.is_complete {
            false => self.begin_load(request.generation, read),
            true => self.end_load(request.generation)?,
        }
        Ok(LoadReply { room_bytes: self.table.lock().room_bytes() }.encode_to_vec().into())
    }

    fn begin_load(&self, generation: u64, read: u64) {
        let mut loads = self.loads.lock();
        loads.under_way = generation;
        loads.evicted = self.table.lock().counts().evicted;
        drop(loads);
        self.keep_generations(|of| of == read || of == generation);
    }

    fn end_load(&self, generation: u64) -> Result<(), Refusal> {
        let mut loads = self.loads.lock();
        if loads.under_way != generation {
            return Err(refused("this backend has started again, or another load has begun: load again"));
        }
        let evicted = self.table.lock().counts().evicted - loads.evicted;
        if evicted > 0 {
            let why = format!(
                "this backend has removed {evicted} values for room: give it more capacity, or lay its index out for \
                 smaller values"
            );
            return Err(refused(&why));
        }
        loads.complete = generation;
        Ok(())
    }

    fn keep_generations(&self, keep: impl Fn(u64) -> bool) {
        let mut first = 0;
        while first < self.config.buckets {
            let behind = (first + BUCKETS_PER_LOOK).min(self.config.buckets);
            self.table.lock().keep_generations(first..behind, self.env.now(), &keep);
            first = behind;
        }
    }

    /// Whether these may be applied: any, or what the load that is under way SETs.
    pub(super) fn check_loading(&self, entries: &[Item<'_>]) -> Result<(), Refusal> {
        let loads = self.loads.lock();
        let is_of_load = |entry: &Item<'_>| !entry.tombstone && generation_of(entry.key) == loads.under_way;
        match !loads.is_immutable || loads.under_way != 0 && entries.iter().all(is_of_load) {
            true => Ok(()),
            false => Err(refused("the keys of this cell can't be changed one by one: load it anew")),
        }
    }

    /// Whether it takes part in a cell, for tests that wait for that.
    #[cfg(test)]
    pub(crate) fn has_joined_a_cell(&self) -> bool {
        self.config_id() != 0 && self.has_joined()
    }

    /// Whether single keys may be changed.
    pub(super) fn check_mutable(&self) -> Result<(), Refusal> {
        match self.loads.lock().is_immutable {
            false => Ok(()),
            true => Err(refused("the keys of this cell can't be changed one by one: load it anew")),
        }
    }

    /// Before the buckets are named with another configuration: what this backend knows of the load that is read by it.
    pub(super) fn begin_reading(&self, told: &ToldPlaces, before: Option<&Configuration>) {
        let ToldPlaces { configuration, number, .. } = told;
        if !configuration.mode.is_immutable() {
            return;
        }
        let mut loads = self.loads.lock();
        loads.is_immutable = true;
        let has_all = loads.complete == configuration.generation;
        if loads.under_way <= configuration.generation {
            // It is read, or will never be.
            loads.under_way = 0;
        }
        drop(loads);
        self.table.lock().keep_for_ever();
        if before.is_some_and(|before| before.generation != configuration.generation) {
            match has_all {
                true => self.filled_up_to(None),
                // It has started again since that load began: it is refilled as behind any start.
                false => self.begin_in(configuration, *number),
            }
        }
    }

    /// When all buckets are named: what is read no more is forgotten.
    pub(super) fn end_reading(&self, told: &ToldPlaces, before: Option<&Configuration>) {
        let generation = told.configuration.generation;
        if told.configuration.mode.is_immutable()
            && before.is_some_and(|before| before.generation != generation)
        {
            self.keep_generations(|of| of >= generation);
        }
    }
}
