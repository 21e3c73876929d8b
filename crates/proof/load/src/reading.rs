//! The consumers of one process.
//!
//! ```text
//!   TailReader (one for the process, or one for each consumer)
//!        | progress
//!   follow(): polls every consumer of that reader until it has nothing more
//!        | batches, borrowed
//!   Tally::take(): sequence, checksum and delay of every record
//! ```
//!
//! A consumer is a [`Consumer`] of the client library with its own position and its own read calls, and can be dropped
//! alone; in Kafka's protocol it is a task with a connection ([`crate::kafka::consumer`]). A record's delay ends when
//! the batch that it came in has been decoded and checked by the consumer: the clock is read once for each consumer and
//! batch, behind its last record, so the delays of the records before that one are a little too long and none is too
//! short.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use parking_lot::Mutex;
use tailwater_client::{
    Client, ClientConfig, Consumer, ConsumerConfig, Error, ReaderConfig, Start, WindowUse,
};
use tailwater_env::Env;
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch;

use crate::check::ShardCheck;
use crate::clock::monotonic_ns;
use crate::kafka;
use crate::limits::{FINISH_DEADLINE, STARTS_IN_FLIGHT};
use crate::messages::{
    Consumed, ConsumersConfig, MessageAnswer, MessageOrder, MessageProtocol, ReadingFlags, Reads, ShardTotal,
    TransportFlag,
};
use crate::tally::{Tally, TallySeen};
use crate::worker::{Orders, answer, fail};

/// Runs them until everything that was appended came, or the time for that is over.
pub async fn run(config: ConsumersConfig, mut orders: Orders) -> anyhow::Result<()> {
    let clients = connect(&config).await?;
    answer(&MessageAnswer::Ready)?;
    let process = Process::new(config, clients);
    let mut tick = tokio::time::interval(Duration::from_millis(process.config.tick_ms));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut started = false;
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                // The coordinator is gone.
                None => return Ok(()),
                Some(MessageOrder::Start) => {
                    started = true;
                    let process = Arc::clone(&process);
                    tokio::task::spawn(async move {
                        let begin = Instant::now();
                        let result = process.start_all().await;
                        // Without the coordinator nobody needs an answer.
                        let took_ms = begin.elapsed().as_secs_f64() * 1e3;
                        let _ = match result {
                            Ok(()) => answer(&MessageAnswer::Started { took_ms }),
                            Err(error) => fail(&error),
                        };
                    });
                }
                Some(MessageOrder::Measure { from_ns }) => {
                    process.measure_from(from_ns);
                    answer(&MessageAnswer::Measures)?;
                }
                Some(MessageOrder::Finish { produced }) => {
                    let consumed = process.finish(produced).await;
                    return answer(&MessageAnswer::Consumed(consumed));
                }
            },
            _ = tick.tick(), if started => answer(&MessageAnswer::Reading(process.progress()))?,
        }
    }
}

async fn connect(config: &ConsumersConfig) -> anyhow::Result<Vec<Client>> {
    let count = match config.protocol {
        MessageProtocol::Kafka => 0,
        MessageProtocol::Tailwater if config.connection_each => config.count,
        MessageProtocol::Tailwater => 1,
    };
    let defaults = ReaderConfig::default();
    let dialer = config.node.dialer()?;
    let one = |_| {
        let client = ClientConfig {
            name: "bench-consumers".to_owned(),
            transport: match config.transport {
                TransportFlag::Shm => tailwater_client::Transport::Shm,
                TransportFlag::Tcp => tailwater_client::Transport::Tcp,
            },
            reader: ReaderConfig {
                window_bytes: config.window_bytes,
                lengths_every: config.lengths_every_us.map(Duration::from_micros),
                catch_up_bytes_per_s: config.catch_up_bytes_per_s.unwrap_or(defaults.catch_up_bytes_per_s),
                ..defaults
            },
            window: if config.own_reader { WindowUse::WhereOffered } else { WindowUse::Never },
            dialer: dialer.clone(),
            ..ClientConfig::default()
        };
        async move { Client::connect_with(Env::real(), &config.node.address, client).await }
    };
    let clients: Vec<_> = futures::stream::iter(0..count).map(one).buffered(STARTS_IN_FLIGHT).collect().await;
    Ok(clients.into_iter().collect::<Result<_, Error>>()?)
}

/// Everything of this process.
pub struct Process {
    pub config: ConsumersConfig,
    /// None in Kafka's protocol, where each consumer has a connection.
    clients: Vec<Client>,
    /// Consumers that were started, each with its client's number, until the task that polls them takes them up.
    fresh: Mutex<Vec<Vec<Reader>>>,
    /// Wakes those tasks for fresh consumers and for the end.
    pub look: watch::Sender<u64>,
    pub tally: Mutex<Tally>,
}

/// One consumer of the client library and what it has seen.
struct Reader {
    consumer: Consumer,
    seen: TallySeen,
}

impl Process {
    fn new(config: ConsumersConfig, clients: Vec<Client>) -> Arc<Self> {
        let tally = Mutex::new(Tally::new(&config));
        let fresh = Mutex::new(clients.iter().map(|_| Vec::new()).collect());
        let process = Arc::new(Self { config, clients, fresh, look: watch::channel(0).0, tally });
        for number in 0..process.clients.len() {
            tokio::task::spawn(follow(Arc::clone(&process), number));
        }
        process
    }

    async fn start_all(self: &Arc<Self>) -> anyhow::Result<()> {
        let started =
            futures::stream::iter(0..self.config.count).map(async |index| match self.config.protocol {
                MessageProtocol::Tailwater => Ok(self.start(index).await?),
                MessageProtocol::Kafka => kafka::consumer::start(self, self.shards_of(index)).await,
            });
        let mut started = std::pin::pin!(started.buffer_unordered(STARTS_IN_FLIGHT));
        while let Some(result) = started.next().await {
            result?;
        }
        Ok(())
    }

    /// The shards that a consumer reads.
    fn shards_of(&self, index: usize) -> Vec<u32> {
        let ConsumersConfig { shards, shards_per_consumer, .. } = self.config;
        let index = self.config.first + index;
        let group = if self.config.together {
            index * shards.div_ceil(shards_per_consumer) as usize / self.config.of
        } else {
            index
        };
        let first = (group as u64 * u64::from(shards_per_consumer) % u64::from(shards)) as u32;
        (0..shards_per_consumer).map(|i| (first + i) % shards).collect()
    }

    async fn start(&self, index: usize) -> Result<(), Error> {
        let number = index % self.clients.len();
        let mine = self.shards_of(index);
        let first_shard = mine[0];
        let start = if self.config.from_beginning { Start::Beginning } else { Start::End };
        let config = ConsumerConfig { shards: mine, start };
        let consumer = self.clients[number].consumer(&self.config.stream, config).await?;
        // Nothing else is in the stream but the records of one producer, so offsets and sequences are the same.
        let checks = consumer.offsets().map(|(_, offset)| ShardCheck::starting_at(offset.0)).collect();
        let reader = Reader { consumer, seen: TallySeen::new(first_shard, checks) };
        self.fresh.lock()[number].push(reader);
        self.look.send_modify(|count| *count += 1);
        Ok(())
    }

    fn reads(&self) -> Reads {
        let mut reads = Reads::default();
        self.clients.iter().for_each(|client| reads.add(Reads::from(client.reader_stats())));
        reads
    }

    fn measure_from(&self, from_ns: u64) {
        self.tally.lock().measure_from_ns = from_ns;
    }

    fn progress(&self) -> ReadingFlags {
        let reads = self.reads();
        let mut tally = self.tally.lock();
        let at_ns = monotonic_ns();
        if at_ns >= tally.measure_from_ns && tally.reads_before.is_none() {
            tally.reads_before = Some(reads);
        }
        let delays = tally.turn_over();
        ReadingFlags {
            at_ns,
            delivered: tally.delivered,
            delivered_bytes: tally.delivered_bytes,
            faults: tally.faults,
            delays: delays.to_sparse(),
            reads,
        }
    }

    /// Reads on until all is there.
    async fn finish(&self, produced: Vec<ShardTotal>) -> Consumed {
        self.tally.lock().produced = Some(produced);
        let deadline = tokio::time::Instant::now() + FINISH_DEADLINE;
        // The tasks look once more, after which they know which of their consumers are complete.
        self.look.send_modify(|count| *count += 1);
        while self.tally.lock().unfinished > 0 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let reads = self.reads();
        // Each task hands its consumers over when it sees that it is the end.
        let (sender, mut collected) = unbounded_channel();
        self.tally.lock().collect = Some(sender);
        self.look.send_modify(|count| *count += 1);
        let mut readers = Vec::with_capacity(self.config.count);
        let tasks = match self.config.protocol {
            MessageProtocol::Tailwater => self.clients.len(),
            MessageProtocol::Kafka => self.config.count,
        };
        for _ in 0..tasks {
            readers.extend(collected.recv().await.into_iter().flatten());
        }
        let mut tally = self.tally.lock();
        tally.turn_over();
        let produced = tally.produced.take().unwrap_or_default();
        for reader in &readers {
            for (shard, check) in (0..).zip(&reader.checks) {
                let shard = (reader.first_shard + shard) % self.config.shards;
                check.finish(produced[shard as usize], &mut tally.faults);
            }
        }
        Consumed {
            delivered: tally.delivered,
            measured: tally.measured,
            measured_bytes: tally.measured_bytes,
            faults: tally.faults,
            delays: tally.measured_delays.to_sparse(),
            finished_ns: (tally.unfinished == 0).then_some(tally.last_ns),
            unfinished: tally.unfinished,
            reads: reads.since(tally.reads_before.unwrap_or_default()),
            error: tally.error.take(),
        }
    }
}

/// Polls the consumers of one client whenever its reader has something.
async fn follow(process: Arc<Process>, number: usize) {
    let mut progress = process.clients[number].reader().progress();
    let mut look = process.look.subscribe();
    let mut readers: Vec<Reader> = Vec::new();
    let pause = Duration::from_micros(process.config.poll_every_us);
    loop {
        tokio::select! {
            biased;
            _ = look.changed() => {}
            _ = progress.changed() => {}
        }
        let polled = tokio::time::Instant::now();
        let fresh = std::mem::take(&mut process.fresh.lock()[number]);
        if !fresh.is_empty() {
            readers.extend(fresh);
            // Consumers of the same shards one after the other: the records are then still in the core's cache.
            readers.sort_by_key(|reader| reader.seen.first_shard);
        }
        for reader in &mut readers {
            let moved = {
                let mut tally = process.tally.lock();
                poll(reader, &mut tally)
            };
            if moved {
                // What is gone shows as a gap in the sequence.
                if let Err(error) = reader.consumer.resume().await {
                    process.tally.lock().give_up(&mut reader.seen, &error);
                }
            }
        }
        let is_over = process.tally.lock().is_over(readers.iter_mut().map(|reader| &mut reader.seen));
        if let Some(collect) = is_over {
            // Whoever collects them waits for all.
            let _ = collect.send(readers.into_iter().map(|reader| reader.seen).collect());
            return;
        }
        if !pause.is_zero() {
            tokio::time::sleep_until(polled + pause).await;
        }
    }
}

/// Reads all that there is for one consumer; whether its next records were removed.
fn poll(reader: &mut Reader, tally: &mut Tally) -> bool {
    while !reader.seen.stopped {
        match reader.consumer.poll() {
            Ok(Some(batch)) => {
                let values = batch.records().map(|record| record.value.unwrap_or_default());
                tally.take(&mut reader.seen, batch.shard, batch.next_offset().0, values);
            }
            Ok(None) => return false,
            Err(Error::Truncated { .. }) => return true,
            Err(error) => tally.give_up(&mut reader.seen, &error),
        }
    }
    false
}
