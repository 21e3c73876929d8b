//! Bits of the backends' memory change at random while clients read and write: nobody is answered a value that was not
//! set, or an older one than was acknowledged, and nothing crashes. What is damaged is missed at worst.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tailwater_cache::layout::HEADER_BYTES;
use tailwater_cache::{
    Backend, BackendConfig, Backends, Cell, CellConfig, CellValue, EvictionPolicy, ItemExtras, Lookup,
    LookupWay, Mode, UpdateError, UpdateTo,
};
use tailwater_env::Env;
use tailwater_rma::{Address, Backing, LocalDoorbell, Server, ServerConfig, Service, local};

const ID: u64 = 11;
const KEYS: u64 = 96;
const COUNTER: &[u8] = b"counter";
const ROUNDS: u64 = 300;
/// Rounds for each time that the counter is counted up.
const ROUNDS_PER_UPDATE: u64 = 8;
/// Bits of the values' memory that change in each round, and rounds for each that changes in the index.
const FLIPS_PER_ROUND: u64 = 600;
const ROUNDS_PER_INDEX_FLIP: u64 = 8;

fn key(number: u64) -> Bytes {
    format!("key {number}").into()
}

/// The `n`-th value of a key, which no other key and number has.
fn value(key: u64, n: u64) -> Bytes {
    let words = [key, n, key.wrapping_mul(31) ^ n];
    let word = |at: u64| words[at as usize % 3].wrapping_mul(at + 1).to_le_bytes();
    let len = 16 + (key * 97 + n * 13) % 3_000;
    let mut bytes = [key.to_le_bytes(), n.to_le_bytes()].concat();
    bytes.extend((0..len / 8).flat_map(word));
    bytes.into()
}

/// Which of a key's values it is.
fn number_of(key: u64, bytes: &Bytes) -> u64 {
    let n = bytes.get(8..16).map(|n| u64::from_le_bytes(n.try_into().expect("eight bytes")));
    let n = n.unwrap_or_else(|| panic!("key {key} was answered with {bytes:?}"));
    assert!(*bytes == value(key, n), "key {key} was answered with what was never set");
    n
}

/// Numbers that are the same in each run.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Changes one bit somewhere behind `from`.
fn flip(backend: &Backend, region: usize, from: u64, random: &mut Xorshift) {
    let region = &backend.regions()[region];
    let place = from + random.below(region.len() - from);
    let mut byte = [0];
    region.read(place, &mut byte);
    region.write(place, &[byte[0] ^ 1 << random.below(8)]);
}

async fn connect(env: &Env, backends: Backends, client_id: u32) -> Cell {
    let mut config = CellConfig::new(ID, Mode::R32, backends, client_id);
    config.deadline = Duration::from_secs(60);
    config.reconnect_after_max = Duration::from_millis(20);
    Cell::connect(env, config).await.expect("a cell")
}

fn one_more(held: Option<&CellValue>) -> UpdateTo {
    let count: u64 = held.map_or(0, |held| String::from_utf8_lossy(&held.value).parse().expect("a number"));
    UpdateTo::Set((count + 1).to_string().into(), ItemExtras::default())
}

/// What is known of each key: the number of the last value that was acknowledged.
type Acknowledged = Arc<Vec<AtomicU64>>;

/// Gets some keys in one way; how many were hit.
async fn get(cell: &Cell, acknowledged: &Acknowledged, is_consistent: bool, random: &mut Xorshift) -> u64 {
    let numbers: Vec<u64> = (0..8).map(|_| random.below(KEYS)).collect();
    let keys: Vec<Bytes> = numbers.iter().copied().map(key).collect();
    let floors: Vec<u64> =
        numbers.iter().map(|key| acknowledged[*key as usize].load(Ordering::Acquire)).collect();
    let lookups = match is_consistent {
        true => cell.get_consistent(&keys).await,
        false => cell.get_relaxed(&keys).await,
    };
    let mut hits = 0;
    for ((key, floor), lookup) in numbers.into_iter().zip(floors).zip(lookups) {
        let Lookup::Hit { value, .. } = lookup else { continue };
        let n = number_of(key, &value);
        assert!(!is_consistent || n >= floor, "key {key}: value {n} was answered after {floor}");
        hits += 1;
    }
    hits
}

#[test]
fn whichever_bits_of_the_memory_change_while_it_is_read_nobody_gets_a_wrong_value_and_nothing_crashes() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let env = Env::real();
        let (mut backends, mut servers, mut near, mut far) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..3 {
            let config = BackendConfig {
                capacity_bytes: 1,
                buckets: 32,
                ttl: Duration::from_secs(3_600),
                eviction_at: 0.8,
                eviction: EvictionPolicy::S3Fifo,
                config_id: ID,
                backing: Backing::Private,
            };
            let backend = Backend::start(&env, config).expect("memory");
            let listen = ServerConfig { tcp: Some(([127, 0, 0, 1], 0).into()), ..ServerConfig::default() };
            let server = Server::start(&env, listen, Arc::clone(&backend) as _).expect("a server");
            near.push(local::connect(Arc::clone(&backend) as _, LocalDoorbell::new(), &env));
            far.push(vec![Address::Tcp(server.tcp_addr().expect("it listens"))]);
            servers.push(server);
            backends.push(backend);
        }
        let mapped = connect(&env, Backends::connected(near), 1).await;
        let wired = connect(&env, Backends::at(&env, far), 2).await;
        let acknowledged: Acknowledged = Arc::new((0..KEYS).map(|_| AtomicU64::new(0)).collect());

        let mut random = Xorshift(0x5eed_5eed_5eed_5eed);
        let (mut hits, mut counted, mut unknown) = ([0; 2], 0_u64, 0_u64);
        for round in 1..=ROUNDS {
            for _ in 0..FLIPS_PER_ROUND {
                flip(&backends[random.below(3) as usize], 1, 0, &mut random);
            }
            if round % ROUNDS_PER_INDEX_FLIP == 0 {
                // A header says by itself whether it is whole: who connects anew reads it.
                flip(&backends[random.below(3) as usize], 0, HEADER_BYTES, &mut random);
            }
            // A value is set while others are read, so that some are met half way.
            let set = async {
                let number = round % KEYS;
                let done = wired.set(vec![(key(number), value(number, round))]).await;
                if done[0].is_ok() {
                    acknowledged[number as usize].store(round, Ordering::Release);
                }
            };
            let way = LookupWay::ALL[random.below(LookupWay::ALL.len() as u64) as usize];
            let mut others = [Xorshift(random.0 | 1), Xorshift(random.0.rotate_left(9) | 1)];
            let [first, second] = &mut others;
            let wired = wired.with_lookup(way);
            let ((), by_memory, by_wire) = futures::join!(
                set,
                get(&mapped, &acknowledged, round % 2 == 0, first),
                get(&wired, &acknowledged, round % 3 == 0, second),
            );
            hits = [hits[0] + by_memory, hits[1] + by_wire];
            if round % ROUNDS_PER_UPDATE != 0 {
                continue;
            }
            match wired.update(COUNTER.into(), one_more).await {
                Ok(_) => counted += 1,
                Err(UpdateError::Unknown) => unknown += 1,
                Err(_) => {}
            }
        }
        println!("{hits:?} values were got; {counted} updates acknowledged, {unknown} unknown");
        assert!(hits.iter().all(|hits| *hits > 300), "{hits:?}");
        assert!(counted > 0);
        if let Lookup::Hit { value, .. } = &wired.get_consistent(&[COUNTER.into()]).await[0] {
            let held: u64 = String::from_utf8_lossy(value).parse().expect("a number");
            assert!((counted..=counted + unknown).contains(&held), "{held}, of {counted} and {unknown}");
        }
        let stats = mapped.stats();
        println!("{stats:?}");
        drop(servers);
    });
}
