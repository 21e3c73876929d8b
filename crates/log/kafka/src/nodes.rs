//! The nodes that serve the same topics, each of which leads a part of their partitions and coordinates a part of the
//! groups.

use std::sync::Arc;

use parking_lot::RwLock;
use tailwater_format::{ShardId, Term};
use tailwater_log::ShardMember;

use crate::broker::{Broker, Peer};
use crate::errors::ErrorCode;

/// A node, as clients are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerNode {
    /// Its number among brokers.
    pub id: i32,
    /// By which records know what it owns.
    pub member: ShardMember,
    /// Where clients connect, a host and a port for each of its listeners, which are alike at all nodes.
    pub listeners: Vec<(String, u16)>,
}

/// The nodes that there are.
#[derive(Debug, Default)]
pub(crate) struct BrokerNodes {
    nodes: RwLock<Arc<[BrokerNode]>>,
}

/// A broker that a client is told of: its number, its host and its port.
pub(crate) type BrokerPlace = (i32, String, i32);

impl BrokerNodes {
    pub fn get(&self) -> Arc<[BrokerNode]> {
        Arc::clone(&self.nodes.read())
    }
}

impl Broker {
    /// Has clients be told of these nodes, of which this is one, where several are active.
    pub fn set_nodes(&self, nodes: Vec<BrokerNode>) {
        *self.nodes.nodes.write() = nodes.into();
    }

    /// The brokers that a client is told of: where it can reach each of them.
    pub(crate) fn brokers_for(&self, peer: &Peer) -> Vec<BrokerPlace> {
        let (host, port) = self.address_for(peer);
        let mut brokers = vec![(self.config.broker_id, host, port)];
        let nodes = self.nodes.get();
        // Those of the listener by which it came.
        let own = nodes.iter().find(|node| node.id == self.config.broker_id);
        let is_his = |listener: &(String, u16)| match peer.advertised.as_deref() {
            Some(advertised) => advertised == listener,
            None => peer.local.port() == listener.1,
        };
        let index = own.and_then(|own| own.listeners.iter().position(is_his)).unwrap_or(0);
        for node in nodes.iter().filter(|node| node.id != self.config.broker_id) {
            if let Some((host, port)) = node.listeners.get(index).or(node.listeners.first()) {
                brokers.push((node.id, host.clone(), i32::from(*port)));
            }
        }
        brokers.sort_unstable_by_key(|(id, _, _)| *id);
        brokers
    }

    /// The broker of that log.
    fn broker_of(&self, owner: u64) -> Option<i32> {
        self.nodes.get().iter().find(|node| node.member.owner == owner).map(|node| node.id)
    }

    /// Who leads a partition, and in which epoch; `None` if nobody does at the moment.
    pub(crate) fn leader_of(&self, shard: ShardId) -> Option<(i32, Term)> {
        let own = self.log.tails(shard.stream, &[shard.shard]).ok();
        let own = own.and_then(|tails| tails.first().map(|tail| tail.term));
        let owner = self.log.shard_owner(shard);
        // One that is still open here may be known to be another node's already: that leads in the later epoch.
        if let Some(term) = own.filter(|_| owner.is_none_or(|owner| owner.owner == self.log.owner_number())) {
            return Some((self.config.broker_id, self.log.leader_term(shard, term)));
        }
        let owner = owner?;
        Some((self.broker_of(owner.owner)?, owner.term))
    }

    /// Who coordinates a group.
    ///
    /// # Errors
    /// `CoordinatorNotAvailable` where nobody does at the moment.
    pub(crate) fn coordinator_of(&self, peer: &Peer, group: &str) -> Result<BrokerPlace, ErrorCode> {
        let id = match self.groups.owner_of(group) {
            None => Some(self.config.broker_id),
            Some(owner) => self.broker_of(owner),
        };
        let place = self.brokers_for(peer).into_iter().find(|(broker, _, _)| Some(*broker) == id);
        place.ok_or(ErrorCode::CoordinatorNotAvailable)
    }
}
