//! Reads of many entries at once, in version 2 of the bookie protocol. Version 3 has a number for them, and no message:
//! bookies take them since 4.17, and in version 2 alone.
//!
//! ```text
//!  request  0        4       8        16      24       32      36
//!           | length | head  | ledger | first | number | count | bytes |
//!           |  u32   |  u32  |  i64   |  i64  |  u64   |  u32  |  i64  |
//!
//!  answer   0        4       8        12       20      28       36
//!           | length | head  | status | ledger | first | number | entries ...
//!           |  u32   |  u32  |  u32   |  i64   |  i64  |  u64   | each a u32 with its length, and its bytes
//!
//!  head     version << 24 | operation << 16 | flags
//! ```
//!
//! All numbers are big-endian. The first entry is there whatever it takes, or the status says that it is not. Those
//! behind it are there as far as the bookie has them without a gap, and they are within `count` and `bytes`.
//!
//! A bookie takes a frame that is none of version 3 for one of version 2, and so every other one behind it. So these
//! requests have a connection of their own. TLS and the login come before the first of them, in version 3. A bookie
//! before 4.17 hangs up on one.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::ids::{EntryId, LedgerId};
use crate::limits::BATCH_ENTRIES_MAX;
use crate::protocol::{BookieAnswer, BookieError};
use crate::wire::{FrameFault, NumberedAnswer, take_frame};

const VERSION: u32 = 2;
const OPERATION_READ_BATCH: u32 = 7;
const HEAD: u32 = VERSION << 24 | OPERATION_READ_BATCH << 16;

/// Bytes of a request behind its length.
const REQUEST_BYTES: u32 = 40;
/// Bytes of an answer before its entries, without its length.
const ANSWER_HEAD_BYTES: usize = 32;

/// Appends a request's frame to `to`.
pub(crate) fn put_batch_request(
    number: u64,
    ledger: LedgerId,
    first: EntryId,
    count_max: u32,
    bytes_max: u32,
    to: &mut BytesMut,
) {
    to.put_u32(REQUEST_BYTES);
    to.put_u32(HEAD);
    to.put_i64(ledger.get());
    to.put_i64(first.get());
    to.put_u64(number);
    to.put_u32(count_max);
    to.put_i64(bytes_max.into());
}

/// Takes the first answer to such a request out of `from`, once it is there whole.
pub(crate) fn take_batch_response(from: &mut BytesMut) -> Result<Option<NumberedAnswer>, FrameFault> {
    let Some(mut frame) = take_frame(from)? else { return Ok(None) };
    if frame.len() < ANSWER_HEAD_BYTES || frame.get_u32() != HEAD {
        return Err(FrameFault::Message);
    }
    let status = frame.get_u32();
    // Whose entries they are their digests say.
    let _ledger_and_first = (frame.get_i64(), frame.get_i64());
    let number = frame.get_u64();
    let result = check(status).and_then(|()| entries(frame)).map(|packets| BookieAnswer::Batch { packets });
    Ok(Some(NumberedAnswer { number, result }))
}

fn entries(mut frame: Bytes) -> Result<Vec<Bytes>, BookieError> {
    let mut packets = Vec::new();
    while frame.has_remaining() {
        let length = if frame.len() < 4 { usize::MAX } else { frame.get_u32() as usize };
        if length > frame.len() {
            return Err(BookieError::Malformed("an entry of a batch is cut"));
        }
        if packets.len() == BATCH_ENTRIES_MAX {
            return Err(BookieError::Malformed("more entries than were asked for"));
        }
        packets.push(frame.split_to(length));
    }
    Ok(packets)
}

/// The statuses of version 2.
fn check(status: u32) -> Result<(), BookieError> {
    Err(match status {
        0 => return Ok(()),
        1 => BookieError::NoLedger,
        2 => BookieError::NoEntry,
        100 | 103 => BookieError::Unsupported,
        102 => BookieError::Unauthorized,
        104 => BookieError::Fenced,
        105 => BookieError::ReadOnly,
        106 => BookieError::Overloaded,
        other => BookieError::Refused(i32::try_from(other).unwrap_or(i32::MAX)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(status: u32, number: u64, entries: &[&[u8]]) -> BytesMut {
        let mut frame = BytesMut::new();
        let length: usize = entries.iter().map(|entry| 4 + entry.len()).sum();
        frame.put_u32((ANSWER_HEAD_BYTES + length) as u32);
        frame.put_u32(HEAD);
        frame.put_u32(status);
        frame.put_i64(3);
        frame.put_i64(5);
        frame.put_u64(number);
        for entry in entries {
            frame.put_u32(entry.len() as u32);
            frame.put_slice(entry);
        }
        frame
    }

    #[test]
    fn a_request_is_the_bytes_that_version_2_says() {
        let mut frame = BytesMut::new();
        let ledger = LedgerId::new(3).expect("not negative");
        put_batch_request(9, ledger, EntryId::new(5), 100, 70_000, &mut frame);
        let expected = [
            &[0, 0, 0, 40, 2, 7, 0, 0][..],
            &[0, 0, 0, 0, 0, 0, 0, 3],
            &[0, 0, 0, 0, 0, 0, 0, 5],
            &[0, 0, 0, 0, 0, 0, 0, 9],
            &[0, 0, 0, 100],
            &[0, 0, 0, 0, 0, 1, 0x11, 0x70],
        ];
        assert_eq!(frame[..], expected.concat());
    }

    #[test]
    fn an_answer_is_taken_when_it_is_whole_and_has_its_entries_or_says_why_not() {
        let whole = answer(0, 9, &[b"one", b"", b"three"]);
        let mut buffer = BytesMut::new();
        for byte in &whole[..whole.len() - 1] {
            buffer.put_u8(*byte);
            assert_eq!(take_batch_response(&mut buffer), Ok(None));
        }
        buffer.put_u8(whole[whole.len() - 1]);
        let packets = ["one", "", "three"].map(Bytes::from).to_vec();
        let taken = NumberedAnswer { number: 9, result: Ok(BookieAnswer::Batch { packets }) };
        assert_eq!(take_batch_response(&mut buffer), Ok(Some(taken)));
        assert!(buffer.is_empty());
        for (status, error) in [
            (1, BookieError::NoLedger),
            (2, BookieError::NoEntry),
            (100, BookieError::Unsupported),
            (101, BookieError::Refused(101)),
        ] {
            let taken = NumberedAnswer { number: 7, result: Err(error) };
            assert_eq!(take_batch_response(&mut answer(status, 7, &[])), Ok(Some(taken)));
        }
    }

    #[test]
    fn what_is_cut_or_too_much_or_of_another_operation_is_refused() {
        let result =
            |mut frame: BytesMut| take_batch_response(&mut frame).expect("a frame").expect("whole").result;
        let mut cut = answer(0, 1, &[b"entry"]);
        let at = 4 + ANSWER_HEAD_BYTES;
        cut[at..at + 4].copy_from_slice(&6_u32.to_be_bytes());
        assert_eq!(result(cut), Err(BookieError::Malformed("an entry of a batch is cut")));
        let empty: Vec<&[u8]> = vec![b""; BATCH_ENTRIES_MAX + 1];
        assert!(matches!(result(answer(0, 1, &empty)), Err(BookieError::Malformed(_))));
        assert!(result(answer(0, 1, &empty[1..])).is_ok());
        let mut other = answer(0, 1, &[]);
        other[5] = 2;
        assert_eq!(take_batch_response(&mut other), Err(FrameFault::Message));
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_are_an_answer_a_fault_or_too_few(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut framed = BytesMut::new();
            framed.put_u32(4 + bytes.len() as u32);
            framed.put_u32(HEAD);
            framed.put_slice(&bytes);
            let _ = take_batch_response(&mut framed);
            let _ = take_batch_response(&mut BytesMut::from(&bytes[..]));
        }
    }
}
