//! What is asked of a copy tree, and what it would be.

use serde::Serialize;

use crate::costs::TreeCosts;
use crate::error::PlanError;
use crate::explain::why_none;
use crate::graph::LinkGraph;
use crate::limits::{DEPTH_DEFAULT, FAN_OUT_DEFAULT, NEW_CLUSTER_BYTES_PER_S, OPERATIONS};
use crate::optimizer::{Bounds, optimize};

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeRequest {
    /// The stream's name. It is shown, and changes nothing.
    pub stream: String,
    /// The cluster that has the stream.
    pub source: String,
    /// The clusters that shall have copies. None are all but the source.
    pub to: Vec<String>,
    /// Hops from the source to any cluster, at most; 1 or more.
    pub depth_max: usize,
    /// Clusters that one cluster sends to, at most; 1 or more.
    pub fan_out_max: usize,
    /// Bytes per second that are written to the stream, if that is known. Links that carry less than both operations
    /// send are left out.
    pub bytes_per_s: Option<u64>,
}

impl TreeRequest {
    /// Asks for copies of a stream in all clusters, within the bounds that hold by default.
    pub fn new(stream: &str, source: &str) -> Self {
        Self {
            stream: stream.to_owned(),
            source: source.to_owned(),
            to: Vec::new(),
            depth_max: DEPTH_DEFAULT,
            fan_out_max: FAN_OUT_DEFAULT,
            bytes_per_s: None,
        }
    }
}

/// A copy tree as it would be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TreePlan {
    /// The stream's name.
    pub stream: String,
    /// The cluster that has the stream.
    pub source: String,
    /// Clusters that get copies.
    pub clusters: usize,
    /// Hops to the farthest one.
    pub depth: usize,
    /// Clusters that the source sends to.
    pub source_fan_out: usize,
    /// The largest fan-out.
    pub fan_out: usize,
    /// What copying 10^9 bytes of the stream to all clusters costs: both operations, over every hop.
    pub cost_per_gb: f64,
    /// The same for what is written in a day, if the rate was said.
    pub cost_per_day: Option<f64>,
    /// Links' delay on the way to the cluster that has the longest, in milliseconds.
    pub delay_ms: f64,
    /// Each hop, before those that follow it; beside each other by name.
    pub hops: Vec<TreeHop>,
    /// What somebody should know before it is done.
    pub notes: Vec<String>,
}

/// One hop of a copy tree: a link over which both operations of each file send.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TreeHop {
    /// The cluster that sends.
    pub from: String,
    /// The cluster that gets a copy.
    pub to: String,
    /// Hops from the source to it.
    pub depth: usize,
    /// Clusters that it sends to in its turn.
    pub fan_out: usize,
    /// What 10^9 bytes of the stream cost over this hop: both operations.
    pub cost_per_gb: f64,
    /// This link's delay, in milliseconds.
    pub delay_ms: f64,
    /// All links' delay from the source on, in milliseconds.
    pub delay_total_ms: f64,
    /// What the cluster does.
    pub role: HopRole,
    /// Bytes per second that a new cluster gets, of both operations together.
    pub limit_bytes_per_s: Option<u64>,
    /// The link has an outage.
    pub failing_link: bool,
}

/// What a cluster does in a copy tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HopRole {
    /// It sends to others.
    Forwards,
    /// It sends to nobody.
    Leaf,
    /// It has an outage.
    Failing,
    /// It is catching up.
    New,
}

impl HopRole {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forwards => "forwards",
            Self::Leaf => "leaf",
            Self::Failing => "failing",
            Self::New => "new",
        }
    }
}

/// Plans a copy tree. The same costs in another order have the same plan.
///
/// The plan is cheap first, then shallow, then fast, then even. What has an outage is avoided at any cost.
///
/// # Errors
/// [`PlanError`]: what is wrong with the costs or the request, or why there is no tree, and what to do.
pub fn plan(costs: &TreeCosts, request: &TreeRequest) -> Result<TreePlan, PlanError> {
    for (name, bound) in
        [("the largest depth", request.depth_max), ("the largest fan-out", request.fan_out_max)]
    {
        if bound == 0 {
            return Err(PlanError::ZeroBound(name));
        }
    }
    let graph = LinkGraph::new(costs, request)?;
    check_limits(&graph, request)?;
    let of = |forwards: &[bool]| {
        optimize(&graph, Bounds { depth: request.depth_max, fan_out: request.fan_out_max, forwards })
    };
    let is_source = |cluster: usize| cluster == graph.source;
    let healthy: Vec<bool> = (0..graph.len())
        .map(|cluster| is_source(cluster) || !graph.clusters[cluster].new && !graph.clusters[cluster].failing)
        .collect();
    // Where nothing else leads to a cluster, one with an outage does better than none.
    let caught_up: Vec<bool> = graph.clusters.iter().map(|cluster| !cluster.new).collect();
    match of(&healthy).or_else(|| of(&caught_up)) {
        Some(parents) => Ok(described(&graph, request, &parents)),
        None => Err(why_none(&graph, costs, request, &caught_up)),
    }
}

fn limit(graph: &LinkGraph, cluster: usize) -> Option<u64> {
    let entry = &graph.clusters[cluster];
    entry.new.then(|| entry.limit_bytes_per_s.unwrap_or(NEW_CLUSTER_BYTES_PER_S))
}

fn check_limits(graph: &LinkGraph, request: &TreeRequest) -> Result<(), PlanError> {
    let needed = request.bytes_per_s.unwrap_or(0).saturating_mul(OPERATIONS);
    let low = |cluster: &usize| limit(graph, *cluster).is_some_and(|limit| limit <= needed);
    match (0..graph.len()).find(low) {
        None => Ok(()),
        Some(cluster) => Err(PlanError::LimitTooLow {
            cluster: graph.name(cluster).to_owned(),
            limit: limit(graph, cluster).unwrap_or(0),
            needed,
        }),
    }
}

/// Millionths of one operation, as the cost of all operations.
fn cost(millionths: u64) -> f64 {
    (millionths * OPERATIONS) as f64 / 1e6
}

fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}

fn described(graph: &LinkGraph, request: &TreeRequest, parents: &[Option<usize>]) -> TreePlan {
    let mut children = vec![Vec::new(); graph.len()];
    for (child, parent) in parents.iter().enumerate() {
        if let Some(parent) = *parent {
            children[parent].push(child);
        }
    }
    let (mut hops, mut notes) = (Vec::new(), Vec::new());
    let (mut total, mut delay_us_max) = (0, 0);
    if graph.clusters[graph.source].failing {
        notes.push(format!("{} has an outage, and sends nevertheless: it is the source", request.source));
    }
    let mut next = vec![(graph.source, 0, 0)];
    while let Some((from, depth, delay_us)) = next.pop() {
        if let Some(edge) = parents[from].and_then(|parent| graph.edge(parent, from)) {
            let name = graph.name(from);
            let fan_out = children[from].len();
            total += edge.cost;
            delay_us_max = delay_us_max.max(delay_us);
            let role = match &graph.clusters[from] {
                entry if entry.failing => HopRole::Failing,
                entry if entry.new => HopRole::New,
                _ if fan_out > 0 => HopRole::Forwards,
                _ => HopRole::Leaf,
            };
            if role == HopRole::Failing && fan_out > 0 {
                notes.push(format!(
                    "{name} has an outage, and sends nevertheless: no tree without that was found"
                ));
            }
            if edge.failing {
                let parent = parents[from].map_or("", |parent| graph.name(parent));
                notes.push(format!(
                    "the link from {parent} to {name} has an outage, and is used nevertheless: no tree without it was found"
                ));
            }
            hops.push(TreeHop {
                from: parents[from].map_or_else(String::new, |parent| graph.name(parent).to_owned()),
                to: name.to_owned(),
                depth,
                fan_out,
                cost_per_gb: cost(edge.cost),
                delay_ms: ms(edge.delay_us),
                delay_total_ms: ms(delay_us),
                role,
                limit_bytes_per_s: limit(graph, from)
                    .map(|limit| limit.min(edge.bandwidth.unwrap_or(u64::MAX))),
                failing_link: edge.failing,
            });
        }
        for &child in children[from].iter().rev() {
            let delay = graph.edge(from, child).map_or(0, |edge| edge.delay_us);
            next.push((child, depth + 1, delay_us + delay));
        }
    }
    const SECONDS_A_DAY: f64 = 86_400.0;
    TreePlan {
        stream: request.stream.clone(),
        source: request.source.clone(),
        clusters: hops.len(),
        depth: hops.iter().map(|hop| hop.depth).max().unwrap_or(0),
        source_fan_out: children[graph.source].len(),
        fan_out: children.iter().map(Vec::len).max().unwrap_or(0),
        cost_per_gb: cost(total),
        cost_per_day: request.bytes_per_s.map(|bytes| bytes as f64 / 1e9 * SECONDS_A_DAY * cost(total)),
        delay_ms: ms(delay_us_max),
        hops,
        notes,
    }
}
