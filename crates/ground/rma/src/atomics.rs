//! The atomics that the protocols between threads are written with, in one place: `tests/loom.rs` compiles the
//! same sources against loom's in place of these.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
