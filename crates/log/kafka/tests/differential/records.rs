//! Scripts about records: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, InitProducerId, DeleteRecords.

use bytes::Bytes;
use tailwater_format::Codec;
use tailwater_kafka::api::ApiRequest;
use tailwater_kafka::messages::fetch::*;
use tailwater_kafka::messages::produce::{InitProducerIdRequest, ProduceRequest};
use tailwater_kafka::messages::topics::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
use uuid::Uuid;

use crate::common::{batch, changed};
use crate::session::Session;

/// A time long ago.
const THEN: i64 = 1_700_000_000_000;
const HOUR_MS: i64 = 3_600_000;

/// Topics that say how their records are compressed.
pub fn compression(session: &mut Session) {
    for name in ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"] {
        let topic = &format!("compressed-{name}");
        let id = session.create(topic, 1, &[("compression.type", name)]);
        for codec in Codec::ALL {
            let records = batch(&[THEN, THEN + 2, THEN + 1], codec, None);
            session.produce(format!("{codec:?} to {name}"), 9, (topic, id), 0, records);
        }
        let numbered = batch(&[THEN, THEN + 3], Codec::Lz4, Some((5, 0, 0)));
        for again in ["for the first time", "again"] {
            session.produce(format!("{again} to {name}"), 9, (topic, id), 0, numbered.clone());
        }
        let partitions = vec![FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() }];
        let topics = vec![FetchTopic { topic: topic.clone(), topic_id: id, partitions }];
        let asked = FetchRequest { max_bytes: 1 << 20, topics, ..Default::default() };
        session.fetch(format!("all of {name}"), 12, &asked);
    }
}

pub fn produce(session: &mut Session) {
    let now = session.now;
    let id = session.create("produce", 2, &[]);
    let topic = ("produce", id);
    for version in ProduceRequest::API.versions() {
        session.produce("two records", version, topic, 0, batch(&[THEN, THEN + 1], Codec::None, None));
        session.produce("no such partition", version, topic, 7, batch(&[THEN], Codec::None, None));
        session.produce(
            "no such topic",
            version,
            ("nobody.s", Uuid::from_u128(1)),
            0,
            batch(&[1], Codec::None, None),
        );
    }
    let versions = [ProduceRequest::API.versions().start().to_owned(), 9, 13];
    for version in versions {
        for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
            session.produce(format!("{codec:?}"), version, topic, 1, batch(&[THEN; 3], codec, None));
        }
    }
    let good = batch(&[THEN, THEN], Codec::None, None);
    let mut damaged = good.to_vec();
    *damaged.last_mut().expect("not empty") ^= 1;
    for (what, records) in [
        ("a damaged batch", Bytes::from(damaged)),
        ("no batch", Bytes::new()),
        ("half a batch", good.slice(..40)),
        ("a batch that is cut", good.slice(..good.len() - 3)),
        ("two batches", [&good[..], &good[..]].concat().into()),
        ("magic 1", changed(&good, 16, &[1])),
        ("magic 3", changed(&good, 16, &[3])),
        ("a codec that is none", changed(&good, 21, &[0, 7])),
        ("more records than there are", changed(&changed(&good, 23, &[0, 0, 0, 2]), 57, &[0, 0, 0, 3])),
        ("a last offset that does not fit", changed(&good, 23, &[0, 0, 0, 9])),
        ("no records", changed(&changed(&good.slice(..61), 8, &49_i32.to_be_bytes()), 57, &[0; 4])),
        ("a control batch", changed(&good, 21, &[0, 32])),
        ("a base offset", changed(&good, 0, &77_i64.to_be_bytes())),
        ("a length that is none", changed(&good, 8, &(-1_i32).to_be_bytes())),
        ("no timestamps", batch(&[-1], Codec::None, None)),
        ("tomorrow", batch(&[now + 24 * HOUR_MS], Codec::None, None)),
        ("half an hour ahead", batch(&[now + HOUR_MS / 2], Codec::None, None)),
        ("long ago", batch(&[0], Codec::None, None)),
    ] {
        for version in [7, 8, 13] {
            session.produce(what, version, topic, 0, records.clone());
        }
    }
    let of_append = ("of-append", session.create("of-append", 1, &[]));
    session.produce("the append's time", 9, of_append, 0, changed(&good, 21, &[0, 8]));
    for acks in [-2, 1, 2] {
        let asked = ProduceRequest { acks, ..whole_request("produce", id, good.clone()) };
        session.ask_in(format!("acks {acks}"), 8..=13, &asked);
    }
    let asked = ProduceRequest { topic_data: vec![], acks: -1, ..Default::default() };
    session.ask_all("no topics", &asked);
}

fn whole_request(name: &str, topic_id: Uuid, records: Bytes) -> ProduceRequest {
    use tailwater_kafka::messages::produce::{PartitionProduceData, TopicProduceData};
    let data = PartitionProduceData { index: 0, records: tailwater_kafka::wire::RecordsBytes(vec![records]) };
    let topic = TopicProduceData { name: name.to_owned(), topic_id, partition_data: vec![data] };
    ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![topic], ..Default::default() }
}

pub fn idempotence(session: &mut Session) {
    let topic = ("idempotence", session.create("idempotence", 1, &[]));
    let wanted = InitProducerIdRequest { producer_id: -1, producer_epoch: -1, ..Default::default() };
    // Kafka fetches its first ids when somebody wants one.
    let producer = loop {
        let answer = session.client.ask(4, &wanted).expect("an answer");
        if answer.error_code == 0 {
            break answer.producer_id;
        }
    };
    let mut send = |what: &str, epoch: i16, first: i32, count: usize| {
        let records = batch(&vec![THEN; count], Codec::None, Some((producer, epoch, first)));
        session.produce(what, 9, topic, 0, records);
    };
    send("the first batch", 0, 0, 2);
    send("the next one", 0, 2, 3);
    send("the same again", 0, 2, 3);
    send("the first one again", 0, 0, 2);
    send("one is missing", 0, 6, 1);
    send("half of one that is there", 0, 2, 1);
    send("the same beginning, but longer", 0, 2, 4);
    for number in 0..5 {
        send("one more", 0, 5 + number, 1);
    }
    send("older than the last five", 0, 0, 2);
    send("the oldest of the last five", 0, 5, 1);
    send("a new epoch that does not begin anew", 1, 10, 1);
    send("a new epoch", 1, 0, 1);
    send("the old epoch", 0, 10, 1);
    send("the new epoch goes on", 1, 1, 1);
    let producer = producer + 5_000;
    let mut send = |what: &str, epoch: i16, first: i32| {
        session.produce(what, 9, topic, 0, batch(&[THEN], Codec::None, Some((producer, epoch, first))));
    };
    send("somebody unknown, in the midst", 3, 17);
    send("and on", 3, 18);
    send("a gap", 3, 20);
    send("around the end of the numbers", 4, 0);
    session.produce(
        "an epoch without a producer",
        9,
        topic,
        0,
        changed(&batch(&[THEN], Codec::None, None), 51, &1_i16.to_be_bytes()),
    );
    session.produce(
        "a producer without a sequence",
        9,
        topic,
        0,
        changed(&batch(&[THEN], Codec::None, Some((producer, 4, 1))), 53, &(-1_i32).to_be_bytes()),
    );
    let two = batch(&[THEN], Codec::None, Some((producer, 4, 1)));
    session.produce("two batches", 9, topic, 0, [&two[..], &two[..]].concat().into());
    read_all(session, topic.0, topic.1);
    let asked = InitProducerIdRequest { producer_id: -1, producer_epoch: -1, ..Default::default() };
    session.ask_all("a producer's id", &asked);
    let empty = InitProducerIdRequest { transactional_id: Some(String::new()), ..asked.clone() };
    session.ask_all("an empty transactional id", &empty);
    let again = InitProducerIdRequest { producer_id: producer, producer_epoch: 4, ..asked };
    session.ask_in("an epoch more", 3..=5, &again);
}

/// Times of a topic's own rules.
pub fn timestamps(session: &mut Session) {
    let now = session.now;
    let limits = [("message.timestamp.before.max.ms", "60000"), ("message.timestamp.after.max.ms", "120000")];
    let limited = ("limited", session.create("limited", 1, &limits));
    for (what, timestamps) in [
        ("now", vec![now]),
        ("an hour ago", vec![now - HOUR_MS]),
        ("in an hour", vec![now + HOUR_MS]),
        ("one of three is old", vec![now, now - HOUR_MS, now]),
        ("no time", vec![-1]),
        ("one of three has no time", vec![now, -1, now]),
    ] {
        for codec in [Codec::None, Codec::Lz4] {
            session.produce(what, 9, limited, 0, batch(&timestamps, codec, None));
        }
    }
    let append = ("append", session.create("append", 1, &[("message.timestamp.type", "LogAppendTime")]));
    for version in [3, 9, 13] {
        session.produce("tomorrow", version, append, 0, batch(&[now + 24 * HOUR_MS, 3], Codec::None, None));
        session.produce("compressed", version, append, 0, batch(&[1, 2], Codec::Gzip, None));
    }
    read_all(session, append.0, append.1);
}

/// A request for one partition from an offset on, which waits for nothing.
fn fetch_of(name: &str, topic_id: Uuid, partition: i32, offset: i64) -> FetchRequest {
    let partition = FetchPartition {
        partition,
        fetch_offset: offset,
        partition_max_bytes: 1 << 20,
        ..Default::default()
    };
    let topic = FetchTopic { topic: name.to_owned(), topic_id, partitions: vec![partition] };
    FetchRequest { max_wait_ms: 0, min_bytes: 1, topics: vec![topic], ..Default::default() }
}

fn read_all(session: &mut Session, name: &str, id: Uuid) {
    session.fetch("all of it", 12, &fetch_of(name, id, 0, 0));
}

pub fn fetch(session: &mut Session) {
    let id = session.create("fetch", 2, &[]);
    for number in 0..4 {
        let records = batch(&[THEN + number, THEN + number], Codec::None, None);
        session.produce("a batch", 9, ("fetch", id), 0, records);
    }
    let epoch = session.first_epoch;
    for version in FetchRequest::API.versions() {
        let of = |partition, offset| fetch_of("fetch", id, partition, offset);
        session.fetch("from the beginning", version, &of(0, 0));
        session.fetch("from within a batch", version, &of(0, 3));
        session.fetch("at the end", version, &of(0, 8));
        session.fetch("behind the end", version, &of(0, 9));
        session.fetch("before the beginning", version, &of(0, -1));
        session.fetch("an empty partition", version, &of(1, 0));
        session.fetch("no such partition", version, &of(2, 0));
        session.fetch("no such topic", version, &fetch_of("nobody.s", Uuid::from_u128(7), 0, 0));
        let committed = FetchRequest { isolation_level: 1, ..of(0, 6) };
        session.fetch("what is committed", version, &committed);
        let near = FetchRequest { rack_id: "rack".to_owned(), ..of(0, 4) };
        session.fetch("from a rack", version, &near);
        let mut few = of(0, 0);
        few.topics[0].partitions[0].partition_max_bytes = 1;
        session.fetch("less than a batch", version, &few);
        let mut two = FetchRequest { max_bytes: 150, ..of(0, 0) };
        let first = two.topics[0].partitions[0].clone();
        two.topics[0].partitions.push(FetchPartition { partition: 1, ..first });
        session.fetch("two partitions, and bytes for less", version, &two);
        session.fetch("nothing", version, &FetchRequest { topics: vec![], ..of(0, 0) });
        for delta in [0, 1] {
            let mut asked = of(0, 0);
            asked.topics[0].partitions[0].current_leader_epoch = epoch + delta;
            if version >= 9 {
                session.fetch(format!("epoch first + {delta}"), version, &asked);
            }
        }
        if version >= 12 {
            for (last, offset) in [(epoch, 4), (epoch + 3, 4)] {
                let mut asked = of(0, offset);
                asked.topics[0].partitions[0].last_fetched_epoch = last;
                session.fetch(format!("last fetched in epoch first + {}", last - epoch), version, &asked);
            }
        }
        if version >= 7 {
            for (session_id, session_epoch) in [(0, -1), (0, 5), (99, 1), (99, -1), (99, 0)] {
                let asked = FetchRequest { session_id, session_epoch, ..of(0, 6) };
                session.fetch(format!("session {session_id} in epoch {session_epoch}"), version, &asked);
            }
        }
    }
}

pub fn positions(session: &mut Session) {
    let id = session.create("positions", 2, &[]);
    // Times that go back: the largest so far decides.
    for times in [[100, 300, 200], [250, 300, 400], [400, 50, 350]] {
        session.produce("a batch", 9, ("positions", id), 0, batch(&times, Codec::None, None));
    }
    session.produce(
        "a compressed batch",
        9,
        ("positions", id),
        0,
        batch(&[500, 450, 600], Codec::Zstd, None),
    );
    let first = session.first_epoch;
    let asked = |partition_index, timestamp, current_leader_epoch| ListOffsetsRequest {
        replica_id: -1,
        topics: vec![ListOffsetsTopic {
            name: "positions".to_owned(),
            partitions: vec![ListOffsetsPartition { partition_index, current_leader_epoch, timestamp }],
        }],
        ..Default::default()
    };
    for version in ListOffsetsRequest::API.versions() {
        // The special times came with versions of their own.
        let oldest = match version {
            ..7 => -2,
            7 => -3,
            8 => -4,
            9 | 10 => -5,
            _ => -6,
        };
        let times = (oldest..=1).chain([
            99,
            100,
            101,
            250,
            300,
            301,
            350,
            400,
            401,
            450,
            500,
            501,
            600,
            601,
            i64::MAX,
        ]);
        for time in times {
            session.ask(format!("time {time}"), version, &asked(0, time, -1));
            if time < 2 {
                session.ask(format!("time {time} of an empty partition"), version, &asked(1, time, -1));
            }
        }
        session.ask("a time that is none", version, &asked(0, -77, -1));
        session.ask("no such partition", version, &asked(9, -1, -1));
        let mut nobody_s = asked(0, -1, -1);
        nobody_s.topics[0].name = "nobody.s".to_owned();
        session.ask("no such topic", version, &nobody_s);
        session.ask("an epoch to come", version, &asked(0, -1, first + 1));
        session.ask("this epoch", version, &asked(0, -1, first));
    }
    let asked = |partition, current_leader_epoch, leader_epoch| OffsetForLeaderEpochRequest {
        replica_id: -1,
        topics: vec![OffsetForLeaderTopic {
            topic: "positions".to_owned(),
            partitions: vec![OffsetForLeaderPartition { partition, current_leader_epoch, leader_epoch }],
        }],
    };
    session.ask_all("the end of this epoch", &asked(0, -1, first));
    session.ask_all("the end of an epoch to come", &asked(0, -1, first + 1));
    session.ask_all("the end of the epoch of nobody", &asked(0, -1, -1));
    session.ask_all("an empty partition", &asked(1, -1, first));
    session.ask_all("the client knows a later epoch", &asked(0, first + 5, first));
    session.ask_all("no such partition", &asked(5, -1, first));
}

fn times_of(name: &str, partition_index: i32, timestamp: i64, epoch: i32) -> ListOffsetsRequest {
    let partition = ListOffsetsPartition { partition_index, current_leader_epoch: epoch, timestamp };
    ListOffsetsRequest {
        replica_id: -1,
        topics: vec![ListOffsetsTopic { name: name.to_owned(), partitions: vec![partition] }],
        ..Default::default()
    }
}

fn ends_of(name: &str, partition: i32, current: i32, epoch: i32) -> OffsetForLeaderEpochRequest {
    let partition =
        OffsetForLeaderPartition { partition, current_leader_epoch: current, leader_epoch: epoch };
    OffsetForLeaderEpochRequest {
        replica_id: -1,
        topics: vec![OffsetForLeaderTopic { topic: name.to_owned(), partitions: vec![partition] }],
    }
}

/// Deletes partition 0 of a topic up to `offset`.
fn cut(session: &mut Session, name: &str, offset: i64) {
    let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset }];
    let topics = vec![DeleteRecordsTopic { name: name.to_owned(), partitions }];
    session.ask(format!("before {offset}"), 2, &DeleteRecordsRequest { topics, timeout_ms: 30_000 });
}

/// What is asked for by time after records were deleted, the one with the largest time among them.
pub fn removed(session: &mut Session) {
    let topic = ("removed", session.create("removed", 1, &[]));
    let times = [100, 900, 200, 250, 300, 400, 400, 50, 350, 500, 450, 600];
    for batch_times in times.chunks(3) {
        let codec = if batch_times[0] == 500 { Codec::Zstd } else { Codec::None };
        session.produce("a batch", 9, topic, 0, batch(batch_times, codec, None));
    }
    let first = session.first_epoch;
    for offset in [1, 3, 5, 9, 10, 12] {
        cut(session, topic.0, offset as i64);
        for time in [-1, -2, -3, -4, 0, 100, 101, 200, 250, 300, 301, 400, 401, 450, 500, 600, 601, 900, 901]
        {
            let largest_removed = times[..offset].iter().copied().max().unwrap_or_default();
            let is_reached = if time == -3 { 900 } else { time } <= largest_removed;
            let what = if is_reached { ", which what is removed reached" } else { "" };
            session.ask(format!("time {time}{what}, from {offset} on"), 10, &times_of(topic.0, 0, time, -1));
        }
        session.ask("the end of this epoch", 4, &ends_of(topic.0, 0, -1, first));
        session.ask("the end of an epoch to come", 4, &ends_of(topic.0, 0, -1, first + 1));
    }
    session.produce("after all were deleted", 9, topic, 0, batch(&[700, 950], Codec::None, None));
    for time in [-1, -2, -3, 950, 951] {
        session.ask(format!("time {time} of what came later"), 10, &times_of(topic.0, 0, time, -1));
    }
}

/// A producer that is there before and after the broker is started again.
const PRODUCER: i64 = 4_242;

pub fn terms(session: &mut Session) {
    let topic = ("terms", session.create("terms", 2, &[]));
    // Kafka forgets producers whose records are old when it starts.
    let now = session.now;
    let of = |sequence| batch(&[now, now + 2], Codec::None, Some((PRODUCER, 0, sequence)));
    session.produce("two records", 9, topic, 0, of(0));
    session.produce("two more", 9, topic, 0, of(2));
    session.produce("one of nobody", 9, topic, 0, batch(&[now + 1], Codec::None, None));
    session.produce("one of another partition", 9, topic, 1, batch(&[now], Codec::None, None));
}

/// The same topic in its second epoch.
pub fn terms_afterwards(session: &mut Session) {
    let topic = ("terms", session.wait_for("terms", 2));
    let first = session.first_epoch;
    session.ask("before anything is written", 10, &times_of(topic.0, 0, -1, -1));
    session.ask("before anything is written", 4, &ends_of(topic.0, 0, -1, first));
    let now = session.now;
    let of = |sequence| batch(&[now, now + 3], Codec::None, Some((PRODUCER, 0, sequence)));
    session.produce("the same again", 9, topic, 0, of(2));
    session.produce("one is missing", 9, topic, 0, of(6));
    session.produce("the next two", 9, topic, 0, of(4));
    session.produce("one more of another partition", 9, topic, 1, batch(&[now], Codec::None, None));
    let latest = session.client.ask(10, &times_of(topic.0, 0, -1, -1)).expect("an answer");
    let second = latest.topics[0].partitions[0].leader_epoch;
    assert!(second > first, "epochs {first} and {second}");
    session.second_epoch = Some(second);
    look_at_terms(session, topic, "all there");
    session.ask("the largest time", 10, &times_of(topic.0, 0, -3, -1));
    for ms in 0..5 {
        session.ask(format!("{ms} ms later"), 10, &times_of(topic.0, 0, now + ms, -1));
    }
    for offset in [2, 6, 7] {
        cut(session, topic.0, offset);
        look_at_terms(session, topic, &format!("all before {offset} deleted"));
    }
}

fn look_at_terms(session: &mut Session, (name, id): (&str, Uuid), what: &str) {
    let (first, second) = (session.first_epoch, session.second_epoch.expect("a second one"));
    for partition in [0, 1] {
        for (epoch, asked) in [("the first", first), ("the second", second), ("one to come", second + 1)] {
            let what = format!("{what}, partition {partition}, {epoch} epoch");
            for version in OffsetForLeaderEpochRequest::API.versions() {
                session.ask(format!("the end: {what}"), version, &ends_of(name, partition, -1, asked));
            }
            session.ask(format!("in it: {what}"), 4, &ends_of(name, partition, asked, first));
            session.ask(format!("in it: {what}"), 10, &times_of(name, partition, -1, asked));
            let mut fetched = fetch_of(name, id, partition, 0);
            fetched.topics[0].partitions[0].current_leader_epoch = asked;
            session.fetch(format!("in it: {what}"), 12, &fetched);
        }
    }
    for time in [-1, -2] {
        session.ask(format!("{what}, time {time}"), 10, &times_of(name, 0, time, -1));
    }
    for (last, offset) in
        [(first, 3), (first, 5), (first, 6), (first, 7), (second, 5), (second, 6), (second, 7)]
    {
        let mut fetched = fetch_of(name, id, 0, offset);
        fetched.topics[0].partitions[0].last_fetched_epoch = last;
        let last = if last == first { "first" } else { "second" };
        session.fetch(format!("{what}, at {offset}, last fetched in the {last} epoch"), 12, &fetched);
    }
}

pub fn delete_records(session: &mut Session) {
    let id = session.create("cut", 1, &[]);
    for _ in 0..4 {
        session.produce("a batch", 9, ("cut", id), 0, batch(&[THEN, THEN], Codec::None, None));
    }
    for (version, offset) in [(0, 3), (1, 3), (2, 2), (2, 4), (1, 9), (0, -2), (2, -1), (2, 0)] {
        let partitions = vec![
            DeleteRecordsPartition { partition_index: 0, offset },
            DeleteRecordsPartition { partition_index: 4, offset },
        ];
        let topics = ["cut", "nobody.s"]
            .map(|name| DeleteRecordsTopic { name: name.to_owned(), partitions: partitions.clone() });
        let asked = DeleteRecordsRequest { topics: topics.into(), timeout_ms: 30_000 };
        session.ask(format!("before {offset}"), version, &asked);
        session.fetch(format!("before {offset}"), 12, &fetch_of("cut", id, 0, 3));
    }
    session.produce("after all were deleted", 9, ("cut", id), 0, batch(&[THEN, THEN], Codec::None, None));
}
