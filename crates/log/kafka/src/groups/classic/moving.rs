//! How the members of a group come from the classic protocol to KIP-848's, and back: as consumers, which they have to
//! be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Instant;
use tailwater_kafka_wire::consumer::{self, Assigned, Assignment, encode};

use super::join::join_error;
use super::{ClassicGroup, ClassicOutput, ClassicPhase, Limits, Member, sync_error};
use crate::errors::ErrorCode;

/// A member that is a consumer.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub id: String,
    pub instance: Option<String>,
    pub client_id: Arc<str>,
    pub client_host: String,
    pub session: Duration,
    pub rebalance: Duration,
    pub protocols: Vec<(String, Bytes)>,
    pub topics: Vec<String>,
    pub assigned: Vec<Assigned>,
}

impl ClassicGroup {
    /// Its members as consumers; `None` if they are none, or say so in a form that is not known. Left out are those
    /// that have not heard of their id yet: they come again with another one.
    ///
    /// A member has what it was assigned, and what it said when it joined that it had: one that rebalances
    /// cooperatively may be about to give that up, but has not.
    pub fn consumers(&self) -> Option<Vec<Consumer>> {
        if self.phase == ClassicPhase::Dead || !self.is_of_consumers() {
            return None;
        }
        let unheard = |member: &Member| member.fresh && member.instance.is_none() && member.joining.is_some();
        let consumers = self.members.iter().filter(|(_, member)| !unheard(member)).map(|(id, member)| {
            // Whatever the group agrees on: they read the same by each of their protocols.
            let (_, said) = member.protocols.first()?;
            let said = consumer::subscription(said.clone())?;
            let mut assigned = match member.assignment.is_empty() {
                true => Vec::new(),
                false => consumer::assigned(member.assignment.clone())?,
            };
            assigned.extend(said.owned_partitions);
            Some(Consumer {
                id: id.clone(),
                instance: member.instance.clone(),
                client_id: Arc::clone(&member.client_id),
                client_host: member.client_host.clone(),
                session: member.session,
                rebalance: member.rebalance,
                protocols: member.protocols.clone(),
                topics: said.topics,
                assigned,
            })
        });
        consumers.collect()
    }

    /// Has all who wait for an answer join again: they are members of another group by then.
    pub fn give_up_waiting(&mut self, out: &mut Vec<ClassicOutput>) {
        for (id, member) in &mut self.members {
            if let Some(ticket) = member.joining.take() {
                out.push(ClassicOutput::Join(ticket, join_error(ErrorCode::RebalanceInProgress, id)));
            }
            if let Some(ticket) = member.syncing.take() {
                out.push(ClassicOutput::Sync(ticket, sync_error(ErrorCode::RebalanceInProgress)));
            }
        }
    }

    /// A group of these members, after so many generations, that prepares the next one.
    pub fn of_consumers(
        now: Instant,
        limits: Arc<Limits>,
        generation: i32,
        consumers: Vec<Consumer>,
        out: &mut Vec<ClassicOutput>,
    ) -> Self {
        let mut group = Self::new(limits, generation, Some(consumer::PROTOCOL_TYPE.to_owned()));
        let mut members = BTreeMap::new();
        for consumer in consumers {
            let Consumer { id, instance, client_id, client_host, session, rebalance, .. } = consumer;
            group.instances.extend(instance.clone().map(|instance| (instance, id.clone())));
            let assignment = Assignment { topics: consumer.assigned, user_data: None };
            let assignment = encode(&assignment, version_of(&consumer.protocols));
            let member = Member {
                instance,
                client_id,
                client_host,
                session,
                rebalance,
                protocols: consumer.protocols,
                assignment,
                joining: None,
                syncing: None,
                synced: true,
                fresh: false,
                deadline: now + session,
            };
            members.insert(id, member);
        }
        group.leader = members.keys().next().cloned();
        group.members = members;
        group.protocol = group.select_protocol();
        group.phase = ClassicPhase::Stable;
        group.prepare_or_complete(now, out);
        group
    }
}

/// The version in which a consumer of these protocols reads assignments.
pub(crate) fn version_of(protocols: &[(String, Bytes)]) -> i16 {
    protocols.first().map_or(0, |(_, said)| consumer::version(said))
}
