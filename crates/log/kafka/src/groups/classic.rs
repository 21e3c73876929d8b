//! One group of the classic protocol: members join, one of them, the leader, says who gets what, all of them fetch
//! that with a sync, and heartbeats keep them in.
//!
//! ```text
//!           a member joins            all joined, or time is over           the leader's sync
//!   Empty ----------------> Preparing ---------------------> Completing ---------------------> Stable
//!     ^                      ^  |                                |                               |
//!     `----------------------|--'  nobody joined                 |                               |
//!                            `-----------------------------------+-------------------------------'
//!                                   a member joins, leaves or falls silent
//! ```
//!
//! Decisions only, without clock, network or disk: every call is told the time and pushes what is to be answered. What
//! holds, and `property.rs` checks:
//! - every ticket is answered exactly once;
//! - a generation is only ever followed by the next one, and all of its members use one protocol that each supports;
//! - a group without members is [`ClassicPhase::Empty`], and only such a group is;
//! - a member that is silent for its session timeout is out, but not while it waits for an answer;
//! - members, and the bytes that they brought, stay within [`Limits`].
//!
//! `join.rs` is how members come, `rebalance.rs` how a generation is made, `moving.rs` how a group becomes one of the
//! other protocol while members are in it, and here is all that they do in a generation.

mod join;
mod moving;
#[cfg(test)]
mod property;
mod rebalance;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Instant;
use tailwater_kafka_wire::consumer;

use super::bounds::{ITEM_BYTES, Who};
use crate::errors::ErrorCode;
use crate::messages::membership::{JoinGroupResponse, SyncGroupResponse};

pub(crate) use join::{Join, millis, rebalance};
pub(crate) use moving::{Consumer, version_of};
pub(crate) use rebalance::{Sync, sync_error};

/// What bounds a group.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Session timeouts that members may ask for, in milliseconds.
    pub session_ms: RangeInclusive<i32>,
    /// How long the first member of a group waits for others.
    pub initial_delay: Duration,
    /// Members, those included that were only given an id.
    pub members_max: usize,
    /// Bytes of what all members say of themselves, and of what is assigned to them.
    pub bytes_max: usize,
}

/// Stands for a request that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub u64);

/// An answer to a request that waited.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ClassicOutput {
    Join(Ticket, JoinGroupResponse),
    Sync(Ticket, SyncGroupResponse),
}

/// Where a group is; see the drawing above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClassicPhase {
    Empty,
    /// Members are waited for until then.
    Preparing {
        until: Instant,
        /// Of a group's first generation.
        initial: Option<Initial>,
    },
    /// The leader's sync is waited for.
    Completing,
    Stable,
    /// It was deleted, and is about to be forgotten.
    Dead,
}

/// The first generation waits a little longer whenever somebody joins, so that a group that starts does not rebalance
/// for each of its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Initial {
    /// How much longer it may wait in all.
    left: Duration,
    /// Whether somebody joined since it began to wait.
    grew: bool,
}

/// A member, by whatever id it has.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// The name of a static member.
    pub instance: Option<String>,
    pub client_id: Arc<str>,
    pub client_host: String,
    session: Duration,
    rebalance: Duration,
    /// What it can use, best first, each with what it says of itself.
    protocols: Vec<(String, Bytes)>,
    pub assignment: Bytes,
    joining: Option<Ticket>,
    syncing: Option<Ticket>,
    /// Whether it fetched its assignment in this generation.
    synced: bool,
    /// Whether it never got an answer: then it can't send heartbeats, and is waited for longer.
    fresh: bool,
    /// When it is out, unless it is heard of or waits for an answer.
    deadline: Instant,
}

impl Member {
    fn metadata(&self, protocol: &str) -> Bytes {
        let found = self.protocols.iter().find(|(name, _)| name == protocol);
        found.map(|(_, metadata)| metadata.clone()).unwrap_or_default()
    }

    /// Bytes that are counted for it, but for its assignment.
    fn bytes(&self, id: &str) -> usize {
        let Self { instance, client_id, client_host, .. } = self;
        let who = Who { id, instance: instance.as_deref(), client_id, client_host };
        who.bytes() + protocols_bytes(&self.protocols)
    }

    /// Whether its silence counts.
    fn is_timed(&self) -> bool {
        self.syncing.is_none() && (self.joining.is_none() || self.fresh)
    }
}

pub(crate) fn protocols_bytes(protocols: &[(String, Bytes)]) -> usize {
    protocols.iter().map(|(name, metadata)| ITEM_BYTES + name.len() + metadata.len()).sum()
}

/// The names of the protocols that all have in common.
pub(crate) fn common_protocols<'a>(
    mut all: impl Iterator<Item = &'a [(String, Bytes)]>,
) -> Option<BTreeSet<&'a str>> {
    let names = |protocols: &'a [(String, Bytes)]| {
        protocols.iter().map(|(name, _)| name.as_str()).collect::<BTreeSet<_>>()
    };
    let first = names(all.next()?);
    Some(all.fold(first, |common, protocols| &common & &names(protocols)))
}

/// Bytes that are counted for an id that was given out.
fn pending_bytes(id: &str) -> usize {
    ITEM_BYTES + id.len()
}

/// A group.
#[derive(Clone, Debug)]
pub(crate) struct ClassicGroup {
    limits: Arc<Limits>,
    pub phase: ClassicPhase,
    pub generation: i32,
    pub protocol_type: Option<String>,
    pub protocol: Option<String>,
    leader: Option<String>,
    pub members: BTreeMap<String, Member>,
    /// The ids of static members, by name.
    instances: BTreeMap<String, String>,
    /// Ids that were given out and did not join yet, and when they are void.
    pending: BTreeMap<String, Instant>,
    /// When those are out that did not fetch their assignment.
    sync_deadline: Option<Instant>,
}

impl ClassicGroup {
    /// A group without members, after so many generations.
    pub fn new(limits: Arc<Limits>, generation: i32, protocol_type: Option<String>) -> Self {
        Self {
            limits,
            phase: ClassicPhase::Empty,
            generation,
            protocol_type,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            pending: BTreeMap::new(),
            sync_deadline: None,
        }
    }

    /// Kafka's name of where it is.
    pub fn state(&self) -> &'static str {
        match self.phase {
            ClassicPhase::Empty => "Empty",
            ClassicPhase::Preparing { .. } => "PreparingRebalance",
            ClassicPhase::Completing => "CompletingRebalance",
            ClassicPhase::Stable => "Stable",
            ClassicPhase::Dead => "Dead",
        }
    }

    /// Bytes of what its members say of themselves, and of their assignments.
    pub fn bytes(&self) -> usize {
        let members = self.members.iter().map(|(id, member)| member.bytes(id) + member.assignment.len());
        members.chain(self.pending.keys().map(|id| pending_bytes(id))).sum()
    }

    /// Whether nobody is in it or about to be.
    pub fn is_unused(&self) -> bool {
        self.phase == ClassicPhase::Empty && self.pending.is_empty()
    }

    /// Whether its members are consumers, as those of KIP-848 are.
    pub fn is_of_consumers(&self) -> bool {
        self.protocol_type.as_deref() == Some(consumer::PROTOCOL_TYPE)
    }

    /// When [`ClassicGroup::tick`] has something to do, at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        let phase = match &self.phase {
            ClassicPhase::Preparing { until, .. } => Some(*until),
            _ => None,
        };
        let silent = self.members.values().filter(|member| member.is_timed()).map(|member| member.deadline);
        silent.chain(self.pending.values().copied()).chain(phase).chain(self.sync_deadline).min()
    }

    /// Whether a member may speak for itself: its id is known, and its name is still its own.
    fn check_member(&self, id: &str, instance: Option<&str>) -> Result<(), ErrorCode> {
        if let Some(instance) = instance {
            match self.instances.get(instance) {
                None => return Err(ErrorCode::UnknownMemberId),
                Some(known) if known != id => return Err(ErrorCode::FencedInstanceId),
                Some(_) => {}
            }
        }
        if self.members.contains_key(id) { Ok(()) } else { Err(ErrorCode::UnknownMemberId) }
    }

    fn check_generation(&self, generation: i32) -> Result<(), ErrorCode> {
        if generation == self.generation { Ok(()) } else { Err(ErrorCode::IllegalGeneration) }
    }

    /// Hears of a member.
    fn touch(&mut self, now: Instant, id: &str) {
        if let Some(member) = self.members.get_mut(id) {
            member.deadline = now + member.session;
        }
    }

    /// A member says that it lives, and learns whether it has to join again.
    pub fn heartbeat(
        &mut self,
        now: Instant,
        id: &str,
        instance: Option<&str>,
        generation: i32,
    ) -> Result<(), ErrorCode> {
        if self.phase == ClassicPhase::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        self.check_member(id, instance)?;
        self.check_generation(generation)?;
        self.touch(now, id);
        match self.phase {
            ClassicPhase::Preparing { .. } => Err(ErrorCode::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    /// Whether whoever commits may; a member that does is heard of.
    pub fn check_commit(
        &mut self,
        now: Instant,
        id: &str,
        instance: Option<&str>,
        generation: i32,
    ) -> Result<(), ErrorCode> {
        if self.phase == ClassicPhase::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        if generation < 0 && self.phase == ClassicPhase::Empty {
            // Somebody who keeps offsets here without being in the group.
            return Ok(());
        }
        if generation < 0 && id.is_empty() && instance.is_none() {
            // Others are in it.
            return Err(ErrorCode::UnknownMemberId);
        }
        self.check_member(id, instance)?;
        self.check_generation(generation)?;
        self.touch(now, id);
        // A member of the last generation commits while the next one is prepared; once that has begun, its leader
        // decides on what was committed.
        if self.phase == ClassicPhase::Completing { Err(ErrorCode::RebalanceInProgress) } else { Ok(()) }
    }

    /// A member leaves; a static one may be made to by its name alone.
    pub fn leave(
        &mut self,
        now: Instant,
        id: &str,
        instance: Option<&str>,
        out: &mut Vec<ClassicOutput>,
    ) -> Result<(), ErrorCode> {
        if self.phase == ClassicPhase::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        let id = match instance {
            Some(instance) if id.is_empty() => {
                self.instances.get(instance).cloned().ok_or(ErrorCode::UnknownMemberId)?
            }
            _ => id.to_owned(),
        };
        if instance.is_none() && self.pending.remove(&id).is_some() {
            self.complete_if_all_joined(now, out);
            return Ok(());
        }
        self.check_member(&id, instance)?;
        self.remove(now, &id, out);
        Ok(())
    }

    /// Deletes the group, which nobody may be in.
    pub fn delete(&mut self) -> Result<(), ErrorCode> {
        match self.phase {
            ClassicPhase::Dead => return Err(ErrorCode::GroupIdNotFound),
            ClassicPhase::Empty => {}
            _ => return Err(ErrorCode::NonEmptyGroup),
        }
        self.phase = ClassicPhase::Dead;
        self.pending.clear();
        Ok(())
    }

    /// Does what time demands.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<ClassicOutput>) {
        let void = self.pending.len();
        self.pending.retain(|_, deadline| *deadline > now);
        if self.pending.len() < void {
            self.complete_if_all_joined(now, out);
        }
        let silent: Vec<String> = self.silent(now).cloned().collect();
        for id in silent {
            // What the first ones' leaving brought about may have taken others out, or given them time.
            if self.silent(now).any(|silent| *silent == id) {
                self.remove(now, &id, out);
            }
        }
        if self.sync_deadline.is_some_and(|deadline| deadline <= now) {
            self.sync_deadline = None;
            let late: Vec<String> =
                self.members.iter().filter(|(_, member)| !member.synced).map(|(id, _)| id.clone()).collect();
            for id in late {
                self.remove(now, &id, out);
            }
        }
        if let ClassicPhase::Preparing { until, .. } = self.phase
            && until <= now
        {
            self.wait_is_over(now, out);
        }
    }

    fn silent(&self, now: Instant) -> impl Iterator<Item = &String> {
        let is_silent = move |member: &Member| member.is_timed() && member.deadline <= now;
        self.members.iter().filter(move |(_, member)| is_silent(member)).map(|(id, _)| id)
    }

    /// What everybody in a stable group subscribes to, where they say it in the way of consumers; `None` where that is
    /// not known.
    pub fn subscribed_topics(&self) -> Option<BTreeSet<String>> {
        if !self.is_of_consumers() || self.phase != ClassicPhase::Stable {
            return None;
        }
        let protocol = self.protocol.as_deref()?;
        let topics = self.members.values().map(|member| consumer::topics(member.metadata(protocol)));
        topics.collect::<Option<Vec<_>>>().map(|topics| topics.into_iter().flatten().collect())
    }

    /// What a member says of itself to the leader; nothing before the group has agreed on a protocol.
    pub fn member_metadata(&self, member: &Member) -> Bytes {
        match (&self.phase, &self.protocol) {
            (ClassicPhase::Stable, Some(protocol)) => member.metadata(protocol),
            _ => Bytes::new(),
        }
    }

    /// The partitions that a member of a stable group reads, where that is assigned in the way of consumers.
    pub fn assigned(&self, member: &Member) -> Vec<(String, u32)> {
        if !self.is_of_consumers() || self.phase != ClassicPhase::Stable {
            return Vec::new();
        }
        let topics = consumer::assigned(member.assignment.clone()).unwrap_or_default();
        let of_topic = |topic: consumer::Assigned| {
            let numbers = topic.partitions.into_iter().filter_map(|number| u32::try_from(number).ok());
            numbers.map(|number| (topic.topic.clone(), number)).collect::<Vec<_>>()
        };
        topics.into_iter().flat_map(of_topic).collect()
    }
}
