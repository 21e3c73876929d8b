//! Why there is no plan.

/// What was wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The text is no file of costs.
    #[error("it is no file of costs: {0}")]
    Format(String),
    /// There are more than [`CLUSTERS_MAX`](crate::limits::CLUSTERS_MAX).
    #[error("it has {given} clusters: {max} is the most")]
    TooManyClusters {
        /// How many there are.
        given: usize,
        /// How many there may be.
        max: usize,
    },
    /// A name that no cluster may have.
    #[error("{0:?} is no name of a cluster: use 1 to 64 letters, digits, '-', '_' or '.'")]
    Name(String),
    /// A name that two clusters have.
    #[error("cluster {0} is there twice: leave one of them out")]
    DuplicateCluster(String),
    /// A name that no cluster has.
    #[error(
        "{place} names cluster {name}, which the costs do not have: add a [[cluster]] with that name, or mend the name"
    )]
    UnknownCluster {
        /// What names it.
        place: String,
        /// The name.
        name: String,
    },
    /// A link from a cluster to itself.
    #[error("a link is between {0} and itself: leave it out")]
    SelfLink(String),
    /// Two links between the same clusters.
    #[error("two links are between {0} and {1}: a link is for both directions, so leave one of them out")]
    DuplicateLink(String, String),
    /// A number that is negative, too large, or none.
    #[error("the link between {between} has {field} = {given}: use a number from {least} to {most}")]
    Number {
        /// The link's ends.
        between: String,
        /// Which number.
        field: &'static str,
        /// What it is.
        given: String,
        /// The smallest that is right.
        least: u64,
        /// The largest that is right.
        most: u64,
    },
    /// Nothing is to be copied.
    #[error("there is no cluster to copy to: name at least one besides the source {0}")]
    NoDestination(String),
    /// The source is a destination too.
    #[error("{0} is the source, and a destination too: leave it out of the destinations")]
    SourceIsDestination(String),
    /// The source is new, and so may not forward.
    #[error("{0} is the source, and new: a new cluster forwards nothing, so take `new` off it")]
    SourceIsNew(String),
    /// A bound that is 0.
    #[error("{0} is 0: use 1 or more")]
    ZeroBound(&'static str),
    /// A new cluster would never reach the head.
    #[error(
        "the new cluster {cluster} would never reach the head: it gets {limit} bytes/s and the stream's two operations \
         send {needed}; raise its limit_bytes_per_s above that"
    )]
    LimitTooLow {
        /// The cluster.
        cluster: String,
        /// Bytes per second that it may get.
        limit: u64,
        /// Bytes per second that the stream has.
        needed: u64,
    },
    /// Clusters that no way leads to.
    #[error("{clusters} can't be reached from {origin}: {remedy}")]
    Unreachable {
        /// They, separated by commas.
        clusters: String,
        /// Where the tree begins.
        origin: String,
        /// What would have to change.
        remedy: String,
    },
    /// No tree within the bounds was found.
    #[error("no tree with a depth of at most {depth} and a fan-out of at most {fan_out} was found: {remedy}")]
    Bounds {
        /// Hops that were allowed.
        depth: usize,
        /// Fan-out that was allowed.
        fan_out: usize,
        /// What would have to change.
        remedy: String,
    },
}
