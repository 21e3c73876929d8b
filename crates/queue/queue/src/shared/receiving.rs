//! Receiving: the oldest visible tuples, a choice among them by the order hint, and the move of each that was chosen.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::{join_all, try_join_all};

use tailwater_env::Instant;

use super::heads::{begin_of, bucket_of, slices};
use super::numbers::sent_at;
use super::rows::{Body, Letter, RowPartition, Tuple};
use super::search::{Search, SearchLooked, Witness};
use super::sending::{PUTS_MAX, TOO_SLOW};
use super::takes::{Moment, TakePlace};
use super::whole::{HeldCall, RECEIVE_KIB};
use super::{KnownQueue, SharedFront};
use crate::ids::{Number, Receipt, Sequence, Token};
use crate::limits::{BATCH_MAX, INVISIBLE_MS_MAX, LOOK_MS, LOOKS_EVERY, POLL_MS_MAX, SETTLE_MS};
use crate::order_hint::choose;
use crate::request::{Message, QueueError, Receive};
use crate::settings::{Consistency, OrderHint};

/// Pause between the first two looks of a receive that waits, in milliseconds; each is twice as long as the one before.
const POLL_MS: u64 = 20;

/// Tuples from a random time on, among which a receive without order chooses.
const SAMPLED: u32 = 8;

/// What a receive wants.
#[derive(Clone, Copy)]
pub(super) struct Want {
    pub(super) count: usize,
    pub(super) visibility_ms: u64,
}

/// Tuples that this front end's other receives leave alone while it is there.
struct Taking<'a> {
    known: &'a KnownQueue,
    tuples: Vec<TakePlace>,
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        let mut takes = self.known.takes.lock();
        self.tuples.iter().for_each(|tuple| takes.let_go(*tuple));
    }
}

/// A read of the index, until it was chosen from.
struct ReceiveReading<'a> {
    known: &'a KnownQueue,
    begun: Moment,
}

impl<'a> ReceiveReading<'a> {
    fn begin(known: &'a KnownQueue) -> Self {
        Self { known, begun: known.takes.lock().begin_read() }
    }
}

impl Drop for ReceiveReading<'_> {
    fn drop(&mut self) {
        self.known.takes.lock().end_read(self.begun);
    }
}

/// What became of a tuple.
enum Taken {
    Message(Box<Message>),
    /// There is nothing behind it; it is gone, or was left for later.
    Nothing,
}

impl SharedFront {
    pub(super) async fn receive(
        self: &Arc<Self>,
        known: &Arc<KnownQueue>,
        receive: Receive,
    ) -> Result<Vec<Message>, QueueError> {
        let settings = known.record().settings.clone();
        let of_seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let visibility = receive.visibility.unwrap_or(of_seconds(settings.visibility_s)).as_millis();
        let want = Want {
            count: receive.count.clamp(1, BATCH_MAX),
            visibility_ms: u64::try_from(visibility).unwrap_or(u64::MAX).min(INVISIBLE_MS_MAX),
        };
        let until = self.env.now() + receive.wait.unwrap_or(of_seconds(settings.wait_s));
        let Some(attempt) = receive.attempt.filter(|_| settings.fifo.is_some()) else {
            return self.receive_until(known, want, until).await.map(HeldCall::handed_out);
        };
        if let Some(messages) = self.receive_again(known, &attempt, want.visibility_ms).await? {
            return Ok(messages);
        }
        let held = self.receive_until(known, want, until).await?;
        if !held.messages().is_empty() {
            self.remember_attempt(known, &attempt, held.messages()).await?;
        }
        Ok(held.handed_out())
    }

    /// Receives what is visible, or the first that is until then.
    async fn receive_until(
        self: &Arc<Self>,
        known: &Arc<KnownQueue>,
        want: Want,
        until: Instant,
    ) -> Result<HeldCall, QueueError> {
        let held = self.receive_whole(known, want).await?;
        if !held.messages().is_empty() || self.env.now() >= until {
            return Ok(held);
        }
        known.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(known);
        let left = until.since(self.env.now());
        // One looks for all: the others wait for their turn, and cost nothing.
        let Some(_turn) = self.env.timeout(left, known.turn.lock()).await else { return Ok(held) };
        let mut pause = POLL_MS;
        loop {
            let held = self.receive_whole(known, want).await?;
            let left = until.since(self.env.now());
            if !held.messages().is_empty() || left.is_zero() {
                return Ok(held);
            }
            let sent = self.env.timeout(left.min(Duration::from_millis(pause)), known.sent.notified()).await;
            pause = if sent.is_some() { POLL_MS } else { (2 * pause).min(POLL_MS_MAX) };
        }
    }

    /// Receives what is visible, without waiting. Dropped it receives nothing.
    async fn receive_whole(
        self: &Arc<Self>,
        known: &Arc<KnownQueue>,
        want: Want,
    ) -> Result<HeldCall, QueueError> {
        let (front, of) = (Arc::clone(self), Arc::clone(known));
        let receive = async move {
            let messages = front.receive_now(&of, want).await?;
            Ok(HeldCall::new(&front, &of, messages))
        };
        self.whole(RECEIVE_KIB, receive).await
    }

    /// Receives what is visible, without waiting.
    async fn receive_now(&self, known: &KnownQueue, want: Want) -> Result<Vec<Message>, QueueError> {
        if known.is_fifo() {
            return self.receive_fifo(known, want).await;
        }
        let mut messages = Vec::new();
        // Again where all that was chosen turned out to be nothing. Tuples without a body go with it, so it ends.
        for _ in 0..64 {
            let count = want.count - messages.len();
            let (chosen, taking) = self.choose(known, count).await?;
            if chosen.is_empty() {
                break;
            }
            let (taken, failure) = self.take_all(known, chosen, want.visibility_ms).await;
            messages.extend(taken);
            drop(taking);
            match failure {
                // What was received is handed out; the others are visible again when their time is over.
                Some(error) if messages.is_empty() => return Err(error),
                Some(_) => break,
                None if messages.is_empty() => {}
                None => break,
            }
        }
        Ok(messages)
    }

    /// Receives visible messages up to a number, whatever else is visible before them. Not from a FIFO queue.
    pub(super) async fn receive_upto(
        &self,
        known: &KnownQueue,
        upto: Number,
        count: usize,
        visibility: Duration,
        search: &mut Search,
    ) -> Result<Vec<Message>, QueueError> {
        let now = self.now();
        self.refresh(known, now).await?;
        let reading = ReceiveReading::begin(known);
        let most = count + known.takes.lock().hidden();
        // As a rule they are the oldest. Looking there moves the cursors on: nobody reads through what was received
        // before.
        let mut chosen = self.oldest(known, now, most).await?;
        chosen.retain(|tuple| tuple.number <= upto);
        if !chosen.is_empty() {
            search.found();
        } else if search.is_due(self.env.now(), self.is_hidden(known, search.witness(), now).await?) {
            let (mut read, mut first_hidden) = (0, None);
            self.each_tuple_until(known, search.bucket(), usize::MAX, |tuple| {
                read += 1;
                if tuple.number > upto {
                    return ControlFlow::Continue(());
                }
                if tuple.visible_at <= now {
                    chosen.push(*tuple);
                } else if first_hidden.is_none_or(|(visible_at, _)| tuple.visible_at < visible_at) {
                    first_hidden = Some((tuple.visible_at, tuple.number));
                }
                if chosen.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .await?;
            let last = chosen.last().filter(|_| chosen.len() >= most);
            let looked = match (chosen.is_empty(), first_hidden) {
                (false, _) => SearchLooked::Found(last.map(|tuple| bucket_of(tuple.visible_at))),
                (true, Some((visible_at, number))) => {
                    SearchLooked::Hidden(Witness::Tuple(visible_at, number))
                }
                (true, None) => SearchLooked::Nothing,
            };
            search.looked(self.env.now(), read, looked);
        }
        let _taking = {
            let mut takes = known.takes.lock();
            chosen.retain(|tuple| takes.is_free(&(tuple.visible_at, tuple.number), reading.begun));
            chosen.truncate(count);
            let tuples: Vec<_> = chosen.iter().map(|tuple| (tuple.visible_at, tuple.number)).collect();
            takes.take(tuples.iter().copied());
            Taking { known, tuples }
        };
        let visibility_ms = u64::try_from(visibility.as_millis()).unwrap_or(u64::MAX);
        let (messages, failure) = self.take_all(known, chosen, visibility_ms).await;
        match failure {
            Some(error) if messages.is_empty() => Err(error),
            _ => Ok(messages),
        }
    }

    /// Whether a message is still invisible where it was.
    async fn is_hidden(
        &self,
        known: &KnownQueue,
        witness: Option<Witness>,
        now: u64,
    ) -> Result<bool, QueueError> {
        match witness {
            Some(Witness::Tuple(visible_at, number)) if visible_at > now => {
                let at = known.tuples_at(visible_at, number);
                Ok(self.rows.tuple(self.level(known), at, visible_at, number).await?.is_some())
            }
            _ => Ok(false),
        }
    }

    /// Takes tuples that were chosen: their messages, and the last error if there was one.
    async fn take_all(
        &self,
        known: &KnownQueue,
        chosen: Vec<Tuple>,
        visibility_ms: u64,
    ) -> (Vec<Message>, Option<QueueError>) {
        let takes = chosen.into_iter().map(|tuple| self.take(known, tuple, visibility_ms));
        let (mut messages, mut failure) = (Vec::new(), None);
        for taken in join_all(takes).await {
            match taken {
                Ok(Taken::Message(message)) => messages.push(*message),
                Ok(Taken::Nothing) => {}
                Err(error) => failure = Some(error),
            }
        }
        (messages, failure)
    }

    /// Chooses among the oldest visible tuples, and keeps this front end's other receives away from what it chose.
    async fn choose<'a>(
        &self,
        known: &'a KnownQueue,
        count: usize,
    ) -> Result<(Vec<Tuple>, Taking<'a>), QueueError> {
        let hint = match known.record().settings.order_hint {
            OrderHint::K(k) => k,
            OrderHint::Auto => known.hint.lock().k(),
            OrderHint::Infinity => SAMPLED,
        };
        let now = self.now();
        self.refresh(known, now).await?;
        let is_sampled = known.record().settings.order_hint == OrderHint::Infinity;
        let reading = ReceiveReading::begin(known);
        // Those that are being taken may still be there.
        let most = hint as usize + count - 1 + known.takes.lock().hidden();
        let mut candidates = match is_sampled {
            true => self.sample(known, now, most).await?,
            false => self.oldest(known, now, most).await?,
        };
        let mut takes = known.takes.lock();
        candidates.retain(|tuple| takes.is_free(&(tuple.visible_at, tuple.number), reading.begun));
        candidates.truncate(hint as usize + count - 1);
        let (chosen, passed) = choose(candidates, count, |bound| self.env.random_below(bound));
        let tuples: Vec<_> = chosen.iter().map(|tuple| (tuple.visible_at, tuple.number)).collect();
        takes.take(tuples.iter().copied());
        drop(takes);
        if !is_sampled {
            known.happened.lock().displaced += passed;
        }
        Ok((chosen, Taking { known, tuples }))
    }

    /// The oldest visible tuples, in order.
    pub(super) async fn oldest(
        &self,
        known: &KnownQueue,
        now: u64,
        most: usize,
    ) -> Result<Vec<Tuple>, QueueError> {
        let buckets = known.heads.lock().readable(now, self.margin());
        let mut tuples = Vec::with_capacity(most.min(1024));
        for bucket in buckets {
            tuples.extend(self.read_bucket(known, bucket, now, most - tuples.len()).await?);
            if tuples.len() >= most {
                break;
            }
        }
        Ok(tuples)
    }

    /// The oldest visible tuples of a bucket, in order.
    async fn read_bucket(
        &self,
        known: &KnownQueue,
        bucket: u64,
        now: u64,
        most: usize,
    ) -> Result<Vec<Tuple>, QueueError> {
        let level = self.level(known);
        let parts: Vec<(u16, u64)> = {
            let heads = known.heads.lock();
            (0..known.parts).filter_map(|part| Some((part, heads.from(bucket, part)?))).collect()
        };
        let upto = now.min(begin_of(bucket + 1) - 1);
        let reads = parts.iter().map(async |(part, from)| {
            let at = RowPartition { queue: known.id, bucket, part: *part };
            let mut tuples = Vec::new();
            for (from, upto) in slices(*from, upto) {
                tuples.extend(self.rows.tuples(level, at, from, upto, most - tuples.len()).await?);
                if tuples.len() >= most {
                    break;
                }
            }
            Ok::<_, QueueError>(tuples)
        });
        let read = try_join_all(reads).await?;
        let mut heads = known.heads.lock();
        for ((part, _), tuples) in parts.iter().zip(&read) {
            heads.read(bucket, *part, tuples.first().map(|tuple| tuple.visible_at), now, self.margin());
        }
        drop(heads);
        let mut tuples: Vec<Tuple> = read.into_iter().flatten().collect();
        tuples.sort_unstable_by_key(|tuple| (tuple.visible_at, tuple.number));
        tuples.truncate(most);
        Ok(tuples)
    }

    /// Visible tuples from a random time on: the paper's baseline without order. The time is one between the oldest and
    /// the newest of them: in all the rest of their bucket there may be nothing.
    async fn sample(&self, known: &KnownQueue, now: u64, most: usize) -> Result<Vec<Tuple>, QueueError> {
        let buckets = known.heads.lock().readable(now, self.margin());
        let level = self.level(known);
        let read = async |bucket: u64, from: u64, upto: u64, most: usize| {
            let reads = (0..known.parts).map(|part| {
                let at = RowPartition { queue: known.id, bucket, part };
                self.rows.tuples(level, at, from, upto, most)
            });
            let found = try_join_all(reads).await?;
            Ok::<Vec<Tuple>, QueueError>(found.into_iter().flatten().collect())
        };
        let mut tuples = Vec::new();
        let first = self.env.random_below(buckets.len().max(1) as u64) as usize;
        for bucket in buckets[first..].iter().copied().chain(buckets[..first].iter().copied()) {
            let (begin, end) = (begin_of(bucket), now.min(begin_of(bucket + 1) - 1));
            let oldest = read(bucket, begin, end, 1).await?;
            let Some(oldest) = oldest.iter().map(|tuple| tuple.visible_at).min() else { continue };
            // Where there is nothing from a time on, it is before that.
            let mut upto = end;
            while upto >= oldest {
                let from = oldest + self.env.random_below(upto - oldest + 1);
                let found = read(bucket, from, end, most).await?;
                if found.is_empty() {
                    upto = from.saturating_sub(1);
                    continue;
                }
                tuples.extend(found);
                if tuples.len() < most && from > oldest {
                    tuples.extend(read(bucket, oldest, from - 1, most - tuples.len()).await?);
                }
                break;
            }
            if tuples.len() >= most {
                break;
            }
        }
        Ok(tuples)
    }

    /// Moves a tuple that was chosen, and fetches its message.
    async fn take(&self, known: &KnownQueue, tuple: Tuple, visibility_ms: u64) -> Result<Taken, QueueError> {
        let record = known.record();
        if known.is_expired(tuple.number, self.now()) {
            self.remove(known, tuple).await?;
            known.happened.lock().expired += 1;
            return Ok(Taken::Nothing);
        }
        if let Some(redrive) = &record.settings.redrive
            && tuple.receives >= redrive.receives_max
            && self.redrive(known, tuple, &redrive.target).await?
        {
            return Ok(Taken::Nothing);
        }
        let level = self.level(known);
        let now = self.now();
        let moved = Tuple {
            moves: tuple.moves + 1,
            receives: tuple.receives.saturating_add(1),
            first_received_at: if tuple.receives == 0 { now } else { tuple.first_received_at },
            received_at: now,
            ..tuple
        };
        let (body, moved) = futures::join!(
            self.rows.body(level, known.body_at(tuple.number), tuple.number),
            self.put_tuple(known, moved, |now| now + visibility_ms)
        );
        let (body, moved) = (body?, moved?);
        let old_at = known.tuples_at(tuple.visible_at, tuple.number);
        let Some(Body { content, source, .. }) = body else {
            let new_at = known.tuples_at(moved.visible_at, moved.number);
            // Not settled: the tuple that it has now is looked at once more, later.
            if self.is_settled(level, tuple.number) {
                self.rows.delete_tuple(level, new_at, moved).await?;
            }
            self.rows.delete_tuple(level, old_at, tuple).await?;
            return Ok(Taken::Nothing);
        };
        if (moved.visible_at, moved.number) != (tuple.visible_at, tuple.number) {
            self.rows.delete_tuple(level, old_at, tuple).await?;
        }
        self.look(known, &moved).await;
        let origin = source.as_ref().map_or(tuple.number, |(_, origin)| *origin);
        let mut happened = known.happened.lock();
        happened.received += 1;
        // Its timeout, or the end of a change of visibility: nobody deleted it.
        happened.timeouts += u64::from(tuple.receives > 0);
        Ok(Taken::Message(Box::new(Message {
            receipt: Receipt {
                queue: known.id,
                sequence: Sequence(tuple.number.0),
                token: Token(moved.moves),
                place: moved.visible_at,
            },
            number: origin,
            generation: 0,
            sent_at: sent_at(origin),
            first_received_at: moved.first_received_at,
            visible_at: moved.visible_at,
            receives: moved.receives,
            source: source.map(|(source, _)| source.into()),
            content,
        })))
    }

    /// Whether a message whose body is not found has none, and not only at one replica.
    fn is_settled(&self, level: Consistency, number: Number) -> bool {
        level == Consistency::Quorum || sent_at(number) + SETTLE_MS + self.config.skew_ms <= self.now()
    }

    /// Now and then, looks whether another receiver took the message before: then it has another tuple beside this one.
    /// The first of them is no duplicate: if each counted the others, two receives of a message would be two
    /// duplicates.
    async fn look(&self, known: &KnownQueue, moved: &Tuple) {
        let is_auto = known.record().settings.order_hint == OrderHint::Auto;
        let every = if is_auto { known.hint.lock().looks_every() } else { LOOKS_EVERY };
        if self.env.random_below(every) > 0 {
            return;
        }
        // The other one asked for the same time as this one, or for the queue's. Whoever it is not seen of is not
        // counted: a look is a sample.
        let usual = moved.received_at + u64::from(known.record().settings.visibility_s) * 1_000;
        let usual = Some(usual).filter(|usual| usual.abs_diff(moved.visible_at) > LOOK_MS);
        let mut is_duplicate = false;
        for visible_at in std::iter::once(moved.visible_at).chain(usual) {
            let at = known.tuples_at(visible_at, moved.number);
            let from = visible_at.saturating_sub(LOOK_MS).max(begin_of(at.bucket));
            let upto = (visible_at + LOOK_MS).min(begin_of(at.bucket + 1) - 1);
            let Ok(tuples) = self.rows.tuples(self.level(known), at, from, upto, 256).await else { return };
            is_duplicate |= tuples.iter().any(|other| {
                let is_before = (other.received_at, other.visible_at) < (moved.received_at, moved.visible_at);
                other.number == moved.number && is_before && other.moves == moved.moves
            });
        }
        known.hint.lock().looked(is_duplicate);
        let mut happened = known.happened.lock();
        happened.looked += 1;
        happened.duplicates += u64::from(is_duplicate);
    }

    /// Takes a message away, with the one tuple of it that is known.
    pub(super) async fn remove(&self, known: &KnownQueue, tuple: Tuple) -> Result<(), QueueError> {
        let level = self.level(known);
        self.rows.delete_body(level, known.body_at(tuple.number), tuple.number).await?;
        let at = known.tuples_at(tuple.visible_at, tuple.number);
        Ok(self.rows.delete_tuple(level, at, tuple).await?)
    }

    /// Moves a message to the dead-letter queue, unless it is gone; `false` if there is none that it can go to.
    ///
    /// It is put there before it goes here: a crash between leaves it in both. Somebody may delete it meanwhile, by an
    /// earlier receipt. So where it goes is noted before its body is read: either the deletion is seen here, or who
    /// deletes sees the note, and deletes it there, too. A deletion there also counts before the put: its timestamp is
    /// the later one.
    async fn redrive(&self, known: &KnownQueue, tuple: Tuple, target: &str) -> Result<bool, QueueError> {
        let record = known.record();
        let Some((target, _)) = self.directory.find(self, &record.account, target).await? else {
            return Ok(false);
        };
        if target.id == known.id || target.record().settings.fifo.is_some() != record.settings.fifo.is_some()
        {
            return Ok(false);
        }
        let target = self.known(&target).await?;
        let level = self.level(known);
        for _ in 0..PUTS_MAX {
            let number = self.numbers.next(&self.env, self.now())?;
            let letter = Letter { at: target.body_at(number), number };
            self.rows.put_letter(level, known.id, tuple.number, letter).await?;
            let body = self.rows.body(level, known.body_at(tuple.number), tuple.number).await?;
            let Some(Body { content, source, .. }) = body else {
                // Deleted, or moved by somebody else. While that is under way another read might find it.
                let is_gone = self.is_settled(level, tuple.number);
                if is_gone {
                    let at = known.tuples_at(tuple.visible_at, tuple.number);
                    self.rows.delete_tuple(level, at, tuple).await?;
                }
                return Ok(is_gone);
            };
            let origin = source.map_or(tuple.number, |(_, origin)| origin);
            let body = Body { content, source: Some((record.name.clone(), origin)), group: None };
            if self.put_copy(&target, number, &body).await? {
                self.remove(known, tuple).await?;
                known.happened.lock().redriven += 1;
                return Ok(true);
            }
        }
        Err(TOO_SLOW)
    }
}

/// Counts a receive that waits.
struct Waiting<'a>(&'a KnownQueue);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
