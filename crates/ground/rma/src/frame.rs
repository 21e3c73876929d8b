//! The wire format: frames over a stream socket, requests one way and responses the other.
//!
//! Every frame stands by itself: a header, then a body whose length the header says. All numbers are
//! little-endian. A response carries the id of its request; responses come in any order.
//!
//! ```text
//! header   0  u32  length of the body, behind these 16 bytes
//!          4  u8   version of the format, 2
//!          5  u8   kind
//!          6  u16  argument: depends on the kind
//!          8  u64  request id, of the client's choice
//!
//! kind         argument     body
//! 0x01 HELLO   0            [u8; 4] "rma\0", u8 lowest version spoken, u8 highest,
//!                           u8 flags (1: the client logs in before anything else), u8 zero
//! 0x81         regions n    u8 version, u8 flags (1: SCAR is served, 2: files are passed, 4: FABRIC is answered,
//!                           8: log in, and say HELLO again), u16 zero, u32 doorbell,
//!                           n x { u32 region, u16 kind, u16 zero, u64 generation, u64 length }
//!                           If files are passed (Unix socket): the doorbell's page, then each region's memory
//!                           file, by SCM_RIGHTS with the first byte of this frame.
//! 0x02 READ    operations n n x { u32 region, u32 length, u64 generation, u64 offset }
//! 0x82         operations n n x u8 status, then the bytes of those with status 0, in order
//! 0x03 SCAR    operations n n x { u64 bucket, u128 key hash, u32 bytes of the data that come apart }
//! 0x83         operations n n x { u8 status, [u8; 3] zero, u32 bucket length, u32 data length },
//!                           then of each, in order, the bucket and the data's bytes that come apart, then of each the
//!                           rest of the data
//! 0x04 WATCH   0            u32 doorbell last seen, u32 deadline in ms
//! 0x84         0            u32 doorbell
//! 0x05 CALL    method       payload; where a login comes first it is one of method 17 until that is done
//! 0x85         0 done       answer
//!              1 refused    u16 code, message in UTF-8
//!              2 overloaded nothing
//! 0x06 FABRIC  0            nothing
//! 0x86         regions n    u16 length of the provider's name, u16 length of the endpoint's, u32 format of that,
//!                           n x { u32 1 if it has a key, u32 zero, u64 key, u64 base }, then both names: where and how
//!                           libfabric reads the regions
//!
//! status   0 done, 1 out of bounds, 2 stale region, 3 unsupported, 4 did not fit in the response: ask again
//! ```
//!
//! Nothing here trusts its input: a header is judged before its body is waited for, every count is checked
//! against the bytes that are there before anything is allocated for it, and an error is final: there is no way
//! to find the next frame behind a broken one.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

use crate::connection::{OpError, ReadOp, RegionId, RegionInfo, ScarOp, ScarReply};
use crate::limits::{
    BATCH_BYTES_MAX, BATCH_OPS_MAX, CALL_BYTES_MAX, FABRIC_NAME_BYTES_MAX, FABRIC_PROVIDER_BYTES_MAX,
    FRAME_BODY_MAX, REGIONS_MAX, WATCH_DEADLINE_MAX,
};
use crate::service::Refusal;

/// The version spoken here.
pub(crate) const VERSION: u8 = 2;
/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 16;
const MAGIC: [u8; 4] = *b"rma\0";
const HELLO_BYTES: usize = 8;
const HELLO_REPLY_BYTES: usize = 8;
const REGION_BYTES: usize = 24;
const READ_OP_BYTES: usize = 24;
const SCAR_OP_BYTES: usize = 28;
const WATCH_BYTES: usize = 8;
const WATCH_REPLY_BYTES: usize = 4;
const SCAR_RESULT_BYTES: usize = 12;
const REFUSAL_BYTES: usize = 2;
const FABRIC_REPLY_BYTES: usize = 8;
const REGION_KEY_BYTES: usize = 24;

const FLAG_SCAR: u8 = 1;
const FLAG_FILES: u8 = 2;
const FLAG_FABRIC: u8 = 4;
const FLAG_LOGIN: u8 = 8;

const FLAG_LOGS_IN: u8 = 1;

/// What a frame is; a response has the number of its request plus 0x80.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    Hello = 0x01,
    Read = 0x02,
    Scar = 0x03,
    Watch = 0x04,
    Call = 0x05,
    Fabric = 0x06,
    HelloReply = 0x81,
    ReadReply = 0x82,
    ScarReply = 0x83,
    WatchReply = 0x84,
    CallReply = 0x85,
    FabricReply = 0x86,
}

impl FrameKind {
    fn of(number: u8) -> Option<Self> {
        use FrameKind::*;
        let requests = [Hello, Read, Scar, Watch, Call, Fabric];
        let replies = [HelloReply, ReadReply, ScarReply, WatchReply, CallReply, FabricReply];
        requests.into_iter().chain(replies).find(|kind| *kind as u8 == number)
    }

    fn is_response(self) -> bool {
        self as u8 & 0x80 != 0
    }
}

/// How a CALL went, as a response's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
enum CallStatus {
    Done = 0,
    Refused = 1,
    Overloaded = 2,
}

/// How one operation of a batch went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Done = 0,
    OutOfBounds = 1,
    StaleRegion = 2,
    Unsupported = 3,
    Again = 4,
}

impl Status {
    fn of(number: u8) -> Result<Self, FrameError> {
        match number {
            0 => Ok(Self::Done),
            1 => Ok(Self::OutOfBounds),
            2 => Ok(Self::StaleRegion),
            3 => Ok(Self::Unsupported),
            4 => Ok(Self::Again),
            _ => Err(FrameError::Body("an unknown status")),
        }
    }
}

impl From<OpError> for Status {
    fn from(error: OpError) -> Self {
        match error {
            OpError::OutOfBounds => Self::OutOfBounds,
            OpError::StaleRegion => Self::StaleRegion,
            OpError::Unsupported => Self::Unsupported,
        }
    }
}

/// Why bytes are no frame that may be sent here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("version {0} of the format is not spoken here")]
    Version(u8),
    #[error("frame kind {0:#04x} is unknown, or goes the other way")]
    Kind(u8),
    #[error("a {kind:?} frame with argument {argument} and a body of {body} bytes")]
    Length { kind: FrameKind, argument: u16, body: u32 },
    #[error("malformed body: {0}")]
    Body(&'static str),
}

/// A frame's header, checked: the body's length is one that its kind and argument allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: FrameKind,
    pub(crate) argument: u16,
    pub(crate) request: u64,
    body: u32,
}

impl Header {
    fn parse(bytes: &[u8; HEADER_BYTES], side: Side) -> Result<Self, FrameError> {
        let mut at = &bytes[..];
        let body = at.get_u32_le();
        let version = at.get_u8();
        let number = at.get_u8();
        let argument = at.get_u16_le();
        let request = at.get_u64_le();
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let kind = FrameKind::of(number).filter(|kind| kind.is_response() == (side == Side::Responses));
        let kind = kind.ok_or(FrameError::Kind(number))?;
        let count = usize::from(argument);
        let batch = |ops: usize| (1..=BATCH_OPS_MAX).contains(&ops);
        let body_len = body as usize;
        let plausible = match kind {
            FrameKind::Hello => count == 0 && body_len == HELLO_BYTES,
            FrameKind::HelloReply => {
                count <= REGIONS_MAX && body_len == HELLO_REPLY_BYTES + count * REGION_BYTES
            }
            FrameKind::Read => batch(count) && body_len == count * READ_OP_BYTES,
            FrameKind::Scar => batch(count) && body_len == count * SCAR_OP_BYTES,
            FrameKind::ReadReply => batch(count) && (count..=count + BATCH_BYTES_MAX).contains(&body_len),
            FrameKind::ScarReply => {
                let results = count * SCAR_RESULT_BYTES;
                batch(count) && (results..=results + BATCH_BYTES_MAX).contains(&body_len)
            }
            FrameKind::Watch => count == 0 && body_len == WATCH_BYTES,
            FrameKind::WatchReply => count == 0 && body_len == WATCH_REPLY_BYTES,
            FrameKind::Call => body_len <= CALL_BYTES_MAX,
            FrameKind::CallReply => match count {
                0 => body_len <= CALL_BYTES_MAX,
                1 => (REFUSAL_BYTES..=FRAME_BODY_MAX).contains(&body_len),
                2 => body_len == 0,
                _ => false,
            },
            FrameKind::Fabric => count == 0 && body_len == 0,
            FrameKind::FabricReply => {
                let keys = FABRIC_REPLY_BYTES + count * REGION_KEY_BYTES;
                let names = FABRIC_PROVIDER_BYTES_MAX + FABRIC_NAME_BYTES_MAX;
                count <= REGIONS_MAX && (keys..=keys + names).contains(&body_len)
            }
        };
        if !plausible {
            return Err(FrameError::Length { kind, argument, body });
        }
        debug_assert!(body_len <= FRAME_BODY_MAX);
        Ok(Self { kind, argument, request, body })
    }
}

/// Which frames may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// At a server.
    Requests,
    /// At a client.
    Responses,
}

/// Bytes that the frame at the beginning of `buffer` still needs, as far as its header is there.
pub(crate) fn missing(buffer: &[u8]) -> usize {
    let body = buffer.first_chunk::<4>().map_or(0, |len| u32::from_le_bytes(*len) as usize);
    (HEADER_BYTES + body.min(FRAME_BODY_MAX)).saturating_sub(buffer.len())
}

/// Bytes in, frames out. Holds at most one frame's bytes and what was fed behind it.
#[derive(Debug)]
pub(crate) struct Decoder {
    side: Side,
    buffer: BytesMut,
}

impl Decoder {
    pub(crate) fn new(side: Side) -> Self {
        Self { side, buffer: BytesMut::new() }
    }

    /// Takes bytes as they came from the socket.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Where a socket may put bytes directly, behind those that are there.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Bytes that the frame under way still needs, as far as its header is there.
    pub(crate) fn missing(&self) -> usize {
        missing(&self.buffer)
    }

    /// Bytes that are held and belong to no frame handed out.
    pub(crate) fn held(&self) -> usize {
        self.buffer.len()
    }

    /// Memory held for them.
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// The next whole frame, or `None` until more bytes are fed. An error is final.
    pub(crate) fn next(&mut self) -> Result<Option<(Header, Bytes)>, FrameError> {
        let Some(bytes) = self.buffer.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let header = Header::parse(bytes, self.side)?;
        let whole = HEADER_BYTES + header.body as usize;
        if self.buffer.len() < whole {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(whole);
        if self.buffer.is_empty() && self.side == Side::Requests {
            // A server has many connections: one that is idle holds no memory. (A client gives what is left of its
            // buffer back by itself.)
            self.buffer = BytesMut::new();
        }
        frame.advance(HEADER_BYTES);
        Ok(Some((header, frame.freeze())))
    }
}

/// A request, its counts and lengths checked; what it asks for is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Hello { lowest: u8, highest: u8, logs_in: bool },
    Read(ReadOps),
    Scar(ScarOps),
    Watch { last_seen: u32, deadline: Duration },
    Call { method: u16, payload: Bytes },
    Fabric,
}

impl Request {
    /// What a person calls its frame.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "a HELLO",
            Self::Read(_) => "a READ",
            Self::Scar(_) => "a SCAR",
            Self::Watch { .. } => "a WATCH",
            Self::Call { .. } => "a CALL",
            Self::Fabric => "a FABRIC",
        }
    }

    /// Reads a request off its frame.
    pub(crate) fn parse(header: &Header, mut body: Bytes) -> Result<Self, FrameError> {
        match header.kind {
            FrameKind::Hello => {
                if body.split_to(MAGIC.len())[..] != MAGIC {
                    return Err(FrameError::Body("not a client of ours"));
                }
                let (lowest, highest) = (body.get_u8(), body.get_u8());
                Ok(Self::Hello { lowest, highest, logs_in: body.get_u8() & FLAG_LOGS_IN != 0 })
            }
            FrameKind::Read => Ok(Self::Read(ReadOps(body))),
            FrameKind::Scar => Ok(Self::Scar(ScarOps(body))),
            FrameKind::Watch => {
                let last_seen = body.get_u32_le();
                let deadline = Duration::from_millis(body.get_u32_le().into());
                Ok(Self::Watch { last_seen, deadline: deadline.min(WATCH_DEADLINE_MAX) })
            }
            FrameKind::Call => Ok(Self::Call { method: header.argument, payload: body }),
            FrameKind::Fabric => Ok(Self::Fabric),
            FrameKind::HelloReply
            | FrameKind::ReadReply
            | FrameKind::ScarReply
            | FrameKind::WatchReply
            | FrameKind::CallReply
            | FrameKind::FabricReply => Err(FrameError::Kind(header.kind as u8)),
        }
    }
}

/// The operations of a READ frame, still encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadOps(Bytes);

impl ReadOps {
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = ReadOp> + '_ {
        self.0.chunks_exact(READ_OP_BYTES).map(|mut at| {
            let region = RegionId(at.get_u32_le());
            let len = at.get_u32_le();
            let generation = at.get_u64_le();
            ReadOp { region, generation, offset: at.get_u64_le(), len }
        })
    }
}

/// The operations of a SCAR frame, still encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScarOps(Bytes);

impl ScarOps {
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = ScarOp> + '_ {
        self.0.chunks_exact(SCAR_OP_BYTES).map(|mut at| {
            let (bucket, key_hash) = (at.get_u64_le(), at.get_u128_le());
            ScarOp { bucket, key_hash, apart: at.get_u32_le() }
        })
    }
}

/// What a server says first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HelloReply {
    /// The version that both sides go on in.
    pub(crate) version: u8,
    /// SCAR is served.
    pub(crate) scar: bool,
    /// The descriptors of doorbell and regions come with this frame.
    pub(crate) files: bool,
    /// FABRIC is answered.
    pub(crate) fabric: bool,
    /// The client has to log in, and to say HELLO again. It is told of no regions before.
    pub(crate) login: bool,
    /// The doorbell at this moment.
    pub(crate) doorbell: u32,
    /// The region table.
    pub(crate) regions: Vec<RegionInfo>,
}

impl HelloReply {
    /// Reads it off the body of a frame whose argument says how many regions there are.
    pub(crate) fn parse(mut body: Bytes) -> Result<Self, FrameError> {
        let version = body.get_u8();
        let flags = body.get_u8();
        body.advance(2);
        let doorbell = body.get_u32_le();
        let mut regions = Vec::with_capacity(body.len() / REGION_BYTES);
        for mut at in body.chunks_exact(REGION_BYTES) {
            let id = RegionId(at.get_u32_le());
            let kind = at.get_u16_le();
            at.advance(2);
            let generation = at.get_u64_le();
            if id.0 as usize != regions.len() {
                return Err(FrameError::Body("regions out of order"));
            }
            regions.push(RegionInfo { id, generation, len: at.get_u64_le(), kind });
        }
        let has = |flag| flags & flag != 0;
        let (scar, files, fabric) = (has(FLAG_SCAR), has(FLAG_FILES), has(FLAG_FABRIC));
        Ok(Self { version, scar, files, fabric, login: has(FLAG_LOGIN), doorbell, regions })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>, request: u64) {
        let flags = [
            (self.scar, FLAG_SCAR),
            (self.files, FLAG_FILES),
            (self.fabric, FLAG_FABRIC),
            (self.login, FLAG_LOGIN),
        ];
        let flags = flags.into_iter().filter(|(has, _)| *has).fold(0, |flags, (_, flag)| flags | flag);
        let count = u16::try_from(self.regions.len()).expect("tables are limited");
        frame(out, FrameKind::HelloReply, count, request, |out| {
            out.extend_from_slice(&[self.version, flags, 0, 0]);
            out.extend_from_slice(&self.doorbell.to_le_bytes());
            for region in &self.regions {
                out.extend_from_slice(&region.id.0.to_le_bytes());
                out.extend_from_slice(&region.kind.to_le_bytes());
                out.extend_from_slice(&[0, 0]);
                out.extend_from_slice(&region.generation.to_le_bytes());
                out.extend_from_slice(&region.len.to_le_bytes());
            }
        });
    }
}

/// By what a region is read over libfabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionKey {
    /// Names the region's memory, and is the permission to read it.
    pub(crate) key: u64,
    /// What its offset 0 is called.
    pub(crate) base: u64,
}

/// Where and how libfabric reads a server's regions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FabricReply {
    /// libfabric's provider.
    pub(crate) provider: String,
    /// The format of the endpoint's name, in libfabric's numbering.
    pub(crate) format: u32,
    /// The endpoint's name.
    pub(crate) name: Vec<u8>,
    /// Of each region, in the order of the table; one without is read over TCP.
    pub(crate) keys: Vec<Option<RegionKey>>,
}

impl FabricReply {
    /// Reads it off the body of a frame whose argument says how many regions there are.
    #[cfg_attr(not(feature = "ofi"), allow(dead_code))]
    pub(crate) fn parse(header: &Header, mut body: Bytes) -> Result<Self, FrameError> {
        let (provider, name) = (usize::from(body.get_u16_le()), usize::from(body.get_u16_le()));
        let format = body.get_u32_le();
        let keys = body.split_to(usize::from(header.argument) * REGION_KEY_BYTES);
        let keys = keys.chunks_exact(REGION_KEY_BYTES).map(|mut at| {
            let has_key = at.get_u32_le() == 1;
            at.advance(4);
            let key = RegionKey { key: at.get_u64_le(), base: at.get_u64_le() };
            has_key.then_some(key)
        });
        let keys = keys.collect();
        if body.len() != provider + name || name > FABRIC_NAME_BYTES_MAX {
            return Err(FrameError::Body("names of other lengths than promised"));
        }
        let provider = std::str::from_utf8(&body.split_to(provider))
            .map_err(|_| FrameError::Body("a provider's name that is no text"))?
            .to_owned();
        Ok(Self { provider, format, name: body.to_vec(), keys })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>, request: u64) {
        let count = u16::try_from(self.keys.len()).expect("tables are limited");
        let len = |bytes: &[u8]| u16::try_from(bytes.len()).expect("names are limited").to_le_bytes();
        frame(out, FrameKind::FabricReply, count, request, |out| {
            out.extend_from_slice(&len(self.provider.as_bytes()));
            out.extend_from_slice(&len(&self.name));
            out.extend_from_slice(&self.format.to_le_bytes());
            for key in &self.keys {
                let RegionKey { key: number, base } = key.unwrap_or(RegionKey { key: 0, base: 0 });
                out.extend_from_slice(&u32::from(key.is_some()).to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(&base.to_le_bytes());
            }
            out.extend_from_slice(self.provider.as_bytes());
            out.extend_from_slice(&self.name);
        });
    }
}

/// Appends the header of a frame whose body of `len` bytes follows.
pub(crate) fn header(out: &mut Vec<u8>, kind: FrameKind, argument: u16, request: u64, len: usize) {
    debug_assert!(len <= FRAME_BODY_MAX);
    let len = u32::try_from(len).expect("bodies are limited");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&[VERSION, kind as u8]);
    out.extend_from_slice(&argument.to_le_bytes());
    out.extend_from_slice(&request.to_le_bytes());
}

/// Appends a frame whose body `body` appends.
pub(crate) fn frame(
    out: &mut Vec<u8>,
    kind: FrameKind,
    argument: u16,
    request: u64,
    body: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    header(out, kind, argument, request, 0);
    body(out);
    let len = out.len() - start - HEADER_BYTES;
    debug_assert!(len <= FRAME_BODY_MAX);
    let len = u32::try_from(len).expect("bodies are limited");
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

pub(crate) fn encode_hello(out: &mut Vec<u8>, request: u64) {
    hello(out, request, 0);
}

/// The HELLO of a client that logs in before anything else.
pub(crate) fn encode_hello_to_log_in(out: &mut Vec<u8>, request: u64) {
    hello(out, request, FLAG_LOGS_IN);
}

fn hello(out: &mut Vec<u8>, request: u64, flags: u8) {
    frame(out, FrameKind::Hello, 0, request, |out| {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, VERSION, flags, 0]);
    });
}

/// A READ of at most [`BATCH_OPS_MAX`] operations and [`BATCH_BYTES_MAX`] bytes together.
pub(crate) fn encode_read(out: &mut Vec<u8>, request: u64, ops: &[ReadOp]) {
    let count = u16::try_from(ops.len()).expect("batches are limited");
    frame(out, FrameKind::Read, count, request, |out| {
        out.reserve(ops.len() * READ_OP_BYTES);
        for op in ops {
            out.extend_from_slice(&op.region.0.to_le_bytes());
            out.extend_from_slice(&op.len.to_le_bytes());
            out.extend_from_slice(&op.generation.to_le_bytes());
            out.extend_from_slice(&op.offset.to_le_bytes());
        }
    });
}

/// A SCAR of at most [`BATCH_OPS_MAX`] operations.
pub(crate) fn encode_scar(out: &mut Vec<u8>, request: u64, ops: &[ScarOp]) {
    let count = u16::try_from(ops.len()).expect("batches are limited");
    frame(out, FrameKind::Scar, count, request, |out| {
        out.reserve(ops.len() * SCAR_OP_BYTES);
        for op in ops {
            out.extend_from_slice(&op.bucket.to_le_bytes());
            out.extend_from_slice(&op.key_hash.to_le_bytes());
            out.extend_from_slice(&op.apart.to_le_bytes());
        }
    });
}

pub(crate) fn encode_watch(out: &mut Vec<u8>, request: u64, last_seen: u32, deadline: Duration) {
    let deadline_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
    frame(out, FrameKind::Watch, 0, request, |out| {
        out.extend_from_slice(&last_seen.to_le_bytes());
        out.extend_from_slice(&deadline_ms.to_le_bytes());
    });
}

/// Asks where and how libfabric reads the regions.
#[cfg_attr(not(feature = "ofi"), allow(dead_code))]
pub(crate) fn encode_fabric(out: &mut Vec<u8>, request: u64) {
    header(out, FrameKind::Fabric, 0, request, 0);
}

pub(crate) fn encode_watch_reply(out: &mut Vec<u8>, request: u64, doorbell: u32) {
    frame(out, FrameKind::WatchReply, 0, request, |out| out.extend_from_slice(&doorbell.to_le_bytes()));
}

/// The header of a CALL, whose payload of at most [`CALL_BYTES_MAX`] follows.
pub(crate) fn encode_call(out: &mut Vec<u8>, request: u64, method: u16, payload_bytes: usize) {
    header(out, FrameKind::Call, method, request, payload_bytes);
}

/// What a server answers to a CALL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallAnswer {
    Done(Bytes),
    Refused(Refusal),
    Overloaded,
}

impl CallAnswer {
    /// Bytes that its frame takes.
    pub(crate) fn frame_bytes(&self) -> usize {
        HEADER_BYTES
            + match self {
                Self::Done(bytes) => bytes.len(),
                Self::Refused(refusal) => REFUSAL_BYTES + refusal.message.len(),
                Self::Overloaded => 0,
            }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>, request: u64) {
        let status = match self {
            Self::Done(_) => CallStatus::Done,
            Self::Refused(_) => CallStatus::Refused,
            Self::Overloaded => CallStatus::Overloaded,
        };
        frame(out, FrameKind::CallReply, status as u16, request, |out| match self {
            Self::Done(bytes) => out.extend_from_slice(bytes),
            Self::Refused(refusal) => {
                out.extend_from_slice(&refusal.code.to_le_bytes());
                let message = refusal.message.as_bytes();
                out.extend_from_slice(&message[..message.len().min(CALL_BYTES_MAX)]);
            }
            Self::Overloaded => {}
        });
    }

    /// Reads it off its frame.
    pub(crate) fn parse(header: &Header, mut body: Bytes) -> Result<Self, FrameError> {
        match header.argument {
            0 => Ok(Self::Done(body)),
            1 => {
                let code = body.get_u16_le();
                Ok(Self::Refused(Refusal { code, message: String::from_utf8_lossy(&body).into_owned() }))
            }
            2 => Ok(Self::Overloaded),
            _ => Err(FrameError::Body("an unknown outcome of a call")),
        }
    }
}

/// Reads the value of a WATCH response off its body.
pub(crate) fn parse_watch_reply(mut body: Bytes) -> u32 {
    body.get_u32_le()
}

/// Copies the answer to a READ of `ops` into `out`, which is as long as all of them together.
pub(crate) fn unpack_read(
    header: &Header,
    body: &[u8],
    ops: &[ReadOp],
    out: &mut [u8],
    results: &mut Vec<Result<(), OpError>>,
) -> Result<(), FrameError> {
    if usize::from(header.argument) != ops.len() {
        return Err(FrameError::Body("as many results as operations are due"));
    }
    let (statuses, mut data) = body.split_at(ops.len());
    let mut rest = out;
    for (status, op) in statuses.iter().zip(ops) {
        let (part, behind) = rest.split_at_mut(op.len as usize);
        rest = behind;
        let result = match Status::of(*status)? {
            Status::Done => {
                let Some((bytes, behind)) = data.split_at_checked(part.len()) else {
                    return Err(FrameError::Body("fewer bytes than the results promise"));
                };
                part.copy_from_slice(bytes);
                data = behind;
                Ok(())
            }
            Status::OutOfBounds => Err(OpError::OutOfBounds),
            Status::StaleRegion => Err(OpError::StaleRegion),
            Status::Unsupported => Err(OpError::Unsupported),
            Status::Again => return Err(FrameError::Body("a read always fits")),
        };
        results.push(result);
    }
    if !data.is_empty() {
        return Err(FrameError::Body("more bytes than the results promise"));
    }
    Ok(())
}

/// Appends the result of one operation of a SCAR; all of them stand before the bytes.
pub(crate) fn put_scar_result(out: &mut Vec<u8>, status: Status, bucket: u32, data: u32) {
    out.extend_from_slice(&[status as u8, 0, 0, 0]);
    out.extend_from_slice(&bucket.to_le_bytes());
    out.extend_from_slice(&data.to_le_bytes());
}

/// Bytes of the results of a SCAR of `count` operations.
pub(crate) fn scar_results_bytes(count: usize) -> usize {
    count * SCAR_RESULT_BYTES
}

/// Reads the answer to a SCAR of `ops`; `None` stands for those to ask again.
pub(crate) fn unpack_scar(
    header: &Header,
    body: &Bytes,
    ops: &[ScarOp],
) -> Result<Vec<Option<Result<ScarReply, OpError>>>, FrameError> {
    if usize::from(header.argument) != ops.len() {
        return Err(FrameError::Body("as many results as operations are due"));
    }
    // Where the buckets, and what comes apart, go on, and where the rest of the data begins.
    let mut near = scar_results_bytes(ops.len());
    let lengths = |mut at: &[u8]| {
        let status = at.get_u8();
        at.advance(3);
        (status, at.get_u32_le() as usize, at.get_u32_le() as usize)
    };
    let results = body[..near].chunks_exact(SCAR_RESULT_BYTES).map(lengths);
    let apart = |op: &ScarOp, data: usize| data.min(op.apart as usize);
    let mut far = near;
    for ((status, bucket, data), op) in results.clone().zip(ops) {
        if Status::of(status)? == Status::Done {
            far = far.saturating_add(bucket).saturating_add(apart(op, data));
        }
    }
    let take = |at: &mut usize, len: usize| {
        let begin = *at;
        *at = at.checked_add(len).filter(|end| *end <= body.len())?;
        Some(body.slice(begin..*at))
    };
    let mut replies = Vec::with_capacity(ops.len());
    for ((status, bucket, data), op) in results.zip(ops) {
        replies.push(match Status::of(status)? {
            Status::Done => {
                let head = apart(op, data);
                let parts = (take(&mut near, bucket), take(&mut near, head), take(&mut far, data - head));
                let (Some(bucket), Some(head), Some(data)) = parts else {
                    return Err(FrameError::Body("fewer bytes than the results promise"));
                };
                Some(Ok(ScarReply { bucket, head, data, frame: body.clone() }))
            }
            Status::OutOfBounds => Some(Err(OpError::OutOfBounds)),
            Status::StaleRegion => Some(Err(OpError::StaleRegion)),
            Status::Unsupported => Some(Err(OpError::Unsupported)),
            Status::Again => None,
        });
    }
    if far != body.len() {
        return Err(FrameError::Body("more bytes than the results promise"));
    }
    if matches!(replies.first(), Some(None)) {
        return Err(FrameError::Body("not even the first of a batch was carried out"));
    }
    Ok(replies)
}

#[cfg(test)]
mod tests;
