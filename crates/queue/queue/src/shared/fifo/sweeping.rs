//! What nobody waits for: messages that were kept for long enough, groups whose tuple was lost, and bodies that are in
//! no group. And purges.

use std::collections::{BTreeMap, BTreeSet};

use tailwater_env::HashSet;

use super::LEVEL;
use super::group::Group;
use crate::ids::Number;
use crate::limits::{BUCKETS_LISTED, DEDUPLICATION_MS, GROUP_ATTEMPTS, ROWS_READ, SETTLE_MS};
use crate::request::QueueError;
use crate::shared::heads::bucket_of;
use crate::shared::numbers::sent_at;
use crate::shared::rows::{GroupKey, RowKind, RowPartition};
use crate::shared::{KnownQueue, SharedFront};

impl SharedFront {
    /// Sweeps a FIFO queue.
    pub(in crate::shared) async fn sweep_groups(&self, known: &KnownQueue) -> Result<(), QueueError> {
        let mut groups = self.bodies_by_group(known).await?;
        // Buckets of bodies are dropped when all in them were kept for long enough; then the index alone has their
        // groups.
        for at in self.groups(known).await? {
            groups.entry(at).or_default();
        }
        for (at, numbers) in groups {
            let _turn = known.turns.take(at).await;
            self.relist(known, at).await?;
            // Nobody sends any more what is older than this.
            let upto = self.margin().before(self.now()).saturating_sub(DEDUPLICATION_MS + SETTLE_MS);
            let old = numbers.into_iter().filter(|number| sent_at(*number) <= upto);
            self.delete_orphans(known, at, old.collect()).await?;
        }
        Ok(())
    }

    /// The groups of all bodies, whether or not the index knows.
    async fn bodies_by_group(
        &self,
        known: &KnownQueue,
    ) -> Result<BTreeMap<GroupKey, Vec<Number>>, QueueError> {
        let mut groups: BTreeMap<GroupKey, Vec<Number>> = BTreeMap::new();
        let mut from = self.rows.floor(LEVEL, known.id, RowKind::Bodies).await?;
        loop {
            let buckets = self.rows.buckets(LEVEL, known.id, RowKind::Bodies, from, BUCKETS_LISTED).await?;
            let Some(last) = buckets.last().copied() else { return Ok(groups) };
            for (bucket, part) in
                buckets.iter().flat_map(|bucket| (0..known.parts).map(|part| (*bucket, part)))
            {
                let at = RowPartition { queue: known.id, bucket, part };
                let mut after = Number(0);
                loop {
                    let bodies = self.rows.bodies(LEVEL, at, after, ROWS_READ).await?;
                    for (number, group) in &bodies {
                        groups.entry(group.unwrap_or(GroupKey(0))).or_default().push(*number);
                    }
                    match bodies.last() {
                        Some((last, _)) if bodies.len() == ROWS_READ => after = *last,
                        _ => break,
                    }
                }
            }
            from = last + 1;
        }
    }

    /// A group without what was kept for long enough. None if others change it.
    async fn without_expired(&self, known: &KnownQueue, at: GroupKey) -> Result<Option<Group>, QueueError> {
        loop {
            let mut group = self.group(known, at).await?;
            let expired = group.expire(self.now(), known.kept_ms());
            if expired.is_empty() {
                return Ok(Some(group));
            }
            if !self.write(known, at, group).await? {
                return Ok(None);
            }
            known.happened.lock().expired += expired.len() as u64;
            self.forget_bodies(known, &expired).await;
            // What was behind them may be visible.
            known.sent.notify_one();
        }
    }

    /// Puts the tuple of a group again, if the index does not have it, or where nobody looks.
    async fn relist(&self, known: &KnownQueue, at: GroupKey) -> Result<(), QueueError> {
        let Some(mut group) = self.without_expired(known, at).await? else { return Ok(()) };
        let Some(listed) = group.state.tuple else { return Ok(()) };
        let place = known.tuples_at(listed.visible_at, Number(at.0));
        let floor = self.rows.floor(LEVEL, known.id, RowKind::Tuples).await?;
        let tuple = self.rows.tuple(LEVEL, place, listed.visible_at, Number(at.0)).await?;
        if tuple.is_some() && bucket_of(listed.visible_at) >= floor {
            return Ok(());
        }
        group.list_again();
        // If others came between, they have put one.
        if self.write(known, at, group).await? {
            tracing::info!(queue = %known.id, "a group that was not in the index is in it again");
            known.sent.notify_one();
        }
        Ok(())
    }

    /// Deletes bodies that are not in their group.
    async fn delete_orphans(
        &self,
        known: &KnownQueue,
        at: GroupKey,
        old: BTreeSet<Number>,
    ) -> Result<(), QueueError> {
        if old.is_empty() || self.without_slot(known, at, &old).await?.is_empty() {
            return Ok(());
        }
        // What was tried with an earlier version can't happen after this.
        let group = self.group(known, at).await?;
        if !self.write(known, at, group).await? {
            return Ok(());
        }
        for number in self.without_slot(known, at, &old).await? {
            self.rows.delete_body(LEVEL, known.body_at(number), number).await?;
        }
        Ok(())
    }

    async fn without_slot(
        &self,
        known: &KnownQueue,
        at: GroupKey,
        numbers: &BTreeSet<Number>,
    ) -> Result<Vec<Number>, QueueError> {
        let mut there: HashSet<Number> = HashSet::default();
        self.each_slot(known, at, usize::MAX, |slot| {
            there.insert(Number(slot.number));
        })
        .await?;
        Ok(numbers.iter().copied().filter(|number| !there.contains(number)).collect())
    }

    /// Takes all messages out of all groups. Their bodies are dropped after that.
    pub(in crate::shared) async fn clear_groups(&self, known: &KnownQueue) -> Result<(), QueueError> {
        for at in self.groups(known).await? {
            let _turn = known.turns.take(at).await;
            for _ in 0..GROUP_ATTEMPTS {
                let mut group = self.group(known, at).await?;
                group.clear();
                if self.write(known, at, group).await? {
                    break;
                }
            }
        }
        Ok(())
    }
}
