//! Metadata for tests of others.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Env;
use tailwater_journal::{Journal, JournalConfig};

use crate::{FromMeta, Lease, Meta, MetaConfig, MetaError, Op, Recovery, Versioned, Watch};

/// The metadata below `dir` as a node that starts finds them, and the journal that they have for themselves. They can
/// be opened again once that is closed.
///
/// # Panics
/// If they can't be read.
pub fn open(env: &Env, dir: &Path) -> (Journal, Arc<dyn Meta>) {
    let mut recovery = Recovery::begin(env, &dir.join("meta")).expect("readable");
    let mut replay = |_, position, bytes: &[u8]| recovery.replay(position, bytes);
    let config = JournalConfig { file_bytes: 16 << 20, ..JournalConfig::default() };
    let journal = Journal::open(env, &dir.join("journal"), config, &mut replay).expect("readable");
    (journal.clone(), Arc::new(recovery.finish(env, journal, MetaConfig::default())))
}

/// Metadata that takes so many commits, and is away for the others.
pub struct FailingMeta {
    real: Arc<dyn Meta>,
    left: AtomicI64,
    refused: AtomicU64,
    lists_none: AtomicBool,
}

impl FailingMeta {
    /// One that takes all of them at first.
    pub fn new(real: &Arc<dyn Meta>) -> Arc<Self> {
        let (left, refused) = (AtomicI64::new(i64::MAX), AtomicU64::new(0));
        Arc::new(Self { real: Arc::clone(real), left, refused, lists_none: AtomicBool::new(false) })
    }

    /// Is away for whoever lists, from here on.
    pub fn list_none(&self) {
        self.lists_none.store(true, Ordering::SeqCst);
    }

    /// Takes so many from here on.
    pub fn take(&self, commits: i64) {
        self.left.store(commits, Ordering::SeqCst);
    }

    /// How many it has not taken.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }
}

impl Meta for FailingMeta {
    fn get<'a>(&'a self, key: &'a str) -> FromMeta<'a, Option<Versioned>> {
        self.real.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> FromMeta<'a, Vec<(String, Versioned)>> {
        if self.lists_none.load(Ordering::SeqCst) {
            return Box::pin(async { Err(MetaError::Unavailable("as it was told to".to_owned())) });
        }
        self.real.list(prefix)
    }

    fn commit(&self, ops: Vec<Op>) -> FromMeta<'_, u64> {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Box::pin(async { Err(MetaError::Unavailable("as it was told to".to_owned())) });
        }
        self.real.commit(ops)
    }

    fn watch<'a>(&'a self, prefix: &'a str) -> FromMeta<'a, Watch> {
        self.real.watch(prefix)
    }

    fn lease<'a>(&'a self, key: &'a str, value: Bytes, ttl: Duration) -> FromMeta<'a, Lease> {
        self.real.lease(key, value, ttl)
    }
}
