//! Every limit of this crate: unit, reason, and how they hang together.

use std::time::Duration;

/// The longest READ, in bytes. One operation must not keep an engine busy: a copy of this takes about 150 us.
pub const READ_BYTES_MAX: u32 = 1 << 20;

/// The longest CALL payload or answer, in bytes.
pub const CALL_BYTES_MAX: usize = 8 << 20;

/// Regions of one server. Their descriptors, and the doorbell's, travel in one message, which carries at most
/// 253 (the kernel's `SCM_MAX_FD`).
pub const REGIONS_MAX: usize = 64;

/// Operations in one READ or SCAR frame; clients split longer batches.
pub const BATCH_OPS_MAX: usize = 1024;

/// Bytes that one READ frame may ask for, and that one SCAR frame is answered with; clients split and repeat.
pub const BATCH_BYTES_MAX: usize = 4 << 20;

/// The longest frame body, in bytes: a CALL with its method, or a full batch with its results.
pub const FRAME_BODY_MAX: usize = CALL_BYTES_MAX + (64 << 10);

/// A doorbell's first value. It is not 0, so that whoever has seen nothing yet and says 0 is told to look.
pub const DOORBELL_START: u32 = 1;

/// The longest a waiter sleeps before it looks at the doorbell's word again. A wake can be stolen by any other
/// process that maps the word.
pub const LOOK_AGAIN: Duration = Duration::from_millis(50);

const _: () = {
    assert!(READ_BYTES_MAX as usize <= BATCH_BYTES_MAX, "any READ fits a frame");
    assert!(2 * READ_BYTES_MAX as usize <= BATCH_BYTES_MAX, "any SCAR, bucket and data, fits a frame");
    assert!(BATCH_BYTES_MAX + BATCH_OPS_MAX * 16 <= FRAME_BODY_MAX, "a full batch with its results");
    assert!(REGIONS_MAX < 253, "one message carries all descriptors");
    assert!(DOORBELL_START != 0);
};
