//! What one append costs the thread that makes it: bursts over many shards, on the real disk.
//!
//! `cargo bench -p tailwater-store`; one line per shape, in nanoseconds of the appending thread. The time until
//! it is durable is not in it: between bursts the journal catches up.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Env;
use tailwater_format::{
    EntryFields, EntryId, Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term,
    TransactionId, encode_entry,
};
use tailwater_journal::{Journal, JournalConfig, JournalPosition};
use tailwater_store::{Recovery, SegmentStore, StoreConfig};
use uuid::Uuid;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
    let runtime = runtime.expect("a runtime");
    let _entered = runtime.enter();
    for (shards, body) in [(1, 128), (1_000, 128), (1, 4096), (1_000, 4096)] {
        let dir = tempfile::tempdir_in(".").expect("a directory on a disk");
        let env = Env::real();
        let store = open(&env, dir.path());
        let (cost, elapsed) = runtime.block_on(bursts(&env, &store, shards, body));
        let (flush_started, stats) = (env.now(), store.stats());
        runtime.block_on(store.flush()).expect("a disk that works");
        let flush = env.now().since(flush_started);
        println!(
            "{shards:>5} shards, {body:>4} bytes: {:>6.0} ns an append; {:.0} MB/s durable over {:.1} s; \
             {} rounds, then a last one of {flush:?} for {} pending bytes",
            cost.0,
            cost.1,
            elapsed.as_secs_f64(),
            stats.rounds,
            stats.pending_bytes,
        );
    }
}

fn open(env: &Env, dir: &Path) -> SegmentStore {
    let mut recovery = Recovery::begin(env, dir, StoreConfig::default()).expect("an empty directory");
    let journal = Journal::open(env, &dir.join("journal"), JournalConfig::default(), &mut |_, end, bytes| {
        recovery.replay(end, bytes)
    });
    recovery.finish(journal.expect("an empty directory")).expect("an empty directory").0
}

/// Nanoseconds an append, MB a second, and how long it all took.
async fn bursts(env: &Env, store: &SegmentStore, shards: u32, body: usize) -> ((f64, f64), Duration) {
    const BYTES: usize = 256 << 20;
    const BURST_BYTES: usize = 4 << 20;
    let stream = StreamId(Uuid::from_u128(1));
    let ids: Vec<SegmentId> = (0..shards)
        .map(|shard| SegmentId {
            shard: ShardId { stream, shard: ShardNumber(shard) },
            number: SegmentNumber(0),
            term: Term(1),
        })
        .collect();
    for id in &ids {
        store.create(*id).expect("fresh");
    }
    let batches = [Bytes::from(vec![7; body])];
    let entry_bytes = body + tailwater_format::ENTRY_HEADER_BYTES;
    let (mut appends, mut spent) = (0_u64, Duration::ZERO);
    let started = env.now();
    while (appends as usize) * entry_bytes < BYTES {
        let burst: Vec<(SegmentId, Position, Bytes)> = (0..BURST_BYTES / entry_bytes)
            .map(|at| {
                let number = appends + at as u64;
                let (id, entry) = (ids[(number % u64::from(shards)) as usize], number / u64::from(shards));
                let fields = EntryFields {
                    segment: id,
                    entry_id: EntryId(entry),
                    base_offset: Offset(entry),
                    record_count: 1,
                    transaction_id: TransactionId(0),
                };
                (id, Position(entry * entry_bytes as u64), encode_entry(&fields, &batches))
            })
            .collect();
        appends += burst.len() as u64;
        let before = env.now();
        let mut end = JournalPosition(0);
        for (id, position, entry) in burst {
            end = store.append(&id, position, entry).expect("room");
        }
        spent += env.now().since(before);
        store.journal().durable().wait_for(end).await.expect("a disk that works");
    }
    let elapsed = env.now().since(started);
    let rate = (appends as usize * entry_bytes) as f64 / 1e6 / elapsed.as_secs_f64();
    ((spent.as_nanos() as f64 / appends as f64, rate), elapsed)
}
