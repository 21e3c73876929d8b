//! The journal's directory: what the names mean, and how a file changes from one to the next.
//!
//! ```text
//! lock                 held while the journal is open
//! N.journal            part of the journal; N is its sequence, 20 digits. Its header was synced first
//! N.spare              preallocated: file_bytes of written bytes, zeros or an earlier use's. N says nothing
//! N.zeroing, N.growing being made; removed when found by a start
//! ```
//!
//! Every change of names is followed by a sync of the directory before anything is built on it.
//!
//! Files are written whole before their use, and used again, because a sync that grows a file has the file system's own
//! journal to wait for. One run on the usual machine, with other work on it: 4 KiB and fdatasync to a growing file 392
//! us (p50), over written bytes 185 us; the acknowledgement of a 4 KiB record in a growing file 268 us, in a
//! preallocated one 192 us. `examples/sync_rate.rs` repeats it. The first file of a new directory grows: it is left for
//! a preallocated one as soon as there are two.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tailwater_env::{Disk, File, OpenMode};

use crate::core::{AppendSource, Plan};
use crate::error::{FullReason, JournalFailure};
use crate::limits::ZERO_SLICE_BYTES;
use crate::position::FileSequence;

pub(crate) const LOCK_NAME: &str = "lock";

/// A preallocated file that waits for its use.
pub(crate) struct Spare {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
}

/// What a name in the directory means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalName {
    Journal(FileSequence),
    Spare(u64),
    Unfinished,
    Other,
}

impl JournalName {
    pub(crate) fn parse(name: &str) -> Self {
        let Some((digits, kind)) = name.split_once('.') else { return Self::Other };
        if digits.len() != 20 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Self::Other;
        }
        let Ok(number) = digits.parse::<u64>() else { return Self::Other };
        match kind {
            "journal" if number > 0 => Self::Journal(FileSequence(number)),
            "spare" => Self::Spare(number),
            "zeroing" | "growing" => Self::Unfinished,
            _ => Self::Other,
        }
    }
}

/// The files of one journal.
pub(crate) struct Directory {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) path: PathBuf,
    pub(crate) file_bytes: u64,
}

impl Directory {
    pub(crate) fn journal_path(&self, sequence: FileSequence) -> PathBuf {
        self.path.join(format!("{:020}.journal", sequence.0))
    }

    fn named(&self, number: u64, kind: &str) -> PathBuf {
        self.path.join(format!("{number:020}.{kind}"))
    }

    /// Makes the directory, durably.
    pub(crate) fn create(&self) -> Result<(), JournalFailure> {
        let failed = |what, error: io::Error| JournalFailure::new(what, &self.path, &error);
        self.disk.create_dir_all(&self.path).map_err(|error| failed("creation", error))?;
        let parent = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        self.disk.sync_dir(parent).map_err(|error| failed("sync of the directory above", error))
    }

    pub(crate) fn sync_names(&self) -> Result<(), JournalFailure> {
        self.disk
            .sync_dir(&self.path)
            .map_err(|error| JournalFailure::new("directory sync", &self.path, &error))
    }

    /// Begins a file: its header durable first, its name after that. When this returns `Ok`, recovery will
    /// find it; after an error it may or may not, and finds no record in it if it does.
    pub(crate) fn begin(&self, plan: &Plan, spare: Option<Spare>) -> Result<Arc<dyn File>, JournalFailure> {
        assert_eq!(spare.is_some(), plan.source == AppendSource::Spare, "spares are counted");
        let target = self.journal_path(plan.header.sequence);
        let (path, file) = match spare {
            Some(spare) => (spare.path, spare.file),
            None => {
                let path = self.named(plan.header.sequence.0, "growing");
                (path.clone(), self.create_file(&path)?)
            }
        };
        let begun = (|| {
            let failed = |what, error: io::Error| JournalFailure::new(what, &target, &error);
            file.write_all_at(&plan.header.encode(), 0).map_err(|error| failed("header write", error))?;
            file.sync_data().map_err(|error| failed("header sync", error))?;
            self.disk.rename(&path, &target).map_err(|error| failed("rename", error))?;
            self.sync_names()
        })();
        if let Err(failure) = begun {
            // Whatever name it has by now: a file that is left over is only room lost.
            drop(file);
            let _ = self.disk.remove_file(&path);
            let _ = self.disk.remove_file(&target);
            return Err(failure);
        }
        Ok(file)
    }

    /// Creates a file under a name that only unfinished files have; one left over from before is removed.
    fn create_file(&self, path: &Path) -> Result<Arc<dyn File>, JournalFailure> {
        let created = match self.disk.open(path, OpenMode::CreateNew) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.disk.remove_file(path).and_then(|()| self.disk.open(path, OpenMode::CreateNew))
            }
            created => created,
        };
        created.map_err(|error| JournalFailure::new("creation", path, &error))
    }

    /// Makes a spare file of zeros, durably, in slices.
    pub(crate) fn zero(&self, number: u64) -> Result<Spare, FullReason> {
        let free_bytes = self
            .disk
            .free_bytes(&self.path)
            .map_err(|error| JournalFailure::new("look at the free space", &self.path, &error))?;
        if free_bytes < self.file_bytes {
            return Err(FullReason::NoSpace { free_bytes, file_bytes: self.file_bytes });
        }
        let path = self.named(number, "zeroing");
        let file = self.create_file(&path)?;
        let target = self.named(number, "spare");
        let made = (|| {
            let failed = |what, error: io::Error| JournalFailure::new(what, &path, &error);
            let zeros = vec![0; ZERO_SLICE_BYTES.min(self.file_bytes) as usize];
            let mut position = 0;
            while position < self.file_bytes {
                let bytes = ZERO_SLICE_BYTES.min(self.file_bytes - position);
                file.write_all_at(&zeros[..bytes as usize], position)
                    .map_err(|error| failed("preallocation", error))?;
                file.sync_data().map_err(|error| failed("sync of the preallocation", error))?;
                position += bytes;
            }
            self.disk.rename(&path, &target).map_err(|error| failed("rename", error))?;
            self.sync_names()
        })();
        if let Err(failure) = made {
            drop(file);
            let _ = self.disk.remove_file(&path);
            let _ = self.disk.remove_file(&target);
            return Err(failure.into());
        }
        Ok(Spare { path: target, file })
    }

    /// Takes a file out of the journal, durably; as a spare if wanted and if it is fit for one. May be called
    /// again after it failed.
    pub(crate) fn recycle(
        &self,
        sequence: FileSequence,
        spare: Option<u64>,
    ) -> Result<Option<Spare>, JournalFailure> {
        let path = self.journal_path(sequence);
        let failed = |what, error: io::Error| JournalFailure::new(what, &path, &error);
        let file = match self.disk.open(&path, OpenMode::ReadWrite) {
            // Removed by the attempt before, whose sync of the directory failed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.sync_names()?;
                return Ok(None);
            }
            opened => opened.map_err(|error| failed("opening", error))?,
        };
        let whole = file.len().map_err(|error| failed("length", error))? == self.file_bytes;
        let Some(number) = spare.filter(|_| whole) else {
            drop(file);
            self.disk.remove_file(&path).map_err(|error| failed("removal", error))?;
            self.sync_names()?;
            return Ok(None);
        };
        let target = self.named(number, "spare");
        self.disk.rename(&path, &target).map_err(|error| failed("rename", error))?;
        self.sync_names()?;
        Ok(Some(Spare { path: target, file }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_what_they_were_made_for() {
        assert_eq!(
            JournalName::parse("00000000000000000012.journal"),
            JournalName::Journal(FileSequence(12))
        );
        assert_eq!(JournalName::parse("00000000000000000012.spare"), JournalName::Spare(12));
        assert_eq!(JournalName::parse("00000000000000000012.zeroing"), JournalName::Unfinished);
        for other in
            ["lock", "12.journal", "00000000000000000000.journal", "99999999999999999999.spare", "a.b"]
        {
            assert_eq!(JournalName::parse(other), JournalName::Other, "{other}");
        }
    }
}
