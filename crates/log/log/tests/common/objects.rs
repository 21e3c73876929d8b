//! Cold storage in memory, which fails when told to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_cold::limits::BLOCK_BYTES;
use tailwater_cold::{ColdError, ColdObjects, FromCold};
use tailwater_log::{ColdConfig, LogConfig};

/// Objects that outlive the logs on them.
#[derive(Clone, Default)]
pub struct MemoryObjects {
    pub objects: Arc<Mutex<BTreeMap<String, Bytes>>>,
    /// Nothing is answered but errors.
    pub down: Arc<AtomicBool>,
    /// What is put is changed on its way.
    pub garbles: Arc<AtomicBool>,
    /// After so many requests none is answered any more; negative is never.
    pub left: Arc<AtomicI64>,
}

impl std::fmt::Debug for MemoryObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryObjects")
    }
}

impl MemoryObjects {
    pub fn new() -> Self {
        let objects = Self::default();
        objects.left.store(-1, Ordering::SeqCst);
        objects
    }

    async fn admit(&self) -> Result<(), ColdError> {
        if self.down.load(Ordering::SeqCst) {
            return Err(ColdError::Unavailable("the test has it down".to_owned()));
        }
        if self.left.load(Ordering::SeqCst) == 0 {
            std::future::pending::<()>().await;
        }
        if self.left.load(Ordering::SeqCst) > 0 {
            self.left.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Folders of copies, whole or not.
    pub fn folders(&self) -> BTreeSet<String> {
        let objects = self.objects.lock();
        objects.keys().filter_map(|name| Some(name.rsplit_once('/')?.0.to_owned())).collect()
    }
}

impl ColdObjects for MemoryObjects {
    fn put<'a>(&'a self, name: &'a str, bytes: Bytes) -> FromCold<'a, ()> {
        Box::pin(async move {
            self.admit().await?;
            let mut bytes = bytes.to_vec();
            if self.garbles.load(Ordering::SeqCst) {
                bytes[0] ^= 1;
            }
            self.objects.lock().insert(name.to_owned(), bytes.into());
            Ok(())
        })
    }

    fn read<'a>(&'a self, name: &'a str, from: u64, length: usize) -> FromCold<'a, Bytes> {
        Box::pin(async move {
            self.admit().await?;
            let found = self.objects.lock().get(name).cloned();
            let bytes = found.ok_or_else(|| ColdError::Missing(name.to_owned()))?;
            let from = bytes.len().min(from as usize);
            Ok(bytes.slice(from..bytes.len().min(from + length)))
        })
    }

    fn list<'a>(&'a self, folder: &'a str) -> FromCold<'a, Vec<String>> {
        Box::pin(async move {
            self.admit().await?;
            let objects = self.objects.lock();
            let below = objects.keys().filter_map(|name| name.strip_prefix(folder)?.strip_prefix('/'));
            let names: BTreeSet<&str> = below.filter_map(|name| name.split('/').next()).collect();
            Ok(names.into_iter().map(str::to_owned).collect())
        })
    }

    fn remove<'a>(&'a self, folder: &'a str) -> FromCold<'a, ()> {
        Box::pin(async move {
            self.admit().await?;
            self.objects.lock().retain(|name, _| !name.starts_with(&format!("{folder}/")));
            Ok(())
        })
    }
}

/// A log that looks often, and keeps copies of removed segments for an hour.
pub fn with_cold(config: LogConfig, objects: impl ColdObjects + 'static) -> LogConfig {
    let cold = ColdConfig {
        objects: Arc::new(objects),
        kept: Duration::from_secs(3_600),
        bytes_per_s: 0,
        part_bytes: BLOCK_BYTES as u32,
        look_every: Duration::from_millis(2),
        sweep_every: Duration::from_millis(20),
    };
    LogConfig { cold: Some(cold), ..config }
}
