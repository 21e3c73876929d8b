//! What a reader takes from the window of another process, and what it does meanwhile by itself: nothing, as long as
//! the window feeds all that is followed.
//!
//! What holds:
//! - A feed takes a block of the window only where it continues what it has. So the window's end, its silence and what
//!   it leaves out cost the reader a read of its own, and never an entry.
//! - What the window says waits in its arenas for a feed that is late: a process that got no processor for a while
//!   takes it from there, at a small part of the cost of reading by itself. Were each to read by itself, the processor
//!   would be shorter still, and none would come back.
//! - A consumer that is too far behind for the arenas reads by itself until it is not; the window waits for nobody.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tailwater_format::ShardId;
use tokio::sync::watch;

use super::{SharedFeed, TailReader, TailReaderInner, page_of};
use crate::feed::Unparked;
use crate::window::{UndecodedMessage, WindowMessageError};

impl TailReader {
    /// A receiver that changes when more shards are followed, and at other times.
    pub fn followed(&self) -> watch::Receiver<u64> {
        self.inner.followed.subscribe()
    }

    /// The shards that are followed.
    pub fn shards(&self) -> Vec<ShardId> {
        self.inner.state.lock().shared.keys().copied().collect()
    }

    /// Whether a window feeds all that is followed, so that no cell is read.
    pub fn is_fed(&self) -> bool {
        self.inner.is_fed()
    }

    /// Takes in what the window of another process has, in its order.
    ///
    /// # Errors
    /// If something is none that a window says: then no more is taken.
    pub fn take_from_window(
        &self,
        messages: impl IntoIterator<Item = UndecodedMessage>,
    ) -> Result<(), WindowMessageError> {
        self.inner.take_from_window(messages)
    }

    /// The window is alive, and has nothing else to say.
    pub fn window_is_alive(&self) {
        let now = self.inner.env.now();
        let mut state = self.inner.state.lock();
        let fed: Vec<_> =
            state.shared.values().filter(|feed| feed.is_fed()).map(|feed| page_of(feed.shard)).collect();
        for page in fed {
            if let Some(heard) = state.heard.get_mut(&page) {
                heard.fed_at = Some(now);
            }
        }
    }

    /// The window is gone: whoever it fed reads on by itself.
    pub fn window_is_gone(&self) {
        let now = self.inner.env.now();
        for heard in self.inner.state.lock().heard.values_mut().filter(|heard| heard.fed_at.is_some()) {
            // The metadata cell is looked at next, and has the time for it that it always has.
            (heard.at, heard.changed_at, heard.fed_at) = (now, now, None);
        }
        for feed in self.inner.feeds() {
            feed.feed.lock().window_is_gone();
            self.inner.note_fed(&feed);
            self.inner.make_due(&feed);
        }
        self.inner.plan_due();
    }

    /// Lets go of all blocks that keep arenas of the window before this one.
    pub fn let_go_before(&self, arena: u64) {
        for feed in self.inner.feeds() {
            feed.feed.lock().let_go_before(arena);
        }
    }
}

impl SharedFeed {
    fn is_fed(&self) -> bool {
        self.is_fed.load(Ordering::Relaxed)
    }
}

impl TailReaderInner {
    /// Whether a window feeds all that is followed, so that nothing is to be followed here.
    pub(super) fn is_fed(&self) -> bool {
        let state = self.state.lock();
        let is_alone = state.private.iter().any(|feed| feed.strong_count() > 0);
        !is_alone && !state.shared.is_empty() && state.shared.values().all(|feed| feed.is_fed())
    }

    /// Takes note of whether the window feeds this. Who is not fed any more has the metadata cell followed again.
    pub(super) fn note_fed(&self, feed: &SharedFeed) {
        let is_fed = feed.feed.lock().is_fed();
        if feed.is_fed.swap(is_fed, Ordering::Relaxed) && !is_fed {
            self.followed.send_modify(|count| *count += 1);
        }
    }

    fn take_from_window(
        &self,
        messages: impl IntoIterator<Item = UndecodedMessage>,
    ) -> Result<(), WindowMessageError> {
        let mut touched: BTreeMap<ShardId, Arc<SharedFeed>> = BTreeMap::new();
        for message in messages {
            let shard = message.shard()?;
            let feed = match touched.entry(shard) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let Some(feed) = self.state.lock().shared.get(&shard).cloned() else { continue };
                    entry.insert(feed)
                }
            };
            feed.feed.lock().park(message);
        }
        for feed in touched.values() {
            self.unpark(feed)?;
            self.note_fed(feed);
            if !feed.feed.lock().is_fed_all() {
                self.make_due(feed);
            }
        }
        self.plan_due();
        Ok(())
    }

    /// Has a feed take what waits for it, as far as it can now.
    pub(super) fn unpark(&self, feed: &Arc<SharedFeed>) -> Result<(), WindowMessageError> {
        let mut announce = false;
        loop {
            let unparked = feed.feed.lock().unpark(self.env.now())?;
            match unparked {
                Some(Unparked::Block(news)) => {
                    let counters = &self.fetcher.counters;
                    counters.window_blocks.fetch_add(1, Ordering::Relaxed);
                    counters.window_bytes.fetch_add(news.entry_bytes, Ordering::Relaxed);
                    counters.entry_bytes.fetch_add(news.entry_bytes, Ordering::Relaxed);
                    announce = true;
                }
                Some(Unparked::Tail(tail)) => {
                    let is_changed = self.observed(feed, tail);
                    if self.heard(page_of(feed.shard), is_changed) {
                        self.set_silent(std::slice::from_ref(feed), false);
                    }
                }
                None => break,
            }
        }
        if announce {
            self.announce(feed);
        }
        Ok(())
    }
}
