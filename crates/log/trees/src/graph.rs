//! What the costs say of the clusters of one stream, checked, and with numbers in place of names. Numbers are in the
//! order of names, so what prefers smaller numbers prefers by name, in whichever order the file has them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Add;

use crate::costs::{ClusterEntry, LinkEntry, TreeCosts};
use crate::error::PlanError;
use crate::limits::{CLUSTER_NAME_BYTES_MAX, CLUSTERS_MAX, COST_PER_GB_MAX, DELAY_MS_MAX, OPERATIONS};
use crate::plan::TreeRequest;

/// What the optimizer makes small: links with an outage first, then cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Weight {
    /// CheckedLinks that fail, or end at a cluster that does.
    pub(crate) failing: u32,
    /// Millionths for each GB, of one operation, times the factor of what is around an outage.
    pub(crate) cost: u64,
}

impl Add for Weight {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { failing: self.failing + other.failing, cost: self.cost + other.cost }
    }
}

/// By how much a link is taken for dearer, by how many links away the next outage is: at its ends, one further on.
/// Beyond that it costs what it costs.
const FACTORS: [u64; 2] = [4, 2];

// A sum of weights can't overflow.
const _: () = assert!(COST_PER_GB_MAX * 1e6 * (CLUSTERS_MAX * 64) as f64 <= u64::MAX as f64 / 4.0);

/// A link, seen from one of its ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) to: usize,
    pub(crate) weight: Weight,
    /// Millionths for each GB, of one operation.
    pub(crate) cost: u64,
    pub(crate) delay_us: u64,
    pub(crate) bandwidth: Option<u64>,
    pub(crate) failing: bool,
}

/// The clusters of one stream.
#[derive(Clone, Debug)]
pub(crate) struct LinkGraph {
    pub(crate) clusters: Vec<ClusterEntry>,
    pub(crate) source: usize,
    /// The links of each cluster, by the other end.
    edges: Vec<Vec<Edge>>,
    cost_mean: u64,
}

impl LinkGraph {
    /// Checks all of the costs, and keeps what the request needs.
    pub(crate) fn new(costs: &TreeCosts, request: &TreeRequest) -> Result<Self, PlanError> {
        let all = checked_clusters(costs)?;
        let links = checked_links(costs, &all)?;
        let wanted = wanted_clusters(&all, request)?;
        let numbers: BTreeMap<&str, usize> = wanted.iter().copied().zip(0..).collect();
        let clusters: Vec<ClusterEntry> = wanted.iter().map(|name| all[name].clone()).collect();
        let mut graph = Self {
            source: numbers[&*request.source],
            edges: vec![Vec::new(); clusters.len()],
            clusters,
            cost_mean: 0,
        };
        let needed = request.bytes_per_s.unwrap_or(0).saturating_mul(OPERATIONS);
        for ((a, b), link) in &links {
            let (Some(&a), Some(&b)) = (numbers.get(a), numbers.get(b)) else { continue };
            if link.bandwidth_bytes_per_s.is_some_and(|bandwidth| bandwidth < needed) {
                continue;
            }
            let is_failing = link.failing || graph.clusters[a].failing || graph.clusters[b].failing;
            let cost = (link.cost_per_gb * 1e6).round() as u64;
            let edge = |to| Edge {
                to,
                weight: Weight { failing: is_failing.into(), cost },
                cost,
                delay_us: (link.delay_ms * 1e3).round() as u64,
                bandwidth: link.bandwidth_bytes_per_s,
                failing: link.failing,
            };
            graph.edges[a].push(edge(b));
            graph.edges[b].push(edge(a));
        }
        graph.edges.iter_mut().for_each(|edges| edges.sort_by_key(|edge| edge.to));
        graph.penalize();
        let (count, sum) =
            graph.edges.iter().flatten().fold((0, 0), |(count, sum), edge| (count + 1, sum + edge.cost));
        graph.cost_mean = sum / u64::max(count, 1);
        Ok(graph)
    }

    /// Millionths for each GB, of one operation, of all links.
    pub(crate) fn cost_mean(&self) -> u64 {
        self.cost_mean
    }

    pub(crate) fn len(&self) -> usize {
        self.clusters.len()
    }

    pub(crate) fn name(&self, cluster: usize) -> &str {
        &self.clusters[cluster].name
    }

    pub(crate) fn edges(&self, cluster: usize) -> &[Edge] {
        &self.edges[cluster]
    }

    pub(crate) fn edge(&self, a: usize, b: usize) -> Option<&Edge> {
        let at = self.edges[a].binary_search_by_key(&b, |edge| edge.to).ok()?;
        Some(&self.edges[a][at])
    }

    /// Makes links dearer by how near to an outage they are, breadth first.
    fn penalize(&mut self) {
        // A cluster that fails is one, and the ends of a link that does are next to one.
        let mut near = vec![FACTORS.len(); self.len()];
        for (cluster, edges) in self.edges.iter().enumerate() {
            if self.clusters[cluster].failing {
                near[cluster] = 0;
            } else if edges.iter().any(|edge| edge.failing) {
                near[cluster] = 1;
            }
        }
        let mut queue: VecDeque<usize> = (0..self.len()).filter(|&cluster| near[cluster] == 0).collect();
        while let Some(cluster) = queue.pop_front() {
            for edge in &self.edges[cluster] {
                if near[edge.to] > near[cluster] + 1 {
                    near[edge.to] = near[cluster] + 1;
                    queue.push_back(edge.to);
                }
            }
        }
        for (cluster, edges) in self.edges.iter_mut().enumerate() {
            for edge in edges {
                let factor = FACTORS.get(near[cluster].min(near[edge.to])).copied().unwrap_or(1);
                edge.weight.cost = edge.cost * factor;
            }
        }
    }

    /// Hops from the source to each cluster, the fewest that links allow if only clusters that forward do.
    pub(crate) fn hops(&self, forwards: &[bool]) -> Vec<Option<usize>> {
        let mut hops = vec![None; self.len()];
        hops[self.source] = Some(0);
        let mut queue = VecDeque::from([self.source]);
        while let Some(cluster) = queue.pop_front() {
            for edge in self.edges(cluster) {
                if forwards[cluster] && hops[edge.to].is_none() {
                    hops[edge.to] = hops[cluster].map(|hops| hops + 1);
                    queue.push_back(edge.to);
                }
            }
        }
        hops
    }
}

fn checked_clusters(costs: &TreeCosts) -> Result<BTreeMap<&str, &ClusterEntry>, PlanError> {
    if costs.clusters.len() > CLUSTERS_MAX {
        return Err(PlanError::TooManyClusters { given: costs.clusters.len(), max: CLUSTERS_MAX });
    }
    let mut all = BTreeMap::new();
    for cluster in &costs.clusters {
        let name = &*cluster.name;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !(1..=CLUSTER_NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_plain) {
            return Err(PlanError::Name(name.chars().take(CLUSTER_NAME_BYTES_MAX).collect()));
        }
        if all.insert(name, cluster).is_some() {
            return Err(PlanError::DuplicateCluster(name.to_owned()));
        }
    }
    Ok(all)
}

type CheckedLinks<'a> = BTreeMap<(&'a str, &'a str), &'a LinkEntry>;

fn checked_links<'a>(
    costs: &'a TreeCosts,
    all: &BTreeMap<&str, &ClusterEntry>,
) -> Result<CheckedLinks<'a>, PlanError> {
    let mut links = BTreeMap::new();
    for link in &costs.links {
        let [a, b] = link.between.each_ref().map(String::as_str);
        let between = format!("{a} and {b}");
        if let Some(name) = [a, b].into_iter().find(|name| !all.contains_key(name)) {
            return Err(PlanError::UnknownCluster {
                place: format!("the link between {between}"),
                name: name.to_owned(),
            });
        }
        if a == b {
            return Err(PlanError::SelfLink(a.to_owned()));
        }
        let wrong = |field, given: String, least, most| {
            Err(PlanError::Number { between: between.clone(), field, given, least, most })
        };
        // Also what is no number is not in there.
        if !(0.0..=COST_PER_GB_MAX).contains(&link.cost_per_gb) {
            return wrong("cost_per_gb", link.cost_per_gb.to_string(), 0, COST_PER_GB_MAX as u64);
        }
        if !(0.0..=DELAY_MS_MAX).contains(&link.delay_ms) {
            return wrong("delay_ms", link.delay_ms.to_string(), 0, DELAY_MS_MAX as u64);
        }
        if link.bandwidth_bytes_per_s == Some(0) {
            return wrong("bandwidth_bytes_per_s", 0.to_string(), 1, u64::MAX);
        }
        if links.insert((a.min(b), a.max(b)), link).is_some() {
            return Err(PlanError::DuplicateLink(a.min(b).to_owned(), a.max(b).to_owned()));
        }
    }
    Ok(links)
}

/// Names of the source and of the destinations.
fn wanted_clusters<'a>(
    all: &BTreeMap<&'a str, &ClusterEntry>,
    request: &TreeRequest,
) -> Result<BTreeSet<&'a str>, PlanError> {
    let known = |place: &str, name: &str| match all.get_key_value(name) {
        Some((&name, _)) => Ok(name),
        None => Err(PlanError::UnknownCluster { place: place.to_owned(), name: name.to_owned() }),
    };
    let source = known("the source", &request.source)?;
    if all[source].new {
        return Err(PlanError::SourceIsNew(source.to_owned()));
    }
    if request.to.iter().any(|name| name == source) {
        return Err(PlanError::SourceIsDestination(source.to_owned()));
    }
    let mut wanted: BTreeSet<&str> = match request.to.is_empty() {
        true => all.keys().copied().collect(),
        false => {
            request.to.iter().map(|name| known("the list of destinations", name)).collect::<Result<_, _>>()?
        }
    };
    wanted.insert(source);
    match wanted.len() {
        1 => Err(PlanError::NoDestination(source.to_owned())),
        _ => Ok(wanted),
    }
}
