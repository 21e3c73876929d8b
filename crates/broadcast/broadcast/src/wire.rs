//! The pieces that messages and files are made of. All numbers are little-endian.
//!
//! ```text
//! text     u8 length, its bytes, UTF-8
//! stream   as a text
//! flag     u8 0 or 1; read as 1 if it is not 0
//! option   flag, then the value; zeros if there is none
//! position u64 lineage, u64 number
//! list     u32 count, then the items
//! batch    u64 after, u64 last, u32 count, state (u64 time, u8 collection, its argument as in an event),
//!          u32 length, the encoded events
//! ```
//!
//! This module knows none of the types that are made of them: each of those is a [`WirePiece`] where it is defined,
//! most by a table (`table.rs`).

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

pub(crate) mod table;

/// Bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct BadMessage(pub String);

impl BadMessage {
    pub(crate) fn cut(what: &str) -> Self {
        Self(format!("{what} is cut off"))
    }
}

/// Something that has its own form in a message.
pub trait WirePiece: Sized {
    /// Bytes that each takes at least.
    const SHORTEST: usize;

    /// Appends it.
    ///
    /// # Panics
    /// If a text of it has more than 255 bytes.
    fn put(&self, out: &mut PieceWriter<'_>);

    /// Takes it from the front of what is left.
    ///
    /// # Errors
    /// If what is left does not begin with one.
    fn take(from: &mut Reader) -> Result<Self, BadMessage>;

    /// How many bytes it takes.
    fn size(&self) -> usize;

    /// Appends all its bytes to `out`.
    ///
    /// # Panics
    /// As [`put`](Self::put).
    fn append(&self, out: &mut BytesMut) {
        self.put(&mut PieceWriter::new(out));
    }
}

/// Events in shorter bytes are copied: a piece of their own would cost more.
pub(crate) const APART_BYTES_MIN: usize = 8 << 10;

/// Where pieces go.
#[derive(Debug)]
pub struct PieceWriter<'a> {
    pub(crate) bytes: &'a mut BytesMut,
    apart: Option<&'a mut Vec<(usize, Bytes)>>,
    apart_bytes: usize,
}

impl<'a> PieceWriter<'a> {
    /// All go to the end of `bytes`.
    pub fn new(bytes: &'a mut BytesMut) -> Self {
        Self { bytes, apart: None, apart_bytes: 0 }
    }

    /// Long bytes of events go to `apart`, uncopied, each with the place in `bytes` to which it belongs; all else to
    /// the end of `bytes`.
    pub(crate) fn with_apart(bytes: &'a mut BytesMut, apart: &'a mut Vec<(usize, Bytes)>) -> Self {
        Self { bytes, apart: Some(apart), apart_bytes: 0 }
    }

    /// How long `bytes` would be with all in it that is apart.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.apart_bytes
    }

    /// Appends the bytes of events.
    pub(crate) fn put_events(&mut self, events: &Bytes) {
        match &mut self.apart {
            Some(apart) if events.len() >= APART_BYTES_MIN => {
                apart.push((self.bytes.len(), events.clone()));
                self.apart_bytes += events.len();
            }
            _ => self.bytes.put_slice(events),
        }
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

    /// What is left.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.rest
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
        WirePiece::take(self)
    }

    /// A u16.
    pub fn u16(&mut self) -> Result<u16, BadMessage> {
        WirePiece::take(self)
    }

    /// A u32.
    pub fn u32(&mut self) -> Result<u32, BadMessage> {
        WirePiece::take(self)
    }

    /// A u64.
    pub fn u64(&mut self) -> Result<u64, BadMessage> {
        WirePiece::take(self)
    }

    /// A text of at most 255 bytes.
    pub fn text(&mut self) -> Result<String, BadMessage> {
        WirePiece::take(self)
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

macro_rules! numbers {
    ($($type:ty)*) => { $(
        impl WirePiece for $type {
            const SHORTEST: usize = size_of::<$type>();

            fn put(&self, out: &mut PieceWriter<'_>) {
                out.bytes.put_slice(&self.to_le_bytes());
            }

            fn take(from: &mut Reader) -> Result<Self, BadMessage> {
                Ok(Self::from_le_bytes(from.array()?))
            }

            fn size(&self) -> usize {
                Self::SHORTEST
            }
        }
    )* };
}

numbers! { u8 u16 u32 u64 u128 }

impl WirePiece for bool {
    const SHORTEST: usize = 1;

    fn put(&self, out: &mut PieceWriter<'_>) {
        u8::from(*self).put(out);
    }

    fn take(from: &mut Reader) -> Result<Self, BadMessage> {
        Ok(u8::take(from)? != 0)
    }

    fn size(&self) -> usize {
        1
    }
}

impl WirePiece for String {
    const SHORTEST: usize = 1;

    fn put(&self, out: &mut PieceWriter<'_>) {
        put_text(out.bytes, self);
    }

    fn take(from: &mut Reader) -> Result<Self, BadMessage> {
        let len = u8::take(from)?;
        let bytes = from.bytes(usize::from(len))?;
        String::from_utf8(bytes.into()).map_err(|_| BadMessage("a text is not UTF-8".to_owned()))
    }

    fn size(&self) -> usize {
        1 + self.len()
    }
}

impl WirePiece for Arc<str> {
    const SHORTEST: usize = 1;

    fn put(&self, out: &mut PieceWriter<'_>) {
        put_text(out.bytes, self);
    }

    fn take(from: &mut Reader) -> Result<Self, BadMessage> {
        Ok(String::take(from)?.into())
    }

    fn size(&self) -> usize {
        1 + self.len()
    }
}

impl<A: WirePiece, B: WirePiece> WirePiece for (A, B) {
    const SHORTEST: usize = A::SHORTEST + B::SHORTEST;

    fn put(&self, out: &mut PieceWriter<'_>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut Reader) -> Result<Self, BadMessage> {
        Ok((A::take(from)?, B::take(from)?))
    }

    fn size(&self) -> usize {
        self.0.size() + self.1.size()
    }
}

/// A value that is not there is written as its default, which has to be of zeros.
impl<T: WirePiece + Copy + Default> WirePiece for Option<T> {
    const SHORTEST: usize = 1 + T::SHORTEST;

    fn put(&self, out: &mut PieceWriter<'_>) {
        self.is_some().put(out);
        self.unwrap_or_default().put(out);
    }

    fn take(from: &mut Reader) -> Result<Self, BadMessage> {
        let (is_there, value) = (bool::take(from)?, T::take(from)?);
        Ok(is_there.then_some(value))
    }

    fn size(&self) -> usize {
        1 + self.unwrap_or_default().size()
    }
}

/// For as many items as the count says there have to be bytes before anything is allocated.
impl<T: WirePiece> WirePiece for Vec<T> {
    const SHORTEST: usize = 4;

    fn put(&self, out: &mut PieceWriter<'_>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|item| item.put(out));
    }

    fn take(from: &mut Reader) -> Result<Self, BadMessage> {
        let count = u32::take(from)? as usize;
        if count.saturating_mul(T::SHORTEST.max(1)) > from.rest.len() {
            return Err(BadMessage::cut("a list"));
        }
        (0..count).map(|_| T::take(from)).collect()
    }

    fn size(&self) -> usize {
        4 + self.iter().map(T::size).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, Collect, Content, Stream, Writer};

    #[test]
    fn pieces_come_back_and_cut_ones_are_refused() {
        let mut writer = Writer::new(41);
        let content = Content { payload: Bytes::from_static(b"x"), ..Content::default() };
        writer.publish(&content, Some(&Collect::Before(7))).unwrap();
        let pieces = ((Stream::parse("eu/prices").unwrap(), writer.finish(50)), (vec![1u64, 2], Some(3u16)));
        let mut out = BytesMut::new();
        pieces.append(&mut out);
        assert_eq!(out.len(), pieces.size());
        let bytes = out.freeze();
        let read = |bytes: Bytes| {
            let mut reader = Reader::new(bytes);
            let all: ((Stream, Batch), (Vec<u64>, Option<u16>)) = WirePiece::take(&mut reader)?;
            reader.end().map(|()| all)
        };
        assert_eq!(read(bytes.clone()).unwrap(), pieces);
        for cut in 0..bytes.len() {
            assert!(read(bytes.slice(..cut)).is_err(), "{cut}");
        }
    }

    #[test]
    fn a_list_that_claims_more_items_than_there_are_bytes_allocates_nothing() {
        let mut reader = Reader::new(Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 1, 2, 3]));
        assert!(Vec::<u64>::take(&mut reader).is_err());
    }

    #[test]
    fn a_value_that_is_not_there_takes_as_many_bytes_as_one_that_is() {
        let mut out = BytesMut::new();
        None::<(u64, u16)>.append(&mut out);
        assert_eq!(out[..], [0; 11]);
    }
}
