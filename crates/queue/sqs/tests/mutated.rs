//! Requests that are nearly right, of every action in both forms, bodies and heads, sent to a server over real
//! connections: it answers each or closes, never panics, never says that something failed here, keeps its memory
//! bounded, and goes on answering.

#![allow(clippy::disallowed_methods)] // it looks at this very process

#[path = "mutated/samples.rs"]
mod samples;

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use samples::{Sample, samples};
use serde_json::{Value, json};
use tailwater_access::{Everybody, Peer};
use tailwater_env::Env;
use tailwater_journal::{Journal, JournalConfig};
use tailwater_queue::{QueuesConfig, Recovery};
use tailwater_sqs::{AccountConfig, Front, KeyConfig, Server, SqsConfig};

/// What the process may grow by: what was sent and is kept, and what the allocator keeps. A single count that was
/// believed would be more.
const GROWTH_BYTES_MAX: u64 = 512 << 20;

/// Many short cases: what is looked for is one of many small mistakes, and not a rare combination.
const CASES: u32 = 4_000;

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Words that mean something to whoever reads JSON, forms, numbers, heads or times.
const WORDS: [&str; 28] = [
    "-1",
    "0",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "1e999",
    "null",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\u0000",
    "\\ud800",
    "\\",
    ",",
    "%",
    "%00",
    "%ff",
    "&",
    "=",
    ".1",
    ".999999999999",
    "\0",
    "\u{e9}",
    "\r\n",
    ";chunk-signature=",
    "All",
];

/// A change of some bytes.
#[derive(Clone, Debug)]
enum Mutation {
    Set(Index, u8),
    Word(Index, &'static str),
    /// A number, or what is left of one, becomes a word.
    Number(Index, &'static str),
    Remove(Index, usize),
    Repeat(Index, usize, usize),
    Cut(Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    use Mutation::{Cut, Number, Remove, Repeat, Set, Word};
    let word = || select(&WORDS[..]);
    prop_oneof![
        3 => (any::<Index>(), any::<u8>()).prop_map(|(at, value)| Set(at, value)),
        4 => (any::<Index>(), word()).prop_map(|(at, word)| Word(at, word)),
        3 => (any::<Index>(), word()).prop_map(|(at, word)| Number(at, word)),
        2 => (any::<Index>(), 1..9_usize).prop_map(|(at, count)| Remove(at, count)),
        1 => (any::<Index>(), 1..40_usize, 1..200_usize).prop_map(|(at, count, times)| Repeat(at, count, times)),
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
            Self::Set(at, value) => bytes[at.index(len)] = *value,
            Self::Word(at, word) => {
                let at = at.index(len);
                bytes.splice(at..at, word.bytes());
            }
            Self::Number(at, word) => {
                let at = at.index(len);
                let Some(begin) = bytes[at..].iter().position(u8::is_ascii_digit).map(|begin| at + begin)
                else {
                    return;
                };
                let digits = bytes[begin..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                bytes.splice(begin..begin + digits, word.bytes());
            }
            Self::Remove(at, count) => {
                let at = at.index(len);
                bytes.drain(at..(at + count).min(len));
            }
            Self::Repeat(at, count, times) => {
                let at = at.index(len);
                let some = bytes[at..(at + count).min(len)].repeat(*times);
                bytes.splice(at..at, some);
            }
            Self::Cut(at) => bytes.truncate(at.index(len)),
        }
    }
}

/// What of a request is mutated.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// The body, whose length is right.
    Body,
    /// The address, or the value of a header.
    Head(Index),
    /// Whatever there is, lengths and ends of lines included.
    Any,
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![3 => Just(Part::Body), 2 => any::<Index>().prop_map(Part::Head), 1 => Just(Part::Any)]
}

fn mutated(sample: &Sample, part: Part, mutations: &[Mutation]) -> Vec<u8> {
    let mut sample = sample.clone();
    let apply = |bytes: &mut Vec<u8>| mutations.iter().for_each(|mutation| mutation.apply(bytes));
    match part {
        Part::Body => apply(&mut sample.body),
        Part::Head(at) => match at.index(sample.headers.len() + 1).checked_sub(1) {
            Some(header) => apply(&mut sample.headers[header].1),
            None => apply(&mut sample.address),
        },
        Part::Any => {
            let mut bytes = sample.bytes();
            apply(&mut bytes);
            return bytes;
        }
    }
    sample.bytes()
}

/// A server, and the thread that it has.
struct Tailwater {
    runtime: tokio::runtime::Runtime,
    env: Env,
    server: Server,
    _dir: tempfile::TempDir,
}

impl Tailwater {
    fn start(config: SqsConfig) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let inside = runtime.enter();
        let env = Env::real();
        let dir = tempfile::tempdir().expect("a directory");
        let mut recovery = Recovery::begin(&env, &dir.path().join("queues")).expect("a tree");
        let config_of_journal = JournalConfig {
            file_bytes: 16 << 20,
            reserve_bytes: 64 << 10,
            record_bytes_max: 3 << 20,
            ..JournalConfig::default()
        };
        let journal =
            Journal::open(&env, &dir.path().join("journal"), config_of_journal, &mut |_, position, bytes| {
                recovery.replay(position, bytes)
            });
        let queues = recovery.finish(&env, journal.expect("a journal"), QueuesConfig::default());
        let front = Front::new(&env, config, Arc::new(queues), Arc::new(Everybody));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = runtime.block_on(tokio::net::TcpListener::bind(any)).expect("a port");
        let server = Server::start(listener, front).expect("it listens");
        drop(inside);
        Self { runtime, env, server, _dir: dir }
    }

    /// Sends bytes and waits until the connection is closed; the answer's status, if there is one.
    fn send(&self, bytes: &[u8], and_no_more: bool) -> Option<u16> {
        let mut stream = TcpStream::connect(self.server.address()).expect("it listens");
        // It may be closed already, which is an answer too.
        let _ = stream.write_all(bytes);
        if and_no_more {
            let _ = stream.shutdown(Shutdown::Write);
        }
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let line = answer.split(|byte| *byte == b'\r').next()?;
        let status = std::str::from_utf8(line).ok()?.split(' ').nth(1)?;
        Some(status.parse().expect("a status"))
    }

    /// An action in JSON, in the same process.
    fn done(&self, action: &str, parameters: &Value) -> Value {
        let request = hyper::Request::post("/")
            .header("host", "h")
            .header("x-amz-target", format!("AmazonSQS.{action}"));
        let request =
            request.body(http_body_util::Full::new(Bytes::from(parameters.to_string()))).expect("a request");
        let peer = Peer::anonymous("this process".to_owned());
        let answer = self.runtime.block_on(self.server.front().answer(&peer, request));
        assert_eq!(answer.status(), 200, "{action}");
        let body =
            self.runtime.block_on(http_body_util::BodyExt::collect(answer.into_body())).expect("whole");
        serde_json::from_slice(&body.to_bytes()).expect("JSON")
    }
}

/// The most memory that this process ever had, in bytes.
fn memory_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") << 10
}

/// Sends mutated samples; how many of those that can be were answered well.
fn try_all(tailwater: &Tailwater, samples: &[Sample]) -> usize {
    std::panic::set_hook(Box::new(|panic| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        eprintln!("{panic}\n{}", std::backtrace::Backtrace::force_capture());
    }));
    for sample in samples {
        let bytes = sample.bytes();
        let text = String::from_utf8_lossy(&bytes);
        let expected = if text.contains(samples::NO_TASK) { 404 } else { 200 };
        assert_eq!(tailwater.send(&bytes, false), Some(expected), "{text} is no request");
    }
    let before = memory_max();
    let mut runner = TestRunner::new(Config { cases: CASES, ..Config::default() });
    let strategy = (any::<Index>(), part(), prop::collection::vec(mutation(), 1..6));
    let done = Cell::new(0);
    let tested = runner.run(&strategy, |(sample, part, mutations)| {
        let bytes = mutated(sample.get(samples), part, &mutations);
        let may_be_open = matches!(part, Part::Any);
        let status = tailwater.send(&bytes, may_be_open);
        let text = String::from_utf8_lossy(&bytes);
        prop_assert_eq!(PANICS.load(Ordering::SeqCst), 0, "{}", text);
        prop_assert!(status.is_none_or(|status| status < 500), "{:?}: {}", status, text);
        prop_assert!(status.is_some() || may_be_open, "not answered: {}", text);
        done.set(done.get() + usize::from(status == Some(200)));
        Ok(())
    });
    tested.unwrap_or_else(|failed| panic!("{failed}"));
    let growth = memory_max() - before;
    assert!(growth < GROWTH_BYTES_MAX, "the process grew by {growth} bytes");
    // Nothing is left of all these connections.
    while tailwater.server.front().stats().connections > 0 {
        std::thread::yield_now();
    }
    done.get()
}

#[test]
fn requests_that_are_nearly_right_are_answered_or_refused_in_both_forms() {
    let tailwater = Tailwater::start(SqsConfig::default());
    let samples = samples(|action, parameters| tailwater.done(action, &parameters));
    let done = try_all(&tailwater, &samples);
    let requests = tailwater.server.front().stats().requests;
    assert!(requests.iter().all(|(_, count)| *count > 0), "an action has no sample: {requests:?}");
    // That they are nearly right, and not just garbage.
    assert!(done > CASES as usize / 10, "{done} were done");

    // What is right is done as before, and whatever was taken is received.
    let url = tailwater.done("CreateQueue", &json!({"QueueName": "afterwards"}))["QueueUrl"].clone();
    tailwater.done("SendMessage", &json!({"QueueUrl": url, "MessageBody": "m"}));
    let received = tailwater.done("ReceiveMessage", &json!({"QueueUrl": url}));
    assert_eq!(received["Messages"][0]["Body"], "m");
    let receive = json!({"QueueUrl": samples::FULL, "MaxNumberOfMessages": 10, "VisibilityTimeout": 40_000, "AttributeNames": ["All"],
        "MessageAttributeNames": ["All"]});
    let mut taken = 0;
    loop {
        let received = tailwater.done("ReceiveMessage", &receive);
        let Some(messages) = received["Messages"].as_array().filter(|messages| !messages.is_empty()) else {
            break;
        };
        taken += messages.len();
    }
    assert!(taken > 10, "{taken} messages");
}

#[test]
fn signed_requests_that_are_nearly_right_are_refused_or_were_not_changed_in_what_is_signed() {
    let key = KeyConfig::new(samples::KEY.0, samples::KEY.1);
    let account = AccountConfig {
        id: "111111111111".to_owned(),
        keys: vec![key],
        requests_per_s: 0,
        bytes_per_s: 0,
        queues_max: 0,
        in_flight_max: 0,
        waiting_max: 0,
    };
    let tailwater = Tailwater::start(SqsConfig { accounts: vec![account], ..SqsConfig::default() });
    let samples = samples::signed(&tailwater.server.address().to_string(), tailwater.env.wall_ms());
    try_all(&tailwater, &samples);
    assert!(tailwater.server.front().stats().refused > u64::from(CASES) / 2);
}
