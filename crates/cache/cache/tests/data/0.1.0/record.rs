//! Runs within the tree of release 0.1.0, where `make` puts it: records what that release's client and backend say to
//! each other over TCP, and the backend's memory as it is then. The keys, values and versions are the same each time.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tailwater_cache::layout::{HEADER_USED_BYTES, KeyHash, bucket_offset, encode_entry};
use tailwater_cache::protocol::{
    LookupRequest, METHOD_CLEAR, METHOD_INFO, METHOD_LOOKUP, METHOD_MUTATE, encode_mutate,
};
use tailwater_cache::{Backend, BackendConfig, Version};
use tailwater_env::Env;
use tailwater_rma::{Address, Backing, Connection, ReadOp, RegionId, ScarOp, Server, ServerConfig, Service};

const CONFIG_ID: u64 = 11;
const BUCKETS: u64 = 4;
const KEYS: u32 = 44;

fn key(number: u32) -> Vec<u8> {
    format!("key {number:02}").into_bytes()
}

fn value(number: u32) -> Vec<u8> {
    vec![b'a' + (number % 26) as u8; 1 + (number as usize * 3) % 50]
}

fn version(number: u32) -> Version {
    Version { timestamp_us: 1_700_000_000_000_000 + u64::from(number), client_id: 7, sequence: number }
}

/// What went over a connection in both directions since it was looked at last.
#[derive(Default)]
struct Spoken {
    requests: Vec<u8>,
    responses: Vec<u8>,
}

/// Passes what comes on to `to`, and keeps it before it does.
fn pass(mut from: TcpStream, mut to: TcpStream, spoken: Arc<Mutex<Spoken>>, kept: fn(&mut Spoken) -> &mut Vec<u8>) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            kept(&mut spoken.lock().unwrap()).extend_from_slice(&buffer[..len]);
            to.write_all(&buffer[..len]).unwrap();
        }
    });
}

fn listener_in_front_of(server: SocketAddr, spoken: &Arc<Mutex<Spoken>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, spoken) = (listener.local_addr().unwrap(), Arc::clone(spoken));
    std::thread::spawn(move || {
        let client = listener.accept().unwrap().0;
        let server = TcpStream::connect(server).unwrap();
        pass(client.try_clone().unwrap(), server.try_clone().unwrap(), Arc::clone(&spoken), |s| &mut s.requests);
        pass(server, client, spoken, |s| &mut s.responses);
    });
    address
}

struct Recorder {
    spoken: Arc<Mutex<Spoken>>,
    lines: String,
}

impl Recorder {
    /// Notes all frames since the last note as those of a step.
    fn note(&mut self, step: &str) {
        let Spoken { requests, responses } = std::mem::take(&mut *self.spoken.lock().unwrap());
        for (direction, mut rest) in [('>', &requests[..]), ('<', &responses[..])] {
            while !rest.is_empty() {
                let len = 16 + u32::from_le_bytes(rest[..4].try_into().unwrap()) as usize;
                writeln!(self.lines, "{step} {direction} {}", hex(&rest[..len])).unwrap();
                rest = &rest[len..];
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn mutation(config_id: u64, entries: &[Bytes]) -> Bytes {
    encode_mutate(config_id, entries.iter()).concat().into()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut args = std::env::args().skip(1);
    let (frames, regions) = (args.next().expect("FRAMES"), args.next().expect("REGIONS"));
    let env = Env::real();
    let config = BackendConfig {
        capacity_bytes: 1,
        buckets: BUCKETS,
        ttl: Duration::from_secs(3600),
        eviction_at: 0.8,
        config_id: CONFIG_ID,
        backing: Backing::Private,
    };
    let backend = Backend::start(&env, config).unwrap();
    let listen = ServerConfig { tcp: Some(([127, 0, 0, 1], 0).into()), ..ServerConfig::default() };
    let server = Server::start(&env, listen, Arc::clone(&backend) as Arc<dyn Service>).unwrap();
    let doorbell = server.doorbell();
    backend.ring_on_change(move || doorbell.ring());

    let spoken = Arc::new(Mutex::new(Spoken::default()));
    let address = Address::Tcp(listener_in_front_of(server.tcp_addr().unwrap(), &spoken));
    let mut recorder = Recorder { spoken, lines: String::new() };
    let connection: Arc<dyn Connection> = tailwater_rma::connect(&env, &address).await.unwrap();
    recorder.note("hello");

    let entries: Vec<Bytes> =
        (0..KEYS).map(|n| encode_entry(&key(n), version(n), Some(&value(n)))).collect();
    connection.call(METHOD_MUTATE, mutation(CONFIG_ID, &entries)).await.unwrap();
    recorder.note("set");
    let entries = [
        // Later than what is there, and earlier; an erased key, and one that is set at a version before that.
        encode_entry(&key(0), version(100), Some(b"again")),
        encode_entry(&key(0), version(99), Some(b"late")),
        encode_entry(&key(1), version(101), None),
        encode_entry(&key(1), version(98), Some(b"late")),
    ];
    connection.call(METHOD_MUTATE, mutation(CONFIG_ID, &entries)).await.unwrap();
    recorder.note("change");
    connection.call(METHOD_MUTATE, mutation(CONFIG_ID + 1, &entries)).await.unwrap_err();
    recorder.note("other-config");
    connection.call(METHOD_MUTATE, Bytes::from_static(b"\xff\xff")).await.unwrap_err();
    recorder.note("malformed");
    let ahead = Version { timestamp_us: u64::MAX, client_id: 7, sequence: 0 };
    let ahead = mutation(CONFIG_ID, &[encode_entry(b"ahead", ahead, Some(b""))]);
    connection.call(METHOD_MUTATE, ahead).await.unwrap_err();
    recorder.note("ahead");
    connection.call(0x01ff, Bytes::new()).await.unwrap_err();
    recorder.note("no-method");

    let infos = connection.regions();
    let op = |region: u32, offset: u64, len: u32| ReadOp {
        region: RegionId(region),
        generation: infos[region as usize].generation,
        offset,
        len,
    };
    let mut header = [0; HEADER_USED_BYTES];
    connection.read(&[op(0, 0, HEADER_USED_BYTES as u32)], &mut header).await.unwrap();
    recorder.note("header");
    let stale = ReadOp { generation: 1, ..op(1, 0, 64) };
    let ops = [op(0, bucket_offset(2), 384), op(1, infos[1].len, 64), stale];
    connection.read(&ops, &mut [0; 512]).await.unwrap();
    recorder.note("read");
    let scar = |key: &[u8]| {
        let hash = KeyHash::of(key);
        ScarOp { bucket: hash.bucket(BUCKETS), key_hash: hash.0, apart: 38 }
    };
    // The first one is held and the second one is not; no bucket has the third one's number.
    let ops = [scar(&key(0)), scar(b"none"), ScarOp { bucket: BUCKETS, ..scar(b"none") }];
    connection.scar(&ops).await.unwrap();
    recorder.note("scar");
    let hashes = (0..KEYS).map(|n| KeyHash::of(&key(n))).chain([KeyHash::of(b"none")]);
    let lookup = prost::Message::encode_to_vec(&LookupRequest::of(CONFIG_ID, hashes));
    connection.call(METHOD_LOOKUP, lookup.into()).await.unwrap();
    recorder.note("lookup");
    connection.call(METHOD_INFO, Bytes::new()).await.unwrap();
    recorder.note("info");
    connection.watch(0, Duration::from_secs(4)).await.unwrap();
    recorder.note("watch");

    let mut lines = String::new();
    for (number, region) in backend.regions().iter().enumerate() {
        writeln!(lines, "region {number} {} {} {}", region.kind(), region.generation(), region.len()).unwrap();
        for offset in (0..region.len()).step_by(64) {
            let mut some = [0; 64];
            region.read(offset, &mut some);
            if some != [0; 64] {
                writeln!(lines, "{offset} {}", hex(&some)).unwrap();
            }
        }
    }
    std::fs::write(regions, lines).unwrap();
    connection.call(METHOD_CLEAR, Bytes::new()).await.unwrap();
    recorder.note("clear");
    std::fs::write(frames, recorder.lines).unwrap();
}
