//! A stream's consumers, one in each cluster, what they have seen, and who reads what was written at the source.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tailwater_client::{
    Batch, Client, ClientConfig, ClientLogin, ClockOffset, Consumer, ConsumerConfig, Dialer, Error,
    ReaderStats, Start, WindowUse,
};
use tailwater_env::{Env, Instant};
use tailwater_load::arrivals::ShardArrivals;
use tailwater_load::stats::Durations;
use tailwater_node::api::CopyTreeView;

use super::checked::CheckedReader;
use super::standing::{ShardStanding, StuckShards};

/// How long records are waited for before the cluster is asked whether it is there.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a cluster may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Pause before a cluster that is away is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often it is looked how far the shards are.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Bytes of durable reads that belong to what becomes readable later; what is beyond it was read twice.
const AHEAD_BYTES_MAX: u64 = 8 << 20;
/// How often a cluster's clock is asked for.
const CLOCK_EVERY: Duration = Duration::from_secs(10);

/// What was seen in a cluster; the counts are those since it was told last.
#[derive(Clone, Default)]
pub struct WatchedCluster {
    /// Its name.
    pub name: String,
    /// Records that came.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// From their timestamps until they were decoded, by the clock of this process.
    pub delays: Durations,
    /// Records that took longer than they may.
    pub slow: u64,
    /// Records whose timestamps were ahead of this process's clock, and by how much at most, in ms.
    pub early: (u64, u64),
    /// From when records had come in the cluster above until they came here.
    pub hop: Durations,
    /// Bytes that became readable, and those of them that the cells did not have.
    pub became: (u64, u64),
    /// How far each shard is.
    pub shards: Vec<ShardStanding>,
    /// Whether that is known.
    pub is_seen: bool,
    /// What was read, to be compared with what was written.
    pub checked: CheckedReader,
    /// How far its clock is from this process's.
    pub clock: Option<ClockOffset>,
    /// Why it is away, if it is.
    pub why: Option<String>,
    arrivals: Vec<ShardArrivals>,
}

impl WatchedCluster {
    fn new(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    /// What was counted, which begins anew, and what else there is to tell.
    fn counted(&mut self) -> Self {
        Self {
            name: self.name.clone(),
            records: take(&mut self.records),
            bytes: take(&mut self.bytes),
            delays: take(&mut self.delays),
            slow: take(&mut self.slow),
            early: take(&mut self.early),
            hop: take(&mut self.hop),
            became: self.take_became(),
            shards: self.shards.clone(),
            is_seen: self.is_seen,
            checked: self.checked.sums_only(),
            clock: self.clock,
            why: self.why.clone(),
            arrivals: Vec::new(),
        }
    }

    /// What became readable, and what was read for it from the durable layer. More than that was read for what becomes
    /// readable next.
    fn take_became(&mut self) -> (u64, u64) {
        let (became, durable) = self.became;
        let ahead = durable.saturating_sub(became);
        self.became = (0, ahead.min(AHEAD_BYTES_MAX));
        (became, durable - ahead)
    }

    /// Where it is, and where the stream ends here, all shards added up; `None` before the first look.
    pub fn place(&self) -> Option<(u64, u64)> {
        self.is_seen.then(|| {
            self.shards.iter().fold((0, 0), |(position, end), shard| {
                (position + shard.position, end + shard.end.max(shard.position))
            })
        })
    }

    fn begin(&mut self, shards: usize) {
        self.shards = vec![ShardStanding::default(); shards];
        self.arrivals = vec![ShardArrivals::default(); shards];
        self.checked.begin(shards);
        self.is_seen = false;
    }

    fn is_away(&mut self, why: String) {
        self.why = Some(why);
        self.shards.iter_mut().for_each(ShardStanding::forget);
    }

    /// Counts the records of a batch.
    fn take_in(&mut self, batch: &Batch, now_ms: i64, slow_ms: Option<u64>) {
        self.why = None;
        for record in batch.records() {
            self.records += 1;
            let bytes = record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
            self.bytes += bytes as u64;
            // One without a time has no delay.
            if record.timestamp_ms >= 0 {
                let delay_ms = now_ms.saturating_sub(record.timestamp_ms);
                if delay_ms < 0 {
                    self.early = (self.early.0 + 1, self.early.1.max(delay_ms.unsigned_abs()));
                }
                let delay_ms = delay_ms.max(0).unsigned_abs();
                self.delays.record(delay_ms.saturating_mul(1_000_000));
                self.slow += u64::from(slow_ms.is_some_and(|slow_ms| delay_ms > slow_ms));
            }
        }
    }
}

/// A stream in all clusters that are watched.
#[derive(Default)]
pub struct WatchedStream {
    /// In the order in which they are told of.
    pub clusters: Vec<WatchedCluster>,
    /// Which of them is the source; `None` if it is not watched.
    pub source: Option<usize>,
    /// The stream's tree, as it was told last; `None` if it has none, or nobody tells.
    pub tree: Option<CopyTreeView>,
    /// What was written at the source.
    written: CheckedReader,
    /// Why that is not read, if it is not.
    pub unwritten: Option<String>,
    /// Records take this long at most, in ms.
    slow_ms: Option<u64>,
    /// By a cluster's place, that of the cluster above it.
    above: BTreeMap<usize, usize>,
}

impl WatchedStream {
    /// Watched in these clusters, that of the source first.
    pub fn new(clusters: impl IntoIterator<Item = String>, slow_ms: Option<u64>) -> Self {
        let clusters = clusters.into_iter().map(WatchedCluster::new).collect();
        Self { clusters, source: Some(0), slow_ms, ..Self::default() }
    }

    /// Takes note of how its tree is now.
    pub fn set_tree(&mut self, tree: CopyTreeView) {
        let place = |name: &str| self.clusters.iter().position(|cluster| cluster.name == name);
        self.source = place(&tree.source);
        self.above = tree.hops.iter().filter_map(|hop| Some((place(&hop.to)?, place(&hop.from)?))).collect();
        self.tree = Some(tree);
    }

    fn came(&mut self, cluster: usize, batch: &Batch, env: &Env) {
        let (now, now_ms) = (env.now(), env.wall_ms());
        let shard = batch.shard as usize;
        let (first, next) = (batch.records().next().map(|record| record.offset.0), batch.next_offset().0);
        let above = self.above.get(&cluster).and_then(|above| self.clusters.get(*above)?.arrivals.get(shard));
        let hop = above.and_then(|above| above.age(next, now));
        let slow_ms = self.slow_ms;
        let of = &mut self.clusters[cluster];
        let before = of.records;
        of.take_in(batch, now_ms, slow_ms);
        if let Some(hop) = hop {
            let ns = u64::try_from(hop.as_nanos()).unwrap_or(u64::MAX);
            of.hop.record_many(ns, of.records - before);
        }
        if let (Some(first), Some(arrivals)) = (first, of.arrivals.get_mut(shard)) {
            arrivals.came(first, next, now);
        }
        of.checked.take(batch);
    }

    /// Where each shard ends at the source, if it is there.
    fn source_ends(&self) -> Option<Vec<u64>> {
        let source = self.clusters.get(self.source?)?;
        let is_known = source.is_seen && source.why.is_none();
        is_known.then(|| source.shards.iter().map(|shard| shard.end.max(shard.position)).collect())
    }

    /// Takes note of how far a cluster's consumer is.
    fn look(&mut self, cluster: usize, consumer: &Consumer, now: Instant) {
        let source_ends = self.source_ends();
        let of = &mut self.clusters[cluster];
        for lag in consumer.lags() {
            let Some(shard) = of.shards.get_mut(lag.shard as usize) else { continue };
            let (position, end) = (lag.next_offset.0, lag.end_offset.unwrap_or(lag.next_offset).0);
            let source_end = source_ends.as_ref().and_then(|ends| ends.get(lag.shard as usize)).copied();
            shard.look(now, position, end, source_end);
        }
        of.is_seen = true;
    }

    /// Compares what was read in each cluster with what was written.
    fn compare(&mut self) {
        let Self { clusters, written, .. } = self;
        clusters.iter_mut().for_each(|cluster| cluster.checked.compare(written));
        written.forget_compared(clusters.iter().map(|cluster| &cluster.checked));
    }

    /// What was counted since the last time, of each cluster.
    pub fn take(&mut self) -> Vec<WatchedCluster> {
        self.compare();
        self.clusters.iter_mut().map(WatchedCluster::counted).collect()
    }

    /// The hop that keeps shards of a cluster from coming there: the first one on the way from the source whose lower
    /// end does not have what the source has. With what is known of it.
    pub fn culprit(&self, cluster: &str, stuck: &StuckShards) -> Option<String> {
        let tree = self.tree.as_ref()?;
        let mut way = Vec::new();
        let mut at = cluster;
        // No tree is deeper than its hops are many, whatever somebody tells.
        while let Some(hop) = tree.hops.iter().find(|hop| hop.to == at)
            && way.len() < tree.hops.len()
        {
            way.push(hop);
            at = &hop.from;
        }
        let source_ends = self.source_ends();
        let is_behind = |name: &str| {
            let watched = self.clusters.iter().find(|cluster| cluster.name == name)?;
            if watched.why.is_some() {
                return Some(true);
            }
            let ends = source_ends.as_ref()?;
            let is_behind = |shard: &usize| Some(watched.shards.get(*shard)?.end < *ends.get(*shard)?);
            stuck.copy.iter().map(is_behind).try_fold(false, |any, behind| Some(any || behind?))
        };
        let hop = way.iter().rev().find(|hop| {
            // Where nobody watches, the operation's own figures tell.
            let told = || !hop.is_copying || hop.behind_records.is_none_or(|records| records > 0);
            is_behind(&hop.to).unwrap_or_else(told)
        })?;
        let away = self.clusters.iter().find(|watched| watched.name == hop.to && watched.why.is_some());
        let why = hop.why.as_deref().map_or_else(String::new, |why| format!(": {why}"));
        let state = match (away, hop.behind_records) {
            (Some(away), _) => format!("{} is away", away.name),
            (None, _) if !hop.is_copying => format!("interrupted{why}"),
            (None, _) if hop.waiting_shards.unwrap_or_default() > 0 => {
                format!("copying, {} shards wait{why}", hop.waiting_shards.unwrap_or_default())
            }
            (None, Some(behind)) => format!("copying, {behind} records behind"),
            (None, None) => "nothing is known of it".to_owned(),
        };
        Some(format!("{} to {}: {state}", hop.from, hop.to))
    }
}

/// What the consumers and whoever tells of them share.
#[derive(Clone, Default)]
pub struct SharedWatch(Arc<Mutex<WatchedStream>>);

impl SharedWatch {
    /// Of a stream of which nothing was seen yet.
    pub fn of(stream: WatchedStream) -> Self {
        Self(Arc::new(Mutex::new(stream)))
    }

    /// The stream. Nobody waits while having it.
    pub fn lock(&self) -> MutexGuard<'_, WatchedStream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whose consumer it is.
#[derive(Clone)]
pub struct FollowedPlace {
    /// Where the node of the cluster is.
    pub address: String,
    /// The stream.
    pub stream: String,
    /// The cluster's place among those that are watched; `None` for the one that reads what was written.
    pub cluster: Option<usize>,
    /// What makes connections.
    pub dialer: Dialer,
    /// What they log in with.
    pub login: Option<ClientLogin>,
    /// What was seen.
    pub watch: SharedWatch,
}

impl FollowedPlace {
    /// Consumes from the end on, until it is dropped.
    pub async fn follow(self, env: Env) {
        loop {
            let Err(error) = self.consume(&env).await;
            self.is_away(error.to_string());
            env.sleep(RETRY_PAUSE).await;
        }
    }

    async fn consume(&self, env: &Env) -> Result<std::convert::Infallible, Error> {
        let config = ClientConfig {
            name: "monitor".to_owned(),
            dialer: self.dialer.clone(),
            login: self.login.clone(),
            // What another process reads says nothing of what the cells have.
            window: WindowUse::Never,
            without_cells: self.cluster.is_none(),
            ..ClientConfig::default()
        };
        let client = Client::connect_with(env.clone(), &self.address, config).await?;
        // What came before was not waited for, so it says nothing of how long that takes.
        let config = ConsumerConfig { shards: Vec::new(), start: Start::End };
        let mut consumer = client.consumer(&self.stream, config).await?;
        self.begin(consumer.stream().shards as usize);
        // A call takes as long as the way is; records do not wait for it.
        let _clock = self
            .cluster
            .is_some()
            .then(|| env.spawn("monitor-clock", follow_clock(env.clone(), client.clone(), self.clone())));
        let mut reads = ReaderStats::default();
        let mut look_at = env.now();
        loop {
            match consumer.next_within(PATIENCE).await {
                Ok(Some(batch)) => {
                    let before = std::mem::replace(&mut reads, client.reader_stats());
                    self.came(env, &batch, before, reads);
                }
                Ok(None) => self.ask(env, &client).await,
                Err(Error::Truncated { shard, .. }) => self.removed(shard),
                Err(error) if error.is_retriable() => {
                    self.is_away(error.to_string());
                    env.sleep(RETRY_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
            if env.now() >= look_at {
                look_at = env.now() + LOOK_EVERY;
                self.look(env.now(), &consumer);
            }
        }
    }

    fn begin(&self, shards: usize) {
        let mut stream = self.watch.lock();
        match self.cluster {
            Some(cluster) => stream.clusters[cluster].begin(shards),
            None => {
                stream.written.begin(shards);
                stream.unwritten = None;
            }
        }
    }

    fn is_away(&self, why: String) {
        let mut stream = self.watch.lock();
        match self.cluster {
            Some(cluster) => stream.clusters[cluster].is_away(why),
            None => stream.unwritten = Some(why),
        }
    }

    /// A batch came; what the reader had read before, and what it has read by now.
    fn came(&self, env: &Env, batch: &Batch, before: ReaderStats, reads: ReaderStats) {
        let mut stream = self.watch.lock();
        match self.cluster {
            Some(cluster) => {
                let became = reads.entry_bytes.saturating_sub(before.entry_bytes);
                let durable = reads.durable_bytes.saturating_sub(before.durable_bytes);
                let of = &mut stream.clusters[cluster].became;
                *of = (of.0 + became, of.1 + durable);
                stream.came(cluster, batch, env);
            }
            None => {
                stream.written.take(batch);
                stream.unwritten = None;
            }
        }
    }

    fn removed(&self, shard: u32) {
        let mut stream = self.watch.lock();
        match self.cluster {
            Some(cluster) => stream.clusters[cluster].checked.removed(shard),
            None => stream.written.removed(shard),
        }
    }

    /// Whoever reads one-sidedly does not notice that the node is gone.
    async fn ask(&self, env: &Env, client: &Client) {
        let why = match env.timeout(ANSWER_MAX, client.stream(&self.stream)).await {
            Some(Ok(_)) => None,
            Some(Err(error)) => Some(error.to_string()),
            None => Some(format!("no answer within {} s", ANSWER_MAX.as_secs())),
        };
        match (why, self.cluster) {
            (Some(why), _) => self.is_away(why),
            (None, Some(cluster)) => self.watch.lock().clusters[cluster].why = None,
            (None, None) => self.watch.lock().unwritten = None,
        }
    }

    /// Takes note of how far the consumer is.
    fn look(&self, now: Instant, consumer: &Consumer) {
        let Some(cluster) = self.cluster else { return };
        let mut stream = self.watch.lock();
        // Of one that is away nothing is known, whatever its cells say.
        if stream.clusters[cluster].why.is_none() {
            stream.look(cluster, consumer, now);
        }
    }
}

/// Asks a cluster's clock now and then, until it is dropped. A call that fails tells nothing.
async fn follow_clock(env: Env, client: Client, place: FollowedPlace) {
    loop {
        if let (Some(Ok(Some(clock))), Some(cluster)) =
            (env.timeout(ANSWER_MAX, client.clock_offset()).await, place.cluster)
        {
            place.watch.lock().clusters[cluster].clock = Some(clock);
        }
        env.sleep(CLOCK_EVERY).await;
    }
}
