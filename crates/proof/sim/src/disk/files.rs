//! A disk's state: inodes under names, locks, faults, and the countdown to a power failure.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use crate::rng::Rng;
use crate::world::Crash;

use super::inode::{Inode, Survival};
use super::names::{NameEntry, Names};
use super::{Faults, SECTOR_BYTES};

/// Room that a file takes is counted in these.
const BLOCK_BYTES: u64 = 4096;

pub(super) struct DiskState {
    pub(super) rng: Rng,
    pub(super) faults: Faults,
    /// What every sync takes besides, ns.
    pub(super) slower_sync_ns: u64,
    pub(super) capacity: u64,
    pub(super) changes: u64,
    pub(super) crash_at: Option<u64>,
    names: Names,
    inodes: BTreeMap<u64, Inode>,
    inode_next: u64,
    locks: BTreeMap<PathBuf, u64>,
    lock_next: u64,
    /// Files that were ever locked: they hold process numbers and the like, which differ from run to run.
    lock_files: BTreeSet<PathBuf>,
}

impl DiskState {
    pub(super) fn new(rng: Rng) -> Self {
        Self {
            rng,
            faults: Faults::default(),
            slower_sync_ns: 0,
            capacity: u64::MAX,
            changes: 0,
            crash_at: None,
            names: Names::default(),
            inodes: BTreeMap::new(),
            inode_next: 0,
            locks: BTreeMap::new(),
            lock_next: 0,
            lock_files: BTreeSet::new(),
        }
    }

    /// Counts a call that changes something; true if the power fails in it.
    pub(super) fn count_change(&mut self) -> bool {
        self.changes += 1;
        let last = self.crash_at.is_some_and(|at| self.changes >= at);
        if last {
            self.crash_at = None;
        }
        last
    }

    pub(super) fn used(&self) -> u64 {
        self.names.files().map(|(_, inode)| blocks(self.inode(inode).len())).sum()
    }

    pub(super) fn open(&self, path: &Path) -> io::Result<u64> {
        match self.names.get(path) {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(NameEntry::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            Some(NameEntry::File(inode)) => Ok(inode),
        }
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<u64> {
        let inode = self.inode_next;
        self.names.link(path, NameEntry::File(inode))?;
        self.inode_next += 1;
        self.inodes.insert(inode, Inode::default());
        Ok(inode)
    }

    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    pub(super) fn names_mut(&mut self) -> &mut Names {
        &mut self.names
    }

    pub(super) fn inode(&self, inode: u64) -> &Inode {
        &self.inodes[&inode]
    }

    pub(super) fn inode_mut(&mut self, inode: u64) -> &mut Inode {
        self.inodes.get_mut(&inode).expect("inodes stay as long as the node runs")
    }

    /// Writes as much as there is room for.
    pub(super) fn write(&mut self, inode: u64, bytes: &[u8], position: u64) -> io::Result<()> {
        if self.faults.write.strikes(&mut self.rng) {
            let part = self.rng.index(bytes.len() + 1);
            self.inode_mut(inode).write(&bytes[..part], position);
            return Err(io::Error::other("injected: write failed"));
        }
        let before = self.inode(inode).len();
        let after = before.max(position + bytes.len() as u64);
        let room = self.room_for(before);
        if after > room {
            let part = (room.max(before).saturating_sub(position) as usize).min(bytes.len());
            self.inode_mut(inode).write(&bytes[..part], position);
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.inode_mut(inode).write(bytes, position);
        Ok(())
    }

    pub(super) fn set_len(&mut self, inode: u64, length: u64) -> io::Result<()> {
        let before = self.inode(inode).len();
        if length > before && length > self.room_for(before) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.inode_mut(inode).set_len(length);
        Ok(())
    }

    pub(super) fn sync(&mut self, inode: u64) -> io::Result<()> {
        let Self { faults, rng, inodes, .. } = self;
        let inode = inodes.get_mut(&inode).expect("inodes stay as long as the node runs");
        if faults.sync.strikes(rng) {
            inode.fail_sync(rng);
            return Err(io::Error::other("injected: fdatasync failed"));
        }
        inode.sync();
        Ok(())
    }

    /// The length up to which a file that is `length` bytes long may grow.
    fn room_for(&self, length: u64) -> u64 {
        let free = self.capacity.saturating_sub(self.used());
        blocks(length) + free / BLOCK_BYTES * BLOCK_BYTES
    }

    pub(super) fn lock(&mut self, path: &Path) -> io::Result<u64> {
        if self.locks.contains_key(path) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match self.names.get(path) {
            Some(_) => {}
            None => {
                self.create(path)?;
            }
        }
        let lock = self.lock_next;
        self.lock_next += 1;
        self.locks.insert(path.to_owned(), lock);
        self.lock_files.insert(path.to_owned());
        Ok(lock)
    }

    pub(super) fn unlock(&mut self, path: &Path, lock: u64) {
        if self.locks.get(path) == Some(&lock) {
            self.locks.remove(path);
        }
    }

    pub(super) fn crash(&mut self, how: Crash) {
        self.locks.clear();
        if how == Crash::Power {
            let survival = Survival::draw(&mut self.rng);
            self.names.crash(survival, &mut self.rng);
            for inode in self.inodes.values_mut() {
                inode.crash(survival, &mut self.rng);
            }
        }
        let named: BTreeSet<u64> = self.names.inodes().collect();
        self.inodes.retain(|inode, _| named.contains(inode));
    }

    pub(super) fn flip_bit(&mut self, path: &Path, position: u64, bit: u8) -> bool {
        match self.names.get(path) {
            Some(NameEntry::File(inode)) => self.inode_mut(inode).flip_bit(position as usize, bit),
            _ => false,
        }
    }

    pub(super) fn files(&self) -> Vec<(PathBuf, u64)> {
        self.names.files().map(|(path, inode)| (path.clone(), self.inode(inode).len())).collect()
    }

    pub(super) fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        match self.names.get(path) {
            Some(NameEntry::File(inode)) => Some(self.inode(inode).bytes().to_vec()),
            _ => None,
        }
    }

    /// A hash of all names and bytes but those of lock files, for the trace.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hash = 0;
        let files = self.names.files().filter(|(path, _)| !self.lock_files.contains(*path));
        for (path, inode) in files {
            let path = path.to_string_lossy();
            hash = xxhash_rust::xxh3::xxh3_64_with_seed(path.as_bytes(), hash);
            hash = xxhash_rust::xxh3::xxh3_64_with_seed(self.inode(inode).bytes(), hash);
        }
        hash
    }
}

fn blocks(length: u64) -> u64 {
    length.div_ceil(BLOCK_BYTES) * BLOCK_BYTES
}

const _: () = assert!(BLOCK_BYTES.is_multiple_of(SECTOR_BYTES));
