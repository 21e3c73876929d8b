//! Positions as people write them.

use tailwater_client::Start;
use tailwater_format::{Dlsn, EntryId, Offset, SegmentNumber, SlotId};

/// Parses `start`, `end`, `OFFSET`, `-N`, `@TIME`, `dlsn:S/E/S` or `tx:N`.
pub fn parse(text: &str) -> Result<Start, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text} is not a number"));
    match text {
        "start" | "beginning" => return Ok(Start::Beginning),
        "end" => return Ok(Start::End),
        _ => {}
    }
    if let Some(time) = text.strip_prefix('@') {
        return time_ms(time).map(Start::TimeMs);
    }
    if let Some(dlsn) = text.strip_prefix("dlsn:") {
        let parts: Vec<&str> = dlsn.split('/').collect();
        let [segment, entry, slot] = parts[..] else {
            return Err(format!("{dlsn} is not SEGMENT/ENTRY/SLOT"));
        };
        let slot = slot.parse().map_err(|_| format!("{slot} is not a number"))?;
        return Ok(Start::Dlsn(Dlsn {
            segment: SegmentNumber(number(segment)?),
            entry: EntryId(number(entry)?),
            slot: SlotId(slot),
        }));
    }
    if let Some(id) = text.strip_prefix("tx:") {
        return id.parse().map(Start::TransactionId).map_err(|_| format!("{id} is not a number"));
    }
    if let Some(count) = text.strip_prefix('-') {
        return Ok(Start::Last(number(count)?));
    }
    number(text).map(|offset| Start::Offset(Offset(offset))).map_err(|_| {
        format!("{text} is none of start, end, OFFSET, -N, @TIME, dlsn:SEGMENT/ENTRY/SLOT, tx:N")
    })
}

fn time_ms(text: &str) -> Result<i64, String> {
    if let Ok(ms) = text.parse() {
        return Ok(ms);
    }
    let time: jiff::Timestamp =
        text.parse().map_err(|_| format!("{text} is neither milliseconds nor like 2026-01-31T23:59:59Z"))?;
    Ok(time.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_understood() {
        assert_eq!(parse("start"), Ok(Start::Beginning));
        assert_eq!(parse("end"), Ok(Start::End));
        assert_eq!(parse("17"), Ok(Start::Offset(Offset(17))));
        assert_eq!(parse("-17"), Ok(Start::Last(17)));
        assert_eq!(parse("@1700000000000"), Ok(Start::TimeMs(1_700_000_000_000)));
        assert_eq!(parse("@1970-01-01T00:00:01Z"), Ok(Start::TimeMs(1_000)));
        assert_eq!(parse("tx:-5"), Ok(Start::TransactionId(-5)));
        let dlsn = Dlsn { segment: SegmentNumber(1), entry: EntryId(2), slot: SlotId(3) };
        assert_eq!(parse("dlsn:1/2/3"), Ok(Start::Dlsn(dlsn)));
    }

    #[test]
    fn nonsense_is_refused_with_the_forms_there_are() {
        assert!(parse("yesterday").is_err_and(|error| error.contains("@TIME")));
        assert!(parse("dlsn:1/2").is_err());
        assert!(parse("@noon").is_err());
    }
}
