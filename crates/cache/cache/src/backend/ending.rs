//! How a backend ends that runs as a process of its own: when it is asked to, and holds nothing. Whoever runs the
//! process starts it again.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tailwater_rma::Refusal;
use tokio::sync::Notify;

use super::Backend;
use crate::protocol::REFUSED_END;

/// Whether a backend is asked to end, and may.
#[derive(Default)]
pub(super) struct BackendEnding {
    /// Somebody waits for it.
    is_waited_for: AtomicBool,
    asked: Notify,
}

impl Backend {
    /// Waits until the backend is asked to end while it holds nothing: it is no member of its cell, or knows none. It
    /// refuses to be asked before somebody waits.
    pub async fn asked_to_end(&self) {
        self.ending.is_waited_for.store(true, Ordering::Relaxed);
        self.ending.asked.notified().await;
    }

    /// Has whoever waits for that end it.
    pub(super) fn end(&self) -> Result<Bytes, Refusal> {
        let refused = |message: &str| Err(Refusal { code: REFUSED_END, message: message.to_owned() });
        if !self.ending.is_waited_for.load(Ordering::Relaxed) {
            return refused("this backend runs in a node, and ends with it");
        }
        let is_member = |told: &super::told::ToldPlaces| told.configuration.place_of(told.number).is_some();
        if self.told().is_some_and(|told| is_member(&told)) {
            return refused("this backend holds keys of its cell: drain it before");
        }
        self.ending.asked.notify_one();
        Ok(Bytes::new())
    }
}
