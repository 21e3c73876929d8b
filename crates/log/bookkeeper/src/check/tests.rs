use super::*;
use crate::digest::DigestKind;
use crate::ids::Quorums;
use crate::protocol::BookieAnswer;

fn ledger() -> LedgerId {
    LedgerId::new(9).expect("not negative")
}

fn metadata(entries: u64, length: u64) -> LedgerMetadata {
    let bookies = ["a:1", "b:1", "c:1"].map(BookieId::new).to_vec();
    let quorums = Quorums::new(3, 2, 2).expect("in order");
    let mut metadata = LedgerMetadata::new(quorums, bookies, DigestKind::Crc32c, b"");
    metadata.state = LedgerStatus::Closed { last: EntryId::new(entries as i64 - 1), length };
    metadata
}

/// Checks a ledger of four entries of three bytes, whose copies `answer` gives.
fn check(
    length: u64,
    answer: impl Fn(EntryId, &str, bytes::Bytes) -> Result<bytes::Bytes, BookieError>,
) -> LedgerCheck {
    let metadata = metadata(4, length);
    let codec = EntryCodec::new(ledger(), metadata.digest, b"");
    let mut effects = Vec::new();
    let mut checker = Checker::new(ledger(), metadata, EntryId::new(3), &mut effects);
    let mut now = Instant::default();
    loop {
        let input = if effects.is_empty() {
            now = now + PAUSE;
            StepInput::Tick
        } else {
            let StepEffect::Ask { token, bookie, request: BookieRequest::Read { entry, fence: None, .. } } =
                effects.remove(0)
            else {
                panic!("it does nothing but read")
            };
            let length = 3 * (entry.get() as u64 + 1);
            let packet = codec.pack(entry, EntryId::NONE, length, b"abc");
            let result = answer(entry, bookie.name(), packet)
                .map(|packet| BookieAnswer::Entry { packet: Some(packet), lac: None });
            StepInput::Answer { token, result }
        };
        if let Some(check) = checker.step(now, input, &mut effects) {
            return check;
        }
    }
}

#[test]
fn a_ledger_with_all_its_copies_is_whole() {
    let check = check(12, |_, _, packet| Ok(packet));
    assert!(check.is_whole(), "{check:?}");
    assert_eq!((check.copies, check.bytes, check.bad.len()), (8, 12, 0));
}

#[test]
fn copies_that_are_absent_damaged_or_silent_are_told_apart() {
    let check = check(12, |entry, bookie, packet| match (entry.get(), bookie) {
        (0, "a:1") => Err(BookieError::NoEntry),
        (1, "b:1") => Err(BookieError::Unreachable),
        (2, _) => Ok(packet.slice(..packet.len() - 1)),
        _ => Ok(packet),
    });
    assert!(!check.is_whole());
    assert_eq!((check.absent, check.unanswered, check.damaged, check.copies), (1, 1, 2, 4));
    assert_eq!((check.short, check.unreadable, check.wrong_length), (3, 1, None));
    let first = BadCopy { entry: EntryId::FIRST, bookie: BookieId::new("a:1"), fault: CopyFault::Absent };
    assert_eq!(check.bad[0], first);
}

#[test]
fn a_copy_with_a_right_digest_that_is_not_the_others_is_found() {
    let other = EntryCodec::new(ledger(), DigestKind::Crc32c, b"");
    let check = check(12, |entry, bookie, packet| match (entry.get(), bookie) {
        (3, "a:1") => Ok(other.pack(entry, EntryId::NONE, 12, b"xyz")),
        _ => Ok(packet),
    });
    assert_eq!((check.damaged, check.short), (1, 1));
}

#[test]
fn a_length_that_the_payloads_do_not_add_up_to_is_found() {
    assert_eq!(check(13, |_, _, packet| Ok(packet)).wrong_length, Some(EntryId::new(4)));
    let codec = EntryCodec::new(ledger(), DigestKind::Crc32c, b"");
    let wrong = check(12, |entry, _, packet| {
        Ok(if entry.get() == 2 { codec.pack(entry, EntryId::NONE, 10, b"abc") } else { packet })
    });
    assert_eq!(wrong.wrong_length, Some(EntryId::new(2)));
}

#[test]
fn a_bookie_whose_connection_broke_is_asked_again_and_a_dead_one_not_for_ever() {
    let broken = std::cell::Cell::new(true);
    let once = check(
        12,
        |_, _, packet| if broken.replace(false) { Err(BookieError::Unreachable) } else { Ok(packet) },
    );
    assert!(once.is_whole(), "{once:?}");
    let asked = std::cell::Cell::new(0);
    let dead = check(12, |_, bookie, packet| {
        if bookie != "b:1" {
            return Ok(packet);
        }
        asked.set(asked.get() + 1);
        Err(BookieError::Unreachable)
    });
    // Of the entries 0, 1 and 3 it has a copy.
    assert_eq!((dead.unanswered, dead.short, dead.unreadable), (3, 3, 0));
    assert!(asked.get() < 3 * CHECK_TRIES, "{}", asked.get());
}
