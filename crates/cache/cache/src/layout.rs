//! The bytes of the two regions, as the backend writes them and as anybody reads them.
//!
//! All numbers are little endian. The backend is the only writer; readers copy and then check, because what they
//! copy may be torn anywhere: every function here that takes bytes answers `None` or an error for bytes that
//! make no sense, and never panics on them.
//!
//! # Index region (kind [`INDEX_KIND`])
//! ```text
//!    0  header                     at 0, HEADER_BYTES; written before the region is served, and again with each
//!                                  configuration, behind all buckets
//!        0   8  magic "TWINDEX1"
//!        8   8  config id          of the cell's configuration that the backend goes by, 0 before it knows one; a
//!                                  reader that knows another one exchanges configurations with the backend
//!       16   8  bucket count
//!       24   4  bucket bytes       BUCKET_BYTES
//!       28   2  ways               WAYS: entries of a bucket
//!       30   2  flags              bit 0: the backend is not refilled. Who does not know the flag takes this for a
//!                                  layout that it does not know, and asks the other replicas
//!                                  bit 1: the regions have moved to another place in memory, and this one is about
//!                                  to be emptied: whoever has it mapped connects again
//!       32   8  data generation    of the data region that belongs to this index
//!       40   8  XXH3-64 of bytes 0..40
//! 4096  bucket 0, bucket 1, ...    BUCKET_BYTES each, at a multiple of a cache line
//!
//! bucket
//!        0   8  config id          as in the header, but for the moment in which it changes
//!        8   8  flags              bit 0: a key that is not among the entries is to be asked for by a CALL
//!                                  bit 1: the backend is not refilled: it does not know whether there is such a key
//!                                  bit 2: entries of this bucket overflowed into the backend's private chain
//!                                  Bit 0 is set with each of the others. Who knows bit 0 alone asks by a CALL, which
//!                                  a backend that does not know refuses to whoever would take that for a miss
//!       16   8  zero
//!       24  40  index entry 0
//!       ..
//!      344  40  index entry 8
//!      384
//!
//! index entry
//!        0  16  key hash           XXH3-128 of the key
//!       16  16  version            timestamp (8), client id (4), sequence (4)
//!       32   8  pointer            offset / 64 in the upper 40 bits, length in the lower 24; 0: no entry
//! ```
//!
//! # Data region (kind [`DATA_KIND`])
//! Slabs and blocks of slabs, each cut into slots of one size. A slot holds one
//! ```text
//! item
//!        0   8  checksum           XXH3-64 of all that follows
//!        8   4  value length
//!       12   2  key length
//!       14   2  flags              bit 0: tombstone (only in mutation CALLs, never in a region); bit 1: extras;
//!                                bit 2, with bit 1 only: a token among them
//!       16  16  version
//!       32   k  key
//!     32+k   v  value
//!   32+k+v  16  extras             with bit 1 only; 24 bytes with bit 2
//!        0   8  expiry             milliseconds since the Unix epoch from which on there is no value; 0: never
//!        8   8  tag                what the application keeps beside the value
//!       16   8  token              with bit 2 only: what stands for the version, where the application has said so
//! ```
//! The checksum covers the extras. Whoever does not know bit 1 or 2 takes an item with it for torn, and never for
//! another value. An item with a bit that this code does not know is refused.
//!
//! An item certifies itself: whoever holds a copy whose lengths and checksum are right, and whose key is the
//! key looked for, holds a value that somebody SET for this key at this version, however it came by the bytes.

use std::hash::Hasher;

use bytes::{BufMut, Bytes, BytesMut};
use twox_hash::XxHash3_64;
use twox_hash::xxhash3_64::{RawHasher, SecretBuffer};
use xxhash_rust::xxh3::xxh3_128;

use crate::limits::{APART_BYTES_MIN, BUCKETS_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::version::Version;

/// `RegionInfo::kind` of the index region.
pub const INDEX_KIND: u16 = 1;
/// `RegionInfo::kind` of the data region.
pub const DATA_KIND: u16 = 2;

/// Bytes before the first bucket: a page, so that buckets begin at a cache line.
pub const HEADER_BYTES: u64 = 4096;
/// The part of the header that says something.
pub const HEADER_USED_BYTES: usize = 48;
/// A bucket.
pub const BUCKET_BYTES: usize = 384;
/// Index entries of a bucket.
pub const WAYS: usize = 9;
/// A bucket's bytes before its first entry.
pub const BUCKET_HEADER_BYTES: usize = 24;
/// An index entry.
pub const INDEX_ENTRY_BYTES: usize = 40;
/// Where in an index entry its pointer is.
pub const POINTER_OFFSET: usize = 32;
/// Where in a bucket its flags are.
pub const FLAGS_OFFSET: u64 = 8;
/// Flag of a bucket: a key that is not among its entries is to be asked for by a CALL. It is set with each other flag.
pub const FLAG_ASK: u64 = 1;
/// Flag of a bucket: its backend is not refilled, and does not know whether there is a key that it does not hold.
pub const FLAG_UNFILLED: u64 = 2;
/// Flag of a bucket: a key that is not among its entries may be in the chain.
pub const FLAG_CHAINED: u64 = 4;
/// Flag of an index header: the backend is not refilled.
const HEADER_UNFILLED: u16 = 1;
/// The same: its backend has moved to other memory.
const HEADER_MOVED: u16 = 2;
/// An item's bytes before its key.
pub const ITEM_HEADER_BYTES: usize = 32;
/// An item's bytes behind its value, where it has [`ItemExtras`] without a token.
pub const EXTRAS_BYTES: usize = 16;
/// The same with a token: the most there are.
pub const EXTRAS_BYTES_MAX: usize = 24;
/// Flag of an item: it erases.
const FLAG_TOMBSTONE: u16 = 1;
/// Flag of an item: extras are behind its value.
const FLAG_EXTRAS: u16 = 2;
/// Flag of an item with [`FLAG_EXTRAS`]: a token is among them.
const FLAG_TOKEN: u16 = 4;
const FLAGS_KNOWN: u16 = FLAG_TOMBSTONE | FLAG_EXTRAS | FLAG_TOKEN;

const MAGIC: u64 = u64::from_le_bytes(*b"TWINDEX1");
const OFFSET_UNIT: u64 = 64;
const LEN_BITS: u32 = 24;

const _: () = assert!(BUCKET_HEADER_BYTES + WAYS * INDEX_ENTRY_BYTES == BUCKET_BYTES);
const _: () = assert!(BUCKET_BYTES.is_multiple_of(64) && HEADER_BYTES.is_multiple_of(64));
const _: () = assert!(BUCKET_HEADER_BYTES.is_multiple_of(8) && INDEX_ENTRY_BYTES.is_multiple_of(8));
const _: () = assert!(crate::limits::ITEM_BYTES_MAX < 1 << LEN_BITS);
const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize);

/// A key's 128-bit hash. Two keys with the same hash take each other's place in the cache: the earlier one is
/// then missed, never mistaken, because a reader compares whole keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u128);

impl KeyHash {
    /// The hash of `key`.
    pub fn of(key: &[u8]) -> Self {
        Self(xxh3_128(key))
    }

    /// Its bucket among `buckets`, from the lower half: backends are chosen by the upper one.
    pub fn bucket(self, buckets: u64) -> u64 {
        Self::bucket_of(self.0 as u64, buckets)
    }

    /// The bucket among `buckets` of hashes with that lower half.
    pub fn bucket_of(low: u64, buckets: u64) -> u64 {
        scale(low, buckets)
    }

    /// The least lower half of a hash in a bucket among `buckets`, which is beyond it.
    pub fn low_of(bucket: u64, buckets: u64) -> u64 {
        (u128::from(bucket) << 64).div_ceil(u128::from(buckets.max(1))) as u64
    }
}

/// Maps 64 uniform bits to `0..bound`.
pub(crate) fn scale(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

/// The index region's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexHeader {
    /// The cell's configuration.
    pub config_id: u64,
    /// Number of buckets.
    pub buckets: u64,
    /// Generation of the data region that belongs to the index.
    pub data_generation: u64,
    /// Whether the backend holds what it should: otherwise its buckets say that a key is unknown, and not absent.
    pub is_filled: bool,
    /// Whether the regions are at another place in memory by now, and this one is about to be emptied.
    pub has_moved: bool,
}

impl IndexHeader {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HEADER_USED_BYTES] {
        let mut bytes = [0; HEADER_USED_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.config_id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.buckets.to_le_bytes());
        bytes[24..28].copy_from_slice(&(BUCKET_BYTES as u32).to_le_bytes());
        bytes[28..30].copy_from_slice(&(WAYS as u16).to_le_bytes());
        let unfilled = if self.is_filled { 0 } else { HEADER_UNFILLED };
        let flags = unfilled | if self.has_moved { HEADER_MOVED } else { 0 };
        bytes[30..32].copy_from_slice(&flags.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.data_generation.to_le_bytes());
        let checksum = xxh3_64(&bytes[..40]);
        bytes[40..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// A header out of foreign bytes; `None` if they are none, or describe a layout that this code does not
    /// know, or buckets that do not fit in `region_len` bytes.
    pub fn decode(bytes: &[u8; HEADER_USED_BYTES], region_len: u64) -> Option<Self> {
        let flags = u16::from_le_bytes([bytes[30], bytes[31]]);
        let header = Self {
            config_id: u64_at(bytes, 8)?,
            buckets: u64_at(bytes, 16)?,
            data_generation: u64_at(bytes, 32)?,
            is_filled: flags & HEADER_UNFILLED == 0,
            has_moved: flags & HEADER_MOVED != 0,
        };
        let fits = header.buckets >= 1
            && header.buckets <= BUCKETS_MAX
            && index_region_bytes(header.buckets) <= region_len;
        // Encoding again compares magic, sizes and checksum in one go.
        (fits && header.encode() == *bytes).then_some(header)
    }
}

/// Length of an index region of `buckets` buckets.
pub const fn index_region_bytes(buckets: u64) -> u64 {
    HEADER_BYTES + buckets * BUCKET_BYTES as u64
}

/// Where in the index region a bucket is.
pub const fn bucket_offset(bucket: u64) -> u64 {
    HEADER_BYTES + bucket * BUCKET_BYTES as u64
}

/// Where in the index region an index entry is.
pub const fn index_entry_offset(bucket: u64, way: usize) -> u64 {
    bucket_offset(bucket) + (BUCKET_HEADER_BYTES + way * INDEX_ENTRY_BYTES) as u64
}

/// Where an item is: offset and length in one word, so that no reader sees the one without the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pointer {
    /// First byte in the data region; a multiple of 64.
    pub offset: u64,
    /// Length of the item, not of its slot.
    pub len: u32,
}

impl Pointer {
    /// Its word, never 0.
    ///
    /// # Panics
    /// If the offset is not a multiple of 64 or beyond 64 TiB, or the length is 0 or beyond 16 MiB.
    pub fn to_word(self) -> u64 {
        assert!(self.offset.is_multiple_of(OFFSET_UNIT) && self.offset / OFFSET_UNIT < 1 << (64 - LEN_BITS));
        assert!(self.len > 0 && self.len < 1 << LEN_BITS);
        (self.offset / OFFSET_UNIT) << LEN_BITS | u64::from(self.len)
    }

    /// A pointer out of a foreign word; `None` if there is no item, or none that could be one.
    pub fn from_word(word: u64) -> Option<Self> {
        let len = (word & ((1 << LEN_BITS) - 1)) as u32;
        let plausible = len as usize >= ITEM_HEADER_BYTES && len as usize <= crate::limits::ITEM_BYTES_MAX;
        plausible.then_some(Self { offset: (word >> LEN_BITS) * OFFSET_UNIT, len })
    }
}

/// What a bucket says of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketView {
    /// An entry with the key's hash.
    Found {
        /// The version that the index names.
        version: Version,
        /// Where its data is.
        pointer: Pointer,
    },
    /// No entry, and none elsewhere.
    Absent,
    /// No entry here, but there may be one in the backend's chain.
    Overflowed,
    /// No entry here, and the backend does not know whether there is one: it is not refilled.
    Unknown,
    /// The bucket belongs to another configuration of the cell, or is no bucket.
    OtherConfig,
}

/// Looks for `hash` in a copy of a bucket.
pub fn scan_bucket(bucket: &[u8], hash: KeyHash, config_id: u64) -> BucketView {
    let Some(bucket) = bucket.first_chunk::<BUCKET_BYTES>() else { return BucketView::OtherConfig };
    let (header, entries) = bucket.split_at(BUCKET_HEADER_BYTES);
    if u64_at(header, 0) != Some(config_id) {
        return BucketView::OtherConfig;
    }
    let wanted = hash.0.to_le_bytes();
    for entry in entries.chunks_exact(INDEX_ENTRY_BYTES) {
        if entry[..16] != wanted {
            continue;
        }
        if let (Some(pointer), Some(version)) =
            (u64_at(entry, POINTER_OFFSET).and_then(Pointer::from_word), entry[16..].first_chunk())
        {
            return BucketView::Found { version: Version::from_bytes(version), pointer };
        }
    }
    let flags = u64_at(header, FLAGS_OFFSET as usize).unwrap_or_default();
    match (flags & FLAG_UNFILLED != 0, flags & FLAG_CHAINED != 0, flags & FLAG_ASK != 0) {
        (true, false, _) => BucketView::Unknown,
        (false, false, false) => BucketView::Absent,
        // In the chain, or said by a backend that knows bit 0 alone.
        _ => BucketView::Overflowed,
    }
}

/// Why bytes are not the item that was looked for. A reader treats all but the last alike: it has caught
/// the item being replaced, and looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ItemError {
    /// Fewer bytes than the item's own lengths say.
    #[error("incomplete: {needed} bytes needed, {got} are there")]
    Incomplete {
        /// Length of the whole item.
        needed: usize,
        /// Length of what was given.
        got: usize,
    },
    /// A length beyond its limit.
    #[error("a key of {key_len} or a value of {value_len} bytes is beyond the limits")]
    Lengths {
        /// As the header has it.
        key_len: usize,
        /// As the header has it.
        value_len: usize,
    },
    /// The checksum does not match.
    #[error("checksum mismatch")]
    Checksum,
    /// A later version of this program made it.
    #[error("flags {flags:#06x} are not known to this version")]
    Flags {
        /// As the header has them.
        flags: u16,
    },
}

/// What an item may have beside its value. The default has no bytes in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ItemExtras {
    /// From this time on there is no value: milliseconds since the Unix epoch. 0: it does not expire.
    pub expires_ms: u64,
    /// What the application keeps beside the value, and the cell does not look at.
    pub tag: u64,
    /// What stands for the value's version in place of [`Version::token`], if it is not 0.
    pub token: u64,
}

impl ItemExtras {
    /// Whether it has expired by a wall clock that shows `wall_ms`.
    pub fn is_expired(&self, wall_ms: i64) -> bool {
        self.expires_ms != 0 && u64::try_from(wall_ms).is_ok_and(|wall_ms| wall_ms >= self.expires_ms)
    }

    /// What stands for the value at that version.
    pub fn token_at(&self, version: Version) -> u64 {
        if self.token == 0 { version.token() } else { self.token }
    }

    fn to_bytes(self) -> [u8; EXTRAS_BYTES_MAX] {
        let mut bytes = [0; EXTRAS_BYTES_MAX];
        bytes[..8].copy_from_slice(&self.expires_ms.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tag.to_le_bytes());
        bytes[16..].copy_from_slice(&self.token.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let word = |at| u64_at(bytes, at).unwrap_or_default();
        Self { expires_ms: word(0), tag: word(8), token: word(16) }
    }

    /// Its bytes in an item.
    fn len(self) -> usize {
        Self::len_by(self.flags())
    }

    /// The flags of an item that has them.
    fn flags(self) -> u16 {
        match self {
            Self { token: 1.., .. } => FLAG_EXTRAS | FLAG_TOKEN,
            _ if self == Self::default() => 0,
            _ => FLAG_EXTRAS,
        }
    }

    /// Their bytes in an item with such flags.
    fn len_by(flags: u16) -> usize {
        match (flags & FLAG_EXTRAS, flags & FLAG_TOKEN) {
            (0, _) => 0,
            (_, 0) => EXTRAS_BYTES,
            _ => EXTRAS_BYTES_MAX,
        }
    }
}

/// An item, checked, borrowing from a private copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// All of it.
    pub bytes: &'a [u8],
    /// Its version.
    pub version: Version,
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// What it has beside that.
    pub extras: ItemExtras,
    /// It erases the key.
    pub tombstone: bool,
}

impl<'a> Item<'a> {
    /// The item that `bytes` begin with, checked in everything but whose it is.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ItemError> {
        let ItemHeader { value_len, key_len, flags, version } = ItemHeader::parse(bytes)?;
        let needed = ITEM_HEADER_BYTES + key_len + value_len + ItemExtras::len_by(flags);
        let Some(bytes) = bytes.get(..needed) else {
            return Err(ItemError::Incomplete { needed, got: bytes.len() });
        };
        if u64_at(bytes, 0) != Some(xxh3_64(&bytes[8..])) {
            return Err(ItemError::Checksum);
        }
        let (key, rest) = bytes[ITEM_HEADER_BYTES..].split_at(key_len);
        let (value, extras) = rest.split_at(value_len);
        let extras = ItemExtras::from_bytes(extras);
        Ok(Self { bytes, version, key, value, extras, tombstone: flags & FLAG_TOMBSTONE != 0 })
    }

    /// Where in [`Item::bytes`] the value begins.
    pub fn value_offset(&self) -> usize {
        ITEM_HEADER_BYTES + self.key.len()
    }
}

/// An item's header, its lengths within the limits.
struct ItemHeader {
    value_len: usize,
    key_len: usize,
    flags: u16,
    version: Version,
}

impl ItemHeader {
    fn parse(bytes: &[u8]) -> Result<Self, ItemError> {
        let Some(header) = bytes.first_chunk::<ITEM_HEADER_BYTES>() else {
            return Err(ItemError::Incomplete { needed: ITEM_HEADER_BYTES, got: bytes.len() });
        };
        let [_, _, _, _, _, _, _, _, v0, v1, v2, v3, k0, k1, f0, f1, version @ ..] = header;
        let value_len = u32::from_le_bytes([*v0, *v1, *v2, *v3]) as usize;
        let key_len = usize::from(u16::from_le_bytes([*k0, *k1]));
        let flags = u16::from_le_bytes([*f0, *f1]);
        if value_len > VALUE_BYTES_MAX || key_len > KEY_BYTES_MAX {
            return Err(ItemError::Lengths { key_len, value_len });
        }
        if flags & !FLAGS_KNOWN != 0 {
            return Err(ItemError::Flags { flags });
        }
        Ok(Self { value_len, key_len, flags, version: Version::from_bytes(version) })
    }
}

/// Bytes of an item of `key` before its value.
pub fn head_bytes(key: &[u8]) -> usize {
    ITEM_HEADER_BYTES + key.len()
}

/// What an item says whose value came apart from what is before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemApart {
    /// Its version.
    pub version: Version,
    /// The length of its value, which is what comes first behind the head.
    pub value_len: usize,
    /// What it has beside the value.
    pub extras: ItemExtras,
}

/// What an item of `key` says whose first [`head_bytes`] are `head`, and which goes on with `rest`: the value, its
/// extras if it has any, and what is behind it. `None` if it is another key's, none at all, or erases the key, or if
/// its value is shorter than `unchecked_from` bytes and its checksum is not that of its bytes.
pub fn parse_apart(key: &[u8], head: &[u8], rest: &[u8], unchecked_from: usize) -> Option<ItemApart> {
    let ItemHeader { value_len, key_len, flags, version } = ItemHeader::parse(head).ok()?;
    let is_of_key = key_len == key.len() && head.get(ITEM_HEADER_BYTES..) == Some(key);
    if !is_of_key || flags & FLAG_TOMBSTONE != 0 {
        return None;
    }
    let has_extras = flags & FLAG_EXTRAS != 0;
    let covered = rest.get(..value_len + ItemExtras::len_by(flags))?;
    let extras = ItemExtras::from_bytes(&covered[value_len..]);
    // Who checks values by themselves knows nothing of extras.
    if value_len >= unchecked_from && !has_extras {
        return Some(ItemApart { version, value_len, extras });
    }
    (u64_at(head, 0) == Some(checksum_of([head, covered]))).then_some(ItemApart {
        version,
        value_len,
        extras,
    })
}

/// Writes the item of a SET (`value`) or of an ERASE (`None`), without extras.
///
/// # Panics
/// If key or value are beyond their limits, which the caller has checked.
pub fn encode_item(key: &[u8], version: Version, value: Option<&[u8]>) -> Bytes {
    encode_item_with(key, version, value, ItemExtras::default())
}

/// The same with extras; an ERASE has none.
///
/// # Panics
/// As [`encode_item`].
fn encode_item_with(key: &[u8], version: Version, value: Option<&[u8]>, extras: ItemExtras) -> Bytes {
    let more = value.map_or(0, <[u8]>::len) + EXTRAS_BYTES_MAX;
    let mut bytes = encode_head(key, version, value, extras, more);
    bytes.put_slice(value.unwrap_or_default());
    if value.is_some() {
        bytes.put_slice(&extras.to_bytes()[..extras.len()]);
    }
    let checksum = xxh3_64(&bytes[8..]);
    bytes[..8].copy_from_slice(&checksum.to_le_bytes());
    bytes.freeze()
}

/// An item on its way to a backend.
#[derive(Clone, Debug)]
pub struct EncodedItem {
    /// All of it, or what is before `value`.
    head: Bytes,
    /// The caller's own memory, or nothing.
    value: Bytes,
    /// What is behind that, or nothing.
    tail: Bytes,
}

impl EncodedItem {
    /// What [`encode_item`] writes, with extras; a value that is at least [`APART_BYTES_MIN`] long is not copied.
    ///
    /// # Panics
    /// As [`encode_item`].
    pub fn new(key: &[u8], version: Version, value: Option<&Bytes>, extras: ItemExtras) -> Self {
        let Some(value) = value.filter(|value| value.len() >= APART_BYTES_MIN) else {
            let head = encode_item_with(key, version, value.map(|value| &value[..]), extras);
            return Self { head, value: Bytes::new(), tail: Bytes::new() };
        };
        let mut head = encode_head(key, version, Some(value), extras, 0);
        let tail = Bytes::copy_from_slice(&extras.to_bytes()[..extras.len()]);
        let checksum = checksum_of([&head, value, &tail]);
        head[..8].copy_from_slice(&checksum.to_le_bytes());
        Self { head: head.freeze(), value: value.clone(), tail }
    }

    /// Its bytes, in up to three pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &Bytes> + Clone {
        [&self.head, &self.value, &self.tail].into_iter().filter(|piece| !piece.is_empty())
    }

    /// Its length.
    #[allow(clippy::len_without_is_empty)] // an item has a header
    pub fn len(&self) -> usize {
        self.head.len() + self.value.len() + self.tail.len()
    }
}

/// An item's bytes before its value, without a checksum, and room for `more` bytes.
fn encode_head(
    key: &[u8],
    version: Version,
    value: Option<&[u8]>,
    extras: ItemExtras,
    more: usize,
) -> BytesMut {
    let value_len = value.map_or(0, <[u8]>::len);
    assert!(key.len() <= KEY_BYTES_MAX && value_len <= VALUE_BYTES_MAX);
    let flags = match value {
        None => FLAG_TOMBSTONE,
        Some(_) => extras.flags(),
    };
    let mut head = BytesMut::with_capacity(head_bytes(key) + more);
    head.put_u64_le(0);
    head.put_u32_le(value_len as u32);
    head.put_u16_le(key.len() as u16);
    head.put_u16_le(flags);
    head.put_slice(&version.to_bytes());
    head.put_slice(key);
    head
}

/// The checksum of an item in pieces, the first of which begins with the checksum, which is not looked at.
fn checksum_of<const N: usize>(pieces: [&[u8]; N]) -> u64 {
    let mut checksum = RawHasher::new(SecretBuffer::default());
    for (at, piece) in pieces.into_iter().enumerate() {
        checksum.write(&piece[if at == 0 { 8 } else { 0 }..]);
    }
    checksum.finish()
}

/// XXH3-64, by the widest instructions that this machine has: it is most of what a get of a hot key costs.
pub(crate) fn xxh3_64(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests;
