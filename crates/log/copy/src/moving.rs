//! The source of a stream moves from cluster to cluster: in order, or by force where the one that had it is gone.
//!
//! In order, the source takes no more records of producers, and asks the other cluster to lead until that has
//! everything, which begins a higher term then. Nobody has less than before, and nothing has to be given up. It goes on
//! where it was after a crash of either: metadata says where the source is to be.
//!
//! By force, a copy begins a higher term where it ends, and a new *lineage*. What others have beyond that, the old
//! source above all, is their surplus: each puts it aside and cuts it off when it is told of the new plan, before it
//! keeps that. Copies are made only between clusters that go by the same lineage, so a surplus is never copied.

use std::path::Path;
use std::sync::Arc;

use futures::future::join_all;
use tailwater_env::{OpenMode, Task};
use tailwater_format::call::{
    CallErrorCode, CallRefusal, CopyEnd, CopyHops, CopyLead, CopyPlanKept, CopyState, Method, stream_to_wire,
};
use tailwater_format::limits::{OFFSET_MAX, TERM_MAX};
use tailwater_format::{Offset, ShardId, ShardNumber, StreamId, Term};
use tailwater_log::{CopyCursor, ShardEnd, StreamError};
use tailwater_meta::{Expect, Op};
use tokio::sync::{oneshot, watch};

use crate::ask::ask;
use crate::clusters::KnownCluster;
use crate::copies::{Copies, CopiesInner, put, unavailable};
use crate::error::CopyError;
use crate::limits::{
    ANSWER_BYTES, CLUSTERS_PER_COMMIT, FORKS_MAX, LEAD_EVERY, MOVE_MAX, PLAN_BYTES_MAX, PLAN_NUMBER_MAX,
    TERM_LEAP,
};
use crate::plan::{CopyTree, Fork};
use crate::schedule::ScheduleInput;

/// Where surplus is put, below the log's directory.
const ASIDE_DIR: &str = "aside";

/// A source that is being moved to another cluster.
pub(crate) struct SourceMove {
    /// What that has answered last.
    why: watch::Receiver<String>,
    _task: Task,
}

/// Up to where a cluster has a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterEnds {
    /// The cluster.
    pub cluster: String,
    /// Where each shard ends; in words why that is not known.
    pub ends: Result<Vec<ShardEnd>, String>,
}

/// A source that was taken by force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTaken {
    /// The plan from here on.
    pub plan: CopyTree,
    /// What each cluster of the plan before had, this one first.
    pub clusters: Vec<ClusterEnds>,
}

pub(crate) fn end_to_wire(end: ShardEnd) -> CopyEnd {
    CopyEnd { next_offset: end.next_offset.0, term: end.term.0, log_start: end.log_start.0 }
}

/// Whether a shard may end there, and its source be moved by force often enough.
fn is_possible(end: &CopyEnd) -> bool {
    end.log_start <= end.next_offset && end.next_offset <= OFFSET_MAX && end.term <= TERM_MAX - TERM_LEAP
}

fn end_from_wire(end: &CopyEnd) -> ShardEnd {
    ShardEnd { log_start: Offset(end.log_start), next_offset: Offset(end.next_offset), term: Term(end.term) }
}

/// Moves.
impl Copies {
    /// Moves the source of a stream from here to another cluster of its tree, in order. Waits until it has moved, for
    /// 20 s at most.
    ///
    /// # Errors
    /// `NoName`, `NotPlaced`, `NotSource`, `NoCopy`, `Stream`, `Moving`.
    pub async fn move_source(&self, stream: &str, to: &str) -> Result<CopyTree, CopyError> {
        let (copies, stream, to) = (self.clone(), stream.to_owned(), to.to_owned());
        let (reply, moved) = oneshot::channel();
        // To its end, although nobody may wait for it any more: what is handed over has to be led by somebody.
        let hand = async move { drop(reply.send(copies.move_to_the_end(&stream, &to).await)) };
        self.inner.env.spawn("copy-hand-over", hand).detach();
        moved.await.unwrap_or_else(|_| Err(CopyError::Unavailable("the node is closing".to_owned())))
    }

    async fn move_to_the_end(&self, stream: &str, to: &str) -> Result<CopyTree, CopyError> {
        let inner = &self.inner;
        let here = inner.name.as_deref().ok_or(CopyError::NoName)?;
        let plan = self.plan(stream)?;
        if plan.source != here {
            let (stream, here) = (stream.to_owned(), here.to_owned());
            return Err(CopyError::NotSource { stream, source_cluster: plan.source, here });
        }
        if inner.clusters.lock().get(to).is_some_and(|cluster| cluster.is_draining) {
            return Err(CopyError::Draining(to.to_owned()));
        }
        if plan.above(to).is_none() {
            return Err(CopyError::NoCopy { cluster: to.to_owned(), stream: stream.to_owned() });
        }
        let id = plan.stream.id();
        {
            let _changing = inner.changing.lock().await;
            // With a damaged shard nobody would ever have everything.
            inner.log.ends(id)?;
            match inner.log.stream_by_id(id)?.source {
                None => drop(inner.log.hand_over(id, to).await?),
                Some(cluster) if cluster == to => {}
                Some(source_cluster) => {
                    let (stream, here) = (stream.to_owned(), here.to_owned());
                    return Err(CopyError::NotSource { stream, source_cluster, here });
                }
            }
        }
        tracing::info!(stream, to, "its source is being moved");
        inner.go_on_moving();
        let Some(mut why) = inner.moving.lock().get(&id).map(|moving| moving.why.clone()) else {
            return self.plan(stream);
        };
        // Its sender is gone when it has moved, or the new source has told so before it could answer.
        let moved = async { while why.changed().await.is_ok() {} };
        inner.env.timeout(MOVE_MAX, moved).await;
        // In the midst of that the plan is the one before.
        let _changing = inner.changing.lock().await;
        let plan = self.plan(stream)?;
        if plan.source == here {
            let (stream, cluster, why) = (stream.to_owned(), to.to_owned(), why.borrow().clone());
            return Err(CopyError::Moving { stream, cluster, why });
        }
        Ok(plan)
    }

    /// Makes this cluster the source of a stream that it has a copy of, although the source does not answer. What
    /// others have beyond the ends of this copy is their surplus.
    ///
    /// # Errors
    /// `NoName`, `NotPlaced`, `SourceAlready`, `NoCopy`, `TooManyForks`, `Stream`.
    pub async fn take_source(&self, stream: &str) -> Result<SourceTaken, CopyError> {
        let (copies, stream) = (self.clone(), stream.to_owned());
        let (reply, taken) = oneshot::channel();
        // To its end, although nobody may wait for it any more: a copy that stops copying on the way would stay so.
        let take = async move {
            let answer = copies.take_to_the_end(&stream).await;
            if answer.is_err() {
                // A move that was under way goes on.
                let _changing = copies.inner.changing.lock().await;
                copies.inner.go_on_moving();
            }
            drop(reply.send(answer));
        };
        self.inner.env.spawn("copy-take", take).detach();
        taken.await.unwrap_or_else(|_| Err(CopyError::Unavailable("the node is closing".to_owned())))
    }

    async fn take_to_the_end(&self, stream: &str) -> Result<SourceTaken, CopyError> {
        let inner = &*self.inner;
        let here = inner.name.as_deref().ok_or(CopyError::NoName)?;
        let _changing = inner.changing.lock().await;
        let known = self.plan(stream)?;
        let id = known.stream.id();
        let info = inner.log.stream_by_id(id)?;
        let Some(source) = info.source.clone() else {
            return Err(CopyError::SourceAlready(stream.to_owned()));
        };
        if known.source != here && known.above(here).is_none() {
            return Err(CopyError::NoCopy { cluster: here.to_owned(), stream: stream.to_owned() });
        }
        let others = known.clusters.iter().filter(|cluster| cluster.name != here && known.has(&cluster.name));
        let asked = join_all(others.map(|cluster| inner.ends_of(id, cluster))).await;
        let told = asked.iter().filter_map(|(_, moves)| *moves).filter(|moves| *moves < PLAN_NUMBER_MAX);
        let moves = told.fold(known.moves, u64::max).saturating_add(1);
        // Nothing is copied any more, so that it ends where it is said to.
        inner.moving.lock().remove(&id);
        inner.halt(id);
        let ends = match inner.log.hand_over(id, &source).await {
            Ok(ends) => ends,
            Err(error) => {
                inner.operate(&known);
                return Err(error.into());
            }
        };
        let fork = Fork {
            lineage: inner.env.random_u64().max(1),
            ends: ends.iter().map(|end| end.next_offset).collect(),
        };
        let others: Vec<ClusterEnds> = asked.into_iter().map(|(ends, _)| ends).collect();
        let terms = others.iter().filter_map(|of| of.ends.as_ref().ok()).flatten().chain(&ends);
        let term_min = Term(terms.map(|end| end.term.0).max().unwrap_or_default().saturating_add(TERM_LEAP));
        let mut plan = inner.moved(&known, here, moves);
        plan.forks.push(fork);
        // Nothing is copied through a cluster that does not answer: the source before is one, most likely.
        for away in others.iter().filter(|cluster| cluster.ends.is_err()) {
            plan.hops = plan.hops_around(&away.cluster).unwrap_or(plan.hops);
        }
        if plan.forks.len() > FORKS_MAX || plan.to_bytes().len() > PLAN_BYTES_MAX {
            inner.operate(&known);
            let (stream, forks) = (stream.to_owned(), known.forks.len());
            return Err(CopyError::TooManyForks { stream, forks });
        }
        let led = match inner.learn_clusters(&plan).await {
            Ok(()) => {
                inner.log.lead(id, term_min, vec![put(&plan, Expect::Any)]).await.map_err(CopyError::from)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = led {
            inner.operate(&known);
            return Err(error);
        }
        inner.led(&plan);
        tracing::warn!(stream, number = plan.number, "its source is here now, by force");
        let own = ClusterEnds { cluster: here.to_owned(), ends: Ok(ends) };
        Ok(SourceTaken { plan, clusters: std::iter::once(own).chain(others).collect() })
    }

    /// Leads a stream from here on, if its copy here has everything. Whoever calls this has seen to it that who asks
    /// may.
    ///
    /// # Errors
    /// A plan that makes no sense, or that a later one has replaced; a copy that has not everything yet.
    pub async fn take_lead(&self, asked: &CopyLead) -> Result<CopyPlanKept, CallRefusal> {
        let inner = &*self.inner;
        let refuse = |code, why: String| CallRefusal::new(code, why);
        let no_name = || refuse(CallErrorCode::Malformed, CopyError::NoName.to_string());
        let here = inner.name.as_deref().ok_or_else(no_name)?;
        let plan = CopyTree::decode(&asked.plan).map_err(|why| refuse(CallErrorCode::Malformed, why))?;
        if let Some(end) = asked.ends.iter().find(|end| !is_possible(end)) {
            let why = format!("no shard ends at offset {} in term {}", end.next_offset, end.term);
            return Err(refuse(CallErrorCode::Malformed, why));
        }
        if plan.source != here {
            let why = format!("it is {:?} that is to be the source, and this is {here:?}", plan.source);
            return Err(refuse(CallErrorCode::Malformed, why));
        }
        let kept = |number| CopyPlanKept { number, cluster: here.to_owned() };
        let _changing = inner.changing.lock().await;
        let id = plan.stream.id();
        let known = inner.plans.lock().get(&id).cloned();
        let away = |why: String| refuse(CallErrorCode::Unavailable, why);
        let known = known.ok_or_else(|| away(format!("{here} was told of no plan yet")))?;
        if known.source == here && known.moves >= plan.moves && known.lineage() == plan.lineage() {
            return Ok(kept(known.number));
        }
        if known.moves + 1 != plan.moves || known.lineage() != plan.lineage() {
            return Err(away(format!("{here} goes by a plan of a source that has moved otherwise")));
        }
        let ends = inner.log.ends(id).map_err(|error| away(error.to_string()))?;
        let pairs = || ends.iter().zip(&asked.ends);
        let missing: u64 = pairs()
            .map(|(end, asked)| asked.next_offset.saturating_sub(end.next_offset.0))
            .fold(0, u64::saturating_add);
        if missing > 0 || ends.len() < asked.ends.len() {
            return Err(away(format!("{here} has yet to copy {missing} records")));
        }
        if ends.len() > asked.ends.len() || pairs().any(|(end, asked)| end.next_offset.0 > asked.next_offset)
        {
            return Err(refuse(CallErrorCode::Malformed, format!("{here} has more than its source")));
        }
        inner.learn_clusters(&plan).await.map_err(|error| away(error.to_string()))?;
        inner.halt(id);
        if let Err(error) = inner.remove_before(id, &ends, &asked.ends).await {
            inner.operate(&known);
            return Err(away(error.to_string()));
        }
        let terms = ends.iter().map(|end| end.term.0).chain(asked.ends.iter().map(|end| end.term));
        let term_min = Term(terms.max().unwrap_or_default().saturating_add(1));
        if let Err(error) = inner.log.lead(id, term_min, vec![put(&plan, Expect::Any)]).await {
            inner.operate(&known);
            return Err(away(error.to_string()));
        }
        inner.led(&plan);
        tracing::info!(stream = plan.stream.name(), number = plan.number, "its source is here now");
        Ok(kept(plan.number))
    }
}

impl CopiesInner {
    /// Goes on with the moves that this cluster has begun, as metadata says.
    pub(crate) fn go_on_moving(self: &Arc<Self>) {
        let plans: Vec<CopyTree> = self.plans.lock().values().cloned().collect();
        for plan in plans.into_iter().filter(|plan| Some(&plan.source) == self.name.as_ref()) {
            let id = plan.stream.id();
            let Ok(Some(to)) = self.log.stream_by_id(id).map(|stream| stream.source) else { continue };
            let mut moving = self.moving.lock();
            if moving.contains_key(&id) {
                continue;
            }
            let (tell, why) = watch::channel(String::new());
            let inner = Arc::downgrade(self);
            let env = self.env.clone();
            let hand = async move {
                while let Some(inner) = inner.upgrade() {
                    if inner.hand_to(&plan, &to, &tell).await {
                        inner.moving.lock().remove(&id);
                        return;
                    }
                    drop(inner);
                    env.sleep(LEAD_EVERY).await;
                }
            };
            moving.insert(id, SourceMove { why, _task: self.env.spawn("copy-move", hand) });
        }
    }

    /// Asks the cluster `to` to lead; whether this is over.
    async fn hand_to(&self, plan: &CopyTree, to: &str, tell: &watch::Sender<String>) -> bool {
        let id = plan.stream.id();
        let is_this = |known: &CopyTree| known.moves == plan.moves && known.source == plan.source;
        // As it is by now.
        let Some(plan) = &self.plans.lock().get(&id).filter(|known| is_this(known)).cloned() else {
            return true;
        };
        let Ok(ends) = self.log.ends(id) else { return false };
        let address = self.clusters.lock().get(to).map(|cluster| cluster.address.clone());
        let Some(address) = address.or_else(|| plan.address(to).map(str::to_owned)) else { return false };
        let moved = self.moved(plan, to, plan.moves + 1);
        let question = CopyLead { plan: moved.to_bytes(), ends: ends.into_iter().map(end_to_wire).collect() };
        let kept: Result<CopyPlanKept, String> =
            ask(&self.env, &*self.links, &address, Method::CopyLead, &question).await;
        match kept {
            Ok(kept) if kept.cluster == to => {
                let _changing = self.changing.lock().await;
                // Somebody may have told of a later one meanwhile.
                if self.plans.lock().get(&id).is_some_and(is_this)
                    && self.keep(&moved, Expect::Any).await.is_ok()
                {
                    self.operate(&moved);
                }
                !self.plans.lock().get(&id).is_some_and(is_this)
            }
            Ok(kept) => {
                tell.send_replace(format!("the cluster {:?} answers there", kept.cluster));
                false
            }
            Err(why) => {
                tell.send_replace(why);
                false
            }
        }
    }

    /// The plan by which `to` is the source.
    fn moved(&self, plan: &CopyTree, to: &str, moves: u64) -> CopyTree {
        let mut clusters = plan.clusters.clone();
        let here = self.address.lock().clone();
        for cluster in &mut clusters {
            if Some(&cluster.name) == self.name.as_ref() && !here.is_empty() {
                cluster.address.clone_from(&here);
            }
        }
        clusters.sort_by_key(|cluster| cluster.name != to);
        let mut moved = CopyTree {
            moves,
            number: plan.number + 1,
            source: to.to_owned(),
            hops: plan.hops_from(to),
            clusters,
            ..plan.clone()
        };
        moved.stream = moved.stream.of_source(to);
        moved
    }

    /// Whoever is the source by `plan` has to tell all clusters that the one before knew: they are stored first.
    async fn learn_clusters(&self, plan: &CopyTree) -> Result<(), CopyError> {
        let here = self.name.as_deref().unwrap_or_default();
        let known = self.clusters.lock().clone();
        let others = plan.clusters.iter().filter(|cluster| cluster.name != here);
        let new: Vec<&KnownCluster> = others.filter(|cluster| !known.contains_key(&cluster.name)).collect();
        for some in new.chunks(CLUSTERS_PER_COMMIT) {
            let put = |cluster: &&KnownCluster| Op::Put {
                key: KnownCluster::key(&cluster.name),
                value: cluster.encode().into(),
                expect: Expect::Any,
            };
            self.log.meta().commit(some.iter().map(put).collect()).await.map_err(unavailable)?;
            let mut clusters = self.clusters.lock();
            clusters.extend(some.iter().map(|cluster| (cluster.name.clone(), (*cluster).clone())));
        }
        Ok(())
    }

    /// Removes from a copy that is to lead what its source has removed, so that it does not come back.
    async fn remove_before(
        &self,
        stream: StreamId,
        ends: &[ShardEnd],
        asked: &[CopyEnd],
    ) -> Result<(), StreamError> {
        let pairs = (0..).map(ShardNumber).zip(ends.iter().zip(asked));
        for (shard, (end, asked)) in pairs.filter(|(_, (end, asked))| end.log_start.0 < asked.log_start) {
            let shard = ShardId { stream, shard };
            self.log.truncate_copy(shard, Offset(asked.log_start.min(end.next_offset.0))).await?;
        }
        Ok(())
    }

    /// This cluster is the source by `plan`, which is stored: it tells all others.
    fn led(&self, plan: &CopyTree) {
        self.kept(plan);
        self.sessions.set_way(plan.stream.id(), None);
        self.step(ScheduleInput::Operations(self.operations_planned()));
        self.news.notify_one();
    }

    /// Up to where a cluster has a stream, and how often the source has moved as it knows.
    async fn ends_of(&self, stream: StreamId, cluster: &KnownCluster) -> (ClusterEnds, Option<u64>) {
        let question = CopyState { stream: stream_to_wire(stream) };
        let state: Result<CopyHops, String> =
            ask(&self.env, &*self.links, &cluster.address, Method::CopyState, &question).await;
        let moves = state.as_ref().ok().map(|state| state.moves);
        let ends = state.and_then(|state| {
            if let Some(end) = state.ends.iter().find(|end| !is_possible(end)) {
                return Err(format!("no shard ends at offset {} in term {}", end.next_offset, end.term));
            }
            Ok(state.ends.iter().map(end_from_wire).collect())
        });
        (ClusterEnds { cluster: cluster.name.clone(), ends }, moves)
    }

    /// Before `later` is kept in place of `known`: where this cluster is the source, it is no more; what it has and the
    /// stream has not any more is put aside.
    pub(crate) async fn follow_source(&self, known: &CopyTree, later: &CopyTree) -> Result<(), CopyError> {
        let id = known.stream.id();
        let Ok(info) = self.log.stream_by_id(id) else { return Ok(()) };
        if info.source.is_none() {
            self.log.hand_over(id, &later.source).await?;
        }
        if later.moves > known.moves || later.source != known.source {
            self.moving.lock().remove(&id);
        }
        let Some(mut common) = known.common_ends(later) else { return Ok(()) };
        self.halt(id);
        // Nothing is under way any more.
        let ends = self.log.hand_over(id, &later.source).await?;
        // Of a shard that only this cluster knows all is surplus.
        common.resize(ends.len().max(common.len()), Offset(0));
        let surplus = (0..).map(ShardNumber).zip(ends.iter().zip(&common));
        for (number, (end, common)) in surplus.filter(|(_, (end, common))| end.next_offset > **common) {
            let shard = ShardId { stream: id, shard: number };
            self.put_aside(known, shard, *common).await?;
            tracing::warn!(
                %shard, from = %common, to = %end.next_offset,
                "the source was moved by force, and this cluster has more than it: put aside, and cut off"
            );
        }
        self.log.cut(id, common).await?;
        Ok(())
    }

    /// Writes what a shard has from an offset on to a file, entries as they are stored.
    async fn put_aside(&self, known: &CopyTree, shard: ShardId, from: Offset) -> Result<(), CopyError> {
        let failed = |error: &dyn std::fmt::Display| CopyError::Aside {
            stream: known.stream.name().to_owned(),
            why: error.to_string(),
        };
        let disk = self.env.disk();
        let dir = self.log.dir().join(ASIDE_DIR);
        // By its id: a name may be as long as a file's.
        let name = format!("{}-{}-{}-{:016x}", shard.stream, shard.shard, from, known.lineage());
        let path = dir.join(&name);
        disk.create_dir_all(&dir).map_err(|error| failed(&error))?;
        // What an attempt left that was interrupted is written again.
        match disk.remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(&error)),
            _ => {}
        }
        let file = disk.open(&path, OpenMode::CreateNew).map_err(|error| failed(&error))?;
        let mut cursor = CopyCursor::new(shard, from);
        let mut position = 0;
        loop {
            let read =
                self.log.read_entries(&mut cursor, ANSWER_BYTES).await.map_err(|error| failed(&error))?;
            if read.entries.is_empty() {
                break;
            }
            for entry in read.entries {
                file.write_all_at(&entry, position).map_err(|error| failed(&error))?;
                position += entry.len() as u64;
            }
        }
        file.sync_data().map_err(|error| failed(&error))?;
        disk.sync_dir(&dir)
            .and_then(|()| disk.sync_dir(dir.parent().unwrap_or(Path::new("/"))))
            .map_err(|error| failed(&error))
    }
}
