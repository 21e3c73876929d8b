//! Frames that are nearly right, of every API and version, sent to a broker over real connections: it answers or closes
//! each, never panics, keeps its memory bounded, and goes on answering everybody else. And its answers, nearly right,
//! as our own clients read them.

#![allow(clippy::disallowed_methods)] // it looks at this very process

mod common;
#[path = "mutated/samples.rs"]
mod samples;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use common::{Client, Tailwater, batch, changed};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use samples::{Sample, TOPIC, produce, samples};
use tailwater_format::Codec;
use tailwater_kafka::KafkaConfig;
use tailwater_kafka::api::Api;
use tailwater_kafka::messages::cluster::{MetadataRequest, MetadataRequestTopic};
use tailwater_kafka::messages::header::request;
use uuid::Uuid;

/// What the process may grow by: some topics with thousands of partitions each, and what the allocator keeps. A single
/// count that was believed would be more.
const GROWTH_BYTES_MAX: u64 = 1 << 30;

/// Many short cases: what is looked for is one of many small mistakes, and not a rare combination.
const CASES: u32 = 10_000;

/// What reading an answer takes at most for each byte of it: an item of an array is at least one byte, and is kept in
/// some hundreds, in a vector that grows by doubling.
const BYTES_PER_BYTE_MAX: u64 = 2_000;

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// A change of some bytes.
#[derive(Clone, Debug)]
enum Mutation {
    Flip(Index, u8),
    Set(Index, u8),
    /// A number of 1, 2, 4 or 8 bytes at its bounds.
    Bound(Index, usize, usize),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize),
    Cut(Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    use Mutation::{Bound, Cut, Flip, Insert, Remove, Repeat, Set};
    prop_oneof![
        3 => (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| Flip(at, bit)),
        3 => (any::<Index>(), any::<u8>()).prop_map(|(at, value)| Set(at, value)),
        4 => (any::<Index>(), 0..4_usize, 0..5_usize).prop_map(|(at, width, bound)| Bound(at, width, bound)),
        2 => (any::<Index>(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Insert(at, bytes)),
        2 => (any::<Index>(), 1..9_usize).prop_map(|(at, count)| Remove(at, count)),
        1 => (any::<Index>(), 1..40_usize).prop_map(|(at, count)| Repeat(at, count)),
        1 => any::<Index>().prop_map(Cut),
    ]
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let len = bytes.len();
        match self {
            Self::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
            Self::Set(at, value) => bytes[at.index(len)] = *value,
            Self::Bound(at, width, bound) => {
                let at = at.index(len);
                let number: i64 = [0, -1, i64::MAX, i64::MIN, 1 << 24][*bound];
                let number = number.to_be_bytes();
                let width = (1 << width).min(len - at);
                // The end with the sign is the first one, but a small number is at the other.
                let from = if matches!(bound, 2 | 3) { 0 } else { 8 - width };
                bytes[at..at + width].copy_from_slice(&number[from..from + width]);
            }
            Self::Insert(at, some) => {
                let at = at.index(len);
                bytes.splice(at..at, some.iter().copied());
            }
            Self::Remove(at, count) => {
                let at = at.index(len);
                bytes.drain(at..(at + count).min(len));
            }
            Self::Repeat(at, count) => {
                let at = at.index(len);
                let some = bytes[at..(at + count).min(len)].to_vec();
                bytes.splice(at..at, some);
            }
            Self::Cut(at) => bytes.truncate(at.index(len)),
        }
    }
}

/// The frame after its mutations, with the length that it has then.
fn mutated(frame: &[u8], mutations: &[Mutation]) -> Vec<u8> {
    // API and version stay, so that what follows is looked at.
    let mut rest = frame[8..].to_vec();
    mutations.iter().for_each(|mutation| mutation.apply(&mut rest));
    let len = i32::try_from(rest.len() + 4).expect("short");
    [&len.to_be_bytes()[..], &frame[4..8], &rest].concat()
}

/// Sends bytes and nothing more, and waits until the broker has closed the connection; whether it answered before.
fn send(tailwater: &Tailwater, bytes: &[u8]) -> bool {
    let mut stream = TcpStream::connect(tailwater.address()).expect("it listens");
    // It may be closed already, which is an answer too.
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    !answer.is_empty()
}

/// The most memory that this process ever had, in bytes.
fn memory_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") << 10
}

fn topic(tailwater: &Tailwater, name: &str) -> Uuid {
    let topic = MetadataRequestTopic { topic_id: Uuid::nil(), name: Some(name.to_owned()) };
    let asked = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
    let answer = Client::connect(tailwater.address()).ask(12, &asked).expect("an answer");
    assert_eq!(answer.topics[0].error_code, 0);
    answer.topics[0].topic_id
}

fn with_broker(test: impl FnOnce(&Tailwater, &mut TestRunner)) {
    std::panic::set_hook(Box::new(|panic| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        eprintln!("{panic}\n{}", std::backtrace::Backtrace::force_capture());
    }));
    let mut config = KafkaConfig {
        frame_bytes_max: 1 << 20,
        requests_bytes_max: 4 << 20,
        fetch_bytes_max: 1 << 20,
        hot_bytes: 1 << 20,
        ..KafkaConfig::default()
    };
    // Nobody is waited for.
    config.groups.initial_rebalance_delay_ms = 0;
    let tailwater = Tailwater::start(config);
    let before = memory_max();
    let mut runner = TestRunner::new(Config { cases: CASES, ..Config::default() });
    test(&tailwater, &mut runner);
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
    let growth = memory_max() - before;
    assert!(growth < GROWTH_BYTES_MAX, "the process grew by {growth} bytes");

    // Nothing is left of all these connections, and what is right is answered as before.
    while tailwater.broker().stats().read().connections > 0 {
        std::thread::yield_now();
    }
    let id = topic(&tailwater, "afterwards");
    let mut asked = produce(id, batch(&[1, 2], Codec::Zstd, None));
    asked.topic_data[0].name = "afterwards".to_owned();
    let answer = Client::connect(tailwater.address()).ask(9, &asked).expect("an answer");
    assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
}

#[test]
fn frames_that_are_nearly_right_are_answered_or_refused_in_every_api_and_version() {
    with_broker(|tailwater, runner| {
        let samples = samples(topic(tailwater, TOPIC));
        let covered: BTreeSet<(i16, i16)> =
            samples.iter().map(|sample| (sample.api, sample.version)).collect();
        for api in Api::ALL {
            for version in api.versions() {
                assert!(covered.contains(&(api.number(), version)), "no sample of {} {version}", api.name());
            }
        }
        for Sample { frame, .. } in &samples {
            assert!(Client::connect(tailwater.address()).exchange(frame).is_some(), "a sample is no request");
        }
        let strategy = (any::<Index>(), prop::collection::vec(mutation(), 1..6));
        let answered = Cell::new(0);
        let tested = runner.run(&strategy, |(sample, mutations)| {
            let sample = sample.get(&samples);
            answered.set(answered.get() + usize::from(send(tailwater, &mutated(&sample.frame, &mutations))));
            prop_assert_eq!(PANICS.load(Ordering::SeqCst), 0, "API {} {}", sample.api, sample.version);
            Ok(())
        });
        tested.unwrap_or_else(|failed| panic!("{failed}"));
        // That they are nearly right, and not just garbage.
        assert!(answered.get() > CASES as usize / 10, "{} answers", answered.get());
    });
}

#[test]
fn answers_that_are_nearly_right_are_read_or_refused_in_no_more_memory_than_they_have_bytes_for() {
    with_broker(|tailwater, runner| {
        let mut answers: Vec<(Sample, Bytes)> = Vec::new();
        for sample in samples(topic(tailwater, TOPIC)) {
            let answer = Client::connect(tailwater.address()).exchange(&sample.frame).expect("an answer");
            assert!(
                (sample.read_answer)(sample.version, answer.clone()),
                "{} {}",
                sample.api,
                sample.version
            );
            answers.push((sample, answer));
        }
        let strategy = (any::<Index>(), prop::collection::vec(mutation(), 1..6));
        let read = Cell::new(0);
        let tested = runner.run(&strategy, |(index, mutations)| {
            let (sample, answer) = index.get(&answers);
            // The correlation id stays, as it is looked at before.
            let (id, rest) = answer.split_at(4);
            let mut rest = rest.to_vec();
            mutations.iter().for_each(|mutation| mutation.apply(&mut rest));
            let bytes = Bytes::from([id, &rest].concat());
            let len = bytes.len() as u64;
            let mut is_one = false;
            let taken = allocation_counter::measure(|| is_one = (sample.read_answer)(sample.version, bytes));
            read.set(read.get() + usize::from(is_one));
            prop_assert!(taken.bytes_max <= len * BYTES_PER_BYTE_MAX, "{} bytes for {len}", taken.bytes_max);
            Ok(())
        });
        tested.unwrap_or_else(|failed| panic!("{failed}"));
        assert!(read.get() > CASES as usize / 10, "{} were read", read.get());
    });
}

#[test]
fn batches_that_are_nearly_right_under_right_checksums_are_taken_or_refused_and_what_was_taken_is_read() {
    with_broker(|tailwater, runner| {
        let id = topic(tailwater, TOPIC);
        let codecs = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];
        let batches: Vec<Bytes> = codecs
            .iter()
            .flat_map(|codec| [batch(&[1, 2, 3], *codec, None), batch(&[1, 2], *codec, Some((9, 0, 0)))])
            .collect();
        let strategy = (any::<Index>(), prop::collection::vec(mutation(), 1..4));
        let answered = Cell::new(0);
        let tested = runner.run(&strategy, |(index, mutations)| {
            let mut records = index.get(&batches)[12..].to_vec();
            mutations.iter().for_each(|mutation| mutation.apply(&mut records));
            let len = i32::try_from(records.len()).expect("short");
            let records: Bytes = [&[0; 8][..], &len.to_be_bytes(), &records].concat().into();
            let records = if records.len() > 61 { changed(&records, 0, &[]) } else { records };
            let frame = request(&produce(id, records), 9, 7, "test").concat();
            answered.set(answered.get() + usize::from(send(tailwater, &frame)));
            prop_assert_eq!(PANICS.load(Ordering::SeqCst), 0);
            Ok(())
        });
        tested.unwrap_or_else(|failed| panic!("{failed}"));
        // Whatever was taken, every consumer can read.
        let mut client = Client::connect(tailwater.address());
        let taken = common::read_all(&mut client, TOPIC, id);
        assert!(
            answered.get() > CASES as usize / 10 && taken > 0,
            "{} answers, {taken} records",
            answered.get()
        );
    });
}
