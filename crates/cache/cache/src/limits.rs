//! Everything that a peer, a caller or time could make grow, with its bound and the reason for it.

use std::time::Duration;

/// The longest key, in bytes. Keys of the log are 48 bytes; this leaves room for names.
pub const KEY_BYTES_MAX: usize = 1024;

/// The longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// A value of so many bytes goes to the backends from where it is, behind the item's head. Of 64 KiB that took a fifth
/// of the time of encoding and sending; at 4 KiB a piece more costs more than the copy.
pub const APART_BYTES_MIN: usize = 32 << 10;

/// The longest item, in bytes: header, key, value and extras.
pub const ITEM_BYTES_MAX: usize =
    crate::layout::ITEM_HEADER_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX + crate::layout::EXTRAS_BYTES_MAX;

/// A slab of small slots, in bytes: what moves at a time from one slot size to another. Seventeen chunks of
/// 4 KiB with their headers and keys fit in with 3 % to spare.
pub const SLAB_BYTES: u64 = 73_728;

/// Slabs of a block. A block is the slab of large slots, and its one slot of the greatest size holds the longest
/// item.
pub const SLABS_PER_BLOCK: u32 = 16;

/// A block, in bytes.
pub const BLOCK_BYTES: u64 = SLAB_BYTES * SLABS_PER_BLOCK as u64;

/// The smallest data region, in blocks: one to read from, one to write to, whatever the mix of sizes.
pub const BLOCKS_MIN: u64 = 4;

/// The largest data region, in blocks: 16 TiB. Slabs are numbered in 32 bits.
pub const BLOCKS_MAX: u64 = 1 << 24;

/// The most buckets of a backend: 24 GiB of index, for 600 million keys.
pub const BUCKETS_MAX: u64 = 1 << 26;

/// How long a freed slot rests before it is written again, if there is other room. A reader that has seen its
/// pointer has that long to fetch the data: some round trips of a local network.
pub const SLOT_REST: Duration = Duration::from_millis(2);

/// The longest chain of items that did not fit in one bucket. A LOOKUP walks it.
pub const OVERFLOW_CHAIN_MAX: usize = 64;

/// The most tombstones of a backend, at about 100 bytes each; older ones are merged into one summary version.
pub const TOMBSTONES_MAX: usize = 16_384;

/// The most items that one sweep expires, so that it holds the table's lock for less than a millisecond.
pub const SWEEP_ITEMS_MAX: usize = 1_024;

/// Items of a batch that are applied under one hold of the table's lock.
pub const APPLY_ITEMS_MAX: usize = 64;

/// The most bytes of items in one mutation CALL, below what a CALL may carry by the room for its frame and
/// for one item of the greatest length.
pub const MUTATE_BYTES_MAX: usize = 4 << 20;

/// The most items in one mutation CALL. Small items cost the backend about 0.3 us each.
pub const MUTATE_ITEMS_MAX: usize = 8_192;

/// Buckets that take over another configuration under one hold of the table's lock: some hundred microseconds.
pub const BUCKETS_PER_STEP: u64 = 4_096;

/// Buckets that one SCAN tells of: some ten thousand keys at most, of 32 bytes each, but for chains.
pub const BUCKETS_PER_SCAN: u64 = 1_024;

/// How long a mutation may be under way, at most, as far as comparisons of backends tell what one has missed: by wall
/// clocks that differ by as much as [`JOIN_CLOCKS_APART`].
pub const MUTATIONS_SETTLE: Duration = Duration::from_secs(3);

/// How far wall clocks of one network differ, at most, as far as acknowledgements count that were under way when a
/// backend died: what has a version further ahead may be lost with the other replica that has it. SETs right behind a
/// backend's start have versions ahead by as much.
pub const JOIN_CLOCKS_APART: Duration = Duration::from_secs(1);

/// Payload bytes up to which a CALL is carried out by the engine that received it: some tens of microseconds.
pub const SHORT_CALL_BYTES_MAX: usize = 256 << 10;

/// The most hashes in one LOOKUP.
pub const LOOKUP_KEYS_MAX: usize = 1_024;

/// The most bytes of items in one LOOKUP's answer; hashes whose items do not fit are answered `deferred`
/// and asked again. Holds the greatest item, and half of what a CALL may carry.
pub const LOOKUP_BYTES_MAX: usize = 4 << 20;

/// Keys that are looked up together. A call with more of them is cut into groups of this many.
pub const KEYS_PER_LOOKUP_MAX: usize = 1_024;

/// Bytes of items that are fetched by one batch of READs into one buffer. Values borrow from that
/// buffer, so this is also the most that one retained value can keep from being freed, but for a value that is
/// longer by itself.
pub const DATA_BYTES_PER_READ: usize = 256 << 10;

/// The longest SCAR answer that is asked for at once: operations per batch.
pub const SCAR_OPS_MAX: usize = 64;

/// How often one replica is read again when its answer was torn.
pub const TORN_RETRIES_MAX: u32 = 3;

/// How often a consistent read begins again when the replicas' versions do not agree, or the data of the
/// version agreed on was gone.
pub const QUORUM_ROUNDS_MAX: u32 = 4;

/// The most backends of one cell.
pub const BACKENDS_MAX: usize = 1_024;

/// The most spares of one cell: one for each backend that may be under maintenance at a time.
pub const SPARES_MAX: usize = 64;

/// The longest name of a cell, in bytes: it is part of a socket's name, which is 107 bytes at most.
pub const NAME_BYTES_MAX: usize = 48;

/// The most addresses of one backend: each transport on two networks.
pub const ADDRESSES_MAX: usize = 4;

/// The longest address, in bytes: a Unix socket's path is 107 at most, and a host's name 255.
pub const ADDRESS_BYTES_MAX: usize = 270;

/// The longest configuration of a cell, in bytes: more than 1,024 backends with four addresses of usual length. It is a
/// value of metadata and fits in one CALL.
pub const CONFIGURATION_BYTES_MAX: usize = 256 << 10;

/// Clients that wait at one backend for its next configuration, at most: one for each connection of a large cell's
/// clients. If there are more, those who wait longest ask again.
pub const CONFIG_WAITS_MAX: usize = 4_096;

/// The longest that one of them waits before it is answered with what there is: a connection on which a CALL waits is
/// not taken for idle, so a client that is gone without a word has to be noticed.
pub const CONFIG_WAIT_MAX: Duration = Duration::from_secs(60);

/// How long a backend that has left its cell is looked for, to be told so: longer than a process or a host takes to
/// start again.
pub const TELL_LEFT_MAX: Duration = Duration::from_secs(600);

/// The longest pause between two attempts at that: all of the cell's clients look for it.
pub const TELL_LEFT_PAUSE_MAX: Duration = Duration::from_secs(10);

/// How long the regions that a backend has moved from are kept as they were: readers that have mapped them look every
/// four seconds whether they have moved, and then connect again.
pub const OLD_PLACE_KEPT: Duration = Duration::from_secs(8);
/// Bytes that are copied at once from there, with the table locked.
pub const MOVED_BYTES_PER_STEP: usize = 256 << 10;
/// Bytes that are copied before others have a turn.
pub const MOVED_BYTES_PER_PAUSE: u64 = 4 << 20;
/// How long that is.
pub const MOVED_PAUSE: Duration = Duration::from_millis(1);

/// How long a seed has to tell its cell's configuration, at least: a connection, and an answer from a backend that may
/// share its cores with much else.
pub const SEED_DEADLINE: Duration = Duration::from_secs(2);

/// How often a read or a mutation is made again by another configuration of its cell: each replica of a key, before and
/// after a change of backends, may be the one that goes by another one.
pub const CONFIGURATION_RETRIES_MAX: u32 = 8;

/// Idle buffers that a process keeps per cell handle family, in count and bytes.
pub const BUFFERS_KEPT_MAX: usize = 32;
/// The longest buffer that is kept, in bytes.
pub const BUFFER_KEPT_BYTES_MAX: usize = 2 * DATA_BYTES_PER_READ;

/// Mutation CALLs that one sender has under way at a time. Two keep the backend busy while an answer travels;
/// more would only make the batches smaller.
pub const MUTATE_CALLS_IN_FLIGHT: usize = 2;

/// Keys that a client notes as read before it tells backends, at most. Those that it has read first are noted, and the
/// keys that are read most are mostly among them.
pub const TOUCHED_KEYS_MAX: usize = 8_192;

/// How long a client gathers such keys. A key that is read all the time is told of so often. Backends of a cell with
/// 1,000 clients take 2,000 CALLs a second.
pub const TOUCH_EVERY: Duration = Duration::from_millis(500);

/// Keys in one CALL that tells of them, at most: 64 KiB.
pub const TOUCHES_PER_CALL_MAX: usize = 4_096;

/// Keys that a backend notes as read under one hold of the table's lock: some tens of microseconds.
pub const TOUCHES_PER_STEP: usize = 256;

/// Changes that a backend keeps for those who follow them, at most: 2 MiB. Who is further behind is told that
/// any key may have changed.
pub const CHANGES_KEPT_MAX: usize = 65_536;

/// Changes that a follower knows of from some of their backends and not from all, at most. If there are more, any key
/// may have changed.
pub const CHANGES_OPEN_MAX: usize = 262_144;

/// Changes in one answer, at most: 512 KiB.
pub const CHANGES_PER_REPLY_MAX: usize = 16_384;

/// Clients that wait at one backend for the next change, at most. If there are more, those who wait longest ask again.
pub const CHANGES_WAITS_MAX: usize = 4_096;

/// How long one of them waits before it is told that there was no change: what says how fresh a follower is.
pub const CHANGES_WAIT: Duration = Duration::from_millis(500);

/// A backend that nobody has asked for its changes for so long keeps none.
pub const CHANGES_FOLLOWED: Duration = Duration::from_secs(60);

/// How far ahead of the own clock another client's version may be: a client follows none that is further ahead, and a
/// backend takes none.
pub const VERSION_AHEAD_MAX: Duration = Duration::from_secs(3600);

/// How long a backend keeps a value that has expired by its own clock: longer than clocks of one network differ, so
/// that readers stop seeing it by their own clocks, all at their time, and not at the backends'.
pub const EXPIRED_KEPT: Duration = Duration::from_secs(2);

/// How often an update begins again that met another one of the same key.
pub const UPDATE_ROUNDS_MAX: u32 = 16;

/// How often a SET that lost against another client's higher version, or was not above what backends take behind the
/// start of another one, is made again with a higher one. Each backend of a cell may start.
pub const SUPERSEDED_RETRIES_MAX: u32 = 6;

const _: () = assert!(ITEM_BYTES_MAX as u64 <= BLOCK_BYTES && SLAB_BYTES.is_multiple_of(64));
const _: () = assert!(MUTATE_BYTES_MAX + ITEM_BYTES_MAX + 64 <= tailwater_rma::CALL_BYTES_MAX);
const _: () = assert!(LOOKUP_BYTES_MAX + 8 * LOOKUP_KEYS_MAX + 64 <= tailwater_rma::CALL_BYTES_MAX);
const _: () = assert!(LOOKUP_BYTES_MAX >= ITEM_BYTES_MAX);
const _: () = assert!(ITEM_BYTES_MAX <= 2 * tailwater_rma::READ_BYTES_MAX as usize);

const _: () = {
    assert!(CONFIGURATION_BYTES_MAX + 64 <= tailwater_rma::CALL_BYTES_MAX, "a configuration is one CALL");
    assert!(BACKENDS_MAX + SPARES_MAX <= u16::MAX as usize && NAME_BYTES_MAX <= u8::MAX as usize);
    assert!(
        BLOCKS_MIN <= BLOCKS_MAX && BLOCKS_MAX * BLOCK_BYTES < u64::MAX / 2,
        "any number of blocks is a region"
    );
    assert!(VALUE_BYTES_MAX <= tailwater_rma::READ_BYTES_MAX as usize, "two READs get any item");
    assert!(APPLY_ITEMS_MAX <= MUTATE_ITEMS_MAX, "a step is part of a call");
    assert!(SHORT_CALL_BYTES_MAX < MUTATE_BYTES_MAX, "a short call is shorter than the longest");
    assert!(KEYS_PER_LOOKUP_MAX <= LOOKUP_KEYS_MAX, "what a client asks at once is answered");
    assert!(SCAR_OPS_MAX <= tailwater_rma::limits::BATCH_OPS_MAX, "SCARs go out in one batch");
    assert!(DATA_BYTES_PER_READ <= tailwater_rma::READ_BYTES_MAX as usize, "a READ of data is a READ");
    assert!(BUFFER_KEPT_BYTES_MAX >= DATA_BYTES_PER_READ, "a usual buffer is kept");
};
