//! A queue, as everybody may look at it.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::ids::QueueId;
use crate::settings::QueueRecord;

/// A queue, as everybody may look at it.
#[derive(Debug)]
pub struct QueueView {
    /// Which one it is.
    pub id: QueueId,
    /// The account that it belongs to.
    pub account: String,
    /// Its name.
    pub name: String,
    record: RwLock<Arc<QueueRecord>>,
}

impl QueueView {
    pub(crate) fn new(id: QueueId, record: Arc<QueueRecord>) -> Self {
        let (account, name) = (record.account.clone(), record.name.clone());
        Self { id, account, name, record: RwLock::new(record) }
    }

    /// What is set for it now.
    pub fn record(&self) -> Arc<QueueRecord> {
        Arc::clone(&self.record.read())
    }

    pub(crate) fn set(&self, record: Arc<QueueRecord>) {
        *self.record.write() = record;
    }
}
