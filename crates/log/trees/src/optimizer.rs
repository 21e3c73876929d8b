//! Trees within bounds, and small changes that make them cheaper.
//!
//! Without bounds the first tree is Prim's, and nothing is cheaper. A bound on hops or fan-out makes the problem one
//! that no known algorithm solves fast. So several trees are grown, from such as care for cost only to such as care for
//! depth only, each is changed as long as one change makes it better, and the best one is taken. Nothing is random. Of
//! few clusters all trees are tried instead.

use crate::graph::{Edge, LinkGraph, Weight};
use crate::limits::ALL_TREES_CLUSTERS_MAX;

/// What a tree has to keep to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds<'a> {
    /// Hops from the source to any cluster, at most.
    pub(crate) depth: usize,
    /// Clusters that one cluster sends to, at most.
    pub(crate) fan_out: usize,
    /// Whether a cluster may send to others.
    pub(crate) forwards: &'a [bool],
}

/// What a growing tree takes next.
#[derive(Clone, Copy, Debug)]
enum Favour {
    /// The cheapest link, with so many quarters of a link's mean cost on top for each hop before it.
    Cost { quarters: u64 },
    /// The fewest hops, and of those what forwards.
    Depth,
}

const FAVOURS: [Favour; 5] = [
    Favour::Cost { quarters: 0 },
    Favour::Cost { quarters: 1 },
    Favour::Cost { quarters: 4 },
    Favour::Cost { quarters: 16 },
    Favour::Depth,
];

/// How good a tree is: the smaller the better, in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    weight: Weight,
    /// Of the farthest cluster.
    depth: usize,
    /// Of all clusters.
    depths: usize,
    /// Of all clusters, from the source on.
    delay_us: u64,
    /// Sum of the squares of all fan-outs.
    unevenness: usize,
}

/// By what a growing tree chooses: hops, leaves last, weight, hops again, delay and fan-out of the parent.
type ParentRank = (usize, bool, Weight, usize, u64, usize);

/// A tree's score, its clusters' depths and their parents.
type Ranked = (Score, Vec<Option<usize>>, Vec<Option<usize>>);

/// Each cluster's parent, in the best tree that was found. None of it is the source's, or there is no tree.
pub(crate) fn optimize(graph: &LinkGraph, bounds: Bounds<'_>) -> Option<Vec<Option<usize>>> {
    if graph.len() <= ALL_TREES_CLUSTERS_MAX {
        let mut branches = Branches::new(graph, bounds);
        let mut best = None;
        branches.try_all(0, Weight::default(), &mut best);
        return best.map(|(.., parents)| parents);
    }
    let grown = FAVOURS.iter().filter_map(|&favour| {
        let mut branches = Branches::new(graph, bounds);
        branches.grow(favour).then(|| {
            branches.improve();
            branches.ranked()
        })
    });
    grown.min().map(|(.., parents)| parents)
}

/// Whether a tree within these bounds is found.
pub(crate) fn is_found(graph: &LinkGraph, bounds: Bounds<'_>) -> bool {
    if graph.len() <= ALL_TREES_CLUSTERS_MAX {
        return optimize(graph, bounds).is_some();
    }
    FAVOURS.iter().rev().any(|&favour| Branches::new(graph, bounds).grow(favour))
}

/// A tree, or parts of one.
struct Branches<'a> {
    graph: &'a LinkGraph,
    bounds: Bounds<'a>,
    parents: Vec<Option<usize>>,
    /// In order.
    children: Vec<Vec<usize>>,
    /// Of the link to each cluster's parent.
    weights: Vec<Weight>,
    delays_us: Vec<u64>,
    /// Of each cluster's cheapest link.
    least: Vec<Weight>,
}

impl<'a> Branches<'a> {
    fn new(graph: &'a LinkGraph, bounds: Bounds<'a>) -> Self {
        let count = graph.len();
        let least = |of| graph.edges(of).iter().map(|edge| edge.weight).min().unwrap_or_default();
        Self {
            graph,
            bounds,
            parents: vec![None; count],
            children: vec![Vec::new(); count],
            weights: vec![Weight::default(); count],
            delays_us: vec![0; count],
            least: (0..count).map(least).collect(),
        }
    }

    fn attach(&mut self, child: usize, parent: usize) {
        debug_assert!(self.parents[child].is_none(), "it is detached first");
        self.parents[child] = Some(parent);
        let at = self.children[parent].partition_point(|&other| other < child);
        self.children[parent].insert(at, child);
        if let Some(edge) = self.graph.edge(parent, child) {
            (self.weights[child], self.delays_us[child]) = (edge.weight, edge.delay_us);
        }
    }

    fn detach(&mut self, child: usize) {
        if let Some(parent) = self.parents[child].take() {
            self.children[parent].retain(|&other| other != child);
        }
    }

    /// Hops from the source and the delay over them, of what hangs together with it.
    fn way(&self, cluster: usize) -> Option<(usize, u64)> {
        let (mut at, mut depth, mut delay_us) = (cluster, 0, 0);
        while at != self.graph.source {
            let parent = self.parents[at]?;
            delay_us += self.delays_us[at];
            (at, depth) = (parent, depth + 1);
        }
        Some((depth, delay_us))
    }

    fn depth(&self, cluster: usize) -> Option<usize> {
        self.way(cluster).map(|(depth, _)| depth)
    }

    /// Hops to the farthest cluster below.
    fn height(&self, cluster: usize) -> usize {
        self.children[cluster].iter().map(|&child| self.height(child) + 1).max().unwrap_or(0)
    }

    /// Whether a detached cluster may hang below this one, with all that is below it.
    fn may_take(&self, parent: usize, child: usize) -> bool {
        // What hangs below a detached cluster has no way from the source, so no cycle comes of it.
        self.bounds.forwards[parent]
            && self.children[parent].len() < self.bounds.fan_out
            && self.depth(parent).is_some_and(|depth| depth + 1 + self.height(child) <= self.bounds.depth)
    }

    /// Attaches every cluster, if it finds where.
    fn grow(&mut self, favour: Favour) -> bool {
        let count = self.graph.len();
        let mut best: Vec<Option<(ParentRank, usize)>> =
            (0..count).map(|cluster| self.best_parent(cluster, favour)).collect();
        for _ in 1..count {
            let next = (0..count)
                .filter_map(|cluster| best[cluster].map(|(choice, parent)| (choice, cluster, parent)));
            let Some((_, child, parent)) = next.min() else {
                if !self.make_room() {
                    return false;
                }
                best = (0..count).map(|cluster| self.best_parent(cluster, favour)).collect();
                continue;
            };
            self.attach(child, parent);
            best[child] = None;
            if self.children[parent].len() == self.bounds.fan_out {
                for (cluster, known) in best.iter_mut().enumerate() {
                    if known.is_some_and(|(_, of)| of == parent) {
                        *known = self.best_parent(cluster, favour);
                    }
                }
            }
            for edge in self.graph.edges(child) {
                let offered = self.choice(edge.to, child, edge, favour).map(|choice| (choice, child));
                if let Some(offered) = offered
                    && best[edge.to].is_none_or(|known| offered < known)
                {
                    best[edge.to] = Some(offered);
                }
            }
        }
        true
    }

    fn best_parent(&self, cluster: usize, favour: Favour) -> Option<(ParentRank, usize)> {
        let edges = self.graph.edges(cluster).iter();
        edges.filter_map(|edge| Some((self.choice(cluster, edge.to, edge, favour)?, edge.to))).min()
    }

    /// How good `parent` is for a cluster that has none, if it may be that, over the link between them.
    fn choice(&self, cluster: usize, parent: usize, edge: &Edge, favour: Favour) -> Option<ParentRank> {
        if cluster == self.graph.source || self.parents[cluster].is_some() || !self.may_take(parent, cluster)
        {
            return None;
        }
        let (depth, delay_us) = self.way(parent)?;
        let (hops, is_leaf, weight) = match favour {
            Favour::Depth => (depth, !self.bounds.forwards[cluster], edge.weight),
            Favour::Cost { quarters } => {
                let extra = self.graph.cost_mean() * quarters * depth as u64 / 4;
                (0, false, edge.weight + Weight { failing: 0, cost: extra })
            }
        };
        Some((hops, is_leaf, weight, depth, delay_us + edge.delay_us, self.children[parent].len()))
    }

    /// Attaches one of the clusters that nothing has room for, in another one's place.
    fn make_room(&mut self) -> bool {
        let left = |branches: &Self, cluster: usize| {
            cluster != branches.graph.source && branches.parents[cluster].is_none()
        };
        let count = self.graph.len();
        (0..count).any(|cluster| left(self, cluster) && self.place(cluster, &mut vec![false; count]))
    }

    /// Attaches a detached cluster where there is room, or where moving others makes some, each of them once. Otherwise
    /// everything is as it was.
    fn place(&mut self, cluster: usize, was_moved: &mut [bool]) -> bool {
        was_moved[cluster] = true;
        let mut edges: Vec<Edge> = self.graph.edges(cluster).to_vec();
        edges.sort_by_key(|edge| (edge.weight, edge.to));
        if let Some(edge) = edges.iter().find(|edge| self.may_take(edge.to, cluster)) {
            self.attach(cluster, edge.to);
            return true;
        }
        for parent in edges.iter().map(|edge| edge.to) {
            for child in self.children[parent].clone() {
                if was_moved[child] {
                    continue;
                }
                self.detach(child);
                if self.may_take(parent, cluster) {
                    self.attach(cluster, parent);
                    if self.place(child, was_moved) {
                        return true;
                    }
                    self.detach(cluster);
                }
                self.attach(child, parent);
            }
        }
        false
    }

    /// Changes the tree as long as one change makes it better. It ends, as every change makes the score smaller.
    fn improve(&mut self) {
        loop {
            let mut is_better = false;
            for cluster in 0..self.graph.len() {
                for edge in self.graph.edges(cluster) {
                    is_better |= self.improve_by(cluster, edge);
                }
            }
            if !is_better {
                return;
            }
        }
    }

    /// Hangs a cluster below another one, by itself or in a child's place.
    fn improve_by(&mut self, cluster: usize, edge: &Edge) -> bool {
        let parent = edge.to;
        let Some(before) = self.parents[cluster].filter(|&before| before != parent) else { return false };
        if !self.bounds.forwards[parent] {
            return false;
        }
        let is_cheaper = edge.weight < self.weights[cluster];
        let is_as_cheap = edge.weight == self.weights[cluster];
        if (is_cheaper || is_as_cheap && self.is_nicer(cluster, before, edge))
            && self.change(&[(cluster, parent)])
        {
            return true;
        }
        (0..self.children[parent].len()).any(|at| {
            let child = self.children[parent][at];
            // No link that the child could have instead is cheaper than its cheapest.
            let may_save = edge.weight + self.least[child] < self.weights[cluster] + self.weights[child];
            may_save
                && child != cluster
                && (self.change_cheaper(&[(cluster, parent), (child, before)])
                    || self.change_cheaper(&[(cluster, parent), (child, cluster)]))
        })
    }

    /// Whether a parent that is as cheap is better: nearer to the source, then sooner, then less busy.
    fn is_nicer(&self, cluster: usize, before: usize, edge: &Edge) -> bool {
        let (Some((depth, delay_us)), Some(now)) = (self.way(edge.to), self.way(cluster)) else {
            return false;
        };
        let fan_outs = (self.children[edge.to].len() + 1, self.children[before].len());
        (depth + 1, delay_us + edge.delay_us, fan_outs.0) < (now.0, now.1, fan_outs.1)
    }

    /// Gives clusters other parents, if that is allowed and cheaper.
    fn change_cheaper(&mut self, moves: &[(usize, usize)]) -> bool {
        let (mut is, mut would_be) = (Weight::default(), Weight::default());
        for &(child, parent) in moves {
            let Some(edge) = self.graph.edge(parent, child) else { return false };
            (is, would_be) = (is + self.weights[child], would_be + edge.weight);
        }
        would_be < is && self.change(moves)
    }

    /// Gives clusters other parents, if that is allowed.
    fn change(&mut self, moves: &[(usize, usize)]) -> bool {
        let before: Vec<(usize, Option<usize>)> =
            moves.iter().map(|&(child, _)| (child, self.parents[child])).collect();
        moves.iter().for_each(|&(child, _)| self.detach(child));
        let is_allowed = moves.iter().all(|&(child, parent)| {
            let may = self.may_take(parent, child);
            if may {
                self.attach(child, parent);
            }
            may
        });
        if !is_allowed {
            moves.iter().for_each(|&(child, _)| self.detach(child));
            for (child, parent) in before {
                if let Some(parent) = parent {
                    self.attach(child, parent);
                }
            }
        }
        is_allowed
    }

    /// Gives each cluster from `cluster` on each parent, and keeps the best tree. `weight` is that of the links before.
    fn try_all(&mut self, cluster: usize, weight: Weight, best: &mut Option<Ranked>) {
        if best.as_ref().is_some_and(|(score, ..)| weight > score.weight) {
            return;
        }
        if cluster == self.graph.len() {
            let is_within = |depth: Option<usize>| depth.is_some_and(|depth| depth <= self.bounds.depth);
            if (0..cluster).all(|of| is_within(self.depth(of))) {
                let found = self.ranked();
                if best.as_ref().is_none_or(|best| found < *best) {
                    *best = Some(found);
                }
            }
            return;
        }
        if cluster == self.graph.source {
            return self.try_all(cluster + 1, weight, best);
        }
        for edge in self.graph.edges(cluster) {
            let parent = edge.to;
            let has_room = self.children[parent].len() < self.bounds.fan_out;
            if self.bounds.forwards[parent] && has_room && !self.is_below(parent, cluster) {
                self.attach(cluster, parent);
                self.try_all(cluster + 1, weight + edge.weight, best);
                self.detach(cluster);
            }
        }
    }

    /// The tree, so that the smallest is the best one: of equal ones that in which what is first by name is nearest.
    fn ranked(&self) -> Ranked {
        let depths = (0..self.graph.len()).map(|of| self.depth(of)).collect();
        (self.score(), depths, self.parents.clone())
    }

    fn is_below(&self, cluster: usize, top: usize) -> bool {
        std::iter::successors(Some(cluster), |&at| self.parents[at]).any(|at| at == top)
    }

    /// Of a whole tree.
    fn score(&self) -> Score {
        let mut score = Score { weight: Weight::default(), depth: 0, depths: 0, delay_us: 0, unevenness: 0 };
        let mut next = vec![(self.graph.source, 0, 0)];
        while let Some((cluster, depth, delay_us)) = next.pop() {
            score.depth = score.depth.max(depth);
            score.depths += depth;
            score.delay_us += delay_us;
            score.unevenness += self.children[cluster].len().pow(2);
            for &child in &self.children[cluster] {
                if let Some(edge) = self.graph.edge(cluster, child) {
                    score.weight = score.weight + edge.weight;
                    next.push((child, depth + 1, delay_us + edge.delay_us));
                }
            }
        }
        score
    }
}
