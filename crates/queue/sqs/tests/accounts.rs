//! Accounts over real metadata, as a node makes and removes them while it runs.

#![allow(clippy::disallowed_methods)] // of the real world

use std::sync::Arc;

use tailwater_access::SecretText;
use tailwater_env::Env;
use tailwater_journal::Journal;
use tailwater_meta::testing::FailingMeta;
use tailwater_meta::{Expect, Meta, Op};
use tailwater_sqs::limits::ACCOUNT_KEYS_MAX;
use tailwater_sqs::{AccountBounds, AccountConfig, AccountError, Accounts, KeyConfig, SqsConfig};

const ID: &str = "111122223333";
const OTHER: &str = "444455556666";

/// The metadata, as a node that starts finds it.
fn meta(dir: &tempfile::TempDir) -> (Journal, Arc<dyn Meta>) {
    tailwater_meta::testing::open(&Env::real(), dir.path())
}

async fn open(config: &SqsConfig, meta: &Arc<dyn Meta>) -> Arc<Accounts> {
    Accounts::open(&Env::real(), config, Arc::clone(meta)).await.expect("readable")
}

fn keys(accounts: &Accounts, id: &str) -> Vec<String> {
    accounts.list().into_iter().find(|account| account.id == id).map(|found| found.keys).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_and_their_keys_are_there_until_they_are_removed_also_after_a_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let (journal, kept) = meta(&dir);
    let config = SqsConfig::default();
    let accounts = open(&config, &kept).await;
    let none = AccountBounds::default();
    let first = accounts.add_key(ID, none).await.expect("made");
    let second = accounts.add_key(ID, none).await.expect("made");
    assert!(first.id.len() == 20 && first.secret.len() == 40 && first.id != second.id, "{first:?}");
    assert!(!format!("{first:?} {accounts:?}").contains(&first.secret));
    assert_eq!(keys(&accounts, ID), [first.id.clone(), second.id.clone()]);
    for _ in 2..ACCOUNT_KEYS_MAX {
        accounts.add_key(ID, none).await.expect("made");
    }
    let refused = accounts.add_key(ID, none).await.expect_err("too many").to_string();
    assert!(refused.contains("remove one first"), "{refused}");
    accounts.remove(ID, Some(&first.id), false).await.expect("removed");
    let gone = accounts.remove(ID, Some(&first.id), false).await;
    assert!(matches!(gone, Err(AccountError::Unknown(_))), "{gone:?}");
    drop(accounts);
    drop(kept);
    journal.close().await.expect("durable");

    let (_journal, kept) = meta(&dir);
    let accounts = open(&config, &kept).await;
    assert_eq!(keys(&accounts, ID).len(), ACCOUNT_KEYS_MAX - 1);
    for key in &keys(&accounts, ID)[1..] {
        accounts.remove(ID, Some(key), false).await.expect("removed");
    }
    let refused = accounts.remove(ID, Some(&second.id), true).await.expect_err("the last key").to_string();
    assert!(refused.contains("is the last key"), "{refused}");
    // Without the last account everybody would be let in.
    let last = accounts.remove(ID, None, false).await;
    assert!(matches!(last, Err(AccountError::Last { .. })), "{last:?}");
    accounts.add_key(OTHER, none).await.expect("made");
    accounts.remove(ID, None, false).await.expect("there is another one");
    accounts.remove(OTHER, None, true).await.expect("it is meant");
    assert_eq!(accounts.list(), []);
    let gone = accounts.remove(OTHER, None, true).await;
    assert!(matches!(gone, Err(AccountError::Unknown(_))), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_be_no_account_or_is_the_configuration_s_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_journal, kept) = meta(&dir);
    let configured = AccountConfig {
        id: ID.to_owned(),
        keys: vec![KeyConfig { id: "AK".to_owned(), secret: SecretText::new("s"), secret_file: None }],
        requests_per_s: 0,
        bytes_per_s: 0,
        queues_max: 0,
        in_flight_max: 0,
        waiting_max: 0,
    };
    let config = SqsConfig { accounts: vec![configured], ..SqsConfig::default() };
    let accounts = open(&config, &kept).await;
    for id in ["", "1", "11112222333a", "1111222233334"] {
        let refused = accounts.add_key(id, AccountBounds::default()).await;
        assert!(matches!(refused, Err(AccountError::Invalid(_))), "{id}: {refused:?}");
    }
    let refused = accounts.add_key(ID, AccountBounds::default()).await.expect_err("the configuration's");
    assert!(refused.to_string().contains("[[sqs.accounts]]"), "{refused}");
    accounts.remove(ID, None, true).await.expect_err("the configuration's");
    accounts.add_key(OTHER, AccountBounds::default()).await.expect("made");
    accounts.remove(OTHER, None, false).await.expect("there is one in the configuration");
    assert_eq!(keys(&accounts, ID), ["AK"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_that_make_keys_of_one_account_at_once_lose_none_and_hear_of_each_other() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_journal, kept) = meta(&dir);
    let config = SqsConfig::default();
    let (one, other) = (open(&config, &kept).await, open(&config, &kept).await);
    for number in 0..20 {
        let id = format!("{number:012}");
        let none = AccountBounds::default();
        let (first, second) = futures::join!(one.add_key(&id, none), other.add_key(&id, none));
        let mut made = [first.expect("made").id, second.expect("made").id];
        made.sort();
        for accounts in [&one, &other] {
            while keys(accounts, &id).len() < 2 {
                tokio::task::yield_now().await;
            }
            let mut known = keys(accounts, &id);
            known.sort();
            assert_eq!(known, made);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_that_remove_the_last_two_accounts_at_once_one_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_journal, kept) = meta(&dir);
    let config = SqsConfig::default();
    let (one, other) = (open(&config, &kept).await, open(&config, &kept).await);
    for _ in 0..20 {
        for id in [ID, OTHER] {
            one.add_key(id, AccountBounds::default()).await.expect("made");
        }
        while other.list().len() < 2 {
            tokio::task::yield_now().await;
        }
        let (first, second) = futures::join!(one.remove(ID, None, false), other.remove(OTHER, None, false));
        let (left, refused) = if first.is_ok() { (OTHER, second) } else { (ID, first) };
        assert!(matches!(refused, Err(AccountError::Last { .. })), "{refused:?}");
        let stored = kept.list("sqs/account/").await.expect("readable");
        assert_eq!(stored.len(), 1);
        one.remove(left, None, true).await.expect("it is meant");
        while !other.list().is_empty() {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_holds_also_where_the_accounts_can_t_be_read_after_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_journal, kept) = meta(&dir);
    let away = FailingMeta::new(&kept);
    let failing: Arc<dyn Meta> = Arc::clone(&away) as _;
    let accounts = open(&SqsConfig::default(), &failing).await;
    let none = AccountBounds::default();
    away.list_none();
    let first = accounts.add_key(ID, none).await.expect("made");
    let second = accounts.add_key(ID, none).await.expect("made");
    accounts.remove(ID, Some(&first.id), false).await.expect("removed");
    assert_eq!(keys(&accounts, ID), [second.id]);
    // Whether it is the last one is not known.
    let refused = accounts.remove(ID, None, false).await;
    assert!(matches!(refused, Err(AccountError::Unavailable(_))), "{refused:?}");
    accounts.remove(ID, None, true).await.expect("it is meant");
    assert_eq!(accounts.list(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_a_later_version_has_written_has_no_keys_here_and_the_others_are_followed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_journal, kept) = meta(&dir);
    let later = format!("sqs/account/{OTHER}");
    let put = Op::Put { key: later, value: "{\"later\": 1}".into(), expect: Expect::Absent };
    kept.commit(vec![put]).await.expect("durable");
    let config = SqsConfig::default();
    let (one, other) = (open(&config, &kept).await, open(&config, &kept).await);
    assert_eq!(keys(&one, OTHER), [""; 0]);
    assert_eq!(one.list().len(), 1, "it is there, so everybody has to sign");
    let refused = one.add_key(OTHER, AccountBounds::default()).await.expect_err("unknown").to_string();
    assert!(refused.contains("was written by a later version"), "{refused}");
    for is_there in [true, false] {
        match is_there {
            true => drop(one.add_key(ID, AccountBounds::default()).await.expect("made")),
            false => one.remove(ID, None, false).await.expect("there is the other one"),
        }
        while keys(&other, ID).is_empty() == is_there {
            tokio::task::yield_now().await;
        }
    }
    one.remove(OTHER, None, true).await.expect("it is meant");
    assert_eq!(one.list(), []);
}
