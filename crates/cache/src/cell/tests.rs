use tailwater_rma::{Capabilities, LocalDoorbell};

use super::*;
use crate::Backend;
use crate::testing::{Double, Faults, in_runtime, served, small};

const ID: u64 = 77;
const MEMORY: Capabilities = Capabilities { memory: true, scar: false };
const WIRE: Capabilities = Capabilities { memory: false, scar: false };
const WIRE_WITH_SCAR: Capabilities = Capabilities { memory: false, scar: true };

struct World {
    env: Env,
    backends: Vec<(Arc<Backend>, LocalDoorbell)>,
    faults: Vec<Arc<Faults>>,
    cell: Cell,
}

fn config(mode: Mode, connections: Vec<Arc<dyn Connection>>) -> CellConfig {
    let mut config = CellConfig::new(ID, mode, Backends::connected(connections), 1);
    config.hedge_after = Duration::from_millis(5);
    config.watch_slice = Duration::from_millis(5);
    config
}

async fn world(env: Env, mode: Mode, backends: usize, can: Capabilities) -> World {
    let backends: Vec<_> = (0..backends).map(|_| served(&env, small(ID))).collect();
    world_of(env, mode, backends, can).await
}

async fn world_of(
    env: Env,
    mode: Mode,
    backends: Vec<(Arc<Backend>, LocalDoorbell)>,
    can: Capabilities,
) -> World {
    let doubles = backends.iter().map(|(backend, doorbell)| Double::connect(&env, backend, doorbell, can));
    let (connections, faults) = doubles.unzip();
    let cell = Cell::connect(&env, config(mode, connections)).await.expect("enough backends");
    World { env, backends, faults, cell }
}

fn key(n: u32) -> Bytes {
    Bytes::from(format!("key {n}"))
}

fn value(n: u32, len: usize) -> Bytes {
    n.to_le_bytes().iter().copied().cycle().take(len).collect()
}

fn hit(lookup: &Lookup) -> &Bytes {
    match lookup {
        Lookup::Hit { value, .. } => value,
        other => panic!("a hit expected, not {other:?}"),
    }
}

#[test]
fn what_was_set_is_read_by_every_transport_and_in_both_ways() {
    for can in [MEMORY, WIRE, WIRE_WITH_SCAR] {
        for (mode, backends) in [(Mode::R1, 1), (Mode::R32, 3), (Mode::R32, 5)] {
            in_runtime(|env| async move {
                let world = world(env, mode, backends, can).await;
                let items: Vec<_> = (0..200).map(|n| (key(n), value(n, 100 + 37 * n as usize))).collect();
                let versions = world.cell.set(items.clone()).await;
                let mut keys: Vec<Bytes> = items.iter().map(|(key, _)| key.clone()).collect();
                keys.push(Bytes::from("never set"));
                let consistent = world.cell.get_consistent(&keys).await;
                for ((lookup, (_, value)), version) in consistent.iter().zip(&items).zip(versions) {
                    let expected = Lookup::Hit { version: version.expect("set"), value: value.clone() };
                    assert_eq!(*lookup, expected);
                }
                assert_eq!(consistent[200], Lookup::Miss);
                for lookup in world.cell.get_relaxed(&keys).await.iter().zip(&items) {
                    // The third replica may still be on its way to it.
                    assert!(matches!(lookup.0, Lookup::Miss) || *hit(lookup.0) == lookup.1.1);
                }
            });
        }
    }
}
