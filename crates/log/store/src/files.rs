//! Small steps on files that several parts take.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tailwater_env::{Disk, File, HashMap, OpenMode};
use tailwater_format::{EntryError, EntryReader, Position, SegmentId, ShardId};

use crate::index::{IndexContents, RawHeader, SparseIndex};
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
    pub contents: Option<IndexContents>,
    /// Its points.
    pub index: SparseIndex,
}

/// Reads the entries of `id` from the beginning of `file`, as far as they continue, are whole and end at or
/// before `limit`. Holds a few MiB at a time, or one entry.
pub fn scan(file: &dyn File, id: SegmentId, limit: Position, index_step: u32) -> io::Result<Scanned> {
    let mut reader = EntryReader::new(id);
    let mut index = SparseIndex::new(index_step);
    let mut contents: Option<IndexContents> = None;
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
                    None => contents = Some(IndexContents::first(&entry.header, raw)),
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
///
/// A file that is opened while its name is given to another one, or taken away, must not be kept: what is read of a
/// replacement would come from the file whose sync failed, and a file that was removed would keep its room on the disk.
/// So whoever opens one looks first how often that has happened ([`HandleCache::forgotten`]), and whoever changes a
/// name tells it behind the change.
#[derive(Default)]
pub struct HandleCache {
    files: HashMap<SegmentId, (u64, Arc<dyn File>)>,
    uses: u64,
    forgotten: u64,
}

impl HandleCache {
    /// The file, if it is open.
    pub fn get(&mut self, id: &SegmentId) -> Option<Arc<dyn File>> {
        self.uses += 1;
        let (used, file) = self.files.get_mut(id)?;
        *used = self.uses;
        Some(file.clone())
    }

    /// How many files were replaced or removed so far.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Keeps a file that was opened when so many were forgotten, unless another one was since.
    pub fn put(&mut self, id: SegmentId, file: Arc<dyn File>, forgotten: u64) {
        if forgotten != self.forgotten {
            return;
        }
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
        self.forgotten += 1;
        self.files.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use tailwater_env::Env;
    use tailwater_format::{SegmentNumber, ShardNumber, StreamId, Term};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_file_that_was_opened_before_its_name_went_to_another_one_is_not_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
        let _entered = runtime.enter();
        let disk = Env::real().disk().clone();
        let (path, new) = (dir.path().join("a"), dir.path().join("a.new"));
        let shard = ShardId { stream: StreamId(Uuid::from_u128(1)), shard: ShardNumber(0) };
        let id = SegmentId { shard, number: SegmentNumber(0), term: Term(1) };
        let mut handles = HandleCache::default();
        write_fresh(&*disk, &path, b"whose sync failed").expect("written");
        write_fresh(&*disk, &new, b"what replaced it").expect("written");

        let forgotten = handles.forgotten();
        let opened = disk.open(&path, OpenMode::Read).expect("there");
        disk.rename(&new, &path).expect("renamed");
        handles.forget(&id);
        handles.put(id, opened, forgotten);
        assert!(handles.get(&id).is_none());

        let forgotten = handles.forgotten();
        handles.put(id, disk.open(&path, OpenMode::Read).expect("there"), forgotten);
        let mut bytes = [0; 16];
        let file = handles.get(&id).expect("kept");
        assert_eq!(file.read_at(&mut bytes, 0).expect("readable"), 16);
        assert_eq!(&bytes, b"what replaced it");
    }
}
