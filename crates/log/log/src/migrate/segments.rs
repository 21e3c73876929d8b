//! The segments: copied into the replicated store, as they are.
//!
//! A store takes the segments of a shard in the order of their numbers, and no name twice. So of each shard the copies
//! are right up to some segment, and from there on whatever is there is deleted and copied anew, in a store that is
//! opened again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use tailwater_format::{Position, SegmentId, ShardId};
use tailwater_store::{EntryPlace, RecoveredSegment, SegmentCopies, SegmentWatch, StoreContract, StoreError};
use tokio::sync::watch;
use uuid::Uuid;

use super::{MigrationError, MigrationRun, MigrationStep};
use crate::limits::{BUSY_RETRY, MIGRATED_AT_A_TIME, MIGRATED_UNDER_WAY_BYTES, MIGRATION_PASSES};
use crate::open::placed::ByMetadata;
use crate::scan::Scan;

/// A segment that is to be in the replicated store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WantedSegment {
    pub(super) id: SegmentId,
    pub(super) length: Position,
    pub(super) copies: SegmentCopies,
}

/// What is to be done with a store.
#[derive(Debug, Default, PartialEq, Eq)]
struct CopyWork {
    /// Segments to delete: with such the rest is done in a store that is opened again.
    delete: Vec<SegmentId>,
    /// Segments to copy, shard by shard, in the order of their numbers.
    copy: BTreeMap<ShardId, Vec<WantedSegment>>,
}

impl CopyWork {
    /// What is left to do where this was `found`.
    fn of(wanted: &[WantedSegment], found: &[RecoveredSegment]) -> Self {
        let mut there: BTreeMap<SegmentId, &RecoveredSegment> =
            found.iter().map(|found| (found.id, found)).collect();
        let mut work = Self::default();
        for segment in wanted {
            let copied = there.get(&segment.id);
            let is_whole =
                copied.is_some_and(|copied| copied.damaged.is_none() && copied.length == segment.length);
            match work.copy.get_mut(&segment.id.shard) {
                Some(behind) => behind.push(*segment),
                None if is_whole => _ = there.remove(&segment.id),
                None => _ = work.copy.insert(segment.id.shard, vec![*segment]),
            }
        }
        work.delete = there.into_keys().collect();
        work
    }
}

/// How far a copy is durable, or why it will not be.
#[derive(Default)]
struct CopyProgress {
    durable: EntryPlace,
    lost: Option<String>,
}

/// Hears how far a copy is durable.
struct CopyWatch(watch::Sender<CopyProgress>);

impl SegmentWatch for CopyWatch {
    fn durable(&self, upto: EntryPlace) {
        self.0.send_modify(|progress| progress.durable = upto);
    }

    fn lost(&self, why: &str) {
        self.0.send_modify(|progress| progress.lost = Some(why.to_owned()));
    }
}

/// Entries of a copy on their way.
struct CopyUnderWay {
    id: SegmentId,
    progress: watch::Receiver<CopyProgress>,
    entries: VecDeque<(EntryPlace, usize)>,
    bytes: usize,
}

impl CopyUnderWay {
    fn push(&mut self, place: EntryPlace, bytes: usize) {
        self.entries.push_back((place, bytes));
        self.bytes += bytes;
    }

    /// Waits until at most so many bytes are on their way; how many got durable.
    async fn wait_for(&mut self, bytes_max: usize) -> Result<u64, MigrationError> {
        let before = self.bytes;
        while self.bytes > bytes_max
            && let Some((place, bytes)) = self.entries.pop_front()
        {
            let is_told = |progress: &CopyProgress| progress.durable >= place || progress.lost.is_some();
            let lost = match self.progress.wait_for(is_told).await {
                Ok(progress) if progress.durable >= place => None,
                Ok(progress) => progress.lost.clone(),
                Err(_) => Some("the store has given it up".to_owned()),
            };
            if let Some(why) = lost {
                return Err(MigrationError::Segment { id: self.id, why });
            }
            self.bytes -= bytes;
        }
        Ok((before - self.bytes) as u64)
    }
}

impl MigrationRun<'_> {
    /// Has every completed segment in the replicated store, by the number `cluster`.
    pub(super) async fn copy_segments(&mut self, cluster: Uuid) -> Result<(), MigrationError> {
        let wanted = self.source.wanted_segments();
        let names: BTreeSet<SegmentId> = wanted.iter().map(|segment| segment.id).collect();
        for _ in 0..MIGRATION_PASSES {
            let right = Arc::new(ByMetadata(Arc::clone(self.meta())));
            let recorded = |id: &SegmentId| names.contains(id);
            let opening = self.target.segments.open(self.env, right, cluster, &recorded, self.progress);
            let (store, found) = opening.await.map_err(MigrationError::Store)?;
            let work = CopyWork::of(&wanted, &found);
            if !work.delete.is_empty() {
                self.delete(&*store, work.delete).await?;
                continue;
            }
            // What was acknowledged before is found, and its end is known: so it is of the last pass, too.
            if work.copy.is_empty() {
                return Ok(());
            }
            self.check_copies(&*store, &work.copy).await?;
            self.copy(&*store, work.copy).await?;
            flush(&*store).await?;
        }
        Err(MigrationError::Store("its segments are changed by others: stop them".to_owned()))
    }

    async fn delete(&self, store: &dyn StoreContract, ids: Vec<SegmentId>) -> Result<(), MigrationError> {
        for id in &ids {
            store.delete(id).map_err(MigrationError::write(*id))?;
        }
        flush(store).await?;
        ids.into_iter().try_for_each(|id| self.tell(MigrationStep::Deleted(id)))
    }

    /// Whether the store can keep the copies that streams want, before any of them is made.
    async fn check_copies(
        &self,
        store: &dyn StoreContract,
        work: &BTreeMap<ShardId, Vec<WantedSegment>>,
    ) -> Result<(), MigrationError> {
        for (shard, segments) in work {
            let copies = segments.first().map(|segment| segment.copies).unwrap_or_default();
            match store.check_copies(copies).await {
                Ok(()) => {}
                Err(StoreError::Copies(why)) => {
                    let stream = self.source.name_of(shard.stream);
                    return Err(MigrationError::Refused(format!("stream {stream:?}: {why}")));
                }
                Err(error) => return Err(MigrationError::Store(error.to_string())),
            }
        }
        Ok(())
    }

    async fn copy(
        &mut self,
        store: &dyn StoreContract,
        work: BTreeMap<ShardId, Vec<WantedSegment>>,
    ) -> Result<(), MigrationError> {
        let all = || work.values().flatten();
        let (segments, bytes) = (all().count() as u64, all().map(|segment| segment.length.0).sum::<u64>());
        self.tell(MigrationStep::ToCopy(segments, bytes))?;
        self.progress.begin("bytes of segments", bytes);
        let this = &*self;
        let copying = work.values().map(|segments| async move {
            for segment in segments {
                this.copy_one(store, segment).await?;
                this.tell(MigrationStep::Segment(segment.id))?;
            }
            Ok::<_, MigrationError>(())
        });
        let copying: Vec<_> = copying.collect();
        stream::iter(copying).buffer_unordered(MIGRATED_AT_A_TIME).try_collect::<()>().await?;
        self.outcome.segments += segments;
        self.outcome.bytes += bytes;
        Ok(())
    }

    async fn copy_one(
        &self,
        store: &dyn StoreContract,
        segment: &WantedSegment,
    ) -> Result<(), MigrationError> {
        let WantedSegment { id, length, copies } = *segment;
        let failed = MigrationError::write(id);
        let (told, progress) = watch::channel(CopyProgress::default());
        store.create(id, copies, Arc::new(CopyWatch(told))).map_err(&failed)?;
        let mut under_way = CopyUnderWay { id, progress, entries: VecDeque::new(), bytes: 0 };
        let mut scan = Scan::new(self.source.store(), id, Position(0), length);
        while let Some(scanned) = scan.next().await.map_err(MigrationError::read(id))? {
            // Checked here, with all its bytes: what is damaged on the disk is not copied for whole.
            let entry = scan.entry(&scanned).await.map_err(MigrationError::read(id))?;
            let bytes = entry.len();
            let place = loop {
                match store.append(&id, scanned.position, entry.clone(), true) {
                    Ok(place) => break place,
                    Err(StoreError::Full { .. } | StoreError::Busy) => self.env.sleep(BUSY_RETRY).await,
                    Err(error) => return Err(failed(error)),
                }
            };
            under_way.push(place, bytes);
            self.copied(under_way.wait_for(MIGRATED_UNDER_WAY_BYTES).await?)?;
        }
        self.copied(under_way.wait_for(0).await?)?;
        store.seal(&id, length).map(drop).map_err(&failed)
    }

    fn copied(&self, bytes: u64) -> Result<(), MigrationError> {
        if bytes == 0 {
            return Ok(());
        }
        self.progress.advance(bytes);
        self.tell(MigrationStep::Copied(bytes))
    }
}

async fn flush(store: &dyn StoreContract) -> Result<(), MigrationError> {
    store.flush().await.map_err(|error| MigrationError::Store(error.to_string()))
}

#[cfg(test)]
mod tests {
    use tailwater_format::{SegmentNumber, ShardNumber, StreamId, Term};

    use super::*;

    fn id(shard: u32, number: u64, term: u32) -> SegmentId {
        let shard = ShardId { stream: StreamId(Uuid::from_u128(1)), shard: ShardNumber(shard) };
        SegmentId { shard, number: SegmentNumber(number), term: Term(term) }
    }

    fn wanted(id: SegmentId) -> WantedSegment {
        WantedSegment { id, length: Position(100), copies: SegmentCopies::default() }
    }

    fn found(id: SegmentId, length: u64, damaged: Option<&str>) -> RecoveredSegment {
        let (length, damaged) = (Position(length), damaged.map(str::to_owned));
        RecoveredSegment { id, length, contents: None, sealed: true, damaged }
    }

    fn copied(work: &CopyWork) -> Vec<SegmentId> {
        work.copy.values().flatten().map(|segment| segment.id).collect()
    }

    #[test]
    fn what_is_whole_stays_and_from_the_first_that_is_not_on_a_shard_is_copied_anew() {
        let all = [id(0, 0, 1), id(0, 1, 1), id(0, 2, 2), id(1, 0, 1)].map(wanted);
        let work = CopyWork::of(&all, &[]);
        assert_eq!((copied(&work).len(), work.delete.len()), (4, 0), "of an empty store all");

        let whole = all.map(|segment| found(segment.id, 100, None));
        assert_eq!(CopyWork::of(&all, &whole), CopyWork::default());

        for half in [found(id(0, 1, 1), 60, None), found(id(0, 1, 1), 100, Some("it can't be read"))] {
            let there = [whole[0].clone(), half, whole[2].clone(), whole[3].clone()];
            let work = CopyWork::of(&all, &there);
            assert_eq!(copied(&work), [id(0, 1, 1), id(0, 2, 2)]);
            assert_eq!(work.delete, [id(0, 1, 1), id(0, 2, 2)], "the one behind it can't stay");
        }
    }

    #[test]
    fn what_the_directory_has_no_more_and_what_has_another_term_there_goes() {
        let all = [wanted(id(0, 1, 3))];
        let there =
            [found(id(0, 0, 1), 100, None), found(id(0, 1, 2), 100, None), found(id(7, 0, 1), 9, None)];
        let work = CopyWork::of(&all, &there);
        assert_eq!(work.delete, [id(0, 0, 1), id(0, 1, 2), id(7, 0, 1)]);
        assert_eq!(copied(&work), [id(0, 1, 3)]);
    }
}
