//! Deleting, changing visibility, and giving back.

use std::time::Duration;

use futures::future::{join_all, try_join_all};

use super::numbers::sent_at;
use super::rows::{Letter, Tuple};
use super::{KnownQueue, SharedFront};
use crate::contract::Outcomes;
use crate::ids::{Number, Receipt};
use crate::limits::{FORWARDS_KNOWN_MAX, INVISIBLE_MS_MAX, LETTERS_MAX};
use crate::queue::ReceiptError;
use crate::request::QueueError;

impl SharedFront {
    pub(super) async fn delete(
        &self,
        known: &KnownQueue,
        receipts: Vec<Receipt>,
    ) -> Result<Outcomes, QueueError> {
        if known.is_fifo() {
            return self.delete_fifo(known, &receipts).await;
        }
        let deletes = receipts.iter().map(|receipt| self.delete_one(known, receipt));
        let deleted: Result<Vec<()>, _> = join_all(deletes).await.into_iter().collect();
        Ok(deleted?.into_iter().map(Ok).collect())
    }

    pub(super) async fn change_visibility(
        &self,
        known: &KnownQueue,
        changes: Vec<(Receipt, Duration)>,
    ) -> Result<Outcomes, QueueError> {
        if known.is_fifo() {
            return self.change_fifo(known, &changes).await;
        }
        let changes = changes.iter();
        let changes = changes.map(|(receipt, visibility)| self.change_one(known, receipt, *visibility));
        join_all(changes).await.into_iter().collect()
    }

    /// Makes messages visible again that could not be handed out, as if they had not been received.
    pub(super) async fn give_back(
        &self,
        known: &KnownQueue,
        receipts: Vec<Receipt>,
    ) -> Result<(), QueueError> {
        if known.is_fifo() {
            return self.give_back_fifo(known, &receipts).await;
        }
        let gives = receipts.iter().map(|receipt| self.give_back_one(known, receipt));
        let given: Result<Vec<()>, _> = join_all(gives).await.into_iter().collect();
        known.sent.notify_one();
        given.map(drop)
    }

    /// Deletes the message of a receipt, also of one of an earlier receive: the body goes, and with it the message. Of
    /// its tuple the receipt knows where it was put; if it is not there any more, it goes when it is found to have no
    /// body. What is a dead letter by now, or is about to be one, goes as well.
    async fn delete_one(&self, known: &KnownQueue, receipt: &Receipt) -> Result<(), QueueError> {
        let number = Number(receipt.sequence.0);
        let forward = known.forwards.lock().remove(&(number, receipt.token.0));
        let (visible_at, moves) = forward.unwrap_or((receipt.place, receipt.token.0));
        let level = self.level(known);
        self.rows.delete_body(level, known.body_at(number), number).await?;
        let (at, tuple) = (known.tuples_at(visible_at, number), Tuple::new(visible_at, number, moves));
        let (unlisted, letters) =
            futures::join!(self.rows.delete_tuple(level, at, tuple), self.delete_letters(known, number));
        unlisted?;
        letters?;
        known.happened.lock().deleted += 1;
        Ok(())
    }

    /// Deletes a message, the body of which is gone, where it was put as a dead letter, or is about to be: see
    /// [`SharedFront::redrive`]. Also where the queue has no dead-letter queue: it may have had one, or have one that
    /// is not known here yet.
    async fn delete_letters(&self, known: &KnownQueue, number: Number) -> Result<(), QueueError> {
        let level = self.level(known);
        let (mut left, mut room) = (vec![(known.id, number)], LETTERS_MAX);
        while room > 0
            && let Some((queue, number)) = left.pop()
        {
            let letters = self.rows.letters(level, queue, number, room).await?;
            room -= letters.len();
            let deletes = letters.iter().map(async |Letter { at, number }| {
                self.rows.delete_body(level, *at, *number).await?;
                // Its first tuple is in the same place, as a rule. Another one goes as all that have no body.
                self.rows.delete_tuple(level, *at, Tuple::new(sent_at(*number), *number, 0)).await
            });
            try_join_all(deletes).await?;
            // The dead-letter queue may have one of its own.
            left.extend(letters.iter().map(|letter| (letter.at.queue, letter.number)));
        }
        if room == 0 {
            return Err(QueueError::Unavailable(
                "the message is in too many places as a dead letter".to_owned(),
            ));
        }
        Ok(())
    }

    /// Makes the message of a receipt visible in so long from now.
    async fn change_one(
        &self,
        known: &KnownQueue,
        receipt: &Receipt,
        visibility: Duration,
    ) -> Result<Result<(), ReceiptError>, QueueError> {
        let number = Number(receipt.sequence.0);
        let Some(tuple) = self.current(known, receipt).await? else {
            return Ok(Err(ReceiptError::Unavailable));
        };
        let now = self.now();
        let visibility_ms = u64::try_from(visibility.as_millis()).unwrap_or(u64::MAX);
        if now.saturating_add(visibility_ms) > tuple.received_at + INVISIBLE_MS_MAX {
            return Ok(Err(ReceiptError::TooLong));
        }
        let level = self.level(known);
        let moved = Tuple { moves: tuple.moves + 1, ..tuple };
        let moved = self.put_tuple(known, moved, |now| now + visibility_ms).await?;
        let place = (moved.visible_at, moved.moves);
        self.rows.put_forward(level, known.id, number, receipt.token.0, place).await?;
        if moved.visible_at != tuple.visible_at {
            let at = known.tuples_at(tuple.visible_at, number);
            self.rows.delete_tuple(level, at, tuple).await?;
        }
        let mut forwards = known.forwards.lock();
        forwards.insert((number, receipt.token.0), place);
        if forwards.len() > FORWARDS_KNOWN_MAX {
            forwards.pop_first();
        }
        drop(forwards);
        if visibility_ms == 0 {
            known.sent.notify_one();
        }
        Ok(Ok(()))
    }

    async fn give_back_one(&self, known: &KnownQueue, receipt: &Receipt) -> Result<(), QueueError> {
        let Some(tuple) = self.current(known, receipt).await? else { return Ok(()) };
        let mut moved = Tuple { moves: tuple.moves + 1, receives: tuple.receives.saturating_sub(1), ..tuple };
        if moved.receives == 0 {
            (moved.first_received_at, moved.received_at) = (0, 0);
        }
        let moved = self.put_tuple(known, moved, |now| now).await?;
        if moved.visible_at != tuple.visible_at {
            let at = known.tuples_at(tuple.visible_at, tuple.number);
            self.rows.delete_tuple(self.level(known), at, tuple).await?;
        }
        Ok(())
    }

    /// The tuple of a receipt, if it is still the one that its receive put, or a change of visibility after it.
    async fn current(&self, known: &KnownQueue, receipt: &Receipt) -> Result<Option<Tuple>, QueueError> {
        let (level, number) = (self.level(known), Number(receipt.sequence.0));
        let forward = known.forwards.lock().get(&(number, receipt.token.0)).copied();
        let place = forward.unwrap_or((receipt.place, receipt.token.0));
        if let Some(tuple) = self.tuple_at(known, number, place).await? {
            return Ok(Some(tuple));
        }
        // Another front end may have changed it.
        match self.rows.forward(level, known.id, number, receipt.token.0).await? {
            Some(other) if other != place => self.tuple_at(known, number, other).await,
            _ => Ok(None),
        }
    }

    async fn tuple_at(
        &self,
        known: &KnownQueue,
        number: Number,
        (visible_at, moves): (u64, u32),
    ) -> Result<Option<Tuple>, QueueError> {
        let at = known.tuples_at(visible_at, number);
        let tuple = self.rows.tuple(self.level(known), at, visible_at, number).await?;
        Ok(tuple.filter(|tuple| tuple.moves == moves))
    }
}
