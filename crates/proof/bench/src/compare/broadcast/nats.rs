//! NATS's protocol, as much of it as the load needs: lines that end with `\r\n`, and payloads whose length a line told.
//!
//! ```text
//! PUB subject [reply] bytes      MSG subject sid [reply] bytes      PING  PONG  +OK  -ERR why  INFO {...}
//! ```
//!
//! Without JetStream a batch ends with a PING, and its PONG is the batch's answer. With it every event is answered by a
//! message once it is stored; each subscriber has an ephemeral push consumer without acknowledgements, as the official
//! clients' ordered consumers are.

use anyhow::bail;
use bytes::{Buf, BytesMut};

use super::load::LoadWire;

const STREAM: &str = "BENCH";
const SUBJECT: &str = "bench.events";
const CONNECT: &[u8] =
    b"CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"bench\",\"version\":\"1\",\"protocol\":1}\r\n";
/// The subscription's number of events, and that of the server's answers to a subscriber.
const EVENTS: &[u8] = b"1";
const ANSWERS: &[u8] = b"2";

/// One connection.
pub struct Nats {
    jetstream: bool,
    is_subscribed: bool,
    /// Whether a publisher subscribed to its answers.
    hears_answers: bool,
    /// Whether the next line is a payload.
    in_answer: bool,
}

impl Nats {
    /// One that did not say anything yet.
    pub fn new(jetstream: bool) -> Self {
        Self { jetstream, is_subscribed: false, hears_answers: false, in_answer: false }
    }
}

impl LoadWire for Nats {
    fn open(&mut self, out: &mut Vec<u8>) {
        out.extend(CONNECT);
    }

    fn prepare(&mut self, out: &mut Vec<u8>) -> usize {
        if !self.jetstream {
            out.extend(b"PING\r\n");
            return 1;
        }
        let stream = format!(
            "{{\"name\":\"{STREAM}\",\"subjects\":[\"{SUBJECT}\"],\"storage\":\"file\",\"retention\":\"limits\",\
             \"discard\":\"old\",\"max_consumers\":-1,\"max_msgs\":-1,\"max_bytes\":-1,\"num_replicas\":1}}"
        );
        out.extend(b"SUB prepared 2\r\n");
        request(&format!("$JS.API.STREAM.CREATE.{STREAM}"), "prepared", &stream, out);
        2
    }

    fn publish<'a>(&mut self, events: impl ExactSizeIterator<Item = &'a [u8]>, out: &mut Vec<u8>) -> usize {
        let count = events.len();
        if self.jetstream && !std::mem::replace(&mut self.hears_answers, true) {
            out.extend(b"SUB stored 2\r\n");
        }
        for event in events {
            let reply = if self.jetstream { " stored" } else { "" };
            out.extend(format!("PUB {SUBJECT}{reply} {}\r\n", event.len()).bytes());
            out.extend(event);
            out.extend(b"\r\n");
        }
        if self.jetstream {
            return 2 * count;
        }
        out.extend(b"PING\r\n");
        1
    }

    fn answer(&mut self, line: &[u8], out: &mut Vec<u8>) -> anyhow::Result<bool> {
        if std::mem::take(&mut self.in_answer) {
            if contains(line, b"\"error\"") {
                bail!("{}", String::from_utf8_lossy(line));
            }
            return Ok(true);
        }
        match line {
            b"PING" => out.extend(b"PONG\r\n"),
            b"PONG" => return Ok(!self.jetstream),
            line if line.starts_with(b"-ERR") => bail!("{}", String::from_utf8_lossy(line)),
            line if line.starts_with(b"MSG ") => {
                self.in_answer = true;
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }

    fn subscribe(&mut self, number: usize, out: &mut Vec<u8>) {
        if !self.jetstream {
            out.extend(format!("SUB {SUBJECT} 1\r\nPING\r\n").bytes());
            return;
        }
        out.extend(format!("SUB events.{number} 1\r\nSUB answers.{number} 2\r\n").bytes());
        let consumer = format!(
            "{{\"stream_name\":\"{STREAM}\",\"config\":{{\"deliver_subject\":\"events.{number}\",\"deliver_policy\":\"all\",\
             \"ack_policy\":\"none\",\"replay_policy\":\"instant\",\"mem_storage\":true,\"num_replicas\":1,\
             \"max_deliver\":1}}}}"
        );
        request(&format!("$JS.API.CONSUMER.CREATE.{STREAM}"), &format!("answers.{number}"), &consumer, out);
    }

    fn receive(
        &mut self,
        received: &mut BytesMut,
        out: &mut Vec<u8>,
        mut event: impl FnMut(&[u8]),
    ) -> anyhow::Result<()> {
        let mut at = 0;
        while let Some(end) = received[at..].iter().position(|byte| *byte == b'\n') {
            let line = received[at..at + end].trim_ascii_end();
            let mut next = at + end + 1;
            if line.starts_with(b"MSG ") {
                let mut words = line.split(|byte| *byte == b' ').skip(2);
                let subscription = words.next().unwrap_or_default();
                let bytes: usize = std::str::from_utf8(words.last().unwrap_or_default())?.parse()?;
                let Some(payload) = received.get(next..next + bytes) else { break };
                next += bytes + 2;
                if next > received.len() {
                    break;
                }
                match subscription {
                    EVENTS => event(payload),
                    ANSWERS if contains(payload, b"\"error\"") => {
                        bail!("{}", String::from_utf8_lossy(payload))
                    }
                    _ => self.is_subscribed = true,
                }
            } else if line == b"PING" {
                out.extend(b"PONG\r\n");
            } else if line == b"PONG" {
                self.is_subscribed |= !self.jetstream;
            } else if line.starts_with(b"-ERR") {
                bail!("{}", String::from_utf8_lossy(line));
            }
            at = next;
        }
        received.advance(at);
        Ok(())
    }

    fn is_subscribed(&self) -> bool {
        self.is_subscribed
    }
}

fn request(subject: &str, reply: &str, body: &str, out: &mut Vec<u8>) {
    out.extend(format!("PUB {subject} {reply} {}\r\n{body}\r\n", body.len()).bytes());
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::broadcast::load::received_in_pieces;

    #[test]
    fn messages_are_whole_wherever_the_bytes_were_parted_and_pings_are_answered() {
        let text =
            b"INFO {}\r\nPONG\r\nMSG bench.events 1 5\r\na\r\nbc\r\nPING\r\nMSG bench.events 1 1\r\nd\r\n";
        for parted in 0..text.len() {
            let mut wire = Nats::new(false);
            let (events, said) = received_in_pieces(&mut wire, text, parted);
            assert_eq!(events, [&b"a\r\nbc"[..], b"d"], "parted at {parted}");
            assert!(said == b"PONG\r\n" && wire.is_subscribed());
        }
    }

    #[test]
    fn a_consumer_that_could_not_be_made_is_an_error() {
        let answer = b"{\"error\":{\"code\":400}}";
        let mut bytes = BytesMut::from(&b"MSG answers.0 2 22\r\n"[..]);
        bytes.extend_from_slice(answer);
        bytes.extend_from_slice(b"\r\n");
        assert!(Nats::new(true).receive(&mut bytes, &mut Vec::new(), |_| ()).is_err());
    }

    #[test]
    fn each_stored_event_is_answered_by_two_lines() {
        let mut wire = Nats::new(true);
        let lines = wire.publish([&b"a"[..]].into_iter(), &mut Vec::new());
        let answers = ["PING", "MSG stored 2 26", "{\"stream\":\"BENCH\",\"seq\":1}"];
        let mut said = Vec::new();
        let counted = answers.iter().filter(|line| wire.answer(line.as_bytes(), &mut said).expect("fine"));
        assert_eq!((counted.count(), said.as_slice()), (lines, &b"PONG\r\n"[..]));
    }
}
