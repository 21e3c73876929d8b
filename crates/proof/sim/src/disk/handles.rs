//! A disk as the processes of one incarnation of a node see it: `env::Disk` and `env::File`.
//!
//! Every call takes virtual time, may let other tasks run meanwhile, is folded into the trace, and fails without
//! effect once its incarnation is dead.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use tailwater_env::{Disk, File, LockGuard, OpenMode};

use crate::world::{Crash, ExecutorShared, Owner, kill};

use super::SimDisk;
use super::files::DiskState;

/// What calls cost in virtual time, ns: from the page cache, to the page cache, to the disk and back.
const READ_NS: (u64, u64) = (1_000, 20_000);
const WRITE_NS: (u64, u64) = (2_000, 30_000);
const SYNC_NS: (u64, u64) = (60_000, 400_000);
/// One sync in so many of a million is slow, and takes this long.
const SLOW_SYNC_PER_MILLION: u32 = 10_000;
const SLOW_SYNC_NS: (u64, u64) = (2_000_000, 60_000_000);

#[derive(Clone)]
pub(super) struct Mount {
    disk: SimDisk,
    owner: Owner,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HandleKind {
    Look,
    Read,
    Change,
    Sync,
}

impl Mount {
    pub(super) fn new(disk: SimDisk, owner: Owner) -> Self {
        Self { disk, owner }
    }

    /// One call: time passes before and after its effect, the power may fail in it.
    fn call<T>(
        &self,
        kind: HandleKind,
        name: &'static str,
        arg: u64,
        effect: impl FnOnce(&mut DiskState) -> io::Result<T>,
    ) -> io::Result<T> {
        let shared = self.shared()?;
        let (before, after, last, power_before, is_long) = {
            let mut state = self.disk.state.lock();
            let (before, after) = costs(kind, &mut state);
            let is_long = kind == HandleKind::Sync && state.slower_sync_ns > 0;
            let changes = kind == HandleKind::Change || kind == HandleKind::Sync;
            let last = changes && state.count_change();
            let power_before = last && state.rng.below(2) == 0;
            (before, after, last, power_before, is_long)
        };
        let pause = |ns| if is_long { shared.pause_for_long_io(ns) } else { shared.pause_for_io(ns) };
        pause(before);
        // The node may have been crashed while other tasks ran.
        self.shared()?;
        if power_before {
            kill(&shared, self.owner, Crash::Power);
            return Err(dead());
        }
        let result = effect(&mut self.disk.state.lock());
        self.disk.record(name, arg, u64::from(result.is_err()));
        if last {
            kill(&shared, self.owner, Crash::Power);
        }
        pause(after);
        self.shared()?;
        result
    }

    /// The world, if this incarnation is still alive and has the disk.
    fn shared(&self) -> io::Result<Arc<ExecutorShared>> {
        let shared = Weak::upgrade(&self.disk.shared).ok_or_else(dead)?;
        let (alive, attached) = shared
            .with(|core| (core.is_alive(self.owner), core.nodes[self.owner.node].disk().is(&self.disk)));
        match (alive, attached) {
            (true, true) => Ok(shared),
            (true, false) => Err(detached()),
            (false, _) => Err(dead()),
        }
    }

    fn file(&self, inode: u64, writable: bool) -> Arc<dyn File> {
        Arc::new(SimFile { mount: self.clone(), inode, writable })
    }
}

fn costs(kind: HandleKind, state: &mut DiskState) -> (u64, u64) {
    let rng = &mut state.rng;
    let (low, high) = match kind {
        HandleKind::Look | HandleKind::Read => READ_NS,
        HandleKind::Change => WRITE_NS,
        HandleKind::Sync if rng.chance(SLOW_SYNC_PER_MILLION) => SLOW_SYNC_NS,
        HandleKind::Sync => SYNC_NS,
    };
    let slower = if kind == HandleKind::Sync { state.slower_sync_ns } else { 0 };
    let total = rng.between(low, high) + slower;
    let before = rng.below(total + 1);
    (before, total - before)
}

/// What every call answers once the process that made it is gone.
fn dead() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the simulated node is down")
}

/// What every call answers once another node has the disk.
fn detached() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the simulated disk was attached to another node")
}

impl Disk for Mount {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let (kind, create) = match mode {
            OpenMode::Read | OpenMode::ReadWrite => (HandleKind::Look, false),
            OpenMode::CreateNew => (HandleKind::Change, true),
        };
        let inode = self.call(kind, "open", path_hash(path), |state| {
            if !create {
                return state.open(path);
            }
            let mut fault = state.faults.create;
            let strikes = fault.strikes(&mut state.rng);
            state.faults.create = fault;
            if strikes { Err(io::Error::other("injected: create failed")) } else { state.create(path) }
        })?;
        Ok(self.file(inode, mode != OpenMode::Read))
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.call(HandleKind::Change, "mkdir", path_hash(dir), |state| state.names_mut().make_dirs(dir))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.call(HandleKind::Look, "list", path_hash(dir), |state| state.names().list(dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(HandleKind::Change, "rename", path_hash(to), |state| state.names_mut().rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.call(HandleKind::Change, "remove", path_hash(path), |state| state.names_mut().unlink(path))
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.call(HandleKind::Change, "remove-dir", path_hash(dir), |state| {
            state.names_mut().remove_dir_all(dir)
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.call(HandleKind::Sync, "sync-dir", path_hash(dir), |state| {
            let mut fault = state.faults.sync_dir;
            let strikes = fault.strikes(&mut state.rng);
            state.faults.sync_dir = fault;
            if strikes {
                return Err(io::Error::other("injected: directory fsync failed"));
            }
            state.names_mut().sync_dir(dir)
        })
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        self.call(HandleKind::Look, "free", 0, |state| Ok(state.capacity.saturating_sub(state.used())))
    }

    fn lock(&self, path: &Path) -> io::Result<LockGuard> {
        let lock = self.call(HandleKind::Change, "lock", path_hash(path), |state| state.lock(path))?;
        Ok(Box::new(SimLock { disk: self.disk.clone(), path: path.to_owned(), lock }))
    }
}

/// Held until it is dropped or its node crashes.
struct SimLock {
    disk: SimDisk,
    path: PathBuf,
    lock: u64,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.disk.state.lock().unlock(&self.path, self.lock);
    }
}

struct SimFile {
    mount: Mount,
    inode: u64,
    writable: bool,
}

impl SimFile {
    fn expect_writable(&self) -> io::Result<()> {
        if self.writable { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

impl File for SimFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.mount.call(HandleKind::Read, "read", position, |state| {
            let mut fault = state.faults.read;
            let strikes = fault.strikes(&mut state.rng);
            state.faults.read = fault;
            if strikes {
                return Err(io::Error::other("injected: read failed"));
            }
            Ok(state.inode(self.inode).read(buffer, position))
        })
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.expect_writable()?;
        self.mount
            .call(HandleKind::Change, "write", position, |state| state.write(self.inode, bytes, position))
    }

    fn len(&self) -> io::Result<u64> {
        self.mount.call(HandleKind::Look, "len", self.inode, |state| Ok(state.inode(self.inode).len()))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.expect_writable()?;
        self.mount.call(HandleKind::Change, "set-len", length, |state| state.set_len(self.inode, length))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.mount.call(HandleKind::Sync, "sync", self.inode, |state| state.sync(self.inode))
    }
}

fn path_hash(path: &Path) -> u64 {
    xxhash_rust::xxh3::xxh3_64(path.to_string_lossy().as_bytes())
}
