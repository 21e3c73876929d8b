//! Looking at a queue without changing it.

use std::ops::ControlFlow;

use futures::future::try_join_all;
use tailwater_env::HashMap;

use super::heads::{begin_of, bucket_of, slices};
use super::numbers::sent_at;
use super::rows::{RowKind, RowPartition, Tuple};
use super::{KnownQueue, SharedFront};
use crate::ids::{Number, Receipt, Sequence, Token};
use crate::limits::{BUCKETS_LISTED, COUNTED_MAX, ROWS_READ};
use crate::queue::Counts;
use crate::request::{Figures, Message, QueueError};
use crate::settings::Consistency;

impl Figures {
    /// One more message: since when it can be received, or from when on, and how often it was.
    pub(super) fn count(&mut self, number: Number, visible_at: u64, receives: u16) {
        let Counts { visible, in_flight, delayed } = &mut self.counts;
        *match (visible_at > self.now, receives > 0) {
            (false, _) => visible,
            (true, true) => in_flight,
            (true, false) => delayed,
        } += 1;
        let sent_at = sent_at(number);
        self.oldest_sent_at = Some(self.oldest_sent_at.map_or(sent_at, |old| old.min(sent_at)));
    }
}

/// A queue with more tuples than this is not counted each time that somebody asks.
const QUICK_TUPLES: u64 = 10_000;

/// Messages of a peek whose state is looked for.
const PEEKED_MAX: usize = 10_000;

/// But, whatever asks, so many tuples in a millisecond.
const TUPLES_PER_MS: u64 = 50;

impl SharedFront {
    /// How a queue stands. Its tuples are counted, up to [`COUNTED_MAX`]; what takes long to count is told again for a
    /// while. What was kept for long enough is not, though it may be there until somebody meets it.
    pub(super) async fn figures(&self, known: &KnownQueue) -> Result<Figures, QueueError> {
        let began = self.now();
        let last = known.figures.lock().filter(|figures| {
            let Counts { visible, in_flight, delayed } = figures.counts;
            let tuples = visible + in_flight + delayed;
            tuples > QUICK_TUPLES && (figures.now..figures.now + tuples / TUPLES_PER_MS).contains(&began)
        });
        let mut figures = match last {
            Some(figures) => figures,
            None => {
                let figures = self.count(known, began).await?;
                *known.figures.lock() = Some(figures);
                figures
            }
        };
        figures.happened = *known.happened.lock();
        figures.waiting = known.waiting.load(std::sync::atomic::Ordering::Relaxed);
        Ok(figures)
    }

    async fn count(&self, known: &KnownQueue, now: u64) -> Result<Figures, QueueError> {
        if known.is_fifo() {
            return self.count_groups(known, now).await;
        }
        let mut figures = Figures { now, ..Figures::default() };
        self.each_tuple(known, COUNTED_MAX, |tuple| {
            if known.is_expired(tuple.number, now) {
                return;
            }
            figures.count(tuple.number, tuple.visible_at, tuple.receives);
        })
        .await?;
        Ok(figures)
    }

    /// Tells of all tuples, `most` of them, part by part and in order within each.
    pub(super) async fn each_tuple(
        &self,
        known: &KnownQueue,
        most: usize,
        mut tell: impl FnMut(&Tuple),
    ) -> Result<(), QueueError> {
        let tell = |tuple: &Tuple| {
            tell(tuple);
            ControlFlow::Continue(())
        };
        self.each_tuple_until(known, 0, most, tell).await
    }

    /// The same, from a bucket on, until it was enough.
    pub(super) async fn each_tuple_until(
        &self,
        known: &KnownQueue,
        bucket: u64,
        most: usize,
        mut tell: impl FnMut(&Tuple) -> ControlFlow<()>,
    ) -> Result<(), QueueError> {
        let level = self.level(known);
        let mut told = 0;
        let mut tell = |tuple: &Tuple| {
            told += 1;
            tell(tuple)?;
            if told < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let mut from_bucket = self.rows.floor(level, known.id, RowKind::Tuples).await?.max(bucket);
        loop {
            let buckets =
                self.rows.buckets(level, known.id, RowKind::Tuples, from_bucket, BUCKETS_LISTED).await?;
            let Some(last) = buckets.last().copied() else { return Ok(()) };
            for bucket in buckets {
                for part in 0..known.parts {
                    let at = RowPartition { queue: known.id, bucket, part };
                    // Cursors are safe to skip to: below them there is nothing.
                    let known_from = known.heads.lock().from(bucket, part);
                    let from = known_from.unwrap_or(begin_of(bucket + 1));
                    for times in slices(from, begin_of(bucket + 1) - 1) {
                        if self.each_tuple_within(level, at, times, &mut tell).await?.is_break() {
                            return Ok(());
                        }
                    }
                }
            }
            from_bucket = last + 1;
        }
    }

    /// Tells of the tuples of a partition from one time up to another one, in order, until it was enough.
    pub(super) async fn each_tuple_within(
        &self,
        level: Consistency,
        at: RowPartition,
        (mut from, upto): (u64, u64),
        mut tell: impl FnMut(&Tuple) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, QueueError> {
        let mut seen: Option<(u64, Number)> = None;
        loop {
            let tuples = self.rows.tuples(level, at, from, upto, ROWS_READ).await?;
            let is_whole = tuples.len() < ROWS_READ;
            let mut is_fresh = false;
            for tuple in &tuples {
                let key = (tuple.visible_at, tuple.number);
                if seen.is_none_or(|seen| key > seen) {
                    if tell(tuple).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    (seen, is_fresh) = (Some(key), true);
                }
            }
            let Some(last) = tuples.last().filter(|_| !is_whole) else {
                return Ok(ControlFlow::Continue(()));
            };
            // The same time again, as there may be more of it; more than one read of one time is left out.
            from = last.visible_at + u64::from(!is_fresh);
        }
    }

    /// Looks at messages from a number on, oldest first.
    ///
    /// Bodies are in that order, the index is not: when a message is visible again, and how often it was received, is
    /// told of what is among the first [`PEEKED_MAX`]. Of a FIFO queue nothing else is told: a body may be in no group.
    pub(super) async fn peek(
        &self,
        known: &KnownQueue,
        from: Sequence,
        count: usize,
    ) -> Result<Vec<Message>, QueueError> {
        let (level, now) = (self.level(known), self.now());
        let is_fifo = known.is_fifo();
        let mut tuples: HashMap<Number, Tuple> = HashMap::default();
        if is_fifo {
            tuples = self.slots_by_number(known, PEEKED_MAX).await?;
        } else {
            self.each_tuple(known, PEEKED_MAX, |tuple| {
                tuples.insert(tuple.number, *tuple);
            })
            .await?;
        }
        let after = Number(from.0.saturating_sub(1));
        let mut bucket_from = bucket_of(if from.0 == 0 { 0 } else { sent_at(Number(from.0)) });
        bucket_from = bucket_from.max(self.rows.floor(level, known.id, RowKind::Bodies).await?);
        let mut messages = Vec::new();
        loop {
            let buckets =
                self.rows.buckets(level, known.id, RowKind::Bodies, bucket_from, BUCKETS_LISTED).await?;
            let Some(last) = buckets.last().copied() else { return Ok(messages) };
            for bucket in buckets {
                let reads = (0..known.parts).map(|part| {
                    let at = RowPartition { queue: known.id, bucket, part };
                    self.rows.bodies(level, at, after, count)
                });
                let mut bodies: Vec<_> = try_join_all(reads).await?.into_iter().flatten().collect();
                bodies.sort_unstable();
                let bodies = bodies.into_iter().filter(|(number, _)| !known.is_expired(*number, now));
                let bodies = bodies.filter(|(number, _)| !is_fifo || tuples.contains_key(number));
                for (number, _) in bodies {
                    if messages.len() == count {
                        return Ok(messages);
                    }
                    let body = self.rows.body(level, known.body_at(number), number).await?;
                    let Some(body) = body else { continue };
                    let tuple = tuples.get(&number);
                    let origin = body.source.as_ref().map_or(number, |(_, origin)| *origin);
                    messages.push(Message {
                        receipt: Receipt {
                            queue: known.id,
                            sequence: Sequence(number.0),
                            token: Token(0),
                            place: 0,
                        },
                        number: origin,
                        generation: 0,
                        sent_at: sent_at(origin),
                        first_received_at: tuple.map_or(0, |tuple| tuple.first_received_at),
                        visible_at: tuple.map_or(sent_at(number), |tuple| tuple.visible_at),
                        receives: tuple.map_or(0, |tuple| tuple.receives),
                        source: body.source.map(|(source, _)| source.into()),
                        content: body.content,
                    });
                }
            }
            bucket_from = last + 1;
        }
    }
}
