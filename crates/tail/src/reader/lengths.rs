//! How a reader learns how far files reach: from the metadata cell at every ring of its doorbell, and from the
//! durable source when the cell is silent, and now and then in any case.

use std::collections::BTreeMap;
use std::sync::Weak;

use bytes::Bytes;
use tailwater_cache::{Cell, Lookup, Seen, Version};
use tailwater_env::{Env, Instant};
use tailwater_format::{SHARDS_PER_PAGE, ShardId, ShardNumber, StreamId, Tail, TailPage, tail_page_key};

use super::Inner;
use crate::SourceError;
use crate::limits::{DURABLE_LENGTHS_EVERY, SILENCE_CHECK_EVERY, SILENT_AFTER, WATCH_DEADLINE};

type Page = (StreamId, u32);

/// Follows the tail pages in the metadata cell, until the reader is dropped.
pub(super) async fn follow_cell(reader: Weak<Inner>, env: Env, cell: Cell) {
    let mut seen = Seen::default();
    let mut versions: BTreeMap<Page, Version> = BTreeMap::new();
    let mut read_at = Instant::default();
    loop {
        cell.watch(&mut seen, WATCH_DEADLINE).await;
        let Some(inner) = reader.upgrade() else { return };
        if !inner.config.lengths_every.is_zero() {
            env.sleep_until(read_at + inner.config.lengths_every).await;
        }
        let pages: Vec<Page> = inner.pages().into_iter().collect();
        versions.retain(|page, _| pages.binary_search(page).is_ok());
        if pages.is_empty() {
            continue;
        }
        read_at = env.now();
        let keys: Vec<Bytes> = pages.iter().map(|(stream, page)| tail_page_key(*stream, *page)).collect();
        let lookups = cell.get_consistent(&keys).await;
        let mut changed = false;
        for (page, lookup) in pages.into_iter().zip(lookups) {
            let Lookup::Hit { version, value } = lookup else { continue };
            inner.heard(page, env.now());
            if versions.insert(page, version) == Some(version) {
                continue;
            }
            match TailPage::decode(&value) {
                Ok(tails) if (tails.stream, tails.page) == page => changed |= inner.observe_page(&tails),
                Ok(_) => tracing::warn!(stream = %page.0, page = page.1, "a tail page of another stream"),
                Err(error) => tracing::warn!(stream = %page.0, page = page.1, %error, "no tail page"),
            }
        }
        if changed {
            inner.plan_again();
        }
    }
}

/// Asks the durable source for the lengths of what the metadata cell does not tell of, until the reader is
/// dropped.
pub(super) async fn follow_source(reader: Weak<Inner>, env: Env) {
    let mut asked: BTreeMap<Page, Instant> = BTreeMap::new();
    loop {
        let Some(inner) = reader.upgrade() else { return };
        let now = env.now();
        let pages = inner.pages();
        asked.retain(|page, _| pages.contains(page));
        for page in pages {
            let silent = inner.heard_at(page).is_none_or(|at| now.since(at) >= SILENT_AFTER);
            let due = asked.get(&page).is_none_or(|at| now.since(*at) >= DURABLE_LENGTHS_EVERY);
            if silent || due {
                asked.insert(page, now);
                inner.ask_source(page).await;
            }
        }
        let followed = inner.followed.notified();
        tokio::select! {
            biased;
            () = followed => {}
            () = env.sleep(SILENCE_CHECK_EVERY) => {}
        }
    }
}

impl Inner {
    fn heard(&self, page: Page, now: Instant) {
        self.heard.lock().insert(page, now);
    }

    fn heard_at(&self, page: Page) -> Option<Instant> {
        self.heard.lock().get(&page).copied()
    }

    async fn ask_source(&self, (stream, page): Page) {
        let followed = self.shards_of(stream, page);
        match self.fetcher.source.tails(stream, &followed).await {
            Ok(tails) => {
                let mut changed = false;
                for (shard, tail) in followed.into_iter().zip(tails) {
                    // What the durable layer says of the cell is hearsay.
                    let shard = ShardId { stream, shard };
                    changed |= tail.is_some_and(|tail| self.observe(shard, tail));
                }
                if changed {
                    self.plan_again();
                }
            }
            Err(SourceError::NoStream) => self.observe_deleted(stream),
            Err(error) => tracing::debug!(%stream, page, %error, "the durable source does not tell lengths"),
        }
    }

    fn shards_of(&self, stream: StreamId, page: u32) -> Vec<ShardNumber> {
        let first = page * SHARDS_PER_PAGE;
        let range = ShardId { stream, shard: ShardNumber(first) }
            ..ShardId { stream, shard: ShardNumber(first + SHARDS_PER_PAGE) };
        self.state.lock().shared.range(range).map(|(id, _)| id.shard).collect()
    }

    fn observe_page(&self, page: &TailPage) -> bool {
        if page.deleted {
            self.observe_deleted(page.stream);
            return true;
        }
        let mut changed = false;
        for (number, tail) in (page.page * SHARDS_PER_PAGE..).zip(&page.tails) {
            let shard = ShardId { stream: page.stream, shard: ShardNumber(number) };
            changed |= tail.is_some_and(|tail| self.observe(shard, tail));
        }
        changed
    }

    fn observe(&self, shard: ShardId, tail: Tail) -> bool {
        let mut changed = false;
        for feed in self.feeds_of(shard) {
            let (first, start) = {
                let mut feed = feed.feed.lock();
                let first = feed.tail().is_none();
                (first, feed.observe(tail))
            };
            changed |= start;
            if first {
                // Somebody may be waiting to learn where the end is.
                self.announce(&feed);
            }
        }
        changed
    }

    fn observe_deleted(&self, stream: StreamId) {
        for feed in self.feeds().into_iter().filter(|feed| feed.shard.stream == stream) {
            feed.feed.lock().observe_deleted();
            self.announce(&feed);
        }
    }
}
