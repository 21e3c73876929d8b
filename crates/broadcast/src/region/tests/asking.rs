//! Whom a client asks for what, and for how long it waits.

use super::*;

#[test]
fn one_whom_the_proxy_tells_asks_it_for_the_newest_part_and_the_others_for_the_rest() {
    let mut peer = Peer::new(member(10), member(PROXY), BTreeMap::new(), Options { feeds: 0, ..small() }, 1);
    let notify =
        |count| Message::Notify(vec![Progress { stream: stream(0), lineage: 0, held: 0, count, hops: 0 }]);
    let history = History(BTreeMap::from([(stream(0), vec![false; 2_000])]), 0);
    let asked = |out: &mut Vec<Output>| -> Vec<(u64, u64, u64)> {
        let requests = out.drain(..).filter_map(|output| match output {
            Output::Send { to, message: Message::Request { after, up_to, .. } } => Some((to, after, up_to)),
            _ => None,
        });
        requests.collect()
    };
    let mut out = Vec::new();
    peer.receive(0, PROXY, notify(10), &mut out);
    assert_eq!(asked(&mut out), [(PROXY, 0, 10)]);
    let batches = vec![history.read(&stream(0), 0, 10, 10_000).unwrap()];
    let (held, count, hops, stands) = (0, 10, 0, false);
    let events =
        Message::Events { stream: stream(0), lineage: 0, after: 0, held, count, hops, stands, batches };
    peer.receive(1, PROXY, events, &mut out);
    // A thousand are more than what the proxy alone can have.
    out.clear();
    peer.receive(2, PROXY, notify(1_000), &mut out);
    let requests = asked(&mut out);
    let [(PROXY, left, 1_000)] = requests[..] else { panic!("{requests:?}") };
    assert!(left > 500, "{requests:?}");
    // Another one has what was left to the others.
    peer.receive(3, 11, notify(900), &mut out);
    assert_eq!(asked(&mut out), [(11, 10, left.min(900))]);
}

#[test]
fn others_that_answer_late_get_longer_until_they_answer_soon_again() {
    let options = Options { feeds: 0, request_timeout_ms: 500, ..small() };
    let mut peer = Peer::new(member(10), member(PROXY), BTreeMap::new(), options, 1);
    let history = History(BTreeMap::from([(stream(0), vec![false; 100])]), 0);
    let mut out = Vec::new();
    let mut asked_for = 0;
    // Whoever tells of ten more is asked for them.
    let mut told = |peer: &mut Peer, now: u64, of: u64| {
        asked_for += 10;
        let progress = Progress { stream: stream(0), lineage: 0, held: 0, count: asked_for, hops: 0 };
        peer.receive(now, of, Message::Notify(vec![progress]), &mut out);
        assert!(out.drain(..).any(
            |output| matches!(output, Output::Send { to, message: Message::Request { .. } } if to == of)
        ));
        asked_for
    };
    let answers = |peer: &mut Peer, now: u64, from: u64, count: u64| {
        let (stream, after) = (stream(0), count - 10);
        let batches = vec![history.read(&stream, after, count, 10_000).unwrap()];
        let events =
            Message::Events { stream, lineage: 0, after, held: 0, count, hops: 0, stands: false, batches };
        peer.receive(now, from, events, &mut Vec::new());
    };
    let given_up = |peer: &mut Peer, now: u64| {
        peer.tick(now, &mut Vec::new());
        peer.stats().timeouts
    };
    for (now, of, waits_ms) in [(0, 11, 500), (1_000, 12, 1_000), (3_000, 13, 2_000), (6_000, 14, 2_000)] {
        let before = peer.stats().timeouts;
        let count = told(&mut peer, now, of);
        assert_eq!(given_up(&mut peer, now + waits_ms - 1), before);
        assert_eq!(given_up(&mut peer, now + waits_ms), before + 1, "at {now}");
        answers(&mut peer, now + waits_ms, PROXY, count);
    }
    for (now, of) in [(10_000, 15), (13_000, 16)] {
        let count = told(&mut peer, now, of);
        answers(&mut peer, now + 10, of, count);
    }
    let before = peer.stats().timeouts;
    told(&mut peer, 16_000, 17);
    assert_eq!(given_up(&mut peer, 16_500), before + 1, "as long as in the beginning");
}
