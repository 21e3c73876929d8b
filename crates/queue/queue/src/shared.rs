//! Queues in a store that many front ends share: the model of BDQS (section III), with its parts where they were left
//! open.
//!
//! Every process is a front end without state: what it knows of a queue (where its head is, which buckets there are) it
//! could read again at any time, and nobody has to be told when it dies. No locks: front ends do not know of each
//! other.
//!
//! ```text
//!  send     body, then tuple (now, id)
//!  receive  oldest tuples -> K hint -> body, and tuple (now + timeout, id), then the old tuple goes
//!  delete   body, then tuple
//! ```
//!
//! What is guaranteed, at [`Consistency::Quorum`]:
//! - **The body is the message.** A message is there as long as its body is. A tuple only says when it is to be
//!   received: one without a body is removed by whoever finds it, and a body without a tuple gets a new one from the
//!   sweeper. So nothing is lost whatever a front end leaves undone, and what was deleted does not come back.
//! - **A move puts the new tuple before it deletes the old one.** A crash between them is a redelivery.
//! - **What is deleted is deleted as a dead letter, too**: where a message goes is noted before its body is read for
//!   it, and looked for after its body was deleted.
//! - **Writes may be done twice, late, or in any order**: their timestamps follow from what they write ([`rows`]), not
//!   from clocks.
//! - **Clocks** may differ by the allowed skew. Beyond it messages are late by up to [`crate::limits::LOOK_BACK_MS`],
//!   or the sweeper's interval, but not lost ([`heads`]).
//! - What a receive costs depends on K, on the number of parts and on what was done within the last seconds, not on how
//!   much is in the queue, or was.
//!
//! At [`Consistency::One`] replicas may not have a row yet: a message may be received late, or again after its delete.
//!
//! The groups of FIFO queues ([`fifo`]) and what only exists once (a queue's record, a place among the front ends) are
//! conditional writes at a majority.
//!
//! To be read in this order: `rows.rs` (what it stands on), `heads.rs` (which tuples are read), `sending.rs`,
//! `receiving.rs`, `deleting.rs`, `sweeper.rs`; `fifo.rs` and `fifo/` (FIFO queues); `directory.rs` (queues),
//! `tasks.rs` and `search.rs` (moves of dead letters).

mod auto_hint;
mod deleting;
mod directory;
mod fifo;
mod figures;
mod heads;
pub mod numbers;
mod receiving;
pub mod rows;
mod search;
mod sending;
mod store;
mod sweeper;
mod takes;
mod tasks;
mod whole;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tailwater_env::{Env, HashMap, Task};
use tokio::sync::{Notify, Semaphore};

use crate::ids::{Number, QueueId, Secret};
use crate::limits::{AUTO_TARGET_PERMILLE, QUEUES_KNOWN_MAX};

use crate::queue::Happened;
use crate::request::{Figures, QueueError};
use crate::settings::{Consistency, QueueRecord};
use crate::shared_config::SharedConfig;
use crate::view::QueueView;
use auto_hint::AutoHint;
use directory::SharedDirectory;
use heads::{Heads, Margin, bucket_of, part_of};
use numbers::Numbers;
use rows::{RowPartition, Rows, RowsError, Tuple};
use takes::Takes;

/// One front end; cheap to clone. Its tasks end with the last handle.
#[derive(Clone)]
pub struct SharedQueues {
    front: Arc<SharedFront>,
    _tasks: Arc<Vec<Task>>,
}

impl std::fmt::Debug for SharedQueues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedQueues")
    }
}

/// What all calls of a front end need.
struct SharedFront {
    env: Env,
    rows: Arc<dyn Rows>,
    config: SharedConfig,
    secret: Secret,
    numbers: Numbers,
    directory: SharedDirectory,
    known: Mutex<HashMap<QueueId, Arc<KnownQueue>>>,
    /// How much calls may have that are under way, in KiB.
    calls: Arc<Semaphore>,
}

/// What a front end knows of a queue.
struct KnownQueue {
    id: QueueId,
    view: Arc<QueueView>,
    parts: u16,
    heads: Mutex<Heads>,
    /// Buckets of bodies that this front end has put into the list.
    bodies: Mutex<BTreeSet<u64>>,
    /// Tuples that receives of this front end are taking: others of it leave them alone.
    takes: Mutex<Takes>,
    /// Where receipts' tuples are whose visibility this front end has changed.
    forwards: Mutex<BTreeMap<(Number, u32), (u64, u32)>>,
    /// Rung at a send through this front end.
    sent: Notify,
    /// Of the receives that wait, the one that looks.
    turn: tokio::sync::Mutex<()>,
    waiting: std::sync::atomic::AtomicUsize,
    hint: Mutex<AutoHint>,
    /// Of a FIFO queue's groups.
    turns: fifo::FifoTurns,
    happened: Mutex<Happened>,
    figures: Mutex<Option<Figures>>,
    /// Drops empty buckets; when it last was started.
    dropping: Mutex<(u64, Option<Task>)>,
}

impl KnownQueue {
    fn new(view: Arc<QueueView>, parts: u16) -> Self {
        Self {
            id: view.id,
            view,
            parts,
            heads: Mutex::default(),
            bodies: Mutex::default(),
            takes: Mutex::default(),
            forwards: Mutex::default(),
            sent: Notify::new(),
            turn: tokio::sync::Mutex::new(()),
            waiting: Default::default(),
            hint: Mutex::new(AutoHint::new(AUTO_TARGET_PERMILLE)),
            turns: Default::default(),
            happened: Mutex::default(),
            figures: Mutex::default(),
            dropping: Mutex::new((0, None)),
        }
    }

    fn tuples_at(&self, visible_at: u64, number: Number) -> RowPartition {
        RowPartition { queue: self.id, bucket: bucket_of(visible_at), part: part_of(number, self.parts) }
    }

    fn body_at(&self, number: Number) -> RowPartition {
        let bucket = bucket_of(numbers::sent_at(number));
        RowPartition { queue: self.id, bucket, part: part_of(number, self.parts) }
    }

    fn record(&self) -> Arc<QueueRecord> {
        self.view.record()
    }

    /// How long messages are kept.
    fn kept_ms(&self) -> u64 {
        u64::from(self.record().settings.retention_s) * 1_000
    }

    /// Whether a message was kept for that long.
    fn is_expired(&self, number: Number, now: u64) -> bool {
        numbers::sent_at(number).saturating_add(self.kept_ms()) <= now
    }
}

impl From<RowsError> for QueueError {
    fn from(error: RowsError) -> Self {
        Self::Unavailable(error.0)
    }
}

impl SharedFront {
    /// What time it is: the wall's, as all front ends have it.
    fn now(&self) -> u64 {
        u64::try_from(self.env.wall_ms()).unwrap_or(0)
    }

    fn margin(&self) -> Margin {
        Margin::of_skew(self.config.skew_ms)
    }

    fn level(&self, known: &KnownQueue) -> Consistency {
        match known.is_fifo() {
            // Whatever is configured since it was created.
            true => fifo::LEVEL,
            false => known.record().settings.consistency.unwrap_or(self.config.consistency),
        }
    }

    /// What is known of a queue, if it still is there.
    async fn known(&self, view: &QueueView) -> Result<Arc<KnownQueue>, QueueError> {
        let current = self.directory.find(self, &view.account, &view.name).await?;
        let Some((current, parts)) = current.filter(|(current, _)| current.id == view.id) else {
            self.known.lock().remove(&view.id);
            return Err(QueueError::NoQueue);
        };
        let mut all = self.known.lock();
        if all.len() >= QUEUES_KNOWN_MAX {
            all.clear();
        }
        let known =
            all.entry(current.id).or_insert_with(|| Arc::new(KnownQueue::new(Arc::clone(&current), parts)));
        if !Arc::ptr_eq(&known.view, &current) {
            // The directory has forgotten the one that it had, and tells another one what is changed.
            known.view.set(current.record());
        }
        Ok(Arc::clone(known))
    }

    /// Reads the floor and the list of buckets again, if what is known of them is too old.
    async fn refresh(&self, known: &KnownQueue, now: u64) -> Result<(), QueueError> {
        if !known.heads.lock().is_stale(now) {
            return Ok(());
        }
        let level = self.level(known);
        let floor = self.rows.floor(level, known.id, rows::RowKind::Tuples).await?;
        let floor = floor.max(known.heads.lock().floor());
        let most = crate::limits::BUCKETS_LISTED;
        let buckets = self.rows.buckets(level, known.id, rows::RowKind::Tuples, floor, most).await?;
        known.heads.lock().list(floor, buckets, now);
        Ok(())
    }

    /// Puts a tuple whose time is `at(now)`, but at or above the floor; the tuple as it was put.
    ///
    /// Where it was not answered in time readers may be past it: it is put again, later. So that a slow store does not
    /// make this endless, the last one of three counts; a look back finds it.
    async fn put_tuple(
        &self,
        known: &KnownQueue,
        tuple: Tuple,
        at: impl Fn(u64) -> u64,
    ) -> Result<Tuple, QueueError> {
        let level = self.level(known);
        let mut tuple = tuple;
        let mut attempts = 0;
        loop {
            let floor = heads::begin_of(known.heads.lock().floor());
            tuple.visible_at = at(self.now()).max(floor);
            let place = known.tuples_at(tuple.visible_at, tuple.number);
            if !known.heads.lock().is_registered(place.bucket) {
                self.rows.put_bucket(level, known.id, rows::RowKind::Tuples, place.bucket).await?;
                known.heads.lock().register(place.bucket, self.now(), self.margin());
            }
            self.rows.put_tuple(level, place, tuple).await?;
            attempts += 1;
            if attempts == 3 || self.now() <= tuple.visible_at + crate::limits::WRITE_MS {
                return Ok(tuple);
            }
            let late = tuple;
            tuple.moves += 1;
            self.rows.delete_tuple(level, place, late).await?;
        }
    }
}
