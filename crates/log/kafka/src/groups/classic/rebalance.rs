//! How a generation is made: members are waited for, a protocol is chosen, and the leader's assignment handed out.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Instant;

use super::join::join_error;
use super::{ClassicGroup, ClassicOutput, ClassicPhase, Initial, Ticket, common_protocols};
use crate::errors::ErrorCode;
use crate::messages::membership::{JoinGroupResponse, SyncGroupResponse};

/// A request for one's assignment, or, by the leader, with everybody's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sync {
    pub member_id: String,
    pub instance: Option<String>,
    pub generation: i32,
    /// What the member takes the group's to be, if it says so.
    pub protocol_type: Option<String>,
    pub protocol: Option<String>,
    /// In memory of their own, since they are kept.
    pub assignments: Vec<(String, Bytes)>,
}

impl Sync {
    /// Bytes that a group keeps of it.
    pub fn bytes(&self) -> usize {
        self.assignments.iter().map(|(_, assignment)| assignment.len()).sum()
    }
}

impl ClassicGroup {
    /// A member wants its assignment; the answer comes when the leader has given it.
    pub fn sync(&mut self, now: Instant, sync: Sync, ticket: Ticket, out: &mut Vec<ClassicOutput>) {
        if let Err(error) = self.check_sync(&sync) {
            out.push(ClassicOutput::Sync(ticket, sync_error(error)));
            return;
        }
        let id = sync.member_id;
        self.touch(now, &id);
        let Some(member) = self.members.get_mut(&id) else { return };
        member.synced = true;
        if self.phase == ClassicPhase::Stable {
            let assignment = member.assignment.clone();
            out.push(ClassicOutput::Sync(ticket, self.synced(assignment)));
            self.forget_sync_deadline();
            return;
        }
        if let Some(before) = member.syncing.replace(ticket) {
            out.push(ClassicOutput::Sync(before, sync_error(ErrorCode::RebalanceInProgress)));
        }
        if self.leader.as_ref() == Some(&id) {
            self.assign(now, sync.assignments, out);
        }
        self.forget_sync_deadline();
    }

    fn check_sync(&self, sync: &Sync) -> Result<(), ErrorCode> {
        if self.phase == ClassicPhase::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        self.check_member(&sync.member_id, sync.instance.as_deref())?;
        self.check_generation(sync.generation)?;
        let differs = |given: &Option<String>, known: &Option<String>| given.is_some() && given != known;
        if differs(&sync.protocol_type, &self.protocol_type) || differs(&sync.protocol, &self.protocol) {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        match self.phase {
            ClassicPhase::Preparing { .. } => Err(ErrorCode::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    /// Bytes of what is assigned at the moment, which a leader's word replaces.
    pub fn assigned_bytes(&self) -> usize {
        self.members.values().map(|member| member.assignment.len()).sum()
    }

    /// The leader's word: who gets what. Members that it does not name get nothing.
    fn assign(&mut self, now: Instant, assignments: Vec<(String, Bytes)>, out: &mut Vec<ClassicOutput>) {
        let mut assignments: BTreeMap<String, Bytes> = assignments.into_iter().collect();
        assignments.retain(|id, _| self.members.contains_key(id));
        let bytes: usize = assignments.values().map(Bytes::len).sum();
        if self.bytes() - self.assigned_bytes() + bytes > self.limits.bytes_max {
            // As a broker answers that can't store what is assigned.
            self.answer_syncs(now, ErrorCode::UnknownServerError, out);
            self.prepare(now, out);
            return;
        }
        self.phase = ClassicPhase::Stable;
        for (id, member) in &mut self.members {
            member.assignment = assignments.remove(id).unwrap_or_default();
        }
        self.answer_syncs(now, ErrorCode::None, out);
    }

    /// Answers all who wait for their assignment.
    fn answer_syncs(&mut self, now: Instant, error: ErrorCode, out: &mut Vec<ClassicOutput>) {
        let (protocol_type, protocol_name) = (self.protocol_type.clone(), self.protocol.clone());
        for member in self.members.values_mut() {
            let Some(ticket) = member.syncing.take() else { continue };
            member.deadline = now + member.session;
            let answer = match error {
                ErrorCode::None => SyncGroupResponse {
                    protocol_type: protocol_type.clone(),
                    protocol_name: protocol_name.clone(),
                    assignment: member.assignment.clone(),
                    ..Default::default()
                },
                error => sync_error(error),
            };
            out.push(ClassicOutput::Sync(ticket, answer));
        }
    }

    fn synced(&self, assignment: Bytes) -> SyncGroupResponse {
        SyncGroupResponse {
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol.clone(),
            assignment,
            ..Default::default()
        }
    }

    fn forget_sync_deadline(&mut self) {
        if self.members.values().all(|member| member.synced) {
            self.sync_deadline = None;
        }
    }

    /// Begins to prepare the next generation, or ends that if nobody else is waited for.
    pub(super) fn prepare_or_complete(&mut self, now: Instant, out: &mut Vec<ClassicOutput>) {
        match self.phase {
            ClassicPhase::Preparing { .. } => self.complete_if_all_joined(now, out),
            _ => self.prepare(now, out),
        }
    }

    fn prepare(&mut self, now: Instant, out: &mut Vec<ClassicOutput>) {
        let is_initial = self.phase == ClassicPhase::Empty;
        if self.phase == ClassicPhase::Completing {
            // What they had is not what the leader was about to give them.
            self.members.values_mut().for_each(|member| member.assignment = Bytes::new());
        }
        self.answer_syncs(now, ErrorCode::RebalanceInProgress, out);
        self.sync_deadline = None;
        let wait = self.rebalance_timeout();
        if is_initial {
            let first = self.limits.initial_delay.min(wait);
            let initial = Initial { left: wait - first, grew: false };
            self.phase = ClassicPhase::Preparing { until: now + first, initial: Some(initial) };
        } else {
            self.phase = ClassicPhase::Preparing { until: now + wait, initial: None };
            self.complete_if_all_joined(now, out);
        }
    }

    fn rebalance_timeout(&self) -> Duration {
        self.members.values().map(|member| member.rebalance).max().unwrap_or_default()
    }

    pub(super) fn complete_if_all_joined(&mut self, now: Instant, out: &mut Vec<ClassicOutput>) {
        let ClassicPhase::Preparing { initial, .. } = &self.phase else { return };
        let all_joined = self.members.values().all(|member| member.joining.is_some());
        // The first generation waits its time.
        let none_missing = all_joined && self.pending.is_empty() && initial.is_none();
        if none_missing || self.members.is_empty() {
            self.complete(now, out);
        }
    }

    /// The time to wait for members is over.
    pub(super) fn wait_is_over(&mut self, now: Instant, out: &mut Vec<ClassicOutput>) {
        let delay = self.limits.initial_delay;
        if let ClassicPhase::Preparing { until, initial: Some(initial) } = &mut self.phase
            && initial.grew
            && !initial.left.is_zero()
        {
            let more = delay.min(initial.left);
            initial.left -= more;
            initial.grew = false;
            *until = now + more;
            return;
        }
        self.complete(now, out);
    }

    /// The next generation begins with those who joined, and with static members, which may be back soon.
    fn complete(&mut self, now: Instant, out: &mut Vec<ClassicOutput>) {
        let gone = self.members.iter().filter(|(_, member)| member.joining.is_none());
        let gone: Vec<String> =
            gone.filter(|(_, member)| member.instance.is_none()).map(|(id, _)| id.clone()).collect();
        for id in gone {
            self.take_out(&id, out);
        }
        let joined = self.members.iter().find(|(_, member)| member.joining.is_some());
        let Some((first, _)) = joined else {
            if self.members.is_empty() {
                self.next_generation();
                self.phase = ClassicPhase::Empty;
                self.protocol = None;
            } else {
                // Only static members, none of which is back. They are waited for until their sessions end.
                let until = now + self.rebalance_timeout();
                self.phase = ClassicPhase::Preparing { until, initial: None };
            }
            return;
        };
        let is_here = |id: &String| self.members.get(id).is_some_and(|member| member.joining.is_some());
        if !self.leader.as_ref().is_some_and(is_here) {
            self.leader = Some(first.clone());
        }
        self.next_generation();
        self.protocol = self.select_protocol();
        self.phase = ClassicPhase::Completing;
        self.sync_deadline = Some(now + self.rebalance_timeout());
        let for_leader = self.members_for_leader();
        let answer = self.joined("");
        for (id, member) in &mut self.members {
            member.synced = false;
            let Some(ticket) = member.joining.take() else { continue };
            member.fresh = false;
            member.deadline = now + member.session;
            let is_leader = *id == answer.leader;
            let members = if is_leader { for_leader.clone() } else { Vec::new() };
            out.push(ClassicOutput::Join(
                ticket,
                JoinGroupResponse { member_id: id.clone(), members, ..answer.clone() },
            ));
        }
    }

    fn next_generation(&mut self) {
        self.generation = self.generation.checked_add(1).unwrap_or(1);
    }

    /// The protocol that most members like best among those that all support.
    pub(super) fn select_protocol(&self) -> Option<String> {
        let common = common_protocols(self.members.values().map(|member| member.protocols.as_slice()))?;
        let mut votes: BTreeMap<&String, usize> = BTreeMap::new();
        for member in self.members.values() {
            let vote =
                member.protocols.iter().map(|(name, _)| name).find(|name| common.contains(name.as_str()));
            if let Some(vote) = vote {
                *votes.entry(vote).or_default() += 1;
            }
        }
        // Of those with as many votes the first by name.
        votes.into_iter().rev().max_by_key(|(_, count)| *count).map(|(name, _)| name.clone())
    }

    /// A member is out: the others have to share what it had.
    pub(super) fn remove(&mut self, now: Instant, id: &str, out: &mut Vec<ClassicOutput>) {
        self.take_out(id, out);
        self.prepare_or_complete(now, out);
    }

    fn take_out(&mut self, id: &str, out: &mut Vec<ClassicOutput>) {
        let Some(member) = self.members.remove(id) else { return };
        if let Some(ticket) = member.joining {
            out.push(ClassicOutput::Join(ticket, join_error(ErrorCode::UnknownMemberId, id)));
        }
        if let Some(ticket) = member.syncing {
            out.push(ClassicOutput::Sync(ticket, sync_error(ErrorCode::UnknownMemberId)));
        }
        if let Some(instance) = &member.instance {
            self.instances.remove(instance);
        }
        if self.leader.as_deref() == Some(id) {
            self.leader = self.members.keys().next().cloned();
        }
    }
}

pub(crate) fn sync_error(error: ErrorCode) -> SyncGroupResponse {
    SyncGroupResponse { error_code: error.number(), ..Default::default() }
}
