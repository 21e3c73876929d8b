//! What the consumers of one process count, and how each record is checked.

use tokio::sync::mpsc::UnboundedSender;

use crate::check::ShardCheck;
use crate::clock::monotonic_ns;
use crate::messages::{ConsumersConfig, FaultFlags, Reads, ShardTotal, Validate};
use crate::payload::Payload;
use crate::stats::Durations;

/// What one consumer has seen.
pub struct TallySeen {
    /// The first shard that it reads; the others follow.
    pub first_shard: u32,
    /// For each shard that it reads.
    pub checks: Vec<ShardCheck>,
    /// It failed for good.
    pub stopped: bool,
    complete: bool,
}

impl TallySeen {
    /// Nothing yet.
    pub fn new(first_shard: u32, checks: Vec<ShardCheck>) -> Self {
        Self { first_shard, checks, stopped: false, complete: false }
    }
}

/// What all consumers of this process counted.
pub struct Tally {
    shards: u32,
    validate: Validate,
    /// Records of each shard below this were validated in this process.
    validated: Vec<u64>,
    pub delivered: u64,
    pub delivered_bytes: u64,
    pub measured: u64,
    pub measured_bytes: u64,
    pub measure_from_ns: u64,
    pub faults: FaultFlags,
    /// Delays since the last progress report, of records from before the measured time and of measured ones.
    delays: [Durations; 2],
    pub measured_delays: Durations,
    /// The reads before the measured time, up to one tick late.
    pub reads_before: Option<Reads>,
    pub last_ns: u64,
    stamps: Vec<u64>,
    pub error: Option<String>,
    /// Once it is known.
    pub produced: Option<Vec<ShardTotal>>,
    /// Consumers that were not seen to have everything.
    pub unfinished: usize,
    /// Where consumers are handed to at the very end.
    pub collect: Option<UnboundedSender<Vec<TallySeen>>>,
}

impl Tally {
    /// Nothing yet, of so many consumers.
    pub fn new(config: &ConsumersConfig) -> Self {
        Self {
            shards: config.shards,
            validate: config.validate,
            validated: vec![0; config.shards as usize],
            delivered: 0,
            delivered_bytes: 0,
            measured: 0,
            measured_bytes: 0,
            measure_from_ns: u64::MAX,
            faults: FaultFlags::default(),
            delays: Default::default(),
            measured_delays: Durations::default(),
            reads_before: None,
            last_ns: 0,
            stamps: Vec::new(),
            error: None,
            produced: None,
            unfinished: config.count,
            collect: None,
        }
    }

    /// Checks and counts records of one shard that a consumer was given; behind them comes `next_offset`.
    pub fn take<'a>(
        &mut self,
        seen: &mut TallySeen,
        shard: u32,
        next_offset: u64,
        values: impl Iterator<Item = &'a [u8]>,
    ) {
        let index = (shard + self.shards - seen.first_shard) % self.shards;
        let check = &mut seen.checks[index as usize];
        let validated = &mut self.validated[shard as usize];
        let validate = self.validate == Validate::Consumer || next_offset > *validated;
        *validated = next_offset.max(*validated);
        self.stamps.clear();
        let mut bytes = 0;
        for value in values {
            bytes += value.len() as u64;
            match Payload::parse(value) {
                Some(payload) if payload.shard() == shard && (!validate || payload.is_intact()) => {
                    check.accept(payload.sequence(), payload.checksum(), &mut self.faults);
                    self.stamps.push(payload.stamp_ns());
                }
                _ => self.faults.corrupted += 1,
            }
        }
        let now = monotonic_ns();
        let mut measured = 0;
        for &stamp in &self.stamps {
            let is_measured = stamp >= self.measure_from_ns;
            measured += u64::from(is_measured);
            self.delays[usize::from(is_measured)].record(now.saturating_sub(stamp));
        }
        let count = self.stamps.len() as u64;
        self.delivered += count;
        self.delivered_bytes += bytes;
        self.measured += measured;
        // Lines of text differ in length; a batch is nearly always measured as a whole.
        self.measured_bytes += if measured == count { bytes } else { bytes * measured / count };
        self.last_ns = now;
    }

    /// A consumer that has failed for good.
    pub fn give_up(&mut self, seen: &mut TallySeen, error: &dyn std::fmt::Display) {
        seen.stopped = true;
        self.error.get_or_insert_with(|| error.to_string());
    }

    /// Looks which consumers have everything, once it is known what that is; at the very end, where they are handed to.
    pub fn is_over<'a>(
        &mut self,
        all: impl Iterator<Item = &'a mut TallySeen>,
    ) -> Option<UnboundedSender<Vec<TallySeen>>> {
        if let Some(produced) = &self.produced {
            for seen in all.filter(|seen| !seen.complete) {
                let shards = (0..).map(|i| (seen.first_shard + i) % self.shards);
                let mut pairs = seen.checks.iter().zip(shards);
                seen.complete = pairs.all(|(check, shard)| check.is_complete(produced[shard as usize]));
                self.unfinished -= usize::from(seen.complete);
            }
        }
        self.collect.clone()
    }

    /// Begins a report; the delays since the last one.
    pub fn turn_over(&mut self) -> Durations {
        let [warm, measured] = std::mem::take(&mut self.delays);
        self.measured_delays.add(&measured);
        let mut all = warm;
        all.add(&measured);
        all
    }
}
