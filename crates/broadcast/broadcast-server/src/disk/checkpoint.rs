//! The bytes of a checkpoint. All numbers are little-endian.
//!
//! | offset | size | field | |
//! |---|---|---|---|
//! | 0 | 4 | magic | `TWbc` |
//! | 4 | 2 | version | 2 |
//! | 6 | 2 | zero | |
//! | 8 | 8 | journal | records of the journal that end at or before this position are in the checkpoint |
//! | 16 | 8 | checksum | XXH3-64 of bytes 0..16 |
//! | 24 | | frames | until one of length 0, with which the file ends |
//!
//! | offset in frame | size | field | |
//! |---|---|---|---|
//! | 0 | 4 | len | of the record; at most [`RECORD_BYTES_MAX`] |
//! | 4 | 8 | checksum | XXH3-64 of the record, with the frame's offset in the file as its seed |
//! | 12 | len | record | [`tailwater_broadcast::record`] |
//!
//! A checkpoint gets its name when it is complete and synced, so one that does not read to its end is damaged.

use std::io;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tailwater_broadcast::limits::BATCH_BYTES_MAX;
use tailwater_broadcast::record::Record;
use tailwater_env::File;
use tailwater_journal::JournalPosition;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const MAGIC: [u8; 4] = *b"TWbc";
const VERSION: u16 = 2;
const HEADER_BYTES: usize = 24;
const FRAME_BYTES: usize = 12;

/// Bytes of one record: the largest batch, and something around it.
pub const RECORD_BYTES_MAX: usize = BATCH_BYTES_MAX + (64 << 10);
/// Bytes that are written, or read, at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Why a file is no checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum HistoryCheckpointError {
    /// The disk refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Bytes are not what was written.
    #[error("it is damaged at byte {at}: {why}")]
    Damaged {
        /// Where in the file.
        at: u64,
        /// What is wrong.
        why: String,
    },
    /// Written by another version of this program.
    #[error("version {0} is not known to this program (it knows {VERSION})")]
    Version(u16),
}

/// Writes one into a file that is empty.
pub struct Writer {
    file: Arc<dyn File>,
    /// Where `out` goes.
    position: u64,
    out: BytesMut,
}

impl Writer {
    /// Begins it.
    pub fn new(file: Arc<dyn File>, journal: JournalPosition) -> Self {
        let mut out = BytesMut::with_capacity(2 * CHUNK_BYTES);
        out.put_slice(&MAGIC);
        out.put_u16_le(VERSION);
        out.put_u16_le(0);
        out.put_u64_le(journal.0);
        let sum = xxh3_64(&out);
        out.put_u64_le(sum);
        Self { file, position: 0, out }
    }

    /// Adds a record.
    pub fn push(&mut self, record: &Record) -> io::Result<()> {
        self.frame(|out| record.encode(out))
    }

    /// Ends it, and makes it durable; its bytes.
    pub fn finish(mut self) -> io::Result<u64> {
        self.frame(|_| {})?;
        self.flush()?;
        self.file.sync_data()?;
        Ok(self.position)
    }

    fn frame(&mut self, encode: impl FnOnce(&mut BytesMut)) -> io::Result<()> {
        let start = self.out.len();
        let seed = self.position + start as u64;
        self.out.put_bytes(0, FRAME_BYTES);
        encode(&mut self.out);
        let len = self.out.len() - start - FRAME_BYTES;
        let sum = xxh3_64_with_seed(&self.out[start + FRAME_BYTES..], seed);
        self.out[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
        self.out[start + 4..start + FRAME_BYTES].copy_from_slice(&sum.to_le_bytes());
        if self.out.len() >= CHUNK_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.out, self.position)?;
        self.file.begin_sync(self.position, self.out.len() as u64);
        self.position += self.out.len() as u64;
        self.out.clear();
        Ok(())
    }
}

/// Reads one record after the other; takes the memory of a few of them.
pub struct Reader {
    file: Arc<dyn File>,
    /// Bytes that were read and not taken, and where they end in the file.
    ahead: BytesMut,
    end: u64,
    /// Its records replace the journal's up to here.
    pub journal: JournalPosition,
}

impl Reader {
    /// Reads the header.
    pub fn open(file: Arc<dyn File>) -> Result<Self, HistoryCheckpointError> {
        let mut reader = Self { file, ahead: BytesMut::new(), end: 0, journal: JournalPosition(0) };
        let header = reader.take(HEADER_BYTES)?;
        let sum = u64::from_le_bytes(std::array::from_fn(|at| header[16 + at]));
        if header[..4] != MAGIC || xxh3_64(&header[..16]) != sum {
            return Err(HistoryCheckpointError::Damaged {
                at: 0,
                why: "this is no checkpoint's header".to_owned(),
            });
        }
        let version = u16::from_le_bytes([header[4], header[5]]);
        if version != VERSION {
            return Err(HistoryCheckpointError::Version(version));
        }
        reader.journal = JournalPosition(u64::from_le_bytes(std::array::from_fn(|at| header[8 + at])));
        Ok(reader)
    }

    /// The next record; `None` at the end.
    pub fn next_record(&mut self) -> Result<Option<Record>, HistoryCheckpointError> {
        let at = self.end - self.ahead.len() as u64;
        let damaged = |why: String| HistoryCheckpointError::Damaged { at, why };
        let mut frame = self.take(FRAME_BYTES)?;
        let (len, sum) = (frame.get_u32_le() as usize, frame.get_u64_le());
        if len > RECORD_BYTES_MAX {
            return Err(damaged(format!("a record of {len} bytes, more than {RECORD_BYTES_MAX}")));
        }
        let bytes = self.take(len)?;
        if xxh3_64_with_seed(&bytes, at) != sum {
            return Err(damaged("the checksum does not fit".to_owned()));
        }
        if len > 0 {
            return Record::decode(bytes).map(Some).map_err(|error| damaged(error.to_string()));
        }
        if !self.ahead.is_empty() || self.end < self.file.len()? {
            return Err(damaged("it goes on behind its end".to_owned()));
        }
        Ok(None)
    }

    fn take(&mut self, len: usize) -> Result<Bytes, HistoryCheckpointError> {
        while self.ahead.len() < len {
            let had = self.ahead.len();
            self.ahead.resize(had + CHUNK_BYTES, 0);
            let count = self.file.read_at(&mut self.ahead[had..], self.end)?;
            self.ahead.truncate(had + count);
            self.end += count as u64;
            if count == 0 {
                return Err(HistoryCheckpointError::Damaged {
                    at: self.end,
                    why: "it is cut off".to_owned(),
                });
            }
        }
        Ok(self.ahead.split_to(len).freeze())
    }
}
