//! The handle that appenders hold.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tailwater_env::{Env, LockGuard, Progress, Task};
use tokio::sync::{Notify, watch};

use crate::config::JournalConfig;
use crate::core::{Core, Step};
use crate::error::{CloseError, JournalAppendError, JournalFailure, JournalOpenError};
use crate::files::{Directory, LOCK_NAME};
use crate::position::{Incarnation, JournalPosition, Tag};
use crate::recover::{Replay, recover};
use crate::stats::{Counters, JournalStats};
use crate::watermark::{Watermark, WatermarkFollower};
use crate::writer::{FileKeeper, JournalShared, Writer};

/// Who may use the room that is kept back when the journal is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Not this record.
    #[default]
    Normal,
    /// This record: without it room can't be made.
    Reserved,
}

/// How a record is appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalAppendOptions {
    /// The incarnation whose losses the caller has dealt with; another one is refused.
    pub incarnation: Incarnation,
    /// Whether it may use the room kept back.
    pub priority: Priority,
    /// Whether it is synced at once. If not, [`Journal::written`] acknowledges it, and it is durable within
    /// [`JournalConfig::sync_interval`], or earlier with a record that is synced.
    pub sync: bool,
}

impl JournalAppendOptions {
    /// Synced at once, with normal priority.
    pub fn new(incarnation: Incarnation) -> Self {
        Self { incarnation, priority: Priority::Normal, sync: true }
    }

    /// With the right to the room kept back.
    #[must_use]
    pub fn reserved(self) -> Self {
        Self { priority: Priority::Reserved, ..self }
    }

    /// Without a sync of its own.
    #[must_use]
    pub fn unsynced(self) -> Self {
        Self { sync: false, ..self }
    }
}

/// A handle on an open journal; cheap to clone.
///
/// When the last handle is dropped without [`Journal::close`], the threads end as in a crash of the process:
/// what was not acknowledged may or may not be found again.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<JournalInner>,
}

struct JournalInner {
    shared: Arc<JournalShared>,
    _tasks: [Task; 2],
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Journal({})", self.inner.shared.directory.path.display())
    }
}

impl Journal {
    /// Opens the journal in `dir`, making it if it is not there, and hands every record that was not trimmed
    /// away to `replay`: its tag, the position it ends at, and its bytes, in the order they were appended.
    ///
    /// Files are trimmed whole, so records from before a tag's last trim may come again; and records that
    /// nobody was told of may come, if they were written before the crash.
    ///
    /// Blocks on the disk. If the disk has no room for a further file the journal opens nevertheless, and
    /// refuses appends until there is; acknowledged records are never in the way of that.
    pub fn open(
        env: &Env,
        dir: &Path,
        config: JournalConfig,
        replay: &mut Replay<'_>,
    ) -> Result<Self, JournalOpenError> {
        Self::open_telling(env, dir, config, replay, &Progress::default())
    }

    /// The same, telling how many bytes of its files are replayed.
    pub fn open_telling(
        env: &Env,
        dir: &Path,
        config: JournalConfig,
        replay: &mut Replay<'_>,
        progress: &Progress,
    ) -> Result<Self, JournalOpenError> {
        config.check()?;
        let directory =
            Directory { disk: Arc::clone(env.disk()), path: dir.to_owned(), file_bytes: config.file_bytes };
        directory.create()?;
        let lock = Arc::new(open_lock(&directory)?);
        let (recovered, spares, spare_number) = recover(env, &directory, replay, progress)?;
        let core = Core::new(config, recovered, env.now());
        let (written, durable) = core.watermarks();
        let incarnation = core.incarnation();
        let shared = Arc::new(JournalShared {
            env: env.clone(),
            core: Mutex::new(core),
            spares: Mutex::new(VecDeque::from(spares)),
            directory,
            durable: Watermark::new(durable, incarnation),
            written: Watermark::new(written, incarnation),
            counters: Counters::new(),
            writer: Notify::new(),
            files: Notify::new(),
            room: Notify::new(),
            scarce: Notify::new(),
            writer_ended: watch::Sender::new(None),
            closed: watch::Sender::new(false),
        });
        // Recovery never appends to an old file: a further one is begun before anything else.
        let step = shared.core.lock().next_step(env.now());
        let Step::Begin(plan) = step else { unreachable!("a journal opens by beginning a file") };
        let file = shared.begin(&plan);
        let writer = Writer { shared: Arc::clone(&shared), file, lock: Arc::clone(&lock) };
        let keeper = FileKeeper { shared: Arc::clone(&shared), spare_number, lock };
        let tasks = [
            env.spawn_dedicated("journal-writer", writer.run()),
            env.spawn_dedicated("journal-files", keeper.run()),
        ];
        Ok(Self { inner: Arc::new(JournalInner { shared, _tasks: tasks }) })
    }

    /// Appends one record, given in parts that are put together; where it ends. It is acknowledged when
    /// [`Journal::durable`] (or [`Journal::written`], without `sync`) has reached that.
    ///
    /// Never blocks on the disk. Records are in the journal in the order of these calls.
    pub fn append(
        &self,
        tag: Tag,
        parts: &[&[u8]],
        append: JournalAppendOptions,
    ) -> Result<JournalPosition, JournalAppendError> {
        let enqueued = self.inner.shared.core.lock().enqueue(tag, parts, &append)?;
        if enqueued.wake_writer {
            self.inner.shared.writer.notify_one();
        }
        Ok(enqueued.end)
    }

    /// Has what was appended up to `upto` synced as soon as it is written, and not only when its interval is over.
    pub fn ask_sync(&self, upto: JournalPosition) {
        if self.inner.shared.core.lock().ask_sync(upto) {
            self.inner.shared.writer.notify_one();
        }
    }

    /// Completes when an append that was refused as `Full`, `Latched` or `Backlog` is worth another try, or the
    /// journal was closed.
    pub async fn ready(&self) {
        let shared = &self.inner.shared;
        loop {
            let mut notified = std::pin::pin!(shared.room.notified());
            // Registered before the look, or room that comes in between would be missed.
            notified.as_mut().enable();
            {
                let mut core = shared.core.lock();
                if core.is_ready() || core.is_closed() {
                    return;
                }
                core.note_refused();
            }
            notified.await;
        }
    }

    /// Follows what is durable.
    pub fn durable(&self) -> WatermarkFollower {
        self.inner.shared.durable.follow()
    }

    /// Follows what was handed to the operating system, synced or not: the acknowledgement of records that may be lost
    /// if the machine stops.
    pub fn written(&self) -> WatermarkFollower {
        self.inner.shared.written.follow()
    }

    /// The incarnation that appends have to name.
    pub fn incarnation(&self) -> Incarnation {
        self.inner.shared.core.lock().incarnation()
    }

    /// Says that `tag` needs no record that ends at or before `upto`. Files in which no tag needs a record are
    /// used again. This is not remembered over a restart.
    pub fn trim(&self, tag: Tag, upto: JournalPosition) {
        if self.inner.shared.core.lock().trim(tag, upto) {
            self.inner.shared.files.notify_one();
        }
    }

    /// Completes when files are getting scarce and `tag` is what keeps the oldest one, with the position up to
    /// which it should trim to give it back. Never completes after the close.
    pub async fn trim_wanted(&self, tag: Tag) -> JournalPosition {
        let shared = &self.inner.shared;
        loop {
            let mut notified = std::pin::pin!(shared.scarce.notified());
            notified.as_mut().enable();
            if let Some(upto) = shared.core.lock().trim_wanted(tag) {
                return upto;
            }
            notified.await;
        }
    }

    /// Whether the disk lets it take appends, however long; what keeps it from that, if not.
    pub fn health(&self) -> Result<(), JournalAppendError> {
        self.inner.shared.core.lock().health()
    }

    /// The latest failure of the disk since the start, whether or not the journal has got over it: whoever is
    /// told [`crate::Lost`] finds the reason here.
    pub fn last_failure(&self) -> Option<JournalFailure> {
        self.inner.shared.core.lock().last_failure().cloned()
    }

    /// Counters.
    pub fn stats(&self) -> JournalStats {
        let shared = &self.inner.shared;
        let mut stats = shared.counters.stats();
        let core = shared.core.lock();
        stats.records = core.records();
        stats.files = core.file_count();
        stats.spares = core.spare_count();
        stats
    }

    /// Refuses further appends, makes everything appended durable, and ends. All handles are closed by it, and
    /// the directory may be opened again when it returns.
    pub async fn close(&self) -> Result<(), CloseError> {
        let shared = &self.inner.shared;
        shared.core.lock().close();
        shared.writer.notify_one();
        shared.files.notify_one();
        let mut closed = shared.closed.subscribe();
        closed.wait_for(|closed| *closed).await.expect("its sender is in `shared`");
        match &*shared.writer_ended.borrow() {
            Some(Err(failure)) => Err(CloseError { failure: failure.clone() }),
            _ => Ok(()),
        }
    }
}

fn open_lock(directory: &Directory) -> Result<LockGuard, JournalOpenError> {
    let path = directory.path.join(LOCK_NAME);
    directory.disk.lock(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => JournalOpenError::InUse { dir: directory.path.clone() },
        _ => JournalFailure::new("lock", &path, &error).into(),
    })
}
