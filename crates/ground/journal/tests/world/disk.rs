//! A disk in memory that keeps apart what was written and what is durable.
//!
//! Calls are counted. At the call it is told to, it fails, or crashes: from then on every call fails, and
//! [`TestDisk::after_crash`] is what a machine finds that starts again. What was not synced survives whole, in
//! part by sectors, or not at all, as the seed has it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tailwater_env::{Disk, File, LockGuard, OpenMode};

use super::splitmix;

const SECTOR: usize = 512;

/// What happens at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The machine stops in the middle of it.
    Crash,
    /// It fails.
    Fail,
}

/// The disk.
pub struct TestDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    seed: u64,
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    unsynced_names: Vec<NameChange>,
    locks: BTreeSet<PathBuf>,
    calls: u64,
    faults: BTreeMap<u64, Fault>,
    failing: Option<io::ErrorKind>,
    failing_syncs: bool,
    capacity: Option<u64>,
    crashed: bool,
}

#[derive(Clone, Default)]
struct Inode {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone)]
enum NameChange {
    Add(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

fn apply(names: &mut BTreeMap<PathBuf, usize>, change: &NameChange) {
    match change {
        NameChange::Add(path, inode) => {
            names.insert(path.clone(), *inode);
        }
        NameChange::Rename(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        NameChange::Remove(path) => {
            names.remove(path);
        }
    }
}

fn write(bytes: &mut Vec<u8>, position: usize, written: &[u8]) {
    if bytes.len() < position + written.len() {
        bytes.resize(position + written.len(), 0);
    }
    bytes[position..position + written.len()].copy_from_slice(written);
}

impl State {
    /// Counts a call; an error if it fails. `Ok(true)` if the machine stops in the middle of it.
    fn call(&mut self) -> io::Result<bool> {
        if self.crashed {
            return Err(io::Error::other("the machine has stopped"));
        }
        self.calls += 1;
        match self.faults.get(&self.calls) {
            Some(Fault::Crash) => {
                self.crashed = true;
                Ok(true)
            }
            Some(Fault::Fail) => Err(io::Error::other("a fault of the test")),
            None => match self.failing {
                Some(kind) => Err(io::Error::new(kind, "a fault of the test")),
                None => Ok(false),
            },
        }
    }

    fn used(&self) -> u64 {
        self.names.values().map(|inode| self.inodes[*inode].bytes.len() as u64).sum()
    }

    fn change_names(&mut self, change: NameChange) {
        apply(&mut self.names, &change);
        self.unsynced_names.push(change);
    }

    /// What of a write survives: a part of its sectors.
    fn tear(&mut self, position: usize, written: &[u8], into: usize) {
        let choice = splitmix(&mut self.seed) % 3;
        let mut from = 0;
        while from < written.len() {
            let to = (from + SECTOR - (position + from) % SECTOR).min(written.len());
            let survives = choice == 0 || choice == 1 && splitmix(&mut self.seed).is_multiple_of(2);
            if survives {
                write(&mut self.inodes[into].durable, position + from, &written[from..to]);
            }
            from = to;
        }
    }

    fn lose_unsynced(&mut self, inode: usize) {
        for (position, written) in std::mem::take(&mut self.inodes[inode].unsynced) {
            self.tear(position, &written, inode);
        }
    }
}

impl TestDisk {
    pub fn new(seed: u64) -> Self {
        Self { state: Arc::new(Mutex::new(State { seed, ..State::default() })) }
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Plans a fault for the `call`th call, counted from 1.
    pub fn fault_at(&self, call: u64, fault: Fault) {
        self.state.lock().faults.insert(call, fault);
    }

    /// From now on every call fails, or with `None` none does.
    pub fn fail_all(&self, kind: Option<io::ErrorKind>) {
        self.state.lock().failing = kind;
    }

    /// From now on every sync of a file fails, or does not.
    pub fn fail_syncs(&self, failing: bool) {
        self.state.lock().failing_syncs = failing;
    }

    /// Limits the bytes of all files.
    pub fn limit(&self, capacity: Option<u64>) {
        self.state.lock().capacity = capacity;
    }

    pub fn has_crashed(&self) -> bool {
        self.state.lock().crashed
    }

    /// The names in a directory.
    pub fn names(&self, dir: &Path) -> Vec<String> {
        let state = self.state.lock();
        let in_dir = state.names.keys().filter(|path| path.parent() == Some(dir));
        in_dir.map(|path| path.file_name().expect("a name").to_string_lossy().into_owned()).collect()
    }

    /// Changes the bytes of a file, durably.
    pub fn edit(&self, path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state.lock();
        let inode = state.names[path];
        let inode = &mut state.inodes[inode];
        edit(&mut inode.bytes);
        inode.durable = inode.bytes.clone();
        inode.unsynced.clear();
    }

    /// Removes a file, durably.
    pub fn delete(&self, path: &Path) {
        let mut state = self.state.lock();
        state.names.remove(path).expect("it is there");
        state.durable_names.remove(path);
    }

    /// What a machine that starts again after a crash finds.
    pub fn after_crash(&self) -> Arc<Self> {
        let mut state = self.state.lock();
        for inode in 0..state.inodes.len() {
            state.lose_unsynced(inode);
        }
        let mut names = state.durable_names.clone();
        for change in std::mem::take(&mut state.unsynced_names) {
            if splitmix(&mut state.seed).is_multiple_of(2) {
                apply(&mut names, &change);
            }
        }
        let after = |inode: &Inode| Inode {
            bytes: inode.durable.clone(),
            durable: inode.durable.clone(),
            unsynced: Vec::new(),
        };
        let inodes = state.inodes.iter().map(after).collect();
        let seed = state.seed;
        let state = State { seed, inodes, durable_names: names.clone(), names, ..State::default() };
        Arc::new(Self { state: Arc::new(Mutex::new(state)) })
    }

    /// What a process that starts again after a kill finds: everything written, synced or not.
    pub fn after_kill(&self) -> Arc<Self> {
        let state = self.state.lock();
        let after = State {
            seed: state.seed,
            inodes: state.inodes.clone(),
            names: state.names.clone(),
            durable_names: state.durable_names.clone(),
            unsynced_names: state.unsynced_names.clone(),
            ..State::default()
        };
        Arc::new(Self { state: Arc::new(Mutex::new(after)) })
    }
}

impl Disk for TestDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut state = self.state.lock();
        state.call()?;
        let inode = match (state.names.get(path), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Some(inode), _) => *inode,
            (None, OpenMode::CreateNew) => {
                let inode = state.inodes.len();
                state.inodes.push(Inode::default());
                state.change_names(NameChange::Add(path.to_owned(), inode));
                inode
            }
            (None, _) => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(Arc::new(TestFile { state: Arc::clone(&self.state), inode }))
    }

    fn create_dir_all(&self, _dir: &Path) -> io::Result<()> {
        self.state.lock().call().map(drop)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.state.lock().call()?;
        Ok(self.names(dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.call()?;
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change_names(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.call()?;
        if !state.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change_names(NameChange::Remove(path.to_owned()));
        Ok(())
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.call()?;
        let below: Vec<_> = state.names.keys().filter(|path| path.starts_with(dir)).cloned().collect();
        for path in below {
            state.change_names(NameChange::Remove(path));
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.call()? {
            return Ok(());
        }
        let (synced, rest) =
            std::mem::take(&mut state.unsynced_names).into_iter().partition(|change| match change {
                NameChange::Add(path, _) | NameChange::Rename(_, path) | NameChange::Remove(path) => {
                    path.parent() == Some(dir)
                }
            });
        state.unsynced_names = rest;
        let synced: Vec<NameChange> = synced;
        for change in synced {
            apply(&mut state.durable_names, &change);
        }
        Ok(())
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        let mut state = self.state.lock();
        state.call()?;
        Ok(state.capacity.map_or(1 << 40, |capacity| capacity.saturating_sub(state.used())))
    }

    fn lock(&self, path: &Path) -> io::Result<LockGuard> {
        let mut state = self.state.lock();
        state.call()?;
        if !state.locks.insert(path.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(Lock { state: Arc::clone(&self.state), path: path.to_owned() }))
    }
}

struct Lock {
    state: Arc<Mutex<State>>,
    path: PathBuf,
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.state.lock().locks.remove(&self.path);
    }
}

struct TestFile {
    state: Arc<Mutex<State>>,
    inode: usize,
}

impl File for TestFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut state = self.state.lock();
        state.call()?;
        let bytes = &state.inodes[self.inode].bytes;
        let from = (position as usize).min(bytes.len());
        let count = buffer.len().min(bytes.len() - from);
        buffer[..count].copy_from_slice(&bytes[from..from + count]);
        Ok(count)
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if let Err(error) = state.call() {
            // A failed write may have written any part.
            state.tear(position as usize, bytes, self.inode);
            return Err(error);
        }
        let length = state.inodes[self.inode].bytes.len() as u64;
        let grows = (position + bytes.len() as u64).saturating_sub(length);
        if state.capacity.is_some_and(|capacity| state.used() + grows > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let inode = &mut state.inodes[self.inode];
        write(&mut inode.bytes, position as usize, bytes);
        inode.unsynced.push((position as usize, bytes.to_owned()));
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let mut state = self.state.lock();
        state.call()?;
        Ok(state.inodes[self.inode].bytes.len() as u64)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.call()?;
        let inode = &mut state.inodes[self.inode];
        inode.bytes.resize(length as usize, 0);
        inode.durable.resize(length as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        let called = state.call();
        if called.is_err() || state.failing_syncs {
            // What was not durable by now never will be by a later sync, though it may be there.
            state.lose_unsynced(self.inode);
            called?;
            return Err(io::Error::other("a fault of the test"));
        }
        if called? {
            return Ok(());
        }
        let inode = &mut state.inodes[self.inode];
        for (position, written) in std::mem::take(&mut inode.unsynced) {
            write(&mut inode.durable, position, &written);
        }
        Ok(())
    }
}
