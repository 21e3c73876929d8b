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
pub(super) type LifeLive<M> =
    fn(&World, &Node, &mut Rng, &Life, Plant, &Arc<Mutex<M>>) -> Result<(), Violation>;

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
    /// I/Os of a life, and of the recovery after it, at each of which one of [`EVERY_IO_SEEDS`] lets the power fail.
    pub(super) every_io: (u64, u64),
}

/// So many seeds that follow each other let the power fail at every I/O; `make test` runs as many.
const EVERY_IO_SEEDS: u64 = 200;
/// Nodes of one seed, one after the other, where there are more I/Os than [`EVERY_IO_SEEDS`].
const EVERY_IO_NODES: [&str; 4] = ["a", "b", "c", "d"];

/// How long a life is at most: longer than it takes to get to any of the I/Os.
const EVERY_IO_LENGTH_MAX: Duration = Duration::from_secs(1);

/// The I/O of a life, and that of the recovery after it, in which the power fails in the `case`-th case, both from 1
/// on.
///
/// `ios` cases have each I/O of a life once, each with another of a recovery, far from those of its neighbours, and
/// those all equally often. Each further such round has the next I/O of a recovery with each, so that `ios *
/// recovery_ios` cases have each pair once.
fn every_io_of(case: u64, (ios, recovery_ios): (u64, u64)) -> (u64, u64) {
    let (io, round) = (case % ios, case / ios);
    // About the golden section of them: multiples of it are spread evenly, however many one takes.
    let stride = (recovery_ios * 5 / 8..recovery_ios).find(|stride| is_coprime(*stride, recovery_ios));
    (1 + io, 1 + (io * stride.unwrap_or(1) + round) % recovery_ios)
}

fn is_coprime(a: u64, b: u64) -> bool {
    if b == 0 { a == 1 } else { is_coprime(b, a % b) }
}

impl Lives {
    /// Leads a node through lives that are drawn.
    pub(super) fn drawn<M: Outcome>(
        &self,
        world: &mut World,
        plant: Plant,
        model: M,
        live: LifeLive<M>,
    ) -> Result<Report, Violation> {
        let mut rng = Rng::new(world.seed(), &format!("scenario/{}", self.name));
        let lives: Vec<Life> = (0..rng.between(2, self.most))
            .map(|_| Life::draw(&mut rng, self.changes_max, self.length_max))
            .collect();
        let mut live = |node: &Node, life: &Life, model: &_| live(world, node, &mut rng, life, plant, model);
        self.lead(world.node("a"), &lives, model, &mut live)
    }

    /// The power fails at every I/O: seed after seed at the next one, then at one of the recovery after it. Where there
    /// are more of them than seeds, one seed leads several nodes, each through such lives.
    pub(super) fn every_io<M: Outcome>(
        &self,
        world: &mut World,
        plant: Plant,
        model: impl Fn(&World) -> M,
        live: LifeLive<M>,
    ) -> Result<Report, Violation> {
        let length = EVERY_IO_LENGTH_MAX;
        let nodes = self.every_io.0.div_ceil(EVERY_IO_SEEDS);
        let mut rng = Rng::new(world.seed(), &format!("scenario/{}", self.name));
        let mut live = |node: &Node, life: &Life, model: &_| live(world, node, &mut rng, life, plant, model);
        let mut report = Report::default();
        for (case, name) in (world.seed() * nodes..).zip(EVERY_IO_NODES).take(nodes as usize) {
            let (io, recovery_io) = every_io_of(case, self.every_io);
            let lives = [io, recovery_io].map(|io| Life::until_change(io, length));
            report.add(&self.lead(world.node(name), &lives, model(world), &mut live)?);
        }
        Ok(report)
    }

    /// Leads a new node through `lives`, and a calm one.
    fn lead<M: Outcome>(
        &self,
        node: Node,
        lives: &[Life],
        model: M,
        live: &mut impl FnMut(&Node, &Life, &Arc<Mutex<M>>) -> Result<(), Violation>,
    ) -> Result<Report, Violation> {
        let model = Arc::new(Mutex::new(model));
        make_data_dir(&node);
        for life in lives.iter().chain([&Life::calm(self.calm)]) {
            let before = node.disk().changes();
            live(&node, life, &model)?;
            if life.crash_at_change.is_some_and(|at| node.disk().changes() - before < at) {
                model.lock().report().count("I/Os to fail at that did not come", 1);
            }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn as_many_cases_as_a_life_has_ios_have_each_once_and_each_of_a_recovery_equally_often() {
        for (ios, recovery_ios) in [(160, 17), (300, 60), (400, 60), (60, 60), (5, 1)] {
            let cases: Vec<_> = (0..ios).map(|case| every_io_of(case, (ios, recovery_ios))).collect();
            let of_lives: BTreeSet<u64> = cases.iter().map(|(io, _)| *io).collect();
            assert!(of_lives.into_iter().eq(1..=ios));
            for recovery_io in 1..=recovery_ios {
                let count = cases.iter().filter(|(_, io)| *io == recovery_io).count() as u64;
                assert!((ios / recovery_ios..=ios.div_ceil(recovery_ios)).contains(&count));
            }
        }
    }

    #[test]
    fn all_rounds_have_every_pair_of_an_io_of_a_life_and_one_of_a_recovery_once() {
        let pairs: BTreeSet<_> = (0..300 * 60).map(|case| every_io_of(case, (300, 60))).collect();
        assert_eq!(pairs.len(), 300 * 60);
    }
}
