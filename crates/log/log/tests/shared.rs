//! Logs of several processes on the same metadata and the same segments, each of which owns a part of the shards.

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::members::{Member, SHARDS, World, all_owned, in_world, stream};
use common::{batch, shard, values, values_of};
use tailwater_format::{Codec, ShardNumber, StreamId, Term};
use tailwater_log::{AppendError, Log, ReadError, StreamConfig, StreamError};
use tailwater_meta::testing::FailingMeta;
use tailwater_meta::{Expect, Meta, Op};

/// Two processes that share the shards of a stream.
async fn two(world: &World) -> (Member, Member, StreamId) {
    let (mut a, mut b) = (world.start("a").await, world.start("b").await);
    let stream = stream(&a).await;
    world.look_until(&mut [&mut a, &mut b], all_owned).await;
    (a, b, stream)
}

#[test]
fn each_shard_has_one_owner_and_goes_on_at_another_one_when_its_owner_is_gone() {
    in_world(|world| async move {
        let (mut a, b, stream) = two(&world).await;
        let parts = [a.log.shards_owned(), b.log.shards_owned()];
        assert!(parts.iter().all(|part| *part > 0), "{parts:?}");
        for number in 0..SHARDS {
            let (owner, other) = if a.owns(stream, number) { (&a, &b) } else { (&b, &a) };
            let tail = owner.log.tails(stream, &[ShardNumber(number)]).expect("its own")[0];
            assert_eq!(tail.term, Term(1), "no epoch is told that the first record's is not");
            assert_eq!(owner.append(stream, number, values(&["one"])).await.expect("durable"), Term(1));
            assert_eq!(other.append(stream, number, values(&["no"])).await, Err(AppendError::NotOwner));
            assert_eq!(other.log.view(shard(stream, number)).err(), Some(ReadError::NotOwner));
            let known = other.log.shard_owner(shard(stream, number)).expect("it is known");
            assert_eq!((known.owner, known.term), (owner.member.owner, Term(1)));
        }
        drop(b);
        world.look_until(&mut [&mut a], all_owned).await;
        for number in 0..SHARDS {
            a.append(stream, number, values(&["two"])).await.expect("durable");
            assert_eq!(values_of(&a.log, shard(stream, number)).await, ["one", "two"]);
        }
        // Started again, it is given its part, which no record is lost by.
        let mut b = world.start("b").await;
        world
            .look_until(&mut [&mut a, &mut b], |there| {
                all_owned(there) && there.iter().all(|member| member.log.shards_owned() > 0)
            })
            .await;
        for number in 0..SHARDS {
            let owner = if a.owns(stream, number) { &a } else { &b };
            assert_eq!(values_of(&owner.log, shard(stream, number)).await, ["one", "two"]);
        }
    });
}

#[test]
fn what_an_owner_may_be_about_to_renew_the_first_look_of_another_process_leaves_alone() {
    in_world(|world| async move {
        let mut a = world.start("a").await;
        let stream = stream(&a).await;
        world.look_until(&mut [&mut a], all_owned).await;
        // It does not see the owner, which may be on its way to another session.
        let mut b = world.start("b").await;
        let alone = [b.member.clone()];
        b.sharing.seen().look(world.env.now(), &alone);
        assert_eq!(b.sharing.look(&alone).await, Ok(0), "nothing is claimed");
        a.append(stream, 0, values(&["one"])).await.expect("it is still the owner");
        world.look_until(&mut [&mut b], all_owned).await;
        assert_eq!(values_of(&b.log, shard(stream, 0)).await, ["one"]);
    });
}

#[test]
fn of_two_that_take_themselves_for_the_owner_one_makes_progress_and_the_other_one_can_own_again() {
    in_world(|world| async move {
        let (mut a, mut b, stream) = two(&world).await;
        let of_b: Vec<u32> = (0..SHARDS).filter(|number| b.owns(stream, *number)).collect();
        // One that has written, and one that was never written to.
        let (written, fresh) = (of_b[0], of_b[1]);
        b.append(stream, written, values(&["before"])).await.expect("durable");
        // It is thought to be gone, and is not.
        world.look_until(&mut [&mut a], all_owned).await;
        assert!(b.owns(stream, written) && b.owns(stream, fresh), "it does not know");
        let late = b.append(stream, written, values(&["late"])).await;
        assert!(matches!(late, Err(AppendError::Lost(_) | AppendError::NotOwner)), "{late:?}");
        let again = b.append(stream, written, values(&["again"])).await;
        assert_eq!(again, Err(AppendError::NotOwner), "its claim of another term fails");
        // Of one that it never wrote to it begins a segment, which needs no commit.
        let first = b.append(stream, fresh, values(&["first"])).await;
        assert!(matches!(first, Err(AppendError::Lost(_) | AppendError::NotOwner)), "{first:?}");
        a.append(stream, written, values(&["after"])).await.expect("durable");
        assert_eq!(values_of(&a.log, shard(stream, written)).await, ["before", "after"]);
        assert_eq!(
            values_of(&b.log, shard(stream, written)).await,
            ["before"],
            "it shows what was acknowledged"
        );
        world
            .look_until(&mut [&mut a, &mut b], |there| all_owned(there) && there[1].owns(stream, written))
            .await;
        b.append(stream, written, values(&["back"])).await.expect("durable");
        assert_eq!(values_of(&b.log, shard(stream, written)).await, ["before", "after", "back"]);
    });
}

#[test]
fn a_process_that_is_about_to_go_gives_its_shards_up_at_once_and_an_idempotent_producer_goes_on_elsewhere() {
    in_world(|world| async move {
        let (mut a, mut b) = (world.start("a").await, world.start("b").await);
        let stream = stream(&b).await;
        world.look_until(&mut [&mut a, &mut b], all_owned).await;
        let number = (0..SHARDS).find(|number| b.owns(stream, *number)).expect("it has some");
        let producer = a.log.init_producer_id().await.expect("an id");
        assert_ne!(producer, b.log.init_producer_id().await.expect("an id"), "of another block");
        let sent = |sequence: i32| {
            let records = [(1_000, sequence.to_string())];
            batch(&records, Codec::None, Some((producer, 0, sequence)))
        };
        for sequence in 0..3 {
            b.append(stream, number, sent(sequence)).await.expect("durable");
        }
        b.member.takes = false;
        world.look_until(&mut [&mut a, &mut b], |there| there[0].log.shards_owned() == SHARDS as usize).await;
        assert_eq!(b.log.shards_owned(), 0);
        // Its last batch comes again: the answer was lost.
        a.append(stream, number, sent(2)).await.expect("known");
        a.append(stream, number, sent(3)).await.expect("durable");
        assert_eq!(values_of(&a.log, shard(stream, number)).await, ["0", "1", "2", "3"]);
    });
}

#[test]
fn streams_that_one_creates_alters_and_deletes_are_so_at_the_others() {
    in_world(|world| async move {
        let (mut a, mut b) = (world.start("a").await, world.start("b").await);
        let stream = stream(&a).await;
        let exists = b.log.create_stream("s", StreamConfig::default()).await;
        assert_eq!(
            exists.err(),
            Some(StreamError::Exists("s".to_owned())),
            "although it has not heard of it"
        );
        world
            .look_until(&mut [&mut a, &mut b], |there| {
                all_owned(there) && there[1].log.stream("s").is_ok_and(|known| known.id == stream)
            })
            .await;
        let more = |config: &StreamConfig| {
            Ok::<_, StreamError>(StreamConfig { shards: SHARDS + 3, ..config.clone() })
        };
        b.log.alter_stream("s", more).await.expect("altered");
        world
            .look_until(&mut [&mut a, &mut b], |there| {
                there.iter().map(|member| member.log.shards_owned()).sum::<usize>() == SHARDS as usize + 3
            })
            .await;
        for number in 0..SHARDS + 3 {
            let owner = if a.owns(stream, number) { &a } else { &b };
            owner.append(stream, number, values(&["one"])).await.expect("durable");
        }
        b.log.delete_stream("s").await.expect("deleted");
        world
            .look_until(&mut [&mut a, &mut b], |there| {
                there.iter().all(|member| member.log.stream("s").is_err())
            })
            .await;
        common::until(&world.env, || world.store.0.lock().segments.is_empty()).await;
        assert!(world.meta.meta().list("log/shard/").await.expect("listed").is_empty(), "nothing is left");
    });
}

#[test]
fn a_partitioned_owner_that_comes_back_changes_nothing_and_deletes_nothing_of_what_the_next_owner_has_found()
{
    in_world(|world| async move {
        let cut_off = FailingMeta::new(world.meta.meta());
        let mut a = world.start("a").await;
        let mut b = world.start_on("b", Arc::clone(&cut_off) as Arc<dyn Meta>).await;
        let stream = stream(&a).await;
        world.look_until(&mut [&mut a, &mut b], all_owned).await;
        let of_b: Vec<u32> = (0..SHARDS).filter(|number| b.owns(stream, *number)).collect();
        let (number, fresh) = (of_b[0], of_b[1]);
        // An entry that is on a bookie, and that no quorum has: the only one of its segment.
        world.store.hold(shard(stream, number));
        let log = b.log.clone();
        let (told, held) = futures::channel::oneshot::channel();
        let append = async move {
            let _ = told.send(log.append(stream, ShardNumber(number), values(&["held"])).await);
        };
        world.env.spawn("held-append", append).detach();
        let is_held = |stored: &common::told::Stored| !stored.bytes.is_empty() && !stored.is_unconfirmed;
        let of_number = |id: &tailwater_format::SegmentId| id.shard == shard(stream, number);
        common::until(&world.env, || {
            world.store.0.lock().segments.iter().any(|(id, stored)| of_number(id) && is_held(stored))
        })
        .await;

        cut_off.take(0);
        world.look_until(&mut [&mut a], all_owned).await;
        assert_eq!(values_of(&a.log, shard(stream, number)).await, ["held"], "it was found, and is recorded");
        world.store.give_up(shard(stream, number));
        let held = held.await.expect("it is answered");
        assert!(matches!(held, Err(AppendError::Lost(_))), "{held:?}");
        for number in [number, fresh] {
            let again = b.append(stream, number, values(&["again"])).await;
            assert!(again.is_err(), "{again:?}");
            a.append(stream, number, values(&["theirs"])).await.expect("durable");
        }
        assert_eq!(values_of(&a.log, shard(stream, number)).await, ["held", "theirs"]);

        cut_off.take(i64::MAX);
        world
            .look_until(&mut [&mut a, &mut b], |there| {
                all_owned(there) && of_b.iter().all(|number| there[1].owns(stream, *number))
            })
            .await;
        b.append(stream, number, values(&["back"])).await.expect("durable");
        assert_eq!(values_of(&b.log, shard(stream, number)).await, ["held", "theirs", "back"]);
        assert_eq!(values_of(&b.log, shard(stream, fresh)).await, ["theirs"]);
    });
}

#[test]
fn a_shard_whose_bookies_do_not_answer_keeps_no_other_one_from_being_taken_over() {
    in_world(|world| async move {
        let (mut a, b, stream) = two(&world).await;
        let of_b: Vec<u32> = (0..SHARDS).filter(|number| b.owns(stream, *number)).collect();
        for number in &of_b {
            b.append(stream, *number, values(&["one"])).await.expect("durable");
        }
        world.store.0.lock().unreachable.insert(shard(stream, of_b[0]));
        drop(b);
        let but_one = SHARDS as usize - 1;
        world.look_until(&mut [&mut a], |there| there[0].log.shards_owned() == but_one).await;
        assert!(!a.owns(stream, of_b[0]));
        a.append(stream, of_b[1], values(&["two"])).await.expect("durable");
        world.store.0.lock().unreachable.clear();
        world.look_until(&mut [&mut a], all_owned).await;
        assert_eq!(values_of(&a.log, shard(stream, of_b[0])).await, ["one"]);
    });
}

#[test]
fn a_process_that_stalls_behind_its_claim_leaves_the_segments_of_the_next_owner_alone() {
    in_world(|world| async move {
        let (mut a, b, stream) = two(&world).await;
        let number = (0..SHARDS).find(|number| b.owns(stream, *number)).expect("it has some");
        b.append(stream, number, values(&["one"])).await.expect("durable");
        drop(b);
        // It claims, and is away while it looks for segments.
        let slow = world.store.0.lock().lists + 1;
        world.store.0.lock().slow_list = Some(slow);
        world.look_until(&mut [&mut a], |_| world.store.0.lock().lists == slow).await;
        let mut c = world.start("c").await;
        world.look_until(&mut [&mut c], all_owned).await;
        c.append(stream, number, values(&["two"])).await.expect("durable");
        world.store.0.lock().slow_list = None;
        // It goes on, and hears that all is another one's by now.
        c.member.takes = true;
        a.member.takes = false;
        world
            .look_until(&mut [&mut a, &mut c], |there| {
                there[0].log.shards_owned() == 0 && there[1].log.shards_owned() == SHARDS as usize
            })
            .await;
        c.append(stream, number, values(&["three"])).await.expect("nobody has shut it out");
        assert_eq!(values_of(&c.log, shard(stream, number)).await, ["one", "two", "three"]);
        let terms = c.log.shard_owner(shard(stream, number)).expect("it is known").term;
        assert_eq!(terms, Term(3), "it was claimed once after the one that stalled");
    });
}

#[test]
fn a_shard_that_can_not_be_opened_at_one_process_is_open_at_the_next_one_that_can() {
    in_world(|world| async move {
        let (mut a, b, stream) = two(&world).await;
        let number = (0..SHARDS).find(|number| b.owns(stream, *number)).expect("it has some");
        b.append(stream, number, values(&["one"])).await.expect("durable");
        world.store.0.lock().damaged.insert(shard(stream, number));
        drop(b);
        world.look_until(&mut [&mut a], |there| there[0].log.shards_damaged() == 1).await;
        let refused = a.append(stream, number, values(&["no"])).await;
        assert!(matches!(refused, Err(AppendError::Damaged(_))), "{refused:?}");
        world.store.0.lock().damaged.clear();
        let mut b = world.start("b").await;
        world.look_until(&mut [&mut a, &mut b], |there| there[1].owns(stream, number)).await;
        b.append(stream, number, values(&["two"])).await.expect("durable");
        assert_eq!(values_of(&b.log, shard(stream, number)).await, ["one", "two"]);
        assert_eq!(a.log.shards_damaged(), 0);
    });
}

#[test]
fn of_a_shard_that_stays_damaged_what_was_found_is_looked_at_again_and_all_that_there_is_is_not() {
    common::in_world(|env| async move {
        let (env, ahead) = common::ahead(&env);
        let world = World::new(&env).await;
        let mut a = world.start("a").await;
        let stream = stream(&a).await;
        world.look_until(&mut [&mut a], all_owned).await;
        a.append(stream, 0, values(&["one"])).await.expect("durable");
        drop(a);
        world.store.0.lock().damaged.insert(shard(stream, 0));
        let mut a = world.start("a").await;
        world.look_until(&mut [&mut a], |there| there[0].log.shards_damaged() == 1).await;
        let lists = world.store.0.lock().lists;
        for looks in 1..4 {
            ahead.fetch_add(600_000, std::sync::atomic::Ordering::SeqCst);
            world.look_until(&mut [&mut a], |_| world.store.0.lock().looks_again == looks).await;
        }
        assert_eq!(world.store.0.lock().lists, lists, "the others' segments are not read each time");
        world.store.0.lock().damaged.clear();
        ahead.fetch_add(600_000, std::sync::atomic::Ordering::SeqCst);
        world.look_until(&mut [&mut a], |there| there[0].log.shards_damaged() == 0).await;
        a.append(stream, 0, values(&["two"])).await.expect("durable");
        assert_eq!(values_of(&a.log, shard(stream, 0)).await, ["one", "two"]);
    });
}

/// Puts what nobody can read where a key is, whose value is answered.
async fn spoil(meta: &Arc<dyn Meta>, key: &str) -> Bytes {
    let found = meta.get(key).await.expect("available").expect("it is there").value;
    let value = Bytes::from_static(b"\xff of a later version");
    let put = Op::Put { key: key.to_owned(), value, expect: Expect::Present };
    meta.commit(vec![put]).await.expect("put");
    found
}

#[test]
fn a_shard_whose_list_of_segments_can_not_be_read_is_refused_for_that_and_the_others_are_opened() {
    common::in_world(|env| async move {
        let (env, ahead) = common::ahead(&env);
        let world = World::new(&env).await;
        let meta = world.meta.meta();
        let mut a = world.start("a").await;
        let stream = stream(&a).await;
        world.look_until(&mut [&mut a], all_owned).await;
        a.append(stream, 0, values(&["one"])).await.expect("durable");
        // Given up, its segment is completed and recorded.
        let mut b = world.start("b").await;
        a.member.takes = false;
        world
            .look_until(&mut [&mut a, &mut b], |there| {
                there[1].log.shards_owned() == SHARDS as usize && there[0].log.shards_owned() == 0
            })
            .await;
        drop((a, b));
        let key = meta.list("log/segment/").await.expect("listed").remove(0).0;
        let before = spoil(meta, &key).await;

        let mut c = world.start("c").await;
        world
            .look_until(&mut [&mut c], |there| {
                there[0].log.shards_damaged() == 1 && there[0].log.shards_owned() == SHARDS as usize - 1
            })
            .await;
        let refused = c.append(stream, 0, values(&["no"])).await.expect_err("it is damaged").to_string();
        assert!(refused.contains(&key) && refused.contains("upgrade"), "{refused}");
        c.append(stream, 1, values(&["other"])).await.expect("durable");
        let put = Op::Put { key, value: before, expect: Expect::Present };
        meta.commit(vec![put]).await.expect("put");
        ahead.fetch_add(30_000, std::sync::atomic::Ordering::SeqCst);
        world.look_until(&mut [&mut c], |there| there[0].log.shards_damaged() == 0).await;
        c.append(stream, 0, values(&["two"])).await.expect("durable");
        assert_eq!(values_of(&c.log, shard(stream, 0)).await, ["one", "two"]);
    });
}

#[test]
fn a_process_starts_beside_a_stream_and_a_shard_whose_records_can_not_be_read() {
    in_world(|world| async move {
        let meta = world.meta.meta();
        let mut a = world.start("a").await;
        let stream = stream(&a).await;
        world.look_until(&mut [&mut a], all_owned).await;
        a.append(stream, 1, values(&["one"])).await.expect("durable");
        let other = a.log.create_stream("other", StreamConfig::default()).await.expect("created").id;
        drop(a);
        let key = meta.list("log/shard/").await.expect("listed").remove(0).0;
        spoil(meta, &key).await;
        spoil(meta, &format!("log/stream/{other}")).await;

        let mut b = world.start("b").await;
        world.look_until(&mut [&mut b], |there| there[0].log.shards_owned() == SHARDS as usize - 1).await;
        assert!(!b.owns(stream, 0), "whose it is nobody knows");
        b.append(stream, 1, values(&["two"])).await.expect("durable");
        assert_eq!(values_of(&b.log, shard(stream, 1)).await, ["one", "two"]);
        let taken = b.log.create_stream("other", StreamConfig::default()).await;
        assert_eq!(taken.err(), Some(StreamError::Exists("other".to_owned())), "it is there all the same");
    });
}

#[test]
fn what_a_deleted_stream_has_left_goes_also_where_all_who_knew_the_stream_are_gone() {
    in_world(|world| async move {
        let cut_off = FailingMeta::new(world.meta.meta());
        let mut a = world.start_on("a", Arc::clone(&cut_off) as Arc<dyn Meta>).await;
        let mut b = world.start("b").await;
        let stream = stream(&a).await;
        world.look_until(&mut [&mut a, &mut b], all_owned).await;
        let number = (0..SHARDS).find(|number| b.owns(stream, *number)).expect("it has some");
        b.append(stream, number, values(&["one"])).await.expect("durable");
        drop(b);
        // The one that deletes it is cut off behind that.
        cut_off.take(1);
        a.log.delete_stream("s").await.expect("deleted");
        drop(a);
        assert!(!world.store.0.lock().segments.is_empty());
        let mut c = world.start("c").await;
        world.look_until(&mut [&mut c], |_| world.store.0.lock().segments.is_empty()).await;
        let meta = world.meta.meta();
        while !meta.list("log/deleted/").await.expect("listed").is_empty() {
            world.env.sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn a_stream_that_was_moved_here_takes_its_first_record_in_the_term_that_the_claim_recorded() {
    in_world(|world| async move {
        let config = StreamConfig { shards: SHARDS, ..StreamConfig::default() };
        let stream = world.meta.create_stream("s", config).await.expect("created").id;
        world.meta.hand_over(stream, "elsewhere").await.expect("moved");
        world.meta.lead(stream, Term(5), Vec::new()).await.expect("moved back");
        let mut a = world.start("a").await;
        world.look_until(&mut [&mut a], all_owned).await;
        assert_eq!(a.append(stream, 0, values(&["one"])).await.expect("durable"), Term(5));
        assert_eq!(values_of(&a.log, shard(stream, 0)).await, ["one"]);
    });
}

#[test]
fn a_stream_whose_record_can_not_be_read_stays_as_it_is_known() {
    in_world(|world| async move {
        let mut a = world.start("a").await;
        let stream = stream(&a).await;
        world.look_until(&mut [&mut a], all_owned).await;
        a.append(stream, 0, values(&["one"])).await.expect("durable");
        let meta = world.meta.meta();
        let (key, found) = meta.list("log/stream/").await.expect("listed").remove(0);
        let value = Bytes::from_static(b"\xff of a later version");
        let expect = Expect::Version(found.version);
        meta.commit(vec![Op::Put { key, value, expect }]).await.expect("put");
        // What is read with it.
        world.meta.create_stream("other", StreamConfig::default()).await.expect("created");
        world.look_until(&mut [&mut a], |there| there[0].log.stream("other").is_ok()).await;
        a.append(stream, 0, values(&["two"])).await.expect("durable");
        assert_eq!(values_of(&a.log, shard(stream, 0)).await, ["one", "two"]);
    });
}

#[test]
fn a_stream_that_is_deleted_while_the_owner_of_its_shards_is_gone_leaves_no_segments() {
    in_world(|world| async move {
        let (a, b, stream) = two(&world).await;
        let number = (0..SHARDS).find(|number| b.owns(stream, *number)).expect("it has some");
        b.append(stream, number, values(&["one"])).await.expect("durable");
        drop(b);
        a.log.delete_stream("s").await.expect("deleted");
        common::until(&world.env, || world.store.0.lock().segments.is_empty()).await;
    });
}

#[test]
fn a_claim_that_waits_is_given_up_when_another_process_should_have_the_shard() {
    in_world(|world| async move {
        let (mut a, b, stream) = two(&world).await;
        let number = (0..SHARDS).find(|number| b.owns(stream, *number)).expect("it has some");
        b.append(stream, number, values(&["one"])).await.expect("durable");
        let waits = shard(stream, number);
        world.store.0.lock().unreachable.insert(waits);
        drop(b);
        let owner = |log: &Log| log.shard_owner(waits).map(|owner| owner.owner);
        world
            .look_until(&mut [&mut a], |there| {
                owner(&there[0].log) == Some(there[0].member.owner)
                    && there[0].log.shards_owned() == SHARDS as usize - 1
            })
            .await;
        assert!(!a.owns(stream, number), "what it needs is not there");

        // Another one can claim it without the end of the first one.
        let mut c = world.start("c").await;
        a.member.takes = false;
        world
            .look_until(&mut [&mut a, &mut c], |there| owner(&there[0].log) == Some(there[1].member.owner))
            .await;
        let both = [a.member.clone(), c.member.clone()];
        while a.sharing.look(&both).await.expect("metadata answers") > 0 {
            world.env.sleep(Duration::from_millis(20)).await;
        }
        world.store.0.lock().unreachable.clear();
        world.look_until(&mut [&mut a, &mut c], |there| there[1].owns(stream, number)).await;
        c.append(stream, number, values(&["two"])).await.expect("durable");
        assert_eq!(values_of(&c.log, waits).await, ["one", "two"]);
    });
}

#[test]
fn epochs_do_not_go_back_when_one_process_has_all_shards_again() {
    in_world(|world| async move {
        let mut a = world.start("a").await;
        let stream = stream(&a).await;
        world.look_until(&mut [&mut a], all_owned).await;
        a.append(stream, 0, values(&["one"])).await.expect("durable");
        // Claimed again and again, and not written to.
        for id in ["b", "c"] {
            drop(a);
            a = world.start(id).await;
            world.look_until(&mut [&mut a], all_owned).await;
        }
        let epoch = |log: &Log, number: u32| {
            let tail = log.tails(stream, &[ShardNumber(number)]).expect("its own")[0];
            log.leader_term(shard(stream, number), tail.term)
        };
        let before: Vec<Term> = (0..SHARDS).map(|number| epoch(&a.log, number)).collect();
        assert_eq!(before[0], Term(3));
        drop(a);

        let one = world.open("one", Arc::clone(world.meta.meta()), false).await;
        for number in 0..SHARDS {
            assert!(epoch(&one, number) >= before[number as usize], "shard {number}");
        }
        let appended = one.append(stream, ShardNumber(0), values(&["two"])).await.expect("durable");
        assert_eq!((appended.term, epoch(&one, 0)), (Term(4), Term(4)));
        assert_eq!(values_of(&one, shard(stream, 0)).await, ["one", "two"]);
        one.close().await;
    });
}

#[test]
fn whether_there_is_a_stream_that_is_not_known_here_metadata_says() {
    in_world(|world| async move {
        let (a, b) = (world.start("a").await, world.start("b").await);
        let stream = stream(&a).await;
        assert!(b.log.stream("s").is_err(), "it has not looked");
        assert_eq!(b.log.has_stream(stream).await, Ok(true));
        a.log.delete_stream("s").await.expect("deleted");
        for member in [&a, &b] {
            assert_eq!(member.log.has_stream(stream).await, Ok(false));
        }
    });
}

#[test]
fn what_a_deleted_stream_has_left_goes_also_where_the_process_that_deleted_it_ended_behind_the_commit() {
    in_world(|world| async move {
        let (mut a, b, stream) = two(&world).await;
        let number = (0..SHARDS).find(|number| b.owns(stream, *number)).expect("it has some");
        b.append(stream, number, values(&["one"])).await.expect("durable");
        drop(b);
        let meta = world.meta.meta();
        let keys = ["log/stream/", "log/name/"].map(|prefix| async move {
            let listed = meta.list(prefix).await.expect("listed");
            assert_eq!(listed.len(), 1, "{prefix}");
            Op::Delete { key: listed[0].0.clone(), expect: Expect::Present }
        });
        let deletes = futures::future::join_all(keys).await;
        meta.commit(deletes).await.expect("deleted");
        let store = &world.store;
        world.look_until(&mut [&mut a], |_| store.0.lock().segments.is_empty()).await;
        while !meta.list("log/shard/").await.expect("listed").is_empty() {
            world.env.sleep(Duration::from_millis(5)).await;
        }
    });
}
