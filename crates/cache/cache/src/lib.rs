//! A replicated in-memory cache that is read one-sidedly (CliqueMap).
//!
//! A [`Backend`] keeps keys and values in two memory regions and changes them on behalf of CALLs. A [`Cell`] is a
//! client of one or three-times-replicated backends: it reads straight from their memory, and believes only
//! what proves itself. Keys and values are plain bytes.
//!
//! Backends are there with the feature `server` alone: an application that links a cell links none of them.
//!
//! Read first: [`layout`] for the bytes, `backend` for who writes them and when, [`cell`] for how they are read.

// What only backends need of the rest.
#![cfg_attr(not(feature = "server"), allow(dead_code, unused_imports))]

#[cfg(feature = "server")]
pub mod backend;
pub mod cell;
mod configuration;
pub mod layout;
pub mod limits;
pub mod protocol;
#[cfg(test)]
mod testing;
mod version;

#[cfg(feature = "server")]
pub use backend::{Backend, BackendConfig, EvictionPolicy, RefillConfig};
pub use cell::{
    Backends, CasError, Cell, CellConfig, CellFailure, CellFollower, CellLoad, CellLoadError, CellNews,
    CellStats, CellValue, Connecting, Connector, HashRing, LOADED_KEY_BYTES_MAX, Lookup, LookupOutcome,
    LookupWay, Mode, Placement, RollSeen, RollStep, Seen, SetError, UpdateError, UpdateTo, Updated,
    instance_of, joined,
};
pub use configuration::{BackendPlace, CellChange, Configuration, ConfigurationError};
pub use layout::ItemExtras;
pub use protocol::BackendStats;
pub use version::{Version, VersionClock};
