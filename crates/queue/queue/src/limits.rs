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

/// Deduplication ids that one owner's queues know at the same time; with more, sends with further ones are refused
/// until some were forgotten. Some 130 bytes each, so about 1.2 GiB: 33,000 sends a second for [`DEDUPLICATION_MS`].
/// They come on top of [`MEMORY_BYTES_MAX`].
pub const DEDUPLICATION_KEYS_MAX: u64 = 10_000_000;

/// How often the ids that are too old are looked for in all queues, while there are too many, in milliseconds.
pub const DEDUPLICATION_LOOK_MS: u64 = 1_000;

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

/// Entries of one page in memory, at most 48 bytes each. Few: one message that stays keeps its whole page.
pub const PAGE_ENTRIES: usize = 64;

/// Bytes of journal records after which a checkpoint is taken; the journal may ask for one earlier.
pub const CHECKPOINT_BYTES: u64 = 64 << 20;

/// Bytes of memory that a content takes besides its own: its places in two tables, the allocator's, the count of who
/// shares it.
pub const CONTENT_OVERHEAD_BYTES: u64 = 128;

/// Bytes of contents kept in memory for the next receives once they are in the tree.
pub const HOT_BYTES: u64 = 64 << 20;

/// Messages whose contents are read ahead of the receives of a queue that finds its contents in the tree.
pub const READ_AHEAD_MESSAGES: usize = 128;

/// Bytes of contents that are read ahead at once: one that is longer than what is left of them is the last.
pub const READ_AHEAD_BYTES: usize = 1 << 20;

/// Readings ahead that wait for the tree; one more is left out.
pub const READS_AHEAD_MAX: usize = 64;

/// Bytes of contents in memory beyond which sends are refused: the checkpoints don't keep up.
pub const MEMORY_BYTES_MAX: u64 = 512 << 20;

/// Bytes of memory in which the tree keeps its pages.
pub const TREE_CACHE_BYTES: usize = 64 << 20;

/// Bytes of a bundle of contents in the tree: with what the tree needs beside them they are a power of two.
pub const BUNDLE_BYTES: usize = (32 << 10) - 64;

/// Contents of one bundle.
pub const BUNDLE_CONTENTS_MAX: usize = 256;

/// Bytes of a content that is put in a bundle at most; a longer one is alone.
pub const BUNDLED_BYTES_MAX: usize = 8 << 10;

/// A bundle is written again when this part of it is still wanted, or less.
pub const BUNDLE_KEPT_PART: usize = 4;

/// Tuples of purged messages that are removed from the tree in one transaction.
pub const SWEEP_KEYS: usize = 20_000;

/// Messages that one step of a move task moves, or one receive to the dead-letter queue.
pub const MOVE_STEP: usize = 64;

/// How long a receive that may not wait does so at most while messages before those that it is looking for are moved,
/// in milliseconds.
pub const MOVE_WAIT_MS: u64 = 5_000;

/// Pause between two steps of a move task, in milliseconds.
pub const MOVE_PAUSE_MS: u64 = 20;

/// Pause of a move task whose step was lost, and of receives that wait behind messages whose move was, in milliseconds.
pub const MOVE_RETRY_MS: u64 = 1_000;

/// Move tasks of one queue that are remembered.
pub const MOVE_TASKS_MAX: usize = 10;

/// Milliseconds after which a tree that could not be written is tried again.
pub const TREE_RETRY_MS: u64 = 500;

/// Requests that wait for contents from the tree.
pub const READS_MAX: usize = 4096;

const _: () =
    assert!(ROUND_BYTES + REQUEST_BYTES_MAX + (64 << 10) < 8 << 20, "a journal record holds a round");
const _: () = assert!(CHECKPOINT_BYTES + HOT_BYTES < MEMORY_BYTES_MAX);
const _: () = assert!(BUNDLED_BYTES_MAX + 12 <= BUNDLE_BYTES);

/// The shared store: time that one partition of tuples, or of bodies, is for, in milliseconds.
pub const BUCKET_MS: u64 = 10_000;

/// The shared store: a tuple whose put was answered later than this after its time, in milliseconds, is put again.
pub const WRITE_MS: u64 = 2_000;

/// The shared store: how long after its time was over a bucket is dropped, in milliseconds: replicas that were down for
/// a moment have got by then what they missed.
pub const DROP_AFTER_MS: u64 = 60_000;

/// The shared store: time whose tuples are read at once where much may have been deleted, in milliseconds.
pub const SLICE_MS: u64 = 2_000;

/// The shared store: how old a front end's list of a queue's buckets may be, in milliseconds.
pub const REFRESH_MS: u64 = 1_000;

/// The shared store: how long a front end believes that there is nothing below its cursors, in milliseconds.
pub const LOOK_BACK_MS: u64 = 10_000;

/// The shared store: a tuple whose body is not there stays for so long after it was sent, in milliseconds, where one
/// replica is enough: the body may be at another one.
pub const SETTLE_MS: u64 = 10_000;

/// The shared store: how long a front end's report to the others is there, in seconds: longer than any of them waits
/// for its next one.
pub const REPORT_S: u32 = 900;

/// The shared store: KiB of what one front end's calls have that go on to their end though nobody may wait for them any
/// more; further ones wait. Each counts for one at least, and a receive for as much as ten small messages.
pub const CALLS_KIB: usize = 256 << 10;

/// The shared store: longest pause between two looks of a receive that waits, in milliseconds.
pub const POLL_MS_MAX: u64 = 400;

/// The shared store: buckets that are listed at once.
pub const BUCKETS_LISTED: usize = 1_000;

/// The shared store: rows that are read at once where a whole queue is looked at.
pub const ROWS_READ: usize = 1_000;

/// The shared store: tuples that are counted for a queue's figures, or looked at for a peek.
pub const COUNTED_MAX: usize = 1_000_000;

/// The shared store: most parts of a queue.
pub const PARTS_MAX: u16 = 64;

/// The shared store: of so many receives one is looked after for duplicates; with K = auto of [`AUTO_LOOKS_EVERY`],
/// once it knows where it is.
pub const LOOKS_EVERY: u64 = 16;

/// The shared store: see [`LOOKS_EVERY`].
pub const AUTO_LOOKS_EVERY: u64 = 2;

/// The shared store: how far from a receive's tuple those of others that took the same message are looked for, in
/// milliseconds.
pub const LOOK_MS: u64 = 1_000;

/// The shared store: of 1,000 receives with K = auto, those that may take what another receiver has.
pub const AUTO_TARGET_PERMILLE: u32 = 20;

/// The shared store: queues of which a front end remembers something; beyond it what it knows is read again.
pub const QUEUES_KNOWN_MAX: usize = 100_000;

/// The shared store: changed visibilities of one queue that a front end remembers, so that a delete need not look for
/// them.
pub const FORWARDS_KNOWN_MAX: usize = 10_000;

/// The shared store: tuples without a body that one sweep of a queue removes.
pub const GHOSTS_MAX: usize = 100_000;

/// The shared store: places as a dead letter at which a delete looks for a message. Each move to a dead-letter queue is
/// one, and each that failed.
pub const LETTERS_MAX: usize = 1_000;

/// The shared store: tuples that a move task may read in a millisecond while it looks for what it has to move behind
/// other messages.
pub const SEARCH_TUPLES_PER_MS: u64 = 10;

/// The shared store: longest pause between two such looks, in milliseconds, while what was found last is still
/// invisible.
pub const SEARCH_PAUSE_MS_MAX: u64 = 300_000;

/// The shared store: how long what is known of a FIFO queue's group is kept after its last change, in seconds: longer
/// than any message is kept, so that nothing has to be tidied up behind a queue, or a group that is not used any more.
pub const GROUP_TTL_S: u32 = 15 * 24 * 3_600;

/// The shared store: how often a change of a FIFO queue's group is tried when others' changes come between.
pub const GROUP_ATTEMPTS: usize = 50;

/// The shared store: locks among which the groups of a FIFO queue are divided in one front end, so that its own
/// requests wait for each other instead of undoing each other's work.
pub const GROUP_LOCKS: usize = 64;

/// The shared store: tuples of groups that a receive from a FIFO queue reads at once.
pub const GROUPS_READ: usize = 32;

/// The shared store: how long which group a deduplication id belongs to is kept, in milliseconds. It belongs to that
/// group for a quarter of it, and a little longer; then it can belong to another one.
pub const CLAIM_MS: u64 = 4 * DEDUPLICATION_MS;

const _: () = {
    assert!(OWNER_ROUND_REQUESTS <= OWNER_QUEUE_REQUESTS, "a round takes what is queued");
    assert!(CONTENT_BYTES_MAX <= REQUEST_BYTES_MAX, "any content can be sent");
    assert!(
        TREE_CACHE_BYTES as u64 + HOT_BYTES + CHECKPOINT_BYTES < MEMORY_BYTES_MAX,
        "messages have memory, too"
    );
    assert!(DEDUPLICATION_LOOK_MS < DEDUPLICATION_MS && DEDUPLICATION_MS < CLAIM_MS, "in this order");
    assert!(MOVE_PAUSE_MS < MOVE_RETRY_MS && MOVE_RETRY_MS < MOVE_WAIT_MS, "in this order");
    assert!(ORDER_HINT_MAX as u64 <= IN_FLIGHT_MAX, "a receive looks at no more than can be in flight");
    assert!(
        WRITE_MS <= SETTLE_MS && SETTLE_MS < DROP_AFTER_MS,
        "what is written is settled before its bucket goes"
    );
    assert!(AUTO_LOOKS_EVERY <= LOOKS_EVERY, "auto looks more often");
    assert!(REFRESH_MS < BUCKET_MS, "a bucket is in the list while it is written");
};
