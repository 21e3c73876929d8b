//! The text commands.

use bytes::Bytes;

use super::{BAD_LINE, LineRead, MemcachedRequest, RefusalLine, UNKNOWN, data_len, key, number};

/// Which of the commands that store it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreVerb {
    /// Whatever there is.
    Set,
    /// If there is nothing.
    Add,
    /// If there is something.
    Replace,
    /// Behind what there is.
    Append,
    /// Before what there is.
    Prepend,
}

/// A text command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextRequest {
    /// `get`, `gets`, `gat`, `gats`.
    Get {
        /// One at least.
        keys: Vec<Bytes>,
        /// With each value's CAS unique.
        with_cas: bool,
        /// The expiry that the items are given, as in the line.
        touch: Option<i64>,
    },
    /// `set`, `add`, `replace`, `append`, `prepend`, and `cas`.
    Store {
        /// Which.
        verb: StoreVerb,
        /// The key.
        key: Bytes,
        /// What the client keeps beside the value.
        flags: u32,
        /// As in the line.
        exptime: i64,
        /// Of `cas`, the CAS unique.
        cas: Option<u64>,
        /// The value.
        data: Bytes,
        /// No answer is sent.
        noreply: bool,
    },
    /// `delete`.
    Delete {
        /// The key.
        key: Bytes,
        /// No answer is sent.
        noreply: bool,
    },
    /// `incr` and `decr`.
    Arithmetic {
        /// The key.
        key: Bytes,
        /// What is added, or taken away.
        delta: u64,
        /// Whether it is taken away.
        is_decr: bool,
        /// No answer is sent.
        noreply: bool,
    },
    /// `touch`.
    Touch {
        /// The key.
        key: Bytes,
        /// As in the line.
        exptime: i64,
        /// No answer is sent.
        noreply: bool,
    },
    /// `flush_all`.
    FlushAll {
        /// In so many seconds.
        delay_s: u32,
        /// No answer is sent.
        noreply: bool,
    },
    /// `stats`, and of what.
    Stats(Bytes),
    /// `version`.
    Version,
    /// `verbosity`, which changes nothing.
    Verbosity {
        /// No answer is sent.
        noreply: bool,
    },
    /// `mn`, the meta command without anything.
    Noop,
    /// `quit`.
    Quit,
}

/// Reads what follows the command's name.
pub(super) fn read(verb: &[u8], words: impl Iterator<Item = Bytes>) -> LineRead {
    let words: Vec<Bytes> = words.collect();
    let whole = |read: Result<TextRequest, RefusalLine>| match read {
        Ok(request) => LineRead::Whole(MemcachedRequest::Text(request)),
        Err(why) => LineRead::Refused(why, None),
    };
    match verb {
        b"get" => whole(get(words, false, None)),
        b"gets" => whole(get(words, true, None)),
        b"gat" | b"gats" => whole(get_and_touch(words, verb == b"gats")),
        b"set" => store(StoreVerb::Set, false, &words),
        b"add" => store(StoreVerb::Add, false, &words),
        b"replace" => store(StoreVerb::Replace, false, &words),
        b"append" => store(StoreVerb::Append, false, &words),
        b"prepend" => store(StoreVerb::Prepend, false, &words),
        b"cas" => store(StoreVerb::Set, true, &words),
        b"delete" => whole(delete(&words)),
        b"incr" | b"decr" => whole(arithmetic(&words, verb == b"decr")),
        b"touch" => whole(touch(&words)),
        b"flush_all" => whole(flush_all(&words)),
        b"stats" => whole(Ok(TextRequest::Stats(words.into_iter().next().unwrap_or_default()))),
        b"version" => whole(Ok(TextRequest::Version)),
        b"verbosity" => whole(verbosity(&words)),
        b"mn" => whole(Ok(TextRequest::Noop)),
        b"quit" => whole(Ok(TextRequest::Quit)),
        _ => LineRead::Refused(UNKNOWN, None),
    }
}

fn is_noreply(word: Option<&Bytes>) -> bool {
    word.is_some_and(|word| word == "noreply")
}

fn get(words: Vec<Bytes>, with_cas: bool, touch: Option<i64>) -> Result<TextRequest, RefusalLine> {
    if words.is_empty() {
        return Err(UNKNOWN);
    }
    // In the words' own memory.
    let keys: Option<Vec<Bytes>> = words.into_iter().map(key).collect();
    Ok(TextRequest::Get { keys: keys.ok_or(BAD_LINE)?, with_cas, touch })
}

fn get_and_touch(mut words: Vec<Bytes>, with_cas: bool) -> Result<TextRequest, RefusalLine> {
    let Some(exptime) = words.first() else { return Err(UNKNOWN) };
    let exptime = number(exptime).ok_or("CLIENT_ERROR invalid exptime argument")?;
    get(words.split_off(1), with_cas, Some(exptime))
}

/// `KEY FLAGS EXPTIME BYTES [CAS] [noreply]`.
fn store(verb: StoreVerb, has_cas: bool, words: &[Bytes]) -> LineRead {
    let (given, rest) = words.split_at(words.len().min(if has_cas { 5 } else { 4 }));
    let (name, flags, exptime, bytes, cas) = match given {
        [name, flags, exptime, bytes] if !has_cas => (name, flags, exptime, bytes, None),
        [name, flags, exptime, bytes, cas] => (name, flags, exptime, bytes, Some(cas)),
        _ => return LineRead::Refused(UNKNOWN, None),
    };
    let len = match data_len(bytes) {
        Ok(len) => len,
        Err((why, data)) => return LineRead::Refused(why, data),
    };
    let read = || {
        Some(TextRequest::Store {
            verb,
            key: key(name.clone())?,
            flags: number(flags)?,
            exptime: number(exptime)?,
            cas: match cas {
                Some(cas) => Some(number(cas)?),
                None => None,
            },
            data: Bytes::new(),
            noreply: is_noreply(rest.first()),
        })
    };
    match read() {
        Some(request) => LineRead::WithData(MemcachedRequest::Text(request), len),
        None => LineRead::Refused(BAD_LINE, Some(len)),
    }
}

fn delete(words: &[Bytes]) -> Result<TextRequest, RefusalLine> {
    let [name, rest @ ..] = words else { return Err(UNKNOWN) };
    let noreply = is_noreply(rest.last());
    // A time of 0 was once an argument.
    match rest {
        [] => {}
        [only] if noreply || only == "0" => {}
        [zero, _] if noreply && zero == "0" => {}
        _ => return Err("CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]"),
    }
    Ok(TextRequest::Delete { key: key(name.clone()).ok_or(BAD_LINE)?, noreply })
}

fn arithmetic(words: &[Bytes], is_decr: bool) -> Result<TextRequest, RefusalLine> {
    let [name, delta, rest @ ..] = words else { return Err(UNKNOWN) };
    Ok(TextRequest::Arithmetic {
        key: key(name.clone()).ok_or(BAD_LINE)?,
        delta: number(delta).ok_or("CLIENT_ERROR invalid numeric delta argument")?,
        is_decr,
        noreply: is_noreply(rest.first()),
    })
}

fn touch(words: &[Bytes]) -> Result<TextRequest, RefusalLine> {
    let [name, exptime, rest @ ..] = words else { return Err(UNKNOWN) };
    Ok(TextRequest::Touch {
        key: key(name.clone()).ok_or(BAD_LINE)?,
        exptime: number(exptime).ok_or("CLIENT_ERROR invalid exptime argument")?,
        noreply: is_noreply(rest.first()),
    })
}

fn verbosity(words: &[Bytes]) -> Result<TextRequest, RefusalLine> {
    let noreply = is_noreply(words.last());
    match words {
        [] => Err(UNKNOWN),
        [only] if noreply || number::<u32>(only).is_some() => Ok(TextRequest::Verbosity { noreply }),
        [level, _] if noreply && number::<u32>(level).is_some() => Ok(TextRequest::Verbosity { noreply }),
        [_] | [_, _] => Err(BAD_LINE),
        _ => Err(UNKNOWN),
    }
}

fn flush_all(words: &[Bytes]) -> Result<TextRequest, RefusalLine> {
    let noreply = is_noreply(words.last());
    let delay_s = match words.first() {
        Some(delay) if *delay != "noreply" => {
            number::<i64>(delay).ok_or("CLIENT_ERROR invalid exptime argument")?
        }
        _ => 0,
    };
    // What is in the past is now.
    let delay_s = u32::try_from(delay_s.max(0)).unwrap_or(u32::MAX);
    Ok(TextRequest::FlushAll { delay_s, noreply })
}
