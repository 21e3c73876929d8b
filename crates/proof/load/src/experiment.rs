//! One run of a system with one producer and many consumers: starts them, lets them run, and adds up what they say.

use std::ops::Range;
use std::time::Duration;

use rustix::process::Signal;
use serde::Serialize;

use crate::address::LoadAddress;
use crate::child::Child;
use crate::clock::monotonic_ns;
use crate::interrupt;
use crate::limits::{CONSUMERS_PER_PROCESS, FINISH_DEADLINE, READY_DEADLINE};
use crate::measuring::{RunMeter, RunPhase, until};
use crate::messages::{
    Appending, Consumed, ConsumersConfig, FaultFlags, MessageAnswer, MessageOrder, MessageProtocol,
    ProcessRole, Produced, ProducerConfig, ReadingFlags, Reads, TransportFlag,
};
use crate::stats::{Durations, PercentilesMs, round};
use crate::stopping::{StopOne, Stopping};
use crate::system::System;
use crate::workers::Workers;

/// What becomes a worker of a load.
const WORKER: [&str; 2] = ["load", "worker"];
/// How long one answer is waited for before it is looked at something else.
const HEAR: Duration = Duration::from_millis(20);

/// What to run.
pub struct ExperimentPlan {
    /// How many consumers in all.
    pub consumers: usize,
    /// How many processes they are spread over, as evenly as it goes; the one of `stop_one` is not among them.
    pub processes: usize,
    /// Whether the last consumer has a process of its own that is stopped for a while.
    pub stop_one: Option<StopOne>,
    /// Consumers beside them that read all shards one-sidedly.
    pub one_sided: usize,
    /// The processes of those.
    pub one_sided_processes: usize,
    /// What they are; address, stream, first, count and their number in all are filled in.
    pub reading: ConsumersConfig,
    /// The producer, if there is one; address and stream are filled in.
    pub appending: Option<ProducerConfig>,
    /// Flush policy of the stream.
    pub flush: String,
    /// Time from the producer's beginning to what is measured.
    pub warmup: Duration,
    /// Whether consumers are started, all at the same time, when the measured time begins; else they are all there
    /// before the producer begins.
    pub start_at_once: bool,
    /// With `start_at_once`: how long it is from the first process's start to the last one's.
    pub ramp: Duration,
    /// When the producer stands still (SIGSTOP), from the beginning of the measured time, and for how long.
    pub halt: Option<(Duration, Duration)>,
    /// How long to run if there is no producer.
    pub duration: Duration,
}

impl ExperimentPlan {
    /// So many consumers of one kind, in as few processes as may be, all there before the producer begins; what is
    /// appended is written at once.
    pub fn new(
        consumers: usize,
        reading: ConsumersConfig,
        appending: Option<ProducerConfig>,
        [warmup, duration]: [Duration; 2],
    ) -> Self {
        Self {
            consumers,
            processes: consumers.div_ceil(CONSUMERS_PER_PROCESS),
            stop_one: None,
            one_sided: 0,
            one_sided_processes: 0,
            reading,
            appending,
            flush: "immediate".to_owned(),
            warmup,
            start_at_once: false,
            ramp: Duration::ZERO,
            halt: None,
            duration,
        }
    }
}

/// CPU time, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Cpu {
    /// The node and the cache backends beside it.
    pub node: f64,
    /// The cache backends alone.
    pub backends: f64,
    /// The node's window, if it has one.
    pub window: f64,
    /// All processes with consumers.
    pub consumers: f64,
    /// The producer's process.
    pub producer: f64,
}

impl Cpu {
    /// Per second of `wall_s`, with so many digits behind the point; over one second it is the time itself.
    pub fn over(&self, wall_s: f64, digits: i32) -> Self {
        let per_s = |cpu_s: f64| round(cpu_s / wall_s, digits);
        Self {
            node: per_s(self.node),
            backends: per_s(self.backends),
            window: per_s(self.window),
            consumers: per_s(self.consumers),
            producer: per_s(self.producer),
        }
    }
}

/// What is known while it runs.
#[derive(Default)]
pub struct LiveExperiment {
    /// Since the producer began; before that, since the consumers were started.
    pub elapsed: Duration,
    /// The producer's last word.
    pub appending: Appending,
    /// The last word of each process with consumers.
    pub reading: Vec<ReadingFlags>,
    /// Delays that came in since [`LiveExperiment::take_delays`].
    delays: Durations,
    /// Acknowledgements likewise.
    acks: Durations,
    /// Delays that came in since [`LiveExperiment::fresh_delays`].
    fresh: Durations,
}

impl LiveExperiment {
    /// Sums over all processes.
    pub fn totals(&self) -> (u64, u64, FaultFlags, Reads) {
        let (mut delivered, mut bytes) = (0, 0);
        let (mut faults, mut reads) = (FaultFlags::default(), Reads::default());
        for reading in &self.reading {
            delivered += reading.delivered;
            bytes += reading.delivered_bytes;
            faults.add(reading.faults);
            reads.add(reading.reads);
        }
        (delivered, bytes, faults, reads)
    }

    /// Delays, and times to acknowledgement, since the last time.
    pub fn take_delays(&mut self) -> (Durations, Durations) {
        (std::mem::take(&mut self.delays), std::mem::take(&mut self.acks))
    }

    /// Delays since this was called last, whoever else takes them.
    pub fn fresh_delays(&mut self) -> Durations {
        std::mem::take(&mut self.fresh)
    }
}

/// What a run brought.
pub struct Outcome {
    /// What the producer says.
    pub produced: Produced,
    /// What all consumers say.
    pub consumed: Consumed,
    /// Delays of measured records.
    pub delays: Durations,
    /// CPU time of the measured time, until the last record was acknowledged.
    pub cpu: Cpu,
    /// How often threads of processes with consumers went to sleep meanwhile.
    pub sleeps: u64,
    /// How long that was, in seconds.
    pub wall_s: f64,
    /// How long the consumers of the slowest process took to start, in ms.
    pub started_ms: f64,
    /// Processes with consumers.
    pub processes: usize,
    /// How it went with the consumer that was stopped.
    pub stopping: Option<Stopping>,
}

impl Outcome {
    /// How long after the last record was appended the last consumer had everything, in ms; `None` if one never had.
    pub fn ended_after_ms(&self) -> Option<f64> {
        let finished = self.consumed.finished_ns?;
        Some(finished.saturating_sub(self.produced.last_sent_ns) as f64 / 1e6)
    }

    /// Times to acknowledgement of measured records.
    pub fn ack_ms(&self) -> PercentilesMs {
        let mut acks = Durations::default();
        acks.add_sparse(&self.produced.acks);
        acks.percentiles_ms()
    }

    /// How late measured records were sent.
    pub fn late_ms(&self) -> PercentilesMs {
        let mut late = Durations::default();
        late.add_sparse(&self.produced.late);
        late.percentiles_ms()
    }
}

/// Runs `plan` on `system`, which has no stream yet. Every tenth of a second `look` sees how far it is, and may do
/// something to the system.
pub fn run(
    system: &mut System,
    plan: &ExperimentPlan,
    mut look: impl FnMut(&mut LiveExperiment, &mut System) -> anyhow::Result<()>,
) -> anyhow::Result<Outcome> {
    system.create_stream(plan.reading.shards, &plan.flush)?;
    let mut run = Run::start(system, plan)?;
    let is_ready = |answer| matches!(answer, MessageAnswer::Ready).then_some(());
    run.workers.gather(READY_DEADLINE, || system.check(), is_ready)?;
    if !plan.start_at_once {
        run.start_consumers()?;
        run.wait_for_all(system, "each process starts its consumers", READY_DEADLINE, |run| {
            run.started == run.consumers
        })?;
    }
    run.measure(system, plan, &mut look)
}

struct Run {
    /// Those with consumers; the producer, if there is one, is behind them.
    consumers: usize,
    workers: Workers<MessageAnswer>,
    /// How many processes were told to start.
    told: usize,
    is_halted: bool,
    started: usize,
    measuring: usize,
    started_ms: f64,
    live: LiveExperiment,
    produced: Option<Produced>,
    consumed: Vec<Consumed>,
    stopping: Option<Stopping>,
}

impl Run {
    fn start(system: &System, plan: &ExperimentPlan) -> anyhow::Result<Self> {
        let mut workers = Workers::default();
        let beside = ConsumersConfig {
            protocol: MessageProtocol::Tailwater,
            shards_per_consumer: plan.reading.shards,
            ..plan.reading.clone()
        };
        let alone = plan.stop_one.is_some();
        let of = plan.consumers + plan.one_sided;
        let shares = shares(plan.consumers, plan.processes, alone).into_iter();
        let shares_beside = self::shares(plan.one_sided, plan.one_sided_processes, false);
        let all = shares.map(|share| (share, &plan.reading));
        let all: Vec<_> = all.chain(shares_beside.into_iter().map(|share| (share, &beside))).collect();
        let processes = all.len();
        for (number, (share, reading)) in all.into_iter().enumerate() {
            let config = ConsumersConfig {
                node: address(system, reading.protocol, reading.transport)?,
                stream: system.stream().to_owned(),
                first: share.start,
                count: share.len(),
                of,
                ..reading.clone()
            };
            let role = ProcessRole::Consumers(config);
            workers.start(&format!("consumers-{number}"), &WORKER, system.dir(), &role)?;
        }
        if let Some(config) = &plan.appending {
            let node = address(system, config.protocol, TransportFlag::Shm)?;
            let config = ProducerConfig { node, stream: system.stream().to_owned(), ..config.clone() };
            workers.start("producer", &WORKER, system.dir(), &ProcessRole::Producer(config))?;
        }
        let reading = vec![ReadingFlags::default(); processes];
        Ok(Self {
            consumers: processes,
            workers,
            told: 0,
            is_halted: false,
            started: 0,
            measuring: 0,
            started_ms: 0.0,
            live: LiveExperiment { reading, ..LiveExperiment::default() },
            produced: None,
            consumed: Vec::new(),
            stopping: plan
                .stop_one
                .map(|stop| Stopping::new(stop, processes - 1, plan.reading.catch_up_bytes_per_s)),
        })
    }

    fn start_consumers(&mut self) -> anyhow::Result<()> {
        self.start_up_to(self.consumers)
    }

    /// Starts the consumers of the first `count` processes, if they were not started.
    fn start_up_to(&mut self, count: usize) -> anyhow::Result<()> {
        while self.told < count.min(self.consumers) {
            self.workers.tell_one(self.told, &MessageOrder::Start)?;
            self.told += 1;
        }
        Ok(())
    }

    /// Has the producer stand still, and go on, when it is time; `measured` is since the measured time began.
    fn halt_producer(&mut self, plan: &ExperimentPlan, measured: Option<Duration>) -> anyhow::Result<()> {
        let (Some((after, lasts)), Some(measured)) = (plan.halt, measured) else { return Ok(()) };
        let is_due = (after..after + lasts).contains(&measured);
        if is_due != self.is_halted {
            self.is_halted = is_due;
            let signal = if is_due { Signal::STOP } else { Signal::CONT };
            self.workers.children()[self.consumers].signal(signal)?;
        }
        Ok(())
    }

    fn wait_for_all(
        &mut self,
        system: &mut System,
        what: &str,
        limit: Duration,
        done: impl Fn(&Run) -> bool,
    ) -> anyhow::Result<()> {
        until(what, limit, || {
            while self.hear(Duration::ZERO)? {}
            system.check()?;
            Ok(done(self).then_some(()))
        })
    }

    /// Takes in the next answer; whether one came in time.
    fn hear(&mut self, limit: Duration) -> anyhow::Result<bool> {
        let Some((number, answer)) = self.workers.hear(limit)? else { return Ok(false) };
        match answer {
            MessageAnswer::Ready => {}
            MessageAnswer::Started { took_ms } => {
                self.started += 1;
                self.started_ms = self.started_ms.max(took_ms);
            }
            MessageAnswer::Measures => self.measuring += 1,
            MessageAnswer::Reading(reading) => {
                self.live.delays.add_sparse(&reading.delays);
                self.live.fresh.add_sparse(&reading.delays);
                if let Some(stopping) = &mut self.stopping {
                    stopping.heard(number, &reading);
                }
                self.live.reading[number] = reading;
            }
            MessageAnswer::Appending(appending) => {
                self.live.acks.add_sparse(&appending.acks);
                self.live.appending = appending;
            }
            MessageAnswer::Produced(produced) => self.produced = Some(produced),
            MessageAnswer::Consumed(consumed) => self.consumed.push(consumed),
            MessageAnswer::Hops(_) => {}
        }
        Ok(true)
    }

    fn measure(
        mut self,
        system: &mut System,
        plan: &ExperimentPlan,
        look: &mut dyn FnMut(&mut LiveExperiment, &mut System) -> anyhow::Result<()>,
    ) -> anyhow::Result<Outcome> {
        let mut meter = RunMeter::start(plan.warmup, plan.duration);
        let order = MessageOrder::Measure { from_ns: meter.times().from_ns };
        self.workers.tell_first(self.consumers, &order)?;
        // Before the first record: who gets one and was not told yet does not measure it.
        self.wait_for_all(system, "each process measures", READY_DEADLINE, |run| {
            run.measuring == run.consumers
        })?;
        self.workers.tell_behind(self.consumers, &order)?;
        let has_producer = plan.appending.is_some();
        let mut look_at = Duration::ZERO;
        while self.produced.is_none() {
            let now_ns = monotonic_ns();
            if meter.look(now_ns, || self.counters(system)) == RunPhase::Over && !has_producer {
                break;
            }
            let measured = now_ns.checked_sub(meter.times().from_ns).map(Duration::from_nanos);
            if let Some(measured) = measured.filter(|_| plan.start_at_once) {
                let part = if plan.ramp.is_zero() { 1.0 } else { measured.div_duration_f64(plan.ramp) };
                self.start_up_to((part.min(1.0) * self.consumers as f64).ceil() as usize)?;
            }
            self.halt_producer(plan, measured)?;
            let elapsed = Duration::from_nanos(now_ns - meter.times().begin_ns);
            if elapsed >= look_at {
                look_at = elapsed + Duration::from_millis(100);
                interrupt::check()?;
                system.check()?;
                self.live.elapsed = elapsed;
                look(&mut self.live, system)?;
            }
            if let Some(stopping) = &mut self.stopping {
                stopping.act(elapsed.checked_sub(plan.warmup), self.workers.children())?;
            }
            self.hear(HEAR)?;
        }
        self.start_consumers()?;
        let metered = meter.end(self.counters(system))?;
        let [node, backends, window, consumers, producer, sleeps] = metered.grew;
        let mut produced = self.produced.take().unwrap_or_default();
        if produced.shards.is_empty() {
            produced.shards = vec![Default::default(); plan.reading.shards as usize];
        }
        let order = MessageOrder::Finish { produced: produced.shards.clone() };
        self.workers.tell_first(self.consumers, &order)?;
        let limit = FINISH_DEADLINE + Duration::from_secs(20);
        self.wait_for_all(system, "each process with consumers ends", limit, |run| {
            run.consumed.len() == run.consumers
        })?;
        let (consumed, delays) = Consumed::of_all(self.consumed.drain(..));
        Ok(Outcome {
            produced,
            consumed,
            delays,
            cpu: Cpu { node: node + backends, backends, window, consumers, producer },
            sleeps: sleeps as u64,
            wall_s: metered.seconds,
            started_ms: self.started_ms,
            processes: self.consumers,
            stopping: self.stopping,
        })
    }

    /// CPU seconds of the node, its backends, its window, the consumers and the producer; and how often consumers'
    /// threads went to sleep.
    fn counters(&self, system: &System) -> [f64; 6] {
        let (node, backends) = system.cpu();
        let (consumers, producer) = self.workers.children().split_at(self.consumers);
        let cpu = |of: &[Child]| of.iter().map(Child::cpu).sum::<Duration>();
        let [node, backends, window, reading, appending] =
            [node, backends, system.window_cpu(), cpu(consumers), cpu(producer)].map(|cpu| cpu.as_secs_f64());
        let sleeps = consumers.iter().map(Child::sleeps).sum::<u64>() as f64;
        [node, backends, window, reading, appending, sleeps]
    }
}

/// Where a worker that speaks `protocol` connects.
fn address(
    system: &System,
    protocol: MessageProtocol,
    transport: TransportFlag,
) -> anyhow::Result<LoadAddress> {
    match protocol {
        MessageProtocol::Tailwater => system.address(transport == TransportFlag::Shm),
        MessageProtocol::Kafka => Ok(system.kafka_address()),
    }
}

/// Which consumers each process has. With `one_alone` the last one has a process to itself, besides the others'.
pub fn shares(consumers: usize, processes: usize, one_alone: bool) -> Vec<Range<usize>> {
    let together = consumers - usize::from(one_alone);
    let processes = processes.clamp(1, together.max(1));
    // As even as it goes.
    let share = |number| together * number / processes..together * (number + 1) / processes;
    let mut shares: Vec<_> = (0..processes).map(share).filter(|share| !share.is_empty()).collect();
    shares.extend(one_alone.then_some(together..consumers));
    shares
}

/// What happened over time, in steps.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Seconds since the producer began, at the end of the step.
    pub t_s: f64,
    /// Records appended and acknowledged per second.
    pub appended_s: f64,
    /// Records delivered per second, to all consumers together.
    pub delivered_s: f64,
    /// Delays of what was delivered in this step.
    pub delay_ms: PercentilesMs,
    /// Times to acknowledgement in this step.
    pub ack_ms: PercentilesMs,
    /// Durable reads per second, of all processes together.
    pub durable_s: f64,
}

/// Takes a [`Sample`] every `step`.
#[derive(Default)]
pub struct Timeline {
    step: Duration,
    at: Duration,
    before: (u64, u64, u64),
    /// What was taken so far.
    pub samples: Vec<Sample>,
}

impl Timeline {
    /// One without samples.
    pub fn new(step: Duration) -> Self {
        Self { step, ..Self::default() }
    }

    /// Takes a sample if it is time; whether it was.
    pub fn look(&mut self, live: &mut LiveExperiment) -> bool {
        let took = live.elapsed.saturating_sub(self.at);
        if took < self.step {
            return false;
        }
        let (delivered, _, _, reads) = live.totals();
        let now = (live.appending.acked, delivered, reads.durable);
        let (delays, acks) = live.take_delays();
        let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / took.as_secs_f64()).round();
        self.samples.push(Sample {
            t_s: crate::stats::round(live.elapsed.as_secs_f64(), 2),
            appended_s: rate(now.0, self.before.0),
            delivered_s: rate(now.1, self.before.1),
            delay_ms: delays.percentiles_ms(),
            ack_ms: acks.percentiles_ms(),
            durable_s: rate(now.2, self.before.2),
        });
        self.at = live.elapsed;
        self.before = now;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumers_are_spread_evenly_over_any_number_of_processes() {
        assert_eq!(shares(10, 10, false).len(), 10);
        let sizes: Vec<_> = shares(4_000, 12, false).iter().map(Range::len).collect();
        assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (12, 4_000));
        assert!(sizes.iter().all(|size| (333..=334).contains(size)), "{sizes:?}");
    }

    #[test]
    fn the_consumer_that_is_stopped_has_a_process_to_itself() {
        assert_eq!(shares(5, 2, true), [0..2, 2..4, 4..5]);
        assert_eq!(shares(1, 1, true).len(), 1);
    }
}
