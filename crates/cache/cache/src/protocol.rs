//! The payloads of a backend's CALLs.
//!
//! Protocol-buffer messages in which everything that repeats is packed, so that decoding a payload never takes
//! more than a small multiple of its own size. Items travel as the items that the backend puts into its
//! region, checksum and all: what a reader validates is what the writer made.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use crate::layout::KeyHash;
use crate::version::Version;

/// SETs and ERASEs: [`MutateRequest`] to [`MutateReply`].
pub const METHOD_MUTATE: u16 = 0x0101;
/// Items of keys whose bucket overflowed: [`LookupRequest`] to [`LookupReply`].
pub const METHOD_LOOKUP: u16 = 0x0102;
/// Layout and counters: no payload to [`InfoReply`].
pub const METHOD_INFO: u16 = 0x0103;
/// Forgets everything: no payload to no payload.
pub const METHOD_CLEAR: u16 = 0x0104;
/// Which configuration of its cell the backend goes by: [`ConfigRequest`], or nothing, to [`ConfigReply`].
pub const METHOD_CONFIG: u16 = 0x0105;
/// Tells the backend a configuration of its cell: [`ConfigureRequest`] to [`ConfigReply`], with the one that it goes by
/// afterwards, which is the greater one of the two.
pub const METHOD_CONFIGURE: u16 = 0x0106;

/// Asks what is held of one key, and that nothing of it at a lower version is applied any more: [`PromiseRequest`] to
/// [`PromiseReply`].
pub const METHOD_PROMISE: u16 = 0x0107;
/// SETs and ERASEs at versions that were promised, each applied only if nothing was applied to its key, no higher
/// version promised or copied, and no backend has joined since: [`MutateRequest`] to [`MutateReply`].
pub const METHOD_ACCEPT: u16 = 0x0108;

/// A backend that has started says so to another one of its cell: [`JoinRequest`] to [`JoinReply`]. What was under way
/// to its start before is not applied from then on.
pub const METHOD_JOIN: u16 = 0x0109;
/// Which keys a backend holds, and at which versions: [`ScanRequest`] to [`ScanReply`].
pub const METHOD_SCAN: u16 = 0x010a;
/// Asks a backend that holds nothing to end, for whoever runs it to start it again: no payload to no payload.
pub const METHOD_END: u16 = 0x010b;

/// Begins or ends a load into a cell whose keys can't be changed one by one: [`LoadRequest`] to [`LoadReply`].
pub const METHOD_LOAD: u16 = 0x010c;

/// Which keys a client has read one-sidedly: [`TouchRequest`] to [`TouchReply`]. A hint for evictions.
pub const METHOD_TOUCH: u16 = 0x010d;
/// Which keys have changed at a backend since a place in the order of its changes: [`ChangesRequest`] to
/// [`ChangesReply`]. Answered when some have, or after a while.
pub const METHOD_CHANGES: u16 = 0x010e;

/// `Refusal::code`: the payload is not what the method takes.
pub const REFUSED_MALFORMED: u16 = 1;
/// `Refusal::code`: the caller knows another configuration of the cell.
pub const REFUSED_CONFIG: u16 = 2;
/// `Refusal::code`: no such method.
pub const REFUSED_METHOD: u16 = 3;
/// The peer may not do that.
pub const REFUSED_NOT_AUTHORIZED: u16 = 4;
/// `Refusal::code`: a version is further ahead of the backend's clock than any clock should be.
pub const REFUSED_VERSION: u16 = 5;
/// `Refusal::code`: the backend has started again and does not know yet what it would answer or apply.
pub const REFUSED_UNFILLED: u16 = 6;
/// `Refusal::code`: the backend does not end: it holds keys, or does not run as a process of its own.
pub const REFUSED_END: u16 = 7;

/// `Refusal::code`: the cell's keys can't be changed one by one, or this load is not the one that is under way.
pub const REFUSED_IMMUTABLE: u16 = 8;
/// `Refusal::code`: there is no room, in a cell of which nothing is removed for that.
pub const REFUSED_NO_ROOM: u16 = 9;

/// A load of all that a cell holds.
#[derive(Clone, PartialEq, Message)]
pub struct LoadRequest {
    /// The configuration that the caller knows.
    #[prost(fixed64, tag = "1")]
    pub config_id: u64,
    /// Which load it is: its keys begin with these eight bytes, the highest first.
    #[prost(fixed64, tag = "2")]
    pub generation: u64,
    /// All of it was set. Otherwise it begins, and what other loads that are not read have left is forgotten.
    #[prost(bool, tag = "3")]
    pub is_complete: bool,
}

/// What a backend has room for.
#[derive(Clone, PartialEq, Message)]
pub struct LoadReply {
    /// Bytes of items, beside those that it holds.
    #[prost(uint64, tag = "1")]
    pub room_bytes: u64,
}

/// What somebody knows who asks for a backend's configuration.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigRequest {
    /// 0: the answer comes at once. Otherwise it comes when the backend goes by a configuration with a greater id than
    /// this, or sooner, with what there is, when too many wait.
    #[prost(uint64, tag = "1")]
    pub after: u64,
}

/// A configuration, for the backend with that number.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigureRequest {
    /// [`crate::Configuration::encode`].
    #[prost(bytes = "bytes", tag = "1")]
    pub configuration: Bytes,
    /// Which backend it is that is told. One that the configuration does not have holds nothing from then on.
    #[prost(uint32, tag = "2")]
    pub number: u32,
}

/// The configuration that a backend goes by.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigReply {
    /// [`crate::Configuration::encode`]; empty if it knows none, or was started with an id that never changes.
    #[prost(bytes = "bytes", tag = "1")]
    pub configuration: Bytes,
    /// Which backend it is, by what it was told.
    #[prost(uint32, tag = "2")]
    pub number: u32,
}

/// A batch of SETs and ERASEs.
#[derive(Clone, PartialEq, Message)]
pub struct MutateRequest {
    /// The configuration that the caller knows.
    #[prost(fixed64, tag = "1")]
    pub config_id: u64,
    /// Items, one after the other.
    #[prost(bytes = "bytes", tag = "2")]
    pub items: Bytes,
}

/// What became of each item of a batch.
#[derive(Clone, PartialEq, Message)]
pub struct MutateReply {
    /// One code for each item: 0 applied, 1 superseded, 2 below the summary version.
    #[prost(uint32, repeated, tag = "1")]
    pub codes: Vec<u32>,
    /// For each code but `Applied`, in their order, the version that stood against it, 16 bytes each.
    #[prost(bytes = "bytes", tag = "2")]
    pub held: Bytes,
}

/// What became of one SET or ERASE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds, or did already.
    Applied,
    /// The backend holds this key, or erased it, at this higher version.
    Superseded(Version),
    /// The backend promised somebody this version, or does not know the key, and erased some keys at this version that
    /// it does not remember: it applies nothing at a version that is not higher.
    BelowSummary(Version),
}

const CODE_APPLIED: u32 = 0;
const CODE_SUPERSEDED: u32 = 1;
const CODE_BELOW_SUMMARY: u32 = 2;

/// Encodes a [`MutateRequest`] of items, whole or in pieces, as pieces that are not copied together.
pub fn encode_mutate<'a>(config_id: u64, items: impl Iterator<Item = &'a Bytes> + Clone) -> Vec<Bytes> {
    let items_bytes: usize = items.clone().map(Bytes::len).sum();
    let mut fields = BytesMut::new();
    encode_key(1, WireType::SixtyFourBit, &mut fields);
    fields.put_u64_le(config_id);
    encode_key(2, WireType::LengthDelimited, &mut fields);
    encode_varint(items_bytes as u64, &mut fields);
    std::iter::once(fields.freeze()).chain(items.cloned()).collect()
}

impl MutateReply {
    /// The answer for `outcomes`.
    pub fn of(outcomes: &[Outcome]) -> Self {
        let mut held = BytesMut::new();
        let codes = outcomes
            .iter()
            .map(|outcome| match outcome {
                Outcome::Applied => CODE_APPLIED,
                Outcome::Superseded(version) => {
                    held.put_slice(&version.to_bytes());
                    CODE_SUPERSEDED
                }
                Outcome::BelowSummary(version) => {
                    held.put_slice(&version.to_bytes());
                    CODE_BELOW_SUMMARY
                }
            })
            .collect();
        Self { codes, held: held.freeze() }
    }

    /// The outcomes of `count` items; `None` if the answer does not have that many, or makes no sense.
    pub fn outcomes(&self, count: usize) -> Option<Vec<Outcome>> {
        if self.codes.len() != count {
            return None;
        }
        let mut held = self.held.chunks_exact(Version::BYTES);
        self.codes
            .iter()
            .map(|code| {
                let mut held = || held.next()?.first_chunk().map(Version::from_bytes);
                match *code {
                    CODE_APPLIED => Some(Outcome::Applied),
                    CODE_SUPERSEDED => held().map(Outcome::Superseded),
                    CODE_BELOW_SUMMARY => held().map(Outcome::BelowSummary),
                    _ => None,
                }
            })
            .collect()
    }
}

/// Asks for a promise.
#[derive(Clone, PartialEq, Message)]
pub struct PromiseRequest {
    /// The configuration that the caller knows.
    #[prost(fixed64, tag = "1")]
    pub config_id: u64,
    /// The key's hash, 16 bytes, little endian.
    #[prost(bytes = "bytes", tag = "2")]
    pub hash: Bytes,
    /// The version at which the caller is going to change the key, 16 bytes.
    #[prost(bytes = "bytes", tag = "3")]
    pub version: Bytes,
}

/// What came of it.
#[derive(Clone, PartialEq, Message)]
pub struct PromiseReply {
    /// 0: promised, and the key is held. 1: promised, and it is not. 2: not promised.
    #[prost(uint32, tag = "1")]
    pub code: u32,
    /// 0: the item. 1: the version that the key was erased at, or zeros. 2: the version that stands against it.
    #[prost(bytes = "bytes", tag = "2")]
    pub state: Bytes,
}

/// What a backend has of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromiseState {
    /// Bytes that claim to be its item.
    Held(Bytes),
    /// Nothing; it was erased at this version, or [`Version::ZERO`] if the backend does not know of that.
    Gone(Version),
}

const CODE_PROMISED_HELD: u32 = 0;
const CODE_PROMISED_GONE: u32 = 1;
const CODE_NOT_PROMISED: u32 = 2;

impl PromiseRequest {
    /// A request for one key.
    pub fn of(config_id: u64, hash: KeyHash, version: Version) -> Self {
        let copied = |bytes: [u8; 16]| Bytes::copy_from_slice(&bytes);
        Self { config_id, hash: copied(hash.0.to_le_bytes()), version: copied(version.to_bytes()) }
    }

    /// Its key's hash and its version; `None` if they are not 16 bytes each.
    pub fn parts(&self) -> Option<(KeyHash, Version)> {
        let hash = <[u8; 16]>::try_from(&self.hash[..]).ok()?;
        let version = <[u8; 16]>::try_from(&self.version[..]).ok()?;
        Some((KeyHash(u128::from_le_bytes(hash)), Version::from_bytes(&version)))
    }
}

impl PromiseReply {
    /// The answer with what there is, or with the version that stands against the promise.
    pub fn of(promised: Result<PromiseState, Version>) -> Self {
        let version = |code, version: Version| (code, Bytes::copy_from_slice(&version.to_bytes()));
        let (code, state) = match promised {
            Ok(PromiseState::Held(item)) => (CODE_PROMISED_HELD, item),
            Ok(PromiseState::Gone(erased)) => version(CODE_PROMISED_GONE, erased),
            Err(against) => version(CODE_NOT_PROMISED, against),
        };
        Self { code, state }
    }

    /// What it says; `None` if it makes no sense.
    pub fn promised(self) -> Option<Result<PromiseState, Version>> {
        let version = || <[u8; 16]>::try_from(&self.state[..]).ok().map(|bytes| Version::from_bytes(&bytes));
        match self.code {
            CODE_PROMISED_HELD => Some(Ok(PromiseState::Held(self.state))),
            CODE_PROMISED_GONE => version().map(|erased| Ok(PromiseState::Gone(erased))),
            CODE_NOT_PROMISED => version().map(Err),
            _ => None,
        }
    }
}

/// Keys that were read, by their hashes.
#[derive(Clone, PartialEq, Message)]
pub struct TouchRequest {
    /// Key hashes, 16 bytes each, little endian. Of keys that are not held nothing is noted.
    #[prost(bytes = "bytes", tag = "1")]
    pub hashes: Bytes,
}

/// Whether the backend goes by them.
#[derive(Clone, PartialEq, Message)]
pub struct TouchReply {
    /// Otherwise it need not be told of any more keys for as long as the connection lasts.
    #[prost(bool, tag = "1")]
    pub is_wanted: bool,
}

impl TouchRequest {
    /// A request with `hashes`.
    pub fn of(hashes: &[KeyHash]) -> Self {
        Self { hashes: hashes.iter().flat_map(|hash| hash.0.to_le_bytes()).collect::<Vec<u8>>().into() }
    }

    /// The hashes; `None` if they are cut short or too many.
    pub fn decode_hashes(&self) -> Option<Vec<KeyHash>> {
        let (hashes, rest) = self.hashes.as_chunks::<16>();
        let valid = rest.is_empty() && hashes.len() <= crate::limits::TOUCHES_PER_CALL_MAX;
        valid.then(|| hashes.iter().map(|hash| KeyHash(u128::from_le_bytes(*hash))).collect())
    }
}

/// A place in the order in which keys have changed at a backend.
#[derive(Clone, PartialEq, Message)]
pub struct ChangesRequest {
    /// The configuration that the caller knows.
    #[prost(fixed64, tag = "1")]
    pub config_id: u64,
    /// Which order that is; 0: the caller has no place yet.
    #[prost(fixed64, tag = "2")]
    pub order: u64,
    /// Changes of that order that the caller was told of.
    #[prost(fixed64, tag = "3")]
    pub told: u64,
}

/// What has changed behind it.
#[derive(Clone, PartialEq, Message)]
pub struct ChangesReply {
    /// Which order the backend has by now.
    #[prost(fixed64, tag = "1")]
    pub order: u64,
    /// The caller's next place in it.
    #[prost(fixed64, tag = "2")]
    pub told: u64,
    /// Hashes of keys that were set or erased, 16 bytes each, little endian. Some may have changed back, or not at all.
    #[prost(bytes = "bytes", tag = "3")]
    pub hashes: Bytes,
    /// What was between the caller's place and the next one is not known: any key may have changed.
    #[prost(bool, tag = "4")]
    pub is_gap: bool,
    /// There was nothing more to tell.
    #[prost(bool, tag = "5")]
    pub is_all: bool,
    /// In the gap keys may have been copied from another backend. No other backend tells of that.
    #[prost(bool, tag = "6")]
    pub has_copied: bool,
    /// The version of each of these changes, 16 bytes each. [`Version::ZERO`] is a copy of what another backend has. A
    /// backend that does not say so sends none.
    #[prost(bytes = "bytes", tag = "7")]
    pub versions: Bytes,
}

impl ChangesReply {
    /// The hashes; `None` if they are cut short.
    pub fn decode_hashes(&self) -> Option<Vec<KeyHash>> {
        let (hashes, rest) = self.hashes.as_chunks::<16>();
        rest.is_empty().then(|| hashes.iter().map(|hash| KeyHash(u128::from_le_bytes(*hash))).collect())
    }

    /// The versions, of a backend that says them; otherwise none.
    pub fn decode_versions(&self) -> Vec<Version> {
        let (versions, _) = self.versions.as_chunks::<{ Version::BYTES }>();
        let is_whole = self.versions.len() == self.hashes.len();
        let versions = versions.iter().filter(|_| is_whole);
        versions.map(Version::from_bytes).collect()
    }
}

/// Keys, by their hashes.
#[derive(Clone, PartialEq, Message)]
pub struct LookupRequest {
    /// The configuration that the caller knows.
    #[prost(fixed64, tag = "1")]
    pub config_id: u64,
    /// Key hashes, 16 bytes each, little endian.
    #[prost(bytes = "bytes", tag = "2")]
    pub hashes: Bytes,
    /// Whether the caller knows [`LOOKUP_UNKNOWN`]. Otherwise the CALL is refused where that would be the answer.
    #[prost(bool, tag = "3")]
    pub may_be_unknown: bool,
    /// Whether the ages of items are wanted.
    #[prost(bool, tag = "4")]
    pub with_ages: bool,
}

/// Their items.
#[derive(Clone, PartialEq, Message)]
pub struct LookupReply {
    /// For each hash the length of its item; 0: there is none; [`LOOKUP_DEFERRED`]: ask for it again, the
    /// answer was full.
    #[prost(uint32, repeated, tag = "1")]
    pub lengths: Vec<u32>,
    /// The items, one after the other.
    #[prost(bytes = "bytes", tag = "2")]
    pub items: Bytes,
    /// For each item how long ago it was set, in milliseconds, if that was asked for.
    #[prost(uint64, repeated, tag = "3")]
    pub ages_ms: Vec<u64>,
}

/// In [`LookupReply::lengths`]: the backend is not refilled, and does not know whether there is one.
pub const LOOKUP_UNKNOWN: u32 = u32::MAX - 1;

/// In [`LookupReply::lengths`]: the answer had no room for this one. The first item found always has room.
pub const LOOKUP_DEFERRED: u32 = u32::MAX;

/// One hash's part of a [`LookupReply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    /// Bytes that claim to be its item.
    Item(Bytes),
    /// There is none.
    Absent,
    /// The backend does not know whether there is one.
    Unknown,
    /// To be asked again.
    Deferred,
}

impl LookupRequest {
    /// A request for `hashes`.
    pub fn of(config_id: u64, hashes: impl Iterator<Item = KeyHash>) -> Self {
        let hashes: Vec<u8> = hashes.flat_map(|hash| hash.0.to_le_bytes()).collect();
        Self { config_id, hashes: hashes.into(), may_be_unknown: true, with_ages: false }
    }

    /// The hashes asked for; `None` if they are cut short or too many.
    pub fn decode_hashes(&self) -> Option<impl Iterator<Item = KeyHash>> {
        let (hashes, rest) = self.hashes.as_chunks::<16>();
        let valid = rest.is_empty() && hashes.len() <= crate::limits::LOOKUP_KEYS_MAX;
        valid.then(|| hashes.iter().map(|hash| KeyHash(u128::from_le_bytes(*hash))))
    }
}

impl LookupReply {
    /// What it says of each of `count` hashes; `None` if it does not answer for that many, or its lengths do
    /// not add up.
    pub fn parts(&self, count: usize) -> Option<Vec<Looked>> {
        if self.lengths.len() != count {
            return None;
        }
        let mut at = 0_usize;
        let mut parts = Vec::with_capacity(count);
        for length in &self.lengths {
            parts.push(match *length {
                0 => Looked::Absent,
                LOOKUP_DEFERRED => Looked::Deferred,
                LOOKUP_UNKNOWN => Looked::Unknown,
                length => {
                    let end = at.checked_add(length as usize).filter(|end| *end <= self.items.len())?;
                    let item = self.items.slice(at..end);
                    at = end;
                    Looked::Item(item)
                }
            });
        }
        Some(parts)
    }
}

/// What a backend counted, and how full it is.
pub type BackendStats = InfoReply;

/// What a backend says of itself.
#[derive(Clone, PartialEq, Message)]
pub struct InfoReply {
    /// The cell's configuration.
    #[prost(fixed64, tag = "1")]
    pub config_id: u64,
    /// Number of buckets.
    #[prost(uint64, tag = "2")]
    pub buckets: u64,
    /// Size of the data region in bytes.
    #[prost(uint64, tag = "3")]
    pub capacity_bytes: u64,
    /// How long an item lives after it was set, in ms.
    #[prost(uint64, tag = "4")]
    pub ttl_ms: u64,
    /// Items held.
    #[prost(uint64, tag = "5")]
    pub items: u64,
    /// Bytes of the slots that hold them.
    #[prost(uint64, tag = "6")]
    pub live_bytes: u64,
    /// SETs applied since the start.
    #[prost(uint64, tag = "7")]
    pub sets: u64,
    /// ERASEs applied.
    #[prost(uint64, tag = "8")]
    pub erases: u64,
    /// SETs and ERASEs that came after a higher version.
    #[prost(uint64, tag = "9")]
    pub superseded: u64,
    /// Items removed to make room.
    #[prost(uint64, tag = "10")]
    pub evicted: u64,
    /// Items removed because of their age.
    #[prost(uint64, tag = "11")]
    pub expired: u64,
    /// Items that are in a chain, not in their bucket.
    #[prost(uint64, tag = "12")]
    pub overflowed: u64,
    /// Keys looked up by CALL.
    #[prost(uint64, tag = "13")]
    pub lookups: u64,
    /// Slabs taken from one slot size for another with items still in them.
    #[prost(uint64, tag = "14")]
    pub slabs_reclaimed: u64,
    /// Buckets that the backend has not refilled yet: there it does not know what it should hold.
    #[prost(uint64, tag = "15")]
    pub unfilled_buckets: u64,
    /// Items copied from other backends since the start.
    #[prost(uint64, tag = "16")]
    pub copied: u64,
    /// Bytes of those items.
    #[prost(uint64, tag = "17")]
    pub copied_bytes: u64,
    /// How often all that others hold was compared with what this backend holds.
    #[prost(uint64, tag = "18")]
    pub scans: u64,
    /// The configuration under which that was done last; 0: it was not yet.
    #[prost(fixed64, tag = "19")]
    pub scanned_config_id: u64,
    /// What keeps it from being refilled; empty if nothing does.
    #[prost(string, tag = "20")]
    pub hindrance: String,
    /// Keys of which that comparison found that this backend had missed something, but for what was under way.
    #[prost(uint64, tag = "21")]
    pub dirty: u64,
    /// How long ago the item had been set that was evicted last, in ms; 0 if none was.
    #[prost(uint64, tag = "22")]
    pub evicted_age_ms: u64,
    /// How long ago that item had been set, or clients had told that they had read it, in ms.
    #[prost(uint64, tag = "23")]
    pub evicted_unused_ms: u64,
    /// Times that clients told of an item that they had read it. None are counted where evictions do not go by that.
    #[prost(uint64, tag = "24")]
    pub touches: u64,
}

/// A backend that has started.
#[derive(Clone, PartialEq, Message)]
pub struct JoinRequest {
    /// The configuration that it knows.
    #[prost(fixed64, tag = "1")]
    pub config_id: u64,
    /// Its number.
    #[prost(uint32, tag = "2")]
    pub number: u32,
    /// Which start of it this is: the generation of its index region.
    #[prost(fixed64, tag = "3")]
    pub instance: u64,
}

/// What it has to know before it takes its first SET.
#[derive(Clone, PartialEq, Message)]
pub struct JoinReply {
    /// A version, 16 bytes. What was ever applied or promised together with an earlier start of the asker has a lower
    /// one, and the answering backend applies nothing at or below it from now on.
    #[prost(bytes = "bytes", tag = "1")]
    pub floor: Bytes,
}

impl JoinReply {
    /// The answer with that version.
    pub fn of(floor: Version) -> Self {
        Self { floor: Bytes::copy_from_slice(&floor.to_bytes()) }
    }

    /// The version; `None` if it is none.
    pub fn floor(&self) -> Option<Version> {
        <[u8; 16]>::try_from(&self.floor[..]).ok().map(|bytes| Version::from_bytes(&bytes))
    }
}

/// Asks for keys and their versions.
#[derive(Clone, PartialEq, Message)]
pub struct ScanRequest {
    /// The configuration that the caller knows.
    #[prost(fixed64, tag = "1")]
    pub config_id: u64,
    /// The caller's number: of keys that it does not hold nothing is told.
    #[prost(uint32, tag = "2")]
    pub number: u32,
    /// The least lower half of a key's hash that is asked for.
    #[prost(fixed64, tag = "3")]
    pub from: u64,
}

/// Some of them, in no order.
#[derive(Clone, PartialEq, Message)]
pub struct ScanReply {
    /// Keys that are held: hash and version, 32 bytes each.
    #[prost(bytes = "bytes", tag = "1")]
    pub held: Bytes,
    /// Keys that were erased or have expired, in the same form.
    #[prost(bytes = "bytes", tag = "2")]
    pub erased: Bytes,
    /// A key that is in neither may have been erased, or removed for room, at this version or below. 16 bytes.
    #[prost(bytes = "bytes", tag = "3")]
    pub forgotten: Bytes,
    /// All keys are told of whose hashes have a lower half from `from` on and below this; 0: all from `from` on.
    #[prost(fixed64, tag = "4")]
    pub next: u64,
    /// Whether a key that is in neither is not held. Otherwise the backend is being refilled itself.
    #[prost(bool, tag = "5")]
    pub is_known: bool,
}

impl ScanReply {
    /// Hashes and versions as they travel.
    pub fn pairs(pairs: &[(KeyHash, Version)]) -> Bytes {
        let mut bytes = BytesMut::with_capacity(pairs.len() * SCAN_PAIR_BYTES);
        for (hash, version) in pairs {
            bytes.put_slice(&hash.0.to_le_bytes());
            bytes.put_slice(&version.to_bytes());
        }
        bytes.freeze()
    }

    /// The inverse; `None` if they are cut short.
    pub fn pairs_of(bytes: &[u8]) -> Option<impl Iterator<Item = (KeyHash, Version)>> {
        let (pairs, rest) = bytes.as_chunks::<SCAN_PAIR_BYTES>();
        rest.is_empty().then(|| {
            pairs.iter().map(|pair| {
                let word = u128::from_le_bytes(pair[..16].try_into().expect("16 bytes"));
                let version = Version::from_bytes(pair[16..].first_chunk().expect("16 bytes"));
                (KeyHash(word), version)
            })
        })
    }
}

/// A hash and a version.
const SCAN_PAIR_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::encode_item;

    fn version(timestamp_us: u64) -> Version {
        Version { timestamp_us, client_id: 1, sequence: 2 }
    }

    #[test]
    fn a_mutation_encoded_by_hand_is_the_message_that_the_other_side_decodes() {
        let items = [encode_item(b"a", version(1), Some(b"x")), encode_item(b"b", version(2), None)];
        let payload = Bytes::from(encode_mutate(0xfeed, items.iter()).concat());
        let decoded = MutateRequest::decode(payload.clone()).expect("well formed");
        assert_eq!(decoded.config_id, 0xfeed);
        assert_eq!(decoded.items, [&items[0][..], &items[1][..]].concat());
        assert_eq!(payload, decoded.encode_to_vec());
    }

    #[test]
    fn an_answer_with_too_few_results_or_versions_is_refused() {
        let outcomes = [Outcome::BelowSummary(version(8)), Outcome::Superseded(version(9)), Outcome::Applied];
        let reply = MutateReply::of(&outcomes);
        assert_eq!(reply.outcomes(3).as_deref(), Some(&outcomes[..]));
        assert_eq!(reply.outcomes(4), None);
        assert_eq!(MutateReply { held: Bytes::new(), ..reply }.outcomes(3), None);
    }

    #[test]
    fn a_lookup_answer_whose_lengths_exceed_its_bytes_is_refused() {
        let reply = LookupReply {
            lengths: vec![0, 3, LOOKUP_DEFERRED, 2],
            items: Bytes::from("abcde"),
            ..LookupReply::default()
        };
        let parts = [Looked::Absent, Looked::Item("abc".into()), Looked::Deferred, Looked::Item("de".into())];
        assert_eq!(reply.parts(4).as_deref(), Some(&parts[..]));
        assert_eq!(reply.parts(3), None);
        assert_eq!(LookupReply { lengths: vec![3, 3], ..reply.clone() }.parts(2), None);
        assert_eq!(LookupReply { lengths: vec![u32::MAX - 2], ..reply }.parts(1), None);
    }
}
