//! One group of KIP-848: members say with heartbeats what they want and what they have, and the coordinator says what
//! they get.
//!
//! ```text
//! a member joins, leaves, wants something else;      members' epochs follow, one by one:
//! a topic is created, grows, is deleted
//!        |                                           has what it no longer gets --revoked--> the rest that it gets
//!        v                                             (epoch as before)                      and that nobody has
//!   group epoch + 1 --> target assignment at           it has nothing of that  ------------> (epoch of the target)
//!                       that epoch (`assign.rs`)
//! ```
//!
//! Decisions only, without clock, network or disk. What holds, and `property.rs` checks:
//! - no partition is ever given to a member while another one has it, or was not heard to have given it up;
//! - epochs of group, target and member never go back, and none is ahead of the one before it;
//! - when nothing changes any more, and members do as they are told, everybody has its target after a few heartbeats;
//! - a member that is silent for the session timeout is out, and so is one that does not give up in time what it has to.
//!
//! Here is what a heartbeat is checked for and changes; `reconcile.rs` is what a member gets, and `classic.rs` what
//! members do that still speak the classic protocol.

pub(crate) mod assign;
mod classic;
#[cfg(test)]
mod property;
mod reconcile;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use regex::Regex;
use tailwater_env::Instant;
use tailwater_format::StreamId;

use crate::errors::ErrorCode;
use assign::Assignor;
use classic::Classic;

/// The epoch of a member that joins.
pub(crate) const JOINING: i32 = 0;
/// The epoch of a member that leaves.
pub(crate) const LEAVING: i32 = -1;
/// The epoch of a static member that will be back.
pub(crate) const LEAVING_FOR_NOW: i32 = -2;
/// Bytes that a compiled pattern may take.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// Partitions, by topic.
pub(crate) type Partitions = BTreeMap<StreamId, BTreeSet<u32>>;

/// The topics that there are, by name: id and number of partitions.
pub(crate) type Catalog = BTreeMap<String, (StreamId, u32)>;

/// What bounds a group.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// A member that is silent for so long is out.
    pub session: Duration,
    /// How often members send heartbeats.
    pub heartbeat: Duration,
    /// Session timeouts that members may ask for that speak the classic protocol, in milliseconds.
    pub classic_session_ms: RangeInclusive<i32>,
    pub members_max: usize,
    /// Bytes of what all members say of themselves.
    pub bytes_max: usize,
}

/// What a member says. What is `None` is as it said before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beat {
    pub member_id: String,
    pub epoch: i32,
    pub instance: Option<String>,
    pub rack: Option<String>,
    pub client_id: Arc<str>,
    pub client_host: String,
    pub rebalance: Option<Duration>,
    pub topics: Option<Vec<String>>,
    /// Empty is none.
    pub pattern: Option<String>,
    pub assignor: Option<String>,
    /// What it has at the moment.
    pub owned: Option<Partitions>,
}

impl Beat {
    /// Bytes that a group keeps of it.
    pub fn bytes(&self) -> usize {
        let topics: usize = self.topics.iter().flatten().map(|topic| topic.len() + 32).sum();
        topics + self.pattern.as_ref().map_or(0, String::len)
    }
}

/// What a member is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub member_id: String,
    pub epoch: i32,
    /// What it gets, if that is news to it.
    pub assignment: Option<Partitions>,
}

/// Why a heartbeat is refused, in words too.
pub(crate) type Refused = (ErrorCode, String);

/// A topic's name as a pattern.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub text: String,
    regex: Arc<Regex>,
}

/// A member.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub instance: Option<String>,
    pub rack: Option<String>,
    pub client_id: Arc<str>,
    pub client_host: String,
    rebalance: Duration,
    pub topics: BTreeSet<String>,
    pub pattern: Option<Pattern>,
    assignor: Option<Assignor>,
    pub epoch: i32,
    /// The epoch that it had before: it did not hear of the newer one if it still sends that.
    previous_epoch: i32,
    /// What it has, or is told to take.
    pub assigned: Partitions,
    /// What it has and is told to give up.
    pub revoking: Partitions,
    /// Whether something that it gets is still another one's.
    waits: bool,
    deadline: Instant,
    /// When it is out if it has not given up by then what it has to.
    revoke_deadline: Option<Instant>,
    /// What it has if it speaks the classic protocol.
    pub classic: Option<Classic>,
}

impl Member {
    /// One that has joined and has nothing yet.
    fn new(instance: Option<String>, client_id: Arc<str>, client_host: String, deadline: Instant) -> Self {
        Self {
            instance,
            rack: None,
            client_id,
            client_host,
            rebalance: Duration::ZERO,
            topics: BTreeSet::new(),
            pattern: None,
            assignor: None,
            epoch: JOINING,
            previous_epoch: JOINING,
            assigned: Partitions::new(),
            revoking: Partitions::new(),
            waits: false,
            deadline,
            revoke_deadline: None,
            classic: None,
        }
    }

    fn bytes(&self) -> usize {
        let topics: usize = self.topics.iter().map(|topic| topic.len() + 32).sum();
        let classic = self.classic.as_ref().map_or(0, Classic::bytes);
        topics + classic + self.pattern.as_ref().map_or(0, |pattern| pattern.text.len())
    }

    /// When it is out, if nothing is heard of it.
    fn deadline(&self) -> Instant {
        let due = self.classic.as_ref().and_then(|classic| classic.due);
        [self.revoke_deadline, due].into_iter().flatten().fold(self.deadline, Instant::min)
    }

    /// What static members are ordered by, so that one that is replaced changes nothing.
    fn order<'a>(&'a self, id: &'a str) -> &'a str {
        self.instance.as_deref().unwrap_or(id)
    }

    /// The topics of the catalog that it wants.
    fn wanted<'a>(&'a self, catalog: &'a Catalog) -> impl Iterator<Item = (StreamId, u32)> + 'a {
        let is_wanted = move |name: &String| {
            self.topics.contains(name)
                || self.pattern.as_ref().is_some_and(|pattern| pattern.regex.is_match(name))
        };
        catalog.iter().filter(move |(name, _)| is_wanted(name)).map(|(_, topic)| *topic)
    }
}

/// A group.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerGroup {
    limits: Arc<Limits>,
    pub epoch: i32,
    /// The epoch of the target.
    pub target_epoch: i32,
    pub target: BTreeMap<String, Partitions>,
    pub members: BTreeMap<String, Member>,
    instances: BTreeMap<String, String>,
    /// The topics that the target was made of.
    topics: BTreeMap<StreamId, u32>,
    pub assignor: Assignor,
    pub is_dead: bool,
}

impl ConsumerGroup {
    /// A group without members, after so many epochs.
    pub fn new(limits: Arc<Limits>, epoch: i32) -> Self {
        Self {
            limits,
            epoch,
            target_epoch: epoch,
            target: BTreeMap::new(),
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            topics: BTreeMap::new(),
            assignor: Assignor::default(),
            is_dead: false,
        }
    }

    /// Kafka's name of where it is.
    pub fn state(&self) -> &'static str {
        let is_settled = |member: &Member| {
            member.epoch == LEAVING_FOR_NOW
                || (member.epoch == self.target_epoch && !member.waits && member.revoking.is_empty())
        };
        match () {
            () if self.is_dead => "Dead",
            () if self.members.is_empty() => "Empty",
            () if self.epoch > self.target_epoch => "Assigning",
            () if self.members.values().all(is_settled) => "Stable",
            () => "Reconciling",
        }
    }

    /// Bytes of what its members say of themselves.
    pub fn bytes(&self) -> usize {
        self.members.values().map(Member::bytes).sum()
    }

    /// When [`ConsumerGroup::tick`] has something to do, at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.members.values().map(Member::deadline).min()
    }

    /// Puts those out that are silent, or do not give up what they have to.
    pub fn tick(&mut self, now: Instant) {
        let over = self.members.iter().filter(|(_, member)| member.deadline() <= now);
        for id in over.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.remove(&id);
        }
    }

    /// A member says that it lives, and what it wants and has; it is told what it gets.
    ///
    /// # Errors
    /// Nothing was changed then, but for a member that does not fit in any more.
    pub fn heartbeat(&mut self, now: Instant, beat: Beat, catalog: &Catalog) -> Result<Told, Refused> {
        if self.is_dead {
            return Err((ErrorCode::CoordinatorNotAvailable, "the group is being deleted".to_owned()));
        }
        if beat.epoch < JOINING {
            return self.leave(now, &beat);
        }
        self.check(&beat)?;
        let id = beat.member_id.clone();
        let pattern = match &beat.pattern {
            Some(text) if !text.is_empty() => Some(pattern(text)?),
            _ => None,
        };
        let assignor = match &beat.assignor {
            Some(name) => Some(Assignor::from_name(name).ok_or_else(|| unknown_assignor(name))?),
            None => None,
        };
        if (beat.topics.is_some() || beat.pattern.is_some()) && !self.has_room(&beat) {
            let why = "the group's members subscribe to too much".to_owned();
            return Err((ErrorCode::GroupMaxSizeReached, why));
        }
        if beat.epoch == JOINING {
            self.take_in(now, &beat)?;
        }
        let before = self.members.get(&id).map(|member| member.assigned.clone()).unwrap_or_default();
        let is_full = beat.epoch == JOINING
            || (beat.rebalance.is_some()
                && (beat.topics.is_some() || beat.pattern.is_some())
                && beat.owned.is_some());
        let owned = if beat.epoch == JOINING { Some(Partitions::new()) } else { beat.owned.clone() };
        if self.update(now, &id, beat, pattern, assignor) {
            self.bump();
        }
        self.refresh(catalog);
        self.reconcile(now, &id, owned.as_ref());
        let member = self.members.get(&id).ok_or_else(|| unknown_member(&id))?;
        let is_news = is_full || member.assigned != before;
        Ok(Told { member_id: id, epoch: member.epoch, assignment: is_news.then(|| member.assigned.clone()) })
    }

    /// Whether the member is known under that id, name and epoch.
    fn check(&self, beat: &Beat) -> Result<(), Refused> {
        let id = &beat.member_id;
        if let Some(instance) = &beat.instance {
            let holder = self.instances.get(instance);
            let holds = holder.and_then(|holder| self.members.get(holder));
            // One that spoke the classic protocol does not say that it leaves.
            let leaves = holds.is_some_and(|held| held.epoch == LEAVING_FOR_NOW || held.classic.is_some());
            match (holder, beat.epoch) {
                (None, JOINING) => return Ok(()),
                (None, _) => return Err(unknown_member(id)),
                (Some(holder), JOINING) if holder != id && !leaves => {
                    let why = format!("{instance:?} is another member's name, which did not leave");
                    return Err((ErrorCode::UnreleasedInstanceId, why));
                }
                (Some(_), JOINING) => return Ok(()),
                (Some(holder), _) if holder != id => {
                    let why = format!("{instance:?} is another member's name by now");
                    return Err((ErrorCode::FencedInstanceId, why));
                }
                (Some(_), _) => {}
            }
        }
        if beat.epoch == JOINING {
            return Ok(());
        }
        let member = self.members.get(id).filter(|member| member.classic.is_none());
        let member = member.ok_or_else(|| unknown_member(id))?;
        let has_only_its_own = || match &beat.owned {
            Some(owned) => contains(&member.assigned, owned),
            None => false,
        };
        let is_current = beat.epoch == member.epoch
            // It did not hear of the newer one.
            || (beat.epoch == member.previous_epoch && beat.epoch < member.epoch && has_only_its_own());
        if is_current {
            return Ok(());
        }
        let why = format!("epoch {} of member {id}, which is in epoch {}", beat.epoch, member.epoch);
        Err((ErrorCode::FencedMemberEpoch, why))
    }

    /// Makes a member of whoever joins. A static one that is back has what it had.
    fn take_in(&mut self, now: Instant, beat: &Beat) -> Result<(), Refused> {
        let id = &beat.member_id;
        self.take_place(id, beat.instance.as_ref());
        if let Some(member) = self.members.get_mut(id) {
            // It begins anew, and has nothing: what it had may go to others.
            member.assigned.clear();
            member.revoking.clear();
            (member.epoch, member.previous_epoch) = (JOINING, JOINING);
            member.classic = None;
            return Ok(());
        }
        if self.members.len() >= self.limits.members_max {
            let why = format!("the group has its {} members", self.limits.members_max);
            return Err((ErrorCode::GroupMaxSizeReached, why));
        }
        let deadline = now + self.limits.session;
        let (client_id, host) = (Arc::clone(&beat.client_id), beat.client_host.clone());
        let member = Member::new(beat.instance.clone(), client_id, host, deadline);
        self.add(id, Member { rebalance: self.limits.session, ..member });
        Ok(())
    }

    /// Has a static member that is back under its name, with another id, be who it was.
    fn take_place(&mut self, id: &str, instance: Option<&String>) {
        let holder = instance.and_then(|instance| self.instances.get(instance).cloned());
        if let Some(holder) = holder.filter(|holder| holder != id)
            && let Some(mut member) = self.members.remove(&holder)
        {
            // The target is the same under the new id, so nobody else has to move.
            if let Some(target) = self.target.remove(&holder) {
                self.target.insert(id.to_owned(), target);
            }
            (member.epoch, member.previous_epoch) = (JOINING, JOINING);
            self.members.insert(id.to_owned(), member);
            self.instances.extend(instance.map(|instance| (instance.clone(), id.to_owned())));
        }
    }

    fn add(&mut self, id: &str, member: Member) {
        self.instances.extend(member.instance.clone().map(|instance| (instance, id.to_owned())));
        self.members.insert(id.to_owned(), member);
        self.bump();
    }

    /// What the member says of itself; whether that changes what anybody gets.
    fn update(
        &mut self,
        now: Instant,
        id: &str,
        beat: Beat,
        pattern: Option<Pattern>,
        assignor: Option<Assignor>,
    ) -> bool {
        let Some(member) = self.members.get_mut(id) else { return false };
        member.deadline = now + self.limits.session;
        member.client_id = beat.client_id;
        member.client_host = beat.client_host;
        member.rebalance = beat.rebalance.unwrap_or(member.rebalance);
        member.rack = beat.rack.or(member.rack.take());
        let mut has_changed = false;
        if let Some(topics) = beat.topics {
            let topics: BTreeSet<String> = topics.into_iter().collect();
            has_changed |= topics != member.topics;
            member.topics = topics;
        }
        if beat.pattern.is_some() {
            let text = |pattern: &Option<Pattern>| pattern.as_ref().map(|pattern| pattern.text.clone());
            has_changed |= text(&pattern) != text(&member.pattern);
            member.pattern = pattern;
        }
        if assignor.is_some() {
            has_changed |= member.assignor != assignor;
            member.assignor = assignor;
        }
        has_changed
    }

    /// A member leaves; a static one may say that it will be back, and keeps what it has.
    fn leave(&mut self, now: Instant, beat: &Beat) -> Result<Told, Refused> {
        let id = &beat.member_id;
        if let Some(instance) = &beat.instance {
            match self.instances.get(instance) {
                None => return Err(unknown_member(id)),
                Some(holder) if holder != id => {
                    let why = format!("{instance:?} is another member's name by now");
                    return Err((ErrorCode::FencedInstanceId, why));
                }
                Some(_) => {}
            }
        }
        let member = self.members.get_mut(id).ok_or_else(|| unknown_member(id))?;
        match beat.epoch {
            LEAVING_FOR_NOW if member.instance.is_some() => {
                member.epoch = LEAVING_FOR_NOW;
                member.deadline = now + self.limits.session;
                member.revoke_deadline = None;
            }
            LEAVING | LEAVING_FOR_NOW => self.remove(id),
            other => return Err((ErrorCode::InvalidRequest, format!("there is no epoch {other}"))),
        }
        Ok(Told { member_id: id.clone(), epoch: beat.epoch, assignment: None })
    }

    fn remove(&mut self, id: &str) {
        let Some(member) = self.members.remove(id) else { return };
        if let Some(instance) = &member.instance {
            self.instances.remove(instance);
        }
        self.target.remove(id);
        self.bump();
    }

    /// Has a new target be made. What changes before that is made is one change.
    fn bump(&mut self) {
        if self.epoch == self.target_epoch {
            self.epoch = self.epoch.saturating_add(1);
        }
    }

    /// Whether whoever commits or asks for offsets may.
    pub fn check_committer(&self, id: &str, epoch: i32) -> Result<(), ErrorCode> {
        if self.is_dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        if epoch < 0 && self.members.is_empty() {
            return Ok(());
        }
        let member = self.members.get(id).ok_or(ErrorCode::UnknownMemberId)?;
        match &member.classic {
            _ if epoch == member.epoch => Ok(()),
            Some(_) => Err(ErrorCode::IllegalGeneration),
            None => Err(ErrorCode::StaleMemberEpoch),
        }
    }

    /// Deletes the group, which nobody may be in.
    pub fn delete(&mut self) -> Result<(), ErrorCode> {
        match (self.is_dead, self.members.is_empty()) {
            (true, _) => Err(ErrorCode::GroupIdNotFound),
            (false, false) => Err(ErrorCode::NonEmptyGroup),
            (false, true) => {
                self.is_dead = true;
                Ok(())
            }
        }
    }

    /// The topics of the catalog that any member wants, by name.
    pub fn subscribed_topics(&self, catalog: &Catalog) -> BTreeSet<String> {
        let wanted: BTreeSet<StreamId> =
            self.members.values().flat_map(|member| member.wanted(catalog)).map(|(id, _)| id).collect();
        catalog.iter().filter(|(_, (id, _))| wanted.contains(id)).map(|(name, _)| name.clone()).collect()
    }

    /// Whether what a member says fits in.
    fn has_room(&self, beat: &Beat) -> bool {
        let others = self.members.iter().filter(|(id, _)| **id != beat.member_id);
        let others: usize = others.map(|(_, member)| member.bytes()).sum();
        others + beat.bytes() <= self.limits.bytes_max
    }
}

fn pattern(text: &str) -> Result<Pattern, Refused> {
    let anchored = format!("^(?:{text})$");
    let built = regex::RegexBuilder::new(&anchored).size_limit(PATTERN_BYTES_MAX).build();
    let regex = built.map_err(|error| (ErrorCode::InvalidRegularExpression, error.to_string()))?;
    Ok(Pattern { text: text.to_owned(), regex: Arc::new(regex) })
}

fn unknown_member(id: &str) -> Refused {
    (ErrorCode::UnknownMemberId, format!("there is no member {id}"))
}

fn unknown_assignor(name: &str) -> Refused {
    (ErrorCode::UnsupportedAssignor, format!("there is no assignor {name}: uniform, range"))
}

/// Whether `all` has every partition of `some`.
fn contains(all: &Partitions, some: &Partitions) -> bool {
    some.iter().all(|(topic, partitions)| {
        partitions.is_empty() || all.get(topic).is_some_and(|all| partitions.is_subset(all))
    })
}
