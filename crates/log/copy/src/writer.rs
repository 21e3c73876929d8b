//! The lower end of a hop: the operations that copy the shards of one stream from the cluster above, one for each
//! shard, for as long as the plan says so. They share a session and its window.
//!
//! It asks for more before it has what it asked for, so that the link is never idle, and does what `follow.rs` makes of
//! the answers: hands the entries to the log in order. Where a session ends, by whichever end, it waits until the log
//! has answered all that it took, and begins again where the log ends.
//!
//! A shard that can't be appended to is held: the cluster above is told to send nothing of it, and the others go on.
//! When the log has answered all that it took of it, and after a pause if that was an error, it goes on where the log
//! ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tailwater_env::{BoxFuture, Env, Instant};
use tailwater_format::call::{
    CopyEntries, CopyFrom, CopyOpen, CopyOpened, Method, decode_call, encode_call, stream_to_wire,
};
use tailwater_format::limits::CHUNK_BYTES_MIN;
use tailwater_format::{Offset, Position, SegmentNumber, ShardId, ShardNumber, StreamId, Tail, Term};
use tailwater_log::{AppendError, Log, StreamError};
use tailwater_rma::{CallError, Connection};

use crate::ask::{AskFailed, ask_over, connect, in_words};
use crate::follow::{Follow, FollowStep};
use crate::hop::{CopiedEntry, Hop};
use crate::limits::{
    BUSY_PAUSE, QUESTIONS_MAX, RETRY_MAX, RETRY_MIN, SHARD_BYTES_MAX, SHARD_PATIENCE, SILENCE_MAX, WINDOW,
};
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

/// The number of a question, and its answer.
pub(crate) type NextAnswer = BoxFuture<'static, (u64, Result<Bytes, CallError>)>;
type ShardTruncation = BoxFuture<'static, (ShardId, Result<Offset, StreamError>)>;

/// A shard that is not copied for now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldShard {
    /// It does not go on before.
    pub(crate) until: Instant,
    /// The pause after the next error.
    pub(crate) pause: Duration,
    /// It has gone on, and nothing is known to be wrong.
    pub(crate) is_over: bool,
}

/// What one session of an operation keeps.
struct CopyingSession {
    connection: Arc<dyn Connection>,
    number: u64,
    follow: Follow,
    /// Shards that are held, and those that were until lately.
    held: BTreeMap<ShardNumber, HeldShard>,
    truncations: FuturesUnordered<ShardTruncation>,
    answers: FuturesUnordered<NextAnswer>,
}

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
        let (mut tails, mut damaged) = (Vec::new(), Vec::new());
        for shard in (0..shards).map(ShardNumber) {
            match self.tail(shard) {
                Ok(tail) => tails.push(tail),
                Err(why) => {
                    tails.push(NO_TAIL);
                    damaged.push((shard, why));
                }
            }
        }
        let next: Vec<Offset> = tails.iter().map(|tail| tail.next_offset).collect();
        let connection = connect(&self.env, &*self.links, &self.address).await?;
        let from = (0..).zip(&next).map(|(shard, next)| CopyFrom { shard, next_offset: next.0 });
        let open = CopyOpen {
            stream: stream_to_wire(self.stream),
            cluster: self.cluster.clone(),
            plan: self.hop.plan,
            from: from.collect(),
            lineage: self.lineage,
            operation: 0,
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
        let mut session = CopyingSession {
            connection,
            number: opened.session,
            follow,
            held: BTreeMap::new(),
            truncations: FuturesUnordered::new(),
            answers: FuturesUnordered::new(),
        };
        for (shard, why) in damaged {
            self.hold(&mut session, shard, &why, true);
        }
        self.follow(session).await
    }

    async fn follow(&self, mut session: CopyingSession) -> Result<std::convert::Infallible, String> {
        self.spend(0).await;
        let window = self.pace.as_ref().map_or(WINDOW, |pace| pace.window());
        let mut silent_at = self.env.now() + SILENCE_MAX;
        loop {
            self.look_after_shards(&mut session)?;
            session.ask(window);
            let look_at = session.held.values().filter(|held| !held.is_over).map(|held| held.until).min();
            let wake_at = look_at.map_or(silent_at, |at| at.max(self.env.now() + BUSY_PAUSE).min(silent_at));
            let (asked, answer) = tokio::select! {
                biased;
                Some((asked, answer)) = session.answers.next() => (asked, answer.map_err(|error| in_words(&error))?),
                Some((shard, result)) = session.truncations.next() => {
                    self.truncated(&mut session, shard, result);
                    continue;
                }
                () = self.hop.answered.notified() => continue,
                () = self.env.sleep_until(wake_at) => {
                    if self.env.now() < silent_at {
                        continue;
                    }
                    return Err(format!("{} was silent for {} s", session.connection.peer(), SILENCE_MAX.as_secs()));
                }
            };
            silent_at = self.env.now() + SILENCE_MAX;
            let bytes = answer.len();
            let entries: CopyEntries = decode_call(answer).map_err(|error| error.to_string())?;
            let steps = session.follow.answer(asked, entries);
            // Nobody copies from here what may have come from there.
            let steps = steps.inspect_err(|_| self.sessions.set_way(self.stream, None))?;
            if self.pace.is_none() {
                session.ask(window);
            }
            for step in steps {
                self.carry_out(&mut session, step).await?;
            }
            self.spend(bytes).await;
            for (shard, start) in session.follow.truncations() {
                let log = self.log.clone();
                let truncation = async move { (shard, log.truncate_copy(shard, start).await) };
                session.truncations.push(Box::pin(truncation));
            }
            if self.shards()? as usize != session.follow.shards() {
                return Err("the stream has more shards now".to_owned());
            }
        }
    }

    async fn spend(&self, bytes: usize) {
        if let Some(pace) = &self.pace {
            pace.spend(&self.env, bytes).await;
        }
    }

    async fn carry_out(&self, session: &mut CopyingSession, step: FollowStep) -> Result<(), String> {
        match step {
            FollowStep::Way(way) => self.sessions.set_way(self.stream, Some(way)),
            FollowStep::Told(news) => self.hop.told(news.shard as usize, &news),
            // What was to come before it was not appended.
            FollowStep::Begin(shard, _) | FollowStep::Append(shard, ..)
                if session.follow.is_held(shard.shard) => {}
            FollowStep::Begin(shard, offset) => self.begin(session, shard, offset).await,
            FollowStep::Append(shard, entry, copied) => self.append(session, shard, &entry, copied).await?,
        }
        Ok(())
    }

    fn shards(&self) -> Result<u32, String> {
        let stream = self.log.stream_by_id(self.stream).map_err(|error| error.to_string())?;
        Ok(stream.config.shards)
    }

    fn tail(&self, shard: ShardNumber) -> Result<Tail, String> {
        let view = self.log.view(ShardId { stream: self.stream, shard });
        view.map(|view| view.tail).map_err(|error| error.to_string())
    }

    /// Hands an entry to the log, which may have too much to do for a while.
    async fn append(
        &self,
        session: &mut CopyingSession,
        shard: ShardId,
        entry: &Bytes,
        appending: CopiedEntry,
    ) -> Result<(), String> {
        let began = self.env.now();
        loop {
            if let Some(error) = self.hop.failure(appending.shard) {
                self.hold(session, shard.shard, &error.to_string(), true);
                return Ok(());
            }
            let (entries, bytes, answered_at) = self.hop.shard_under_way(appending.shard);
            if entries > 0 && bytes + appending.bytes > SHARD_BYTES_MAX {
                if self.env.now().since(began.max(answered_at)) >= SHARD_PATIENCE {
                    let why = format!("its log has answered nothing of {entries} entries for a while");
                    self.hold(session, shard.shard, &why, false);
                    return Ok(());
                }
                self.env.timeout(BUSY_PAUSE, self.hop.answered.notified()).await;
                continue;
            }
            self.hop.appending(&appending);
            let (hop, env) = (Arc::clone(&self.hop), self.env.clone());
            let answer = move |outcome: Result<_, AppendError>| {
                hop.answer(&appending, outcome.err(), env.now(), env.wall_ms());
            };
            let Err(error) = self.log.append_copied(shard, entry, answer) else { return Ok(()) };
            self.hop.not_taken(&appending);
            match error {
                AppendError::Overloaded(_) => {
                    self.env.timeout(BUSY_PAUSE, self.hop.answered.notified()).await;
                }
                AppendError::NoStream | AppendError::NoShard { .. } | AppendError::Closed => {
                    return Err(error.to_string());
                }
                error => {
                    self.hold(session, shard.shard, &error.to_string(), true);
                    return Ok(());
                }
            }
        }
    }

    /// Has the log go on behind a gap. Where it has yet to answer entries of the shard, that is held until then: the
    /// cluster above tells of the gap again.
    async fn begin(&self, session: &mut CopyingSession, shard: ShardId, offset: Offset) {
        let index = shard.shard.0 as usize;
        if self.hop.shard_under_way(index).0 > 0 {
            return self.hold(session, shard.shard, "it goes on behind a gap", false);
        }
        tracing::warn!(%shard, %offset, "a copy goes on behind a gap: its source has removed records that it had not");
        match self.log.begin_copy(shard, offset).await {
            Ok(()) => self.hop.begun(index, offset),
            Err(error) => self.hold(session, shard.shard, &error.to_string(), true),
        }
    }

    /// Has nothing more of a shard come until the log has answered all that it took, and after an error for a while
    /// longer.
    fn hold(&self, session: &mut CopyingSession, shard: ShardNumber, why: &str, is_error: bool) {
        let now = self.env.now();
        let before = session.held.get(&shard).map_or(RETRY_MIN, |held| held.pause);
        let (until, pause) =
            if is_error { (now + before, (before * 2).min(RETRY_MAX)) } else { (now, before) };
        session.held.insert(shard, HeldShard { until, pause, is_over: false });
        session.follow.hold(shard);
        self.hop.hold(shard.0 as usize, Some(why.to_owned()));
        tracing::info!(stream = %self.stream, shard = shard.0, why, "a shard of a copy waits");
    }

    /// Holds shards that have failed since, and has those go on that may.
    fn look_after_shards(&self, session: &mut CopyingSession) -> Result<(), String> {
        for (index, error) in self.hop.failures() {
            let shard = ShardNumber(index as u32);
            match error {
                AppendError::NoStream | AppendError::Closed => return Err(error.to_string()),
                error if !session.follow.is_held(shard) => {
                    self.hold(session, shard, &error.to_string(), true);
                }
                _ => {}
            }
        }
        let now = self.env.now();
        for shard in self.hop.overdue(now, |shard| Some(self.tail(shard).ok()?.next_offset)) {
            if !session.follow.is_held(shard) {
                self.hold(session, shard, "what another operation has appended is not there", false);
            }
        }
        // One that went well for a while is forgotten.
        session.held.retain(|_, held| !held.is_over || now.since(held.until) < RETRY_MAX * 2);
        let due = session.held.iter().filter(|(_, held)| !held.is_over && held.until <= now);
        let due: Vec<(ShardNumber, HeldShard)> = due.map(|(shard, held)| (*shard, *held)).collect();
        for (shard, held) in due {
            if self.hop.shard_under_way(shard.0 as usize).0 > 0 {
                continue;
            }
            match self.tail(shard) {
                Ok(tail) => {
                    session.held.insert(shard, HeldShard { is_over: true, until: now, ..held });
                    session.follow.resume(shard, tail.next_offset, tail.log_start);
                    self.hop.hold(shard.0 as usize, None);
                }
                Err(why) => self.hold(session, shard, &why, true),
            }
        }
        Ok(())
    }

    /// Takes in that what the source has removed was removed here, as far as it is durable: the rest goes with a later
    /// answer.
    fn truncated(&self, session: &mut CopyingSession, shard: ShardId, result: Result<Offset, StreamError>) {
        let start = match result {
            Ok(start) => Some(start),
            Err(StreamError::BeyondEnd { .. } | StreamError::Overloaded) => None,
            Err(error) => {
                tracing::warn!(%shard, %error, "a copy keeps what its source has removed, and tries again");
                None
            }
        };
        session.follow.truncated(shard.shard, start);
    }
}

/// Of a shard that can't be read: it is held before anything is asked of it.
pub(crate) const NO_TAIL: Tail = Tail {
    segment: SegmentNumber(0),
    term: Term(0),
    base_offset: Offset(0),
    cached: Position(0),
    durable: Position(0),
    next_offset: Offset(0),
    sealed: true,
    previous: None,
    chunk_bytes: CHUNK_BYTES_MIN,
    cells: true,
    log_start: Offset(0),
};

/// Asks until the window is full, and once more if the cluster above has to know something of a shard.
pub(crate) fn ask_on(
    follow: &mut Follow,
    session: u64,
    connection: &Arc<dyn Connection>,
    answers: &mut FuturesUnordered<NextAnswer>,
    window: usize,
) {
    while follow.unanswered() < window || follow.has_news() && follow.unanswered() < QUESTIONS_MAX {
        let (number, question) = follow.question(session);
        let (question, connection) = (encode_call(&question), Arc::clone(connection));
        let answer = async move { (number, connection.call(Method::CopyNext.number(), question).await) };
        answers.push(Box::pin(answer));
    }
}

impl CopyingSession {
    fn ask(&mut self, window: usize) {
        ask_on(&mut self.follow, self.number, &self.connection, &mut self.answers, window);
    }
}
