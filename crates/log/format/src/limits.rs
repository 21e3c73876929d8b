//! Every bound of this crate, with its unit and its reason.

/// Bytes of record batches in one entry. A flush that has gathered this much is written; it is also the most
/// that a reader buffers before it can check an entry, and 16 times Kafka's default for one batch.
pub const ENTRY_BODY_BYTES_MAX: usize = 16 << 20;

/// Shards whose tails share one tail page: one consistent read then follows 64 files (Fast ACS, section 8),
/// and a page stays a little above 5 KiB.
pub const SHARDS_PER_PAGE: u32 = 64;

/// Smallest chunk, in bytes: below it the index entry in the cache costs more than the chunk.
pub const CHUNK_BYTES_MIN: u32 = 64;
/// Largest chunk, in bytes: the partial chunk is written again from its beginning with every flush.
pub const CHUNK_BYTES_MAX: u32 = 1 << 20;
/// Size of a chunk unless a stream says otherwise, in bytes (Fast ACS, section 3).
pub const CHUNK_BYTES_DEFAULT: u32 = 4096;

/// Largest term: terms are Kafka's leader epochs, which are signed 32-bit numbers.
pub const TERM_MAX: u32 = i32::MAX as u32;
/// Largest offset: Kafka's offsets are signed 64-bit numbers.
pub const OFFSET_MAX: u64 = i64::MAX as u64;

/// Longest payload of a CALL, in bytes: what the transport carries. It is less than a full entry, so whoever
/// fetches a long entry asks several times.
pub const CALL_BYTES_MAX: usize = 8 << 20;
/// Longest payload of a CALL that carries names and numbers only, in bytes.
pub const CALL_INFO_BYTES_MAX: usize = 256 << 10;
/// Longest payload of a message of a login, in bytes: 4 KiB of SASL's, and what is around it.
pub const LOGIN_BYTES_MAX: usize = 8 << 10;
/// Backends of a cell in one answer, spares included: more than a cell may have.
pub const CELL_BACKENDS_MAX: usize = 2_048;
/// Committed offsets in one answer to another cluster.
pub const COPIED_OFFSETS_MAX: usize = 1_000;
/// Longest record batch, in bytes: it fits a CALL together with what names its shard.
pub const BATCH_BYTES_MAX: usize = CALL_BYTES_MAX - (64 << 10);
/// Longest batch that a node appends, in bytes, where its stream does not say less: four times Kafka's default.
pub const APPEND_BYTES_MAX: usize = 4 << 20;
/// Most bytes that the records of one batch, and those of all batches of one entry, may have when decompressed,
/// unless the caller says less: a reader keeps a whole entry's. It also bounds how many records a compressed batch may
/// claim to have.
pub const RECORDS_DECOMPRESSED_BYTES_MAX: usize = 64 << 20;
/// Items of one append: enough for a batch for each shard of a large stream, and some 300 KiB when decoded.
pub const APPEND_ITEMS_MAX: usize = 4096;
/// Shards that one call can ask the tails of.
pub const SHARDS_PER_CALL_MAX: usize = 16_384;
/// Operations that one worker of a cluster runs: the message that tells of them is about half of
/// [`CALL_INFO_BYTES_MAX`].
pub const COPY_TASKS_MAX: usize = 4_096;
/// Clusters of one copy tree, the source included; as many as a plan may have.
pub const CLUSTERS_MAX: usize = 512;
/// Bytes of a part of a snapshot, which is one record, unless one entry is longer: a writer keeps a few of them.
pub const SNAPSHOT_PART_BYTES: usize = 1 << 20;
/// Longest entry of a snapshot, in bytes of its key and value: with what describes it, it is a record as long as one
/// may be.
pub const SNAPSHOT_ENTRY_BYTES_MAX: usize = APPEND_BYTES_MAX - 512;
/// Segments in one answer; a shard with more is listed in several calls.
pub const SEGMENTS_PER_REPLY_MAX: usize = 1000;

const _: () = assert!(SHARDS_PER_PAGE <= u8::MAX as u32, "a tail page counts its slots in one byte");
const _: () = assert!(CHUNK_BYTES_MIN <= CHUNK_BYTES_DEFAULT && CHUNK_BYTES_DEFAULT <= CHUNK_BYTES_MAX);
const _: () = assert!(ENTRY_BODY_BYTES_MAX < u32::MAX as usize / 2, "an entry's length is 32 bits wide");
const _: () = assert!(BATCH_BYTES_MAX <= ENTRY_BODY_BYTES_MAX, "any batch fits an entry");
const _: () = assert!(APPEND_BYTES_MAX <= BATCH_BYTES_MAX, "a CALL has any append");
const _: () = assert!(BATCH_BYTES_MAX <= RECORDS_DECOMPRESSED_BYTES_MAX, "any batch can be iterated");
const _: () =
    assert!(SNAPSHOT_PART_BYTES <= SNAPSHOT_ENTRY_BYTES_MAX, "a part is no longer than a record may be");

const _: () = {
    assert!(
        CHUNK_BYTES_MIN.is_power_of_two() && CHUNK_BYTES_MAX.is_power_of_two(),
        "so are all sizes of chunks"
    );
    assert!(ENTRY_BODY_BYTES_MAX <= RECORDS_DECOMPRESSED_BYTES_MAX, "what is not compressed can be read");
    assert!(CALL_INFO_BYTES_MAX < CALL_BYTES_MAX, "a CALL has more than its description");
    assert!(SHARDS_PER_CALL_MAX >= SHARDS_PER_PAGE as usize, "a page of shards is asked for at once");
};
