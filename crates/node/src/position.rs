//! Positions as people write them in requests.

use tailwater_format::{Dlsn, EntryId, Offset, SegmentNumber, SlotId, TransactionId};
use tailwater_log::Locate;

/// Parses `start`, `end`, `OFFSET`, `-N`, `@MS`, `dlsn:S/E/S` or `tx:N`.
pub fn parse(text: &str) -> Result<Locate, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text} is not a number"));
    let signed = |text: &str| text.parse::<i64>().map_err(|_| format!("{text} is not a number"));
    if text == "start" {
        return Ok(Locate::Start);
    }
    if text == "end" {
        return Ok(Locate::End);
    }
    // By default a record's transaction id is the running maximum of timestamps in ms.
    if let Some(id) = text.strip_prefix('@').or_else(|| text.strip_prefix("tx:")) {
        return signed(id).map(|id| Locate::TransactionId(TransactionId(id)));
    }
    if let Some(dlsn) = text.strip_prefix("dlsn:") {
        let parts: Vec<&str> = dlsn.split('/').collect();
        let [segment, entry, slot] = parts[..] else {
            return Err(format!("{dlsn} is not SEGMENT/ENTRY/SLOT"));
        };
        let slot = slot.parse().map_err(|_| format!("{slot} is not a number"))?;
        return Ok(Locate::Dlsn(Dlsn {
            segment: SegmentNumber(number(segment)?),
            entry: EntryId(number(entry)?),
            slot: SlotId(slot),
        }));
    }
    if let Some(count) = text.strip_prefix('-') {
        return number(count).map(Locate::Last);
    }
    number(text)
        .map(|offset| Locate::Offset(Offset(offset)))
        .map_err(|_| format!("{text} is none of start, end, OFFSET, -N, @MS, dlsn:SEGMENT/ENTRY/SLOT, tx:N"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_understood_and_nonsense_refused() {
        assert_eq!(parse("start"), Ok(Locate::Start));
        assert_eq!(parse("12"), Ok(Locate::Offset(Offset(12))));
        assert_eq!(parse("-3"), Ok(Locate::Last(3)));
        assert_eq!(parse("@5"), Ok(Locate::TransactionId(TransactionId(5))));
        assert!(parse("later").is_err_and(|why| why.contains("OFFSET")));
    }
}
