//! Collections as people write them.

use bytes::Bytes;

use crate::event::Collect;

/// A text that is no collection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no collection: use same-key, keep-last=N, before=NUMBER, older-than=AGE (as in 7d, 12h, 5m, 30s, \
     100ms; a plain number is a time in milliseconds since 1970) or matching=PREDICATE"
)]
pub struct BadCollect(String);

impl Collect {
    /// Parses `same-key`, `keep-last=N`, `before=N`, `older-than=AGE` (before `now_ms`, in milliseconds since 1970;
    /// without a unit it is such a time itself) or `matching=PREDICATE`, whose predicate is not looked at. The text
    /// that [`Display`](std::fmt::Display) writes is such a one.
    pub fn parse(text: &str, now_ms: u64) -> Result<Self, BadCollect> {
        let bad = || BadCollect(text.chars().take(300).collect());
        let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
        match text.split_once('=') {
            None if text == "same-key" => Ok(Self::SameKey),
            Some(("keep-last", count)) => Ok(Self::KeepLast(number(count)?)),
            Some(("before", seq)) => Ok(Self::Before(number(seq)?)),
            Some(("older-than", time)) => {
                let (digits, unit) =
                    time.split_at(time.find(|c: char| !c.is_ascii_digit()).unwrap_or(time.len()));
                let count = number(digits)?;
                let unit_ms = match unit {
                    "" => return Ok(Self::OlderThan(count)),
                    "ms" => 1,
                    "s" => 1_000,
                    "m" => 60_000,
                    "h" => 3_600_000,
                    "d" => 86_400_000,
                    _ => return Err(bad()),
                };
                Ok(Self::OlderThan(now_ms.saturating_sub(count.saturating_mul(unit_ms))))
            }
            Some(("matching", predicate)) => Ok(Self::Matching(Bytes::copy_from_slice(predicate.as_bytes()))),
            _ => Err(bad()),
        }
    }
}

impl std::fmt::Display for Collect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SameKey => f.write_str("same-key"),
            Self::KeepLast(count) => write!(f, "keep-last={count}"),
            Self::Before(seq) => write!(f, "before={seq}"),
            Self::OlderThan(time_ms) => write!(f, "older-than={time_ms}"),
            Self::Matching(predicate) => write!(f, "matching={}", String::from_utf8_lossy(predicate)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_parsed_and_written_as_it_is_parsed() {
        let now_ms = 1_000_000_000;
        for text in ["same-key", "keep-last=5", "before=7", "older-than=99", "matching=key = \"a\""] {
            assert_eq!(Collect::parse(text, now_ms).unwrap().to_string(), text);
        }
        assert_eq!(Collect::parse("older-than=2h", now_ms).unwrap(), Collect::OlderThan(now_ms - 7_200_000));
        assert_eq!(Collect::parse("older-than=99999d", now_ms).unwrap(), Collect::OlderThan(0));
        for bad in
            ["", "same-key=1", "keep-last=", "keep-last=-1", "older-than=5w", "older-than=h", "newer=1"]
        {
            let error = Collect::parse(bad, now_ms).unwrap_err().to_string();
            assert!(error.contains("keep-last=N"), "{error}");
        }
    }
}
