//! What a client or a peer may ask for at most.

/// Bytes of a region's name.
pub const REGION_BYTES_MAX: usize = 63;
/// Bytes of a stream's name, its region included.
pub const STREAM_BYTES_MAX: usize = 255;
/// Bytes of an event's key.
pub const KEY_BYTES_MAX: usize = 1024;
/// Headers of one event.
pub const HEADERS_MAX: usize = 32;
/// Bytes of a header's name or value.
pub const HEADER_BYTES_MAX: usize = 1024;
/// Bytes of an event's payload.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Bytes of a predicate's text.
pub const PREDICATE_BYTES_MAX: usize = 4096;
/// Bytes of the encoded events of one batch.
pub const BATCH_BYTES_MAX: usize = 2 << 20;
/// Events of one batch, tombstoned ones not counted.
pub const BATCH_EVENTS_MAX: u32 = 1 << 20;
/// Memory that the index takes for the key of an event, at most.
pub const KEY_INDEX_BYTES_MAX: u64 = 48;
/// Bytes of a stream's events that may be on their way down the chain; beyond it publishers are refused, and nothing
/// more is taken from other regions.
pub const UNSETTLED_BYTES_MAX: usize = 64 << 20;
/// Streams of all regions that one proxy carries; what is advertised or told beyond it is left out.
pub const STREAMS_MAX: usize = 4096;
/// Streams that are not there which a proxy's listeners name, all of them together: of each those beyond the first
/// [`ABSENT_EACH`], so that whoever names very many keeps nobody out who names a few.
pub const ABSENT_MAX: usize = 1 << 17;
/// See [`ABSENT_MAX`].
pub const ABSENT_EACH: usize = 16;
/// Publishers that one stream remembers, but for those that wait for answers; beyond it the one that was idle longest
/// is forgotten.
pub const PUBLISHERS_MAX: usize = 65_536;

const _: () = {
    assert!(REGION_BYTES_MAX < STREAM_BYTES_MAX, "a stream's name has its region's in it");
    assert!(
        STREAM_BYTES_MAX + KEY_BYTES_MAX + 2 * HEADERS_MAX * HEADER_BYTES_MAX + PAYLOAD_BYTES_MAX
            < BATCH_BYTES_MAX,
        "any event fits a batch"
    );
    assert!(ABSENT_EACH <= ABSENT_MAX, "who names a few has room");
};
