//! The node's CALL protocol: what is asked of a node two-sidedly, as Protocol Buffers messages.
//!
//! A call is a method number and a payload, answered by a payload or by a refusal with an [`CallErrorCode`]. The
//! transport (`rma`) frames, multiplexes and bounds calls; it knows nothing of what is in here.
//!
//! What holds:
//! - Numbers of methods, fields and error codes are never used again for something else. A field may be added;
//!   whoever does not know it ignores it. A change that an old peer would misread gets a method of its own.
//! - [`decode_call`] checks length and number of fields before it decodes, so that a payload takes memory in
//!   proportion to its bytes: an empty message of two bytes on the wire may be a hundred in memory.
//! - Offsets, positions and terms mean what they mean in [`crate::tails`]. What a peer says is converted to this
//!   crate's types by checked conversions only.
//!
//! | method | request | reply |
//! |---|---|---|
//! | 1 `Hello` | [`Hello`] | [`NodeInfo`] |
//! | 2 `FindStream` | [`FindStream`] | [`StreamInfo`] |
//! | 3 `Append` | [`Append`] | [`Appends`] |
//! | 4 `ReadDurable` | [`ReadDurable`] | the segment's bytes, no message around them |
//! | 5 `Tails` | [`Tails`] | [`TailsReply`] |
//! | 6 `Segments` | [`Segments`] | [`SegmentsReply`] |
//! | 7 `Locate` | [`Locate`] | [`Location`] |
//! | 8 `InitProducer` | [`InitProducer`] | [`ProducerInfo`] |
//! | 9 `DeliveryDelays` | [`DeliveryDelays`] | [`DelaysTaken`] |
//! | 10 `CopyOpen` | [`CopyOpen`] | [`CopyOpened`] |
//! | 11 `CopyNext` | [`CopyNext`] | [`CopyEntries`] |
//! | 12 `CopyPlan` | [`CopyPlan`] | [`CopyPlanKept`] |
//! | 13 `CopyState` | [`CopyState`] | [`CopyHops`] |
//! | 14 `CopyLead` | [`CopyLead`] | [`CopyPlanKept`] |
//! | 15 `CopyOffsets` | [`CopyOffsets`] | [`CopiedOffsets`] |
//! | 16 `FindCell` | [`FindCell`] | [`CellInfo`] |
//! | 17 `Login` | [`LoginMessage`] | [`LoginAnswer`] |
//! | 18 `CopyReport` | [`CopyReport`] | [`CopyTasks`] |
//! | 19 `CopyPush` | [`CopyPush`] | [`CopyPushed`] |
//!
//! `Login` comes before all others, on connections that say so when they begin, and to cells' backends as well.

use bytes::{Bytes, BytesMut};
use prost::Message;
use uuid::Uuid;

use crate::ids::{
    Dlsn, EntryId, Offset, SegmentId, SegmentNumber, ShardId, ShardNumber, SlotId, StreamId, Term,
};
use crate::limits::{
    APPEND_ITEMS_MAX, CALL_BYTES_MAX, CALL_INFO_BYTES_MAX, CELL_BACKENDS_MAX, CLUSTERS_MAX,
    COPIED_OFFSETS_MAX, COPY_TASKS_MAX, LOGIN_BYTES_MAX, OFFSET_MAX, SEGMENTS_PER_REPLY_MAX,
    SHARDS_PER_CALL_MAX, TERM_MAX,
};

mod copy;
mod error;
mod tail;
pub use copy::{
    CopiedOffset, CopiedOffsets, CopiedShard, CopyEnd, CopyEntries, CopyFrom, CopyHeld, CopyHop, CopyHops,
    CopyLead, CopyNext, CopyOffsets, CopyOpen, CopyOpened, CopyPlan, CopyPlanKept, CopyPush, CopyPushed,
    CopyReport, CopyResume, CopyRunning, CopyState, CopyTask, CopyTasks,
};
pub use error::{CallErrorCode, CallRefusal};
pub use tail::{PreviousSegment, ShardTail, Tails, TailsReply};

/// Version of the protocol as a whole, told in [`Hello`] and [`NodeInfo`].
pub const CALL_VERSION: u32 = 1;

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Method {
    /// Who are you, and where are your cells?
    Hello = 1,
    /// A stream by its name.
    FindStream = 2,
    /// Appends record batches to shards.
    Append = 3,
    /// Bytes of a segment, never past its durable length.
    ReadDurable = 4,
    /// Tails of shards, from the store itself.
    Tails = 5,
    /// Segments of a shard.
    Segments = 6,
    /// Where to begin reading a shard.
    Locate = 7,
    /// A producer id for idempotent appends.
    InitProducer = 8,
    /// How long records took to the caller's consumers.
    DeliveryDelays = 9,
    /// Another cluster begins to copy a stream.
    CopyOpen = 10,
    /// The next entries for it.
    CopyNext = 11,
    /// A stream's copy tree, from its source.
    CopyPlan = 12,
    /// How far a copy is.
    CopyState = 13,
    /// The source of a stream moves to the cluster that is asked.
    CopyLead = 14,
    /// What groups have committed of a stream.
    CopyOffsets = 15,
    /// A cell that was created, by its name.
    FindCell = 16,
    /// Who the caller is: a message of its login.
    Login = 17,
    /// What a worker of the cluster is to copy.
    CopyReport = 18,
    /// What it has copied.
    CopyPush = 19,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 19] = [
        Method::Hello,
        Method::FindStream,
        Method::Append,
        Method::ReadDurable,
        Method::Tails,
        Method::Segments,
        Method::Locate,
        Method::InitProducer,
        Method::DeliveryDelays,
        Method::CopyOpen,
        Method::CopyNext,
        Method::CopyPlan,
        Method::CopyState,
        Method::CopyLead,
        Method::CopyOffsets,
        Method::FindCell,
        Method::Login,
        Method::CopyReport,
        Method::CopyPush,
    ];

    /// The number on the wire.
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// The method with this number, if this program knows it.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.number() == number)
    }

    /// Its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Method::Hello => "hello",
            Method::FindStream => "find_stream",
            Method::Append => "append",
            Method::ReadDurable => "read_durable",
            Method::Tails => "tails",
            Method::Segments => "segments",
            Method::Locate => "locate",
            Method::InitProducer => "init_producer",
            Method::DeliveryDelays => "delivery_delays",
            Method::CopyOpen => "copy_open",
            Method::CopyNext => "copy_next",
            Method::CopyPlan => "copy_plan",
            Method::CopyState => "copy_state",
            Method::CopyLead => "copy_lead",
            Method::CopyOffsets => "copy_offsets",
            Method::FindCell => "find_cell",
            Method::Login => "login",
            Method::CopyReport => "copy_report",
            Method::CopyPush => "copy_push",
        }
    }
}

/// A message of the protocol, with what a payload may be at most.
pub trait CallMessage: Message + Default {
    /// Most bytes of a payload.
    const BYTES_MAX: usize;
    /// Most fields of the message itself, repeated ones counted each time.
    const FIELDS_MAX: usize;
}

macro_rules! call_messages {
    ($($message:ty: $bytes:expr, $fields:expr;)*) => {$(
        impl CallMessage for $message {
            const BYTES_MAX: usize = $bytes;
            const FIELDS_MAX: usize = $fields;
        }
    )*};
}

// A few fields more than there are, for those that later versions add.
call_messages! {
    Hello: CALL_INFO_BYTES_MAX, 32;
    NodeInfo: CALL_INFO_BYTES_MAX, 32;
    FindStream: CALL_INFO_BYTES_MAX, 32;
    StreamInfo: CALL_INFO_BYTES_MAX, 32;
    Append: CALL_BYTES_MAX, APPEND_ITEMS_MAX + 32;
    Appends: CALL_BYTES_MAX, APPEND_ITEMS_MAX + 32;
    ReadDurable: CALL_INFO_BYTES_MAX, 32;
    Tails: CALL_INFO_BYTES_MAX, SHARDS_PER_CALL_MAX + 32;
    TailsReply: CALL_BYTES_MAX, SHARDS_PER_CALL_MAX + 32;
    Segments: CALL_INFO_BYTES_MAX, 32;
    SegmentsReply: CALL_BYTES_MAX, SEGMENTS_PER_REPLY_MAX + 32;
    Locate: CALL_INFO_BYTES_MAX, 32;
    Location: CALL_INFO_BYTES_MAX, 32;
    InitProducer: CALL_INFO_BYTES_MAX, 32;
    ProducerInfo: CALL_INFO_BYTES_MAX, 32;
    DeliveryDelays: CALL_INFO_BYTES_MAX, 64;
    DelaysTaken: CALL_INFO_BYTES_MAX, 32;
    CopyOpen: CALL_INFO_BYTES_MAX, SHARDS_PER_CALL_MAX + 32;
    CopyOpened: CALL_INFO_BYTES_MAX, CLUSTERS_MAX + 32;
    CopyNext: CALL_INFO_BYTES_MAX, SHARDS_PER_CALL_MAX + 32;
    CopyEntries: CALL_BYTES_MAX, SHARDS_PER_CALL_MAX + CLUSTERS_MAX + 32;
    CopyPlan: CALL_INFO_BYTES_MAX, 32;
    CopyPlanKept: CALL_INFO_BYTES_MAX, 32;
    CopyState: CALL_INFO_BYTES_MAX, 32;
    CopyHops: CALL_INFO_BYTES_MAX, SHARDS_PER_CALL_MAX + 32;
    CopyLead: CALL_INFO_BYTES_MAX, SHARDS_PER_CALL_MAX + 32;
    CopyOffsets: CALL_INFO_BYTES_MAX, 32;
    CopiedOffsets: CALL_BYTES_MAX, COPIED_OFFSETS_MAX + 32;
    CopyReport: CALL_INFO_BYTES_MAX, COPY_TASKS_MAX + 32;
    CopyTasks: CALL_BYTES_MAX, COPY_TASKS_MAX + 32;
    CopyPush: CALL_BYTES_MAX, 2 * SHARDS_PER_CALL_MAX + CLUSTERS_MAX + 32;
    CopyPushed: CALL_BYTES_MAX, 2 * SHARDS_PER_CALL_MAX + 32;
    FindCell: CALL_INFO_BYTES_MAX, 32;
    CellInfo: CALL_BYTES_MAX, CELL_BACKENDS_MAX + 32;
    LoginMessage: LOGIN_BYTES_MAX, 32;
    LoginAnswer: LOGIN_BYTES_MAX, 32;
}

/// Why a payload is not the message it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallDecodeError {
    /// Longer than this message may be.
    #[error("payload of {found} bytes, at most {bytes_max} are allowed")]
    TooLong {
        /// Length of the payload.
        found: usize,
        /// [`CallMessage::BYTES_MAX`].
        bytes_max: usize,
    },
    /// More fields than this message may have.
    #[error("more than {fields_max} fields")]
    TooManyFields {
        /// [`CallMessage::FIELDS_MAX`].
        fields_max: usize,
    },
    /// Not a message of this kind.
    #[error("not the message expected: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// A field has a value that it can't have.
    #[error("{field} is out of its range")]
    OutOfRange {
        /// Which field.
        field: &'static str,
    },
}

/// The bytes of a message.
pub fn encode_call<M: CallMessage>(message: &M) -> Bytes {
    Bytes::from(message.encode_to_vec())
}

/// The message in a payload. Byte fields of it share the payload's memory.
pub fn decode_call<M: CallMessage>(payload: Bytes) -> Result<M, CallDecodeError> {
    if payload.len() > M::BYTES_MAX {
        return Err(CallDecodeError::TooLong { found: payload.len(), bytes_max: M::BYTES_MAX });
    }
    count_fields(payload.clone(), M::FIELDS_MAX)?;
    Ok(M::decode(payload)?)
}

/// Walks the outermost fields of a message without keeping any of them.
fn count_fields(mut payload: Bytes, fields_max: usize) -> Result<(), CallDecodeError> {
    let mut fields = 0;
    while !payload.is_empty() {
        fields += 1;
        if fields > fields_max {
            return Err(CallDecodeError::TooManyFields { fields_max });
        }
        let (tag, wire_type) = prost::encoding::decode_key(&mut payload)?;
        let context = prost::encoding::DecodeContext::default();
        prost::encoding::skip_field(wire_type, tag, &mut payload, context)?;
    }
    Ok(())
}

/// Opens a conversation.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// [`CALL_VERSION`] of the caller.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// What the caller calls itself, for logs.
    #[prost(string, tag = "2")]
    pub client: String,
}

/// Who a node is and where its cells are.
#[derive(Clone, PartialEq, Message)]
pub struct NodeInfo {
    /// The node, as configured.
    #[prost(string, tag = "1")]
    pub node_id: String,
    /// [`CALL_VERSION`] of the node.
    #[prost(uint32, tag = "2")]
    pub version: u32,
    /// Version of the program, for people.
    #[prost(string, tag = "3")]
    pub program: String,
    /// The cell that keeps chunks.
    #[prost(message, optional, tag = "4")]
    pub data_cell: Option<CellInfo>,
    /// The cell that keeps tail pages.
    #[prost(message, optional, tag = "5")]
    pub metadata_cell: Option<CellInfo>,
    /// The Unix socket of the process that reads for others on the node's host, if there is to be one.
    #[prost(string, optional, tag = "6")]
    pub window: Option<String>,
    /// The node's wall clock when it answered, in ms since the epoch: who asks can tell how far its own is from it.
    #[prost(int64, optional, tag = "7")]
    pub wall_ms: Option<i64>,
}

/// A message of a login, as SASL has it.
#[derive(Clone, PartialEq, Message)]
pub struct LoginMessage {
    /// How the caller proves who it is, by SASL's name for it, as in `SCRAM-SHA-256`. It is the same in all messages
    /// of a login.
    #[prost(string, tag = "1")]
    pub mechanism: String,
    /// What it says.
    #[prost(bytes = "bytes", tag = "2")]
    pub message: Bytes,
}

/// What is said to it.
#[derive(Clone, PartialEq, Message)]
pub struct LoginAnswer {
    /// A challenge, or what shows that the node knows the user.
    #[prost(bytes = "bytes", tag = "1")]
    pub message: Bytes,
    /// The caller is known from now on.
    #[prost(bool, tag = "2")]
    pub is_done: bool,
}

/// One cell.
#[derive(Clone, PartialEq, Message)]
pub struct CellInfo {
    /// Its number in its cluster, if it is one of the log.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// How it replicates; see [`CellInfo::mode`].
    #[prost(enumeration = "CellMode", tag = "2")]
    pub mode: i32,
    /// Its backends in the order of its configuration.
    #[prost(message, repeated, tag = "3")]
    pub backends: Vec<BackendInfo>,
    /// Which configuration of the cell this is.
    #[prost(uint64, tag = "4")]
    pub config_id: u64,
    /// The longest that one of its operations takes, in ms; 0 is as the client likes.
    #[prost(uint32, tag = "5")]
    pub deadline_ms: u32,
    /// After so many ms a relaxed read asks another replica as well; 0 is as the client likes.
    #[prost(uint32, tag = "6")]
    pub hedge_after_ms: u32,
    /// How often what is idle in it is written again, in ms; 0 is not said.
    #[prost(uint32, tag = "7")]
    pub refresh_ms: u32,
    /// The cell's configuration, as the cells themselves encode it. Not there: the node has one that never changes.
    #[prost(bytes = "bytes", optional, tag = "8")]
    pub configuration: Option<Bytes>,
}

/// How a cell replicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum CellMode {
    /// Not said.
    Unspecified = 0,
    /// One copy.
    R1 = 1,
    /// Three copies, two make a quorum.
    R32 = 2,
    /// Two copies of what is loaded as a whole.
    R2Immutable = 3,
}

/// One backend of a cell.
#[derive(Clone, PartialEq, Message)]
pub struct BackendInfo {
    /// Ways to reach it, the best one first, as `rma` writes addresses.
    #[prost(string, repeated, tag = "1")]
    pub addresses: Vec<String>,
    /// Which start of the backend it is that the node uses: the generation of its index region, which no other one has.
    /// 0 where the node does not know, as it is not connected to it. Not there: the node does not say.
    #[prost(uint64, optional, tag = "2")]
    pub instance: Option<u64>,
    /// Its number in the cell's configuration. Not there: its place among the backends that are told.
    #[prost(uint32, optional, tag = "3")]
    pub number: Option<u32>,
}

/// Asks for a cell by its name. The two of the log are told with [`NodeInfo`].
#[derive(Clone, PartialEq, Message)]
pub struct FindCell {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Asks for a stream by its name.
#[derive(Clone, PartialEq, Message)]
pub struct FindStream {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// One stream.
#[derive(Clone, PartialEq, Message)]
pub struct StreamInfo {
    /// Its UUID, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub stream: Bytes,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Number of its shards.
    #[prost(uint32, tag = "3")]
    pub shards: u32,
    /// Its configuration.
    #[prost(message, optional, tag = "4")]
    pub config: Option<StreamConfigInfo>,
}

/// Configuration of a stream. A limit that is not set does not limit.
#[derive(Clone, PartialEq, Message)]
pub struct StreamConfigInfo {
    /// How long records are kept, in ms.
    #[prost(uint64, optional, tag = "1")]
    pub retention_ms: Option<u64>,
    /// How many bytes of a shard are kept.
    #[prost(uint64, optional, tag = "2")]
    pub retention_bytes: Option<u64>,
    /// A segment is completed at this length.
    #[prost(uint64, tag = "3")]
    pub segment_bytes: u64,
    /// A segment is completed at this age, in ms.
    #[prost(uint64, optional, tag = "4")]
    pub segment_ms: Option<u64>,
    /// Size of a chunk.
    #[prost(uint32, tag = "5")]
    pub chunk_bytes: u32,
    /// The transmit buffer is flushed every so many ms; 0 for at once.
    #[prost(uint64, tag = "6")]
    pub flush_ms: u64,
    /// The transmit buffer is flushed at so many bytes.
    #[prost(uint64, tag = "7")]
    pub flush_bytes: u64,
    /// What an acknowledgement stands for.
    #[prost(enumeration = "DurabilityInfo", tag = "8")]
    pub durability: i32,
    /// Bytes of the longest batch that is appended. A node of 0.1.0 does not say it.
    #[prost(uint32, optional, tag = "9")]
    pub append_bytes_max: Option<u32>,
}

/// What an acknowledgement stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum DurabilityInfo {
    /// Not said.
    Unspecified = 0,
    /// The record was synced.
    Fsync = 1,
    /// The record was written and is synced in a while.
    Interval = 2,
}

/// Appends record batches to shards of one stream. Each item succeeds or fails by itself.
#[derive(Clone, PartialEq, Message)]
pub struct Append {
    /// The stream's UUID, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub stream: Bytes,
    /// What to append; several items for one shard are appended in this order.
    #[prost(message, repeated, tag = "2")]
    pub items: Vec<AppendItem>,
    /// The records' timestamps are their transaction ids: an item in which one is smaller than one before it
    /// is refused. Otherwise transaction ids are the running maximum of the timestamps.
    #[prost(bool, tag = "3")]
    pub explicit_transaction_ids: bool,
}

impl Append {
    /// Calls `look` with the batches of one item after the other of `payload`, a call of this method, until it says
    /// that it has seen enough; whether it did. Ends where the payload makes no sense. Decodes nothing else, and
    /// allocates nothing.
    pub fn any_batches(payload: &[u8], look: impl FnMut(&[u8]) -> bool) -> bool {
        let mut batches = fields_of_bytes(payload, 2).flat_map(|item| fields_of_bytes(item, 2));
        batches.any(look)
    }

    /// The bytes that [`encode_call`] makes, in pieces: the batches among them are the items' own memory.
    pub fn to_pieces(&self) -> Vec<Bytes> {
        use prost::encoding::{WireType, bool, bytes, encode_key, encode_varint, uint32};

        let (mut pieces, mut between) = (Vec::with_capacity(2 * self.items.len() + 1), BytesMut::new());
        if !self.stream.is_empty() {
            bytes::encode(1, &self.stream, &mut between);
        }
        for item in &self.items {
            encode_key(2, WireType::LengthDelimited, &mut between);
            encode_varint(item.encoded_len() as u64, &mut between);
            if item.shard != 0 {
                uint32::encode(1, &item.shard, &mut between);
            }
            if !item.batches.is_empty() {
                encode_key(2, WireType::LengthDelimited, &mut between);
                encode_varint(item.batches.len() as u64, &mut between);
                pieces.push(between.split().freeze());
                pieces.push(item.batches.clone());
            }
            if let Some(term) = &item.expected_term {
                uint32::encode(3, term, &mut between);
            }
        }
        if self.explicit_transaction_ids {
            bool::encode(3, &self.explicit_transaction_ids, &mut between);
        }
        if !between.is_empty() {
            pieces.push(between.freeze());
        }
        pieces
    }
}

/// The values of one field of a message, a field of bytes or of messages. Ends where the message does, or makes no
/// sense.
fn fields_of_bytes(mut message: &[u8], wanted: u32) -> impl Iterator<Item = &[u8]> {
    use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

    std::iter::from_fn(move || {
        while !message.is_empty() {
            let (tag, wire_type) = decode_key(&mut message).ok()?;
            if (tag, wire_type) == (wanted, WireType::LengthDelimited) {
                let len = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
                let value;
                (value, message) = message.split_at_checked(len)?;
                return Some(value);
            }
            skip_field(wire_type, tag, &mut message, DecodeContext::default()).ok()?;
        }
        None
    })
}

/// Record batches for one shard.
#[derive(Clone, PartialEq, Message)]
pub struct AppendItem {
    /// The shard.
    #[prost(uint32, tag = "1")]
    pub shard: u32,
    /// Kafka record batches, one after the other; all are appended or none.
    #[prost(bytes = "bytes", tag = "2")]
    pub batches: Bytes,
    /// Refuse if the shard's term is another one.
    #[prost(uint32, optional, tag = "3")]
    pub expected_term: Option<u32>,
}

/// One result for each item of an [`Append`], in its order.
#[derive(Clone, PartialEq, Message)]
pub struct Appends {
    /// The results.
    #[prost(message, repeated, tag = "1")]
    pub results: Vec<AppendResult>,
}

/// What became of one item.
#[derive(Clone, PartialEq, Message)]
pub struct AppendResult {
    /// Success or failure; a result without either is malformed.
    #[prost(oneof = "AppendOutcome", tags = "1, 2")]
    pub outcome: Option<AppendOutcome>,
}

/// What became of one item.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum AppendOutcome {
    /// It is durable, in the sense of the stream's durability.
    #[prost(message, tag = "1")]
    Appended(Appended),
    /// It was not appended, or it is not known whether it was; the code says which.
    #[prost(message, tag = "2")]
    Failed(CallFailure),
}

/// Where records went.
#[derive(Clone, PartialEq, Message)]
pub struct Appended {
    /// Offset of the first record.
    #[prost(uint64, tag = "1")]
    pub base_offset: u64,
    /// Offset of the last record.
    #[prost(uint64, tag = "2")]
    pub last_offset: u64,
    /// The shard's term.
    #[prost(uint32, tag = "3")]
    pub term: u32,
    /// When they were appended, in ms since the epoch.
    #[prost(int64, tag = "4")]
    pub append_time_ms: i64,
    /// Segment of the first record.
    #[prost(uint64, tag = "5")]
    pub segment: u64,
    /// Its entry in the segment.
    #[prost(uint64, tag = "6")]
    pub entry: u64,
    /// Its place in the entry.
    #[prost(uint32, tag = "7")]
    pub slot: u32,
}

/// Why something was refused.
#[derive(Clone, PartialEq, Message)]
pub struct CallFailure {
    /// [`CallErrorCode::number`].
    #[prost(uint32, tag = "1")]
    pub code: u32,
    /// In words, for a person.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// One segment.
#[derive(Clone, PartialEq, Message)]
pub struct SegmentRef {
    /// The stream's UUID, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub stream: Bytes,
    /// The shard.
    #[prost(uint32, tag = "2")]
    pub shard: u32,
    /// The segment.
    #[prost(uint64, tag = "3")]
    pub number: u64,
    /// Its term.
    #[prost(uint32, tag = "4")]
    pub term: u32,
}

/// Asks for bytes of a segment. The answer is short where the durable length ends or the node's limit is reached,
/// and empty exactly at the durable length.
#[derive(Clone, PartialEq, Message)]
pub struct ReadDurable {
    /// The segment.
    #[prost(message, optional, tag = "1")]
    pub segment: Option<SegmentRef>,
    /// First byte.
    #[prost(uint64, tag = "2")]
    pub position: u64,
    /// Most bytes.
    #[prost(uint32, tag = "3")]
    pub len: u32,
}

/// Asks for the segments of a shard from the one that holds an offset on.
#[derive(Clone, PartialEq, Message)]
pub struct Segments {
    /// The stream's UUID, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub stream: Bytes,
    /// The shard.
    #[prost(uint32, tag = "2")]
    pub shard: u32,
    /// The offset; below the shard's start it stands for the start.
    #[prost(uint64, tag = "3")]
    pub from_offset: u64,
    /// If set, the first segment wanted, whatever the offset; a removed one stands for the oldest left.
    #[prost(uint64, optional, tag = "4")]
    pub from_segment: Option<u64>,
}

/// Segments of a shard in order.
#[derive(Clone, PartialEq, Message)]
pub struct SegmentsReply {
    /// At most [`SEGMENTS_PER_REPLY_MAX`].
    #[prost(message, repeated, tag = "1")]
    pub segments: Vec<SegmentInfo>,
    /// There are more; ask again from the last one's `next_offset`.
    #[prost(bool, tag = "2")]
    pub more: bool,
    /// First offset of the shard that was not removed.
    #[prost(uint64, tag = "3")]
    pub log_start: u64,
}

/// One segment of a shard.
#[derive(Clone, PartialEq, Message)]
pub struct SegmentInfo {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Its term.
    #[prost(uint32, tag = "2")]
    pub term: u32,
    /// Offset of its first record.
    #[prost(uint64, tag = "3")]
    pub base_offset: u64,
    /// Offset after its last record; not set while it grows.
    #[prost(uint64, optional, tag = "4")]
    pub next_offset: Option<u64>,
    /// Its durable length in bytes.
    #[prost(uint64, tag = "5")]
    pub len: u64,
    /// Nothing will be appended to it any more.
    #[prost(bool, tag = "6")]
    pub sealed: bool,
    /// Transaction id of its first record, if it has one.
    #[prost(int64, optional, tag = "7")]
    pub first_transaction_id: Option<i64>,
    /// Transaction id of its last record, if it has one.
    #[prost(int64, optional, tag = "8")]
    pub last_transaction_id: Option<i64>,
    /// Size of its chunks.
    #[prost(uint32, tag = "9")]
    pub chunk_bytes: u32,
}

/// Asks where to begin reading a shard.
#[derive(Clone, PartialEq, Message)]
pub struct Locate {
    /// The stream's UUID, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub stream: Bytes,
    /// The shard.
    #[prost(uint32, tag = "2")]
    pub shard: u32,
    /// What to look for; not set is malformed.
    #[prost(oneof = "LocateWhat", tags = "3, 4, 5, 6, 7, 8, 9")]
    pub what: Option<LocateWhat>,
}

/// Where to begin.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum LocateWhat {
    /// The first record there is.
    #[prost(message, tag = "3")]
    Start(()),
    /// Behind the last record.
    #[prost(message, tag = "4")]
    End(()),
    /// The record with this offset.
    #[prost(uint64, tag = "5")]
    Offset(u64),
    /// The first record whose timestamp is at least this, in ms since the epoch.
    #[prost(int64, tag = "6")]
    TimeMs(i64),
    /// The first record whose transaction id is at least this.
    #[prost(int64, tag = "7")]
    TransactionId(i64),
    /// The record with these coordinates.
    #[prost(message, tag = "8")]
    Dlsn(DlsnInfo),
    /// So many records before the end.
    #[prost(uint64, tag = "9")]
    Last(u64),
}

/// A record's coordinates.
#[derive(Clone, PartialEq, Message)]
pub struct DlsnInfo {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// The entry in the segment.
    #[prost(uint64, tag = "2")]
    pub entry: u64,
    /// The record in the entry.
    #[prost(uint32, tag = "3")]
    pub slot: u32,
}

/// Where to begin reading: read entries from `position` on and skip the records below `offset`.
#[derive(Clone, PartialEq, Message)]
pub struct Location {
    /// The first record wanted.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    /// The segment that holds it, or will.
    #[prost(uint64, tag = "2")]
    pub segment: u64,
    /// Its term.
    #[prost(uint32, tag = "3")]
    pub term: u32,
    /// An entry begins here, at or before the record.
    #[prost(uint64, tag = "4")]
    pub position: u64,
    /// First offset of the shard that was not removed; above the offset asked for if that was removed.
    #[prost(uint64, tag = "5")]
    pub log_start: u64,
    /// Size of the segment's chunks.
    #[prost(uint32, tag = "6")]
    pub chunk_bytes: u32,
}

/// Asks for a producer id.
#[derive(Clone, PartialEq, Message)]
pub struct InitProducer {}

/// A producer id that nobody else has.
#[derive(Clone, PartialEq, Message)]
pub struct ProducerInfo {
    /// The id.
    #[prost(int64, tag = "1")]
    pub producer_id: i64,
    /// Its epoch, at most 32767.
    #[prost(uint32, tag = "2")]
    pub epoch: u32,
}

/// Tells how long records took to the caller's consumers since it told last: from each record's timestamp.
#[derive(Clone, PartialEq, Message)]
pub struct DeliveryDelays {
    /// How many took less than 2^15 ns, then less than 2^16 ns and so on, and at last 2^34 ns and more.
    #[prost(uint64, repeated, tag = "1")]
    pub counts: Vec<u64>,
    /// The sum of all, in ns.
    #[prost(uint64, tag = "2")]
    pub sum_ns: u64,
}

/// The node has counted them.
#[derive(Clone, PartialEq, Message)]
pub struct DelaysTaken {}

/// A stream's id as it is sent.
pub fn stream_to_wire(stream: StreamId) -> Bytes {
    Bytes::copy_from_slice(stream.0.as_bytes())
}

/// A stream's id as it was received.
pub fn stream_from_wire(bytes: &[u8]) -> Result<StreamId, CallDecodeError> {
    let uuid = Uuid::from_slice(bytes).map_err(|_| CallDecodeError::OutOfRange { field: "stream" })?;
    Ok(StreamId(uuid))
}

/// A term as it was received.
pub fn term_from_wire(term: u32) -> Result<Term, CallDecodeError> {
    if term <= TERM_MAX { Ok(Term(term)) } else { Err(CallDecodeError::OutOfRange { field: "term" }) }
}

/// An offset as it was received.
pub fn offset_from_wire(offset: u64) -> Result<Offset, CallDecodeError> {
    if offset <= OFFSET_MAX {
        Ok(Offset(offset))
    } else {
        Err(CallDecodeError::OutOfRange { field: "offset" })
    }
}

impl From<SegmentId> for SegmentRef {
    fn from(id: SegmentId) -> Self {
        Self {
            stream: stream_to_wire(id.shard.stream),
            shard: id.shard.shard.0,
            number: id.number.0,
            term: id.term.0,
        }
    }
}

impl TryFrom<&SegmentRef> for SegmentId {
    type Error = CallDecodeError;

    fn try_from(wire: &SegmentRef) -> Result<Self, CallDecodeError> {
        let shard = ShardId { stream: stream_from_wire(&wire.stream)?, shard: ShardNumber(wire.shard) };
        Ok(Self { shard, number: SegmentNumber(wire.number), term: term_from_wire(wire.term)? })
    }
}

impl From<Dlsn> for DlsnInfo {
    fn from(dlsn: Dlsn) -> Self {
        Self { segment: dlsn.segment.0, entry: dlsn.entry.0, slot: dlsn.slot.0 }
    }
}

impl From<&DlsnInfo> for Dlsn {
    fn from(wire: &DlsnInfo) -> Self {
        Self { segment: SegmentNumber(wire.segment), entry: EntryId(wire.entry), slot: SlotId(wire.slot) }
    }
}

impl Appended {
    /// Coordinates of the first record.
    pub fn dlsn(&self) -> Dlsn {
        Dlsn { segment: SegmentNumber(self.segment), entry: EntryId(self.entry), slot: SlotId(self.slot) }
    }
}

#[cfg(test)]
mod tests;
