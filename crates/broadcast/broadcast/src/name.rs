//! Names of streams.

use std::sync::Arc;

use crate::limits::{REGION_BYTES_MAX, STREAM_BYTES_MAX};
use crate::wire::{BadMessage, PieceWriter, Reader, WirePiece, put_text};

/// A stream's name: `REGION/NAME`. The region is the one whose proxy gives the stream's events their numbers
/// (section 2.2: "a stream belongs to a region").
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(Arc<str>);

impl Stream {
    /// Parses `REGION/NAME`. Both are made of letters, digits, `.`, `_` and `-`; the region has at most
    /// [`REGION_BYTES_MAX`] bytes, the whole [`STREAM_BYTES_MAX`].
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let bad = |why| Err(BadName { text: text.chars().take(300).collect(), why });
        let Some((region, name)) = text.split_once('/') else { return bad("wants REGION/NAME") };
        if text.len() > STREAM_BYTES_MAX {
            return bad("is longer than 255 bytes");
        }
        if !is_region(region) {
            return bad("wants a region of 1 to 63 letters, digits, '.', '_' or '-'");
        }
        if !is_word(name) {
            return bad("wants a name of letters, digits, '.', '_' or '-'");
        }
        Ok(Self(text.into()))
    }

    /// The region it belongs to.
    pub fn region(&self) -> &str {
        self.0.split_once('/').map_or("", |(region, _)| region)
    }

    /// Its name without the region.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, name)| name)
    }

    /// `REGION/NAME`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl WirePiece for Stream {
    const SHORTEST: usize = 1 + "r/n".len();

    fn put(&self, out: &mut PieceWriter<'_>) {
        put_text(out.bytes, &self.0);
    }

    fn take(from: &mut Reader) -> Result<Self, BadMessage> {
        Self::parse(&from.text()?).map_err(|error| BadMessage(error.to_string()))
    }

    fn size(&self) -> usize {
        1 + self.0.len()
    }
}

/// Whether a text can be a region's name.
pub fn is_region(text: &str) -> bool {
    text.len() <= REGION_BYTES_MAX && is_word(text)
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

impl std::fmt::Display for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is no stream's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no broadcast stream: it {why}")]
pub struct BadName {
    /// The text, cut after 300 characters.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_region_and_a_rest() {
        let stream = Stream::parse("eu-1/prices").unwrap();
        assert_eq!((stream.region(), stream.name()), ("eu-1", "prices"));
        for bad in ["prices", "/prices", "eu/", "eu/a b", "eu/a/b", &format!("{}/x", "r".repeat(64))] {
            assert!(Stream::parse(bad).is_err(), "{bad}");
        }
    }
}
