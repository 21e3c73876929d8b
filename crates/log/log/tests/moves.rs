//! A stream whose source moves while metadata is away, or takes no more than one change.

mod common;

use std::sync::Arc;

use common::{batch, config, create, in_world, open, open_with, shard, until_some, values};
use tailwater_env::Env;
use tailwater_format::{Codec, Offset, ShardId, ShardNumber, Term};
use tailwater_log::{
    AppendError, CopyCursor, CopyRecord, Log, LogConfig, SharedMetadata, StreamConfig, StreamError,
};
use tailwater_meta::Meta;
use tailwater_meta::testing::FailingMeta;
use tokio::sync::oneshot;

/// A log whose metadata is this.
fn kept_in(meta: &Arc<FailingMeta>) -> LogConfig {
    let meta: Arc<dyn Meta> = Arc::clone(meta) as Arc<dyn Meta>;
    let shared =
        SharedMetadata { meta, place: "a test".to_owned(), cluster: uuid::Uuid::nil(), is_shared: false };
    LogConfig { metadata: Some(shared), ..config() }
}

/// Appends as clients do: again where it is said that this may help.
async fn append_again(env: &Env, log: &Log, of: ShardId) {
    until_some(env, async || match log.append(of.stream, of.shard, values(&["again"])).await {
        Ok(_) => Some(()),
        Err(error) => {
            assert!(error.is_retriable(), "{error}");
            None
        }
    })
    .await;
}

#[test]
fn a_stream_whose_move_waits_for_metadata_is_given_back_and_appends_go_on() {
    in_world(|env| async move {
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let keeper = open(&env, dirs[0].path()).await;
        let meta = FailingMeta::new(keeper.meta());
        let log = open_with(&env, dirs[1].path(), kept_in(&meta)).await;
        let stream = create(&log, "s", StreamConfig { shards: 2, ..StreamConfig::default() }).await;
        // The first has nothing to record, the second a segment.
        let (first, second) = (shard(stream, 0), shard(stream, 1));
        append_again(&env, &log, second).await;
        meta.take(0);
        let moving = log.clone();
        let moving = async move { moving.hand_over(stream, "eu").await };
        let (reply, mut moved) = oneshot::channel();
        env.spawn("move", async move { drop(reply.send(moving.await)) }).detach();
        let given_up = async || log.producers(first).await.err();
        until_some(&env, given_up).await;
        let refused = log.append(stream, first.shard, values(&["meanwhile"])).await.expect_err("it moves");
        assert_eq!(refused, AppendError::NotOwner, "which clients try again");
        let refused = log.truncate("s", first.shard, Offset(0)).await.expect_err("it moves");
        assert_eq!(refused, StreamError::NotOwner);
        assert!(moved.try_recv().is_err(), "metadata is away still");

        let refused = moved.await.expect("an answer").expect_err("metadata is away");
        assert!(matches!(refused, StreamError::Unavailable(_)), "{refused}");
        meta.take(i64::MAX);
        for of in [first, second] {
            append_again(&env, &log, of).await;
        }
        create(&log, "another", StreamConfig::default()).await;
        log.hand_over(stream, "eu").await.expect("handed over");
    });
}

#[test]
fn a_move_that_is_interrupted_leaves_all_of_many_shards_with_later_terms_and_no_producers() {
    in_world(|env| async move {
        let dirs = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
        let keeper = open(&env, dirs[0].path()).await;
        let meta = FailingMeta::new(keeper.meta());
        let (source, copy) =
            (open(&env, dirs[1].path()).await, open_with(&env, dirs[2].path(), kept_in(&meta)).await);
        let many = StreamConfig { shards: 600, ..StreamConfig::default() };
        let last = shard(create(&source, "s", many).await, 599);
        // An id as the new source gives one to somebody else.
        let record = [(1_000, "theirs".to_owned())];
        let theirs = || batch(&record, Codec::None, Some((7, 0, 0)));
        source.append(last.stream, last.shard, theirs()).await.expect("appended");
        let record = CopyRecord::new(&source.stream("s").expect("the stream"), "us");
        copy.keep_copy(&record, false).await.expect("a copy");
        let read =
            source.read_entries(&mut CopyCursor::new(last, Offset(0)), 1 << 20).await.expect("readable");
        let (reply, answer) = oneshot::channel();
        copy.append_copied(last, &read.entries[0], move |outcome| drop(reply.send(outcome))).expect("taken");
        answer.await.expect("an answer").expect("copied");
        copy.close().await;
        drop(copy);

        // One change is taken, and with that the node is killed.
        let copy = open_with(&env, dirs[2].path(), kept_in(&meta)).await;
        // With nothing left to record, so that the one change is the move.
        copy.cut(last.stream, vec![Offset(u64::MAX); 600]).await.expect("nothing is too much");
        meta.take(1);
        let led = copy.lead(last.stream, Term(2_000), Vec::new()).await;
        assert!(copy.stream("s").expect("the stream").source.is_none(), "{led:?}");
        drop(copy);
        meta.take(i64::MAX);
        let copy = open_with(&env, dirs[2].path(), kept_in(&meta)).await;
        for number in [0, 599] {
            let appended = copy.append(last.stream, ShardNumber(number), theirs()).await.expect("appended");
            assert_eq!(appended.term, Term(2_000), "shard {number}");
        }
        let tail = copy.view(last).expect("the source").tail;
        assert_eq!(tail.next_offset, Offset(2), "what another producer of that id sent is no repetition");
    });
}
