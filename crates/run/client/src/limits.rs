//! Every bound of this crate, with its unit and its reason.

use std::time::Duration;

use tailwater_format::limits::{APPEND_BYTES_MAX, BATCH_BYTES_MAX};

/// How long a CALL to a node may take before it counts as lost. An append waits for a sync of the disk, which
/// takes seconds on one that is worn out or shared.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// How often a process whose consumers are given something tells its node how long that took.
pub const DELAYS_EVERY: Duration = Duration::from_secs(5);

/// How long to look for a node before [`crate::Client::connect`] gives up.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// First and longest pause before a lost connection is tried again; doubled in between, with jitter.
pub const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`RECONNECT_PAUSE_MIN`].
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long the node is asked where a cell's backends are before the addresses are tried that it told last: well within
/// the second that a cell gives to a connection.
pub const CELLS_ASK_DEADLINE: Duration = Duration::from_millis(400);

/// How long a window has fed all that a process follows before the process lets go of its connections to the cells: a
/// window that comes and goes does not have them made again each time.
pub const CELLS_REST_AFTER: Duration = Duration::from_secs(3);

/// Batches of one shard under way at once: as many as the node remembers of a producer, so that any of them
/// can be sent again.
pub const BATCHES_IN_FLIGHT_MAX: usize = 5;

/// Append CALLs under way at once; each carries the ready batches of any number of shards.
pub const APPENDS_IN_FLIGHT_MAX: usize = 24;

/// How many of these go without a pause between them. With more, records wait so that a CALL carries more of them.
pub const APPENDS_UNPACED: usize = 8;

/// Bytes of batches that one append CALL is filled to; the node takes CALLs of 8 MiB.
pub const CALL_BYTES_TARGET: usize = 4 << 20;

/// The most bytes of records that a batch is filled to. Only a record that is longer by itself exceeds it.
pub const BATCH_BYTES_TARGET_MAX: usize = 2 << 20;

/// Longest record, in bytes of its key and value: with what describes it, it is a batch as long as one may be.
pub const RECORD_BYTES_MAX: usize = APPEND_BYTES_MAX - 256;

/// The most shards of a stream that a node is believed to have: a producer keeps a little for each.
pub const SHARDS_MAX: u32 = 1 << 16;

/// Shards whose places are looked up at the same time when a consumer starts.
pub const LOCATES_IN_FLIGHT_MAX: usize = 16;

/// Pause before what was refused with an error that may pass, as a batch, is sent again.
pub const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Parts of a snapshot that its writer has under way: they are what it keeps in memory.
pub const SNAPSHOT_PARTS_IN_FLIGHT_MAX: usize = 4;

/// How often something is looked for again that was removed while it was looked for: there is a newer one then.
pub const SNAPSHOT_TRIES_MAX: usize = 8;

/// Arenas of a window that a reader keeps: what it has yet to read, and what its consumers have yet to take. At
/// 240 Mbit/s they last nine seconds. Readers have them in common, so they take no more memory with more of them.
/// Behind them it reads by itself.
pub const WINDOW_ARENAS_KEPT: usize = 16;

/// Messages of a window that are taken in one step, so that a process that is late needs no more memory for them.
pub const WINDOW_MESSAGES_AT_ONCE: usize = 256;

/// How often a reader looks whether its window is alive, and which shards it follows no more.
pub const WINDOW_LOOK_EVERY: Duration = Duration::from_millis(750);

/// A window that says nothing for this long is left. One that is stopped is, too, where something is durable that it
/// does not bring, after the reader's `delay_max`.
pub const WINDOW_BEAT_DEADLINE: Duration = Duration::from_secs(3);

/// How long a window may take to greet, or to take what a reader says.
pub const WINDOW_START_DEADLINE: Duration = Duration::from_secs(5);

/// First and longest pause before a window is looked for again; doubled in between. Where there is none, as on another
/// host than the node's, it costs one system call each time.
pub const WINDOW_PAUSE_MIN: Duration = Duration::from_millis(100);
/// See [`WINDOW_PAUSE_MIN`].
pub const WINDOW_PAUSE_MAX: Duration = Duration::from_secs(2);

const _: () = assert!(BATCH_BYTES_TARGET_MAX < APPEND_BYTES_MAX, "a full batch is no longer than one may be");
const _: () =
    assert!(CALL_BYTES_TARGET <= BATCH_BYTES_MAX && APPEND_BYTES_MAX <= BATCH_BYTES_MAX, "both fit a CALL");

const _: () = {
    assert!(CONNECT_DEADLINE.as_nanos() <= CALL_DEADLINE.as_nanos(), "a call may connect");
    assert!(CELLS_ASK_DEADLINE.as_nanos() < CALL_DEADLINE.as_nanos(), "and ask for the cells");
    assert!(RECONNECT_PAUSE_MIN.as_nanos() <= RECONNECT_PAUSE_MAX.as_nanos(), "a pause grows");
    assert!(RETRY_PAUSE.as_nanos() < CALL_DEADLINE.as_nanos(), "there is time for a second try");
    assert!(
        SHARDS_MAX as usize >= tailwater_format::limits::SHARDS_PER_PAGE as usize,
        "a page of shards is one stream's"
    );
};
