//! Members that speak the classic protocol in a group of KIP-848, while a group moves from one protocol to the other,
//! member by member.
//!
//! ```text
//! classic group --a member of KIP-848 joins--> group of KIP-848, some members classic
//!       ^                                                |
//!       `---- the last member of KIP-848 is out ---------'   (the coordinator's `step` does so)
//! ```
//!
//! They join, sync and send heartbeats as in a group of their own, but nobody leads: the coordinator assigns to them
//! too, their generation is their epoch, and no answer waits for others. A heartbeat's `REBALANCE_IN_PROGRESS` has them
//! join again, which is where they say what they still have: all of it, for one that rebalances cooperatively, and
//! nothing, for an eager one. So what holds of other members holds of these: nothing is given that another one has.
//!
//! What is committed belongs to the group, whatever its members speak.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Instant;
use tailwater_kafka_wire::consumer::{Assigned, Assignment, PROTOCOL_TYPE, encode, subscription};

use super::reconcile::{intersects, without};
use super::{Catalog, ConsumerGroup, JOINING, Limits, Member, Partitions};
use crate::errors::ErrorCode;
use crate::groups::bounds::topics_bytes;
use crate::groups::classic::{
    self, ClassicGroup, ClassicOutput, Consumer, Join, Sync, common_protocols, protocols_bytes,
};
use crate::messages::membership::{JoinGroupResponse, SyncGroupResponse};

/// What a member has that speaks the classic protocol.
#[derive(Clone, Debug)]
pub(crate) struct Classic {
    /// It is out if it is silent for so long.
    pub session: Duration,
    pub protocols: Vec<(String, Bytes)>,
    /// When it is out, if it has not joined again or synced by then, as it has to.
    pub due: Option<Instant>,
}

impl Classic {
    pub fn bytes(&self) -> usize {
        protocols_bytes(&self.protocols)
    }

    /// The protocol that it is told to use: its own first choice, as nobody else has to agree.
    fn protocol(&self) -> Option<&str> {
        self.protocols.first().map(|(name, _)| name.as_str())
    }
}

impl ConsumerGroup {
    /// A group of KIP-848 with the members of a classic one, which have what they had; `None` if they are no consumers,
    /// or say what they read in a form that is not known. A new target is made in the next step, as there may be
    /// members that the last assignment is not for.
    pub fn of_classic(
        now: Instant,
        limits: Arc<Limits>,
        classic: &ClassicGroup,
        catalog: &Catalog,
    ) -> Option<Self> {
        let consumers = classic.consumers().filter(|consumers| consumers.len() <= limits.members_max)?;
        let mut group = Self::new(limits, classic.generation);
        for consumer in consumers {
            let Consumer { id, instance, client_id, client_host, session, rebalance, .. } = consumer;
            let assigned = by_id(&consumer.assigned, catalog);
            let mut member = Member {
                epoch: classic.generation,
                previous_epoch: classic.generation,
                assigned: assigned.clone(),
                rebalance,
                deadline: now + session,
                classic: Some(Classic { session, protocols: consumer.protocols, due: None }),
                ..Member::new(instance.clone(), client_id, client_host, now + session)
            };
            member.subscribe(consumer.topics);
            group.instances.extend(instance.map(|instance| (instance, id.clone())));
            group.target.insert(id.clone(), assigned);
            group.touched.insert(id.clone());
            group.members.insert(id, member);
        }
        Some(group)
    }

    /// Whether all of its members, of which there are some, speak the classic protocol.
    pub fn is_classic(&self) -> bool {
        !self.members.is_empty() && self.members.values().all(|member| member.classic.is_some())
    }

    /// The classic group that it is once all of its members speak that protocol: they prepare a generation at once.
    pub fn to_classic(
        &self,
        now: Instant,
        limits: Arc<classic::Limits>,
        catalog: &Catalog,
        out: &mut Vec<ClassicOutput>,
    ) -> ClassicGroup {
        let consumers = self.members.iter().filter_map(|(id, member)| {
            let Classic { session, protocols, .. } = member.classic.clone()?;
            // What it was told to give up it has, for all that is known.
            let mut has = member.assigned.clone();
            for (topic, numbers) in &member.revoking {
                has.entry(*topic).or_default().extend(numbers);
            }
            Some(Consumer {
                id: id.clone(),
                instance: member.instance.clone(),
                client_id: Arc::clone(&member.client_id),
                client_host: member.client_host.clone(),
                session,
                rebalance: member.rebalance,
                protocols,
                topics: member.topics.iter().cloned().collect(),
                assigned: by_name(&has, catalog),
            })
        });
        // That of the target, in which members are: the next generation is later than any epoch of theirs.
        ClassicGroup::of_consumers(now, limits, self.target_epoch, consumers.collect(), out)
    }

    /// A member joins, for the first time or again; it is told at once.
    pub fn join(&mut self, now: Instant, join: Join, catalog: &Catalog) -> JoinGroupResponse {
        let (given, new) = (join.member_id.clone(), join.new_id.clone());
        self.try_join(now, join, catalog).unwrap_or_else(|error| JoinGroupResponse {
            error_code: error.number(),
            member_id: if error == ErrorCode::MemberIdRequired { new } else { given },
            ..Default::default()
        })
    }

    fn try_join(
        &mut self,
        now: Instant,
        join: Join,
        catalog: &Catalog,
    ) -> Result<JoinGroupResponse, ErrorCode> {
        if self.is_dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        if !self.limits.classic_session_ms.contains(&join.session_ms) {
            return Err(ErrorCode::InvalidSessionTimeout);
        }
        if !self.supports(&join) {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        let said = join.protocols.first().and_then(|(_, said)| subscription(said.clone()));
        let said = said.ok_or(ErrorCode::InconsistentGroupProtocol)?;
        let is_new = join.member_id.is_empty();
        let holder = join.instance.as_ref().and_then(|instance| self.instances.get(instance));
        match (&join.instance, holder) {
            // It need not be known: whoever was told to come again with an id is not kept.
            (None, _) if is_new && join.id_required => return Err(ErrorCode::MemberIdRequired),
            (Some(_), None) if !is_new => return Err(ErrorCode::UnknownMemberId),
            (Some(_), Some(holder)) if !is_new && *holder != join.member_id => {
                return Err(ErrorCode::FencedInstanceId);
            }
            _ => {}
        }
        if !self.has_room_for(&join, &said.topics) {
            return Err(ErrorCode::GroupMaxSizeReached);
        }
        let id = if is_new { join.new_id } else { join.member_id };
        self.take_place(&id, join.instance.as_ref());
        if !self.members.contains_key(&id) {
            self.add(&id, Member::new(join.instance, Arc::clone(&join.client_id), String::new(), now));
        }
        self.touched.insert(id.clone());
        let Some(member) = self.members.get_mut(&id) else { return Err(ErrorCode::UnknownMemberId) };
        let session = classic::millis(join.session_ms);
        let has_pattern = member.pattern.is_some();
        let has_changed = member.subscribe(said.topics) || has_pattern;
        (member.pattern, member.assignor) = (None, None);
        (member.client_id, member.client_host) = (join.client_id, join.client_host);
        member.rebalance = classic::rebalance(join.rebalance_ms, join.session_ms);
        member.deadline = now + session;
        let due = Some(now + member.rebalance);
        let classic = Classic { session, protocols: join.protocols, due };
        let protocol_name = classic.protocol().map(str::to_owned);
        member.classic = Some(classic);
        if has_pattern {
            self.count_patterns();
        }
        if has_changed {
            self.bump();
        }
        self.refresh(catalog);
        self.reconcile(now, &id, Some(&by_id(&said.owned_partitions, catalog)));
        let generation_id = self.members.get(&id).map_or(JOINING, |member| member.epoch);
        let protocol_type = Some(PROTOCOL_TYPE.to_owned());
        // Nobody leads, so nobody is told of the members.
        Ok(JoinGroupResponse {
            generation_id,
            protocol_type,
            protocol_name,
            member_id: id,
            ..Default::default()
        })
    }

    /// Whether those who speak the classic protocol would still have one in common: they may be left alone.
    fn supports(&self, join: &Join) -> bool {
        let instance = join.instance.as_ref().and_then(|instance| self.instances.get(instance));
        let others = self.members.iter().filter(|(id, _)| **id != join.member_id && Some(*id) != instance);
        let others = others.filter_map(|(_, member)| member.classic.as_ref());
        let common = common_protocols(others.map(|other| other.protocols.as_slice()));
        let mut protocols = join.protocols.iter();
        join.protocol_type == PROTOCOL_TYPE
            && protocols.any(|(name, _)| common.as_ref().is_none_or(|common| common.contains(name.as_str())))
    }

    /// Whether the member fits in, and what it says of itself.
    fn has_room_for(&self, join: &Join, topics: &[String]) -> bool {
        let instance = join.instance.as_ref().and_then(|instance| self.instances.get(instance));
        let others = self.members.iter().filter(|(id, _)| **id != join.member_id && Some(*id) != instance);
        let (count, bytes) =
            others.fold((0, 0), |(count, bytes), (id, other)| (count + 1, bytes + other.bytes(id)));
        let bytes = bytes + self.compiled_bytes + topics_bytes(topics) + join.bytes();
        count < self.limits.members_max && bytes <= self.limits.bytes_max
    }

    /// Bytes that are given up for what the member says now.
    pub fn replaced_by_join(&self, join: &Join) -> usize {
        let instance = join.instance.as_ref().and_then(|instance| self.instances.get(instance));
        let known = self.members.get_key_value(&join.member_id);
        let known = known.or_else(|| instance.and_then(|id| self.members.get_key_value(id)));
        known.map_or(0, |(id, member)| member.bytes(id))
    }

    /// A member wants its assignment.
    pub fn sync(&mut self, now: Instant, sync: &Sync, catalog: &Catalog) -> SyncGroupResponse {
        self.try_sync(now, sync, catalog).unwrap_or_else(classic::sync_error)
    }

    fn try_sync(
        &mut self,
        now: Instant,
        sync: &Sync,
        catalog: &Catalog,
    ) -> Result<SyncGroupResponse, ErrorCode> {
        let (member, classic) = self.classic_member(&sync.member_id, sync.instance.as_deref())?;
        if sync.generation != member.epoch {
            return Err(ErrorCode::IllegalGeneration);
        }
        let differs =
            |given: &Option<String>, known: Option<&str>| given.is_some() && given.as_deref() != known;
        if differs(&sync.protocol_type, Some(PROTOCOL_TYPE)) || differs(&sync.protocol, classic.protocol()) {
            // One that the classic group let in may know of the protocol that it had agreed on; it joins again anyway.
            let is_moving = self.must_join(&sync.member_id);
            return Err(match is_moving {
                true => ErrorCode::RebalanceInProgress,
                false => ErrorCode::InconsistentGroupProtocol,
            });
        }
        let assignment = Assignment { topics: by_name(&member.assigned, catalog), user_data: None };
        let answer = SyncGroupResponse {
            protocol_type: Some(PROTOCOL_TYPE.to_owned()),
            protocol_name: classic.protocol().map(str::to_owned),
            assignment: encode(&assignment, classic::version_of(&classic.protocols)),
            ..Default::default()
        };
        self.touch(now, &sync.member_id, None);
        Ok(answer)
    }

    /// A member says that it lives, and learns whether it has to join again.
    pub fn classic_heartbeat(
        &mut self,
        now: Instant,
        id: &str,
        instance: Option<&str>,
        generation: i32,
        catalog: &Catalog,
    ) -> Result<(), ErrorCode> {
        let (member, classic) = self.classic_member(id, instance)?;
        if generation != member.epoch {
            return Err(ErrorCode::IllegalGeneration);
        }
        let (due, rebalance) = (classic.due, member.rebalance);
        self.refresh(catalog);
        let must_join = self.must_join(id);
        let due = if must_join { due.or(Some(now + rebalance)) } else { due };
        self.touch(now, id, due);
        if must_join { Err(ErrorCode::RebalanceInProgress) } else { Ok(()) }
    }

    /// Whether there is something for a member to learn, or to give up.
    fn must_join(&self, id: &str) -> bool {
        let Some(member) = self.members.get(id) else { return true };
        let is_free = || {
            let target = self.target.get(id).cloned().unwrap_or_default();
            !intersects(&without(&target, &member.assigned), &self.taken_by_others(id))
        };
        member.epoch < self.epoch || !member.revoking.is_empty() || (member.waits && is_free())
    }

    /// A member leaves; a static one, whatever it speaks, may be made to by its name alone.
    pub fn classic_leave(&mut self, id: &str, instance: Option<&str>) -> Result<(), ErrorCode> {
        let id = match instance {
            Some(instance) if id.is_empty() => {
                self.instances.get(instance).cloned().ok_or(ErrorCode::UnknownMemberId)?
            }
            _ => {
                self.classic_member(id, instance)?;
                id.to_owned()
            }
        };
        self.remove(&id);
        Ok(())
    }

    /// A member that speaks the classic protocol, and may speak for itself.
    fn classic_member(&self, id: &str, instance: Option<&str>) -> Result<(&Member, &Classic), ErrorCode> {
        if self.is_dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        match instance.map(|instance| self.instances.get(instance)) {
            Some(None) => return Err(ErrorCode::UnknownMemberId),
            Some(Some(known)) if known != id => return Err(ErrorCode::FencedInstanceId),
            _ => {}
        }
        let member = self.members.get(id).ok_or(ErrorCode::UnknownMemberId)?;
        Ok((member, member.classic.as_ref().ok_or(ErrorCode::UnknownMemberId)?))
    }

    /// Hears of a member, which has something to do until `due`.
    fn touch(&mut self, now: Instant, id: &str, due: Option<Instant>) {
        if let Some(member) = self.members.get_mut(id)
            && let Some(classic) = &mut member.classic
        {
            if classic.due.is_some() != due.is_some() {
                self.touched.insert(id.to_owned());
            }
            classic.due = due;
            member.deadline = now + classic.session;
        }
    }
}

/// Of partitions by their topics' names those that there are.
pub(super) fn by_id(topics: &[Assigned], catalog: &Catalog) -> Partitions {
    let mut partitions = Partitions::new();
    for Assigned { topic, partitions: numbers } in topics {
        if let Some((id, count)) = catalog.get(topic) {
            let numbers = numbers.iter().filter_map(|number| u32::try_from(*number).ok());
            partitions.entry(*id).or_default().extend(numbers.filter(|number| number < count));
        }
    }
    partitions.retain(|_, numbers| !numbers.is_empty());
    partitions
}

/// Partitions by the names of their topics, of those that there are.
pub(super) fn by_name(partitions: &Partitions, catalog: &Catalog) -> Vec<Assigned> {
    let named = catalog.iter().filter_map(|(name, (id, _))| {
        let partitions = partitions.get(id)?.iter().map(|number| *number as i32).collect();
        Some(Assigned { topic: name.clone(), partitions })
    });
    named.collect()
}
