//! One file for each command.

pub mod cache;
pub mod consume;
pub mod doctor;
pub mod produce;
pub mod serve;
pub mod stream;
