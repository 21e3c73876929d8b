//! What nobody waits for: buckets are dropped in which there is nothing, or nothing but what was kept for long enough,
//! what is left of deleted queues is, and bodies and tuples are brought together again.
//!
//! A sweep reads the whole index of a queue, and the numbers of all its bodies. A body that is older than any send that
//! is still under way, and that no tuple leads to, gets a new tuple: visible now. While the sweep reads, tuples move:
//! forward they are met again, but a change of visibility may bring one back to where the sweep has been. So a body has
//! to be without a tuple in two sweeps that follow each other. A tuple without a body is removed when it is received.
//! The sweeper removes those that nobody receives, so that they are not counted for as long: it also has to find them
//! twice, as most were only deleted while it read.
//!
//! What was kept for long enough and nobody receives goes in whole buckets, lowest first, so many of them with each
//! sweep: as they are in the order of time, so do they expire.
//!
//! One front end sweeps a queue at a time: it notes that it does, as a record that ends by itself. That two do is
//! harmless: both put the same message in, and the second tuple goes with the first delete, or receive.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use tailwater_env::HashSet;

use super::heads::{Heads, begin_of, bucket_of, slices};
use super::numbers::sent_at;
use super::rows::{RowKind, RowPartition, Tuple};
use super::{KnownQueue, SharedFront};
use crate::ids::{Number, QueueId};
use crate::limits::{BUCKETS_LISTED, DROP_AFTER_MS, GHOSTS_MAX, ROWS_READ, SETTLE_MS};
use crate::request::QueueError;
use crate::settings::Consistency;
use crate::view::QueueView;

/// Where it is noted which queue is being swept.
const SPACE: &str = "sweeps";

/// How often a front end looks for empty buckets of a queue that it receives from, in milliseconds.
const DROP_EVERY_MS: u64 = 5_000;

/// What the last sweep of each queue found.
pub(super) type Suspects = tailwater_env::HashMap<QueueId, Suspect>;

/// What a sweep of a queue found.
#[derive(Debug, Default)]
pub(super) struct Suspect {
    /// Bodies without a tuple.
    bodies: BTreeSet<Number>,
    /// Tuples without a body; of so many of them [`GHOSTS_MAX`].
    tuples: BTreeSet<Number>,
}

impl SharedFront {
    /// Sweeps all queues, again and again.
    pub(super) async fn sweep_all(self: Arc<Self>) {
        let mut suspects = Suspects::default();
        loop {
            // Not all front ends at the same time.
            let pause = self.config.sweep_ms / 2 + self.env.random_below(self.config.sweep_ms.max(1));
            self.env.sleep(Duration::from_millis(pause)).await;
            if let Err(error) = self.sweep(&mut suspects).await {
                tracing::warn!(%error, "not all queues could be swept; they will be again");
            }
        }
    }

    /// Sweeps all queues once: those behind one that can't be swept, too. The last error, if there was one.
    pub(super) async fn sweep(&self, suspects: &mut Suspects) -> Result<(), QueueError> {
        let mut outcome = Ok(());
        for view in self.directory.all(self).await? {
            match self.sweep_one(&view, suspects).await {
                Ok(()) | Err(QueueError::NoQueue) => {}
                failed => outcome = failed,
            }
        }
        // A front end that died while it deleted them left something, and those that did not know yet sent to them.
        for (view, parts, gone) in self.directory.gone(self).await? {
            let cleared = self.clear_gone(&KnownQueue::new(Arc::clone(&view), parts)).await;
            match cleared {
                Ok(()) => self.directory.forget_gone(self, &view, &gone).await?,
                failed => outcome = failed,
            }
        }
        outcome
    }

    /// Sweeps a queue, unless another front end does, or just did.
    async fn sweep_one(&self, view: &QueueView, suspects: &mut Suspects) -> Result<(), QueueError> {
        let key = view.id.0.to_string();
        let ttl_s = (self.config.sweep_ms / 2_000).max(1) as u32;
        if !self.rows.write_record(SPACE, &key, Some(Bytes::new()), None, ttl_s).await? {
            return Ok(());
        }
        let known = self.known(view).await?;
        let before = suspects.remove(&known.id).unwrap_or_default();
        let found = self.sweep_queue(&known, &before).await?;
        if !found.bodies.is_empty() || !found.tuples.is_empty() {
            suspects.insert(known.id, found);
        }
        self.drop_bodies(&known).await?;
        // Receives drop what they are past; of a queue that nobody receives from nothing is dropped but here. Not
        // trusting this front end's cursors.
        let aside = KnownQueue::new(Arc::clone(&known.view), known.parts);
        let now = self.now();
        self.refresh(&aside, now).await?;
        let expired = self.drop_empty(&aside, now).await?;
        known.happened.lock().expired += expired;
        Ok(())
    }

    /// Sweeps a queue; what it found, of which what is in `before`, too, is put right.
    pub(super) async fn sweep_queue(
        &self,
        known: &KnownQueue,
        before: &Suspect,
    ) -> Result<Suspect, QueueError> {
        if known.is_fifo() {
            self.sweep_groups(known).await?;
            return Ok(Suspect::default());
        }
        let level = self.level(known);
        let now = self.now();
        // What was sent later may still be on its way.
        let upto = self.margin().before(now).saturating_sub(SETTLE_MS);
        let mut listed: HashSet<Number> = HashSet::default();
        self.each_tuple_from_the_floor(known, |tuple| {
            listed.insert(tuple.number);
        })
        .await?;
        let mut without = BTreeSet::new();
        let mut from = self.rows.floor(level, known.id, RowKind::Bodies).await?;
        loop {
            let buckets = self.rows.buckets(level, known.id, RowKind::Bodies, from, BUCKETS_LISTED).await?;
            let Some(last) = buckets.last().copied() else { break };
            for bucket in buckets.into_iter().filter(|bucket| *bucket <= bucket_of(upto)) {
                for part in 0..known.parts {
                    let at = RowPartition { queue: known.id, bucket, part };
                    let mut after = Number(0);
                    loop {
                        let bodies = self.rows.bodies(level, at, after, ROWS_READ).await?;
                        let numbers = bodies.iter().map(|(number, _)| *number);
                        // What stays in there has no body.
                        let unlisted = numbers.filter(|number| !listed.remove(number));
                        // Those that are dropped soon are not to be listed again.
                        let is_lost =
                            |number: &Number| sent_at(*number) <= upto && !known.is_expired(*number, now);
                        without.extend(unlisted.filter(is_lost));
                        match bodies.last() {
                            Some((last, _)) if bodies.len() == ROWS_READ => after = *last,
                            _ => break,
                        }
                    }
                }
            }
            from = last + 1;
        }
        for number in without.intersection(&before.bodies) {
            self.list_again(known, *number).await?;
        }
        let ghosts: BTreeSet<Number> = listed.into_iter().filter(|number| sent_at(*number) <= upto).collect();
        let ghosts: BTreeSet<Number> = ghosts.into_iter().take(GHOSTS_MAX).collect();
        let stayed: BTreeSet<Number> = ghosts.intersection(&before.tuples).copied().collect();
        self.remove_ghosts(known, &stayed).await?;
        Ok(Suspect { bodies: without, tuples: ghosts })
    }

    /// Removes the tuples of messages whose bodies are gone.
    async fn remove_ghosts(&self, known: &KnownQueue, ghosts: &BTreeSet<Number>) -> Result<(), QueueError> {
        if ghosts.is_empty() {
            return Ok(());
        }
        let mut tuples = Vec::new();
        self.each_tuple_from_the_floor(known, |tuple| {
            if ghosts.contains(&tuple.number) && tuples.len() < GHOSTS_MAX {
                tuples.push(*tuple);
            }
        })
        .await?;
        let level = self.level(known);
        for some in tuples.chunks(16) {
            let removes = some.iter().map(async |tuple| {
                let at = known.body_at(tuple.number);
                // Whatever the queue's level: what one replica does not have yet another one may.
                if self.rows.body(Consistency::Quorum, at, tuple.number).await?.is_none() {
                    let at = known.tuples_at(tuple.visible_at, tuple.number);
                    self.rows.delete_tuple(level, at, *tuple).await?;
                }
                Ok::<_, QueueError>(())
            });
            try_join_all(removes).await?;
        }
        Ok(())
    }

    /// Gives a body a tuple: visible now, and with as many moves as no lost tuple of it had.
    async fn list_again(&self, known: &KnownQueue, number: Number) -> Result<(), QueueError> {
        self.put_tuple(known, Tuple::new(0, number, 1 << 20), |now| now).await?;
        tracing::info!(queue = %known.id, "a message that was in no index is in it again");
        known.sent.notify_one();
        Ok(())
    }

    /// As [`SharedFront::each_tuple`], but not trusting this front end's cursors.
    async fn each_tuple_from_the_floor(
        &self,
        known: &KnownQueue,
        tell: impl FnMut(&Tuple),
    ) -> Result<(), QueueError> {
        let aside = KnownQueue::new(Arc::clone(&known.view), known.parts);
        self.each_tuple(&aside, usize::MAX, tell).await
    }

    /// Drops buckets of tuples behind the head, beside the receives; every [`DROP_EVERY_MS`] at most.
    pub(super) fn drop_buckets(self: &Arc<Self>, known: &Arc<KnownQueue>) {
        let now = self.now();
        let mut dropping = known.dropping.lock();
        if (dropping.0..dropping.0 + DROP_EVERY_MS).contains(&now)
            || known.heads.lock().droppable(now, self.margin()).is_empty()
        {
            return;
        }
        let (front, queue) = (Arc::downgrade(self), Arc::downgrade(known));
        let task = self.env.spawn("queue-buckets", async move {
            let (Some(front), Some(known)) = (front.upgrade(), queue.upgrade()) else { return };
            match front.drop_empty(&known, now).await {
                Ok(expired) => known.happened.lock().expired += expired,
                Err(error) => tracing::debug!(%error, "empty buckets are dropped later"),
            }
        });
        *dropping = (now, Some(task));
    }

    /// Drops the lowest buckets of tuples, up to the first in which there is something to be received, now or later.
    /// How many tuples went with them that were of messages kept for long enough.
    async fn drop_empty(&self, known: &KnownQueue, now: u64) -> Result<u64, QueueError> {
        let margin = self.margin();
        let droppable = known.heads.lock().droppable(now, margin);
        let mut first = None;
        let (mut empty, mut expired) = (Vec::new(), 0);
        for bucket in droppable {
            let reads = (0..known.parts).map(|part| self.expired_in(known, bucket, part, now));
            let Some(counts) = try_join_all(reads).await?.into_iter().collect::<Option<Vec<u64>>>() else {
                first = Some(bucket);
                break;
            };
            expired += counts.into_iter().sum::<u64>();
            empty.push(bucket);
        }
        let floor = Heads::next_floor(now, margin, first);
        let level = self.level(known);
        if !empty.is_empty() {
            // First the floor: from now on nobody puts anything below it, nor reads there.
            self.rows.put_floor(level, known.id, RowKind::Tuples, floor).await?;
            known.heads.lock().raise(floor);
        }
        for bucket in empty {
            self.drop_bucket(known, RowKind::Tuples, bucket).await?;
        }
        Ok(expired)
    }

    /// How many tuples there are in a part of a bucket, if all of them are of messages that were kept for long enough.
    async fn expired_in(
        &self,
        known: &KnownQueue,
        bucket: u64,
        part: u16,
        now: u64,
    ) -> Result<Option<u64>, QueueError> {
        // Whatever the queue's level: what one replica does not have yet another one may.
        let level = Consistency::Quorum;
        let at = RowPartition { queue: known.id, bucket, part };
        // A group's tuple does not say how old its messages are.
        let is_over = |tuple: &Tuple| !known.is_fifo() && known.is_expired(tuple.number, now);
        // From the cursor on: what is below would be read through all that was deleted there.
        let from = known.heads.lock().from(bucket, part).unwrap_or(begin_of(bucket + 1) - 1);
        let mut expired = 0;
        for (from, upto) in slices(from, begin_of(bucket + 1) - 1) {
            // As a rule there is nothing, or the first one stays.
            match self.rows.tuples(level, at, from, upto, 1).await?.first() {
                None => continue,
                Some(tuple) if !is_over(tuple) => return Ok(None),
                Some(_) => {}
            }
            let count = |tuple: &Tuple| {
                if !is_over(tuple) {
                    return ControlFlow::Break(());
                }
                expired += 1;
                ControlFlow::Continue(())
            };
            if self.each_tuple_within(level, at, (from, upto), count).await?.is_break() {
                return Ok(None);
            }
        }
        Ok(Some(expired))
    }

    async fn drop_bucket(&self, known: &KnownQueue, kind: RowKind, bucket: u64) -> Result<(), QueueError> {
        let level = self.level(known);
        // Nothing in it has a later timestamp but what was moved a million times within it.
        let upto_us = i64::try_from(begin_of(bucket + 1) * 1_000 + (1 << 21)).unwrap_or(i64::MAX);
        let clears = (0..known.parts).map(|part| {
            let at = RowPartition { queue: known.id, bucket, part };
            self.rows.clear(level, kind, at, upto_us)
        });
        try_join_all(clears).await?;
        Ok(self.rows.delete_bucket(level, known.id, kind, bucket).await?)
    }

    /// Drops buckets of bodies that are empty, or older than messages are kept.
    async fn drop_bodies(&self, known: &KnownQueue) -> Result<(), QueueError> {
        let level = self.level(known);
        let now = self.now();
        let old = bucket_of(self.margin().before(now).saturating_sub(DROP_AFTER_MS));
        let expired = bucket_of(now.saturating_sub(known.kept_ms()));
        let floor = self.rows.floor(level, known.id, RowKind::Bodies).await?;
        let buckets = self.rows.buckets(level, known.id, RowKind::Bodies, floor, BUCKETS_LISTED).await?;
        let mut is_lowest = true;
        for bucket in buckets.into_iter().filter(|bucket| *bucket < old) {
            let reads = (0..known.parts).map(|part| {
                let at = RowPartition { queue: known.id, bucket, part };
                self.rows.bodies(Consistency::Quorum, at, Number(0), 1)
            });
            let is_empty = try_join_all(reads).await?.iter().all(Vec::is_empty);
            is_lowest &= is_empty || bucket < expired;
            if is_empty || bucket < expired {
                self.drop_bucket(known, RowKind::Bodies, bucket).await?;
            }
            if is_lowest {
                self.rows.put_floor(level, known.id, RowKind::Bodies, bucket + 1).await?;
            }
        }
        Ok(())
    }
}
