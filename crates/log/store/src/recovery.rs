//! After a start: from files, checkpoint and journal back to the state of the moment before.
//!
//! | in the checkpoint | creation in the journal | sidecar | file | a segment starts as |
//! |---|---|---|---|---|
//! | yes | any | not looked at | at least the synced length | closed at the synced length |
//! | yes | any | not looked at | shorter, or missing | damaged: closed behind its last whole entry; unless the journal has the rest |
//! | no | yes | not looked at | not looked at | what the journal says from its creation on |
//! | no | no | whole | at least the sealed length | sealed and filed; its records are skipped |
//! | no | no | whole | shorter, or missing | damaged, as above |
//! | no | no | none, or not to be believed | there | closed behind its last whole entry |
//!
//! A sidecar counts only where checkpoint and journal leave a segment to it: after a kill -9 a sidecar may be
//! there that the next power failure takes away, and so may any name that is not older than the checkpoint. That
//! is why names are synced again with the first sync of their file.
//!
//! The journal's records that the checkpoint does not cover are applied in order. An append is accepted only
//! if it continues: position, segment, term, entry id, offsets, and checksums. What it holds is pending, as it
//! was before, and is filled into the file; a file's bytes behind the synced length are never looked at, because
//! whatever they hold that was acknowledged is in the journal too.
//!
//! No recovered segment is appended to again. Those that are not sealed are reported, for the owner to seal at
//! the length they have and to go on in another with a higher term.

use std::path::Path;

use bytes::Bytes;
use tailwater_env::{Env, HashMap, OpenMode, Progress};
use tailwater_format::{Position, SegmentId, ShardId, parse_entry};
use tailwater_journal::{Journal, JournalPosition, ReplayError};

use crate::checkpoint::{Checkpoint, CheckpointError, OpenSegment};
use crate::files::{read_whole, remove_empty_dirs, remove_if_there, scan};
use crate::index::{IndexContents, SIDECAR_HEADER_BYTES, Sidecar, SidecarError, SparseIndex};
use crate::layout::{FileName, Layout, parse_name, parse_shard, parse_stream};
use crate::limits::{CHECKPOINT_BYTES_MAX, STRIPES, StoreConfig};
use crate::record::Record;
use crate::segment::{Closed, FileState, Phase, Segment};
use crate::shards::{Deleting, Stripe, stripe_of};
use crate::store::{SegmentStore, StoreInner};
use crate::{OpenError, StoreError};

/// A segment that was there when the store was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredSegment {
    /// Which.
    pub id: SegmentId,
    /// Where it ends; all of it is durable.
    pub length: Position,
    /// Its first and last entry.
    pub contents: Option<IndexContents>,
    /// Whether it is sealed. If not, it has to be sealed, normally at `length`.
    pub sealed: bool,
    /// The disk has lost some of it: in words, what. Everything before `length` is whole.
    pub damaged: Option<String>,
}

/// A store on its way up: files are listed, then the journal is replayed into it.
pub struct Recovery {
    env: Env,
    layout: Layout,
    config: StoreConfig,
    /// Records that end here or before are covered by the files.
    covered: JournalPosition,
    stripes: Vec<Stripe>,
    /// Files of segments that neither a sidecar nor the checkpoint speaks of, and their lengths.
    found: HashMap<SegmentId, u64>,
    /// What was said of segments, in words, of which a file holds less; [`Segment::promised`] is how much it was.
    promised: HashMap<SegmentId, String>,
    /// Records that continue nothing, by their segment.
    ignored: HashMap<SegmentId, u64>,
    progress: Progress,
}

impl Recovery {
    /// Looks at the segments below the data directory `dir`, which the caller has locked. Blocks.
    ///
    /// # Errors
    /// [`OpenError::Disk`] if the disk refuses; [`OpenError::Version`] if a later version was here.
    pub fn begin(env: &Env, dir: &Path, config: StoreConfig) -> Result<Self, OpenError> {
        Self::begin_telling(env, dir, config, Progress::default())
    }

    /// The same, telling how many files and segments are read, here and in [`Recovery::finish`].
    ///
    /// # Errors
    /// As [`Recovery::begin`].
    pub fn begin_telling(
        env: &Env,
        dir: &Path,
        config: StoreConfig,
        progress: Progress,
    ) -> Result<Self, OpenError> {
        let mut recovery = Self {
            env: env.clone(),
            layout: Layout::new(dir),
            config,
            covered: JournalPosition(0),
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            found: HashMap::default(),
            promised: HashMap::default(),
            ignored: HashMap::default(),
            progress,
        };
        let root = recovery.layout.root().to_owned();
        env.disk().create_dir_all(&root).map_err(at(&root))?;
        recovery.progress.begin("files of segments", 0);
        let checkpoint = recovery.load_checkpoint()?;
        let sidecars = recovery.list_files()?;
        recovery.covered = checkpoint.journal;
        recovery.progress.begin("segments", (checkpoint.open.len() + sidecars.len()) as u64);
        for open in checkpoint.open {
            recovery.take_open(open)?;
            recovery.progress.advance(1);
        }
        for id in sidecars {
            if recovery.segment(&id).is_err() {
                recovery.load_sidecar(id)?;
            }
            recovery.progress.advance(1);
        }
        Ok(recovery)
    }

    fn load_checkpoint(&self) -> Result<Checkpoint, OpenError> {
        let (path, unfinished) = (self.layout.checkpoint(), self.layout.checkpoint_unfinished());
        let disk = self.env.disk();
        remove_if_there(&**disk, &unfinished).map_err(at(&unfinished))?;
        let Some(bytes) = read_whole(&**disk, &path, CHECKPOINT_BYTES_MAX).map_err(at(&path))? else {
            return Ok(Checkpoint::default());
        };
        match Checkpoint::decode(&bytes) {
            Ok(checkpoint) => Ok(checkpoint),
            Err(CheckpointError::Version(version)) => Err(OpenError::Version { path, version }),
            Err(CheckpointError::Damaged) => {
                tracing::error!(path = %path.display(), "the checkpoint is damaged; segment files are scanned");
                Ok(Checkpoint::default())
            }
        }
    }

    /// Notes all segment files; answers the sidecars.
    fn list_files(&mut self) -> Result<Vec<SegmentId>, OpenError> {
        let disk = self.env.disk().clone();
        let list = |dir: &Path| disk.list(dir).map_err(at(dir));
        let mut sidecars = Vec::new();
        for stream in list(self.layout.root())?.iter().filter_map(|name| parse_stream(name)) {
            for number in list(&self.layout.stream(stream))?.iter().filter_map(|name| parse_shard(name)) {
                let shard = ShardId { stream, shard: number };
                let dir = self.layout.shard(&shard);
                let names = list(&dir)?;
                if names.is_empty() {
                    // A crash came between the removal of its last file and its own.
                    remove_empty_dirs(&*disk, &self.layout, &shard);
                }
                for name in names {
                    let path = dir.join(&name);
                    match parse_name(&name) {
                        FileName::Segment(number, term) => {
                            let file = disk.open(&path, OpenMode::Read).map_err(at(&path))?;
                            let length = file.len().map_err(at(&path))?;
                            self.found.insert(SegmentId { shard, number, term }, length);
                            self.progress.advance(1);
                        }
                        FileName::Sidecar(number, term) => sidecars.push(SegmentId { shard, number, term }),
                        FileName::Unfinished => remove_if_there(&*disk, &path).map_err(at(&path))?,
                        FileName::Foreign => {}
                    }
                }
            }
        }
        Ok(sidecars)
    }

    fn load_sidecar(&mut self, id: SegmentId) -> Result<(), OpenError> {
        let path = self.layout.sidecar(&id);
        let file = self.env.disk().open(&path, OpenMode::Read).map_err(at(&path))?;
        let mut header = [0; SIDECAR_HEADER_BYTES];
        let read = file.read_at(&mut header, 0).map_err(at(&path))?;
        let sidecar = match Sidecar::decode(&id, &header[..read]) {
            Ok(sidecar) => sidecar,
            Err(SidecarError::Version(version)) => return Err(OpenError::Version { path, version }),
            // The process ended while it was written, or it is damaged: the journal or a scan knows better.
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a sidecar is not believed");
                return Ok(());
            }
        };
        let length = self.found.get(&id).copied();
        if length.unwrap_or(0) < sidecar.length.0 {
            self.adopt(id, sidecar.length)?;
            self.promise(id, sidecar.length, "sealed at", length);
            return Ok(());
        }
        let file = if self.found.remove(&id).is_some() { FileState::Named } else { FileState::Absent };
        self.insert(Segment::at(id, Phase::Filed, sidecar.length, sidecar.contents, None, file));
        Ok(())
    }

    /// Takes a segment that the checkpoint calls open.
    fn take_open(&mut self, open: OpenSegment) -> Result<(), OpenError> {
        let OpenSegment { id, synced, contents } = open;
        let length = self.found.get(&id).copied();
        // Even if its name was durable once, it may since have been given to a replacement.
        let file = if length.is_some() { FileState::Unnamed } else { FileState::Absent };
        let whole = length.unwrap_or(0) >= synced.0;
        if whole && (contents.is_some() || synced == Position(0)) {
            self.found.remove(&id);
            let index = (synced == Position(0)).then(|| SparseIndex::new(self.config.index_step));
            self.insert(Segment::at(id, closed(), synced, contents, index, file));
            return Ok(());
        }
        self.adopt(id, synced)?;
        self.promise(id, synced, "synced up to", length);
        Ok(())
    }

    /// Notes that a segment once reached `promised`, of which its file has `length` bytes, if there is one. If the
    /// journal has the rest, nothing is missing.
    fn promise(&mut self, id: SegmentId, promised: Position, what: &str, length: Option<u64>) {
        let Ok(segment) = self.segment(&id) else { return };
        segment.promised = promised;
        let has = match length {
            None => "is missing".to_owned(),
            Some(length) if length < promised.0 => format!("has {length} bytes"),
            Some(_) => format!("is damaged behind {}", segment.pending.appended()),
        };
        self.promised.insert(id, format!("{what} {promised}, but its file {has}"));
    }

    /// Takes what a file holds, up to `limit`, for the segment's durable beginning.
    fn adopt(&mut self, id: SegmentId, limit: Position) -> Result<(), OpenError> {
        let step = self.config.index_step;
        if self.found.remove(&id).is_none() {
            self.insert(Segment::new(id, closed(), step));
            return Ok(());
        }
        let path = self.layout.segment(&id);
        let file = self.env.disk().open(&path, OpenMode::Read).map_err(at(&path))?;
        let scanned = scan(&*file, id, limit, step).map_err(at(&path))?;
        let (index, contents) = (Some(scanned.index), scanned.contents);
        // Which of its bytes are on the disk and which only in the page cache is not known, and after a failed
        // sync no further one would tell. So it is replaced by a copy when it is sealed.
        self.insert(Segment::at(id, closed(), scanned.length, contents, index, FileState::Suspect));
        Ok(())
    }

    fn segment(&mut self, id: &SegmentId) -> Result<&mut Segment, StoreError> {
        self.stripes[stripe_of(&id.shard)].shards.get_mut(id)
    }

    fn insert(&mut self, segment: Segment) {
        self.stripes[stripe_of(&segment.id.shard)].shards.insert(segment);
    }

    /// Applies the store's record that ends at `end`. Records come in the journal's order.
    ///
    /// # Errors
    /// A record that this version does not understand, or a disk that refuses.
    pub fn replay(&mut self, end: JournalPosition, bytes: &[u8]) -> Result<(), ReplayError> {
        let refused = |error: &dyn std::fmt::Display| ReplayError::new(error.to_string());
        let record = Record::parse(bytes).map_err(|error| refused(&error))?;
        if end <= self.covered {
            return Ok(());
        }
        match record {
            Record::Create(id) => self.replay_create(id),
            Record::Append(id, position, entry) => {
                self.find(id).map_err(|error| refused(&error))?;
                self.replay_append(id, position, entry, end);
            }
            Record::Seal(id, length) => {
                self.find(id).map_err(|error| refused(&error))?;
                self.replay_seal(id, length, end);
            }
            Record::Delete(id) => self.replay_delete(id, end),
        }
        Ok(())
    }

    /// Makes sure that a file that nothing has spoken of yet is known.
    fn find(&mut self, id: SegmentId) -> Result<(), OpenError> {
        if self.segment(&id).is_err() && self.found.contains_key(&id) {
            self.adopt(id, Position(u64::MAX))?;
        }
        Ok(())
    }

    fn replay_create(&mut self, id: SegmentId) {
        let filed = match self.segment(&id) {
            Ok(segment) if segment.phase != Phase::Filed => return,
            Ok(segment) => segment.file != FileState::Absent,
            Err(_) => false,
        };
        // All of it is in the journal, so nothing in its files has to be believed.
        self.promised.remove(&id);
        let mut segment = Segment::new(id, closed(), self.config.index_step);
        if self.found.remove(&id).is_some() || filed {
            segment.file = FileState::Unnamed;
        }
        self.insert(segment);
    }

    fn replay_append(&mut self, id: SegmentId, position: Position, entry: &[u8], end: JournalPosition) {
        let accepted = match self.segment(&id) {
            // Its end, perhaps with its deletion, is still to come.
            Err(_) => false,
            Ok(segment) if segment.phase == Phase::Filed => true,
            Ok(segment) if position.0 + entry.len() as u64 <= segment.pending.synced().0 => true,
            Ok(segment) => match segment.check_continues(position, entry) {
                Ok(header) if !segment.is_sealed() && parse_entry(entry).is_ok() => {
                    segment.append(header, Bytes::copy_from_slice(entry), end);
                    true
                }
                _ => {
                    // It continues what is lost: who brings that back has to bring this, too.
                    if segment.promised > Position(0) {
                        let reached = Position(position.0 + entry.len() as u64);
                        segment.promised = segment.promised.max(reached);
                        let left = segment.pending.appended();
                        let why = format!("it reached {}, but only {left} is left", segment.promised);
                        self.promised.insert(id, why);
                    }
                    false
                }
            },
        };
        if !accepted {
            *self.ignored.entry(id).or_default() += 1;
        }
    }

    fn replay_seal(&mut self, id: SegmentId, length: Position, end: JournalPosition) {
        if self.segment(&id).is_err() && length == Position(0) {
            // Its creation was lost, and it was sealed for that.
            self.replay_create(id);
        }
        let accepted = match self.segment(&id) {
            Ok(segment) if segment.is_sealed() => true,
            Ok(segment) if length <= segment.pending.appended() => {
                segment.seal(length, end);
                self.promised.remove(&id);
                true
            }
            Ok(segment) => {
                let why = format!("sealed at {length}, but only {} is left", segment.pending.appended());
                segment.promised = length;
                self.promised.insert(id, why);
                true
            }
            Err(_) => false,
        };
        if !accepted {
            *self.ignored.entry(id).or_default() += 1;
        }
    }

    fn replay_delete(&mut self, id: SegmentId, record_end: JournalPosition) {
        let needs_from = self.covered;
        let stripe = &mut self.stripes[stripe_of(&id.shard)];
        stripe.shards.remove(&id);
        stripe.work.deleting.push(Deleting { id, record_end, needs_from });
        self.found.remove(&id);
        self.ignored.remove(&id);
        self.promised.remove(&id);
    }

    /// The store as it was, with the `journal` that was replayed into this; and all its segments. Starts the
    /// store's tasks, which begin with filling what is pending.
    ///
    /// # Errors
    /// [`OpenError::Disk`] if a file that the journal knows nothing of can't be read.
    pub fn finish(mut self, journal: Journal) -> Result<(SegmentStore, Vec<RecoveredSegment>), OpenError> {
        let mut strays: Vec<SegmentId> = self.found.keys().copied().collect();
        strays.sort_by_key(|id| (id.shard.stream, id.shard.shard, id.number, id.term));
        self.progress.begin("segments to be scanned", strays.len() as u64);
        for id in strays {
            tracing::warn!(%id, "neither checkpoint nor journal know this segment; its file is scanned");
            self.adopt(id, Position(u64::MAX))?;
            self.progress.advance(1);
        }
        for (id, records) in &self.ignored {
            tracing::warn!(%id, records, "records in the journal continue nothing and were ignored");
        }
        let mut recovered = Vec::new();
        for stripe in &mut self.stripes {
            let Stripe { shards, work, .. } = stripe;
            for segment in shards.segments_mut() {
                if segment.promised <= segment.pending.appended() {
                    segment.promised = Position(0);
                    self.promised.remove(&segment.id);
                }
                if !segment.pending.is_empty() || matches!(segment.phase, Phase::Sealed { .. }) {
                    work.mark_dirty(segment, self.covered);
                }
                recovered.push(RecoveredSegment {
                    id: segment.id,
                    length: segment.pending.appended(),
                    contents: segment.contents(),
                    sealed: segment.is_sealed(),
                    damaged: self.promised.get(&segment.id).cloned(),
                });
            }
        }
        recovered.sort_by_key(|segment| {
            let id = &segment.id;
            (id.shard.stream, id.shard.shard, id.number, id.term)
        });
        let inner = StoreInner::new(self.env, self.layout, self.config, journal, self.stripes, self.covered);
        Ok((SegmentStore::start(inner), recovered))
    }
}

fn closed() -> Phase {
    Phase::Closed(Closed::Recovered)
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Disk { path: path.clone(), source }
}
