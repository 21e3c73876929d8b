//! What waits for an owner: bounded, and refused as a value where there is no room.

use std::collections::VecDeque;
use std::pin::pin;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::OwnerRequest;
use crate::error::AppendError;
use crate::limits::{OWNER_QUEUE_REQUESTS, OWNER_ROUND_REQUESTS};

/// What waits for an owner, in order.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<QueueWaiting>,
    /// Rung when there is room again, and at the end.
    room: Notify,
}

#[derive(Default)]
struct QueueWaiting {
    requests: VecDeque<OwnerRequest>,
    has_ended: bool,
}

/// Why a request is not in the queue, with it.
pub(super) enum SubmitRefusal {
    Full(Box<OwnerRequest>),
    Ended(Box<OwnerRequest>),
}

impl Queue {
    pub(super) fn push(&self, request: OwnerRequest) -> Result<(), SubmitRefusal> {
        let mut waiting = self.waiting.lock();
        if waiting.has_ended {
            return Err(SubmitRefusal::Ended(Box::new(request)));
        }
        if waiting.requests.len() >= OWNER_QUEUE_REQUESTS {
            return Err(SubmitRefusal::Full(Box::new(request)));
        }
        waiting.requests.push_back(request);
        Ok(())
    }

    pub(super) async fn send(&self, mut request: OwnerRequest) -> Result<(), AppendError> {
        loop {
            // Before the look, so that no room is missed.
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            request = match self.push(request) {
                Ok(()) => return Ok(()),
                Err(SubmitRefusal::Ended(_)) => return Err(AppendError::Closed),
                Err(SubmitRefusal::Full(request)) => *request,
            };
            room.await;
        }
    }

    /// Takes what comes next, up to a round's worth, into `empty`.
    pub(super) fn take(&self, empty: &mut VecDeque<OwnerRequest>) {
        let mut waiting = self.waiting.lock();
        let was_full = waiting.requests.len() >= OWNER_QUEUE_REQUESTS;
        if waiting.requests.len() <= OWNER_ROUND_REQUESTS {
            std::mem::swap(&mut waiting.requests, empty);
        } else {
            empty.extend(waiting.requests.drain(..OWNER_ROUND_REQUESTS));
        }
        drop(waiting);
        if was_full {
            self.room.notify_waiters();
        }
    }

    /// Takes what waits, if that is one request.
    pub(super) fn take_only(&self) -> Option<OwnerRequest> {
        let mut waiting = self.waiting.lock();
        if waiting.requests.len() == 1 { waiting.requests.pop_front() } else { None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().requests.is_empty()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.waiting.lock().has_ended
    }

    /// Takes no more; those who wait are told by their requests' being dropped.
    pub(super) fn end(&self) {
        let requests = {
            let mut waiting = self.waiting.lock();
            waiting.has_ended = true;
            std::mem::take(&mut waiting.requests)
        };
        self.room.notify_waiters();
        drop(requests);
    }
}
