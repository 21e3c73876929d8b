use tailwater_access::Peer;
use tokio::net::TcpStream;

use super::*;
use crate::client::say_hello;
use crate::connection::{RegionId, ScarOp};
use crate::region::{Backing, Region};
use crate::server::{Server, ServerConfig};
use crate::service::{Refusal, Reply, ScarHit, Service};

/// Two regions that may move, for whom it admits.
struct Moving {
    regions: Mutex<Vec<Arc<Region>>>,
    admits: Mutex<bool>,
}

impl Service for Moving {
    fn admit(&self, _: &Peer) -> Result<(), Refusal> {
        let refusal = || Refusal { code: 1, message: "not any more".to_owned() };
        self.admits.lock().then_some(()).ok_or_else(refusal)
    }

    fn regions(&self) -> Vec<Arc<Region>> {
        self.regions.lock().clone()
    }

    fn scar(&self, _: &ScarOp) -> Option<ScarHit> {
        None
    }

    fn call(&self, _: &Peer, _: u16, _: Bytes, _: Reply) {}
}

fn regions(bytes: &[u8]) -> Vec<Arc<Region>> {
    let region = |generation| {
        let region = Region::create_with_generation("test", 1 << 20, 0, Backing::Private, generation);
        let region = region.expect("there is memory");
        region.write(0, bytes);
        Arc::new(region)
    };
    vec![region(7), region(8)]
}

fn op(offset: u64, len: u32) -> ReadOp {
    ReadOp { region: RegionId(0), generation: 7, offset, len }
}

async fn connected(env: &Env, server: &Server) -> Ofi {
    let at = server.tcp_addr().expect("it listens");
    let stream = Stream::Tcp(TcpStream::connect(at).await.expect("it listens"));
    let (reply, decoder, _) =
        say_hello(&stream, |out| frame::encode_hello(out, 0)).await.ok().expect("it greets");
    Ofi::start(env, at.to_string(), at.ip(), stream, decoder, reply).await
}

fn run(test: impl AsyncFn(Env, Arc<Moving>, Server)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let env = Env::real();
        for provider in ["tcp;ofi_rxm", "shm"] {
            let service =
                Arc::new(Moving { regions: Mutex::new(regions(b"before")), admits: Mutex::new(true) });
            let config = ServerConfig {
                tcp: Some(([127, 0, 0, 1], 0).into()),
                ofi: Some(provider.to_owned()),
                ..ServerConfig::default()
            };
            let server =
                Server::start(&env, config, Arc::clone(&service) as _).expect("libfabric1 is installed");
            test(env.clone(), service, server).await;
        }
    });
}

async fn read(ofi: &Ofi) -> [u8; 6] {
    let mut out = [0; 6];
    assert_eq!(ofi.read(&[op(0, 6)], &mut out).await, Ok(vec![Ok(())]));
    out
}

impl Ofi {
    fn is_up(&self) -> bool {
        matches!(&*self.state.lock(), FabricState::Up(_))
    }
}

#[test]
fn reads_go_over_libfabric_and_long_ones_in_several_slots() {
    run(async |env, service, server| {
        let pattern: Vec<_> = (0..1 << 20).map(|place: u32| (place >> 10) as u8).collect();
        service.regions()[0].write(0, &pattern);
        let ofi = connected(&env, &server).await;
        let mut out = vec![0; 10 + (1 << 20)];
        let ops = [op(0, 4), op(1 << 20, 1), op(0, 1 << 20), op(7, 0), op(1 << 10, 5)];
        let results = ofi.read(&ops, &mut out).await.expect("it is there");
        assert_eq!(results, [Ok(()), Err(OpError::OutOfBounds), Ok(()), Ok(()), Ok(())]);
        assert!(out[..4] == [0; 4] && out[5..5 + (1 << 20)] == pattern && out[5 + (1 << 20)..] == [1; 5]);
        assert!(ofi.is_up(), "none of it went over TCP");
    });
}

#[test]
fn regions_that_move_are_read_over_tcp_and_then_over_libfabric_again() {
    run(async |env, service, server| {
        let ofi = connected(&env, &server).await;
        assert_eq!(read(&ofi).await, *b"before");
        let old = std::mem::replace(&mut *service.regions.lock(), regions(b"behind"));
        server.admission().regions_moved();
        // What is at the old place is read until the server has heard of it.
        while read(&ofi).await == *b"before" {}
        drop(old);
        while !ofi.is_up() {
            assert_eq!(read(&ofi).await, *b"behind");
            env.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(read(&ofi).await, *b"behind");
        assert!(ofi.is_up());
    });
}

#[test]
fn who_is_admitted_no_longer_has_no_key_that_reads() {
    run(async |env, service, server| {
        let ofi = connected(&env, &server).await;
        assert_eq!(read(&ofi).await, *b"before");
        let told = ask(&ofi.tcp).await.expect("it is admitted");
        let key = told.keys[0].expect("it is registered");
        *service.admits.lock() = false;
        server.admission().ask_again();
        while ofi.lost().is_none() {
            env.sleep(Duration::from_millis(1)).await;
        }
        ofi.read(&[op(0, 6)], &mut [0; 6]).await.expect_err("it is refused");
        // Nor by an endpoint of its own, which nobody asks whose it is.
        let own = Initiator::open(&env, ofi.ip, &told).expect("there is libfabric");
        let still_reads = async || {
            let pending = own.begin(own.slot().await.expect("it is open"), key, 0, 6);
            own.look();
            pending.await.expect("it is there").is_ok()
        };
        // The server's thread closes the old endpoint behind that.
        while still_reads().await {
            env.sleep(Duration::from_millis(1)).await;
        }
        *service.admits.lock() = true;
        let again = connected(&env, &server).await;
        assert_eq!(read(&again).await, *b"before");
    });
}

#[test]
fn reads_go_on_over_tcp_when_libfabric_fails_and_end_with_the_server() {
    run(async |env, _service, server| {
        let ofi = connected(&env, &server).await;
        let initiator = ofi.initiator().expect("it is up");
        initiator.fail("the test says so");
        assert_eq!(read(&ofi).await, *b"before");
        assert!(!ofi.is_up());
        while !ofi.is_up() {
            assert_eq!(read(&ofi).await, *b"before");
            env.sleep(Duration::from_millis(1)).await;
        }
        drop(server);
        while ofi.lost().is_none() {
            env.sleep(Duration::from_millis(1)).await;
        }
        let lost = ofi.lost().expect("it is");
        assert_eq!(ofi.read(&[op(0, 6)], &mut [0; 6]).await, Err(lost));
    });
}
