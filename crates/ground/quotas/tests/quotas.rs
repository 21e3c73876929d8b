//! Quotas over real metadata, taken of as servers take.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Env;
use tailwater_journal::Journal;
use tailwater_meta::{Expect, Meta, Op};
use tailwater_quotas::{ClientQuotas, QuotaBound, QuotaBounds, QuotaEntity, QuotaError, QuotaTaker};

const ALICE: QuotaTaker<'_> = QuotaTaker { user: "alice", client_id: "app", address: None };

/// The metadata, as a node that starts finds it.
fn meta(dir: &tempfile::TempDir) -> (Journal, Arc<dyn Meta>) {
    tailwater_meta::testing::open(&Env::real(), dir.path())
}

fn user(name: &str) -> QuotaEntity {
    QuotaEntity { user: Some(name.to_owned()), ..QuotaEntity::default() }
}

fn address(ip: &str) -> QuotaEntity {
    QuotaEntity { ip: Some(ip.to_owned()), ..QuotaEntity::default() }
}

fn bounded(bound: QuotaBound, most: u64) -> BTreeMap<QuotaBound, Option<u64>> {
    BTreeMap::from([(bound, Some(most))])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_holds_once_it_is_set_and_after_a_start_until_it_is_taken_away() {
    let dir = tempfile::tempdir().expect("a directory");
    let (journal, kept) = meta(&dir);
    let quotas = ClientQuotas::open(&Env::real(), kept).await.expect("readable");
    let bound = QuotaBound::ProducerByteRate;
    assert_eq!(quotas.take(bound, ALICE, u64::MAX), Duration::ZERO, "there is none");
    let mut changes = quotas.changes();
    let after = quotas.alter(user("alice"), bounded(bound, 1_000)).await.expect("kept");
    assert_eq!(after, BTreeMap::from([(bound, 1_000)]));
    changes.changed().await;
    assert!(quotas.take(bound, ALICE, 100_000) > Duration::from_secs(60));
    assert!(quotas.owed(bound, ALICE) > Duration::from_secs(60));
    assert!(quotas.admit(bound, ALICE, 1).is_err());
    assert_eq!(quotas.owed(QuotaBound::ConsumerByteRate, ALICE), Duration::ZERO, "of something else");
    assert_eq!(quotas.owed(bound, QuotaTaker { user: "bob", ..ALICE }), Duration::ZERO, "somebody else");
    assert_eq!(quotas.stats().exceeded[0], ("producer_byte_rate", 2));
    drop(quotas);
    journal.close().await.expect("durable");

    let (_journal, kept) = meta(&dir);
    let quotas = ClientQuotas::open(&Env::real(), kept).await.expect("readable");
    assert_eq!(quotas.list(), [(user("alice"), after)]);
    assert_eq!(quotas.rate(bound, ALICE), Some(1_000));
    let after = quotas.alter(user("alice"), BTreeMap::from([(bound, None)])).await.expect("kept");
    assert_eq!((after, quotas.list()), (QuotaBounds::new(), vec![]));
    assert_eq!(quotas.take(bound, ALICE, u64::MAX), Duration::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_make_so_many_connections_and_those_of_a_network_of_ipv6_share_what_they_may() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_journal, kept) = meta(&dir);
    let quotas = ClientQuotas::open(&Env::real(), kept).await.expect("readable");
    let bound = QuotaBound::ConnectionCreationRate;
    quotas.alter(address("*"), bounded(bound, 1)).await.expect("kept");
    quotas.alter(address("10.0.0.5"), bounded(bound, 1_000_000)).await.expect("kept");
    let made = |from: &str| {
        let from: IpAddr = from.parse().expect("an address");
        // Far more than come back meanwhile.
        (0..1_000).filter(|_| quotas.admit_connection(from).is_ok()).count()
    };
    assert_eq!(made("10.0.0.5"), 1_000);
    assert!(made("10.0.0.6") < 1_000);
    assert!(made("2001:db8::1") < 1_000);
    assert!(quotas.admit_connection("2001:db8::2".parse().expect("an address")).is_err());
    assert!(quotas.admit_connection("2001:db8:0:1::2".parse().expect("an address")).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_address_takes_counts_for_all_its_users_together_and_beside_what_each_of_them_takes() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_journal, kept) = meta(&dir);
    let quotas = ClientQuotas::open(&Env::real(), kept).await.expect("readable");
    let bound = QuotaBound::ConsumerByteRate;
    quotas.alter(address("*"), bounded(bound, 1_000)).await.expect("kept");
    quotas.alter(user("alice"), bounded(bound, 10)).await.expect("kept");
    let at = |address: &str| Some(address.parse::<IpAddr>().expect("an address"));
    let bob = QuotaTaker { user: "bob", client_id: "", address: at("10.0.0.5") };
    assert_eq!(quotas.rate(bound, bob), Some(1_000));
    assert_eq!(quotas.rate(bound, QuotaTaker { address: at("10.0.0.5"), ..ALICE }), Some(10), "the least");

    assert_eq!(quotas.take(bound, bob, 1_000), Duration::ZERO);
    let owed = quotas.take(bound, QuotaTaker { user: "carol", ..bob }, 50_000);
    assert!(owed > Duration::from_secs(40), "{owed:?}");
    assert!(quotas.owed(bound, bob) > Duration::from_secs(40), "one address");
    assert!(quotas.admit(bound, bob, 1).is_err());
    let elsewhere = QuotaTaker { address: at("10.0.0.6"), ..bob };
    assert_eq!(quotas.owed(bound, elsewhere), Duration::ZERO);
    assert_eq!(quotas.owed(bound, QuotaTaker { address: None, ..bob }), Duration::ZERO, "it has no address");

    // Who owes as a user owes wherever it is, and its address owes nothing more for it.
    let alice = QuotaTaker { address: at("10.0.0.7"), ..ALICE };
    assert!(quotas.take(bound, alice, 500) > Duration::from_secs(40));
    assert_eq!(quotas.owed(bound, QuotaTaker { user: "dave", ..alice }), Duration::ZERO);
    assert_eq!(quotas.stats().exceeded[1], ("consumer_byte_rate", 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_be_no_quota_is_refused_with_what_is_wrong() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_journal, kept) = meta(&dir);
    let quotas = ClientQuotas::open(&Env::real(), Arc::clone(&kept)).await.expect("readable");
    let (bytes, connections) = (QuotaBound::ProducerByteRate, QuotaBound::ConnectionCreationRate);
    let both = QuotaEntity { ip: Some("10.0.0.5".to_owned()), ..user("alice") };
    for (entity, bounds, why) in [
        (QuotaEntity::default(), bounded(bytes, 1), "about a user"),
        (both, bounded(bytes, 1), "about an address, or"),
        (address("host.example"), bounded(connections, 1), "an address is"),
        (user("alice"), bounded(connections, 1), "is of an address"),
        (user(""), bounded(bytes, 1), "1 to 1024 bytes"),
        (user("alice"), bounded(bytes, 0), "from 1 to"),
    ] {
        let refused = quotas.alter(entity, bounds).await.expect_err("refused");
        assert!(matches!(&refused, QuotaError::Invalid(said) if said.contains(why)), "{refused}");
    }
    assert_eq!(quotas.list(), []);
    let put = Op::Put { key: "access/quota/x".to_owned(), value: "{}".into(), expect: Expect::Any };
    kept.commit(vec![put]).await.expect("kept");
    let refused = ClientQuotas::open(&Env::real(), kept).await.expect_err("refused");
    assert!(refused.to_string().contains("later version"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_one_changes_in_the_metadata_holds_here_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_journal, kept) = meta(&dir);
    let here = ClientQuotas::open(&Env::real(), Arc::clone(&kept)).await.expect("readable");
    let there = ClientQuotas::open(&Env::real(), kept).await.expect("readable");
    let mut changes = here.changes();
    there.alter(user("alice"), bounded(QuotaBound::RequestRate, 7)).await.expect("kept");
    changes.changed().await;
    assert_eq!(here.rate(QuotaBound::RequestRate, ALICE), Some(7));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_that_change_bounds_of_one_quota_at_once_undo_nothing_of_each_other() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_journal, kept) = meta(&dir);
    let one = ClientQuotas::open(&Env::real(), Arc::clone(&kept)).await.expect("readable");
    let other = ClientQuotas::open(&Env::real(), Arc::clone(&kept)).await.expect("readable");
    let wanted = BTreeMap::from([(QuotaBound::ProducerByteRate, 1), (QuotaBound::RequestRate, 2)]);
    for number in 0..100 {
        let name = format!("user-{number}");
        let (first, second) = futures::join!(
            one.alter(user(&name), bounded(QuotaBound::ProducerByteRate, 1)),
            other.alter(user(&name), bounded(QuotaBound::RequestRate, 2)),
        );
        assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
        let fresh = ClientQuotas::open(&Env::real(), Arc::clone(&kept)).await.expect("readable");
        let all: BTreeMap<QuotaEntity, QuotaBounds> = fresh.list().into_iter().collect();
        assert_eq!(all[&user(&name)], wanted, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_can_not_be_read_stays_as_it_is_known_and_others_are_followed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_journal, kept) = meta(&dir);
    let here = ClientQuotas::open(&Env::real(), Arc::clone(&kept)).await.expect("readable");
    let there = ClientQuotas::open(&Env::real(), Arc::clone(&kept)).await.expect("readable");
    there.alter(user("alice"), bounded(QuotaBound::RequestRate, 7)).await.expect("kept");
    let mut changes = here.changes();
    while here.rate(QuotaBound::RequestRate, ALICE).is_none() {
        changes.changed().await;
    }
    let (key, _) = kept.list("access/quota/").await.expect("listed").remove(0);
    let put = Op::Put { key, value: "{}".into(), expect: Expect::Present };
    kept.commit(vec![put]).await.expect("kept");
    there.alter(user("bob"), bounded(QuotaBound::RequestRate, 9)).await.expect("kept");
    let bob = QuotaTaker { user: "bob", ..ALICE };
    while here.rate(QuotaBound::RequestRate, bob).is_none() {
        changes.changed().await;
    }
    assert_eq!(here.rate(QuotaBound::RequestRate, ALICE), Some(7));
}
