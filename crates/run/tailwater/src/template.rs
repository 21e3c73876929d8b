//! How records and events are written out: templates for people, JSON for programs.

use std::io::{self, Write};

use serde::ser::{Serialize, SerializeMap, Serializer};

/// A parsed `--format`: text, and fields that are a percent sign and a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<TemplatePiece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePiece {
    Text(Vec<u8>),
    Field(char),
}

impl Template {
    /// Parses a template with the given letters; says which part it does not know.
    pub fn parse(text: &str, letters: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut literal = Vec::new();
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            match char {
                '%' => match chars.next() {
                    Some('%') => literal.push(b'%'),
                    Some(letter) if letters.contains(letter) => {
                        if !literal.is_empty() {
                            pieces.push(TemplatePiece::Text(std::mem::take(&mut literal)));
                        }
                        pieces.push(TemplatePiece::Field(letter));
                    }
                    other => {
                        let other = other.map_or_else(|| "at the end".to_owned(), |char| format!("{char}"));
                        let known: String = letters.chars().map(|letter| format!("%{letter} ")).collect();
                        return Err(format!("%{other} is none of {known}%%"));
                    }
                },
                '\\' => match chars.next() {
                    Some('n') => literal.push(b'\n'),
                    Some('t') => literal.push(b'\t'),
                    Some('r') => literal.push(b'\r'),
                    Some('0') => literal.push(0),
                    Some('\\') => literal.push(b'\\'),
                    _ => return Err("a backslash stands before n, t, r, 0 or \\ only".to_owned()),
                },
                other => literal.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        if !literal.is_empty() {
            pieces.push(TemplatePiece::Text(literal));
        }
        Ok(Self(pieces))
    }

    /// Writes one of them; `field` writes what a letter stands for.
    pub fn write<W: Write>(
        &self,
        out: &mut W,
        mut field: impl FnMut(&mut W, char) -> io::Result<()>,
    ) -> io::Result<()> {
        self.0.iter().try_for_each(|piece| match piece {
            TemplatePiece::Text(text) => out.write_all(text),
            TemplatePiece::Field(letter) => field(out, *letter),
        })
    }
}

/// Writes a time in milliseconds since 1970 as RFC 3339 has it.
pub fn write_time(out: &mut impl Write, time_ms: i64) -> io::Result<()> {
    match jiff::Timestamp::from_millisecond(time_ms) {
        Ok(time) => write!(out, "{time:.3}"),
        Err(_) => write!(out, "{time_ms}"),
    }
}

/// Writes headers as `name=value`, separated by commas.
pub fn write_headers<'a>(
    out: &mut impl Write,
    headers: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> io::Result<()> {
    for (index, (name, value)) in headers.enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        out.write_all(name)?;
        out.write_all(b"=")?;
        out.write_all(value)?;
    }
    Ok(())
}

/// A key or a value in JSON: text as it is, other bytes in hexadecimal under another name.
pub struct TemplateField<'a> {
    name: &'static str,
    name_hex: &'static str,
    bytes: Option<&'a [u8]>,
}

impl<'a> TemplateField<'a> {
    /// A record's key.
    pub fn key(bytes: Option<&'a [u8]>) -> Self {
        Self { name: "key", name_hex: "key_hex", bytes }
    }

    /// A record's value.
    pub fn value(bytes: Option<&'a [u8]>) -> Self {
        Self { name: "value", name_hex: "value_hex", bytes }
    }
}

impl Serialize for TemplateField<'_> {
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

/// Whether the help of an option of this command names every letter that its template may have, and no other.
#[cfg(test)]
pub fn help_names(path: &[&str], option: &str, letters: &str) {
    use std::collections::BTreeSet;

    let mut command = <crate::Cli as clap::CommandFactory>::command();
    for name in path {
        command = command.find_subcommand(name).expect("a command").clone();
    }
    let arg = command.get_arguments().find(|arg| arg.get_long() == Some(option)).expect("an option");
    let help = arg.get_long_help().or(arg.get_help()).expect("it has a help").to_string();
    let named: BTreeSet<char> = help
        .split('%')
        .skip(1)
        .filter_map(|behind| behind.chars().next())
        .filter(|c| c.is_alphabetic())
        .collect();
    assert_eq!(named, letters.chars().collect(), "{help}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_fields_are_told_apart_from_text() {
        let template = Template::parse("%o\\t%%%v\\n", "ov").expect("valid");
        let text = |text: &[u8]| TemplatePiece::Text(text.to_vec());
        assert_eq!(
            template.0,
            [TemplatePiece::Field('o'), text(b"\t%"), TemplatePiece::Field('v'), text(b"\n")]
        );
    }

    #[test]
    fn an_unknown_field_is_named() {
        assert_eq!(Template::parse("%z", "ov").unwrap_err(), "%z is none of %o %v %%");
        assert!(Template::parse("%", "ov").is_err());
        assert!(Template::parse("\\q", "ov").is_err());
    }
}
