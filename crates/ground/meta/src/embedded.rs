//! Metadata in this process: in memory, in the journal, and in a snapshot.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::{Env, Task};
use tailwater_journal::{Journal, JournalAppendError, JournalAppendOptions, Lost, Tag};
use tokio::sync::{Notify, watch};

use crate::contract::{Expect, FromMeta, Meta, MetaError, Op, Versioned, check_key, check_ops, check_value};
use crate::lease::Lease;
use crate::limits::{LEASE_TTL_MAX, LEASE_TTL_MIN, PENDING_MAX, SNAPSHOT_RETRY};
use crate::record::{CommitRecord, RecordedChange};
use crate::state::{CommitVerdict, Grant, MetaState, NEVER, SettledCommits};
use crate::watch::Watch;

/// The tag of metadata's records in the journal.
pub const TAG: Tag = Tag(1);

/// Sizes of one store of metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaConfig {
    /// Bytes of commits after which a snapshot is taken; with many keys it is half of their bytes if that is
    /// more. The journal may ask for one earlier.
    pub snapshot_bytes: usize,
}

impl Default for MetaConfig {
    fn default() -> Self {
        Self { snapshot_bytes: 4 << 20 }
    }
}

/// [`Meta`] on the journal of this process; a handle, cheap to clone. Leases end with the process.
///
/// A commit is answered when its journal record is durable. If the journal loses it, it is answered
/// `Unavailable` and is never visible in this process. After the journal's close reads are still answered, and
/// commits are `Unavailable`; when the last handle is dropped, watches and leases end.
#[derive(Clone)]
pub struct EmbeddedMeta {
    inner: Arc<EmbeddedInner>,
}

struct EmbeddedInner {
    shared: Arc<MetaShared>,
    _tasks: [Task; 2],
}

struct MetaShared {
    env: Env,
    journal: Journal,
    dir: PathBuf,
    config: MetaConfig,
    /// Locked for decisions and for the append that follows from one, never over an await.
    state: Mutex<MetaState>,
    /// Wakes the task that settles commits.
    appended: Notify,
    /// Wakes the task that takes snapshots.
    applied: Notify,
}

impl std::fmt::Debug for EmbeddedMeta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EmbeddedMeta({})", self.inner.shared.dir.display())
    }
}

impl Drop for EmbeddedInner {
    fn drop(&mut self) {
        self.shared.state.lock().close();
    }
}

impl EmbeddedMeta {
    /// Goes on from what recovery arrived at.
    pub(crate) fn start(
        env: &Env,
        journal: Journal,
        dir: PathBuf,
        config: MetaConfig,
        mut state: MetaState,
        // Revision of the snapshot that is stored; 0 if none is.
        stored: u64,
    ) -> Self {
        state.incarnation = journal.incarnation();
        let shared = Arc::new(MetaShared {
            env: env.clone(),
            journal,
            dir,
            config,
            state: Mutex::new(state),
            appended: Notify::new(),
            applied: Notify::new(),
        });
        let tasks = [
            env.spawn("meta-settle", settle(Arc::clone(&shared))),
            env.spawn_dedicated("meta-snapshot", take_snapshots(Arc::clone(&shared), stored)),
        ];
        Self { inner: Arc::new(EmbeddedInner { shared, _tasks: tasks }) }
    }
}

impl Meta for EmbeddedMeta {
    fn get<'a>(&'a self, key: &'a str) -> FromMeta<'a, Option<Versioned>> {
        Box::pin(async move { self.inner.shared.read(|state| state.get(key)) })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> FromMeta<'a, Vec<(String, Versioned)>> {
        Box::pin(async move { self.inner.shared.read(|state| state.list(prefix)) })
    }

    fn commit(&self, ops: Vec<Op>) -> FromMeta<'_, u64> {
        Box::pin(async move {
            check_ops(&ops)?;
            self.inner.shared.commit(&ops, None).await
        })
    }

    fn watch<'a>(&'a self, prefix: &'a str) -> FromMeta<'a, Watch> {
        Box::pin(async move { self.inner.shared.read(|state| state.watch(prefix))? })
    }

    fn lease<'a>(&'a self, key: &'a str, value: Bytes, ttl: Duration) -> FromMeta<'a, Lease> {
        Box::pin(self.inner.shared.lease(key, value, ttl))
    }
}

/// How one try at a commit went.
enum Attempt {
    Done(Result<u64, MetaError>),
    /// Appended with that version; the answer when it is settled.
    Appended(u64, SettledCommits),
    /// The answer, if that commit settles well; another try otherwise.
    After(SettledCommits, Result<(), MetaError>),
    /// Another try when that commit is settled, however.
    Again(SettledCommits),
    /// Another try at once.
    AgainNow,
    /// Another try when the journal has got on.
    Busy,
}

impl MetaShared {
    fn read<T>(&self, read: impl FnOnce(&mut MetaState) -> T) -> Result<T, MetaError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(closed());
        }
        state.end_expired(self.env.now());
        Ok(read(&mut state))
    }

    async fn commit(&self, ops: &[Op], grant: Option<&(Arc<str>, Bytes, Grant)>) -> Result<u64, MetaError> {
        // Whether the journal gets on is seen from before the attempt, so that nothing is missed in between.
        let mut progress = self.journal.written();
        loop {
            match self.attempt(ops, grant) {
                Attempt::Done(answer) => return answer,
                Attempt::Appended(version, settled) => {
                    return match settled.await {
                        Ok(Ok(())) => Ok(version),
                        Ok(Err(lost)) => Err(unavailable(lost)),
                        Err(_) => Err(closed()),
                    };
                }
                Attempt::After(settled, answer) => match settled.await {
                    Ok(Ok(())) => return answer.map(|()| self.state.lock().applied()),
                    Ok(Err(_)) => {}
                    Err(_) => return Err(closed()),
                },
                Attempt::Again(settled) => {
                    if settled.await.is_err() {
                        return Err(closed());
                    }
                }
                Attempt::AgainNow => {}
                Attempt::Busy => {
                    if let Err(Lost { closed: true, .. }) = progress.changed().await {
                        return Err(closed());
                    }
                }
            }
        }
    }

    /// Judges and appends under one lock, so that the journal's order is the order of judgement.
    fn attempt(&self, ops: &[Op], grant: Option<&(Arc<str>, Bytes, Grant)>) -> Attempt {
        let mut state = self.state.lock();
        if state.closed {
            return Attempt::Done(Err(closed()));
        }
        state.end_expired(self.env.now());
        let changes = match state.judge(ops) {
            CommitVerdict::Conflict(key, None) => return Attempt::Done(Err(MetaError::Conflict { key })),
            CommitVerdict::Conflict(key, Some(settled)) => {
                return Attempt::After(settled, Err(MetaError::Conflict { key }));
            }
            CommitVerdict::Nothing(settled) if grant.is_none() => {
                return match settled {
                    None => Attempt::Done(Ok(state.applied())),
                    Some(settled) => Attempt::After(settled, Ok(())),
                };
            }
            CommitVerdict::Nothing(_) => Vec::new(),
            CommitVerdict::Changes(changes) => changes,
        };
        if grant.is_some()
            && let Err(error) = state.check_lease_room()
        {
            return Attempt::Done(Err(error));
        }
        if state.pending_count() >= PENDING_MAX {
            return Attempt::Again(state.settled_first().expect("there are many"));
        }
        self.append(&mut state, changes, grant)
    }

    fn append(
        &self,
        state: &mut MetaState,
        changes: Vec<RecordedChange>,
        grant: Option<&(Arc<str>, Bytes, Grant)>,
    ) -> Attempt {
        let commit: CommitRecord = state.draft(changes);
        let record = commit.encode();
        // Metadata is what makes room elsewhere, so it may use what the journal keeps back.
        let append = JournalAppendOptions::new(state.incarnation).reserved();
        match self.journal.append(TAG, &[&record], append) {
            Ok(end) => {
                let version = commit.revision;
                let settled = state.appended(commit, end, record.len(), grant.cloned());
                self.appended.notify_one();
                Attempt::Appended(version, settled)
            }
            Err(JournalAppendError::Stale { current }) => match state.settled_last() {
                // What was on its way is lost, or durable; both are settled before anything else is judged.
                Some(settled) => Attempt::Again(settled),
                None => {
                    state.incarnation = current;
                    Attempt::AgainNow
                }
            },
            Err(JournalAppendError::Backlog { .. }) => Attempt::Busy,
            Err(error @ JournalAppendError::TooLarge { .. }) => {
                Attempt::Done(Err(MetaError::Invalid(error.to_string())))
            }
            Err(error) => Attempt::Done(Err(unavailable(error))),
        }
    }

    async fn lease(self: &Arc<Self>, key: &str, value: Bytes, ttl: Duration) -> Result<Lease, MetaError> {
        check_key(key)?;
        check_value(key, &value)?;
        if !(LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&ttl) {
            let reason = format!("a lease of {ttl:?}: {LEASE_TTL_MIN:?} to {LEASE_TTL_MAX:?} are possible");
            return Err(MetaError::Invalid(reason));
        }
        let (lost, seen) = watch::channel(false);
        // The version has to be durable, or a restart could give it to another commit.
        let ops = [Op::Check { key: key.to_owned(), expect: Expect::Absent }];
        let grant = (Arc::from(key), value, Grant { ttl, lost });
        // If the caller goes before this is answered, nobody renews the lease, and it ends by itself.
        let version = self.commit(&ops, Some(&grant)).await?;
        let renewal = self.env.spawn("meta-lease", renew(Arc::downgrade(self), key.to_owned(), version, ttl));
        let shared = Arc::downgrade(self);
        let released = key.to_owned();
        Ok(Lease::new(key.to_owned(), version, seen, move || {
            drop(renewal);
            if let Some(shared) = shared.upgrade() {
                shared.state.lock().end_lease(&released, version);
            }
        }))
    }
}

fn closed() -> MetaError {
    MetaError::Unavailable("metadata is closed".to_owned())
}

fn unavailable(error: impl std::error::Error) -> MetaError {
    MetaError::Unavailable(error.to_string())
}

/// Applies commits when they are durable, in order, and answers them; ends leases that are over.
async fn settle(shared: Arc<MetaShared>) {
    let durable = shared.journal.durable();
    loop {
        let (end, expiry) = {
            let mut state = shared.state.lock();
            let expiry = state.end_expired(shared.env.now());
            (state.pending_end(), expiry)
        };
        let settled = async {
            match end {
                Some(end) => Some(durable.wait_for(end).await),
                None => {
                    shared.appended.notified().await;
                    None
                }
            }
        };
        let settled = tokio::select! {
            biased;
            settled = settled => settled,
            () = shared.env.sleep_until(expiry), if expiry != NEVER => None,
        };
        let Some(settled) = settled else { continue };
        let mut state = shared.state.lock();
        match settled {
            Ok(()) => state.apply_first(shared.env.now()),
            Err(lost) => state.lose_first(lost),
        }
        drop(state);
        shared.applied.notify_one();
    }
}

/// Takes a snapshot whenever enough was committed, or the journal wants its room back.
async fn take_snapshots(shared: Arc<MetaShared>, mut stored: u64) {
    let durable = shared.journal.durable();
    loop {
        let wanted = tokio::select! {
            biased;
            () = shared.applied.notified() => None,
            upto = shared.journal.trim_wanted(TAG) => Some(upto),
        };
        let due = {
            let state = shared.state.lock();
            let covered = state.covered(durable.position());
            let due = match wanted {
                Some(upto) => covered >= upto,
                None => state.snapshot_is_due(shared.config.snapshot_bytes),
            };
            due.then(|| (state.snapshot(), state.bytes_since_snapshot(), covered))
        };
        let Some((snapshot, bytes, covered)) = due else {
            if wanted.is_some() {
                // What is in the way is about to be settled, which wakes this task.
                shared.applied.notified().await;
            }
            continue;
        };
        let result = match snapshot.revision == stored {
            true => Ok(()),
            false => snapshot.store(shared.env.disk().as_ref(), &shared.dir),
        };
        match result {
            Ok(()) => {
                stored = snapshot.revision;
                shared.state.lock().snapshot_stored(bytes);
                shared.journal.trim(TAG, covered);
            }
            Err(error) => {
                let dir = shared.dir.display();
                tracing::warn!(%dir, %error, "no snapshot of metadata can be stored, trying on");
                shared.env.sleep(SNAPSHOT_RETRY).await;
                shared.applied.notify_one();
            }
        }
    }
}

/// Renews a lease until it is over. Its store being gone ends it, and so does the holder by dropping the task.
async fn renew(shared: Weak<MetaShared>, key: String, version: u64, ttl: Duration) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let sleep = strong.env.sleep(ttl / 3);
        drop(strong);
        sleep.await;
        let Some(strong) = shared.upgrade() else { return };
        let now = strong.env.now();
        let mut state = strong.state.lock();
        state.end_expired(now);
        if !state.renew(&key, version, now) {
            return;
        }
    }
}
