//! Acknowledgements on their way, a batch at a time: with thousands of records in flight, waiting for each by itself
//! would cost more than appending them.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use futures::stream::{FuturesUnordered, Stream, StreamExt};
use tailwater_client::{Ack, Acked, Error};

/// Records that were sent and not acknowledged yet. For one thread.
pub struct AckCounts {
    /// The batch of each shard that the last record went into.
    last: Vec<Option<Rc<Batch>>>,
    pending: FuturesUnordered<PendingAcks>,
    in_flight: usize,
}

struct Batch {
    ack: RefCell<Ack>,
    stamps: RefCell<Vec<u64>>,
}

struct PendingAcks(Rc<Batch>);

impl Future for PendingAcks {
    type Output = (Rc<Batch>, Result<Acked, Error>);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = std::task::ready!(Pin::new(&mut *self.0.ack.borrow_mut()).poll(context));
        Poll::Ready((Rc::clone(&self.0), result))
    }
}

impl AckCounts {
    /// For a stream of `shards` shards.
    pub fn new(shards: u32) -> Self {
        let last = (0..shards).map(|_| None).collect();
        Self { last, pending: FuturesUnordered::new(), in_flight: 0 }
    }

    /// A record was sent to `shard` at `stamp_ns`.
    pub fn sent(&mut self, shard: u32, ack: Ack, stamp_ns: u64) {
        self.in_flight += 1;
        let last = &mut self.last[shard as usize];
        if let Some(batch) = last.as_ref().filter(|batch| batch.ack.borrow().same_batch(&ack)) {
            batch.stamps.borrow_mut().push(stamp_ns);
            return;
        }
        let batch = Rc::new(Batch { ack: RefCell::new(ack), stamps: RefCell::new(vec![stamp_ns]) });
        *last = Some(Rc::clone(&batch));
        self.pending.push(PendingAcks(batch));
    }

    /// Records in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// When the records of the next acknowledged batch were sent; waits for ever if nothing is in flight.
    ///
    /// # Errors
    /// If the batch was refused for good.
    pub async fn next(&mut self) -> Result<Vec<u64>, Error> {
        let next = std::future::poll_fn(|context| match Pin::new(&mut self.pending).poll_next(context) {
            Poll::Ready(Some(done)) => Poll::Ready(done),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        });
        let (batch, result) = next.await;
        self.take(&batch, result)
    }

    /// The same, if there is one already.
    pub fn next_now(&mut self) -> Option<Result<Vec<u64>, Error>> {
        use futures::FutureExt;
        let (batch, result) = self.pending.next().now_or_never().flatten()?;
        Some(self.take(&batch, result))
    }

    fn take(&mut self, batch: &Batch, result: Result<Acked, Error>) -> Result<Vec<u64>, Error> {
        let stamps = batch.stamps.take();
        self.in_flight -= stamps.len();
        result.map(|_| stamps)
    }
}
