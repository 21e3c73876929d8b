//! The queues there are: records in the store, and what a front end remembers of them for a moment.
//!
//! A queue that another front end created is found at once. What another one changed or deleted is known after
//! [`super::SharedConfig::directory_ms`].

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tailwater_env::HashMap;

use super::SharedFront;
use super::rows::Record;
use crate::ids::QueueId;
use crate::limits::{DROP_AFTER_MS, PARTS_MAX, PURGE_PAUSE_MS, QUEUES_KNOWN_MAX, RECREATE_PAUSE_MS};
use crate::request::{QueueError, VisibilityChange};
use crate::settings::{Consistency, QueueRecord};
use crate::view::QueueView;

/// Attempts of a change that others' changes come between.
const ATTEMPTS: usize = 20;

/// A queue as it is stored, in JSON: space `queues/ACCOUNT`, its name as the key.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredQueue {
    id: u64,
    parts: u16,
    #[serde(default)]
    purged_at: Option<u64>,
    record: QueueRecord,
}

fn space_of(account: &str) -> String {
    format!("queues/{account}")
}

/// Where the names of queues are that were deleted less than a minute ago.
fn deleted_space(account: &str) -> String {
    format!("deleted/{account}")
}

/// Where the queues are that were deleted and may have left something, by id.
const GONE: &str = "gone";

/// A queue that was deleted, or was about to be, in JSON.
#[derive(Serialize, Deserialize)]
struct QueueGone {
    at: u64,
    queue: StoredQueue,
}

/// Where the accounts are that have queues, or had.
const ACCOUNTS: &str = "accounts";

/// What is remembered of a queue.
struct DirectoryEntry {
    view: Arc<QueueView>,
    parts: u16,
    read_at: u64,
}

/// What is remembered of all.
#[derive(Default)]
pub(super) struct SharedDirectory {
    entries: Mutex<HashMap<(String, String), DirectoryEntry>>,
}

impl SharedDirectory {
    /// A queue, and how many parts it has.
    pub(super) async fn find(
        &self,
        front: &SharedFront,
        account: &str,
        name: &str,
    ) -> Result<Option<(Arc<QueueView>, u16)>, QueueError> {
        let now = front.now();
        let key = (account.to_owned(), name.to_owned());
        if let Some(entry) = self.entries.lock().get(&key) {
            let is_fresh = (entry.read_at..entry.read_at + front.config.directory_ms).contains(&now);
            if is_fresh {
                return Ok(Some((Arc::clone(&entry.view), entry.parts)));
            }
        }
        match front.rows.record(&space_of(account), name).await? {
            None => {
                self.entries.lock().remove(&key);
                Ok(None)
            }
            Some(record) => self.remember(read(&record)?, now).map(Some),
        }
    }

    fn remember(&self, stored: StoredQueue, now: u64) -> Result<(Arc<QueueView>, u16), QueueError> {
        let StoredQueue { id, parts, record, .. } = stored;
        let mut entries = self.entries.lock();
        if entries.len() >= QUEUES_KNOWN_MAX {
            entries.clear();
        }
        let key = (record.account.clone(), record.name.clone());
        let record = Arc::new(record);
        let known = entries.get(&key).filter(|entry| entry.view.id == QueueId(id));
        let view = match known {
            Some(entry) => {
                entry.view.set(record);
                Arc::clone(&entry.view)
            }
            None => Arc::new(QueueView::new(QueueId(id), record)),
        };
        entries.insert(key, DirectoryEntry { view: Arc::clone(&view), parts, read_at: now });
        Ok((view, parts))
    }

    fn forget(&self, view: &QueueView) {
        self.entries.lock().remove(&(view.account.clone(), view.name.clone()));
    }

    pub(super) async fn list(
        &self,
        front: &SharedFront,
        account: &str,
        prefix: &str,
        after: Option<&str>,
        most: usize,
    ) -> Result<Vec<Arc<QueueView>>, QueueError> {
        let now = front.now();
        let records = front.rows.records(&space_of(account)).await?;
        let mut views = Vec::new();
        for (name, record) in records {
            if name.starts_with(prefix)
                && after.is_none_or(|after| name.as_str() > after)
                && views.len() < most
            {
                views.push(self.remember(read(&record)?, now)?.0);
            }
        }
        Ok(views)
    }

    pub(super) async fn all(&self, front: &SharedFront) -> Result<Vec<Arc<QueueView>>, QueueError> {
        let mut views = Vec::new();
        for (account, _) in front.rows.records(ACCOUNTS).await? {
            views.extend(self.list(front, &account, "", None, usize::MAX).await?);
        }
        Ok(views)
    }

    pub(super) async fn create(
        &self,
        front: &SharedFront,
        mut record: QueueRecord,
    ) -> Result<Arc<QueueView>, QueueError> {
        check(front, &record)?;
        let now = front.now();
        let (account, name) = (record.account.clone(), record.name.clone());
        if let Some((view, _)) = self.find(front, &account, &name).await? {
            return Err(QueueError::Exists(view));
        }
        if front.config.cooldowns && front.rows.record(&deleted_space(&account), &name).await?.is_some() {
            return Err(QueueError::DeletedRecently);
        }
        // First: who lists all queues finds the account.
        if front.rows.record(ACCOUNTS, &account).await?.is_none() {
            front.rows.write_record(ACCOUNTS, &account, Some(Bytes::new()), None, 0).await?;
        }
        (record.created_at, record.modified_at) = (now, now);
        let id = front.numbers.next(&front.env, now)?.0;
        let parts = front.config.parts.clamp(1, PARTS_MAX);
        let stored = StoredQueue { id, parts, purged_at: None, record };
        if front.rows.write_record(&space_of(&account), &name, Some(write(&stored)), None, 0).await? {
            return Ok(self.remember(stored, now)?.0);
        }
        match self.find(front, &account, &name).await? {
            Some((view, _)) => Err(QueueError::Exists(view)),
            None => Err(QueueError::Unavailable("the queue was created and deleted by others".to_owned())),
        }
    }

    pub(super) async fn update(
        &self,
        front: &SharedFront,
        view: &QueueView,
        change: VisibilityChange,
    ) -> Result<(), QueueError> {
        self.change(front, view, |stored, now| {
            change(&mut stored.record);
            stored.record.modified_at = now;
            check(front, &stored.record)
        })
        .await
    }

    /// Notes that a queue is purged now.
    pub(super) async fn purge(&self, front: &SharedFront, view: &QueueView) -> Result<(), QueueError> {
        self.change(front, view, |stored, now| match stored.purged_at {
            Some(at) if front.config.cooldowns && now < at + PURGE_PAUSE_MS => {
                Err(QueueError::PurgedRecently)
            }
            _ => {
                stored.purged_at = Some(now);
                Ok(())
            }
        })
        .await
    }

    async fn change(
        &self,
        front: &SharedFront,
        view: &QueueView,
        change: impl Fn(&mut StoredQueue, u64) -> Result<(), QueueError>,
    ) -> Result<(), QueueError> {
        let space = space_of(&view.account);
        for _ in 0..ATTEMPTS {
            let record = front.rows.record(&space, &view.name).await?.ok_or(QueueError::NoQueue)?;
            let mut stored = read(&record)?;
            if QueueId(stored.id) != view.id {
                return Err(QueueError::NoQueue);
            }
            let now = front.now();
            change(&mut stored, now)?;
            let value = Some(write(&stored));
            if front.rows.write_record(&space, &view.name, value, Some(record.version), 0).await? {
                self.remember(stored, now)?;
                return Ok(());
            }
        }
        Err(QueueError::Overloaded("the queue is being changed by others all the time"))
    }

    pub(super) async fn delete(&self, front: &SharedFront, view: &QueueView) -> Result<(), QueueError> {
        let space = space_of(&view.account);
        for _ in 0..ATTEMPTS {
            let record = front.rows.record(&space, &view.name).await?.ok_or(QueueError::NoQueue)?;
            let stored = read(&record)?;
            if QueueId(stored.id) != view.id {
                return Err(QueueError::NoQueue);
            }
            // First: whoever looks for what is left of it can't find it by its name any more.
            let gone = QueueGone { at: front.now(), queue: stored };
            let value = Bytes::from(serde_json::to_vec(&gone).expect("it is plain data"));
            let key = view.id.0.to_string();
            // One that is there is of a try that failed: it says a time that is too early.
            let before = front.rows.record(GONE, &key).await?.map(|record| record.version);
            if !front.rows.write_record(GONE, &key, Some(value), before, 0).await? {
                continue;
            }
            if front.rows.write_record(&space, &view.name, None, Some(record.version), 0).await? {
                self.forget(view);
                let pause_s = (RECREATE_PAUSE_MS / 1_000) as u32;
                let deleted = deleted_space(&view.account);
                front.rows.write_record(&deleted, &view.name, Some(Bytes::new()), None, pause_s).await?;
                return Ok(());
            }
        }
        Err(QueueError::Overloaded("the queue is being changed by others all the time"))
    }

    /// Queues that were deleted so long ago that no front end knows them any more, with their parts and what
    /// [`SharedDirectory::forget_gone`] wants.
    pub(super) async fn gone(
        &self,
        front: &SharedFront,
    ) -> Result<Vec<(Arc<QueueView>, u16, Record)>, QueueError> {
        let mut all = Vec::new();
        for (_, record) in front.rows.records(GONE).await? {
            let gone: QueueGone = serde_json::from_slice(&record.value).map_err(|error| {
                QueueError::Unavailable(format!("a queue's record makes no sense: {error}"))
            })?;
            if front.now() < gone.at + front.config.directory_ms + DROP_AFTER_MS {
                continue;
            }
            let StoredQueue { id, parts, record: queue, .. } = gone.queue;
            let view = Arc::new(QueueView::new(QueueId(id), Arc::new(queue)));
            let there = front.rows.record(&space_of(&view.account), &view.name).await?;
            match there.map(|record| read(&record)).transpose()? {
                // Whoever was about to delete it did not.
                Some(stored) if stored.id == id => self.forget_gone(front, &view, &record).await?,
                _ => all.push((view, parts, record)),
            }
        }
        Ok(all)
    }

    /// Nothing is left of a deleted queue.
    pub(super) async fn forget_gone(
        &self,
        front: &SharedFront,
        view: &QueueView,
        gone: &Record,
    ) -> Result<(), QueueError> {
        front.rows.write_record(GONE, &view.id.0.to_string(), None, Some(gone.version), 0).await?;
        Ok(())
    }
}

fn check(front: &SharedFront, record: &QueueRecord) -> Result<(), QueueError> {
    let level = record.settings.consistency.unwrap_or(front.config.consistency);
    match (record.settings.fifo, level) {
        (Some(_), Consistency::One) => Err(QueueError::Unsupported(
            "a FIFO queue needs the consistency level quorum: set the tag tailwater-consistency",
        )),
        _ => Ok(()),
    }
}

fn read(record: &Record) -> Result<StoredQueue, QueueError> {
    serde_json::from_slice(&record.value)
        .map_err(|error| QueueError::Unavailable(format!("a queue's record makes no sense: {error}")))
}

fn write(stored: &StoredQueue) -> Bytes {
    Bytes::from(serde_json::to_vec(stored).expect("it is plain data"))
}
