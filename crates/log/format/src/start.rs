//! Where to begin in a shard, as people write it: on the command line, in requests, in configuration.
//!
//! | written | means |
//! |---|---|
//! | `start`, `end` | the oldest record there is; behind the newest one |
//! | `17` | the record with this offset |
//! | `-17` | so many records before the end |
//! | `@1700000000000`, `@2023-11-14T22:13:20Z` | the first record at or after this time: ms since the epoch, or RFC 3339 |
//! | `@2023-11-14` | the first record of this day in UTC, or after it |
//! | `dlsn:1/2/3` | the record with these coordinates: segment, entry, slot |
//! | `tx:17` | the first record with this transaction id or a larger one |
//!
//! What is written by [`Start`]'s `Display` is read back as the same.

use std::fmt;
use std::str::FromStr;

use crate::{Dlsn, EntryId, Offset, SegmentNumber, SlotId};

/// Where to begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// The oldest record there is.
    Beginning,
    /// Behind the newest record.
    #[default]
    End,
    /// This offset.
    Offset(Offset),
    /// So many records before the end.
    Last(u64),
    /// The first record at or after this time, in ms since the epoch.
    TimeMs(i64),
    /// The first record with this transaction id or a larger one.
    TransactionId(i64),
    /// These coordinates.
    Dlsn(Dlsn),
}

/// What is wrong with a place as it was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// It has none of the forms.
    #[error("{0:?} is none of start, end, OFFSET, -N, @TIME, dlsn:SEGMENT/ENTRY/SLOT, tx:N")]
    Form(String),
    /// A number is none, or out of its range.
    #[error("{given:?} is not {what}: a number from {min} to {max}")]
    Number {
        /// The beginning of what was given.
        given: String,
        /// What it should have been.
        what: &'static str,
        /// The least one.
        min: i64,
        /// The greatest one.
        max: u64,
    },
    /// The time is in none of the forms.
    #[error(
        "{0:?} is no time: give milliseconds since 1970, a date in UTC as in 2026-01-31, or RFC 3339 as in \
         2026-01-31T23:59:59Z"
    )]
    Time(String),
    /// A date or a time stands where an offset may.
    #[error("{0:?} is a time, and not an offset: write @{0}")]
    TimeWithoutAt(String),
    /// The coordinates are not three numbers.
    #[error("{0:?} is not SEGMENT/ENTRY/SLOT, as in dlsn:1/2/3")]
    Dlsn(String),
}

impl FromStr for Start {
    type Err = StartError;

    fn from_str(text: &str) -> Result<Self, StartError> {
        // `beginning` is kcat's word.
        match text {
            "start" | "beginning" => return Ok(Self::Beginning),
            "end" => return Ok(Self::End),
            _ => {}
        }
        if let Some(time) = text.strip_prefix('@') {
            return time_ms(time).map(Self::TimeMs);
        }
        if let Some(id) = text.strip_prefix("tx:") {
            let wrong = || number_error(id, "a transaction id", i64::MIN, i64::MAX.unsigned_abs());
            return id.parse().map(Self::TransactionId).map_err(|_| wrong());
        }
        if let Some(dlsn) = text.strip_prefix("dlsn:") {
            return parse_dlsn(dlsn).map(Self::Dlsn);
        }
        if let Some(count) = text.strip_prefix('-') {
            return number(count, "a count of records").map(Self::Last);
        }
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            if time_ms(text).is_ok_and(|_| digits(text).is_none()) {
                return Err(StartError::TimeWithoutAt(shown(text)));
            }
            return number(text, "an offset").map(|offset| Self::Offset(Offset(offset)));
        }
        Err(StartError::Form(shown(text)))
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beginning => f.write_str("start"),
            Self::End => f.write_str("end"),
            Self::Offset(offset) => offset.fmt(f),
            Self::Last(count) => write!(f, "-{count}"),
            Self::TimeMs(ms) => write!(f, "@{ms}"),
            Self::TransactionId(id) => write!(f, "tx:{id}"),
            Self::Dlsn(dlsn) => write!(f, "dlsn:{dlsn}"),
        }
    }
}

fn parse_dlsn(text: &str) -> Result<Dlsn, StartError> {
    let mut parts = text.split('/');
    let (Some(segment), Some(entry), Some(slot), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(StartError::Dlsn(shown(text)));
    };
    let wrong_slot = || number_error(slot, "a slot", 0, u32::MAX.into());
    Ok(Dlsn {
        segment: SegmentNumber(number(segment, "a segment's number")?),
        entry: EntryId(number(entry, "an entry's number")?),
        slot: SlotId(digits(slot).and_then(|slot| slot.parse().ok()).ok_or_else(wrong_slot)?),
    })
}

/// Milliseconds since the epoch. A time between two of them is rounded up: the first record at or after it is the
/// first one at or after the next of them.
fn time_ms(text: &str) -> Result<i64, StartError> {
    if let Ok(ms) = text.parse() {
        return Ok(ms);
    }
    let wrong = || StartError::Time(shown(text));
    // What parses dates would take one with a time and leave the time out.
    let is_date = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    let time: jiff::Timestamp = match is_date {
        true => {
            let date: jiff::civil::Date = text.parse().map_err(|_| wrong())?;
            date.to_zoned(jiff::tz::TimeZone::UTC).map_err(|_| wrong())?.timestamp()
        }
        false => text.parse().map_err(|_| wrong())?,
    };
    let ms = -(-time.as_nanosecond()).div_euclid(1_000_000);
    i64::try_from(ms).map_err(|_| wrong())
}

fn number(text: &str, what: &'static str) -> Result<u64, StartError> {
    let parsed = digits(text).and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| number_error(text, what, 0, u64::MAX))
}

/// `text`, if it has only digits: a plus sign, which `parse` would take, is none.
fn digits(text: &str) -> Option<&str> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then_some(text)
}

fn number_error(given: &str, what: &'static str, min: i64, max: u64) -> StartError {
    StartError::Number { given: shown(given), what, min, max }
}

/// What a peer sent is shown cut, or an error message could be as long as a request.
fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Start, StartError> {
        text.parse()
    }

    #[test]
    fn every_form_is_understood() {
        assert_eq!(parse("start"), Ok(Start::Beginning));
        assert_eq!(parse("beginning"), Ok(Start::Beginning));
        assert_eq!(parse("end"), Ok(Start::End));
        assert_eq!(parse("17"), Ok(Start::Offset(Offset(17))));
        assert_eq!(parse("-17"), Ok(Start::Last(17)));
        assert_eq!(parse("@1700000000000"), Ok(Start::TimeMs(1_700_000_000_000)));
        assert_eq!(parse("@-1"), Ok(Start::TimeMs(-1)));
        assert_eq!(parse("@1970-01-01T00:00:01Z"), Ok(Start::TimeMs(1_000)));
        assert_eq!(parse("@1970-01-01T01:00:01+01:00"), Ok(Start::TimeMs(1_000)));
        assert_eq!(parse("@1970-01-02"), Ok(Start::TimeMs(86_400_000)));
        assert_eq!(parse("tx:-5"), Ok(Start::TransactionId(-5)));
        let dlsn = Dlsn { segment: SegmentNumber(1), entry: EntryId(2), slot: SlotId(3) };
        assert_eq!(parse("dlsn:1/2/3"), Ok(Start::Dlsn(dlsn)));
    }

    #[test]
    fn a_time_between_two_milliseconds_is_the_later_one() {
        assert_eq!(parse("@1970-01-01T00:00:00.0000001Z"), Ok(Start::TimeMs(1)));
        assert_eq!(parse("@1970-01-01T00:00:00.001Z"), Ok(Start::TimeMs(1)));
        assert_eq!(parse("@1969-12-31T23:59:59.9990001Z"), Ok(Start::TimeMs(0)));
    }

    #[test]
    fn nonsense_is_refused_with_what_would_be_right() {
        let why = |text: &str| parse(text).expect_err(text).to_string();
        for text in ["", "yesterday", "+5", "Start", " 1"] {
            assert!(why(text).contains("@TIME"), "{text}: {}", why(text));
        }
        assert!(why("@noon").contains("RFC 3339"));
        for text in ["@2026-02-31", "@2026-01", "@2026-01-31T12:00:00", "@-"] {
            assert!(why(text).contains("a date in UTC as in 2026-01-31"), "{text}: {}", why(text));
        }
        for text in ["dlsn:", "dlsn:1/2", "dlsn:1/2/3/4"] {
            assert!(why(text).contains("SEGMENT/ENTRY/SLOT"), "{text}");
        }
        assert!(why("dlsn:1/2/4294967296").contains("a slot: a number from 0 to 4294967295"));
        assert!(why("dlsn:1/+2/3").contains("an entry's number"));
        assert!(why("18446744073709551616").contains("an offset: a number from 0 to 18446744073709551615"));
        for text in ["2026-01-31", "2026-01-31T12:00:00Z"] {
            assert!(why(text).contains(&format!("write @{text}")), "{}", why(text));
        }
        assert!(why("-").contains("a count of records"));
        assert!(why("--5").contains("a count of records"));
        assert!(why("tx:five").contains("a transaction id: a number from -9223372036854775808"));
    }

    #[test]
    fn a_long_text_is_shown_cut() {
        assert!(parse(&"x".repeat(1 << 20)).expect_err("nonsense").to_string().len() < 200);
    }

    fn any_start() -> impl Strategy<Value = Start> {
        let dlsn = (any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(segment, entry, slot)| Dlsn {
            segment: SegmentNumber(segment),
            entry: EntryId(entry),
            slot: SlotId(slot),
        });
        prop_oneof![
            Just(Start::Beginning),
            Just(Start::End),
            any::<u64>().prop_map(|offset| Start::Offset(Offset(offset))),
            any::<u64>().prop_map(Start::Last),
            any::<i64>().prop_map(Start::TimeMs),
            any::<i64>().prop_map(Start::TransactionId),
            dlsn.prop_map(Start::Dlsn),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back_as_the_same(start in any_start()) {
            prop_assert_eq!(parse(&start.to_string()), Ok(start));
        }

        #[test]
        fn a_time_is_the_same_in_milliseconds_and_in_rfc_3339(ms in 0_i64..253_402_200_000_000) {
            let time = jiff::Timestamp::from_millisecond(ms).expect("in range");
            prop_assert_eq!(parse(&format!("@{time}")), Ok(Start::TimeMs(ms)));
        }

        #[test]
        fn nothing_that_is_written_panics(text in ".{0,40}") {
            let _ = parse(&text);
            let _ = parse(&format!("@{text}"));
            let _ = parse(&format!("dlsn:{text}"));
        }
    }
}
