//! What the tests share: a listener over a cell of three backends, and a client of it.

#![allow(clippy::disallowed_methods, dead_code)] // real sockets; not all tests need all of it

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tailwater_access::{AccessRequest, Authorizer, Denied, Peer};
use tailwater_cache::{Backend, BackendConfig, Backends, Cell, CellConfig, EvictionPolicy, Mode};
use tailwater_env::Env;
use tailwater_memcached::{MemcachedConfig, MemcachedFront, MemcachedServer};
use tailwater_rma::{Backing, Connection, LocalDoorbell, local};
use tailwater_tls::Acceptor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The id of the cell's configuration.
pub const ID: u64 = 5;

/// Lets everybody do all but these operations.
#[derive(Default)]
pub struct AllBut(pub Mutex<&'static [&'static str]>);

impl Authorizer for AllBut {
    fn authorize(&self, _: &Peer, request: AccessRequest<'_>) -> Result<(), Denied> {
        match self.0.lock().expect("no panic").contains(&request.operation) {
            true => Err(Denied(format!("anonymous may not {} the cell m", request.operation))),
            false => Ok(()),
        }
    }
}

pub struct World {
    pub server: MemcachedServer,
    pub cell: Cell,
    pub backends: Vec<Arc<dyn Connection>>,
    pub denies: Arc<AllBut>,
}

pub async fn world(env: &Env, config: MemcachedConfig) -> World {
    let backend = |_| {
        let config = BackendConfig {
            capacity_bytes: 16 << 20,
            buckets: 256,
            ttl: Duration::from_secs(3_600),
            eviction_at: 0.8,
            eviction: EvictionPolicy::Lrm,
            config_id: ID,
            backing: Backing::Private,
        };
        let backend = Backend::start(env, config).expect("memory");
        local::connect(backend, LocalDoorbell::new(), env)
    };
    let backends: Vec<Arc<dyn Connection>> = (0..3).map(backend).collect();
    let mut of_cell = CellConfig::new(ID, Mode::R32, Backends::connected(backends.clone()), 1);
    of_cell.deadline = Duration::from_secs(60);
    let cell = Cell::connect(env, of_cell).await.expect("three backends");
    let denies = Arc::new(AllBut::default());
    let front =
        MemcachedFront::new(env, config, cell.clone(), None, Arc::clone(&denies) as Arc<dyn Authorizer>);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = MemcachedServer::start(listener, Acceptor::plain(), front).expect("it listens");
    World { server, cell, backends, denies }
}

pub fn in_runtime<F: Future<Output = ()>>(test: impl FnOnce(Env) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let env = Env::real();
        let ended = env.timeout(Duration::from_secs(600), test(env.clone())).await;
        assert!(ended.is_some(), "the test never ends");
    });
}

/// The same with a listener, and a client of it.
pub fn in_world(config: MemcachedConfig, test: impl AsyncFnOnce(World, Client)) {
    in_runtime(|env| async move {
        let world = world(&env, config).await;
        let client = Client::connect(&world).await;
        test(world, client).await;
    });
}

pub struct Client(TcpStream);

impl Client {
    pub async fn connect(world: &World) -> Self {
        Self::at(world.server.address()).await
    }

    pub async fn at(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.expect("it listens"))
    }

    /// Sends some requests, and reads all that is answered to them, and to a last one.
    pub async fn says(&mut self, requests: &[u8]) -> String {
        self.0.write_all(requests).await.expect("it reads");
        self.0.write_all(b"mn\r\n").await.expect("it reads");
        // Some of the requests may be the same as the last one.
        let last = 1 + requests.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"mn")).count();
        let mut answer = Vec::new();
        while answer.windows(4).filter(|answered| answered == b"MN\r\n").count() < last {
            assert!(self.0.read_buf(&mut answer).await.expect("it answers") > 0, "{answer:?}");
        }
        answer.truncate(answer.len() - 4);
        String::from_utf8(answer).expect("text")
    }

    /// The same up to the end of the connection.
    pub async fn ends_with(&mut self, requests: &[u8]) -> String {
        self.0.write_all(requests).await.expect("it reads");
        let mut answer = Vec::new();
        self.0.read_to_end(&mut answer).await.expect("it closes");
        String::from_utf8(answer).expect("text")
    }
}
