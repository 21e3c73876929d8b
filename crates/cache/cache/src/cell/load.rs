//! Loads all that a cell in [`Mode::R2Immutable`](super::Mode::R2Immutable) holds, while it is read.
//!
//! A load has a number, its *generation*, and its keys begin with that. It is set at both replicas of each key, beside
//! what is read. When all backends say that they have all of it, whoever owns the cell has the next configuration name
//! it ([`Configuration::loaded`](crate::Configuration::loaded)). A lookup goes by one configuration, so all of its keys
//! are answered from one load.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use futures::future::join_all;
use prost::Message;
use tailwater_rma::CallError;

use super::{Cell, CellInner, SetError, set};
use crate::layout::{EXTRAS_BYTES_MAX, ITEM_HEADER_BYTES, ItemExtras, KeyHash};
use crate::limits::{KEY_BYTES_MAX, MUTATE_ITEMS_MAX, VALUE_BYTES_MAX};
use crate::protocol::{LoadReply, LoadRequest, METHOD_LOAD};

/// Bytes that a load's keys begin with.
pub(super) const GENERATION_BYTES: usize = 8;

/// The longest key of a load, in bytes.
pub const LOADED_KEY_BYTES_MAX: usize = KEY_BYTES_MAX - GENERATION_BYTES;

/// Items lie in slots of some sizes: of room for so many bytes, one byte less than this divided by it is counted on.
const ROOM_LOST_ONE_IN: u64 = 8;

/// Why a load does not come about. What is read stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CellLoadError {
    /// Keys of this cell are set one by one.
    #[error("the cell is in mode {0}: only one in mode R2/Immutable is loaded; set its keys one by one")]
    Mode(&'static str),
    /// It is changing, or has changed.
    #[error(
        "the backends of the cell change, or have changed since the load began: load again when that is over"
    )]
    Changing,
    /// A backend does not take part.
    #[error("backend {number} does not take the load: {why}")]
    Backend {
        /// Its number.
        number: u32,
        /// Why.
        why: String,
    },
    /// It is larger than the room that there is.
    #[error(
        "backend {number} has room for {room_bytes} bytes beside what it holds, and the load is larger: give backends more \
         capacity; what is read stays there until the load is read"
    )]
    NoRoom {
        /// Its number.
        number: u32,
        /// Bytes of items.
        room_bytes: u64,
    },
    /// A backend has filled up.
    #[error(
        "a backend has no room for all of the load beside what is read: give backends more capacity, or lay their index out \
         for values of that size; what is read stays"
    )]
    Full,
    /// A key or value is too long.
    #[error(
        "{key:?} with a value of {value_len} bytes is too large: keys have {LOADED_KEY_BYTES_MAX} bytes at most, values {VALUE_BYTES_MAX}"
    )]
    TooLarge {
        /// The key.
        key: String,
        /// Bytes of the value.
        value_len: usize,
    },
    /// Its backends did not all take something.
    #[error("not all replicas took a key: {0}; with a backend gone nothing can be loaded")]
    Set(SetError),
}

/// A load that is under way. Dropped, it comes to nothing, and the next one takes its room.
pub struct CellLoad {
    cell: Cell,
    generation: u64,
    config_id: u64,
    /// Bytes of items that each backend has room for, and those that it was sent.
    rooms: BTreeMap<u32, (u64, u64)>,
}

/// Keys as a cell's backends have them.
pub(super) fn stored_keys<'a>(cell: &CellInner, keys: &'a [Bytes]) -> Cow<'a, [Bytes]> {
    match cell.generation {
        None => Cow::Borrowed(keys),
        Some(generation) => keys.iter().map(|key| stored_key(generation, key)).collect(),
    }
}

fn stored_key(generation: u64, key: &[u8]) -> Bytes {
    let mut stored = BytesMut::with_capacity(GENERATION_BYTES + key.len());
    stored.extend_from_slice(&generation.to_be_bytes());
    stored.extend_from_slice(key);
    stored.freeze()
}

impl Cell {
    /// Begins to load all that the cell is to hold. A load that is under way already comes to nothing.
    pub async fn begin_load(&self) -> Result<CellLoad, CellLoadError> {
        let configuration = self.configuration();
        if !configuration.mode.is_immutable() {
            return Err(CellLoadError::Mode(configuration.mode.name()));
        }
        if configuration.change.is_some() {
            return Err(CellLoadError::Changing);
        }
        // Later than those before it by its upper bits, and unlike one that begins in the same millisecond by the rest.
        let wall_ms = u64::try_from(self.shared.env.wall_ms()).unwrap_or(0);
        let generation = (wall_ms << 16 | self.shared.env.random_below(1 << 16))
            .max(configuration.generation.saturating_add(1));
        let rooms = self.tell_of_load(generation, configuration.id, false).await?;
        let rooms = rooms
            .into_iter()
            .map(|(number, room_bytes)| (number, (room_bytes - room_bytes / ROOM_LOST_ONE_IN, 0)));
        Ok(CellLoad { cell: self.clone(), generation, config_id: configuration.id, rooms: rooms.collect() })
    }

    /// Makes sure that all backends have all of a load, for whoever has it read by the configuration that follows on
    /// `config_id`. For some seconds none of them takes another load.
    pub async fn check_load(&self, generation: u64, config_id: u64) -> Result<(), CellLoadError> {
        self.tell_of_load(generation, config_id, true).await.map(drop)
    }

    /// Tells all backends that a load begins, or is complete; answers what they have room for.
    async fn tell_of_load(
        &self,
        generation: u64,
        config_id: u64,
        is_complete: bool,
    ) -> Result<BTreeMap<u32, u64>, CellLoadError> {
        let inner = self.inner();
        if inner.config_id != config_id {
            return Err(CellLoadError::Changing);
        }
        let request = Bytes::from(LoadRequest { config_id, generation, is_complete }.encode_to_vec());
        let asked = inner.replicas.iter().map(async |replica| {
            let call = async {
                let live = replica.live().ok_or("it is not reached")?;
                let call = live.connection.call(METHOD_LOAD, request.clone());
                match self.shared.env.timeout(inner.deadline, call).await {
                    Some(Ok(reply)) => LoadReply::decode(reply).map_err(|error| error.to_string()),
                    Some(Err(CallError::Refused { message, .. })) => Err(message),
                    Some(Err(error)) => Err(error.to_string()),
                    None => Err("it does not answer in time".to_owned()),
                }
            };
            let reply: Result<LoadReply, String> = call.await;
            let number = replica.number;
            reply
                .map(|reply| (number, reply.room_bytes))
                .map_err(|why| CellLoadError::Backend { number, why })
        });
        join_all(asked).await.into_iter().collect()
    }
}

impl CellLoad {
    /// Which load it is.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The id of the configuration that it began under; the one that names it follows on that.
    pub fn config_id(&self) -> u64 {
        self.config_id
    }

    /// Sets some keys, at all of their replicas. A key that comes twice has the later value.
    pub async fn set(&mut self, items: Vec<(Bytes, Bytes)>) -> Result<(), CellLoadError> {
        let inner = self.cell.inner();
        if inner.config_id != self.config_id {
            return Err(CellLoadError::Changing);
        }
        let mut mutations = Vec::with_capacity(items.len());
        for (key, value) in items {
            if key.len() > LOADED_KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
                let key = String::from_utf8_lossy(&key).into_owned();
                return Err(CellLoadError::TooLarge { key, value_len: value.len() });
            }
            let key = stored_key(self.generation, &key);
            let bytes = ITEM_HEADER_BYTES + key.len() + value.len() + EXTRAS_BYTES_MAX;
            for place in inner.placement.of(KeyHash::of(&key)) {
                let number = inner.replicas[usize::from(*place)].number;
                let Some((room_bytes, sent)) = self.rooms.get_mut(&number) else {
                    return Err(CellLoadError::Changing);
                };
                *sent += bytes as u64;
                if *sent > *room_bytes {
                    return Err(CellLoadError::NoRoom { number, room_bytes: *room_bytes });
                }
            }
            mutations.push((key, Some((value, ItemExtras::default()))));
        }
        for some in mutations.chunks(MUTATE_ITEMS_MAX) {
            let deadline = inner.env.now() + inner.deadline;
            for result in set::mutate(&inner, some, deadline).await {
                result.map_err(|error| match error {
                    SetError::NoRoom => CellLoadError::Full,
                    error => CellLoadError::Set(error),
                })?;
            }
        }
        Ok(())
    }

    /// All was set: completes when each backend has said that it has it. From then on a configuration may name it.
    pub async fn end(self) -> Result<(), CellLoadError> {
        self.cell.check_load(self.generation, self.config_id).await
    }
}
