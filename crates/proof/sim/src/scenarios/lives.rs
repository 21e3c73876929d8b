//! The frame of a scenario of one node: life after life, each from a start to a crash or a close, and a calm one at the
//! end.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_journal::JournalConfig;
use tailwater_log::{Log, LogConfig};
use tailwater_tail::Cells;

use super::faults::{End, Life};
use super::outcome::Outcome;
use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Crashed, Node, World};

/// A journal with files, bytes of backlog in KiB, and an interval of syncs that are drawn.
pub(super) fn draw_journal(rng: &mut Rng, files: (u64, u64), backlog_kib: (u64, u64)) -> JournalConfig {
    JournalConfig {
        file_bytes: 64 << 10,
        files_max: rng.between(files.0, files.1) as u32,
        reserve_bytes: 4 << 10,
        backlog_bytes: rng.between(backlog_kib.0, backlog_kib.1) as usize * 1024,
        record_bytes_max: 6_000,
        sync_interval: Duration::from_millis(rng.between(1, 20)),
    }
}

/// One life, which has begun.
pub(super) struct Living<'a, M> {
    pub(super) world: &'a World,
    pub(super) node: &'a Node,
    pub(super) life: &'a Life,
    pub(super) plant: Plant,
    /// The node's, with the planted bug in front of its disk.
    pub(super) env: Env,
    pub(super) model: &'a Arc<Mutex<M>>,
    resume_max: Duration,
}

/// One life: from a start to a crash or a close.
pub(super) type LifeLive<M> = fn(&Living<'_, M>, &mut Rng) -> Result<(), Violation>;

impl<M: Outcome> Living<'_, M> {
    /// Opens everything as a node does; `None` if the life ended with it. An injected failure may end a start, damage
    /// may not.
    pub(super) fn open<T: Send + 'static>(
        &self,
        opening: impl Future<Output = Result<T, String>> + Send + 'static,
    ) -> Result<Option<T>, Violation> {
        match self.world.run(self.node.run("open", opening))? {
            Err(Crashed) => {
                self.model.lock().count("crashes in recovery", 1);
                Ok(None)
            }
            Ok(Ok(opened)) => Ok(Some(opened)),
            Ok(Err(_)) if !self.node.is_up() => Ok(None),
            Ok(Err(error)) => {
                let injected = error.contains("injected") || error.contains("space");
                ensure(self.life.disk_fails() && injected, || {
                    format!("what is on the disk can't be opened: {error}")
                })?;
                self.model.lock().count("failed opens", 1);
                self.node.crash(Crash::Process);
                Ok(None)
            }
        }
    }

    /// Runs something on the node; `None` if that ended the life.
    pub(super) fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        running: impl Future<Output = T> + Send + 'static,
    ) -> Result<Option<T>, Violation> {
        Ok(self.world.run(self.node.run(name, running))?.ok())
    }

    /// Lets the life's time pass, and lets it end if it has not by itself: where that is in good order, as `in_order`
    /// says, from where on the disk works.
    pub(super) fn end(&self, in_order: impl FnOnce() -> Result<(), Violation>) -> Result<(), Violation> {
        self.world.run(async {
            self.world.outside().timeout(self.life.length, self.node.died()).await;
        })?;
        self.model.lock().take_violation()?;
        match self.life.end {
            _ if !self.node.is_up() => {
                self.model.lock().count("crashes at an I/O", 1);
                return Ok(());
            }
            End::Crash(how) => self.node.crash(how),
            End::Close => {
                Life::mend(self.node);
                in_order()?;
            }
        }
        self.model.lock().take_violation()
    }

    /// What comes of something, where the disk works; `otherwise` is said if that takes for ever.
    pub(super) async fn in_time<T>(
        &self,
        otherwise: &str,
        coming: impl Future<Output = T>,
    ) -> Result<T, Violation> {
        let came = self.world.outside().timeout(self.resume_max, coming).await;
        came.ok_or_else(|| Violation::new(otherwise))
    }

    /// Waits until something holds, where the disk works, or anything was seen that must not be.
    pub(super) async fn until(
        &self,
        otherwise: &str,
        mut holds: impl FnMut(&mut M) -> bool,
    ) -> Result<(), Violation> {
        let outside = self.world.outside();
        let mut is_over = || {
            let mut model = self.model.lock();
            holds(&mut model) || model.has_failed()
        };
        let waiting = async {
            while !is_over() {
                outside.sleep(Duration::from_millis(2)).await;
            }
        };
        self.in_time(otherwise, waiting).await
    }

    /// Lets all clients end.
    pub(super) async fn stop_clients(&self) -> Result<(), Violation> {
        self.model.lock().noted().stop = true;
        self.until("a client waits for ever", |model| model.noted().clients == 0).await?;
        self.model.lock().take_violation()
    }

    /// What comes of something on the node, which nobody crashes.
    pub(super) async fn finish<T: Send + 'static>(
        &self,
        name: &'static str,
        running: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Violation> {
        self.node.run(name, running).await.map_err(|Crashed| Violation::new("nobody crashed the node"))
    }

    /// Closes everything as a node does, and ends the life.
    pub(super) async fn close<E: std::fmt::Display + Send + 'static>(
        &self,
        closing: impl Future<Output = Result<(), E>> + Send + 'static,
    ) -> Result<(), Violation> {
        let closed = self.in_time("closing takes for ever", self.finish("close", closing)).await??;
        closed.map_err(|error| Violation::new(format!("the disk works, but closing failed: {error}")))?;
        self.model.lock().count("closes", 1);
        self.node.crash(Crash::Power);
        Ok(())
    }
}

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
    /// Longest time that a disk which works again may leave clients without an answer: the longest pauses between two
    /// attempts, with room to spare.
    pub(super) resume_max: Duration,
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
        self.lead(world, plant, world.node("a"), &lives, model, &mut |living| live(living, &mut rng))
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
        let mut report = Report::default();
        for (case, name) in (world.seed() * nodes..).zip(EVERY_IO_NODES).take(nodes as usize) {
            let (io, recovery_io) = every_io_of(case, self.every_io);
            let lives = [io, recovery_io].map(|io| Life::until_change(io, length));
            let node = world.node(name);
            let live = &mut |living: &Living<'_, M>| live(living, &mut rng);
            report.add(&self.lead(world, plant, node, &lives, model(world), live)?);
        }
        Ok(report)
    }

    /// Leads a new node through `lives`, and a calm one.
    fn lead<M: Outcome>(
        &self,
        world: &World,
        plant: Plant,
        node: Node,
        lives: &[Life],
        model: M,
        live: &mut impl FnMut(&Living<'_, M>) -> Result<(), Violation>,
    ) -> Result<Report, Violation> {
        let model = Arc::new(Mutex::new(model));
        make_data_dir(&node);
        for life in lives.iter().chain([&Life::calm(self.calm)]) {
            let before = node.disk().changes();
            life.begin(&node);
            {
                let mut model = model.lock();
                (model.noted().stop, model.noted().clients) = (false, 0);
                model.begin_life();
                model.count("lives", 1);
            }
            let env = node.env_with_disk(|disk| plant.disk(disk));
            let (node, model, resume_max) = (&node, &model, self.resume_max);
            live(&Living { world, node, life, plant, env, model, resume_max })?;
            if life.crash_at_change.is_some_and(|at| node.disk().changes() - before < at) {
                model.lock().count("I/Os to fail at that did not come", 1);
            }
        }
        let report = model.lock().noted().report.clone();
        Ok(report)
    }
}

/// Opens the log in a directory of its own, which is its to create and to sync; an error in words.
pub(super) async fn open_log(env: &Env, config: LogConfig, cells: Option<Cells>) -> Result<Log, String> {
    Log::open(env, config, Path::new("/data/log"), cells).await.map_err(|error| error.to_string())
}

/// The same, where no disk loses what was synced: no shard is damaged.
pub(super) async fn open_undamaged(
    env: &Env,
    config: LogConfig,
    cells: Option<Cells>,
) -> Result<Log, String> {
    match open_log(env, config, cells).await? {
        log if log.shards_damaged() == 0 => Ok(log),
        _ => Err("shards are damaged, and no disk here loses what was synced".to_owned()),
    }
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
