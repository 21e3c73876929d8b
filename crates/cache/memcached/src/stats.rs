//! Counters, always on.

use std::sync::atomic::{AtomicU64, Ordering};

/// The commands that are counted, each by itself.
pub const COMMANDS: [&str; 8] = ["decr", "delete", "flush", "get", "incr", "meta", "set", "touch"];

/// One of what is counted. Each stands for itself, so all accesses are relaxed.
#[derive(Debug, Default)]
pub(crate) struct MemcachedCount(AtomicU64);

impl MemcachedCount {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counts {
    ($($name:ident),* $(,)?) => {
        /// What came and went, under the names that `stats` has.
        #[derive(Debug, Default)]
        pub(crate) struct MemcachedStats {
            $(pub $name: MemcachedCount,)*
        }

        impl MemcachedStats {
            /// All of them, with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.get()),)*].into_iter()
            }
        }
    };
}

counts! {
    curr_connections, total_connections, rejected_connections,
    cmd_get, cmd_set, cmd_flush, cmd_touch, cmd_meta,
    get_hits, get_misses, get_failed,
    delete_misses, delete_hits, incr_misses, incr_hits, decr_misses, decr_hits,
    cas_misses, cas_hits, cas_badval, touch_hits, touch_misses,
    store_too_large, store_no_memory, unknown_outcomes, refused_commands,
    auth_cmds, auth_errors, bytes_read, bytes_written,
}

/// The counters at one moment.
#[derive(Clone, Debug)]
pub struct MemcachedStatsRead {
    /// Connections that are open.
    pub connections: u64,
    /// Connections that found no room.
    pub rejected: u64,
    /// Commands by their kind, in the order of [`COMMANDS`].
    pub commands: Vec<(&'static str, u64)>,
    /// Keys that were got.
    pub hits: u64,
    /// Keys that were not there.
    pub misses: u64,
    /// Keys of which nothing could be said.
    pub failed: u64,
    /// Changes of which it is not known whether they came about.
    pub unknown: u64,
    /// Commands that were answered with an error.
    pub refused: u64,
    /// Logins that failed.
    pub logins_failed: u64,
    /// Bytes that came.
    pub received_bytes: u64,
    /// Bytes that went.
    pub sent_bytes: u64,
}

impl MemcachedStats {
    pub fn read(&self) -> MemcachedStatsRead {
        let both = |one: &MemcachedCount, other: &MemcachedCount| one.get() + other.get();
        let counts = [
            both(&self.decr_hits, &self.decr_misses),
            both(&self.delete_hits, &self.delete_misses),
            self.cmd_flush.get(),
            self.cmd_get.get(),
            both(&self.incr_hits, &self.incr_misses),
            self.cmd_meta.get(),
            self.cmd_set.get(),
            self.cmd_touch.get(),
        ];
        MemcachedStatsRead {
            connections: self.curr_connections.get(),
            rejected: self.rejected_connections.get(),
            commands: COMMANDS.into_iter().zip(counts).collect(),
            hits: self.get_hits.get(),
            misses: self.get_misses.get(),
            failed: self.get_failed.get(),
            unknown: self.unknown_outcomes.get(),
            refused: self.refused_commands.get(),
            logins_failed: self.auth_errors.get(),
            received_bytes: self.bytes_read.get(),
            sent_bytes: self.bytes_written.get(),
        }
    }
}
