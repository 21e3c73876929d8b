//! A disk that keeps the promises of `env::Disk` and not one more.
//!
//! What a power failure ([`Crash::Power`]) does, all by seed:
//! - every write since the last successful sync survives whole, torn at sector boundaries ([`SECTOR_BYTES`]) or
//!   not at all, each by itself, later ones without earlier ones too;
//! - a length that was not synced is anything between the synced one and the longest one since;
//! - every create, rename and remove whose directory was not synced happened or did not, each by itself.
//!
//! After a failed sync the unsynced bytes are partly on the disk and never become more so: a later sync does
//! not bring them back, and reading may answer the old ones. [`Crash::Process`] loses nothing.
//!
//! Faults: failing syncs, writes, reads and directory syncs by count or by chance, a full disk, a countdown of
//! calls that change something, the last of which is cut short by a power failure, and bits that flip.

mod files;
mod handles;
mod inode;
mod names;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tailwater_env::Disk;

use crate::rng::Rng;
use crate::world::{Crash, ExecutorShared, Owner};

use files::DiskState;

/// What a disk writes whole or not at all.
pub const SECTOR_BYTES: u64 = 512;

/// How often something goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Not at all.
    #[default]
    Never,
    /// The next so many times, then no more.
    Next(u32),
    /// In so many of a million cases.
    PerMillion(u32),
}

impl Fault {
    /// Draws whether it happens this time.
    pub(crate) fn strikes(&mut self, rng: &mut Rng) -> bool {
        match self {
            Fault::Never => false,
            Fault::Next(0) => {
                *self = Fault::Never;
                false
            }
            Fault::Next(count) => {
                *count -= 1;
                true
            }
            Fault::PerMillion(chance) => rng.chance(*chance),
        }
    }
}

/// What goes wrong on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// [`tailwater_env::File::sync_data`] fails.
    pub sync: Fault,
    /// [`Disk::sync_dir`] fails.
    pub sync_dir: Fault,
    /// A write fails after a part of it, drawn by seed.
    pub write: Fault,
    /// A read fails.
    pub read: Fault,
    /// Creating a file fails.
    pub create: Fault,
}

/// The controls of one node's disk; outlives the node's processes.
#[derive(Clone)]
pub struct SimDisk {
    shared: std::sync::Weak<ExecutorShared>,
    name: &'static str,
    state: Arc<Mutex<DiskState>>,
}

impl SimDisk {
    pub(crate) fn new(shared: &Arc<ExecutorShared>, name: &'static str) -> Self {
        let rng = Rng::new(shared.seed, &format!("disk/{name}"));
        Self { shared: Arc::downgrade(shared), name, state: Arc::new(Mutex::new(DiskState::new(rng))) }
    }

    /// The disk as one incarnation of its node sees it.
    pub(crate) fn mount(&self, owner: Owner) -> Arc<dyn Disk> {
        Arc::new(handles::Mount::new(self.clone(), owner))
    }

    /// Whether these are the controls of the same disk.
    pub(crate) fn is(&self, other: &SimDisk) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    pub(crate) fn crash(&self, how: Crash) {
        let mut state = self.state.lock();
        state.crash(how);
        let summary = state.fingerprint();
        drop(state);
        self.record("disk-crash", summary, u64::from(how == Crash::Power));
    }

    /// Sets what goes wrong from here on.
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    /// From here on every sync takes so much longer.
    pub fn slow_down_syncs(&self, by: std::time::Duration) {
        self.state.lock().slower_sync_ns = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Bytes that all files together may take; what they take above it stays.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity = bytes;
    }

    /// Bytes that all files together take.
    pub fn used(&self) -> u64 {
        self.state.lock().used()
    }

    /// Calls so far that change something: writes, syncs, creates, renames, removes, lengths.
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// The power fails in the `count`-th call from here that changes something (1 = the next one), before, during
    /// or after its effect. [`None`] takes it back.
    pub fn crash_at_change(&self, count: Option<u64>) {
        let mut state = self.state.lock();
        state.crash_at = count.map(|count| state.changes + count);
    }

    /// Inverts one bit of a file, on the disk and in memory, as rot does. Answers false where there is no such byte.
    pub fn flip_bit(&self, path: &Path, position: u64, bit: u8) -> bool {
        self.state.lock().flip_bit(path, position, bit)
    }

    /// The files there are and their lengths, as the running process sees them.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        self.state.lock().files()
    }

    /// All bytes of a file as the running process sees them.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        self.state.lock().contents(path)
    }

    fn record(&self, kind: &'static str, a: u64, b: u64) {
        if let Some(shared) = self.shared.upgrade() {
            shared.record(kind, self.name, a, b);
        }
    }
}
