//! The whole of a node: clusters that it knows, plans that it keeps and tells, operations that it runs, sessions that
//! it serves.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use parking_lot::Mutex;
use tailwater_env::{Env, Instant, Task};
use tailwater_format::StreamId;
use tailwater_format::call::{
    CallErrorCode, CallRefusal, CopyHop, CopyHops, CopyNext, CopyOpen, CopyOpened, CopyPlan, CopyPlanKept,
    CopyState, Method, stream_from_wire, stream_to_wire,
};
use tailwater_format::limits::CLUSTERS_MAX;
use tailwater_log::{CopyRecord, Log, LogStreamInfo};
use tailwater_meta::{Expect, MetaError, Op};
use tailwater_trees::{ClusterEntry, LinkEntry, TreeCosts, TreeRequest};
use tokio::sync::{Notify, oneshot};

use crate::ask::ask;
use crate::clusters::{self, KnownCluster};
use crate::crew::{CopyCrew, KNOWN_KEY, schedule};
use crate::error::CopyError;
use crate::hop::Hop;
use crate::links::ClusterLinks;
use crate::moving::{SourceMove, end_to_wire};
use crate::offsets::OffsetsKeeper;
use crate::pace::{LinkPace, LinkRates};
use crate::plan::{self, CopyTree, TreeEdge, check_tree};
use crate::reader::{Sessions, ended};
use crate::schedule::ScheduleInput;
use crate::telling::{ask_sources, tell};
use crate::writer::CopyOperation;

/// Where a stream is to be copied to.
#[derive(Clone, Debug, PartialEq)]
pub struct PlaceRequest {
    /// The stream's name.
    pub stream: String,
    /// The cluster that has it: this one.
    pub source: String,
    /// The clusters that are to have copies; none ends copying.
    pub to: Vec<String>,
    /// The tree, each hop before those that follow it. Without it, one is planned as if all links cost the same.
    pub hops: Option<Vec<TreeEdge>>,
}

/// A hop of a copy tree, and how far it is.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeHopState {
    /// The hop.
    pub edge: TreeEdge,
    /// What its lower end tells; in words why it does not.
    pub state: Result<CopyHop, String>,
}

/// What a cluster was told last of a plan, and when.
pub(crate) struct ToldPlan {
    pub(crate) plan: Bytes,
    pub(crate) at: Instant,
}

pub(crate) struct HopOperation {
    plan: CopyTree,
    pub(crate) hop: Arc<Hop>,
    _task: Task,
}

pub(crate) struct CopiesInner {
    pub(crate) env: Env,
    pub(crate) log: Log,
    pub(crate) name: Option<String>,
    /// Where this node is reached by other clusters, once it is.
    pub(crate) address: Mutex<String>,
    pub(crate) links: Arc<dyn ClusterLinks>,
    pub(crate) clusters: Mutex<BTreeMap<String, KnownCluster>>,
    pub(crate) plans: Mutex<BTreeMap<StreamId, CopyTree>>,
    pub(crate) operations: Mutex<BTreeMap<StreamId, HopOperation>>,
    pub(crate) sessions: Arc<Sessions>,
    /// Held over every change of clusters and plans, and its commit.
    pub(crate) changing: tokio::sync::Mutex<()>,
    pub(crate) told: Mutex<BTreeMap<(StreamId, String), ToldPlan>>,
    /// There is something to tell.
    pub(crate) news: Notify,
    /// Sources that are being moved to other clusters.
    pub(crate) moving: Mutex<BTreeMap<StreamId, SourceMove>>,
    /// What groups have committed here, where it is told to others.
    pub(crate) groups: Mutex<Option<Arc<dyn OffsetsKeeper>>>,
    pub(crate) following: Mutex<Option<Task>>,
    /// What the links to other clusters may carry, where that is bounded.
    paces: BTreeMap<String, Arc<LinkPace>>,
    /// The workers of this cluster.
    pub(crate) crew: CopyCrew,
}

/// The copying of a node. Cheap to clone; the last handle's drop ends it.
#[derive(Clone)]
pub struct Copies {
    pub(crate) inner: Arc<CopiesInner>,
    _tasks: Arc<[Task; 3]>,
}

impl Copies {
    /// That of a node whose cluster is called `name`, if it is called anything, with what metadata has. Connections to
    /// other clusters are made by `links`.
    ///
    /// # Errors
    /// A name that is none; metadata that can't be read.
    pub async fn start(
        env: &Env,
        log: &Log,
        name: Option<&str>,
        links: Arc<dyn ClusterLinks>,
    ) -> Result<Self, CopyError> {
        Self::start_at(env, log, name, links, &LinkRates::new()).await
    }

    /// The same, where links to other clusters carry no more than `rates`.
    ///
    /// # Errors
    /// As of [`Copies::start`].
    pub async fn start_at(
        env: &Env,
        log: &Log,
        name: Option<&str>,
        links: Arc<dyn ClusterLinks>,
        rates: &LinkRates,
    ) -> Result<Self, CopyError> {
        name.map_or(Ok(()), clusters::check_name)?;
        let had_workers = log.meta().get(KNOWN_KEY).await.map_err(unavailable)?.is_some();
        let inner = Arc::new(CopiesInner {
            env: env.clone(),
            log: log.clone(),
            name: name.map(str::to_owned),
            address: Mutex::default(),
            links,
            clusters: Mutex::default(),
            plans: Mutex::default(),
            operations: Mutex::default(),
            sessions: Sessions::new(env, log, name.unwrap_or_default()),
            changing: tokio::sync::Mutex::default(),
            told: Mutex::default(),
            news: Notify::new(),
            moving: Mutex::default(),
            groups: Mutex::default(),
            following: Mutex::default(),
            paces: LinkPace::of_all(env, rates),
            crew: CopyCrew::new(env.now(), had_workers),
        });
        for (key, stored) in log.meta().list(clusters::PREFIX).await.map_err(unavailable)? {
            let known = KnownCluster::decode(&key, &stored.value)?;
            inner.clusters.lock().insert(known.name.clone(), known);
        }
        for (key, stored) in log.meta().list(plan::PREFIX).await.map_err(unavailable)? {
            let plan = CopyTree::decode(&stored.value);
            let plan = plan.map_err(|why| CopyError::Unavailable(format!("{key}: {why}")))?;
            inner.sessions.set_lineage(plan.stream.id(), plan.lineage());
            inner.plans.lock().insert(plan.stream.id(), plan);
        }
        inner.step(ScheduleInput::Operations(inner.operations_planned()));
        inner.run_here();
        inner.go_on_moving();
        let telling = env.spawn("copy-tell", tell(Arc::clone(&inner)));
        let asking = env.spawn("copy-ends", ask_sources(Arc::clone(&inner)));
        let scheduling = env.spawn("copy-schedule", schedule(Arc::clone(&inner)));
        Ok(Self { inner, _tasks: Arc::new([telling, asking, scheduling]) })
    }

    /// Other clusters reach this node at `address`: until this is known, they are told of no plan.
    pub fn listens_at(&self, address: &str) {
        address.clone_into(&mut self.inner.address.lock());
        self.inner.news.notify_one();
    }

    /// Ends all operations, so that the log can be closed.
    pub fn stop(&self) {
        drop(self.inner.following.lock().take());
        self.inner.moving.lock().clear();
        self.inner.halt_all();
    }

    /// What this cluster is called, if anything.
    pub fn name(&self) -> Option<&str> {
        self.inner.name.as_deref()
    }

    /// Sessions of other clusters that copy from here.
    pub fn sessions(&self) -> usize {
        self.inner.sessions.count()
    }

    /// The hops to this cluster, by stream.
    pub fn hops(&self) -> Vec<(String, CopyHop)> {
        let plans: Vec<(StreamId, String)> = {
            let plans = self.inner.plans.lock();
            plans.iter().map(|(id, plan)| (*id, plan.stream.name().to_owned())).collect()
        };
        plans.into_iter().filter_map(|(id, name)| Some((name, self.inner.hop(id)?))).collect()
    }
}

/// Clusters.
impl Copies {
    /// Those that are known, by name.
    pub fn clusters(&self) -> Vec<KnownCluster> {
        self.inner.clusters.lock().values().cloned().collect()
    }

    /// Adds one.
    ///
    /// # Errors
    /// `NoName`, `Invalid`, `KnownAlready`, `Unavailable`.
    pub async fn add(&self, name: &str, address: &str) -> Result<KnownCluster, CopyError> {
        let inner = &*self.inner;
        let here = inner.name.as_deref().ok_or(CopyError::NoName)?;
        let cluster = KnownCluster::new(name, address)?;
        if name == here {
            return Err(CopyError::Invalid(format!("{name:?} is this cluster itself")));
        }
        let _changing = inner.changing.lock().await;
        if let Some(KnownCluster { name, address, .. }) = inner.clusters.lock().get(name).cloned() {
            return Err(CopyError::KnownAlready { name, address });
        }
        // This one is one, too.
        if inner.clusters.lock().len() + 1 >= CLUSTERS_MAX {
            return Err(CopyError::Invalid(format!(
                "{CLUSTERS_MAX} clusters are known already, which is the most"
            )));
        }
        let put =
            Op::Put { key: KnownCluster::key(name), value: cluster.encode().into(), expect: Expect::Any };
        inner.log.meta().commit(vec![put]).await.map_err(unavailable)?;
        inner.clusters.lock().insert(name.to_owned(), cluster.clone());
        inner.news.notify_one();
        Ok(cluster)
    }

    /// Removes one that is in no copy tree of this cluster's streams.
    ///
    /// # Errors
    /// `UnknownCluster`, `InUse`, `Unavailable`.
    pub async fn remove(&self, name: &str) -> Result<(), CopyError> {
        let inner = &*self.inner;
        let _changing = inner.changing.lock().await;
        if !inner.clusters.lock().contains_key(name) {
            return Err(CopyError::UnknownCluster(name.to_owned()));
        }
        if let Some(plan) = inner.own_plans().into_iter().find(|plan| plan.has(name)) {
            let stream = plan.stream.name().to_owned();
            return Err(CopyError::InUse { name: name.to_owned(), stream });
        }
        let delete = Op::Delete { key: KnownCluster::key(name), expect: Expect::Any };
        inner.log.meta().commit(vec![delete]).await.map_err(unavailable)?;
        inner.clusters.lock().remove(name);
        inner.told.lock().retain(|(_, cluster), _| cluster != name);
        Ok(())
    }
}

/// Plans.
impl Copies {
    /// Plans the copy tree of a stream that has its source here, and begins to tell all clusters of it.
    ///
    /// # Errors
    /// `NoName`, `NotSource`, `UnknownCluster`, `Plan`, `Stream`, `Unavailable`.
    pub async fn place(&self, request: &PlaceRequest) -> Result<CopyTree, CopyError> {
        let inner = &*self.inner;
        let here = inner.name.as_deref().ok_or(CopyError::NoName)?;
        let not_source = |source_cluster: &str| CopyError::NotSource {
            stream: request.stream.clone(),
            source_cluster: source_cluster.to_owned(),
            here: here.to_owned(),
        };
        if inner.address.lock().is_empty() {
            return Err(CopyError::Unavailable("the node is starting".to_owned()));
        }
        let _changing = inner.changing.lock().await;
        let stream = inner.log.stream(&request.stream)?;
        if let Some(source) = stream.source.as_deref().or(Some(&*request.source).filter(|name| *name != here))
        {
            return Err(not_source(source));
        }
        let hops = inner.plan_hops(request)?;
        inner.check_draining(stream.id, &hops)?;
        let (last, expect) =
            match inner.log.meta().get(&CopyTree::key(stream.id)).await.map_err(unavailable)? {
                None => (None, Expect::Absent),
                Some(stored) => {
                    let last = CopyTree::decode(&stored.value).map_err(CopyError::Unavailable)?;
                    (Some(last), Expect::Version(stored.version))
                }
            };
        let plan = inner.described(last.as_ref(), &stream, hops);
        inner.keep(&plan, expect).await?;
        tracing::info!(stream = request.stream, number = plan.number, to = ?request.to, "placed");
        inner.news.notify_one();
        Ok(plan)
    }

    /// The plan of a stream that this cluster knows.
    ///
    /// # Errors
    /// `NotPlaced`.
    pub fn plan(&self, stream: &str) -> Result<CopyTree, CopyError> {
        let plans = self.inner.plans.lock();
        let found = plans.values().find(|plan| plan.stream.name() == stream);
        found.cloned().ok_or_else(|| CopyError::NotPlaced(stream.to_owned()))
    }

    /// The plan of a stream, and how far each of its hops is, as its lower end tells.
    ///
    /// # Errors
    /// `NotPlaced`.
    pub async fn tree(&self, stream: &str) -> Result<(CopyTree, Vec<TreeHopState>), CopyError> {
        let plan = self.plan(stream)?;
        let states = plan.hops.iter().map(|edge| async {
            let state = self.inner.hop_of(&plan, &edge.to).await;
            TreeHopState { edge: edge.clone(), state }
        });
        let states = join_all(states).await;
        Ok((plan, states))
    }
}

/// What other clusters ask, by CALLs. Whoever calls these has seen to it that they may.
impl Copies {
    /// Keeps a plan, unless a later one is known.
    ///
    /// # Errors
    /// A plan that makes no sense, or that can't be followed here.
    pub async fn keep_plan(&self, told: &CopyPlan) -> Result<CopyPlanKept, CallRefusal> {
        let inner = &self.inner;
        let refuse = |code, why: String| CallRefusal::new(code, why);
        let no_name = || refuse(CallErrorCode::Malformed, CopyError::NoName.to_string());
        let here = inner.name.as_deref().ok_or_else(no_name)?;
        let plan = CopyTree::decode(&told.plan).map_err(|why| refuse(CallErrorCode::Malformed, why))?;
        if plan.source == here {
            let why = format!("the source is this cluster, {here:?}: two clusters have this name");
            return Err(refuse(CallErrorCode::Malformed, why));
        }
        let kept = |number| CopyPlanKept { number, cluster: here.to_owned() };
        let _changing = inner.changing.lock().await;
        let known = inner.plans.lock().get(&plan.stream.id()).cloned();
        match &known {
            Some(known) if known.is_later_than(&plan) => return Ok(kept(known.number)),
            Some(known) if !plan.is_later_than(known) && known.hops != plan.hops => {
                let why = format!("there is another plan of the number {}", plan.number);
                return Err(refuse(CallErrorCode::Malformed, why));
            }
            None if !plan.has(here) => return Ok(kept(plan.number)),
            _ => {}
        }
        if let Some(known) = &known {
            let followed = inner.follow_source(known, &plan).await;
            followed.map_err(|error| refuse(CallErrorCode::Unavailable, error.to_string()))?;
        }
        // Also of a plan that is known: somebody may have deleted the copy.
        if plan.has(here) {
            inner.log.keep_copy(&plan.stream, known.is_some()).await.map_err(|error| {
                let why = format!("there can be no copy of {:?} in {here:?}: {error}", plan.stream.name());
                refuse(CallErrorCode::StreamExists, why)
            })?;
        }
        if known.as_ref() == Some(&plan) {
            return Ok(kept(plan.number));
        }
        let kept_now = inner.keep(&plan, Expect::Any).await;
        kept_now.map_err(|error| refuse(CallErrorCode::Unavailable, error.to_string()))?;
        inner.operate(&plan);
        Ok(kept(plan.number))
    }

    /// Opens a session for another cluster.
    ///
    /// # Errors
    /// As of a session; a message that makes no sense.
    pub fn open(&self, asked: &CopyOpen) -> Result<CopyOpened, CallRefusal> {
        let malformed = |why: String| CallRefusal::new(CallErrorCode::Malformed, why);
        if self.inner.name.is_none() {
            return Err(malformed(CopyError::NoName.to_string()));
        }
        let stream = stream_from_wire(&asked.stream).map_err(|error| malformed(error.to_string()))?;
        clusters::check_name(&asked.cluster).map_err(|error| malformed(error.to_string()))?;
        let session = self.inner.sessions.open(
            stream,
            (&asked.cluster, asked.operation),
            &asked.from,
            asked.lineage,
        )?;
        let way = self.inner.sessions.way(stream);
        Ok(CopyOpened { session, way })
    }

    /// The stream of a session that is open.
    pub fn stream_of(&self, asked: &CopyNext) -> Option<StreamId> {
        self.inner.sessions.stream(asked.session)
    }

    /// Asks a session for the next entries: the answers of one session come in the order of these calls.
    pub fn next(&self, asked: CopyNext) -> impl Future<Output = Result<Bytes, CallRefusal>> + Send + use<> {
        let answer: Result<oneshot::Receiver<_>, _> = self.inner.sessions.next(asked);
        async move { answer?.await.unwrap_or_else(|_| Err(ended())) }
    }

    /// How far the copy of a stream is.
    ///
    /// # Errors
    /// A message that makes no sense.
    pub fn state(&self, asked: &CopyState) -> Result<CopyHops, CallRefusal> {
        let stream = stream_from_wire(&asked.stream)
            .map_err(|error| CallRefusal::new(CallErrorCode::Malformed, error.to_string()))?;
        let moves = self.inner.plans.lock().get(&stream).map_or(0, |plan| plan.moves);
        let ends = self.inner.log.ends(stream).unwrap_or_default();
        Ok(CopyHops { hop: self.inner.hop(stream), ends: ends.into_iter().map(end_to_wire).collect(), moves })
    }
}

impl CopiesInner {
    /// Over which hops a stream is to be copied.
    fn plan_hops(&self, request: &PlaceRequest) -> Result<Vec<TreeEdge>, CopyError> {
        if request.to.is_empty() {
            return Ok(Vec::new());
        }
        {
            let known = self.clusters.lock();
            if let Some(name) = request.to.iter().find(|name| !known.contains_key(*name)) {
                return Err(CopyError::UnknownCluster(name.clone()));
            }
        }
        if let Some(hops) = &request.hops {
            check_tree(&request.source, hops).map_err(CopyError::Invalid)?;
            let (mut given, mut wanted): (Vec<_>, Vec<_>) =
                (hops.iter().map(|hop| &hop.to).collect(), request.to.iter().collect());
            given.sort_unstable();
            wanted.sort_unstable();
            if given != wanted {
                return Err(CopyError::Invalid(
                    "the hops lead to other clusters than those asked for".to_owned(),
                ));
            }
            return Ok(hops.clone());
        }
        let wanted =
            TreeRequest { to: request.to.clone(), ..TreeRequest::new(&request.stream, &request.source) };
        let mut costs = even_costs(request);
        for cluster in &mut costs.clusters {
            cluster.failing = self.clusters.lock().get(&cluster.name).is_some_and(|known| known.is_draining);
        }
        let plan = tailwater_trees::plan(&costs, &wanted)?;
        Ok(plan.hops.into_iter().map(|hop| TreeEdge { from: hop.from, to: hop.to }).collect())
    }

    /// The plan after `last`, with what is known by now of its stream and clusters.
    fn described(&self, last: Option<&CopyTree>, stream: &LogStreamInfo, hops: Vec<TreeEdge>) -> CopyTree {
        let plan = CopyTree {
            moves: last.map_or(0, |last| last.moves),
            number: last.map_or(0, |last| last.number) + 1,
            source: self.name.clone().unwrap_or_default(),
            stream: CopyRecord::new(stream, self.name.as_deref().unwrap_or_default()),
            hops,
            clusters: Vec::new(),
            forks: last.map_or_else(Vec::new, |last| last.forks.clone()),
        };
        self.refreshed(plan, stream)
    }

    /// A plan of this cluster's with the stream and the clusters as they are by now.
    pub(crate) fn refreshed(&self, plan: CopyTree, stream: &LogStreamInfo) -> CopyTree {
        let known = self.clusters.lock();
        let address = self.address.lock().clone();
        let here = KnownCluster { name: plan.source.clone(), address, is_draining: false };
        // Also those that are not in the tree: whoever becomes the source has to tell them.
        let others = known.values().map(|known| KnownCluster { is_draining: false, ..known.clone() });
        let clusters = std::iter::once(here).chain(others).take(CLUSTERS_MAX).collect();
        CopyTree { stream: CopyRecord::new(stream, &plan.source), clusters, ..plan }
    }

    pub(crate) async fn keep(&self, plan: &CopyTree, expect: Expect) -> Result<(), CopyError> {
        self.log.meta().commit(vec![put(plan, expect)]).await.map_err(unavailable)?;
        self.kept(plan);
        Ok(())
    }

    /// A plan is stored.
    pub(crate) fn kept(&self, plan: &CopyTree) {
        self.plans.lock().insert(plan.stream.id(), plan.clone());
        self.sessions.set_lineage(plan.stream.id(), plan.lineage());
    }

    /// The plans of the streams that have their source here, or had it and are moving it.
    pub(crate) fn own_plans(&self) -> Vec<CopyTree> {
        let plans = self.plans.lock();
        plans.values().filter(|plan| Some(&plan.source) == self.name.as_ref()).cloned().collect()
    }

    /// Has the operations run that a plan asks for, and no others of its stream.
    pub(crate) fn operate(&self, plan: &CopyTree) {
        let stream = plan.stream.id();
        if self.name.as_deref().and_then(|here| plan.above(here)).is_none() {
            self.sessions.set_way(stream, None);
        }
        self.replan(stream);
    }

    /// Runs what the node itself is to run, and nothing else.
    pub(crate) fn run_here(&self) {
        let Some(here) = self.name.as_deref() else { return };
        let mut operations = self.operations.lock();
        let wanted = self.wanted_here();
        operations.retain(|stream, _| wanted.contains(stream));
        for stream in wanted {
            let plan = self.plans.lock().get(&stream).cloned();
            let above = plan.and_then(|plan| Some((plan.above(here)?.to_owned(), plan)));
            let Some((above, plan)) = above else {
                operations.remove(&stream);
                continue;
            };
            let is_same = |running: &HopOperation| {
                running.plan.number == plan.number
                    && running.plan.address(&above) == plan.address(&above)
                    && running.plan.above(here) == Some(&above)
            };
            if operations.get(&stream).is_some_and(is_same) {
                continue;
            }
            let hop = Hop::new(&above, here, plan.number);
            let operation = CopyOperation {
                env: self.env.clone(),
                log: self.log.clone(),
                links: Arc::clone(&self.links),
                stream,
                lineage: plan.lineage(),
                cluster: here.to_owned(),
                address: plan.address(&above).unwrap_or_default().to_owned(),
                hop: Arc::clone(&hop),
                sessions: Arc::clone(&self.sessions),
                pace: self.pace_from(&above),
            };
            let task = self.env.spawn("copy-operation", operation.run());
            operations.insert(stream, HopOperation { plan, hop, _task: task });
        }
    }

    /// What the link to a cluster may carry, if that has a bound.
    pub(crate) fn pace_from(&self, above: &str) -> Option<Arc<LinkPace>> {
        self.paces.get(above).cloned()
    }

    fn hop(&self, stream: StreamId) -> Option<CopyHop> {
        let operations = self.operations.lock();
        self.hop_view(stream, operations.get(&stream))
    }

    /// What `cluster` tells of its hop.
    async fn hop_of(&self, plan: &CopyTree, cluster: &str) -> Result<CopyHop, String> {
        let stream = plan.stream.id();
        if Some(cluster) == self.name.as_deref() {
            return self.hop(stream).ok_or_else(|| "no operation runs".to_owned());
        }
        let address = plan.address(cluster).ok_or("its address is not known")?;
        let question = CopyState { stream: stream_to_wire(stream) };
        let hops: CopyHops = ask(&self.env, &*self.links, address, Method::CopyState, &question).await?;
        hops.hop.ok_or_else(|| "it does not know of its copy yet".to_owned())
    }
}

/// What stores a plan.
pub(crate) fn put(plan: &CopyTree, expect: Expect) -> Op {
    Op::Put { key: CopyTree::key(plan.stream.id()), value: plan.to_bytes(), expect }
}

/// Links between all clusters of a request, each at the same cost.
fn even_costs(request: &PlaceRequest) -> TreeCosts {
    let names: Vec<&String> = std::iter::once(&request.source).chain(&request.to).collect();
    let cluster = |name: &&String| ClusterEntry { name: (*name).clone(), ..ClusterEntry::default() };
    let pairs =
        names.iter().enumerate().flat_map(|(index, a)| names[index + 1..].iter().map(move |b| (a, b)));
    let link = |(a, b): (&&String, &&String)| LinkEntry {
        between: [(*a).clone(), (*b).clone()],
        cost_per_gb: 1.0,
        delay_ms: 1.0,
        bandwidth_bytes_per_s: None,
        failing: false,
    };
    TreeCosts { clusters: names.iter().map(cluster).collect(), links: pairs.map(link).collect() }
}

pub(crate) fn unavailable(error: MetaError) -> CopyError {
    CopyError::Unavailable(error.to_string())
}
