//! Names and numbers of queues and messages, as types; receipts and message ids, as clients see them.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// A queue, from its creation to its deletion; another one of the same name is another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u64);

/// A message's number in its queue: it grows with every message sent, with gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// A message's number among those of all queues. It goes with the message from queue to queue, and is never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(pub u64);

/// What tells a receive of a message from its other ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u32);

/// Which message was received, and when: what deletes it, or changes its visibility.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The queue it was received from.
    pub queue: QueueId,
    /// The message.
    pub sequence: Sequence,
    /// The receive.
    pub token: Token,
    /// Where the message's tuple was put by it: the time from which on it is visible again. 0 where the store knows by
    /// itself.
    pub place: u64,
}

/// A text that is no receipt of this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no receipt that was given out here")]
pub struct NoReceipt;

const RECEIPT_VERSION: u8 = 2;
const MAC_BYTES: usize = 12;
/// Version, queue, sequence, token, place: what the code at the end authenticates.
const FIELDS_BYTES: usize = 1 + 8 + 8 + 4 + 8;

/// The key, of one store, by which its receipts are known.
#[derive(Clone)]
pub struct Secret(pub(crate) [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// A receipt as clients get it. Little-endian, in base64's alphabet for addresses:
    ///
    /// ```text
    /// offset width
    ///   0      1   version 2
    ///   1      8   queue
    ///   9      8   sequence
    ///  17      4   token
    ///  21      8   place
    ///  29     12   HMAC-SHA256 of the bytes before, its beginning
    /// ```
    pub fn write(&self, receipt: &Receipt) -> String {
        let mut bytes = [0; FIELDS_BYTES + MAC_BYTES];
        bytes[0] = RECEIPT_VERSION;
        bytes[1..9].copy_from_slice(&receipt.queue.0.to_le_bytes());
        bytes[9..17].copy_from_slice(&receipt.sequence.0.to_le_bytes());
        bytes[17..21].copy_from_slice(&receipt.token.0.to_le_bytes());
        bytes[21..29].copy_from_slice(&receipt.place.to_le_bytes());
        let code = self.code(&bytes[..FIELDS_BYTES]).finalize().into_bytes();
        bytes[FIELDS_BYTES..].copy_from_slice(&code[..MAC_BYTES]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The receipt that [`Secret::write`] wrote.
    pub fn read(&self, text: &str) -> Result<Receipt, NoReceipt> {
        let mut bytes = [0; FIELDS_BYTES + MAC_BYTES];
        let length = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).map_err(|_| NoReceipt)?;
        let (fields, code) = bytes.split_at(FIELDS_BYTES);
        if length != bytes.len() || fields[0] != RECEIPT_VERSION {
            return Err(NoReceipt);
        }
        self.code(fields).verify_truncated_left(code).map_err(|_| NoReceipt)?;
        let u64_at = |at: usize| u64::from_le_bytes(fields[at..at + 8].try_into().expect("8 bytes"));
        Ok(Receipt {
            queue: QueueId(u64_at(1)),
            sequence: Sequence(u64_at(9)),
            token: Token(u32::from_le_bytes(fields[17..21].try_into().expect("4 bytes"))),
            place: u64_at(21),
        })
    }

    /// A message's id: it stays the same as long as the message is the same.
    pub fn message_id(&self, number: Number, generation: u8) -> String {
        let mut bytes = [0; 10];
        bytes[0] = 0xff; // no receipt begins like this
        bytes[1..9].copy_from_slice(&number.0.to_le_bytes());
        bytes[9] = generation;
        let code = self.code(&bytes).finalize().into_bytes();
        let mut id = [0; 16];
        id.copy_from_slice(&code[..16]);
        // The form of a random UUID.
        id[6] = 0x40 | (id[6] & 0x0f);
        id[8] = 0x80 | (id[8] & 0x3f);
        let mut text = String::with_capacity(36);
        for (at, byte) in id.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            for digit in [byte >> 4, byte & 0xf] {
                text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
            }
        }
        text
    }

    fn code(&self, bytes: &[u8]) -> Hmac<Sha256> {
        let mut code = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key may have any length");
        code.update(bytes);
        code
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Sequence {
    /// As a FIFO queue's clients see it: 20 digits, greater for later messages, compared as numbers or as text.
    pub fn text(self) -> String {
        format!("{:020}", 10_000_000_000_000_000_000_u64.saturating_add(self.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: Secret = Secret([7; 32]);

    fn receipt() -> Receipt {
        Receipt { queue: QueueId(3), sequence: Sequence(u64::MAX), token: Token(9), place: 7 }
    }

    #[test]
    fn a_receipt_is_read_as_it_was_written_and_by_its_own_store_only() {
        let text = SECRET.write(&receipt());
        assert_eq!(SECRET.read(&text), Ok(receipt()));
        assert_eq!(Secret([8; 32]).read(&text), Err(NoReceipt));
    }

    #[test]
    fn a_receipt_with_any_character_changed_is_refused() {
        let text = SECRET.write(&receipt());
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(SECRET.read(std::str::from_utf8(&changed).expect("ASCII")), Err(NoReceipt));
            assert_eq!(SECRET.read(&text[..at]), Err(NoReceipt));
        }
    }

    #[test]
    fn a_message_s_id_is_a_uuid_and_another_after_it_was_brought_back() {
        let id = SECRET.message_id(Number(5), 0);
        assert_eq!((id.len(), &id[14..15]), (36, "4"), "{id}");
        assert_eq!(id, SECRET.message_id(Number(5), 0));
        assert_ne!(id, SECRET.message_id(Number(5), 1));
    }

    #[test]
    fn later_sequences_are_greater_as_text_too() {
        assert!(Sequence(9).text() < Sequence(10).text());
        assert_eq!(Sequence(0).text().len(), 20);
    }

    proptest! {
        #[test]
        fn no_text_makes_reading_a_receipt_panic(text: String) {
            let _ = SECRET.read(&text);
        }
    }
}
