//! What a reader can ask of the far side, whichever transport is in between.

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;

/// A region on one server: its place in the server's table. Each start of a server makes new regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

/// What a server says of one of its regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// Its name on this server.
    pub id: RegionId,
    /// Random per region and start: a read that names another one is refused.
    pub generation: u64,
    /// Its size in bytes.
    pub len: u64,
    /// What the application keeps in it, in the application's own numbering.
    pub kind: u16,
}

/// One READ: `len` bytes from `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOp {
    /// Where from.
    pub region: RegionId,
    /// The generation that the reader knows the region by.
    pub generation: u64,
    /// First byte.
    pub offset: u64,
    /// Number of bytes, at most [`crate::READ_BYTES_MAX`].
    pub len: u32,
}

/// One SCAR (scan and read): the far side scans a bucket and answers it together with the data it points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScarOp {
    /// Number of the bucket.
    pub bucket: u64,
    /// The key's hash, which the scan looks for.
    pub key_hash: u128,
    /// So many of the data's first bytes come apart from the others, so that the others of a batch lie next to each
    /// other: what a reader wants in one piece it then has without a copy.
    pub apart: u32,
}

/// What a SCAR brings back. Neither part is trusted more than a READ's bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScarReply {
    /// The bucket's bytes.
    pub bucket: Bytes,
    /// The first bytes that the matching index entry points at, as many as were asked for apart; empty if none matched.
    pub head: Bytes,
    /// Those behind them. They begin in `frame` where those of the operation before end, if one response brought both.
    pub data: Bytes,
    /// What all of it borrows from.
    pub frame: Bytes,
}

/// Why one READ or SCAR of a batch brought nothing; the others of the batch are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The range does not lie in the region, or is longer than a read may be.
    #[error("out of the region's bounds")]
    OutOfBounds,
    /// The region is not there any more, or has another generation: fetch the table again.
    #[error("no such region, or another generation of it")]
    StaleRegion,
    /// The transport or the server does not do this operation.
    #[error("not supported here")]
    Unsupported,
}

/// The connection is gone, and with it everything that was under way. Make a new one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("connection to {peer} lost: {reason}")]
pub struct ConnectionLost {
    /// The far side's address.
    pub peer: String,
    /// What ended it.
    pub reason: String,
}

/// What came of a batch of READs, a result for each operation.
pub type ReadResults = Result<Vec<Result<(), OpError>>, ConnectionLost>;

/// What came of a batch of SCARs, a result for each operation.
pub type ScarResults = Result<Vec<Result<ScarReply, OpError>>, ConnectionLost>;

/// Asserts what [`Connection::read`] asks of its caller.
///
/// # Panics
/// If `out` is not exactly as long as all operations together.
pub fn assert_fills(ops: &[ReadOp], out: &[u8]) {
    let total: u64 = ops.iter().map(|op| u64::from(op.len)).sum();
    assert_eq!(out.len() as u64, total, "the buffer is as long as all operations together");
}

/// Why a CALL has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The call may or may not have been carried out.
    #[error(transparent)]
    Lost(#[from] ConnectionLost),
    /// The far side has too much to do and did not begin; try again later.
    #[error("{peer} is overloaded")]
    Overloaded {
        /// The far side's address.
        peer: String,
    },
    /// The far side answered an application error, in the application's own encoding.
    #[error("application error {code}: {message}")]
    Refused {
        /// The application's number for it.
        code: u16,
        /// In words, for a person.
        message: String,
    },
}

/// The answer of a CALL.
pub type CallDone<'a> = BoxFuture<'a, Result<Bytes, CallError>>;

/// What a connection can do; a cache picks its way of looking up accordingly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// READs are plain memory reads: they take no round trip, and more and smaller ones are better than
    /// fewer and larger ones.
    pub memory: bool,
    /// The far side runs code, so that SCAR saves a round trip.
    pub scar: bool,
}

/// A connection to one server: one-sided READ, SCAR and WATCH, and two-sided CALL, for any number of tasks at
/// once. Cancelling a future abandons its answer, not the connection.
pub trait Connection: Send + Sync + 'static {
    /// The far side's address, for messages.
    fn peer(&self) -> &str;

    /// What the transport can do.
    fn capabilities(&self) -> Capabilities;

    /// The server's regions as it last told them.
    fn regions(&self) -> Vec<RegionInfo>;

    /// Reads a batch. The bytes of operation `i` begin in `out` where those of operation `i - 1` end, whether
    /// or not that one succeeded; the answer has one result for each operation.
    ///
    /// Bytes may be torn at any point and of any age: validate them.
    ///
    /// # Panics
    /// If `out` is not exactly as long as all operations together.
    fn read<'a>(&'a self, ops: &'a [ReadOp], out: &'a mut [u8]) -> BoxFuture<'a, ReadResults>;

    /// Scans and reads a batch, one result for each operation. Unless a transport says otherwise, it can't.
    fn scar<'a>(&'a self, ops: &'a [ScarOp]) -> BoxFuture<'a, ScarResults> {
        Box::pin(std::future::ready(Ok(vec![Err(OpError::Unsupported); ops.len()])))
    }

    /// Completes when the server's doorbell differs from `last_seen`, or after `deadline`, with the doorbell as
    /// it is then. Every transport looks at the word itself at least every [`crate::limits::LOOK_AGAIN_IDLE`], so that
    /// a wake which went missing costs no more than that, and `deadline` may be as long as the caller likes; a
    /// short one costs a timer each time.
    fn watch(&self, last_seen: u32, deadline: Duration) -> BoxFuture<'_, Result<u32, ConnectionLost>>;

    /// Asks the far side's application. `payload` is at most [`crate::CALL_BYTES_MAX`].
    fn call(&self, method: u16, payload: Bytes) -> CallDone<'_>;

    /// As [`Connection::call`], with a payload that is these pieces together: a socket is given those that are long
    /// from where they are.
    fn call_with_pieces(&self, method: u16, pieces: Vec<Bytes>) -> CallDone<'_> {
        self.call(method, pieces.concat().into())
    }

    /// Why the connection is gone, once it is.
    fn lost(&self) -> Option<ConnectionLost>;
}
