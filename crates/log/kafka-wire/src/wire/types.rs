//! The types of fields.

use bytes::{BufMut, Bytes};
use uuid::Uuid;

use super::{Malformed, Reader, Writer};

/// What has a place in a message.
pub trait Wire: Sized {
    /// Puts it into a message.
    fn write(&self, writer: &mut Writer);
    /// Takes it out of one.
    fn read(reader: &mut Reader) -> Result<Self, Malformed>;
}

macro_rules! numbers {
    ($($type:ident $put:ident)*) => { $(
        impl Wire for $type {
            fn write(&self, writer: &mut Writer) {
                writer.put().$put(*self);
            }

            fn read(reader: &mut Reader) -> Result<Self, Malformed> {
                reader.array(stringify!($type)).map($type::from_be_bytes)
            }
        }
    )* };
}

numbers! { i8 put_i8  i16 put_i16  i32 put_i32  i64 put_i64  u16 put_u16  f64 put_f64 }

impl Wire for bool {
    fn write(&self, writer: &mut Writer) {
        writer.put().put_u8((*self).into());
    }

    fn read(reader: &mut Reader) -> Result<Self, Malformed> {
        Ok(i8::read(reader)? != 0)
    }
}

impl Wire for Uuid {
    fn write(&self, writer: &mut Writer) {
        writer.put().put_slice(self.as_bytes());
    }

    fn read(reader: &mut Reader) -> Result<Self, Malformed> {
        reader.array("a uuid").map(Uuid::from_bytes)
    }
}

impl Wire for String {
    fn write(&self, writer: &mut Writer) {
        // What is longer than the plain form can say is shown cut: only messages for people are.
        let text = &self[..self.floor_char_boundary(i16::MAX as usize)];
        writer.string_length(Some(text.len()));
        writer.put().put_slice(text.as_bytes());
    }

    fn read(reader: &mut Reader) -> Result<Self, Malformed> {
        Option::<String>::read(reader)?.ok_or(Malformed::Null)
    }
}

impl Wire for Option<String> {
    fn write(&self, writer: &mut Writer) {
        match self {
            Some(text) => text.write(writer),
            None => writer.string_length(None),
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, Malformed> {
        let Some(len) = reader.string_length()? else { return Ok(None) };
        let text = std::str::from_utf8(reader.take("a string", len)?).map_err(|_| Malformed::Text)?;
        Ok(Some(text.to_owned()))
    }
}

impl Wire for Bytes {
    fn write(&self, writer: &mut Writer) {
        writer.length(Some(self.len()));
        writer.put().put_slice(self);
    }

    fn read(reader: &mut Reader) -> Result<Self, Malformed> {
        Option::<Bytes>::read(reader)?.ok_or(Malformed::Null)
    }
}

impl Wire for Option<Bytes> {
    fn write(&self, writer: &mut Writer) {
        match self {
            Some(bytes) => bytes.write(writer),
            None => writer.length(None),
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, Malformed> {
        match reader.bytes_length()? {
            Some(len) => reader.share("bytes", len).map(Some),
            None => Ok(None),
        }
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn write(&self, writer: &mut Writer) {
        writer.length(Some(self.len()));
        for item in self {
            item.write(writer);
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, Malformed> {
        Option::<Vec<T>>::read(reader)?.ok_or(Malformed::Null)
    }
}

impl<T: Wire> Wire for Option<Vec<T>> {
    fn write(&self, writer: &mut Writer) {
        match self {
            Some(items) => items.write(writer),
            None => writer.length(None),
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, Malformed> {
        let Some(count) = reader.count()? else { return Ok(None) };
        // Grows with what is really there.
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(T::read(reader)?);
        }
        Ok(Some(items))
    }
}

/// Record batches, as bytes that nobody here looks into; null is read as none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordsBytes(pub Vec<Bytes>);

impl RecordsBytes {
    /// Bytes of all of them.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All in one piece; without a copy if they are.
    pub fn into_bytes(mut self) -> Bytes {
        match self.0.len() {
            0 | 1 => self.0.pop().unwrap_or_default(),
            _ => self.0.concat().into(),
        }
    }
}

impl Wire for RecordsBytes {
    fn write(&self, writer: &mut Writer) {
        writer.length(Some(self.len()));
        for piece in &self.0 {
            writer.share(piece);
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, Malformed> {
        Ok(Self(Option::<Bytes>::read(reader)?.into_iter().filter(|bytes| !bytes.is_empty()).collect()))
    }
}
