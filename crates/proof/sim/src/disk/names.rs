//! The names on a disk, and those that its directories have synced.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::rng::Rng;

use super::inode::Survival;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameEntry {
    Dir,
    File(u64),
}

/// A change of names that its directory has not synced.
#[derive(Debug)]
enum NameChange {
    Link { path: PathBuf, entry: NameEntry },
    Unlink { path: PathBuf, entry: NameEntry },
    Rename { from: PathBuf, to: PathBuf, entry: NameEntry },
}

impl NameChange {
    /// Whether syncing `dir` makes it durable; a rename between directories needs the one it leads to.
    fn lies_in(&self, dir: &Path) -> bool {
        match self {
            NameChange::Link { path, .. } | NameChange::Unlink { path, .. } => path.parent() == Some(dir),
            NameChange::Rename { to, .. } => to.parent() == Some(dir),
        }
    }
}

type NameTree = BTreeMap<PathBuf, NameEntry>;

/// All names of a disk. The root is always there.
#[derive(Default)]
pub(super) struct Names {
    current: NameTree,
    durable: NameTree,
    pending: Vec<NameChange>,
}

impl Names {
    pub(super) fn get(&self, path: &Path) -> Option<NameEntry> {
        if path.parent().is_none() { Some(NameEntry::Dir) } else { self.current.get(path).copied() }
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (&PathBuf, u64)> {
        self.current.iter().filter_map(|(path, entry)| match entry {
            NameEntry::File(inode) => Some((path, *inode)),
            NameEntry::Dir => None,
        })
    }

    /// Inodes that a name may stand for, before or after a crash.
    pub(super) fn inodes(&self) -> impl Iterator<Item = u64> {
        let pending = self.pending.iter().map(|change| match change {
            NameChange::Link { entry, .. }
            | NameChange::Unlink { entry, .. }
            | NameChange::Rename { entry, .. } => entry,
        });
        self.current.values().chain(self.durable.values()).chain(pending).filter_map(|entry| match entry {
            NameEntry::File(inode) => Some(*inode),
            NameEntry::Dir => None,
        })
    }

    pub(super) fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.expect_dir(dir)?;
        let inside = self.current.range(dir.to_path_buf()..).take_while(|(path, _)| path.starts_with(dir));
        Ok(inside
            .filter(|(path, _)| path.parent() == Some(dir))
            .filter_map(|(path, _)| Some(path.file_name()?.to_str()?.to_owned()))
            .collect())
    }

    pub(super) fn link(&mut self, path: &Path, entry: NameEntry) -> io::Result<()> {
        let parent = path.parent().ok_or(io::ErrorKind::AlreadyExists)?;
        self.expect_dir(parent)?;
        if self.current.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.current.insert(path.to_owned(), entry);
        self.pending.push(NameChange::Link { path: path.to_owned(), entry });
        Ok(())
    }

    pub(super) fn make_dirs(&mut self, dir: &Path) -> io::Result<()> {
        let mut above: Vec<&Path> = dir.ancestors().collect();
        above.reverse();
        for dir in above {
            match self.get(dir) {
                Some(NameEntry::Dir) => {}
                Some(NameEntry::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
                None => self.link(dir, NameEntry::Dir)?,
            }
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let entry = self.get(from).ok_or(io::ErrorKind::NotFound)?;
        self.expect_dir(to.parent().ok_or(io::ErrorKind::AlreadyExists)?)?;
        if from == to {
            return Ok(());
        }
        apply_rename(&mut self.current, from, to, entry);
        self.pending.push(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), entry });
        Ok(())
    }

    pub(super) fn unlink(&mut self, path: &Path) -> io::Result<()> {
        match self.current.get(path) {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(NameEntry::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            Some(&entry) => {
                self.current.remove(path);
                self.pending.push(NameChange::Unlink { path: path.to_owned(), entry });
                Ok(())
            }
        }
    }

    pub(super) fn remove_dir_all(&mut self, dir: &Path) -> io::Result<()> {
        self.expect_dir(dir)?;
        let inside: Vec<(PathBuf, NameEntry)> = self
            .current
            .range(dir.to_path_buf()..)
            .take_while(|(path, _)| path.starts_with(dir))
            .map(|(path, &entry)| (path.clone(), entry))
            .collect();
        // Deepest first, as an operating system does it.
        for (path, entry) in inside.into_iter().rev() {
            self.current.remove(&path);
            self.pending.push(NameChange::Unlink { path, entry });
        }
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        self.expect_dir(dir)?;
        for change in std::mem::take(&mut self.pending) {
            if change.lies_in(dir) {
                apply(&mut self.durable, &change);
            } else {
                self.pending.push(change);
            }
        }
        Ok(())
    }

    /// The power failed.
    pub(super) fn crash(&mut self, survival: Survival, rng: &mut Rng) {
        let pending = std::mem::take(&mut self.pending);
        let cut = rng.index(pending.len() + 1);
        for (place, change) in pending.iter().enumerate() {
            let survives = match survival {
                Survival::None => false,
                Survival::All => true,
                Survival::Prefix => place < cut,
                Survival::Each(chance) => rng.chance(chance),
            };
            if survives {
                apply(&mut self.durable, change);
            }
        }
        // What lay in a directory that is gone can't be reached.
        let paths: Vec<PathBuf> = self.durable.keys().cloned().collect();
        for path in paths {
            let parent = path.parent().expect("only the root has none, and it is not in the tree");
            if parent.parent().is_some() && self.durable.get(parent) != Some(&NameEntry::Dir) {
                self.durable.remove(&path);
            }
        }
        self.current.clone_from(&self.durable);
    }

    fn expect_dir(&self, dir: &Path) -> io::Result<()> {
        match self.get(dir) {
            Some(NameEntry::Dir) => Ok(()),
            Some(NameEntry::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

fn apply(tree: &mut NameTree, change: &NameChange) {
    match change {
        NameChange::Link { path, entry } => {
            tree.insert(path.clone(), *entry);
        }
        NameChange::Unlink { path, entry } => {
            if tree.get(path) == Some(entry) {
                tree.remove(path);
            }
        }
        NameChange::Rename { from, to, entry } => apply_rename(tree, from, to, *entry),
    }
}

fn apply_rename(tree: &mut NameTree, from: &Path, to: &Path, entry: NameEntry) {
    if tree.get(from) == Some(&entry) {
        tree.remove(from);
    }
    tree.insert(to.to_owned(), entry);
    if entry == NameEntry::Dir {
        let inside: Vec<(PathBuf, NameEntry)> = tree
            .range(from.to_path_buf()..)
            .take_while(|(path, _)| path.starts_with(from))
            .map(|(path, &entry)| (path.clone(), entry))
            .collect();
        for (path, entry) in inside {
            tree.remove(&path);
            let rest = path.strip_prefix(from).expect("it starts with `from`");
            tree.insert(to.join(rest), entry);
        }
    }
}
