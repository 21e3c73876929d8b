//! Every bound of this crate, with its unit and its reason.

use std::time::Duration;

use tailwater_format::limits::APPEND_BYTES_MAX;

/// Shards of one stream. A tail page carries 64 of them; 1,000 streams of this size still fit in memory.
pub const SHARDS_MAX: u32 = 4_096;
/// Shards of all streams of one log: each costs about 2 KiB of memory and a look once a second.
pub const SHARDS_TOTAL_MAX: u64 = 65_536;
/// Copies of one entry, and places of one segment: what a client of BookKeeper counts acknowledgements with has 64
/// bits.
pub const COPIES_MAX: u32 = 64;
/// Bytes of a stream's name (Kafka's limit, so that every topic has a name here).
pub const NAME_BYTES_MAX: usize = 249;

/// Records of one append. A compressed batch of a few bytes may claim millions, and nobody looks inside before
/// it has its offsets.
pub const APPEND_RECORDS_MAX: u32 = 1 << 20;
/// Records that a flush gathers in one entry before it starts another; with one append more they still fit in
/// the entry's 32 bits.
pub const ENTRY_RECORDS_TARGET: u64 = 1 << 30;
const _: () = assert!(ENTRY_RECORDS_TARGET + (APPEND_RECORDS_MAX as u64) < u32::MAX as u64);
/// Bytes of memory that an append takes beside its own while it is in flight: its places in the queues, and the
/// answer that is waited for. Counted, or small appends would cost ten times what they are allowed.
pub const APPEND_OVERHEAD_BYTES: u64 = 512;
/// Truncations of one shard that may wait for metadata.
pub const TRUNCATIONS_MAX: usize = 64;
/// Record batches of one append: each has a header of 61 bytes, so a flood of empty ones would cost more to
/// look at than to send.
pub const APPEND_BATCHES_MAX: usize = 1_024;
/// Bytes of batches that a flush gathers in one entry before it starts another: recovery and readers hold a
/// whole entry in memory. Less than [`APPEND_BYTES_MAX`]: only an append that is larger by itself exceeds it.
pub const ENTRY_BYTES_TARGET: usize = 1 << 20;
const _: () = assert!(ENTRY_BYTES_TARGET <= APPEND_BYTES_MAX);

/// Requests that may wait for one owner; the next one is refused as overloaded.
pub const OWNER_QUEUE_REQUESTS: usize = 16_384;
/// Entries in flight up to which an owner's single appends are brought into the journal by those who bring them, each
/// as an entry: some clients that append one record at a time go into one sync. With more, the owner's task gathers
/// appends.
pub const ENTRIES_WITHOUT_TASK: usize = 4;
/// Rounds of an owner's task before it lets others run on its thread.
pub const ROUNDS_AT_A_STRETCH: u64 = 32;
/// Requests that an owner takes from its queue in one round: bounds how long acknowledgements wait behind
/// a flood of appends (1,024 at about 1 us each).
pub const OWNER_ROUND_REQUESTS: usize = 1_024;
/// Bytes of appends between their arrival and their acknowledgement, over all owners; beyond it appends are
/// refused as overloaded.
pub const IN_FLIGHT_BYTES_DEFAULT: u64 = 256 << 20;

/// How far a record's timestamp may be ahead of the node's clock: Kafka's default since 4.0.
pub const TIMESTAMP_AFTER_MAX_DEFAULT: Duration = Duration::from_secs(3_600);

/// Bytes of the snapshot of the producers that a shard remembers, which is one value of metadata (KIP-98 leaves this
/// unbounded). When they are more, the shard forgets those that appended longest ago, a quarter. Enough for 19,700
/// producers of one batch each, as many as a command makes in a day that appends every five seconds, and for 6,200
/// whose last five batches are remembered; they take some 6 MiB of memory.
pub const PRODUCERS_BYTES_MAX: usize = tailwater_meta::limits::VALUE_BYTES_MAX - 64;
/// Bytes that a producer takes in the snapshot, at most, beside its batches.
pub const PRODUCER_BYTES: usize = 24;
/// Bytes that each of its batches takes there, at most.
pub const PRODUCER_BATCH_BYTES: usize = 29;
/// Batches remembered per producer: Kafka's five, the most a client has in flight.
pub const PRODUCER_BATCHES: usize = 5;
/// Milliseconds after its last append that a producer is forgotten.
pub const PRODUCER_EXPIRY_MS: i64 = 24 * 3_600 * 1_000;
/// Producers of a shard of which is remembered that a batch of theirs was refused.
pub const REFUSED_PRODUCERS: usize = 1_024;
/// Producer ids reserved in one metadata commit; what a block has left is lost at a restart.
pub const PRODUCER_ID_BLOCK: i64 = 1_000;

/// Bytes read at once when recovery or positioning scans the entries of a segment.
pub const SCAN_BYTES: usize = 256 << 10;
/// Bytes that one durable read may ask for.
pub const READ_BYTES_MAX: u32 = 8 << 20;
/// Reads of record batches from the durable layer at the same time: two for each thread that reads files. Each holds
/// what it was asked for, and an entry.
pub const CATCHING_UP_MAX: usize = 4;
/// Reads of segments that only cold storage has, at the same time. They wait for a network, and hold no thread.
pub const COLD_READING_MAX: usize = 16;
/// Reads of one batch besides: they take a single read of an entry, and whoever asks should not wait for consumers that
/// catch up.
pub const SINGLE_MAX: usize = 2;
/// Whoever reads entries for another cluster, and is at most so many bytes behind the end of the open segment, finds
/// them in memory, and does not wait for those who catch up.
pub const COPY_NEAR_BYTES: u64 = 4 << 20;
/// How often it is tried to delete the segments of a deleted stream that nobody owned.
pub const REMOVALS_MAX: usize = 20;
/// Pause between two of these.
pub const REMOVAL_RETRY: Duration = Duration::from_secs(3);
/// Shards and segments that a sweep reads in metadata at a time.
pub const JUDGED_AT_A_TIME: usize = 16;
/// Shards that recovery reads at the same time.
pub const RECOVERY_PARALLEL: usize = 16;
/// Metadata operations in one commit of recovery or of a stream's deletion; a larger one is split.
pub const COMMIT_OPS_MAX: usize = 512;
/// Completed segments of one shard in metadata that nodes share: ZooKeeper answers with all their names at once, in
/// less than 1 MiB.
pub const SHARD_SEGMENTS_SHARED_MAX: usize = 40_000;
/// Keys that one commit puts which moves a data directory's metadata.
pub const MIGRATED_KEYS_AT_A_TIME: usize = 64;
/// Bytes of these keys and their values, but for a value that is larger by itself.
pub const MIGRATED_BYTES_AT_A_TIME: usize = 256 << 10;
/// Shards whose segments are copied at a time where a data directory is moved.
pub const MIGRATED_AT_A_TIME: usize = 8;
/// Bytes of a copy of a segment that are on their way, but for an entry that is larger by itself: eight of them fit in
/// what a replicated store takes.
pub const MIGRATED_UNDER_WAY_BYTES: usize = 8 << 20;
/// How often it is looked whether all is there as it was copied, before it is taken for the work of others.
pub const MIGRATION_PASSES: usize = 8;
/// Segments that one commit of a shard's owner notes as copied or as left to cold storage, that it forgets, and that it
/// brings back: each at most.
pub const COMMIT_COLD_MAX: usize = 24;

/// How long an entry waits for a store or a journal that is too busy before its appends are refused: longer
/// than writing and syncing what may be pending takes, shorter than a client's patience.
pub const STALL_MAX: Duration = Duration::from_secs(5);
/// How often an owner tries again to hand over an entry that the store was too busy for.
pub const BUSY_RETRY: Duration = Duration::from_millis(2);
/// How long a shard's owner waits before it repeats a metadata commit that was not answered.
pub const COMMIT_RETRY: Duration = Duration::from_millis(100);
/// How long a shard's owner waits after a commit that metadata can't take. What it commits has to change first, as it
/// does when producers are forgotten, which is looked at once a minute.
pub const COMMIT_REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// How long no shard of a stream that moves may be given up before the move is: meanwhile no other stream is created,
/// changed or deleted. Metadata that is away longer leaves the stream as it was.
pub const RELEASE_MAX: Duration = Duration::from_secs(3);

const _: () = {
    assert!(SHARDS_MAX as u64 <= SHARDS_TOTAL_MAX, "the largest stream can be made");
    assert!(APPEND_BYTES_MAX <= tailwater_format::limits::ENTRY_BODY_BYTES_MAX, "an entry holds any append");
    assert!(
        APPEND_BYTES_MAX + (1 << 10) <= tailwater_journal::limits::RECORD_BYTES_MAX,
        "a record of the journal holds any entry"
    );
    assert!(
        APPEND_BYTES_MAX as u64 + APPEND_OVERHEAD_BYTES <= IN_FLIGHT_BYTES_DEFAULT,
        "any append can be in flight"
    );
    assert!(OWNER_ROUND_REQUESTS <= OWNER_QUEUE_REQUESTS, "a round takes what is queued");
    assert!(
        COMMIT_OPS_MAX / 4 * 3 + COMMIT_COLD_MAX * 4 + 3 <= COMMIT_OPS_MAX,
        "a change of a shard is one commit: two operations for each segment that goes or comes back"
    );
    assert!(COMMIT_OPS_MAX <= tailwater_meta::limits::OPS_MAX, "metadata takes a commit");
    assert!(
        PRODUCER_BYTES + PRODUCER_BATCHES * PRODUCER_BATCH_BYTES < PRODUCERS_BYTES_MAX / 2,
        "a snapshot holds many producers"
    );
    assert!(BUSY_RETRY.as_nanos() < STALL_MAX.as_nanos(), "an entry is offered again before it is given up");
    assert!(
        COMMIT_RETRY.as_nanos() < COMMIT_REFUSED_PAUSE.as_nanos(),
        "what may help is tried sooner than what does not"
    );
    assert!(
        READ_BYTES_MAX >= tailwater_tail::limits::DURABLE_READ_BYTES_MAX,
        "readers are given what they ask for"
    );
    assert!(SINGLE_MAX <= CATCHING_UP_MAX, "single reads are fewer");
    assert!(MIGRATED_KEYS_AT_A_TIME <= tailwater_meta::limits::OPS_MAX, "metadata takes a commit of a move");
    assert!(
        MIGRATED_BYTES_AT_A_TIME + tailwater_meta::limits::VALUE_BYTES_MAX
            < tailwater_meta::limits::COMMIT_BYTES_MAX,
        "with a large value, too"
    );
};
