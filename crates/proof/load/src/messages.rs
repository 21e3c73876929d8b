//! What the coordinating process and its workers tell each other: lines of JSON on standard input and output.
//!
//! ```text
//!   coordinator                     worker of consumers            worker with the producer
//!   Role::Consumers / Producer -->
//!                                   <-- Ready (connected)          <-- Ready
//!   Start -->                       <-- Started
//!   Measure -->                     <-- Measures, Reading ...      <-- Appending ..., Produced
//!   Finish (what was produced) -->  <-- Consumed
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tailwater_client::ReaderStats;

use crate::address::LoadAddress;
use crate::appender::Gathering;
use crate::stats::{Durations, SparseDurations};

/// What a worker is for: the first line that it is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ProcessRole {
    /// It reads.
    Consumers(ConsumersConfig),
    /// It appends.
    Producer(ProducerConfig),
    /// It reads some shards in each cluster of a chain, to tell how long the hops take.
    Hops(HopsConfig),
}

/// Which way consumers read.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportFlag {
    /// Shared memory.
    Shm,
    /// TCP over the loopback.
    Tcp,
}

/// What clients speak to the server.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageProtocol {
    /// Tailwater's own: producers call the node, consumers read one-sidedly.
    Tailwater,
    /// Kafka's: producers and consumers ask a broker.
    Kafka,
}

/// Who checks a record's checksum.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Validate {
    /// Each consumer, for each record.
    Consumer,
    /// The first consumer of a process that comes to a record; all others check its sequence number.
    Process,
}

/// Which shard the next records go to.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// Each record goes to another shard than the one before.
    RoundRobin,
    /// All that is due at once goes to one shard, as Kafka's producer does with records that have no key.
    Sticky,
}

/// A process full of consumers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConsumersConfig {
    /// Address of the node.
    pub node: LoadAddress,
    /// The stream.
    pub stream: String,
    /// Its shards.
    pub shards: u32,
    /// Number of the first consumer, counted over all processes.
    pub first: usize,
    /// How many consumers.
    pub count: usize,
    /// How many there are in all processes.
    pub of: usize,
    /// Whether those that read the same shards are in the same process, as far as that goes.
    pub together: bool,
    /// How many shards each of them reads.
    pub shards_per_consumer: u32,
    /// What they speak.
    pub protocol: MessageProtocol,
    /// Which way, in our own protocol.
    pub transport: TransportFlag,
    /// Whether each consumer has a connection of its own to everything, or they share the process's.
    pub connection_each: bool,
    /// Whether they read as an application does, through the window where the node offers one.
    pub own_reader: bool,
    /// Whether they begin with the first record, or behind the newest.
    pub from_beginning: bool,
    /// Who checks checksums.
    pub validate: Validate,
    /// Lengths are not read more often than this, if it is given.
    pub lengths_every_us: Option<u64>,
    /// How fast backlogs shrink, if it is given, in bytes a second of the process.
    pub catch_up_bytes_per_s: Option<u64>,
    /// Consumers are not polled more often than this.
    pub poll_every_us: u64,
    /// What the process keeps of each shard for consumers near the tail.
    pub window_bytes: usize,
    /// How often to tell of progress.
    pub tick_ms: u64,
}

impl ConsumersConfig {
    /// Consumers that each read all of `shards` shards from the beginning, and check every record.
    pub fn new(shards: u32, transport: TransportFlag) -> Self {
        Self {
            node: LoadAddress::default(),
            stream: String::new(),
            shards,
            first: 0,
            count: 0,
            of: 0,
            together: false,
            shards_per_consumer: shards,
            protocol: MessageProtocol::Tailwater,
            transport,
            connection_each: false,
            own_reader: false,
            from_beginning: true,
            validate: Validate::Consumer,
            lengths_every_us: None,
            catch_up_bytes_per_s: None,
            poll_every_us: 0,
            window_bytes: 4 << 20,
            tick_ms: 100,
        }
    }
}

/// A process that reads in each cluster of a chain.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HopsConfig {
    /// The clusters, the source first, each copied from the one before it.
    pub clusters: Vec<HopEnd>,
    /// The stream.
    pub stream: String,
    /// The shards that are read.
    pub shards: Vec<u32>,
}

/// A cluster, and the hop that ends there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HopEnd {
    /// Address of its node.
    pub node: String,
    /// Delay of the line from the cluster before it, in ms; 0 for the source.
    pub line_ms: u64,
}

/// What was seen in one cluster of a chain.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HopsSeen {
    /// Measured records.
    pub measured: u64,
    /// From a measured record's stamp until it was read here.
    pub delays: SparseDurations,
    /// From when it was read in the cluster before until it was read here, without the delay of the line.
    pub processing: SparseDurations,
    /// Records that did not come.
    pub missing: u64,
    /// Why nothing more was read.
    pub error: Option<String>,
}

/// A process with one producer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProducerConfig {
    /// Address of the node.
    pub node: LoadAddress,
    /// The stream.
    pub stream: String,
    /// Its shards.
    pub shards: u32,
    /// Records per second, over all shards.
    pub rate: f64,
    /// Bytes of each record; those of the text's lines if there is a text.
    pub message_bytes: usize,
    /// A file whose lines are appended, again and again; a name that is empty stands for the text that this
    /// machine has. `None`: filler.
    pub text: Option<String>,
    /// What it speaks.
    pub protocol: MessageProtocol,
    /// Which shard.
    pub spread: Spread,
    /// How records gather.
    pub gathering: Gathering,
    /// How often records that are due are sent.
    pub every_us: u64,
    /// Its niceness, from -20 to 19; 0 is that of any application.
    pub nice: i32,
    /// Time that counts.
    pub duration_ms: u64,
    /// How often to tell of progress.
    pub tick_ms: u64,
}

impl ProducerConfig {
    /// A producer of `rate` records a second of `message_bytes` each, which go to the shards in turn as they are due.
    pub fn new(shards: u32, rate: f64, message_bytes: usize, duration: Duration) -> Self {
        Self {
            node: LoadAddress::default(),
            stream: String::new(),
            shards,
            rate,
            message_bytes,
            text: None,
            protocol: MessageProtocol::Tailwater,
            spread: Spread::RoundRobin,
            gathering: Gathering::default(),
            every_us: 1_000,
            nice: 0,
            duration_ms: duration.as_millis() as u64,
            tick_ms: 100,
        }
    }
}

/// What a worker is told later.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum MessageOrder {
    /// Start the consumers.
    Start,
    /// Records stamped from `from_ns` on are the measured ones. Producers begin when they are told.
    Measure {
        /// On CLOCK_MONOTONIC; may be yet to come.
        from_ns: u64,
    },
    /// No more comes: read to the end, tell the result, and end.
    Finish {
        /// For each shard.
        produced: Vec<ShardTotal>,
    },
}

/// What was appended to one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardTotal {
    /// Records.
    pub records: u64,
    /// Sum of their checksums, wrapping: two shards with other records, or another number of them, hardly have the
    /// same.
    pub checksums: u64,
}

/// What a worker tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum MessageAnswer {
    /// It is connected.
    Ready,
    /// Its consumers know where they begin.
    Started {
        /// How long that took.
        took_ms: f64,
    },
    /// Its consumers know from when on records are measured.
    Measures,
    /// How far its consumers are.
    Reading(ReadingFlags),
    /// How far its producer is.
    Appending(Appending),
    /// The producer's end.
    Produced(Produced),
    /// The consumers' end.
    Consumed(Consumed),
    /// What was seen in each cluster of a chain.
    Hops(Vec<HopsSeen>),
}

/// What the consumers of one process did; sums since the start, but for the delays.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReadingFlags {
    /// When, on CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Records.
    pub delivered: u64,
    /// Bytes of records.
    pub delivered_bytes: u64,
    /// How many were not what they should be.
    pub faults: FaultFlags,
    /// Delays since the last message of this kind.
    pub delays: SparseDurations,
    /// The process's reads.
    pub reads: Reads,
}

/// Records that were not what they should have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultFlags {
    /// Did not come.
    pub lost: u64,
    /// Came after one that was appended later.
    pub reordered: u64,
    /// Came again.
    pub duplicated: u64,
    /// Had other bytes than were appended.
    pub corrupted: u64,
}

impl FaultFlags {
    /// All together.
    pub fn total(&self) -> u64 {
        self.lost + self.reordered + self.duplicated + self.corrupted
    }

    /// Adds others.
    pub fn add(&mut self, other: FaultFlags) {
        self.lost += other.lost;
        self.reordered += other.reordered;
        self.duplicated += other.duplicated;
        self.corrupted += other.corrupted;
    }
}

/// [`ReaderStats`], as they are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Reads {
    pub relaxed: u64,
    pub hedged: u64,
    pub consistent: u64,
    pub durable: u64,
    #[serde(skip_serializing_if = "is_zero")]
    #[serde(default)]
    pub cell_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    #[serde(default)]
    pub durable_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    #[serde(default)]
    pub entry_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    #[serde(default)]
    pub window_blocks: u64,
    #[serde(skip_serializing_if = "is_zero")]
    #[serde(default)]
    pub window_bytes: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl From<ReaderStats> for Reads {
    fn from(stats: ReaderStats) -> Self {
        Self {
            relaxed: stats.relaxed,
            hedged: stats.hedged,
            consistent: stats.consistent,
            durable: stats.durable,
            cell_bytes: stats.cell_bytes,
            durable_bytes: stats.durable_bytes,
            entry_bytes: stats.entry_bytes,
            window_blocks: stats.window_blocks,
            window_bytes: stats.window_bytes,
        }
    }
}

impl Reads {
    /// Adds others.
    pub fn add(&mut self, other: Reads) {
        self.combine(other, u64::wrapping_add);
    }

    /// What came since `earlier`.
    pub fn since(mut self, earlier: Reads) -> Reads {
        self.combine(earlier, u64::saturating_sub);
        self
    }

    fn combine(&mut self, other: Reads, with: fn(u64, u64) -> u64) {
        let pairs = [
            (&mut self.relaxed, other.relaxed),
            (&mut self.hedged, other.hedged),
            (&mut self.consistent, other.consistent),
            (&mut self.durable, other.durable),
            (&mut self.cell_bytes, other.cell_bytes),
            (&mut self.durable_bytes, other.durable_bytes),
            (&mut self.entry_bytes, other.entry_bytes),
            (&mut self.window_blocks, other.window_blocks),
            (&mut self.window_bytes, other.window_bytes),
        ];
        for (own, other) in pairs {
            *own = with(*own, other);
        }
    }
}

/// What the producer did; sums since the start, but for the delays.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Appending {
    /// When, on CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Records handed over.
    pub sent: u64,
    /// Records acknowledged.
    pub acked: u64,
    /// Times to acknowledgement since the last message of this kind.
    pub acks: SparseDurations,
}

/// What the producer did in all.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Produced {
    /// For each shard.
    pub shards: Vec<ShardTotal>,
    /// Records of the measured time.
    pub measured: u64,
    /// Their bytes.
    pub measured_bytes: u64,
    /// How long the measured records took to be sent.
    pub measured_s: f64,
    /// When the last record was handed to the producer.
    pub last_sent_ns: u64,
    /// Times to acknowledgement of the measured records.
    pub acks: SparseDurations,
    /// How late the measured records were sent, against their schedule.
    pub late: SparseDurations,
}

/// What the consumers of one process did in all.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Consumed {
    /// Records in all.
    pub delivered: u64,
    /// Measured records.
    pub measured: u64,
    /// Their bytes.
    pub measured_bytes: u64,
    /// How many were not what they should be.
    pub faults: FaultFlags,
    /// Delays of the measured records.
    pub delays: SparseDurations,
    /// When the last consumer had everything; `None` if one never had.
    pub finished_ns: Option<u64>,
    /// Consumers that had not everything at the end.
    pub unfinished: usize,
    /// Reads since the measured time began.
    pub reads: Reads,
    /// The first error of a consumer.
    pub error: Option<String>,
}

impl Consumed {
    /// What those of all processes did together, with their delays.
    pub fn of_all(processes: impl IntoIterator<Item = Self>) -> (Self, Durations) {
        let mut delays = Durations::default();
        let mut all = Self { finished_ns: Some(0), ..Self::default() };
        for one in processes {
            delays.add_sparse(&one.delays);
            all.delivered += one.delivered;
            all.measured += one.measured;
            all.measured_bytes += one.measured_bytes;
            all.faults.add(one.faults);
            all.finished_ns = all.finished_ns.zip(one.finished_ns).map(|(a, b)| a.max(b));
            all.unfinished += one.unfinished;
            all.reads.add(one.reads);
            all.error = all.error.or(one.error);
        }
        (all, delays)
    }
}
