//! Groups as the node's administrators see them: members, what these read, and how far behind they are.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::HashMap;
use tailwater_format::{BatchHeader, NO_TIMESTAMP_MS, Offset, ShardId, ShardNumber};
use tailwater_log::{LocateRead, Log, LogStreamInfo, ReadError};

use super::classic::ClassicGroup;
use super::consumer::ConsumerGroup;
use super::coordinator::{Committer, Coordinator};
use super::group::Group;
use super::offsets::GroupOffsets;
use super::records::Committed;
use crate::broker::Broker;
use crate::errors::ErrorCode;

/// A group in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// Its name.
    pub name: String,
    /// Which protocol its members speak: `classic` or `consumer`.
    pub kind: &'static str,
    /// Kafka's name of its state.
    pub state: &'static str,
    /// What its members are: `consumer` for consumers; empty if it never had any.
    pub protocol_type: String,
    /// How they divide partitions, if they have agreed on it.
    pub protocol: String,
    /// The last generation.
    pub generation: i32,
    /// Its members.
    pub members: Vec<MemberInfo>,
    /// The shards of which it has committed something, or that a member reads.
    pub shards: Vec<ShardLag>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// Its id.
    pub id: String,
    /// Its name, if it is a static member.
    pub instance: Option<String>,
    /// What its client calls itself.
    pub client_id: String,
    /// Its client's address.
    pub host: String,
    /// How many shards it reads, if that is known.
    pub shards: usize,
}

/// How far behind a group is in one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardLag {
    /// The stream.
    pub stream: String,
    /// The shard.
    pub shard: u32,
    /// The id of the member that reads it, if that is known.
    pub member: Option<String>,
    /// What was committed; nothing yet if `None`.
    pub committed: Option<Offset>,
    /// First offset that was not removed.
    pub log_start: Offset,
    /// The offset that the next record gets.
    pub end: Offset,
    /// Records that are there and not consumed, going by what was committed; all that are there if nothing was.
    pub records: u64,
    /// The age of the oldest of them; zero if there are none. `None` if it can't be read, or has no time.
    pub time: Option<Duration>,
}

impl GroupInfo {
    /// Records that are not consumed, of all shards.
    pub fn lag_records(&self) -> u64 {
        self.shards.iter().map(|shard| shard.records).sum()
    }

    /// The age of the oldest record that is not consumed, of all shards.
    pub fn lag_time(&self) -> Duration {
        self.shards.iter().filter_map(|shard| shard.time).max().unwrap_or_default()
    }
}

/// What was committed; nothing that a client committed is below 0.
fn offset_of(committed: &Committed) -> Offset {
    Offset(u64::try_from(committed.offset).unwrap_or(0))
}

/// What a reset did, or would do, to one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The stream.
    pub stream: String,
    /// The shard.
    pub shard: u32,
    /// What was committed before.
    pub before: Option<Offset>,
    /// What is committed now: the first record that is consumed next.
    pub after: Offset,
}

/// Why something was not done to a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// There is none of that name.
    #[error("there is no group {0}")]
    Unknown(String),
    /// Members would go on from where they are.
    #[error("group {0} has members: stop them first")]
    NotEmpty(String),
    /// Nothing says which streams are meant.
    #[error("group {0} has committed nothing: name a stream")]
    NoStream(String),
    /// No stream has that name.
    #[error("there is no stream {0}")]
    UnknownStream(String),
    /// The position is none of the shard's.
    #[error("stream {stream}, shard {shard}: {error}")]
    Read {
        /// The stream.
        stream: String,
        /// The shard.
        shard: u32,
        /// What is wrong.
        error: ReadError,
    },
    /// It was refused, or could not be made durable.
    #[error("group {name}: {error:?}")]
    Refused {
        /// The group.
        name: String,
        /// As clients are told.
        error: ErrorCode,
    },
}

/// Times that are remembered, beyond which all are forgotten.
const TIMES_MAX: usize = 100_000;

/// Times of records, by where they are: what is asked for again and again is where a group stands still.
#[derive(Debug, Default)]
pub(crate) struct RecordTimes(Mutex<HashMap<(ShardId, Offset), i64>>);

impl RecordTimes {
    /// When the record at `offset` was made, wall time in ms, to the accuracy of its batch: a batch's records are made
    /// within the few milliseconds that a producer waits for more. [`NO_TIMESTAMP_MS`] if its producer gave it none.
    async fn of(&self, log: &Log, shard: ShardId, offset: Offset) -> Result<i64, ReadError> {
        if let Some(ms) = self.0.lock().get(&(shard, offset)).copied() {
            return Ok(ms);
        }
        let fetched = log.fetch_one(shard, offset).await?;
        let batch = fetched.pieces.first().map_or(&[][..], |piece| piece);
        let header = BatchHeader::parse(batch).map_err(|error| ReadError::Corrupt(error.to_string()))?;
        let is_first = header.base_offset == offset;
        let ms = if is_first && !header.is_append_time() {
            header.base_timestamp_ms
        } else {
            header.max_timestamp_ms
        };
        let mut times = self.0.lock();
        if times.len() >= TIMES_MAX {
            times.clear();
        }
        times.insert((shard, offset), ms);
        Ok(ms)
    }
}

/// Members, who reads which shard, and how they are divided.
type Members = (Vec<MemberInfo>, BTreeMap<(String, u32), String>, String);

fn classic_members(group: &ClassicGroup) -> Members {
    let mut members = Vec::with_capacity(group.members.len());
    let mut readers = BTreeMap::new();
    for (id, member) in &group.members {
        let assigned = group.assigned(member);
        members.push(MemberInfo {
            id: id.clone(),
            instance: member.instance.clone(),
            client_id: member.client_id.to_string(),
            host: member.client_host.trim_start_matches('/').to_owned(),
            shards: assigned.len(),
        });
        readers.extend(assigned.into_iter().map(|shard| (shard, id.clone())));
    }
    (members, readers, group.protocol.clone().unwrap_or_default())
}

impl Broker {
    /// The names of all groups, in order.
    pub fn group_names(&self) -> Vec<String> {
        self.groups.names().into_iter().map(|name| name.to_string()).collect()
    }

    /// A group as it is, with its lag. Reads the batches at which it stands, from memory where they are there.
    ///
    /// # Errors
    /// There is no such group.
    pub async fn describe_group(&self, name: &str) -> Result<GroupInfo, GroupError> {
        let unknown = || GroupError::Unknown(name.to_owned());
        let groups = self.groups.of(name).map_err(|error| refusal(name, error))?;
        let snapshot = groups.group(name).ok_or_else(unknown)?;
        let group = &snapshot.group;
        let (members, readers, protocol) = match group {
            Group::Classic(group) => classic_members(group),
            Group::Consumer(group) => self.consumer_members(group),
        };
        let shards = self.shard_lags(groups.offsets().of(name), readers).await;
        Ok(GroupInfo {
            name: name.to_owned(),
            kind: group.kind().name(),
            state: group.state(),
            protocol_type: group.protocol_type().unwrap_or_default().to_owned(),
            protocol,
            generation: group.generation(),
            members,
            shards,
        })
    }

    fn consumer_members(&self, group: &ConsumerGroup) -> Members {
        let mut members = Vec::with_capacity(group.members.len());
        let mut readers = BTreeMap::new();
        for (id, member) in &group.members {
            let mut shards = 0;
            for (stream, partitions) in member.has() {
                shards += partitions.len();
                let Ok(stream) = self.log.stream_by_id(stream) else { continue };
                let read = partitions.iter().map(|number| ((stream.name.clone(), *number), id.clone()));
                readers.extend(read);
            }
            members.push(MemberInfo {
                id: id.clone(),
                instance: member.instance.clone(),
                client_id: member.client_id.to_string(),
                host: member.client_host.trim_start_matches('/').to_owned(),
                shards,
            });
        }
        (members, readers, group.assignor.name().to_owned())
    }

    async fn shard_lags(
        &self,
        offsets: GroupOffsets,
        mut readers: BTreeMap<(String, u32), String>,
    ) -> Vec<ShardLag> {
        let mut lags: BTreeMap<(String, u32), ShardLag> = BTreeMap::new();
        for ((stream, number), committed) in offsets {
            // That of a deleted one is about to go.
            let Ok(stream) = self.log.stream_by_id(stream) else { continue };
            let key = (stream.name.clone(), number);
            let member = readers.remove(&key);
            let lag = self.shard_lag(&stream, number, Some(committed), member).await;
            lags.extend(lag.map(|lag| (key, lag)));
        }
        for (key, member) in readers {
            let Ok(stream) = self.log.stream(&key.0) else { continue };
            let lag = self.shard_lag(&stream, key.1, None, Some(member)).await;
            lags.extend(lag.map(|lag| (key, lag)));
        }
        lags.into_values().collect()
    }

    async fn shard_lag(
        &self,
        stream: &LogStreamInfo,
        number: u32,
        committed: Option<Committed>,
        member: Option<String>,
    ) -> Option<ShardLag> {
        let shard = ShardId { stream: stream.id, shard: ShardNumber(number) };
        let committed = committed.map(|committed| offset_of(&committed));
        let (log_start, end, next, time) = loop {
            let tails = self.log.tails(stream.id, &[shard.shard]).ok()?;
            let tail = tails.first()?;
            let (log_start, end) = (tail.log_start, tail.next_offset);
            let next = committed.unwrap_or(log_start).clamp(log_start, end);
            let time = if next == end {
                Some(Duration::ZERO)
            } else {
                let made = match self.record_times.of(&self.log, shard, next).await {
                    // It was removed since the look at where the shard begins.
                    Err(ReadError::Truncated { log_start }) if log_start > next => continue,
                    made => made.ok().filter(|ms| *ms != NO_TIMESTAMP_MS),
                };
                let age = |ms| self.env.wall_ms().saturating_sub(ms).max(0).unsigned_abs();
                made.map(|ms| Duration::from_millis(age(ms)))
            };
            break (log_start, end, next, time);
        };
        let (stream, records) = (stream.name.clone(), end.0 - next.0);
        Some(ShardLag { stream, shard: number, member, committed, log_start, end, records, time })
    }

    /// Deletes a group that has no members, with what it committed.
    pub async fn delete_group(&self, name: &str) -> Result<(), GroupError> {
        let groups = self.groups.of(name).map_err(|error| refusal(name, error))?;
        groups.delete(name).await.map_err(|error| refusal(name, error))
    }

    /// Commits for a group without members that it goes on with `to`, in all shards of `streams`, or of those that it
    /// has committed something of if none are given. With `dry_run` it only says what would be committed. A group that
    /// is not there is made.
    ///
    /// # Errors
    /// Nothing was changed then.
    pub async fn reset_group(
        &self,
        name: &str,
        streams: &[String],
        to: LocateRead,
        dry_run: bool,
    ) -> Result<Vec<Reset>, GroupError> {
        let groups = self.groups.of(name).map_err(|error| refusal(name, error))?;
        let known = groups.offsets().of(name);
        let streams: Vec<LogStreamInfo> = if streams.is_empty() {
            let mut ids: Vec<_> = known.keys().map(|(stream, _)| *stream).collect();
            ids.dedup();
            ids.into_iter().filter_map(|id| self.log.stream_by_id(id).ok()).collect()
        } else {
            let find =
                |name: &String| self.log.stream(name).map_err(|_| GroupError::UnknownStream(name.clone()));
            streams.iter().map(find).collect::<Result<_, _>>()?
        };
        if streams.is_empty() {
            return Err(match groups.group(name) {
                Some(_) => GroupError::NoStream(name.to_owned()),
                None => GroupError::Unknown(name.to_owned()),
            });
        }
        let mut resets = Vec::new();
        let mut offsets = GroupOffsets::new();
        for stream in &streams {
            for number in 0..stream.config.shards {
                let shard = ShardId { stream: stream.id, shard: ShardNumber(number) };
                let found = self.log.locate(shard, to).await;
                let found = found.map_err(|error| GroupError::Read {
                    stream: stream.name.clone(),
                    shard: number,
                    error,
                })?;
                let before = known.get(&(stream.id, number)).map(offset_of);
                let after = found.offset;
                resets.push(Reset { stream: stream.name.clone(), shard: number, before, after });
                let committed = Committed {
                    offset: after.0 as i64,
                    leader_epoch: -1,
                    committed_ms: self.env.wall_ms(),
                    expires_ms: None,
                    metadata: String::new(),
                };
                offsets.insert((stream.id, number), committed);
            }
        }
        if !dry_run {
            commit(&groups, name, offsets).await?;
        }
        Ok(resets)
    }
}

async fn commit(groups: &Coordinator, name: &str, offsets: GroupOffsets) -> Result<(), GroupError> {
    let nobody = Committer { generation: -1, ..Committer::default() };
    groups.check_commit(name, &nobody).map_err(|error| match error {
        // Somebody is in it.
        ErrorCode::UnknownMemberId => GroupError::NotEmpty(name.to_owned()),
        error => refusal(name, error),
    })?;
    groups.commit(name, offsets).await.map_err(|error| refusal(name, error))
}

fn refusal(name: &str, error: ErrorCode) -> GroupError {
    match error {
        ErrorCode::GroupIdNotFound => GroupError::Unknown(name.to_owned()),
        ErrorCode::NonEmptyGroup => GroupError::NotEmpty(name.to_owned()),
        error => GroupError::Refused { name: name.to_owned(), error },
    }
}
