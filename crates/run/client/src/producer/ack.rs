//! Acknowledgements: one for each batch, shared by its records.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use futures::future::{BoxFuture, FutureExt};
use tailwater_format::Offset;
use tokio::sync::Notify;

use crate::Error;

/// Where a record went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acked {
    /// Its shard.
    pub shard: u32,
    /// Its offset.
    pub offset: Offset,
    /// Offset of the first record of the batch that was acknowledged with it.
    pub base_offset: Offset,
    /// Number of records in that batch.
    pub count: u32,
}

/// A record on its way: a future that completes once the record is as durable as its stream promises.
/// Dropping it does not take the record back. If the producer is dropped first, it completes with
/// [`Error::Closed`], which leaves open whether the record was appended.
#[must_use = "a record may still fail"]
pub struct Ack {
    batch: Arc<BatchAck>,
    index: u32,
    waiting: Option<BoxFuture<'static, ()>>,
}

/// What the records of one batch share.
struct BatchAck {
    shard: u32,
    /// Offset of the first record, and number of records.
    result: OnceLock<Result<(Offset, u32), Error>>,
    done: Notify,
}

/// The other end of a batch's acknowledgements. Whoever drops it without keeping it fails them.
pub(super) struct Promise {
    batch: Arc<BatchAck>,
}

impl Promise {
    pub(super) fn new(shard: u32) -> Self {
        Self { batch: Arc::new(BatchAck { shard, result: OnceLock::new(), done: Notify::new() }) }
    }

    /// The acknowledgement of the batch's record `index`.
    pub(super) fn ack(&self, index: u32) -> Ack {
        Ack { batch: Arc::clone(&self.batch), index, waiting: None }
    }

    /// Completes all of them.
    pub(super) fn keep(self, result: Result<(Offset, u32), Error>) {
        self.complete(result);
    }

    fn complete(&self, result: Result<(Offset, u32), Error>) {
        // Only the first result counts: the second one is that of dropping a promise that was kept.
        if self.batch.result.set(result).is_ok() {
            self.batch.done.notify_waiters();
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if self.batch.result.get().is_none() {
            self.complete(Err(Error::Closed("it was dropped before the answer came".to_owned())));
        }
    }
}

impl Ack {
    /// Whether both records are in the same batch, and so share one acknowledgement.
    pub fn same_batch(&self, other: &Ack) -> bool {
        Arc::ptr_eq(&self.batch, &other.batch)
    }

    /// The result, if it is there.
    pub fn try_result(&self) -> Option<Result<Acked, Error>> {
        let result = self.batch.result.get()?;
        Some(result.clone().map(|(base_offset, count)| Acked {
            shard: self.batch.shard,
            offset: Offset(base_offset.0 + u64::from(self.index)),
            base_offset,
            count,
        }))
    }
}

impl Future for Ack {
    type Output = Result<Acked, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if let Some(result) = self.try_result() {
                return Poll::Ready(result);
            }
            let batch = Arc::clone(&self.batch);
            let waiting = self.waiting.get_or_insert_with(|| {
                async move {
                    let mut notified = std::pin::pin!(batch.done.notified());
                    // In the list before the look, or the end could come in between.
                    notified.as_mut().enable();
                    if batch.result.get().is_none() {
                        notified.await;
                    }
                }
                .boxed()
            });
            ready!(waiting.as_mut().poll(context));
            self.waiting = None;
        }
    }
}
