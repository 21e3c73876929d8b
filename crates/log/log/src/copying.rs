//! What copying a stream from cluster to cluster needs of the log: entries from an offset on, as they are stored, and a
//! stream that takes them in their places.
//!
//! A copy has its source's name, id, offsets, terms and batches. Its segments are its own: they end where this log
//! ended them. Nobody but the copying appends to it, and it keeps what its source keeps.

use std::sync::Arc;

use bytes::Bytes;
use tailwater_format::{
    ENTRY_HEADER_BYTES, Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term,
    parse_entry, parse_entry_header,
};
use tokio::sync::oneshot;

use crate::batches::Checked;
use crate::config::StreamConfig;
use crate::error::{AppendError, ReadError, StreamError};
use crate::limits::{APPEND_OVERHEAD_BYTES, COPY_NEAR_BYTES};
use crate::locate::{LocateRead, end_of_segment};
use crate::log::{Log, LogStreamInfo};
use crate::owner::OwnerRequest;
use crate::scan::{Scan, read_error};
use crate::shard::{AppendAnswer, CopiedTo, CopyBegin, StoreAppend, Waiter};
use crate::stream::StreamRecord;
use crate::view::View;

/// A stream as another cluster has to have it, in bytes: id, name, configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRecord(StreamRecord);

impl CopyRecord {
    /// The record of `stream`, whose source is in the cluster `source`.
    pub fn new(stream: &LogStreamInfo, source: &str) -> Self {
        let LogStreamInfo { id, name, created_ms, config, .. } = stream.clone();
        let source = Some(source.to_owned());
        let (term_min, numbers_from) = (Term(0), SegmentNumber(0));
        Self(StreamRecord { id, name, created_ms, config, source, term_min, numbers_from })
    }

    /// As it is sent.
    pub fn encode(&self) -> Bytes {
        self.0.encode()
    }

    /// As it was received.
    ///
    /// # Errors
    /// In words: bytes that are no record, or the record of a source.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let record = StreamRecord::decode("copy", bytes).map_err(|error| error.to_string())?;
        if record.source.is_none() { Err("it is no copy's".to_owned()) } else { Ok(Self(record)) }
    }

    /// The same of a source in another cluster.
    #[must_use]
    pub fn of_source(&self, source: &str) -> Self {
        Self(StreamRecord { source: Some(source.to_owned()), ..self.0.clone() })
    }

    /// The stream's id.
    pub fn id(&self) -> StreamId {
        self.0.id
    }

    /// The stream's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// How many shards it has.
    pub fn shards(&self) -> u32 {
        self.0.config.shards
    }
}

/// Where in a shard somebody reads its entries one after the other.
#[derive(Clone, Debug)]
pub struct CopyCursor {
    shard: ShardId,
    offset: Offset,
    /// Where the entry with that offset begins, if it is known.
    at: Option<(SegmentId, Position)>,
}

impl CopyCursor {
    /// One that begins with the entry that holds the record at `offset`.
    pub fn new(shard: ShardId, offset: Offset) -> Self {
        Self { shard, offset, at: None }
    }

    /// The shard.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// Offset of the first record that was not read.
    pub fn offset(&self) -> Offset {
        self.offset
    }
}

/// Entries that follow each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadEntries {
    /// Whole entries, oldest first.
    pub entries: Vec<Bytes>,
    /// First offset of the shard that was not removed.
    pub log_start: Offset,
    /// Offset after the shard's last record.
    pub next_offset: Offset,
    /// Bytes of the shard behind the last of these entries.
    pub behind_bytes: u64,
    /// There are more that are not durable yet, as the stream's durability is `interval`.
    pub awaits_sync: bool,
}

/// Reading.
impl Log {
    /// Entries from `cursor` on that are durable here, or at the source of a copy: about `bytes_max` bytes of them, at
    /// least one if there is one. Moves the cursor behind them. A cursor before the start of the log goes there. Never
    /// waits for records to come.
    ///
    /// # Errors
    /// `BeyondEnd` for a cursor behind the end; `NoStream`, `NoShard`, `Damaged`, `Corrupt`, `Unavailable`.
    pub async fn read_entries(
        &self,
        cursor: &mut CopyCursor,
        bytes_max: usize,
    ) -> Result<ReadEntries, ReadError> {
        loop {
            let view = self.view(cursor.shard)?;
            if cursor.offset < view.tail.log_start {
                *cursor = CopyCursor::new(cursor.shard, view.tail.log_start);
            }
            match self.read_from(&view, cursor, bytes_max).await {
                // Retention was here since the view was taken.
                Err(ReadError::NoSegment | ReadError::Truncated { .. })
                    if self.view(cursor.shard)?.tail.log_start != view.tail.log_start =>
                {
                    cursor.at = None;
                }
                result => return result,
            }
        }
    }

    async fn read_from(
        &self,
        view: &View,
        cursor: &mut CopyCursor,
        bytes_max: usize,
    ) -> Result<ReadEntries, ReadError> {
        let tail = &view.tail;
        let mut read =
            ReadEntries { log_start: tail.log_start, next_offset: tail.next_offset, ..Default::default() };
        let end = tail.next_offset.max(view.copyable_next.get());
        if cursor.offset > end {
            return Err(ReadError::BeyondEnd { end });
        }
        if self.read_newest(view, cursor, bytes_max, &mut read)? || cursor.offset >= tail.next_offset {
            return Ok(read);
        }
        let known = cursor.at.and_then(|(id, position)| {
            let (_, end) = end_of_segment(view, id.number).filter(|(found, _)| *found == id)?;
            (position < end).then_some((id, position, end))
        });
        let (id, position, end) = match known {
            Some(known) => known,
            None => {
                let unsynced = self.is_unsynced(view, cursor.offset)?;
                let found = match self.locate(cursor.shard, LocateRead::Offset(cursor.offset)).await {
                    // What is not synced yet can't be looked through.
                    Err(ReadError::Unavailable(_)) if unsynced => {
                        read.awaits_sync = true;
                        return Ok(read);
                    }
                    found => found?,
                };
                let (id, end) = end_of_segment(view, found.segment).ok_or(ReadError::NoSegment)?;
                (id, found.position, end)
            }
        };
        // With `interval` readers see what the source may still lose: that is not copied before it can't.
        let durable = match view.open() {
            Some(open) if open == id && !self.is_replicated() => {
                self.inner.store.durable_length(&id).map_err(read_error)?
            }
            _ => end,
        };
        let (end, is_whole) = (end.min(durable), durable >= end);
        if end <= position {
            read.awaits_sync = true;
            return Ok(read);
        }
        let is_far = end.0 - position.0 > COPY_NEAR_BYTES || view.open() != Some(id);
        let is_cold = view.is_cold(cursor.offset);
        let _permit = if is_far { self.inner.reading(is_cold).await } else { None };
        let mut scan = Scan::new(&*self.inner.segments, id, position, end);
        let mut bytes = 0;
        while let Some(scanned) = scan.next().await? {
            let len = scanned.header.len as usize;
            if bytes > 0 && bytes + len > bytes_max {
                break;
            }
            if !scanned.header.is_control() {
                read.entries.push(scan.entry(&scanned).await?);
                bytes += len;
            }
            cursor.offset = scanned.header.next_offset();
            cursor.at = Some((id, Position(scanned.position.0 + len as u64)));
        }
        self.inner.counters.copied_on(false, bytes);
        read.behind_bytes = bytes_behind(view, cursor);
        read.awaits_sync = !is_whole && read.entries.is_empty();
        Ok(read)
    }

    /// Takes the newest entries' own memory, if what comes next is there; whether it was.
    fn read_newest(
        &self,
        view: &View,
        cursor: &mut CopyCursor,
        bytes_max: usize,
        read: &mut ReadEntries,
    ) -> Result<bool, ReadError> {
        let copyable_next = view.copyable_next.get();
        if cursor.offset >= copyable_next {
            return Ok(false);
        }
        let shared = self.shared_view(cursor.shard)?;
        let found = shared.newest().lock().entries_from(cursor.offset, copyable_next, bytes_max);
        let Some((entries, behind)) = found.filter(|(entries, _)| !entries.is_empty()) else {
            return Ok(false);
        };
        for entry in &entries {
            let header = parse_entry_header(entry).map_err(|error| ReadError::Corrupt(error.to_string()))?;
            cursor.offset = header.next_offset();
        }
        // Where it lies is looked up, should the next ones not be there.
        cursor.at = None;
        self.inner.counters.copied_on(true, entries.iter().map(Bytes::len).sum());
        read.next_offset = read.next_offset.max(cursor.offset);
        (read.entries, read.behind_bytes) = (entries, behind);
        Ok(true)
    }

    /// Whether an offset is in the open segment of an `interval` stream, which is not synced to its visible end.
    fn is_unsynced(&self, view: &View, offset: Offset) -> Result<bool, ReadError> {
        match view.open().filter(|_| offset >= view.tail.base_offset && !self.is_replicated()) {
            Some(open) => Ok(self.inner.store.durable_length(&open).map_err(read_error)? < view.tail.durable),
            None => Ok(false),
        }
    }

    /// Whether a stream is a copy: what is behind its end may be there at its source already.
    pub fn is_copy(&self, stream: StreamId) -> bool {
        let streams = self.inner.streams.read();
        streams.by_id.get(&stream).is_some_and(|known| known.record.source.is_some())
    }
}

/// Bytes of the shard from the cursor on.
fn bytes_behind(view: &View, cursor: &CopyCursor) -> u64 {
    let later = view.completed.iter().filter(|segment| segment.next_offset > cursor.offset);
    let completed = later.map(|segment| (view.id(segment), segment.length));
    let open = view.open().filter(|_| view.tail.next_offset > cursor.offset);
    let all = completed.chain(open.map(|id| (id, view.tail.durable)));
    all.map(|(id, end)| match cursor.at {
        Some((at, position)) if at == id => end.0.saturating_sub(position.0),
        _ => end.0,
    })
    .sum()
}

/// Copies.
impl Log {
    /// Sees to it that there is a copy as `record` says: creates it, or changes its configuration. `is_again`: there
    /// may have been one before, whose segments' names are not used again. Cancelling it does not take it back.
    ///
    /// # Errors
    /// `Exists` where the name, or the id, is that of another stream or of one that is no copy; as of
    /// [`Log::create_stream`] and [`Log::alter_stream`].
    pub async fn keep_copy(&self, record: &CopyRecord, is_again: bool) -> Result<LogStreamInfo, StreamError> {
        let wanted = record.0.clone();
        let there = match self.stream(&wanted.name) {
            Ok(there) => there,
            Err(StreamError::NoStream(_)) => {
                let log = self.clone();
                return self.to_the_end(async move { log.create_copy(wanted, is_again).await }).await;
            }
            Err(error) => return Err(error),
        };
        if there.id != wanted.id || there.source.is_none() {
            return Err(StreamError::Exists(wanted.name));
        }
        if there.config == wanted.config && there.source == wanted.source {
            return Ok(there);
        }
        let log = self.clone();
        let change = async move {
            let config: StreamConfig = wanted.config;
            log.alter(&wanted.name, wanted.source, |_| Ok::<_, StreamError>(config)).await
        };
        self.to_the_end(change).await
    }

    async fn create_copy(&self, record: StreamRecord, is_again: bool) -> Result<LogStreamInfo, StreamError> {
        let _naming = self.inner.naming.lock().await;
        // A copy has its source's configuration, also where its cluster has no cold storage.
        self.check_create(&record.name, &StreamConfig { cold: false, ..record.config.clone() })?;
        if self.stream_by_id(record.id).is_ok() {
            return Err(StreamError::Exists(record.id.to_string()));
        }
        // Its terms are its source's, so its numbers have to be other ones: a copy ends no segment in a millisecond.
        let again = u64::try_from(self.inner.env.wall_ms()).unwrap_or_default();
        let numbers_from = SegmentNumber(if is_again { again } else { 0 });
        self.create_as(StreamRecord { numbers_from, ..record }).await
    }

    /// Begins to append an entry of the source to a copy; entries of one shard that one task appends are in the order
    /// of these calls. `answer` is called once when it is durable, or when it failed, as in [`Log::submit_with`].
    ///
    /// # Errors
    /// `Invalid`, `Corrupt` for an entry that is not one of this shard; what is known at once. `answer` is then not
    /// called.
    pub fn append_copied(
        &self,
        shard: ShardId,
        entry: &Bytes,
        answer: impl FnOnce(Result<AppendAnswer, AppendError>) + Send + 'static,
    ) -> Result<(), AppendError> {
        let invalid = |why: String| AppendError::Invalid(why.into());
        let inner = &*self.inner;
        let known = inner.streams.read().by_id.get(&shard.stream).cloned().ok_or(AppendError::NoStream)?;
        if known.record.source.is_none() {
            return Err(invalid(format!("{} is no copy", known.record.name)));
        }
        let shards = known.record.config.shards;
        let handle = known.shard(shard.shard).ok_or(AppendError::NoShard { shard: shard.shard.0, shards })?;
        let slot = handle.slot::<AppendError>()?;
        let header =
            parse_entry(entry).map_err(|error| AppendError::Corrupt(error.to_string().into()))?.header;
        if header.segment_id().shard != shard || header.len as usize != entry.len() {
            return Err(invalid(format!("an entry of {} for {shard}", header.segment_id())));
        }
        let batches = Checked::copied(entry.slice(ENTRY_HEADER_BYTES..), &header)?;
        let permit = inner.budget.take(entry.len() as u64 + APPEND_OVERHEAD_BYTES);
        let permit = permit.ok_or(AppendError::Overloaded("too many bytes are in flight"))?;
        let copied = Some(CopiedTo { base_offset: header.base_offset, term: header.term });
        let append =
            StoreAppend { batches, expected_term: None, copied, waiter: Waiter::new(Some(permit), answer) };
        inner.owners[handle.owner].try_send(OwnerRequest::Append(slot, append), false)
    }

    /// Has a copy go on at `offset`, if it ends before that: its source has removed what is between. No append to the
    /// shard may be under way.
    ///
    /// # Errors
    /// `Overloaded` where one is: try again.
    pub async fn begin_copy(&self, shard: ShardId, offset: Offset) -> Result<(), StreamError> {
        let (owner, slot) = self.copied_slot(shard)?;
        let (reply, answer) = oneshot::channel();
        let request = OwnerRequest::Begin(slot, CopyBegin { offset, reply });
        self.inner.owners[owner].send(request).await.map_err(|_| StreamError::Closed)?;
        answer.await.unwrap_or(Err(StreamError::Closed))
    }

    /// Removes the records of a copy's shard before an offset, as its source has.
    ///
    /// # Errors
    /// As of [`Log::truncate`].
    pub async fn truncate_copy(&self, shard: ShardId, before: Offset) -> Result<Offset, StreamError> {
        let known = self.copy(shard)?;
        self.truncate_shard(&known, shard.shard, before).await
    }

    fn copy(&self, shard: ShardId) -> Result<Arc<crate::log::Stream>, StreamError> {
        let known = self.inner.streams.read().by_id.get(&shard.stream).cloned();
        let known = known.ok_or_else(|| StreamError::NoStream(shard.stream.to_string()))?;
        if known.record.source.is_none() {
            return Err(StreamError::Exists(known.record.name.clone()));
        }
        Ok(known)
    }

    fn copied_slot(&self, shard: ShardId) -> Result<(usize, crate::slots::Slot), StreamError> {
        let known = self.copy(shard)?;
        let ShardNumber(number) = shard.shard;
        let shards = known.record.config.shards;
        let handle = known.shard(shard.shard).ok_or(StreamError::NoShard { shard: number, shards })?;
        Ok((handle.owner, handle.slot::<StreamError>()?))
    }
}
