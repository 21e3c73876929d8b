//! What a bridge from a cell publishes: which keys have changed, and until when it has told all (`docs/broadcast.md`).

use bytes::Bytes;
use tailwater_cache::layout::KeyHash;

/// The key of the event that says until when all changes are told. Its payload is that time, in milliseconds since
/// the Unix epoch by the bridge's wall clock, in digits.
pub const CELL_AS_OF_KEY: &str = "as-of";

/// The key of the event that says that a cell's `key` has changed: its XXH3-128 in 32 hexadecimal digits, which
/// `xxh128sum` prints, too. An event without a key says that any key may have changed.
pub fn cell_event_key(key: &[u8]) -> Bytes {
    cell_event_key_of(KeyHash::of(key))
}

/// The same where the hash is known already.
pub fn cell_event_key_of(hash: KeyHash) -> Bytes {
    format!("{:032x}", hash.0).into()
}

/// The time that an event with the key [`CELL_AS_OF_KEY`] tells of; `None` if it tells of none.
pub(super) fn as_of_ms(payload: &[u8]) -> Option<i64> {
    std::str::from_utf8(payload).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_s_event_has_the_canonical_text_of_its_hash_and_bytes_that_are_no_time_are_none() {
        // As `xxh128sum` prints it of no bytes at all.
        assert_eq!(cell_event_key(b""), "99aa06d3014798d86001c324468d497f");
        assert_eq!(cell_event_key_of(KeyHash(7)), "00000000000000000000000000000007");
        assert_eq!(as_of_ms(b"1700000000000"), Some(1_700_000_000_000));
        for none in [&b""[..], b"now", b"\xff", b"99999999999999999999"] {
            assert_eq!(as_of_ms(none), None);
        }
    }
}
