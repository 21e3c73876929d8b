//! What can go wrong, in words that say what to do.

use tailwater_log::StreamError;
use tailwater_trees::PlanError;

/// Why a cluster was not added, a stream not placed, or a plan not kept.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CopyError {
    /// The node has no name among clusters.
    #[error(
        "this node has no name among clusters: set name below [cluster] in its configuration, and start it again"
    )]
    NoName,
    /// The name or the address is none.
    #[error("{0}")]
    Invalid(String),
    /// No such cluster is known.
    #[error("the cluster {0:?} is not known here: add it with `tailwater cluster add {0} ADDRESS`")]
    UnknownCluster(String),
    /// The cluster is known already.
    #[error("the cluster {name:?} is known already, at {address}: remove it first")]
    KnownAlready {
        /// Its name.
        name: String,
        /// Its address.
        address: String,
    },
    /// Nothing is placed there.
    #[error(
        "the cluster {0:?} is being drained: nothing is copied through it, and nothing is placed there; \
         end that with `tailwater cluster drain {0} --undo`"
    )]
    Draining(String),
    /// The cluster is part of a plan.
    #[error("the cluster {name:?} is in the copy tree of {stream:?}: place that stream without it first")]
    InUse {
        /// Its name.
        name: String,
        /// A stream.
        stream: String,
    },
    /// The stream's source is in another cluster.
    #[error(
        "the stream {stream:?} has its source in the cluster {source_cluster:?}, and this is {here:?}: ask a node there"
    )]
    NotSource {
        /// The stream.
        stream: String,
        /// Where its source is.
        source_cluster: String,
        /// Which cluster this is.
        here: String,
    },
    /// The stream is in no copy tree that is known here.
    #[error("the stream {0:?} is in no copy tree: place it with `tailwater stream place`")]
    NotPlaced(String),
    /// The stream's source is here.
    #[error("the stream {0:?} has its source in this cluster already")]
    SourceAlready(String),
    /// The cluster has no copy.
    #[error(
        "the cluster {cluster:?} has no copy of {stream:?} by its plan: place the stream there too, and move its source then"
    )]
    NoCopy {
        /// The cluster.
        cluster: String,
        /// The stream.
        stream: String,
    },
    /// The source has not moved yet.
    #[error(
        "the source of {stream:?} is being moved to {cluster:?}, which has not answered that it has everything: {why}; \
         this goes on by itself, and `tailwater tree show` tells when it is done"
    )]
    Moving {
        /// The stream.
        stream: String,
        /// The cluster that is to have the source.
        cluster: String,
        /// What it answered last.
        why: String,
    },
    /// A forced move can't be told of.
    #[error(
        "the source of {stream:?} was moved by force {forks} times: delete the stream's copies, and place it anew"
    )]
    TooManyForks {
        /// The stream.
        stream: String,
        /// How often.
        forks: usize,
    },
    /// What a copy has too much could not be put aside.
    #[error("what the copy of {stream:?} has too much can't be put aside, so it stays: {why}")]
    Aside {
        /// The stream.
        stream: String,
        /// What went wrong.
        why: String,
    },
    /// There is no tree.
    #[error("no copy tree: {0}")]
    Plan(#[from] PlanError),
    /// The stream.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The metadata does not answer as it should.
    #[error("metadata unavailable: {0}")]
    Unavailable(String),
}
