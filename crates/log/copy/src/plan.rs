//! A stream's copy tree with a number, as it is stored and told.

use bytes::Bytes;
use prost::Message;
use tailwater_format::Offset;
use tailwater_format::StreamId;
use tailwater_format::limits::CLUSTERS_MAX;
use tailwater_log::CopyRecord;

use crate::clusters::{KnownCluster, check_name};
use crate::limits::{FORKS_MAX, PLAN_NUMBER_MAX};

/// Where plans are in metadata, each below its stream's id.
pub(crate) const PREFIX: &str = "copy/plan/";

/// One hop of a copy tree: names of clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEdge {
    /// The cluster that sends.
    pub from: String,
    /// The cluster that gets a copy.
    pub to: String,
}

/// A forced move of a source: what others had beyond these ends is not part of the stream any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// A random number, by which the lineage that begins here is known.
    pub lineage: u64,
    /// Where each shard ended at the new source.
    pub ends: Vec<Offset>,
}

/// A stream's copy tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyTree {
    /// How often the source has moved.
    pub moves: u64,
    /// Its number: each plan of a stream has a greater one than the last.
    pub number: u64,
    /// The cluster that has the stream.
    pub source: String,
    /// The stream.
    pub stream: CopyRecord,
    /// Each hop, before those that follow it.
    pub hops: Vec<TreeEdge>,
    /// The clusters that the source knows, itself first.
    pub clusters: Vec<KnownCluster>,
    /// The forced moves of the source, oldest first.
    pub forks: Vec<Fork>,
}

/// The messages as they are stored and told. Field numbers are for ever.
#[derive(Clone, PartialEq, Message)]
struct StoredPlan {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(string, tag = "2")]
    source: String,
    #[prost(bytes = "bytes", tag = "3")]
    stream: Bytes,
    #[prost(message, repeated, tag = "4")]
    hops: Vec<StoredHop>,
    #[prost(message, repeated, tag = "5")]
    clusters: Vec<StoredMember>,
    #[prost(uint64, tag = "6")]
    moves: u64,
    #[prost(message, repeated, tag = "7")]
    forks: Vec<StoredFork>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredFork {
    #[prost(fixed64, tag = "1")]
    lineage: u64,
    #[prost(uint64, repeated, tag = "2")]
    ends: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredHop {
    #[prost(string, tag = "1")]
    from: String,
    #[prost(string, tag = "2")]
    to: String,
}

#[derive(Clone, PartialEq, Message)]
struct StoredMember {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    address: String,
}

impl CopyTree {
    pub(crate) fn key(stream: StreamId) -> String {
        format!("{PREFIX}{stream}")
    }

    /// As it is stored and told.
    pub fn to_bytes(&self) -> Bytes {
        let hop = |hop: &TreeEdge| StoredHop { from: hop.from.clone(), to: hop.to.clone() };
        let member =
            |known: &KnownCluster| StoredMember { name: known.name.clone(), address: known.address.clone() };
        let fork = |fork: &Fork| StoredFork {
            lineage: fork.lineage,
            ends: fork.ends.iter().map(|end| end.0).collect(),
        };
        StoredPlan {
            number: self.number,
            source: self.source.clone(),
            stream: self.stream.encode(),
            hops: self.hops.iter().map(hop).collect(),
            clusters: self.clusters.iter().map(member).collect(),
            moves: self.moves,
            forks: self.forks.iter().map(fork).collect(),
        }
        .encode_to_vec()
        .into()
    }

    /// The plan in these bytes, which another cluster may have sent.
    ///
    /// # Errors
    /// In words: bytes that are no plan, or one that can't be followed.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let stored = StoredPlan::decode(bytes).map_err(|error| error.to_string())?;
        if stored.hops.len() >= CLUSTERS_MAX || stored.clusters.len() > CLUSTERS_MAX {
            return Err(format!("a plan of more than {CLUSTERS_MAX} clusters"));
        }
        if stored.forks.len() > FORKS_MAX {
            return Err(format!("a plan of more than {FORKS_MAX} forced moves"));
        }
        if stored.moves > PLAN_NUMBER_MAX || stored.number > PLAN_NUMBER_MAX {
            return Err(format!("plan {} after {} moves of its source", stored.number, stored.moves));
        }
        let fork = |fork: StoredFork| Fork {
            lineage: fork.lineage,
            ends: fork.ends.into_iter().map(Offset).collect(),
        };
        let plan = Self {
            moves: stored.moves,
            forks: stored.forks.into_iter().map(fork).collect(),
            number: stored.number,
            source: stored.source,
            stream: CopyRecord::decode(&stored.stream)?,
            hops: stored.hops.into_iter().map(|hop| TreeEdge { from: hop.from, to: hop.to }).collect(),
            clusters: stored
                .clusters
                .iter()
                .map(|member| KnownCluster::new(&member.name, &member.address))
                .collect::<Result<_, _>>()
                .map_err(|error| error.to_string())?,
        };
        check_name(&plan.source).map_err(|error| error.to_string())?;
        check_tree(&plan.source, &plan.hops)?;
        Ok(plan)
    }

    /// The cluster that `cluster` copies from, if it has a copy.
    pub(crate) fn above(&self, cluster: &str) -> Option<&str> {
        self.hops.iter().find(|hop| hop.to == cluster).map(|hop| &*hop.from)
    }

    /// Where a cluster is reached.
    pub(crate) fn address(&self, cluster: &str) -> Option<&str> {
        self.clusters.iter().find(|known| known.name == cluster).map(|known| &*known.address)
    }

    /// Whether this plan replaces `other`. A plan of a source that has moved more often is later than all of one that
    /// has moved less. Where two clusters were made the source by force, and neither knew, the name decides.
    pub(crate) fn is_later_than(&self, other: &Self) -> bool {
        let rank = |plan: &Self| (plan.moves, plan.source.clone(), plan.number);
        rank(self) > rank(other)
    }

    /// The last forced move; 0 before the first.
    pub fn lineage(&self) -> u64 {
        self.forks.last().map_or(0, |fork| fork.lineage)
    }

    /// Up to where each shard of what goes by this plan is what `later` has: `None` if all of it is.
    pub(crate) fn common_ends(&self, later: &Self) -> Option<Vec<Offset>> {
        let both = self.forks.iter().zip(&later.forks);
        let same = both.take_while(|(ours, theirs)| ours.lineage == theirs.lineage).count();
        let mut apart = self.forks[same..].iter().chain(&later.forks[same..]).peekable();
        apart.peek()?;
        let mut ends = vec![Offset(u64::MAX); later.stream.shards() as usize];
        for fork in apart {
            for (shard, end) in ends.iter_mut().enumerate() {
                // A shard that was added later had nothing then.
                *end = (*end).min(fork.ends.get(shard).copied().unwrap_or_default());
            }
        }
        Some(ends)
    }

    /// The hops of the tree if `source` is its source: those between the two have the other direction.
    pub(crate) fn hops_from(&self, source: &str) -> Vec<TreeEdge> {
        let mut way = vec![source];
        while let Some(above) = way.last().and_then(|cluster| self.above(cluster)) {
            way.push(above);
        }
        let mut hops: Vec<TreeEdge> = way
            .windows(2)
            .map(|pair| TreeEdge { from: pair[0].to_owned(), to: pair[1].to_owned() })
            .collect();
        hops.extend(self.hops.iter().filter(|hop| !way.contains(&&*hop.to)).cloned());
        hops
    }

    /// The hops of the tree if nothing is copied through `cluster`; none where nothing is.
    pub(crate) fn hops_around(&self, cluster: &str) -> Option<Vec<TreeEdge>> {
        let above = self.above(cluster)?;
        if !self.hops.iter().any(|hop| hop.from == cluster) {
            return None;
        }
        let around = |hop: &TreeEdge| match &*hop.from {
            from if from == cluster => TreeEdge { from: above.to_owned(), to: hop.to.clone() },
            _ => hop.clone(),
        };
        Some(self.hops.iter().map(around).collect())
    }

    /// Whether a cluster is in the tree.
    pub(crate) fn has(&self, cluster: &str) -> bool {
        self.source == cluster || self.above(cluster).is_some()
    }
}

/// Whether hops are a tree from the source on, each before those that follow it.
pub(crate) fn check_tree(source: &str, hops: &[TreeEdge]) -> Result<(), String> {
    for (index, hop) in hops.iter().enumerate() {
        let before = &hops[..index];
        let is_reached = hop.from == source || before.iter().any(|above| above.to == hop.from);
        if !is_reached || hop.to == source || before.iter().any(|above| above.to == hop.to) {
            return Err(format!("the hop from {:?} to {:?} makes no tree", hop.from, hop.to));
        }
    }
    Ok(())
}
