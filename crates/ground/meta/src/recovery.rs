//! From a snapshot and the journal's records to the keys.
//!
//! ```text
//! let mut recovery = Recovery::begin(&env, dir)?;
//! let journal = Journal::open(&env, journal_dir, config, &mut |tag, position, bytes| match tag {
//!     meta::TAG => recovery.replay(position, bytes),
//!     ..
//! })?;
//! let meta = recovery.finish(&env, journal, MetaConfig::default());
//! ```
//!
//! A record that the snapshot has already is passed over; the first one after it has to follow it, and each one
//! the one before. So a snapshot that is gone, or older than the journal's trim, is an error and not a loss.

use std::path::{Path, PathBuf};

use tailwater_env::Env;
use tailwater_journal::{Journal, JournalPosition, ReplayError};

use crate::contract::Versioned;
use crate::embedded::{EmbeddedMeta, MetaConfig};
use crate::record::CommitRecord;
use crate::snapshot::{Snapshot, read, stored};
use crate::state::MetaState;

/// Why metadata can't be recovered.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The disk refused.
    #[error("{what} of {path}: {error}")]
    Disk {
        /// The operation.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// In the operating system's words.
        error: std::io::Error,
    },
    /// The snapshot is damaged, or of a format that this version can't read.
    #[error("the snapshot {path} can't be read: {reason}. Restore it from a copy of the data directory")]
    Snapshot {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Metadata that is being recovered.
#[derive(Debug)]
pub struct Recovery {
    dir: PathBuf,
    /// The stored one with what was replayed on top.
    snapshot: Snapshot,
    /// Revision of the stored one; 0 if there is none.
    stored: u64,
    replayed_bytes: usize,
}

impl Recovery {
    /// Reads the newest snapshot in `dir`, making the directory if it is not there. Blocks on the disk.
    pub fn begin(env: &Env, dir: &Path) -> Result<Self, RecoveryError> {
        let disk = env.disk().as_ref();
        let failed = |what, path: &Path, error| RecoveryError::Disk { what, path: path.to_owned(), error };
        disk.create_dir_all(dir).map_err(|error| failed("creation", dir, error))?;
        let parent = match dir.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        disk.sync_dir(parent).map_err(|error| failed("sync", parent, error))?;
        // A snapshot whose name a failed sync left in memory only would be gone after the next crash, and with it
        // what the journal was trimmed for.
        disk.sync_dir(dir).map_err(|error| failed("sync", dir, error))?;
        let newest = stored(disk, dir).map_err(|error| failed("listing", dir, error))?.pop();
        let mut snapshot = Snapshot::default();
        if let Some((revision, path)) = newest {
            let bytes = read(disk, &path).map_err(|error| failed("reading", &path, error))?;
            let unreadable = |reason: String| RecoveryError::Snapshot { path: path.clone(), reason };
            snapshot = Snapshot::decode(&bytes).map_err(|error| unreadable(error.to_string()))?;
            if snapshot.revision != revision {
                return Err(unreadable(format!("it is of revision {}", snapshot.revision)));
            }
        }
        Ok(Self { dir: dir.to_owned(), stored: snapshot.revision, snapshot, replayed_bytes: 0 })
    }

    /// Takes a record of [`crate::TAG`] from the journal's replay.
    pub fn replay(&mut self, _position: JournalPosition, bytes: &[u8]) -> Result<(), ReplayError> {
        let commit = CommitRecord::decode(bytes)
            .map_err(|error| ReplayError::new(format!("a commit of metadata can't be read: {error}")))?;
        if commit.revision <= self.snapshot.revision {
            return Ok(());
        }
        if commit.previous != self.snapshot.revision {
            return Err(ReplayError::new(format!(
                "commit {} of metadata follows commit {}, but the last one known is {}: the snapshot in {} was \
                 taken away or is from another time",
                commit.revision,
                commit.previous,
                self.snapshot.revision,
                self.dir.display(),
            )));
        }
        let version = commit.revision;
        for change in commit.changes {
            match change.value {
                Some(value) => drop(self.snapshot.keys.insert(change.key, Versioned { value, version })),
                None => drop(self.snapshot.keys.remove(&change.key)),
            }
        }
        self.snapshot.revision = version;
        self.replayed_bytes += bytes.len();
        Ok(())
    }

    /// Everything was replayed: metadata goes on in `journal`.
    pub fn finish(self, env: &Env, journal: Journal, config: MetaConfig) -> EmbeddedMeta {
        let state = MetaState::new(self.snapshot.keys, self.snapshot.revision, self.replayed_bytes);
        EmbeddedMeta::start(env, journal, self.dir, config, state, self.stored)
    }
}
