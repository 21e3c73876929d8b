//! Sending: first the body, and when that is there the tuple by which it is found.

use std::time::Duration;

use futures::future::{join_all, try_join_all};

use super::numbers::sent_at;
use super::rows::{Body, RowKind, Tuple};
use super::{KnownQueue, SharedFront};
use crate::contract::SentEach;
use crate::ids::{Number, Sequence};
use crate::limits::{CONTENT_BYTES_MAX, REQUEST_BYTES_MAX, WRITE_MS};
use crate::request::{QueueError, Send, Sent};

/// How often a body is put that takes long.
pub(super) const PUTS_MAX: usize = 3;

/// Each of them did.
pub(super) const TOO_SLOW: QueueError =
    QueueError::Overloaded("the store is too slow for messages to be put where they are found");

impl SharedFront {
    /// Sends messages; each for itself.
    pub(super) async fn send(&self, known: &KnownQueue, sends: Vec<Send>) -> Result<SentEach, QueueError> {
        let bytes: usize = sends.iter().map(|send| send.content.len()).sum();
        if bytes > REQUEST_BYTES_MAX || sends.iter().any(|send| send.content.len() > CONTENT_BYTES_MAX) {
            return Err(QueueError::Unsupported("a message, or all of a request, is longer than 2 MiB"));
        }
        if known.is_fifo() {
            return self.send_fifo(known, sends).await;
        }
        let settings = known.record().settings.clone();
        let sends = sends.into_iter().map(|send| {
            let delay = send.delay.map_or(u64::from(settings.delay_s) * 1_000, |delay| {
                u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)
            });
            // Now, in the order of the request.
            let number = self.numbers.next(&self.env, self.now())?;
            Ok((number, delay, Body { content: send.content, source: None, group: None }))
        });
        let sends: Vec<_> = sends.collect::<Result<_, QueueError>>()?;
        let puts = sends.into_iter().map(async |(number, delay, body)| {
            let number = self.put(known, number, delay, body).await?;
            known.happened.lock().sent += 1;
            Ok(Sent { number, generation: 0, sequence: Sequence(number.0) })
        });
        let sent = join_all(puts).await;
        known.sent.notify_one();
        Ok(sent)
    }

    /// Puts one message in that was sent. The number that it has then.
    async fn put(
        &self,
        known: &KnownQueue,
        number: Number,
        delay_ms: u64,
        body: Body,
    ) -> Result<Number, QueueError> {
        let number = self.put_body_in_time(known, number, &body).await?;
        self.list_first(known, number, delay_ms).await?;
        Ok(number)
    }

    /// Puts a message in that comes from another queue, where it still is. Whether it is there: as with
    /// [`SharedFront::is_put_in_time`] it has to have another number otherwise. After an error it is not, as far as
    /// that can be had: each attempt would leave a body that the sweeper brings back.
    pub(super) async fn put_copy(
        &self,
        known: &KnownQueue,
        number: Number,
        body: &Body,
    ) -> Result<bool, QueueError> {
        let put = async {
            let is_put = self.is_put_in_time(known, number, body).await?;
            if is_put {
                self.list_first(known, number, 0).await?;
                known.sent.notify_one();
            }
            Ok(is_put)
        };
        let put = put.await;
        if put.is_err() {
            // Its timestamp is the later one: a put that comes after it has no effect.
            let _ = self.rows.delete_body(self.level(known), known.body_at(number), number).await;
        }
        put
    }

    /// The same, with as many numbers as that takes.
    pub(super) async fn put_copy_in_time(&self, known: &KnownQueue, body: &Body) -> Result<(), QueueError> {
        for _ in 0..PUTS_MAX {
            if self.put_copy(known, self.numbers.next(&self.env, self.now())?, body).await? {
                return Ok(());
            }
        }
        Err(TOO_SLOW)
    }

    /// Puts the first tuple of a message whose body is there.
    async fn list_first(&self, known: &KnownQueue, number: Number, delay_ms: u64) -> Result<(), QueueError> {
        // When it was sent, so that messages of one request stay in order; later only if that took long.
        let sent_at = sent_at(number);
        let at = |now: u64| {
            let base = if now <= sent_at + WRITE_MS / 2 { sent_at } else { now };
            base.saturating_add(delay_ms)
        };
        self.put_tuple(known, Tuple::new(0, number, 0), at).await?;
        Ok(())
    }

    /// Puts a body; the number that it has then: another one where it took long.
    pub(super) async fn put_body_in_time(
        &self,
        known: &KnownQueue,
        number: Number,
        body: &Body,
    ) -> Result<Number, QueueError> {
        let mut number = number;
        for _ in 0..PUTS_MAX {
            if self.is_put_in_time(known, number, body).await? {
                return Ok(number);
            }
            number = self.numbers.next(&self.env, self.now())?;
        }
        Err(TOO_SLOW)
    }

    /// Puts a body, and says whether it is there. One that took long may have come to a partition that was dropped
    /// meanwhile: it is deleted again, and has to have another number.
    async fn is_put_in_time(
        &self,
        known: &KnownQueue,
        number: Number,
        body: &Body,
    ) -> Result<bool, QueueError> {
        self.put_body(known, number, body.clone()).await?;
        if self.now() <= sent_at(number) + WRITE_MS {
            return Ok(true);
        }
        self.rows.delete_body(self.level(known), known.body_at(number), number).await?;
        Ok(false)
    }

    async fn put_body(&self, known: &KnownQueue, number: Number, body: Body) -> Result<(), QueueError> {
        let (level, at) = (self.level(known), known.body_at(number));
        if !known.bodies.lock().contains(&at.bucket) {
            self.rows.put_bucket(level, known.id, RowKind::Bodies, at.bucket).await?;
            let mut bodies = known.bodies.lock();
            bodies.insert(at.bucket);
            // A few are enough: messages are sent now.
            while bodies.len() > 64 {
                bodies.pop_first();
            }
        }
        Ok(self.rows.put_body(level, at, number, body).await?)
    }

    /// Drops everything that was sent before, and answers when nothing goes with it that is sent from then on,
    /// whichever clocks they have that send it. What is sent meanwhile may go, or stay.
    pub(super) async fn purge(&self, known: &KnownQueue) -> Result<(), QueueError> {
        let skew = Duration::from_millis(self.config.skew_ms);
        // What is sent from now on has a greater time than what is dropped once both skews are over: the senders'
        // clocks may be ahead of this one before, and behind it after.
        let (upto, until) = (self.now() + self.config.skew_ms, self.env.now() + 2 * skew);
        self.clear_kinds(known, kinds_of(known), upto, false).await?;
        self.env.sleep_until(until).await;
        Ok(())
    }

    /// Drops everything that a queue has which is just being deleted.
    pub(super) async fn clear(&self, known: &KnownQueue) -> Result<(), QueueError> {
        self.clear_kinds(known, kinds_of(known), self.now(), false).await
    }

    /// Drops everything of a queue that was deleted.
    pub(super) async fn clear_gone(&self, known: &KnownQueue) -> Result<(), QueueError> {
        self.clear_kinds(known, &[RowKind::Bodies, RowKind::Tuples], self.now(), true).await
    }

    /// Drops what was sent before `upto`.
    async fn clear_kinds(
        &self,
        known: &KnownQueue,
        kinds: &[RowKind],
        upto: u64,
        is_gone: bool,
    ) -> Result<(), QueueError> {
        let level = self.level(known);
        let upto_us = i64::try_from(upto.saturating_mul(1_000)).unwrap_or(i64::MAX) - 1;
        if known.is_fifo() {
            self.clear_groups(known).await?;
        }
        for kind in kinds.iter().copied() {
            let mut from = self.rows.floor(level, known.id, kind).await?;
            loop {
                let most = crate::limits::BUCKETS_LISTED;
                let buckets = self.rows.buckets(level, known.id, kind, from, most).await?;
                let Some(last) = buckets.last().copied() else { break };
                for some in buckets.chunks(16) {
                    let clears = some.iter().flat_map(|bucket| {
                        (0..known.parts).map(|part| {
                            let at = super::RowPartition { queue: known.id, bucket: *bucket, part };
                            self.rows.clear(level, kind, at, upto_us)
                        })
                    });
                    try_join_all(clears).await?;
                    if is_gone {
                        let lists =
                            some.iter().map(|bucket| self.rows.delete_bucket(level, known.id, kind, *bucket));
                        try_join_all(lists).await?;
                    }
                }
                from = last + 1;
            }
        }
        Ok(())
    }
}

/// What is dropped of a queue that goes on, or that others don't know yet to be gone.
fn kinds_of(known: &KnownQueue) -> &'static [RowKind] {
    match known.is_fifo() {
        // Timestamps of groups' tuples are long ago: what is put from now on would be cleared, too.
        true => &[RowKind::Bodies],
        false => &[RowKind::Bodies, RowKind::Tuples],
    }
}
