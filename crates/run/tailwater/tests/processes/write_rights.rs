//! Segments in a real BookKeeper cluster, and processes that may not write there any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use tailwater_bookkeeper::{BookiePlaces, LedgerTimes, LedgersSecurity, Quorums};
use tailwater_env::{BoxFuture, Env, Progress};
use tailwater_format::{
    EntryFields, EntryId, Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term,
    TransactionId, encode_entry,
};
use tailwater_ledgers::LedgerOpening;
use tailwater_store::{
    EntryPlace, OpenSegments, OpenedSegments, SegmentCopies, SegmentWatch, StoreContract, WriteRight,
    WriteRightFault,
};
use uuid::Uuid;

use crate::segments::{alone, cluster};
use crate::support::PATIENCE;

#[derive(Debug, Default)]
struct Right {
    is_lost: AtomicBool,
}

impl WriteRight for Right {
    fn confirm<'a>(&'a self, _: Option<&'a SegmentId>) -> BoxFuture<'a, Result<(), WriteRightFault>> {
        let answer = match self.is_lost.load(Ordering::Relaxed) {
            true => Err(WriteRightFault::Lost("another one writes".to_owned())),
            false => Ok(()),
        };
        Box::pin(std::future::ready(answer))
    }
}

/// What is told of a segment: how far it is durable, or why it is given up.
struct Told(mpsc::Sender<Result<EntryPlace, String>>);

impl SegmentWatch for Told {
    fn durable(&self, upto: EntryPlace) {
        let _ = self.0.send(Ok(upto));
    }

    fn lost(&self, why: &str) {
        let _ = self.0.send(Err(why.to_owned()));
    }
}

async fn open(of: Uuid, right: &Arc<Right>) -> Result<OpenedSegments, String> {
    let quorums = Quorums::new(3, 3, 2).expect("in order");
    let opening = LedgerOpening {
        security: LedgersSecurity::default(),
        uri: cluster().uri(),
        quorums,
        places: BookiePlaces::default(),
        times: LedgerTimes::default(),
    };
    let right = Arc::clone(right) as Arc<dyn WriteRight>;
    opening.open(&Env::real(), right, of, &|_| false, &Progress::default()).await
}

/// A segment of the cluster's only shard.
fn segment(cluster: Uuid, number: u64) -> SegmentId {
    let shard = ShardId { stream: StreamId(cluster), shard: ShardNumber(0) };
    SegmentId { shard, number: SegmentNumber(number), term: Term(1) }
}

/// Appends an entry without records; the position behind it.
fn append(store: &dyn StoreContract, id: &SegmentId, position: Position) -> Position {
    let (base_offset, transaction_id) = (Offset(0), TransactionId(0));
    let entry_id = EntryId(if position == Position(0) { 0 } else { 1 });
    let fields = EntryFields { segment: *id, entry_id, base_offset, record_count: 0, transaction_id };
    let entry = encode_entry(&fields, &[]);
    let end = Position(position.0 + entry.len() as u64);
    store.append(id, position, entry, true).expect("it is taken");
    end
}

fn new_cluster() -> Uuid {
    Uuid::from_u128(u128::from(Env::real().random_u64()))
}

/// What is told next.
fn heard(hears: &mpsc::Receiver<Result<EntryPlace, String>>) -> Result<EntryPlace, String> {
    hears.recv_timeout(PATIENCE).expect("it is told")
}

#[test]
fn a_ledger_that_is_made_after_the_right_was_lost_takes_no_entry() {
    let _alone = alone();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let (of, right) = (new_cluster(), Arc::<Right>::default());
        let (store, _) = open(of, &right).await.expect("opened");
        let (told, hears) = mpsc::channel();
        right.is_lost.store(true, Ordering::Relaxed);
        let id = segment(of, 0);
        store.create(id, SegmentCopies::default(), Arc::new(Told(told))).expect("no I/O is done");
        append(&*store, &id, Position(0));
        let why = heard(&hears).expect_err("nothing is acknowledged");
        assert!(why.contains("another one writes"), "{why}");
        let (_, found) = open(of, &Arc::default()).await.expect("opened by the other one");
        assert!(found.iter().all(|segment| segment.contents.is_none()), "{found:?}");
    });
}

#[test]
fn whoever_loses_the_right_while_it_opens_shuts_nobody_out() {
    let _alone = alone();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let of = new_cluster();
        let (store, _) = open(of, &Arc::default()).await.expect("opened");
        let (told, hears) = mpsc::channel();
        let id = segment(of, 0);
        store.create(id, SegmentCopies::default(), Arc::new(Told(told))).expect("no I/O is done");
        let end = append(&*store, &id, Position(0));
        assert_eq!(heard(&hears), Ok(EntryPlace(1)));
        let late = Right { is_lost: AtomicBool::new(true) };
        let refused = open(of, &Arc::new(late)).await.map(drop);
        assert_eq!(refused, Err("another one writes".to_owned()));
        append(&*store, &id, end);
        assert_eq!(heard(&hears), Ok(EntryPlace(2)), "its ledger was left alone");
    });
}
