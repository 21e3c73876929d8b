//! Snapshots of a stream: what the updates of a shard come to, so that who starts need not read all of them.
//!
//! They are in the stream beside it, `NAME.snapshots`, and are copied to other clusters as any stream is:
//! [`tailwater_format::snapshot`] has the bytes. [`crate::StateConsumer`] loads them, and follows what comes behind.
//!
//! What holds:
//! - A snapshot is seen when it is whole, and in each cluster at once: its manifest comes behind its parts.
//! - The newest one is found by a few CALLs, however large snapshots are: parts have no timestamps, so that the newest
//!   manifest is the first record whose transaction id is that of the last one. Where somebody else's records have
//!   timestamps, all records are read for it.

mod writer;

use std::fmt;

use bytes::Bytes;
use tailwater_format::batch::Record;
use tailwater_format::call::{CallErrorCode, Location};
use tailwater_format::snapshot::{
    SNAPSHOTS_SUFFIX, SnapshotAssembly, SnapshotManifest, SnapshotRecord, SnapshotTorn, SnapshotUpTo,
};
use tailwater_format::{Offset, Start, Term, TransactionId};

use crate::consumer::find_place;
use crate::limits::SNAPSHOT_TRIES_MAX;
use crate::{Batch, Client, Consumer, Error, Stream};
pub use writer::SnapshotWriter;

/// The snapshots of one stream. Cheap to clone.
#[derive(Clone)]
pub struct Snapshots {
    client: Client,
    /// The stream that has updates.
    updates: Stream,
    /// The stream that has snapshots.
    stream: Stream,
}

/// A snapshot of a shard that was whole when it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardSnapshot {
    /// Where its manifest is, in the stream of snapshots.
    pub offset: Offset,
    /// What is known of it.
    pub manifest: SnapshotManifest,
}

/// What is left of a shard where older snapshots go, and updates that the others have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotsKept {
    /// The oldest snapshot that is kept, which is whole.
    pub oldest: ShardSnapshot,
    /// The first update that is kept.
    pub updates_from: Offset,
    /// The first record of the stream of snapshots that is kept.
    pub snapshots_from: Offset,
}

/// How a snapshot fits the updates that are there.
pub(crate) enum SnapshotFit {
    /// What follows it is at this place.
    Fits(Location),
    /// The last updates that it has did not come to this cluster yet; here is the end of those that did.
    Ahead(Location),
    /// Updates between it and the first one that is left were removed.
    Behind,
    /// It has updates that the log lost, or that were cut off by a forced move of the source.
    Other,
}

/// The newest snapshot, and the largest transaction id of all records.
struct NewestSnapshot {
    snapshot: Option<ShardSnapshot>,
    transaction_id: Option<TransactionId>,
}

impl Client {
    /// The snapshots of a stream; `None` if there is no stream for them.
    ///
    /// # Errors
    /// [`Error::Snapshots`] if it has another number of shards.
    pub async fn snapshots(&self, updates: &Stream) -> Result<Option<Snapshots>, Error> {
        let stream = match self.stream(&format!("{}{SNAPSHOTS_SUFFIX}", updates.name)).await {
            Ok(stream) => stream,
            Err(error) if error.is_unknown_stream() => return Ok(None),
            Err(error) => return Err(error),
        };
        let snapshots = Snapshots { client: self.clone(), updates: updates.clone(), stream };
        if snapshots.stream.shards != updates.shards {
            let (found, wanted) = (snapshots.stream.shards, updates.shards);
            let name = &snapshots.stream.name;
            let why = format!("{name} has {found} shards, and not {wanted}: delete it and create it anew");
            return Err(snapshots.error(why));
        }
        Ok(Some(snapshots))
    }
}

impl fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshots").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Snapshots {
    /// The stream that they are of.
    pub fn updates(&self) -> &Stream {
        &self.updates
    }

    /// The stream that has them.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The newest snapshot of a shard.
    pub async fn newest(&self, shard: u32) -> Result<Option<ShardSnapshot>, Error> {
        Ok(self.find_newest(shard).await?.snapshot)
    }

    /// The snapshot before another one, as that one's writer knew; `None` if there was none, or it was removed.
    pub async fn before(&self, snapshot: &ShardSnapshot) -> Result<Option<ShardSnapshot>, Error> {
        let (shard, previous) = (snapshot.manifest.shard.0, snapshot.manifest.previous);
        // Behind it there is none before it.
        let Some(previous) = previous.filter(|previous| *previous < snapshot.offset) else { return Ok(None) };
        let batch = self.read(shard, previous).await?;
        Ok(batch.and_then(|batch| self.manifest(shard, &batch.records().next()?)))
    }

    /// The snapshots of a shard whose parts are there, up to `most` of them, the newest one first.
    pub async fn list(&self, shard: u32, most: usize) -> Result<Vec<ShardSnapshot>, Error> {
        let log_start = Offset(find_place(&self.client, &self.stream, shard, Start::End).await?.log_start);
        let (mut all, mut next) = (Vec::new(), self.newest(shard).await?);
        while let Some(snapshot) = next.filter(|_| all.len() < most) {
            if snapshot.manifest.first >= log_start {
                all.push(snapshot);
            }
            next = self.before(&snapshot).await?;
        }
        Ok(all)
    }

    /// Reads all of a snapshot, and keeps nothing: why it is not whole, if it is not.
    pub async fn check(&self, snapshot: &ShardSnapshot) -> Result<Option<SnapshotTorn>, Error> {
        let ShardSnapshot { offset, manifest } = *snapshot;
        let missing = |number| Ok(Some(SnapshotTorn::Missing { number, parts: manifest.totals.parts }));
        let Some(first) = self.first_part(snapshot).await? else { return missing(0) };
        let mut consumer = self.nothing_yet().await?;
        consumer.join(manifest.shard.0, &first)?;
        let mut assembly = SnapshotAssembly::new(offset, manifest);
        loop {
            let batch = match consumer.next().await {
                Ok(Some(batch)) => batch,
                Ok(None) => continue,
                Err(Error::Truncated { .. }) => return missing(0),
                Err(error) => return Err(error),
            };
            for record in batch.records() {
                let value = Bytes::copy_from_slice(record.value.unwrap_or_default());
                match assembly.take(record.offset, &value) {
                    Err(torn) => return Ok(Some(torn)),
                    Ok(_) if assembly.is_whole() => return Ok(None),
                    Ok(_) => {}
                }
            }
        }
    }

    /// What may go of a shard where its newest `keep` snapshots are kept, at least one. `None` while there are not as
    /// many. It reads all of the oldest one that is kept, which all that is removed depends on.
    ///
    /// Who may truncate both streams does so then, the updates first.
    ///
    /// # Errors
    /// [`Error::Snapshots`] if the oldest one that is kept is not whole, or does not fit the updates that are there.
    pub async fn kept(&self, shard: u32, keep: usize) -> Result<Option<SnapshotsKept>, Error> {
        let keep = keep.max(1);
        let kept = self.list(shard, keep).await?;
        let Some(oldest) = kept.last().filter(|_| kept.len() == keep) else { return Ok(None) };
        let why = match self.check(oldest).await? {
            Some(torn) => Some(torn.to_string()),
            None => match self.fit(oldest).await? {
                SnapshotFit::Fits(_) => None,
                SnapshotFit::Ahead(_) => Some("it has updates that are not there".to_owned()),
                SnapshotFit::Behind => Some("updates behind it were removed".to_owned()),
                SnapshotFit::Other => Some("it has updates that were lost".to_owned()),
            },
        };
        if let Some(why) = why {
            let why =
                format!("nothing is removed of shard {shard}: of the snapshot at {}: {why}", oldest.offset);
            return Err(self.error(why));
        }
        // Writers that write at the same time may end in another order than they began.
        let positions = kept.iter().map(|snapshot| snapshot.manifest.up_to.position);
        let firsts = kept.iter().map(|snapshot| snapshot.manifest.first);
        Ok(Some(SnapshotsKept {
            oldest: *oldest,
            updates_from: positions.min().unwrap_or_default(),
            snapshots_from: firsts.min().unwrap_or_default(),
        }))
    }

    /// What a snapshot of a shard has that has all updates before a place.
    pub async fn up_to(&self, shard: u32, start: Start) -> Result<SnapshotUpTo, Error> {
        let found = find_place(&self.client, &self.updates, shard, start).await?;
        let position = Offset(found.offset);
        if found.offset <= found.log_start {
            // Nobody knows the update before it any more.
            return Ok(SnapshotUpTo { position, term: Term(0) });
        }
        let before = Start::Offset(Offset(found.offset - 1));
        let before = find_place(&self.client, &self.updates, shard, before).await?;
        Ok(SnapshotUpTo { position, term: Term(before.term) })
    }

    /// Begins a snapshot of a shard that has the updates `up_to`, as [`crate::StateConsumer::up_to`] tells, and none
    /// behind them. Nobody sees it before [`SnapshotWriter::finish`].
    ///
    /// # Panics
    /// If there is no such shard.
    pub async fn begin(&self, shard: u32, up_to: SnapshotUpTo) -> Result<SnapshotWriter, Error> {
        SnapshotWriter::begin(self.clone(), shard, up_to).await
    }

    /// How a snapshot fits the updates that are there now.
    pub(crate) async fn fit(&self, snapshot: &ShardSnapshot) -> Result<SnapshotFit, Error> {
        let SnapshotManifest { shard, up_to: SnapshotUpTo { position, term }, .. } = snapshot.manifest;
        let find = |start| find_place(&self.client, &self.updates, shard.0, start);
        let mut tries = 0;
        loop {
            let end = find(Start::End).await?;
            if position.0 < end.log_start {
                return Ok(SnapshotFit::Behind);
            }
            if position.0 > end.offset {
                return Ok(SnapshotFit::Ahead(end));
            }
            let is_same = async {
                // The update before it tells, if it is there and the writer knew its term.
                if position.0 > end.log_start && term != Term(0) {
                    let before = find(Start::Offset(Offset(position.0 - 1))).await?;
                    return Ok(Term(before.term) == term);
                }
                Ok(true)
            };
            let found = match is_same.await {
                Ok(false) => return Ok(SnapshotFit::Other),
                Ok(true) => find(Start::Offset(position)).await,
                Err(error) => Err(error),
            };
            match found {
                // Updates were removed meanwhile, or cut off.
                Err(error) if is_out_of_range(&error) && tries < SNAPSHOT_TRIES_MAX => tries += 1,
                found => return found.map(SnapshotFit::Fits),
            }
        }
    }

    /// Where the first part is; `None` if it was removed.
    pub(crate) async fn first_part(&self, snapshot: &ShardSnapshot) -> Result<Option<Location>, Error> {
        self.place(snapshot.manifest.shard.0, snapshot.manifest.first).await
    }

    /// A consumer of the stream of snapshots that reads no shard yet.
    pub(crate) async fn nothing_yet(&self) -> Result<Consumer, Error> {
        Consumer::start_at(self.client.clone(), self.stream.clone(), Vec::new()).await
    }

    async fn place(&self, shard: u32, offset: Offset) -> Result<Option<Location>, Error> {
        match find_place(&self.client, &self.stream, shard, Start::Offset(offset)).await {
            Err(error) if is_out_of_range(&error) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Records from an offset on, at which one has been; `None` if it was removed.
    async fn read(&self, shard: u32, offset: Offset) -> Result<Option<Batch>, Error> {
        let Some(place) = self.place(shard, offset).await? else { return Ok(None) };
        let mut consumer = self.nothing_yet().await?;
        consumer.join(shard, &place)?;
        match consumer.next().await {
            Ok(batch) => Ok(batch.filter(|batch| batch.first_offset() == offset)),
            Err(Error::Truncated { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The manifest that a record is, if it is one of a snapshot of this stream. One of the same name may have been
    /// deleted.
    fn manifest(&self, shard: u32, record: &Record<'_>) -> Option<ShardSnapshot> {
        let value = Bytes::copy_from_slice(record.value?);
        match SnapshotRecord::decode(&value) {
            Ok(SnapshotRecord::Manifest(manifest)) => {
                let is_ours = manifest.stream == self.updates.id && manifest.shard.0 == shard;
                let is_possible = manifest.first < record.offset;
                (is_ours && is_possible).then_some(ShardSnapshot { offset: record.offset, manifest })
            }
            _ => None,
        }
    }

    async fn find_newest(&self, shard: u32) -> Result<NewestSnapshot, Error> {
        for _ in 0..SNAPSHOT_TRIES_MAX {
            if let Some(found) = self.look_for_newest(shard).await? {
                return Ok(found);
            }
        }
        Err(self.error(format!("records of shard {shard} are removed faster than they are read")))
    }

    /// `None` if records were removed meanwhile.
    async fn look_for_newest(&self, shard: u32) -> Result<Option<NewestSnapshot>, Error> {
        let end = find_place(&self.client, &self.stream, shard, Start::End).await?;
        let Some(last) = end.offset.checked_sub(1).filter(|last| *last >= end.log_start).map(Offset) else {
            return Ok(Some(NewestSnapshot { snapshot: None, transaction_id: None }));
        };
        let Some(batch) = self.read(shard, last).await? else { return Ok(None) };
        let transaction_id = batch.transaction_id();
        let found = |snapshot| Ok(Some(NewestSnapshot { snapshot, transaction_id }));
        if let Some(snapshot) = self.last_of(shard, &batch) {
            return found(Some(snapshot));
        }
        if let Some(TransactionId(id)) = transaction_id {
            let place = find_place(&self.client, &self.stream, shard, Start::TransactionId(id)).await?;
            if place.offset <= last.0 {
                let Some(batch) = self.read(shard, Offset(place.offset)).await? else { return Ok(None) };
                let first = batch.records().next();
                if let Some(snapshot) = first.and_then(|record| self.manifest(shard, &record)) {
                    return found(Some(snapshot));
                }
            }
        }
        self.read_for_newest(shard, &end, last).await?.map_or(Ok(None), found)
    }

    /// The last manifest of all records up to `last`; `None` if some were removed meanwhile.
    async fn read_for_newest(
        &self,
        shard: u32,
        end: &Location,
        last: Offset,
    ) -> Result<Option<Option<ShardSnapshot>>, Error> {
        let Some(place) = self.place(shard, Offset(end.log_start)).await? else { return Ok(None) };
        let mut consumer = self.nothing_yet().await?;
        consumer.join(shard, &place)?;
        let (mut newest, mut next) = (None, Offset(end.log_start));
        while next <= last {
            match consumer.next().await {
                Ok(Some(batch)) => {
                    newest = self.last_of(shard, &batch).or(newest);
                    next = batch.next_offset();
                }
                Ok(None) => {}
                Err(Error::Truncated { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(newest))
    }

    fn last_of(&self, shard: u32, batch: &Batch) -> Option<ShardSnapshot> {
        batch.records().filter_map(|record| self.manifest(shard, &record)).last()
    }

    fn error(&self, why: String) -> Error {
        Error::Snapshots { stream: self.updates.name.to_string(), why }
    }
}

/// Whether a node says that a record is not there any more, or not yet.
fn is_out_of_range(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.code == CallErrorCode::OffsetOutOfRange)
}
