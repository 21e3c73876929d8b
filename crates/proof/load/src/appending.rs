//! The producer's process: appends at a rate, and remembers what it appended.
//!
//! Records that are due are sent at every tick of a short clock, as a program would that is given data in small
//! portions; a late tick is made up for, and how late is reported. The stamp in a record is taken just before it is
//! handed to the client library.

use std::path::Path;
use std::time::Duration;

use crate::appender::Appender;
use crate::clock::monotonic_ns;
use crate::messages::{Appending, MessageAnswer, MessageOrder, Produced, ProducerConfig, ShardTotal, Spread};
use crate::payload::{self, HEADER_BYTES};
use crate::stats::Durations;
use crate::text::Text;
use crate::ticks::Ticks;
use crate::worker::{Orders, answer};

/// Appends until its time is over, and all is acknowledged.
pub async fn run(config: ProducerConfig, mut orders: Orders) -> anyhow::Result<()> {
    let ProducerConfig { protocol, node, stream, shards, gathering, .. } = &config;
    let appender = Appender::connect(*protocol, node, stream, *shards, *gathering).await?;
    let source = LoadSource::new(&config)?;
    answer(&MessageAnswer::Ready)?;
    // Without a coordinator there is nothing to do.
    let Some(MessageOrder::Measure { from_ns }) = orders.recv().await else { return Ok(()) };
    let mut load = Load::new(config, appender, source, from_ns);
    load.run().await?;
    answer(&MessageAnswer::Produced(load.finish()))
}

/// Where the content of records comes from.
enum LoadSource {
    /// The same bytes in every record.
    Filler(Vec<u8>),
    /// A line in each.
    Text { text: Text, record: Vec<u8> },
}

impl LoadSource {
    fn new(config: &ProducerConfig) -> anyhow::Result<Self> {
        Ok(match &config.text {
            None => {
                let mut state = 1u64;
                let bytes = (0..config.message_bytes.max(HEADER_BYTES)).map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                });
                LoadSource::Filler(bytes.collect())
            }
            Some(name) => {
                let file = (!name.is_empty()).then(|| Path::new(name));
                LoadSource::Text { text: Text::open(file)?, record: Vec::new() }
            }
        })
    }

    /// The next record, with room for its header.
    fn next(&mut self) -> &mut [u8] {
        match self {
            LoadSource::Filler(record) => record,
            LoadSource::Text { text, record } => {
                record.clear();
                record.resize(HEADER_BYTES, 0);
                record.extend_from_slice(text.next_line());
                record
            }
        }
    }
}

struct Load {
    config: ProducerConfig,
    appender: Appender,
    source: LoadSource,
    shards: Vec<ShardTotal>,
    begin_ns: u64,
    measure_from_ns: u64,
    sent: u64,
    acked: u64,
    shard: u32,
    measured: u64,
    measured_bytes: u64,
    last_sent_ns: u64,
    late: Durations,
    recent: Durations,
    measured_acks: Durations,
}

impl Load {
    fn new(config: ProducerConfig, appender: Appender, source: LoadSource, measure_from_ns: u64) -> Self {
        Self {
            shards: vec![ShardTotal::default(); config.shards as usize],
            config,
            appender,
            source,
            begin_ns: monotonic_ns(),
            measure_from_ns,
            sent: 0,
            acked: 0,
            shard: 0,
            measured: 0,
            measured_bytes: 0,
            last_sent_ns: 0,
            late: Durations::default(),
            recent: Durations::default(),
            measured_acks: Durations::default(),
        }
    }

    async fn run(&mut self) -> anyhow::Result<()> {
        let warmup_ns = self.measure_from_ns.saturating_sub(self.begin_ns);
        let seconds = warmup_ns as f64 / 1e9 + self.config.duration_ms as f64 / 1e3;
        let total = (seconds * self.config.rate) as u64;
        let ticks = Ticks::new(Duration::from_micros(self.config.every_us));
        let mut report = tokio::time::interval(Duration::from_millis(self.config.tick_ms));
        while self.sent < total || self.appender.in_flight() > 0 {
            tokio::select! {
                biased;
                _ = report.tick() => answer(&MessageAnswer::Appending(self.progress()))?,
                stamps = self.appender.next() => {
                    self.acknowledged(&stamps?);
                    while let Some(stamps) = self.appender.next_now()? {
                        self.acknowledged(&stamps);
                    }
                }
                () = ticks.tick(), if self.sent < total => {
                    if self.send_due(total)? {
                        self.appender.room().await;
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends what is due; whether there was no room for all of it.
    fn send_due(&mut self, total: u64) -> anyhow::Result<bool> {
        let elapsed = monotonic_ns() - self.begin_ns;
        let due = total.min((elapsed as f64 / 1e9 * self.config.rate) as u64);
        if self.config.spread == Spread::Sticky && self.sent < due {
            self.shard = (self.shard + 1) % self.config.shards;
        }
        while self.sent < due {
            if self.config.spread == Spread::RoundRobin {
                self.shard = (self.sent % u64::from(self.config.shards)) as u32;
            }
            let shard = &mut self.shards[self.shard as usize];
            let record = self.source.next();
            let now = monotonic_ns();
            let checksum = payload::seal(record, self.shard, shard.records, now);
            let bytes = record.len() as u64;
            if !self.appender.send(self.shard, record, now)? {
                return Ok(true);
            }
            shard.records += 1;
            shard.checksums = shard.checksums.wrapping_add(checksum);
            let scheduled = self.begin_ns + (self.sent as f64 / self.config.rate * 1e9) as u64;
            self.sent += 1;
            self.last_sent_ns = now;
            if now >= self.measure_from_ns {
                self.measured += 1;
                self.measured_bytes += bytes;
                self.late.record(now.saturating_sub(scheduled));
            }
        }
        Ok(false)
    }

    fn acknowledged(&mut self, stamps: &[u64]) {
        let now = monotonic_ns();
        for &stamp in stamps {
            let took = now.saturating_sub(stamp);
            self.recent.record(took);
            if stamp >= self.measure_from_ns {
                self.measured_acks.record(took);
            }
        }
        self.acked += stamps.len() as u64;
    }

    fn progress(&mut self) -> Appending {
        let acks = self.recent.to_sparse();
        self.recent.clear();
        Appending { at_ns: monotonic_ns(), sent: self.sent, acked: self.acked, acks }
    }

    fn finish(self) -> Produced {
        // The last record stands for the time until the next one would have been due.
        let measured_ns = self.last_sent_ns.saturating_sub(self.measure_from_ns) as f64;
        Produced {
            measured: self.measured,
            measured_bytes: self.measured_bytes,
            measured_s: measured_ns / 1e9 + 1.0 / self.config.rate,
            last_sent_ns: self.last_sent_ns,
            acks: self.measured_acks.to_sparse(),
            late: self.late.to_sparse(),
            shards: self.shards,
        }
    }
}
