//! How a move task looks for what is left of what it has to move, without reading the whole queue again and again.
//!
//! As a rule that is the oldest of what is visible, and found at once. Where it is not, the whole index is looked at,
//! bucket by bucket:
//! - Where something was found to be moved, the next look goes on from there.
//! - Where all that was found is invisible, the first of it is the *witness*. As long as that is where it was, and
//!   invisible, there is nothing to be done; but somebody may make others visible, behind other messages, and so
//!   everything is looked at again, more and more rarely.
//! - Where nothing was found in two looks that follow each other, nothing is left. Not in one: what becomes visible
//!   earlier while a look goes on is moved from what is yet to be looked at to what was.
//!
//! Looks that find nothing to be moved read no more than [`SEARCH_TUPLES_PER_MS`]. One that goes on begins with the
//! bucket in which the last one found something, and reads again what is before that in there. No input, no output, no
//! clock.

use std::time::Duration;

use tailwater_env::Instant;

use super::rows::GroupKey;
use crate::ids::Number;
use crate::limits::{MOVE_RETRY_MS, SEARCH_PAUSE_MS_MAX, SEARCH_TUPLES_PER_MS};

/// What is left to be moved, and invisible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Witness {
    /// A message, and when it is visible.
    Tuple(u64, Number),
    /// A group of a FIFO queue that has one.
    Group(GroupKey),
}

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchLooked {
    /// Something to be moved; the bucket that it was in, if not everything was looked at.
    Found(Option<u64>),
    Hidden(Witness),
    Nothing,
}

/// Where a task's search is.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// Where the next look begins; what is below was looked at.
    bucket: u64,
    witness: Option<Witness>,
    /// When the last look ended, and how many tuples looks read since the last one that began at the beginning.
    looked: Option<(Instant, u64)>,
    pause: Duration,
    /// Looks at everything that found nothing, one after the other.
    in_vain: u32,
}

impl Search {
    pub(super) fn bucket(&self) -> u64 {
        self.bucket
    }

    pub(super) fn witness(&self) -> Option<Witness> {
        self.witness
    }

    /// Whether everything is to be looked at now. `is_hidden` is whether the witness is where it was, and invisible.
    pub(super) fn is_due(&self, now: Instant, is_hidden: bool) -> bool {
        let Some((looked_at, read)) = self.looked else { return true };
        if self.bucket > 0 || self.in_vain > 0 {
            return true;
        }
        let pause = Duration::from_millis(MOVE_RETRY_MS.max(read / SEARCH_TUPLES_PER_MS));
        now >= looked_at + if is_hidden { pause.max(self.pause) } else { pause }
    }

    /// Something was found without such a look.
    pub(super) fn found(&mut self) {
        (self.pause, self.in_vain) = (Duration::ZERO, 0);
    }

    /// Looked from [`Search::bucket`] on, and read so many tuples.
    pub(super) fn looked(&mut self, now: Instant, read: u64, looked: SearchLooked) {
        let began_at = std::mem::take(&mut self.bucket);
        let before = self.looked.filter(|_| began_at > 0).map_or(0, |(_, read)| read);
        self.looked = Some((now, before + read));
        self.witness = None;
        match looked {
            SearchLooked::Found(bucket) => {
                self.found();
                self.bucket = bucket.unwrap_or(0);
            }
            SearchLooked::Hidden(witness) => {
                self.witness = Some(witness);
                self.in_vain = 0;
                let longest = Duration::from_millis(SEARCH_PAUSE_MS_MAX);
                self.pause = (2 * self.pause).clamp(Duration::from_millis(MOVE_RETRY_MS), longest);
            }
            // Below where it began there may be something by now.
            SearchLooked::Nothing if began_at > 0 => self.in_vain = 0,
            SearchLooked::Nothing => self.in_vain += 1,
        }
    }

    /// Whether nothing is left.
    pub(super) fn is_over(&self) -> bool {
        self.in_vain >= 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    const WITNESS: Witness = Witness::Tuple(7, Number(1));

    #[test]
    fn what_is_hidden_for_long_is_looked_for_more_and_more_rarely() {
        let mut search = Search::default();
        let (mut looks, mut last) = (Vec::new(), 0);
        for ms in (0..3_600_000).step_by(1_000) {
            if search.is_due(at(ms), true) {
                looks.push(ms - last);
                last = ms;
                search.looked(at(ms), 5, SearchLooked::Hidden(WITNESS));
            }
        }
        assert_eq!(looks[..5], [0, 1_000, 2_000, 4_000, 8_000]);
        assert!(looks.len() < 25 && looks.last() == Some(&SEARCH_PAUSE_MS_MAX), "{looks:?}");
        // Its time is over, or somebody changed it.
        assert_eq!(search.witness(), Some(WITNESS));
        assert!(search.is_due(at(last + MOVE_RETRY_MS), false));
        assert!(!search.is_over());
    }

    #[test]
    fn however_much_changes_no_more_is_read_than_so_many_tuples_in_a_time() {
        let mut search = Search::default();
        let mut read = 0;
        for ms in (0..3_600_000).step_by(1_000) {
            search.found();
            if search.is_due(at(ms), false) {
                read += 1_000_000;
                search.looked(at(ms), 1_000_000, SearchLooked::Hidden(WITNESS));
            }
        }
        assert!(read <= 3_600_000 * SEARCH_TUPLES_PER_MS + 1_000_000, "{read}");
    }

    #[test]
    fn a_look_goes_on_where_the_last_one_found_something() {
        let mut search = Search::default();
        search.looked(at(1), 1_000_000, SearchLooked::Found(Some(9)));
        assert!(search.is_due(at(1), false));
        assert_eq!(search.bucket(), 9);
        search.looked(at(2), 10, SearchLooked::Nothing);
        assert_eq!(search.bucket(), 0);
        // That was not everything; and everything was much.
        assert!(!search.is_due(at(3), false) && !search.is_over());
        assert!(search.is_due(at(2 + 1_000_010 / SEARCH_TUPLES_PER_MS), false));
    }

    #[test]
    fn nothing_is_left_when_two_looks_in_a_row_at_everything_found_nothing() {
        let mut search = Search::default();
        search.looked(at(1), 0, SearchLooked::Nothing);
        assert!(search.is_due(at(1), false) && !search.is_over());
        search.looked(at(2), 1, SearchLooked::Hidden(WITNESS));
        search.looked(at(3), 0, SearchLooked::Nothing);
        assert!(!search.is_over());
        search.found();
        search.looked(at(4), 0, SearchLooked::Nothing);
        assert!(!search.is_over());
        search.looked(at(5), 0, SearchLooked::Nothing);
        assert!(search.is_over());
    }
}
