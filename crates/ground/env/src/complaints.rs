//! Lines in the log that others cause, not more than a log can take: a peer that comes again and again, and errs each
//! time, would fill it.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::Instant;

/// Lines for each reason: so many at most ...
const LINES_MAX: u32 = 10;
/// ... in this time.
const LINES_EVERY: Duration = Duration::from_secs(10);

/// Says of which complaints a line is written. Reasons are bounded apart, so that a flood of one hides no other.
#[derive(Debug, Default)]
pub struct Complaints(Mutex<BTreeMap<&'static str, ComplaintsTold>>);

/// What was written for one reason.
#[derive(Debug, Default)]
struct ComplaintsTold {
    /// When the first of `lines` was written.
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Complaints {
    /// Whether a line may be written at `now` for this reason, and how many were not since the last one. A reason is a
    /// word of the program's, nothing that a peer says.
    pub fn admit(&self, now: Instant, reason: &'static str) -> Option<u64> {
        self.0.lock().entry(reason).or_default().admit(now)
    }
}

impl ComplaintsTold {
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.since(since) >= LINES_EVERY) {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines >= LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_complaints_is_cut_and_its_size_told_with_the_next_one_and_hides_no_other_reason() {
        let complaints = Complaints::default();
        let start = Instant::from_ns(0);
        for _ in 0..LINES_MAX {
            assert_eq!(complaints.admit(start, "malformed"), Some(0));
        }
        for _ in 0..1_000 {
            assert_eq!(complaints.admit(start + LINES_EVERY / 2, "malformed"), None);
        }
        assert_eq!(complaints.admit(start + LINES_EVERY / 2, "too many"), Some(0));
        assert_eq!(complaints.admit(start + LINES_EVERY, "malformed"), Some(1_000));
        assert_eq!(complaints.admit(start + LINES_EVERY, "malformed"), Some(0));
        assert_eq!(complaints.admit(start + LINES_EVERY, "too many"), Some(0));
    }
}
