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
//! - a member that is silent for the session timeout is out, and so is one that does not give up in time what it has
//!   to.
//!
//! Here is what a heartbeat is checked for and changes; `reconcile.rs` is what a member gets, `classic.rs` what members
//! do that still speak the classic protocol, and `restore.rs` what is kept over a restart.

pub(crate) mod assign;
mod classic;
mod pattern;
#[cfg(test)]
mod property;
mod reconcile;
mod restore;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Instant;
use tailwater_format::StreamId;

use super::bounds::{NAME_BYTES_MAX, PATTERN_BYTES_MAX, Who, topics_bytes};
use crate::errors::ErrorCode;
use assign::Assignor;
use classic::Classic;
pub(crate) use pattern::Pattern;
use reconcile::Wanted;

/// The epoch of a member that joins.
pub(crate) const JOINING: i32 = 0;
/// The epoch of a member that leaves.
pub(crate) const LEAVING: i32 = -1;
/// The epoch of a static member that will be back.
pub(crate) const LEAVING_FOR_NOW: i32 = -2;

/// Partitions, by topic.
pub(crate) type Partitions = BTreeMap<StreamId, BTreeSet<u32>>;

/// The topics that there are, by name: id and number of partitions.
pub(crate) type Topics = BTreeMap<String, (StreamId, u32)>;

/// The topics that there are at some time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    /// Another one for other topics, so that whoever has seen them need not look at them again.
    version: u64,
    topics: Topics,
}

impl Catalog {
    /// The catalog of these topics, which comes after this one.
    pub fn next(&self, topics: Topics) -> Self {
        Self { version: self.version + u64::from(topics != self.topics), topics }
    }
}

impl std::ops::Deref for Catalog {
    type Target = Topics;

    fn deref(&self) -> &Topics {
        &self.topics
    }
}

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
    /// On whose behalf it subscribes to topics that match.
    pub principal: Arc<str>,
    /// What the pattern was compiled to: [`Beat::look_up`].
    pub compiled: Option<Result<Pattern, MemberRefused>>,
    pub assignor: Option<String>,
    /// What it has at the moment.
    pub owned: Option<Partitions>,
}

impl Beat {
    /// Bytes that a group keeps of it, and did not have before; nothing of most of them.
    pub fn bytes(&self) -> usize {
        let who = if self.epoch == JOINING { self.who().bytes() } else { 0 };
        let texts = self.pattern.iter().chain(&self.rack).map(String::len).sum::<usize>();
        who + texts + topics_bytes(self.topics.iter().flatten())
    }

    /// The pattern that it says, if it says one.
    fn text(&self) -> Option<&str> {
        self.pattern.as_deref().filter(|text| !text.is_empty())
    }

    /// Does what takes long of a heartbeat before its step: the pattern is compiled, if it is not `known`, and topics
    /// are looked up, of which `may_know` says whether the member may know of them.
    pub fn look_up(
        &mut self,
        known: Option<Pattern>,
        now: Instant,
        catalog: &Catalog,
        may_know: impl Fn(&str) -> bool,
    ) {
        let pattern = match (known, self.text()) {
            (Some(known), _) => Some(Ok(known)),
            (None, text) => text.map(|text| Pattern::new(text, &self.principal)),
        };
        if let Some(Ok(pattern)) = &pattern {
            pattern.look_up(now, catalog, may_know);
        }
        self.compiled = pattern.filter(|_| self.text().is_some());
    }

    fn who(&self) -> Who<'_> {
        let Self { member_id, instance, client_id, client_host, .. } = self;
        Who { id: member_id, instance: instance.as_deref(), client_id, client_host }
    }

    /// Whether no part of it is longer than anybody needs.
    ///
    /// # Errors
    /// Which part is.
    pub fn check(&self) -> Result<(), MemberRefused> {
        let is_short = |text: &Option<String>, max| text.as_ref().is_none_or(|text| text.len() <= max);
        if !self.who().is_bounded() || !is_short(&self.rack, NAME_BYTES_MAX) {
            let why =
                format!("a member's id, its names and that of its rack have at most {NAME_BYTES_MAX} bytes");
            return Err((ErrorCode::InvalidRequest, why));
        }
        if !is_short(&self.pattern, PATTERN_BYTES_MAX) {
            let why = format!("a pattern has at most {PATTERN_BYTES_MAX} bytes");
            return Err((ErrorCode::InvalidRegularExpression, why));
        }
        Ok(())
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
pub(crate) type MemberRefused = (ErrorCode, String);

/// A member.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub instance: Option<String>,
    pub rack: Option<String>,
    pub client_id: Arc<str>,
    pub client_host: String,
    rebalance: Duration,
    pub topics: BTreeSet<String>,
    topics_bytes: usize,
    pub pattern: Option<Pattern>,
    /// The topics that the target was made of, of those that it wants.
    wanted: Wanted,
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
            topics_bytes: 0,
            pattern: None,
            wanted: Wanted::default(),
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

    /// Bytes that are counted for it, but for what its pattern was compiled to.
    fn bytes(&self, id: &str) -> usize {
        let text = self.pattern.as_ref().map_or(0, |pattern| pattern.text.len());
        self.who_bytes(id) + self.topics_bytes + text + self.rack.as_ref().map_or(0, String::len)
    }

    /// Bytes of that that it brings only when it joins.
    fn who_bytes(&self, id: &str) -> usize {
        let Self { instance, client_id, client_host, .. } = self;
        let who = Who { id, instance: instance.as_deref(), client_id, client_host };
        who.bytes() + self.classic.as_ref().map_or(0, Classic::bytes)
    }

    /// What it has, as far as is known: what it is told to give up too, until it did.
    pub fn has(&self) -> Partitions {
        let mut all = self.assigned.clone();
        for (topic, partitions) in &self.revoking {
            all.entry(*topic).or_default().extend(partitions);
        }
        all
    }

    /// What it subscribes to by name; whether that is something else than before.
    fn subscribe(&mut self, topics: impl IntoIterator<Item = String>) -> bool {
        let topics: BTreeSet<String> = topics.into_iter().collect();
        let has_changed = topics != self.topics;
        self.topics_bytes = topics_bytes(&topics);
        self.topics = topics;
        has_changed
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

    /// The topics of the catalog that it wants now.
    fn wants(&self, catalog: &Catalog) -> BTreeSet<StreamId> {
        let named = self.topics.iter().filter_map(|name| catalog.get(name)).map(|(id, _)| *id);
        let matched = self.pattern.iter().flat_map(|pattern| pattern.topics(catalog));
        named.chain(matched).collect()
    }
}

/// A group.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerGroup {
    pub limits: Arc<Limits>,
    pub epoch: i32,
    /// The epoch of the target.
    pub target_epoch: i32,
    pub target: BTreeMap<String, Partitions>,
    pub members: BTreeMap<String, Member>,
    instances: BTreeMap<String, String>,
    /// The topics that the target was made of.
    topics: BTreeMap<StreamId, u32>,
    /// The version of the catalog that they were looked up in.
    catalog_version: Option<u64>,
    /// Bytes that its members' patterns were compiled to, and of what they found.
    compiled_bytes: usize,
    pub assignor: Assignor,
    pub is_dead: bool,
    /// Members of which something else may have to be kept than before.
    touched: BTreeSet<String>,
    /// Whether the target is that of before a restart, and was not looked at yet.
    is_restored: bool,
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
            catalog_version: None,
            compiled_bytes: 0,
            assignor: Assignor::default(),
            is_dead: false,
            touched: BTreeSet::new(),
            is_restored: false,
        }
    }

    /// Kafka's name of where it is.
    pub fn state(&self) -> &'static str {
        // One that is away for now is not: it has no epoch until it is back.
        let is_settled = |member: &Member| {
            member.epoch == self.target_epoch && !member.waits && member.revoking.is_empty()
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
        self.members.iter().map(|(id, member)| member.bytes(id)).sum::<usize>() + self.compiled_bytes
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
    pub fn heartbeat(&mut self, now: Instant, beat: Beat, catalog: &Catalog) -> Result<Told, MemberRefused> {
        if self.is_dead {
            return Err((ErrorCode::CoordinatorNotAvailable, "the group is being deleted".to_owned()));
        }
        if beat.epoch < JOINING {
            return self.leave(now, &beat);
        }
        self.check(&beat)?;
        let id = beat.member_id.clone();
        let assignor = match &beat.assignor {
            Some(name) => Some(Assignor::from_name(name).ok_or_else(|| unknown_assignor(name))?),
            None => None,
        };
        let too_much =
            || (ErrorCode::GroupMaxSizeReached, "the group's members subscribe to too much".to_owned());
        if beat.bytes() > 0 && !self.has_room(&beat, 0) {
            return Err(too_much());
        }
        let pattern = match beat.text() {
            None => None,
            Some(text) => Some(match (self.pattern(text, &beat.principal), &beat.compiled) {
                (Some(known), _) => known,
                (None, Some(compiled)) => compiled.clone()?,
                (None, None) => Pattern::new(text, &beat.principal)?,
            }),
        };
        let compiled = pattern.as_ref().map_or(0, Pattern::compiled_bytes);
        if compiled > 0 && !self.has_room(&beat, compiled) {
            return Err(too_much());
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
        // What was looked up for it before this step is in no target yet.
        let pattern = self.members.get(&id).and_then(|member| member.pattern.as_ref());
        if pattern.is_some_and(Pattern::take_news) {
            self.catalog_version = None;
            self.count_patterns();
        }
        self.refresh(catalog);
        self.reconcile(now, &id, owned.as_ref());
        let member = self.members.get(&id).ok_or_else(|| unknown_member(&id))?;
        let is_news = is_full || member.assigned != before;
        Ok(Told { member_id: id, epoch: member.epoch, assignment: is_news.then(|| member.assigned.clone()) })
    }

    /// Whether the member is known under that id, name and epoch.
    fn check(&self, beat: &Beat) -> Result<(), MemberRefused> {
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
    fn take_in(&mut self, now: Instant, beat: &Beat) -> Result<(), MemberRefused> {
        let id = &beat.member_id;
        self.touched.insert(id.clone());
        self.take_place(id, beat.instance.as_ref());
        if let Some(member) = self.members.get_mut(id) {
            // It begins anew, and has nothing: what it had may go to others.
            member.assigned.clear();
            member.revoking.clear();
            member.revoke_deadline = None;
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
            self.touched.extend([holder, id.to_owned()]);
            self.members.insert(id.to_owned(), member);
            self.instances.extend(instance.map(|instance| (instance.clone(), id.to_owned())));
        }
    }

    fn add(&mut self, id: &str, member: Member) {
        self.instances.extend(member.instance.clone().map(|instance| (instance, id.to_owned())));
        self.members.insert(id.to_owned(), member);
        self.touched.insert(id.to_owned());
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
        let is_same = beat.client_id == member.client_id
            && beat.client_host == member.client_host
            && beat.rebalance.is_none_or(|rebalance| rebalance == member.rebalance)
            && beat.rack.is_none()
            && beat.topics.is_none()
            && beat.pattern.is_none()
            && assignor.is_none();
        if !is_same {
            self.touched.insert(id.to_owned());
        }
        member.client_id = beat.client_id;
        member.client_host = beat.client_host;
        member.rebalance = beat.rebalance.unwrap_or(member.rebalance);
        member.rack = beat.rack.or(member.rack.take());
        let mut has_changed = false;
        if let Some(topics) = beat.topics {
            has_changed |= member.subscribe(topics);
        }
        let has_pattern = beat.pattern.is_some();
        if beat.pattern.is_some() {
            has_changed |= pattern.as_ref().map(Pattern::key) != member.pattern.as_ref().map(Pattern::key);
            member.pattern = pattern;
        }
        if assignor.is_some() {
            has_changed |= member.assignor != assignor;
            member.assignor = assignor;
        }
        if has_pattern {
            self.count_patterns();
        }
        has_changed
    }

    /// A member leaves; a static one may say that it will be back, and keeps what it has.
    fn leave(&mut self, now: Instant, beat: &Beat) -> Result<Told, MemberRefused> {
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
        self.touched.insert(id.clone());
        match beat.epoch {
            LEAVING_FOR_NOW if member.instance.is_some() => {
                member.epoch = LEAVING_FOR_NOW;
                member.deadline = now + self.limits.session;
                // It has closed, and reads nothing: what it was to give up is free.
                member.revoking.clear();
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
        self.touched.insert(id.to_owned());
        if member.pattern.is_some() {
            self.count_patterns();
        }
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
        let (_, wanted) = self.wanted(catalog);
        catalog.iter().filter(|(_, (id, _))| wanted.contains_key(id)).map(|(name, _)| name.clone()).collect()
    }

    /// Whether what a member says fits in, with so many bytes that its pattern was compiled to.
    fn has_room(&self, beat: &Beat, compiled: usize) -> bool {
        let is_shared =
            beat.pattern.as_ref().is_some_and(|text| self.pattern(text, &beat.principal).is_some());
        let compiled = if is_shared { 0 } else { compiled };
        self.bytes() - self.replaced_by(beat) + beat.bytes() + compiled <= self.limits.bytes_max
    }

    /// Bytes that are given up for what a member says now.
    pub fn replaced_by(&self, beat: &Beat) -> usize {
        let holder = beat.instance.as_ref().and_then(|instance| self.instances.get(instance));
        let known = self.members.get_key_value(&beat.member_id);
        let known = known.or_else(|| holder.and_then(|holder| self.members.get_key_value(holder)));
        known.map_or(0, |(id, member)| {
            let text = |text: Option<&String>| text.map_or(0, String::len);
            let pattern = member.pattern.as_ref().map(|pattern| &pattern.text);
            let who = if beat.epoch == JOINING { member.who_bytes(id) } else { 0 };
            let topics = if beat.topics.is_some() { member.topics_bytes } else { 0 };
            let pattern = if beat.pattern.is_some() { text(pattern) } else { 0 };
            who + topics + pattern + if beat.rack.is_some() { text(member.rack.as_ref()) } else { 0 }
        })
    }

    /// The pattern that a member says, if any member has it on the same principal's behalf, or that it said before.
    pub fn pattern_of(&self, beat: &Beat) -> Option<Pattern> {
        match (&beat.pattern, beat.text()) {
            (_, Some(text)) => self.pattern(text, &beat.principal),
            (Some(_), None) => None,
            (None, None) => {
                let pattern = self.members.get(&beat.member_id)?.pattern.as_ref();
                pattern.filter(|pattern| pattern.principal == beat.principal).cloned()
            }
        }
    }

    /// The pattern of that text on that principal's behalf, if any member has it.
    fn pattern(&self, text: &str, principal: &str) -> Option<Pattern> {
        let mut patterns = self.members.values().filter_map(|member| member.pattern.as_ref());
        patterns.find(|pattern| pattern.key() == (text, principal)).cloned()
    }

    /// Counts what the patterns were compiled to and have found, each once.
    fn count_patterns(&mut self) {
        let patterns = self.members.values().filter_map(|member| member.pattern.as_ref());
        let each: BTreeMap<_, _> = patterns.map(|pattern| (pattern.key(), pattern)).collect();
        self.compiled_bytes = each.values().map(|pattern| pattern.compiled_bytes()).sum();
    }
}

fn unknown_member(id: &str) -> MemberRefused {
    (ErrorCode::UnknownMemberId, format!("there is no member {id}"))
}

fn unknown_assignor(name: &str) -> MemberRefused {
    (ErrorCode::UnsupportedAssignor, format!("there is no assignor {name}: uniform, range"))
}

/// Whether `all` has every partition of `some`.
fn contains(all: &Partitions, some: &Partitions) -> bool {
    some.iter().all(|(topic, partitions)| {
        partitions.is_empty() || all.get(topic).is_some_and(|all| partitions.is_subset(all))
    })
}
