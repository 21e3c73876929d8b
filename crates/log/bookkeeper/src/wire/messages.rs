//! The messages of `BookkeeperProtocol.proto` that are used here, written by hand so that no build needs `protoc`.
//! Fields that are not used are left out: a reader skips them.

use bytes::Bytes;
use prost::Message;

pub(crate) const VERSION: i32 = 3;

pub(crate) const OPERATION_READ: i32 = 1;
pub(crate) const OPERATION_ADD: i32 = 2;
pub(crate) const OPERATION_AUTH: i32 = 5;
pub(crate) const OPERATION_WRITE_LAC: i32 = 6;
pub(crate) const OPERATION_READ_LAC: i32 = 7;
pub(crate) const OPERATION_START_TLS: i32 = 9;

/// Of a [`ReadPacket`]: no more entries are taken but a recovery's.
pub(crate) const FLAG_FENCE: i32 = 1;
/// Of a [`ReadPacket`]: with the LAC, the entry behind the one that is known.
pub(crate) const FLAG_PIGGYBACK: i32 = 2;
/// Of an [`AddPacket`]: of a recovery.
pub(crate) const FLAG_RECOVERY_ADD: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderPacket {
    #[prost(int32, required, tag = "1")]
    pub(crate) version: i32,
    #[prost(int32, required, tag = "2")]
    pub(crate) operation: i32,
    #[prost(uint64, required, tag = "3")]
    pub(crate) number: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestPacket {
    #[prost(message, required, tag = "1")]
    pub(crate) header: HeaderPacket,
    #[prost(message, optional, tag = "100")]
    pub(crate) read: Option<ReadPacket>,
    #[prost(message, optional, tag = "101")]
    pub(crate) add: Option<AddPacket>,
    #[prost(message, optional, tag = "102")]
    pub(crate) auth: Option<AuthPacket>,
    #[prost(message, optional, tag = "103")]
    pub(crate) write_lac: Option<WriteLacPacket>,
    #[prost(message, optional, tag = "104")]
    pub(crate) read_lac: Option<ReadLacPacket>,
    #[prost(message, optional, tag = "106")]
    pub(crate) start_tls: Option<StartTlsPacket>,
}

/// A step of a login, from either side.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthPacket {
    #[prost(string, required, tag = "1")]
    pub(crate) plugin: String,
    #[prost(bytes = "bytes", required, tag = "2")]
    pub(crate) payload: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StartTlsPacket {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReadPacket {
    #[prost(int64, required, tag = "1")]
    pub(crate) ledger: i64,
    #[prost(int64, required, tag = "2")]
    pub(crate) entry: i64,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(crate) key: Option<Bytes>,
    #[prost(int64, optional, tag = "4")]
    pub(crate) previous_lac: Option<i64>,
    #[prost(int64, optional, tag = "5")]
    pub(crate) wait_ms: Option<i64>,
    #[prost(int32, optional, tag = "100")]
    pub(crate) flag: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AddPacket {
    #[prost(int64, required, tag = "1")]
    pub(crate) ledger: i64,
    #[prost(int64, required, tag = "2")]
    pub(crate) entry: i64,
    #[prost(bytes = "bytes", required, tag = "3")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", required, tag = "4")]
    pub(crate) body: Bytes,
    #[prost(int32, optional, tag = "100")]
    pub(crate) flag: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WriteLacPacket {
    #[prost(int64, required, tag = "1")]
    pub(crate) ledger: i64,
    #[prost(int64, required, tag = "2")]
    pub(crate) lac: i64,
    #[prost(bytes = "bytes", required, tag = "3")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", required, tag = "4")]
    pub(crate) body: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReadLacPacket {
    #[prost(int64, required, tag = "1")]
    pub(crate) ledger: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponsePacket {
    #[prost(message, required, tag = "1")]
    pub(crate) header: HeaderPacket,
    #[prost(int32, required, tag = "2")]
    pub(crate) status: i32,
    #[prost(message, optional, tag = "100")]
    pub(crate) read: Option<ReadResponse>,
    #[prost(message, optional, tag = "101")]
    pub(crate) add: Option<AddResponse>,
    #[prost(message, optional, tag = "102")]
    pub(crate) auth: Option<AuthPacket>,
    #[prost(message, optional, tag = "103")]
    pub(crate) write_lac: Option<WriteLacResponse>,
    #[prost(message, optional, tag = "104")]
    pub(crate) read_lac: Option<ReadLacResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReadResponse {
    #[prost(int32, required, tag = "1")]
    pub(crate) status: i32,
    #[prost(int64, required, tag = "3")]
    pub(crate) entry: i64,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(crate) body: Option<Bytes>,
    #[prost(int64, optional, tag = "5")]
    pub(crate) max_lac: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AddResponse {
    #[prost(int32, required, tag = "1")]
    pub(crate) status: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WriteLacResponse {
    #[prost(int32, required, tag = "1")]
    pub(crate) status: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReadLacResponse {
    #[prost(int32, required, tag = "1")]
    pub(crate) status: i32,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(crate) explicit: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(crate) last: Option<Bytes>,
}
