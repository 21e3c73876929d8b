//! Putting a message together.

use bytes::{BufMut, Bytes, BytesMut};

/// Bytes from which a record set is sent from where it lies; shorter ones are copied into the message.
const SHARE_BYTES_MIN: usize = 4 << 10;

/// Writes the values of one message of one version.
#[derive(Debug)]
pub struct Writer {
    /// What is in front of the first shared piece.
    head: Option<BytesMut>,
    pieces: Vec<Bytes>,
    /// What comes next.
    tail: BytesMut,
    version: i16,
    flexible: bool,
}

/// A whole frame, length included, in the pieces in which it is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Not empty, but for an answer that is none.
    pub pieces: Vec<Bytes>,
}

/// A message of so many bytes, which no frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {0} bytes: a frame has at most 2147483647")]
pub struct TooLong(pub usize);

impl Frame {
    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes in one piece.
    pub fn concat(&self) -> Bytes {
        self.pieces.concat().into()
    }
}

impl Writer {
    /// Begins a frame with a message of `version` in plain or flexible form.
    pub fn new(version: i16, flexible: bool) -> Self {
        let mut tail = BytesMut::with_capacity(256);
        tail.put_i32(0); // the length, when it is known
        Self { head: None, pieces: Vec::new(), tail, version, flexible }
    }

    /// The message's version.
    pub fn version(&self) -> i16 {
        self.version
    }

    /// Whether it is in the flexible form.
    pub fn is_flexible(&self) -> bool {
        self.flexible
    }

    /// Goes on in another form: headers and bodies differ.
    pub fn set_form(&mut self, version: i16, flexible: bool) {
        (self.version, self.flexible) = (version, flexible);
    }

    pub(super) fn put(&mut self) -> &mut BytesMut {
        &mut self.tail
    }

    /// Puts `bytes` in without a copy, if there are many.
    pub(super) fn share(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARE_BYTES_MIN {
            self.tail.put_slice(bytes);
            return;
        }
        let before = self.tail.split();
        if self.head.is_none() {
            self.head = Some(before);
        } else if !before.is_empty() {
            self.pieces.push(before.freeze());
        }
        self.pieces.push(bytes.clone());
    }

    pub(super) fn unsigned_varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.tail.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.tail.put_u8(value as u8);
    }

    pub(super) fn string_length(&mut self, len: Option<usize>) {
        match self.flexible {
            true => self.unsigned_varint(compact(len)),
            false => {
                self.tail.put_i16(len.map_or(-1, |len| i16::try_from(len).expect("strings are cut before")))
            }
        }
    }

    /// The length of bytes, or the count of an array.
    pub(super) fn length(&mut self, len: Option<usize>) {
        match self.flexible {
            true => self.unsigned_varint(compact(len)),
            // Of what is longer the frame is too long too, as each item takes a byte: it is not finished.
            false => self.tail.put_i32(len.map_or(-1, |len| i32::try_from(len).unwrap_or(i32::MAX))),
        }
    }

    /// The tagged fields at the end of a struct, in the order of their numbers.
    pub(crate) fn tagged(&mut self, fields: Vec<(u32, BytesMut)>) {
        self.unsigned_varint(fields.len() as u32);
        for (tag, value) in fields {
            self.unsigned_varint(tag);
            self.unsigned_varint(value.len() as u32);
            self.tail.put_slice(&value);
        }
    }

    /// What `write` writes, in this form, by itself.
    pub(crate) fn apart(&self, write: impl FnOnce(&mut Writer)) -> BytesMut {
        let mut apart = Writer {
            head: None,
            pieces: Vec::new(),
            tail: BytesMut::new(),
            version: self.version,
            flexible: self.flexible,
        };
        write(&mut apart);
        debug_assert!(apart.pieces.is_empty(), "no tagged field holds records");
        apart.tail
    }

    /// The frame.
    ///
    /// # Errors
    /// It is longer than a frame can say that it is.
    pub fn finish(mut self) -> Result<Frame, TooLong> {
        let mut head = self.head.take().unwrap_or_else(|| std::mem::take(&mut self.tail));
        let len = head.len() + self.tail.len() + self.pieces.iter().map(Bytes::len).sum::<usize>() - 4;
        let prefix = i32::try_from(len).map_err(|_| TooLong(len))?;
        head[..4].copy_from_slice(&prefix.to_be_bytes());
        let mut pieces = vec![head.freeze()];
        pieces.append(&mut self.pieces);
        if !self.tail.is_empty() {
            pieces.push(self.tail.freeze());
        }
        Ok(Frame { pieces })
    }
}

fn compact(len: Option<usize>) -> u32 {
    len.map_or(0, |len| u32::try_from(len + 1).unwrap_or(u32::MAX))
}
