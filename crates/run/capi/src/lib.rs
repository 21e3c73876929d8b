//! `libtailwater`: cells and the one-sided consumer of the log, for programs in other languages than Rust.
//!
//! The header `include/tailwater.h` is made from this crate, and is what its users read: `docs/languages.md` is their
//! guide. What holds ([ADR 54](../../../../docs/adr/0054-an-abi-of-operations.md)):
//! - **Nobody unwinds out of here.** A panic in what an operation does is caught, and is its status. Anywhere else it
//!   would end the process, as in every `extern "C"` function.
//! - **What fails tells why.** Whatever may fail or take time is a [`TailwaterOperation`], which has a status and a
//!   text. There is no state of threads and no `errno`.
//! - **What a caller hands in is checked** as far as it can be: null pointers, lengths, texts, numbers of choices. A
//!   pointer to something else, or to something freed, is the caller's fault, as everywhere in C.
//! - **Handles are owned by the caller**, who frees each once. What was read borrows from the handle that it came
//!   from, and is good until that is freed.
//! - **Threads.** A cell, a client, a consumer and a notifier may be used by any threads at the same time. Calls
//!   about one operation, or one batch, must not overlap.
//! - **A forked child can't use it** if its parent had: the threads that carry everything out are the parent's alone.
//!   It is told so, and what it frees is left as it is.
//!
//! `operation.rs` is what everything goes through; then `cell.rs`, `consumer.rs`, `notifier.rs`.

#![allow(unsafe_code)] // A C ABI is made of raw pointers: each block says who answers for them.
#![deny(unsafe_op_in_unsafe_fn)]

mod batch;
mod cell;
mod client;
mod consumer;
mod given;
pub mod limits;
mod notifier;
mod operation;
mod runtime;
mod status;

use std::ffi::c_char;

pub use batch::{
    TailwaterBatch, TailwaterHeader, TailwaterRecord, tailwater_batch_free, tailwater_batch_next_offset,
    tailwater_batch_records, tailwater_batch_shard, tailwater_operation_batch,
};
pub use cell::{
    TailwaterCell, TailwaterChange, TailwaterItem, TailwaterLookup, tailwater_cell_at, tailwater_cell_cas,
    tailwater_cell_delete, tailwater_cell_free, tailwater_cell_get, tailwater_cell_set,
    tailwater_client_cell, tailwater_operation_cell, tailwater_operation_changes,
    tailwater_operation_lookups,
};
pub use client::{
    TailwaterClient, TailwaterOptions, tailwater_client_free, tailwater_client_open,
    tailwater_operation_client,
};
pub use consumer::{
    TailwaterConsumer, TailwaterPosition, TailwaterStart, tailwater_consumer_free, tailwater_consumer_open,
    tailwater_consumer_poll, tailwater_consumer_positions, tailwater_operation_consumer,
};
pub use given::TailwaterBytes;
pub use notifier::{
    TailwaterNotifier, tailwater_notifier_fd, tailwater_notifier_free, tailwater_notifier_new,
    tailwater_notifier_take,
};
pub use operation::{
    TailwaterOperation, tailwater_operation_error, tailwater_operation_free, tailwater_operation_status,
    tailwater_operation_wait,
};
pub use status::{
    TailwaterChanged, TailwaterFound, TailwaterLookupMode, TailwaterStartKind, TailwaterStatus,
    TailwaterTransport, TailwaterVersion,
};

/// The version of this ABI that the header describes.
///
/// A program that was built against another one must not go on: a field or a function may mean something else.
pub const TAILWATER_ABI_VERSION: u32 = 1;

/// The version of the ABI that the library has. Compare it with `TAILWATER_ABI_VERSION` of your header before anything
/// else.
#[unsafe(no_mangle)]
pub extern "C" fn tailwater_abi_version() -> u32 {
    TAILWATER_ABI_VERSION
}

/// The version of the library for people, as "0.1.0". Static.
#[unsafe(no_mangle)]
pub extern "C" fn tailwater_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
