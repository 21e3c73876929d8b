//! Clusters in one process: a log each, and the CALLs of copying between them over TCP.

use std::time::Duration;

use bytes::Bytes;
use tailwater_copy::testing::CopyService;
use tailwater_copy::{
    Copies, CopyTree, CopyWorker, CrewView, DialedLinks, LinkRates, PlaceRequest, TreeEdge,
};
use tailwater_env::Env;
use tailwater_format::call::{CallErrorCode, CopyFrom, CopyOpen, CopyPlan, stream_to_wire};
use tailwater_format::{BatchBuilder, Codec, Offset, ShardId, ShardNumber, StreamId};
use tailwater_log::{Log, LogConfig, StreamConfig};
use tailwater_rma::{Server, ServerConfig};
use tailwater_tls::Dialer;
use tempfile::TempDir;
use tokio::sync::oneshot;

struct Cluster {
    log: Log,
    copies: Copies,
    address: String,
    _server: Server,
    _dir: TempDir,
}

impl Cluster {
    async fn start(env: &Env, name: &str) -> Self {
        Self::start_at(env, name, &LinkRates::new()).await
    }

    async fn start_at(env: &Env, name: &str, rates: &LinkRates) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = LogConfig::default();
        config.journal.file_bytes = 16 << 20;
        let log = Log::open(env, config, dir.path(), None).await.expect("a log");
        let links = DialedLinks::new(env, &Dialer::plain());
        let copies = Copies::start_at(env, &log, Some(name), links, rates).await.expect("a name");
        let service = CopyService::new(env, &copies);
        let any = "127.0.0.1:0".parse().expect("an address");
        let config = ServerConfig { tcp: Some(any), ..ServerConfig::default() };
        let server = Server::take_over(env, config, service).await.expect("a port");
        let address = format!("tcp:{}", server.tcp_addr().expect("a port"));
        copies.listens_at(&address);
        Self { log, copies, address, _server: server, _dir: dir }
    }

    async fn append(&self, stream: StreamId, value: &str) {
        self.append_to(stream, 0, value).await;
    }

    async fn append_to(&self, stream: StreamId, shard: u32, value: &str) {
        let mut batch = BatchBuilder::new();
        batch.append(None, Some(value.as_bytes()), &[], 1_000).expect("small");
        self.log.append(stream, ShardNumber(shard), batch.finish(Codec::None)).await.expect("appended");
    }

    fn end(&self, stream: StreamId) -> u64 {
        self.end_of(stream, 0)
    }

    fn end_of(&self, stream: StreamId, shard: u32) -> u64 {
        let view = self.log.view(ShardId { stream, shard: ShardNumber(shard) });
        view.map_or(0, |view| view.tail.next_offset.0)
    }

    fn why(&self) -> String {
        self.copies.hops().first().map(|(_, hop)| hop.why.clone()).unwrap_or_default()
    }
}

fn in_clusters<F: Future<Output = ()>>(test: impl FnOnce(Env) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let env = Env::real();
        let ended = env.timeout(Duration::from_secs(600), test(env.clone())).await;
        assert!(ended.is_some(), "the test never ends");
    });
}

async fn until(env: &Env, done: impl Fn() -> bool) {
    while !done() {
        // Between two looks at what other tasks do there is nothing to be woken by.
        env.sleep(Duration::from_millis(5)).await;
    }
}

fn edges(hops: &[(&str, &str)]) -> Vec<TreeEdge> {
    hops.iter().map(|(from, to)| TreeEdge { from: (*from).to_owned(), to: (*to).to_owned() }).collect()
}

/// Places the stream of `us` so, and answers the plan as it is told.
async fn place(us: &Cluster, hops: &[(&str, &str)]) -> CopyTree {
    let to = hops.iter().map(|(_, to)| (*to).to_owned()).collect();
    let request =
        PlaceRequest { stream: "s".to_owned(), source: "us".to_owned(), to, hops: Some(edges(hops)) };
    us.copies.place(&request).await.expect("placed")
}

/// Three clusters, a stream in `us`, which knows the others.
async fn three_clusters(env: &Env) -> (Cluster, Cluster, Cluster, StreamId) {
    let [us, eu, asia] =
        [Cluster::start(env, "us").await, Cluster::start(env, "eu").await, Cluster::start(env, "asia").await];
    let stream = us.log.create_stream("s", StreamConfig::default()).await.expect("created").id;
    us.copies.add("eu", &eu.address).await.expect("added");
    us.copies.add("asia", &asia.address).await.expect("added");
    (us, eu, asia, stream)
}

#[test]
fn a_later_plan_changes_the_ways_and_loses_nothing() {
    in_clusters(|env| async move {
        let (us, eu, asia, stream) = three_clusters(&env).await;
        for (round, hops) in [
            [("us", "eu"), ("eu", "asia")],
            [("us", "asia"), ("asia", "eu")],
            [("us", "eu"), ("us", "asia")],
            [("us", "eu"), ("eu", "asia")],
        ]
        .iter()
        .enumerate()
        {
            let plan = place(&us, hops).await;
            assert_eq!(plan.number, round as u64 + 1);
            for number in 0..20 {
                us.append(stream, &format!("{round} {number}")).await;
            }
            let end = us.end(stream);
            until(&env, || eu.end(stream) == end && asia.end(stream) == end).await;
            let above = hops.iter().find(|(_, to)| *to == "asia").expect("a hop").0;
            until(&env, || asia.copies.hops().iter().any(|(_, hop)| hop.is_copying && hop.from == above))
                .await;
        }
    });
}

#[test]
fn two_plans_that_make_a_cycle_carry_nothing_and_the_later_one_ends_it() {
    in_clusters(|env| async move {
        let (us, eu, asia, stream) = three_clusters(&env).await;
        us.append(stream, "first").await;
        place(&us, &[("us", "eu"), ("eu", "asia")]).await;
        until(&env, || asia.end(stream) == 1).await;
        let first = us.copies.plan("s").expect("placed");
        // Later plans than the one that `us` knows and tells of, which each cluster keeps for it.
        let older = CopyTree { hops: edges(&[("us", "asia"), ("asia", "eu")]), number: 8, ..first.clone() };
        let newer = CopyTree { number: 9, ..first };
        eu.copies.keep_plan(&CopyPlan { plan: older.to_bytes() }).await.expect("kept");
        asia.copies.keep_plan(&CopyPlan { plan: newer.to_bytes() }).await.expect("kept");
        until(&env, || {
            [&eu, &asia].iter().any(|cluster| cluster.why().contains("is made from the one here"))
        })
        .await;

        let kept = eu.copies.keep_plan(&CopyPlan { plan: newer.to_bytes() }).await.expect("kept");
        assert_eq!(kept.number, 9);
        let kept = eu.copies.keep_plan(&CopyPlan { plan: older.to_bytes() }).await.expect("an answer");
        assert_eq!(kept.number, 9, "an older plan replaces nothing");
        us.append(stream, "second").await;
        until(&env, || eu.end(stream) == 2 && asia.end(stream) == 2).await;
    });
}

#[test]
fn what_was_truncated_before_the_source_moved_does_not_come_back() {
    in_clusters(|env| async move {
        let (us, eu, _asia, stream) = three_clusters(&env).await;
        for number in 0..4 {
            us.append(stream, &number.to_string()).await;
        }
        place(&us, &[("us", "eu")]).await;
        until(&env, || eu.end(stream) == 4).await;
        // It is not told what is truncated from here on.
        eu.copies.stop();
        us.log.truncate("s", ShardNumber(0), Offset(3)).await.expect("truncated");
        let plan = us.copies.move_source("s", "eu").await.expect("moved");
        assert_eq!(plan.source, "eu");
        let tail = eu.log.view(ShardId { stream, shard: ShardNumber(0) }).expect("the source").tail;
        assert_eq!((tail.log_start, tail.next_offset), (Offset(3), Offset(4)));
    });
}

#[test]
fn a_link_carries_no_more_than_it_may_and_everything_comes() {
    in_clusters(|env| async move {
        let us = Cluster::start(&env, "us").await;
        let rates = LinkRates::from([("us".to_owned(), 2 << 20)]);
        let eu = Cluster::start_at(&env, "eu", &rates).await;
        let stream = us.log.create_stream("s", StreamConfig::default()).await.expect("created").id;
        us.copies.add("eu", &eu.address).await.expect("added");
        for _ in 0..6 {
            us.append(stream, &"x".repeat(700_000)).await;
        }
        let begin = env.now();
        place(&us, &[("us", "eu")]).await;
        until(&env, || eu.end(stream) == 6).await;
        // Two answers of 1 MiB may be under way when it begins; the rest is paid for.
        assert!(env.now().since(begin) >= Duration::from_millis(500));
    });
}

#[test]
fn what_makes_no_sense_is_refused() {
    in_clusters(|env| async move {
        let (us, eu, _asia, stream) = three_clusters(&env).await;
        let plan = place(&us, &[("us", "eu")]).await;
        let refused = |plan: CopyTree| {
            let copies = eu.copies.clone();
            async move {
                copies.keep_plan(&CopyPlan { plan: plan.to_bytes() }).await.expect_err("refused").message
            }
        };
        let of = |hops| CopyTree { hops: edges(hops), number: 7, ..plan.clone() };
        for hops in [&[("asia", "eu")][..], &[("us", "eu"), ("us", "eu")], &[("us", "eu"), ("eu", "us")]] {
            assert!(refused(of(hops)).await.contains("makes no tree"), "{hops:?}");
        }
        assert!(
            refused(CopyTree { source: "eu".to_owned(), hops: Vec::new(), ..plan.clone() })
                .await
                .contains("two clusters")
        );
        let garbage = eu.copies.keep_plan(&CopyPlan { plan: Bytes::from_static(b"\xff\xff\xff") }).await;
        assert_eq!(garbage.expect_err("refused").code, CallErrorCode::Malformed);

        let open = |from: &[u32]| CopyOpen {
            stream: stream_to_wire(stream),
            cluster: "eu".to_owned(),
            plan: 1,
            lineage: 0,
            operation: 0,
            from: from.iter().map(|shard| CopyFrom { shard: *shard, next_offset: 0 }).collect(),
        };
        let code = |from: &[u32]| us.copies.open(&open(from)).expect_err("refused").code;
        assert_eq!(code(&[7]), CallErrorCode::UnknownShard);
        assert_eq!(code(&[0, 0]), CallErrorCode::Malformed);
        let other = CopyOpen { stream: Bytes::from_static(&[9; 16]), ..open(&[0]) };
        assert_eq!(us.copies.open(&other).expect_err("refused").code, CallErrorCode::UnknownStream);
    });
}

/// A worker of the cluster, which ends when this is dropped, or is told to leave.
fn worker(env: &Env, of: &Cluster, name: &str) -> (tailwater_env::Task, oneshot::Sender<()>) {
    let links = DialedLinks::new(env, &Dialer::plain());
    let worker = CopyWorker::new(env, links, vec![of.address.clone()], name);
    let (leave, left) = oneshot::channel::<()>();
    let working = async move {
        worker.run(async move { drop(left.await) }).await;
    };
    (env.spawn("worker", working), leave)
}

/// Whether all operations flow at one of these, and nowhere else.
fn all_flow_at(crew: &CrewView, workers: &[&str]) -> bool {
    let owns = |name: &str| crew.operations.iter().any(|of| of.worker.as_deref() == Some(name));
    let flow = crew.operations.iter().all(|of| of.state == "flows" && of.also.is_empty());
    let known = crew.operations.iter().all(|of| of.worker.as_deref().is_some_and(|of| workers.contains(&of)));
    flow && known && !crew.operations.is_empty() && workers.iter().all(|name| owns(name))
}

#[test]
fn workers_that_come_and_die_and_leave_copy_everything_once() {
    in_clusters(|env| async move {
        let (us, eu, _asia, _) = three_clusters(&env).await;
        let config = StreamConfig { shards: 10, ..StreamConfig::default() };
        let stream = us.log.create_stream("t", config).await.expect("created").id;
        let to = vec!["eu".to_owned()];
        let request = PlaceRequest {
            stream: "t".to_owned(),
            source: "us".to_owned(),
            to,
            hops: Some(edges(&[("us", "eu")])),
        };
        let (a, _stays) = worker(&env, &eu, "a");
        let (_b, leave) = worker(&env, &eu, "b");
        until(&env, || eu.copies.crew().workers.len() == 3).await;
        us.copies.place(&request).await.expect("placed");
        let copied = async |round: u64| {
            for shard in 0..10 {
                us.append_to(stream, shard, &format!("{round}")).await;
            }
            until(&env, || (0..10).all(|shard| eu.end_of(stream, shard) == round)).await;
        };
        copied(1).await;
        until(&env, || all_flow_at(&eu.copies.crew(), &["a", "b"])).await;
        copied(2).await;
        let before = eu.copies.hops().first().map(|(_, hop)| hop.records).expect("a hop");
        assert!(before >= 10, "{before} records were copied");
        drop(a);
        until(&env, || all_flow_at(&eu.copies.crew(), &["b"])).await;
        assert!(eu.copies.crew().counts.dead == 1 && eu.copies.crew().counts.displaced >= 1);
        copied(3).await;
        leave.send(()).expect("it runs");
        until(&env, || all_flow_at(&eu.copies.crew(), &[""])).await;
        copied(4).await;
    });
}
