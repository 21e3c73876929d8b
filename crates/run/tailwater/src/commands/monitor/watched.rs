//! One consumer of a stream in one cluster, and what it has seen.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tailwater_client::{Batch, Client, ClientConfig, Consumer, ConsumerConfig, Dialer, Error, Start};
use tailwater_env::Env;
use tailwater_load::stats::Durations;

/// How long records are waited for before the cluster is asked whether it is there.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long it may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Pause before a cluster that is away is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// What was seen since the last line.
#[derive(Clone, Default)]
pub struct WatchedStream {
    /// Records that came.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// From their timestamps until they were decoded.
    pub delays: Durations,
    /// Where it is, the offsets of all shards added up; `None` before the first look.
    pub position: Option<u64>,
    /// Where the stream ends in the cluster, likewise.
    pub end: Option<u64>,
    /// Records that are there and did not come yet.
    pub unread: u64,
    /// Why the cluster is away, if it is.
    pub why: Option<String>,
}

/// What the consumer and whoever tells of it share.
#[derive(Clone, Default)]
pub struct SharedWatch(Arc<Mutex<WatchedStream>>);

impl SharedWatch {
    /// What was seen since the last time.
    pub fn take(&self) -> WatchedStream {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = watched.clone();
        (watched.records, watched.bytes) = (0, 0);
        watched.delays.clear();
        taken
    }

    fn change(&self, change: impl FnOnce(&mut WatchedStream)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Consumes a stream in the cluster at `address` from its end on, until it is dropped.
pub async fn follow(env: Env, dialer: Dialer, address: String, stream: String, watch: SharedWatch) {
    loop {
        let config = ClientConfig { dialer: dialer.clone(), ..ClientConfig::default() };
        let Err(error) = consume(&env, &address, config, &stream, &watch).await;
        watch.change(|watched| watched.why = Some(error.to_string()));
        env.sleep(RETRY_PAUSE).await;
    }
}

async fn consume(
    env: &Env,
    address: &str,
    config: ClientConfig,
    stream: &str,
    watch: &SharedWatch,
) -> Result<std::convert::Infallible, Error> {
    let client = Client::connect_with(env.clone(), address, config).await?;
    // What came before was not waited for, so it says nothing of how long that takes.
    let config = ConsumerConfig { shards: Vec::new(), start: Start::End };
    let mut consumer = client.consumer(stream, config).await?;
    loop {
        let came = consumer.next_within(PATIENCE).await;
        match came {
            Ok(Some(batch)) => watch.change(|watched| watched.take_in(&batch, env.wall_ms())),
            Ok(None) => {
                // Whoever reads one-sidedly does not notice that the node is gone.
                let answered = env.timeout(ANSWER_MAX, client.stream(stream)).await;
                let why = match answered {
                    Some(Ok(_)) => None,
                    Some(Err(error)) => Some(error.to_string()),
                    None => Some(format!("no answer within {} s", ANSWER_MAX.as_secs())),
                };
                watch.change(|watched| watched.why = why);
            }
            Err(Error::Truncated { .. }) => {}
            Err(error) if error.is_retriable() => {
                watch.change(|watched| watched.why = Some(error.to_string()));
                env.sleep(RETRY_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
        watch.change(|watched| watched.look(&consumer));
    }
}

impl WatchedStream {
    fn take_in(&mut self, batch: &Batch, now_ms: i64) {
        self.why = None;
        for record in batch.records() {
            self.records += 1;
            let bytes = record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
            self.bytes += bytes as u64;
            // One without a time has no delay.
            if record.timestamp_ms >= 0 {
                let delay_ms = now_ms.saturating_sub(record.timestamp_ms).max(0).unsigned_abs();
                self.delays.record(delay_ms.saturating_mul(1_000_000));
            }
        }
    }

    fn look(&mut self, consumer: &Consumer) {
        let (mut position, mut end) = (0, 0);
        for lag in consumer.lags() {
            position += lag.next_offset.0;
            end += lag.end_offset.unwrap_or(lag.next_offset).0.max(lag.next_offset.0);
        }
        (self.position, self.end, self.unread) = (Some(position), Some(end), end - position);
    }
}
