//! The keys, and the commits that are on their way to the disk: decisions only, no input or output.
//!
//! A commit is held against the keys as they will be when everything before it is durable. If the journal loses
//! commits it loses the youngest ones, so whatever a commit rests on is durable when it is. What readers see is
//! durable. A conflict that rests on a commit on its way is answered when that one is durable; if it is lost
//! instead, the question is asked again.
//!
//! Invariants:
//! - `keys` is the state after the last applied commit; leased keys are in it but in no snapshot.
//! - `pending` is in the order of revisions and of journal positions, all of one journal incarnation.
//! - `newest` has exactly the keys that pending commits change, each with its newest change.
//! - No revision is given twice: not after a loss, and not for a lease.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Instant;
use tailwater_journal::{Incarnation, JournalPosition, Lost};
use tokio::sync::{oneshot, watch};

use crate::contract::{MetaError, Op, Versioned};
use crate::limits::{LEASES_MAX, WATCHES_MAX};
use crate::record::{CommitRecord, RecordedChange};
use crate::snapshot::Snapshot;
use crate::watch::{Event, Watch, WatchSender, watch_channel};

/// When a lease is over that is not there.
pub(crate) const NEVER: Instant = Instant::from_ns(u64::MAX);

/// A key.
#[derive(Clone, Debug)]
struct KeyState {
    versioned: Versioned,
    leased: bool,
}

/// A lease that is to come into being with its commit.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) ttl: Duration,
    pub(crate) lost: watch::Sender<bool>,
}

/// A commit on its way.
#[derive(Debug)]
struct PendingCommit {
    revision: u64,
    end: JournalPosition,
    record_bytes: usize,
    changes: Vec<RecordedChange>,
    /// The key that the commit leases, and how.
    grant: Option<(Arc<str>, Bytes, Grant)>,
    waiters: Vec<oneshot::Sender<Result<(), Lost>>>,
}

#[derive(Debug)]
struct LeaseState {
    version: u64,
    ttl: Duration,
    deadline: Instant,
    lost: watch::Sender<bool>,
}

/// Completes when the commit that it is about was applied or lost.
pub(crate) type SettledCommits = oneshot::Receiver<Result<(), Lost>>;

/// What the operations come to.
#[derive(Debug)]
pub(crate) enum CommitVerdict {
    /// To be appended.
    Changes(Vec<RecordedChange>),
    /// All expectations hold and nothing is to be changed; once that commit is durable, if one is named.
    Nothing(Option<SettledCommits>),
    /// An expectation does not hold; once that commit is durable, if one is named.
    Conflict(String, Option<SettledCommits>),
}

/// All of it.
#[derive(Debug)]
pub(crate) struct MetaState {
    keys: BTreeMap<Arc<str>, KeyState>,
    pending: VecDeque<PendingCommit>,
    /// The newest pending change of a key: its commit's revision, and whether it leaves the key there.
    newest: BTreeMap<Arc<str>, (u64, bool)>,
    leases: BTreeMap<Arc<str>, LeaseState>,
    /// No lease is over before this.
    expiry_next: Instant,
    watches: Vec<(String, WatchSender)>,
    /// The last one given.
    revision: u64,
    /// Of the last commit applied.
    applied: u64,
    /// The journal's, as far as its losses were dealt with.
    pub(crate) incarnation: Incarnation,
    /// Of the keys and values that a snapshot would hold.
    bytes: usize,
    /// Of the records of commits applied since the last snapshot.
    bytes_since_snapshot: usize,
    pub(crate) closed: bool,
}

impl MetaState {
    /// The state that recovery arrived at.
    pub(crate) fn new(keys: BTreeMap<Arc<str>, Versioned>, revision: u64, replayed_bytes: usize) -> Self {
        let bytes = keys.iter().map(|(key, versioned)| size(key, &versioned.value)).sum();
        let entry = |(key, versioned)| (key, KeyState { versioned, leased: false });
        Self {
            keys: keys.into_iter().map(entry).collect(),
            pending: VecDeque::new(),
            newest: BTreeMap::new(),
            leases: BTreeMap::new(),
            expiry_next: Instant::default(),
            watches: Vec::new(),
            revision,
            applied: revision,
            incarnation: Incarnation(0),
            bytes,
            bytes_since_snapshot: replayed_bytes,
            closed: false,
        }
    }

    // ---- reading ----

    pub(crate) fn get(&self, key: &str) -> Option<Versioned> {
        self.keys.get(key).map(|entry| entry.versioned.clone())
    }

    pub(crate) fn list(&self, prefix: &str) -> Vec<(String, Versioned)> {
        self.keys
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, entry)| (key.to_string(), entry.versioned.clone()))
            .collect()
    }

    pub(crate) fn watch(&mut self, prefix: &str) -> Result<Watch, MetaError> {
        self.watches.retain(|(_, sender)| !sender.is_abandoned());
        if self.watches.len() >= WATCHES_MAX {
            return Err(MetaError::Unavailable(format!("there are {WATCHES_MAX} watches already")));
        }
        let (sender, watch) = watch_channel();
        self.watches.push((prefix.to_owned(), sender));
        Ok(watch)
    }

    fn tell(&mut self, key: &str, value: Option<Versioned>) {
        let mut abandoned = false;
        for (prefix, sender) in &self.watches {
            abandoned |= sender.is_abandoned();
            if key.starts_with(prefix.as_str()) {
                sender.send(Event { key: key.to_owned(), value: value.clone() });
            }
        }
        if abandoned {
            self.watches.retain(|(_, sender)| !sender.is_abandoned());
        }
    }

    // ---- deciding ----

    /// The version that `key` will have when all pending commits are applied; `None` if it will not be there.
    fn version_to_come(&self, key: &str) -> Option<u64> {
        match self.newest.get(key) {
            Some((revision, there)) => there.then_some(*revision),
            None => self.keys.get(key).map(|entry| entry.versioned.version),
        }
    }

    fn is_leased(&self, key: &str) -> bool {
        let leasing =
            |pending: &PendingCommit| pending.grant.as_ref().is_some_and(|(leased, ..)| **leased == *key);
        match self.newest.get(key) {
            Some((revision, there)) => {
                *there && self.pending.iter().any(|pending| pending.revision == *revision && leasing(pending))
            }
            None => self.keys.get(key).is_some_and(|entry| entry.leased),
        }
    }

    /// Holds the operations, which are within the limits, against the keys. Leases that are over have to be
    /// ended before.
    pub(crate) fn judge(&mut self, ops: &[Op]) -> CommitVerdict {
        for op in ops {
            let key = op.key();
            let holds = op.expect().holds(self.version_to_come(key));
            if !holds || matches!(op, Op::Put { .. }) && self.is_leased(key) {
                let settled = self.settled_of(key);
                return CommitVerdict::Conflict(key.to_owned(), settled);
            }
        }
        let change = |op: &Op| match op {
            Op::Put { key, value, .. } => {
                Some(RecordedChange { key: key.as_str().into(), value: Some(value.clone()) })
            }
            Op::Delete { key, .. } => self
                .version_to_come(key)
                .is_some()
                .then(|| RecordedChange { key: key.as_str().into(), value: None }),
            Op::Check { .. } => None,
        };
        let changes: Vec<RecordedChange> = ops.iter().filter_map(change).collect();
        if !changes.is_empty() {
            return CommitVerdict::Changes(changes);
        }
        let newest =
            ops.iter().filter_map(|op| self.newest.get(op.key())).map(|(revision, _)| *revision).max();
        CommitVerdict::Nothing(newest.map(|revision| self.settled(revision)))
    }

    fn settled_of(&mut self, key: &str) -> Option<SettledCommits> {
        let revision = self.newest.get(key).map(|(revision, _)| *revision)?;
        Some(self.settled(revision))
    }

    /// Completes when that pending commit was applied or lost.
    fn settled(&mut self, revision: u64) -> SettledCommits {
        let (sender, receiver) = oneshot::channel();
        let pending = self.pending.iter_mut().find(|pending| pending.revision == revision);
        pending.expect("a revision in `newest` is pending").waiters.push(sender);
        receiver
    }

    /// Completes when the oldest pending commit was applied or lost, if there is one.
    pub(crate) fn settled_first(&mut self) -> Option<SettledCommits> {
        self.pending.front().map(|pending| pending.revision).map(|revision| self.settled(revision))
    }

    /// Completes when the youngest pending commit was applied or lost, if there is one.
    pub(crate) fn settled_last(&mut self) -> Option<SettledCommits> {
        self.pending.back().map(|pending| pending.revision).map(|revision| self.settled(revision))
    }

    pub(crate) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Of the last commit that was applied.
    pub(crate) fn applied(&self) -> u64 {
        self.applied
    }

    /// The commit of these changes, which the caller appends to the journal next.
    pub(crate) fn draft(&self, changes: Vec<RecordedChange>) -> CommitRecord {
        let previous = self.pending.back().map_or(self.applied, |pending| pending.revision);
        CommitRecord { revision: self.revision + 1, previous, changes }
    }

    /// The drafted commit is in the journal and ends at `end`.
    pub(crate) fn appended(
        &mut self,
        commit: CommitRecord,
        end: JournalPosition,
        record_bytes: usize,
        grant: Option<(Arc<str>, Bytes, Grant)>,
    ) -> SettledCommits {
        let revision = commit.revision;
        assert_eq!(revision, self.revision + 1, "drafted and appended under one lock");
        assert!(self.pending.back().is_none_or(|pending| pending.end < end));
        self.revision = revision;
        for change in &commit.changes {
            self.newest.insert(Arc::clone(&change.key), (revision, change.value.is_some()));
        }
        if let Some((key, ..)) = &grant {
            self.newest.insert(Arc::clone(key), (revision, true));
        }
        let changes = commit.changes;
        let (sender, receiver) = oneshot::channel();
        let waiters = vec![sender];
        self.pending.push_back(PendingCommit { revision, end, record_bytes, changes, grant, waiters });
        receiver
    }

    // ---- settling ----

    /// Where the oldest pending commit ends in the journal.
    pub(crate) fn pending_end(&self) -> Option<JournalPosition> {
        self.pending.front().map(|pending| pending.end)
    }

    /// The oldest pending commit is durable: from here on it is visible.
    pub(crate) fn apply_first(&mut self, now: Instant) {
        let pending = self.pop_first();
        self.applied = pending.revision;
        self.bytes_since_snapshot += pending.record_bytes;
        for change in pending.changes {
            match change.value {
                Some(value) => {
                    let version = pending.revision;
                    self.put(change.key, KeyState { versioned: Versioned { value, version }, leased: false });
                }
                None => self.remove(&change.key),
            }
        }
        if let Some((key, value, grant)) = pending.grant {
            let version = pending.revision;
            let deadline = now + grant.ttl;
            self.expiry_next = self.expiry_next.min(deadline);
            let lease = LeaseState { version, ttl: grant.ttl, deadline, lost: grant.lost };
            self.leases.insert(Arc::clone(&key), lease);
            self.put(key, KeyState { versioned: Versioned { value, version }, leased: true });
        }
        for waiter in pending.waiters {
            // Who asked may have gone.
            let _ = waiter.send(Ok(()));
        }
    }

    /// The oldest pending commit is lost, and with it all others.
    pub(crate) fn lose_first(&mut self, lost: Lost) {
        let pending = self.pop_first();
        for waiter in pending.waiters {
            let _ = waiter.send(Err(lost));
        }
        if self.pending.is_empty() {
            self.incarnation = lost.incarnation;
        }
    }

    fn pop_first(&mut self) -> PendingCommit {
        let pending = self.pending.pop_front().expect("somebody asked for its end");
        let leased = pending.grant.iter().map(|(key, ..)| key);
        for key in pending.changes.iter().map(|change| &change.key).chain(leased) {
            if self.newest.get(key).is_some_and(|(revision, _)| *revision == pending.revision) {
                self.newest.remove(key);
            }
        }
        pending
    }

    fn put(&mut self, key: Arc<str>, entry: KeyState) {
        let versioned = entry.versioned.clone();
        let added = if entry.leased { 0 } else { size(&key, &entry.versioned.value) };
        let before = self.keys.insert(Arc::clone(&key), entry);
        assert!(!self.leases.contains_key(&key) || before.is_none(), "a leased key is not written over");
        self.bytes += added;
        self.bytes -=
            before.filter(|entry| !entry.leased).map_or(0, |entry| size(&key, &entry.versioned.value));
        self.tell(&key, Some(versioned));
    }

    /// Removes a key, and the lease on it.
    fn remove(&mut self, key: &str) {
        let Some(entry) = self.keys.remove(key) else { return };
        if entry.leased {
            let lease = self.leases.remove(key).expect("a leased key has a lease");
            lease.lost.send_replace(true);
        } else {
            self.bytes -= size(key, &entry.versioned.value);
        }
        self.tell(key, None);
    }

    /// Nothing will be applied any more.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.watches.clear();
        self.leases.clear();
    }

    // ---- leases ----

    /// Whether one more lease may be given.
    pub(crate) fn check_lease_room(&self) -> Result<(), MetaError> {
        if self.leases.len() >= LEASES_MAX {
            return Err(MetaError::Unavailable(format!("there are {LEASES_MAX} leases already")));
        }
        Ok(())
    }

    /// Renews the lease on `key`; false if it is over.
    pub(crate) fn renew(&mut self, key: &str, version: u64, now: Instant) -> bool {
        match self.leases.get_mut(key) {
            Some(lease) if lease.version == version && now < lease.deadline => {
                lease.deadline = now + lease.ttl;
                true
            }
            _ => false,
        }
    }

    /// Ends the lease on `key`, if it is that one.
    pub(crate) fn end_lease(&mut self, key: &str, version: u64) {
        if self.leases.get(key).is_some_and(|lease| lease.version == version) {
            self.remove(key);
        }
    }

    /// Ends the leases that were not renewed in time.
    ///
    /// Answers when to look again at the latest.
    pub(crate) fn end_expired(&mut self, now: Instant) -> Instant {
        if now < self.expiry_next {
            return self.expiry_next;
        }
        let expired = self.leases.iter().filter(|(_, lease)| lease.deadline <= now);
        let expired: Vec<Arc<str>> = expired.map(|(key, _)| Arc::clone(key)).collect();
        expired.iter().for_each(|key| self.remove(key));
        let deadlines = self.leases.values().map(|lease| lease.deadline);
        self.expiry_next = deadlines.min().unwrap_or(NEVER);
        self.expiry_next
    }

    // ---- snapshots ----

    /// Whether so much was committed since the last snapshot that another one is due: `every` bytes, or half of
    /// what it would hold if that is more, so that the work stays in proportion.
    pub(crate) fn snapshot_is_due(&self, every: usize) -> bool {
        self.bytes_since_snapshot >= every.max(self.bytes / 2)
    }

    /// All that a snapshot holds.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let kept = self.keys.iter().filter(|(_, entry)| !entry.leased);
        let keys = kept.map(|(key, entry)| (Arc::clone(key), entry.versioned.clone())).collect();
        Snapshot { revision: self.applied, keys }
    }

    /// Bytes of the records of commits applied since the last snapshot.
    pub(crate) fn bytes_since_snapshot(&self) -> usize {
        self.bytes_since_snapshot
    }

    /// A snapshot was stored that has that many bytes of commits which the one before it had not.
    pub(crate) fn snapshot_stored(&mut self, bytes: usize) {
        self.bytes_since_snapshot -= bytes;
    }

    /// Every commit whose record ends up to here was applied, or lost, where `durable` is how far the journal is
    /// durable.
    pub(crate) fn covered(&self, durable: JournalPosition) -> JournalPosition {
        match self.pending.front() {
            Some(pending) => JournalPosition(pending.end.0 - 1).min(durable),
            None => durable,
        }
    }
}

fn size(key: &str, value: &[u8]) -> usize {
    key.len() + value.len()
}

#[cfg(test)]
mod tests;
