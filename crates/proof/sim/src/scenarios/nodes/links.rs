//! What nodes reach over a network that can be cut: the metadata, and each bookie.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::Env;

use super::bookies::BOOKIES;

/// How long whoever asks waits for an answer.
const ANSWER_PATIENCE: Duration = Duration::from_millis(200);

/// What a node asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LinkPlace {
    Metadata,
    Bookie(usize),
}

/// Which nodes do not reach which places.
#[derive(Default)]
pub(super) struct NodeLinks(Mutex<BTreeSet<(usize, LinkPlace)>>);

impl NodeLinks {
    pub(super) fn cut(&self, node: usize, place: LinkPlace) {
        self.0.lock().insert((node, place));
    }

    pub(super) fn mend(&self, node: usize, place: LinkPlace) {
        self.0.lock().remove(&(node, place));
    }

    pub(super) fn mend_all(&self) {
        self.0.lock().clear();
    }

    pub(super) fn is_cut(&self, node: usize, place: LinkPlace) -> bool {
        self.0.lock().contains(&(node, place))
    }
}

/// A running node's way to all places.
#[derive(Clone)]
pub(super) struct NodeLink {
    pub(super) node: usize,
    pub(super) env: Env,
    pub(super) links: Arc<NodeLinks>,
}

impl NodeLink {
    /// One way of a message; whether it arrives. Now and then one takes long.
    pub(super) async fn travel(&self, place: LinkPlace) -> bool {
        let most_us = if self.env.random_below(30) == 0 { 60_000 } else { 1_500 };
        self.env.sleep(Duration::from_micros(50 + self.env.random_below(most_us))).await;
        !self.links.is_cut(self.node, place)
    }

    /// What is answered; `None` after a while if it was not asked, or the answer did not come.
    pub(super) async fn ask<T>(&self, place: LinkPlace, answer: impl FnOnce() -> T) -> Option<T> {
        let answer = self.travel(place).await.then(answer);
        if answer.is_some() && self.travel(place).await {
            return answer;
        }
        self.env.sleep(ANSWER_PATIENCE).await;
        None
    }

    /// What is answered, however long that takes.
    pub(super) async fn ask_until<T>(&self, place: LinkPlace, answer: impl Fn() -> T) -> T {
        loop {
            if let Some(answer) = self.ask(place, &answer).await {
                return answer;
            }
        }
    }

    /// All bookies, in a random order.
    pub(super) fn bookies(&self) -> [usize; BOOKIES] {
        let mut order: [usize; BOOKIES] = std::array::from_fn(|bookie| bookie);
        for last in (1..BOOKIES).rev() {
            order.swap(last, self.env.random_below(last as u64 + 1) as usize);
        }
        order
    }
}
