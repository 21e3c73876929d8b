//! A cluster by flows: what each consumer reads of each of its shards in each interval, and when.
//!
//! No message, chunk or process is simulated. A producer's flush is a step of its shard's length; a consumer's poll
//! takes the steps that readers know of by then. From these follow the chunks that are read, with the partial one read
//! again, and the delays. What all consumers read of a chunk is work of its replicas, whose places are those of the
//! real cell's ring. Work that a backend has no time for waits, and delays what is read and written there next.
//!
//! The costs are in [`FlowCosts::MEASURED`]. A test compares a hundredth of the size with the real code at the level of
//! chunks. All follows from a seed.
//!
//! What is left out: the metadata cell's own load (it is counted), retries of single messages, and the consumers' own
//! processors.

mod cell;
mod delays;
mod shards;
#[cfg(test)]
mod tests;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, LogNormal};
use serde::Serialize;
use tailwater_load::stats::{PercentilesMs, round};

use cell::{FlowCell, FlowChunk};
use delays::FlowDelays;
use shards::{FlowFlush, FlowShard};

use super::costs::FlowCosts;

/// How long an interval is: work is shared out to backends once for each.
const INTERVAL_US: u64 = 50_000;
/// How often a sample is taken.
const SAMPLE_US: u64 = 1_000_000;
/// How often it is looked whether a cell is too small.
const LOOK_US: u64 = 5_000_000;
/// A durable read brings so much at most.
const DURABLE_READ_BYTES: u64 = 2 << 20;
/// Shards whose lengths are one value.
const SHARDS_PER_PAGE: u32 = 64;
/// What a reader takes of a backlog in a second.
const CATCH_UP_BYTES_PER_S: f64 = (64 << 20) as f64;
/// How long what is written is kept for readers that are behind, in microseconds.
const KEPT_US: u64 = 600_000_000;
/// For how long readers may read on behind the producer's end.
const DRAIN_US: u64 = 120_000_000;

/// Something that happens at a time.
#[derive(Clone, Copy, Debug)]
pub enum FlowEvent {
    /// So many consumers begin.
    Begin(u32),
    /// A backend of the data cell is killed.
    Kill(usize),
    /// It is there again, empty.
    Restart(usize),
    /// The first half of the shards gets nothing more.
    Halt,
    /// It gets what it did not get, so many times as fast as usual, until all is there.
    Resume(f64),
}

/// When a cell is made larger: when one of its backends sends as much in a second.
#[derive(Clone, Copy, Debug)]
pub struct FlowScaling {
    pub bytes_per_s: f64,
    pub reads_per_s: f64,
}

/// What is run.
#[derive(Clone, Debug)]
pub struct FlowLoad {
    /// Of two streams, half of them each; and so of each consumer's. Both are even.
    pub shards: u32,
    pub shards_per_consumer: u32,
    /// Bytes that are written in a second, in all.
    pub bytes_per_s: f64,
    /// How long a producer gathers messages.
    pub gather_us: u64,
    /// How often a consumer reads lengths.
    pub poll_us: u64,
    /// Hops from the source.
    pub hops: u32,
    pub backends: usize,
    /// Nodes that share the durable reads, a core each.
    pub nodes: u32,
    /// How far before its start a consumer begins to read.
    pub back_us: u64,
    /// What a consumer reads in a second at most, if it is bounded by more than the client library's limits.
    pub read_bytes_per_s: Option<f64>,
    pub scaling: Option<FlowScaling>,
    /// In their order.
    pub events: Vec<(u64, FlowEvent)>,
    /// What happens before is not counted.
    pub warmup_us: u64,
    pub duration_us: u64,
    pub seed: u64,
}

/// What happened in a second.
#[derive(Clone, Debug, Serialize)]
pub struct FlowSample {
    pub t_s: f64,
    pub consumers: u32,
    pub backends: usize,
    pub delay_ms: PercentilesMs,
    pub cell_gbit_s: f64,
    pub cell_reads_s: f64,
    pub metadata_reads_s: f64,
    pub durable_s: f64,
    /// What waits for the backend with the most, in ms.
    pub backlog_ms: f64,
}

/// Sums over what counts.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct FlowTotals {
    /// Bytes that became readable to a consumer.
    pub delivered_bytes: f64,
    pub cell_bytes: f64,
    pub cell_reads: f64,
    pub metadata_reads: f64,
    pub durable_reads: f64,
    pub durable_bytes: f64,
    /// Bytes that were written for a consumer that it did not get.
    pub lost_bytes: u64,
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
pub struct FlowOutcome {
    pub delay_ms: PercentilesMs,
    pub totals: FlowTotals,
    pub samples: Vec<FlowSample>,
}

/// One consumer; its flows are beside it.
struct FlowConsumer {
    begins_us: u64,
    /// When it polls next, and when it did last.
    next_us: u64,
    last_us: u64,
    first_shard: u32,
    pages: u32,
}

/// A time of which half and 99 of 100 are known.
fn times_of([p50, p99]: [f64; 2]) -> LogNormal<f64> {
    let sigma = (p99 / p50).ln() / 2.326;
    LogNormal::new(p50.ln(), sigma).expect("p99 is above p50")
}

/// See the module.
pub struct FlowModel {
    load: FlowLoad,
    costs: FlowCosts,
    rng: StdRng,
    append: LogNormal<f64>,
    hop: LogNormal<f64>,
    cell: FlowCell,
    shards: Vec<FlowShard>,
    /// When each shard is flushed within its period.
    phases: Vec<u64>,
    consumers: Vec<FlowConsumer>,
    /// Of each consumer's shards in turn: the next flush, and the byte that comes next.
    next: Vec<u64>,
    place: Vec<u64>,
    /// What is there for each shard of the consumer that polls.
    ready: Vec<(u64, u64)>,
    /// How much faster than usual the first half of the shards is written, and until when.
    halved: f64,
    halted_us: u64,
    resumed_until_us: u64,
    /// Work that the nodes were given in this interval, and how long a durable read waits for what they had before.
    durable_work_us: f64,
    durable_wait_us: f64,
    delays: FlowDelays,
    counted: FlowDelays,
    totals: FlowTotals,
    sampled: FlowTotals,
    samples: Vec<FlowSample>,
}

impl FlowModel {
    pub fn new(load: FlowLoad, costs: FlowCosts) -> Self {
        let mut rng = StdRng::seed_from_u64(load.seed);
        let phases = (0..load.shards).map(|_| rng.random_range(0..load.gather_us)).collect();
        Self {
            append: times_of(costs.append_us),
            hop: times_of(costs.hop_us),
            cell: FlowCell::new(costs, load.backends),
            shards: (0..load.shards).map(|_| FlowShard::default()).collect(),
            phases,
            consumers: Vec::new(),
            next: Vec::new(),
            place: Vec::new(),
            ready: Vec::new(),
            halved: 1.0,
            halted_us: 0,
            resumed_until_us: u64::MAX,
            durable_work_us: 0.0,
            durable_wait_us: 0.0,
            delays: FlowDelays::new(),
            counted: FlowDelays::new(),
            totals: FlowTotals::default(),
            sampled: FlowTotals::default(),
            samples: Vec::new(),
            load,
            costs,
            rng,
        }
    }

    /// Runs it. `tell` is told each sample.
    pub fn run(mut self, mut tell: impl FnMut(&FlowSample)) -> FlowOutcome {
        let mut events = self.load.events.clone().into_iter().peekable();
        let end_us = self.load.warmup_us + self.load.duration_us;
        let mut now = 0;
        while now < end_us {
            while let Some((_, event)) = events.next_if(|(at_us, _)| *at_us <= now) {
                self.happen(now, event);
            }
            let until = now + INTERVAL_US;
            self.interval(now, until, true);
            now = until;
            if now % SAMPLE_US == 0 {
                self.sample(now);
                self.samples.last().into_iter().for_each(&mut tell);
            }
            if now % LOOK_US == 0 {
                self.scale(now);
            }
        }
        let measured = self.totals;
        let last_us = now + DRAIN_US;
        while now < last_us && self.behind() > 0 {
            self.interval(now, now + INTERVAL_US, false);
            now += INTERVAL_US;
        }
        self.delays.move_into(&mut self.counted);
        let totals = FlowTotals { lost_bytes: self.behind(), ..measured };
        FlowOutcome { delay_ms: self.counted.percentiles_ms(), totals, samples: self.samples }
    }

    fn happen(&mut self, now: u64, event: FlowEvent) {
        match event {
            FlowEvent::Begin(count) => (0..count).for_each(|_| self.begin(now)),
            FlowEvent::Kill(place) => self.cell.kill(place),
            FlowEvent::Restart(place) => self.cell.restart(place, now),
            FlowEvent::Halt => (self.halved, self.halted_us) = (0.0, now),
            FlowEvent::Resume(times) => {
                self.halved = times;
                let more = (now - self.halted_us) as f64 / (times - 1.0);
                self.resumed_until_us = now + more as u64;
            }
        }
    }

    /// The shard of a consumer's flow: as many of the first half of the shards, which is a stream, as of the other.
    #[inline]
    fn shard_of(&self, first_shard: u32, flow: usize) -> usize {
        let (streams, flows) = (self.shards.len() / 2, self.load.shards_per_consumer as usize / 2);
        match flow.checked_sub(flows) {
            None => (first_shard as usize + flow) % streams,
            Some(flow) => streams + (first_shard as usize + flow) % streams,
        }
    }

    fn begin(&mut self, now: u64) {
        let (count, each) = (self.load.shards / 2, self.load.shards_per_consumer / 2);
        let first_shard = (self.consumers.len() as u64 * u64::from(each) % u64::from(count)) as u32;
        let last_page = (first_shard + each - 1) / SHARDS_PER_PAGE;
        self.consumers.push(FlowConsumer {
            begins_us: now,
            next_us: now + self.rng.random_range(0..self.load.poll_us),
            last_us: now,
            first_shard,
            pages: 2 * (last_page - first_shard / SHARDS_PER_PAGE + 1),
        });
        for flow in 0..2 * each as usize {
            let shard = &self.shards[self.shard_of(first_shard, flow)];
            let number = match self.load.back_us {
                0 => shard.visible(now),
                back_us => shard.since(now.saturating_sub(back_us)),
            };
            self.next.push(number);
            self.place.push(if number < shard.next() { shard.begin_of(number) } else { shard.end });
        }
    }

    fn interval(&mut self, now: u64, until: u64, writes: bool) {
        if now >= self.resumed_until_us {
            (self.halved, self.resumed_until_us) = (1.0, u64::MAX);
        }
        for shard in 0..self.shards.len() {
            let period = self.load.gather_us;
            let at_us = now - now % period + self.phases[shard];
            let at_us = if at_us < now { at_us + period } else { at_us };
            if writes && at_us < until {
                self.write(shard, at_us);
            }
            self.shards[shard].wait_us = if self.cell.is_busy { self.wait_of(shard) } else { 0 };
        }
        for consumer in 0..self.consumers.len() {
            while self.consumers[consumer].next_us < until {
                self.poll(consumer);
            }
        }
        let (cell, chunk_bytes) = (&mut self.cell, self.costs.chunk_bytes);
        for (shard, of) in (0..).zip(&mut self.shards) {
            of.take_counts(chunk_bytes, |number, readers, bytes| {
                cell.read(FlowChunk { shard, number }, readers, bytes);
            });
        }
        cell.pass(until, until - now);
        let work_us = std::mem::take(&mut self.durable_work_us) / f64::from(self.load.nodes);
        self.durable_wait_us = (self.durable_wait_us + work_us - (until - now) as f64).max(0.0);
        if until.is_multiple_of(SAMPLE_US) {
            self.shards.iter_mut().for_each(|shard| shard.forget(until.saturating_sub(KEPT_US)));
        }
    }

    /// How long reads of the shard's newest chunks wait.
    fn wait_of(&self, shard: usize) -> u64 {
        let newest = self.shards[shard].end / self.costs.chunk_bytes;
        let of_poll = self.load.bytes_per_s / f64::from(self.load.shards) * self.load.poll_us as f64 / 1e6;
        let several = (of_poll as u64 / self.costs.chunk_bytes + 1).min(64);
        let chunks = newest.saturating_sub(several)..=newest;
        let waits = chunks.map(|number| self.cell.wait_us(FlowChunk { shard: shard as u32, number }));
        waits.fold(0.0, f64::max) as u64
    }

    /// A producer's flush, on its way to the readers.
    fn write(&mut self, shard: usize, at_us: u64) {
        let is_halved = shard < self.shards.len() / 2;
        let times = if is_halved { self.halved } else { 1.0 };
        let each = self.load.bytes_per_s / f64::from(self.load.shards);
        let bytes = (each * self.load.gather_us as f64 / 1e6 * times) as u64;
        if bytes == 0 {
            return;
        }
        let (chunk, begin) = (self.costs.chunk_bytes, self.shards[shard].end);
        let end = begin + bytes;
        let mut wait_us = Some(0.0_f64);
        for number in begin / chunk..=(end - 1) / chunk {
            let there = end.min((number + 1) * chunk) - number * chunk;
            let waits = self.cell.set(FlowChunk { shard: shard as u32, number }, there as f64);
            wait_us = wait_us.zip(waits).map(|(all, one)| all.max(one));
        }
        let wait_us = wait_us.filter(|wait| *wait < self.costs.deadline_us as f64);
        let mut path = self.append.sample(&mut self.rng) + self.costs.publish_us;
        for _ in 0..self.load.hops {
            path += self.costs.line_us + self.hop.sample(&mut self.rng);
        }
        let of = &mut self.shards[shard];
        let number = of.next();
        let is_durable = wait_us.is_none();
        let late = wait_us.unwrap_or(self.costs.delay_max_us as f64);
        let visible_us = (at_us + (path + late) as u64).max(of.told_us);
        if is_durable {
            of.unshadowed.push(number);
        } else {
            // What could not be shadowed is told of with what could, and after a while in any case.
            for number in std::mem::take(&mut of.unshadowed) {
                let flush = of.flush_mut(number);
                if visible_us < flush.visible_us {
                    (flush.visible_us, flush.is_durable) = (visible_us, false);
                }
            }
            of.told_us = visible_us;
        }
        of.push(FlowFlush { at_us, visible_us, end, is_durable });
    }

    /// What is there for each of a consumer's shards, cut to what it may read in this poll.
    fn look(&mut self, consumer: usize, known_us: u64) {
        let each = self.load.shards_per_consumer as usize;
        let FlowConsumer { next_us, last_us, first_shard, .. } = self.consumers[consumer];
        self.ready.clear();
        let mut all = 0;
        for flow in 0..each {
            let shard = &self.shards[self.shard_of(first_shard, flow)];
            let (next, place) = (self.next[consumer * each + flow], self.place[consumer * each + flow]);
            let number = shard.visible(known_us).max(next);
            let to = if number > next { shard.flush(number - 1).end } else { place };
            all += to - place;
            self.ready.push((number, to));
        }
        let elapsed_s = (next_us - last_us).max(self.load.poll_us) as f64 / 1e6;
        let own = self.load.bytes_per_s * each as f64 / f64::from(self.load.shards);
        let most = self.load.read_bytes_per_s.unwrap_or(CATCH_UP_BYTES_PER_S + own) * elapsed_s;
        if all as f64 <= most {
            return;
        }
        // As much for each, and what one does not need for the others.
        let places = &self.place[consumer * each..][..each];
        let mut lengths: Vec<u64> =
            self.ready.iter().zip(places).map(|((_, to), place)| to - place).collect();
        lengths.sort_unstable();
        let (mut left, mut level) = (most, u64::MAX);
        for (number, length) in lengths.iter().enumerate() {
            let share = left / (each - number) as f64;
            if *length as f64 > share {
                level = share as u64;
                break;
            }
            left -= *length as f64;
        }
        for ((_, to), place) in self.ready.iter_mut().zip(places) {
            *to = (*to).min(place + level);
        }
    }

    /// A consumer reads lengths, and then what they tell of.
    fn poll(&mut self, consumer: usize) {
        let each = self.load.shards_per_consumer as usize;
        let at_us = self.consumers[consumer].next_us;
        let known_us = at_us + (self.costs.lengths_us / 2.0) as u64;
        self.look(consumer, known_us);
        let first_shard = self.consumers[consumer].first_shard;
        let begins_us = self.consumers[consumer].begins_us.max(self.load.warmup_us);
        let mut over_us = at_us;
        for flow in 0..each {
            let shard = self.shard_of(first_shard, flow);
            let (_, to) = self.ready[flow];
            let from = self.place[consumer * each + flow];
            if to > from {
                let got_us = self.fetch(shard, (from, to), self.next[consumer * each + flow], at_us);
                let of = &self.shards[shard];
                let next = &mut self.next[consumer * each + flow];
                while *next < of.next() && of.flush(*next).end <= to {
                    let flush = of.flush(*next);
                    if flush.at_us >= begins_us + self.load.gather_us {
                        self.delays.add(got_us - flush.at_us, self.load.gather_us);
                    }
                    *next += 1;
                }
                self.place[consumer * each + flow] = to;
                over_us = over_us.max(got_us);
            }
        }
        let pages = f64::from(self.consumers[consumer].pages);
        if at_us >= self.load.warmup_us {
            // All three replicas are asked.
            self.totals.metadata_reads += 3.0 * pages;
        }
        let consumer = &mut self.consumers[consumer];
        consumer.last_us = at_us;
        consumer.next_us = (at_us + self.load.poll_us).max(over_us);
    }

    /// Reads bytes of a shard, the first of which are of flush `number`; when they are there.
    fn fetch(&mut self, shard: usize, (from, to): (u64, u64), number: u64, at_us: u64) -> u64 {
        let chunk = self.costs.chunk_bytes;
        let chunks = from / chunk..=(to - 1) / chunk;
        let of = &mut self.shards[shard];
        let first = *of.flush(number);
        let is_lost = self.cell.is_broken
            && chunks
                .clone()
                .any(|number| !self.cell.has(FlowChunk { shard: shard as u32, number }, first.at_us));
        let is_old = first.at_us + self.costs.ttl_us < at_us;
        let is_late = of.wait_us > self.costs.deadline_us;
        let counts = at_us >= self.load.warmup_us;
        if counts {
            self.totals.delivered_bytes += (to - from) as f64;
        }
        let mut got_us = at_us as f64 + self.costs.lengths_us;
        let is_durable = first.is_durable || is_old || is_lost || is_late;
        if !(first.is_durable || is_old) {
            // The last one may not be full.
            let (first, last) = (*chunks.start(), *chunks.end());
            let bytes_of_last = to - last * chunk;
            of.count(first, last, bytes_of_last, chunk);
            if counts {
                self.totals.cell_reads += (last - first + 1) as f64;
                self.totals.cell_bytes += (to - first * chunk) as f64;
            }
            let wait_us = if is_late { 2 * self.costs.deadline_us } else { of.wait_us };
            got_us += self.costs.fetch_us + wait_us as f64;
        }
        if is_durable {
            got_us += self.costs.durable_us + self.durable_wait_us;
            self.durable_work_us += (to - from) as f64 / f64::from(1 << 20) * self.costs.durable_mib_us;
            if counts {
                self.totals.durable_reads += (to - from).div_ceil(DURABLE_READ_BYTES) as f64;
                self.totals.durable_bytes += (to - from) as f64;
            }
        }
        got_us as u64
    }

    fn sample(&mut self, now: u64) {
        let (totals, before) = (self.totals, self.sampled);
        self.sampled = totals;
        let delay_ms = self.delays.percentiles_ms();
        self.delays.move_into(&mut self.counted);
        let backlog_us = self.cell.backends.iter().map(|backend| backend.backlog_us).fold(0.0, f64::max);
        let per_s = SAMPLE_US as f64 / 1e6;
        self.samples.push(FlowSample {
            t_s: now as f64 / 1e6,
            consumers: self.consumers.len() as u32,
            backends: self.cell.read,
            delay_ms,
            cell_gbit_s: round((totals.cell_bytes - before.cell_bytes) * 8.0 / 1e9 / per_s, 3),
            cell_reads_s: ((totals.cell_reads - before.cell_reads) / per_s).round(),
            metadata_reads_s: ((totals.metadata_reads - before.metadata_reads) / per_s).round(),
            durable_s: ((totals.durable_reads - before.durable_reads) / per_s).round(),
            backlog_ms: round(backlog_us / 1e3, 1),
        });
    }

    /// Makes the cell larger if one of its backends sends too much.
    fn scale(&mut self, now: u64) {
        let look_s = LOOK_US as f64 / 1e6;
        let mut times: f64 = 0.0;
        for backend in &mut self.cell.backends {
            let (bytes, reads) =
                (std::mem::take(&mut backend.sent_bytes), std::mem::take(&mut backend.sent_reads));
            if let Some(scaling) = &self.load.scaling {
                times =
                    times.max(bytes / look_s / scaling.bytes_per_s).max(reads / look_s / scaling.reads_per_s);
            }
        }
        if times > 1.0 && !self.cell.is_changing() {
            let backends = ((self.cell.read as f64 * times).ceil() as usize).max(self.cell.read + 1);
            let held_s = (now.min(self.costs.ttl_us)) as f64 / 1e6;
            self.cell.resize(now, backends.min(1_024), self.load.bytes_per_s * held_s);
        }
    }

    /// Bytes that were written and that a consumer does not have.
    fn behind(&self) -> u64 {
        let each = self.load.shards_per_consumer as usize;
        let mut behind = 0;
        for (number, consumer) in self.consumers.iter().enumerate() {
            for flow in 0..each {
                let shard = &self.shards[self.shard_of(consumer.first_shard, flow)];
                behind += shard.end - self.place[number * each + flow];
            }
        }
        behind
    }
}
