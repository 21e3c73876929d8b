//! What a peer can make a replica hold is bounded.

use bytes::Bytes;
use tailwater_broadcast::limits::{ABSENT_EACH, ABSENT_MAX, STREAMS_MAX, UNSETTLED_BYTES_MAX};
use tailwater_broadcast::message::{Advertised, Chain, Member, Message, Reason, Role};
use tailwater_broadcast::replica::{Config, Peer, Replica, ReplicaOutput};
use tailwater_broadcast::{Batch, Collect, Content, Position, Stream, Writer};

/// A chain of these replicas, the head first.
fn chain(epoch: u64, members: &[u64]) -> Chain {
    let member = |id: &u64| Member { id: *id, address: format!("replica-{id}") };
    let members = members.iter().map(member).collect();
    Chain { epoch, lineage: 1, region: "here".to_owned(), members, joining: Vec::new() }
}

/// Replica 1, in a chain.
fn replica(members: &[u64]) -> Replica {
    let mut replica = Replica::new(Config::new("here", 1));
    replica.configure(0, chain(1, members));
    replica
}

#[test]
fn publishers_are_refused_while_too_much_waits_for_a_replica_that_holds_nothing() {
    let mut head = replica(&[1, 2]);
    head.connected(0, 7, client(3));
    let stream = Stream::parse("here/news").unwrap();
    let payload = Bytes::from(vec![b'x'; 1 << 20]);
    let mut refused = None;
    for first in 1..=2 * (UNSETTLED_BYTES_MAX >> 20) as u64 {
        let mut events = Writer::new(0);
        events.publish(&Content { payload: payload.clone(), ..Content::default() }, None).unwrap();
        let publish = Message::Publish {
            stream: stream.clone(),
            client: 3,
            answered: 0,
            first,
            batch: events.finish(1),
        };
        head.receive(0, 7, publish);
        refused = head.outputs().into_iter().find_map(|output| match output {
            ReplicaOutput::Send(7, Message::Refused { first, reason, .. }) => Some((first, reason)),
            _ => None,
        });
        if refused.is_some() {
            break;
        }
    }
    let (first, reason) = refused.expect("some publish was refused");
    assert_eq!(reason, Reason::Limit);
    assert_eq!(head.stream(&stream).unwrap().last(), first - 1, "what came before is on its way");
}

#[test]
fn what_takes_long_to_find_out_about_leaves_time_for_everything_else() {
    let mut head = replica(&[1]);
    head.connected(0, 7, client(3));
    let stream = Stream::parse("here/news").unwrap();
    let key = |key: &'static str| Content { key: Some(key.into()), ..Content::default() };
    let publish = |head: &mut Replica, client, first, batch: &Batch| {
        let (stream, batch) = (stream.clone(), batch.clone());
        head.receive(0, 7, Message::Publish { stream, client, answered: first - 1, first, batch });
        let mut outputs = head.outputs().into_iter();
        outputs.find_map(|output| match output {
            ReplicaOutput::Send(7, Message::Refused { reason, text, .. }) => Some((reason, text)),
            _ => None,
        })
    };
    let mut stored = Writer::new(0);
    (0..1_500).for_each(|_| stored.publish(&key("a"), None).unwrap());
    stored.publish(&key("b"), Some(&Collect::SameKey)).unwrap();
    assert_eq!(publish(&mut head, 1, 1, &stored.finish(0)), None);
    let mut long = Writer::new(0);
    for n in 0..1_000 {
        let either = ["key = \"a\" and header.x = \"1\"", "header.x = \"1\" and key = \"a\""];
        long.publish(&key("a"), Some(&Collect::Matching(either[n % 2].into()))).unwrap();
    }
    let long = long.finish(0);
    let before = head.steps();
    assert_eq!(publish(&mut head, 2, 1, &long).unwrap().0, Reason::Invalid);
    let one = head.steps() - before;
    for _ in 0..256 {
        let (reason, text) = publish(&mut head, 2, 1, &long).unwrap();
        assert!(reason == Reason::Limit && text.contains("try again later"), "{text}");
    }
    assert!(head.steps() - before < 2 * one, "{} and {one}", head.steps() - before);
    // What needs no look is published all the same.
    let mut short = Writer::new(0);
    short.publish(&key("b"), Some(&Collect::SameKey)).unwrap();
    assert_eq!(publish(&mut head, 1, 1_502, &short.finish(0)), None);
    (1..=10).for_each(|n| head.tick(20 * n, 1_000));
    assert_eq!(publish(&mut head, 2, 1, &long).unwrap().0, Reason::Invalid);
}

#[test]
fn a_replica_that_is_not_the_head_any_more_is_sent_nothing_of_other_regions() {
    let mut head = replica(&[1]);
    head.connected(0, 8, Peer::Out("there".to_owned(), 5));
    let stream = Stream::parse("there/news").unwrap();
    head.receive(0, 8, advertise(&stream, 1));
    head.outputs();
    head.configure(0, chain(2, &[2]));
    assert!(head.outputs().contains(&ReplicaOutput::Send(8, Message::Unsubscribe { stream })));
}

#[test]
fn a_stream_with_much_to_send_keeps_no_other_one_waiting() {
    let mut tail = replica(&[1]);
    tail.connected(0, 7, client(3));
    let [busy, lone] = ["here/busy", "here/lone"].map(|name| Stream::parse(name).unwrap());
    for (stream, count) in [(&busy, 8), (&lone, 1)] {
        for first in 1..=count {
            let publish =
                Message::Publish { stream: stream.clone(), client: 3, answered: 0, first, batch: large(0) };
            tail.receive(0, 7, publish);
        }
    }
    tail.connected(0, 8, client(4));
    tail.receive(0, 8, Message::Listen { positions: Vec::new(), others: true });
    let mut sent = || {
        tail.drained(8, usize::MAX);
        let sent = tail.outputs().into_iter().filter_map(|output| match output {
            ReplicaOutput::Send(8, Message::Events { stream, .. }) => Some(stream),
            _ => None,
        });
        sent.collect::<Vec<_>>()
    };
    assert_eq!([sent(), sent(), sent()], [vec![busy.clone()], vec![lone], vec![busy]]);
}

#[test]
fn streams_of_other_regions_beyond_the_bound_are_left_out_and_counted() {
    let mut head = replica(&[1]);
    head.connected(0, 8, Peer::Out("there".to_owned(), 5));
    let stream = |n: usize| Stream::parse(&format!("there/{n:05}")).unwrap();
    let counts = |streams: std::ops::Range<usize>| {
        streams.map(|n| Advertised { stream: stream(n), count: at(1), age_ms: 0 }).collect()
    };
    let told = |counts| Message::Advertise { epoch: 1, answers: None, counts };
    head.receive(0, 8, told(counts(0..STREAMS_MAX)));
    assert_eq!(head.counters.left_out, 0);
    head.receive(0, 8, told(counts(0..STREAMS_MAX + 2)));
    assert_eq!((head.counters.left_out, head.streams().count()), (2, STREAMS_MAX));
    assert!(head.stream(&stream(STREAMS_MAX)).is_none());
}

#[test]
fn a_stream_that_would_be_one_more_than_a_proxy_carries_is_not_begun_by_a_publisher_either() {
    let mut head = replica(&[1]);
    head.connected(0, 7, client(3));
    head.connected(0, 8, Peer::Out("there".to_owned(), 5));
    let far = |n: usize| Stream::parse(&format!("there/{n:05}")).unwrap();
    let counts = (1..STREAMS_MAX).map(|n| Advertised { stream: far(n), count: at(1), age_ms: 0 });
    head.receive(0, 8, Message::Advertise { epoch: 1, answers: None, counts: counts.collect() });
    let mut publish = |name: &str, first| {
        let stream = Stream::parse(name).unwrap();
        head.receive(0, 7, Message::Publish { stream, client: 3, answered: 0, first, batch: large(0) });
        head.outputs().into_iter().find_map(|output| match output {
            ReplicaOutput::Send(7, Message::Refused { reason, text, .. }) => Some((reason, text)),
            _ => None,
        })
    };
    assert_eq!(publish("here/last", 1), None);
    let (reason, text) = publish("here/more", 1).expect("it is refused");
    assert!(reason == Reason::Limit && text.contains("4096 streams of all regions"), "{text}");
    assert_eq!(publish("here/last", 2), None, "one that is there goes on");
}

#[test]
fn who_names_more_streams_than_a_listener_may_is_told_so_and_sent_what_it_was_sent_before() {
    let mut tail = replica(&[1]);
    tail.connected(0, 7, client(3));
    tail.connected(0, 8, client(4));
    let stream = |n: usize| Stream::parse(&format!("here/{n:05}")).unwrap();
    let listen = |tail: &mut Replica, count: usize| {
        let positions = (0..count).map(|n| (stream(n), Position::START)).collect();
        tail.receive(0, 8, Message::Listen { positions, others: false });
        let mut answers = tail.outputs().into_iter().filter_map(|output| match output {
            ReplicaOutput::Send(8, Message::Listening { positions }) => Some(Ok(positions.len())),
            ReplicaOutput::Send(8, Message::ListenRefused { reason, text }) => Some(Err((reason, text))),
            _ => None,
        });
        answers.next().expect("an answer")
    };
    assert_eq!(listen(&mut tail, STREAMS_MAX), Ok(STREAMS_MAX));
    let (reason, text) = listen(&mut tail, STREAMS_MAX + 1).unwrap_err();
    assert!(reason == Reason::Invalid && text.contains("4097 streams are named"), "{text}");
    let last = stream(STREAMS_MAX - 1);
    let publish =
        Message::Publish { stream: last.clone(), client: 3, answered: 0, first: 1, batch: large(0) };
    tail.receive(0, 7, publish);
    let is_sent = |output: &ReplicaOutput| matches!(output, ReplicaOutput::Send(8, Message::Events { stream, .. }) if *stream == last);
    assert!(tail.outputs().iter().any(is_sent));
}

#[test]
fn streams_that_are_made_up_by_many_listeners_are_bounded_together_and_keep_out_nobody_who_names_a_few() {
    let mut tail = replica(&[1]);
    let listen = |tail: &mut Replica, id: u64, streams: Vec<String>| {
        if tail.peer(id).is_none() {
            tail.connected(0, id, client(id.into()));
        }
        let positions = streams.iter().map(|name| (Stream::parse(name).unwrap(), Position::START)).collect();
        tail.receive(0, id, Message::Listen { positions, others: false });
        let mut answers = tail.outputs().into_iter().filter_map(|output| match output {
            ReplicaOutput::Send(_, Message::Listening { .. }) => Some(Ok(())),
            ReplicaOutput::Send(_, Message::ListenRefused { reason, text }) => Some(Err((reason, text))),
            _ => None,
        });
        answers.next().expect("an answer")
    };
    let made_up = |id: u64, count: usize| (0..count).map(|n| format!("here/{id}-{n}")).collect::<Vec<_>>();
    let most = STREAMS_MAX - ABSENT_EACH;
    let mut admitted = 0;
    while listen(&mut tail, admitted, made_up(admitted, STREAMS_MAX)).is_ok() {
        admitted += 1;
        assert!(admitted as usize * most <= ABSENT_MAX, "{admitted} listeners of {STREAMS_MAX} streams each");
    }
    assert_eq!(admitted as usize, ABSENT_MAX / most);
    let (reason, text) = listen(&mut tail, admitted, made_up(admitted, STREAMS_MAX)).unwrap_err();
    assert!(reason == Reason::Limit && text.contains("name fewer of them, or try again later"), "{text}");
    // Those that name a few, those of streams that are there, and one that names other ones than before.
    assert_eq!(listen(&mut tail, 1_000, made_up(1_000, ABSENT_EACH)), Ok(()));
    let stream = |n: u64| Stream::parse(&format!("here/real-{n}")).unwrap();
    for n in 0..40 {
        let publish =
            Message::Publish { stream: stream(n), client: 3, answered: 0, first: 1, batch: large(0) };
        tail.receive(0, 1_000, publish);
    }
    assert_eq!(listen(&mut tail, 1_001, (0..40).map(|n| stream(n).to_string()).collect()), Ok(()));
    assert_eq!(listen(&mut tail, 0, made_up(2_000, STREAMS_MAX)), Ok(()));
    // What ends gives its room back.
    tail.closed(0, 1);
    assert_eq!(listen(&mut tail, admitted, made_up(admitted, STREAMS_MAX)), Ok(()));
}

#[test]
fn another_region_subscribes_to_streams_that_are_there_only_and_clients_to_none() {
    let mut tail = replica(&[1]);
    tail.connected(0, 7, client(3));
    tail.connected(0, 8, Peer::In("there".to_owned(), Role::Replica(5)));
    let [early, late] = ["here/early", "here/late"].map(|name| Stream::parse(name).unwrap());
    let publish = |tail: &mut Replica, stream: &Stream| {
        let stream = stream.clone();
        tail.receive(0, 7, Message::Publish { stream, client: 3, answered: 0, first: 1, batch: large(0) });
    };
    publish(&mut tail, &early);
    for stream in [&early, &late] {
        let after = Position { lineage: 1, seq: 0 };
        tail.receive(0, 8, Message::Subscribe { stream: stream.clone(), after });
    }
    publish(&mut tail, &late);
    let mut sent = Vec::new();
    // One large event at a time.
    for _ in 0..2 {
        tail.drained(8, usize::MAX);
        sent.extend(tail.outputs().into_iter().filter_map(|output| match output {
            ReplicaOutput::Send(8, Message::Events { stream, .. }) => Some(stream),
            _ => None,
        }));
    }
    assert_eq!(sent, std::slice::from_ref(&early));
    tail.receive(0, 7, Message::Subscribe { stream: early, after: at(0) });
    let is_closed = |output: &ReplicaOutput| matches!(output, ReplicaOutput::Close(7, why) if why.contains("a subscription"));
    assert!(tail.outputs().iter().any(is_closed));
}

fn client(id: u128) -> Peer {
    Peer::In("client".to_owned(), Role::Client(id))
}

fn advertise(stream: &Stream, count: u64) -> Message {
    let told = Advertised { stream: stream.clone(), count: at(count), age_ms: 0 };
    Message::Advertise { epoch: 1, answers: None, counts: vec![told] }
}

/// In the lineage that all of these are of.
fn at(seq: u64) -> Position {
    Position { lineage: 0, seq }
}

/// One large event, with the number after `after`.
fn large(after: u64) -> Batch {
    let mut events = Writer::new(after);
    let payload = Bytes::from(vec![b'x'; 1 << 20]);
    events.publish(&Content { payload, ..Content::default() }, None).unwrap();
    events.finish(1)
}

#[test]
fn another_region_is_asked_for_no_more_than_the_chain_takes() {
    let mut head = replica(&[1, 2]);
    head.connected(0, 7, Peer::In("here".to_owned(), Role::Replica(2)));
    head.receive(0, 7, Message::Follow { epoch: 1, lineage: 1, counts: Vec::new() });
    head.connected(0, 8, Peer::Out("there".to_owned(), 5));
    let stream = Stream::parse("there/news").unwrap();
    let all = 2 * (UNSETTLED_BYTES_MAX >> 20) as u64;
    let asked = |head: &mut Replica| {
        head.receive(0, 8, advertise(&stream, all));
        let mut outputs = head.outputs().into_iter();
        outputs.any(|output| matches!(output, ReplicaOutput::Send(8, Message::Subscribe { .. })))
    };
    assert!(asked(&mut head));
    let mut given_up = false;
    for after in 0..all {
        head.receive(0, 8, Message::Events { stream: stream.clone(), lineage: 0, batch: large(after) });
        let mut outputs = head.outputs().into_iter();
        given_up |=
            outputs.any(|output| matches!(output, ReplicaOutput::Send(8, Message::Unsubscribe { .. })));
    }
    let last = head.stream(&stream).unwrap().last();
    assert!(given_up && last <= all / 2 + 1, "{last} of {all}");
    assert!(!asked(&mut head), "all of that is on its way yet");
    for (held, is_asked) in [(last / 3, false), (last * 2 / 3, true)] {
        head.receive(0, 7, Message::Held { epoch: 1, counts: vec![(stream.clone(), at(held))] });
        assert_eq!(asked(&mut head), is_asked);
    }
}

/// A region's only replica, and publishers of events of 1 MiB.
struct BoundedHead {
    head: Replica,
    publishers: u128,
}

impl BoundedHead {
    fn new(config: Config) -> Self {
        let mut head = Replica::new(config);
        let members = vec![Member { id: 1, address: "replica-1".to_owned() }];
        head.configure(
            0,
            Chain { epoch: 1, lineage: 1, region: "here".to_owned(), members, joining: Vec::new() },
        );
        head.connected(0, 7, client(3));
        Self { head, publishers: 0 }
    }

    /// Another publisher's event; how it was refused, if it was.
    fn publish(&mut self, name: &str, collect: Option<&Collect>) -> Option<(Reason, String)> {
        self.publishers += 1;
        let mut events = Writer::new(0);
        let payload = Bytes::from(vec![b'x'; 1 << 20]);
        events.publish(&Content { payload, ..Content::default() }, collect).unwrap();
        let (stream, batch) = (Stream::parse(name).unwrap(), events.finish(0));
        let client = self.publishers;
        self.head.receive(0, 7, Message::Publish { stream, client, answered: 0, first: 1, batch });
        self.head.outputs().into_iter().find_map(|output| match output {
            ReplicaOutput::Send(7, Message::Refused { reason, text, .. }) => Some((reason, text)),
            _ => None,
        })
    }

    /// Until what is collected is gone so far that the stream holds no more than this.
    fn sweep(&mut self, name: &str, bytes: u64) {
        let stream = Stream::parse(name).unwrap();
        while self.head.stream(&stream).unwrap().bytes() > bytes {
            self.head.tick(0, 0);
        }
    }
}

#[test]
fn a_stream_that_holds_what_it_may_takes_nothing_but_what_makes_room_until_there_is_some() {
    let mut head = BoundedHead::new(Config { stream_bytes_max: 8 << 20, ..Config::new("here", 1) });
    for _ in 0..7 {
        assert_eq!(head.publish("here/news", None), None);
    }
    let (reason, text) = head.publish("here/news", None).expect("it is refused");
    assert!(reason == Reason::Full && text.contains("[broadcast] stream_bytes_max"), "{text}");
    assert_eq!(head.publish("here/other", None), None, "another stream has room of its own");
    assert_eq!(head.publish("here/news", Some(&Collect::KeepLast(3))), None);
    head.sweep("here/news", 5 << 20);
    assert_eq!(head.publish("here/news", None), None);
}

#[test]
fn streams_that_together_hold_what_their_region_may_take_nothing_until_one_of_them_has_made_room() {
    let bounds = Config { stream_bytes_max: 8 << 20, region_bytes_max: 12 << 20, ..Config::new("here", 1) };
    let mut head = BoundedHead::new(bounds);
    for number in 0..11 {
        let name = ["here/news", "here/other"][number % 2];
        assert_eq!(head.publish(name, None), None);
    }
    for name in ["here/news", "here/other", "here/third"] {
        let (reason, text) = head.publish(name, None).expect("it is refused");
        assert!(reason == Reason::Full && text.contains("[broadcast] region_bytes_max"), "{text}");
    }
    assert_eq!(head.publish("here/news", Some(&Collect::KeepLast(3))), None);
    head.sweep("here/news", 5 << 20);
    assert_eq!(head.publish("here/third", None), None, "what was collected is room for each of them");
}
