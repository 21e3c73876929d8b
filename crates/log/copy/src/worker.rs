//! A worker of a cluster: a process that copies parts of streams from the clusters above, and pushes what comes to the
//! cluster's node (Fast ACS, 2.3: the workers' jobs).
//!
//! What holds:
//! - **It is told by nobody how far it is.** Where a shard goes on is what the node's log says when the operation
//!   begins, and what the log refuses later. So a worker keeps nothing, and may die at any moment.
//! - **It goes on alone.** It runs what it was told last for as long as it hears nothing else.
//! - **Bounded**: operations by what one answer may hold, and bytes of each by the window.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::future::{FutureExt, pending};
use futures::stream::FuturesUnordered;
use tailwater_env::{Env, Task};
use tailwater_format::call::{
    CopiedShard, CopyEntries, CopyFrom, CopyOpen, CopyOpened, CopyPush, CopyPushed, CopyReport, CopyRunning,
    CopyTask, CopyTasks, Method, decode_call, stream_from_wire,
};
use tailwater_format::{Offset, ShardNumber, StreamId, Tail};
use tailwater_rma::Connection;

use crate::ask::{AskFailed, ask_over, ask_within, connect, in_words};
use crate::follow::{Follow, FollowStep};
use crate::limits::{
    ANSWER_BYTES, HELD_LOOK, LEAVE_MAX, PUSH_MAX, RETRY_MAX, RETRY_MIN, SILENCE_MAX, WINDOW,
};
use crate::links::ClusterLinks;
use crate::schedule::OperationId;
use crate::writer::{NO_TAIL, NextAnswer, ask_on};

/// What a worker has done since its start.
#[derive(Debug, Default)]
pub struct WorkerStats {
    operations: AtomicU64,
    bytes: AtomicU64,
    sessions: AtomicU64,
}

impl WorkerStats {
    /// Operations that it runs.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// Bytes of answers that it has pushed.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sessions with clusters above that it has opened.
    pub fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }
}

/// See the module.
pub struct CopyWorker {
    env: Env,
    links: Arc<dyn ClusterLinks>,
    /// Where its cluster's node is reached, one or the other.
    nodes: Vec<String>,
    name: String,
    start: u64,
    stats: Arc<WorkerStats>,
}

/// An operation that runs.
struct WorkerTask {
    task: CopyTask,
    _task: Task,
}

impl CopyWorker {
    /// One of that name, of the cluster whose node is at one of these addresses: those of nodes that take turns.
    /// Connections are made by `links`.
    pub fn new(env: &Env, links: Arc<dyn ClusterLinks>, nodes: Vec<String>, name: &str) -> Self {
        let start = env.random_u64();
        Self { env: env.clone(), links, nodes, name: name.to_owned(), start, stats: Arc::default() }
    }

    /// What it has done.
    pub fn stats(&self) -> Arc<WorkerStats> {
        Arc::clone(&self.stats)
    }

    /// Works until `stop` completes and others run what it ran, or 60 s have passed after that. Its drop ends all at
    /// once, as a crash does.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop.fuse());
        let mut running: BTreeMap<OperationId, WorkerTask> = BTreeMap::new();
        let (mut leave_by, mut pause, mut turn) = (None, RETRY_MIN, 0);
        loop {
            let node = self.nodes.get(turn % self.nodes.len().max(1)).cloned().unwrap_or_default();
            let over = async {
                match leave_by {
                    Some(at) => self.env.sleep_until(at).await,
                    None => pending().await,
                }
            };
            let why = tokio::select! {
                biased;
                () = &mut stop, if leave_by.is_none() => {
                    tracing::info!("others are to run what this worker runs, and then it ends");
                    leave_by = Some(self.env.now() + LEAVE_MAX);
                    continue;
                }
                () = over => {
                    tracing::warn!("it ends before others run what it ran");
                    return;
                }
                why = self.serve(&node, leave_by.is_some(), &mut running, &mut pause) => why,
            };
            let Some(why) = why else { return };
            tracing::warn!(node, %why, operations = running.len(), "the node is not heard: what runs goes on");
            turn += 1;
            let waiting = self.env.sleep(pause);
            pause = (pause * 2).min(RETRY_MAX);
            tokio::select! {
                biased;
                () = &mut stop, if leave_by.is_none() => leave_by = Some(self.env.now() + LEAVE_MAX),
                () = waiting => {}
            }
        }
    }

    /// Asks the node what to run, and does it, until the connection is lost: why it was. `None` when it may end.
    async fn serve(
        &self,
        node: &str,
        is_leaving: bool,
        running: &mut BTreeMap<OperationId, WorkerTask>,
        pause: &mut Duration,
    ) -> Option<String> {
        let connection = match connect(&self.env, &*self.links, node).await {
            Ok(connection) => connection,
            Err(why) => return Some(why),
        };
        let mut number = 0;
        loop {
            let run = |id: &OperationId| CopyRunning {
                stream: tailwater_format::call::stream_to_wire(id.stream),
                part: id.part,
            };
            let asked = CopyReport {
                worker: self.name.clone(),
                start: self.start,
                is_leaving,
                running: running.keys().map(run).collect(),
                number,
            };
            let tasks: CopyTasks = match ask_over(&self.env, &*connection, Method::CopyReport, &asked).await {
                Ok(tasks) => tasks,
                Err(failed) => return Some(failed.into_words()),
            };
            if tasks.may_go {
                return None;
            }
            (number, *pause) = (tasks.number, RETRY_MIN);
            self.apply(node, tasks.tasks, running);
        }
    }

    /// Runs these operations, and no others.
    fn apply(&self, node: &str, tasks: Vec<CopyTask>, running: &mut BTreeMap<OperationId, WorkerTask>) {
        let wanted = tasks.into_iter().filter_map(|task| {
            let stream = stream_from_wire(&task.stream).ok()?;
            Some((OperationId { stream, part: task.part }, task))
        });
        let wanted: BTreeMap<OperationId, CopyTask> = wanted.collect();
        running.retain(|id, of| wanted.get(id) == Some(&of.task));
        for (id, task) in wanted {
            running.entry(id).or_insert_with(|| {
                let operation = WorkerOperation {
                    env: self.env.clone(),
                    links: Arc::clone(&self.links),
                    node: node.to_owned(),
                    nodes: self.nodes.clone(),
                    worker: self.name.clone(),
                    stream: id.stream,
                    opener: self.env.random_u64() | 1,
                    task: task.clone(),
                    stats: Arc::clone(&self.stats),
                };
                WorkerTask { task, _task: self.env.spawn("copy-worker-operation", operation.run()) }
            });
        }
        self.stats.operations.store(running.len() as u64, Ordering::Relaxed);
    }
}

/// One operation of a worker.
struct WorkerOperation {
    env: Env,
    links: Arc<dyn ClusterLinks>,
    /// The node that told of it, and all that there are.
    node: String,
    nodes: Vec<String>,
    worker: String,
    stream: StreamId,
    /// [`CopyOpen::operation`]: another one than the same operation has at other workers.
    opener: u64,
    task: CopyTask,
    stats: Arc<WorkerStats>,
}

/// What one session of it keeps.
struct WorkerSession {
    /// The node.
    node: Arc<dyn Connection>,
    /// The cluster above.
    above: Arc<dyn Connection>,
    number: u64,
    /// The session with the cluster above.
    session: u64,
    follow: Follow,
    answers: FuturesUnordered<NextAnswer>,
    next: PushBatch,
}

/// Why a session of an operation has ended.
struct WorkerSessionEnd {
    why: String,
    /// What the cluster above has told may have come from here: nobody below is told that way any more.
    leads_back: bool,
}

impl From<String> for WorkerSessionEnd {
    fn from(why: String) -> Self {
        Self { why, leads_back: false }
    }
}

impl WorkerSessionEnd {
    fn leads_back(why: String) -> Self {
        Self { why, leads_back: true }
    }
}

/// What is to be pushed next.
#[derive(Default)]
struct PushBatch {
    way: Vec<String>,
    begin: Vec<CopyFrom>,
    shards: Vec<(CopiedShard, BytesMut)>,
    bytes: usize,
}

impl WorkerOperation {
    /// Copies until it is dropped.
    async fn run(mut self) {
        let mut pause = RETRY_MIN;
        let mut turn = 0;
        loop {
            let began = self.env.now();
            let number = self.env.random_u64();
            let Err(end) = self.session(number).await;
            let why = &end.why;
            tracing::info!(stream = %self.stream, part = self.task.part, %why, "an operation's session ended");
            self.tell_end(number, end).await;
            if self.env.now().since(began) > RETRY_MAX * 2 {
                pause = RETRY_MIN;
            }
            let jitter = self.env.random_below(pause.as_micros() as u64 / 2 + 1);
            self.env.sleep(pause / 2 + Duration::from_micros(jitter)).await;
            pause = (pause * 2).min(RETRY_MAX);
            // Another node may have its turn by now.
            if let Some(node) = self.nodes.get(turn % self.nodes.len().max(1)) {
                self.node.clone_from(node);
                turn += 1;
            }
        }
    }

    /// Copies until something ends it, which is what is answered.
    async fn session(&self, number: u64) -> Result<std::convert::Infallible, WorkerSessionEnd> {
        let node = connect(&self.env, &*self.links, &self.node).await?;
        let first = CopyPush { is_first: true, ..self.push_of(number) };
        let first: CopyPushed = ask_within(&self.env, &*node, Method::CopyPush, &first, PUSH_MAX)
            .await
            .map_err(AskFailed::into_words)?;
        let count = self.task.shards.iter().max().map_or(0, |shard| *shard as usize + 1);
        let mut tails = vec![NO_TAIL; count];
        for place in &first.from {
            if let Some(tail) = tails.get_mut(place.shard as usize) {
                (tail.next_offset, tail.log_start) = (Offset(place.next_offset), Offset(place.log_start));
            }
        }
        let above = connect(&self.env, &*self.links, &self.task.address).await?;
        let open = self.open_of(&tails);
        let opened: CopyOpened =
            ask_over(&self.env, &*above, Method::CopyOpen, &open).await.map_err(AskFailed::into_words)?;
        self.stats.sessions.fetch_add(1, Ordering::Relaxed);
        let mut follow = Follow::new(self.stream, &self.task.cluster, &self.task.above, &tails);
        follow.check_way(&opened.way).map_err(WorkerSessionEnd::leads_back)?;
        for held in &first.hold {
            follow.hold(ShardNumber(held.shard));
        }
        let mut session = WorkerSession {
            node,
            above,
            number,
            session: opened.session,
            follow,
            answers: FuturesUnordered::new(),
            next: PushBatch { way: opened.way, ..PushBatch::default() },
        };
        self.flush(&mut session).await?;
        self.follow(session).await
    }

    async fn follow(&self, mut session: WorkerSession) -> Result<std::convert::Infallible, WorkerSessionEnd> {
        let window = (self.task.window as usize).clamp(1, WINDOW);
        let mut silent_at = self.env.now() + SILENCE_MAX;
        loop {
            ask_on(&mut session.follow, session.session, &session.above, &mut session.answers, window);
            let is_held = self.task.shards.iter().any(|shard| session.follow.is_stopped(ShardNumber(*shard)));
            let look_at = if is_held { self.env.now() + HELD_LOOK } else { silent_at };
            let (asked, answer) = tokio::select! {
                biased;
                Some((asked, answer)) = session.answers.next() => (asked, answer.map_err(|error| in_words(&error))?),
                () = self.env.sleep_until(look_at.min(silent_at)) => {
                    if self.env.now() >= silent_at {
                        let peer = session.above.peer();
                        return Err(format!("{peer} was silent for {} s", SILENCE_MAX.as_secs()).into());
                    }
                    self.flush(&mut session).await?;
                    continue;
                }
            };
            let entries: CopyEntries = decode_call(answer).map_err(|error| error.to_string())?;
            let steps = session.follow.answer(asked, entries);
            for step in steps.map_err(WorkerSessionEnd::leads_back)? {
                self.carry_out(&mut session, step).await?;
            }
            // Also without news: the node learns that it flows, and tells how shards go on.
            self.flush(&mut session).await?;
            silent_at = self.env.now() + SILENCE_MAX;
        }
    }

    async fn carry_out(&self, session: &mut WorkerSession, step: FollowStep) -> Result<(), String> {
        match step {
            FollowStep::Way(way) => session.next.way = way,
            FollowStep::Told(news) => session.next.shards.push((news, BytesMut::new())),
            // What was to come before it was not appended.
            FollowStep::Begin(shard, _) | FollowStep::Append(shard, ..)
                if session.follow.is_held(shard.shard) => {}
            FollowStep::Begin(shard, offset) => {
                // What goes before it is pushed first.
                let news = session.next.news_of(shard.shard);
                self.flush(session).await?;
                session.next.begin.push(CopyFrom { shard: shard.shard.0, next_offset: offset.0 });
                session.next.shards.extend(news.map(|news| (news, BytesMut::new())));
            }
            FollowStep::Append(shard, entry, _) => {
                if session.next.bytes > 0 && session.next.bytes + entry.len() > ANSWER_BYTES {
                    let news = session.next.news_of(shard.shard);
                    self.flush(session).await?;
                    session.next.shards.extend(news.map(|news| (news, BytesMut::new())));
                    if session.follow.is_held(shard.shard) {
                        return Ok(());
                    }
                }
                session.next.append(shard.shard, &entry);
            }
        }
        Ok(())
    }

    /// Pushes what there is, and takes in how shards go on.
    async fn flush(&self, session: &mut WorkerSession) -> Result<(), String> {
        let PushBatch { way, begin, shards, bytes } = std::mem::take(&mut session.next);
        let shards =
            shards.into_iter().map(|(news, entries)| CopiedShard { entries: entries.freeze(), ..news });
        let push = CopyPush { way, begin, shards: shards.collect(), ..self.push_of(session.number) };
        let pushed: CopyPushed = ask_within(&self.env, &*session.node, Method::CopyPush, &push, PUSH_MAX)
            .await
            .map_err(AskFailed::into_words)?;
        self.stats.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        for held in &pushed.hold {
            if !session.follow.is_held(ShardNumber(held.shard)) {
                session.follow.hold(ShardNumber(held.shard));
            }
        }
        for place in &pushed.from {
            let (next, start) = (Offset(place.next_offset), Offset(place.log_start));
            session.follow.resume(ShardNumber(place.shard), next, start);
        }
        Ok(())
    }

    /// Tells the node that a session has ended, if it listens.
    async fn tell_end(&self, number: u64, end: WorkerSessionEnd) {
        let Ok(node) = connect(&self.env, &*self.links, &self.node).await else { return };
        let way = if end.leads_back { vec![self.task.cluster.clone()] } else { Vec::new() };
        let push = CopyPush { way, ended: end.why, ..self.push_of(number) };
        let _: Result<CopyPushed, _> = ask_over(&self.env, &*node, Method::CopyPush, &push).await;
    }

    fn push_of(&self, session: u64) -> CopyPush {
        CopyPush {
            stream: self.task.stream.clone(),
            part: self.task.part,
            worker: self.worker.clone(),
            session,
            lineage: self.task.lineage,
            plan: self.task.plan,
            above: self.task.above.clone(),
            ..CopyPush::default()
        }
    }

    fn open_of(&self, tails: &[Tail]) -> CopyOpen {
        let from = self.task.shards.iter().filter_map(|shard| {
            let next_offset = tails.get(*shard as usize)?.next_offset.0;
            Some(CopyFrom { shard: *shard, next_offset })
        });
        CopyOpen {
            stream: self.task.stream.clone(),
            cluster: self.task.cluster.clone(),
            plan: self.task.plan,
            from: from.collect(),
            lineage: self.task.lineage,
            operation: self.opener,
        }
    }
}

impl PushBatch {
    fn append(&mut self, shard: ShardNumber, entry: &Bytes) {
        let of = self.shards.iter_mut().rev().find(|(news, _)| news.shard == shard.0);
        if let Some((_, entries)) = of {
            entries.extend_from_slice(entry);
            self.bytes += entry.len();
        }
    }

    /// What was told of a shard last.
    fn news_of(&self, shard: ShardNumber) -> Option<CopiedShard> {
        let of = self.shards.iter().rev().find(|(news, _)| news.shard == shard.0);
        of.map(|(news, _)| news.clone())
    }
}
