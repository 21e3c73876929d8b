//! The window of a shared feed, and whom it waits for.

use super::*;

#[test]
fn the_shared_window_drops_its_oldest_and_says_so_to_who_is_behind() {
    let mut rig = Rig::narrow();
    rig.append(1);
    rig.publish();
    assert!(rig.feed.begin_near(start()));
    let mut fast = Reader::at(start());
    let slow = Reader::at(start());
    for _ in 0..100 {
        rig.append(1);
        rig.go_on();
        assert!(matches!(fast.drain(&mut rig.feed), Look::Front));
    }
    assert!(fast.offsets.iter().copied().eq(0..101));
    assert!(rig.feed.window_bytes <= 3_000 && rig.feed.window.len() > 1);
    assert!(matches!(rig.feed.look(slow.seen, slow.place), Look::Behind));
    assert!(
        matches!(rig.feed.look(Some(3), slow.place), Look::Behind),
        "who has seen some is behind as well"
    );
    let oldest = rig.feed.began;
    assert!(matches!(rig.feed.look(None, oldest), Look::Block(..)));
}

/// A full window of small blocks of which each reader took the first few; the number of the block behind the last.
fn full_window(rig: &mut Rig, taken: &[u64]) -> u64 {
    rig.append(1);
    rig.publish();
    rig.feed.begin_near(start());
    let mut blocks = 0_u64;
    let mut seen = vec![None; taken.len()];
    loop {
        rig.run();
        let Look::Block(number, _) = rig.feed.look(blocks.checked_sub(1), start()) else { return blocks };
        blocks = number + 1;
        for (seen, _) in seen.iter_mut().zip(taken).filter(|(_, taken)| number < **taken) {
            rig.feed.took(seen.map(|seen| seen + 1), number);
            *seen = Some(number);
        }
        rig.append(1);
        rig.publish();
    }
}

#[test]
fn a_shared_feed_waits_for_a_while_when_most_of_its_readers_would_fall_out_of_the_window() {
    let mut rig = Rig::narrow();
    // Two of three have taken the first block only, so the feed stops with the second one at its front.
    let blocks = full_window(&mut rig, &[u64::MAX, 1, 1]);
    let until = rig.run().expect("it waits");
    assert_eq!(until, rig.now + READERS_WAIT_MAX);
    assert!(matches!(rig.feed.look(Some(0), start()), Look::Block(1, _)), "nothing was dropped");
    // One of them goes on: that is enough.
    assert!(rig.feed.took(Some(1), 1));
    assert_eq!(rig.run(), None);
    assert!(matches!(rig.feed.look(Some(blocks - 1), start()), Look::Block(..)), "it went on");
}

#[test]
fn a_shared_feed_leaves_readers_that_take_nothing_behind() {
    let mut rig = Rig::narrow();
    let blocks = full_window(&mut rig, &[1, 1]);
    rig.now = rig.run().expect("it waits");
    rig.run_for_long();
    assert!(matches!(rig.feed.look(Some(0), start()), Look::Behind));
    assert!(matches!(rig.feed.look(Some(blocks - 1), start()), Look::Block(..)), "it went on");
}

#[test]
fn a_shared_feed_waits_for_no_minority() {
    let mut rig = Rig::narrow();
    let mut seen = None;
    for round in 0..100 {
        rig.append(1);
        assert_eq!(rig.begin(), None);
        if round == 0 {
            // This one takes no more.
            rig.feed.took(None, 0);
        }
        rig.feed.took(seen.map(|seen: u64| seen + 1), round);
        seen = Some(round);
    }
    assert!(matches!(rig.feed.look(Some(0), start()), Look::Behind));
}

#[test]
fn a_shared_feed_waits_for_readers_that_joined_and_have_yet_to_take_their_first_block() {
    let mut rig = Rig::narrow();
    rig.append(1);
    rig.publish();
    assert_eq!(rig.feed.joined(start()), None, "it has not begun");
    rig.feed.begin_near(start());
    assert_eq!(rig.feed.joined(start()), Some(0));
    let waits = (0..100).any(|_| {
        rig.append(1);
        rig.publish();
        rig.run().is_some()
    });
    assert!(waits);
    assert!(matches!(rig.feed.look(None, start()), Look::Block(0, _)), "nothing was dropped");
    assert!(rig.feed.took(Some(0), 0));
}

#[test]
fn a_shared_feed_waits_for_nobody_who_left() {
    let mut rig = Rig::narrow();
    full_window(&mut rig, &[1]);
    assert!(rig.run().is_some());
    rig.feed.left(Some(1));
    assert_eq!(rig.run(), None);
}
