//! The two threads: one writes and syncs groups, one makes and recycles files. All they decide is in `core.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tailwater_env::{Env, File, Instant, LockGuard, yield_once};
use tokio::sync::{Notify, watch};

use crate::core::{AppendSource, Chore, Core, Group, Plan, Step};
use crate::error::JournalFailure;
use crate::files::{Directory, Spare};
use crate::limits::BEGIN_SYNC_BYTES;
use crate::position::{FileSequence, JournalPosition};
use crate::stats::Counters;
use crate::watermark::Watermark;

/// What the handles and the two threads share.
///
/// Lock order: `core` first, `spares` inside it; neither is held over a disk call or an await.
pub(crate) struct JournalShared {
    pub(crate) env: Env,
    pub(crate) core: Mutex<Core>,
    /// As many as `core` counts, those promised to planned files included.
    pub(crate) spares: Mutex<VecDeque<Spare>>,
    pub(crate) directory: Directory,
    pub(crate) durable: Arc<Watermark>,
    pub(crate) written: Arc<Watermark>,
    pub(crate) counters: Counters,
    /// Wakes the writer's thread.
    pub(crate) writer: Notify,
    /// Wakes the files' thread.
    pub(crate) files: Notify,
    /// Wakes those who were refused.
    pub(crate) room: Notify,
    /// Wakes those who wait for files to get scarce.
    pub(crate) scarce: Notify,
    /// How the writer's thread ended, once it has.
    pub(crate) writer_ended: watch::Sender<Option<Result<(), JournalFailure>>>,
    /// Whether the files' thread has ended, which it does last.
    pub(crate) closed: watch::Sender<bool>,
}

impl JournalShared {
    /// Moves the watermarks to where the core has them, and wakes those who waited for that.
    fn publish(&self, written: JournalPosition, durable: JournalPosition) {
        self.written.advance(written);
        self.durable.advance(durable);
    }

    /// Tries to begin the planned file; the file if that worked.
    pub(crate) fn begin(&self, plan: &Plan) -> Option<Arc<dyn File>> {
        let spare = match plan.source {
            AppendSource::Spare => {
                Some(self.spares.lock().pop_front().expect("spares are counted by the core"))
            }
            AppendSource::Grow => None,
        };
        match self.directory.begin(plan, spare) {
            Ok(file) => {
                let (written, durable) = {
                    let mut core = self.core.lock();
                    core.begun(plan);
                    core.watermarks()
                };
                self.publish(written, durable);
                self.files.notify_one();
                self.scarce.notify_waiters();
                Some(file)
            }
            Err(failure) => {
                self.fail(failure, Some(plan));
                // What is left of the attempt is theirs to remove.
                self.files.notify_one();
                None
            }
        }
    }

    /// Latches a failure and tells those who lost records by it.
    fn fail(&self, failure: JournalFailure, plan: Option<&Plan>) {
        let loss = self.core.lock().failed(failure.clone(), plan, self.env.now());
        self.counters.add_failure();
        match loss {
            None => tracing::warn!(%failure, "no journal file can be begun, trying on"),
            Some(loss) => {
                let lost_bytes = loss.upto.0 - loss.after.0;
                tracing::error!(
                    %failure, durable = %loss.after, lost_bytes, incarnation = %loss.incarnation,
                    "the journal failed: what was not durable is cut"
                );
                // The loss is known everywhere before anyone can append under the next incarnation.
                self.durable.lose(loss.after, loss.upto, loss.incarnation);
                self.written.lose(loss.after, loss.upto, loss.incarnation);
            }
        }
    }

    fn wake_refused(&self) {
        if self.core.lock().take_refused() {
            self.room.notify_waiters();
        }
    }
}

/// The writer's thread.
pub(crate) struct Writer {
    pub(crate) shared: Arc<JournalShared>,
    /// The file whose header was made durable last; none before the first.
    pub(crate) file: Option<Arc<dyn File>>,
    /// Held by both threads, so that nobody opens the journal while one of them may still write.
    pub(crate) lock: Arc<LockGuard>,
}

impl Writer {
    pub(crate) async fn run(mut self) {
        let result = loop {
            let now = self.shared.env.now();
            let step = self.shared.core.lock().next_step(now);
            match step {
                Step::Write(group) => self.run_write(group).await,
                Step::Sync => self.run_sync(),
                Step::Begin(plan) => {
                    if let Some(file) = self.shared.begin(&plan) {
                        self.file = Some(file);
                        self.shared.wake_refused();
                    }
                }
                Step::Wait(deadline) => wait(&self.shared.env, &self.shared.writer, deadline).await,
                Step::Done(result) => break result,
            }
        };
        self.shared.durable.close();
        self.shared.written.close();
        self.shared.room.notify_waiters();
        self.shared.scarce.notify_waiters();
        self.shared.files.notify_one();
        drop(self.lock);
        self.shared.writer_ended.send_replace(Some(result));
    }

    async fn run_write(&self, group: Group) {
        // The group has left the backlog: there may be room for others while it is on its way.
        self.shared.wake_refused();
        let file = self.file.as_ref().expect("groups come after the beginning of their file");
        if let Err(error) = file.write_all_at(&group.bytes, group.offset) {
            return self.fail(group.sequence, "write", &error);
        }
        self.shared.counters.add_group(group.bytes.len() as u64);
        if group.sync {
            // In a simulated world others get their turn between the write and the sync, as they do here.
            yield_once().await;
            if let Err(error) = self.sync(file.as_ref()) {
                return self.fail(group.sequence, "fdatasync", &error);
            }
        } else if group.bytes.len() as u64 >= BEGIN_SYNC_BYTES {
            // Left to the sync at the interval's end, or before the next file, all would wait for all of it.
            file.begin_sync(group.offset, group.bytes.len() as u64);
        }
        let now = self.shared.env.now();
        let (written, durable) = {
            let mut core = self.shared.core.lock();
            core.written(group, now);
            core.watermarks()
        };
        self.shared.publish(written, durable);
    }

    fn run_sync(&self) {
        let file = self.file.as_ref().expect("something was written to it");
        if let Err(error) = self.sync(file.as_ref()) {
            let sequence = self.shared.core.lock().active();
            return self.fail(sequence, "fdatasync", &error);
        }
        let (written, durable) = {
            let mut core = self.shared.core.lock();
            core.synced();
            core.watermarks()
        };
        self.shared.publish(written, durable);
    }

    fn sync(&self, file: &dyn File) -> std::io::Result<()> {
        let begun = self.shared.env.now();
        file.sync_data()?;
        self.shared.counters.add_sync(self.shared.env.now().since(begun));
        Ok(())
    }

    fn fail(&self, sequence: FileSequence, what: &'static str, error: &std::io::Error) {
        let path = self.shared.directory.journal_path(sequence);
        self.shared.fail(JournalFailure::new(what, &path, error), None);
    }
}

/// The files' thread.
pub(crate) struct FileKeeper {
    pub(crate) shared: Arc<JournalShared>,
    /// Number for the name of the next spare file.
    pub(crate) spare_number: u64,
    pub(crate) lock: Arc<LockGuard>,
}

impl FileKeeper {
    pub(crate) async fn run(mut self) {
        loop {
            let now = self.shared.env.now();
            let chore = self.shared.core.lock().next_chore(now);
            match chore {
                Chore::Recycle { sequence, keep } => self.run_recycle(sequence, keep),
                Chore::Zero => self.run_zero(),
                Chore::Wait(deadline) => {
                    wait(&self.shared.env, &self.shared.files, deadline).await;
                    continue;
                }
                Chore::Done => break,
            }
            self.shared.wake_refused();
            self.shared.scarce.notify_waiters();
            // Cancelled here at the latest if the journal was dropped.
            yield_once().await;
        }
        let mut writer_ended = self.shared.writer_ended.subscribe();
        // An error would say that the sender is gone, and it is in `shared`.
        let _ = writer_ended.wait_for(Option::is_some).await;
        drop(self.lock);
        self.shared.closed.send_replace(true);
    }

    fn run_recycle(&mut self, sequence: FileSequence, keep: bool) {
        let number = keep.then(|| self.next_number());
        match self.shared.directory.recycle(sequence, number) {
            Ok(None) => {}
            Ok(Some(spare)) => self.shelve(spare),
            Err(failure) => {
                tracing::warn!(%failure, "a journal file can't be recycled, trying on");
                self.shared.core.lock().recycle_failed(sequence, self.shared.env.now());
            }
        }
    }

    fn run_zero(&mut self) {
        let number = self.next_number();
        match self.shared.directory.zero(number) {
            Ok(spare) => self.shelve(spare),
            Err(reason) => {
                tracing::warn!(%reason, "no spare journal file can be made, trying on");
                self.shared.core.lock().spare_failed(reason, self.shared.env.now());
            }
        }
    }

    fn shelve(&self, spare: Spare) {
        let mut core = self.shared.core.lock();
        self.shared.spares.lock().push_back(spare);
        core.spare_ready();
    }

    fn next_number(&mut self) -> u64 {
        self.spare_number += 1;
        self.spare_number
    }
}

async fn wait(env: &Env, notify: &Notify, deadline: Option<Instant>) {
    match deadline {
        None => notify.notified().await,
        Some(deadline) => {
            let sleep = env.sleep_until(deadline);
            tokio::select! {
                biased;
                () = notify.notified() => {}
                () = sleep => {}
            }
        }
    }
}
