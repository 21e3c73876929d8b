//! Taking a message apart.

use bytes::Bytes;

use super::Wire;

/// Items of all arrays of one message, unless whoever reads it says otherwise. A request for all partitions of a large
/// cluster has some ten thousand; an item takes some 200 bytes of memory, however few it took on the wire.
pub const ITEMS_MAX: usize = 200_000;

/// Why bytes are not the message that they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes end too early.
    #[error("{wanted} bytes of {what} where {left} are left")]
    Ends {
        /// What was being read.
        what: &'static str,
        /// Bytes that it has.
        wanted: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// No length or count is negative, but for null's.
    #[error("a {what} of length {found}")]
    Length {
        /// What was being read.
        what: &'static str,
        /// The length.
        found: i64,
    },
    /// A string that is no UTF-8.
    #[error("a string that is not UTF-8")]
    Text,
    /// A varint of more than 32 bits.
    #[error("a varint of more than 32 bits")]
    Varint,
    /// More items than anybody needs.
    #[error("more than {max} items in the arrays of one message")]
    Items {
        /// How many there may be.
        max: usize,
    },
    /// Null where a value has to be.
    #[error("null where a value has to be")]
    Null,
}

/// Reads the values of one message of one version.
#[derive(Clone, Debug)]
pub struct Reader {
    bytes: Bytes,
    at: usize,
    version: i16,
    flexible: bool,
    items_max: usize,
    items_left: usize,
}

impl Reader {
    /// Reads `bytes`, a message of `version` in plain or flexible form.
    pub fn new(bytes: Bytes, version: i16, flexible: bool) -> Self {
        Self { bytes, at: 0, version, flexible, items_max: ITEMS_MAX, items_left: ITEMS_MAX }
    }

    /// The same with another limit than [`ITEMS_MAX`].
    pub fn with_items_max(self, items_max: usize) -> Self {
        Self { items_max, items_left: items_max, ..self }
    }

    /// The same, of a message of another version.
    pub fn at_version(self, version: i16) -> Self {
        Self { version, ..self }
    }

    /// The message's version.
    pub fn version(&self) -> i16 {
        self.version
    }

    /// Whether it is in the flexible form.
    pub fn is_flexible(&self) -> bool {
        self.flexible
    }

    /// Bytes that were not read yet.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, what: &'static str, len: usize) -> Result<&[u8], Malformed> {
        let range = self.range(what, len)?;
        Ok(&self.bytes[range])
    }

    /// The next `len` bytes, sharing the message's memory.
    pub(super) fn share(&mut self, what: &'static str, len: usize) -> Result<Bytes, Malformed> {
        let range = self.range(what, len)?;
        Ok(self.bytes.slice(range))
    }

    fn range(&mut self, what: &'static str, len: usize) -> Result<std::ops::Range<usize>, Malformed> {
        let left = self.left();
        if len > left {
            return Err(Malformed::Ends { what, wanted: len, left });
        }
        self.at += len;
        Ok(self.at - len..self.at)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Malformed> {
        let bytes = self.take(what, N)?;
        Ok(bytes.try_into().expect("so many were taken"))
    }

    pub(super) fn unsigned_varint(&mut self) -> Result<u32, Malformed> {
        let mut value = 0_u32;
        for shift in (0..35).step_by(7) {
            let [byte] = self.array("a varint")?;
            let low = u32::from(byte & 0x7f);
            if shift == 28 && low > 0xf {
                return Err(Malformed::Varint);
            }
            value |= low << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed::Varint)
    }

    /// A length or count; `None` for null. Never more than bytes are left.
    fn length(&mut self, what: &'static str, plain: i64) -> Result<Option<usize>, Malformed> {
        let wanted = match plain {
            -1 => return Ok(None),
            found => usize::try_from(found).map_err(|_| Malformed::Length { what, found })?,
        };
        let left = self.left();
        if wanted > left { Err(Malformed::Ends { what, wanted, left }) } else { Ok(Some(wanted)) }
    }

    pub(super) fn string_length(&mut self) -> Result<Option<usize>, Malformed> {
        let plain = match self.flexible {
            true => i64::from(self.unsigned_varint()?) - 1,
            false => i16::read(self)?.into(),
        };
        self.length("a string", plain)
    }

    pub(super) fn bytes_length(&mut self) -> Result<Option<usize>, Malformed> {
        let plain = match self.flexible {
            true => i64::from(self.unsigned_varint()?) - 1,
            false => i32::read(self)?.into(),
        };
        self.length("bytes", plain)
    }

    /// An array's count of items, each of which takes at least one byte.
    pub(super) fn count(&mut self) -> Result<Option<usize>, Malformed> {
        let plain = match self.flexible {
            true => i64::from(self.unsigned_varint()?) - 1,
            false => i32::read(self)?.into(),
        };
        let count = self.length("an array", plain)?;
        let left = self.items_left.checked_sub(count.unwrap_or(0));
        self.items_left = left.ok_or(Malformed::Items { max: self.items_max })?;
        Ok(count)
    }

    /// Reads the tagged fields at the end of a struct: `known` reads one that it knows, and answers whether it did.
    pub(crate) fn tagged(
        &mut self,
        mut known: impl FnMut(u32, &mut Reader) -> Result<bool, Malformed>,
    ) -> Result<(), Malformed> {
        for _ in 0..self.unsigned_varint()? {
            let tag = self.unsigned_varint()?;
            let len = self.unsigned_varint()? as usize;
            let value = self.share("a tagged field", len)?;
            let mut inner = Reader { bytes: value, at: 0, flexible: true, ..*self };
            known(tag, &mut inner)?;
            self.items_left = inner.items_left;
        }
        Ok(())
    }
}
