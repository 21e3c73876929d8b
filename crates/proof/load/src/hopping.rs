//! A process that reads some shards of a stream in each cluster of a chain, and tells how long each hop took: all of it
//! by one clock, and of the same records at both ends of a hop.
//!
//! A hop's time is from when a batch's records had been decoded in the cluster before until they were decoded in this
//! one, less the delay of the line between them. What both clusters' cells and readers take is in it once.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_client::{
    Batch, Client, ClientConfig, Consumer, ConsumerConfig, Error, Start, Transport, WindowUse,
};
use tailwater_env::Env;

use crate::arrivals::ShardArrivals;
use crate::clock::monotonic_ns;
use crate::limits::FINISH_DEADLINE;
use crate::messages::{HopEnd, HopsConfig, HopsSeen, MessageAnswer, MessageOrder, ShardTotal};
use crate::payload::Payload;
use crate::stats::Durations;
use crate::worker::{Orders, answer};

/// Pause before a read is tried again that failed with an error that may pass.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How often it is looked whether all has come, at the end.
const LOOK: Duration = Duration::from_millis(10);

/// What was seen in one cluster.
#[derive(Default)]
struct HopTally {
    measured: u64,
    delays: Durations,
    processing: Durations,
    /// By the place of a shard among those that are read.
    arrivals: Vec<ShardArrivals>,
    next: Vec<u64>,
    error: Option<String>,
}

struct HopChain {
    env: Env,
    config: HopsConfig,
    measure_from_ns: u64,
    clusters: Vec<HopTally>,
}

/// Reads until everything that was appended came, or the time for that is over.
pub async fn run(config: HopsConfig, mut orders: Orders) -> anyhow::Result<()> {
    let env = Env::real();
    let shards = config.shards.len();
    let tally = || HopTally {
        arrivals: vec![ShardArrivals::default(); shards],
        next: vec![0; shards],
        ..HopTally::default()
    };
    let clusters: Vec<_> = config.clusters.iter().map(|_| tally()).collect();
    let chain = HopChain { env: env.clone(), config: config.clone(), measure_from_ns: u64::MAX, clusters };
    let chain = Arc::new(Mutex::new(chain));
    for (number, HopEnd { node, .. }) in config.clusters.iter().enumerate() {
        let client = ClientConfig {
            name: "bench-hops".to_owned(),
            transport: Transport::Shm,
            window: WindowUse::Never,
            ..ClientConfig::default()
        };
        let client = Client::connect_with(env.clone(), node, client).await?;
        let reading = ConsumerConfig { shards: config.shards.clone(), start: Start::Beginning };
        let consumer = client.consumer(&config.stream, reading).await?;
        tokio::task::spawn(follow(Arc::clone(&chain), number, consumer));
    }
    answer(&MessageAnswer::Ready)?;
    while let Some(order) = orders.recv().await {
        match order {
            MessageOrder::Start => answer(&MessageAnswer::Started { took_ms: 0.0 })?,
            MessageOrder::Measure { from_ns } => {
                chain.lock().measure_from_ns = from_ns;
                answer(&MessageAnswer::Measures)?;
            }
            MessageOrder::Finish { produced } => {
                let deadline = env.now() + FINISH_DEADLINE;
                while chain.lock().missing(&produced).any(|missing| missing > 0) && env.now() < deadline {
                    tokio::time::sleep(LOOK).await;
                }
                return answer(&MessageAnswer::Hops(chain.lock().seen(&produced)));
            }
        }
    }
    // The coordinator is gone.
    Ok(())
}

async fn follow(chain: Arc<Mutex<HopChain>>, cluster: usize, mut consumer: Consumer) {
    loop {
        match consumer.next().await {
            Ok(Some(batch)) => chain.lock().take(cluster, &batch),
            // It shows as records that are missing.
            Ok(None) | Err(Error::Truncated { .. }) => {}
            Err(error) if error.is_retriable() => tokio::time::sleep(RETRY_PAUSE).await,
            Err(error) => {
                chain.lock().clusters[cluster].error = Some(error.to_string());
                return;
            }
        }
    }
}

impl HopChain {
    fn take(&mut self, cluster: usize, batch: &Batch) {
        let Some(shard) = self.config.shards.iter().position(|shard| *shard == batch.shard) else { return };
        let (now, now_ns) = (self.env.now(), monotonic_ns());
        let (mut first, mut measured) = (None, 0);
        let tally = &mut self.clusters[cluster];
        for record in batch.records() {
            first.get_or_insert(record.offset.0);
            let stamp_ns = record.value.and_then(Payload::parse).map(|payload| payload.stamp_ns());
            if let Some(stamp_ns) = stamp_ns.filter(|stamp_ns| *stamp_ns >= self.measure_from_ns) {
                measured += 1;
                tally.delays.record(now_ns.saturating_sub(stamp_ns));
            }
        }
        let Some(first) = first else { return };
        let next = batch.next_offset().0;
        tally.measured += measured;
        tally.next[shard] = next;
        tally.arrivals[shard].came(first, next, now);
        let line = Duration::from_millis(self.config.clusters[cluster].line_ms);
        let above =
            cluster.checked_sub(1).and_then(|above| self.clusters[above].arrivals[shard].age(next, now));
        if let Some(age) = above {
            let ns = u64::try_from(age.saturating_sub(line).as_nanos()).unwrap_or(u64::MAX);
            self.clusters[cluster].processing.record_many(ns, measured);
        }
    }

    /// How many of what was produced did not come, in each cluster.
    fn missing(&self, produced: &[ShardTotal]) -> impl Iterator<Item = u64> {
        self.clusters.iter().map(|tally| {
            let shards = self.config.shards.iter().zip(&tally.next);
            let missing = |(shard, next): (&u32, &u64)| {
                produced.get(*shard as usize).map_or(0, |total| total.records.saturating_sub(*next))
            };
            shards.map(missing).sum()
        })
    }

    fn seen(&self, produced: &[ShardTotal]) -> Vec<HopsSeen> {
        let seen = |(tally, missing): (&HopTally, u64)| HopsSeen {
            measured: tally.measured,
            delays: tally.delays.to_sparse(),
            processing: tally.processing.to_sparse(),
            missing,
            error: tally.error.clone(),
        };
        self.clusters.iter().zip(self.missing(produced)).map(seen).collect()
    }
}
