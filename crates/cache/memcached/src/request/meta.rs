//! The meta commands, but for `mn`, which has nothing.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::{BAD_LINE, LineRead, MemcachedRequest, RefusalLine, UNKNOWN, data_len, key, number};
use crate::limits::{KEY_BYTES_MAX, META_FLAGS_MAX, OPAQUE_BYTES_MAX};

/// Which meta command it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaVerb {
    /// `mg`
    Get,
    /// `ms`
    Set,
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
    /// `me`
    Debug,
}

impl MetaVerb {
    pub(super) fn of(verb: &[u8]) -> Option<Self> {
        Some(match verb {
            b"mg" => Self::Get,
            b"ms" => Self::Set,
            b"md" => Self::Delete,
            b"ma" => Self::Arithmetic,
            b"me" => Self::Debug,
            _ => return None,
        })
    }

    /// The flags that mean something, but for `P` and `L`, which mean something to proxies.
    fn flags(self) -> &'static [u8] {
        match self {
            Self::Get => b"bcEfhklOqstuvNRT",
            Self::Set => b"bcCEFIkOqsTMN",
            Self::Delete => b"bCEIkOqT",
            Self::Arithmetic => b"bcCDEJkMNOqtTv",
            Self::Debug => b"b",
        }
    }
}

/// A meta command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaRequest {
    /// Which.
    pub verb: MetaVerb,
    /// The key, decoded if it came in base64.
    pub key: Bytes,
    /// The key as it came.
    pub shown: Bytes,
    /// Its flags.
    pub flags: MetaFlags,
    /// Of `ms`, the value.
    pub data: Bytes,
}

/// The flags of a meta command, each once, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaFlags(Vec<(u8, Bytes)>);

impl MetaFlags {
    /// Whether a flag is there.
    pub fn has(&self, flag: u8) -> bool {
        self.token(flag).is_some()
    }

    /// The token of a flag that is there, or nothing.
    pub fn token(&self, flag: u8) -> Option<&Bytes> {
        self.0.iter().find(|(given, _)| *given == flag).map(|(_, token)| token)
    }

    /// The number of a flag that is there.
    ///
    /// # Errors
    /// That its token is no such number.
    pub fn number<N: std::str::FromStr>(&self, flag: u8) -> Result<Option<N>, RefusalLine> {
        self.token(flag).map(|token| number(token).ok_or(BAD_LINE)).transpose()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &Bytes)> {
        self.0.iter().map(|(flag, token)| (*flag, token))
    }

    /// The flags of a line's words.
    fn read(verb: MetaVerb, words: impl Iterator<Item = Bytes>) -> Result<Self, RefusalLine> {
        let mut flags = Self::default();
        for mut word in words {
            let flag = word.split_to(1)[0];
            if matches!(flag, b'P' | b'L') {
                continue;
            }
            if !verb.flags().contains(&flag) {
                return Err("CLIENT_ERROR invalid flag");
            }
            if flags.has(flag) || flags.0.len() == META_FLAGS_MAX {
                return Err("CLIENT_ERROR duplicate flag");
            }
            if flag == b'O' && word.len() > OPAQUE_BYTES_MAX {
                return Err("CLIENT_ERROR opaque token too long");
            }
            flags.0.push((flag, word));
        }
        Ok(flags)
    }
}

/// Reads what follows the command's name: `KEY [BYTES] FLAGS`.
pub(super) fn read(verb: MetaVerb, mut words: impl Iterator<Item = Bytes>) -> LineRead {
    let Some(shown) = words.next() else { return LineRead::Refused(UNKNOWN, None) };
    let mut len = 0;
    if verb == MetaVerb::Set {
        let Some(bytes) = words.next() else { return LineRead::Refused(BAD_LINE, None) };
        len = match data_len(&bytes) {
            Ok(len) => len,
            Err((why, data)) => return LineRead::Refused(why, data),
        };
    }
    let data = (verb == MetaVerb::Set).then_some(len);
    let flags = match MetaFlags::read(verb, words) {
        Ok(flags) => flags,
        Err(why) => return LineRead::Refused(why, data),
    };
    let decoded = match flags.has(b'b') {
        true => STANDARD
            .decode(&shown)
            .ok()
            .map(Bytes::from)
            .filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len())),
        false => key(shown.clone()),
    };
    let Some(key) = decoded else {
        let why = if flags.has(b'b') { "CLIENT_ERROR error decoding key" } else { BAD_LINE };
        return LineRead::Refused(why, data);
    };
    let request = MemcachedRequest::Meta(MetaRequest { verb, key, shown, flags, data: Bytes::new() });
    match data {
        Some(len) => LineRead::WithData(request, len),
        None => LineRead::Whole(request),
    }
}
