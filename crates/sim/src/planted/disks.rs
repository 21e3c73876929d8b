//! A disk that breaks one promise.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tailwater_env::{Disk, File, LockGuard, OpenMode};

use super::Plant;

/// Where headers are; a sync after one was written is done even where acknowledgements come too early.
const FIRST_PAGE_BYTES: u64 = 4096;

pub(super) struct PlantedDisk {
    disk: Arc<dyn Disk>,
    plant: Plant,
}

impl PlantedDisk {
    pub(super) fn new(disk: Arc<dyn Disk>, plant: Plant) -> Self {
        Self { disk, plant }
    }
}

impl Disk for PlantedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = self.disk.open(path, mode)?;
        let skips_sync = match self.plant {
            Plant::TrimBeforeFill => path.to_string_lossy().contains("segments"),
            Plant::RenameBeforeSync => is_unfinished(path),
            _ => false,
        };
        Ok(Arc::new(PlantedFile { file, plant: self.plant, skips_sync, last_write: AtomicU64::new(0) }))
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir_all(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_file(path)
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.disk.remove_dir_all(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        match self.plant {
            Plant::NamesNotSynced => Ok(()),
            Plant::DataDirNameNotSynced if dir == Path::new("/data") => Ok(()),
            _ => self.disk.sync_dir(dir),
        }
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.disk.free_bytes(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<LockGuard> {
        self.disk.lock(path)
    }
}

struct PlantedFile {
    file: Arc<dyn File>,
    plant: Plant,
    /// Syncing it does nothing.
    skips_sync: bool,
    /// Where the last write began.
    last_write: AtomicU64,
}

/// Swallows an error, but not that of a process that is dead: that one could not have gone on.
fn swallow(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Err(error),
        _ => Ok(()),
    }
}

/// Whether a file is one that gets its final name by a rename.
fn is_unfinished(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "new" || extension == "unfinished")
}

impl File for PlantedFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.file.read_at(buffer, position)
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.last_write.store(position, Ordering::Relaxed);
        let result = self.file.write_all_at(bytes, position);
        match self.plant {
            Plant::FailedWriteIgnored => swallow(result),
            _ => result,
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        match self.plant {
            _ if self.skips_sync => Ok(()),
            Plant::AckBeforeSync if self.last_write.load(Ordering::Relaxed) >= FIRST_PAGE_BYTES => Ok(()),
            Plant::FailedSyncRetried => self.file.sync_data().or_else(|_| self.file.sync_data()),
            _ => self.file.sync_data(),
        }
    }
}
