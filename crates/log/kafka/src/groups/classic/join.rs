//! How members come into a group, and come again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Instant;

use super::{
    ClassicGroup, ClassicOutput, ClassicPhase, Member, Ticket, common_protocols, pending_bytes,
    protocols_bytes,
};
use crate::errors::ErrorCode;
use crate::groups::bounds::{NAME_BYTES_MAX, PROTOCOLS_MAX, Who};
use crate::messages::membership::{JoinGroupResponse, JoinGroupResponseMember};

/// How long a member is waited for that never got an answer: it can't send heartbeats.
const FRESH_MEMBER: Duration = Duration::from_secs(300);

/// A request to join.
#[derive(Clone, Debug)]
pub(crate) struct Join {
    /// Empty for one that has none yet.
    pub member_id: String,
    /// What it is called if it has none yet: an id that nobody had before.
    pub new_id: String,
    pub instance: Option<String>,
    pub client_id: Arc<str>,
    pub client_host: String,
    pub session_ms: i32,
    /// Not positive: as the session timeout.
    pub rebalance_ms: i32,
    pub protocol_type: String,
    /// In memory of their own, since they are kept.
    pub protocols: Vec<(String, Bytes)>,
    /// Whether a member has to come again with the id that it is given, so that those that are never heard of again
    /// don't count.
    pub id_required: bool,
    /// Whether it understands that a leader may be told to assign nothing.
    pub skips_assignment: bool,
}

impl Join {
    /// Bytes that a group keeps of it.
    pub fn bytes(&self) -> usize {
        self.who().bytes() + protocols_bytes(&self.protocols)
    }

    fn who(&self) -> Who<'_> {
        let Self { member_id, new_id, instance, client_id, client_host, .. } = self;
        let id = if member_id.is_empty() { new_id } else { member_id };
        Who { id, instance: instance.as_deref(), client_id, client_host }
    }

    /// Whether no part of it is longer than anybody needs.
    pub fn check(&self) -> Result<(), ErrorCode> {
        let is_bounded = self.who().is_bounded()
            && self.protocol_type.len() <= NAME_BYTES_MAX
            && self.protocols.len() <= PROTOCOLS_MAX
            && self.protocols.iter().all(|(name, _)| name.len() <= NAME_BYTES_MAX);
        if is_bounded { Ok(()) } else { Err(ErrorCode::InvalidRequest) }
    }
}

impl ClassicGroup {
    /// A member joins; the answer comes when the others have, or time is over.
    pub fn join(&mut self, now: Instant, join: Join, ticket: Ticket, out: &mut Vec<ClassicOutput>) {
        let refuse = |error: ErrorCode, member_id: &str| {
            let member_id = member_id.to_owned();
            ClassicOutput::Join(
                ticket,
                JoinGroupResponse { error_code: error.number(), member_id, ..Default::default() },
            )
        };
        if self.phase == ClassicPhase::Dead {
            out.push(refuse(ErrorCode::CoordinatorNotAvailable, &join.member_id));
        } else if !self.limits.session_ms.contains(&join.session_ms) {
            out.push(refuse(ErrorCode::InvalidSessionTimeout, &join.member_id));
        } else if !self.has_room(&join) {
            if self.members.contains_key(&join.member_id) {
                // It came again and found the others' places taken, or brought too much.
                self.remove(now, &join.member_id, out);
            }
            self.pending.remove(&join.member_id);
            out.push(refuse(ErrorCode::GroupMaxSizeReached, ""));
            self.complete_if_all_joined(now, out);
        } else if !self.supports(&join) {
            out.push(refuse(ErrorCode::InconsistentGroupProtocol, &join.member_id));
        } else if join.member_id.is_empty() {
            self.join_new(now, join, ticket, out);
        } else if self.pending.contains_key(&join.member_id) {
            if join.instance.is_some() {
                // Static members don't get their ids in that way.
                out.push(refuse(ErrorCode::UnknownMemberId, &join.member_id));
            } else {
                let id = join.member_id.clone();
                self.add(now, id, join, ticket, out);
            }
        } else if let Err(error) = self.check_member(&join.member_id, join.instance.as_deref()) {
            out.push(refuse(error, &join.member_id));
        } else {
            self.join_again(now, join, ticket, out);
        }
    }

    fn join_new(&mut self, now: Instant, join: Join, ticket: Ticket, out: &mut Vec<ClassicOutput>) {
        let id = join.new_id.clone();
        debug_assert!(!self.members.contains_key(&id) && !self.pending.contains_key(&id), "it is new");
        let known = join.instance.as_ref().and_then(|instance| self.instances.get(instance).cloned());
        if let Some(known) = known {
            self.replace(now, &known, id, join, ticket, out);
        } else if join.id_required && join.instance.is_none() {
            self.pending.insert(id.clone(), now + millis(join.session_ms));
            let error_code = ErrorCode::MemberIdRequired.number();
            let answer = JoinGroupResponse { error_code, member_id: id, ..Default::default() };
            out.push(ClassicOutput::Join(ticket, answer));
        } else {
            self.add(now, id, join, ticket, out);
        }
    }

    /// A member that is known joins: because it was told to, because it wants something else than before, or because
    /// it did not get the answer.
    fn join_again(&mut self, now: Instant, join: Join, ticket: Ticket, out: &mut Vec<ClassicOutput>) {
        let id = join.member_id.clone();
        let is_leader = self.leader.as_ref() == Some(&id);
        let is_same = self.members.get(&id).is_some_and(|member| member.protocols == join.protocols);
        let knows_already = match self.phase {
            ClassicPhase::Completing => is_same,
            // A leader joins again to have things assigned anew.
            ClassicPhase::Stable => is_same && !is_leader,
            _ => false,
        };
        if knows_already {
            self.touch(now, &id);
            let members = if is_leader { self.members_for_leader() } else { Vec::new() };
            out.push(ClassicOutput::Join(ticket, JoinGroupResponse { members, ..self.joined(&id) }));
            return;
        }
        self.update(now, &id, join, ticket, out);
        self.prepare_or_complete(now, out);
    }

    fn add(&mut self, now: Instant, id: String, join: Join, ticket: Ticket, out: &mut Vec<ClassicOutput>) {
        if self.members.is_empty() {
            self.protocol_type = Some(join.protocol_type);
        }
        if let ClassicPhase::Preparing { initial: Some(initial), .. } = &mut self.phase {
            initial.grew = true;
        }
        if let Some(instance) = &join.instance {
            self.instances.insert(instance.clone(), id.clone());
        }
        self.pending.remove(&id);
        self.leader.get_or_insert_with(|| id.clone());
        let member = Member {
            instance: join.instance,
            client_id: join.client_id,
            client_host: join.client_host,
            session: millis(join.session_ms),
            rebalance: rebalance(join.rebalance_ms, join.session_ms),
            protocols: join.protocols,
            assignment: Bytes::new(),
            joining: Some(ticket),
            syncing: None,
            synced: false,
            fresh: true,
            deadline: now + FRESH_MEMBER,
        };
        self.members.insert(id, member);
        self.prepare_or_complete(now, out);
    }

    /// What a member says of itself now, and the ticket that it waits with.
    fn update(&mut self, now: Instant, id: &str, join: Join, ticket: Ticket, out: &mut Vec<ClassicOutput>) {
        let Some(member) = self.members.get_mut(id) else { return };
        member.client_id = join.client_id;
        member.client_host = join.client_host;
        member.session = millis(join.session_ms);
        member.rebalance = rebalance(join.rebalance_ms, join.session_ms);
        member.protocols = join.protocols;
        member.deadline = now + member.session;
        if let Some(before) = member.joining.replace(ticket) {
            // It asked twice; whoever still waits for the first answer asks again.
            out.push(ClassicOutput::Join(before, join_error(ErrorCode::RebalanceInProgress, id)));
        }
    }

    /// A static member is back under its name: it takes the place of who had it, without a rebalance if nothing else
    /// changes.
    fn replace(
        &mut self,
        now: Instant,
        before: &str,
        id: String,
        join: Join,
        ticket: Ticket,
        out: &mut Vec<ClassicOutput>,
    ) {
        let leader_before = self.leader.clone().unwrap_or_default();
        let skips_assignment = join.skips_assignment;
        let Some(mut member) = self.members.remove(before) else { return };
        if let Some(ticket) = member.joining.take() {
            out.push(ClassicOutput::Join(ticket, join_error(ErrorCode::FencedInstanceId, before)));
        }
        if let Some(ticket) = member.syncing.take() {
            out.push(ClassicOutput::Sync(ticket, super::sync_error(ErrorCode::FencedInstanceId)));
        }
        if let Some(instance) = &member.instance {
            self.instances.insert(instance.clone(), id.clone());
        }
        if leader_before == before {
            self.leader = Some(id.clone());
        }
        self.members.insert(id.clone(), member);
        self.update(now, &id, join, ticket, out);
        if self.phase != ClassicPhase::Stable || self.select_protocol() != self.protocol {
            self.prepare_or_complete(now, out);
            return;
        }
        if let Some(member) = self.members.get_mut(&id) {
            member.joining = None;
        }
        let is_leader = self.leader.as_ref() == Some(&id);
        let answer = match skips_assignment {
            true => JoinGroupResponse {
                members: if is_leader { self.members_for_leader() } else { Vec::new() },
                skip_assignment: is_leader,
                ..self.joined(&id)
            },
            // Told of another leader, it won't assign anything.
            false => JoinGroupResponse { leader: leader_before, ..self.joined(&id) },
        };
        out.push(ClassicOutput::Join(ticket, answer));
    }

    /// The answer to who is in this generation; the leader is told of the members too.
    pub(super) fn joined(&self, id: &str) -> JoinGroupResponse {
        JoinGroupResponse {
            generation_id: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            member_id: id.to_owned(),
            ..Default::default()
        }
    }

    pub(super) fn members_for_leader(&self) -> Vec<JoinGroupResponseMember> {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let members = self.members.iter().map(|(id, member)| JoinGroupResponseMember {
            member_id: id.clone(),
            group_instance_id: member.instance.clone(),
            metadata: member.metadata(protocol),
        });
        members.collect()
    }

    /// Whether the member fits in, and what it says of itself.
    fn has_room(&self, join: &Join) -> bool {
        let known = self.members.get_key_value(&join.member_id);
        let instance = join.instance.as_ref().and_then(|instance| self.instances.get(instance));
        let takes_a_place = known.is_none() && instance.is_none();
        let others = self.members.len() + self.pending.keys().filter(|id| **id != join.member_id).count()
            - usize::from(!takes_a_place);
        let bytes = self.bytes() - self.replaced_by(join) + join.bytes();
        others < self.limits.members_max && bytes <= self.limits.bytes_max
    }

    /// Bytes that are given up for what the member says now. Whatever was assigned to it stays.
    pub fn replaced_by(&self, join: &Join) -> usize {
        let known = self.members.get_key_value(&join.member_id);
        let instance = join.instance.as_ref().and_then(|instance| self.instances.get(instance));
        match known.or_else(|| instance.and_then(|id| self.members.get_key_value(id))) {
            Some((id, member)) => member.bytes(id),
            None => self.pending.get_key_value(&join.member_id).map_or(0, |(id, _)| pending_bytes(id)),
        }
    }

    /// Whether the group could agree on a protocol with it.
    fn supports(&self, join: &Join) -> bool {
        if join.protocols.is_empty() || join.protocol_type.is_empty() {
            return false;
        }
        if self.members.is_empty() {
            return true;
        }
        // All others, but for the one that this one is.
        let instance = join.instance.as_ref().and_then(|instance| self.instances.get(instance));
        let is_other = |id: &String| *id != join.member_id && Some(id) != instance;
        let mut others = self.members.iter().filter(|(id, _)| is_other(id)).peekable();
        if others.peek().is_none() {
            return true;
        }
        let common = common_protocols(others.map(|(_, member)| member.protocols.as_slice()));
        self.protocol_type.as_ref() == Some(&join.protocol_type)
            && common
                .is_some_and(|common| join.protocols.iter().any(|(name, _)| common.contains(name.as_str())))
    }
}

pub(super) fn join_error(error: ErrorCode, id: &str) -> JoinGroupResponse {
    JoinGroupResponse { error_code: error.number(), member_id: id.to_owned(), ..Default::default() }
}

pub(crate) fn millis(ms: i32) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

pub(crate) fn rebalance(rebalance_ms: i32, session_ms: i32) -> Duration {
    millis(if rebalance_ms > 0 { rebalance_ms } else { session_ms })
}
