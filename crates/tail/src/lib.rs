//! One growing file in two layers (Fast ACS): durable segments, and their hot tail as chunks in a cell.
//!
//! [`TailWriter`] is the writing half; [`TailReader`] the reading half, over any [`DurableSource`].

mod error;
mod layer;
pub mod limits;
pub mod lock;
mod source;
mod writer;

use bytes::{BufMut, Bytes, BytesMut};
use tailwater_format::StreamId;

pub use error::SourceError;
pub use source::{DurableSource, SegmentInfo};
pub use writer::{Cells, TailWriter, WriterStats};

/// The key of a page's lock in the metadata cell.
fn lock_key(stream: StreamId, page: u32) -> Bytes {
    let mut key = BytesMut::with_capacity(24);
    key.put_slice(b"lock");
    key.put_slice(stream.0.as_bytes());
    key.put_u32(page);
    key.freeze()
}
