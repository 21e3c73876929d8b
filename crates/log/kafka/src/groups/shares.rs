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
use tailwater_env::{BoxFuture, Env};
use tailwater_log::{Log, MembersSeen, ShardMember, heir, is_going};
use tailwater_meta::{Expect, Lease, Meta, MetaError, Op, Versioned, Watch};

use super::coordinator::{Coordinator, CoordinatorSummary};
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
}

/// The coordinators of this node.
pub(crate) struct Coordinators {
    env: Env,
    log: Log,
    configs: Arc<RuntimeConfigs>,
    /// All groups', where one node is active.
    only: Option<Arc<Coordinator>>,
    shares: RwLock<Vec<GroupShare>>,
    /// Held by the one look at a time.
    seen: tokio::sync::Mutex<MembersSeen>,
}

fn key_of(share: usize) -> String {
    format!("{PREFIX}{share:02}")
}

fn encode(owner: u64) -> Bytes {
    [&[FORMAT][..], &owner.to_be_bytes()].concat().into()
}

fn decode(found: &Versioned) -> Result<ShareRecord, MetaError> {
    let owner = found.value.strip_prefix(&[FORMAT]).and_then(|owner| owner.try_into().ok());
    let owner = owner.map(u64::from_be_bytes);
    let owner = owner.ok_or_else(|| MetaError::Unavailable("a later version has written it".to_owned()))?;
    Ok(ShareRecord { owner, version: found.version })
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
        if log.is_shared() {
            shares.resize_with(SHARES, GroupShare::default);
        } else {
            let meta = Arc::clone(log.meta());
            only = Some(Arc::new(Coordinator::open(env, Arc::clone(&configs), log, meta, &|_| true).await?));
        }
        let (env, log, shares) = (env.clone(), log.clone(), RwLock::new(shares));
        Ok(Self { env, log, configs, only, shares, seen: tokio::sync::Mutex::default() })
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
    /// What metadata answers. The next call goes on.
    pub async fn look(&self, members: &[ShardMember]) -> Result<usize, MetaError> {
        if self.only.is_some() {
            return Ok(0);
        }
        let mut seen = self.seen.lock().await;
        let now = self.env.now();
        seen.look(now, members);
        let mut records = [ShareRecord::default(); SHARES];
        for (key, found) in self.log.meta().list(PREFIX).await? {
            let share = key.strip_prefix(PREFIX).and_then(|number| number.parse::<usize>().ok());
            if let Some(record) = share.and_then(|share| records.get_mut(share)) {
                *record = decode(&found)?;
            }
        }
        let (me, mut left) = (self.log.owner_number(), 0);
        for (share, record) in records.into_iter().enumerate() {
            let is_held = self.note(share, record);
            let heir = heir(members, key_of(share).as_bytes());
            let is_heir = heir.is_some_and(|heir| heir.owner == me);
            if is_held && !is_heir && heir.is_some() {
                // The dead do not wait; the living move when nobody comes and goes.
                match seen.is_settled(now) || is_going(members, me) {
                    true => self.release(share, record).await?,
                    false => left += 1,
                }
            } else if !is_held && record.owner == me && !is_heir {
                self.put(share, record, 0).await?;
            } else if !is_held && is_heir && (record.owner == me || seen.is_gone(record.owner, now)) {
                self.claim(share, record).await?;
            }
        }
        Ok(left)
    }

    /// Takes note of a share's record; whether this node still has the share.
    fn note(&self, share: usize, record: ShareRecord) -> bool {
        let mut shares = self.shares.write();
        let known = &mut shares[share];
        let is_same = known.record == record;
        known.record = record;
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
        let held = self.shares.write()[share].held.take();
        held.iter().for_each(|held| held.retire());
        if let Some(record) = self.put(share, record, 0).await? {
            self.shares.write()[share].record = record;
            tracing::info!(share, "groups are given up");
        }
        Ok(())
    }

    async fn claim(&self, share: usize, record: ShareRecord) -> Result<(), MetaError> {
        let Some(record) = self.put(share, record, self.log.owner_number()).await? else { return Ok(()) };
        let meta = Arc::clone(self.log.meta());
        let meta = Arc::new(FencedMeta { meta, key: key_of(share), version: record.version });
        let belongs = |group: &str| share_of(group) == share;
        let opened = Coordinator::open(&self.env, Arc::clone(&self.configs), &self.log, meta, &belongs).await;
        let opened = opened.map_err(MetaError::Unavailable)?;
        self.shares.write()[share] = GroupShare { record, held: Some(Arc::new(opened)) };
        tracing::info!(share, "this node coordinates these groups");
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
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Versioned>, MetaError>> {
        self.meta.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<(String, Versioned)>, MetaError>> {
        self.meta.list(prefix)
    }

    fn commit(&self, mut ops: Vec<Op>) -> BoxFuture<'_, Result<u64, MetaError>> {
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

    fn watch<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Watch, MetaError>> {
        self.meta.watch(prefix)
    }

    fn lease<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Lease, MetaError>> {
        self.meta.lease(key, value, ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(decode(&found(encode(3))), Ok(ShareRecord { owner: 3, version: 7 }));
        for wrong in [&b""[..], &[FORMAT; 8], &[2; 9]] {
            assert!(decode(&found(Bytes::copy_from_slice(wrong))).is_err(), "{wrong:?}");
        }
    }
}
