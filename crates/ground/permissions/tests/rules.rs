//! Rules over real metadata, asked as servers ask.

use std::sync::Arc;

use proptest::prelude::*;
use tailwater_access::{AccessRequest, Authorizer, Peer, Protocol, Resource};
use tailwater_env::Env;
use tailwater_journal::Journal;
use tailwater_meta::{Expect, Meta, Op};
use tailwater_permissions::{
    AccessRule, Audit, Effect, Enforcement, Operation, ResourceKind, RuleError, RuleFilter, Rules,
};

struct World {
    env: Env,
    dir: tempfile::TempDir,
    /// What is open of it.
    journal: Option<Journal>,
}

impl World {
    fn new() -> Self {
        Self { env: Env::real(), dir: tempfile::tempdir().expect("a directory"), journal: None }
    }

    /// The metadata, as a node that starts finds it. One that ran has ended.
    async fn meta(&mut self) -> Arc<dyn Meta> {
        if let Some(journal) = self.journal.take() {
            journal.close().await.expect("durable");
        }
        let (journal, meta) = tailwater_meta::testing::open(&self.env, self.dir.path());
        self.journal = Some(journal);
        meta
    }

    async fn rules(&mut self, enforcement: Enforcement) -> Arc<Rules> {
        let audit = Audit::open(&self.env, &self.dir.path().join("audit.jsonl")).expect("opened");
        let rules = Rules::new(&self.env, enforcement, vec!["root".to_owned()], Some(audit));
        let meta = self.meta().await;
        rules.keep_in(meta).await.expect("readable");
        rules
    }
}

fn rule(principal: &str, effect: Effect, operation: Operation, name: &str) -> AccessRule {
    let (name, is_prefix) = match name.strip_suffix('*') {
        Some(beginning) if !beginning.is_empty() => (beginning, true),
        _ => (name, false),
    };
    AccessRule {
        principal: principal.to_owned(),
        effect,
        operation,
        kind: ResourceKind::Stream,
        name: name.to_owned(),
        is_prefix,
        host: "*".to_owned(),
    }
}

fn may(rules: &Rules, principal: &str, api: &str, stream: &str) -> bool {
    may_from(rules, Peer::of("10.0.0.5:4711".to_owned(), principal), api, stream)
}

fn may_from(rules: &Rules, peer: Peer, api: &str, stream: &str) -> bool {
    let request =
        AccessRequest { protocol: Protocol::Kafka, operation: api, resource: Resource::Stream(stream) };
    rules.authorize(&peer, request).is_ok()
}

#[tokio::test]
async fn what_no_rule_lets_is_refused_and_what_one_forbids_whatever_another_lets() {
    let rules = World::new().rules(Enforcement::Enforce).await;
    assert!(!may(&rules, "alice", "Fetch", "news"));
    let read = rule("alice", Effect::Allow, Operation::Read, "news*");
    rules.add(vec![read.clone()]).await.expect("added");
    assert!(may(&rules, "alice", "Fetch", "news") && may(&rules, "alice", "Fetch", "news-of-tea"));
    assert!(may(&rules, "alice", "Metadata", "news"), "who reads is told of it");
    assert!(!may(&rules, "alice", "Produce", "news") && !may(&rules, "alice", "Fetch", "new"));
    assert!(!may(&rules, "bob", "Fetch", "news") && may(&rules, "root", "DeleteTopics", "news"));

    let forbid = rule("*", Effect::Deny, Operation::Read, "news-of-tea");
    rules.add(vec![forbid.clone()]).await.expect("added");
    assert!(!may(&rules, "alice", "Fetch", "news-of-tea") && may(&rules, "alice", "Fetch", "news"));
    let filter = RuleFilter { effect: Some(Effect::Deny), ..RuleFilter::default() };
    assert_eq!(rules.remove(vec![filter]).await, Ok(vec![forbid]));
    assert!(may(&rules, "alice", "Fetch", "news-of-tea"));
    assert_eq!(rules.list(&RuleFilter::default()), [read]);
}

#[tokio::test]
async fn a_restart_keeps_the_rules_and_they_hold_before_anybody_is_answered() {
    let mut world = World::new();
    let rules = world.rules(Enforcement::Enforce).await;
    rules.add(vec![rule("alice", Effect::Allow, Operation::All, "*")]).await.expect("added");
    drop(rules);
    let rules = Rules::new(&world.env, Enforcement::Enforce, vec![], None);
    assert!(!may(&rules, "alice", "Fetch", "news"), "nobody has rights that are not read yet");
    rules.keep_in(world.meta().await).await.expect("readable");
    assert!(may(&rules, "alice", "Fetch", "news"));
}

#[tokio::test]
async fn a_rule_that_another_node_adds_holds_here() {
    let mut world = World::new();
    let meta = world.meta().await;
    let new = || Rules::new(&world.env, Enforcement::Enforce, vec![], None);
    let (one, other) = (new(), new());
    one.keep_in(Arc::clone(&meta)).await.expect("readable");
    other.keep_in(Arc::clone(&meta)).await.expect("readable");
    one.add(vec![rule("alice", Effect::Allow, Operation::Read, "news")]).await.expect("added");
    while !may(&other, "alice", "Fetch", "news") {
        tokio::task::yield_now().await;
    }
    one.remove(vec![RuleFilter::default()]).await.expect("removed");
    while may(&other, "alice", "Fetch", "news") {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_is_no_rule_is_refused_and_nothing_of_its_request_is_added() {
    let rules = World::new().rules(Enforcement::Enforce).await;
    let good = rule("alice", Effect::Allow, Operation::Read, "news");
    let bad = [
        AccessRule { principal: String::new(), ..good.clone() },
        AccessRule { name: String::new(), ..good.clone() },
        AccessRule { host: "everywhere".to_owned(), ..good.clone() },
        AccessRule { is_prefix: true, name: "*".to_owned(), ..good.clone() },
        AccessRule { kind: ResourceKind::Node, ..good.clone() },
        AccessRule { principal: "x".repeat(1025), ..good.clone() },
    ];
    for bad in bad {
        let refused = rules.add(vec![good.clone(), bad.clone()]).await;
        assert!(matches!(refused, Err(RuleError::Invalid(_))), "{bad:?}: {refused:?}");
    }
    assert_eq!(rules.stats().rules, 0);
    let before = Rules::new(&Env::real(), Enforcement::Enforce, vec![], None);
    assert!(matches!(before.add(vec![good]).await, Err(RuleError::Unavailable(_))));
}

#[tokio::test]
async fn a_rule_of_a_later_version_is_not_passed_over() {
    let mut world = World::new();
    let meta = world.meta().await;
    let value = b"{\"principal\":\"alice\",\"effect\":\"allow_on_mondays\"}".as_slice().into();
    let put = Op::Put { key: "access/rule/00".to_owned(), value, expect: Expect::Any };
    meta.commit(vec![put]).await.expect("durable");
    let rules = Rules::new(&world.env, Enforcement::Enforce, vec![], None);
    let error = rules.keep_in(meta).await.expect_err("it may forbid something");
    assert!(error.to_string().contains("later version"), "{error}");
}

#[tokio::test]
async fn beside_a_rule_that_can_not_be_read_what_is_removed_and_what_is_forbidden_elsewhere_is_so_here_and_nothing_more_is_let()
 {
    let mut world = World::new();
    let meta = world.meta().await;
    let [here, there] = [(); 2].map(|()| Rules::new(&world.env, Enforcement::Enforce, vec![], None));
    for rules in [&here, &there] {
        rules.keep_in(Arc::clone(&meta)).await.expect("readable");
    }
    let allow = |name: &str| rule("alice", Effect::Allow, Operation::Read, name);
    let deny = |name: &str| rule("alice", Effect::Deny, Operation::Read, name);
    there.add(vec![allow("a"), allow("b"), allow("c"), deny("c")]).await.expect("added");
    while here.stats().rules != 4 {
        tokio::task::yield_now().await;
    }
    let value = b"{\"principal\":\"alice\",\"effect\":\"allow_on_mondays\"}".as_slice().into();
    let put = Op::Put { key: "access/rule/00".to_owned(), value, expect: Expect::Any };
    meta.commit(vec![put]).await.expect("durable");
    let of = |name: &str| RuleFilter { name: Some(name.to_owned()), ..RuleFilter::default() };
    there.remove(vec![of("a"), of("c")]).await.expect("removed");
    there.add(vec![deny("b"), allow("d")]).await.expect("added");
    while may(&here, "alice", "Fetch", "a") || may(&here, "alice", "Fetch", "b") {
        tokio::task::yield_now().await;
    }
    assert!(!may(&here, "alice", "Fetch", "c") && !may(&here, "alice", "Fetch", "d"));
    let delete = Op::Delete { key: "access/rule/00".to_owned(), expect: Expect::Present };
    meta.commit(vec![delete]).await.expect("durable");
    while !may(&here, "alice", "Fetch", "d") {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_report_refuses_nothing_and_the_audit_has_what_would_be() {
    let rules = World::new().rules(Enforcement::Report).await;
    assert!(may(&rules, "alice", "Fetch", "news"));
    let events = rules.audit().expect("there is one").recent(0, 10);
    assert_eq!((events[0].outcome.as_str(), events[0].principal.as_str()), ("would_refuse", "alice"));
    assert_eq!((events[0].operation.as_str(), events[0].name.as_str()), ("read", "news"));
    assert_eq!(rules.stats().refused, 1);
}

#[tokio::test]
async fn the_audit_has_refusals_and_changes_and_not_what_was_only_read_or_not_shown() {
    let rules = World::new().rules(Enforcement::Enforce).await;
    let peer = Peer::of("10.0.0.5:1".to_owned(), "alice");
    let request = AccessRequest {
        protocol: Protocol::Kafka,
        operation: "Metadata",
        resource: Resource::Stream("news"),
    };
    assert!(!rules.shows(&peer, request));
    assert!(may(&rules, "root", "Fetch", "news") && may(&rules, "root", "DeleteTopics", "news"));
    assert!(!may(&rules, "alice", "Fetch", "news"));
    let events = rules.audit().expect("there is one").recent(0, 10);
    let seen: Vec<_> = events.iter().map(|event| (event.outcome.as_str(), event.request.as_str())).collect();
    assert_eq!(seen, [("allowed", "DeleteTopics"), ("refused", "Fetch")]);
    assert_eq!(rules.audit().expect("there is one").recent(1, 10), events[1..]);
}

#[tokio::test]
async fn a_rule_about_a_host_is_about_no_other_and_about_no_unix_socket() {
    let rules = World::new().rules(Enforcement::Enforce).await;
    let near =
        AccessRule { host: "10.0.0.5".to_owned(), ..rule("alice", Effect::Allow, Operation::Read, "news") };
    rules.add(vec![near]).await.expect("added");
    let from = |address: &str| may_from(&rules, Peer::of(address.to_owned(), "alice"), "Fetch", "news");
    assert!(from("10.0.0.5:1") && from("[::ffff:10.0.0.5]:1"));
    assert!(!from("10.0.0.6:1") && !from("4711"));
}

#[tokio::test]
async fn a_certificate_is_known_by_its_other_names_as_well() {
    let rules = World::new().rules(Enforcement::Enforce).await;
    rules.add(vec![rule("DNS:orders", Effect::Allow, Operation::Read, "news")]).await.expect("added");
    let mut peer = Peer::of("10.0.0.5:1".to_owned(), "CN=orders");
    assert!(!may_from(&rules, peer.clone(), "Fetch", "news"));
    peer.names = Arc::new(["DNS:orders".to_owned()]);
    assert!(may_from(&rules, peer, "Fetch", "news"));
}

#[tokio::test]
async fn who_may_write_to_any_stream_may_have_a_producer_id() {
    let rules = World::new().rules(Enforcement::Enforce).await;
    let peer = Peer::of("10.0.0.5:1".to_owned(), "alice");
    let request =
        AccessRequest { protocol: Protocol::Kafka, operation: "InitProducerId", resource: Resource::Node };
    assert!(rules.authorize(&peer, request).is_err());
    rules.add(vec![rule("alice", Effect::Allow, Operation::Write, "news")]).await.expect("added");
    assert!(rules.authorize(&peer, request).is_ok());
}

/// What the rules mean, said once more and otherwise: by trying each.
fn means(all: &[AccessRule], principal: &str, operation: Operation, stream: &str) -> bool {
    let about = |rule: &&AccessRule| {
        let named = match (rule.is_prefix, rule.name.as_str()) {
            (true, beginning) => stream.starts_with(beginning),
            (false, name) => name == "*" || name == stream,
        };
        named && [principal, "*"].contains(&rule.principal.as_str())
    };
    let forbids = |rule: &AccessRule| {
        rule.effect == Effect::Deny && [Operation::All, operation].contains(&rule.operation)
    };
    let lets = |rule: &AccessRule| {
        use Operation::*;
        let enough: &[Operation] = match operation {
            Describe => &[All, Describe, Read, Write, Delete, Alter],
            Read => &[All, Read],
            Write => &[All, Write],
            _ => unreachable!("not asked for"),
        };
        rule.effect == Effect::Allow && enough.contains(&rule.operation)
    };
    let about: Vec<_> = all.iter().filter(about).collect();
    about.iter().any(|rule| lets(rule)) && !about.iter().any(|rule| forbids(rule))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_rules_decide_as_they_are_written(
        written in proptest::collection::vec(
            (0..3usize, any::<bool>(), 0..5usize, 0..5usize), 0..8,
        ),
    ) {
        let principals = ["alice", "bob", "*"];
        let operations =
            [Operation::All, Operation::Read, Operation::Write, Operation::Describe, Operation::Alter];
        let names = ["a", "ab", "*", "a*", "ab*"];
        let all: Vec<_> = written
            .into_iter()
            .map(|(who, allow, what, which)| {
                let effect = if allow { Effect::Allow } else { Effect::Deny };
                rule(principals[who], effect, operations[what], names[which])
            })
            .collect();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let rules = World::new().rules(Enforcement::Enforce).await;
            rules.add(all.clone()).await.expect("added");
            for principal in ["alice", "bob", "eve"] {
                for (api, operation) in
                    [("Fetch", Operation::Read), ("Produce", Operation::Write), ("Metadata", Operation::Describe)]
                {
                    for stream in ["a", "ab", "abc", "b"] {
                        let decided = may(&rules, principal, api, stream);
                        prop_assert_eq!(decided, means(&all, principal, operation, stream), "{} {} {}", principal, api, stream);
                    }
                }
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn rules_that_two_nodes_change_at_once_are_what_both_were_answered() {
    let mut world = World::new();
    let meta = world.meta().await;
    let node = |number: u32| {
        let audit = Audit::open(&world.env, &world.dir.path().join(format!("audit-{number}.jsonl")));
        Rules::new(&world.env, Enforcement::Enforce, Vec::new(), Some(audit.expect("opened")))
    };
    let (here, elsewhere) = (node(1), node(2));
    for rules in [&here, &elsewhere] {
        rules.keep_in(Arc::clone(&meta)).await.expect("readable");
    }
    let of = |name: &str| vec![rule("ann", Effect::Allow, Operation::Read, name)];
    let stored = || async { meta.list("access/rule/").await.expect("readable").len() };
    for round in 0..8 {
        let name = format!("s{round}");
        here.add(of(&name)).await.expect("kept");
        // The other one may not have heard of it: it is there once.
        elsewhere.add(of(&name)).await.expect("kept");
        assert_eq!(stored().await, 1);
        let all = || vec![RuleFilter::default()];
        let (one, two) = futures::join!(here.remove(all()), elsewhere.remove(all()));
        let (one, two) = (one.expect("kept"), two.expect("kept"));
        assert_eq!((one.len() + two.len(), stored().await), (1, 0), "one of them has removed it");
        // It has been removed by another one, which this one may not have heard of.
        here.add(of("again")).await.expect("kept");
        elsewhere.add(of("again")).await.expect("kept");
        elsewhere.remove(all()).await.expect("kept");
        here.add(of("again")).await.expect("kept");
        assert_eq!(stored().await, 1, "what is answered as added is there");
        here.remove(all()).await.expect("kept");
    }
}

#[tokio::test]
async fn rules_are_removed_only_as_long_as_what_they_belong_to_is_there() {
    let mut world = World::new();
    let meta = world.meta().await;
    let rules = Rules::new(&world.env, Enforcement::Enforce, vec![], None);
    rules.keep_in(Arc::clone(&meta)).await.expect("readable");
    rules.add(vec![rule("token:ci", Effect::Deny, Operation::Read, "secret")]).await.expect("kept");
    let about = || vec![RuleFilter { principal: Some("token:ci".to_owned()), ..RuleFilter::default() }];
    let put = |expect| Op::Put { key: "owner".to_owned(), value: "x".into(), expect };
    let first = meta.commit(vec![put(Expect::Absent)]).await.expect("written");
    let second = meta.commit(vec![put(Expect::Version(first))]).await.expect("written");
    let is_there = |version| Op::Check { key: "owner".to_owned(), expect: Expect::Version(version) };
    assert_eq!(rules.remove_while(is_there(first), about()).await, Ok(false));
    assert_eq!(rules.list(&RuleFilter::default()).len(), 1);
    assert_eq!(rules.remove_while(is_there(second), about()).await, Ok(true));
    assert_eq!(rules.list(&RuleFilter::default()), []);
}
