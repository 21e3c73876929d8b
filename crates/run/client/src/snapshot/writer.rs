//! Writes one snapshot of one shard.

use std::collections::VecDeque;

use tailwater_format::snapshot::{SnapshotManifest, SnapshotParts, SnapshotUpTo};
use tailwater_format::{NO_TIMESTAMP_MS, Offset, ShardNumber, TransactionId};

use super::{NewestSnapshot, ShardSnapshot, Snapshots};
use crate::consumer::find_place;
use crate::limits::SNAPSHOT_PARTS_IN_FLIGHT_MAX;
use crate::{Ack, Error, Producer, ProducerSettings, Start};

/// Writes a snapshot, in memory for a few parts. Dropping it leaves parts behind that nobody loads; they go when the
/// snapshots around them do.
#[must_use = "nobody sees a snapshot that is not finished"]
pub struct SnapshotWriter {
    snapshots: Snapshots,
    producer: Producer,
    shard: u32,
    id: u64,
    up_to: SnapshotUpTo,
    parts: SnapshotParts,
    first: Option<Offset>,
    unacked: VecDeque<Ack>,
}

impl SnapshotWriter {
    pub(super) async fn begin(snapshots: Snapshots, shard: u32, up_to: SnapshotUpTo) -> Result<Self, Error> {
        let shards = snapshots.stream.shards;
        assert!(shard < shards, "shard {shard} of {shards}");
        let producer = snapshots.client.producer(&snapshots.stream.name, ProducerSettings::default()).await?;
        let id = snapshots.client.node().env().random_u64();
        let (parts, unacked) = (SnapshotParts::new(id), VecDeque::new());
        Ok(Self { snapshots, producer, shard, id, up_to, parts, first: None, unacked })
    }

    /// Appends an entry: a key and its value, of which either may be missing. What they mean, and in which order they
    /// come, is the application's. It waits while several parts are under way. After an error, or if it is cancelled,
    /// the snapshot is to be begun anew.
    ///
    /// # Errors
    /// [`Error::Snapshots`] for an entry longer than [`tailwater_format::limits::SNAPSHOT_ENTRY_BYTES_MAX`]; those of
    /// a producer.
    pub async fn put(&mut self, key: Option<&[u8]>, value: Option<&[u8]>) -> Result<(), Error> {
        let full = self.parts.push((key, value));
        match full.map_err(|error| self.snapshots.error(error.to_string()))? {
            Some(part) => self.send_part(&part).await,
            None => Ok(()),
        }
    }

    /// Completes the snapshot: it is durable, and who starts from now on finds it.
    ///
    /// # Errors
    /// [`Error::Snapshots`] if its first parts were removed meanwhile; those of a producer.
    pub async fn finish(mut self) -> Result<ShardSnapshot, Error> {
        let parts = std::mem::replace(&mut self.parts, SnapshotParts::new(self.id));
        let (last, totals) = parts.finish();
        if let Some(last) = last {
            self.send_part(&last).await?;
        }
        // The manifest says that all parts are durable.
        while !self.unacked.is_empty() {
            self.wait_for_one().await?;
        }
        let (snapshots, shard) = (&self.snapshots, self.shard);
        let end = find_place(&snapshots.client, &snapshots.stream, shard, Start::End).await?;
        let Some(first) = self.first.filter(|first| first.0 >= end.log_start) else {
            let why = format!("parts of the one of shard {shard} were removed while it was written");
            return Err(snapshots.error(why));
        };
        let NewestSnapshot { snapshot: newest, transaction_id } = snapshots.find_newest(shard).await?;
        let created_ms = snapshots.client.node().env().wall_ms();
        let manifest = SnapshotManifest {
            id: self.id,
            stream: snapshots.updates.id,
            shard: ShardNumber(shard),
            up_to: self.up_to,
            first,
            previous: newest.map(|newest| newest.offset),
            totals,
            created_ms,
        };
        // The first record that has this one is found by it.
        let after = transaction_id.map_or(0, |TransactionId(id)| id.saturating_add(1));
        let ack = self.producer.send_at(shard, created_ms.max(after), None, &manifest.encode())?;
        Ok(ShardSnapshot { offset: ack.await?.offset, manifest })
    }

    async fn send_part(&mut self, part: &[u8]) -> Result<(), Error> {
        while self.unacked.len() >= SNAPSHOT_PARTS_IN_FLIGHT_MAX {
            self.wait_for_one().await?;
        }
        self.unacked.push_back(self.producer.send_at(self.shard, NO_TIMESTAMP_MS, None, part)?);
        Ok(())
    }

    async fn wait_for_one(&mut self) -> Result<(), Error> {
        if let Some(ack) = self.unacked.front_mut() {
            let acked = ack.await;
            self.unacked.pop_front();
            self.first.get_or_insert(acked?.offset);
        }
        Ok(())
    }
}
