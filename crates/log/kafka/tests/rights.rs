//! Every API in every version, asked by a client that may do nothing: it is refused in the codes that clients know,
//! nothing is done, and nothing is told that depends on what there is.

#![allow(clippy::disallowed_methods)] // a test of real sockets

mod common;
#[path = "mutated/samples.rs"]
mod samples;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use common::{Client, Tailwater};
use samples::{Sample, TOPIC, samples};
use tailwater_access::{AccessRequest, Authorizer, Denied, Peer};
use tailwater_kafka::KafkaConfig;
use tailwater_kafka::api::Api;
use tailwater_kafka::messages::cluster::{MetadataRequest, MetadataRequestTopic};
use tailwater_kafka::messages::topics::{CreatableTopic, CreateTopicsRequest};
use uuid::Uuid;

/// What is asked before somebody is known, and tells nothing of what there is.
const FOR_EVERYBODY: [Api; 3] = [Api::ApiVersions, Api::SaslHandshake, Api::SaslAuthenticate];

/// What lists all there is: to whom nothing is shown the list is empty.
const LISTS: [Api; 2] = [Api::ListGroups, Api::ListConfigResources];

/// No topic has the id that was asked for.
const UNKNOWN_ID: &str = "error_code: 100";

/// What tells how things are.
const STATE: [Api; 8] = [
    Api::Metadata,
    Api::ListOffsets,
    Api::OffsetFetch,
    Api::DescribeConfigs,
    Api::ListGroups,
    Api::DescribeGroups,
    Api::ConsumerGroupDescribe,
    Api::DescribeProducers,
];

/// Lets everybody do everything until it is shut.
#[derive(Default)]
struct Shutter(AtomicBool);

impl Authorizer for Shutter {
    fn authorize(&self, _: &Peer, _: AccessRequest<'_>) -> Result<(), Denied> {
        match self.0.load(Ordering::SeqCst) {
            true => Err(Denied("it is shut".to_owned())),
            false => Ok(()),
        }
    }
}

fn started() -> (Tailwater, Arc<Shutter>) {
    let shutter = Arc::new(Shutter::default());
    // Both are told of by the same address.
    let config = KafkaConfig { advertised: "node.example:9092".to_owned(), ..KafkaConfig::default() };
    (Tailwater::start_for(config, Arc::clone(&shutter) as _), shutter)
}

/// Creates the topic that samples are about.
fn create(tailwater: &Tailwater) -> Uuid {
    let mut client = Client::connect(tailwater.address());
    let topic = CreatableTopic {
        name: TOPIC.to_owned(),
        num_partitions: 2,
        replication_factor: 1,
        ..Default::default()
    };
    let asked = CreateTopicsRequest { topics: vec![topic], timeout_ms: 60_000, ..Default::default() };
    let created = client.ask(7, &asked).expect("an answer");
    assert_eq!(created.topics[0].error_code, 0);
    let topics = vec![MetadataRequestTopic { name: Some(TOPIC.to_owned()), ..Default::default() }];
    let asked = MetadataRequest { topics: Some(topics), ..Default::default() };
    client.ask(12, &asked).expect("an answer").topics[0].topic_id
}

fn answer(tailwater: &Tailwater, sample: &Sample) -> Bytes {
    Client::connect(tailwater.address()).exchange(&sample.frame).expect("an answer")
}

fn api(sample: &Sample) -> Api {
    let known = Api::ALL.iter().find(|api| api.number() == sample.api);
    *known.expect("an API")
}

fn state(tailwater: &Tailwater, samples: &[Sample]) -> BTreeMap<String, String> {
    let asked = samples.iter().filter(|sample| STATE.contains(&api(sample)));
    let told = asked.map(|sample| {
        let shown = (sample.show_answer)(sample.version, answer(tailwater, sample));
        (format!("{} {}", api(sample).name(), sample.version), shown)
    });
    told.collect()
}

#[test]
fn who_may_do_nothing_is_refused_by_every_api_changes_nothing_and_is_told_nothing_of_what_there_is() {
    let ((full, shut_full), (empty, shut_empty)) = (started(), started());
    let samples = samples(create(&full));
    for sample in samples.iter().filter(|sample| {
        // There are records, groups and what they committed.
        [Api::Produce, Api::OffsetCommit, Api::InitProducerId].contains(&api(sample))
    }) {
        answer(&full, sample);
    }
    let before = state(&full, &samples);
    for shutter in [&shut_full, &shut_empty] {
        shutter.0.store(true, Ordering::SeqCst);
    }
    let mut let_in = Vec::new();
    for sample in &samples {
        let (api, version) = (api(sample), sample.version);
        let told = |tailwater| (sample.show_answer)(version, answer(tailwater, sample));
        let (with, without) = (told(&full), told(&empty));
        // An id is as good as a secret: who asks by one was told it once.
        let is_by_id = without.contains(UNKNOWN_ID);
        assert!(is_by_id || with == without, "{} {version}:\n{with}\n{without}", api.name());
        let codes = [29, 30, 31].map(|code| format!("error_code: {code}"));
        let is_refused = codes.iter().any(|code| with.contains(code));
        // Before version 3 an answer without directories has no place for a code.
        let is_silent = api == Api::DescribeLogDirs && version < 3;
        let is_for_everybody = FOR_EVERYBODY.contains(&api) || LISTS.contains(&api) || is_silent;
        if !is_refused && !is_for_everybody {
            let_in.push(format!("{} {version}: {with}", api.name()));
        }
    }
    assert!(let_in.is_empty(), "{let_in:#?}");
    shut_full.0.store(false, Ordering::SeqCst);
    assert_eq!(state(&full, &samples), before, "nothing was done");
}
