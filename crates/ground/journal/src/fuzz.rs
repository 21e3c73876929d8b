//! What a fuzzer runs: a file of the journal, read back after a start.

use std::io;
use std::path::PathBuf;

use tailwater_env::{File, Progress};

use crate::frame::{FrameHeader, Salt, push_frame};
use crate::header::{FILE_HEADER_BYTES, FileHeader};
use crate::limits::{FRAME_BYTES, HEADER_BYTES};
use crate::position::{FileSequence, Incarnation, JournalPosition, Tag};
use crate::recover::recover_file;

/// A file in memory that is read only.
struct Bytes(Vec<u8>);

impl File for Bytes {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let from = usize::try_from(position).unwrap_or(usize::MAX).min(self.0.len());
        let count = buffer.len().min(self.0.len() - from);
        buffer[..count].copy_from_slice(&self.0[from..from + count]);
        Ok(count)
    }

    fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A file of the journal. The first byte says which frames get the checksum that fits them, of eight; behind it is what
/// of the first page says something, and behind that the frames. What is replayed is what frames say, in their order.
pub fn files(data: &[u8]) {
    let Some((mended, data)) = data.split_first() else { return };
    let Some((header, frames)) = data.split_first_chunk::<FILE_HEADER_BYTES>() else { return };
    let mut page = header.to_vec();
    let checksum = crc_fast::crc32_iscsi(&page[..FILE_HEADER_BYTES - 4]);
    page[FILE_HEADER_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
    let header = match FileHeader::decode(&page) {
        Ok(header) => header,
        Err(why) => return assert!(!why.to_string().is_empty()),
    };
    let mut file = vec![0; HEADER_BYTES as usize];
    file.extend_from_slice(frames);
    mend(&mut file[HEADER_BYTES as usize..], &header, *mended);
    let file = Bytes(file);
    for cut in [None, header.base.0.checked_add(frames.len() as u64).map(JournalPosition)] {
        let mut end = header.base.0;
        let mut replay = |_, position: JournalPosition, record: &[u8]| {
            assert_eq!(position.0 - end, (FRAME_BYTES + record.len()) as u64, "one behind the other");
            end = position.0;
            Ok(())
        };
        let path = PathBuf::from("00000000000000000001.journal");
        let read = recover_file(&header, &file, path, cut, &mut replay, &Progress::default());
        match read {
            Ok(live) => assert_eq!((live.base, live.end.0), (header.base, end)),
            Err(why) => assert!(!why.to_string().is_empty()),
        }
    }
}

/// Gives frames the checksums that fit, as long as their lengths do.
fn mend(mut frames: &mut [u8], header: &FileHeader, mended: u8) {
    let salt = Salt::new(&header.journal, header.sequence);
    for at in 0.. {
        let Some(bytes) = frames.first_chunk::<FRAME_BYTES>() else { return };
        let FrameHeader { length, position, tag, .. } = FrameHeader::read(bytes);
        let end = FRAME_BYTES.saturating_add(length as usize);
        let Some((frame, rest)) = std::mem::take(&mut frames).split_at_mut_checked(end) else { return };
        if mended & 1 << (at % 8) != 0 {
            let mut again = Vec::new();
            let durable = FrameHeader::read(frame.first_chunk().expect("a frame")).durable();
            push_frame(&mut again, tag, position, durable, &[&frame[FRAME_BYTES..]], salt);
            frame.copy_from_slice(&again);
        }
        frames = rest;
    }
}

/// Bytes for [`files`].
pub fn seeds() -> Vec<Vec<u8>> {
    let header = FileHeader {
        journal: [7; 16],
        sequence: FileSequence(2),
        incarnation: Incarnation(1),
        base: JournalPosition(1000),
        predecessor: FileSequence(1),
        predecessor_end: JournalPosition(900),
    };
    let salt = Salt::new(&header.journal, header.sequence);
    let mut frames = Vec::new();
    for (tag, record) in [(1, &b"hello"[..]), (2, b""), (7, &[3; 40])] {
        let position = header.base.plus(frames.len() as u64);
        push_frame(&mut frames, Tag(tag), position, header.base, &[record], salt);
    }
    let page = &header.encode()[..FILE_HEADER_BYTES];
    let with = |mended: u8, more: &[u8]| [&[mended][..], page, &frames, more].concat();
    // Whole; with zeros behind; the second frame broken.
    let mut broken = with(0, &[0; 100]);
    broken[1 + FILE_HEADER_BYTES + FRAME_BYTES + 6] ^= 1;
    vec![with(255, &[]), with(255, &[0; 200]), broken]
}
