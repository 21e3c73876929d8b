//! A replicated in-memory cache that is read one-sidedly (CliqueMap).
//!
//! A [`Backend`] keeps keys and values in two memory regions and changes them on behalf of CALLs. A [`Cell`] is a
//! client of one or three-times-replicated backends: it reads straight from their memory, and believes only
//! what proves itself. Keys and values are plain bytes.
//!
//! Read first: [`layout`] for the bytes, [`backend`] for who writes them and when, [`cell`] for how they are read.

pub mod backend;
pub mod cell;
mod configuration;
pub mod layout;
pub mod limits;
pub mod protocol;
#[cfg(test)]
mod testing;
mod version;

pub use backend::{Backend, BackendConfig, BackendStats, RefillConfig};
pub use cell::{
    Backends, CasError, Cell, CellConfig, CellFailure, CellStats, CellValue, Connector, HashRing, Lookup,
    Mode, Placement, RollSeen, RollStep, Seen, SetError, UpdateError, UpdateTo, Updated, instance_of, joined,
};
pub use configuration::{BackendPlace, CellChange, Configuration, ConfigurationError};
pub use layout::EntryExtras;
pub use version::{Version, VersionClock};
