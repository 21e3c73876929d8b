//! A region that begins anew, and listeners that share.

use super::*;

#[test]
fn clients_that_share_are_told_that_the_region_began_anew_and_get_all_that_comes_then() {
    let mut world = World::new(13, Options { recv_bytes: 1 << 20, ..small() });
    (10..40).for_each(|id| world.join(id, BTreeMap::new()));
    world.publish(0, 100);
    world.publish(1, 100);
    world.settle();
    let had = world.leave(12);
    world.begin_anew();
    // More than there were before, so that the numbers alone would say nothing.
    world.publish(0, 150);
    world.join(40, had);
    world.join(41, BTreeMap::new());
    world.settle();
    for (id, node) in &world.nodes {
        assert_eq!((node.lineage, node.got.len()), (1, 1), "client {id}");
    }
    let stats = world.stats();
    assert!(stats.from_peers > 0, "{stats:?}");
}

#[test]
fn what_another_client_says_of_a_later_lineage_is_asked_of_the_proxy_and_turns_nobody() {
    let mut peer = Peer::new(member(2), member(PROXY), BTreeMap::new(), small(), 1);
    let mut out = Vec::new();
    let told = |lineage, number| {
        let progress = RegionProgress { stream: stream(number), lineage, held: 0, count: 5, hops: 0 };
        Message::Notify(vec![progress])
    };
    peer.receive(0, PROXY, told(3, 0), &mut out);
    out.clear();
    let (held, count, hops, stands, batches) = (0, 0, 0, false, Vec::new());
    let events = |lineage| {
        let (stream, batches) = (stream(0), batches.clone());
        Message::Events { stream, lineage, after: 0, held, count, hops, stands, batches }
    };
    let request = Message::Request {
        stream: stream(0),
        lineage: u64::MAX,
        after: STANDING,
        up_to: STANDING,
        bytes_max: 0,
    };
    for message in [told(u64::MAX, 0), events(u64::MAX), request, told(u64::MAX - 1, 1)] {
        peer.receive(0, 7, message, &mut out);
    }
    let asks = |output: &&PeerOutput| {
        matches!(output, PeerOutput::Send { to: PROXY, message: Message::Request { lineage: 3, .. } })
    };
    assert_eq!(out.iter().filter(asks).count(), 1, "asked once: {out:?}");
    assert!(!out.iter().any(|output| matches!(output, PeerOutput::Anew { .. })), "{out:?}");
    assert!(peer.hear(0, &stream(0), 3, &mut out), "it is where it was");

    // The proxy says so.
    out.clear();
    peer.receive(0, PROXY, events(4), &mut out);
    let anew = PeerOutput::Anew { region: "eu".to_owned(), lineage: 4 };
    assert!(out.contains(&anew), "{out:?}");
    assert!(!peer.hear(0, &stream(0), 3, &mut out));
}

#[test]
#[should_panic(expected = "not the event that was published")]
fn members_that_pass_on_events_as_of_another_lineage_are_caught() {
    let mut world = World::new(13, small());
    (10..40).for_each(|id| world.join(id, BTreeMap::new()));
    world.publish(0, 100);
    world.settle();
    // Half of them are not told by the proxy that there is another one, and say that what they have is of that.
    world.plant = |from, to, mut message| {
        let is_new = match &message {
            Message::Events { lineage, .. } => *lineage == 1,
            Message::Notify(all) => all.iter().any(|told| told.lineage == 1),
            Message::Request { .. } | Message::Gossip { .. } => false,
        };
        if from == PROXY && to >= 25 && is_new {
            return None;
        }
        match &mut message {
            Message::Events { lineage, .. } if from != PROXY => *lineage = 1,
            Message::Notify(all) if from != PROXY => all.iter_mut().for_each(|told| told.lineage = 1),
            Message::Request { lineage, .. } if to != PROXY => *lineage = 0,
            _ => {}
        }
        Some(message)
    };
    world.begin_anew();
    world.publish(0, 150);
    world.run(10_000);
}
