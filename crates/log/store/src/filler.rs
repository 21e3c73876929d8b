//! Fills segment files behind the journal, syncs them and trims it. One dedicated task, the only one that
//! writes below `segments/`; it has the syncs done by several others at the same time (`syncer.rs`).
//!
//! A *round* brings everything that is durable in the journal at its beginning into files:
//! 1. files of deleted segments are removed, which makes room;
//! 2. batch by batch: pending bytes are written in large writes, the files synced, then the directories of
//!    new names, each once; only then are the bytes dropped from memory; then the sidecars of segments that
//!    were sealed, synced with their names;
//! 3. the checkpoint is replaced, and the journal trimmed to where the round began, or to the first record
//!    of what failed.
//!
//! Between rounds, segments with much to write are written ahead, not synced.
//!
//! What goes wrong:
//! - A write fails: nothing is dropped from memory, the same range is written again later. If the disk is
//!   full, appends are refused at once; else when it happens twice in a row.
//! - A sync of a file or of its name fails: the file is *suspect*, whatever a later sync says. It is replaced:
//!   the synced part is copied, the rest comes from memory, and the whole is synced before it takes the name.
//! - Either way the journal keeps what is not synced, and the next attempt follows with growing pauses.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tailwater_env::{File, HashMap, HashSet, Instant, OpenMode};
use tailwater_format::{Position, SegmentId, ShardId};
use tailwater_journal::JournalPosition;
use tokio::sync::mpsc;

use crate::StoreError;
use crate::checkpoint::{Checkpoint, OpenSegment};
use crate::files::{copy_prefix, create_fresh, remove_empty_dirs, remove_if_there, scan, write_fresh};
use crate::index::Sidecar;
use crate::limits::{
    BEGIN_SYNC_BYTES, FILL_BATCH, JOINED_BYTES_MAX, RETRY_MAX, RETRY_MIN, STRIPES, WRITE_BYTES_MAX,
};
use crate::record::Record;
use crate::segment::{FileState, Phase};
use crate::shards::Deleting;
use crate::store::{FlushReply, StoreInner};
use crate::syncer::{Syncers, Target};

/// What failed, and on which file.
#[derive(Debug)]
struct FillerFailure {
    what: &'static str,
    path: PathBuf,
    error: io::Error,
}

impl FillerFailure {
    fn no_space(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self.error.kind(), StorageFull | QuotaExceeded)
    }
}

impl std::fmt::Display for FillerFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.what, self.path.display(), self.error)
    }
}

trait OrFailure<T> {
    fn or_failure(self, what: &'static str, path: &Path) -> Result<T, FillerFailure>;
}

impl<T> OrFailure<T> for io::Result<T> {
    fn or_failure(self, what: &'static str, path: &Path) -> Result<T, FillerFailure> {
        self.map_err(|error| FillerFailure { what, path: path.to_owned(), error })
    }
}

/// A file with bytes that are not synced.
struct FillerHandle {
    file: Arc<dyn File>,
    /// It still has the replacement's name.
    replacement: bool,
}

/// A file that is being synced.
struct UnsyncedFile {
    id: SegmentId,
    file: Arc<dyn File>,
    /// Up to where it is synced if that works.
    written: Position,
    replacement: bool,
    /// Its name is not durable yet.
    unnamed: bool,
}

struct Retry {
    at: Instant,
    pause: Duration,
    failures: u32,
}

struct Filler {
    inner: Arc<StoreInner>,
    syncers: Syncers,
    handles: HashMap<SegmentId, FillerHandle>,
    /// Shards whose directories' names are durable, with those above.
    named: HashSet<ShardId>,
    buffer: Vec<u8>,
    /// When something was first seen that is not in files.
    dirty_since: Option<Instant>,
    retry: Option<Retry>,
    trimmed: JournalPosition,
}

/// What one round has come to.
#[derive(Default)]
struct Outcome {
    failure: Option<FillerFailure>,
    failed: HashSet<SegmentId>,
    /// Nothing more is written in this round.
    disk_full: bool,
}

impl Outcome {
    fn fail(&mut self, id: Option<SegmentId>, failure: FillerFailure) {
        tracing::warn!(%failure, "filling segment files failed; the journal keeps what is missing");
        self.disk_full |= failure.no_space();
        self.failed.extend(id);
        // A full disk is what the appender can do something about.
        if self.failure.as_ref().is_none_or(|first| failure.no_space() && !first.no_space()) {
            self.failure = Some(failure);
        }
    }
}

/// The filler's task: ends when the store's last handle is dropped.
pub(crate) async fn run(inner: Arc<StoreInner>, mut flushes: mpsc::Receiver<FlushReply>, syncers: Syncers) {
    let mut filler = Filler {
        syncers,
        handles: HashMap::default(),
        named: HashSet::default(),
        buffer: Vec::new(),
        dirty_since: None,
        retry: None,
        trimmed: inner.floor(),
        inner: inner.clone(),
    };
    loop {
        let mut waiting: Vec<FlushReply> = Vec::new();
        tokio::select! {
            biased;
            flush = flushes.recv() => match flush {
                Some(flush) => waiting.push(flush),
                None => return,
            },
            () = inner.wake.notified() => {}
            () = inner.env.sleep(inner.config.tick) => {}
        }
        while let Ok(flush) = flushes.try_recv() {
            waiting.push(flush);
        }
        filler.turn(waiting).await;
    }
}

impl Filler {
    async fn turn(&mut self, waiting: Vec<FlushReply>) {
        let now = self.inner.env.now();
        // A round without anything durable since the last one would trim nothing.
        let urgent =
            self.inner.urgent.swap(false, Ordering::Relaxed) && self.inner.ledger.durable() > self.trimmed;
        let mut forced = !waiting.is_empty();
        if !forced && self.retry.as_ref().is_some_and(|retry| now < retry.at) {
            return;
        }
        if self.retry.is_none() {
            self.write_ahead();
        } else {
            forced = true;
        }
        if !forced && !urgent && !self.is_round_due(now) {
            return;
        }
        let result = self.round(now).await;
        for flush in waiting {
            // Nobody waits any more if this fails.
            let _ = flush.send(result.clone());
        }
    }

    fn is_round_due(&mut self, now: Instant) -> bool {
        let inner = &self.inner;
        let clean = (0..STRIPES).all(|index| {
            let stripe = inner.stripe_at(index);
            stripe.work.dirty.is_empty() && stripe.work.deleting.is_empty()
        });
        let since = if clean { None } else { Some(self.dirty_since.unwrap_or(now)) };
        self.dirty_since = since;
        let grown = inner.ledger.durable().0.saturating_sub(self.trimmed.0);
        inner.pending_bytes() >= inner.config.sync_bytes
            || since.is_some_and(|since| now.since(since) >= inner.config.sync_age)
            || grown >= inner.config.journal_bytes
            || inner.ledger.trim_wanted()
            || self.handles.len() >= FILL_BATCH
    }

    /// Writes segments that have enough to write. A failure shows again in the next round, which deals with it.
    fn write_ahead(&mut self) {
        let durable = self.inner.ledger.durable();
        for index in 0..STRIPES {
            let ready = std::mem::take(&mut self.inner.stripe_at(index).work.ready);
            for id in ready {
                let suspect = {
                    let mut stripe = self.inner.stripe(&id.shard);
                    let Ok(segment) = stripe.shards.get_mut(&id) else { continue };
                    segment.ready = false;
                    segment.file == FileState::Suspect
                };
                if !suspect && self.handles.len() < FILL_BATCH {
                    // The round meets the same failure, and says so.
                    let _ = self.write(id, durable);
                }
            }
        }
    }

    async fn round(&mut self, now: Instant) -> Result<(), StoreError> {
        let upto = self.inner.ledger.durable();
        // From here on a segment that becomes dirty has its first record after `upto`: whatever is durable by now
        // was appended before, and is taken below.
        let floor_before = self.inner.floor.swap(upto.0, Ordering::Relaxed);
        assert!(floor_before <= upto.0, "the floor goes forward only");
        let mut outcome = Outcome::default();
        self.remove_deleted(upto, &mut outcome).await;
        let mut dirty = Vec::new();
        for index in 0..STRIPES {
            dirty.append(&mut self.inner.stripe_at(index).work.dirty);
        }
        for batch in dirty.chunks(FILL_BATCH) {
            if !outcome.disk_full {
                self.fill_batch(batch, upto, &mut outcome).await;
            } else {
                outcome.failed.extend(batch);
            }
            self.finish_batch(batch, upto, &outcome.failed);
        }
        if let Err(failure) = self.checkpoint(upto) {
            outcome.fail(None, failure);
        }
        self.conclude(outcome.failure, now)
    }

    /// Says how the round went to whoever appends, and when the next one follows.
    fn conclude(&mut self, failure: Option<FillerFailure>, now: Instant) -> Result<(), StoreError> {
        let inner = &self.inner;
        let Some(failure) = failure else {
            inner.counters.rounds.fetch_add(1, Ordering::Relaxed);
            if self.retry.take().is_some() {
                tracing::info!("segment files are filled again");
            }
            self.dirty_since = None;
            inner.set_refusal(None);
            return Ok(());
        };
        inner.counters.rounds_failed.fetch_add(1, Ordering::Relaxed);
        let refusal = if failure.no_space() {
            let free_bytes = inner.env.disk().free_bytes(inner.layout.data()).unwrap_or(0);
            StoreError::NoSpace { why: failure.to_string(), free_bytes }
        } else {
            StoreError::DiskFailed(failure.to_string())
        };
        let (failures, pause) = match &self.retry {
            None => (1, RETRY_MIN),
            Some(retry) => (retry.failures + 1, (retry.pause * 2).min(RETRY_MAX)),
        };
        self.retry = Some(Retry { at: now + pause, pause, failures });
        // A single failed sync costs a replacement, which usually works; appends need not notice.
        if failure.no_space() || failures > 1 {
            inner.set_refusal(Some(refusal.clone()));
        }
        Err(refusal)
    }

    // ---- deleting ----

    async fn remove_deleted(&mut self, upto: JournalPosition, outcome: &mut Outcome) {
        let (mut dirs, mut shards) = (BTreeSet::new(), BTreeSet::new());
        let mut removed = Vec::new();
        for index in 0..STRIPES {
            for deleting in self.take_deletable(index, upto) {
                match self.remove_files(&deleting.id) {
                    Ok(()) => {
                        dirs.insert(self.inner.layout.shard(&deleting.id.shard));
                        shards.insert(deleting.id.shard);
                        removed.push(deleting);
                    }
                    Err(failure) => {
                        outcome.fail(None, failure);
                        self.inner.stripe(&deleting.id.shard).work.deleting.push(deleting);
                    }
                }
            }
        }
        let unsynced = self.sync_dirs(dirs, outcome).await;
        removed.retain(|deleting| unsynced.contains(&self.inner.layout.shard(&deleting.id.shard)));
        for deleting in removed {
            self.inner.stripe(&deleting.id.shard).work.deleting.push(deleting);
        }
        shards.retain(|shard| !unsynced.contains(&self.inner.layout.shard(shard)));
        for shard in shards {
            // Only this task creates anything there, so what is empty stays empty meanwhile.
            if remove_empty_dirs(&**self.inner.env.disk(), &self.inner.layout, &shard) {
                self.named.remove(&shard);
            }
        }
    }

    /// The deletions of a stripe that are durable. Those whose record was lost are recorded again.
    fn take_deletable(&self, index: usize, upto: JournalPosition) -> Vec<Deleting> {
        let mut stripe = self.inner.stripe_at(index);
        let incarnation = stripe.incarnation;
        for deleting in &mut stripe.work.deleting {
            if deleting.record_end == JournalPosition(u64::MAX)
                && let Ok(end) = self.inner.record(incarnation, Record::Delete(deleting.id), true)
            {
                deleting.record_end = end;
            }
        }
        stripe.work.deleting.extract_if(.., |deleting| deleting.record_end <= upto).collect()
    }

    fn remove_files(&mut self, id: &SegmentId) -> Result<(), FillerFailure> {
        self.handles.remove(id);
        let (disk, layout) = (self.inner.env.disk(), &self.inner.layout);
        for path in [layout.sidecar(id), layout.replacement(id), layout.segment(id)] {
            remove_if_there(&**disk, &path).or_failure("removing", &path)?;
        }
        // Behind it: somebody may be opening it at this moment.
        self.inner.handles.lock().forget(id);
        Ok(())
    }

    // ---- filling ----

    async fn fill_batch(&mut self, batch: &[SegmentId], upto: JournalPosition, outcome: &mut Outcome) {
        let mut dirs = BTreeSet::new();
        let mut synced = Vec::new();
        for id in batch {
            if let Err(failure) = self.write(*id, upto) {
                outcome.fail(Some(*id), failure);
            }
        }
        let mut unsynced = Vec::new();
        for id in batch {
            if outcome.failed.contains(id) {
                continue;
            }
            match self.prepare_sync(*id, upto) {
                Ok(prepared) => unsynced.extend(prepared),
                Err(failure) => outcome.fail(Some(*id), failure),
            }
        }
        let files = unsynced.iter().map(|file| Target::Segment(file.file.clone())).collect();
        self.inner.counters.syncs.fetch_add(unsynced.len() as u64, Ordering::Relaxed);
        let results = self.syncers.sync(files).await;
        for (file, result) in unsynced.into_iter().zip(results) {
            match self.conclude_sync(&file, result, &mut dirs) {
                Ok(()) => synced.push((file.id, file.written)),
                Err(failure) => outcome.fail(Some(file.id), failure),
            }
        }
        let unsynced = self.sync_dirs(dirs, outcome).await;
        for (id, end) in synced {
            let lost_name = unsynced.iter().any(|dir| self.inner.layout.segment(&id).starts_with(dir));
            let mut stripe = self.inner.stripe(&id.shard);
            let Ok(segment) = stripe.shards.get_mut(&id) else { continue };
            if segment.file == FileState::Unnamed && lost_name {
                segment.file = FileState::Suspect;
                segment.pending.mark_unwritten();
                outcome.failed.insert(id);
                continue;
            }
            if segment.file == FileState::Unnamed {
                segment.file = FileState::Named;
                self.named.insert(id.shard);
            }
            let freed = segment.mark_synced(end);
            drop(stripe);
            self.inner.release(freed);
        }
        self.write_sidecars(batch, upto, outcome).await;
    }

    /// Writes what is durable at `upto` into the segment's file.
    fn write(&mut self, id: SegmentId, upto: JournalPosition) -> Result<(), FillerFailure> {
        loop {
            let pieces = {
                let mut stripe = self.inner.stripe(&id.shard);
                let Ok(segment) = stripe.shards.get_mut(&id) else { return Ok(()) };
                segment.pending.advance(upto);
                if segment.file == FileState::Suspect && !self.handles.contains_key(&id) {
                    segment.pending.mark_unwritten();
                }
                segment.pending.unwritten(WRITE_BYTES_MAX, upto)
            };
            let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Ok(()) };
            let (start, end) = (first.start, last.end());
            assert!(last.journal_end <= upto, "{id}: only what the journal has is written to a file");
            debug_assert!(
                pieces.windows(2).all(|two| two[0].end() == two[1].start),
                "{id}: written without a gap"
            );
            let path = self.inner.layout.segment(&id);
            let Some(file) = self.handle(id)? else { return Ok(()) };
            let are_long = end.0 - start.0 >= (pieces.len() * JOINED_BYTES_MAX) as u64;
            let written = if are_long || pieces.len() == 1 {
                let pieces: Vec<&[u8]> = pieces.iter().map(|piece| &piece.bytes[..]).collect();
                file.write_pieces_at(&pieces, start.0)
            } else {
                self.buffer.clear();
                pieces.iter().for_each(|piece| self.buffer.extend_from_slice(&piece.bytes));
                file.write_all_at(&self.buffer, start.0)
            };
            written.or_failure("writing", &path)?;
            if end.0 - start.0 >= BEGIN_SYNC_BYTES {
                // Left to the round, all of it would go out at once, and the journal's syncs would wait behind it.
                file.begin_sync(start.0, end.0 - start.0);
            }
            self.inner.counters.written_bytes.fetch_add(end.0 - start.0, Ordering::Relaxed);
            let mut stripe = self.inner.stripe(&id.shard);
            let Ok(segment) = stripe.shards.get_mut(&id) else { return Ok(()) };
            segment.pending.mark_written(end);
        }
    }

    /// The file that the segment is written to; `None` if it was deleted meanwhile.
    fn handle(&mut self, id: SegmentId) -> Result<Option<Arc<dyn File>>, FillerFailure> {
        if let Some(handle) = self.handles.get(&id) {
            return Ok(Some(handle.file.clone()));
        }
        let (state, synced) = {
            let stripe = self.inner.stripe(&id.shard);
            let Ok(segment) = stripe.shards.get(&id) else { return Ok(None) };
            (segment.file, segment.pending.synced())
        };
        let disk = self.inner.env.disk().clone();
        let path = self.inner.layout.segment(&id);
        let (file, replacement) = match state {
            FileState::Absent => {
                let dir = self.inner.layout.shard(&id.shard);
                disk.create_dir_all(&dir).or_failure("creating", &dir)?;
                (create_fresh(&*disk, &path).or_failure("creating", &path)?, false)
            }
            FileState::Named | FileState::Unnamed => {
                (disk.open(&path, OpenMode::ReadWrite).or_failure("opening", &path)?, false)
            }
            FileState::Suspect => {
                let replacement = self.inner.layout.replacement(&id);
                let new = create_fresh(&*disk, &replacement).or_failure("creating", &replacement)?;
                if synced > Position(0) {
                    let old = disk.open(&path, OpenMode::Read).or_failure("opening", &path)?;
                    let copied = copy_prefix(&*old, &*new, synced.0, &mut self.buffer);
                    copied.or_failure("copying", &path)?;
                }
                (new, true)
            }
        };
        if state == FileState::Absent {
            let mut stripe = self.inner.stripe(&id.shard);
            if let Ok(segment) = stripe.shards.get_mut(&id) {
                segment.file = FileState::Unnamed;
            }
        }
        assert!(!self.handles.contains_key(&id), "{id}: a file is opened for writing once");
        self.handles.insert(id, FillerHandle { file: file.clone(), replacement });
        Ok(Some(file))
    }

    /// What there is to sync of the segment, cut to its sealed length; `None` if there is nothing. The handle is
    /// given up whatever happens: after a failed sync nothing is done with that file again.
    fn prepare_sync(
        &mut self,
        id: SegmentId,
        upto: JournalPosition,
    ) -> Result<Option<UnsyncedFile>, FillerFailure> {
        let (state, written, sealed) = {
            let stripe = self.inner.stripe(&id.shard);
            let Ok(segment) = stripe.shards.get(&id) else { return Ok(None) };
            let sealed = matches!(segment.phase, Phase::Sealed { record_end } if record_end <= upto);
            (segment.file, segment.pending.written(), sealed)
        };
        let idle = !self.handles.contains_key(&id);
        if state == FileState::Absent || (idle && state == FileState::Named && !sealed) {
            return Ok(None);
        }
        let path = self.inner.layout.segment(&id);
        let Some(file) = self.handle(id)? else { return Ok(None) };
        let replacement = self.handles.remove(&id).is_some_and(|handle| handle.replacement);
        if sealed && file.len().or_failure("looking at", &path)? > written.0 {
            let cut = file.set_len(written.0);
            if cut.is_err() {
                self.suspect(&id);
            }
            cut.or_failure("cutting", &path)?;
        }
        let unnamed = replacement || state != FileState::Named;
        Ok(Some(UnsyncedFile { id, file, written, replacement, unnamed }))
    }

    /// Gives a replacement the segment's name if it could be synced, and notes the directories whose names have
    /// to be synced before that counts.
    fn conclude_sync(
        &mut self,
        UnsyncedFile { id, replacement, unnamed, .. }: &UnsyncedFile,
        result: io::Result<()>,
        dirs: &mut BTreeSet<PathBuf>,
    ) -> Result<(), FillerFailure> {
        let path = self.inner.layout.segment(id);
        if result.is_err() {
            self.suspect(id);
        }
        result.or_failure("syncing", &path)?;
        if *replacement {
            let from = self.inner.layout.replacement(id);
            self.inner.env.disk().rename(&from, &path).or_failure("renaming", &from)?;
            self.inner.handles.lock().forget(id);
            let mut stripe = self.inner.stripe(&id.shard);
            if let Ok(segment) = stripe.shards.get_mut(id) {
                segment.file = FileState::Unnamed;
            }
        }
        if *unnamed {
            self.note_dirs(&id.shard, dirs);
        }
        Ok(())
    }

    fn suspect(&mut self, id: &SegmentId) {
        let mut stripe = self.inner.stripe(&id.shard);
        if let Ok(segment) = stripe.shards.get_mut(id) {
            segment.file = FileState::Suspect;
            segment.pending.mark_unwritten();
        }
    }

    /// The directories that hold a new name in the shard's directory, and those above if they may be new too.
    fn note_dirs(&self, shard: &ShardId, dirs: &mut BTreeSet<PathBuf>) {
        let layout = &self.inner.layout;
        dirs.insert(layout.shard(shard));
        if !self.named.contains(shard) {
            dirs.insert(layout.stream(shard.stream));
            dirs.insert(layout.root().to_owned());
            dirs.insert(layout.data().to_owned());
        }
    }

    /// Syncs each directory once; answers those that failed.
    async fn sync_dirs(&self, dirs: BTreeSet<PathBuf>, outcome: &mut Outcome) -> BTreeSet<PathBuf> {
        let results = self.syncers.sync(dirs.iter().cloned().map(Target::Dir).collect()).await;
        let mut failed = BTreeSet::new();
        for (dir, result) in dirs.into_iter().zip(results) {
            match result {
                Ok(()) => {}
                // A shard that never had a file, so there is no name to lose.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    outcome.fail(None, FillerFailure { what: "syncing", path: dir.clone(), error });
                    failed.insert(dir);
                }
            }
        }
        failed
    }

    // ---- sealing ----

    /// Writes the sidecars of sealed segments whose bytes and names are durable.
    async fn write_sidecars(&mut self, batch: &[SegmentId], upto: JournalPosition, outcome: &mut Outcome) {
        let mut dirs = BTreeSet::new();
        let mut written = Vec::new();
        for id in batch {
            if outcome.failed.contains(id) {
                continue;
            }
            match self.write_sidecar(id, upto) {
                Ok(file) => written.extend(file.map(|file| (*id, file))),
                Err(failure) => outcome.fail(Some(*id), failure),
            }
        }
        let files = written.iter().map(|(_, file)| Target::File(file.clone())).collect();
        let results = self.syncers.sync(files).await;
        let mut synced = Vec::new();
        for ((id, _), result) in written.into_iter().zip(results) {
            match result.or_failure("syncing", &self.inner.layout.sidecar(&id)) {
                Ok(()) => {
                    self.note_dirs(&id.shard, &mut dirs);
                    synced.push(id);
                }
                Err(failure) => outcome.fail(Some(id), failure),
            }
        }
        let unsynced = self.sync_dirs(dirs, outcome).await;
        for id in synced {
            if unsynced.iter().any(|dir| self.inner.layout.segment(&id).starts_with(dir)) {
                outcome.failed.insert(id);
                continue;
            }
            let mut stripe = self.inner.stripe(&id.shard);
            if let Ok(segment) = stripe.shards.get_mut(&id)
                && matches!(segment.phase, Phase::Sealed { .. })
            {
                segment.phase = Phase::Filed;
                // Read from the sidecar when it is asked for.
                segment.index = None;
            }
        }
    }

    /// Writes the segment's sidecar if it is time for it; the file, which is not synced yet.
    fn write_sidecar(
        &mut self,
        id: &SegmentId,
        upto: JournalPosition,
    ) -> Result<Option<Arc<dyn File>>, FillerFailure> {
        let (mut sidecar, mut index, rescan) = {
            let stripe = self.inner.stripe(&id.shard);
            let Ok(segment) = stripe.shards.get(id) else { return Ok(None) };
            let recorded = matches!(segment.phase, Phase::Sealed { record_end } if record_end <= upto);
            let named = matches!(segment.file, FileState::Named | FileState::Absent);
            if !recorded || !named || !segment.pending.is_empty() {
                return Ok(None);
            }
            let length = segment.pending.synced();
            let sidecar = Sidecar { id: *id, length, contents: segment.synced_contents };
            (sidecar, segment.index.clone(), segment.rescan)
        };
        let (disk, layout) = (self.inner.env.disk().clone(), &self.inner.layout);
        if rescan {
            let path = layout.segment(id);
            let scanned = disk
                .open(&path, OpenMode::Read)
                .and_then(|file| scan(&*file, *id, sidecar.length, self.inner.config.index_step))
                .or_failure("reading", &path)?;
            sidecar.contents = scanned.contents;
            index = Some(scanned.index.clone());
            let mut stripe = self.inner.stripe(&id.shard);
            if let Ok(segment) = stripe.shards.get_mut(id) {
                segment.synced_contents = scanned.contents;
                // On a full disk there is no sidecar to look it up in for long.
                segment.index = Some(scanned.index);
                segment.rescan = false;
            }
        }
        let path = layout.sidecar(id);
        let dir = layout.shard(&id.shard);
        disk.create_dir_all(&dir).or_failure("creating", &dir)?;
        let file = create_fresh(&*disk, &path).or_failure("creating", &path)?;
        file.write_all_at(&sidecar.encode(index.as_ref()), 0).or_failure("writing", &path)?;
        Ok(Some(file))
    }

    // ---- concluding ----

    /// Notes which segments of the batch the files cover, and of the others from where they need the journal.
    fn finish_batch(&mut self, batch: &[SegmentId], upto: JournalPosition, failed: &HashSet<SegmentId>) {
        for id in batch {
            let mut stripe = self.inner.stripe(&id.shard);
            let stripe = &mut *stripe;
            let Ok(segment) = stripe.shards.get_mut(id) else { continue };
            let covered = segment.pending.is_empty() && !matches!(segment.phase, Phase::Sealed { .. });
            segment.dirty = !covered;
            if !covered {
                stripe.work.dirty.push(*id);
                if !failed.contains(id) {
                    segment.needs_from = upto;
                }
            }
        }
    }

    /// Replaces the checkpoint, and trims the journal.
    fn checkpoint(&mut self, upto: JournalPosition) -> Result<(), FillerFailure> {
        let mut checkpoint = Checkpoint { journal: upto, open: Vec::new() };
        for index in 0..STRIPES {
            let stripe = self.inner.stripe_at(index);
            for deleting in &stripe.work.deleting {
                checkpoint.journal = checkpoint.journal.min(deleting.needs_from);
            }
            for segment in stripe.shards.segments() {
                if segment.dirty {
                    checkpoint.journal = checkpoint.journal.min(segment.needs_from);
                }
                if segment.phase != Phase::Filed {
                    let (synced, contents) = segment.checkpointed();
                    checkpoint.open.push(OpenSegment { id: segment.id, synced, contents });
                }
            }
        }
        let inner = &self.inner;
        let (path, unfinished) = (inner.layout.checkpoint(), inner.layout.checkpoint_unfinished());
        let disk = inner.env.disk();
        write_fresh(&**disk, &unfinished, &checkpoint.encode()).or_failure("writing", &unfinished)?;
        disk.rename(&unfinished, &path).or_failure("renaming", &unfinished)?;
        disk.sync_dir(inner.layout.root()).or_failure("syncing", inner.layout.root())?;
        assert!(checkpoint.journal <= upto, "a checkpoint does not say more than was looked at");
        self.trimmed = self.trimmed.max(checkpoint.journal);
        inner.counters.trimmed.store(self.trimmed.0, Ordering::Relaxed);
        inner.ledger.trim(self.trimmed);
        Ok(())
    }
}
