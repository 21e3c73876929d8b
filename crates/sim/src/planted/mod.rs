//! Bugs on purpose, put in front of the real code at its seams: a checker that does not catch them checks nothing.
//!
//! The real code is compiled once and knows nothing of this. A planted bug is a wrapper around something that the
//! code is given (a disk, a connection) or gives (a chunk, a length), which breaks one promise.

mod disks;

use std::sync::Arc;

use tailwater_env::Disk;

/// Which bug is planted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plant {
    /// None: the code as it is.
    #[default]
    None,
    /// Acknowledges before the sync: once something was written behind a file's first page, `sync_data` answers
    /// without doing anything.
    AckBeforeSync,
    /// Forgets to sync directories: `sync_dir` answers without doing anything.
    NamesNotSynced,
    /// Tries a failed sync again on the same file, and believes the second answer.
    FailedSyncRetried,
    /// Goes on after a failed write: the error is swallowed.
    FailedWriteIgnored,
}

impl Plant {
    /// `disk`, with the bug in front of it if it is one of the disk.
    pub fn disk(self, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        match self {
            Plant::AckBeforeSync
            | Plant::NamesNotSynced
            | Plant::FailedSyncRetried
            | Plant::FailedWriteIgnored => Arc::new(disks::PlantedDisk::new(disk, self)),
            _ => disk,
        }
    }
}
