//! A replica's disk: its streams in a directory, through the `journal`.
//!
//! ```text
//! replica          who it is: its id and its region
//! journal/         what came since the checkpoint, as records (`tailwater_broadcast::record`)
//! checkpoint       what there was before that, without what is collected
//! checkpoint.new   one that is not finished; removed when the directory is opened
//! aside-LINEAGE/   what the replica had of a lineage that goes on no more: a directory like this one
//! aside-LINEAGE-REGION/   the same of another region's, as a directory of a replica of that one
//! ```
//!
//! What holds:
//! - A ticket is answered once its record is written (`interval`) or synced (`fsync`), and all records before it.
//! - The directory recovers to a state that the replica had: never less than what was answered.
//! - A checkpoint takes the place of the one before it only when it is synced, and the journal as far as it needs
//!   it; only then is the journal trimmed.
//! - Bytes that are not what was written are an error that says what to do, never a panic; only what was under way
//!   at the end of the journal is left out.
//! - What is put aside is there before the journal says that it is dropped.
//! - The journal grows to at most about the larger of `checkpoint_bytes` and the last checkpoint's size before the
//!   next one begins: disk use follows what garbage collection leaves.
//!
//! The journal is not the node's: a checkpoint is as large as all that a replica has, and until it is worth one its
//! records would keep everybody else's files from being used again.

mod aside;
pub mod checkpoint;
mod identity;
mod keeper;
mod walk;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use tailwater_broadcast::durability::Durabilities;
use tailwater_broadcast::history::HistoryOptions;
use tailwater_broadcast::message::ReplicaId;
use tailwater_broadcast::name::Stream;
use tailwater_broadcast::record::Record;
use tailwater_broadcast::recovered::RecoveredStream;
use tailwater_broadcast::replica::Lineages;
use tailwater_broadcast::replica::stream::StreamState;
use tailwater_env::{Env, OpenMode, Progress};
use tailwater_journal::{
    Journal, JournalConfig, JournalOpenError, JournalPosition, JournalStats, ReplayError, Tag,
};

use self::checkpoint::{HistoryCheckpointError, RECORD_BYTES_MAX};
pub use self::keeper::{Keeper, KeeperHappened};
pub use self::walk::Walk;

/// The tag of the records in the journal.
const TAG: Tag = Tag(1);
/// Bytes of one of the journal's files; some are there ahead of need.
const FILE_BYTES: u64 = 4 << 20;
/// Files of the journal, 64 GiB: it is checkpoints that keep it small.
const FILES_MAX: u32 = 16_384;

const _: () = assert!(RECORD_BYTES_MAX < FILE_BYTES as usize - (64 << 10));

/// How a disk is used.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Which streams are kept, and how.
    pub durability: Durabilities,
    /// Of the histories that are read.
    pub history: HistoryOptions,
    /// Of the journal. What is `interval` is synced every `sync_interval` of it.
    pub journal: JournalConfig,
    /// Bytes that the journal grows by before a checkpoint is due, or the size of the last one if that is more.
    pub checkpoint_bytes: u64,
    /// Is told how far it is, while it is opened.
    pub progress: Progress,
}

impl DiskOptions {
    /// The defaults for streams that are kept so.
    pub fn new(durability: Durabilities) -> Self {
        Self {
            durability,
            history: HistoryOptions::default(),
            journal: JournalConfig {
                file_bytes: FILE_BYTES,
                files_max: FILES_MAX,
                reserve_bytes: 0,
                record_bytes_max: RECORD_BYTES_MAX,
                sync_interval: Duration::from_secs(1),
                ..JournalConfig::default()
            },
            checkpoint_bytes: 64 << 20,
            progress: Progress::default(),
        }
    }
}

/// Why a directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The disk refused.
    #[error("{path} can't be {what}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// In the operating system's words.
        error: io::Error,
    },
    /// A file is not what was written.
    #[error("{path} can't be used: {why}. {}", remedy(.path))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The replica was one of another region.
    #[error(
        "{dir} has the events of a replica of region {was}, not {is}: set region back, or move the directory away"
    )]
    Region {
        /// The directory.
        dir: PathBuf,
        /// Its region.
        was: String,
        /// The configured one.
        is: String,
    },
    /// The journal can't be opened.
    #[error("{error}. {}", remedy(.dir))]
    Journal {
        /// The directory.
        dir: PathBuf,
        /// Why.
        error: JournalOpenError,
    },
}

fn remedy(path: &Path) -> String {
    let dir = path.ancestors().find(|dir| dir.ends_with("broadcast")).unwrap_or(path);
    let dir = dir.display();
    format!(
        "Restore {dir} from a copy, or move it away: the replica then is a new one and copies from the others"
    )
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DiskError {
    let path = path.to_owned();
    move |error| DiskError::Io { what, path, error }
}

/// How it is doing.
#[derive(Clone, Debug, Default)]
pub struct DiskStats {
    /// Bytes of the newest checkpoint and of the journal's files, those that are ready to be written included.
    pub bytes: u64,
    /// Checkpoints written since the start.
    pub checkpoints: u64,
    /// Attempts at one that failed.
    pub checkpoints_failed: u64,
    /// Records that the journal could not take yet.
    pub waiting: u64,
    /// Events that were read when the replica started, collected ones not counted.
    pub loaded: u64,
    /// Its journal.
    pub journal: JournalStats,
}

/// An open directory, and what was in it.
pub struct Disk {
    /// To be given what the replica wants on it.
    pub keeper: Keeper,
    /// What the replica had.
    pub streams: BTreeMap<Stream, StreamState>,
    /// The lineages of that.
    pub lineages: Lineages,
    id: ReplicaId,
}

impl Disk {
    /// Opens a directory, making it if it is not there, for a replica of `region`. A new one gets an id, which it
    /// keeps. Blocks on the disk until all is read.
    pub fn open(env: &Env, dir: &Path, region: &str, options: DiskOptions) -> Result<Self, DiskError> {
        let disk = env.disk();
        disk.create_dir_all(dir).map_err(failed("made", dir))?;
        if let Some(parent) = dir.parent() {
            disk.sync_dir(parent).map_err(failed("synced", parent))?;
        }
        let journal_dir = dir.join("journal");
        options.progress.begin("broadcasts", 0);
        let (id, is_new) = identity::open(env, dir, region)?;
        let mut recovered = RecoveredStream::new(options.history.clone());
        let (covered, checkpoint_bytes) = load_checkpoint(env, dir, &mut recovered)?;
        let has_journal = disk.list(&journal_dir).is_ok_and(|names| !names.is_empty());
        // What was put aside is a checkpoint that needs none.
        let needs_journal = checkpoint_bytes == 0 || covered > JournalPosition(0);
        if !is_new && !has_journal && needs_journal {
            let why = "the files of the journal are gone".to_owned();
            return Err(DiskError::Damaged { path: journal_dir, why });
        }
        let mut replayed = 0;
        let mut replay = |_, position, bytes: &[u8]| {
            // Files are trimmed whole.
            if position <= covered {
                return Ok(());
            }
            replayed += bytes.len() as u64;
            let record = Record::decode(Bytes::copy_from_slice(bytes));
            let record = record.map_err(|error| ReplayError::new(error.to_string()))?;
            recovered.apply(record).map_err(ReplayError::new)
        };
        let (config, progress) = (options.journal.clone(), &options.progress);
        let journal = Journal::open_telling(env, &journal_dir, config, &mut replay, progress);
        let journal = journal.map_err(|error| DiskError::Journal { dir: dir.to_owned(), error })?;
        disk.sync_dir(dir).map_err(failed("synced", dir))?;
        let end = journal.durable().position();
        if end < covered {
            let why = format!("it ends at {end}, but the checkpoint beside it needs it from {covered} on");
            return Err(DiskError::Damaged { path: journal_dir, why });
        }
        if is_new && replayed > 0 {
            let why = "the file that says whose the journal is is gone".to_owned();
            return Err(DiskError::Damaged { path: dir.join("replica"), why });
        }
        if is_new {
            // Last: a directory with an id has a journal, which on a disk without room has no file yet.
            if let Some(failure) = journal.health().err().and_then(|_| journal.last_failure()) {
                return Err(DiskError::Journal { dir: dir.to_owned(), error: failure.into() });
            }
            identity::create(env, dir, id, region)?;
        }
        let (lineages, streams) = (recovered.lineages().clone(), recovered.into_streams());
        // What is not kept any more must not come back with a later start, when others have gone on.
        let stale = streams
            .keys()
            .any(|stream| options.durability.of(stream) == tailwater_broadcast::Durability::Memory);
        let on_its_way =
            |state: &StreamState| state.unsettled().map(|entry| u64::from(entry.batch.count)).sum::<u64>();
        let loaded = streams.values().map(|state| state.history.stats().live + on_its_way(state)).sum();
        let mut keeper = Keeper::new(env, (dir, region), journal, end, &options);
        keeper.begin_with(replayed, checkpoint_bytes, loaded, stale);
        Ok(Self { keeper, streams, lineages, id })
    }

    /// The replica's number: even, and the same after every start.
    pub fn id(&self) -> ReplicaId {
        self.id
    }
}

/// Reads the checkpoint if there is one; up to where it replaces the journal, and its bytes.
fn load_checkpoint(
    env: &Env,
    dir: &Path,
    recovered: &mut RecoveredStream,
) -> Result<(JournalPosition, u64), DiskError> {
    let (path, disk) = (dir.join("checkpoint"), env.disk());
    let unfinished = dir.join("checkpoint.new");
    match disk.remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("removed", &unfinished)(error));
        }
        _ => {}
    }
    let file = match disk.open(&path, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((JournalPosition(0), 0)),
        opened => opened.map_err(failed("opened", &path))?,
    };
    let damaged = |error: HistoryCheckpointError| match error {
        HistoryCheckpointError::Io(error) => failed("read", &path)(error),
        other => DiskError::Damaged { path: path.clone(), why: other.to_string() },
    };
    let bytes = file.len().map_err(failed("read", &path))?;
    let mut reader = checkpoint::Reader::open(file).map_err(damaged)?;
    while let Some(record) = reader.next_record().map_err(damaged)? {
        recovered.apply(record).map_err(|why| DiskError::Damaged { path: path.clone(), why })?;
    }
    Ok((reader.journal, bytes))
}
