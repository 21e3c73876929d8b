//! The task that owns many queues: a thin shell around [`Core`].
//!
//! A round of its loop takes what is queued, puts what follows from it into the journal as one record, looks how far
//! the journal is, and answers what is durable. It waits for nothing else and never for the disk.
//!
//! What holds:
//! - Each queue has one owner, all queues of an account have the same one, and only its loop touches them: so a move
//!   between two queues is one operation.
//! - Many requests share a sync: all that came while the one before was under way.
//! - The queue of requests is bounded ([`OWNER_QUEUE_REQUESTS`]); a full one is an error value for the caller.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::FutureExt;
use tailwater_env::{Env, Task};
use tailwater_journal::{
    Incarnation, Journal, JournalAppendError, JournalAppendOptions, JournalPosition, Lost,
};
use tokio::sync::{Notify, mpsc};

use crate::checkpoint::TAG;
use crate::clock::QueueClock;
use crate::core::Core;
use crate::limits::{CHECKPOINT_BYTES, OWNER_QUEUE_REQUESTS, OWNER_ROUND_REQUESTS, ROUND_BYTES};
use crate::reader::AheadRead;
use crate::request::{QueueError, QueueRequest};

/// What an owner stands on.
pub(crate) struct QueueDependencies {
    pub(crate) env: Env,
    pub(crate) journal: Journal,
    pub(crate) clock: QueueClock,
    /// The owner's place among all.
    pub(crate) number: usize,
    /// Where it asks for contents to be read ahead.
    pub(crate) aheads: mpsc::Sender<AheadRead>,
    /// Rung when enough was journalled for a checkpoint.
    pub(crate) checkpoint_due: Arc<Notify>,
    pub(crate) checkpoint_bytes: u64,
}

/// Starts an owner of what is in `core`. Dropping the task cancels it.
pub(crate) fn start(dependencies: QueueDependencies, core: Core) -> (mpsc::Sender<QueueRequest>, Task) {
    let (requests, queue) = mpsc::channel(OWNER_QUEUE_REQUESTS);
    let env = dependencies.env.clone();
    let owner = Owner {
        incarnation: dependencies.journal.incarnation(),
        dependencies,
        core,
        rounds: VecDeque::new(),
        bytes_since_checkpoint: 0,
    };
    (requests, env.spawn("queue-owner", owner.run(queue)))
}

struct Owner {
    dependencies: QueueDependencies,
    core: Core,
    incarnation: Incarnation,
    /// Where the rounds in the journal end that somebody waits for, oldest first.
    rounds: VecDeque<JournalPosition>,
    bytes_since_checkpoint: u64,
}

/// Why the loop went on.
enum Woken {
    Requests(usize),
    Journal,
    Time,
}

impl Owner {
    async fn run(mut self, mut queue: mpsc::Receiver<QueueRequest>) {
        let env = self.dependencies.env.clone();
        let mut requests = Vec::with_capacity(OWNER_ROUND_REQUESTS);
        loop {
            // A timer only where there is something to wait for: an idle owner costs nothing.
            let wake_at = self.core.wake_at().map(|at| env.sleep_until(self.dependencies.clock.instant(at)));
            let timed = async {
                match wake_at {
                    Some(sleep) => sleep.await,
                    None => futures::future::pending().await,
                }
            };
            let durable = self.dependencies.journal.durable();
            let settled = async {
                match self.rounds.front() {
                    Some(end) => drop(durable.wait_for(*end).await),
                    None => futures::future::pending().await,
                }
            };
            let woken = tokio::select! {
                biased;
                count = queue.recv_many(&mut requests, OWNER_ROUND_REQUESTS) => Woken::Requests(count),
                () = settled => Woken::Journal,
                () = timed => Woken::Time,
            };
            if let Woken::Requests(0) = woken {
                return;
            }
            self.settle();
            for request in requests.drain(..) {
                match request {
                    QueueRequest::Delta(reply) => {
                        // All that was taken before goes first.
                        self.append().await;
                        let covered = self.settle();
                        let now = self.dependencies.clock.now();
                        let mut delta = self.core.take_delta(now);
                        delta.covered = covered;
                        self.bytes_since_checkpoint = 0;
                        let _ = reply.send(delta);
                    }
                    request => {
                        let now = self.dependencies.clock.now();
                        self.core.take(request, now);
                    }
                }
                if self.core.round_bytes() >= ROUND_BYTES {
                    self.append().await;
                }
            }
            let now = self.dependencies.clock.now();
            self.core.tick(now);
            self.append().await;
            self.read_ahead();
            self.core.finish_close();
        }
    }

    /// Asks for what is to be read. Where there is no room for that the receives do without.
    fn read_ahead(&mut self) {
        for ahead in std::mem::take(&mut self.core.reads) {
            let queue = ahead.queue;
            if self
                .dependencies
                .aheads
                .try_send(AheadRead { owner: self.dependencies.number, ahead })
                .is_err()
            {
                self.core.have_read(queue, Vec::new());
            }
        }
    }

    /// Puts the round into the journal. Waits only where the journal has no room for a moment.
    async fn append(&mut self) {
        while let Some(round) = self.core.round() {
            let mut append = JournalAppendOptions::new(self.incarnation);
            if !round.is_awaited {
                append = append.unsynced();
            }
            let is_growing = round.is_growing();
            if !is_growing {
                // What takes messages away makes room.
                append = append.reserved();
            }
            let bytes = round.bytes.len() as u64;
            match self.dependencies.journal.append(TAG, &[&round.bytes], append) {
                Ok(end) => {
                    if self.core.appended() {
                        let before = self.rounds.back();
                        assert!(before.is_none_or(|before| *before < end), "{end} is not behind {before:?}");
                        self.rounds.push_back(end);
                    }
                    self.bytes_since_checkpoint += bytes;
                    if self.bytes_since_checkpoint >= self.dependencies.checkpoint_bytes {
                        self.dependencies.checkpoint_due.notify_one();
                    }
                }
                // What was lost by it is found when its round is looked at.
                Err(JournalAppendError::Stale { current }) => self.incarnation = current,
                Err(JournalAppendError::Backlog { .. }) => self.dependencies.journal.ready().await,
                Err(error) => {
                    let now = self.dependencies.clock.now();
                    let error = match error {
                        JournalAppendError::Closed => QueueError::Closed,
                        JournalAppendError::Full(_) if is_growing => {
                            self.core.refused_growing(&QueueError::Unavailable(error.to_string()), now);
                            continue;
                        }
                        error => QueueError::Unavailable(error.to_string()),
                    };
                    self.core.refused(&error, now);
                }
            }
        }
    }

    /// Lets what is durable take effect; the position up to which everything has.
    fn settle(&mut self) -> JournalPosition {
        // First: what is found to be under way below ends later.
        let durable = self.dependencies.journal.durable();
        let covered = durable.position();
        while let Some(end) = self.rounds.front() {
            let Some(outcome) = durable.wait_for(*end).now_or_never() else { break };
            self.rounds.pop_front();
            let now = self.dependencies.clock.now();
            match outcome {
                Ok(()) => self.core.settle(now),
                Err(Lost { closed, .. }) => {
                    let error = match (closed, self.dependencies.journal.last_failure()) {
                        (true, _) => QueueError::Closed,
                        (false, Some(failure)) => QueueError::Unavailable(failure.to_string()),
                        (false, None) => QueueError::Unavailable("the journal lost records".to_owned()),
                    };
                    self.core.lose_first(&error, now);
                }
            }
        }
        covered
    }
}

const _: () = assert!(CHECKPOINT_BYTES > ROUND_BYTES as u64);
