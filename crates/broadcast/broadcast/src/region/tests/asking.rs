//! Whom a client asks for what, and for how long it waits.

use super::*;

#[test]
fn one_whom_the_proxy_tells_asks_it_for_the_newest_part_and_the_others_for_the_rest() {
    let mut peer = Peer::new(member(10), member(PROXY), BTreeMap::new(), Options { feeds: 0, ..small() }, 1);
    let notify = |count| {
        Message::Notify(vec![RegionProgress { stream: stream(0), lineage: 0, held: 0, count, hops: 0 }])
    };
    let history = History(BTreeMap::from([(stream(0), vec![false; 2_000])]), 0);
    let asked = |out: &mut Vec<PeerOutput>| -> Vec<(u64, u64, u64)> {
        let requests = out.drain(..).filter_map(|output| match output {
            PeerOutput::Send { to, message: Message::Request { after, up_to, .. } } => {
                Some((to, after, up_to))
            }
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
        let progress = RegionProgress { stream: stream(0), lineage: 0, held: 0, count: asked_for, hops: 0 };
        peer.receive(now, of, Message::Notify(vec![progress]), &mut out);
        assert!(out.drain(..).any(
            |output| matches!(output, PeerOutput::Send { to, message: Message::Request { .. } } if to == of)
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

/// A client that 11 feeds from 10 on, and that 12 told at 1,000 ms that there are 100.
fn fed_and_behind() -> Peer {
    let options = Options { request_timeout_ms: 500, ..small() };
    let mut peer = Peer::new(member(10), member(PROXY), BTreeMap::new(), options, 1);
    let tell = |peer: &mut Peer, now: u64, from: u64, count: u64| {
        let progress = RegionProgress { stream: stream(0), lineage: 0, held: 0, count, hops: 1 };
        peer.receive(now, from, Message::Notify(vec![progress]), &mut Vec::new());
    };
    tell(&mut peer, 0, 11, 10);
    brings(&mut peer, 1, (0, 10), false);
    brings(&mut peer, 2, (10, 10), true);
    assert_eq!(peer.stats().fed, 1);
    tell(&mut peer, 1_000, 12, 100);
    peer
}

/// 11 brings the numbers (after, last], as the answer to a request or as the feeder.
fn brings(peer: &mut Peer, now: u64, (after, last): (u64, u64), stands: bool) {
    let history = History(BTreeMap::from([(stream(0), vec![false; 100])]), 0);
    let batches = history.read(&stream(0), after, last, 10_000).into_iter().collect();
    let (held, count, hops) = (0, last, 1);
    let events = Message::Events { stream: stream(0), lineage: 0, after, held, count, hops, stands, batches };
    peer.receive(now, 11, events, &mut Vec::new());
}

/// Whether the feeder was left by then.
fn is_left(peer: &mut Peer, now: u64) -> bool {
    peer.tick(now, &mut Vec::new());
    peer.stats().timeouts > 0
}

#[test]
fn a_feeder_that_brings_some_of_what_others_have_has_twice_as_long_as_one_that_brings_nothing() {
    let mut peer = fed_and_behind();
    assert!(!is_left(&mut peer, 1_499) && is_left(&mut peer, 1_500));
    let mut peer = fed_and_behind();
    brings(&mut peer, 1_400, (10, 20), true);
    assert!(!is_left(&mut peer, 1_899));
    brings(&mut peer, 1_899, (20, 30), true);
    assert!(!is_left(&mut peer, 1_999) && is_left(&mut peer, 2_000));
    let mut peer = fed_and_behind();
    brings(&mut peer, 1_400, (10, 100), true);
    assert!(!is_left(&mut peer, 5_000), "it has brought all");
}

#[test]
fn one_that_is_late_itself_gives_others_as_much_longer_as_it_is_late() {
    let mut peer = fed_and_behind();
    assert!(!is_left(&mut peer, 1_700), "what came meanwhile may not have been read yet");
    assert!(!is_left(&mut peer, 1_899) && is_left(&mut peer, 1_900));
    let mut peer = fed_and_behind();
    assert!(is_left(&mut peer, 2_000), "but twice the time at most");
}
