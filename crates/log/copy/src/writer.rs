//! The lower end of a hop: an operation that copies the shards of one stream from the cluster above, for as long as the
//! plan says so.
//!
//! It asks for more before it has what it asked for, so that the link is never idle, and does what `follow.rs` makes of
//! the answers: hands the entries to the log in order. Where a session ends, by whichever end, it waits until the log
//! has answered all that it took, and begins again where the log ends.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tailwater_env::{BoxFuture, Env};
use tailwater_format::call::{
    CopyEntries, CopyFrom, CopyNext, CopyOpen, CopyOpened, Method, decode_call, encode_call, stream_to_wire,
};
use tailwater_format::{Offset, ShardId, ShardNumber, StreamId};
use tailwater_log::{AppendError, Log, StreamError};
use tailwater_rma::{CallError, Connection};

use crate::ask::{AskFailed, ask_over, connect, in_words};
use crate::follow::{Follow, FollowStep};
use crate::hop::{CopiedEntry, Hop};
use crate::limits::{BUSY_PAUSE, RETRY_MAX, RETRY_MIN, SILENCE_MAX, WINDOW};
use crate::links::ClusterLinks;
use crate::pace::LinkPace;
use crate::reader::Sessions;

/// What an operation is made of.
pub(crate) struct CopyOperation {
    pub(crate) env: Env,
    pub(crate) log: Log,
    pub(crate) links: Arc<dyn ClusterLinks>,
    pub(crate) stream: StreamId,
    /// The last forced move of the source by the plan, and 0 before the first.
    pub(crate) lineage: u64,
    /// The name of this cluster.
    pub(crate) cluster: String,
    /// Where the cluster above is reached.
    pub(crate) address: String,
    pub(crate) hop: Arc<Hop>,
    /// Those that other clusters have open here: they are told by which way this one has what it has.
    pub(crate) sessions: Arc<Sessions>,
    /// What the link to the cluster above may carry, if that has a bound.
    pub(crate) pace: Option<Arc<LinkPace>>,
}

type NextAnswer = BoxFuture<'static, Result<Bytes, CallError>>;

impl CopyOperation {
    /// Copies until it is dropped.
    pub(crate) async fn run(self) {
        let mut pause = RETRY_MIN;
        loop {
            let began = self.env.now();
            let Err(why) = self.session().await;
            self.hop.end(&why);
            tracing::info!(stream = %self.stream, from = self.hop.from, %why, "a copy's session ended");
            while self.hop.under_way() > 0 {
                self.hop.answered.notified().await;
            }
            // One that went well for a while begins again at once.
            if self.env.now().since(began) > RETRY_MAX * 2 {
                pause = RETRY_MIN;
            }
            let jitter = self.env.random_below(pause.as_micros() as u64 / 2 + 1);
            self.env.sleep(pause / 2 + Duration::from_micros(jitter)).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Copies until something ends it, which is what is answered.
    async fn session(&self) -> Result<std::convert::Infallible, String> {
        let shards = self.shards()?;
        let numbers: Vec<ShardNumber> = (0..shards).map(ShardNumber).collect();
        let tails = self.log.tails(self.stream, &numbers).map_err(|error| error.to_string())?;
        let next: Vec<Offset> = tails.iter().map(|tail| tail.next_offset).collect();
        let connection = connect(&self.env, &*self.links, &self.address).await?;
        let from = (0..).zip(&next).map(|(shard, next)| CopyFrom { shard, next_offset: next.0 });
        let open = CopyOpen {
            stream: stream_to_wire(self.stream),
            cluster: self.cluster.clone(),
            plan: self.hop.plan,
            from: from.collect(),
            lineage: self.lineage,
        };
        let opened = ask_over(&self.env, &*connection, Method::CopyOpen, &open).await;
        let opened: CopyOpened = opened.map_err(AskFailed::into_words)?;
        let follow = Follow::new(self.stream, &self.cluster, &self.hop.from, &tails);
        if let Err(why) = follow.check_way(&opened.way) {
            self.sessions.set_way(self.stream, None);
            return Err(why);
        }
        self.sessions.set_way(self.stream, Some(opened.way));
        self.hop.begin(&next);
        tracing::info!(stream = %self.stream, from = self.hop.from, "a copy's session began");
        self.follow(connection, opened.session, follow).await
    }

    async fn follow(
        &self,
        connection: Arc<dyn Connection>,
        session: u64,
        mut follow: Follow,
    ) -> Result<std::convert::Infallible, String> {
        let ask = || -> NextAnswer {
            let connection = Arc::clone(&connection);
            let question = encode_call(&CopyNext { session });
            Box::pin(async move { connection.call(Method::CopyNext.number(), question).await })
        };
        self.spend(0).await;
        let window = self.pace.as_ref().map_or(WINDOW, |pace| pace.window());
        let mut answers: FuturesUnordered<NextAnswer> = (0..window).map(|_| ask()).collect();
        loop {
            let answer = self.env.timeout(SILENCE_MAX, answers.next()).await;
            let silent = || format!("{} was silent for {} s", connection.peer(), SILENCE_MAX.as_secs());
            let answer = answer.flatten().ok_or_else(silent)?.map_err(|error| in_words(&error))?;
            let bytes = answer.len();
            let entries: CopyEntries = decode_call(answer).map_err(|error| error.to_string())?;
            let steps = follow.answer(entries);
            // Nobody copies from here what may have come from there.
            let steps = steps.inspect_err(|_| self.sessions.set_way(self.stream, None))?;
            if self.pace.is_none() {
                answers.push(ask());
            }
            for step in steps {
                self.carry_out(step).await?;
            }
            if self.pace.is_some() {
                self.spend(bytes).await;
                answers.push(ask());
            }
            self.truncate(&mut follow).await?;
            if let Some(error) = self.hop.failure() {
                return Err(error.to_string());
            }
            if self.shards()? as usize != follow.shards() {
                return Err("the stream has more shards now".to_owned());
            }
        }
    }

    async fn spend(&self, bytes: usize) {
        if let Some(pace) = &self.pace {
            pace.spend(&self.env, bytes).await;
        }
    }

    async fn carry_out(&self, step: FollowStep) -> Result<(), String> {
        match step {
            FollowStep::Way(way) => self.sessions.set_way(self.stream, Some(way)),
            FollowStep::Told(news) => self.hop.told(news.shard as usize, &news),
            FollowStep::Begin(shard, offset) => self.begin(shard, offset).await?,
            FollowStep::Append(shard, entry, copied) => self.append(shard, &entry, copied).await?,
        }
        Ok(())
    }

    fn shards(&self) -> Result<u32, String> {
        let stream = self.log.stream_by_id(self.stream).map_err(|error| error.to_string())?;
        Ok(stream.config.shards)
    }

    /// Hands an entry to the log, which may have too much to do for a while.
    async fn append(&self, shard: ShardId, entry: &Bytes, appending: CopiedEntry) -> Result<(), String> {
        loop {
            self.hop.appending(&appending);
            let (hop, env) = (Arc::clone(&self.hop), self.env.clone());
            let answer =
                move |outcome: Result<_, AppendError>| hop.answer(&appending, outcome.err(), env.wall_ms());
            let Err(error) = self.log.append_copied(shard, entry, answer) else { return Ok(()) };
            self.hop.not_taken(&appending);
            if !matches!(error, AppendError::Overloaded(_)) {
                return Err(error.to_string());
            }
            if let Some(error) = self.hop.failure() {
                return Err(error.to_string());
            }
            self.env.timeout(BUSY_PAUSE, self.hop.answered.notified()).await;
        }
    }

    /// Waits for the log's answers, and has it go on behind a gap.
    async fn begin(&self, shard: ShardId, offset: Offset) -> Result<(), String> {
        while self.hop.under_way() > 0 {
            self.hop.answered.notified().await;
        }
        if let Some(error) = self.hop.failure() {
            return Err(error.to_string());
        }
        tracing::warn!(%shard, %offset, "a copy goes on behind a gap: its source has removed records that it had not");
        self.log.begin_copy(shard, offset).await.map_err(|error| error.to_string())?;
        self.hop.begun(shard.shard.0 as usize, offset);
        Ok(())
    }

    /// Removes what the source has removed, as far as it is durable here: the rest goes with a later answer.
    async fn truncate(&self, follow: &mut Follow) -> Result<(), String> {
        for (shard, start) in follow.truncations() {
            match self.log.truncate_copy(shard, start).await {
                Ok(start) => follow.truncated(shard.shard, start),
                Err(StreamError::BeyondEnd { .. } | StreamError::Overloaded) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }
}
