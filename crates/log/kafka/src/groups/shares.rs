//! Which node coordinates which groups, where several are active.
//!
//! Groups belong to [`SHARES`] shares, by their names. Each share has a record in metadata, which names its owner and
//! is changed by compare-and-set. Whatever the owner keeps of groups is committed on the condition that the record is
//! what its claim has written. So what a coordinator answers as kept was kept while it was the coordinator, and one
//! that was replaced, and does not know it, keeps nothing more.
//!
//! ```text
//! kafka/coordinator/NN    0  1  format   1
//!                         1  8  the number of its owner's log; 0 is nobody's
//! ```
//!
//! Where one node is active there is one share, of all groups, and no record.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;
use tailwater_env::Env;
use tailwater_log::{Log, MembersSeen, ShardMember, heir, is_going};
use tailwater_meta::{Expect, FromMeta, Lease, Meta, MetaError, Op, Versioned, Watch};

use super::coordinator::{Coordinator, CoordinatorSummary, GroupsTotal};
use super::offsets::StoredGroups;
use crate::errors::ErrorCode;
use crate::runtime::RuntimeConfigs;

/// Shares of several nodes. For ever: by their number a group's is known.
pub(crate) const SHARES: usize = 16;
const PREFIX: &str = "kafka/coordinator/";
const FORMAT: u8 = 1;

/// A share's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ShareRecord {
    owner: u64,
    /// Its version; 0 where there is none yet.
    version: u64,
}

/// A share as this node knows it.
#[derive(Default)]
struct GroupShare {
    record: ShareRecord,
    /// Its groups, while it is this node's.
    held: Option<Arc<Coordinator>>,
    /// A later version has written its record, which the log was told of.
    is_unknown: bool,
}

/// The coordinators of this node.
pub(crate) struct Coordinators {
    env: Env,
    log: Log,
    configs: Arc<RuntimeConfigs>,
    /// All groups', where one node is active.
    only: Option<Arc<Coordinator>>,
    shares: RwLock<Vec<GroupShare>>,
    /// What they have together.
    total: Arc<GroupsTotal>,
    /// Held by the one look at a time.
    looking: tokio::sync::Mutex<()>,
}

fn key_of(share: usize) -> String {
    format!("{PREFIX}{share:02}")
}

fn encode(owner: u64) -> Bytes {
    [&[FORMAT][..], &owner.to_be_bytes()].concat().into()
}

/// `None` for what a later version has written.
fn decode(found: &Versioned) -> Option<ShareRecord> {
    let owner = found.value.strip_prefix(&[FORMAT]).and_then(|owner| owner.try_into().ok());
    Some(ShareRecord { owner: owner.map(u64::from_be_bytes)?, version: found.version })
}

/// The share that a group belongs to.
fn share_of(group: &str) -> usize {
    // FNV-1a, whose bits are mixed: it needs no more than to be the same everywhere, for ever.
    let hash = group.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    ((hash ^ (hash >> 32)) % SHARES as u64) as usize
}

impl Coordinators {
    /// All groups of the one node; or none, before this one has claimed a share of several nodes'.
    pub async fn open(env: &Env, configs: Arc<RuntimeConfigs>, log: &Log) -> Result<Self, String> {
        let mut only = None;
        let mut shares = Vec::new();
        let total = Arc::<GroupsTotal>::default();
        if log.is_shared() {
            shares.resize_with(SHARES, GroupShare::default);
        } else {
            let stored = StoredGroups::read(&**log.meta()).await;
            let stored = stored.map_err(|error| format!("groups can't be read: {error}"))?;
            let (meta, total) = (Arc::clone(log.meta()), Arc::clone(&total));
            let configs = Arc::clone(&configs);
            only = Some(Arc::new(Coordinator::open(env, configs, log, (meta, &stored), total, &|_| true)));
        }
        let (env, log, shares) = (env.clone(), log.clone(), RwLock::new(shares));
        Ok(Self { env, log, configs, only, total, shares, looking: tokio::sync::Mutex::default() })
    }

    /// The coordinator of all groups, where one node is active.
    pub fn only(&self) -> Option<&Coordinator> {
        self.only.as_deref()
    }

    /// A group's coordinator.
    ///
    /// # Errors
    /// `NotCoordinator` where another node is, or nobody.
    pub fn of(&self, group: &str) -> Result<Arc<Coordinator>, ErrorCode> {
        if let Some(only) = &self.only {
            return Ok(Arc::clone(only));
        }
        let shares = self.shares.read();
        let held = shares.get(share_of(group)).and_then(|share| share.held.clone());
        held.ok_or(ErrorCode::NotCoordinator)
    }

    /// Those of all groups that this node coordinates.
    pub fn all(&self) -> Vec<Arc<Coordinator>> {
        let shares = self.shares.read();
        self.only.iter().cloned().chain(shares.iter().filter_map(|share| share.held.clone())).collect()
    }

    /// The number of the log whose node coordinates a group, as far as is known; `None` where one node is active.
    pub fn owner_of(&self, group: &str) -> Option<u64> {
        self.shares.read().get(share_of(group)).map(|share| share.record.owner)
    }

    /// The names of all groups of this node, in order.
    pub fn names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.all().iter().flat_map(|held| held.names()).collect();
        names.sort_unstable();
        names
    }

    /// Whether this node has a group.
    pub fn has_any(&self) -> bool {
        self.all().iter().any(|held| held.has_any())
    }

    /// All groups of this node in short, by name.
    pub fn summaries(&self) -> Vec<CoordinatorSummary> {
        let mut groups: Vec<_> = self.all().iter().flat_map(|held| held.summaries()).collect();
        groups.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        groups
    }

    /// An id for a member that nobody had before.
    pub fn new_member_id(&self, name: &str) -> String {
        let random = (u128::from(self.env.random_u64()) << 64) | u128::from(self.env.random_u64());
        let id = uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid();
        format!("{name}-{id}")
    }

    /// Brings the shares of this node closer to those that it should have beside `members`, of which it is one. Answers
    /// how many it has that are others'.
    ///
    /// # Errors
    /// What metadata answers that has their owners. The next call goes on, also with what is not done with one of them.
    pub async fn look(&self, members: &[ShardMember], seen: &MembersSeen) -> Result<usize, MetaError> {
        if self.only.is_some() {
            return Ok(0);
        }
        let _looking = self.looking.lock().await;
        let mut records = [Some(ShareRecord::default()); SHARES];
        for (key, found) in self.log.meta().list(PREFIX).await? {
            let share = key.strip_prefix(PREFIX).and_then(|number| number.parse::<usize>().ok());
            if let Some(record) = share.and_then(|share| records.get_mut(share)) {
                *record = decode(&found);
            }
        }
        let me = self.log.owner_number();
        let (mut left, mut claimed) = (0, Vec::new());
        for (share, record) in records.into_iter().enumerate() {
            let Some(record) = record else {
                self.give_up(share);
                if !std::mem::replace(&mut self.shares.write()[share].is_unknown, true) {
                    tracing::warn!(
                        share,
                        "who coordinates these groups is not known: a later version has written it"
                    );
                }
                continue;
            };
            let is_held = self.note(share, record);
            let heir = heir(members, key_of(share).as_bytes());
            let is_heir = heir.is_some_and(|heir| heir.owner == me);
            let changed = if is_held && !is_heir && heir.is_some() {
                // The dead do not wait; the living move when nobody comes and goes.
                if seen.is_settled() || is_going(members, me) {
                    self.release(share, record).await
                } else {
                    left += 1;
                    Ok(())
                }
            } else if !is_held && record.owner == me && !is_heir {
                self.put(share, record, 0).await.map(drop)
            } else if !is_held && is_heir && (record.owner == me || seen.is_gone(record.owner)) {
                self.put(share, record, me)
                    .await
                    .map(|record| claimed.extend(record.map(|record| (share, record))))
            } else {
                Ok(())
            };
            if let Err(error) = changed {
                tracing::warn!(share, %error, "who coordinates these groups does not change yet");
            }
        }
        if !claimed.is_empty() {
            self.open_claimed(claimed).await?;
        }
        Ok(left)
    }

    /// This node does not have that share any more.
    fn give_up(&self, share: usize) {
        let held = self.shares.write()[share].held.take();
        held.iter().for_each(|held| held.retire());
    }

    /// Takes note of a share's record; whether this node still has the share.
    fn note(&self, share: usize, record: ShareRecord) -> bool {
        let mut shares = self.shares.write();
        let known = &mut shares[share];
        let is_same = known.record == record;
        (known.record, known.is_unknown) = (record, false);
        match known.held.take_if(|_| !is_same) {
            Some(lost) => {
                tracing::warn!(share, "another node coordinates these groups by now");
                lost.retire();
                false
            }
            None => known.held.is_some(),
        }
    }

    /// Writes a share's owner; the record, if it was what it was thought to be.
    async fn put(
        &self,
        share: usize,
        record: ShareRecord,
        owner: u64,
    ) -> Result<Option<ShareRecord>, MetaError> {
        let expect = if record.version == 0 { Expect::Absent } else { Expect::Version(record.version) };
        let put = Op::Put { key: key_of(share), value: encode(owner), expect };
        match self.log.meta().commit(vec![put]).await {
            Ok(version) => Ok(Some(ShareRecord { owner, version })),
            Err(MetaError::Conflict { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn release(&self, share: usize, record: ShareRecord) -> Result<(), MetaError> {
        self.give_up(share);
        if let Some(record) = self.put(share, record, 0).await? {
            self.shares.write()[share].record = record;
            tracing::info!(share, "groups are given up");
        }
        Ok(())
    }

    /// Coordinates the groups of shares that are this node's by now: what is kept of groups is read once for all.
    async fn open_claimed(&self, claimed: Vec<(usize, ShareRecord)>) -> Result<(), MetaError> {
        let stored = StoredGroups::read(&**self.log.meta()).await?;
        for (share, record) in claimed {
            let meta = Arc::clone(self.log.meta());
            let meta = Arc::new(FencedMeta { meta, key: key_of(share), version: record.version });
            let belongs = |group: &str| share_of(group) == share;
            let (configs, total) = (Arc::clone(&self.configs), Arc::clone(&self.total));
            let opened = Coordinator::open(&self.env, configs, &self.log, (meta, &stored), total, &belongs);
            self.shares.write()[share] =
                GroupShare { record, held: Some(Arc::new(opened)), is_unknown: false };
            tracing::info!(share, "this node coordinates these groups");
        }
        Ok(())
    }
}

/// Metadata that is changed only while a share's record is what its owner has written.
struct FencedMeta {
    meta: Arc<dyn Meta>,
    key: String,
    version: u64,
}

impl Meta for FencedMeta {
    fn get<'a>(&'a self, key: &'a str) -> FromMeta<'a, Option<Versioned>> {
        self.meta.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> FromMeta<'a, Vec<(String, Versioned)>> {
        self.meta.list(prefix)
    }

    fn commit(&self, mut ops: Vec<Op>) -> FromMeta<'_, u64> {
        ops.push(Op::Check { key: self.key.clone(), expect: Expect::Version(self.version) });
        Box::pin(async move {
            match self.meta.commit(ops).await {
                Err(MetaError::Conflict { key }) if key == self.key => {
                    Err(MetaError::TakenOver("another node coordinates the groups".to_owned()))
                }
                answer => answer,
            }
        })
    }

    fn watch<'a>(&'a self, prefix: &'a str) -> FromMeta<'a, Watch> {
        self.meta.watch(prefix)
    }

    fn lease<'a>(&'a self, key: &'a str, value: Bytes, ttl: Duration) -> FromMeta<'a, Lease> {
        self.meta.lease(key, value, ttl)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use tailwater_format::StreamId;
    use tailwater_log::{LogConfig, SharedMetadata};

    use super::*;
    use crate::config::KafkaConfig;
    use crate::groups::GroupsConfig;
    use crate::groups::coordinator::Committer;
    use crate::groups::offsets::GroupOffsets;
    use crate::groups::records::Committed;

    async fn log(dir: &Path, meta: Option<&Log>) -> Log {
        let shared = meta.map(|log| SharedMetadata {
            meta: Arc::clone(log.meta()),
            place: "here".to_owned(),
            cluster: uuid::Uuid::from_u128(7),
            is_shared: false,
        });
        let mut config = LogConfig { metadata: shared, ..LogConfig::default() };
        config.journal.file_bytes = 16 << 20;
        config.journal.files_max = 4;
        Log::open(&Env::real(), config, dir, None).await.expect("opened")
    }

    /// The coordinators of a node, and the node among others.
    async fn node(log: &Log, id: &str) -> (Coordinators, ShardMember) {
        node_with(log, id, GroupsConfig::default()).await
    }

    async fn node_with(log: &Log, id: &str, groups: GroupsConfig) -> (Coordinators, ShardMember) {
        let env = Env::real();
        let file = KafkaConfig { groups, ..KafkaConfig::default() };
        let configs = RuntimeConfigs::open(&env, Arc::clone(log.meta()), file, None).await;
        let mut shares = Vec::new();
        shares.resize_with(SHARES, GroupShare::default);
        let coordinators = Coordinators {
            env,
            log: log.clone(),
            configs: configs.expect("opened"),
            only: None,
            total: Arc::default(),
            shares: RwLock::new(shares),
            looking: tokio::sync::Mutex::default(),
        };
        (coordinators, ShardMember { id: id.to_owned(), owner: log.owner_number(), takes: true })
    }

    /// Lets `there` look, as if they and nobody else were there, until it is as wanted.
    async fn look_until(there: &[(&Coordinators, &ShardMember)], wanted: impl Fn() -> bool) {
        let seen = MembersSeen::default();
        let members: Vec<ShardMember> = there.iter().map(|(_, member)| (*member).clone()).collect();
        while !wanted() {
            for (node, _) in there {
                seen.look(node.env.now(), &members);
                node.look(&members, &seen).await.expect("metadata answers");
                node.env.sleep(Duration::from_millis(20)).await;
            }
        }
    }

    fn offsets(offset: i64) -> GroupOffsets {
        let (leader_epoch, committed_ms, expires_ms, metadata) = (3, 1_000, None, String::new());
        let committed = Committed { offset, leader_epoch, committed_ms, expires_ms, metadata };
        BTreeMap::from([((StreamId(uuid::Uuid::from_u128(1)), 0), committed)])
    }

    #[tokio::test]
    async fn of_two_coordinators_of_a_group_one_keeps_offsets_and_the_next_one_has_all_that_were_answered() {
        let dirs = [tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory")];
        let log_a = log(dirs[0].path(), None).await;
        let log_b = log(dirs[1].path(), Some(&log_a)).await;
        let ((a, member_a), (b, member_b)) = (node(&log_a, "a").await, node(&log_b, "b").await);
        let both = [(&a, &member_a), (&b, &member_b)];
        // A record that can't be read keeps nobody from the others, and is not overwritten.
        let put = Op::Put { key: key_of(0), value: Bytes::from_static(b"\x09"), expect: Expect::Absent };
        log_a.meta().commit(vec![put]).await.expect("put");
        look_until(&both, || a.all().len() + b.all().len() == SHARES - 1).await;
        let groups = (0..).map(|number| format!("group-{number}"));
        let group = groups.into_iter().find(|group| b.of(group).is_ok()).expect("it has some");
        let old = b.of(&group).expect("its own");
        old.commit(&group, offsets(5)).await.expect("kept");
        assert_eq!(a.of(&group).err(), Some(ErrorCode::NotCoordinator));

        // It is thought to be gone, and is not.
        look_until(&both[..1], || a.all().len() == SHARES - 1).await;
        let new = a.of(&group).expect("its own by now");
        let committed =
            |held: &Coordinator| held.offsets().of(&group).into_values().map(|kept| kept.offset).max();
        assert_eq!(committed(&new), Some(5));
        assert_eq!(old.commit(&group, offsets(6)).await, Err(ErrorCode::NotCoordinator));
        new.commit(&group, offsets(7)).await.expect("kept");
        assert_eq!(committed(&old), Some(5), "nothing more was kept there");

        // It hears of it, and has its groups again when it may.
        look_until(&both, || a.of(&group).is_err() && b.of(&group).is_ok()).await;
        assert_eq!(committed(&b.of(&group).expect("its own again")), Some(7));
        assert_eq!(new.commit(&group, offsets(8)).await, Err(ErrorCode::NotCoordinator));
        log_b.close().await;
        log_a.close().await;
    }

    #[tokio::test]
    async fn groups_of_all_shares_of_a_node_are_bounded_together_and_those_of_a_share_that_it_gives_up_make_room()
     {
        let dir = tempfile::tempdir().expect("a directory");
        let log = log(dir.path(), None).await;
        let groups = GroupsConfig { groups_max: 2, ..GroupsConfig::default() };
        let (node, member) = node_with(&log, "a", groups).await;
        look_until(&[(&node, &member)], || node.all().len() == SHARES).await;
        let nobody = Committer { generation: -1, ..Committer::default() };
        let check = |group: &str| node.of(group).expect("its own").check_commit(group, &nobody);
        let of = |share: usize| {
            let groups = (0..).map(|number| format!("group-{number}"));
            groups.into_iter().find(|group| share_of(group) == share).expect("one is of the share")
        };
        let groups = [0, 1, 2].map(of);
        for group in &groups[..2] {
            assert_eq!(check(group), Ok(()));
            node.of(group).expect("its own").commit(group, offsets(5)).await.expect("kept");
        }
        assert_eq!(
            check(&groups[2]),
            Err(ErrorCode::GroupMaxSizeReached),
            "another share has no room of its own"
        );
        assert_eq!(check(&groups[0]), Ok(()), "it is there");
        node.give_up(0);
        while check(&groups[2]).is_err() {
            node.env.sleep(Duration::from_millis(1)).await;
        }
        log.close().await;
    }

    #[test]
    fn groups_are_spread_over_the_shares_and_stay_where_they_are() {
        let mut counts = [0; SHARES];
        (0..1_600).for_each(|number| counts[share_of(&format!("group-{number}"))] += 1);
        assert!(counts.iter().all(|count| (50..200).contains(count)), "{counts:?}");
        assert_eq!([share_of("a"), share_of("orders"), share_of("")], [0, 14, 1]);
    }

    #[test]
    fn a_record_that_a_later_version_wrote_is_not_read_as_an_owner() {
        let found = |value: Bytes| Versioned { value, version: 7 };
        assert_eq!(decode(&found(encode(3))), Some(ShareRecord { owner: 3, version: 7 }));
        for wrong in [&b""[..], &[FORMAT; 8], &[2; 9]] {
            assert_eq!(decode(&found(Bytes::copy_from_slice(wrong))), None, "{wrong:?}");
        }
    }
}
