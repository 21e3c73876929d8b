//! Deleting from groups, changing visibility, and giving back: all receipts of a group by one write.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;

use super::BUSY;
use super::group::{Group, GroupSlot};
use crate::contract::Outcomes;
use crate::ids::{Number, Receipt};
use crate::limits::{BATCH_MAX, GROUP_ATTEMPTS};
use crate::queue::ReceiptError;
use crate::request::QueueError;
use crate::shared::rows::GroupKey;
use crate::shared::{KnownQueue, SharedFront};

impl SharedFront {
    pub(in crate::shared) async fn delete_fifo(
        &self,
        known: &KnownQueue,
        receipts: &[Receipt],
    ) -> Result<Outcomes, QueueError> {
        let outcomes = self.with_groups(known, receipts, |group, place, now| {
            let receipt = &receipts[place];
            group.delete(receipt.sequence, receipt.token, now)
        });
        let outcomes = outcomes.await?;
        let gone: Vec<GroupSlot> = outcomes.iter().filter_map(|outcome| outcome.ok().flatten()).collect();
        known.happened.lock().deleted += gone.len() as u64;
        if !gone.is_empty() {
            // What is behind it in its group is visible now.
            known.sent.notify_one();
        }
        self.forget_bodies(known, &gone).await;
        Ok(outcomes.into_iter().map(|outcome| outcome.map(|_| ())).collect())
    }

    pub(in crate::shared) async fn change_fifo(
        &self,
        known: &KnownQueue,
        changes: &[(Receipt, Duration)],
    ) -> Result<Outcomes, QueueError> {
        let receipts: Vec<Receipt> = changes.iter().map(|(receipt, _)| *receipt).collect();
        let outcomes = self.with_groups(known, &receipts, |group, place, now| {
            let (receipt, visibility) = &changes[place];
            let visibility_ms = u64::try_from(visibility.as_millis()).unwrap_or(u64::MAX);
            group.change(receipt.sequence, receipt.token, visibility_ms, now)
        });
        let outcomes = outcomes.await?;
        if changes.iter().any(|(_, visibility)| visibility.is_zero()) {
            known.sent.notify_one();
        }
        Ok(outcomes)
    }

    pub(in crate::shared) async fn give_back_fifo(
        &self,
        known: &KnownQueue,
        receipts: &[Receipt],
    ) -> Result<(), QueueError> {
        let given = self.with_groups(known, receipts, |group, place, now| {
            group.give_back(receipts[place].sequence, receipts[place].token, now);
            Ok(())
        });
        given.await?;
        known.sent.notify_one();
        Ok(())
    }

    /// Changes the groups of receipts, each once; what became of each receipt, by its place.
    async fn with_groups<T: Clone>(
        &self,
        known: &KnownQueue,
        receipts: &[Receipt],
        change: impl Fn(&mut Group, usize, u64) -> Result<T, ReceiptError>,
    ) -> Result<Vec<Result<T, ReceiptError>>, QueueError> {
        let mut groups: BTreeMap<GroupKey, Vec<usize>> = BTreeMap::new();
        for (place, receipt) in receipts.iter().enumerate() {
            groups.entry(GroupKey(receipt.place)).or_default().push(place);
        }
        let changes = groups.iter().map(async |(at, places)| {
            let mut outcomes = Vec::with_capacity(places.len());
            // As many as are first in a group at the same time.
            for some in places.chunks(BATCH_MAX) {
                outcomes.extend(self.with_group(known, *at, some, &change).await?);
            }
            Ok::<_, QueueError>(outcomes)
        });
        let mut all: Vec<Result<T, ReceiptError>> = vec![Err(ReceiptError::Unavailable); receipts.len()];
        for (places, outcomes) in groups.values().zip(join_all(changes).await) {
            for (place, outcome) in places.iter().zip(outcomes?) {
                all[*place] = outcome;
            }
        }
        Ok(all)
    }

    async fn with_group<T>(
        &self,
        known: &KnownQueue,
        at: GroupKey,
        places: &[usize],
        change: &impl Fn(&mut Group, usize, u64) -> Result<T, ReceiptError>,
    ) -> Result<Vec<Result<T, ReceiptError>>, QueueError> {
        let _turn = known.turns.take(at).await;
        for _ in 0..GROUP_ATTEMPTS {
            let mut group = self.group(known, at).await?;
            let now = self.now();
            let outcomes = places.iter().map(|place| change(&mut group, *place, now)).collect();
            if !group.is_changed() || self.write(known, at, group).await? {
                return Ok(outcomes);
            }
        }
        Err(BUSY)
    }

    /// Deletes the bodies of messages that are in their groups no more. What fails is left to the sweeper.
    pub(super) async fn forget_bodies(&self, known: &KnownQueue, gone: &[GroupSlot]) {
        let deletes = gone.iter().map(|slot| {
            let number = Number(slot.number);
            self.rows.delete_body(super::LEVEL, known.body_at(number), number)
        });
        join_all(deletes).await;
    }
}
