//! A service for tests, reached over each of the transports.

#![allow(dead_code)] // each test file uses its part

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Env;
use tailwater_rma::{
    Address, Backing, CALL_BYTES_MAX, ConnectError, Connection, Doorbell, EngineKind, LocalDoorbell, Peer,
    ReadOp, Refusal, Region, RegionId, Reply, ScarHit, ScarOp, Server, ServerConfig, Service, connect_with,
    local,
};
use tailwater_tls::authority::{Authority, CertificateWanted};
use tailwater_tls::{Acceptor, Certificates, ClientCertificates, Dialer, DialerConfig, TlsConfig};

pub const METHOD_ECHO: u16 = 1;
pub const METHOD_REFUSE: u16 = 2;
pub const METHOD_ABANDON: u16 = 3;
pub const METHOD_PANIC: u16 = 4;
pub const METHOD_LARGE: u16 = 5;
/// Is not answered before the test's end.
pub const METHOD_HANG: u16 = 6;
/// Is noted; short.
pub const METHOD_NOTE: u16 = 7;
/// Is noted once the test opens the gate.
pub const METHOD_NOTE_LATER: u16 = 8;
/// Answers who asks.
pub const METHOD_WHO: u16 = 9;
pub const CODE_REFUSED: u16 = 77;
pub const BUCKETS: u64 = 64;
const REGION_BYTES: u64 = 2 << 20;

pub struct TestService {
    pub regions: Vec<Arc<Region>>,
    pub hanging: std::sync::Mutex<Vec<Reply>>,
    pub noted: std::sync::Mutex<Vec<Bytes>>,
    /// Whether it is open.
    pub gate: (std::sync::Mutex<bool>, std::sync::Condvar),
}

impl TestService {
    pub fn new(backing: Backing) -> Arc<Self> {
        let region =
            |kind| Arc::new(Region::create("test", REGION_BYTES, kind, backing).expect("there is memory"));
        Arc::new(Self {
            regions: vec![region(1), region(2)],
            hanging: std::sync::Mutex::default(),
            noted: std::sync::Mutex::default(),
            gate: Default::default(),
        })
    }

    fn note(&self, payload: Bytes, reply: Reply) {
        self.noted.lock().expect("no test panics with it").push(payload);
        reply.send(Ok(Bytes::new()));
    }

    pub fn open_gate(&self) {
        *self.gate.0.lock().expect("no test panics with it") = true;
        self.gate.1.notify_all();
    }
}

impl Service for TestService {
    fn regions(&self) -> Vec<Arc<Region>> {
        self.regions.clone()
    }

    fn scar(&self, op: &ScarOp) -> Option<ScarHit> {
        let data = match op.key_hash {
            1 => Some((1, 0, 512 << 10)),
            0 => None,
            at => Some((1, at as u64, 256)),
        };
        (op.bucket < BUCKETS).then_some(ScarHit { bucket: (0, op.bucket * 64, 64), data })
    }

    fn is_short(&self, method: u16, _payload: &Bytes) -> bool {
        method == METHOD_NOTE
    }

    fn call(&self, peer: &Peer, method: u16, payload: Bytes, reply: Reply) {
        match method {
            METHOD_NOTE => self.note(payload, reply),
            METHOD_NOTE_LATER => {
                let closed = self.gate.0.lock().expect("no test panics with it");
                drop(self.gate.1.wait_while(closed, |open| !*open).expect("no test panics with it"));
                self.note(payload, reply);
            }
            METHOD_WHO => reply.send(Ok(Bytes::from(peer.principal.as_bytes().to_vec()))),
            METHOD_ECHO => reply.send(Ok(payload)),
            METHOD_REFUSE => reply.send(Err(Refusal { code: CODE_REFUSED, message: "no".to_owned() })),
            METHOD_PANIC => panic!("as the test asked"),
            METHOD_LARGE => reply.send(Ok(Bytes::from(vec![0; CALL_BYTES_MAX + 1]))),
            METHOD_HANG => self.hanging.lock().expect("no test panics with it").push(reply),
            _ => drop(reply),
        }
    }
}

/// libfabric's providers in software.
pub const PROVIDERS: [&str; 2] = ["tcp;ofi_rxm", "shm"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Local,
    /// Mapped regions.
    Shm,
    /// A Unix socket whose server cannot pass its regions.
    UnixFrames,
    Tcp,
    Tls,
    /// libfabric with this provider.
    Ofi(&'static str),
}

enum Bell {
    Local(LocalDoorbell),
    Server(Doorbell),
}

impl Bell {
    fn ring(&self) {
        match self {
            Bell::Local(bell) => bell.ring(),
            Bell::Server(bell) => bell.ring(),
        }
    }
}

/// A served service, and a connection to it.
pub struct World {
    pub transport: Transport,
    pub env: Env,
    pub service: Arc<TestService>,
    pub connection: Arc<dyn Connection>,
    pub address: Option<Address>,
    bell: Arc<Bell>,
    pub server: Option<Server>,
    /// What takes connections to `address`.
    pub tls: Tls,
    dir: tempfile::TempDir,
}

impl World {
    pub async fn new(transport: Transport) -> Self {
        Self::with_config(transport, ServerConfig::default()).await
    }

    pub async fn with_config(transport: Transport, config: ServerConfig) -> Self {
        let env = Env::real();
        let dir = tempfile::tempdir().expect("a directory");
        let tls = match transport {
            Transport::Tls => Tls::new(&env, dir.path()),
            _ => Tls::default(),
        };
        let private = matches!(transport, Transport::Local | Transport::UnixFrames);
        let service = TestService::new(if private { Backing::Private } else { Backing::Shared });
        let config = match transport {
            Transport::Local => {
                let bell = LocalDoorbell::new();
                let connection = local::connect(service.clone(), bell.clone(), &env);
                let bell = Arc::new(Bell::Local(bell));
                return Self {
                    transport,
                    env,
                    service,
                    connection,
                    address: None,
                    bell,
                    server: None,
                    tls,
                    dir,
                };
            }
            Transport::Tcp | Transport::Tls => {
                ServerConfig { tcp: Some(([127, 0, 0, 1], 0).into()), tls: tls.acceptor.clone(), ..config }
            }
            Transport::Ofi(provider) => ServerConfig {
                tcp: Some(([127, 0, 0, 1], 0).into()),
                ofi: Some(provider.to_owned()),
                ..config
            },
            Transport::Shm | Transport::UnixFrames => {
                ServerConfig { unix: Some(dir.path().join("socket")), ..config }
            }
        };
        let server = Server::start(&env, config, service.clone()).expect("it starts");
        let address = address_of(&server);
        let connection = connect_with(&env, &address, &tls.dialer).await.expect("it listens");
        let can = connection.capabilities();
        assert_eq!(can.memory, transport == Transport::Shm);
        assert_eq!(can.scar, !matches!(transport, Transport::Shm | Transport::Ofi(_)));
        let bell = Arc::new(Bell::Server(server.doorbell()));
        Self {
            transport,
            env,
            service,
            connection,
            address: Some(address),
            bell,
            server: Some(server),
            tls,
            dir,
        }
    }

    /// Another connection to whoever is at its address.
    pub async fn connect(&self) -> Result<Arc<dyn Connection>, ConnectError> {
        connect_with(&self.env, self.address.as_ref().expect("it has one"), &self.tls.dialer).await
    }

    /// The directory that the world has for itself.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// A read of region `place` under its true generation.
    pub fn op(&self, place: usize, offset: u64, len: u32) -> ReadOp {
        let generation = self.service.regions[place].generation();
        ReadOp { region: RegionId(place as u32), generation, offset, len }
    }

    pub fn ring(&self) {
        self.bell.ring();
    }

    /// The service ends: its server, or what it is in this process.
    pub fn end(&mut self) {
        drop(self.server.take());
        if let Bell::Local(bell) = &*self.bell {
            bell.close();
        }
    }

    /// Rings so many times, at an uneven pace.
    pub fn ringer(&self, rounds: u32) -> impl FnOnce() + Send + 'static {
        let bell = self.bell.clone();
        move || {
            for round in 0..rounds {
                bell.ring();
                for _ in 0..round * 37 % 2_000 {
                    std::hint::spin_loop();
                }
            }
        }
    }
}

/// How both ends of a connection go about TLS.
#[derive(Default)]
pub struct Tls {
    pub acceptor: Acceptor,
    pub dialer: Dialer,
}

impl Tls {
    /// With files in `dir`, of a CA of its own; clients show no certificates.
    pub fn new(env: &Env, dir: &std::path::Path) -> Self {
        Self::of(env, dir, "127.0.0.1", ClientCertificates::None)
    }

    /// The same for a server that is reached at `host`, and a client that shows a certificate if one is asked for.
    #[allow(clippy::disallowed_methods)] // the files of who configures both ends
    pub fn of(env: &Env, dir: &std::path::Path, host: &str, client_certificates: ClientCertificates) -> Self {
        let authority = Authority::create("test", env.wall_ms()).expect("a CA");
        let wanted = CertificateWanted {
            name: "node".to_owned(),
            hosts: vec![host.to_owned()],
            is_server: true,
            days: 10,
        };
        let node = authority.issue(&wanted, env.wall_ms()).expect("a certificate");
        let [ca, certificate, key] = ["ca.pem", "node.pem", "node.key"].map(|name| dir.join(name));
        for (path, text) in
            [(&ca, &authority.certificate), (&certificate, &node.certificate), (&key, &node.key)]
        {
            std::fs::write(path, text).expect("written");
        }
        let is_asked = client_certificates != ClientCertificates::None;
        let shown = is_asked.then(|| {
            let wanted =
                CertificateWanted { name: "alice".to_owned(), hosts: Vec::new(), is_server: false, days: 10 };
            let shown = authority.issue(&wanted, env.wall_ms()).expect("a certificate");
            let path = dir.join("alice.pem");
            std::fs::write(&path, format!("{}{}", shown.certificate, shown.key)).expect("written");
            path
        });
        let config = TlsConfig {
            certificate: Some(certificate),
            key: Some(key),
            client_ca: is_asked.then(|| ca.clone()),
            client_certificates,
            ..TlsConfig::default()
        };
        let certificates = Certificates::open(env, &config).expect("good files").expect("there are some");
        let dialer = DialerConfig { ca: Some(ca), certificate: shown, ..DialerConfig::default() };
        Self {
            acceptor: Acceptor::secured("test", &certificates),
            dialer: Dialer::open(env, &dialer).expect("a good file"),
        }
    }
}

pub fn address_of(server: &Server) -> Address {
    match (server.ofi_address().or_else(|| server.tcp_address()), server.unix_path()) {
        (Some(address), _) => address,
        (None, Some(path)) => Address::Unix(PathBuf::from(path)),
        (None, None) => panic!("the server listens somewhere"),
    }
}

/// Runs a test in a runtime.
pub fn run<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let ended = Env::real().timeout(Duration::from_secs(600), test).await;
        assert!(ended.is_some(), "the test never ends");
    });
}

/// Runs a test over each transport, and those with a server over each kind of engine.
pub fn on_every_transport(test: impl AsyncFn(World)) {
    eprintln!("over Local");
    run(async { test(World::new(Transport::Local).await).await });
    on_every_socket(test);
}

/// Runs a test over each transport that has a server, and each kind of engine.
pub fn on_every_socket(test: impl AsyncFn(World)) {
    on_every_socket_with(&ServerConfig::default(), test);
}

/// As [`on_every_socket`], with limits of the test's own.
pub fn on_every_socket_with(config: &ServerConfig, test: impl AsyncFn(World)) {
    for engine_kind in engine_kinds() {
        let mut transports = vec![Transport::Shm, Transport::UnixFrames, Transport::Tcp, Transport::Tls];
        // Its READs have nothing to do with engines.
        if cfg!(feature = "ofi") && engine_kind == EngineKind::Epoll {
            transports.extend(PROVIDERS.map(Transport::Ofi));
        }
        for transport in transports {
            eprintln!("over {transport:?} with {engine_kind:?}");
            run(async {
                let config = ServerConfig { engine_kind, ..config.clone() };
                test(World::with_config(transport, config).await).await;
            });
        }
    }
}

/// The kinds of engines that this kernel has.
fn engine_kinds() -> Vec<EngineKind> {
    let mut kinds = vec![EngineKind::Epoll];
    run(async {
        let config = ServerConfig { engine_kind: EngineKind::IoUring, ..ServerConfig::default() };
        match Server::start(&Env::real(), config, TestService::new(Backing::Private)) {
            Ok(_) => kinds.push(EngineKind::IoUring),
            Err(error) => eprintln!("no io_uring here: {error}"),
        }
    });
    kinds
}

pub const VALUE_BYTES: usize = 4096;

/// A value that is checked by its last eight bytes.
pub fn sealed_value(round: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    for (i, word) in value.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(round.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i as u64).to_le_bytes());
    }
    let checksum = checksum(&value[..VALUE_BYTES - 8]);
    value[VALUE_BYTES - 8..].copy_from_slice(&checksum.to_le_bytes());
    value
}

/// The value's first word if it arrived whole.
pub fn open_value(value: &[u8; VALUE_BYTES]) -> Option<u64> {
    let (body, sum) = value.split_last_chunk::<8>().expect("it is longer");
    let first = u64::from_le_bytes(*value.first_chunk().expect("it is longer"));
    (checksum(body) == u64::from_le_bytes(*sum)).then_some(first)
}

fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}
