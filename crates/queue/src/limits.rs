//! All limits of the queues: unit, reason, relation to the others. What Amazon's protocol limits is the front's.

/// Requests that wait for one owner; one more is refused as overloaded.
pub const OWNER_QUEUE_REQUESTS: usize = 8192;

/// Requests that one round of an owner takes, so that what is durable is answered in between.
pub const OWNER_ROUND_REQUESTS: usize = 256;

/// Bytes of one journal record after which a round begins a further one. A record holds at least one request, so the
/// longest one is this and [`CONTENT_BYTES_MAX`] times [`BATCH_MAX`].
pub const ROUND_BYTES: usize = 1 << 20;

/// Messages of one request.
pub const BATCH_MAX: usize = 10;

/// Bytes of one message's content: a body of 1 MiB with its attributes, and some room.
pub const CONTENT_BYTES_MAX: usize = (1 << 20) + (64 << 10);

/// Bytes of all contents of one request: they are one journal record.
pub const REQUEST_BYTES_MAX: usize = 2 << 20;

/// Messages of one queue that are received and neither deleted nor visible again.
pub const IN_FLIGHT_MAX: u64 = 120_000;

/// How long a FIFO queue knows the deduplication ids it has seen, in milliseconds.
pub const DEDUPLICATION_MS: u64 = 300_000;

/// How long a receive can be asked for again by its attempt's id, in milliseconds.
pub const ATTEMPT_MS: u64 = 300_000;

/// Attempts of one queue that are remembered; beyond it the oldest is forgotten.
pub const ATTEMPTS_MAX: usize = 10_000;

/// Pause after a queue's purge before the next, in milliseconds.
pub const PURGE_PAUSE_MS: u64 = 60_000;

/// Pause after a queue's deletion before its name can be used again, in milliseconds.
pub const RECREATE_PAUSE_MS: u64 = 60_000;

/// Longest time from a receive to the end of its invisibility, in milliseconds: 12 hours.
pub const INVISIBLE_MS_MAX: u64 = 12 * 3_600_000;

/// Largest order hint: a receive looks at so many tuples and those it takes.
pub const ORDER_HINT_MAX: u32 = 1_000;

/// Entries of one page in memory, 48 bytes each. Few: one message that stays keeps its whole page.
pub const PAGE_ENTRIES: usize = 64;

/// Bytes of journal records after which a checkpoint is taken; the journal may ask for one earlier.
pub const CHECKPOINT_BYTES: u64 = 64 << 20;

/// Bytes of contents kept in memory for the next receives once they are in the tree.
pub const HOT_BYTES: u64 = 64 << 20;

/// Bytes of contents in memory beyond which sends are refused: the checkpoints don't keep up.
pub const MEMORY_BYTES_MAX: u64 = 512 << 20;

/// Bytes of memory in which the tree keeps its pages.
pub const TREE_CACHE_BYTES: usize = 64 << 20;

/// Tuples of purged messages that are removed from the tree in one transaction.
pub const SWEEP_KEYS: usize = 20_000;

/// Messages that one step of a move task moves.
pub const MOVE_STEP: usize = 64;

/// Pause between two steps of a move task, in milliseconds.
pub const MOVE_PAUSE_MS: u64 = 20;

/// Move tasks of one queue that are remembered.
pub const MOVE_TASKS_MAX: usize = 10;

/// Milliseconds after which a tree that could not be written is tried again.
pub const TREE_RETRY_MS: u64 = 500;

/// Requests that wait for contents from the tree.
pub const READS_MAX: usize = 4096;

const _: () =
    assert!(ROUND_BYTES + REQUEST_BYTES_MAX + (64 << 10) < 8 << 20, "a journal record holds a round");
const _: () = assert!(CHECKPOINT_BYTES + HOT_BYTES < MEMORY_BYTES_MAX);
