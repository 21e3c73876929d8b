//! The pieces that messages and files are made of. All numbers are little-endian.
//!
//! ```text
//! stream   u8 length, its bytes
//! batch    u64 after, u64 last, u32 count, state (u64 time, u8 collection, its argument as in an event),
//!          u32 length, the encoded events
//! position u64 lineage, u64 number
//! list     u32 count, then the items
//! ```

use bytes::{BufMut, Bytes, BytesMut};

use crate::batch::{self, Batch};
use crate::name::Stream;
use crate::positions::Position;

/// Bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct BadMessage(pub String);

impl BadMessage {
    fn cut(what: &str) -> Self {
        Self(format!("{what} is cut off"))
    }
}

/// Takes pieces from the front of a message's bytes; what it answers are slices of them.
#[derive(Debug)]
pub struct Reader {
    rest: Bytes,
}

impl Reader {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: Bytes) -> Self {
        Self { rest: bytes }
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<Bytes, BadMessage> {
        if len > self.rest.len() {
            return Err(BadMessage::cut("a field"));
        }
        Ok(self.rest.split_to(len))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadMessage> {
        let bytes = self.bytes(N)?;
        Ok(std::array::from_fn(|at| bytes[at]))
    }

    /// A u8.
    pub fn u8(&mut self) -> Result<u8, BadMessage> {
        Ok(self.array::<1>()?[0])
    }

    /// A u16.
    pub fn u16(&mut self) -> Result<u16, BadMessage> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// A u32.
    pub fn u32(&mut self) -> Result<u32, BadMessage> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A u64.
    pub fn u64(&mut self) -> Result<u64, BadMessage> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A u128.
    pub fn u128(&mut self) -> Result<u128, BadMessage> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    /// A list's items. Each takes at least `least` bytes, and so many have to be there for the count before
    /// anything is allocated.
    pub fn list<T>(
        &mut self,
        least: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, BadMessage>,
    ) -> Result<Vec<T>, BadMessage> {
        let count = self.u32()? as usize;
        if count.saturating_mul(least.max(1)) > self.rest.len() {
            return Err(BadMessage::cut("a list"));
        }
        (0..count).map(|_| item(self)).collect()
    }

    /// A text of at most 255 bytes.
    pub fn text(&mut self) -> Result<String, BadMessage> {
        let len = self.u8()?;
        let bytes = self.bytes(usize::from(len))?;
        String::from_utf8(bytes.into()).map_err(|_| BadMessage("a text is not UTF-8".to_owned()))
    }

    /// A stream's name.
    pub fn stream(&mut self) -> Result<Stream, BadMessage> {
        Stream::parse(&self.text()?).map_err(|error| BadMessage(error.to_string()))
    }

    /// A position.
    pub fn position(&mut self) -> Result<Position, BadMessage> {
        Ok(Position { lineage: self.u64()?, seq: self.u64()? })
    }

    /// A batch; it is [checked](Batch::check).
    pub fn batch(&mut self) -> Result<Batch, BadMessage> {
        let (after, last, count) = (self.u64()?, self.u64()?, self.u32()?);
        let mut rest: &[u8] = &self.rest;
        let state = batch::take_state(&mut rest).map_err(|error| BadMessage(error.to_string()))?;
        let passed = self.rest.len() - rest.len();
        let _ = self.rest.split_to(passed);
        let len = self.u32()? as usize;
        let batch = Batch { after, last, count, state, bytes: self.bytes(len)? };
        batch.check().map_err(|error| BadMessage(error.to_string()))?;
        Ok(batch)
    }

    /// That nothing is left.
    pub fn end(self) -> Result<(), BadMessage> {
        if self.rest.is_empty() { Ok(()) } else { Err(BadMessage("it has bytes too many".to_owned())) }
    }
}

/// Appends a text.
///
/// # Panics
/// If it has more than 255 bytes.
pub fn put_text(out: &mut BytesMut, text: &str) {
    out.put_u8(u8::try_from(text.len()).expect("a text of at most 255 bytes"));
    out.put_slice(text.as_bytes());
}

/// Appends a stream's name.
pub fn put_stream(out: &mut BytesMut, stream: &Stream) {
    put_text(out, stream.as_str());
}

/// Appends a position.
pub fn put_position(out: &mut BytesMut, position: Position) {
    out.put_u64_le(position.lineage);
    out.put_u64_le(position.seq);
}

/// Appends a batch.
pub fn put_batch(out: &mut BytesMut, batch: &Batch) {
    put_batch_with(out, batch, &mut put_bytes);
}

/// As [`put_batch`]; `place` puts its events' bytes where they belong, or answers how many of them it has not.
pub fn put_batch_with(
    out: &mut BytesMut,
    batch: &Batch,
    place: &mut impl FnMut(&mut BytesMut, &Bytes) -> usize,
) -> usize {
    out.put_u64_le(batch.after);
    out.put_u64_le(batch.last);
    out.put_u32_le(batch.count);
    batch::put_state(out, &batch.state);
    out.put_u32_le(batch.bytes.len() as u32);
    place(out, &batch.bytes)
}

/// Appends bytes, all of them.
pub fn put_bytes(out: &mut BytesMut, bytes: &Bytes) -> usize {
    out.put_slice(bytes);
    0
}

/// Appends a list.
pub fn put_list<T>(out: &mut BytesMut, items: &[T], mut item: impl FnMut(&mut BytesMut, &T)) {
    out.put_u32_le(items.len() as u32);
    for each in items {
        item(out, each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collect, Content, Writer};

    #[test]
    fn pieces_come_back_and_cut_ones_are_refused() {
        let mut writer = Writer::new(41);
        let content = Content { payload: Bytes::from_static(b"x"), ..Content::default() };
        writer.publish(&content, Some(&Collect::Before(7))).unwrap();
        let batch = writer.finish(50);
        let stream = Stream::parse("eu/prices").unwrap();
        let mut out = BytesMut::new();
        put_stream(&mut out, &stream);
        put_batch(&mut out, &batch);
        put_list(&mut out, &[1u64, 2], |out, n| out.put_u64_le(*n));
        let bytes = out.freeze();
        let read = |bytes: Bytes| {
            let mut reader = Reader::new(bytes);
            let all = (reader.stream()?, reader.batch()?, reader.list(8, Reader::u64)?);
            reader.end().map(|()| all)
        };
        assert_eq!(read(bytes.clone()).unwrap(), (stream, batch, vec![1, 2]));
        for cut in 0..bytes.len() {
            assert!(read(bytes.slice(..cut)).is_err(), "{cut}");
        }
    }

    #[test]
    fn a_list_that_claims_more_items_than_there_are_bytes_allocates_nothing() {
        let mut reader = Reader::new(Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 1, 2, 3]));
        assert!(reader.list(8, Reader::u64).is_err());
    }
}
