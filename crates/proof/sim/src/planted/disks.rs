//! A disk that breaks one promise.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
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
            Plant::TreeNotSynced => path.ends_with("queues/tree"),
            _ => false,
        };
        Ok(Arc::new(PlantedFile {
            file,
            plant: self.plant,
            skips_sync,
            last_write: AtomicU64::new(0),
            kept: Mutex::default(),
        }))
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
    /// What was written and is not in the file, and where.
    kept: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl PlantedFile {
    /// Writes what is kept to the file.
    fn write_kept(&self) -> io::Result<()> {
        for (position, bytes) in std::mem::take(&mut *self.kept.lock()) {
            self.file.write_all_at(&bytes, position)?;
        }
        Ok(())
    }
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
        let mut read = self.file.read_at(buffer, position)?;
        for (at, bytes) in &*self.kept.lock() {
            let from = position.max(*at);
            let to = (position + buffer.len() as u64).min(at + bytes.len() as u64);
            if from < to {
                let part = &bytes[(from - at) as usize..(to - at) as usize];
                buffer[(from - position) as usize..(to - position) as usize].copy_from_slice(part);
                read = read.max((to - position) as usize);
            }
        }
        Ok(read)
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        if self.plant == Plant::KeptUntilSynced {
            self.kept.lock().push((position, bytes.to_vec()));
            return Ok(());
        }
        self.last_write.store(position, Ordering::Relaxed);
        let result = self.file.write_all_at(bytes, position);
        match self.plant {
            Plant::FailedWriteIgnored => swallow(result),
            _ => result,
        }
    }

    fn len(&self) -> io::Result<u64> {
        let kept = self.kept.lock().iter().map(|(at, bytes)| at + bytes.len() as u64).max();
        Ok(self.file.len()?.max(kept.unwrap_or(0)))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.write_kept()?;
        self.file.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.write_kept()?;
        match self.plant {
            _ if self.skips_sync => Ok(()),
            Plant::AckBeforeSync if self.last_write.load(Ordering::Relaxed) >= FIRST_PAGE_BYTES => Ok(()),
            Plant::FailedSyncRetried => self.file.sync_data().or_else(|_| self.file.sync_data()),
            _ => self.file.sync_data(),
        }
    }
}
