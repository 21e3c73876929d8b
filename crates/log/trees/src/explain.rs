//! Why there is no tree, and what would have to change: each remedy that is told was tried.

use crate::costs::TreeCosts;
use crate::error::PlanError;
use crate::graph::LinkGraph;
use crate::optimizer::{Bounds, is_found};
use crate::plan::TreeRequest;

/// What is told of clusters that nothing is found for: so many names, and how many more.
const NAMES_MAX: usize = 8;

/// Why nothing was found, though clusters with an outage may forward.
pub(crate) fn why_none(
    graph: &LinkGraph,
    costs: &TreeCosts,
    request: &TreeRequest,
    forwards: &[bool],
) -> PlanError {
    let hops = graph.hops(forwards);
    let unreached = unreached(graph, &hops);
    if !unreached.is_empty() {
        return PlanError::Unreachable {
            clusters: listed(&unreached),
            origin: request.source.clone(),
            remedy: way_to_all(graph, costs, request, &hops),
        };
    }
    let nearest = hops.iter().flatten().copied().max().unwrap_or(0);
    let (depth, fan_out) = (request.depth_max, request.fan_out_max);
    let remedy = if nearest > depth {
        let far: Vec<&str> =
            (0..graph.len()).filter(|&of| hops[of] > Some(depth)).map(|of| graph.name(of)).collect();
        format!("the links lead to {} in {nearest} hops; allow that many, or add links", listed(&far))
    } else {
        let deeper =
            least(depth + 1, graph.len(), |depth| is_found(graph, Bounds { depth, fan_out, forwards }));
        let wider =
            least(fan_out + 1, graph.len(), |fan_out| is_found(graph, Bounds { depth, fan_out, forwards }));
        match (deeper, wider) {
            (Some(deeper), Some(wider)) => format!("allow a depth of {deeper}, or a fan-out of {wider}"),
            (Some(deeper), None) => format!("allow a depth of {deeper}"),
            (None, Some(wider)) => format!("allow a fan-out of {wider}"),
            (None, None) => "allow more hops and a larger fan-out, or add links".to_owned(),
        }
    };
    PlanError::Bounds { depth, fan_out, remedy }
}

/// The smallest number from `low` to `high` that works, if what is larger than one that works does too.
fn least(mut low: usize, mut high: usize, works: impl Fn(usize) -> bool) -> Option<usize> {
    if low > high || !works(high) {
        return None;
    }
    while low < high {
        let middle = low.midpoint(high);
        if works(middle) { high = middle } else { low = middle + 1 }
    }
    Some(high)
}

fn unreached<'a>(graph: &'a LinkGraph, hops: &[Option<usize>]) -> Vec<&'a str> {
    (0..graph.len()).filter(|&cluster| hops[cluster].is_none()).map(|cluster| graph.name(cluster)).collect()
}

fn listed(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMES_MAX)].join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// What would lead to every cluster.
fn way_to_all(graph: &LinkGraph, costs: &TreeCosts, request: &TreeRequest, hops: &[Option<usize>]) -> String {
    let all_reached = |graph: &LinkGraph, forwards: &[bool], request: &TreeRequest| {
        let hops = graph.hops(forwards);
        (0..graph.len()).all(|of| {
            hops[of].is_some() || !request.to.is_empty() && !request.to.contains(&graph.clusters[of].name)
        })
    };
    if all_reached(graph, &vec![true; graph.len()], request) {
        let new: Vec<&str> = (0..graph.len())
            .filter(|&of| graph.clusters[of].new && hops[of].is_some())
            .filter(|&of| graph.edges(of).iter().any(|edge| hops[edge.to].is_none()))
            .map(|of| graph.name(of))
            .collect();
        return format!(
            "only new clusters have links to them ({}), and these forward nothing; add a link, or take `new` off one that has caught up",
            listed(&new)
        );
    }
    let tried = |changed: &TreeRequest| {
        LinkGraph::new(costs, changed).is_ok_and(|graph| {
            let forwards: Vec<bool> = graph.clusters.iter().map(|cluster| !cluster.new).collect();
            all_reached(&graph, &forwards, request)
        })
    };
    if tried(&TreeRequest { bytes_per_s: None, ..request.clone() }) {
        return "the links to them carry less than both operations send; give them more bandwidth, or add a link".to_owned();
    }
    if tried(&TreeRequest { to: Vec::new(), ..request.clone() }) {
        return "the clusters on the way to them get no copy; name these as destinations too, or add a link"
            .to_owned();
    }
    "no link leads there; add one from a cluster of the tree".to_owned()
}
