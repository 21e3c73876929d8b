//! How long records took to this process's consumers, which its node is told: it knows none of them otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tailwater_env::Times;
use tailwater_format::batch::BatchHeader;
use tailwater_format::call::{CallErrorCode, DelaysTaken, DeliveryDelays, Method};
use tokio::sync::Notify;

use crate::Error;
use crate::connection::Node;
use crate::limits::DELAYS_EVERY;

/// Counts delays until they are told.
#[derive(Debug, Default)]
pub(crate) struct DelayCounts {
    times: Times,
    /// Something was counted that is not told.
    has_news: AtomicBool,
    /// Rung for the first of it.
    news: Notify,
}

impl DelayCounts {
    /// Counts what a consumer is given at `now_ms`, by the first record of its first batch; not if that is from before
    /// `began_ms`, when the consumer began: how old a stream's history is says nothing of a delay.
    pub(crate) fn delivered(&self, first: &BatchHeader, began_ms: i64, now_ms: i64) {
        let made_ms = if first.is_append_time() { first.max_timestamp_ms } else { first.base_timestamp_ms };
        if made_ms < began_ms {
            return;
        }
        // Where the clock that gave the time is ahead of this one, it took no time.
        let ms = now_ms.saturating_sub(made_ms).max(0).unsigned_abs();
        self.times.add(Duration::from_millis(ms));
        if !self.has_news.load(Ordering::Relaxed) && !self.has_news.swap(true, Ordering::AcqRel) {
            self.news.notify_one();
        }
    }

    /// What was counted and not told yet.
    fn take(&self) -> DeliveryDelays {
        // Before it is taken: what is counted meanwhile is news again.
        self.has_news.store(false, Ordering::Release);
        let (counts, sum) = self.times.take();
        DeliveryDelays { counts, sum_ns: u64::try_from(sum.as_nanos()).unwrap_or(u64::MAX) }
    }
}

/// Tells the node now and then, as long as something is delivered. What a CALL took along that fails is left out, so
/// that nothing is counted twice.
pub(crate) async fn tell(node: Arc<Node>, counts: Arc<DelayCounts>) {
    loop {
        counts.news.notified().await;
        node.env().sleep(DELAYS_EVERY).await;
        let told: Result<DelaysTaken, Error> = node.call(Method::DeliveryDelays, &counts.take()).await;
        if let Err(Error::Refused(refusal)) = told
            && matches!(refusal.code, CallErrorCode::UnknownMethod | CallErrorCode::NotAuthorized)
        {
            // A node of an earlier version, or one that does not want to know.
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tailwater_format::{BatchBuilder, Codec};

    use super::*;

    fn header(ms: i64) -> BatchHeader {
        let mut builder = BatchBuilder::new();
        builder.append(None, Some(b"value"), &[], ms).expect("short");
        BatchHeader::parse(&builder.finish(Codec::None)).expect("a batch")
    }

    #[test]
    fn what_is_older_than_its_consumer_is_not_counted_and_a_clock_that_is_ahead_is_no_delay() {
        let counts = DelayCounts::default();
        for (made_ms, now_ms) in [(999, 2_000), (1_000, 3_000), (5_000, 4_000)] {
            counts.delivered(&header(made_ms), 1_000, now_ms);
        }
        let told = counts.take();
        assert_eq!((told.counts.iter().sum::<u64>(), told.sum_ns), (2, 2_000_000_000));
    }

    #[test]
    fn what_was_told_is_not_told_again() {
        let counts = DelayCounts::default();
        counts.delivered(&header(10), 0, 20);
        assert_eq!(counts.take().counts.iter().sum::<u64>(), 1);
        assert_eq!(counts.take().counts.iter().sum::<u64>(), 0);
        counts.delivered(&header(30), 0, 40);
        assert!(counts.has_news.load(Ordering::Relaxed));
        assert_eq!(counts.take().counts.iter().sum::<u64>(), 1);
    }
}
