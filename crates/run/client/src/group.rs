//! A consumer that shares a stream's shards with others: in a group of Kafka's protocol, so that Kafka's clients may be
//! in the same one, but reading one-sidedly.
//!
//! ```text
//!   GroupConsumer --JoinGroup, SyncGroup, OffsetFetch--> the node's coordinator
//!        |      `--OffsetCommit: what the application is done with
//!        |      a task --Heartbeat--> "join again"
//!        `-- Consumer: the records of the shards that were assigned, from the cells
//! ```
//!
//! What holds:
//! - **Order.** Before it joins again it commits what the application is done with, and reads nothing until it knows
//!   its shards, so whoever gets a shard goes on exactly there, and a shard's records are consumed in order.
//! - **At least once.** Only what the application is done with is committed ([`GroupConsumer::done`]); what it was
//!   handed besides comes again, to whoever has the shard then.
//! - Who is silent for [`GroupConfig::session_timeout`], or does not call [`GroupConsumer::next_within`] for
//!   [`GroupConfig::rebalance_timeout`] while the group waits for it, is out; it joins again by itself, and what it had
//!   not committed by then is consumed by others.

mod assign;
mod connection;
mod membership;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tailwater_env::{Env, Instant};
use tailwater_format::{Offset, Start};
use tailwater_kafka_wire::ErrorCode;

use crate::{Batch, Client, Consumer, Error, Stream};
use membership::{GroupMembership, is_healed_by_joining};

/// How a consumer behaves in its group.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The group's name.
    pub group: String,
    /// Where the node speaks Kafka's protocol, as `HOST:PORT`; in TLS, by the client's own dialer, as `tls:HOST:PORT`.
    pub kafka: String,
    /// The name of a static member: one that comes back within the session timeout keeps its shards.
    pub instance: Option<String>,
    /// A name that the group's administrators see.
    pub client_id: String,
    /// Where to begin in shards of which the group has committed nothing.
    pub start: Start,
    /// A member that is silent for so long is out.
    pub session_timeout: Duration,
    /// How long a rebalance waits for this member.
    pub rebalance_timeout: Duration,
    /// How often is committed, at most, while records are consumed.
    pub commit_interval: Duration,
}

impl GroupConfig {
    /// The usual: sessions of 45 s, rebalances of 5 minutes, a commit every 5 s, beginning with the oldest record.
    pub fn new(group: impl Into<String>, kafka: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            kafka: kafka.into(),
            instance: None,
            client_id: "tailwater".to_owned(),
            start: Start::Beginning,
            session_timeout: Duration::from_secs(45),
            rebalance_timeout: Duration::from_secs(300),
            commit_interval: Duration::from_secs(5),
        }
    }
}

/// Reads those shards of a stream that its group gives it. Dropping it without [`GroupConsumer::close`] leaves its
/// shards to nobody until its session ends.
pub struct GroupConsumer {
    client: Client,
    env: Env,
    stream: Stream,
    config: GroupConfig,
    membership: GroupMembership,
    /// Reads the shards of this generation; none while it is not in one, or has none.
    consumer: Option<Consumer>,
    /// The shards of this generation.
    shards: BTreeSet<u32>,
    /// What the application is done with, and what of that is not committed.
    done: BTreeMap<u32, Offset>,
    uncommitted: BTreeSet<u32>,
    committed_at: Instant,
}

impl Client {
    /// A consumer of the stream of that name, in a group. It joins when it is first asked for records.
    pub async fn group_consumer(&self, stream: &str, config: GroupConfig) -> Result<GroupConsumer, Error> {
        let stream = self.stream(stream).await?;
        let env = self.node().env().clone();
        let membership = GroupMembership::new(&env, &config, self.node(), &stream);
        Ok(GroupConsumer {
            client: self.clone(),
            committed_at: env.now(),
            env,
            stream,
            config,
            membership,
            consumer: None,
            shards: BTreeSet::new(),
            done: BTreeMap::new(),
            uncommitted: BTreeSet::new(),
        })
    }
}

impl GroupConsumer {
    /// The next records of any of its shards; waits no longer than `limit`, unless the group rebalances. Cancelling it
    /// loses no record.
    ///
    /// # Errors
    /// As of [`Consumer::next`], and [`Error::Group`] where the group does not take this member. After one for which
    /// [`Error::is_retriable`] holds, the next call goes on.
    pub async fn next_within(&mut self, limit: Duration) -> Result<Option<Batch>, Error> {
        let end = self.env.now() + limit;
        loop {
            if self.membership.is_due() {
                self.join().await?;
            }
            if self.env.now().since(self.committed_at) >= self.config.commit_interval {
                self.commit().await?;
            }
            let now = self.env.now();
            if now >= end {
                return Ok(None);
            }
            // Not past the next commit, so that what is done while nothing comes is committed too.
            let due = self.committed_at + self.config.commit_interval;
            let wait = if self.uncommitted.is_empty() { end } else { due.min(end) };
            let wait = wait.since(now);
            let Some(consumer) = &mut self.consumer else {
                let _ = self.env.timeout(wait, self.membership.changed()).await;
                continue;
            };
            tokio::select! {
                biased;
                () = self.membership.changed() => {}
                batch = consumer.next_within(wait) => if let Some(batch) = batch? {
                    return Ok(Some(batch));
                },
            }
        }
    }

    /// Says that the application is done with a shard's records before `next_offset`: they are committed with the next
    /// commit. Of a shard that is another member's by now this has no effect.
    pub fn done(&mut self, shard: u32, next_offset: Offset) {
        if self.shards.contains(&shard) && self.done.insert(shard, next_offset) != Some(next_offset) {
            self.uncommitted.insert(shard);
        }
    }

    /// Commits at once what the application is done with.
    ///
    /// # Errors
    /// [`Error::Group`] where the node refuses for good what is committed: there is no room for it, or the stream is
    /// gone. It is tried again with the next commit, as long as this member has the shard. That the group goes on
    /// without this member is none: it joins again, and what was not committed is consumed again, by whoever has its
    /// shards then.
    pub async fn commit(&mut self) -> Result<(), Error> {
        self.committed_at = self.env.now();
        if self.uncommitted.is_empty() {
            return Ok(());
        }
        let offsets = self.uncommitted.iter().filter_map(|shard| Some((*shard, *self.done.get(shard)?)));
        match self.membership.commit(offsets.collect()).await {
            Ok(()) => self.uncommitted.clear(),
            Err(Error::Group { code, .. }) if is_healed_by_joining(code) => {
                tracing::warn!(group = self.config.group, ?code, "not committed: it joins again");
                self.membership.join_again(code);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether it is in the group, and knows its shards.
    pub fn is_joined(&self) -> bool {
        !self.membership.is_due()
    }

    /// The shards that it has at the moment.
    pub fn shards(&self) -> impl Iterator<Item = u32> {
        self.shards.iter().copied()
    }

    /// Up to where each of its shards is consumed: what the application is done with, or what was committed before.
    pub fn offsets(&self) -> impl Iterator<Item = (u32, Offset)> {
        self.done.iter().map(|(shard, offset)| (*shard, *offset))
    }

    /// Commits what the application is done with, and leaves the group, so that others take over at once.
    pub async fn close(mut self) -> Result<(), Error> {
        let committed = self.commit().await;
        self.membership.leave().await;
        committed
    }

    /// Joins the group, anew or again, and goes on with the shards that it gets.
    async fn join(&mut self) -> Result<(), Error> {
        if self.membership.is_member() {
            // Whoever gets these shards begins here.
            if let Err(error) = self.commit().await {
                if matches!(error, Error::Group { .. }) {
                    // That is told once, and does not keep this member out of the group.
                    self.uncommitted.clear();
                }
                return Err(error);
            }
        }
        self.consumer = None;
        self.shards.clear();
        self.done.clear();
        self.uncommitted.clear();
        let shards = self.membership.join(&self.client).await?;
        let committed = self.membership.committed(&shards).await?;
        let mut starts = Vec::with_capacity(shards.len());
        for shard in &shards {
            let start = committed.get(shard).map_or(self.config.start, |offset| Start::Offset(*offset));
            starts.push((*shard, start));
        }
        tracing::debug!(group = self.config.group, ?starts, "joined");
        if !starts.is_empty() {
            let consumer = self.consumer_at(starts).await?;
            self.done.extend(consumer.offsets());
            self.consumer = Some(consumer);
        }
        self.shards = shards;
        self.membership.joined();
        Ok(())
    }
}

impl GroupConsumer {
    /// Reads from these places; from where a new group begins in shards whose next records were removed.
    async fn consumer_at(&self, starts: Vec<(u32, Start)>) -> Result<Consumer, Error> {
        let at = |starts| Consumer::start_at(self.client.clone(), self.stream.clone(), starts);
        match at(starts.clone()).await {
            Err(error) if is_out_of_range(&error) => {}
            done => return done,
        }
        let mut reachable = Vec::with_capacity(starts.len());
        for (shard, start) in starts {
            match at(vec![(shard, start)]).await {
                Err(error) if is_out_of_range(&error) => {
                    let stream = &self.stream.name;
                    tracing::warn!(group = self.config.group, %stream, shard, %start, "what is due was removed");
                    reachable.push((shard, self.config.start));
                }
                Ok(_) => reachable.push((shard, start)),
                Err(error) => return Err(error),
            }
        }
        at(reachable).await
    }
}

fn is_out_of_range(error: &Error) -> bool {
    let code = tailwater_format::call::CallErrorCode::OffsetOutOfRange;
    matches!(error, Error::Refused(refusal) if refusal.code == code)
}

impl Error {
    fn group(group: &str, code: ErrorCode) -> Self {
        Error::Group { group: group.to_owned(), code }
    }
}
