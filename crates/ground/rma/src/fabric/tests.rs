#![allow(clippy::disallowed_methods)] // threads that are no part of what is tested

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_access::Peer;
use tailwater_env::Env;

use super::host::FabricHost;
use super::initiator::Initiator;
use super::*;
use crate::connection::ScarOp;
use crate::frame::RegionKey;
use crate::limits::{FABRIC_SLOT_BYTES, FABRIC_SLOTS};
use crate::region::{Backing, Region};
use crate::service::{Reply, ScarHit, Service};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const RXM: &str = "tcp;ofi_rxm";
const PROVIDERS: [&str; 2] = [RXM, "shm"];

/// Regions that may be replaced.
struct Regions(Mutex<Vec<Arc<Region>>>);

impl Service for Regions {
    fn regions(&self) -> Vec<Arc<Region>> {
        self.0.lock().clone()
    }

    fn scar(&self, _: &ScarOp) -> Option<ScarHit> {
        None
    }

    fn call(&self, _: &Peer, _: u16, _: Bytes, _: Reply) {}
}

fn region(bytes: &[u8]) -> Arc<Region> {
    let region = Region::create("test", 1 << 20, 0, Backing::Private).expect("there is memory");
    region.write(0, bytes);
    Arc::new(region)
}

fn run(test: impl AsyncFn(Env)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async { test(Env::real()).await });
}

/// A server with one region that begins with these bytes, and a client of it.
fn pair(env: &Env, provider: &str, bytes: &[u8]) -> (Arc<Regions>, FabricHost, Initiator) {
    let service = Arc::new(Regions(Mutex::new(vec![region(bytes)])));
    let host =
        FabricHost::start(env, provider, HERE, Arc::clone(&service) as _).expect("libfabric1 is installed");
    let initiator = Initiator::open(env, HERE, &host.told()).expect("the server is there");
    (service, host, initiator)
}

async fn read(initiator: &Initiator, key: RegionKey, offset: u64, len: usize) -> Result<Vec<u8>, String> {
    let slot = initiator.slot().await.ok_or("it has failed")?;
    let pending = initiator.begin(slot, key, offset, len);
    initiator.look();
    let slot = pending.await.expect("its endpoint is there")?;
    let mut out = vec![0; len];
    slot.copy_to(&mut out);
    Ok(out)
}

#[test]
fn a_registered_region_is_read_by_its_key() {
    run(async |env| {
        for provider in PROVIDERS {
            let (service, _host, initiator) = pair(&env, provider, b"served");
            let key = initiator.key_of(0).expect("it is registered");
            assert_eq!(read(&initiator, key, 0, 6).await.expect(provider), b"served");
            service.0.lock()[0].write(4, b"ant");
            assert_eq!(read(&initiator, key, 3, 4).await.expect(provider), b"vant");
        }
    });
}

#[test]
fn more_reads_than_slots_wait_for_each_other() {
    run(async |env| {
        for provider in PROVIDERS {
            let (service, _host, initiator) = pair(&env, provider, b"");
            let key = initiator.key_of(0).expect("it is registered");
            for place in 0..4 {
                service.0.lock()[0]
                    .write(place * FABRIC_SLOT_BYTES as u64, &[place as u8; FABRIC_SLOT_BYTES]);
            }
            let reads = (0..4 * FABRIC_SLOTS as u64).map(async |number| {
                let place = number % 4;
                let offset = place * FABRIC_SLOT_BYTES as u64;
                let bytes = read(&initiator, key, offset, FABRIC_SLOT_BYTES).await.expect(provider);
                assert!(bytes.iter().all(|byte| *byte == place as u8), "{provider}: read {number}");
            });
            futures::future::join_all(reads).await;
        }
    });
}

#[test]
fn a_client_that_asks_for_more_than_the_region_or_by_another_key_gets_nothing() {
    run(async |env| {
        let out_of_bounds = async |key: RegionKey, offset, len| {
            // An endpoint of its own each time: one whose read was refused is of no use any more.
            let (_service, host, initiator) = pair(&env, RXM, b"served");
            let own = host.told().keys[0].expect("it is registered");
            let key = RegionKey { key: own.key ^ key.key, base: own.base.wrapping_add(key.base) };
            read(&initiator, key, offset, len).await.expect_err("it is not to be read")
        };
        let own = RegionKey { key: 0, base: 0 };
        out_of_bounds(own, (1 << 20) - 3, 4).await;
        out_of_bounds(own, 1 << 20, 1).await;
        out_of_bounds(RegionKey { base: u64::MAX, ..own }, 0, 1).await;
        out_of_bounds(RegionKey { key: 1 << 40, ..own }, 0, 6).await;
    });
}

#[test]
fn keys_are_good_for_nothing_once_they_are_renewed_and_the_new_ones_read_what_is_there_then() {
    run(async |env| {
        for provider in PROVIDERS {
            let (service, host, initiator) = pair(&env, provider, b"before");
            let old = initiator.key_of(0).expect("it is registered");
            assert_eq!(read(&initiator, old, 0, 6).await.expect(provider), b"before");
            let first = host.told();
            *service.0.lock() = vec![region(b"behind"), region(b"second")];
            host.renew();
            while host.told().keys.len() != 2 {
                env.sleep(Duration::from_millis(1)).await;
            }
            assert_ne!(host.told().name, first.name, "{provider}: another endpoint");
            read(&initiator, old, 0, 6).await.expect_err(provider);
            let again = Initiator::open(&env, HERE, &host.told()).expect("the server is there");
            for (place, expected) in [b"behind", b"second"].into_iter().enumerate() {
                let key = again.key_of(place).expect("it is registered");
                assert_eq!(read(&again, key, 0, 6).await.expect(provider), expected);
            }
        }
    });
}

#[test]
fn reads_of_a_server_that_is_gone_end() {
    run(async |env| {
        for provider in PROVIDERS {
            let (_service, host, initiator) = pair(&env, provider, b"served");
            let key = initiator.key_of(0).expect("it is registered");
            drop(host);
            // The thread that has the endpoint ends it behind that.
            while read(&initiator, key, 0, 6).await.is_ok() {
                env.sleep(Duration::from_millis(1)).await;
            }
            initiator.fail("the test says so");
            read(&initiator, key, 0, 6).await.expect_err("it has failed");
        }
    });
}

#[test]
fn a_read_that_nobody_waits_for_gives_its_slot_back() {
    run(async |env| {
        for provider in PROVIDERS {
            let (_service, _host, initiator) = pair(&env, provider, b"served");
            let key = initiator.key_of(0).expect("it is registered");
            for _ in 0..3 * FABRIC_SLOTS {
                let slot = initiator.slot().await.expect("it is open");
                drop(initiator.begin(slot, key, 0, FABRIC_SLOT_BYTES));
            }
            assert_eq!(read(&initiator, key, 0, 6).await.expect(provider), b"served");
        }
    });
}

#[test]
fn a_provider_that_is_not_there_is_named_with_what_to_do() {
    run(async |env| {
        let service = Arc::new(Regions(Mutex::new(vec![region(b"")])));
        let start = |provider, ip| FabricHost::start(&env, provider, ip, Arc::clone(&service) as _).err();
        let error = start("carrier-pigeon", HERE).expect("there is none").to_string();
        assert!(error.contains("carrier-pigeon") && error.contains("fi_info"), "{error}");
        let error = start(RXM, IpAddr::V4(Ipv4Addr::UNSPECIFIED)).expect("nobody reaches that").to_string();
        assert!(error.contains("0.0.0.0"), "{error}");
    });
}

#[test]
fn who_waits_for_a_slot_is_told_when_the_endpoint_fails() {
    run(async |env| {
        let (_service, _host, initiator) = pair(&env, RXM, b"served");
        let held: Vec<_> = std::iter::from_fn(|| initiator.try_slot()).collect();
        assert_eq!(held.len(), FABRIC_SLOTS);
        let mut waits = std::pin::pin!(initiator.slot());
        assert!(futures::poll!(&mut waits).is_pending());
        initiator.fail("the test says so");
        assert!(waits.await.is_none());
    });
}
