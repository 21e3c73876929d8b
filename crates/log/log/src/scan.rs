//! Walking over the entries of a segment in the store.

use bytes::{Bytes, BytesMut};
use tailwater_format::{
    ENTRY_HEADER_BYTES, EntryError, EntryHeader, Position, SegmentId, parse_entry, parse_entry_header,
};
use tailwater_store::{StoreContract, StoreError};

use crate::error::ReadError;
use crate::limits::SCAN_BYTES;

/// Reads entries of one segment in order, up to a length that readers may see.
pub(crate) struct Scan<'a> {
    store: &'a dyn StoreContract,
    id: SegmentId,
    /// Where the next entry begins.
    position: Position,
    end: Position,
    /// Bytes of the segment from `at` on.
    bytes: Bytes,
    at: Position,
}

/// An entry's place, and what its header says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScannedSegment {
    pub(crate) position: Position,
    pub(crate) header: EntryHeader,
}

impl<'a> Scan<'a> {
    /// The entries from the one that begins at `position` to the one that ends at `end`.
    pub(crate) fn new(
        store: &'a dyn StoreContract,
        id: SegmentId,
        position: Position,
        end: Position,
    ) -> Self {
        Self { store, id, position, end, bytes: Bytes::new(), at: position }
    }

    /// The next entry's header; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<ScannedSegment>, ReadError> {
        if self.position >= self.end {
            return Ok(None);
        }
        let position = self.position;
        let bytes = self.load(ENTRY_HEADER_BYTES).await?;
        let header = parse_entry_header(&bytes).map_err(|error| self.corrupt(&error))?;
        if header.segment_id() != self.id {
            return Err(ReadError::Corrupt(format!("{} has an entry of {}", self.id, header.segment_id())));
        }
        self.position = Position(position.0 + u64::from(header.len));
        Ok(Some(ScannedSegment { position, header }))
    }

    /// The batches of an entry that [`Scan::next`] answered last, checked.
    pub(crate) async fn batches(&mut self, scanned: &ScannedSegment) -> Result<Bytes, ReadError> {
        Ok(self.entry(scanned).await?.slice(ENTRY_HEADER_BYTES..))
    }

    /// The same with its header.
    pub(crate) async fn entry(&mut self, scanned: &ScannedSegment) -> Result<Bytes, ReadError> {
        self.position = scanned.position;
        let bytes = self.load(scanned.header.len as usize).await?;
        self.position = Position(scanned.position.0 + u64::from(scanned.header.len));
        parse_entry(&bytes).map_err(|error| self.corrupt(&error))?;
        Ok(bytes.slice(..scanned.header.len as usize))
    }

    /// The memory that what [`Scan::batches`] answered last is a part of.
    pub(crate) fn block(&self) -> &Bytes {
        &self.bytes
    }

    /// At least `needed` bytes from `position` on.
    async fn load(&mut self, needed: usize) -> Result<Bytes, ReadError> {
        let skip = self.position.0.checked_sub(self.at.0).and_then(|skip| usize::try_from(skip).ok());
        if let Some(skip) = skip.filter(|skip| skip.saturating_add(needed) <= self.bytes.len()) {
            return Ok(self.bytes.slice(skip..));
        }
        let left = self.end.0 - self.position.0;
        if left < needed as u64 {
            return Err(ReadError::Corrupt(format!("{} ends within an entry, at {}", self.id, self.end)));
        }
        let mut whole = BytesMut::new();
        while whole.len() < needed {
            let from = Position(self.position.0 + whole.len() as u64);
            let wanted = (needed - whole.len()).max(SCAN_BYTES).min((self.end.0 - from.0) as usize);
            let piece = self.store.read(&self.id, from, wanted).await.map_err(read_error)?;
            if piece.is_empty() {
                return Err(ReadError::Unavailable(format!("{} is not durable up to {}", self.id, self.end)));
            }
            if whole.is_empty() && piece.len() >= needed {
                (self.bytes, self.at) = (piece, self.position);
                return Ok(self.bytes.clone());
            }
            whole.extend_from_slice(&piece);
        }
        (self.bytes, self.at) = (whole.freeze(), self.position);
        Ok(self.bytes.clone())
    }

    fn corrupt(&self, error: &EntryError) -> ReadError {
        ReadError::Corrupt(format!("{} at {}: {error}", self.id, self.position))
    }
}

/// What a store's error means to a reader.
pub(crate) fn read_error(error: StoreError) -> ReadError {
    match error {
        StoreError::Unknown(_) => ReadError::NoSegment,
        error => ReadError::Unavailable(error.to_string()),
    }
}
