//! `consume --stats`: how fast it reads and how far behind it is, now and then, to standard error.

use std::time::Duration;

use serde::Serialize;
use tailwater_client::{Client, Consumer};
use tailwater_env::{Env, Instant};

use crate::output::{Format, counted};

/// Prints a line every so often.
pub struct Stats {
    env: Env,
    every: Duration,
    format: Format,
    due_at: Instant,
    last_at: Instant,
    last_records: u64,
    /// Records written so far.
    pub records: u64,
}

#[derive(Serialize)]
struct Line {
    records: u64,
    records_per_s: f64,
    lag: Vec<LagOfShard>,
    reads: ReadStats,
}

#[derive(Serialize)]
struct LagOfShard {
    shard: u32,
    next_offset: u64,
    end_offset: Option<u64>,
    records: u64,
    ms: Option<u128>,
}

/// What the chunks came from; see `tailwater_client::ReaderStats`.
#[derive(Serialize)]
struct ReadStats {
    relaxed: u64,
    hedged: u64,
    consistent: u64,
    durable: u64,
    cell_bytes: u64,
    durable_bytes: u64,
    window_bytes: u64,
}

impl Stats {
    /// A line every `every`, from now on.
    pub fn new(env: Env, every: Duration, format: Format) -> Self {
        let now = env.now();
        Self { env, every, format, due_at: now + every, last_at: now, last_records: 0, records: 0 }
    }

    /// Time until the next line.
    pub fn due_in(&self) -> Duration {
        self.due_at.since(self.env.now())
    }

    /// Prints a line if it is time.
    pub fn tick(&mut self, client: &Client, consumer: &Consumer) -> anyhow::Result<()> {
        if self.env.now() < self.due_at {
            return Ok(());
        }
        self.print(client, consumer)
    }

    /// Prints a line.
    pub fn print(&mut self, client: &Client, consumer: &Consumer) -> anyhow::Result<()> {
        let now = self.env.now();
        let seconds = now.since(self.last_at).as_secs_f64().max(1e-3);
        let records_per_s = (self.records - self.last_records) as f64 / seconds;
        let lag: Vec<LagOfShard> = consumer
            .lags()
            .map(|lag| LagOfShard {
                shard: lag.shard,
                next_offset: lag.next_offset.0,
                end_offset: lag.end_offset.map(|end| end.0),
                records: lag.records(),
                ms: lag.time.map(|time| time.as_millis()),
            })
            .collect();
        let reads = client.reader_stats();
        let reads = ReadStats {
            relaxed: reads.relaxed,
            hedged: reads.hedged,
            consistent: reads.consistent,
            durable: reads.durable,
            cell_bytes: reads.cell_bytes,
            durable_bytes: reads.durable_bytes,
            window_bytes: reads.window_bytes,
        };
        let records_per_s = (records_per_s * 10.0).round() / 10.0;
        let line = Line { records: self.records, records_per_s, lag, reads };
        match self.format {
            Format::Json => eprintln!("{}", serde_json::to_string(&line)?),
            Format::Table => eprintln!("tailwater: {line}"),
        }
        (self.last_at, self.last_records, self.due_at) = (now, self.records, now + self.every);
        Ok(())
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let behind: u64 = self.lag.iter().map(|lag| lag.records).sum();
        let (records, behind) = (counted(self.records, "record"), counted(behind, "record"));
        write!(f, "{records}, {}/s; {behind} behind", self.records_per_s)?;
        if let Some(slowest) = self.lag.iter().filter(|lag| lag.records > 0).max_by_key(|lag| lag.ms) {
            match slowest.ms {
                Some(ms) => write!(f, ", {ms} ms in shard {}", slowest.shard)?,
                None => write!(f, " in shard {}", slowest.shard)?,
            }
        }
        let ReadStats { relaxed, hedged, consistent, durable, cell_bytes, durable_bytes, window_bytes } =
            self.reads;
        write!(f, "; reads: {relaxed} relaxed, {hedged} hedged, {consistent} consistent, {durable} durable")?;
        write!(
            f,
            "; bytes: {cell_bytes} from cells, {durable_bytes} durable, {window_bytes} through a window"
        )
    }
}
