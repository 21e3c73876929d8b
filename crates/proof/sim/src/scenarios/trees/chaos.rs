//! What goes wrong between clusters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tailwater_copy::CopyTree;
use tailwater_format::{Offset, ShardNumber};

use crate::checkers::Violation;
use crate::net::Weather;
use crate::rng::Rng;
use crate::scenarios::clients::part;
use crate::world::{Crash, run_on};

use super::{CYCLE_MAX, Lineage, NAMES, STREAM, Trees, TreesShared};

/// Breaks one thing after the other until it is calm.
pub(super) async fn trouble(shared: Trees, mut rng: Rng) {
    loop {
        shared.outside.sleep(Duration::from_millis(rng.between(20, 600))).await;
        if shared.state.lock().calm || shared.outcome.has_failed() {
            return;
        }
        let any = rng.index(shared.nodes.len());
        if !shared.workers[any].is_empty() && rng.below(2) == 0 {
            super::workers::trouble(&shared, &mut rng, any);
            continue;
        }
        let other = (any + 1 + rng.index(shared.nodes.len() - 1)) % shared.nodes.len();
        match rng.below(20) {
            0..=2 => {
                shared.outcome.count("crashes of clusters", 1);
                let how = if rng.below(2) == 0 { Crash::Process } else { Crash::Power };
                shared.nodes[any].crash(how);
            }
            3 => {
                shared.outcome.count("crashes of clusters at an I/O", 1);
                shared.nodes[any].disk().crash_at_change(Some(1 + rng.below(60)));
            }
            4 | 5 => {
                shared.outcome.count("partitions", 1);
                let lasts = Duration::from_millis(rng.between(50, 9_000));
                part(&shared.net, &shared.outside, (&shared.nodes[any], &shared.nodes[other]), lasts);
            }
            6 => {
                shared.outcome.count("slow links", 1);
                let extra = Duration::from_millis(rng.below(3) * rng.below(150));
                shared.net.slow_down(&shared.nodes[any], &shared.nodes[other], extra);
            }
            7 => {
                let foul = rng.below(2) == 0;
                shared.net.set_weather(if foul { Weather::FOUL } else { Weather::FAIR });
            }
            8..=10 => {
                let hops = draw_tree(&shared, &mut rng);
                shared.place(&hops).await;
            }
            11 | 12 => truncate(&shared, &mut rng).await,
            13 => empty(&shared, any).await,
            14..=16 => move_in_order(&shared, any),
            17 => force(&shared, any).await,
            _ => cycle(&shared, &mut rng).await,
        }
    }
}

/// A tree from the source to most of the clusters.
fn draw_tree(shared: &Trees, rng: &mut Rng) -> Vec<(usize, usize)> {
    let mut reached = vec![shared.source()];
    let mut left: Vec<usize> = (0..shared.nodes.len()).filter(|number| *number != shared.source()).collect();
    let mut hops = Vec::new();
    while !left.is_empty() {
        let to = left.swap_remove(rng.index(left.len()));
        if rng.below(8) != 0 {
            hops.push((reached[rng.index(reached.len())], to));
            reached.push(to);
        }
    }
    hops
}

/// The tree of the last plan.
pub(super) fn last_tree(shared: &Trees) -> Vec<(usize, usize)> {
    let source = shared.source();
    let mut order = vec![source];
    order.extend((0..shared.nodes.len()).filter(|number| *number != source));
    (1..order.len()).map(|place| (order[(place - 1) / 2], order[place])).collect()
}

/// The source moves to `to`, as soon as that has everything.
fn move_in_order(shared: &Trees, to: usize) {
    let Some(life) = shared.life(shared.source()) else { return };
    let (outside, shared, copies) = (shared.outside.clone(), Arc::clone(shared), life.copies.clone());
    let moving = async move {
        if let Some(Ok(_)) =
            run_on(&life.env, "move", async move { copies.move_source(STREAM, NAMES[to]).await }).await
        {
            shared.outcome.count("moves of the source", 1);
        }
    };
    outside.spawn("move", moving).detach();
}

/// A copy is made the source by force, while the source is there or not.
async fn force(shared: &Trees, number: usize) {
    let Some(life) = shared.life(number) else { return };
    let copies = life.copies.clone();
    let forced = Arc::clone(shared);
    let taking = async move {
        let taken = copies.take_source(STREAM).await.ok()?;
        // Nobody else was told yet.
        forced.knows(&taken.plan);
        Some(())
    };
    run_on(&life.env, "force", taking).await;
}

impl TreesShared {
    /// A cluster goes by this plan: if it has made a lineage, that is beside the one before from here on.
    pub(super) fn knows(&self, plan: &CopyTree) {
        let Some(fork) = plan.forks.last() else { return };
        let before = plan.forks.len().checked_sub(2).map_or(0, |index| plan.forks[index].lineage);
        let mut state = self.state.lock();
        if state.lineages.contains_key(&fork.lineage) {
            return;
        }
        self.outcome.count("forced moves of the source", 1);
        let parent = state.lineages[&before].clone();
        let pairs = parent.checkers.iter().zip(&fork.ends);
        let checkers = pairs.map(|(checker, end)| checker.forked(end.0)).collect();
        let terms = BTreeMap::new();
        state.lineages.insert(fork.lineage, Lineage { checkers, terms });
    }
}

/// Removes records of a shard at the source.
async fn truncate(shared: &Trees, rng: &mut Rng) {
    let shard = rng.below(u64::from(shared.stream_config.shards)) as u32;
    let Some(life) = shared.life(shared.source()) else { return };
    let Some(lineage) = shared.lineage(&life) else { return };
    // Of one that will find out that it is the source no more, nobody follows that.
    let is_last = |(moves, _): (u64, _)| moves >= shared.state.lock().moves;
    if !life.leads(shared.source()).is_some_and(is_last) {
        return;
    }
    let before = {
        let mut state = shared.state.lock();
        let checker = state.checker(lineage, shard);
        let before = rng.below(checker.acknowledged_end() + 1);
        checker.truncating(before);
        before
    };
    let log = life.log.clone();
    let truncating = async move { log.truncate(STREAM, ShardNumber(shard), Offset(before)).await };
    if let Some(Ok(_)) = run_on(&life.env, "truncate", truncating).await {
        shared.outcome.count("truncations", 1);
    }
}

/// Deletes the copy of a cluster: it is made again.
async fn empty(shared: &Trees, number: usize) {
    let Some(life) = shared.life(number).filter(|life| life.leads(number).is_none()) else { return };
    // Not while the source moves: it may be about to move there.
    let source = shared.source();
    if shared.life(source).is_none_or(|life| life.leads(source).is_none()) {
        return;
    }
    let log = life.log.clone();
    let deleted = run_on(&life.env, "delete", async move { log.delete_stream(STREAM).await }).await;
    if let Some(Ok(())) = deleted {
        shared.outcome.count("copies emptied", 1);
    }
}

/// Two clusters go by different plans, by which each copies from the other. One of them is told of the later plan only
/// when its link to the source is mended.
async fn cycle(shared: &Trees, rng: &mut Rng) {
    let source = shared.source();
    let mut copies: Vec<usize> = (0..shared.nodes.len()).filter(|number| *number != source).collect();
    let x = copies.swap_remove(rng.index(copies.len()));
    let y = copies.swap_remove(rng.index(copies.len()));
    let rest = copies.into_iter().map(|to| (source, to));
    calm_links(shared);
    let first: Vec<_> = [(source, x), (x, y)].into_iter().chain(rest.clone()).collect();
    let Some(plan) = shared.place(&first).await else { return };
    let both_go_by_it = || [x, y].iter().all(|number| shared.plan(*number) == Some(plan));
    if !within(shared, Duration::from_secs(6), both_go_by_it).await {
        return;
    }
    shared.net.partition(&shared.nodes[source], &shared.nodes[y]);
    let second: Vec<_> = [(source, y), (y, x)].into_iter().chain(rest).collect();
    let placed = shared.place(&second).await;
    let makes_a_cycle = || placed.is_some() && shared.hop(x).is_some_and(|(from, _)| from == NAMES[y]);
    if within(shared, Duration::from_secs(6), makes_a_cycle).await {
        shared.outcome.count("cycles of two plans", 1);
        shared.outside.sleep(CYCLE_MAX).await;
        for _ in 0..30 {
            let copies = |number: usize, from: usize| {
                shared.hop(number).is_some_and(|(above, is_copying)| above == NAMES[from] && is_copying)
            };
            if copies(x, y) && copies(y, x) {
                let what =
                    "each of two clusters copies from the other, and has for a second: no cycle is dissolved";
                shared.outcome.note(Err(Violation::new(what)));
            }
            shared.outside.sleep(Duration::from_millis(50)).await;
        }
    }
    shared.net.heal(&shared.nodes[source], &shared.nodes[y]);
}

/// Waits until something is so, at most so long; whether it is.
async fn within(shared: &Trees, most: Duration, is_so: impl Fn() -> bool) -> bool {
    let began = shared.outside.now();
    while !is_so() {
        if shared.outside.now().since(began) > most || shared.outcome.has_failed() {
            return false;
        }
        shared.outside.sleep(Duration::from_millis(20)).await;
    }
    true
}

/// No link fails, or is slow.
fn calm_links(shared: &Trees) {
    shared.net.set_weather(Weather::FAIR);
    super::workers::calm_links(shared);
    for (place, a) in shared.nodes.iter().enumerate() {
        for b in &shared.nodes[place + 1..] {
            shared.net.heal(a, b);
            shared.net.slow_down(a, b, Duration::ZERO);
        }
    }
}

/// Lets everything work again, and waits until all clusters run.
pub(super) async fn mend(shared: &Trees) {
    calm_links(shared);
    super::workers::mend(shared);
    for node in &shared.nodes {
        node.disk().crash_at_change(None);
    }
    while (0..shared.nodes.len()).any(|number| shared.life(number).is_none()) && !shared.outcome.has_failed()
    {
        shared.outside.sleep(Duration::from_millis(5)).await;
    }
}
