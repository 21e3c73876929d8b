//! How a reader learns how far files reach: from the metadata cell at every ring of its doorbell, and from the
//! durable source when the cell is silent, and now and then in any case.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tailwater_cache::{Cell, Lookup, Seen, Version};
use tailwater_env::Instant;
use tailwater_format::{
    Position, SHARDS_PER_PAGE, SegmentNumber, ShardId, ShardNumber, StreamId, Tail, TailPage, Term,
    tail_page_key,
};
use tokio::sync::watch;

use super::{LengthHeard, ReaderPage, SharedFeed, TailReaderInner, page_of};
use crate::SourceError;
use crate::limits::{
    ASKS_MAX, CURSORS_MANY, FED_SILENT_AFTER, INTERVAL_MAX, LENGTHS_EVERY, UNWATCHED_PAUSE_MIN,
};

/// Follows the tail pages in the metadata cell, until it is dropped.
pub(super) async fn follow_cell(inner: Arc<TailReaderInner>, cell: Cell) {
    let env = &inner.env;
    let mut seen = Seen::default();
    let mut followed = inner.followed.subscribe();
    followed.mark_changed(); // what is followed already is new here
    let mut versions: BTreeMap<ReaderPage, Version> = BTreeMap::new();
    let mut read_at = Instant::default();
    let mut tails = TailPage::empty();
    let mut all_told = false;
    let mut is_untold = false;
    // The last read brought something new.
    let mut is_flowing = false;
    loop {
        is_untold |= if inner.is_fed() || inner.pages().is_empty() {
            // A window tells of all that is followed, or nothing is: whoever rings has one to wake less. A feed that a
            // window does not feed any more is told as one that is followed anew.
            followed.changed().await.is_ok()
        } else if is_flowing && inner.pause() >= UNWATCHED_PAUSE_MIN {
            // What comes next is there when the pause is over, or soon after: to be told of it would take a request of
            // each backend, and its answer.
            take_change(&mut followed)
        } else {
            let deadline = if all_told {
                inner.config.watch_deadline
            } else {
                // The source is to be asked as soon as a page that nothing is heard of counts as silent.
                let now = env.now();
                inner.silent_at(now).since(now).min(inner.config.silence_check_every)
            };
            tokio::select! {
                biased;
                // An error would mean that the reader is gone, which holds this task.
                changed = followed.changed() => changed.is_ok(),
                _ = cell.watch(&mut seen, deadline) => false,
            }
        };
        let readable_at = read_at + inner.pause();
        if env.now() < readable_at {
            // The doorbell is not slept on meanwhile, so that whoever rings has nobody to wake.
            env.sleep_until(readable_at).await;
        }
        let pages = inner.pages();
        versions.retain(|page, _| pages.binary_search(page).is_ok());
        is_flowing = false;
        if pages.is_empty() {
            continue;
        }
        read_at = env.now();
        let keys: Vec<Bytes> = pages.iter().map(|(stream, page)| tail_page_key(*stream, *page)).collect();
        let get = cell.get_consistent(&keys);
        let mut get = pin!(get);
        let lookups = tokio::select! {
            biased;
            lookups = &mut get => lookups,
            // The source is asked while the cell keeps us waiting. Over memory it never does.
            () = async { env.sleep_until(inner.silent_at(env.now())).await } => {
                inner.untold.notify_one();
                get.await
            }
        };
        all_told = true;
        for (page, lookup) in pages.into_iter().zip(lookups) {
            let Lookup::Hit { version, value, .. } = lookup else {
                all_told = false;
                if is_untold {
                    // When it is there again it is told to those as well who were not told now.
                    versions.remove(&page);
                }
                continue;
            };
            let is_changed = versions.insert(page, version) != Some(version);
            is_flowing |= is_changed;
            let is_alive = inner.heard(page, is_changed);
            all_told &= is_alive;
            // A shard that is followed anew has yet to hear of a page that others have seen.
            let is_told = is_changed || is_untold;
            let feeds = if is_alive || is_told { inner.feeds_of_page(page) } else { Vec::new() };
            if is_alive {
                inner.set_silent(&feeds, false);
            }
            if !is_told {
                continue;
            }
            match tails.decode_into(&value) {
                Ok(()) if (tails.stream, tails.page) == page => inner.observe_page(&tails, &feeds),
                Ok(()) => tracing::warn!(stream = %page.0, page = page.1, "a tail page of another stream"),
                Err(error) => tracing::warn!(stream = %page.0, page = page.1, %error, "no tail page"),
            }
        }
        is_untold = false;
        inner.plan_due();
        if !all_told {
            inner.untold.notify_one();
        }
    }
}

/// Whether there was a change that was not seen.
fn take_change(changes: &mut watch::Receiver<u64>) -> bool {
    let is_changed = changes.has_changed().is_ok_and(|is_changed| is_changed);
    if is_changed {
        changes.mark_unchanged();
    }
    is_changed
}

/// Asks the durable source for lengths, until it is dropped: for those that the metadata cell does not tell of, and now
/// and then for those of a page of which it says nothing new, as a writer that can't reach the cell may be at work. A
/// source that does not answer holds nothing up but its own page.
pub(super) async fn follow_source(inner: Arc<TailReaderInner>) {
    let (env, config) = (&inner.env, &inner.config);
    let mut followed = inner.followed.subscribe();
    // When each page was asked last, and whether it has yet to be answered.
    let mut asked: BTreeMap<ReaderPage, (Instant, bool)> = BTreeMap::new();
    let mut asking = FuturesUnordered::new();
    let mut is_new = true;
    // When a page was asked last of which the cell tells.
    let mut checked_at = Instant::default();
    loop {
        let now = env.now();
        let pages = inner.silence(now);
        asked.retain(|page, (_, busy)| *busy || pages.binary_search_by_key(page, |(page, _)| *page).is_ok());
        let any_behind = pages.iter().any(|(_, standing)| *standing == Standing::Behind);
        let mut due = Vec::new();
        let mut quiet = Vec::new();
        let mut wake_at = now + INTERVAL_MAX;
        for (page, standing) in pages {
            match (standing, asked.get(&page)) {
                (_, Some((_, true))) => {} // its answer wakes this
                (_, None) => due.push(page),
                (Standing::Quiet { since }, Some((at, false))) => quiet.push((since.max(*at), page)),
                (Standing::Silent | Standing::Behind, Some((at, false))) => {
                    let at = *at + config.silence_check_every;
                    if is_new || at <= now { due.push(page) } else { wake_at = wake_at.min(at) }
                }
            }
        }
        // One after the other, however many there are, so that waiting costs a process the same. Where one turned out
        // to be behind, the others are all suspect.
        quiet.sort_unstable();
        let apart = if any_behind { Duration::ZERO } else { config.durable_lengths_every };
        for (since, page) in quiet {
            let at = (since + config.durable_lengths_every).max(checked_at + apart);
            if at > now {
                wake_at = wake_at.min(at);
                break;
            }
            if asking.len() + due.len() >= ASKS_MAX {
                break; // the next answer wakes this
            }
            checked_at = now;
            due.push(page);
        }
        for page in due {
            if asking.len() < ASKS_MAX {
                asked.insert(page, (now, true));
                let inner = &inner;
                asking.push(async move {
                    inner.ask_source(page).await;
                    page
                });
            }
        }
        is_new = tokio::select! {
            biased;
            changed = followed.changed() => changed.is_ok(),
            Some(page) = asking.next() => {
                asked.entry(page).and_modify(|(_, busy)| *busy = false);
                false
            }
            () = inner.untold.notified() => false,
            () = env.sleep_until(wake_at) => false,
        };
    }
}

/// What the metadata cell's last words of a page are worth.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// They are new enough to go by. They have been the same since then.
    Quiet { since: Instant },
    /// It says nothing, or has said the same for longer than a writer that reaches it would.
    Silent,
    /// The durable source says more.
    Behind,
}

impl TailReaderInner {
    /// How long after lengths were read they are read again at the earliest. Where a flush has many cursors to wake,
    /// and nothing else is configured, they share the wake-up with the flushes right behind it.
    pub(crate) fn pause(&self) -> Duration {
        self.config.lengths_every.unwrap_or_else(|| match self.cursors.load(Ordering::Relaxed) {
            ..CURSORS_MANY => Duration::ZERO,
            CURSORS_MANY.. => LENGTHS_EVERY,
        })
    }

    /// The pages that have a followed shard, in order.
    fn pages(&self) -> Vec<ReaderPage> {
        self.state.lock().heard.keys().copied().collect()
    }

    /// The metadata cell told of a page; whether it is to be gone by.
    pub(super) fn heard(&self, page: ReaderPage, is_changed: bool) -> bool {
        let now = self.env.now();
        let mut state = self.state.lock();
        let Some(heard) = state.heard.get_mut(&page) else { return true };
        heard.at = now;
        if is_changed {
            heard.changed_at = now;
            heard.is_behind = false;
        }
        self.standing(heard, now).is_quiet()
    }

    fn standing(&self, heard: &LengthHeard, now: Instant) -> Standing {
        let config = &self.config;
        let is_fed = heard.fed_at.is_some_and(|at| now.since(at) < FED_SILENT_AFTER);
        match () {
            () if !self.follows_cell => Standing::Silent,
            () if !is_fed && now.since(heard.at) >= config.silent_after => Standing::Silent,
            () if heard.is_behind => Standing::Behind,
            () if !is_fed && now.since(heard.changed_at) >= config.unchanged_after() => Standing::Silent,
            () => Standing::Quiet { since: heard.changed_at },
        }
    }

    /// All pages, and what the metadata cell's words of them are worth.
    fn silence(&self, now: Instant) -> Vec<(ReaderPage, Standing)> {
        let pages: Vec<(ReaderPage, Standing)> = {
            let state = self.state.lock();
            state.heard.iter().map(|(page, heard)| (*page, self.standing(heard, now))).collect()
        };
        for (page, _) in pages.iter().filter(|(_, standing)| !standing.is_quiet()) {
            self.set_silent(&self.feeds_of_page(*page), true);
        }
        self.plan_due();
        pages
    }

    /// The durable source says more than the metadata cell does of a page. Where the cell has said the same for a
    /// while, it is not about to say that.
    fn overtaken(&self, page: ReaderPage) {
        let now = self.env.now();
        let mut state = self.state.lock();
        let Some(heard) = state.heard.get_mut(&page) else { return };
        if let Standing::Quiet { since } = self.standing(heard, now) {
            heard.is_behind = now.since(since) >= self.config.durable_lengths_every;
        }
    }

    /// When the next page falls silent, if the cell goes on to tell of none.
    fn silent_at(&self, now: Instant) -> Instant {
        let state = self.state.lock();
        let ahead =
            state.heard.values().map(|heard| heard.at + self.config.silent_after).filter(|at| *at > now);
        ahead.min().unwrap_or(now + self.config.silent_after)
    }

    async fn ask_source(&self, page: ReaderPage) {
        let (stream, source) = (page.0, &self.fetcher.source);
        let mut followed = self.shards_of(page);
        followed.retain(|shard| {
            self.feeds_of(ShardId { stream, shard: *shard }).iter().any(|feed| !feed.feed.lock().has_failed())
        });
        if followed.is_empty() {
            return;
        }
        let asked = source.tails(stream, &followed).await;
        if !matches!(asked, Err(SourceError::Refused(_))) || followed.len() == 1 {
            self.answered(page, &followed, asked);
            return;
        }
        // It is one of them that is refused, and the others are no worse for it.
        for shard in followed {
            let asked = source.tails(stream, &[shard]).await;
            self.answered(page, &[shard], asked);
        }
    }

    /// Takes in the source's answer for some shards of a page.
    fn answered(
        &self,
        page: ReaderPage,
        asked: &[ShardNumber],
        answer: Result<Vec<Option<Tail>>, SourceError>,
    ) {
        let stream = page.0;
        match answer {
            Ok(tails) => {
                let mut has_grown = false;
                for (&shard, tail) in asked.iter().zip(tails) {
                    let Some(tail) = tail else { continue };
                    for feed in self.feeds_of(ShardId { stream, shard }) {
                        let known = feed.feed.lock().tail();
                        self.observe(&feed, tail);
                        // One that nothing was heard of is new here.
                        has_grown |= known.is_some_and(|known| reach(&known) < reach(&tail));
                    }
                }
                if has_grown {
                    self.overtaken(page);
                }
                self.plan_due();
            }
            Err(SourceError::NoStream) => self.observe_deleted(stream),
            Err(SourceError::Refused(why)) => {
                for shard in asked {
                    for feed in self.feeds_of(ShardId { stream, shard: *shard }) {
                        feed.feed.lock().observe_refused(&why);
                        self.announce(&feed);
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%stream, page = page.1, %error, "the durable source tells no lengths")
            }
        }
    }

    fn shards_of(&self, page: ReaderPage) -> Vec<ShardNumber> {
        self.state.lock().shared.range(shards_in(page)).map(|(id, _)| id.shard).collect()
    }

    /// The feeds of a page's shards, each shard's shared one before its private ones.
    fn feeds_of_page(&self, page: ReaderPage) -> Vec<Arc<SharedFeed>> {
        let state = self.state.lock();
        let private =
            state.private.iter().filter_map(Weak::upgrade).filter(|feed| page_of(feed.shard) == page);
        let mut feeds: Vec<_> =
            state.shared.range(shards_in(page)).map(|(_, feed)| Arc::clone(feed)).collect();
        feeds.extend(private);
        feeds
    }

    /// Takes in a page as the cell has it, for the feeds of its shards.
    fn observe_page(&self, page: &TailPage, feeds: &[Arc<SharedFeed>]) {
        if page.deleted {
            return self.observe_deleted(page.stream);
        }
        let first = page.page * SHARDS_PER_PAGE;
        for feed in feeds {
            if let Some(tail) = page.tails.get((feed.shard.shard.0 - first) as usize).copied().flatten() {
                self.observe(feed, tail);
            }
        }
    }

    fn observe(&self, feed: &Arc<SharedFeed>, tail: Tail) {
        if self.observed(feed, tail) {
            self.make_due(feed);
        }
    }

    /// The same, but that it is planned again is the caller's to see to; whether it says anything new.
    pub(super) fn observed(&self, feed: &Arc<SharedFeed>, tail: Tail) -> bool {
        let (is_first, is_news, is_cut) = {
            let mut feed = feed.feed.lock();
            let log_start = feed.log_start();
            (feed.tail().is_none(), feed.observe(tail), feed.log_start() > log_start)
        };
        if (is_first && is_news) || is_cut {
            // Cursors wait to learn whether they are near the tail; and one whose next records were removed hears it
            // now, not when it reads on.
            self.announce(feed);
        }
        is_news
    }

    /// Tells feeds whether the metadata cell is silent.
    pub(super) fn set_silent(&self, feeds: &[Arc<SharedFeed>], silent: bool) {
        for feed in feeds {
            let changed = feed.feed.lock().set_silent(silent);
            if changed {
                self.make_due(feed);
            }
        }
    }

    fn observe_deleted(&self, stream: StreamId) {
        for feed in self.feeds().into_iter().filter(|feed| feed.shard.stream == stream) {
            feed.feed.lock().observe_deleted();
            self.announce(&feed);
        }
    }
}

impl Standing {
    fn is_quiet(self) -> bool {
        matches!(self, Standing::Quiet { .. })
    }
}

/// How far a file is durable, and whether it ends there.
fn reach(tail: &Tail) -> (Term, SegmentNumber, Position, bool) {
    (tail.term, tail.segment, tail.durable, tail.sealed)
}

/// The shards that a page can tell of.
fn shards_in((stream, page): ReaderPage) -> RangeInclusive<ShardId> {
    let shard = |number| ShardId { stream, shard: ShardNumber(number) };
    shard(page * SHARDS_PER_PAGE)..=shard(page * SHARDS_PER_PAGE + (SHARDS_PER_PAGE - 1))
}
