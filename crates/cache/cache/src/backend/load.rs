//! Loads into a cell whose keys can't be changed one by one ([`Mode::R2Immutable`](crate::Mode::R2Immutable)).
//!
//! A load is a *generation*: a number with which the keys of all that it sets begin. It is set beside what is read,
//! and nobody reads it. When all of it is at all backends, each says so, and the cell's next configuration names it:
//! then what was read before is forgotten. A backend takes SETs of the load that is under way, and no other mutation.
//! One that starts again meanwhile knows of no load, so it neither takes the rest of it nor says that it has all of
//! it.
//!
//! Another load that begins takes the place of the one that is under way. Once a backend has said that it has all of
//! one, it takes no other for some time, in which that one can be read.
//!
//! Nothing is removed for room: what there is no room for is refused.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tailwater_env::Instant;
use tailwater_rma::Refusal;

use super::told::ToldPlaces;
use super::{Backend, malformed};
use crate::configuration::Configuration;
use crate::layout::Item;
use crate::protocol::{LoadReply, LoadRequest, REFUSED_IMMUTABLE, REFUSED_NO_ROOM};

/// Buckets of which the keys are looked at under one hold of the table's lock.
const BUCKETS_PER_LOOK: u64 = 128;

/// How long a load of which this backend has said that it has all of it is not removed for another one.
const HELD: Duration = Duration::from_secs(10);

/// How much later than this backend's clock a load's number may be.
const AHEAD_MAX: Duration = Duration::from_secs(24 * 3600);

/// How far loads are.
#[derive(Debug, Default)]
pub(super) struct BackendLoads {
    /// The cell takes nothing else.
    is_immutable: bool,
    /// The one that is under way; 0: none.
    under_way: u64,
    /// The last one all of which is here; 0: none, or another one has begun since.
    complete: u64,
    /// No other one begins before, unless the complete one is read.
    held_until: Instant,
    /// The one that is read.
    read: u64,
}

/// The generation that a key belongs to; 0 if it is too short for one.
fn generation_of(key: &[u8]) -> u64 {
    key.first_chunk().map_or(0, |begin| u64::from_be_bytes(*begin))
}

/// Whether a cell that goes by this configuration has any use for the key.
pub(super) fn is_of_use(configuration: &Configuration, key: &[u8]) -> bool {
    !configuration.mode.is_immutable() || generation_of(key) >= configuration.generation
}

/// What is answered to an item that would only have room if another one went.
pub(super) fn no_room() -> Refusal {
    let message = "this backend has no room for all that the cell is to hold, and removes nothing that is read: give \
                   it more capacity, or lay its index out for values of that size";
    Refusal { code: REFUSED_NO_ROOM, message: message.to_owned() }
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
        // Or the one that follows on what is read: once a clock was wrong.
        if request.generation > self.latest_generation().max(read + 1) {
            return Err(refused(
                "the load's number is more than a day ahead of this backend's clock: set the clocks",
            ));
        }
        match request.is_complete {
            false => self.begin_load(request.generation)?,
            true => self.end_load(request.generation)?,
        }
        Ok(LoadReply { room_bytes: self.table.lock().room_bytes() }.encode_to_vec().into())
    }

    fn latest_generation(&self) -> u64 {
        let wall_ms = u64::try_from(self.env.wall_ms()).unwrap_or(0);
        let ahead_ms = u64::try_from(AHEAD_MAX.as_millis()).unwrap_or(u64::MAX);
        wall_ms.saturating_add(ahead_ms).saturating_mul(1 << 16)
    }

    fn begin_load(&self, generation: u64) -> Result<(), Refusal> {
        let now = self.env.now();
        let mut loads = self.loads.lock();
        let read = loads.read;
        if generation <= read {
            return Err(refused("a later load is read already: load again"));
        }
        if loads.complete > read && loads.complete != generation && now < loads.held_until {
            let left = loads.held_until.since(now).as_secs() + 1;
            return Err(refused(&format!(
                "another load has just ended, and is about to be read: load again in {left} s"
            )));
        }
        loads.under_way = generation;
        // Of what is complete here some is removed below, or set anew.
        loads.complete = 0;
        drop(loads);
        self.keep_generations(|of| of == read || of == generation);
        Ok(())
    }

    fn end_load(&self, generation: u64) -> Result<(), Refusal> {
        let mut loads = self.loads.lock();
        if loads.under_way != generation {
            return Err(refused("this backend has started again, or another load has begun: load again"));
        }
        loads.complete = generation;
        loads.held_until = self.env.now() + HELD;
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

    /// Whether these may be applied: any, or what the load that is under way SETs. Another one may begin before they
    /// are: then they take room until the next one begins.
    pub(super) fn check_loading(&self, items: &[Item<'_>]) -> Result<(), Refusal> {
        let loads = self.loads.lock();
        let is_of_load = |item: &Item<'_>| !item.tombstone && generation_of(item.key) == loads.under_way;
        match !loads.is_immutable || loads.under_way != 0 && items.iter().all(is_of_load) {
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
        loads.read = configuration.generation;
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
