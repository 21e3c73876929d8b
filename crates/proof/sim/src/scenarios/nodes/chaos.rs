//! What goes wrong between nodes, metadata and bookies.

use std::sync::Arc;
use std::time::Duration;

use crate::rng::Rng;
use crate::world::Crash;

use super::bookies::BOOKIES;
use super::links::LinkPlace;
use super::{NAMES, SharedNodes};

/// Breaks one thing after the other until it is calm.
pub(super) async fn trouble(shared: SharedNodes, mut rng: Rng) {
    loop {
        shared.outside.sleep(Duration::from_millis(rng.between(50, 1_200))).await;
        if shared.state.lock().calm || shared.outcome.has_failed() {
            return;
        }
        let node = rng.index(NAMES.len());
        // About half of them last longer than a session.
        let lasts = Duration::from_millis(rng.between(100, 5_000));
        match rng.below(12) {
            0 | 1 => {
                shared.outcome.count("crashes of nodes", 1);
                let how = if rng.below(2) == 0 { Crash::Process } else { Crash::Power };
                shared.nodes[node].crash(how);
            }
            2..=4 => {
                shared.outcome.count("pauses of nodes", 1);
                shared.nodes[node].pause();
                later(&shared, lasts, move |shared| shared.nodes[node].resume());
            }
            5..=7 => cut(&shared, node, LinkPlace::Metadata, lasts),
            8 => cut(&shared, node, LinkPlace::Bookie(rng.index(BOOKIES)), lasts),
            9 => {
                let bookie = LinkPlace::Bookie(rng.index(BOOKIES));
                (0..NAMES.len()).for_each(|node| cut(&shared, node, bookie, lasts));
            }
            // All but a bookie: nothing is acknowledged, and nothing is recovered.
            10 => {
                let left = rng.index(BOOKIES);
                let cut_off = (0..BOOKIES).filter(|bookie| *bookie != left);
                cut_off.for_each(|bookie| cut(&shared, node, LinkPlace::Bookie(bookie), lasts));
            }
            _ => {
                shared.outcome.count("drains", 1);
                shared.state.lock().drains[node] = true;
                later(&shared, lasts, move |shared| shared.state.lock().drains[node] = false);
            }
        }
    }
}

fn cut(shared: &SharedNodes, node: usize, place: LinkPlace, lasts: Duration) {
    let what =
        if place == LinkPlace::Metadata { "nodes cut from metadata" } else { "nodes cut from bookies" };
    shared.outcome.count(what, 1);
    shared.links.cut(node, place);
    later(shared, lasts, move |shared| shared.links.mend(node, place));
}

fn later(shared: &SharedNodes, after: Duration, then: impl FnOnce(&SharedNodes) + Send + 'static) {
    let (outside, shared) = (shared.outside.clone(), Arc::clone(shared));
    let waiting = async move {
        shared.outside.sleep(after).await;
        then(&shared);
    };
    outside.spawn("later", waiting).detach();
}

/// Lets everything work again.
pub(super) fn mend(shared: &SharedNodes) {
    shared.links.mend_all();
    shared.nodes.iter().for_each(|node| node.resume());
    shared.state.lock().drains = [false; NAMES.len()];
}
