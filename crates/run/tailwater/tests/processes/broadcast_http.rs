//! Broadcasts over HTTP: publishing by POST, listening by server-sent events.

use std::io::{BufRead, BufReader, Write};

use crate::support::{Node, wait_for};
use serde_json::{Value, json};

fn base(node: &Node) -> String {
    let view: Value = serde_json::from_str(&node.get("/v1/node").expect("it answers")).expect("JSON");
    format!("http://{}", view["broadcast"]["http"].as_str().expect("an address"))
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().into()
}

/// Publishes a body; the status and the answer.
fn post(base: &str, stream: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Value) {
    let mut request = agent().post(format!("{base}/v1/streams/{stream}/events"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut answer = request.send(body).expect("it answers");
    let status = answer.status().as_u16();
    (status, answer.body_mut().read_json().expect("JSON"))
}

/// An open stream of server-sent events.
struct Events(Box<dyn BufRead + Send>);

#[derive(Debug, Default)]
struct Sent {
    id: String,
    event: String,
    data: Value,
}

impl Events {
    fn open(base: &str, query: &str, last_id: Option<&str>) -> Self {
        let mut request = agent().get(format!("{base}/v1/events?{query}"));
        if let Some(id) = last_id {
            request = request.header("Last-Event-ID", id);
        }
        let answer = request.call().expect("it answers");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut events = Self(Box::new(BufReader::new(answer.into_body().into_reader())));
        assert_eq!(events.next().event, "begin");
        events
    }

    fn next(&mut self) -> Sent {
        let mut sent = Sent::default();
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).expect("it is open"), 0, "the stream ended");
            match line.trim_end().split_once(": ") {
                Some(("id", id)) => sent.id = id.to_owned(),
                Some(("event", event)) => sent.event = event.to_owned(),
                Some(("data", data)) => sent.data = serde_json::from_str(data).expect("JSON"),
                // An empty line ends an event; a colon alone is a sign of life.
                _ if line == "\n" && !sent.id.is_empty() => return sent,
                _ => {}
            }
        }
    }

    /// The next batches' events, until there are `count` of them; and the last id.
    fn take(&mut self, count: usize) -> (Vec<Value>, String) {
        let (mut all, mut id) = (Vec::new(), String::new());
        while all.len() < count {
            let sent = self.next();
            all.extend(sent.data["events"].as_array().expect("events").iter().cloned());
            id = sent.id;
        }
        assert_eq!(all.len(), count, "{all:?}");
        (all, id)
    }
}

#[test]
fn what_is_posted_in_any_form_comes_as_server_sent_events_and_goes_on_behind_the_last_id() {
    let (_dir, node) = Node::start_anew();
    let base = base(&node);
    let mut live = Events::open(&base, "from=now", None);

    let plain = [("tailwater-key", "k"), ("tailwater-header", "a=b"), ("tailwater-collect", "same-key")];
    let (status, answer) = post(&base, "local/prices", &plain, b"\xff\x00");
    assert_eq!((status, &answer["last"]), (200, &json!(1)), "{answer}");
    let array = br#"[{"key": "x", "payload": "one"}, {"payload": {"base64": "AAE="}}]"#;
    let (status, answer) = post(&base, "local/prices", &[("content-type", "application/json")], array);
    assert_eq!((status, &answer["last"], &answer["published"]), (200, &json!(3), &json!(2)), "{answer}");
    let lines = b"{\"payload\": \"a\\nb\"}\n\n{\"payload\": \"c\", \"headers\": [[\"h\", \"v\"]]}\n";
    let (status, _) = post(&base, "local/prices", &[("content-type", "application/x-ndjson")], lines);
    assert_eq!(status, 200);

    let (events, _) = live.take(5);
    let payloads: Vec<&Value> = events.iter().map(|event| &event["payload"]).collect();
    let binary = json!({"base64": "/wA="});
    assert_eq!(payloads, [&binary, &json!("one"), &json!("\u{0}\u{1}"), &json!("a\nb"), &json!("c")]);
    assert_eq!((&events[0]["key"], &events[0]["headers"]), (&json!("k"), &json!([["a", "b"]])));
    assert_eq!((&events[0]["collect"], &events[4]["seq"]), (&json!("same-key"), &json!(5)));

    // As an EventSource that lost its connection does.
    let mut early = Events::open(&base, "stream=local/prices&from=start", None);
    let mut id = String::new();
    let mut seen = 0;
    while seen < 3 {
        let sent = early.next();
        seen += sent.data["events"].as_array().expect("events").len();
        id = sent.id;
    }
    drop(early);
    post(&base, "local/prices", &[], b"last");
    let (rest, _) = Events::open(&base, "stream=local/prices", Some(&id)).take(6 - seen);
    assert_eq!(rest.last().expect("one")["payload"], "last");
    assert_eq!(rest[0]["seq"], seen + 1);
}

#[test]
fn who_resumes_and_names_another_stream_gets_that_too_and_none_that_it_does_not_name() {
    let (_dir, node) = Node::start_anew();
    let base = base(&node);
    for stream in ["a", "b", "c"] {
        post(&base, &format!("local/{stream}"), &[], format!("{stream}1").as_bytes());
    }
    let (_, token) = Events::open(&base, "stream=local/a&stream=local/c", None).take(2);
    for stream in ["a", "b", "c"] {
        post(&base, &format!("local/{stream}"), &[], format!("{stream}2").as_bytes());
    }
    let query = format!("stream=local/a&stream=local/b&token={token}");
    let mut events = Events::open(&base, &query, None);
    let mut payloads = Vec::new();
    while payloads.len() < 3 {
        let sent = events.next();
        assert_ne!(sent.data["stream"], "local/c", "{sent:?}");
        let events = sent.data["events"].as_array().expect("events").iter();
        payloads.extend(events.map(|event| event["payload"].as_str().expect("text").to_owned()));
    }
    payloads.sort();
    assert_eq!(payloads, ["a2", "b1", "b2"]);
}

#[test]
fn a_stream_that_is_full_refuses_who_posts_and_who_publishes_until_events_are_collected() {
    let dir = tempfile::tempdir().expect("a directory");
    let bound = [("TAILWATER_BROADCAST__STREAM_BYTES_MAX", "4194304")];
    let node = Node::start_with(dir.path(), &[], &bound);
    let base = base(&node);
    let mebibyte = vec![b'x'; 1 << 20];
    for _ in 0..3 {
        let (status, answer) = post(&base, "local/news", &[], &mebibyte);
        assert_eq!(status, 200, "{answer}");
    }
    let (status, answer) = post(&base, "local/news", &[], &mebibyte);
    assert_eq!((status, &answer["error"]), (507, &json!("full")), "{answer}");
    let why = answer["message"].as_str().expect("text");
    assert!(why.contains("local/news holds ") && why.contains("[broadcast] stream_bytes_max"), "{why}");

    // What reads its lines may go on for ever: the command ends all the same.
    let errors = dir.path().join("errors");
    let mut publisher = node
        .command(&["broadcast", "publish", "news", "--key", "k"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::fs::File::create(&errors).expect("created"))
        .spawn()
        .expect("it starts");
    let mut input = publisher.stdin.take().expect("piped");
    input.write_all(&[b"fits\n", &mebibyte[..], b"\n"].concat()).expect("written");
    assert!(!publisher.wait().expect("it ends").success(), "a line is refused");
    drop(input);
    let told = std::fs::read_to_string(&errors).expect("readable");
    for expected in [
        "1 of 2 lines was published; the rest: tail -n +2 FILE | tailwater broadcast publish news --key=k",
        "line 2 was refused: local/news: local/news holds ",
        "([broadcast] stream_bytes_max): collect events of it first, or have retention remove them",
    ] {
        assert!(told.contains(expected), "{told}");
    }

    let (status, answer) = post(&base, "local/news", &[("tailwater-collect", "keep-last=1")], b"collects");
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = post(&base, "local/news", &[], &mebibyte);
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn what_can_not_be_done_is_refused_in_json() {
    let (_dir, node) = Node::start_anew();
    let base = base(&node);
    let json_type = ("content-type", "application/json");
    let lines_type = ("content-type", "application/x-ndjson");
    let large = vec![b'x'; (1 << 20) + 1];
    let larger = vec![b'x'; (2 << 20) + 1];
    for (stream, headers, body, expected) in [
        ("local/a%20b", &[][..], &b"x"[..], (400, "malformed")),
        ("mars/s", &[], b"x", (404, "unknown_region")),
        ("local/s", &[json_type], b"[", (400, "malformed")),
        ("local/s", &[json_type], b"[]", (400, "malformed")),
        ("local/s", &[json_type], br#"{"payload": 7}"#, (400, "malformed")),
        // An event as an array of its values is none.
        ("local/s", &[json_type], br#"[["k", "x"]]"#, (400, "malformed")),
        ("local/s", &[lines_type], br#"["k", "x"]"#, (400, "malformed")),
        ("local/s", &[("tailwater-collect", "everything")], b"x", (400, "malformed")),
        ("local/s", &[("origin", "https://evil.example")], b"x", (403, "not_authorized")),
        ("local/s", &[("content-encoding", "gzip")], b"x", (415, "malformed")),
        ("local/s", &[], &large, (413, "too_large")),
        ("local/s", &[], &larger, (413, "malformed")),
    ] {
        let (status, answer) = post(&base, stream, headers, body);
        assert_eq!((status, answer["error"].as_str()), (expected.0, Some(expected.1)), "{answer}");
    }
    for (path, status) in [("/v1/streams/local/s/events", 405), ("/v1/event", 404)] {
        let mut answer = agent().get(format!("{base}{path}")).call().expect("it answers");
        let told: Value = answer.body_mut().read_json().expect("JSON");
        assert_eq!((answer.status().as_u16(), &told["error"]), (status, &json!("malformed")), "{told}");
        assert!(told["message"].as_str().is_some_and(|why| why.contains("GET /v1/events")), "{told}");
    }
    for query in ["token=abc", "from=yesterday", "stream=x", "strem=local/x"] {
        let answer = agent().get(format!("{base}/v1/events?{query}")).call().expect("it answers");
        assert_eq!(answer.status(), 400, "{query}");
    }
    let mut answer = agent().get(format!("{base}/v1/events?stream=mars/s")).call().expect("it answers");
    let told: Value = answer.body_mut().read_json().expect("JSON");
    assert_eq!((answer.status().as_u16(), &told["error"]), (404, &json!("unknown_region")), "{told}");
    let many: String = (0..1_001).map(|n| format!("stream=local/{n}&")).collect();
    for path in ["events", "ws"] {
        let mut asks = agent().get(format!("{base}/v1/{path}?{many}"));
        for (name, value) in
            [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")]
        {
            asks = asks.header(name, value);
        }
        let mut answer =
            asks.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==").call().expect("it answers");
        let told: Value = answer.body_mut().read_json().expect("JSON");
        assert_eq!((answer.status().as_u16(), &told["error"]), (400, &json!("malformed")), "{path}: {told}");
        assert!(
            told["message"].as_str().is_some_and(|why| why.contains("1001 streams are named, 1000 at most"))
        );
    }
}

#[test]
fn a_predicate_that_is_none_is_answered_with_the_place_of_the_mistake_and_nothing_is_published() {
    let (_dir, node) = Node::start_anew();
    let base = base(&node);
    let refused = |headers: &[(&str, &str)], body: &[u8], expected: &str| {
        let (status, answer) = post(&base, "local/s", headers, body);
        assert_eq!((status, answer["error"].as_str()), (400, Some("malformed")), "{answer}");
        let why = answer["message"].as_str().expect("text");
        assert!(why.starts_with(expected), "{why}");
        assert!(why.ends_with("\n  key = 7\n        ^"), "it shows the place: {why}");
    };
    let mistake = "predicate, line 1, column 7: a string should be here instead of 7";
    refused(&[("tailwater-collect", "matching=key = 7")], b"x", mistake);
    let json = [("content-type", "application/json")];
    refused(&json, br#"{"collect": "matching=key = 7"}"#, mistake);
    let array = br#"[{"payload": "x"}, {"collect": "matching=key = 7"}]"#;
    refused(&json, array, &format!("event 2 of the body: {mistake}"));
    let lines = b"{\"payload\": \"x\"}\n\n{\"collect\": \"matching=key = 7\"}\n";
    let ndjson = [("content-type", "application/x-ndjson")];
    refused(&ndjson, lines, &format!("line 3 of the body, by itself: {mistake}"));
    let (status, answer) = post(&base, "local/s", &[("tailwater-collect", "matching=key = \"7\"")], b"x");
    assert_eq!((status, &answer["last"]), (200, &json!(1)), "{answer}");
}

#[test]
fn what_is_refused_has_the_status_that_tells_whether_to_mend_it_or_to_come_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let one = [("TAILWATER_BROADCAST__STREAMS_MAX", "1")];
    let node = Node::start_with(&dir.path().join("data"), &[], &one);
    let base = base(&node);
    let answered = |stream: &str, body: &str| {
        let request = agent().post(format!("{base}/v1/streams/{stream}/events"));
        let request = request.header("content-type", "application/json");
        let mut answer = request.send(body).expect("it answers");
        let told: Value = answer.body_mut().read_json().expect("JSON");
        let retry_after = answer.headers().get("retry-after").map(|after| after.to_str().unwrap().to_owned());
        (answer.status().as_u16(), told["error"].as_str().unwrap_or_default().to_owned(), retry_after)
    };
    let refused = |status, code: &str| (status, code.to_owned(), None);
    let later = |status, code: &str| (status, code.to_owned(), Some("1".to_owned()));
    let first = r#"[{"key": "k", "headers": [["n", "1"]]}, {"key": "k", "headers": [["n", "2"]], "collect": "same-key"}]"#;
    assert_eq!(answered("local/s", first).0, 200);
    // The first event would come back if the second one went.
    assert_eq!(answered("local/s", r#"{"collect": "matching=header.n = \"2\""}"#), refused(409, "refused"));
    let long = format!(r#"{{"collect": "matching=key = \"{}\""}}"#, "k".repeat(5_000));
    assert_eq!(answered("local/s", &long), refused(413, "too_large"));
    assert_eq!(answered("local/other", "{}"), later(429, "limit"), "a second stream");
    assert_eq!(answered("mars/s", "{}"), refused(404, "unknown_region"));
    assert_eq!(answered("local/%ff", "{}"), refused(400, "malformed"));
    let get = |path: &str| agent().get(format!("{base}{path}")).call().expect("it answers");
    let upgrade = get("/v1/ws");
    assert_eq!(
        (upgrade.status().as_u16(), &upgrade.headers()["upgrade"]),
        (426, &"websocket".parse().unwrap())
    );
    let method = get("/v1/streams/local/s/events");
    assert_eq!((method.status().as_u16(), &method.headers()["allow"]), (405, &"POST".parse().unwrap()));

    // Nobody decides who is in the chain, so that there is none.
    let alone = [
        ("TAILWATER_BROADCAST__CONFIGURATION", "127.0.0.1:1"),
        ("TAILWATER_BROADCAST__HTTP__TIMEOUT_MS", "300"),
    ];
    let node = Node::start_with(&dir.path().join("alone"), &[], &alone);
    let url = format!("{}/v1/streams/local/s/events", self::base(&node));
    // A request that takes as long on its way is hung up on, or refused for that.
    let mut answer =
        wait_for("503", || agent().post(&url).send(b"x").ok().filter(|answer| answer.status() == 503));
    assert_eq!(answer.headers()["retry-after"], "1");
    let told: Value = answer.body_mut().read_json().expect("JSON");
    assert_eq!(told["error"], "unavailable");
}

#[test]
fn a_listener_that_does_not_read_is_cut_off_and_catches_up_with_tombstones_and_hurts_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let small = [
        ("TAILWATER_BROADCAST__HTTP__LISTENER_BYTES_MAX", "65536"),
        ("TAILWATER_BROADCAST__HTTP__TIMEOUT_MS", "600000"),
    ];
    let node = Node::start_with(&dir.path().join("data"), &[], &small);
    let base = base(&node);
    let mut slow = Events::open(&base, "stream=local/s&from=start", None);
    let mut quick = Events::open(&base, "stream=local/s&from=start", None);
    let reader = std::thread::Builder::new()
        .spawn(move || {
            let mut last = 0;
            while last < 400 {
                let sent = quick.next();
                if sent.event == "stale" {
                    continue;
                }
                assert_eq!(sent.data["after"], last);
                last = sent.data["last"].as_u64().expect("a number");
            }
        })
        .expect("a thread");
    // Far more than sockets and the ring hold.
    let payload = vec![b'x'; 100_000];
    for _ in 0..400 {
        assert_eq!(post(&base, "local/s", &[("tailwater-collect", "keep-last=10")], &payload).0, 200);
    }
    reader.join().expect("the other one got all in order");
    let (mut last, mut collected, mut stale) = (0, 0, Vec::new());
    while last < 400 || stale.last() != Some(&false) {
        let sent = slow.next();
        if sent.event == "stale" {
            stale.push(sent.data["stale"].as_bool().expect("whether it is"));
            continue;
        }
        assert_eq!(sent.data["after"], last);
        last = sent.data["last"].as_u64().expect("a number");
        let events = sent.data["events"].as_array().expect("events");
        collected += events.iter().filter_map(|event| event["tombstone"].as_u64()).sum::<u64>();
    }
    assert!(collected > 100, "{collected} of 400 came as tombstones");
    assert_eq!(stale.first(), Some(&true), "it was told before it went on");
}

#[test]
fn an_address_that_posts_more_than_its_quota_is_told_when_to_come_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let quota = [
        ("TAILWATER_BROADCAST__QUOTAS__PUBLISHER_EVENTS_PER_S", "20"),
        ("TAILWATER_BROADCAST__QUOTAS__BURST_S", "0.05"),
    ];
    let node = Node::start_with(&dir.path().join("data"), &[], &quota);
    let base = base(&node);
    let lines = |count: usize| "{\"payload\": \"x\"}\n".repeat(count);
    let ndjson = ("content-type", "application/x-ndjson");
    let refused = wait_for("a refusal", || {
        // More than a burst passes, and is missing for two seconds, which may be over by the next request.
        post(&base, "local/s", &[ndjson], lines(41).as_bytes());
        let request = agent().post(format!("{base}/v1/streams/local/s/events"));
        Some(request.send(b"x").expect("it answers")).filter(|answer| answer.status() == 429)
    });
    let wait: u64 = refused.headers()["retry-after"].to_str().expect("text").parse().expect("seconds");
    assert!((1..=2).contains(&wait), "{wait}");
    wait_for("the quota", || (post(&base, "local/s", &[], b"y").0 == 200).then_some(()));

    let page = node.get("/metrics").expect("a page");
    let line = page.lines().find(|line| line.starts_with("tailwater_broadcast_requests_throttled_total "));
    assert!(line.is_some_and(|line| !line.ends_with(" 0")), "{line:?}");
}

#[test]
fn streams_that_listeners_make_up_are_bounded_together_and_keep_out_nobody_who_names_a_few() {
    let (_dir, node) = Node::start_anew();
    let base = base(&node);
    let listen = |count: usize| {
        let made_up: String = (0..count).map(|n| format!("stream=local/{n}&")).collect();
        agent().get(format!("{base}/v1/events?{made_up}")).call().expect("it answers")
    };
    // 984 of the streams of each count.
    let mut open = Vec::new();
    let mut refused = loop {
        let answer = listen(1_000);
        if answer.status() != 200 {
            break answer;
        }
        open.push(answer);
        assert!(open.len() <= 133, "{} listeners of 1000 streams each", open.len());
    };
    assert_eq!((refused.status().as_u16(), open.len()), (503, 133));
    assert_eq!(refused.headers()["retry-after"], "1");
    let told: Value = refused.body_mut().read_json().expect("JSON");
    assert!(told["message"].as_str().is_some_and(|why| why.contains("name fewer of them")), "{told}");
    assert_eq!(listen(16).status(), 200);
    open.pop();
    wait_for("the room of one that is gone", || (listen(1_000).status() == 200).then_some(()));
}

#[test]
fn bodies_that_are_more_together_than_there_is_room_for_are_refused_until_others_are_done() {
    let dir = tempfile::tempdir().expect("a directory");
    let small = [
        ("TAILWATER_BROADCAST__HTTP__BODIES_BYTES_MAX", "2097152"),
        // The body that does not come keeps its room for as long as the test needs.
        ("TAILWATER_BROADCAST__HTTP__TIMEOUT_MS", "600000"),
    ];
    let node = Node::start_with(&dir.path().join("data"), &[], &small);
    let base = base(&node);
    let address = base.strip_prefix("http://").expect("an address");
    // A body that does not come. Its room is taken once the node wants to read it.
    let mut slow = std::net::TcpStream::connect(address).expect("it listens");
    let head = "POST /v1/streams/local/s/events HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n\
        content-length: 2000000\r\n\r\n";
    slow.write_all(head.as_bytes()).expect("it reads");
    let mut line = String::new();
    BufReader::new(&slow).read_line(&mut line).expect("it answers");
    assert_eq!(line, "HTTP/1.1 100 Continue\r\n");
    let body = vec![b'x'; 500_000];
    let (status, answer) = post(&base, "local/s", &[], &body);
    assert_eq!((status, answer["error"].as_str()), (503, Some("overloaded")), "{answer}");
    drop(slow);
    wait_for("room", || (post(&base, "local/s", &[], &body).0 == 200).then_some(()));
}
