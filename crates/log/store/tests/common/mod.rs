//! A store in a seeded world, and entries to put into it.
#![allow(dead_code)] // each test file uses its part

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_format::{
    EntryFields, EntryHeader, EntryId, Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber,
    StreamId, Term, TransactionId, encode_entry,
};
use tailwater_journal::{Journal, JournalConfig, JournalPosition};
use tailwater_store::{RecoveredSegment, Recovery, SegmentStore, StoreConfig, StoreError, TAG};
use uuid::Uuid;

pub const DATA: &str = "/data";

/// Small numbers, so that little work passes every mark.
pub fn store_config() -> StoreConfig {
    StoreConfig {
        pending_bytes_max: 64 << 10,
        fill_bytes: 1 << 10,
        sync_bytes: 4 << 10,
        journal_bytes: 32 << 10,
        sync_age: Duration::from_millis(20),
        tick: Duration::from_millis(5),
        index_step: 256,
    }
}

pub fn journal_config() -> JournalConfig {
    JournalConfig {
        file_bytes: 64 << 10,
        files_max: 8,
        reserve_bytes: 4 << 10,
        backlog_bytes: 32 << 10,
        record_bytes_max: 8 << 10,
        sync_interval: Duration::from_millis(10),
    }
}

pub type Opened = (SegmentStore, Vec<RecoveredSegment>);

/// Opens journal and store as a node does.
pub fn open(env: &Env, config: StoreConfig) -> Result<Opened, String> {
    let dir = Path::new(DATA);
    let mut recovery = Recovery::begin(env, dir, config).map_err(|error| error.to_string())?;
    let journal = Journal::open(env, &dir.join("journal"), journal_config(), &mut |tag, end, bytes| {
        assert_eq!(tag, TAG, "nobody else writes");
        recovery.replay(end, bytes)
    });
    recovery.finish(journal.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
}

pub fn shard(number: u32) -> ShardId {
    ShardId { stream: StreamId(Uuid::from_u128(0x5eed)), shard: ShardNumber(number) }
}

pub fn segment(shard_number: u32, number: u64, term: u32) -> SegmentId {
    SegmentId { shard: shard(shard_number), number: SegmentNumber(number), term: Term(term) }
}

/// Makes the entries of one segment, one after the other.
#[derive(Clone, Debug)]
pub struct Entries {
    pub id: SegmentId,
    pub position: Position,
    pub entry_id: u64,
    pub offset: u64,
    pub transaction_id: i64,
}

impl Entries {
    pub fn new(id: SegmentId) -> Self {
        Self { id, position: Position(0), entry_id: 0, offset: 0, transaction_id: 0 }
    }

    /// The next entry, with a body of `body` bytes; a control entry if that is 0.
    pub fn make(&self, body: usize) -> Bytes {
        let fields = EntryFields {
            segment: self.id,
            entry_id: EntryId(self.entry_id),
            base_offset: Offset(self.offset),
            record_count: u32::from(body > 0),
            transaction_id: TransactionId(self.transaction_id),
        };
        let bytes: Vec<u8> = (0..body).map(|at| (at as u64 * 7 + self.offset) as u8).collect();
        encode_entry(&fields, &if body > 0 { vec![bytes.into()] } else { vec![] })
    }

    /// Goes behind an entry that was taken.
    pub fn took(&mut self, entry: &Bytes) {
        let header: EntryHeader = tailwater_format::parse_entry_header(entry).expect("made here");
        self.position = Position(self.position.0 + entry.len() as u64);
        self.entry_id += 1;
        self.offset += u64::from(header.record_count);
        self.transaction_id += 3;
    }

    /// Appends the next entry.
    pub fn append(&mut self, store: &SegmentStore, body: usize) -> Result<JournalPosition, StoreError> {
        let entry = self.make(body);
        let end = store.append(&self.id, self.position, entry.clone())?;
        self.took(&entry);
        Ok(end)
    }
}

/// Reads `from..to`, in as many calls as it takes.
pub async fn read_all(
    store: &SegmentStore,
    id: &SegmentId,
    from: Position,
    to: Position,
) -> Result<Vec<u8>, StoreError> {
    let mut out = Vec::new();
    while from.0 + (out.len() as u64) < to.0 {
        let at = Position(from.0 + out.len() as u64);
        let bytes = store.read(id, at, (to.0 - at.0) as usize).await?;
        assert!(!bytes.is_empty(), "nothing at {at} of {id}, which is durable up to {to} or beyond");
        out.extend_from_slice(&bytes);
    }
    Ok(out)
}

pub type Shared<T> = Arc<Mutex<T>>;

pub fn shared<T>(value: T) -> Shared<T> {
    Arc::new(Mutex::new(value))
}

/// The data directory that an operator made before the first start.
pub fn make_data_dir(env: &Env) {
    env.disk().create_dir_all(Path::new(DATA)).expect("a fresh disk");
    env.disk().sync_dir(Path::new("/")).expect("a fresh disk");
}
