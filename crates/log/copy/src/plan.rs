//! A stream's copy tree with a number, as it is stored and told.

use bytes::Bytes;
use prost::Message;
use tailwater_format::StreamId;
use tailwater_format::limits::CLUSTERS_MAX;
use tailwater_log::CopyRecord;

use crate::clusters::{KnownCluster, check_name};

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

/// A stream's copy tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyTree {
    /// Its number: each plan of a stream has a greater one than the last.
    pub number: u64,
    /// The cluster that has the stream.
    pub source: String,
    /// The stream.
    pub stream: CopyRecord,
    /// Each hop, before those that follow it.
    pub hops: Vec<TreeEdge>,
    /// The clusters of the tree, the source first.
    pub clusters: Vec<KnownCluster>,
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
        StoredPlan {
            number: self.number,
            source: self.source.clone(),
            stream: self.stream.encode(),
            hops: self.hops.iter().map(hop).collect(),
            clusters: self.clusters.iter().map(member).collect(),
        }
        .encode_to_vec()
        .into()
    }

    /// The plan in these bytes, which another cluster may have sent.
    ///
    /// # Errors
    /// In words: bytes that are no plan, or one that can't be followed.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let stored = StoredPlan::decode(bytes).map_err(|error| error.to_string())?;
        if stored.hops.len() >= CLUSTERS_MAX || stored.clusters.len() > CLUSTERS_MAX {
            return Err(format!("a plan of more than {CLUSTERS_MAX} clusters"));
        }
        let plan = Self {
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
