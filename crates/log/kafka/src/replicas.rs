//! The copies of a stream's segments, as Kafka has them: replicas of a partition.
//!
//! Where segments are in BookKeeper a partition has a replica for each copy of an entry. The first one is the broker
//! that leads, the others are bookies: they are no brokers, and have numbers of which no broker is. On a node's own
//! disk it has one, the broker's.

use tailwater_format::ShardId;
use tailwater_log::{Log, StreamConfig};

use crate::errors::{ErrorCode, RefusedRequest};

/// The number of the first replica that is no broker.
pub(crate) const BOOKIES_FROM: i32 = 1_000_000_001;

/// The replicas of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replicas {
    /// All of them, the leader first.
    pub all: Vec<i32>,
    /// The first ones, if there is a leader: as many as the bookies of the segment that is written which take entries
    /// now. Where this node has no such segment, as many as bookies take entries.
    pub in_sync: Vec<i32>,
    /// The others.
    pub offline: Vec<i32>,
}

impl Replicas {
    /// Those of a partition with so many copies, of which so many may be in sync; without a leader none is.
    fn of(leader: i32, is_led: bool, copies: u32, living: u32) -> Self {
        let bookies = (BOOKIES_FROM..).take(copies.saturating_sub(1) as usize);
        let all: Vec<i32> = std::iter::once(leader).chain(bookies).collect();
        let in_sync = if is_led { all.len().min(living.max(1) as usize) } else { 0 };
        let (in_sync, offline) = all.split_at(in_sync);
        Self { in_sync: in_sync.to_vec(), offline: offline.to_vec(), all }
    }

    /// Those of a partition of a stream like this.
    pub fn new(log: &Log, config: &StreamConfig, shard: &ShardId, leader: i32, is_led: bool) -> Self {
        let copies = log.decided_copies(config).write_quorum;
        Self::of(leader, is_led, copies, log.living_copies(shard).unwrap_or(copies))
    }
}

/// The same configuration with the copies that the store decides where the stream does not.
pub(crate) fn with_copies(log: &Log, config: &StreamConfig) -> StreamConfig {
    let of = log.decided_copies(config);
    let (ensemble, write_quorum, ack_quorum) =
        (Some(of.ensemble), Some(of.write_quorum), Some(of.ack_quorum));
    StreamConfig { ensemble, write_quorum, ack_quorum, ..config.clone() }
}

/// How many copies a replication factor stands for; `None` is what the node decides.
pub(crate) fn write_quorum(log: &Log, replication_factor: i16) -> Result<Option<u32>, RefusedRequest> {
    let refused = |why: &str| {
        let why = format!("replication factor {replication_factor}: {why}");
        Err(RefusedRequest::new(ErrorCode::InvalidReplicationFactor, why))
    };
    match u32::try_from(replication_factor) {
        Err(_) if replication_factor == -1 => Ok(None),
        Ok(copies) if copies > 0 && log.is_replicated() => Ok(Some(copies)),
        Ok(1) => Ok(None),
        Ok(copies) if copies > 0 => refused("a partition has one replica, on this node"),
        _ => refused("at least 1"),
    }
}

/// Sees to it that so many copies acknowledge as `min.insync.replicas` says, and at least a majority.
pub(crate) fn settle(
    log: &Log,
    old: Option<u32>,
    mut config: StreamConfig,
) -> Result<StreamConfig, RefusedRequest> {
    let Some(wanted) = config.ack_quorum.filter(|wanted| Some(*wanted) != old) else { return Ok(config) };
    let copies = log.decided_copies(&config).write_quorum;
    if wanted == 0 || wanted > copies {
        let why = match copies {
            1 => "a partition has one replica".to_owned(),
            _ => format!("a partition has {copies} replicas"),
        };
        let why = format!("min.insync.replicas = {wanted}: {why}");
        return Err(RefusedRequest::new(ErrorCode::InvalidConfig, why));
    }
    // On a node's own disk there is nothing to keep.
    config.ack_quorum = log.is_replicated().then_some(wanted.max(copies / 2 + 1));
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_has_its_leader_and_a_number_for_each_other_copy_of_which_the_living_are_in_sync() {
        let of = |is_led, copies, living| Replicas::of(3, is_led, copies, living);
        let [second, third] = [BOOKIES_FROM, BOOKIES_FROM + 1];
        assert_eq!(of(true, 1, 0), Replicas { all: vec![3], in_sync: vec![3], offline: vec![] });
        let all = vec![3, second, third];
        let whole = Replicas { all: all.clone(), in_sync: all.clone(), offline: vec![] };
        assert_eq!((of(true, 3, 3), of(true, 3, 9)), (whole.clone(), whole));
        let short = Replicas { all: all.clone(), in_sync: vec![3, second], offline: vec![third] };
        assert_eq!(of(true, 3, 2), short);
        assert_eq!(of(false, 3, 3), Replicas { all: all.clone(), in_sync: vec![], offline: all });
    }
}
