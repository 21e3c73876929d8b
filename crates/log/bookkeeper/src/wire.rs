//! The bookie protocol, version 3: frames of a length and a protobuf message, many on their way at once.
//!
//! ```text
//!  0         4
//!  | length  | message ...
//!  |   u32   | length bytes: `RequestPacket` to a bookie, `ResponsePacket` from it
//! ```
//!
//! An answer has its request's number. Nothing that a bookie sends makes this panic: it is an answer, an error of its
//! request, or a [`FrameFault`] that ends the connection.

pub(crate) mod messages;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use crate::batches::put_batch_request;
use crate::ids::EntryId;
use crate::limits::FRAME_BYTES_MAX;
use crate::protocol::{BookieAnswer, BookieError, BookieRequest};

use messages::{
    AddPacket, FLAG_FENCE, FLAG_PIGGYBACK, FLAG_RECOVERY_ADD, HeaderPacket, OPERATION_ADD, OPERATION_READ,
    OPERATION_READ_LAC, OPERATION_WRITE_LAC, ReadLacPacket, ReadPacket, RequestPacket, ResponsePacket,
    VERSION, WriteLacPacket,
};

/// Room that is made for the rest of a frame at least.
const RESERVED_BYTES_MIN: usize = 64 << 10;

/// Why a connection's bytes can't be followed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// A length that no bookie sends.
    #[error("a frame of {0} bytes, of {FRAME_BYTES_MAX} at most")]
    Length(usize),
    /// Not a message.
    #[error("a frame that is no response")]
    Message,
}

/// An answer with the number of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedAnswer {
    /// The number that [`put_request`] was given.
    pub number: u64,
    /// What came of it.
    pub result: Result<BookieAnswer, BookieError>,
}

/// Appends a request's frame to `to`.
pub fn put_request(number: u64, request: &BookieRequest, to: &mut BytesMut) {
    if let Some(packet) = packet_of(number, request, to) {
        put_packet(&packet, to);
    }
}

/// Appends a message's frame to `to`.
pub(crate) fn put_packet(packet: &RequestPacket, to: &mut BytesMut) {
    let length = packet.encoded_len();
    to.reserve(4 + length);
    // Entries are bounded far below 4 GiB.
    to.put_u32(u32::try_from(length).expect("a request is an entry at most"));
    packet.encode(to).expect("a buffer grows");
}

/// The message of a request. One that version 3 has no message for is put into `to` as it is.
fn packet_of(number: u64, request: &BookieRequest, to: &mut BytesMut) -> Option<RequestPacket> {
    let header = |operation| HeaderPacket { version: VERSION, operation, number };
    Some(match request {
        BookieRequest::Add { ledger, entry, packet, key, recovery } => RequestPacket {
            header: header(OPERATION_ADD),
            add: Some(AddPacket {
                ledger: ledger.get(),
                entry: entry.get(),
                key: key.bytes(),
                body: packet.clone(),
                flag: recovery.then_some(FLAG_RECOVERY_ADD),
            }),
            ..RequestPacket::default()
        },
        BookieRequest::Read { ledger, entry, fence } => RequestPacket {
            header: header(OPERATION_READ),
            read: Some(ReadPacket {
                ledger: ledger.get(),
                entry: entry.get(),
                flag: fence.as_ref().map(|_| FLAG_FENCE),
                key: fence.as_ref().map(|key| key.bytes()),
                ..ReadPacket::default()
            }),
            ..RequestPacket::default()
        },
        BookieRequest::ReadBatch { ledger, first, count_max, bytes_max } => {
            put_batch_request(number, *ledger, *first, *count_max, *bytes_max, to);
            return None;
        }
        BookieRequest::Poll { ledger, previous, wait_ms } => RequestPacket {
            header: header(OPERATION_READ),
            read: Some(ReadPacket {
                ledger: ledger.get(),
                // The entry is the one behind `previous`, and has to be left open.
                entry: EntryId::NONE.get(),
                flag: Some(FLAG_PIGGYBACK),
                previous_lac: Some(previous.get()),
                wait_ms: Some(i64::try_from(*wait_ms).unwrap_or(i64::MAX)),
                ..ReadPacket::default()
            }),
            ..RequestPacket::default()
        },
        BookieRequest::ReadLac { ledger } => RequestPacket {
            header: header(OPERATION_READ_LAC),
            read_lac: Some(ReadLacPacket { ledger: ledger.get() }),
            ..RequestPacket::default()
        },
        BookieRequest::WriteLac { ledger, lac, packet, key } => RequestPacket {
            header: header(OPERATION_WRITE_LAC),
            write_lac: Some(WriteLacPacket {
                ledger: ledger.get(),
                lac: lac.get(),
                key: key.bytes(),
                body: packet.clone(),
            }),
            ..RequestPacket::default()
        },
    })
}

/// Takes the first answer to a request out of `from`, once it is there whole.
pub fn take_response(from: &mut BytesMut) -> Result<Option<NumberedAnswer>, FrameFault> {
    let packet = take_packet(from)?;
    Ok(packet.map(|packet| NumberedAnswer { number: packet.header.number, result: answer_of(packet) }))
}

/// Takes the first message out of `from`, once it is there whole.
pub(crate) fn take_packet(from: &mut BytesMut) -> Result<Option<ResponsePacket>, FrameFault> {
    let Some(frame) = take_frame(from)? else { return Ok(None) };
    ResponsePacket::decode(frame).map(Some).map_err(|_| FrameFault::Message)
}

/// Takes the bytes of the first frame out of `from`, once they are all there.
pub(crate) fn take_frame(from: &mut BytesMut) -> Result<Option<Bytes>, FrameFault> {
    let Some(mut length) = from.get(..4) else { return Ok(None) };
    let length = length.get_u32() as usize;
    if length > FRAME_BYTES_MAX {
        return Err(FrameFault::Length(length));
    }
    if from.len() < 4 + length {
        // In steps that double: what a frame says of its length is not believed before as much is there.
        from.reserve((4 + length - from.len()).min(from.len().max(RESERVED_BYTES_MIN)));
        return Ok(None);
    }
    from.advance(4);
    Ok(Some(from.split_to(length).freeze()))
}

fn answer_of(packet: ResponsePacket) -> Result<BookieAnswer, BookieError> {
    const MISSING: BookieError = BookieError::Malformed("a part is missing");
    let missing = |status| check(status).err().unwrap_or(MISSING);
    match packet.header.operation {
        OPERATION_ADD => {
            let add = packet.add.ok_or_else(|| missing(packet.status))?;
            check(add.status).map(|()| BookieAnswer::Added)
        }
        OPERATION_READ => {
            let read = packet.read.ok_or_else(|| missing(packet.status))?;
            check(read.status)?;
            Ok(BookieAnswer::Entry { packet: read.body, lac: read.max_lac.map(EntryId::new) })
        }
        OPERATION_READ_LAC => {
            let lac = packet.read_lac.ok_or_else(|| missing(packet.status))?;
            check(lac.status)?;
            let filled = |bytes: Option<Bytes>| bytes.filter(|bytes| !bytes.is_empty());
            Ok(BookieAnswer::Lac { explicit: filled(lac.explicit), last: filled(lac.last) })
        }
        OPERATION_WRITE_LAC => {
            let lac = packet.write_lac.ok_or_else(|| missing(packet.status))?;
            check(lac.status).map(|()| BookieAnswer::LacWritten)
        }
        _ => Err(missing(packet.status)),
    }
}

/// The statuses of `BookkeeperProtocol.proto`.
fn check(status: i32) -> Result<(), BookieError> {
    Err(match status {
        0 => return Ok(()),
        402 => BookieError::NoLedger,
        403 => BookieError::NoEntry,
        502 => BookieError::Unauthorized,
        504 => BookieError::Fenced,
        505 => BookieError::ReadOnly,
        506 => BookieError::Overloaded,
        other => BookieError::Refused(other),
    })
}

#[cfg(test)]
mod tests;
