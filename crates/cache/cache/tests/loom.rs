//! Interleavings of a writer's changes to an item and a reader's copies: the table itself, over regions of loom's
//! atomics. What may arrive in which order is what `rma` promises: nothing, but that what a release store publishes
//! comes with what was written before it.

#![allow(missing_docs)]

#[allow(dead_code)]
#[path = "../src/backend/recency.rs"]
mod recency;
#[allow(dead_code)]
#[path = "../src/backend/slabs.rs"]
mod slabs;
#[allow(dead_code)]
#[path = "../src/backend/table.rs"]
mod table;
#[allow(dead_code)]
#[path = "../src/backend/tombstones.rs"]
mod tombstones;

/// Where the sources above look for the rest of the crate.
mod version {
    pub(crate) use tailwater_cache::Version;
}

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use tailwater_cache::layout::{
    BUCKET_BYTES, BUCKET_HEADER_BYTES, BucketView, HEADER_BYTES, INDEX_ENTRY_BYTES, Item, KeyHash,
    encode_item, scan_bucket,
};
use tailwater_cache::protocol::Outcome;
use tailwater_cache::{Version, layout, limits, protocol};
use tailwater_env::Instant;

use table::{Table, TableConfig};

const WORD: u64 = size_of::<u64>() as u64;
const CONFIG_ID: u64 = 5;
/// A bucket as far as its first item: nothing here has two keys at a time.
const INDEX_BYTES: usize = BUCKET_HEADER_BYTES + INDEX_ENTRY_BYTES;
/// Room for a few items of the shortest slots.
const DATA_BYTES: usize = 256;

/// Memory from `base` on, in words; zeros follow that nobody writes.
struct Region {
    base: u64,
    words: Vec<AtomicU64>,
    /// The same as its only writer has it, which needs no interleaving to know what it wrote.
    written: parking_lot::Mutex<Vec<u64>>,
}

impl Region {
    fn new(base: u64, bytes: usize) -> Arc<Self> {
        let count = bytes / WORD as usize;
        let words = (0..count).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { base, words, written: parking_lot::Mutex::new(vec![0; count]) })
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let first = self.word(offset);
        let mut written = self.written.lock();
        for (index, bytes) in (first..).zip(bytes.chunks(WORD as usize)) {
            let mut word = written[index].to_le_bytes();
            word[..bytes.len()].copy_from_slice(bytes);
            self.store(&mut written, index, u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }

    fn store_release_u64(&self, offset: u64, value: u64) {
        self.store(&mut self.written.lock(), self.word(offset), value, Ordering::Release);
    }

    /// What is there already is not stored again: nobody could tell.
    fn store(&self, written: &mut [u64], index: usize, value: u64, ordering: Ordering) {
        if std::mem::replace(&mut written[index], value) != value {
            self.words[index].store(value, ordering);
        }
    }

    /// As the writer reads.
    fn read(&self, offset: u64, out: &mut [u8]) {
        let written = self.written.lock();
        for (index, out) in (self.word(offset)..).zip(out.chunks_mut(WORD as usize)) {
            let word = written.get(index).copied().unwrap_or(0).to_le_bytes();
            out.copy_from_slice(&word[..out.len()]);
        }
    }

    /// As anybody else does.
    fn copy(&self, offset: u64, len: usize) -> Vec<u8> {
        let first = self.word(offset);
        let words = &self.words[first..(first + len.div_ceil(WORD as usize)).min(self.words.len())];
        let mut bytes: Vec<u8> =
            words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        bytes.resize(len, 0);
        bytes
    }

    fn word(&self, offset: u64) -> usize {
        assert!(offset.is_multiple_of(WORD), "the table writes whole words from their beginning on");
        ((offset - self.base) / WORD) as usize
    }
}

/// The two regions of a backend of one bucket.
#[derive(Clone)]
struct Regions {
    index: Arc<Region>,
    data: Arc<Region>,
}

/// What a reader makes of its copies.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Absent,
    /// The item of the key, whole, at this version.
    Item(u32),
    /// Named, but the data is not the key's, or not whole: looked at again.
    Torn,
}

impl Regions {
    fn new() -> (Self, Table) {
        let regions =
            Self { index: Region::new(HEADER_BYTES, INDEX_BYTES), data: Region::new(0, DATA_BYTES) };
        let config = TableConfig {
            config_id: CONFIG_ID,
            buckets: 1,
            blocks: 1,
            ttl: Duration::from_secs(60),
            evict_above_bytes: u64::MAX,
            eviction: table::eviction::EvictionPolicy::Lrm,
            overflow_max: 1,
        };
        let table = Table::new(config, regions.index.clone(), regions.data.clone());
        (regions, table)
    }

    fn scan(&self, key: &[u8]) -> BucketView {
        scan_bucket(&self.index.copy(HEADER_BYTES, BUCKET_BYTES), KeyHash::of(key), CONFIG_ID)
    }

    fn look(&self, key: &[u8]) -> Seen {
        let BucketView::Found { pointer, .. } = self.scan(key) else { return Seen::Absent };
        // Without it, as on a machine with weak ordering, the data may be torn, and is looked at again.
        fence(Ordering::Acquire);
        let data = self.data.copy(pointer.offset, pointer.len as usize);
        match Item::parse(&data) {
            Ok(item) if item.key == key => {
                assert_eq!(item.value, value(item.version.sequence), "a value of another version");
                Seen::Item(item.version.sequence)
            }
            _ => Seen::Torn,
        }
    }
}

fn version(number: u32) -> Version {
    Version { timestamp_us: 1_000, client_id: 1, sequence: number }
}

fn value(number: u32) -> [u8; 4] {
    (number * 0x0101_0101).to_le_bytes()
}

fn apply(table: &mut Table, key: &[u8], number: u32, value: Option<[u8; 4]>) {
    let bytes: Bytes = encode_item(key, version(number), value.as_ref().map(|value| &value[..]));
    let item = Item::parse(&bytes).expect("just encoded");
    assert_eq!(table.apply(&item, Instant::from_ns(0)), Outcome::Applied);
}

fn set(table: &mut Table, key: &[u8], number: u32) {
    apply(table, key, number, Some(value(number)));
}

/// Tries the interleavings with up to two preemptions.
fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(test);
}

#[test]
fn while_an_item_is_replaced_a_reader_gets_the_old_one_or_the_new_one_whole() {
    model(|| {
        let (regions, mut table) = Regions::new();
        set(&mut table, b"key", 1);
        let writer = loom::thread::spawn(move || set(&mut table, b"key", 2));
        let seen = regions.look(b"key");
        assert!(matches!(seen, Seen::Item(1 | 2)), "{seen:?}");
        writer.join().expect("it does not panic");
        assert_eq!(regions.look(b"key"), Seen::Item(2));
    });
}

#[test]
fn while_an_item_is_inserted_a_reader_gets_nothing_or_the_item_whole() {
    model(|| {
        let (regions, mut table) = Regions::new();
        let writer = loom::thread::spawn(move || set(&mut table, b"key", 1));
        let seen = regions.look(b"key");
        assert!(matches!(seen, Seen::Absent | Seen::Item(1)), "{seen:?}");
        writer.join().expect("it does not panic");
        assert_eq!(regions.look(b"key"), Seen::Item(1));
    });
}

#[test]
fn a_key_that_was_erased_is_not_named_by_what_the_next_key_of_its_way_writes() {
    model(|| {
        let (regions, mut table) = Regions::new();
        set(&mut table, b"key", 1);
        let erased = Arc::new(AtomicBool::new(false));
        let writer = {
            let erased = erased.clone();
            loom::thread::spawn(move || {
                apply(&mut table, b"key", 2, None);
                erased.store(true, Ordering::Release);
                set(&mut table, b"other", 3);
            })
        };
        let is_erased = erased.load(Ordering::Acquire);
        let named = regions.scan(b"key");
        assert!(!is_erased || named == BucketView::Absent, "{named:?} behind the answer to the erase");
        writer.join().expect("it does not panic");
        assert_eq!(regions.look(b"other"), Seen::Item(3));
    });
}
