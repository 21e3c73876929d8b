//! A log that is copied entry by entry into another one.

mod common;

use bytes::Bytes;
use common::{batch, create, in_world, log_start, open, read_all, shard, values};
use tailwater_env::Env;
use tailwater_format::{Codec, Offset, ShardId, ShardNumber, Term};
use tailwater_log::{
    AppendError, CopyCursor, CopyRecord, Log, ShardEnd, StreamConfig, StreamDurability, StreamError,
};
use tailwater_meta::{Expect, Op};
use tempfile::TempDir;
use tokio::sync::oneshot;

const SHARD: ShardNumber = ShardNumber(0);

/// A source with a stream, and a log with its copy.
async fn source_and_copy(env: &Env, config: StreamConfig) -> ([TempDir; 2], Log, Log, ShardId) {
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let (source, copy) = (open(env, dirs[0].path()).await, open(env, dirs[1].path()).await);
    let stream = create(&source, "orders", config).await;
    let record = CopyRecord::new(&source.stream("orders").expect("the stream"), "us");
    copy.keep_copy(&CopyRecord::decode(&record.encode()).expect("a record"), false).await.expect("a copy");
    (dirs, source, copy, shard(stream, 0))
}

/// Gives the copy an entry, and answers what became of it.
async fn give(copy: &Log, shard: ShardId, entry: &Bytes) -> Result<Offset, AppendError> {
    let (reply, answer) = oneshot::channel();
    copy.append_copied(shard, entry, move |outcome| drop(reply.send(outcome)))?;
    answer.await.expect("an answer").map(|appended| appended.last_offset)
}

/// Copies all that the source has and the copy has not.
async fn copy_all(source: &Log, copy: &Log, shard: ShardId) {
    let next = copy.view(shard).expect("the copy").tail.next_offset;
    let mut cursor = CopyCursor::new(shard, next);
    loop {
        let read = source.read_entries(&mut cursor, 1_000).await.expect("readable");
        if read.entries.is_empty() {
            assert_eq!((read.next_offset, read.behind_bytes), (cursor.offset(), 0));
            return;
        }
        for entry in &read.entries {
            give(copy, shard, entry).await.expect("copied");
        }
    }
}

async fn append(log: &Log, of: ShardId, value: &str) {
    log.append(of.stream, of.shard, values(&[value, "and more"])).await.expect("appended");
}

#[test]
fn a_copy_that_is_killed_goes_on_in_the_sources_offsets_and_terms_byte_for_byte() {
    in_world(|env| async move {
        let short = StreamConfig { segment_bytes: 65_536, ..StreamConfig::default() };
        let ([source_dir, copy_dir], mut source, mut copy, shard) = source_and_copy(&env, short).await;
        for round in 0..6 {
            for number in 0..20 {
                append(&source, shard, &format!("{round} {number} {}", "x".repeat(2_000))).await;
            }
            copy_all(&source, &copy, shard).await;
            let (theirs, ours) = (read_all(&source, shard).await, read_all(&copy, shard).await);
            assert_eq!(theirs.len(), ours.len());
            for (theirs, ours) in theirs.iter().zip(&ours) {
                let place = |seen: &common::Seen| {
                    (seen.offset, seen.timestamp, seen.segment.term, seen.transaction_id)
                };
                assert_eq!((place(theirs), &theirs.value), (place(ours), &ours.value));
            }
            let tail = copy.view(shard).expect("the copy").tail;
            assert_eq!(tail.term, source.view(shard).expect("the source").tail.term);
            // The source's term grows with each start of its log, and with none of the copy's.
            if round % 2 == 1 {
                drop(source);
                source = open(&env, source_dir.path()).await;
            }
            drop(copy);
            copy = open(&env, copy_dir.path()).await;
            assert_eq!(read_all(&copy, shard).await.len(), ours.len(), "all of it is durable");
        }
    });
}

#[test]
fn a_copy_takes_the_next_entry_of_its_source_and_nothing_else() {
    in_world(|env| async move {
        let (_dirs, source, copy, shard) = source_and_copy(&env, StreamConfig::default()).await;
        append(&source, shard, "first").await;
        append(&source, shard, "second").await;
        let mut cursor = CopyCursor::new(shard, Offset(0));
        let read = source.read_entries(&mut cursor, 1 << 20).await.expect("readable");
        let [first, second] = &read.entries[..] else { panic!("two entries") };

        let refused = give(&copy, shard, second).await.expect_err("a gap");
        assert!(refused.to_string().contains("goes on at offset 0, not at 2"), "{refused}");
        let mut damaged = first.to_vec();
        *damaged.last_mut().expect("bytes") ^= 1;
        assert!(matches!(give(&copy, shard, &damaged.into()).await, Err(AppendError::Corrupt(_))));
        assert_eq!(give(&copy, shard, first).await, Ok(Offset(1)));
        let refused = give(&copy, shard, first).await.expect_err("twice");
        assert!(refused.to_string().contains("goes on at offset 2, not at 0"), "{refused}");
        assert_eq!(give(&copy, shard, second).await, Ok(Offset(3)));

        let us = AppendError::Copy { cluster: "us".into() };
        assert_eq!(copy.append(shard.stream, SHARD, values(&["mine"])).await, Err(us));
        let refused = StreamError::Copy("us".to_owned());
        assert_eq!(copy.truncate("orders", SHARD, Offset(1)).await, Err(refused.clone()));
        let alter = copy.alter_stream("orders", |config| Ok::<_, StreamError>(config.clone())).await;
        assert_eq!(alter, Err(refused));
        assert!(give(&source, shard, second).await.is_err(), "a source copies nothing");
    });
}

#[test]
fn a_copy_goes_on_behind_what_its_source_has_removed_and_so_after_a_kill() {
    in_world(|env| async move {
        let ([_source_dir, copy_dir], source, copy, shard) =
            source_and_copy(&env, StreamConfig::default()).await;
        append(&source, shard, "copied").await;
        copy_all(&source, &copy, shard).await;
        append(&source, shard, "missed").await;
        append(&source, shard, "left").await;
        source.truncate("orders", SHARD, Offset(5)).await.expect("truncated");

        let mut cursor = CopyCursor::new(shard, Offset(2));
        let read = source.read_entries(&mut cursor, 1 << 20).await.expect("readable");
        assert_eq!(
            (read.log_start, read.entries.len()),
            (Offset(5), 1),
            "from the entry with the first record left"
        );
        copy.begin_copy(shard, Offset(4)).await.expect("nothing is under way");
        drop(copy);
        let copy = open(&env, copy_dir.path()).await;
        // Nothing was appended behind the gap, so it may be forgotten, and is then made again.
        copy.begin_copy(shard, Offset(4)).await.expect("nothing is under way");
        assert_eq!(give(&copy, shard, &read.entries[0]).await, Ok(Offset(5)));
        assert_eq!(copy.truncate_copy(shard, Offset(5)).await, Ok(Offset(5)));
        drop(copy);
        let copy = open(&env, copy_dir.path()).await;
        assert_eq!(log_start(&copy, shard), Offset(5));
        append(&source, shard, "later").await;
        copy_all(&source, &copy, shard).await;
        let left = read_all(&copy, shard).await.into_iter().filter(|read| read.offset >= 5);
        let values: Vec<String> = left.map(|read| read.value).collect();
        assert_eq!(values, ["and more", "later", "and more"]);
        copy.begin_copy(shard, Offset(6)).await.expect("it is further");
        assert_eq!(copy.view(shard).expect("the copy").tail.next_offset, Offset(8));
    });
}

#[test]
fn what_the_source_may_still_lose_is_not_copied_yet() {
    in_world(|env| async move {
        let interval = StreamConfig { durability: StreamDurability::Interval, ..StreamConfig::default() };
        let (_dirs, source, copy, shard) = source_and_copy(&env, interval).await;
        append(&source, shard, "first").await;
        let mut cursor = CopyCursor::new(shard, Offset(0));
        let read = loop {
            let read = source.read_entries(&mut cursor, 1 << 20).await.expect("readable");
            if !read.entries.is_empty() {
                break read;
            }
            assert!(read.awaits_sync, "it is there, and not synced");
            env.sleep(std::time::Duration::from_millis(1)).await;
        };
        assert_eq!(give(&copy, shard, &read.entries[0]).await, Ok(Offset(1)));
        let stored =
            copy.store().durable_length(&copy.view(shard).expect("the copy").open().expect("an entry"));
        assert!(stored.expect("the segment").0 > 0, "a copy is synced before it is answered");
    });
}

#[test]
fn what_is_not_synced_is_waited_for_from_the_first_read_on() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = common::config();
        config.journal.sync_interval = std::time::Duration::from_secs(3_600);
        let source = common::open_with(&env, dir.path(), config).await;
        let interval = StreamConfig { durability: StreamDurability::Interval, ..StreamConfig::default() };
        let shard = shard(create(&source, "orders", interval).await, 0);
        // The first may be written, and so synced, together with the shard's opening.
        let mut cursor = loop {
            let next = source.view(shard).expect("the source").tail.next_offset;
            append(&source, shard, "one more").await;
            let mut cursor = CopyCursor::new(shard, next);
            let read = source.read_entries(&mut cursor, 1 << 20).await.expect("readable");
            assert_eq!(read.awaits_sync, read.entries.is_empty(), "all is there, synced or not");
            if read.awaits_sync {
                break cursor;
            }
        };
        // A record that is synced has those before it synced.
        let synced = create(&source, "synced", StreamConfig::default()).await;
        append(&source, common::shard(synced, 0), "another").await;
        let read = source.read_entries(&mut cursor, 1 << 20).await.expect("readable");
        assert_eq!(read.entries.len(), 1);
    });
}

#[test]
fn a_copy_has_its_sources_configuration_and_gets_more_shards_with_it() {
    in_world(|env| async move {
        let (_dirs, source, copy, shard) = source_and_copy(&env, StreamConfig::default()).await;
        let more = |config: &StreamConfig| Ok::<_, StreamError>(StreamConfig { shards: 3, ..config.clone() });
        let altered = source.alter_stream("orders", more).await.expect("altered");
        let kept = copy.keep_copy(&CopyRecord::new(&altered, "us"), true).await.expect("kept");
        assert_eq!((kept.config.shards, kept.id, kept.source.as_deref()), (3, shard.stream, Some("us")));
        let third = common::shard(shard.stream, 2);
        append(&source, third, "there").await;
        copy_all(&source, &copy, third).await;
        assert_eq!(read_all(&copy, third).await.len(), 2);

        create(&copy, "mine", StreamConfig::default()).await;
        create(&source, "mine", StreamConfig::default()).await;
        let theirs = CopyRecord::new(&source.stream("mine").expect("the stream"), "us");
        assert_eq!(copy.keep_copy(&theirs, false).await, Err(StreamError::Exists("mine".to_owned())));
    });
}

#[test]
fn a_copy_that_is_made_again_uses_no_number_of_the_one_before_also_if_it_is_killed_at_once() {
    in_world(|env| async move {
        let ([_source_dir, copy_dir], source, copy, shard) =
            source_and_copy(&env, StreamConfig::default()).await;
        append(&source, shard, "first").await;
        copy_all(&source, &copy, shard).await;
        let before = copy.view(shard).expect("the copy").tail.segment_id(shard);
        copy.delete_stream("orders").await.expect("deleted");
        let record = CopyRecord::new(&source.stream("orders").expect("the stream"), "us");
        copy.keep_copy(&record, true).await.expect("made again");
        drop(copy);
        let copy = open(&env, copy_dir.path()).await;
        copy_all(&source, &copy, shard).await;
        let after = copy.view(shard).expect("the copy").tail.segment_id(shard);
        assert_eq!(after.term, before.term, "terms are the source's");
        assert!(after.number > before.number, "{after} comes behind {before}");
    });
}

#[test]
fn a_copy_that_leads_goes_on_in_a_higher_term_and_the_source_before_takes_its_entries() {
    in_world(|env| async move {
        let ([source_dir, copy_dir], source, copy, shard) =
            source_and_copy(&env, StreamConfig::default()).await;
        append(&source, shard, "first").await;
        copy_all(&source, &copy, shard).await;
        append(&source, shard, "second").await;
        let before = source.view(shard).expect("the source").tail.term;

        let ends = source.hand_over(shard.stream, "eu").await.expect("handed over");
        assert_eq!(ends, [ShardEnd { log_start: Offset(0), next_offset: Offset(4), term: before }]);
        let eu = AppendError::Copy { cluster: "eu".into() };
        assert_eq!(source.append(shard.stream, SHARD, values(&["late"])).await, Err(eu.clone()));
        copy_all(&source, &copy, shard).await;
        let led = copy.lead(shard.stream, before.next(), Vec::new()).await.expect("leads");
        assert_eq!(led[0].next_offset, Offset(4));
        append(&copy, shard, "third").await;
        assert!(copy.view(shard).expect("the new source").tail.term > before);
        copy_all(&copy, &source, shard).await;
        let seen = |seen: &common::Seen| (seen.offset, seen.value.clone(), seen.segment.term);
        let of = |all: Vec<common::Seen>| all.iter().map(seen).collect::<Vec<_>>();
        assert_eq!(of(read_all(&source, shard).await), of(read_all(&copy, shard).await));

        // Both are what they were after a start, and the source goes back.
        drop((source, copy));
        let (source, copy) = (open(&env, source_dir.path()).await, open(&env, copy_dir.path()).await);
        assert_eq!(source.append(shard.stream, SHARD, values(&["late"])).await, Err(eu));
        append(&copy, shard, "fourth").await;
        copy_all(&copy, &source, shard).await;
        let ends = copy.hand_over(shard.stream, "us").await.expect("handed over");
        source.lead(shard.stream, ends[0].term.next(), Vec::new()).await.expect("leads");
        append(&source, shard, "fifth").await;
        copy_all(&source, &copy, shard).await;
        assert_eq!(of(read_all(&source, shard).await), of(read_all(&copy, shard).await));
        assert_eq!(read_all(&copy, shard).await.len(), 10);
    });
}

#[test]
fn a_source_whose_move_fails_goes_on_and_knows_what_its_producers_send_again() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let source = open(&env, dir.path()).await;
        let shard = shard(create(&source, "orders", StreamConfig::default()).await, 0);
        let producer = source.init_producer_id().await.expect("a producer");
        let record = [(1_000, "once".to_owned())];
        let again = || batch(&record, Codec::None, Some((producer, 0, 0)));
        let appended = source.append(shard.stream, shard.shard, again()).await.expect("appended");
        // It has to have metadata that nobody has written.
        let key = "log/none".to_owned();
        let with = Op::Delete { key, expect: Expect::Version(u64::MAX) };
        source.lead(shard.stream, Term(9), vec![with]).await.expect_err("it expects what is not so");
        let known = source.append(shard.stream, shard.shard, again()).await.expect("it is there");
        assert_eq!(known.base_offset, appended.base_offset);
        append(&source, shard, "another").await;
        assert_eq!(source.view(shard).expect("the source").tail.next_offset, Offset(3));
    });
}

#[test]
fn what_a_copy_has_too_much_is_cut_off_and_others_come_to_its_offsets() {
    in_world(|env| async move {
        let short = StreamConfig { segment_bytes: 65_536, ..StreamConfig::default() };
        let ([_source_dir, copy_dir], source, mut copy, shard) = source_and_copy(&env, short).await;
        for number in 0..100 {
            append(&source, shard, &format!("{number} {}", "x".repeat(2_000))).await;
        }
        copy_all(&source, &copy, shard).await;
        source.hand_over(shard.stream, "eu").await.expect("a copy of somebody's");
        assert!(
            copy.cut(shard.stream, vec![Offset(10_000)]).await.expect("nothing is too much")[0].next_offset.0
                == 200
        );
        for (end, restart) in [(150, false), (149, true), (61, false), (60, true), (0, true)] {
            // Several segments at once, one, and all there is.
            let cut = copy.cut(shard.stream, vec![Offset(end)]).await.expect("cut off")[0].next_offset;
            assert!(cut.0 <= end, "{cut} {end}");
            if restart {
                drop(copy);
                copy = open(&env, copy_dir.path()).await;
            }
            let tail = copy.view(shard).expect("the copy").tail;
            assert_eq!((tail.next_offset, read_all(&copy, shard).await.len() as u64), (cut, cut.0));
            copy_all(&source, &copy, shard).await;
            assert_eq!(read_all(&copy, shard).await.len(), 200);
        }
        copy.lead(shard.stream, tailwater_format::Term(2_000), Vec::new()).await.expect("leads");
        append(&copy, shard, "more").await;
        assert_eq!(copy.view(shard).expect("the source").tail.term.0, 2_000);
        let refused = copy.cut(shard.stream, vec![Offset(0)]).await.expect_err("a source is not cut");
        assert!(matches!(refused, StreamError::Exists(_)), "{refused}");
    });
}
