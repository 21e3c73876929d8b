//! All groups of the node: who waits for an answer, what time it is, and what is kept.
//!
//! One lock holds every group; a step of one takes microseconds, and nothing is awaited under it. Each group has at
//! most one alarm, never later than what the group has to do next: a heartbeat only moves that away, and leaves the
//! alarm.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::channel::oneshot;
use parking_lot::Mutex;
use tailwater_env::{Complaints, Env, HashMap, Instant, Task};
use tailwater_log::Log;
use tailwater_meta::{Meta, MetaError};
use tokio::sync::Notify;

use super::classic::{self, ClassicGroup, ClassicOutput, ClassicPhase, Join, Sync, Ticket};
use super::config::GroupsConfig;
use super::consumer::{Beat, Catalog, ConsumerGroup, JOINING, MemberRefused, Told, Topics};
use super::group::Group;
use super::members::{KeptMembers, MemberChanges, member_key};
use super::offsets::{
    GroupChanges, GroupOffsets, KeptGroup, NotKept, OffsetBytes, OffsetChange, Offsets, StoredGroups,
};
use super::records::{Committed, GROUPS, GroupRecord, GroupRecordKind};
use super::retention;
use crate::errors::ErrorCode;
use crate::messages::membership::{JoinGroupResponse, SyncGroupResponse};
use crate::runtime::RuntimeConfigs;

/// Longest name of a group, in bytes: it is a part of metadata's keys.
pub(crate) const GROUP_ID_BYTES_MAX: usize = 512;

/// How old the list of topics may be by which a member is told what it gets.
const CATALOG_AGE_MAX: Duration = Duration::from_millis(500);

/// Who commits, or asks for offsets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Committer {
    pub member_id: String,
    pub instance: Option<String>,
    /// A member's generation; negative for whoever is in no group.
    pub generation: i32,
}

/// The coordinator of all groups.
pub(crate) struct Coordinator {
    pub(super) shared: Arc<CoordinatorShared>,
    /// Whether a classic group had members before this start, who have to join again.
    had_members: bool,
    _tasks: [Task; 2],
}

/// What its tasks share.
pub(super) struct CoordinatorShared {
    pub env: Env,
    pub log: Log,
    pub config: GroupsConfig,
    classic_limits: Arc<classic::Limits>,
    /// What groups of KIP-848 are bounded by, and when their members are out.
    configs: Arc<RuntimeConfigs>,
    /// The topics that there were a moment ago.
    catalog: Mutex<Listed>,
    pub offsets: Offsets,
    table: Mutex<GroupTable>,
    /// Wakes the task that ticks: there is an earlier alarm.
    earlier: Notify,
    complaints: Complaints,
}

/// The topics that there were when they were looked at.
struct Listed {
    at: Instant,
    /// [`Log::streams_changes`] before that.
    changes: u64,
    catalog: Arc<Catalog>,
}

/// What all coordinators of a node have together: what is bounded is the node's, however many shares it has.
#[derive(Default)]
pub(crate) struct GroupsTotal {
    groups: AtomicUsize,
    /// What members of all groups brought, in bytes.
    bytes: AtomicUsize,
    offset_bytes: OffsetBytes,
}

#[derive(Default)]
struct GroupTable {
    groups: BTreeMap<Arc<str>, GroupEntry>,
    alarms: BTreeSet<(Instant, Arc<str>)>,
    waiting: HashMap<u64, Waiter>,
    /// What members of its groups brought, in bytes.
    bytes: usize,
    /// With those of the node's other coordinators.
    total: Arc<GroupsTotal>,
    tickets: u64,
}

struct GroupEntry {
    group: Group,
    /// Bytes of what its members brought.
    bytes: usize,
    alarm: Option<Instant>,
    /// Since when nobody is in it, wall time in ms.
    empty_since_ms: Option<i64>,
    /// What metadata has of it, or is about to.
    kept: Option<GroupRecord>,
    kept_members: KeptMembers,
    /// What of that came last, as [`Offsets::is_kept`] counts.
    kept_at: u64,
}

/// Is answered when what a group was at some time is durable; `None` if it is.
type GroupKept = Option<tokio::sync::oneshot::Receiver<Result<(), NotKept>>>;

enum Waiter {
    Join(oneshot::Sender<JoinGroupResponse>),
    Sync(oneshot::Sender<SyncGroupResponse>),
}

/// A group as its administrators see it.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub group: Group,
    pub empty_since_ms: Option<i64>,
}

/// A group in short.
#[derive(Clone, Debug)]
pub(crate) struct CoordinatorSummary {
    pub name: Arc<str>,
    pub kind: GroupRecordKind,
    /// Kafka's name of it.
    pub state: &'static str,
    /// Empty if it never had members.
    pub protocol_type: String,
}

impl Coordinator {
    /// Goes on with what is `stored` of those groups, and their offsets, that belong to it; `meta` is where it keeps
    /// what they become. It has a part of the node's `total`.
    pub fn open(
        env: &Env,
        configs: Arc<RuntimeConfigs>,
        log: &Log,
        (meta, stored): (Arc<dyn Meta>, &StoredGroups),
        total: Arc<GroupsTotal>,
        belongs: &dyn Fn(&str) -> bool,
    ) -> Self {
        let config = configs.now().groups.clone();
        let room = (Arc::clone(&total.offset_bytes), config.offsets_bytes_max);
        let (offsets, kept) = Offsets::open(env, meta, room, stored, belongs);
        let classic_limits = Arc::new(config.classic_limits());
        let mut table = GroupTable::of(total);
        let now_ms = env.wall_ms();
        let changes = log.streams_changes();
        let catalog = Arc::new(Catalog::default().next(topics_of(log)));
        for name in offsets.groups() {
            let group = Group::Classic(ClassicGroup::new(Arc::clone(&classic_limits), 0, None));
            table.add(name, GroupEntry::new(group, Some(now_ms)));
        }
        let mut had_members = false;
        for (name, KeptGroup { record, members }) in kept {
            had_members |= record.kind == GroupRecordKind::Classic && record.empty_since_ms.is_none();
            let mut changes = MemberChanges::new();
            let (mut kept_members, members) = KeptMembers::restore(&members, &mut changes);
            let group = match record.kind {
                GroupRecordKind::Classic => {
                    // Whoever was in it has to join again.
                    kept_members.forget_all(&mut changes);
                    let limits = Arc::clone(&classic_limits);
                    let protocol_type = Some(record.protocol_type.clone()).filter(|name| !name.is_empty());
                    Group::Classic(ClassicGroup::new(limits, record.generation, protocol_type))
                }
                GroupRecordKind::Consumer => {
                    let (limits, epochs) =
                        (configs.group_limits(&name), (record.generation, record.target_epoch));
                    Group::Consumer(ConsumerGroup::restore(env.now(), limits, epochs, members, &catalog))
                }
            };
            if !changes.is_empty() {
                let parts = changes.len();
                tracing::warn!(group = %name, parts, "what is kept of some members is removed: it is no record");
                offsets.keep(&name, keyed(&name, changes));
            }
            let empty_since_ms = (!group.has_members()).then(|| record.empty_since_ms.unwrap_or(now_ms));
            let bytes = group.bytes() + kept_members.bytes();
            let alarm = group.next_deadline();
            table.alarms.extend(alarm.map(|alarm| (alarm, Arc::clone(&name))));
            let entry = GroupEntry {
                bytes,
                alarm,
                kept: Some(record),
                kept_members,
                ..GroupEntry::new(group, empty_since_ms)
            };
            table.add(name, entry);
        }
        let shared = Arc::new(CoordinatorShared {
            env: env.clone(),
            log: log.clone(),
            config,
            classic_limits,
            configs,
            catalog: Mutex::new(Listed { at: Instant::default(), changes, catalog }),
            offsets,
            table: Mutex::new(table),
            earlier: Notify::new(),
            complaints: Complaints::default(),
        });
        let tasks = [
            env.spawn("kafka-groups", tick(Arc::clone(&shared))),
            env.spawn("kafka-offsets-retention", retention::run(Arc::clone(&shared))),
        ];
        Self { shared, had_members, _tasks: tasks }
    }

    /// Whether there are groups whose members were here before this start, and have to join again.
    pub fn had_members(&self) -> bool {
        self.had_members
    }

    /// What was committed.
    pub fn offsets(&self) -> &Offsets {
        &self.shared.offsets
    }

    /// Another node coordinates the groups from here on: whoever waits is told to look for it.
    pub fn retire(&self) {
        self.shared.table.lock().waiting.clear();
    }

    /// A member joins. Dropping this gives up the answer, not the membership.
    pub async fn join(&self, name: &str, join: Join) -> JoinGroupResponse {
        let refused = |error: ErrorCode, member_id| JoinGroupResponse {
            error_code: error.number(),
            member_id,
            ..Default::default()
        };
        let member_id = join.member_id.clone();
        if let Err(error) = check_name(name).and_then(|()| join.check()) {
            return refused(error, member_id);
        }
        let answer = {
            let mut table = self.shared.table.lock();
            if let Err(error) =
                self.shared.check_room(&table, name, join.bytes(), |group| group.replaced_by_join(&join))
            {
                return refused(error, member_id);
            }
            match table.groups.get_mut(name) {
                None if !member_id.is_empty() => return refused(ErrorCode::UnknownMemberId, member_id),
                None => {
                    if let Err(error) = self.shared.add_group(&mut table, name) {
                        return refused(error, member_id);
                    }
                }
                Some(entry) => self.shared.make_classic_if_unused(entry),
            }
            if matches!(table.groups.get(name), Some(GroupEntry { group: Group::Consumer(_), .. })) {
                let catalog = self.shared.catalog(false);
                let told =
                    self.shared.step_consumer(&mut table, name, |group, now| group.join(now, join, &catalog));
                let told = told.unwrap_or_else(|| refused(ErrorCode::UnknownMemberId, member_id.clone()));
                Err((told, self.shared.kept(&table, name)))
            } else {
                let (sender, answer) = oneshot::channel();
                let ticket = table.ticket(Waiter::Join(sender));
                let join = |group: &mut ClassicGroup, now, out: &mut _| group.join(now, join, ticket, out);
                self.shared.step_classic(&mut table, name, join);
                Ok(answer)
            }
        };
        let told = match answer {
            Ok(answer) => answer.await.map_err(|_| ErrorCode::CoordinatorNotAvailable),
            Err((told, kept)) => is_kept(kept).await.map(|()| told),
        };
        told.unwrap_or_else(|error| refused(error, member_id))
    }

    /// A member asks for its assignment. Dropping this gives up the answer only.
    pub async fn sync(&self, name: &str, sync: Sync) -> SyncGroupResponse {
        let refused =
            |error: ErrorCode| SyncGroupResponse { error_code: error.number(), ..Default::default() };
        if let Err(error) = check_name(name) {
            return refused(error);
        }
        let answer = {
            let mut table = self.shared.table.lock();
            match table.groups.get(name).map(|entry| &entry.group) {
                None => return refused(ErrorCode::UnknownMemberId),
                Some(Group::Classic(_)) => {
                    if self.shared.check_room(&table, name, sync.bytes(), Group::replaced_by_sync).is_err() {
                        // As a broker answers that can't store what is assigned.
                        return refused(ErrorCode::UnknownServerError);
                    }
                    let (sender, answer) = oneshot::channel();
                    let ticket = table.ticket(Waiter::Sync(sender));
                    let sync =
                        |group: &mut ClassicGroup, now, out: &mut _| group.sync(now, sync, ticket, out);
                    self.shared.step_classic(&mut table, name, sync);
                    Ok(answer)
                }
                Some(Group::Consumer(_)) => {
                    let catalog = self.shared.catalog(false);
                    let told = self
                        .shared
                        .step_consumer(&mut table, name, |group, now| group.sync(now, &sync, &catalog));
                    let told = told.unwrap_or_else(|| refused(ErrorCode::UnknownMemberId));
                    Err((told, self.shared.kept(&table, name)))
                }
            }
        };
        let told = match answer {
            Ok(answer) => answer.await.map_err(|_| ErrorCode::CoordinatorNotAvailable),
            Err((told, kept)) => is_kept(kept).await.map(|()| told),
        };
        told.unwrap_or_else(refused)
    }

    /// A member says that it lives.
    pub fn heartbeat(
        &self,
        name: &str,
        member_id: &str,
        instance: Option<&str>,
        generation: i32,
    ) -> Result<(), ErrorCode> {
        check_name(name)?;
        let mut table = self.shared.table.lock();
        match table.groups.get_mut(name).map(|entry| &mut entry.group) {
            Some(Group::Classic(group)) => {
                return group.heartbeat(self.shared.env.now(), member_id, instance, generation);
            }
            None => return Err(ErrorCode::UnknownMemberId),
            Some(Group::Consumer(_)) => {}
        }
        let catalog = self.shared.catalog(false);
        let heard = self.shared.step_consumer(&mut table, name, |group, now| {
            group.classic_heartbeat(now, member_id, instance, generation, &catalog)
        });
        heard.unwrap_or(Err(ErrorCode::UnknownMemberId))
    }

    /// Waits until what a group is by now is durable, where it is kept over a restart.
    ///
    /// # Errors
    /// It could not be written for now.
    pub async fn settled(&self, name: &str) -> Result<(), ErrorCode> {
        let kept = self.shared.kept(&self.shared.table.lock(), name);
        is_kept(kept).await
    }

    /// A member leaves, which is durable when [`Coordinator::settled`] answers.
    pub fn leave(&self, name: &str, member_id: &str, instance: Option<&str>) -> Result<(), ErrorCode> {
        check_name(name)?;
        let mut table = self.shared.table.lock();
        let left = self.shared.step(&mut table, name, |group, now, out| match group {
            Group::Classic(group) => group.leave(now, member_id, instance, out),
            Group::Consumer(group) => group.classic_leave(member_id, instance),
        });
        left.unwrap_or(Err(ErrorCode::UnknownMemberId))
    }

    /// Whether `committer` may commit; a member that does is heard of.
    pub fn check_commit(&self, name: &str, committer: &Committer) -> Result<(), ErrorCode> {
        // Clients from before there were groups with names commit for one without.
        check_length(name)?;
        let now = self.shared.env.now();
        let mut table = self.shared.table.lock();
        let Some(entry) = table.groups.get_mut(name) else {
            if committer.generation >= 0 {
                return Err(ErrorCode::GroupIdNotFound);
            }
            // It is there when something is kept.
            return self.shared.check_place(&table, name);
        };
        let Committer { member_id, instance, generation } = committer;
        match &mut entry.group {
            Group::Classic(group) => group.check_commit(now, member_id, instance.as_deref(), *generation),
            Group::Consumer(group) => group.check_committer(member_id, *generation),
        }
    }

    /// Whether a member may ask for its group's offsets: whoever gives no id may.
    pub fn check_fetch(&self, name: &str, member_id: Option<&str>, epoch: i32) -> Result<(), ErrorCode> {
        let table = self.shared.table.lock();
        match (table.groups.get(name).map(|entry| &entry.group), member_id) {
            (Some(Group::Consumer(group)), Some(member_id)) => group.check_committer(member_id, epoch),
            _ => Ok(()),
        }
    }

    /// A member of a group of KIP-848 says that it lives, and what it wants and has; it is told what it gets, and how
    /// often it is to do so. Of topics that match its pattern `may_know` says whether it may know of them. What it is
    /// told is durable.
    pub async fn beat(
        &self,
        name: &str,
        beat: Beat,
        may_know: impl Fn(&str) -> bool,
    ) -> Result<(Told, Duration), MemberRefused> {
        let (told, kept) = self.step_beat(name, beat, may_know)?;
        let kept = is_kept(kept).await;
        kept.map_err(|error| (error, "what the group is by now can't be kept at the moment".to_owned()))?;
        Ok(told)
    }

    /// The step of a heartbeat; it may be answered when what it made of the group is kept.
    fn step_beat(
        &self,
        name: &str,
        mut beat: Beat,
        may_know: impl Fn(&str) -> bool,
    ) -> Result<((Told, Duration), GroupKept), MemberRefused> {
        check_name(name).map_err(|error| (error, "a group has a name of 1 to 512 bytes".to_owned()))?;
        beat.check()?;
        // Topics are listed before the lock is taken, and taken from the list once it is: no step sees older ones than
        // the last.
        let catalog = self.shared.catalog(beat.epoch == JOINING || beat.topics.is_some());
        let known = match self.shared.table.lock().groups.get(name).map(|entry| &entry.group) {
            Some(Group::Consumer(group)) => group.pattern_of(&beat),
            _ => None,
        };
        beat.look_up(known, self.shared.env.now(), &catalog, may_know);
        let mut table = self.shared.table.lock();
        let catalog = self.shared.catalog(false);
        let beat_epoch = beat.epoch;
        let unknown = || (ErrorCode::GroupIdNotFound, format!("there is no consumer group {name}"));
        // A group may have become a classic one without a member, or have lost its own with what was kept of it: such a
        // member is to join again. Its client would give up on the other error.
        let lost = || match beat_epoch > JOINING {
            true => {
                (ErrorCode::UnknownMemberId, format!("{name} does not know the member: it has to join again"))
            }
            false => unknown(),
        };
        let room = self.shared.check_room(&table, name, beat.bytes(), |group| group.replaced_by_beat(&beat));
        room.map_err(|error| (error, "groups have no more room for what members say".to_owned()))?;
        match table.groups.get_mut(name) {
            None if beat.epoch != JOINING => return Err(lost()),
            None => {
                let added = self.shared.add_group(&mut table, name);
                added.map_err(|error| (error, "there are too many groups".to_owned()))?;
            }
            Some(_) => {}
        }
        let limits = &self.shared.configs.group_limits(name);
        let told = self.shared.step(&mut table, name, |group, now, out| match group {
            Group::Consumer(group) => {
                // They may have been set since its members were last heard of.
                group.limits = Arc::clone(limits);
                group.heartbeat(now, beat, &catalog)
            }
            // Clients come again then; there being no such group they take for the end.
            Group::Classic(classic) if classic.phase == ClassicPhase::Dead => {
                Err((ErrorCode::CoordinatorNotAvailable, "the group is being deleted".to_owned()))
            }
            Group::Classic(classic) if beat.epoch != JOINING => {
                let is_of_consumers = classic.is_unused() || classic.is_of_consumers();
                Err(if is_of_consumers { lost() } else { unknown() })
            }
            Group::Classic(classic) => {
                // Whoever is in it stays, and speaks the classic protocol for as long as it likes.
                let moved = match classic.phase == ClassicPhase::Empty {
                    true => Some(ConsumerGroup::new(Arc::clone(limits), classic.generation)),
                    false => ConsumerGroup::of_classic(now, Arc::clone(limits), classic, &catalog),
                };
                let mut moved = moved.ok_or_else(unknown)?;
                let told = moved.heartbeat(now, beat, &catalog)?;
                classic.give_up_waiting(out);
                *group = Group::Consumer(moved);
                Ok(told)
            }
        });
        let told = told.unwrap_or_else(|| Err(unknown()))?;
        Ok(((told, limits.heartbeat), self.shared.kept(&table, name)))
    }

    /// Keeps offsets that were checked; they are durable when this is answered.
    pub async fn commit(&self, name: &str, offsets: GroupOffsets) -> Result<(), ErrorCode> {
        if offsets.is_empty() {
            return Ok(());
        }
        self.change_offsets(name, OffsetChange::Commit(offsets)).await
    }

    async fn change_offsets(&self, name: &str, change: OffsetChange) -> Result<(), ErrorCode> {
        let name: Arc<str> = name.into();
        self.shared.offsets.change(Arc::clone(&name), change).await.map_err(not_kept)?;
        let mut table = self.shared.table.lock();
        if !table.groups.contains_key(&name) && self.shared.offsets.has(&name) {
            // It is the first commit, or it was deleted meanwhile; with offsets it is there.
            self.shared.insert_group(&mut table, &name);
        }
        Ok(())
    }

    /// Keeps what a group has committed in another cluster, or deleted there, where that is later than what it has
    /// committed here. One with members here goes by its own. Dropping this gives up the answer only, of deletions.
    pub async fn follow(&self, name: &str, mut offsets: GroupOffsets) -> Result<(), ErrorCode> {
        check_length(name)?;
        offsets.retain(|partition, theirs| {
            let ours = self.shared.offsets.newest(name, *partition);
            ours.is_none_or(|ours| ours.committed_ms < theirs.committed_ms)
        });
        if offsets.is_empty() {
            return Ok(());
        }
        let dead = {
            let mut table = self.shared.table.lock();
            match table.groups.get_mut(name) {
                Some(entry) if entry.group.has_members() || entry.group.is_dead() => return Ok(()),
                // Nobody is let in meanwhile: who joins goes by the offsets that it finds.
                Some(entry) if offsets.values().any(Committed::is_deleted) => Some(entry.group.delete()?),
                Some(_) => None,
                // What is deleted makes no group.
                None if offsets.values().all(Committed::is_deleted) => None,
                None => self.shared.check_place(&table, name).map(|()| None)?,
            }
        };
        let Some(alive) = dead else {
            return self.change_offsets(name, OffsetChange::Follow(offsets)).await;
        };
        let (shared, name) = (Arc::clone(&self.shared), Arc::<str>::from(name));
        self.to_the_end(async move {
            let followed = shared.offsets.change(Arc::clone(&name), OffsetChange::Follow(offsets)).await;
            // With the last of its offsets the group goes.
            let forgotten = shared.forget(&name, alive, OffsetChange::DeleteUnused).await;
            followed.map_err(not_kept).and(forgotten)
        })
        .await
    }

    /// Deletes a group and what it committed. Dropping this gives up the answer only.
    pub async fn delete(&self, name: &str) -> Result<(), ErrorCode> {
        let alive = {
            let mut table = self.shared.table.lock();
            let entry = table.groups.get_mut(name).ok_or(ErrorCode::GroupIdNotFound)?;
            entry.group.delete()?
        };
        let (shared, name) = (Arc::clone(&self.shared), name.to_owned());
        self.to_the_end(async move { shared.forget(&name, alive, OffsetChange::Delete).await }).await
    }

    /// Does what a group is dead for. Nobody is let into it, so whoever asked may go, but this has to end.
    async fn to_the_end(
        &self,
        work: impl Future<Output = Result<(), ErrorCode>> + Send + 'static,
    ) -> Result<(), ErrorCode> {
        let (reply, done) = oneshot::channel();
        let task = async move {
            let _ = reply.send(work.await);
        };
        self.shared.env.spawn("kafka-group-delete", task).detach();
        done.await.unwrap_or(Err(ErrorCode::CoordinatorNotAvailable))
    }

    /// The topics that members of a group read, whose offsets nobody may delete.
    pub fn subscribed(&self, name: &str) -> Result<BTreeSet<String>, ErrorCode> {
        let snapshot = self.group(name).ok_or(ErrorCode::GroupIdNotFound)?;
        if !snapshot.group.has_members() {
            return Ok(BTreeSet::new());
        }
        snapshot.group.subscribed_topics(&self.shared.catalog(true)).ok_or(ErrorCode::NonEmptyGroup)
    }

    /// Deletes what a group committed, where it is still that.
    pub async fn forget_offsets(&self, name: &str, offsets: GroupOffsets) -> Result<(), ErrorCode> {
        if offsets.is_empty() {
            return Ok(());
        }
        let done = self.shared.offsets.change(name.into(), OffsetChange::DeleteOffsets(offsets)).await;
        done.map_err(|_| ErrorCode::CoordinatorNotAvailable)
    }

    /// A group as it is; `None` if there is none, or it is being deleted.
    pub fn group(&self, name: &str) -> Option<Snapshot> {
        self.shared.group(name)
    }

    /// The names of all groups, in order.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.shared.names()
    }

    /// Whether there is a group.
    pub fn has_any(&self) -> bool {
        self.shared.table.lock().groups.values().any(|entry| !entry.group.is_dead())
    }

    /// All groups in short, by name: nothing of their members is copied.
    pub fn summaries(&self) -> Vec<CoordinatorSummary> {
        let table = self.shared.table.lock();
        let living = table.groups.iter().filter(|(_, entry)| !entry.group.is_dead());
        let summary = |(name, entry): (&Arc<str>, &GroupEntry)| CoordinatorSummary {
            name: Arc::clone(name),
            kind: entry.group.kind(),
            state: entry.group.state(),
            protocol_type: entry.group.protocol_type().unwrap_or_default().to_owned(),
        };
        living.map(summary).collect()
    }
}

impl GroupEntry {
    fn new(group: Group, empty_since_ms: Option<i64>) -> Self {
        let kept_members = KeptMembers::default();
        Self { group, bytes: 0, alarm: None, empty_since_ms, kept: None, kept_members, kept_at: 0 }
    }

    fn snapshot(&self) -> Option<Snapshot> {
        (!self.group.is_dead())
            .then(|| Snapshot { group: self.group.clone(), empty_since_ms: self.empty_since_ms })
    }
}

impl GroupTable {
    fn of(total: Arc<GroupsTotal>) -> Self {
        let mut table = Self::default();
        table.total = total;
        table
    }

    fn ticket(&mut self, waiter: Waiter) -> Ticket {
        self.tickets += 1;
        self.waiting.insert(self.tickets, waiter);
        Ticket(self.tickets)
    }

    /// Has a group, with what is to be counted for it; in place of one of the name.
    fn add(&mut self, name: Arc<str>, entry: GroupEntry) {
        self.remove(&name);
        self.total.groups.fetch_add(1, Ordering::Relaxed);
        self.count_bytes(0, entry.bytes);
        self.groups.insert(name, entry);
    }

    fn count_bytes(&mut self, before: usize, now: usize) {
        self.bytes = self.bytes + now - before;
        self.total.bytes.fetch_add(now, Ordering::Relaxed);
        self.total.bytes.fetch_sub(before, Ordering::Relaxed);
    }

    /// Takes a group out, with what is counted for it.
    fn remove(&mut self, name: &str) {
        let Some((name, entry)) = self.groups.remove_entry(name) else { return };
        self.total.groups.fetch_sub(1, Ordering::Relaxed);
        self.count_bytes(entry.bytes, 0);
        if let Some(alarm) = entry.alarm {
            self.alarms.remove(&(alarm, name));
        }
    }

    fn answer(&mut self, out: Vec<ClassicOutput>) {
        for output in out {
            let (ClassicOutput::Join(ticket, _) | ClassicOutput::Sync(ticket, _)) = &output;
            // Whoever waited may have gone.
            match (self.waiting.remove(&ticket.0), output) {
                (Some(Waiter::Join(waiter)), ClassicOutput::Join(_, answer)) => _ = waiter.send(answer),
                (Some(Waiter::Sync(waiter)), ClassicOutput::Sync(_, answer)) => _ = waiter.send(answer),
                _ => debug_assert!(false, "every ticket is answered once, with what it is for"),
            }
        }
    }
}

impl Drop for GroupTable {
    fn drop(&mut self) {
        self.total.groups.fetch_sub(self.groups.len(), Ordering::Relaxed);
        self.total.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl CoordinatorShared {
    fn add_group(&self, table: &mut GroupTable, name: &str) -> Result<(), ErrorCode> {
        self.check_place(table, name)?;
        self.insert_group(table, name);
        Ok(())
    }

    /// Whether there is a place for one more group. Those who ask several coordinators at the same time may get the
    /// last one each.
    fn check_place(&self, table: &GroupTable, name: &str) -> Result<(), ErrorCode> {
        if table.total.groups.load(Ordering::Relaxed) >= self.config.groups_max {
            if let Some(left_out) = self.complaints.admit(self.env.now(), "too many groups") {
                let max = self.config.groups_max;
                tracing::warn!(group = name, max, left_out, "refused: [kafka.groups] groups_max are there");
            }
            return Err(ErrorCode::GroupMaxSizeReached);
        }
        Ok(())
    }

    fn insert_group(&self, table: &mut GroupTable, name: &str) {
        let group = ClassicGroup::new(Arc::clone(&self.classic_limits), 0, None);
        table.add(name.into(), GroupEntry::new(Group::Classic(group), Some(self.env.wall_ms())));
    }

    /// Whether so many bytes may be kept of what a member brings, in place of those that it `replaces`: who brings no
    /// more than it has is in, however full it is.
    fn check_room(
        &self,
        table: &GroupTable,
        name: &str,
        bytes: usize,
        replaces: impl Fn(&Group) -> usize,
    ) -> Result<(), ErrorCode> {
        let replaced = table.groups.get(name).map_or(0, |entry| replaces(&entry.group));
        let more = bytes.saturating_sub(replaced);
        let taken = table.total.bytes.load(Ordering::Relaxed);
        if more == 0 || taken + more <= self.config.groups_bytes_max {
            return Ok(());
        }
        if let Some(left_out) = self.complaints.admit(self.env.now(), "too much of groups") {
            let max = self.config.groups_bytes_max;
            tracing::warn!(max, left_out, "refused: [kafka.groups] groups_bytes_max are kept");
        }
        Err(ErrorCode::GroupMaxSizeReached)
    }

    /// Has a group that nobody is in be one of the classic protocol.
    fn make_classic_if_unused(&self, entry: &mut GroupEntry) {
        if let Group::Consumer(group) = &entry.group
            && entry.group.is_unused()
        {
            let group = ClassicGroup::new(Arc::clone(&self.classic_limits), group.epoch, None);
            entry.group = Group::Classic(group);
        }
    }

    /// The topics that there are; up to a moment ago, unless `fresh`. They are listed when they have changed: they may
    /// be tens of thousands, and every group waits for that.
    pub fn catalog(&self, fresh: bool) -> Arc<Catalog> {
        let mut listed = self.catalog.lock();
        let now = self.env.now();
        if fresh || now.since(listed.at) >= CATALOG_AGE_MAX {
            let changes = self.log.streams_changes();
            if changes != listed.changes {
                listed.catalog = Arc::new(listed.catalog.next(topics_of(&self.log)));
            }
            (listed.at, listed.changes) = (now, changes);
        }
        Arc::clone(&listed.catalog)
    }

    fn step_classic<T>(
        &self,
        table: &mut GroupTable,
        name: &str,
        step: impl FnOnce(&mut ClassicGroup, Instant, &mut Vec<ClassicOutput>) -> T,
    ) -> Option<T> {
        let step = |group: &mut Group, now, out: &mut Vec<ClassicOutput>| match group {
            Group::Classic(group) => Some(step(group, now, out)),
            Group::Consumer(_) => None,
        };
        self.step(table, name, step).flatten()
    }

    /// One step of a group of KIP-848; `None` if it is none.
    fn step_consumer<T>(
        &self,
        table: &mut GroupTable,
        name: &str,
        step: impl FnOnce(&mut ConsumerGroup, Instant) -> T,
    ) -> Option<T> {
        let step = |group: &mut Group, now, _: &mut Vec<ClassicOutput>| match group {
            Group::Classic(_) => None,
            Group::Consumer(group) => Some(step(group, now)),
        };
        self.step(table, name, step).flatten()
    }

    /// One step of a group and what follows from it; `None` if there is no such group.
    fn step<T>(
        &self,
        table: &mut GroupTable,
        name: &str,
        step: impl FnOnce(&mut Group, Instant, &mut Vec<ClassicOutput>) -> T,
    ) -> Option<T> {
        let (known, _) = table.groups.get_key_value(name)?;
        let known = Arc::clone(known);
        let entry = table.groups.get_mut(name)?;
        let mut out = Vec::new();
        let before = entry.group.state();
        let now = self.env.now();
        let result = step(&mut entry.group, now, &mut out);
        if let Group::Consumer(group) = &entry.group
            && group.is_classic()
        {
            let (limits, catalog) = (Arc::clone(&self.classic_limits), self.catalog(false));
            entry.group = Group::Classic(group.to_classic(now, limits, &catalog, &mut out));
        }
        if entry.group.state() != before {
            let (state, generation) = (entry.group.state(), entry.group.generation());
            tracing::debug!(group = name, from = before, to = state, generation, "a group moved");
        }
        self.remember(&known, entry);
        let bytes = entry.group.bytes() + entry.kept_members.bytes();
        let before = std::mem::replace(&mut entry.bytes, bytes);
        let alarm = entry.group.next_deadline();
        if alarm != entry.alarm {
            if let Some(before) = entry.alarm {
                table.alarms.remove(&(before, Arc::clone(&known)));
            }
            if let Some(alarm) = alarm {
                let is_first = table.alarms.first().is_none_or(|(first, _)| alarm < *first);
                table.alarms.insert((alarm, Arc::clone(&known)));
                if is_first {
                    self.earlier.notify_one();
                }
            }
            entry.alarm = alarm;
        }
        let is_nobody_s = entry.group.generation() == 0 && entry.group.is_unused();
        table.count_bytes(before, bytes);
        if is_nobody_s && !self.offsets.has(name) {
            // Nobody ever was in it.
            table.remove(name);
        }
        table.answer(out);
        Some(result)
    }

    /// Is answered when what a group is by now is durable.
    fn kept(&self, table: &GroupTable, name: &str) -> GroupKept {
        let entry = table.groups.get(name)?;
        (!self.offsets.is_kept(entry.kept_at)).then(|| self.offsets.kept())
    }

    /// Keeps what is to be kept of a group, if that changed.
    fn remember(&self, name: &Arc<str>, entry: &mut GroupEntry) {
        if entry.group.is_dead() {
            // Behind its deletion it would be there again.
            return;
        }
        let mut members = MemberChanges::new();
        match &mut entry.group {
            // Those of a classic group are not kept.
            Group::Classic(_) => entry.kept_members.forget_all(&mut members),
            Group::Consumer(group) => {
                for id in group.take_touched() {
                    entry.kept_members.keep(&id, group.record_of(&id).as_ref(), &mut members);
                }
            }
        }
        let mut changes = keyed(name, members);
        let group = &entry.group;
        entry.empty_since_ms = match group.has_members() {
            false => entry.empty_since_ms.or_else(|| Some(self.env.wall_ms())),
            true => None,
        };
        if group.generation() == 0 {
            return;
        }
        let record = GroupRecord {
            kind: group.kind(),
            generation: group.generation(),
            empty_since_ms: entry.empty_since_ms,
            target_epoch: group.target_epoch(),
            protocol_type: group.protocol_type().unwrap_or_default().to_owned(),
        };
        if entry.kept.as_ref() != Some(&record) {
            changes.insert(format!("{GROUPS}{name}"), Some(record.encode().into()));
            entry.kept = Some(record);
        }
        if !changes.is_empty() {
            entry.kept_at = self.offsets.keep(name, changes);
        }
    }

    /// Forgets a group that is dead, as `change` says. If something is left of it, it is as it was, `alive`.
    async fn forget(&self, name: &str, alive: Group, change: OffsetChange) -> Result<(), ErrorCode> {
        let forgotten = self.offsets.change(name.into(), change).await;
        let mut table = self.table.lock();
        match table.groups.get_mut(name) {
            // Somebody who was let in before it died committed after that. Whoever commits later than this look finds
            // no group, and adds it.
            Some(entry) if forgotten.is_err() || self.offsets.has(name) => {
                // Nobody knows what is kept of it: the step keeps it anew.
                (entry.group, entry.kept) = (alive, None);
                self.step(&mut table, name, |_, _, _| ());
            }
            _ => table.remove(name),
        }
        forgotten.map_err(|_| ErrorCode::CoordinatorNotAvailable)
    }

    /// The names of all groups, in order.
    pub fn names(&self) -> Vec<Arc<str>> {
        let table = self.table.lock();
        let living = table.groups.iter().filter(|(_, entry)| !entry.group.is_dead());
        living.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// A group as it is; `None` if there is none, or it is being deleted.
    pub fn group(&self, name: &str) -> Option<Snapshot> {
        self.table.lock().groups.get(name).and_then(GroupEntry::snapshot)
    }

    /// Deletes a group that nobody is in and that has committed nothing, or nothing that is left.
    pub async fn sweep(&self, name: &Arc<str>) {
        let alive = {
            let mut table = self.table.lock();
            let Some(entry) = table.groups.get_mut(name) else { return };
            // That a deletion failed may have left it without a record.
            self.remember(name, entry);
            if !entry.group.is_unused() || self.offsets.has(name) {
                return;
            }
            let Ok(alive) = entry.group.delete() else { return };
            alive
        };
        let forgotten = self.forget(name, alive, OffsetChange::DeleteUnused).await;
        if forgotten.is_ok() && !self.table.lock().groups.contains_key(name) {
            tracing::info!(group = %name, "removed: nobody is in it, and its offsets are over");
        }
    }

    fn tick_due(&self) -> Option<Instant> {
        let mut table = self.table.lock();
        loop {
            let (alarm, name) = table.alarms.first().cloned()?;
            if alarm > self.env.now() {
                return Some(alarm);
            }
            table.alarms.remove(&(alarm, Arc::clone(&name)));
            if let Some(entry) = table.groups.get_mut(&name) {
                entry.alarm = None;
            }
            self.step(&mut table, &name, |group, now, out| group.tick(now, out));
        }
    }
}

async fn tick(shared: Arc<CoordinatorShared>) {
    loop {
        let next = shared.tick_due();
        let earlier = shared.earlier.notified();
        match next {
            None => earlier.await,
            Some(alarm) => {
                tokio::select! {
                    biased;
                    () = earlier => {}
                    () = shared.env.sleep_until(alarm) => {}
                }
            }
        }
    }
}

fn not_kept(error: NotKept) -> ErrorCode {
    match error {
        NotKept::Full => ErrorCode::InvalidCommitOffsetSize,
        NotKept::Meta(MetaError::TakenOver(_)) => ErrorCode::NotCoordinator,
        NotKept::Meta(_) => ErrorCode::CoordinatorNotAvailable,
    }
}

/// Waits until what a group was is durable.
async fn is_kept(kept: GroupKept) -> Result<(), ErrorCode> {
    let Some(kept) = kept else { return Ok(()) };
    kept.await.ok().and_then(Result::ok).ok_or(ErrorCode::CoordinatorNotAvailable)
}

/// Changes of a group's members by the keys of metadata.
fn keyed(name: &str, changes: MemberChanges) -> GroupChanges {
    changes.into_iter().map(|(part, value)| (member_key(part, name), value)).collect()
}

fn topics_of(log: &Log) -> Topics {
    let streams = log.list_streams().into_iter();
    streams.map(|stream| (stream.name, (stream.id, stream.config.shards))).collect()
}

/// Whether a group that has members may be called so.
pub(crate) fn check_name(name: &str) -> Result<(), ErrorCode> {
    if name.is_empty() { Err(ErrorCode::InvalidGroupId) } else { check_length(name) }
}

fn check_length(name: &str) -> Result<(), ErrorCode> {
    if name.len() > GROUP_ID_BYTES_MAX { Err(ErrorCode::InvalidGroupId) } else { Ok(()) }
}
