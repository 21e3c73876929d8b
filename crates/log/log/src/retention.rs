//! Which segments roll, and which may go.
//!
//! Only whole completed segments are deleted, oldest first, and never the open one: a shard whose records have
//! all expired rolls its open segment first ([`roll_age_ms`]), and then it is a completed one.

use tailwater_format::Offset;

use crate::config::StreamConfig;
use crate::stream::SegmentRecord;

/// Length in bytes beyond which the open segment is completed. A segment larger than what is to be kept would
/// keep everything, so retention bounds it too.
pub fn roll_bytes(config: &StreamConfig) -> u64 {
    config.segment_bytes.min(config.retention_bytes.unwrap_or(u64::MAX))
}

/// Age in ms at which the open segment, if it has records, is completed; likewise.
pub fn roll_age_ms(config: &StreamConfig) -> u64 {
    config.segment_ms.min(config.retention_ms.unwrap_or(u64::MAX))
}

/// How many of the `completed` segments, from the oldest on, retention gives up at wall time `now_ms`, when
/// the open segment holds `open_bytes`. Those sealed in the future (the clock went back) are kept.
pub fn expired<'a>(
    config: &StreamConfig,
    completed: impl DoubleEndedIterator<Item = &'a SegmentRecord> + Clone,
    open_bytes: u64,
    now_ms: i64,
) -> usize {
    let by_time = config.retention_ms.map_or(0, |keep_ms| {
        let keep_ms = i64::try_from(keep_ms).unwrap_or(i64::MAX);
        completed.clone().take_while(|segment| now_ms.saturating_sub(segment.sealed_ms) >= keep_ms).count()
    });
    let by_bytes = config.retention_bytes.map_or(0, |keep_bytes| {
        let mut left =
            completed.clone().fold(open_bytes, |sum, segment| sum.saturating_add(segment.length.0));
        completed
            .take_while(|segment| {
                left = left.saturating_sub(segment.length.0);
                left >= keep_bytes
            })
            .count()
    });
    by_time.max(by_bytes)
}

/// How many of the `completed` segments, from the oldest on, lie wholly before `log_start`.
pub fn below<'a>(completed: impl Iterator<Item = &'a SegmentRecord>, log_start: Offset) -> usize {
    completed.take_while(|segment| segment.next_offset <= log_start).count()
}

#[cfg(test)]
mod tests {
    use tailwater_format::{Position, SegmentNumber, Term, TransactionId};

    use super::*;

    /// Ten segments of 100 bytes and 10 records; segment n sealed at (n + 1) * 1,000 ms.
    fn segments() -> Vec<SegmentRecord> {
        (0..10)
            .map(|n| SegmentRecord {
                number: SegmentNumber(n),
                term: Term(1),
                base_offset: Offset(n * 10),
                next_offset: Offset(n * 10 + 10),
                length: Position(100),
                first_transaction_id: TransactionId(0),
                last_transaction_id: TransactionId(0),
                created_ms: n as i64 * 1_000,
                sealed_ms: n as i64 * 1_000 + 1_000,
            })
            .collect()
    }

    fn keep(ms: Option<u64>, bytes: Option<u64>) -> StreamConfig {
        StreamConfig { retention_ms: ms, retention_bytes: bytes, ..StreamConfig::default() }
    }

    #[test]
    fn a_segment_expires_its_retention_after_it_was_sealed() {
        let config = keep(Some(5_000), None);
        assert_eq!(expired(&config, segments().iter(), 0, 5_999), 0);
        assert_eq!(expired(&config, segments().iter(), 0, 6_000), 1);
        assert_eq!(expired(&config, segments().iter(), 0, 8_500), 3);
        assert_eq!(expired(&config, segments().iter(), 0, i64::MAX), 10);
    }

    #[test]
    fn at_least_the_bytes_to_keep_are_kept() {
        for (keep_bytes, open, expected) in [
            (1_000, 0, 0),
            (999, 0, 0),
            (900, 0, 1),
            (250, 0, 7),
            (250, 100, 8),
            (100, 100, 10),
            (100, 5_000, 10),
        ] {
            let config = keep(None, Some(keep_bytes));
            assert_eq!(expired(&config, segments().iter(), open, 0), expected, "{keep_bytes} {open}");
        }
    }

    #[test]
    fn the_stricter_limit_wins_and_none_keeps_all() {
        assert_eq!(expired(&keep(Some(5_000), Some(900)), segments().iter(), 0, 8_500), 3);
        assert_eq!(expired(&keep(Some(5_000), Some(250)), segments().iter(), 0, 8_500), 7);
        assert_eq!(expired(&keep(None, None), segments().iter(), 1 << 60, i64::MAX), 0);
    }

    #[test]
    fn a_clock_that_went_back_deletes_nothing() {
        assert_eq!(expired(&keep(Some(1), None), segments().iter(), 0, -1), 0);
    }

    #[test]
    fn truncation_deletes_only_what_lies_wholly_before_it() {
        let segments = segments();
        assert_eq!(below(segments.iter(), Offset(0)), 0);
        assert_eq!(below(segments.iter(), Offset(9)), 0);
        assert_eq!(below(segments.iter(), Offset(10)), 1);
        assert_eq!(below(segments.iter(), Offset(1_000)), 10);
    }

    #[test]
    fn a_segment_rolls_before_it_could_outlive_its_records() {
        let config =
            StreamConfig { segment_ms: 1_000, segment_bytes: 1 << 20, ..keep(Some(10), Some(8 << 10)) };
        assert_eq!((roll_age_ms(&config), roll_bytes(&config)), (10, 8 << 10));
        let config = StreamConfig { segment_ms: 1_000, segment_bytes: 1 << 20, ..keep(None, None) };
        assert_eq!((roll_age_ms(&config), roll_bytes(&config)), (1_000, 1 << 20));
    }
}
