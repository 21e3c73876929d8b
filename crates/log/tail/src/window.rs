//! What a process that reads for others hands to them: the shared window across processes.
//!
//! ```text
//!   cells --bytes--> TailReader of the window --blocks--> arena ==mapped==> TailReader of each reader
//! ```
//!
//! The window appends *messages* to arenas, one behind the other, for all shards that its readers follow; a reader maps
//! the arenas, decodes each message's head and borrows the records. Over a Unix socket readers say which shards they
//! follow ([`WindowRequest`]), and are told of arenas ([`WindowFrame`]). `docs/formats.md` has the bytes.
//!
//! What holds:
//! - A message is bounds-checked when it is decoded: no bytes make a reader panic or read outside of them.
//! - The checksums of entries were checked by the window, and are not checked again.
//! - Of each shard, blocks are consecutive from the last [`WindowMessage::At`] or [`WindowMessage::Block`] on, unless a
//!   block's place says otherwise. A reader goes by the places and takes nothing that does not continue what it has.

use bytes::{Buf, BufMut, Bytes, TryGetError};
use tailwater_format::batch::{BatchHeader, Codec};
use tailwater_format::{
    EntryHeader, EntryId, Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Tail,
    Term, TransactionId,
};
use uuid::Uuid;

use crate::block::{Block, BlockBatch, BlockEntry};

/// Bytes of an arena.
pub const ARENA_BYTES: usize = 16 << 20;

/// What both ends of a window speak; who speaks another one reads by itself.
pub const WINDOW_VERSION: u32 = 2;

/// Bytes of a [`WindowRequest`] and of a [`WindowFrame`].
pub const FRAME_BYTES: usize = 32;

/// Messages begin at multiples of this.
const ALIGN: usize = 8;
/// Length and kind.
const FRAMING_BYTES: usize = 8;

const KIND_BLOCK: u32 = 1;
const KIND_AT: u32 = 2;
const KIND_TAIL: u32 = 3;
const KIND_LOST: u32 = 4;

const TAIL_SEALED: u32 = 1;
const TAIL_PREVIOUS: u32 = 2;
const TAIL_WITHOUT_CELLS: u32 = 4;

/// One message of a window.
#[derive(Debug)]
pub enum WindowMessage {
    /// Whole entries, checked.
    Block(Block),
    /// Blocks of this segment come from this position on.
    At(SegmentId, Position),
    /// How far a shard reaches.
    Tail(ShardId, Tail),
    /// Nothing more comes of this shard for now.
    Lost(ShardId),
}

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowMessageError {
    /// They end too early.
    #[error("a message that ends too early")]
    Short,
    /// What a number says can't be.
    #[error("a message whose {0} can't be")]
    Impossible(&'static str),
}

impl From<TryGetError> for WindowMessageError {
    fn from(_: TryGetError) -> Self {
        Self::Short
    }
}

impl WindowMessage {
    /// The shard that it is of.
    pub fn shard(&self) -> ShardId {
        match self {
            Self::Block(block) => block.segment.shard,
            Self::At(segment, _) => segment.shard,
            Self::Tail(shard, _) | Self::Lost(shard) => *shard,
        }
    }

    /// The bytes of a message; of a block, what comes before its records ([`records_of`]).
    ///
    /// # Errors
    /// If it is too long for an arena.
    pub fn encode(&self) -> Result<Vec<u8>, WindowMessageError> {
        match self {
            Self::Block(block) => encode_block(block),
            Self::At(segment, position) => Ok(encode_short(KIND_AT, |out| {
                put_segment(out, segment);
                out.put_u64_le(position.0);
            })),
            Self::Tail(shard, tail) => Ok(encode_short(KIND_TAIL, |out| {
                put_shard(out, *shard);
                put_tail(out, tail);
            })),
            Self::Lost(shard) => Ok(encode_short(KIND_LOST, |out| put_shard(out, *shard))),
        }
    }
}

/// A message of a window that was not decoded: its bytes are where the window wrote them.
#[derive(Clone, Debug)]
pub struct UndecodedMessage {
    kind: u32,
    body: Bytes,
    arena: u64,
}

impl UndecodedMessage {
    /// Takes the next message off `bytes`, which were published in arena number `arena`; `None` if there is no other in
    /// it.
    ///
    /// # Errors
    /// If it ends behind `bytes`.
    pub fn take(bytes: &mut Bytes, arena: u64) -> Result<Option<Self>, WindowMessageError> {
        let Some(mut framing) = bytes.get(..FRAMING_BYTES) else { return Ok(None) };
        let (len, kind) = (framing.try_get_u32_le()? as usize, framing.try_get_u32_le()?);
        if len == 0 {
            bytes.clear();
            return Ok(None);
        }
        let padded = len.checked_next_multiple_of(ALIGN).filter(|padded| *padded <= bytes.len());
        if len < FRAMING_BYTES {
            return Err(WindowMessageError::Impossible("length"));
        }
        let mut message = bytes.split_to(padded.ok_or(WindowMessageError::Short)?);
        message.truncate(len);
        Ok(Some(Self { kind, body: message.slice(FRAMING_BYTES..), arena }))
    }

    /// The shard that it is of.
    ///
    /// # Errors
    /// If it is too short to say so.
    pub fn shard(&self) -> Result<ShardId, WindowMessageError> {
        get_shard(&mut &self.body[..])
    }

    /// What it says.
    ///
    /// # Errors
    /// If it is none that a window writes.
    pub fn decode(self) -> Result<WindowMessage, WindowMessageError> {
        decode(self.kind, self.body, self.arena)
    }

    /// The arena that it lies in.
    pub(crate) fn arena(&self) -> u64 {
        self.arena
    }
}

/// The records of a block, in the order in which they follow what [`WindowMessage::encode`] made of it.
pub fn records_of(block: &Block) -> impl Iterator<Item = &[u8]> {
    block.batches(0..block.entries().len()).iter().map(|batch| &batch.records[..])
}

/// The bytes of a block's message but for its records; see [`records_of`].
///
/// # Errors
/// If it is too long for an arena.
pub fn encode_block(block: &Block) -> Result<Vec<u8>, WindowMessageError> {
    let (entries, batches) = (block.entries(), block.batches(0..block.entries().len()));
    let mut out = Vec::with_capacity(96 + entries.len() * 56 + batches.len() * 72);
    out.put_u64_le(0);
    put_segment(&mut out, &block.segment);
    out.put_u64_le(block.start.0);
    out.put_u64_le(block.end.0);
    out.put_u32_le(entries.len() as u32);
    out.put_u32_le(batches.len() as u32);
    for entry in entries {
        put_entry(&mut out, entry);
    }
    for batch in batches {
        put_batch(&mut out, batch);
    }
    let records: usize = batches.iter().map(|batch| batch.records.len()).sum();
    let len = out.len() + records;
    if len > ARENA_BYTES {
        return Err(WindowMessageError::Impossible("length"));
    }
    frame(&mut out, KIND_BLOCK, len);
    Ok(out)
}

fn encode_short(kind: u32, put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    out.put_u64_le(0);
    put(&mut out);
    let len = out.len();
    frame(&mut out, kind, len);
    out
}

fn frame(out: &mut [u8], kind: u32, len: usize) {
    out[..4].copy_from_slice(&(len as u32).to_le_bytes());
    out[4..FRAMING_BYTES].copy_from_slice(&kind.to_le_bytes());
}

fn put_shard(out: &mut Vec<u8>, shard: ShardId) {
    out.put_slice(shard.stream.0.as_bytes());
    out.put_u32_le(shard.shard.0);
}

fn put_segment(out: &mut Vec<u8>, segment: &SegmentId) {
    put_shard(out, segment.shard);
    out.put_u32_le(segment.term.0);
    out.put_u64_le(segment.number.0);
}

fn put_tail(out: &mut Vec<u8>, tail: &Tail) {
    let previous = if tail.previous.is_some() { TAIL_PREVIOUS } else { 0 };
    let sealed = if tail.sealed { TAIL_SEALED } else { 0 };
    let without_cells = if tail.cells { 0 } else { TAIL_WITHOUT_CELLS };
    out.put_u32_le(previous | sealed | without_cells);
    out.put_u32_le(tail.term.0);
    out.put_u32_le(tail.chunk_bytes);
    for number in [tail.segment.0, tail.base_offset.0, tail.cached.0, tail.durable.0, tail.next_offset.0] {
        out.put_u64_le(number);
    }
    out.put_u64_le(tail.log_start.0);
    if let Some((number, term, length)) = tail.previous {
        out.put_u64_le(number.0);
        out.put_u32_le(term.0);
        out.put_u64_le(length.0);
    }
}

/// What the block says of all its entries is not repeated.
fn put_entry(out: &mut Vec<u8>, entry: &BlockEntry) {
    let header = &entry.header;
    out.put_u16_le(header.version);
    out.put_u32_le(header.len);
    out.put_u64_le(header.entry_id.0);
    out.put_u64_le(header.base_offset.0);
    out.put_u32_le(header.record_count);
    out.put_i64_le(header.transaction_id.0);
    out.put_u64_le(header.checksum);
    out.put_u32_le(entry.first_batch);
    out.put_u32_le(entry.batch_end);
}

fn put_batch(out: &mut Vec<u8>, batch: &BlockBatch) {
    let header = &batch.header;
    out.put_u64_le(header.base_offset.0);
    out.put_u32_le(header.len as u32);
    out.put_i32_le(header.leader_epoch);
    out.put_u32_le(header.crc);
    out.put_i16_le(header.attributes);
    out.put_u8(header.codec as u8);
    out.put_i64_le(header.base_timestamp_ms);
    out.put_i64_le(header.max_timestamp_ms);
    out.put_i64_le(header.producer_id);
    out.put_i16_le(header.producer_epoch);
    out.put_i32_le(header.base_sequence);
    out.put_u32_le(header.record_count);
    out.put_u32_le(batch.records.len() as u32);
}

fn decode(kind: u32, body: Bytes, arena: u64) -> Result<WindowMessage, WindowMessageError> {
    let mut head = &body[..];
    match kind {
        KIND_BLOCK => decode_block(&body, arena).map(WindowMessage::Block),
        KIND_AT => {
            let segment = get_segment(&mut head)?;
            Ok(WindowMessage::At(segment, Position(head.try_get_u64_le()?)))
        }
        KIND_TAIL => {
            let shard = get_shard(&mut head)?;
            let tail = get_tail(&mut head)?;
            if !tail.is_possible() {
                return Err(WindowMessageError::Impossible("tail"));
            }
            Ok(WindowMessage::Tail(shard, tail))
        }
        KIND_LOST => Ok(WindowMessage::Lost(get_shard(&mut head)?)),
        _ => Err(WindowMessageError::Impossible("kind")),
    }
}

fn get_shard(head: &mut &[u8]) -> Result<ShardId, WindowMessageError> {
    let mut stream = [0; 16];
    head.try_copy_to_slice(&mut stream)?;
    let shard = ShardNumber(head.try_get_u32_le()?);
    Ok(ShardId { stream: StreamId(Uuid::from_bytes(stream)), shard })
}

fn get_segment(head: &mut &[u8]) -> Result<SegmentId, WindowMessageError> {
    let shard = get_shard(head)?;
    let term = Term(head.try_get_u32_le()?);
    Ok(SegmentId { shard, number: SegmentNumber(head.try_get_u64_le()?), term })
}

fn get_tail(head: &mut &[u8]) -> Result<Tail, WindowMessageError> {
    let flags = head.try_get_u32_le()?;
    let (term, chunk_bytes) = (Term(head.try_get_u32_le()?), head.try_get_u32_le()?);
    let mut tail = Tail {
        segment: SegmentNumber(head.try_get_u64_le()?),
        term,
        base_offset: Offset(head.try_get_u64_le()?),
        cached: Position(head.try_get_u64_le()?),
        durable: Position(head.try_get_u64_le()?),
        next_offset: Offset(head.try_get_u64_le()?),
        sealed: flags & TAIL_SEALED != 0,
        previous: None,
        chunk_bytes,
        cells: flags & TAIL_WITHOUT_CELLS == 0,
        log_start: Offset(head.try_get_u64_le()?),
    };
    if flags & TAIL_PREVIOUS != 0 {
        let (number, term) = (SegmentNumber(head.try_get_u64_le()?), Term(head.try_get_u32_le()?));
        tail.previous = Some((number, term, Position(head.try_get_u64_le()?)));
    }
    Ok(tail)
}

fn decode_block(body: &Bytes, arena: u64) -> Result<Block, WindowMessageError> {
    let mut head = &body[..];
    let segment = get_segment(&mut head)?;
    let (start, end) = (Position(head.try_get_u64_le()?), Position(head.try_get_u64_le()?));
    if start >= end || end.0 >= crate::limits::POSITION_END {
        return Err(WindowMessageError::Impossible("place"));
    }
    let (entry_count, batch_count) = (head.try_get_u32_le()?, head.try_get_u32_le()?);
    // No more is reserved than the bytes that are there can hold.
    let mut entries = Vec::with_capacity((entry_count as usize).min(head.len() / ENTRY_BYTES));
    for _ in 0..entry_count {
        entries.push(get_entry(&mut head, &segment)?);
    }
    check_batches(&entries, batch_count)?;
    let mut headers = Vec::with_capacity((batch_count as usize).min(head.len() / BATCH_BYTES));
    for _ in 0..batch_count {
        headers.push(get_batch(&mut head)?);
    }
    let mut records = body.slice(body.len() - head.len()..);
    let mut batches = Vec::with_capacity(headers.len());
    for (header, len) in headers {
        if len > records.len() {
            return Err(WindowMessageError::Short);
        }
        batches.push(BlockBatch { header, records: records.split_to(len) });
    }
    Ok(Block::of_window(segment, start..end, entries, batches, body.len(), arena))
}

/// Bytes of an entry's head, and of a batch's.
const ENTRY_BYTES: usize = 50;
/// See [`ENTRY_BYTES`].
const BATCH_BYTES: usize = 61;

fn get_entry(head: &mut &[u8], segment: &SegmentId) -> Result<BlockEntry, WindowMessageError> {
    let header = EntryHeader {
        version: head.try_get_u16_le()?,
        len: head.try_get_u32_le()?,
        stream: segment.shard.stream,
        shard: segment.shard.shard,
        segment: segment.number,
        term: segment.term,
        entry_id: EntryId(head.try_get_u64_le()?),
        base_offset: Offset(head.try_get_u64_le()?),
        record_count: head.try_get_u32_le()?,
        transaction_id: TransactionId(head.try_get_i64_le()?),
        checksum: head.try_get_u64_le()?,
    };
    Ok(BlockEntry { header, first_batch: head.try_get_u32_le()?, batch_end: head.try_get_u32_le()? })
}

/// The batches of entries follow one another, or a run of entries would have no run of batches.
fn check_batches(entries: &[BlockEntry], count: u32) -> Result<(), WindowMessageError> {
    let mut next = 0;
    for entry in entries {
        if entry.first_batch != next || entry.batch_end < next || entry.batch_end > count {
            return Err(WindowMessageError::Impossible("order of batches"));
        }
        next = entry.batch_end;
    }
    if next == count { Ok(()) } else { Err(WindowMessageError::Impossible("number of batches")) }
}

fn get_batch(head: &mut &[u8]) -> Result<(BatchHeader, usize), WindowMessageError> {
    let header = BatchHeader {
        base_offset: Offset(head.try_get_u64_le()?),
        len: head.try_get_u32_le()? as usize,
        leader_epoch: head.try_get_i32_le()?,
        crc: head.try_get_u32_le()?,
        attributes: head.try_get_i16_le()?,
        codec: Codec::from_number(head.try_get_u8()?).ok_or(WindowMessageError::Impossible("codec"))?,
        base_timestamp_ms: head.try_get_i64_le()?,
        max_timestamp_ms: head.try_get_i64_le()?,
        producer_id: head.try_get_i64_le()?,
        producer_epoch: head.try_get_i16_le()?,
        base_sequence: head.try_get_i32_le()?,
        record_count: head.try_get_u32_le()?,
    };
    if header.base_offset.0.checked_add(u64::from(header.record_count)).is_none() || header.record_count == 0
    {
        return Err(WindowMessageError::Impossible("offsets"));
    }
    Ok((header, head.try_get_u32_le()? as usize))
}

/// What a window does, for who wants to watch it, and a line that says so: the numbers in this order. Counters begin
/// with its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowStats {
    /// Processes that are connected.
    pub readers: u64,
    /// Those of them that it reads for, or has read for.
    pub readers_fed: u64,
    /// Shards that it reads for others.
    pub shards: u64,
    /// How often it woke its readers.
    pub publications: u64,
    /// Bytes of messages that it published.
    pub bytes: u64,
}

impl std::fmt::Display for WindowStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { readers, readers_fed, shards, publications, bytes } = self;
        write!(f, "{readers} {readers_fed} {shards} {publications} {bytes}")
    }
}

impl std::str::FromStr for WindowStats {
    type Err = WindowMessageError;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let numbers: Result<Vec<u64>, _> = line.split_ascii_whitespace().map(str::parse).collect();
        let [readers, readers_fed, shards, publications, bytes] = numbers
            .ok()
            .and_then(|numbers| numbers.try_into().ok())
            .ok_or(WindowMessageError::Impossible("figures"))?;
        Ok(Self { readers, readers_fed, shards, publications, bytes })
    }
}

/// What a reader says to its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowRequest {
    /// It follows a shard from now on.
    Follow(ShardId),
    /// Not any more.
    Leave(ShardId),
    /// It has the arena with this number.
    Took(u64),
}

impl WindowRequest {
    /// Its bytes.
    pub fn encode(self) -> [u8; FRAME_BYTES] {
        let (kind, number, shard) = match self {
            Self::Follow(shard) => (1, 0, Some(shard)),
            Self::Leave(shard) => (2, 0, Some(shard)),
            Self::Took(arena) => (3, arena, None),
        };
        let mut out = [0; FRAME_BYTES];
        let mut at = &mut out[..];
        at.put_u32_le(kind);
        at.put_u32_le(shard.map_or(0, |shard| shard.shard.0));
        at.put_u64_le(number);
        at.put_slice(&shard.map_or([0; 16], |shard| *shard.stream.0.as_bytes()));
        out
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// If no reader says this.
    pub fn decode(bytes: &[u8; FRAME_BYTES]) -> Result<Self, WindowMessageError> {
        let mut at = &bytes[..];
        let (kind, shard, number) = (at.try_get_u32_le()?, at.try_get_u32_le()?, at.try_get_u64_le()?);
        let mut stream = [0; 16];
        at.try_copy_to_slice(&mut stream)?;
        let shard = ShardId { stream: StreamId(Uuid::from_bytes(stream)), shard: ShardNumber(shard) };
        match kind {
            1 => Ok(Self::Follow(shard)),
            2 => Ok(Self::Leave(shard)),
            3 => Ok(Self::Took(number)),
            _ => Err(WindowMessageError::Impossible("kind")),
        }
    }
}

/// What a window says to its reader, with a file each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowFrame {
    /// First of all: the page with how far it has published, in bytes of all arenas behind one another; of which node
    /// it is, and where the reader begins.
    Notice {
        /// The node's id, as far as there is room for it.
        node: [u8; 16],
        /// Where the reader begins.
        from: u64,
    },
    /// Second: the event that is rung when more was published.
    Bell,
    /// The arena with this number.
    Arena(u64),
}

impl WindowFrame {
    /// A node's id as a frame has it.
    pub fn node(id: &str) -> [u8; 16] {
        let mut node = [0; 16];
        let len = id.len().min(node.len());
        node[..len].copy_from_slice(&id.as_bytes()[..len]);
        node
    }

    /// Its bytes.
    pub fn encode(self) -> [u8; FRAME_BYTES] {
        let (kind, number, node) = match self {
            Self::Notice { node, from } => (1, from, node),
            Self::Arena(arena) => (2, arena, [0; 16]),
            Self::Bell => (3, 0, [0; 16]),
        };
        let mut out = [0; FRAME_BYTES];
        let mut at = &mut out[..];
        at.put_u32_le(kind);
        at.put_u32_le(WINDOW_VERSION);
        at.put_u64_le(number);
        at.put_slice(&node);
        out
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// If no window says this, or one of another version.
    pub fn decode(bytes: &[u8; FRAME_BYTES]) -> Result<Self, WindowMessageError> {
        let mut at = &bytes[..];
        let (kind, version, number) = (at.try_get_u32_le()?, at.try_get_u32_le()?, at.try_get_u64_le()?);
        let mut node = [0; 16];
        at.try_copy_to_slice(&mut node)?;
        match (kind, version) {
            (_, version) if version != WINDOW_VERSION => Err(WindowMessageError::Impossible("version")),
            (1, _) => Ok(Self::Notice { node, from: number }),
            (2, _) => Ok(Self::Arena(number)),
            (3, _) => Ok(Self::Bell),
            _ => Err(WindowMessageError::Impossible("kind")),
        }
    }
}

#[cfg(test)]
mod tests;
