use tailwater_format::{Offset, SegmentNumber, ShardId, ShardNumber, StreamId, Term};

use super::*;

fn at(ms: u64) -> Instant {
    Instant::from_ns(0) + Duration::from_millis(ms)
}

/// Nobody goes away.
fn next(waiting: &mut TurnsWaiting<u32>, now: Instant) -> NextTurn<u32> {
    waiting.next(now, |_| false)
}

/// Who gets the next turn, which it does not keep.
fn served(waiting: &mut TurnsWaiting<u32>, bytes: u64) -> Option<(String, u32)> {
    let NextTurn::Begin { connection, who } = next(waiting, at(0)) else { return None };
    waiting.ended(at(0), &connection, bytes);
    Some((connection, who))
}

#[test]
fn who_asks_for_much_gets_no_more_bytes_than_who_asks_for_one_read_at_a_time() {
    let mut waiting = TurnsWaiting::new(1, 0, at(0));
    (0..100).for_each(|read| waiting.ask("greedy", 1_000, read));
    let (mut greedy, mut modest) = (0, 0);
    for read in 0..90 {
        waiting.ask("modest", 500, read);
        let mut answered = false;
        while !answered {
            let (connection, _) = served(&mut waiting, 0).expect("both wait");
            answered = connection == "modest";
            if answered { modest += 500 } else { greedy += 1_000 }
        }
        assert!(i64::abs(modest - greedy) <= 1_500, "{modest} and {greedy} bytes");
    }
    assert!(waiting.count(|_| false) > 50, "its others wait");
}

#[test]
fn who_comes_later_has_no_turns_saved_up_and_each_one_s_reads_keep_their_order() {
    let mut waiting = TurnsWaiting::new(1, 0, at(0));
    (0..6).for_each(|read| waiting.ask("a", 100, read));
    for read in 0..3 {
        assert_eq!(served(&mut waiting, 100), Some(("a".to_owned(), read)));
    }
    (0..4).for_each(|read| waiting.ask("b", 100, read));
    let turns: Vec<_> = std::iter::from_fn(|| served(&mut waiting, 100)).collect();
    let of = |name: &str| turns.iter().filter(|turn| turn.0 == name).map(|turn| turn.1).collect::<Vec<_>>();
    assert_eq!((of("a"), of("b")), (vec![3, 4, 5], vec![0, 1, 2, 3]));
    assert!(turns[..4].iter().any(|turn| turn.0 == "a"), "{turns:?}");
}

#[test]
fn no_more_read_at_a_time_than_may_and_a_turn_that_ends_is_the_next_one_s() {
    let mut waiting = TurnsWaiting::new(2, 0, at(0));
    for name in ["a", "b", "c"] {
        waiting.ask(name, 1, 0);
    }
    let [first, second] = [(); 2].map(|()| next(&mut waiting, at(0)));
    assert!(matches!((&first, &second), (NextTurn::Begin { .. }, NextTurn::Begin { .. })));
    assert_eq!(next(&mut waiting, at(0)), NextTurn::Nobody);
    assert_eq!(waiting.count(|_| false), 1);
    waiting.ended(at(0), "a", 1);
    assert_eq!(next(&mut waiting, at(0)), NextTurn::Begin { connection: "c".to_owned(), who: 0 });
}

#[test]
fn all_together_keep_to_the_rate() {
    let mut waiting = TurnsWaiting::new(4, 1_000, at(0));
    (0..1_000).for_each(|read| waiting.ask(if read % 3 == 0 { "a" } else { "b" }, 100, read));
    let (mut now, mut bytes) = (at(0), 0);
    while now < at(10_000) {
        match next(&mut waiting, now) {
            NextTurn::Begin { connection, .. } => {
                waiting.ended(now, &connection, 100);
                bytes += 100;
            }
            NextTurn::Later(at) => {
                assert_eq!(waiting.later(now), Some(at));
                now = at;
            }
            NextTurn::Nobody => panic!("there are more"),
        }
    }
    // The rate for ten seconds, a second's worth at first, and one that is larger than what was left.
    assert!((10_000..=11_200).contains(&bytes), "{bytes}");
}

#[test]
fn who_is_gone_gets_no_turn_and_leaves_nothing_behind() {
    let mut waiting = TurnsWaiting::new(1, 0, at(0));
    (0..3).for_each(|read| waiting.ask("a", 100, read));
    waiting.ask("b", 100, 9);
    assert_eq!(waiting.next(at(0), |who| *who < 2), NextTurn::Begin { connection: "a".to_owned(), who: 2 });
    waiting.ended(at(0), "a", 100);
    assert_eq!(waiting.next(at(0), |_| true), NextTurn::Nobody);
    assert_eq!(waiting.count(|_| false), 0);
    waiting.ask("b", 100, 1);
    assert_eq!(served(&mut waiting, 100), Some(("b".to_owned(), 1)));
    assert!(waiting.connections.is_empty() && waiting.order.is_empty());
}

#[test]
fn what_is_near_the_end_of_its_shard_waits_for_no_turn() {
    let shard = ShardId { stream: StreamId(uuid::Uuid::from_u128(1)), shard: ShardNumber(0) };
    let segment = |number| SegmentId { shard, number: SegmentNumber(number), term: Term(1) };
    let tail = Tail {
        segment: SegmentNumber(5),
        term: Term(1),
        base_offset: Offset(0),
        cached: Position(0),
        durable: Position(NEAR_TAIL_BYTES / 2),
        next_offset: Offset(0),
        sealed: false,
        previous: Some((SegmentNumber(4), Term(1), Position(10 * NEAR_TAIL_BYTES))),
        chunk_bytes: 4_096,
        cells: true,
        log_start: Offset(0),
    };
    assert!(!is_far(segment(5), Position(0), &tail));
    assert!(!is_far(segment(6), Position(0), &tail), "it has just begun");
    assert!(!is_far(segment(4), Position(10 * NEAR_TAIL_BYTES - NEAR_TAIL_BYTES / 2), &tail));
    assert!(is_far(segment(4), Position(9 * NEAR_TAIL_BYTES), &tail));
    assert!(is_far(segment(3), Position(0), &tail));
    let longer = Tail { durable: Position(2 * NEAR_TAIL_BYTES), ..tail };
    assert!(
        is_far(segment(5), Position(0), &longer) && !is_far(segment(5), Position(NEAR_TAIL_BYTES), &longer)
    );
    assert!(!is_far(segment(6), Position(0), &longer), "nothing is left behind a place beyond the tail");
}
