//! A directory as cold storage.

use std::time::Duration;

use bytes::Bytes;
use tailwater_cold::{ColdDirectory, ColdError, ColdObjects};
use tailwater_env::Env;

fn in_world<F: Future<Output = ()>>(test: impl FnOnce(Env) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let env = Env::real();
        let ended = env.timeout(Duration::from_secs(300), test(env.clone())).await;
        assert!(ended.is_some(), "the test never ends");
    });
}

#[test]
fn an_object_is_read_as_it_was_put_listed_and_removed_with_its_folder() {
    in_world(async |env| {
        let dir = tempfile::tempdir().expect("a directory");
        let objects = ColdDirectory::new(&env, dir.path());
        assert_eq!(objects.list("a/b").await, Ok(Vec::new()));
        assert_eq!(objects.remove("a/b").await, Ok(()));
        let missing = objects.read("a/b/0", 0, 1).await;
        assert_eq!(missing, Err(ColdError::Missing("a/b/0".to_owned())));
        for (name, bytes) in [("a/b/0", "first"), ("a/b/1", "second"), ("a/b/0", "other"), ("a/c/0", "third")]
        {
            objects.put(name, Bytes::from_static(bytes.as_bytes())).await.expect("put");
        }
        let read = async |from, length| objects.read("a/b/0", from, length).await.expect("there");
        assert_eq!(
            [read(0, 99).await, read(1, 2).await, read(5, 9).await, read(7, 9).await],
            ["other", "th", "", ""]
        );
        assert_eq!(objects.list("a").await, Ok(vec!["b".to_owned(), "c".to_owned()]));
        // Nothing is left of how they were written.
        assert_eq!(objects.list("a/b").await, Ok(vec!["0".to_owned(), "1".to_owned()]));
        objects.remove("a/b").await.expect("removed");
        assert_eq!(objects.list("a").await, Ok(vec!["c".to_owned()]));
    });
}

#[test]
fn a_directory_that_is_not_there_is_not_made_and_nothing_of_it_is_taken_for_missing() {
    in_world(async |env| {
        let dir = tempfile::tempdir().expect("a directory");
        let away = dir.path().join("away");
        let objects = ColdDirectory::new(&env, &away);
        let refusals = [
            objects.put("a/0", Bytes::from_static(b"x")).await.err(),
            objects.read("a/0", 0, 1).await.err(),
            objects.list("a").await.err(),
            objects.remove("a").await.err(),
        ];
        for refusal in refusals {
            let Some(ColdError::Unavailable(why)) = refusal else { panic!("{refusal:?}") };
            assert!(why.contains("make it, or mount its disk"), "{why}");
        }
        assert!(!away.exists());
    });
}
