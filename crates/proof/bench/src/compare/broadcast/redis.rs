//! Redis's protocol (RESP2), as much of it as the load needs: lines that end with `\r\n`, of which `*N` tells that N
//! values follow and `$N` that N bytes do.
//!
//! With streams a batch is a transaction, so that a reader that waits wakes up once for all of it; each subscriber asks
//! for what comes behind the last entry that it got, again and again. Without, it is PUBLISH and SUBSCRIBE.

use anyhow::{bail, ensure};
use bytes::{Buf, BytesMut};

use super::load::LoadWire;

const KEY: &str = "events";
/// Entries that a reader asks for at once.
const READ_MAX: usize = 1_000;
/// Entries that the server keeps, roughly.
const KEPT: usize = 1_000_000;

/// One connection.
pub struct Redis {
    streams: bool,
    is_subscribed: bool,
    /// The id behind which a reader goes on.
    last: Vec<u8>,
    /// Entries of the answer that did not come yet; `None` between two answers.
    left: Option<usize>,
}

impl Redis {
    /// One that did not say anything yet.
    pub fn new(streams: bool) -> Self {
        Self { streams, is_subscribed: false, last: b"0".to_vec(), left: None }
    }

    fn read(&self, out: &mut Vec<u8>) {
        let count = READ_MAX.to_string();
        let words: [&[u8]; 8] =
            [b"XREAD", b"COUNT", count.as_bytes(), b"BLOCK", b"0", b"STREAMS", KEY.as_bytes(), &self.last];
        command(&words, out);
    }

    /// The next part of XREAD's answer, which is `*1 *2 $ key *N`, and of each entry `*2 $ id *2 $ field $ value`.
    fn part(&mut self, cursor: &mut RedisCursor<'_>, event: &mut impl FnMut(&[u8])) -> Option<()> {
        let Some(left) = self.left else {
            cursor.number(b'*')?;
            cursor.number(b'*')?;
            cursor.bulk()?;
            self.left = Some(cursor.number(b'*')?);
            return Some(());
        };
        cursor.number(b'*')?;
        let id = cursor.bulk()?;
        cursor.number(b'*')?;
        cursor.bulk()?;
        event(cursor.bulk()?);
        self.left = Some(left.saturating_sub(1));
        self.last.clear();
        self.last.extend(id);
        Some(())
    }
}

impl LoadWire for Redis {
    fn open(&mut self, _out: &mut Vec<u8>) {}

    fn prepare(&mut self, out: &mut Vec<u8>) -> usize {
        command(&[b"DEL", KEY.as_bytes()], out);
        1
    }

    fn publish<'a>(&mut self, events: impl ExactSizeIterator<Item = &'a [u8]>, out: &mut Vec<u8>) -> usize {
        let count = events.len();
        if !self.streams {
            events.for_each(|event| command(&[b"PUBLISH", KEY.as_bytes(), event], out));
            return count;
        }
        let kept = KEPT.to_string();
        command(&[b"MULTI"], out);
        for event in events {
            command(&[b"XADD", KEY.as_bytes(), b"MAXLEN", b"~", kept.as_bytes(), b"*", b"v", event], out);
        }
        command(&[b"EXEC"], out);
        // OK, QUEUED for each, their number, and of each id its length and itself.
        1 + count + 1 + 2 * count
    }

    fn answer(&mut self, line: &[u8], _out: &mut Vec<u8>) -> anyhow::Result<bool> {
        ensure!(!line.starts_with(b"-"), "{}", String::from_utf8_lossy(line));
        Ok(true)
    }

    fn subscribe(&mut self, _number: usize, out: &mut Vec<u8>) {
        if self.streams {
            // It begins with the first entry, whenever it asks.
            self.is_subscribed = true;
            self.read(out);
        } else {
            command(&[b"SUBSCRIBE", KEY.as_bytes()], out);
        }
    }

    fn receive(
        &mut self,
        received: &mut BytesMut,
        out: &mut Vec<u8>,
        mut event: impl FnMut(&[u8]),
    ) -> anyhow::Result<()> {
        let mut whole = 0;
        loop {
            let mut cursor = RedisCursor { bytes: received, at: whole, wrong: false };
            let done = if self.streams {
                self.part(&mut cursor, &mut event)
            } else {
                message(&mut cursor, &mut self.is_subscribed, &mut event)
            };
            if cursor.wrong {
                bail!(
                    "unexpected: {}",
                    String::from_utf8_lossy(&received[whole..received.len().min(whole + 80)])
                );
            }
            if done.is_none() {
                break;
            }
            whole = cursor.at;
            if self.left == Some(0) {
                self.left = None;
                self.read(out);
            }
        }
        received.advance(whole);
        Ok(())
    }

    fn is_subscribed(&self) -> bool {
        self.is_subscribed
    }
}

/// `*3 $ message $ channel $ payload`, or `*3 $ subscribe $ channel :1`.
fn message(
    cursor: &mut RedisCursor<'_>,
    is_subscribed: &mut bool,
    event: &mut impl FnMut(&[u8]),
) -> Option<()> {
    cursor.number(b'*')?;
    let kind = cursor.bulk()?;
    cursor.bulk()?;
    match kind {
        b"message" => event(cursor.bulk()?),
        _ => {
            cursor.number(b':')?;
            *is_subscribed = true;
        }
    }
    Some(())
}

/// Reads values; `None` where one is not whole yet, or where it is another one than was said.
struct RedisCursor<'a> {
    bytes: &'a [u8],
    at: usize,
    wrong: bool,
}

impl<'a> RedisCursor<'a> {
    fn number(&mut self, kind: u8) -> Option<usize> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let line = rest[..end].trim_ascii_end();
        let number = match line.split_first() {
            Some((first, digits)) if *first == kind => {
                std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok())
            }
            _ => None,
        };
        self.wrong |= number.is_none();
        self.at += if number.is_some() { end + 1 } else { 0 };
        number
    }

    fn bulk(&mut self) -> Option<&'a [u8]> {
        let length = self.number(b'$')?;
        let value = self.bytes.get(self.at..self.at + length)?;
        self.at += length + 2;
        (self.at <= self.bytes.len()).then_some(value)
    }
}

fn command(words: &[&[u8]], out: &mut Vec<u8>) {
    out.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        out.extend(format!("${}\r\n", word.len()).bytes());
        out.extend(*word);
        out.extend(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::broadcast::load::received_in_pieces;

    #[test]
    fn published_messages_are_whole_wherever_the_bytes_were_parted() {
        let text = b"*3\r\n$9\r\nsubscribe\r\n$6\r\nevents\r\n:1\r\n\
                     *3\r\n$7\r\nmessage\r\n$6\r\nevents\r\n$5\r\na\r\nbc\r\n*3\r\n$7\r\nmessage\r\n$6\r\nevents\r\n$1\r\nd\r\n";
        for parted in 0..text.len() {
            let mut wire = Redis::new(false);
            let (events, said) = received_in_pieces(&mut wire, text, parted);
            assert_eq!(events, [&b"a\r\nbc"[..], b"d"], "parted at {parted}");
            assert!(said.is_empty() && wire.is_subscribed());
        }
    }

    #[test]
    fn a_stream_s_reader_goes_on_behind_the_last_entry_of_an_answer() {
        let text = b"*1\r\n*2\r\n$6\r\nevents\r\n*2\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nv\r\n$2\r\nab\r\n\
                     *2\r\n$3\r\n2-7\r\n*2\r\n$1\r\nv\r\n$1\r\nc\r\n";
        for parted in 0..text.len() {
            let (events, said) = received_in_pieces(&mut Redis::new(true), text, parted);
            assert_eq!(events, [&b"ab"[..], b"c"], "parted at {parted}");
            assert!(said.ends_with(b"$6\r\nevents\r\n$3\r\n2-7\r\n"), "{}", String::from_utf8_lossy(&said));
        }
    }

    #[test]
    fn a_transaction_has_as_many_lines_of_answers_as_were_said() {
        let mut wire = Redis::new(true);
        let lines = wire.publish([&b"a"[..], b"b"].into_iter(), &mut Vec::new());
        let answers = "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$3\r\n1-0\r\n$3\r\n1-1\r\n";
        assert_eq!(answers.lines().count(), lines);
        assert!(wire.answer(b"-ERR no", &mut Vec::new()).is_err());
    }

    #[test]
    fn another_value_than_was_expected_is_an_error() {
        let mut bytes = BytesMut::from(&b"-ERR no\r\n"[..]);
        assert!(Redis::new(true).receive(&mut bytes, &mut Vec::new(), |_| ()).is_err());
    }
}
