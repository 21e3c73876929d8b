use std::time::Duration;

use tailwater_sim::World;
use tailwater_sim::chunks::{self, ChunkLoad, ChunkRun};

use super::*;
use crate::acs::model::AcsExperiment;

/// One way between two processes of the chunk-level run, in microseconds.
const LINE_US: u64 = 200;

/// A hundredth of a load, and the same for the chunk-level run. There are no hops, and no processor is short.
fn hundredth(experiment: AcsExperiment, seed: u64) -> (FlowLoad, ChunkLoad) {
    let load = experiment.load(0.01, 0, 0, seed);
    let consumers = load.events.iter().map(|(_, event)| match event {
        FlowEvent::Begin(consumers) => *consumers,
        _ => 0,
    });
    let chunks = ChunkLoad {
        consumers: consumers.sum(),
        shards: load.shards,
        shards_per_consumer: load.shards_per_consumer,
        bytes_per_s: load.bytes_per_s as u64,
        gather: Duration::from_micros(load.gather_us),
        poll: Duration::from_micros(load.poll_us),
        backends: load.backends,
        backend_bytes: 128 << 20,
        line_ns: LINE_US * 1_000,
        warmup: Duration::from_millis(1_100),
        measured: Duration::from_millis(1_000),
        killed: 0,
    };
    let load = FlowLoad {
        events: vec![(0, FlowEvent::Begin(chunks.consumers))],
        warmup_us: 2_000_000,
        duration_us: 3_000_000,
        scaling: None,
        ..load
    };
    (load, chunks)
}

fn costs() -> FlowCosts {
    let round_trip = 2.1 * LINE_US as f64;
    FlowCosts {
        read_us: 0.0,
        read_mib_us: 0.0,
        set_us: 0.0,
        set_mib_us: 0.0,
        append_us: [1.0, 2.0],
        publish_us: 2.0 * round_trip,
        lengths_us: round_trip,
        fetch_us: round_trip,
        ..FlowCosts::MEASURED
    }
}

/// Whether the model says what the chunk-level run has shown, within a tenth.
fn assert_agrees(load: FlowLoad, chunks: ChunkLoad) {
    let run: ChunkRun = chunks::run(&World::new(load.seed), chunks).expect("it runs");
    assert_eq!((run.lost, run.reads.durable), (0, 0));
    let flushes_per_s = 1e6 / load.gather_us as f64;
    let bytes_per_s = run.flush_bytes as f64 * flushes_per_s * f64::from(load.shards);
    let outcome = FlowModel::new(FlowLoad { bytes_per_s, ..load.clone() }, costs()).run(|_| {});
    let (reads, totals) = (run.reads, outcome.totals);
    assert_eq!((totals.lost_bytes, totals.durable_reads), (0, 0.0));
    let (chunk_s, flow_s) = (chunks.measured.as_secs_f64(), load.duration_us as f64 / 1e6);
    let pairs = [
        ("bytes that became readable", reads.entry_bytes as f64 / chunk_s, totals.delivered_bytes / flow_s),
        ("bytes from the cell", reads.cell_bytes as f64 / chunk_s, totals.cell_bytes / flow_s),
        (
            "reads of the cell",
            (reads.relaxed + reads.consistent) as f64 / chunk_s,
            totals.cell_reads / flow_s,
        ),
        ("delay p50", run.delay_ms(0.5), outcome.delay_ms.p50),
        ("delay p99", run.delay_ms(0.99), outcome.delay_ms.p99),
    ];
    for (what, chunks, flows) in pairs {
        println!("{what}: {chunks:.1} at the level of chunks, {flows:.1} by flows, {:.3}", flows / chunks);
        assert!(
            (flows / chunks - 1.0).abs() < 0.1,
            "{what}: {chunks} at the level of chunks, {flows} by flows"
        );
    }
}

#[test]
fn a_hundredth_of_1a_by_flows_agrees_with_the_real_code_at_the_level_of_chunks() {
    let (load, chunks) = hundredth(AcsExperiment::Spike, 1);
    // Those that 1(a) ends with.
    let consumers = 80;
    let load = FlowLoad { events: vec![(0, FlowEvent::Begin(consumers))], ..load };
    assert_agrees(load, ChunkLoad { consumers, ..chunks });
}

#[test]
fn a_hundredth_of_2b_by_flows_agrees_with_the_real_code_at_the_level_of_chunks() {
    let (load, chunks) = hundredth(AcsExperiment::Abrupt, 2);
    assert_agrees(load, chunks);
}

fn small(events: Vec<(u64, FlowEvent)>) -> FlowLoad {
    FlowLoad {
        events,
        warmup_us: 1_000_000,
        duration_us: 9_000_000,
        ..AcsExperiment::Kills.load(0.01, 0, 0, 7)
    }
}

#[test]
fn the_same_seed_gives_the_same_outcome_and_another_one_another() {
    let told = |seed| {
        let load = FlowLoad { seed, ..small(vec![(0, FlowEvent::Begin(20))]) };
        let outcome = FlowModel::new(load, FlowCosts::MEASURED).run(|_| {});
        format!("{:?}", outcome)
    };
    assert_eq!(told(1), told(1));
    assert_ne!(told(1), told(2));
}

#[test]
fn what_no_replica_has_any_more_is_read_from_the_durable_layer_and_nothing_is_lost() {
    let begin = (0, FlowEvent::Begin(20));
    let kill = |place| (4_000_000, FlowEvent::Kill(place));
    let all = FlowModel::new(small(vec![begin, kill(0), kill(1), kill(2)]), FlowCosts::MEASURED).run(|_| {});
    let one = FlowModel::new(small(vec![begin, kill(0)]), FlowCosts::MEASURED).run(|_| {});
    assert!(all.totals.durable_reads > 0.0, "{:?}", all.totals);
    assert_eq!(one.totals.durable_reads, 0.0, "two of three are there");
    assert_eq!((all.totals.lost_bytes, one.totals.lost_bytes), (0, 0));
}

#[test]
fn a_cell_that_is_too_small_delays_its_readers_until_it_has_grown() {
    let costs = FlowCosts { read_mib_us: 20_000.0, refill_bytes_per_s: 1e9, ..FlowCosts::MEASURED };
    let load =
        |scaling| FlowLoad { duration_us: 39_000_000, scaling, ..small(vec![(0, FlowEvent::Begin(200))]) };
    let scaling = FlowScaling { bytes_per_s: 20e6, reads_per_s: 1e9 };
    let last = |scaling| {
        let outcome = FlowModel::new(load(scaling), costs).run(|_| {});
        outcome.samples.last().expect("it has samples").clone()
    };
    let (small, grown) = (last(None), last(Some(scaling)));
    assert!(small.backlog_ms > 10.0 && grown.backlog_ms == 0.0, "{small:?} {grown:?}");
    assert!(grown.backends > small.backends);
    assert!(grown.delay_ms.p99 < small.delay_ms.p99, "{small:?} {grown:?}");
}

#[test]
fn a_producer_that_goes_on_writes_what_it_did_not_write_meanwhile() {
    let events =
        vec![(0, FlowEvent::Begin(20)), (3_000_000, FlowEvent::Halt), (5_000_000, FlowEvent::Resume(3.0))];
    let halted = FlowModel::new(small(events), FlowCosts::MEASURED).run(|_| {});
    let steady = FlowModel::new(small(vec![(0, FlowEvent::Begin(20))]), FlowCosts::MEASURED).run(|_| {});
    let part = halted.totals.delivered_bytes / steady.totals.delivered_bytes;
    assert!((0.97..1.03).contains(&part), "{part}");
    assert_eq!(halted.totals.lost_bytes, 0);
}
