//! Servers that want to know who comes, and speak TLS.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tailwater_access::{EngineLogin, SecretText};
use tailwater_bookkeeper::{BookKeeper, BookieSecurity, EntryId, LedgerFault, LedgerTimes, LedgersSecurity};
use tailwater_env::Env;
use tailwater_tls::authority::Authority;
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
    // Entries that are read together are not given up because this machine is busy.
    let times = LedgerTimes { entry, speculative: Duration::from_secs(30), ..LedgerTimes::default() };
    // By the port that speaks TLS, where this client does.
    let servers = match security.zookeeper_dialer.is_secured() {
        true => cluster.secure.as_ref().expect("it speaks TLS"),
        false => &cluster.zookeeper,
    };
    let uri = format!("bookkeeper://{servers}/ledgers").parse().expect("well-formed");
    BookKeeper::connect_with(Env::real(), uri, security, times).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_shows_who_it_is_writes_and_reads_in_tls_and_no_other_does() {
    let dir: PathBuf = tempfile::tempdir().expect("a folder").keep();
    let trusted = security::write(&dir);
    let cluster = Cluster::start_with(1, Some(dir.clone()));
    let open = |config: &DialerConfig| Dialer::open(&Env::real(), config).expect("good files");
    let zookeeper_dialer = open(&trusted);
    let of = |bookies: BookieSecurity| LedgersSecurity {
        zookeeper: login("secret"),
        zookeeper_dialer: zookeeper_dialer.clone(),
        bookies,
    };
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
    assert!(known.entries_batched() > 100, "{}: in TLS and with the login, too", known.entries_batched());

    for (why, zookeeper) in [("no login", None), ("a wrong password", login("wrong"))] {
        let refused = client(&cluster, LedgersSecurity { zookeeper, ..of(good.clone()) }).await;
        let Err(LedgerFault::ZooKeeper(told)) = refused else { panic!("{why} is let in") };
        assert!(told.contains("[zookeeper]"), "{why}: {told}");
    }
    let elsewhere = Authority::create("elsewhere", Env::real().wall_ms()).expect("a CA").certificate;
    fs::write(dir.join("elsewhere.pem"), elsewhere).expect("written");
    for (why, config) in [
        // Java's TLS calls no certificate a bad one.
        ("does not take the certificate", DialerConfig { certificate: None, key: None, ..trusted.clone() }),
        ("of none of the CAs", DialerConfig { ca: Some(dir.join("elsewhere.pem")), ..trusted.clone() }),
    ] {
        let security = LedgersSecurity { zookeeper_dialer: open(&config), ..of(good.clone()) };
        let Err(LedgerFault::ZooKeeper(told)) = client(&cluster, security).await else {
            panic!("{why}: it is let in")
        };
        assert!(told.contains(why), "{why}: {told}");
    }
    // The certificate is for the server's address, and for no name.
    let by_name = cluster.secure.as_ref().expect("it speaks TLS").replace("127.0.0.1", "localhost");
    let uri = format!("bookkeeper://{by_name}/ledgers").parse().expect("well-formed");
    let refused = BookKeeper::connect_with(Env::real(), uri, of(good.clone()), LedgerTimes::default()).await;
    let Err(LedgerFault::ZooKeeper(told)) = refused else { panic!("another name is taken") };
    assert!(told.contains("and not for localhost"), "{told}");
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
