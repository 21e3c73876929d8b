//! Syncs for the filler, several at the same time.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tailwater_env::{Env, File};
use tokio::sync::{mpsc, oneshot};

use crate::limits::{FILL_BATCH, SYNC_TASKS};

/// What is to be synced.
pub(crate) enum Target {
    /// A segment's bytes, which leave the page cache then: what is still asked for is in the cells, and the pages
    /// are wanted for what is written next.
    Segment(Arc<dyn File>),
    /// A file's bytes.
    File(Arc<dyn File>),
    /// A directory's names.
    Dir(PathBuf),
}

pub(crate) struct Job {
    target: Target,
    reply: oneshot::Sender<io::Result<()>>,
}

/// The filler's end of the syncing tasks.
pub(crate) struct Syncers(Vec<mpsc::Sender<Job>>);

impl Syncers {
    /// With a queue for each task to come.
    pub(crate) fn new() -> (Self, Vec<mpsc::Receiver<Job>>) {
        let (senders, receivers) = (0..SYNC_TASKS).map(|_| mpsc::channel(FILL_BATCH / SYNC_TASKS)).unzip();
        (Self(senders), receivers)
    }

    /// Syncs them all, in any order; how each went, in the order given.
    pub(crate) async fn sync(&self, targets: Vec<Target>) -> Vec<io::Result<()>> {
        let mut answers = Vec::with_capacity(targets.len());
        for (number, target) in targets.into_iter().enumerate() {
            let (reply, answer) = oneshot::channel();
            // If the task is gone so is the reply, which is noticed below.
            let _ = self.0[number % SYNC_TASKS].send(Job { target, reply }).await;
            answers.push(answer);
        }
        let mut results = Vec::with_capacity(answers.len());
        for answer in answers {
            let ended = || Err(io::Error::other("the syncing task has ended"));
            results.push(answer.await.unwrap_or_else(|_| ended()));
        }
        results
    }
}

/// One syncing task: ends with the filler.
pub(crate) async fn run(mut jobs: mpsc::Receiver<Job>, env: Env) {
    while let Some(Job { target, reply }) = jobs.recv().await {
        let result = match &target {
            Target::Segment(file) => file.sync_data().inspect(|()| file.drop_cached()),
            Target::File(file) => file.sync_data(),
            Target::Dir(dir) => env.disk().sync_dir(dir),
        };
        // The filler was cancelled if nobody waits.
        let _ = reply.send(result);
    }
}
