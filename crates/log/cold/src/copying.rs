//! A segment is copied: checked, put part by part, and each part read back and compared.
//!
//! 1. All of the segment is read and checked, entry by entry; its index comes of it, and the copy's name of that.
//! 2. Each part is read again, checked against the index, put and compared. A part that is there already is compared
//!    only: so what an interrupted copy brought there is not brought again.
//! 3. The index is put and compared, last of all.
//!
//! Nothing is said of the copy before its end, so a crash at any point leaves objects that the next attempt goes on
//! with, or a sweep removes.

use bytes::{Bytes, BytesMut};
use std::sync::atomic::Ordering::Relaxed;
use tailwater_env::Env;
use tailwater_format::{EntryError, EntryHeader, Position, SegmentId, parse_entry};
use tailwater_store::{StoreContract, StoreError};
use uuid::Uuid;

use crate::index::{ColdIndex, ColdIndexBuilder};
use crate::limits::{BLOCK_BYTES, COPY_TIMEOUT};
use crate::names::{ColdCopy, copy_folder, index_name, part_name};
use crate::objects::{ColdError, ColdObjects};
use crate::pace::CopyPace;
use crate::stats::ColdCounters;

/// Why a segment was not copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentCopyError {
    /// The store has no such segment any more.
    #[error("the segment is gone")]
    Gone,
    /// The store's bytes are not what was written: no copy is made of them.
    #[error("the segment is damaged: {0}")]
    Damaged(String),
    /// The store does not answer as it should: try again later.
    #[error("the store: {0}")]
    Store(StoreError),
    /// Cold storage does not: try again later.
    #[error("cold storage: {0}")]
    Cold(#[from] ColdError),
}

/// A completed segment, and where it is to be copied.
pub struct SegmentToCopy<'a> {
    /// For time-outs.
    pub env: &'a Env,
    /// Where it is.
    pub store: &'a dyn StoreContract,
    /// Where it is copied to.
    pub objects: &'a dyn ColdObjects,
    /// The number of the data directory.
    pub cluster: Uuid,
    /// The segment.
    pub id: SegmentId,
    /// Its sealed length, which is not 0.
    pub length: Position,
    /// Bytes of a part, a multiple of [`BLOCK_BYTES`].
    pub part_bytes: u32,
    /// How fast.
    pub pace: &'a CopyPace,
    /// Told of what is put.
    pub counters: &'a ColdCounters,
}

impl SegmentToCopy<'_> {
    /// Makes the copy. When this is answered it was read back and is the segment. Cancelling it leaves parts of it.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn copy(&self) -> Result<ColdCopy, SegmentCopyError> {
        assert!(
            self.length > Position(0) && (self.part_bytes as usize).is_multiple_of(BLOCK_BYTES),
            "a completed segment, in parts of whole blocks"
        );
        let index = self.index().await?;
        let bytes = index.encode();
        let copy = ColdIndex::copy_of(&bytes);
        let folder = copy_folder(self.cluster, &self.id, copy);
        for part in 0..index.parts() {
            let bytes = self.part(&index, part).await?;
            self.bring(&part_name(&folder, part), bytes).await?;
        }
        self.bring(&index_name(&folder), bytes).await?;
        Ok(copy)
    }

    /// Checks all of the segment.
    async fn index(&self) -> Result<ColdIndex, SegmentCopyError> {
        let mut builder = ColdIndexBuilder::new(self.length, self.part_bytes);
        // From the beginning of an entry that is not here as a whole, at `at`.
        let mut pending = BytesMut::new();
        let (mut at, mut last) = (Position(0), None::<EntryHeader>);
        while at.0 + (pending.len() as u64) < self.length.0 {
            let piece = self.read(Position(at.0 + pending.len() as u64), BLOCK_BYTES).await?;
            builder.bytes(&piece);
            pending.extend_from_slice(&piece);
            loop {
                let header = match parse_entry(&pending) {
                    Ok(entry) => entry.header,
                    Err(EntryError::Incomplete { .. }) => break,
                    Err(EntryError::Corrupt(why)) => return Err(self.damaged(at, &why)),
                };
                if header.segment_id() != self.id {
                    return Err(self.damaged(at, &format!("an entry of {}", header.segment_id())));
                }
                if let Some(why) = last.and_then(|last| header.check_follows(&last).err()) {
                    return Err(self.damaged(at, &why));
                }
                builder.entry(at, &header);
                at = Position(at.0 + u64::from(header.len));
                drop(pending.split_to(header.len as usize));
                last = Some(header);
            }
        }
        if !pending.is_empty() {
            return Err(self.damaged(at, &"it ends within an entry"));
        }
        Ok(builder.finish())
    }

    /// The bytes of a part, which are those that the index is of.
    async fn part(&self, index: &ColdIndex, part: u64) -> Result<Bytes, SegmentCopyError> {
        let begin = part * u64::from(self.part_bytes);
        let len = (self.length.0 - begin).min(self.part_bytes.into()) as usize;
        let mut bytes = BytesMut::with_capacity(len);
        while bytes.len() < len {
            let from = Position(begin + bytes.len() as u64);
            bytes.extend_from_slice(&self.read(from, len - bytes.len()).await?);
        }
        let first = begin / BLOCK_BYTES as u64;
        for (block, bytes) in (first..).zip(bytes.chunks(BLOCK_BYTES)) {
            if !index.is_block(block, bytes) {
                let at = Position(block * BLOCK_BYTES as u64);
                return Err(self.damaged(at, &"read twice it is not the same"));
            }
        }
        Ok(bytes.freeze())
    }

    async fn read(&self, from: Position, length: usize) -> Result<Bytes, SegmentCopyError> {
        let length = length.min((self.length.0 - from.0) as usize);
        match self.store.read(&self.id, from, length).await {
            Ok(bytes) if bytes.is_empty() => Err(self.damaged(from, &"it is shorter than it was")),
            Ok(bytes) => Ok(bytes),
            Err(StoreError::Unknown(_)) => Err(SegmentCopyError::Gone),
            Err(error) => Err(SegmentCopyError::Store(error)),
        }
    }

    /// Sees to it that an object is there and has these bytes.
    async fn bring(&self, name: &str, bytes: Bytes) -> Result<(), SegmentCopyError> {
        if self.is_there(name, &bytes).await.unwrap_or(false) {
            return Ok(());
        }
        self.pace.take(bytes.len()).await;
        self.within(name, self.objects.put(name, bytes.clone())).await?;
        self.counters.bytes_put.fetch_add(bytes.len() as u64, Relaxed);
        if !self.is_there(name, &bytes).await? {
            let why = "what was put is not what is read back".to_owned();
            return Err(ColdError::Damaged { name: name.to_owned(), why }.into());
        }
        Ok(())
    }

    /// Whether an object has these bytes. Reads it, but for one that differs in its beginning.
    async fn is_there(&self, name: &str, bytes: &[u8]) -> Result<bool, SegmentCopyError> {
        let mut at = 0;
        while at < bytes.len() {
            let wanted = (bytes.len() - at).min(BLOCK_BYTES);
            let read = match self.within(name, self.objects.read(name, at as u64, wanted)).await {
                Err(ColdError::Missing(_)) => return Ok(false),
                read => read?,
            };
            if read.is_empty() || read.len() > wanted || read != bytes[at..at + read.len()] {
                return Ok(false);
            }
            at += read.len();
            self.pace.take(read.len()).await;
        }
        Ok(true)
    }

    async fn within<T>(
        &self,
        name: &str,
        asked: impl Future<Output = Result<T, ColdError>>,
    ) -> Result<T, ColdError> {
        let late = || ColdError::Unavailable(format!("{name}: no answer in {COPY_TIMEOUT:?}"));
        self.env.timeout(COPY_TIMEOUT, asked).await.unwrap_or_else(|| Err(late()))
    }

    fn damaged(&self, at: Position, why: &dyn std::fmt::Display) -> SegmentCopyError {
        SegmentCopyError::Damaged(format!("{} at {at}: {why}", self.id))
    }
}
