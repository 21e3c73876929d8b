//! How far a listener got, in every stream; as text for those who keep it.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, BytesMut};

use crate::message::FROM_NOW;
use crate::name::Stream;
use crate::wire::{BadMessage, Reader, put_list, put_stream};

const VERSION: u8 = 1;

/// The last number that a listener has, of each stream.
///
/// Its text is opaque to those who keep it: base64url of u8 version, u8 whether other streams are wanted, and a
/// list of (stream, u64 number).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positions {
    /// The last number that it has.
    pub streams: BTreeMap<Stream, u64>,
    /// Whether streams that are not there are wanted as well, from their beginnings.
    pub others: bool,
}

impl Positions {
    /// Everything that still matters, of every stream.
    pub fn start() -> Self {
        Self { streams: BTreeMap::new(), others: true }
    }

    /// Everything that still matters, of these streams only.
    pub fn of(streams: impl IntoIterator<Item = Stream>) -> Self {
        Self { streams: streams.into_iter().map(|stream| (stream, 0)).collect(), others: false }
    }

    /// What comes from now on, of these streams only.
    pub fn now(streams: impl IntoIterator<Item = Stream>) -> Self {
        Self { streams: streams.into_iter().map(|stream| (stream, FROM_NOW)).collect(), others: false }
    }

    /// As an opaque text of letters, digits, `-` and `_`.
    pub fn token(&self) -> String {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        out.put_u8(u8::from(self.others));
        let streams: Vec<_> = self.streams.iter().collect();
        put_list(&mut out, &streams, |out, (stream, after)| {
            put_stream(out, stream);
            out.put_u64_le(**after);
        });
        URL_SAFE_NO_PAD.encode(out)
    }

    /// Reads what [`Positions::token`] wrote.
    pub fn parse(token: &str) -> Result<Self, BadToken> {
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| BadToken("it is cut or changed".to_owned()))?;
        let read = |mut from: Reader| {
            if from.u8()? != VERSION {
                return Err(BadMessage("it is of another version".to_owned()));
            }
            let others = from.u8()? != 0;
            let streams = from.list(12, |from| Ok((from.stream()?, from.u64()?)))?;
            from.end()?;
            Ok(Self { streams: streams.into_iter().collect(), others })
        };
        read(Reader::new(bytes.into())).map_err(|error| BadToken(error.0))
    }
}

/// A text that is no resume token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no resume token ({0}): listen without one to begin anew")]
pub struct BadToken(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_and_a_cut_one_is_refused() {
        let mut positions = Positions::of([Stream::parse("eu/prices").unwrap()]);
        positions.streams.insert(Stream::parse("us/flags").unwrap(), 7);
        let token = positions.token();
        assert_eq!(Positions::parse(&token).unwrap(), positions);
        for cut in 0..token.len() {
            assert!(Positions::parse(&token[..cut]).is_err());
        }
    }
}
