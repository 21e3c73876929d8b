//! The frame of a scenario of one node: life after life, each from a start to a crash or a close, and a calm one at the
//! end.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::faults::Life;
use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Crashed, Node, World};

/// What the world outside of a scenario's node knows.
pub(super) trait Outcome {
    /// What happened so far.
    fn report(&mut self) -> &mut Report;
    /// The first thing seen that must not be.
    fn violation(&mut self) -> &mut Option<Violation>;

    /// Notes what a check came to.
    fn note(&mut self, result: Result<(), Violation>) {
        if let Err(violation) = result {
            self.violation().get_or_insert(violation);
        }
    }

    /// Fails if anything was seen that must not be.
    fn take_violation(&mut self) -> Result<(), Violation> {
        self.violation().take().map_or(Ok(()), Err)
    }
}

/// One life: from a start to a crash or a close.
pub(super) type Live<M> = fn(&World, &Node, &mut Rng, &Life, Plant, &Arc<Mutex<M>>) -> Result<(), Violation>;

/// How many lives a scenario's node has, and of what kind.
pub(super) struct Lives {
    /// The scenario.
    pub(super) name: &'static str,
    /// Lives at most, before the calm one; at least two.
    pub(super) most: u64,
    /// Calls that change something, in one of which a life may end.
    pub(super) changes_max: u64,
    /// How long a life is at most.
    pub(super) length_max: Duration,
    /// How long the calm one is.
    pub(super) calm: Duration,
    /// I/Os of a life, and of the recovery after it, at each of which some seed lets the power fail.
    pub(super) every_io: (u64, u64),
}

impl Lives {
    /// Leads node `a` through lives that are drawn.
    pub(super) fn drawn<M: Outcome>(
        &self,
        world: &mut World,
        plant: Plant,
        model: M,
        live: Live<M>,
    ) -> Result<Report, Violation> {
        self.lead(world, plant, model, live, |rng| {
            (0..rng.between(2, self.most))
                .map(|_| Life::draw(rng, self.changes_max, self.length_max))
                .collect()
        })
    }

    /// The power fails at every I/O: seed after seed at the next one, then at every one of the recovery after it.
    pub(super) fn every_io<M: Outcome>(
        &self,
        world: &mut World,
        plant: Plant,
        model: M,
        live: Live<M>,
    ) -> Result<Report, Violation> {
        let (seed, (ios, recovery_ios)) = (world.seed(), self.every_io);
        let length = Duration::from_millis(100);
        self.lead(world, plant, model, live, |_| {
            vec![
                Life::until_change(1 + seed % ios, length),
                Life::until_change(1 + (seed / ios + seed) % recovery_ios, length),
            ]
        })
    }

    fn lead<M: Outcome>(
        &self,
        world: &mut World,
        plant: Plant,
        model: M,
        live: Live<M>,
        lives: impl FnOnce(&mut Rng) -> Vec<Life>,
    ) -> Result<Report, Violation> {
        let model = Arc::new(Mutex::new(model));
        let mut rng = Rng::new(world.seed(), &format!("scenario/{}", self.name));
        let node = world.node("a");
        make_data_dir(&node);
        for life in lives(&mut rng).into_iter().chain([Life::calm(self.calm)]) {
            live(world, &node, &mut rng, &life, plant, &model)?;
        }
        let report = model.lock().report().clone();
        Ok(report)
    }
}

/// What a start came to; `None` if the life ended with it. An injected failure may end a start, damage may not.
pub(super) fn opened<T>(
    node: &Node,
    life: &Life,
    model: &Mutex<impl Outcome>,
    opened: Result<Result<T, String>, Crashed>,
) -> Result<Option<T>, Violation> {
    match opened {
        Err(Crashed) => {
            model.lock().report().count("crashes in recovery", 1);
            Ok(None)
        }
        Ok(Ok(opened)) => Ok(Some(opened)),
        Ok(Err(_)) if !node.is_up() => Ok(None),
        Ok(Err(error)) => {
            let injected = life.disk_fails() && (error.contains("injected") || error.contains("space"));
            ensure(injected, || format!("what is on the disk can't be opened: {error}"))?;
            model.lock().report().count("failed opens", 1);
            node.crash(Crash::Process);
            Ok(None)
        }
    }
}

/// Lets a life's time pass. Answers whether the node still runs.
pub(super) fn pass(
    world: &World,
    node: &Node,
    life: &Life,
    model: &Mutex<impl Outcome>,
) -> Result<bool, Violation> {
    world.run(async {
        world.outside().timeout(life.length, node.died()).await;
    })?;
    model.lock().take_violation()?;
    if !node.is_up() {
        model.lock().report().count("crashes at an I/O", 1);
    }
    Ok(node.is_up())
}

/// The directory that an operator made before the first start.
pub(super) fn make_data_dir(node: &Node) {
    let disk = node.env().disk().clone();
    disk.create_dir_all(Path::new("/data")).expect("a fresh disk");
    disk.sync_dir(Path::new("/")).expect("a fresh disk");
}
