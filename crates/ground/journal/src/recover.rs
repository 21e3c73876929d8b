//! Reading the journal back.
//!
//! The file with the highest sequence is the last one; each file's header names its predecessor and where
//! that one's records end. Files that this chain leaves out hold no acknowledged record. What is met, and
//! what it means:
//!
//! | where | what | meaning |
//! |---|---|---|
//! | any file | header does not verify | damage: it was synced before the file got its name |
//! | chain | a predecessor is not there, nothing older is | it was trimmed |
//! | chain | a predecessor is not there, something older is | a file was taken away |
//! | not the last file | a frame before the recorded end does not verify | damage to acknowledged records |
//! | not the last file | frames behind the recorded end | cut after a failure: ignored |
//! | last file | a frame does not verify, nothing behind it knew it durable | the end |
//! | last file | a frame does not verify, one behind it knew it durable | damage to acknowledged records |
//!
//! The last file is made durable before its records are handed out: they may be in the page cache only, and
//! whoever is handed a record takes it for durable. A sync alone does not do: if one failed before the process
//! was killed, the system may hold the bytes for written although the disk does not have them. So the file is
//! written over with what was read from it, which it then has to sync.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tailwater_env::{Env, File, OpenMode, Progress};

use crate::core::{LiveFile, RecoveredJournal, no_tag_ends};
use crate::error::{JournalFailure, JournalOpenError, ReplayError};
use crate::files::{Directory, JournalName, Spare};
use crate::frame::{FrameHeader, Salt};
use crate::header::{FILE_HEADER_BYTES, FileHeader};
use crate::limits::{FRAME_BYTES, HEADER_BYTES, READ_BYTES, RECORD_BYTES_MAX, SPARES_KEPT_MAX};
use crate::position::{FileSequence, Incarnation, JournalPosition, Tag};

/// Takes the records, in order.
pub(crate) type Replay<'a> = dyn FnMut(Tag, JournalPosition, &[u8]) -> Result<(), ReplayError> + 'a;

/// What is told of, as far as it is replayed.
const TOLD: &str = "bytes of the journal";

/// What the directory holds.
struct JournalFound {
    journals: BTreeMap<FileSequence, (FileHeader, Arc<dyn File>)>,
    spares: Vec<Spare>,
    /// Highest number of a spare's name.
    spare_number_max: u64,
}

/// Reads everything and hands the records to `replay`; what the core continues from, the spare files, and the
/// highest number that a spare's name has.
pub(crate) fn recover(
    env: &Env,
    directory: &Directory,
    replay: &mut Replay<'_>,
    progress: &Progress,
) -> Result<(RecoveredJournal, Vec<Spare>, u64), JournalOpenError> {
    progress.begin(TOLD, 0);
    let found = recover_names(directory)?;
    let mut files = VecDeque::new();
    let mut incarnation = Incarnation(0);
    let mut journal = [0; 16];
    journal[..8].copy_from_slice(&env.random_u64().to_le_bytes());
    journal[8..].copy_from_slice(&env.random_u64().to_le_bytes());
    let mut dead: Vec<FileSequence> = found.journals.keys().copied().collect();
    let sequence_max = found.journals.keys().next_back().copied().unwrap_or_default();

    if let Some((last, file)) = found.journals.get(&sequence_max) {
        journal = last.journal;
        incarnation = last.incarnation;
        make_durable(&**file)
            .map_err(|error| JournalFailure::new("sync", &directory.journal_path(sequence_max), &error))?;
        let chain = recover_chain(directory, &found, sequence_max)?;
        dead.retain(|sequence| chain.iter().all(|header| header.sequence != *sequence));
        let cut_of = |at: usize| chain.get(at + 1).map(|successor| successor.predecessor_end);
        let length = file
            .len()
            .map_err(|error| JournalFailure::new("length", &directory.journal_path(sequence_max), &error))?;
        let bytes = chain.iter().enumerate().map(|(at, header)| bytes_of(header, cut_of(at), length));
        progress.begin(TOLD, bytes.sum());
        for (at, header) in chain.iter().enumerate() {
            let (_, file) = &found.journals[&header.sequence];
            let path = directory.journal_path(header.sequence);
            files.push_back(recover_file(header, file.as_ref(), path, cut_of(at), replay, progress)?);
        }
    }
    let spares = found.spares.len() as u32;
    let recovered = RecoveredJournal { journal, incarnation, files, sequence_max, dead, spares };
    Ok((recovered, found.spares, found.spare_number_max))
}

/// Bytes of a file that are to be read: up to `cut`, or all of the last one, which has `length`.
fn bytes_of(header: &FileHeader, cut: Option<JournalPosition>, length: u64) -> u64 {
    cut.map_or(length.saturating_sub(HEADER_BYTES), |cut| cut.bytes_since(header.base))
}

/// Writes a file over with its own bytes and syncs it. Where even that needs room and there is none, a sync has
/// to do.
fn make_durable(file: &dyn File) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    let mut position = 0;
    loop {
        let count = file.read_at(&mut buffer, position)?;
        if count == 0 {
            return file.sync_data();
        }
        match file.write_all_at(&buffer[..count], position) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return file.sync_data(),
            written => written?,
        }
        position += count as u64;
    }
}

/// Sorts out the names, reads the headers, and removes what was never finished.
fn recover_names(directory: &Directory) -> Result<JournalFound, JournalOpenError> {
    let disk = &directory.disk;
    let names = disk
        .list(&directory.path)
        .map_err(|error| JournalFailure::new("listing", &directory.path, &error))?;
    let mut found = JournalFound { journals: BTreeMap::new(), spares: Vec::new(), spare_number_max: 0 };
    for name in names {
        let path = directory.path.join(&name);
        let failed = |what, error: io::Error| JournalFailure::new(what, &path, &error);
        let remove = || disk.remove_file(&path).map_err(|error| failed("removal", error));
        match JournalName::parse(&name) {
            JournalName::Other => {}
            JournalName::Unfinished => remove()?,
            JournalName::Spare(number) => {
                found.spare_number_max = found.spare_number_max.max(number);
                let file = disk.open(&path, OpenMode::ReadWrite).map_err(|error| failed("opening", error))?;
                let length = file.len().map_err(|error| failed("length", error))?;
                if length == directory.file_bytes && found.spares.len() < SPARES_KEPT_MAX as usize {
                    found.spares.push(Spare { path: path.clone(), file });
                } else {
                    remove()?;
                }
            }
            JournalName::Journal(sequence) => {
                let file = disk.open(&path, OpenMode::ReadWrite).map_err(|error| failed("opening", error))?;
                let mut page = [0; FILE_HEADER_BYTES];
                let count = file.read_at(&mut page, 0).map_err(|error| failed("reading", error))?;
                let unreadable = |reason: String| JournalOpenError::Header { path: path.clone(), reason };
                let header =
                    FileHeader::decode(&page[..count]).map_err(|error| unreadable(error.to_string()))?;
                if header.sequence != sequence {
                    let reason = format!("its header says that it is file {}", header.sequence);
                    return Err(unreadable(reason));
                }
                found.journals.insert(sequence, (header, file));
            }
        }
    }
    Ok(found)
}

/// The headers of the files that belong to the journal, oldest first.
fn recover_chain(
    directory: &Directory,
    found: &JournalFound,
    last: FileSequence,
) -> Result<Vec<FileHeader>, JournalOpenError> {
    let mut chain = vec![found.journals[&last].0];
    loop {
        let newer = *chain.last().expect("it begins with one");
        let Some((header, _)) = found.journals.get(&newer.predecessor) else {
            if found.journals.range(..newer.predecessor).next().is_some() {
                let (dir, sequence) = (directory.path.clone(), newer.predecessor);
                return Err(JournalOpenError::Missing { dir, sequence });
            }
            chain.reverse();
            return Ok(chain);
        };
        let path = || directory.journal_path(newer.sequence);
        if header.journal != newer.journal {
            let reason = "it belongs to another journal than the file before it".to_owned();
            return Err(JournalOpenError::Header { path: path(), reason });
        }
        if header.base > newer.predecessor_end || header.incarnation > newer.incarnation {
            let reason = "its header does not continue the file before it".to_owned();
            return Err(JournalOpenError::Header { path: path(), reason });
        }
        chain.push(*header);
    }
}

/// Hands out the records of one file, up to `cut`, or up to its end if it is the last one.
pub(crate) fn recover_file(
    header: &FileHeader,
    file: &dyn File,
    path: PathBuf,
    cut: Option<JournalPosition>,
    replay: &mut Replay<'_>,
    progress: &Progress,
) -> Result<LiveFile, JournalOpenError> {
    let salt = Salt::new(&header.journal, header.sequence);
    let length = file.len().map_err(|error| JournalFailure::new("length", &path, &error))?;
    let mut window = Window { file, length, start: HEADER_BYTES, bytes: Vec::new() };
    let mut tag_ends = no_tag_ends();
    let (mut end, mut told) = (header.base, header.base);
    while cut != Some(end) {
        let offset = HEADER_BYTES + end.bytes_since(header.base);
        let frame = window
            .frame(offset, end, salt)
            .map_err(|error| JournalOpenError::Disk(JournalFailure::new("reading", &path, &error)))?;
        let corrupt =
            |reason| JournalOpenError::Corrupt { path: path.clone(), offset, position: end, reason };
        let Some((frame, record)) = frame else {
            if cut.is_some() {
                return Err(corrupt("a record does not match its checksum"));
            }
            let known_durable = known_durable_after(header, &mut window, offset, salt)
                .map_err(|error| JournalFailure::new("reading", &path, &error))?;
            if known_durable > end {
                return Err(corrupt("a record does not match its checksum, and later ones knew it durable"));
            }
            break;
        };
        let frame_end = end.plus((FRAME_BYTES + record.len()) as u64);
        if cut.is_some_and(|cut| frame_end > cut) {
            return Err(corrupt("a record reaches over the end that the next file recorded"));
        }
        replay(frame.tag, frame_end, record).map_err(|reason| JournalOpenError::Replay {
            tag: frame.tag,
            position: frame_end,
            reason,
        })?;
        tag_ends[usize::from(frame.tag.0)] = frame_end;
        end = frame_end;
        if end.bytes_since(told) >= READ_BYTES as u64 {
            progress.advance(end.bytes_since(told));
            told = end;
        }
    }
    // In the last file nothing is behind its end.
    let bytes = bytes_of(header, cut, length);
    progress.advance(bytes.saturating_sub(told.bytes_since(header.base)));
    Ok(LiveFile {
        sequence: header.sequence,
        base: header.base,
        end,
        predecessor: header.predecessor,
        predecessor_end: header.predecessor_end,
        tag_ends,
        grows: false,
    })
}

/// The highest position that any whole frame behind a broken one calls durable. Every byte is tried: a frame
/// says its own position, so this is a comparison of eight bytes nearly everywhere.
fn known_durable_after(
    header: &FileHeader,
    window: &mut Window<'_>,
    broken: u64,
    salt: Salt,
) -> io::Result<JournalPosition> {
    let mut known = JournalPosition(0);
    let mut offset = broken + 1;
    while offset + FRAME_BYTES as u64 <= window.length {
        let bytes = window.at(offset, FRAME_BYTES)?.expect("within the file");
        // Runs of zeros, most of a preallocated file, are skipped a word at a time.
        let skip = bytes.chunks_exact(8).take_while(|word| *word == [0; 8]).count() as u64 * 8;
        if skip > 8 {
            offset += skip - 8;
            continue;
        }
        let position = header.base.plus(offset - HEADER_BYTES);
        if bytes[8..16] == position.0.to_le_bytes()
            && let Some((frame, record)) = window.frame(offset, position, salt)?
        {
            known = known.max(frame.durable());
            offset += (FRAME_BYTES + record.len()) as u64;
        } else {
            offset += 1;
        }
    }
    Ok(known)
}

/// A file, read through a buffer.
struct Window<'a> {
    file: &'a dyn File,
    length: u64,
    /// Where `bytes` begin in the file.
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// `count` bytes from `offset`; `None` if the file ends before them.
    fn at(&mut self, offset: u64, count: usize) -> io::Result<Option<&[u8]>> {
        if offset.saturating_add(count as u64) > self.length {
            return Ok(None);
        }
        let held = self.start..self.start + self.bytes.len() as u64;
        if offset < held.start || offset + count as u64 > held.end {
            let wanted = (count.max(READ_BYTES) as u64).min(self.length - offset);
            self.bytes.resize(wanted as usize, 0);
            self.start = offset;
            let read = self.file.read_at(&mut self.bytes, offset)?;
            self.bytes.truncate(read);
            if read < count {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let from = (offset - self.start) as usize;
        Ok(Some(&self.bytes[from..from + count]))
    }

    /// The frame at `offset`, if a whole one that belongs there is there.
    fn frame(
        &mut self,
        offset: u64,
        position: JournalPosition,
        salt: Salt,
    ) -> io::Result<Option<(FrameHeader, &[u8])>> {
        let Some(bytes) = self.at(offset, FRAME_BYTES)? else { return Ok(None) };
        let header = FrameHeader::read(bytes.try_into().expect("as many as asked for"));
        // The position before the length: what is not a frame must not make us read far.
        if header.position != position || header.length as usize > RECORD_BYTES_MAX {
            return Ok(None);
        }
        let Some(frame) = self.at(offset, FRAME_BYTES + header.length as usize)? else { return Ok(None) };
        Ok(header.verifies(frame, salt).then(|| (header, &frame[FRAME_BYTES..])))
    }
}
