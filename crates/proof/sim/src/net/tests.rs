use std::collections::BTreeSet;

use tailwater_rma::{Backing, CallError, Peer, RegionId, Reply, ScarHit};

use super::*;
use crate::world::Crash;

/// One region of 4 KiB and a CALL that answers its payload; counts the calls carried out.
struct Echo {
    region: Arc<tailwater_rma::Region>,
    calls: Arc<Mutex<u64>>,
}

impl Service for Echo {
    fn regions(&self) -> Vec<Arc<tailwater_rma::Region>> {
        vec![self.region.clone()]
    }

    fn scar(&self, _op: &ScarOp) -> Option<ScarHit> {
        None
    }

    fn call(&self, _peer: &Peer, _method: u16, payload: Bytes, reply: Reply) {
        *self.calls.lock() += 1;
        reply.send(Ok(payload));
    }
}

struct Pair {
    world: World,
    net: Net,
    server: Node,
    client: Node,
    region: Arc<tailwater_rma::Region>,
    calls: Arc<Mutex<u64>>,
    doorbell: LocalDoorbell,
}

fn pair_of_nodes(seed: u64) -> Pair {
    let world = World::new(seed);
    let (server, client) = (world.node("server"), world.node("client"));
    let region = tailwater_rma::Region::create_with_generation("r", 4096, 1, Backing::Private, seed);
    let region = Arc::new(region.expect("4 KiB of memory"));
    let calls = Arc::new(Mutex::new(0));
    let doorbell = LocalDoorbell::new();
    let net = Net::new(&world);
    let echo = Arc::new(Echo { region: region.clone(), calls: calls.clone() });
    net.listen(&server, "echo", echo, doorbell.clone());
    Pair { world, net, server, client, region, calls, doorbell }
}

fn whole(seed: u64) -> ReadOp {
    ReadOp { region: RegionId(0), generation: seed, offset: 0, len: 4096 }
}

#[test]
fn a_reader_gets_old_and_new_bytes_spliced() {
    let mut kinds = BTreeSet::new();
    for seed in 0..60 {
        let pair = pair_of_nodes(seed);
        pair.net.set_weather(Weather { splice_per_million: 1_000_000, ..Weather::FAIR });
        let (region, env) = (pair.region.clone(), pair.server.env());
        env.clone()
            .spawn("writer", async move {
                for value in 1..=u8::MAX {
                    region.write(0, &[value; 4096]);
                    env.sleep(Duration::from_micros(5)).await;
                }
            })
            .detach();
        let read = async {
            let connection = pair.net.connect(&pair.client, "echo", false).await.expect("it listens");
            let mut out = vec![0; 4096];
            let results = connection.read(&[whole(seed)], &mut out).await.expect("fair weather");
            assert_eq!(results, [Ok(())]);
            out.iter().copied().collect::<BTreeSet<u8>>().len()
        };
        kinds.insert(pair.world.run(read).expect("it ends"));
    }
    assert!(kinds.contains(&1) && kinds.contains(&2) && kinds.contains(&3), "{kinds:?}");
}

#[test]
fn calls_overtake_each_other() {
    let mut overtaken = 0;
    for seed in 0..20 {
        let pair = pair_of_nodes(seed);
        let order = Arc::new(Mutex::new(Vec::new()));
        let calls = async {
            let connection = pair.net.connect(&pair.client, "echo", false).await.expect("it listens");
            let calls = (0..8u8).map(|number| {
                let (connection, order) = (connection.clone(), order.clone());
                async move {
                    let answer = connection.call(1, Bytes::copy_from_slice(&[number])).await;
                    order.lock().push(answer.expect("fair weather")[0]);
                }
            });
            futures::future::join_all(calls).await;
        };
        pair.world.run(calls).expect("it ends");
        let order = order.lock();
        assert_eq!(order.iter().copied().collect::<BTreeSet<u8>>().len(), 8);
        overtaken += usize::from(!order.is_sorted());
    }
    assert!(overtaken > 10, "{overtaken}");
}

#[test]
fn a_lost_call_was_carried_out_or_not_and_its_connection_breaks_at_last() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..30 {
        let pair = pair_of_nodes(seed);
        pair.net.set_weather(Weather { lose_per_million: 1_000_000, ..Weather::FAIR });
        let call = async {
            let connection = pair.net.connect(&pair.client, "echo", false).await.expect("it listens");
            let early = pair.world.outside().timeout(SILENCE_MAX / 2, connection.call(1, Bytes::new())).await;
            assert!(early.is_none(), "the caller's own deadline comes first");
            let carried_out = *pair.calls.lock();
            let error = connection.call(1, Bytes::new()).await.expect_err("silence");
            assert!(matches!(error, CallError::Lost(_)), "{error}");
            assert!(connection.lost().is_some());
            carried_out
        };
        outcomes.insert(pair.world.run(call).expect("it ends"));
    }
    assert_eq!(outcomes, BTreeSet::from([0, 1]));
}

#[test]
fn a_node_that_dies_takes_its_connections_with_it() {
    let pair = pair_of_nodes(1);
    let scenario = async {
        let connection = pair.net.connect(&pair.client, "echo", true).await.expect("it listens");
        let watcher = connection.clone();
        let watch = watcher.watch(pair.doorbell.value(), Duration::from_secs(60));
        let (victim, outside) = (pair.server.clone(), pair.world.outside());
        let crash = async {
            outside.sleep(Duration::from_millis(1)).await;
            victim.crash(Crash::Process);
        };
        let (watched, ()) = futures::future::join(watch, crash).await;
        assert!(watched.is_err(), "long before its deadline");
        assert!(pair.world.now().as_ns() < 1_000_000_000);
        assert!(connection.read(&[whole(1)], &mut [0; 4096]).await.is_err());
        pair.server.start();
        assert!(connection.lost().is_some(), "a restart does not bring it back");
        assert!(pair.net.connect(&pair.client, "echo", true).await.is_err(), "until somebody listens again");
    };
    pair.world.run(scenario).expect("it ends");
}

#[test]
fn a_partition_holds_calls_up_until_it_heals() {
    let pair = pair_of_nodes(1);
    let scenario = async {
        let connection = pair.net.connect(&pair.client, "echo", false).await.expect("it listens");
        pair.net.partition(&pair.client, &pair.server);
        let outside = pair.world.outside();
        let heal = async {
            outside.sleep(Duration::from_secs(1)).await;
            pair.net.heal(&pair.server, &pair.client);
        };
        let (answer, ()) = futures::future::join(connection.call(1, Bytes::from("late")), heal).await;
        assert_eq!(answer.expect("healed in time"), "late");
        assert!(pair.world.now().as_ns() >= 1_000_000_000);
        pair.net.partition(&pair.client, &pair.server);
        assert!(connection.call(1, Bytes::new()).await.is_err(), "one that lasts breaks it");
    };
    pair.world.run(scenario).expect("it ends");
}
