//! Feeds that wait until they may read: one line for each [`RateLine`], in the order in which they came. Lines go in
//! turn, so that none of them waits for ever, and in a line each feed has a step before one has two.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tailwater_env::Instant;

use super::SharedFeed;
use crate::budget::{RateBudget, RateLine};
use crate::fetch::Lane;

/// Lines are looked through for feeds that nobody reads any more whenever they have grown by so many.
const PRUNE_AFTER: usize = 256;

/// In which lines a feed is: in each once.
#[derive(Debug, Default)]
pub(super) struct InLines([AtomicBool; RateLine::ALL.len()]);

/// A feed and its place among all that wait.
type LinePlace = (u64, Weak<SharedFeed>);

/// See the module.
#[derive(Default)]
pub(super) struct RateLines {
    /// Each lane by itself: fetches of one go on where there is no room for those of the other.
    lines: [[VecDeque<LinePlace>; 2]; RateLine::ALL.len()],
    /// The next place.
    next: u64,
    /// The line that goes first.
    first: usize,
    /// When to look for feeds that are gone.
    prune_at: usize,
}

impl RateLines {
    /// A feed waits in a line, if it does not yet.
    pub(super) fn join(&mut self, line: RateLine, feed: &Arc<SharedFeed>) {
        if feed.in_lines.0[line as usize].swap(true, Ordering::Relaxed) {
            return;
        }
        let waiting = &mut self.lines[line as usize][feed.lane as usize];
        waiting.push_back((self.next, Arc::downgrade(feed)));
        self.next += 1;
        if waiting.len() > self.prune_at {
            waiting.retain(|(_, feed)| feed.strong_count() > 0);
            self.prune_at = waiting.len() + PRUNE_AFTER;
        }
    }

    /// The next feed that may read, and how much of its backlog; `None` if none may at this time. Only of lanes that
    /// have room.
    pub(super) fn pop(
        &mut self,
        budget: &mut RateBudget,
        now: Instant,
        has_room: impl Fn(Lane) -> bool,
    ) -> Option<(Arc<SharedFeed>, Option<u64>)> {
        let sharing = self.sharing();
        for line in 0..RateLine::ALL.len() {
            let line = RateLine::ALL[(self.first + line) % RateLine::ALL.len()];
            while let Some(lane) = self.first_lane(line, &has_room) {
                let Ok(granted) = budget.is_ready(line, sharing, now) else { break };
                let Some(feed) = self.take(line, lane) else { continue };
                self.first = (line as usize + 1) % RateLine::ALL.len();
                return Some((feed, (line != RateLine::Written).then_some(granted)));
            }
        }
        None
    }

    /// When the next feed may read, if one waits whose lane has room.
    pub(super) fn ready_at(
        &self,
        budget: &mut RateBudget,
        now: Instant,
        has_room: impl Fn(Lane) -> bool,
    ) -> Option<Instant> {
        let waits = RateLine::ALL.into_iter().filter(|line| self.first_lane(*line, &has_room).is_some());
        waits.map(|line| now + budget.is_ready(line, 1, now).err().unwrap_or_default()).min()
    }

    /// How many share what backlogs may read.
    fn sharing(&self) -> usize {
        let backlogs = [RateLine::Short, RateLine::Long];
        backlogs.iter().flat_map(|line| &self.lines[*line as usize]).map(VecDeque::len).sum()
    }

    /// The lane whose first feed has waited longest in this line.
    fn first_lane(&self, line: RateLine, has_room: impl Fn(Lane) -> bool) -> Option<Lane> {
        let first = |lane: &Lane| self.lines[line as usize][*lane as usize].front().map(|(place, _)| *place);
        let lanes = [Lane::Tail, Lane::CatchUp].into_iter();
        lanes.filter(|lane| has_room(*lane) && first(lane).is_some()).min_by_key(|lane| first(lane))
    }

    /// The first feed of a line, which leaves it; `None` if nobody reads it any more.
    fn take(&mut self, line: RateLine, lane: Lane) -> Option<Arc<SharedFeed>> {
        let (_, feed) = self.lines[line as usize][lane as usize].pop_front()?;
        let feed = feed.upgrade()?;
        feed.in_lines.0[line as usize].store(false, Ordering::Relaxed);
        Some(feed)
    }
}
