//! The upper end of a hop: sessions that follow the log for another cluster, and send what is durable.
//!
//! A session is asked several times at once, and answers each time with what has come since the last answer: at once if
//! there is something, after a while otherwise. So the other cluster decides how much is on its way, and a record waits
//! for no round trip.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tailwater_env::{Env, HashMap, Task};
use tailwater_format::call::{
    CallErrorCode, CallRefusal, CopiedShard, CopyEntries, CopyFrom, CopyNext, encode_call,
};
use tailwater_format::{Offset, ShardId, ShardNumber, StreamId};
use tailwater_log::{CopyCursor, Listener, Log, ReadError};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::limits::{ANSWER_AFTER, ANSWER_BYTES, CREDITS_MAX, SESSION_IDLE, SESSIONS_MAX, SYNC_LOOK};

/// One question, and the way back.
struct Credit {
    question: CopyNext,
    answer: oneshot::Sender<Result<Bytes, CallRefusal>>,
}

/// Questions that tell something and that the session has yet to come to: those before them are answered at once.
#[derive(Debug, Default)]
struct Hurry {
    questions: AtomicUsize,
    more: Notify,
}

struct SessionDoor {
    hurry: Arc<Hurry>,
    stream: StreamId,
    cluster: String,
    /// [`tailwater_format::call::CopyOpen::operation`].
    operation: u64,
    credits: mpsc::Sender<Credit>,
    _task: Task,
}

/// All sessions of a node.
pub(crate) struct Sessions {
    env: Env,
    log: Log,
    /// The name of this cluster, or nothing.
    here: String,
    /// Of each copy, the clusters from its source to the one that it is copied from, as that has told.
    ways: Mutex<BTreeMap<StreamId, Vec<String>>>,
    /// Rung when one of them changes: those below are told at once, so that a cycle is noticed within a few messages.
    way_changed: Notify,
    open: Mutex<HashMap<u64, SessionDoor>>,
    /// Of each stream, the last forced move of its source that this cluster goes by, if there was one.
    lineages: Mutex<BTreeMap<StreamId, u64>>,
}

impl Sessions {
    pub(crate) fn new(env: &Env, log: &Log, here: &str) -> Arc<Self> {
        let (env, log, here) = (env.clone(), log.clone(), here.to_owned());
        Arc::new(Self {
            env,
            log,
            here,
            ways: Mutex::default(),
            way_changed: Notify::new(),
            open: Mutex::default(),
            lineages: Mutex::default(),
        })
    }

    /// Takes note of the way to the cluster that a stream is copied from; none while it is not known.
    pub(crate) fn set_way(&self, stream: StreamId, way: Option<Vec<String>>) {
        let before = match way.clone() {
            Some(way) => self.ways.lock().insert(stream, way),
            None => self.ways.lock().remove(&stream),
        };
        if before != way {
            self.way_changed.notify_waiters();
        }
    }

    /// A stream goes by this lineage from here on: what others copy by another one ends.
    pub(crate) fn set_lineage(&self, stream: StreamId, lineage: u64) {
        if self.lineages.lock().insert(stream, lineage).unwrap_or_default() != lineage {
            self.open.lock().retain(|_, door| door.stream != stream);
        }
    }

    /// The clusters from the source of a stream to this one.
    pub(crate) fn way(&self, stream: StreamId) -> Vec<String> {
        let mut way = self.ways.lock().get(&stream).cloned().unwrap_or_default();
        way.push(self.here.clone());
        way
    }

    /// Opens a session for an operation of `cluster`, in place of another one that it has for this stream.
    ///
    /// # Errors
    /// A stream or shard that is not there, a shard twice; too many sessions; another lineage.
    pub(crate) fn open(
        self: &Arc<Self>,
        stream: StreamId,
        (cluster, operation): (&str, u64),
        from: &[CopyFrom],
        lineage: u64,
    ) -> Result<u64, CallRefusal> {
        let mut cursors: Vec<ShardCursor> = Vec::with_capacity(from.len());
        for CopyFrom { shard, next_offset } in from {
            let shard = ShardId { stream, shard: ShardNumber(*shard) };
            match self.log.view(shard) {
                // It is told of with the answers: the others are copied.
                Ok(_) | Err(ReadError::Damaged(_)) => {}
                Err(error) => return Err(refusal(error)),
            }
            if cursors.last().is_some_and(|last| last.cursor.shard().shard >= shard.shard) {
                return Err(CallRefusal::new(CallErrorCode::Malformed, "the shards are not in order"));
            }
            let next_offset = tailwater_format::call::offset_from_wire(*next_offset);
            let next_offset =
                next_offset.map_err(|error| CallRefusal::new(CallErrorCode::Malformed, error.to_string()))?;
            cursors.push(ShardCursor::new(shard, next_offset));
        }
        let mut open = self.open.lock();
        // Under the lock, as a lineage that changes ends what is open: a session is either refused or ended.
        self.check_lineage(stream, cluster, lineage)?;
        let is_same = |door: &SessionDoor| {
            door.stream == stream && door.cluster == cluster && door.operation == operation
        };
        open.retain(|_, door| !is_same(door));
        if open.len() >= SESSIONS_MAX {
            let why = format!("{SESSIONS_MAX} copies are made from this node already");
            return Err(CallRefusal::new(CallErrorCode::Overloaded, why));
        }
        let number = self.env.random_u64();
        let (credits, queue) = mpsc::channel(CREDITS_MAX);
        let hurry = Arc::new(Hurry::default());
        let session = CopySession {
            hurry: Arc::clone(&hurry),
            env: self.env.clone(),
            listener: self.log.listen(cursors.iter().map(|shard| shard.cursor.shard())),
            log: self.log.clone(),
            cursors,
            stream,
            sessions: Arc::downgrade(self),
            first: 0,
            sequence: 0,
            told_way: self.way(stream),
            awaits_sync: false,
        };
        let task = self.env.spawn("copy-session", session.run(queue, number));
        let cluster = cluster.to_owned();
        open.insert(number, SessionDoor { hurry, stream, cluster, operation, credits, _task: task });
        Ok(number)
    }

    /// Where one of the two ends does not know yet that the source was moved by force, they have other records.
    fn check_lineage(&self, stream: StreamId, cluster: &str, lineage: u64) -> Result<(), CallRefusal> {
        let here = self.lineages.lock().get(&stream).copied().unwrap_or_default();
        if here == lineage {
            return Ok(());
        }
        let why = format!(
            "{} and {cluster} do not both know of the last forced move of the source: one of them will be told",
            self.here
        );
        Err(CallRefusal::new(CallErrorCode::Unavailable, why))
    }

    /// The stream of a session, if it is open.
    pub(crate) fn stream(&self, session: u64) -> Option<StreamId> {
        self.open.lock().get(&session).map(|door| door.stream)
    }

    /// Asks a session for the next entries. The answers of one session come in the order of these calls.
    ///
    /// # Errors
    /// Of a session that is not open, or asked too often.
    pub(crate) fn next(
        &self,
        question: CopyNext,
    ) -> Result<oneshot::Receiver<Result<Bytes, CallRefusal>>, CallRefusal> {
        let (answer, answered) = oneshot::channel();
        let open = self.open.lock();
        let door = open.get(&question.session).ok_or_else(ended)?;
        let is_hurry = !question.from.is_empty() || !question.hold.is_empty();
        door.credits.try_send(Credit { question, answer }).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => {
                let why = format!("a session has {CREDITS_MAX} answers under way at most");
                CallRefusal::new(CallErrorCode::Overloaded, why)
            }
            mpsc::error::TrySendError::Closed(_) => ended(),
        })?;
        if is_hurry {
            door.hurry.questions.fetch_add(1, Ordering::AcqRel);
            door.hurry.more.notify_one();
        }
        Ok(answered)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.open.lock().len()
    }
}

/// What is said of a session that is not there.
pub(crate) fn ended() -> CallRefusal {
    CallRefusal::new(CallErrorCode::Unavailable, "the session has ended: open another one")
}

fn refusal(error: ReadError) -> CallRefusal {
    let code = match error {
        ReadError::NoStream => CallErrorCode::UnknownStream,
        ReadError::NoShard { .. } => CallErrorCode::UnknownShard,
        ReadError::Damaged(_) => CallErrorCode::Damaged,
        _ => CallErrorCode::Unavailable,
    };
    CallRefusal::new(code, error.to_string())
}

struct ShardCursor {
    cursor: CopyCursor,
    /// Nothing of it is to be sent.
    is_held: bool,
    /// Start and end of the shard as they were last told.
    told: Option<(Offset, Offset)>,
    /// Why it can't be read, as it was last told; empty if it can.
    why: String,
}

impl ShardCursor {
    fn new(shard: ShardId, next_offset: Offset) -> Self {
        Self { cursor: CopyCursor::new(shard, next_offset), is_held: false, told: None, why: String::new() }
    }
}

struct CopySession {
    hurry: Arc<Hurry>,
    env: Env,
    log: Log,
    listener: Listener,
    cursors: Vec<ShardCursor>,
    stream: StreamId,
    sessions: Weak<Sessions>,
    /// The shard that is looked at first: each in turn.
    first: usize,
    sequence: u64,
    /// The way that was told last.
    told_way: Vec<String>,
    /// Some shard has entries that are not durable yet.
    awaits_sync: bool,
}

impl CopySession {
    async fn run(mut self, mut queue: mpsc::Receiver<Credit>, number: u64) {
        let env = self.env.clone();
        while let Some(Some(Credit { question, answer })) = env.timeout(SESSION_IDLE, queue.recv()).await {
            let answered = match self.take_in(&question) {
                Ok(()) => self.answer().await,
                Err(refused) => Err(refused),
            };
            let is_over = answered.is_err();
            // Whoever asked may be gone.
            let _ = answer.send(answered);
            if is_over {
                break;
            }
        }
        // Its own task goes with it, which has nothing left to do.
        let door = self.sessions.upgrade().and_then(|sessions| sessions.open.lock().remove(&number));
        drop(door);
    }

    /// Takes in what a question tells of shards.
    fn take_in(&mut self, question: &CopyNext) -> Result<(), CallRefusal> {
        if question.from.is_empty() && question.hold.is_empty() {
            return Ok(());
        }
        self.hurry.questions.fetch_sub(1, Ordering::AcqRel);
        let malformed = |why: String| CallRefusal::new(CallErrorCode::Malformed, why);
        if question.from.len() + question.hold.len() > self.cursors.len() {
            return Err(malformed("a question tells of more shards than there are".to_owned()));
        }
        for shard in &question.hold {
            self.cursor(*shard)?.is_held = true;
        }
        for CopyFrom { shard, next_offset } in &question.from {
            let next_offset = tailwater_format::call::offset_from_wire(*next_offset);
            let next_offset = next_offset.map_err(|error| malformed(error.to_string()))?;
            let cursor = self.cursor(*shard)?;
            *cursor = ShardCursor::new(cursor.cursor.shard(), next_offset);
        }
        Ok(())
    }

    fn cursor(&mut self, shard: u32) -> Result<&mut ShardCursor, CallRefusal> {
        let found = self.cursors.binary_search_by_key(&shard, |cursor| cursor.cursor.shard().shard.0);
        match found {
            Ok(index) => Ok(&mut self.cursors[index]),
            Err(_) => {
                let why = format!("the session has no shard {shard}");
                Err(CallRefusal::new(CallErrorCode::Malformed, why))
            }
        }
    }

    async fn answer(&mut self) -> Result<Bytes, CallRefusal> {
        let until = self.env.now() + ANSWER_AFTER;
        let sessions = self.sessions.upgrade().ok_or_else(ended)?;
        loop {
            // Before the look, so that no change is missed.
            let way_changed = sessions.way_changed.notified();
            let way = sessions.way(self.stream);
            let shards = self.gather().await.map_err(refusal)?;
            let is_hurry = self.hurry.questions.load(Ordering::Acquire) > 0;
            if !shards.is_empty() || way != self.told_way || is_hurry || self.env.now() >= until {
                let sequence = self.sequence;
                self.sequence += 1;
                self.told_way.clone_from(&way);
                return Ok(encode_call(&CopyEntries { sequence, shards, way }));
            }
            let left = until.since(self.env.now());
            let limit = if self.awaits_sync { left.min(SYNC_LOOK) } else { left };
            // There may be something, or the time is up: the next look tells.
            tokio::select! {
                biased;
                () = way_changed => {}
                () = self.hurry.more.notified() => {}
                _ = self.env.timeout(limit, self.listener.changed()) => {}
            }
        }
    }

    /// What has come since the last time.
    async fn gather(&mut self) -> Result<Vec<CopiedShard>, ReadError> {
        let (mut shards, mut bytes) = (Vec::new(), 0);
        self.awaits_sync = false;
        let count = self.cursors.len();
        for index in (0..count).map(|index| (self.first + index) % count) {
            if bytes >= ANSWER_BYTES {
                self.first = index;
                break;
            }
            let ShardCursor { cursor, is_held, told, why } = &mut self.cursors[index];
            if *is_held {
                continue;
            }
            let read = match self.log.read_entries(cursor, ANSWER_BYTES - bytes).await {
                Ok(read) => read,
                // The copy has more than this cluster, which is on its way to there.
                Err(ReadError::BeyondEnd { .. }) => continue,
                Err(error @ (ReadError::NoStream | ReadError::NoShard { .. })) => return Err(error),
                // The others are copied.
                Err(error) => {
                    let shard = cursor.shard();
                    let (error, known) = (error.to_string(), told.unwrap_or_default());
                    if *why != error {
                        tracing::warn!(%shard, %error, "a shard can't be read for its copies");
                        why.clone_from(&error);
                        shards.push(CopiedShard {
                            shard: shard.shard.0,
                            log_start: known.0.0,
                            next_offset: known.1.0,
                            why: error,
                            ..CopiedShard::default()
                        });
                    }
                    continue;
                }
            };
            self.awaits_sync |= read.awaits_sync;
            let news = (read.log_start, read.next_offset);
            if read.entries.is_empty() && *told == Some(news) && why.is_empty() {
                continue;
            }
            why.clear();
            *told = Some(news);
            let mut entries = BytesMut::with_capacity(read.entries.iter().map(Bytes::len).sum());
            read.entries.iter().for_each(|entry| entries.extend_from_slice(entry));
            bytes += entries.len();
            shards.push(CopiedShard {
                shard: cursor.shard().shard.0,
                entries: entries.freeze(),
                log_start: read.log_start.0,
                next_offset: read.next_offset.0,
                behind_bytes: read.behind_bytes,
                why: String::new(),
            });
        }
        Ok(shards)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use tailwater_log::{LogConfig, StreamConfig};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_session_that_opens_while_its_source_is_moved_by_force_is_refused_or_ended() {
        let (env, dir) = (Env::real(), tempfile::tempdir().expect("a directory"));
        let log = Log::open(&env, LogConfig::default(), dir.path(), None).await.expect("a log");
        let many = StreamConfig { shards: 128, ..StreamConfig::default() };
        let stream = log.create_stream("s", many).await.expect("created").id;
        let from: Vec<_> = (0..128).map(|shard| CopyFrom { shard, next_offset: 0 }).collect();
        let (sessions, runtime) = (Sessions::new(&env, &log, "us"), tokio::runtime::Handle::current());
        for lineage in 1..=1_000 {
            let both = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _runtime = runtime.enter();
                    both.wait();
                    // By the lineage that there was.
                    let _ = sessions.open(stream, ("eu", 0), &from, lineage - 1);
                });
                both.wait();
                // Earlier and later in what the other one does.
                (0..lineage % 100 * 20).for_each(|_| std::hint::spin_loop());
                sessions.set_lineage(stream, lineage);
            });
            assert_eq!(sessions.count(), 0, "nobody copies by lineage {} any more", lineage - 1);
        }
    }
}
