//! One file for each command.

pub mod acl;
pub mod audit;
#[cfg(not(feature = "bench"))]
pub mod bench;
pub mod broadcast;
pub mod cache;
pub mod cell;
pub mod consume;
pub mod doctor;
pub mod group;
pub mod init;
pub mod produce;
pub mod queue;
pub mod serve;
pub mod stream;
pub mod user;
pub mod window;
