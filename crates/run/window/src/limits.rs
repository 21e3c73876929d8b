//! Every bound of this crate, with its unit and its reason.

use std::time::Duration;

/// Readers at a time; one more is hung up on, and reads by itself. Each costs two descriptors and some hundred bytes.
pub const READERS_MAX: usize = 8_192;

/// Shards that one reader may follow through a window; what is beyond it reads by itself.
pub const SHARDS_OF_READER_MAX: usize = 4_096;

/// Shards that all readers follow together; of what is beyond nobody is fed. Each costs the window a consumer.
pub const SHARDS_MAX: usize = 16_384;

/// Shards whose places are asked of the node at the same time.
pub const STARTS_MAX: usize = 16;

/// Bytes of a segment in one message, but for an entry that is longer. A reader's memory for what it decodes of a
/// message is then always of the same sizes, whether the window is late or not: where all readers touch memory for the
/// first time at once, it takes them seconds.
pub const MESSAGE_BYTES_MAX: u64 = 256 << 10;

/// Entries in one message.
pub const MESSAGE_ENTRIES_MAX: usize = 256;

/// Arenas that were passed to a reader who has not said that it has them. One more, and it is hung up on: they are kept
/// for as long as they lie in its socket.
pub const ARENAS_UNTAKEN_MAX: usize = 16;

/// Requests of readers that wait for their turn, for all together; readers wait beyond it.
pub const REQUESTS_MAX: usize = 1_024;

/// The window reads lengths no more often than this while something flows, so that a wake of its readers brings several
/// flushes. What comes after a pause is read at once.
pub const PACE_MIN: Duration = Duration::from_millis(5);

/// The longest time between two wakes of a reader by news, however many readers there are.
pub const PACE_MAX: Duration = Duration::from_millis(50);

/// Readers that are woken at once, while bells are left. Together they want a core for less than 2 ms.
pub const READERS_OF_BELL: usize = 16;

/// Bells, which ring one after the other: each costs the window a descriptor, and a write for each round.
pub const BELLS: usize = 32;

/// Time between two wakes for each reader that they wake. A wake takes a reader some 0.1 ms whatever it brings: what it
/// runs and what it knows lie in no cache any more. So all readers' wakes take one core at most, up to five
/// hundred readers.
pub const PACE_FOR_READER: Duration = Duration::from_micros(100);

/// Beats after which a shard that could not be read is tried again: its stream is gone, or its node is away.
pub const START_PAUSE_BEATS: u32 = 8;

/// Beats after which a kept stream is looked up again: it may have been deleted and created anew.
pub const KEPT_LOOK_BEATS: u32 = 120;

/// Beats after which the watchers of a window are told what it does.
pub const BEATS_TOLD: u32 = 4;

/// How often a window says that it is alive.
pub const BEAT_EVERY: Duration = Duration::from_millis(250);
