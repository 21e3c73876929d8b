//! A commit: what there is is read, held against what is expected, and one transaction of ZooKeeper's changes it if it
//! is still so.
//!
//! 1. The keys' nodes are read. What does not hold of them is read again, behind a `sync`, before anybody is told.
//! 2. Values that are too large are written in parts, below names that nobody knows yet.
//! 3. The transaction checks that it is still this process's turn, that every key is as it was read, and writes. If a
//!    key is another one by now, all of it begins anew.
//! 4. If no answer comes, the mark that it has written says whether it was carried out. If it was not, and its
//!    connection is gone, it is tried again: the keys' versions see to it that it is not carried out twice.
//! 5. Parts of what was replaced are deleted. What a crash leaves of them is deleted in this process's next turn.

use bytes::Bytes;
use tailwater_env::BoxFuture;
use tailwater_meta::{Expect, MetaError, Op, check_ops};
use uuid::Uuid;
use zookeeper_client::{Client, Error as ZkError, MultiWriteError, MultiWriteResult, Stat};

use crate::limits::{COMMIT_ATTEMPTS, INLINE_BYTES_MAX, OP_OVERHEAD_BYTES, PACKET_BYTES_MAX, PART_BYTES};
use crate::session::all;
use crate::store::MetaInner;
use crate::value::{PARTS_NODE_BYTES, PartsOf, StoredKey, StoredValue};

/// A key's node as it was read.
struct FoundKey {
    path: String,
    stat: Option<Stat>,
    /// The parts of its value.
    parts: Option<PartsOf>,
}

impl FoundKey {
    fn version(&self) -> Option<u64> {
        self.stat.map(|stat| u64::try_from(stat.mzxid).unwrap_or_default())
    }

    fn is_leased(&self) -> bool {
        self.stat.is_some_and(|stat| stat.ephemeral_owner != 0)
    }
}

/// How a try ended.
enum Tried {
    Done(u64),
    /// The keys are not what they were.
    Changed,
    /// Nodes above the keys are missing.
    NoParents,
    /// There was no answer.
    Unknown(ZkError),
}

/// An operation of the transaction.
enum CommitStep {
    Check(String, i32),
    Create(String, Vec<u8>),
    /// One that is not to be there.
    Absent(String),
    Set(String, Vec<u8>, i32),
    Delete(String, i32),
}

impl MetaInner {
    pub(crate) async fn commit(&self, ops: &[Op]) -> Result<u64, MetaError> {
        check_ops(ops)?;
        let mark = self.session.env.random_u64();
        let values: Vec<Option<StoredValue>> = self.values_of(ops);
        let (mut is_written, mut is_known) = (false, true);
        for attempt in 0..COMMIT_ATTEMPTS {
            self.check_turn()?;
            let mut client = self.session.ready().await?;
            let mut found = self.find(&client, ops).await?;
            if conflict(ops, &found).is_some() || attempt > 0 {
                client = self.session.synced().await?;
                found = self.find(&client, ops).await?;
            }
            if let Some(key) = conflict(ops, &found) {
                // A try that was not answered may be why, and name them.
                if is_written && is_known {
                    self.forget_parts(parts_of(&values)).await;
                }
                return Err(MetaError::Conflict { key: key.to_owned() });
            }
            if !std::mem::replace(&mut is_written, true) {
                self.write_parts(&client, ops, &values).await?;
            }
            let steps = steps_of(ops, &found, &values, mark);
            self.check_size(&steps)?;
            let mut tried = self.try_steps(&client, &steps).await?;
            if let Tried::NoParents = tried {
                self.make_parents(&client, &steps).await?;
                tried = self.try_steps(&client, &steps).await?;
            }
            match tried {
                Tried::Done(version) => {
                    self.forget_replaced(ops, &found).await;
                    return Ok(version);
                }
                Tried::Changed | Tried::NoParents => {}
                Tried::Unknown(error) => {
                    if let Some(version) = self.look_for(ops, &found, mark).await? {
                        self.forget_replaced(ops, &found).await;
                        return Ok(version);
                    }
                    is_known = false;
                    // One that waits for a connection still would come later.
                    if !matches!(error, ZkError::ConnectionLoss | ZkError::SessionExpired) {
                        return Err(self.session.unavailable(&error));
                    }
                }
            }
        }
        Err(MetaError::Unavailable("others change the same keys all the time".to_owned()))
    }

    /// Whether this process may change anything, as far as it knows.
    pub(crate) fn check_turn(&self) -> Result<(), MetaError> {
        self.taken_over.borrow().clone().map_or(Ok(()), |why| Err(MetaError::TakenOver(why)))
    }

    async fn find(&self, client: &Client, ops: &[Op]) -> Result<Vec<FoundKey>, MetaError> {
        let mut looks: Vec<BoxFuture<'_, _>> = Vec::with_capacity(ops.len());
        for op in ops {
            looks.push(Box::pin(self.find_one(client, op)));
        }
        all(looks).await.map_err(|error| self.session.unavailable(&error))
    }

    async fn find_one(&self, client: &Client, op: &Op) -> Result<FoundKey, ZkError> {
        let path = self.path_of(op.key());
        let mut stat = self.session.timed(client.check_stat(&path)).await?;
        let mut parts = None;
        let may_have_parts = |stat: &Stat| usize::try_from(stat.data_length) == Ok(PARTS_NODE_BYTES);
        if !matches!(op, Op::Check { .. }) && stat.as_ref().is_some_and(may_have_parts) {
            let read = self.session.data(client, &path).await?;
            stat = read.as_ref().map(|(_, stat)| *stat);
            let stored = read.and_then(|(data, _)| StoredKey::decode(&data).ok());
            parts = stored.and_then(|stored| match stored.value {
                StoredValue::Parts(parts) => Some(parts),
                StoredValue::Whole(_) => None,
            });
        }
        Ok(FoundKey { path, stat, parts })
    }

    /// The values of the operations, of which the largest are in parts where all together would be too much.
    fn values_of(&self, ops: &[Op]) -> Vec<Option<StoredValue>> {
        let value_of = |op: &Op| match op {
            Op::Put { value, .. } => Some(value.clone()),
            _ => None,
        };
        let values: Vec<Option<Bytes>> = ops.iter().map(value_of).collect();
        let mut by_length: Vec<usize> = (0..ops.len()).collect();
        by_length.sort_by_key(|number| values[*number].as_ref().map_or(0, Bytes::len));
        let mut room = INLINE_BYTES_MAX;
        let mut stored: Vec<Option<StoredValue>> = vec![None; ops.len()];
        for number in by_length {
            let Some(value) = &values[number] else { continue };
            stored[number] = Some(if value.len() <= room {
                room -= value.len();
                StoredValue::Whole(value.clone())
            } else {
                StoredValue::Parts(PartsOf::new(self.new_name(), value))
            });
        }
        stored
    }

    fn new_name(&self) -> Uuid {
        let random = || u128::from(self.session.env.random_u64());
        uuid::Builder::from_random_bytes((random() << 64 | random()).to_be_bytes()).into_uuid()
    }

    async fn write_parts(
        &self,
        client: &Client,
        ops: &[Op],
        values: &[Option<StoredValue>],
    ) -> Result<(), MetaError> {
        let mut writes: Vec<BoxFuture<'_, _>> = Vec::new();
        for (op, stored) in ops.iter().zip(values) {
            if let (Op::Put { key, value, .. }, Some(StoredValue::Parts(parts))) = (op, stored) {
                writes.push(Box::pin(self.write_value(client, key, value, *parts)));
            }
        }
        all(writes).await.map(drop).map_err(|error| self.session.unavailable(&error))
    }

    async fn write_value(
        &self,
        client: &Client,
        key: &str,
        value: &[u8],
        parts: PartsOf,
    ) -> Result<(), ZkError> {
        let path = self.parts_path(parts.name);
        // The key says whose they are, should nobody name them.
        self.create(client, &path, key.as_bytes()).await?;
        for (number, part) in value.chunks(PART_BYTES).enumerate() {
            self.create(client, &format!("{path}/{number}"), part).await?;
        }
        Ok(())
    }

    /// Makes a node of a name that nobody else makes.
    async fn create(&self, client: &Client, path: &str, data: &[u8]) -> Result<(), ZkError> {
        match self.session.timed(client.create(path, data, &self.session.persistent())).await {
            Ok(_) | Err(ZkError::NodeExists) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn check_size(&self, steps: &[CommitStep]) -> Result<(), MetaError> {
        let bytes_of = |step: &CommitStep| match step {
            CommitStep::Check(path, _) | CommitStep::Delete(path, _) => OP_OVERHEAD_BYTES + path.len(),
            CommitStep::Absent(path) => 2 * (OP_OVERHEAD_BYTES + path.len()),
            CommitStep::Create(path, data) | CommitStep::Set(path, data, _) => {
                OP_OVERHEAD_BYTES + path.len() + data.len()
            }
        };
        let bytes: usize = steps.iter().map(bytes_of).sum();
        // ZooKeeper closes the connection of a larger one.
        if bytes >= PACKET_BYTES_MAX {
            let reason = format!("a commit of {bytes} bytes in ZooKeeper, {PACKET_BYTES_MAX} at most");
            return Err(MetaError::Invalid(reason));
        }
        Ok(())
    }

    async fn try_steps(&self, client: &Client, steps: &[CommitStep]) -> Result<Tried, MetaError> {
        let mut writer = client.new_multi_writer();
        let persistent = self.session.persistent();
        let added = (|| {
            writer.add_check_version(&self.turn_path(), self.turn)?;
            for step in steps {
                match step {
                    CommitStep::Check(path, version) => writer.add_check_version(path, *version)?,
                    CommitStep::Create(path, data) => writer.add_create(path, data, &persistent)?,
                    CommitStep::Absent(path) => {
                        writer.add_create(path, &[], &persistent)?;
                        writer.add_delete(path, None)?;
                    }
                    CommitStep::Set(path, data, version) => {
                        writer.add_set_data(path, data, Some(*version))?
                    }
                    CommitStep::Delete(path, version) => writer.add_delete(path, Some(*version))?,
                }
            }
            Ok(())
        })();
        added.map_err(|error: ZkError| MetaError::Invalid(format!("ZooKeeper: {error}")))?;
        let committed = self.session.env.timeout(crate::limits::PATIENCE, writer.commit()).await;
        let results = match committed {
            None => return Ok(Tried::Unknown(ZkError::Timeout)),
            Some(Ok(results)) => results,
            Some(Err(MultiWriteError::OperationFailed { index, source })) => {
                return match source {
                    ZkError::BadVersion | ZkError::NoNode if index == 0 => Err(self.lost_turn(client).await),
                    // Of what is read before it is changed, or of what is above it.
                    ZkError::NoNode => Ok(Tried::NoParents),
                    ZkError::BadVersion | ZkError::NodeExists => Ok(Tried::Changed),
                    other => Err(self.session.unavailable(&other)),
                };
            }
            Some(Err(MultiWriteError::RequestFailed { source })) => return Ok(Tried::Unknown(source)),
        };
        self.version_of(client, steps, &results).await
    }

    /// The version of what a transaction wrote: its number.
    async fn version_of(
        &self,
        client: &Client,
        steps: &[CommitStep],
        results: &[MultiWriteResult],
    ) -> Result<Tried, MetaError> {
        let stats = results.iter().filter_map(|result| match result {
            MultiWriteResult::SetData { stat } | MultiWriteResult::Create { stat, .. } => Some(stat),
            _ => None,
        });
        let mut is_written = false;
        for stat in stats {
            is_written = true;
            if !stat.is_invalid() && stat.mzxid > 0 {
                return Ok(Tried::Done(self.session.saw(stat.mzxid)));
            }
        }
        // Servers before 3.9 do not tell it of what they create.
        let created = steps.iter().find_map(|step| match step {
            CommitStep::Create(path, _) => Some(path),
            _ => None,
        });
        let Some(path) = created.filter(|_| is_written) else { return Ok(Tried::Done(self.session.seen())) };
        match self.session.timed(client.check_stat(path)).await {
            Ok(Some(stat)) => Ok(Tried::Done(self.session.saw(stat.mzxid))),
            Ok(None) => Ok(Tried::Done(self.session.seen())),
            Err(error) => Ok(Tried::Unknown(error)),
        }
    }

    async fn make_parents(&self, client: &Client, steps: &[CommitStep]) -> Result<(), MetaError> {
        let parents = steps.iter().filter_map(|step| match step {
            CommitStep::Create(path, _) | CommitStep::Absent(path) => {
                path.rsplit_once('/').map(|(above, _)| above)
            }
            _ => None,
        });
        let parents: std::collections::BTreeSet<&str> = parents.collect();
        for parent in parents {
            let made = self.session.make(client, parent, &self.session.container()).await;
            made.map_err(|error| self.session.unavailable(&error))?;
        }
        Ok(())
    }

    /// The version of a commit that was not answered, if it was carried out.
    async fn look_for(&self, ops: &[Op], found: &[FoundKey], mark: u64) -> Result<Option<u64>, MetaError> {
        let client = self.session.synced().await?;
        let unavailable = |error: ZkError| self.session.unavailable(&error);
        let mut is_changed = false;
        for (op, found) in ops.iter().zip(found) {
            match op {
                Op::Check { .. } => {}
                Op::Put { .. } => {
                    let read = self.session.data(&client, &found.path).await.map_err(unavailable)?;
                    let Some((data, stat)) = read else { return Ok(None) };
                    let is_ours = StoredKey::decode(&data).is_ok_and(|stored| stored.mark == mark);
                    return Ok(is_ours.then(|| self.session.saw(stat.mzxid)));
                }
                Op::Delete { .. } if found.stat.is_some() => {
                    is_changed = true;
                    let stat =
                        self.session.timed(client.check_stat(&found.path)).await.map_err(unavailable)?;
                    if stat.is_some() {
                        return Ok(None);
                    }
                }
                Op::Delete { .. } => {}
            }
        }
        // Of one that changes nothing it is not known: it is tried again.
        Ok(is_changed.then(|| self.session.seen()))
    }

    /// Deletes the parts of what a commit has replaced. What is left is deleted in this process's next turn.
    async fn forget_replaced(&self, ops: &[Op], found: &[FoundKey]) {
        let changed = ops.iter().zip(found).filter(|(op, _)| !matches!(op, Op::Check { .. }));
        self.forget_parts(changed.filter_map(|(_, found)| found.parts).collect()).await;
    }

    async fn forget_parts(&self, forgotten: Vec<PartsOf>) {
        if forgotten.is_empty() {
            return;
        }
        let Ok(client) = self.session.ready().await else { return };
        let mut removals: Vec<BoxFuture<'_, _>> = Vec::with_capacity(forgotten.len());
        for parts in forgotten {
            removals.push(Box::pin(self.remove_parts(&client, parts)));
        }
        if let Err(error) = all(removals).await {
            tracing::debug!(%error, "parts of a value are left for the next start");
        }
    }

    async fn remove_parts(&self, client: &Client, parts: PartsOf) -> Result<(), ZkError> {
        self.session.remove_all(client, &self.parts_path(parts.name)).await
    }

    /// Deletes the parts that no key names: an earlier turn's. None of this turn's may be written yet.
    pub(crate) async fn sweep_parts(&self, names: Vec<String>) -> Result<(), MetaError> {
        let client = self.session.ready().await?;
        let unavailable = |error: ZkError| self.session.unavailable(&error);
        for name in names {
            let path = format!("{}/parts/{name}", self.session.uri.root);
            let Some((key, _)) = self.session.data(&client, &path).await.map_err(unavailable)? else {
                continue;
            };
            let key = String::from_utf8_lossy(&key).into_owned();
            let read = self.session.data(&client, &self.path_of(&key)).await.map_err(unavailable)?;
            let stored = read.and_then(|(data, _)| StoredKey::decode(&data).ok());
            let is_named = stored.is_some_and(|stored| match stored.value {
                StoredValue::Parts(parts) => parts.name.to_string() == name,
                StoredValue::Whole(_) => false,
            });
            if !is_named {
                self.session.remove_all(&client, &path).await.map_err(unavailable)?;
            }
        }
        Ok(())
    }

    /// Makes a key that goes with this process's session; whether it was not there.
    pub(crate) async fn create_leased(&self, key: &str, value: &Bytes) -> Result<Option<Stat>, MetaError> {
        let (path, mark) = (self.path_of(key), self.session.env.random_u64());
        let data = StoredKey { mark, value: StoredValue::Whole(value.clone()) }.encode();
        for _ in 0..COMMIT_ATTEMPTS {
            self.check_turn()?;
            let client = self.session.ready().await?;
            let mut writer = client.new_multi_writer();
            let added = writer.add_check_version(&self.turn_path(), self.turn);
            let added = added.and_then(|()| writer.add_create(&path, &data, &self.session.ephemeral()));
            added.map_err(|error| MetaError::Invalid(format!("ZooKeeper: {error}")))?;
            let committed = self.session.env.timeout(crate::limits::PATIENCE, writer.commit()).await;
            match committed {
                Some(Err(MultiWriteError::OperationFailed {
                    index: 0,
                    source: ZkError::BadVersion | ZkError::NoNode,
                })) => return Err(self.lost_turn(&client).await),
                Some(Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. })) => {
                    self.make_parents(&client, &[CommitStep::Absent(path.clone())]).await?;
                    continue;
                }
                Some(Err(MultiWriteError::OperationFailed { source: ZkError::NodeExists, .. })) => {
                    return Ok(None);
                }
                Some(Err(MultiWriteError::OperationFailed { source, .. })) => {
                    return Err(self.session.unavailable(&source));
                }
                // Whether it was made is seen.
                _ => {}
            }
            let client = self.session.synced().await?;
            let read = self.session.data(&client, &path).await;
            match read.map_err(|error| self.session.unavailable(&error))? {
                Some((found, stat)) if found == data => return Ok(Some(stat)),
                Some(_) => return Ok(None),
                None => {}
            }
        }
        Err(MetaError::Unavailable(format!("the session ends before {key:?} can be leased")))
    }
}

fn parts_of(values: &[Option<StoredValue>]) -> Vec<PartsOf> {
    let parts = |value: &StoredValue| match value {
        StoredValue::Parts(parts) => Some(*parts),
        StoredValue::Whole(_) => None,
    };
    values.iter().flatten().filter_map(parts).collect()
}

/// The first key that is not what is expected.
fn conflict<'a>(ops: &'a [Op], found: &[FoundKey]) -> Option<&'a str> {
    let mut judged = ops.iter().zip(found);
    let fails = |(op, found): &(&Op, &FoundKey)| {
        let writes_over_lease = matches!(op, Op::Put { .. }) && found.is_leased();
        writes_over_lease || !op.expect().holds(found.version())
    };
    judged.find(fails).map(|(op, _)| op.key())
}

/// What a transaction has to do where the keys are as they were found: conditions first, as they are about the state
/// before it.
fn steps_of(ops: &[Op], found: &[FoundKey], values: &[Option<StoredValue>], mark: u64) -> Vec<CommitStep> {
    let mut steps = Vec::with_capacity(ops.len());
    for (op, found) in ops.iter().zip(found) {
        let is_condition =
            matches!(op, Op::Check { .. }) || matches!(op, Op::Delete { .. } if found.stat.is_none());
        if is_condition {
            steps.extend(match (op.expect(), found.stat) {
                (Expect::Any, _) => None,
                (_, Some(stat)) => Some(CommitStep::Check(found.path.clone(), stat.version)),
                (_, None) => Some(CommitStep::Absent(found.path.clone())),
            });
        }
    }
    for ((op, found), value) in ops.iter().zip(found).zip(values) {
        let path = || found.path.clone();
        let data = || value.clone().map(|value| StoredKey { mark, value }.encode()).unwrap_or_default();
        steps.extend(match (op, found.stat) {
            (Op::Put { .. }, Some(stat)) => Some(CommitStep::Set(path(), data(), stat.version)),
            (Op::Put { .. }, None) => Some(CommitStep::Create(path(), data())),
            (Op::Delete { .. }, Some(stat)) => Some(CommitStep::Delete(path(), stat.version)),
            (Op::Delete { .. } | Op::Check { .. }, _) => None,
        });
    }
    steps
}
