//! One growing file in two layers (Fast ACS): durable segments, and their hot tail as chunks in a cell.
//!
//! [`TailWriter`] is the writing half; [`TailReader`] the reading half, over any [`DurableSource`].

mod block;
mod budget;
mod cursor;
mod error;
mod feed;
mod fetch;
mod layer;
pub mod limits;
pub mod lock;
mod rate;
mod reader;
mod source;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod window;
mod writer;

use bytes::{BufMut, Bytes, BytesMut};
use tailwater_format::StreamId;

pub use block::{Block, BlockBatch, BlockEntry};
pub use cursor::{Cursor, Entries, Waiter};
pub use error::SourceError;
pub use feed::{FeedReadError, Place};
pub use reader::{ReaderConfig, ReaderConfigError, ReaderStats, TailReader};
pub use source::{DurableSource, FromSource, SourceSegment};
pub use writer::{Cells, TailWriter, WriterConfig, WriterStats};

/// The key of a page's lock in the metadata cell.
fn lock_key(stream: StreamId, page: u32) -> Bytes {
    let mut key = BytesMut::with_capacity(24);
    key.put_slice(b"lock");
    key.put_slice(stream.0.as_bytes());
    key.put_u32(page);
    key.freeze()
}
