//! How a record is written out.

use std::io::{self, Write};

use serde::ser::{Serialize, SerializeMap, Serializer};
use tailwater_client::Batch;
use tailwater_format::batch::Record;

/// A parsed `--format`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Key,
    Value,
    Offset,
    Shard,
    Timestamp,
    Time,
    Dlsn,
    Headers,
    Stream,
}

impl Template {
    /// Parses a template; says which part it does not know.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut literal = Vec::new();
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            let piece = match char {
                '%' => match chars.next() {
                    Some('k') => Piece::Key,
                    Some('v') => Piece::Value,
                    Some('o') => Piece::Offset,
                    Some('s' | 'p') => Piece::Shard,
                    Some('t') => Piece::Timestamp,
                    Some('T') => Piece::Time,
                    Some('d') => Piece::Dlsn,
                    Some('h') => Piece::Headers,
                    Some('S') => Piece::Stream,
                    Some('%') => {
                        literal.push(b'%');
                        continue;
                    }
                    other => {
                        let other = other.map_or_else(|| "at the end".to_owned(), |char| format!("{char}"));
                        return Err(format!("%{other} is none of %k %v %o %s %t %T %d %h %S %%"));
                    }
                },
                '\\' => {
                    match chars.next() {
                        Some('n') => literal.push(b'\n'),
                        Some('t') => literal.push(b'\t'),
                        Some('r') => literal.push(b'\r'),
                        Some('0') => literal.push(0),
                        Some('\\') => literal.push(b'\\'),
                        _ => return Err("a backslash stands before n, t, r, 0 or \\ only".to_owned()),
                    }
                    continue;
                }
                other => {
                    literal.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes());
                    continue;
                }
            };
            if !literal.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut literal)));
            }
            pieces.push(piece);
        }
        if !literal.is_empty() {
            pieces.push(Piece::Text(literal));
        }
        Ok(Self(pieces))
    }

    /// Writes one record.
    pub fn write(
        &self,
        out: &mut impl Write,
        stream: &str,
        batch: &Batch,
        record: &Record<'_>,
    ) -> io::Result<()> {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.write_all(text)?,
                Piece::Key => out.write_all(record.key.unwrap_or_default())?,
                Piece::Value => out.write_all(record.value.unwrap_or_default())?,
                Piece::Offset => write!(out, "{}", record.offset)?,
                Piece::Shard => write!(out, "{}", batch.shard)?,
                Piece::Timestamp => write!(out, "{}", record.timestamp_ms)?,
                Piece::Time => match jiff::Timestamp::from_millisecond(record.timestamp_ms) {
                    Ok(time) => write!(out, "{time:.3}")?,
                    Err(_) => write!(out, "{}", record.timestamp_ms)?,
                },
                Piece::Dlsn => write!(out, "{}", batch.dlsn(record.offset).unwrap_or_default())?,
                Piece::Headers => {
                    for (index, header) in record.headers.iter().filter_map(Result::ok).enumerate() {
                        if index > 0 {
                            out.write_all(b",")?;
                        }
                        out.write_all(header.key.as_bytes())?;
                        out.write_all(b"=")?;
                        out.write_all(header.value.unwrap_or_default())?;
                    }
                }
                Piece::Stream => out.write_all(stream.as_bytes())?,
            }
        }
        Ok(())
    }
}

/// A key or a value in JSON: text as it is, other bytes in hexadecimal under another name.
pub struct Field<'a> {
    name: &'static str,
    name_hex: &'static str,
    bytes: Option<&'a [u8]>,
}

impl<'a> Field<'a> {
    /// A record's key.
    pub fn key(bytes: Option<&'a [u8]>) -> Self {
        Self { name: "key", name_hex: "key_hex", bytes }
    }

    /// A record's value.
    pub fn value(bytes: Option<&'a [u8]>) -> Self {
        Self { name: "value", name_hex: "value_hex", bytes }
    }
}

impl Serialize for Field<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        match self.bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
            None => map.serialize_entry(self.name, &())?,
            Some((_, Ok(text))) => map.serialize_entry(self.name, text)?,
            Some((bytes, Err(_))) => {
                let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                map.serialize_entry(self.name_hex, &hex)?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_fields_are_told_apart_from_text() {
        let template = Template::parse("%o\\t%%%v\\n").expect("valid");
        let text = |text: &[u8]| Piece::Text(text.to_vec());
        assert_eq!(template.0, [Piece::Offset, text(b"\t%"), Piece::Value, text(b"\n")]);
    }

    #[test]
    fn an_unknown_field_is_named() {
        assert!(Template::parse("%z").is_err_and(|error| error.starts_with("%z")));
        assert!(Template::parse("%").is_err());
        assert!(Template::parse("\\q").is_err());
    }
}
