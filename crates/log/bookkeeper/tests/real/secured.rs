//! Servers that want to know who comes, and bookies that speak TLS.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tailwater_access::{EngineLogin, SecretText};
use tailwater_bookkeeper::{BookKeeper, BookieSecurity, EntryId, LedgerFault, LedgerTimes, LedgersSecurity};
use tailwater_env::Env;
use tailwater_tls::{Dialer, DialerConfig};

use crate::cluster::Cluster;
use crate::ledgers::{append, options, payload, read_all};
use crate::security;

fn login(password: &str) -> Option<EngineLogin> {
    Some(EngineLogin { user: "tailwater".to_owned(), password: SecretText::new(password) })
}

/// One that gives up early where nothing can come.
async fn client(cluster: &Cluster, security: LedgersSecurity) -> Result<BookKeeper, LedgerFault> {
    let entry = Duration::from_secs(if security.bookies.login == login("secret") { 300 } else { 3 });
    let times = LedgerTimes { entry, ..LedgerTimes::default() };
    BookKeeper::connect_with(Env::real(), cluster.uri(), security, times).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_shows_who_it_is_writes_and_reads_in_tls_and_no_other_does() {
    let dir: PathBuf = tempfile::tempdir().expect("a folder").keep();
    let trusted = security::write(&dir);
    let cluster = Cluster::start_with(1, Some(dir.clone()));
    let open = |config: &DialerConfig| Dialer::open(&Env::real(), config).expect("good files");
    let of = |bookies: BookieSecurity| LedgersSecurity { zookeeper: login("secret"), bookies };
    let good = BookieSecurity { login: login("secret"), dialer: open(&trusted) };

    let known = client(&cluster, of(good.clone())).await.expect("it is let in");
    while known.ledgers().bookies().await.expect("ZooKeeper answers").is_empty() {
        tokio::task::yield_now().await;
    }
    let writer = known.create(&options(1, 1, 1)).await.expect("a bookie is there");
    append(&writer, 0..200).await;
    let ledger = writer.ledger();
    assert_eq!(writer.close().await.expect("it closes"), EntryId::new(199));
    let read = read_all(&known, ledger).await;
    assert_eq!((read.len(), read.last()), (200, Some(&payload(199))));

    for (why, zookeeper) in [("no login", None), ("a wrong password", login("wrong"))] {
        let refused = client(&cluster, LedgersSecurity { zookeeper, bookies: good.clone() }).await;
        let Err(LedgerFault::ZooKeeper(told)) = refused else { panic!("{why} is let in") };
        assert!(told.contains("[zookeeper]"), "{why}: {told}");
    }
    let without = |config: DialerConfig| BookieSecurity { login: login("wrong"), dialer: open(&config) };
    for (why, bookies) in [
        ("a wrong password", without(trusted.clone())),
        ("no login", BookieSecurity { login: None, dialer: open(&trusted) }),
        ("no certificate", without(DialerConfig { certificate: None, key: None, ..trusted.clone() })),
    ] {
        let stranger = client(&cluster, of(bookies)).await.expect("ZooKeeper lets it in");
        let writer = stranger.create(&options(1, 1, 1)).await.expect("that is metadata only");
        let refused = writer.append(payload(0)).await.expect_err(why);
        let known = matches!(refused, LedgerFault::NoQuorum { .. } | LedgerFault::Unauthorized);
        assert!(known, "{why}: {refused}");
    }
    drop(cluster);
    let _ = fs::remove_dir_all(dir);
}
