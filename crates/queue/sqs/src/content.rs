//! A message as it is stored, and the checksums that clients verify. Little-endian:
//!
//! ```text
//! offset width
//!   0      1   version 1
//!   1     16   MD5 of the body
//!  17      4   + body
//!   .      1   + sender, 1 + group, 1 + deduplication id, 2 + trace header; empty is none
//!   .      1   number of attributes; for each: 2 + name, 2 + type, 1 kind (1 text, 2 binary), 4 + value
//! ```
//!
//! Attributes are in the order of their names.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes};
use md5::{Digest, Md5};

/// One attribute of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// `String`, `Number` or `Binary`, and after a dot what the sender likes.
    pub data_type: String,
    /// Its value.
    pub value: Value,
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A text, or a number as text.
    Text(String),
    /// Bytes.
    Binary(Bytes),
}

impl Value {
    fn bytes(&self) -> &[u8] {
        match self {
            Value::Text(text) => text.as_bytes(),
            Value::Binary(bytes) => bytes,
        }
    }

    /// 1 for text, 2 for bytes: as stored, and as in the checksum.
    fn kind(&self) -> u8 {
        match self {
            Value::Text(_) => 1,
            Value::Binary(_) => 2,
        }
    }
}

/// A message's attributes, by name.
pub type Attributes = BTreeMap<String, Attribute>;

/// A message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageContent {
    /// The body.
    pub body: String,
    /// Its MD5.
    pub body_md5: [u8; 16],
    /// Who sent it.
    pub sender: String,
    /// Its group; empty is none.
    pub group: String,
    /// Its deduplication id; empty is none.
    pub deduplication: String,
    /// The trace header that was sent with it; empty is none.
    pub trace: String,
    /// Its attributes.
    pub attributes: Attributes,
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a stored message can't be read")]
pub struct ContentError;

const VERSION: u8 = 1;

impl MessageContent {
    /// As it is stored.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.body.len() + 64);
        out.put_u8(VERSION);
        out.put_slice(&self.body_md5);
        out.put_u32_le(u32::try_from(self.body.len()).expect("bounded"));
        out.put_slice(self.body.as_bytes());
        for text in [&self.sender, &self.group, &self.deduplication] {
            out.put_u8(u8::try_from(text.len()).expect("bounded"));
            out.put_slice(text.as_bytes());
        }
        out.put_u16_le(u16::try_from(self.trace.len()).expect("bounded"));
        out.put_slice(self.trace.as_bytes());
        out.put_u8(u8::try_from(self.attributes.len()).expect("bounded"));
        for (name, Attribute { data_type, value }) in &self.attributes {
            for text in [name, data_type] {
                out.put_u16_le(u16::try_from(text.len()).expect("bounded"));
                out.put_slice(text.as_bytes());
            }
            out.put_u8(value.kind());
            out.put_u32_le(u32::try_from(value.bytes().len()).expect("bounded"));
            out.put_slice(value.bytes());
        }
        out.into()
    }

    /// As it was stored.
    pub fn decode(bytes: &[u8]) -> Result<Self, ContentError> {
        let mut reader = Reader(bytes);
        if reader.number(1)? != usize::from(VERSION) {
            return Err(ContentError);
        }
        let body_md5 = reader.take(16)?.try_into().expect("16 bytes");
        let body = reader.text(4)?;
        let (sender, group, deduplication) = (reader.text(1)?, reader.text(1)?, reader.text(1)?);
        let trace = reader.text(2)?;
        let mut attributes = Attributes::new();
        for _ in 0..reader.number(1)? {
            let (name, data_type) = (reader.text(2)?, reader.text(2)?);
            let value = match reader.number(1)? {
                1 => Value::Text(reader.text(4)?),
                2 => Value::Binary(Bytes::copy_from_slice(reader.bytes(4)?)),
                _ => return Err(ContentError),
            };
            attributes.insert(name, Attribute { data_type, value });
        }
        if !reader.0.is_empty() {
            return Err(ContentError);
        }
        Ok(Self { body, body_md5, sender, group, deduplication, trace, attributes })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], ContentError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(ContentError)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self, width: usize) -> Result<usize, ContentError> {
        Ok(self.take(width)?.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    fn bytes(&mut self, width: usize) -> Result<&'a [u8], ContentError> {
        let length = self.number(width)?;
        self.take(length)
    }

    fn text(&mut self, width: usize) -> Result<String, ContentError> {
        std::str::from_utf8(self.bytes(width)?).map(str::to_owned).map_err(|_| ContentError)
    }
}

/// MD5 of a body.
pub fn md5_of(body: &[u8]) -> [u8; 16] {
    Md5::digest(body).into()
}

/// MD5 of attributes as Amazon has it: in the order of their names, for each the lengths (4 bytes, big-endian) and
/// bytes of name and type, 1 or 2 for the kind of its value, and length and bytes of that.
pub fn md5_of_attributes<'a>(
    attributes: impl Iterator<Item = (&'a String, &'a Attribute)>,
) -> Option<[u8; 16]> {
    let mut hash = Md5::new();
    let mut is_empty = true;
    let put = |hash: &mut Md5, bytes: &[u8]| {
        hash.update(u32::try_from(bytes.len()).expect("bounded").to_be_bytes());
        hash.update(bytes);
    };
    for (name, Attribute { data_type, value }) in attributes {
        is_empty = false;
        put(&mut hash, name.as_bytes());
        put(&mut hash, data_type.as_bytes());
        hash.update([value.kind()]);
        put(&mut hash, value.bytes());
    }
    (!is_empty).then(|| hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn content() -> MessageContent {
        let text = Attribute { data_type: "String".to_owned(), value: Value::Text("value".to_owned()) };
        let binary = Attribute {
            data_type: "Binary.x".to_owned(),
            value: Value::Binary(Bytes::from_static(&[0, 255])),
        };
        MessageContent {
            body: "hällo".to_owned(),
            body_md5: md5_of("hällo".as_bytes()),
            sender: "123".to_owned(),
            group: "g".to_owned(),
            deduplication: String::new(),
            trace: "Root=1".to_owned(),
            attributes: [("a".to_owned(), text), ("b".to_owned(), binary)].into(),
        }
    }

    #[test]
    fn a_message_is_read_as_it_was_stored_or_not_at_all() {
        let bytes = content().encode();
        assert_eq!(MessageContent::decode(&bytes), Ok(content()));
        assert_eq!(
            MessageContent::decode(&MessageContent::default().encode()),
            Ok(MessageContent::default())
        );
        for length in 0..bytes.len() {
            assert_eq!(MessageContent::decode(&bytes[..length]), Err(ContentError));
        }
    }

    #[test]
    fn checksums_are_those_that_amazon_s_clients_compute() {
        assert_eq!(tailwater_sqs_wire::hex(&md5_of(b"hello")), "5d41402abc4b2a76b9719d911017c592");
        // From botocore's own computation for {"test_attr": {"DataType": "String", "StringValue": "test"}}.
        let attribute = Attribute { data_type: "String".to_owned(), value: Value::Text("test".to_owned()) };
        let attributes = Attributes::from([("test_attr".to_owned(), attribute)]);
        let mut expected = Vec::new();
        for part in ["test_attr", "String"] {
            expected.extend_from_slice(&(part.len() as u32).to_be_bytes());
            expected.extend_from_slice(part.as_bytes());
        }
        expected.extend_from_slice(&[1, 0, 0, 0, 4]);
        expected.extend_from_slice(b"test");
        assert_eq!(md5_of_attributes(attributes.iter()), Some(md5_of(&expected)));
        assert_eq!(md5_of_attributes(Attributes::new().iter()), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_decoding_panic(bytes: Vec<u8>) {
            let _ = MessageContent::decode(&bytes);
        }
    }
}
