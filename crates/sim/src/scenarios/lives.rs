//! The frame of a scenario of one node: life after life, each from a start to a crash or a close, and a calm one at the
//! end.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::faults::Life;
use crate::checkers::Violation;
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Node, World};

/// One life; the last argument is what the world outside of the node knows.
pub(super) type Live<M> = fn(&World, &Node, &mut Rng, &Life, Plant, &Arc<Mutex<M>>) -> Result<(), Violation>;

/// Leads node `a` through `lives`, drawn for scenario `name`, and a calm one of `calm` after them.
pub(super) fn run_lives<M>(
    world: &mut World,
    name: &str,
    plant: Plant,
    model: &Arc<Mutex<M>>,
    lives: impl FnOnce(&mut Rng) -> Vec<Life>,
    calm: Duration,
    live: Live<M>,
) -> Result<(), Violation> {
    let mut rng = Rng::new(world.seed(), &format!("scenario/{name}"));
    let node = world.node("a");
    make_data_dir(&node);
    for life in lives(&mut rng).into_iter().chain([Life::calm(calm)]) {
        live(world, &node, &mut rng, &life, plant, model)?;
    }
    Ok(())
}

/// The power fails at each of the first `ios` I/Os, seed after seed, and then at one of the first `recovery_ios` of the
/// recovery.
pub(super) fn every_io(seed: u64, ios: u64, recovery_ios: u64) -> Vec<Life> {
    let length = Duration::from_millis(100);
    vec![
        Life::until_change(1 + seed % ios, length),
        Life::until_change(1 + (seed / ios + seed) % recovery_ios, length),
    ]
}

/// The directory that an operator made before the first start.
pub(super) fn make_data_dir(node: &Node) {
    let disk = node.env().disk().clone();
    disk.create_dir_all(Path::new("/data")).expect("a fresh disk");
    disk.sync_dir(Path::new("/")).expect("a fresh disk");
}
