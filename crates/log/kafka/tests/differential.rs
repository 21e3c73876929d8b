//! The same requests to Apache Kafka and to Tailwater are answered the same, field by field, but for the differences
//! that `docs/kafka.md` lists.

#![allow(clippy::disallowed_methods)] // a test of real processes

mod common;
#[path = "differential/differences.rs"]
mod differences;
#[path = "differential/groups.rs"]
mod groups;
#[path = "differential/kafka.rs"]
mod kafka;
#[path = "differential/pairs.rs"]
mod pairs;
#[path = "differential/records.rs"]
mod records;
#[path = "differential/replicas.rs"]
mod replicas;
#[path = "differential/session.rs"]
mod session;
#[path = "differential/silence.rs"]
mod silence;
#[path = "differential/topics.rs"]
mod topics;
#[path = "differential/tree.rs"]
mod tree;
#[path = "differential/vanished.rs"]
mod vanished;

use std::collections::{BTreeMap, BTreeSet};

use session::{Fields, Session};
use tailwater_kafka::KafkaConfig;

/// A script, by name. Each looks after topics of its own.
type Script = (&'static str, fn(&mut Session));

const SCRIPTS: &[Script] = &[
    // Before others commit: Kafka keeps in the topic what they do.
    ("internal", replicas::internal),
    ("silence of KIP-848", silence::begins),
    ("versions", topics::versions),
    ("metadata", topics::metadata),
    ("automatic creation", topics::automatic_creation),
    ("creation", topics::creation),
    ("deletion", topics::deletion),
    ("partitions", topics::partitions),
    ("configs", topics::configs),
    ("cluster", topics::cluster),
    ("security", topics::security),
    ("replicas", replicas::replicas),
    ("controllers", replicas::controllers),
    ("producers", replicas::producers),
    ("produce", records::produce),
    ("compression", records::compression),
    ("idempotence", records::idempotence),
    ("timestamps", records::timestamps),
    ("fetch", records::fetch),
    ("positions", records::positions),
    ("delete records", records::delete_records),
    ("lives", groups::lives),
    ("refusals", groups::refusals),
    ("members", groups::members),
    ("consumer groups", groups::consumer_groups),
    ("consumer groups of two", pairs::consumer_groups),
    ("consumer groups of names", pairs::consumer_names),
    ("moving", groups::moving),
    ("pairs", pairs::pairs),
    ("names", pairs::names),
    ("silence", pairs::silence),
    ("removed", records::removed),
    ("vanished", vanished::vanished),
    // As late as may be: it waits for what is left of a session.
    ("silence of KIP-848", silence::is_over),
    ("terms", records::terms),
];

/// Scripts that go on with what those above left, after both brokers were started again.
const AFTERWARDS: &[Script] = &[("terms", records::terms_afterwards)];

/// What two brokers differ in at one step: path, Kafka's value, ours.
fn compare(kafka: &Fields, tailwater: &Fields) -> Vec<(String, String, String)> {
    let paths: BTreeSet<&String> = kafka.keys().chain(tailwater.keys()).collect();
    let at = |fields: &Fields, path: &String| fields.get(path).cloned().unwrap_or_else(|| "-".to_owned());
    let differences = paths.into_iter().map(|path| (path.clone(), at(kafka, path), at(tailwater, path)));
    differences.filter(|(_, kafka, tailwater)| kafka != tailwater).collect()
}

#[test]
fn the_same_requests_are_answered_as_apache_kafka_answers_them_but_for_what_is_documented() {
    let only = std::env::var("SCRIPT").ok();
    let mut theirs = kafka::Kafka::start();
    // As in Kafka's file: a group's first member waits for nobody.
    let mut config = KafkaConfig::default();
    config.groups.initial_rebalance_delay_ms = 0;
    let mut ours = common::Tailwater::start(config);
    differences::check_versions(
        &mut common::Client::connect(theirs.address()),
        &mut common::Client::connect(ours.address()),
    );
    let now = ours.now();
    let mut unexpected = Vec::new();
    let mut used = BTreeMap::new();
    let mut steps = 0;
    for (life, scripts) in [SCRIPTS, AFTERWARDS].into_iter().enumerate() {
        let is_one = |only: &str, name: &str| only.split(',').any(|only| only == name);
        let wanted = |(name, _): &&Script| only.as_deref().is_none_or(|only| is_one(only, name));
        let scripts: Vec<_> = scripts.iter().filter(wanted).collect();
        if life > 0 && !scripts.is_empty() {
            theirs.restart();
            ours.restart();
        }
        for (name, script) in scripts {
            let mut kafka = Session::new(theirs.address(), 0, now);
            let mut tailwater = Session::new(ours.address(), 1, now);
            script(&mut kafka);
            script(&mut tailwater);
            assert_eq!(kafka.steps.len(), tailwater.steps.len(), "{name}");
            for ((step, kafka), (_, tailwater)) in kafka.steps.into_iter().zip(tailwater.steps) {
                steps += 1;
                for (path, kafka, tailwater) in compare(&kafka, &tailwater) {
                    match differences::documented(name, &step, &path, &kafka, &tailwater) {
                        Some(number) => *used.entry(number).or_insert(0) += 1,
                        None => unexpected.push(format!(
                            "{name}, {step}\n    {path}: Kafka {kafka}, Tailwater {tailwater}"
                        )),
                    }
                }
            }
        }
    }
    assert!(unexpected.is_empty(), "{} differences:\n{}", unexpected.len(), unexpected.join("\n"));
    if only.is_none() {
        assert!(steps > 1_000, "only {steps} steps");
        differences::check_all_used(&used);
    }
}

#[test]
fn every_difference_that_is_expected_is_documented() {
    differences::check_documented();
}
