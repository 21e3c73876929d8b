//! Small steps on files that several parts take.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tailwater_env::{Disk, File, HashMap, OpenMode};
use tailwater_format::{EntryError, EntryReader, Position, SegmentId, ShardId};

use crate::index::{Contents, RawHeader, SparseIndex};
use crate::layout::Layout;
use crate::limits::{READ_HANDLES_MAX, WRITE_BYTES_MAX};

/// A file that is empty and that nobody has seen fail: what had the name is removed, not written over.
pub fn create_fresh(disk: &dyn Disk, path: &Path) -> io::Result<Arc<dyn File>> {
    match disk.open(path, OpenMode::CreateNew) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            disk.remove_file(path)?;
            disk.open(path, OpenMode::CreateNew)
        }
        result => result,
    }
}

/// Writes a small file whole and syncs it; its name is the caller's to sync.
pub fn write_fresh(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = create_fresh(disk, path)?;
    file.write_all_at(bytes, 0)?;
    file.sync_data()
}

/// Removes a file that may be gone already.
pub fn remove_if_there(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Removes a shard's directory if nothing is in it, and its stream's if nothing is in that then; whether the shard's is
/// gone. A directory that stays costs an inode, so no error matters; and after a crash that brings one back, the next
/// start removes it.
pub fn remove_empty_dirs(disk: &dyn Disk, layout: &Layout, shard: &ShardId) -> bool {
    let remove = |dir: &Path| {
        let is_empty = disk.list(dir).is_ok_and(|names| names.is_empty());
        is_empty && disk.remove_dir_all(dir).is_ok()
    };
    let is_gone = remove(&layout.shard(shard));
    if is_gone {
        remove(&layout.stream(shard.stream));
    }
    is_gone
}

/// A whole file of at most `bytes_max`; `None` if there is none.
pub fn read_whole(disk: &dyn Disk, path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match disk.open(path, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        result => result?,
    };
    let length = file.len()?;
    if length > bytes_max {
        let why = format!("{length} bytes, and at most {bytes_max} are read");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut bytes = vec![0; length as usize];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

/// Copies the first `length` bytes of one file to another.
pub fn copy_prefix(from: &dyn File, to: &dyn File, length: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
    let mut at = 0;
    while at < length {
        buffer.resize(WRITE_BYTES_MAX.min(usize::try_from(length - at).unwrap_or(usize::MAX)), 0);
        if from.read_at(buffer, at)? < buffer.len() {
            let why = format!("the file ends before {length} bytes, which were synced");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        to.write_all_at(buffer, at)?;
        at += buffer.len() as u64;
    }
    Ok(())
}

/// What a segment's file holds.
#[derive(Debug)]
pub struct Scanned {
    /// Where the last whole entry ends that continues from the beginning.
    pub length: Position,
    /// First and last entry.
    pub contents: Option<Contents>,
    /// Its points.
    pub index: SparseIndex,
}

/// Reads the entries of `id` from the beginning of `file`, as far as they continue, are whole and end at or
/// before `limit`. Holds a few MiB at a time, or one entry.
pub fn scan(file: &dyn File, id: SegmentId, limit: Position, index_step: u32) -> io::Result<Scanned> {
    let mut reader = EntryReader::new(id);
    let mut index = SparseIndex::new(index_step);
    let mut contents: Option<Contents> = None;
    // The file's bytes from `reader.position() - begin` on.
    let mut buffer = Vec::new();
    let mut begin = 0;
    loop {
        let position = reader.position();
        match reader.read(&buffer[begin..]) {
            Ok(entry) => {
                index.note(position, &entry.header);
                let raw = RawHeader::of(&buffer[begin..]).expect("it was just parsed");
                match &mut contents {
                    Some(contents) => contents.last = raw,
                    None => contents = Some(Contents::first(&entry.header, raw)),
                }
                begin += entry.header.len as usize;
            }
            Err(EntryError::Incomplete { needed }) => {
                buffer.drain(..begin);
                begin = 0;
                let have = buffer.len();
                let want = needed.max(WRITE_BYTES_MAX).max(have) as u64;
                let want = want.min(limit.0.saturating_sub(position.0)) as usize;
                if want < needed {
                    break;
                }
                buffer.resize(want, 0);
                let read = file.read_at(&mut buffer[have..], position.0 + have as u64)?;
                buffer.truncate(have + read);
                if buffer.len() < needed {
                    break;
                }
            }
            Err(EntryError::Corrupt(_)) => break,
        }
    }
    Ok(Scanned { length: reader.position(), contents, index })
}

/// Open files, least recently used dropped first.
#[derive(Default)]
pub struct HandleCache {
    files: HashMap<SegmentId, (u64, Arc<dyn File>)>,
    uses: u64,
}

impl HandleCache {
    /// The file, if it is open.
    pub fn get(&mut self, id: &SegmentId) -> Option<Arc<dyn File>> {
        self.uses += 1;
        let (used, file) = self.files.get_mut(id)?;
        *used = self.uses;
        Some(file.clone())
    }

    /// Keeps an open file.
    pub fn put(&mut self, id: SegmentId, file: Arc<dyn File>) {
        if self.files.len() >= READ_HANDLES_MAX
            && let Some(oldest) = self.files.iter().min_by_key(|(_, (used, _))| *used).map(|(id, _)| *id)
        {
            self.files.remove(&oldest);
        }
        self.uses += 1;
        self.files.insert(id, (self.uses, file));
    }

    /// Forgets a file that was replaced or removed.
    pub fn forget(&mut self, id: &SegmentId) {
        self.files.remove(id);
    }
}
