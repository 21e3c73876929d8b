//! A ledger's metadata, in the form that the Java client gives it in ZooKeeper since 4.9:
//!
//! ```text
//!  "BookieMetadataFormatVersion\t3\n"  length (varint)  LedgerMetadataFormat (protobuf)
//! ```
//!
//! Other versions are refused by name. What changes a ledger replaces the whole of it, if its version is still the one
//! that was read.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

use crate::digest::DigestKind;
use crate::ids::{BookieId, EntryId, Quorums};
use crate::limits::{ENSEMBLES_MAX, METADATA_BYTES_MAX};

const HEADER: &str = "BookieMetadataFormatVersion\t";
const VERSION: &str = "3";

/// What may happen to a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerStatus {
    /// Its writer appends.
    Open,
    /// Somebody finds out where it ends.
    InRecovery,
    /// It ends, for ever.
    Closed {
        /// Its last entry.
        last: EntryId,
        /// Bytes of all payloads.
        length: u64,
    },
}

impl std::fmt::Display for LedgerStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::InRecovery => "in recovery",
            Self::Closed { .. } => "closed",
        })
    }
}

/// Everything that is known of a ledger but its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerMetadata {
    /// Numbers of copies.
    pub quorums: Quorums,
    /// What may happen to it.
    pub state: LedgerStatus,
    /// The bookies from an entry on, until the next ensemble's first entry. The first one's is [`EntryId::FIRST`].
    ensembles: BTreeMap<EntryId, Vec<BookieId>>,
    /// How entries are checked.
    pub digest: DigestKind,
    /// Who knows it may write and fence.
    pub password: Bytes,
    /// Milliseconds since the Unix epoch when it was created, where that is told.
    pub created_ms: Option<i64>,
    /// What its creator says about it.
    pub custom: BTreeMap<String, Bytes>,
    /// A number of its creator's, by which that knows its own ledger again.
    pub token: Option<i64>,
}

/// Why bytes are no metadata of a ledger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataFault {
    /// A version that this client does not know.
    #[error(
        "its format has version {0:?}; this client knows version {VERSION}, which bookkeeper 4.9 and later write"
    )]
    Version(String),
    /// Not what that version looks like.
    #[error("it is malformed: {0}")]
    Malformed(&'static str),
}

impl LedgerMetadata {
    /// An open ledger without entries. `ensemble` has as many bookies as `quorums` says.
    ///
    /// # Panics
    /// If it has not.
    pub fn new(quorums: Quorums, ensemble: Vec<BookieId>, digest: DigestKind, password: &[u8]) -> Self {
        assert_eq!(ensemble.len(), quorums.ensemble(), "an ensemble is as large as it is said to be");
        Self {
            quorums,
            state: LedgerStatus::Open,
            ensembles: BTreeMap::from([(EntryId::FIRST, ensemble)]),
            digest,
            password: Bytes::copy_from_slice(password),
            created_ms: None,
            custom: BTreeMap::new(),
            token: None,
        }
    }

    /// The bookies of an entry's ensemble; write sets are positions in it.
    pub fn ensemble_of(&self, entry: EntryId) -> &[BookieId] {
        let entry = entry.max(EntryId::FIRST);
        self.ensembles.range(..=entry).next_back().map_or(&[], |(_, ensemble)| ensemble)
    }

    /// The first entry behind `entry` that is on other bookies; `None` if there is none so far.
    pub fn ensemble_end(&self, entry: EntryId) -> Option<EntryId> {
        self.ensembles.range(entry.next()..).next().map(|(first, _)| *first)
    }

    /// The last ensemble, and its first entry.
    pub fn last_ensemble(&self) -> (EntryId, &[BookieId]) {
        self.ensembles.last_key_value().map_or((EntryId::FIRST, &[]), |(first, ensemble)| (*first, ensemble))
    }

    /// All ensembles, by their first entries.
    pub fn ensembles(&self) -> impl Iterator<Item = (EntryId, &[BookieId])> {
        self.ensembles.iter().map(|(first, ensemble)| (*first, &ensemble[..]))
    }

    /// The fewest copies that an entry has which is appended next, where only those count that are at such bookies.
    pub fn copies_of_next(&self, is_there: impl Fn(&BookieId) -> bool) -> usize {
        let (first, ensemble) = self.last_ensemble();
        self.copies_from(first, self.quorums.ensemble(), ensemble, &is_there)
    }

    /// The fewest copies that any entry has, where only those count that are at such bookies. A ledger that ended
    /// without entries misses none.
    pub fn copies_min(&self, is_there: impl Fn(&BookieId) -> bool) -> usize {
        let firsts = self.ensembles.keys().skip(1).map(|first| Some(*first));
        let last = match self.state {
            LedgerStatus::Closed { last, .. } => Some(last.next()),
            _ => None,
        };
        let of_each = self.ensembles().zip(firsts.chain([last])).map(|((first, ensemble), end)| {
            let entries = end.map_or(usize::MAX, |end| usize::try_from(end.get() - first.get()).unwrap_or(0));
            self.copies_from(first, entries, ensemble, &is_there)
        });
        of_each.min().unwrap_or(0)
    }

    /// The same of so many entries on one ensemble, from `first` on.
    fn copies_from(
        &self,
        first: EntryId,
        entries: usize,
        ensemble: &[BookieId],
        is_there: &impl Fn(&BookieId) -> bool,
    ) -> usize {
        // Those behind them are where they are.
        let entries = (0..entries.min(self.quorums.ensemble())).map(|ahead| {
            let set = self.quorums.write_set(EntryId::new(first.get().saturating_add(ahead as i64)));
            set.filter(|at| ensemble.get(*at).is_some_and(is_there)).count()
        });
        entries.min().unwrap_or(self.quorums.write())
    }

    /// From `first` on the entries are on these bookies. Nothing changes for those before it, and none behind it may
    /// have been acknowledged. `false`, and no change, if there are too many ensembles already.
    pub(crate) fn set_ensemble(&mut self, first: EntryId, ensemble: Vec<BookieId>) -> bool {
        debug_assert!(first >= self.last_ensemble().0 && ensemble.len() == self.quorums.ensemble());
        if self.ensembles.len() >= ENSEMBLES_MAX && !self.ensembles.contains_key(&first) {
            return false;
        }
        if self.last_ensemble().1 != ensemble {
            self.ensembles.insert(first, ensemble);
        }
        true
    }

    /// The same, closed. Ensembles that got no entry are left out.
    pub(crate) fn closed(&self, last: EntryId, length: u64) -> Self {
        let mut closed = Self { state: LedgerStatus::Closed { last, length }, ..self.clone() };
        closed.ensembles.retain(|first, _| *first <= last.max(EntryId::FIRST));
        closed
    }

    /// As it is stored.
    pub fn encode(&self) -> Vec<u8> {
        let (state, last, length) = match self.state {
            LedgerStatus::Open => (STATE_OPEN, None, 0),
            LedgerStatus::InRecovery => (STATE_IN_RECOVERY, None, 0),
            LedgerStatus::Closed { last, length } => (STATE_CLOSED, Some(last), length),
        };
        let stored = StoredMetadata {
            write: self.quorums.write() as i32,
            ensemble: self.quorums.ensemble() as i32,
            length: i64::try_from(length).unwrap_or(i64::MAX),
            last: Some(last.unwrap_or(EntryId::NONE).get()),
            state,
            ensembles: self
                .ensembles
                .iter()
                .map(|(first, bookies)| StoredEnsemble {
                    bookies: bookies.iter().map(|bookie| bookie.name().to_owned()).collect(),
                    first: first.get(),
                })
                .collect(),
            digest: Some(match self.digest {
                DigestKind::Crc32 => 1,
                DigestKind::Hmac => 2,
                DigestKind::Crc32c => 3,
                DigestKind::Unchecked => 4,
            }),
            password: Some(self.password.clone()),
            ack: Some(self.quorums.ack() as i32),
            created_ms: self.created_ms,
            custom: self
                .custom
                .iter()
                .map(|(key, value)| StoredCustom { key: Some(key.clone()), value: Some(value.clone()) })
                .collect(),
            token: self.token,
        };
        let mut bytes = format!("{HEADER}{VERSION}\n").into_bytes();
        stored.encode_length_delimited(&mut bytes).expect("a buffer grows");
        bytes
    }

    /// What is stored.
    pub fn decode(bytes: &[u8]) -> Result<Self, MetadataFault> {
        use MetadataFault::Malformed;
        if bytes.len() > METADATA_BYTES_MAX {
            return Err(Malformed("it is too long"));
        }
        let versioned = bytes.strip_prefix(HEADER.as_bytes()).ok_or(Malformed("it has no version"))?;
        let end = versioned
            .iter()
            .take(16)
            .position(|byte| *byte == b'\n')
            .ok_or(Malformed("its version has no end"))?;
        let (version, body) = (&versioned[..end], &versioned[end + 1..]);
        if version != VERSION.as_bytes() {
            return Err(MetadataFault::Version(String::from_utf8_lossy(version).into_owned()));
        }
        let stored = StoredMetadata::decode_length_delimited(body)
            .map_err(|_| Malformed("it is no LedgerMetadataFormat"))?;
        let number = |of: i32| usize::try_from(of).unwrap_or(0);
        let (ensemble, write) = (number(stored.ensemble), number(stored.write));
        let ack = stored.ack.map_or(write, number);
        let quorums = Quorums::new(ensemble, write, ack).ok_or(Malformed("its quorums are out of order"))?;
        let mut ensembles = BTreeMap::new();
        for StoredEnsemble { bookies, first } in stored.ensembles {
            if first < 0 || bookies.len() != ensemble {
                return Err(Malformed("an ensemble is not of its size"));
            }
            ensembles.insert(EntryId::new(first), bookies.iter().map(|name| BookieId::new(name)).collect());
        }
        if !ensembles.contains_key(&EntryId::FIRST) {
            return Err(Malformed("its first entry has no ensemble"));
        }
        Ok(Self {
            quorums,
            state: match stored.state {
                STATE_OPEN => LedgerStatus::Open,
                STATE_IN_RECOVERY => LedgerStatus::InRecovery,
                STATE_CLOSED => LedgerStatus::Closed {
                    last: EntryId::new(stored.last.unwrap_or(-1)),
                    length: u64::try_from(stored.length).unwrap_or(0),
                },
                _ => return Err(Malformed("its state is unknown")),
            },
            ensembles,
            digest: match stored.digest {
                // Before there were others.
                None | Some(2) => DigestKind::Hmac,
                Some(1) => DigestKind::Crc32,
                Some(3) => DigestKind::Crc32c,
                Some(4) => DigestKind::Unchecked,
                Some(_) => return Err(Malformed("its digest is unknown")),
            },
            password: stored.password.unwrap_or_default(),
            created_ms: stored.created_ms,
            custom: stored
                .custom
                .into_iter()
                .map(|custom| (custom.key.unwrap_or_default(), custom.value.unwrap_or_default()))
                .collect(),
            token: stored.token,
        })
    }
}

const STATE_OPEN: i32 = 1;
const STATE_IN_RECOVERY: i32 = 2;
const STATE_CLOSED: i32 = 3;

/// `LedgerMetadataFormat` of `DataFormats.proto`.
#[derive(Clone, PartialEq, Message)]
struct StoredMetadata {
    #[prost(int32, required, tag = "1")]
    write: i32,
    #[prost(int32, required, tag = "2")]
    ensemble: i32,
    #[prost(int64, required, tag = "3")]
    length: i64,
    #[prost(int64, optional, tag = "4")]
    last: Option<i64>,
    #[prost(int32, required, tag = "5")]
    state: i32,
    #[prost(message, repeated, tag = "6")]
    ensembles: Vec<StoredEnsemble>,
    #[prost(int32, optional, tag = "7")]
    digest: Option<i32>,
    #[prost(bytes = "bytes", optional, tag = "8")]
    password: Option<Bytes>,
    #[prost(int32, optional, tag = "9")]
    ack: Option<i32>,
    #[prost(int64, optional, tag = "10")]
    created_ms: Option<i64>,
    #[prost(message, repeated, tag = "11")]
    custom: Vec<StoredCustom>,
    #[prost(int64, optional, tag = "12")]
    token: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredEnsemble {
    #[prost(string, repeated, tag = "1")]
    bookies: Vec<String>,
    #[prost(int64, required, tag = "2")]
    first: i64,
}

#[derive(Clone, PartialEq, Message)]
struct StoredCustom {
    #[prost(string, optional, tag = "1")]
    key: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    value: Option<Bytes>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bookies(names: &str) -> Vec<BookieId> {
        names.split(' ').map(BookieId::new).collect()
    }

    fn example() -> LedgerMetadata {
        let quorums = Quorums::new(3, 3, 2).expect("in order");
        let mut metadata =
            LedgerMetadata::new(quorums, bookies("a:1 b:1 c:1"), DigestKind::Crc32c, b"secret");
        metadata.custom.insert("stream".to_owned(), Bytes::from_static(b"orders"));
        metadata.token = Some(77);
        metadata
    }

    #[test]
    fn what_is_stored_is_read_again_in_every_state() {
        let mut metadata = example();
        assert!(metadata.set_ensemble(EntryId::new(10), bookies("a:1 d:1 c:1")));
        for state in [
            LedgerStatus::Open,
            LedgerStatus::InRecovery,
            LedgerStatus::Closed { last: EntryId::new(12), length: 99 },
            LedgerStatus::Closed { last: EntryId::NONE, length: 0 },
        ] {
            metadata.state = state;
            assert_eq!(LedgerMetadata::decode(&metadata.encode()), Ok(metadata.clone()));
        }
        assert_eq!(metadata.ensemble_of(EntryId::new(9)), bookies("a:1 b:1 c:1"));
        assert_eq!(metadata.ensemble_of(EntryId::new(10)), bookies("a:1 d:1 c:1"));
        assert_eq!(metadata.last_ensemble().0, EntryId::new(10));
    }

    #[test]
    fn an_ensemble_without_entries_is_left_out_when_the_ledger_is_closed() {
        let mut metadata = example();
        metadata.set_ensemble(EntryId::new(10), bookies("a:1 d:1 c:1"));
        assert_eq!(metadata.closed(EntryId::new(9), 5).ensembles().count(), 1);
        assert_eq!(metadata.closed(EntryId::new(10), 5).ensembles().count(), 2);
        assert_eq!(metadata.closed(EntryId::NONE, 0).ensembles().count(), 1);
    }

    #[test]
    fn copies_are_counted_where_entries_are() {
        let quorums = Quorums::new(3, 2, 2).expect("in order");
        let mut metadata = LedgerMetadata::new(quorums, bookies("a:1 b:1 c:1"), DigestKind::Crc32c, b"");
        let without = |metadata: &LedgerMetadata, gone: &str| {
            let is_there = |bookie: &BookieId| bookie.name() != gone;
            (metadata.copies_min(is_there), metadata.copies_of_next(is_there))
        };
        assert_eq!((without(&metadata, ""), without(&metadata, "a:1")), ((2, 2), (1, 1)));
        metadata.set_ensemble(EntryId::new(1), bookies("a:1 d:1 c:1"));
        assert_eq!(without(&metadata, "b:1"), (1, 2), "the first entry is at a and b");
        assert_eq!((without(&metadata, "c:1"), without(&metadata, "d:1")), ((1, 1), (1, 1)));
        let closed = metadata.closed(EntryId::new(1), 9);
        assert_eq!(without(&closed, "a:1").0, 1);
        let mut endless = metadata.clone();
        endless.set_ensemble(EntryId::new(i64::MAX), bookies("a:1 b:1 c:1"));
        assert_eq!(without(&endless, ""), (2, 2), "a peer may have said it");
        assert_eq!(without(&metadata.closed(EntryId::FIRST, 9), "c:1").0, 2, "there is no entry there");
        assert_eq!(metadata.closed(EntryId::NONE, 0).copies_min(|_| false), 2, "nothing is missing");
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let error =
            LedgerMetadata::decode(b"BookieMetadataFormatVersion\t2\nquorumSize: 3\n").expect_err("a text");
        assert_eq!(error, MetadataFault::Version("2".to_owned()));
        assert!(error.to_string().contains("version 3"), "{error}");
    }

    #[test]
    fn quorums_and_ensembles_that_do_not_fit_are_refused() {
        let mut metadata = example();
        metadata.ensembles.insert(EntryId::new(4), bookies("a:1"));
        assert!(matches!(LedgerMetadata::decode(&metadata.encode()), Err(MetadataFault::Malformed(_))));
        metadata.ensembles.clear();
        assert!(matches!(LedgerMetadata::decode(&metadata.encode()), Err(MetadataFault::Malformed(_))));
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = LedgerMetadata::decode(&bytes);
            let mut headed = b"BookieMetadataFormatVersion\t3\n".to_vec();
            headed.extend(bytes);
            let _ = LedgerMetadata::decode(&headed);
        }
    }
}
