//! One file for each command.

pub mod account;
pub mod acl;
pub mod audit;
pub mod broadcast;
pub mod cache;
pub mod cell;
pub mod cluster;
pub mod consume;
pub mod doctor;
pub mod group;
pub mod init;
#[cfg(not(all(feature = "bench", feature = "bookkeeper")))]
pub mod left_out;
#[cfg(feature = "bookkeeper")]
pub mod migrate;
pub mod monitor;
#[cfg(feature = "bookkeeper")]
pub mod node;
pub mod produce;
pub mod queue;
pub mod quota;
#[cfg(feature = "bookkeeper")]
pub mod segment;
pub mod serve;
pub mod sidecar;
pub mod snapshot;
pub mod stream;
pub mod token;
pub mod tree;
pub mod user;
pub mod window;
pub mod worker;
