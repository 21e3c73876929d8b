//! The checkpoint: a tree on disk (redb) that has what is not in the journal any more.
//!
//! What it guarantees: everything up to [`Tree::covered`] is in it, and one transaction changes all of it or nothing.
//! A checkpoint writes what has changed since the last one, however much there is. Contents are only ever read from
//! here by number; states are read once, at a start.
//!
//! | table | key | value |
//! |---|---|---|
//! | `numbers` | a name | covered journal position, next content number, next queue id, largest number in a bundle, format version |
//! | `secret` | 0 | the key of receipts |
//! | `queues` | queue | 8 next sequence, the record in JSON |
//! | `states` | queue, sequence | [`crate::queue::State`] |
//! | `bundles` | number | of contents as the front gave them, from that number on: [`bundles`] |
//! | `live` | number | which contents of that bundle are wanted |
//! | `contents` | number | one that is in no bundle |
//! | `seen` | queue, key | number, sequence, time |
//! | `graves` | queue | last sequence of what was purged, and is to be removed |
//! | `tasks` | task | in JSON |
//!
//! Purging ten million messages writes one grave; their states and contents are removed by [`Tree::sweep`], some at a
//! time. What a grave covers counts as gone.
//!
//! A write that failed leaves the transaction undone. redb then wants to be opened again: [`Tree::commit`] does that
//! before the next try.

mod backend;
mod bundles;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use tailwater_env::{Disk, Env, LockGuard, OpenMode};
use tailwater_journal::JournalPosition;

use crate::deduplication::{DeduplicationKey, DeduplicationSeen};
use crate::ids::{Number, QueueId, Secret, Sequence};
use crate::limits::{SWEEP_KEYS, TREE_CACHE_BYTES};
use crate::queue::ChangesState;
use crate::settings::{MoveTask, QueueRecord};
use crate::shelf::{Shelf, ShelfDelta, ShelfDropped};
use backend::TreeFile;

const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
const SECRET: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("secret");
const QUEUES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("queues");
const STATES: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("states");
const CONTENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("contents");
const SEEN: TableDefinition<'_, (u64, [u8; 16]), (u64, u64, u64)> = TableDefinition::new("seen");
const GRAVES: TableDefinition<'_, u64, u64> = TableDefinition::new("graves");
const TASKS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("tasks");

const COVERED: &str = "covered";
const NEXT_NUMBER: &str = "next number";
const NEXT_QUEUE: &str = "next queue";
const BUNDLED: &str = "bundled";
const VERSION: &str = "version";
const VERSION_KNOWN: u64 = 2;

/// Of redb's pages.
const PAGE_BYTES: u64 = 4096;

const NAME: &str = "tree";
const LOCK_NAME: &str = "lock";
const UNFINISHED_NAME: &str = "tree.unfinished";

/// Why the tree can't be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// Another process, or this one, has it open.
    #[error("the queues in {dir} are in use by another process")]
    InUse {
        /// The tree's directory.
        dir: PathBuf,
    },
    /// The disk refused, or what is there makes no sense.
    #[error("{what} the queues' tree {path}: {reason}")]
    Failed {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why, in words.
        reason: String,
    },
}

/// What a checkpoint writes.
pub(crate) struct Checkpoint {
    pub(crate) covered: JournalPosition,
    pub(crate) next_number: Number,
    pub(crate) next_queue: QueueId,
    pub(crate) shelves: Vec<ShelfDelta>,
}

/// The checkpoint.
pub(crate) struct Tree {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// None while it has to be opened again.
    database: RwLock<Option<Database>>,
    /// Given up when the database is closed.
    _lock: LockGuard,
}

impl Tree {
    /// Opens the tree in `dir`, making both if they are not there. Blocks on the disk.
    pub(crate) fn open(env: &Env, dir: &Path) -> Result<Self, TreeError> {
        let disk = Arc::clone(env.disk());
        let path = dir.join(NAME);
        let failed = |what, reason: &dyn std::fmt::Display| TreeError::Failed {
            what,
            path: path.clone(),
            reason: reason.to_string(),
        };
        let parent = match dir.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        disk.create_dir_all(dir).map_err(|error| failed("making", &error))?;
        let lock = disk.lock(&dir.join(LOCK_NAME)).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => TreeError::InUse { dir: dir.to_owned() },
            _ => failed("locking", &error),
        })?;
        let listed = disk
            .sync_dir(parent)
            // A name that a failed sync left in memory only would be gone after the next crash.
            .and_then(|()| disk.sync_dir(dir))
            .and_then(|()| disk.list(dir))
            .map_err(|error| failed("making", &error))?;
        if !listed.iter().any(|name| name == NAME) {
            create(env, dir, listed.iter().any(|name| name == UNFINISHED_NAME))
                .map_err(|error| failed("creating", &error))?;
        }
        let tree = Self { disk, path: path.clone(), database: RwLock::new(None), _lock: lock };
        tree.open_again().map_err(|error| failed("opening", &error))?;
        let version = tree.number(VERSION)?;
        if version != VERSION_KNOWN {
            let why =
                format!("its format version is {version}, and this program knows version {VERSION_KNOWN}");
            return Err(failed("reading", &why));
        }
        Ok(tree)
    }

    fn open_if_closed(&self) -> Result<(), TreeError> {
        if self.database.read().is_some() {
            return Ok(());
        }
        self.open_again().map_err(|error| self.failed("opening", error))
    }

    fn open_again(&self) -> Result<(), redb::Error> {
        let mut database = self.database.write();
        // Two at a time would not know of each other.
        if database.is_some() {
            return Ok(());
        }
        let opened = guarded(|| open_database(self.disk.as_ref(), &self.path, OpenMode::ReadWrite));
        *database = Some(opened?);
        Ok(())
    }

    fn failed(&self, what: &'static str, reason: impl std::fmt::Display) -> TreeError {
        TreeError::Failed { what, path: self.path.clone(), reason: reason.to_string() }
    }

    fn number(&self, name: &str) -> Result<u64, TreeError> {
        let read = |transaction: &redb::ReadTransaction| {
            Ok(transaction.open_table(NUMBERS)?.get(name)?.map_or(0, |value| value.value()))
        };
        self.read(read)
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&redb::ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, TreeError> {
        self.open_if_closed()?;
        let database = self.database.read();
        let Some(database) = database.as_ref() else {
            return Err(self.failed("reading", "a write failed just now"));
        };
        let result = guarded(|| {
            let transaction = database.begin_read()?;
            read(&transaction)
        });
        result.map_err(|error| self.failed("reading", error))
    }

    /// The journal up to here is in the tree.
    pub(crate) fn covered(&self) -> Result<JournalPosition, TreeError> {
        self.number(COVERED).map(JournalPosition)
    }

    /// The key of receipts.
    pub(crate) fn secret(&self) -> Result<Secret, TreeError> {
        let secret = self.read(|transaction| {
            let table = transaction.open_table(SECRET)?;
            Ok(table.get(0)?.and_then(|value| value.value().try_into().ok()))
        })?;
        secret.map(Secret).ok_or_else(|| self.failed("reading", "it has no key for receipts"))
    }

    /// Puts everything but contents on the shelf.
    pub(crate) fn load(&self, shelf: &mut Shelf, now: u64) -> Result<(), TreeError> {
        let damaged = |what: &dyn std::fmt::Display| {
            redb::Error::from(redb::StorageError::Corrupted(format!("a record in it makes no sense: {what}")))
        };
        self.read(|transaction| {
            shelf.number_last = Number(number_in(transaction, NEXT_NUMBER)?);
            shelf.queue_last = QueueId(number_in(transaction, NEXT_QUEUE)?);
            let (queues, states) = (transaction.open_table(QUEUES)?, transaction.open_table(STATES)?);
            let (seen, graves) = (transaction.open_table(SEEN)?, transaction.open_table(GRAVES)?);
            for row in queues.iter()? {
                let (id, value) = row?;
                let id = QueueId(id.value());
                let (next, record) = value.value().split_at_checked(8).ok_or_else(|| damaged(&"short"))?;
                let record: QueueRecord = serde_json::from_slice(record).map_err(|error| damaged(&error))?;
                let queue = shelf.restore(id, record);
                queue.next = Sequence(u64::from_le_bytes(next.try_into().expect("8 bytes")));
                let from = graves.get(id.0)?.map_or(0, |upto| upto.value().saturating_add(1));
                for row in states.range((id.0, from)..=(id.0, u64::MAX))? {
                    let (key, value) = row?;
                    let state = ChangesState::decode(value.value()).map_err(|error| damaged(&error))?;
                    queue.restore(Sequence(key.value().1), state, now);
                }
                for row in seen.range((id.0, [0; 16])..=(id.0, [0xff; 16]))? {
                    let (key, value) = row?;
                    let (number, sequence, at) = value.value();
                    let value =
                        DeduplicationSeen { number: Number(number), sequence: Sequence(sequence), at };
                    queue.deduplication.insert(DeduplicationKey(key.value().1), value, false);
                }
                queue.deduplication.sort();
            }
            for row in transaction.open_table(TASKS)?.iter()? {
                let task: MoveTask =
                    serde_json::from_slice(row?.1.value()).map_err(|error| damaged(&error))?;
                match shelf.has_source(&task) {
                    true => shelf.put_task(task, false),
                    false => shelf.remove_task(task.id),
                }
            }
            Ok(())
        })
    }

    /// The contents of these numbers, as far as they are there; not those that come after so many bytes. Blocks on the
    /// disk.
    pub(crate) fn contents(&self, numbers: &[Number], most: usize) -> Result<Vec<Option<Bytes>>, TreeError> {
        self.read(|transaction| bundles::read(transaction, numbers, most))
    }

    /// Writes a checkpoint, all of it or nothing; it is durable then. Blocks on the disk.
    pub(crate) fn commit(&self, checkpoint: &Checkpoint) -> Result<(), TreeError> {
        self.write(|transaction| write_checkpoint(transaction, checkpoint))
    }

    /// Removes some of what was purged; whether there is more. Blocks on the disk.
    pub(crate) fn sweep(&self) -> Result<bool, TreeError> {
        let first = self.read(|transaction| {
            let graves = transaction.open_table(GRAVES)?;
            Ok(graves.iter()?.next().transpose()?.map(|(queue, upto)| (queue.value(), upto.value())))
        })?;
        let Some((queue, upto)) = first else { return Ok(false) };
        self.write(|transaction| {
            let mut states = transaction.open_table(STATES)?;
            let (mut keys, mut contents) = (Vec::new(), Vec::new());
            for row in states.range((queue, 0)..=(queue, upto))?.take(SWEEP_KEYS) {
                let (key, value) = row?;
                keys.push(key.value());
                contents.extend(ChangesState::decode(value.value()).map(|state| state.entry.number));
            }
            for key in &keys {
                states.remove(*key)?;
            }
            bundles::Writer::open(transaction)?.remove(contents)?;
            if keys.len() < SWEEP_KEYS {
                transaction.open_table(GRAVES)?.remove(queue)?;
            }
            Ok(())
        })?;
        Ok(true)
    }

    /// How many states and contents there are, and graves.
    #[cfg(test)]
    pub(crate) fn rows(&self) -> Result<(u64, u64, u64), TreeError> {
        use redb::ReadableTableMetadata;
        self.read(|transaction| {
            let states = transaction.open_table(STATES)?;
            Ok((states.len()?, bundles::count(transaction)?, transaction.open_table(GRAVES)?.len()?))
        })
    }

    fn write(
        &self,
        write: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), TreeError> {
        self.open_if_closed()?;
        let result = {
            let database = self.database.read();
            let database = database.as_ref().expect("only a write closes it, and there is one at a time");
            guarded(|| {
                let mut transaction = database.begin_write()?;
                // So that a start after a crash need not walk the whole tree.
                transaction.set_quick_repair(true);
                write(&transaction)?;
                Ok(transaction.commit()?)
            })
        };
        result.map_err(|error| {
            // What is in memory and what is on disk may differ now: only the disk counts.
            drop(self.database.write().take());
            self.failed("writing", error)
        })
    }
}

/// redb takes the pages that it has synced for what it wrote. Where a disk has lost them it panics: here that is damage
/// of the tree, and no reason to take the process along.
fn guarded<T>(run: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    tailwater_env::panics::catch(run).unwrap_or_else(|_| {
        let damaged = "its pages make no sense: restore the data directory from a copy";
        Err(redb::StorageError::Corrupted(damaged.to_owned()).into())
    })
}

fn number_in(transaction: &redb::ReadTransaction, name: &str) -> Result<u64, redb::Error> {
    Ok(transaction.open_table(NUMBERS)?.get(name)?.map_or(0, |value| value.value()))
}

fn write_checkpoint(
    transaction: &redb::WriteTransaction,
    checkpoint: &Checkpoint,
) -> Result<(), redb::Error> {
    let mut numbers = transaction.open_table(NUMBERS)?;
    numbers.insert(COVERED, checkpoint.covered.0)?;
    numbers.insert(NEXT_NUMBER, checkpoint.next_number.0)?;
    numbers.insert(NEXT_QUEUE, checkpoint.next_queue.0)?;
    let (mut queues, mut states) = (transaction.open_table(QUEUES)?, transaction.open_table(STATES)?);
    let (mut contents, mut seen) = (bundles::Writer::open(transaction)?, transaction.open_table(SEEN)?);
    let (mut graves, mut tasks) = (transaction.open_table(GRAVES)?, transaction.open_table(TASKS)?);
    let stored = checkpoint.shelves.iter().flat_map(|shelf| &shelf.contents);
    contents.insert(&mut numbers, stored.map(|(number, content)| (*number, content)).collect())?;
    let mut unwanted = Vec::new();
    for shelf in &checkpoint.shelves {
        for (id, record, delta) in &shelf.queues {
            let mut value = delta.next.0.to_le_bytes().to_vec();
            match record {
                Some(record) => serde_json::to_writer(&mut value, &**record).expect("it is plain data"),
                None => match queues.get(id.0)? {
                    Some(before) => value.extend_from_slice(before.value().get(8..).unwrap_or_default()),
                    None => continue, // its record was never durable
                },
            }
            queues.insert(id.0, &value[..])?;
            remove_gone(*id, &delta.removed, &delta.contents_removed, &mut states, &mut unwanted)?;
            if let Some(upto) = delta.purged_upto {
                let before = graves.get(id.0)?.map_or(0, |upto| upto.value());
                graves.insert(id.0, before.max(upto.0))?;
            }
            for upsert in &delta.upserts {
                states.insert((id.0, upsert.sequence.0), &upsert.state[..])?;
            }
            // In their order: each is anywhere, and the next one is in the same page then.
            let mut forgotten: Vec<_> = delta.forgotten.iter().collect();
            forgotten.sort_unstable();
            for key in forgotten {
                seen.remove((id.0, key.0))?;
            }
            let mut taken: Vec<_> = delta.seen.iter().collect();
            taken.sort_by_key(|(key, _)| *key);
            for (key, value) in taken {
                seen.insert((id.0, key.0), (value.number.0, value.sequence.0, value.at))?;
            }
        }
        for ShelfDropped { id, removed, contents_removed } in &shelf.dropped {
            queues.remove(id.0)?;
            // What was moved away must not be found by the sweep: it would take its content along.
            remove_gone(*id, removed, contents_removed, &mut states, &mut unwanted)?;
            seen.retain_in((id.0, [0; 16])..=(id.0, [0xff; 16]), |_, _| false)?;
            graves.insert(id.0, u64::MAX)?;
        }
        for task in &shelf.tasks {
            let value = serde_json::to_vec(task).expect("it is plain data");
            tasks.insert(task.id, &value[..])?;
        }
        for id in &shelf.tasks_removed {
            tasks.remove(*id)?;
        }
    }
    contents.remove(unwanted)
}

/// Removes the messages that left a queue since the last checkpoint; the contents that nobody has any more are
/// `unwanted`.
fn remove_gone(
    queue: QueueId,
    removed: &[(Sequence, Option<Number>)],
    contents_removed: &[Number],
    states: &mut redb::Table<'_, (u64, u64), &'static [u8]>,
    unwanted: &mut Vec<Number>,
) -> Result<(), redb::Error> {
    for (sequence, _) in removed {
        states.remove((queue.0, sequence.0))?;
    }
    unwanted.extend(removed.iter().filter_map(|(_, number)| *number).chain(contents_removed.iter().copied()));
    Ok(())
}

fn open_database(disk: &dyn Disk, path: &Path, mode: OpenMode) -> Result<Database, redb::Error> {
    let io = |error: std::io::Error| redb::Error::from(redb::StorageError::from(error));
    let file = disk.open(path, mode).map_err(io)?;
    // A crash may leave a length between two that the file was to have: whole pages are what redb can do with.
    let len = file.len().map_err(io)?;
    if !len.is_multiple_of(PAGE_BYTES) {
        file.set_len(len.next_multiple_of(PAGE_BYTES)).map_err(io)?;
    }
    let mut builder = Database::builder();
    builder.set_cache_size(TREE_CACHE_BYTES);
    Ok(builder.create_with_backend(TreeFile(file))?)
}

/// Makes a tree with all its tables. It has its name when all of it is durable.
fn create(env: &Env, dir: &Path, is_unfinished: bool) -> Result<(), redb::Error> {
    let disk = env.disk().as_ref();
    let io = |error: std::io::Error| redb::Error::from(redb::StorageError::from(error));
    let unfinished = dir.join(UNFINISHED_NAME);
    if is_unfinished {
        disk.remove_file(&unfinished).map_err(io)?;
    }
    let database = open_database(disk, &unfinished, OpenMode::CreateNew)?;
    let transaction = database.begin_write()?;
    transaction.open_table(NUMBERS)?.insert(VERSION, VERSION_KNOWN)?;
    let secret: Vec<u8> = (0..4).flat_map(|_| env.random_u64().to_le_bytes()).collect();
    transaction.open_table(SECRET)?.insert(0, &secret[..])?;
    transaction.open_table(QUEUES)?;
    transaction.open_table(STATES)?;
    bundles::Writer::open(&transaction)?;
    transaction.open_table(SEEN)?;
    transaction.open_table(GRAVES)?;
    transaction.open_table(TASKS)?;
    transaction.commit()?;
    drop(database);
    disk.rename(&unfinished, &dir.join(NAME)).map_err(io)?;
    disk.sync_dir(dir).map_err(io)
}
