//! The text commands.

use std::time::Duration;

use bytes::Bytes;
use tailwater_cache::{ItemExtras, Lookup, UpdateTo};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Connection, MemcachedEnd, NO_ROOM};
use crate::change::{ItemTag, KeyChange, KeyChanged, expires_ms};
use crate::front::ItemChanged;
use crate::limits::{FLUSH_BYTES, GET_KEYS_MAX};
use crate::reply::{line_of_set, line_of_update};
use crate::request::{StoreVerb, TOO_LARGE, TextRequest};

/// What clients are told of the version: of the memcached whose commands these are, and of this program.
const VERSION: &str = concat!("1.6.18-tailwater-", env!("CARGO_PKG_VERSION"));

pub(super) const NOT_A_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

/// Most of what `stats` tells of a backend, added up.
#[derive(Default)]
struct BackendsAdded {
    items: u64,
    live_bytes: u64,
    capacity_bytes: u64,
    sets: u64,
    evicted: u64,
    expired: u64,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(super) async fn text(&mut self, request: TextRequest) -> Result<(), MemcachedEnd> {
        match request {
            TextRequest::Get { keys, with_cas, touch: None } => return self.get(&keys, with_cas).await,
            TextRequest::Get { keys, with_cas, touch: Some(exptime) } => {
                return self.get_and_touch(&keys, with_cas, exptime).await;
            }
            TextRequest::Store { verb, key, flags, exptime, cas, data, noreply } => {
                let expires_ms = expires_ms(exptime, self.front.env.wall_ms());
                let change = KeyChange::Store {
                    verb,
                    data,
                    flags,
                    expires_ms,
                    cas,
                    may_be_stale: false,
                    vivify: None,
                    token: 0,
                };
                if self.may("set") {
                    let told = self.store(&key, change).await;
                    self.reply(told, noreply);
                }
            }
            TextRequest::Delete { key, noreply } => {
                if self.may("delete") {
                    let changed = self.change(&key, &KeyChange::Delete { cas: None }).await;
                    self.count_delete(&changed);
                    self.reply(changed.map(|item| line_of(item.changed)), noreply);
                }
            }
            TextRequest::Arithmetic { key, delta, is_decr, noreply } => {
                if self.may("set") {
                    let change = KeyChange::Arithmetic {
                        delta,
                        is_decr,
                        cas: None,
                        expires_ms: None,
                        vivify: None,
                        token: 0,
                    };
                    let changed = self.change(&key, &change).await;
                    self.count_arithmetic(&changed, is_decr);
                    self.reply(changed.map(|item| line_of(item.changed)), noreply);
                }
            }
            TextRequest::Touch { key, exptime, noreply } => {
                if self.may("set") {
                    let changed = self.touched(&key, exptime).await;
                    let line = |item: ItemChanged| match item.changed {
                        KeyChanged::NotFound => "NOT_FOUND".to_owned(),
                        _ => "TOUCHED".to_owned(),
                    };
                    self.reply(changed.map(line), noreply);
                }
            }
            TextRequest::FlushAll { delay_s, noreply } => {
                if self.may("flush_all") {
                    let flushed = self.front.flush_all(Duration::from_secs(delay_s.into())).await;
                    let told = flushed.map(|()| "OK".to_owned()).map_err(|why| format!("SERVER_ERROR {why}"));
                    self.reply(told, noreply);
                }
            }
            TextRequest::Stats(of) => {
                if self.may("stats") {
                    self.stats(&of).await;
                }
            }
            TextRequest::Version => self.replies.format(format_args!("VERSION {VERSION}\r\n")),
            TextRequest::Verbosity { noreply } => self.reply(Ok("OK".to_owned()), noreply),
            TextRequest::Noop => self.replies.line("MN"),
            TextRequest::Quit => return self.quit().await,
        }
        Ok(())
    }

    /// Tells the client how it ended. Errors are told whether it wants an answer or not, as memcached does.
    pub(super) fn reply(&mut self, told: Result<String, String>, noreply: bool) {
        match told {
            Ok(line) if !noreply => self.replies.line(&line),
            Ok(_) => {}
            Err(line) => self.refuse(&line),
        }
    }

    pub(super) async fn change(&mut self, key: &Bytes, change: &KeyChange) -> Result<ItemChanged, String> {
        self.front.change(key, change).await.map_err(|error| line_of_update(&error))
    }

    async fn store(&mut self, key: &Bytes, change: KeyChange) -> Result<String, String> {
        let changed = self.stored(key, change).await?;
        Ok(line_of(changed.0))
    }

    /// Stores a value; answers what came of it, and the version that the item has then.
    pub(super) async fn stored(
        &mut self,
        key: &Bytes,
        change: KeyChange,
    ) -> Result<(KeyChanged, Option<tailwater_cache::Version>), String> {
        self.front.stats.cmd_set.add(1);
        let has_cas = matches!(change, KeyChange::Store { cas: Some(_), .. });
        if let KeyChange::Store { verb: StoreVerb::Set, data, flags, expires_ms, cas: None, token, .. } =
            change
        {
            let extras = ItemExtras { expires_ms, tag: ItemTag::of(flags).to_tag(), token };
            let _turn = self.front.turn(key).await;
            let result = self.front.cell.set_with(vec![(key.clone(), data, extras)]).await.pop();
            return match result {
                Some(Ok(version)) => Ok((KeyChanged::Stored, Some(version))),
                Some(Err(error)) => {
                    if error.is_unknown() {
                        self.front.stats.unknown_outcomes.add(1);
                    }
                    Err(line_of_set(&error))
                }
                None => Err("SERVER_ERROR no answer".to_owned()),
            };
        }
        let item = self.change(key, &change).await?;
        let stats = &self.front.stats;
        match item.changed {
            KeyChanged::Stored if has_cas => stats.cas_hits.add(1),
            KeyChanged::Exists => stats.cas_badval.add(1),
            KeyChanged::NotFound => stats.cas_misses.add(1),
            KeyChanged::TooLarge => {
                stats.store_too_large.add(1);
                return Err(TOO_LARGE.to_owned());
            }
            _ => {}
        }
        Ok((item.changed, item.version))
    }

    async fn touched(&mut self, key: &Bytes, exptime: i64) -> Result<ItemChanged, String> {
        let touch = Some(expires_ms(exptime, self.front.env.wall_ms()));
        let change = KeyChange::Fetch { touch, vivify: None, recache_before_ms: None, token: 0 };
        let changed = self.change(key, &change).await;
        self.front.stats.cmd_touch.add(1);
        match &changed {
            Ok(item) if item.changed == KeyChanged::NotFound => self.front.stats.touch_misses.add(1),
            Ok(_) => self.front.stats.touch_hits.add(1),
            Err(_) => {}
        }
        changed
    }

    pub(super) fn count_delete(&self, changed: &Result<ItemChanged, String>) {
        match changed.as_ref().map(|item| item.changed) {
            Ok(KeyChanged::Deleted) => self.front.stats.delete_hits.add(1),
            Ok(KeyChanged::NotFound) => self.front.stats.delete_misses.add(1),
            _ => {}
        }
    }

    pub(super) fn count_arithmetic(&self, changed: &Result<ItemChanged, String>, is_decr: bool) {
        let stats = &self.front.stats;
        match (changed.as_ref().map(|item| item.changed), is_decr) {
            (Ok(KeyChanged::Number(_)), false) => stats.incr_hits.add(1),
            (Ok(KeyChanged::Number(_)), true) => stats.decr_hits.add(1),
            (Ok(KeyChanged::NotFound), false) => stats.incr_misses.add(1),
            (Ok(KeyChanged::NotFound), true) => stats.decr_misses.add(1),
            _ => {}
        }
    }

    async fn get(&mut self, keys: &[Bytes], with_cas: bool) -> Result<(), MemcachedEnd> {
        if !self.may("get") {
            return Ok(());
        }
        let mut failed = None;
        for some in keys.chunks(GET_KEYS_MAX) {
            for (key, lookup) in some.iter().zip(self.front.get(some).await) {
                match lookup {
                    Lookup::Miss => {}
                    Lookup::Failed(why) => failed = Some(format!("SERVER_ERROR {why}")),
                    Lookup::Hit { version, value, extras } => {
                        self.front.recent.note(version, self.now_s());
                        let cas = with_cas.then(|| extras.token_at(version));
                        if !self.show(key, extras, &value, cas) {
                            failed = Some(NO_ROOM.to_owned());
                        }
                    }
                }
            }
            if self.replies.len() >= FLUSH_BYTES {
                self.flush().await?;
            }
        }
        self.end_get(failed);
        Ok(())
    }

    async fn get_and_touch(
        &mut self,
        keys: &[Bytes],
        with_cas: bool,
        exptime: i64,
    ) -> Result<(), MemcachedEnd> {
        if !self.may("set") || !self.may("get") {
            return Ok(());
        }
        let mut failed = None;
        for key in keys {
            match self.touched(key, exptime).await {
                Ok(ItemChanged { before: Some(before), version, to, .. }) => {
                    let version = version.unwrap_or(before.version);
                    let extras = match to {
                        UpdateTo::Set(_, extras) => extras,
                        UpdateTo::Keep | UpdateTo::Erase => before.extras,
                    };
                    self.front.recent.note(version, self.now_s());
                    if !self.show(key, extras, &before.value, with_cas.then(|| extras.token_at(version))) {
                        failed = Some(NO_ROOM.to_owned());
                    }
                }
                Ok(_) => {}
                Err(why) => failed = Some(why),
            }
            if self.replies.len() >= FLUSH_BYTES {
                self.flush().await?;
            }
        }
        self.end_get(failed);
        Ok(())
    }

    /// An item of a get; `false` if there is no room for it.
    fn show(&mut self, key: &Bytes, extras: ItemExtras, value: &Bytes, cas: Option<u64>) -> bool {
        if !self.has_room(value) {
            return false;
        }
        self.replies.put(b"VALUE ");
        self.replies.put(key);
        let flags = ItemTag::from_tag(extras.tag).flags;
        self.replies.format(format_args!(" {flags} {}", value.len()));
        if let Some(cas) = cas {
            self.replies.format(format_args!(" {cas}"));
        }
        self.replies.put(b"\r\n");
        self.replies.value(value);
        true
    }

    fn end_get(&mut self, failed: Option<String>) {
        match failed {
            Some(why) => self.refuse(&why),
            None => self.replies.line("END"),
        }
    }

    /// Seconds since the Unix epoch.
    pub(super) fn now_s(&self) -> u64 {
        u64::try_from(self.front.env.wall_ms()).unwrap_or(0) / 1_000
    }

    async fn stats(&mut self, of: &[u8]) {
        match of {
            b"" => self.general_stats().await,
            b"reset" => return self.replies.line("RESET"),
            b"settings" => {
                let config = self.front.config.clone();
                self.stat("maxconns", config.connections_max);
                self.stat("item_size_max", crate::limits::VALUE_BYTES_MAX);
                self.stat("cas_enabled", "yes");
                self.stat("auth_enabled_ascii", if config.login { "yes" } else { "no" });
                self.stat("cell", config.cell);
            }
            // Of these a cell has nothing to tell.
            b"items" | b"slabs" | b"sizes" | b"conns" | b"cachedump" | b"detail" => {}
            _ => {
                return self
                    .refuse("CLIENT_ERROR no such statistics: general, settings, items, slabs, reset");
            }
        }
        self.replies.line("END");
    }

    fn stat(&mut self, name: &str, value: impl std::fmt::Display) {
        self.replies.format(format_args!("STAT {name} {value}\r\n"));
    }

    async fn general_stats(&mut self) {
        let configuration = self.front.cell.configuration();
        let copies = configuration.mode.replicas() as u64;
        let backends = self.front.cell.backend_stats().await;
        let mut added = BackendsAdded::default();
        for (_, of) in &backends {
            added.items += of.items;
            added.live_bytes += of.live_bytes;
            added.capacity_bytes += of.capacity_bytes;
            added.sets += of.sets;
            added.evicted += of.evicted;
            added.expired += of.expired;
        }
        let up = self.front.env.now().since(self.front.started);
        self.stat("pid", std::process::id());
        self.stat("uptime", up.as_secs());
        self.stat("time", self.now_s());
        self.stat("version", VERSION);
        self.stat("pointer_size", usize::BITS);
        self.stat("max_connections", self.front.config.connections_max);
        self.stat("threads", std::thread::available_parallelism().map_or(1, |threads| threads.get()));
        let counts: Vec<(&str, u64)> = self.front.stats.named().collect();
        for (name, count) in counts {
            self.stat(name, count);
        }
        self.stat("limit_maxbytes", added.capacity_bytes / copies);
        self.stat("bytes", added.live_bytes / copies);
        self.stat("curr_items", added.items / copies);
        self.stat("total_items", added.sets / copies);
        self.stat("evictions", added.evicted / copies);
        self.stat("reclaimed", added.expired / copies);
        self.stat("cell_copies", copies);
        self.stat("cell_backends", configuration.backends.len());
        self.stat("cell_backends_live", backends.len());
    }
}

/// What the client of a text command is told.
fn line_of(changed: KeyChanged) -> String {
    match changed {
        KeyChanged::Number(number) => number.to_string(),
        KeyChanged::Stored => "STORED".to_owned(),
        KeyChanged::NotStored => "NOT_STORED".to_owned(),
        KeyChanged::Exists => "EXISTS".to_owned(),
        KeyChanged::NotFound => "NOT_FOUND".to_owned(),
        KeyChanged::Deleted => "DELETED".to_owned(),
        KeyChanged::NotANumber => NOT_A_NUMBER.to_owned(),
        KeyChanged::TooLarge => TOO_LARGE.to_owned(),
        KeyChanged::Fetched { .. } => "TOUCHED".to_owned(),
    }
}
