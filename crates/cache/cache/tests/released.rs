//! What release 0.1.0's backend had in its memory, and what it and its clients said to each other, as it was recorded
//! (`tests/data/0.1.0/make`): today's clients read it, today's backend answers the same, and what is not known here is
//! refused. Nothing is read as something else.

#![allow(clippy::disallowed_methods)] // the recorded files are no part of what is tested

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tailwater_cache::layout::{
    BUCKET_BYTES, BucketView, HEADER_USED_BYTES, IndexHeader, Item, KeyHash, bucket_offset, encode_item,
    scan_bucket,
};
use tailwater_cache::protocol::{
    InfoReply, LookupReply, LookupRequest, METHOD_INFO, METHOD_LOOKUP, METHOD_MUTATE, MutateReply,
    MutateRequest, Outcome, REFUSED_METHOD, encode_mutate,
};
use tailwater_cache::{
    Backend, BackendConfig, Backends, Cell, CellConfig, CellFailure, EvictionPolicy, Lookup, Mode, Version,
};
use tailwater_env::Env;
use tailwater_rma::{
    Address, Backing, CallError, Connection, LocalDoorbell, Peer, Refusal, Region, Reply, ScarHit, ScarOp,
    Server, ServerConfig, Service, local,
};

const ID: u64 = 11;
const BUCKETS: u64 = 4;
const KEYS: u32 = 44;
const FRAME_HEADER_BYTES: usize = 16;

fn key(number: u32) -> Bytes {
    format!("key {number:02}").into()
}

/// What a key holds at last.
fn held(number: u32) -> Option<(Version, Bytes)> {
    match number {
        0 => Some((version(100), Bytes::from("again"))),
        1 => None,
        number => Some((version(number), first_value(number))),
    }
}

fn first_value(number: u32) -> Bytes {
    vec![b'a' + (number % 26) as u8; 1 + (number as usize * 3) % 50].into()
}

fn version(number: u32) -> Version {
    Version { timestamp_us: 1_700_000_000_000_000 + u64::from(number), client_id: 7, sequence: number }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn kept(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("it is kept")
}

/// A CALL that was recorded at a step, and how it was answered: with a payload, or refused by a code.
struct RecordedCall {
    method: u16,
    payload: Bytes,
    answer: Result<Bytes, u16>,
}

fn recorded_call(step: &str) -> RecordedCall {
    let frames = kept("../../ground/rma/tests/data/0.1.0/frames");
    let frame = |direction: &str| {
        let line = frames.lines().find_map(|line| line.strip_prefix(&format!("{step} {direction} ")));
        Bytes::from(bytes_of(line.expect("it was recorded")))
    };
    let argument = |frame: &Bytes| u16::from_le_bytes([frame[6], frame[7]]);
    let (request, response) = (frame(">"), frame("<"));
    assert_eq!((request[5], response[5]), (0x05, 0x85), "{step} is a CALL");
    let body = response.slice(FRAME_HEADER_BYTES..);
    let answer = match argument(&response) {
        0 => Ok(body),
        _ => Err(u16::from_le_bytes([body[0], body[1]])),
    };
    RecordedCall { method: argument(&request), payload: request.slice(FRAME_HEADER_BYTES..), answer }
}

/// The memory that was recorded, served as the release's backend served it: READ and SCAR of the bytes, and LOOKUP by
/// what that backend answered.
struct RecordedBackend {
    regions: Vec<Arc<Region>>,
    items: BTreeMap<KeyHash, Bytes>,
}

impl RecordedBackend {
    fn new() -> Self {
        let mut regions: Vec<Arc<Region>> = Vec::new();
        for line in kept("tests/data/0.1.0/regions").lines() {
            if let Some(head) = line.strip_prefix("region ") {
                let numbers: Vec<u64> =
                    head.split(' ').map(|number| number.parse().expect("a number")).collect();
                let [_, kind, generation, len] = numbers[..] else { panic!("{line:?}") };
                let kind = u16::try_from(kind).expect("a kind");
                let region =
                    Region::create_with_generation("recorded", len, kind, Backing::Private, generation);
                regions.push(Arc::new(region.expect("memory")));
            } else {
                let (offset, hex) = line.split_once(' ').expect("an offset and bytes");
                let region = regions.last().expect("a region comes first");
                region.write(offset.parse().expect("an offset"), &bytes_of(hex));
            }
        }
        let RecordedCall { payload, answer, .. } = recorded_call("lookup");
        let request = LookupRequest::decode(payload).expect("well-formed");
        let hashes: Vec<KeyHash> = request.decode_hashes().expect("whole").collect();
        let mut reply = LookupReply::decode(answer.expect("answered")).expect("well-formed");
        let mut items = BTreeMap::new();
        for (hash, len) in hashes.into_iter().zip(std::mem::take(&mut reply.lengths)) {
            items.insert(hash, reply.items.split_to(len as usize));
        }
        Self { regions, items }
    }

    fn index(&self) -> &Region {
        &self.regions[0]
    }

    fn header(&self) -> [u8; HEADER_USED_BYTES] {
        let mut header = [0; HEADER_USED_BYTES];
        self.index().read(0, &mut header);
        header
    }

    fn bucket(&self, number: u64) -> [u8; BUCKET_BYTES] {
        let mut bucket = [0; BUCKET_BYTES];
        self.index().read(bucket_offset(number), &mut bucket);
        bucket
    }

    fn look_up(&self, payload: Bytes) -> Bytes {
        let request = LookupRequest::decode(payload).expect("well-formed");
        assert_eq!(request.config_id, ID);
        let found: Vec<&Bytes> =
            request.decode_hashes().expect("whole").map(|hash| &self.items[&hash]).collect();
        let lengths = found.iter().map(|item| item.len() as u32).collect();
        let items = found.into_iter().flat_map(|item| item.iter().copied()).collect::<Vec<u8>>().into();
        LookupReply { lengths, items, ages_ms: Vec::new() }.encode_to_vec().into()
    }
}

impl Service for RecordedBackend {
    fn regions(&self) -> Vec<Arc<Region>> {
        self.regions.clone()
    }

    fn scar(&self, op: &ScarOp) -> Option<ScarHit> {
        let data = match scan_bucket(&self.bucket(op.bucket), KeyHash(op.key_hash), ID) {
            BucketView::Found { pointer, .. } => Some((1, pointer.offset, pointer.len)),
            _ => None,
        };
        Some(ScarHit { bucket: (0, bucket_offset(op.bucket), BUCKET_BYTES as u32), data })
    }

    fn call(&self, _: &Peer, method: u16, payload: Bytes, reply: Reply) {
        reply.send(match method {
            METHOD_LOOKUP => Ok(self.look_up(payload)),
            // In its words.
            _ => Err(Refusal { code: REFUSED_METHOD, message: format!("no method {method:#x}") }),
        });
    }
}

fn in_runtime<F: Future<Output = ()>>(test: impl FnOnce(Env) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async { test(Env::real()).await });
}

async fn cell_of(env: &Env, id: u64, backends: Backends) -> Cell {
    let mut config = CellConfig::new(id, Mode::R1, backends, 1);
    config.deadline = Duration::from_secs(60);
    Cell::connect(env, config).await.expect("a cell")
}

/// All keys that the record has, and one that it has not, with what a lookup of them has to answer.
fn expected() -> (Vec<Bytes>, Vec<Option<(Version, Bytes)>>) {
    (0..KEYS).map(|number| (key(number), held(number))).chain([(Bytes::from("none"), None)]).unzip()
}

fn assert_as_held(lookups: Vec<Lookup>) {
    let (keys, expected) = expected();
    assert_eq!(lookups.len(), keys.len());
    for ((lookup, expected), key) in lookups.into_iter().zip(expected).zip(keys) {
        match (lookup, expected) {
            (Lookup::Hit { version, value, .. }, Some(held)) => assert_eq!((version, value), held, "{key:?}"),
            (Lookup::Miss, None) => {}
            (lookup, expected) => panic!("{key:?}: {lookup:?}, and not {expected:?}"),
        }
    }
}

#[test]
fn todays_client_reads_the_memory_of_a_backend_of_release_0_1_0() {
    in_runtime(|env| async move {
        let backend = Arc::new(RecordedBackend::new());
        let (keys, _) = expected();
        let chained = keys.iter().filter(|key| {
            let hash = KeyHash::of(key);
            let view = scan_bucket(&backend.bucket(hash.bucket(BUCKETS)), hash, ID);
            matches!(view, BucketView::Overflowed)
        });
        assert!(chained.count() >= 5, "some keys are in a chain, and are asked for by CALL");

        // Mapped, by READs alone, and over a wire, by SCAR.
        let mapped = local::connect(Arc::clone(&backend) as _, LocalDoorbell::new(), &env);
        let listen = ServerConfig { tcp: Some(([127, 0, 0, 1], 0).into()), ..ServerConfig::default() };
        let server = Server::start(&env, listen, Arc::clone(&backend) as _).expect("a server");
        let wire = Address::Tcp(server.tcp_addr().expect("it listens"));
        for backends in [Backends::connected(vec![mapped]), Backends::at(&env, vec![vec![wire]])] {
            let cell = cell_of(&env, ID, backends).await;
            assert_as_held(cell.get_relaxed(&keys).await);
            assert_as_held(cell.get_consistent(&keys).await);
        }
    });
}

#[test]
fn what_is_not_known_here_is_refused_and_no_value_is_read_of_it() {
    in_runtime(|env| async move {
        // Another cell's memory; and an index that a later version might write, whose checksum is right.
        let mut later = RecordedBackend::new().header();
        later[30] = 4;
        let checksum = twox_hash::XxHash3_64::oneshot(&later[..40]);
        later[40..].copy_from_slice(&checksum.to_le_bytes());
        let mut other_magic = RecordedBackend::new().header();
        other_magic[7] = b'2';
        let checksum = twox_hash::XxHash3_64::oneshot(&other_magic[..40]);
        other_magic[40..].copy_from_slice(&checksum.to_le_bytes());
        for (id, header) in [(ID + 1, None), (ID, Some(later)), (ID, Some(other_magic))] {
            let backend = Arc::new(RecordedBackend::new());
            if let Some(header) = header {
                backend.index().write(0, &header);
                assert_eq!(IndexHeader::decode(&header, backend.index().len()), None);
            }
            let mapped = local::connect(backend as _, LocalDoorbell::new(), &env);
            let cell = cell_of(&env, id, Backends::connected(vec![mapped])).await;
            let (keys, _) = expected();
            for lookup in cell.get_relaxed(&keys).await.into_iter().chain(cell.get_consistent(&keys).await) {
                assert_eq!(lookup, Lookup::Failed(CellFailure::Unreachable), "{id} {header:?}");
            }
        }
    });
}

#[test]
fn what_a_client_of_release_0_1_0_sent_is_decoded_and_would_be_sent_byte_for_byte_today() {
    let set = recorded_call("set");
    assert_eq!(set.method, METHOD_MUTATE);
    let items: Vec<Bytes> = (0..KEYS)
        .map(|number| encode_item(&key(number), version(number), Some(&first_value(number))))
        .collect();
    assert_eq!(set.payload, encode_mutate(ID, items.iter()).concat());

    let change = recorded_call("change");
    let request = MutateRequest::decode(change.payload).expect("well-formed");
    let mut rest = &request.items[..];
    let mut decoded = Vec::new();
    while !rest.is_empty() {
        let item = Item::parse(rest).expect("an item");
        rest = &rest[item.bytes.len()..];
        decoded.push((item.key, item.version, item.value, item.tombstone));
    }
    let expected: [(&[u8], _, &[u8], _); 4] = [
        (b"key 00", version(100), b"again", false),
        (b"key 00", version(99), b"late", false),
        (b"key 01", version(101), b"", true),
        (b"key 01", version(98), b"late", false),
    ];
    assert_eq!(decoded, expected);
    let reply = MutateReply::decode(change.answer.expect("answered")).expect("well-formed");
    let (applied, lost) = (Outcome::Applied, Outcome::Superseded);
    assert_eq!(reply.outcomes(4), Some(vec![applied, lost(version(100)), applied, lost(version(101))]));

    let hashes = (0..KEYS).map(|number| KeyHash::of(&key(number))).chain([KeyHash::of(b"none")]);
    // Today's clients add that they know what is unknown.
    let today = LookupRequest { may_be_unknown: false, ..LookupRequest::of(ID, hashes) };
    assert_eq!(recorded_call("lookup").payload, today.encode_to_vec());
}

#[test]
fn todays_backend_answers_a_client_of_release_0_1_0_as_that_release_did() {
    in_runtime(|env| async move {
        let config = BackendConfig {
            capacity_bytes: 1,
            buckets: BUCKETS,
            ttl: Duration::from_secs(3_600),
            eviction_at: 0.8,
            eviction: EvictionPolicy::Lrm,
            config_id: ID,
            backing: Backing::Private,
        };
        let backend = Backend::start(&env, config).expect("memory");
        let connection: Arc<dyn Connection> =
            local::connect(Arc::clone(&backend) as _, LocalDoorbell::new(), &env);
        for step in ["set", "change", "other-config", "malformed", "ahead", "no-method", "lookup"] {
            let RecordedCall { method, payload, answer } = recorded_call(step);
            match (connection.call(method, payload).await, answer) {
                (Ok(today), Ok(recorded)) => assert_eq!(today, recorded, "{step}"),
                (Err(CallError::Refused { code, .. }), Err(recorded)) => assert_eq!(code, recorded, "{step}"),
                (today, recorded) => panic!("{step}: {today:?}, and not {recorded:?}"),
            }
        }
        // It has counters by now that the release had not.
        let RecordedCall { method, payload, answer } = recorded_call("info");
        assert_eq!(method, METHOD_INFO);
        let recorded = InfoReply::decode(answer.expect("answered")).expect("well-formed");
        let today = connection.call(method, payload).await.expect("answered");
        let today = InfoReply::decode(today).expect("well-formed");
        let of = |info: &InfoReply| {
            let InfoReply { items, live_bytes, sets, erases, superseded, overflowed, lookups, .. } = info;
            (*items, *live_bytes, *sets, *erases, *superseded, *overflowed, *lookups)
        };
        assert_eq!(of(&today), of(&recorded));
        assert_eq!((recorded.items, recorded.sets), (43, 45));
        connection.call(recorded_call("clear").method, Bytes::new()).await.expect("cleared");
        assert_eq!(backend.stats().items, 0);
    });
}

#[test]
fn the_index_that_release_0_1_0_wrote_names_every_key_where_it_is() {
    let backend = RecordedBackend::new();
    let header = IndexHeader::decode(&backend.header(), backend.index().len()).expect("it is known here");
    assert_eq!((header.config_id, header.buckets), (ID, BUCKETS));
    assert_eq!(header.data_generation, backend.regions[1].generation());
    assert!(header.is_filled && !header.has_moved);
    let mut found = 0;
    for number in 0..KEYS {
        let hash = KeyHash::of(&key(number));
        let BucketView::Found { version, pointer } =
            scan_bucket(&backend.bucket(hash.bucket(BUCKETS)), hash, ID)
        else {
            continue;
        };
        let mut bytes = vec![0; pointer.len as usize];
        backend.regions[1].read(pointer.offset, &mut bytes);
        let item = Item::parse(&bytes).expect("an item");
        assert_eq!((item.key, item.tombstone), (&key(number)[..], false));
        assert_eq!(Some((version, Bytes::copy_from_slice(item.value))), held(number));
        assert_eq!(item.version, version);
        found += 1;
    }
    assert!(found >= 27, "{found} of {KEYS} keys are in buckets");
}

#[test]
fn each_release_has_memory_here_that_its_backend_has_written() {
    let releases = kept("../../../RELEASES");
    for release in releases.lines().filter(|line| !line.starts_with('#')) {
        let version = release.split(' ').next().expect("a version");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(version);
        assert!(folder.join("regions").exists(), "record what {version} writes: {}", folder.display());
    }
}
