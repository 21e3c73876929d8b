//! Handshakes of real clients with an acceptor, over real connections: what is taken, what is not, and what is said of
//! it.
#![cfg(feature = "rustls")]
#![allow(clippy::disallowed_methods)] // files and clocks of the real world

mod common;

use common::{Side, Trust, World, dial, echo};
use tailwater_tls::{
    ClientCertificates, Dialer, DialerConfig, HandshakeError, Relays, TlsConfig, TlsVersion,
};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What is known of a client that was let in: the version of TLS, as the client saw it, its subject and its names.
async fn known(world: &World, side: Side) -> Result<(String, String, Vec<String>), HandshakeError> {
    let acceptor = world.acceptor();
    let (socket, tcp) = world.pair().await;
    let client = world.spawn(dial(tcp, side));
    let mut stream = acceptor.handshake(socket).await?;
    assert!(stream.is_secured());
    let peer = stream.peer("there".to_owned());
    echo(&mut stream).await;
    let version = client.await.expect("no panic").expect("an echo");
    Ok((version, peer.principal.to_string(), peer.names.to_vec()))
}

#[tokio::test]
async fn a_client_that_trusts_the_ca_is_let_in_with_tls_1_3_and_nobody_knows_it() {
    let world = World::start(TlsConfig::default()).await;
    let (version, principal, names) = known(&world, Side::new(&world)).await.expect("let in");
    assert_eq!((version.as_str(), principal.as_str(), names.len()), ("TLSv1_3", "anonymous", 0));
    let stats = world.certificates().stats();
    assert_eq!((stats.handshakes, stats.failed), (1, 0));
}

#[tokio::test]
async fn tls_1_2_is_spoken_where_it_is_asked_for_and_refused_elsewhere_with_the_key_that_allows_it() {
    let old = TlsConfig { min_version: TlsVersion::V12, ..TlsConfig::default() };
    let world = World::start(old).await;
    let (version, ..) = known(&world, Side::new(&world).with_tls_1_2()).await.expect("let in");
    assert_eq!(version, "TLSv1_2");
    let (version, ..) = known(&world, Side::new(&world)).await.expect("let in");
    assert_eq!(version, "TLSv1_3", "the newest that both speak");
    let world = World::start(TlsConfig::default()).await;
    let error = known(&world, Side::new(&world).with_tls_1_2()).await.expect_err("too old").to_string();
    assert!(error.contains("min_version in [tls]"), "{error}");
}

#[tokio::test]
async fn a_client_that_knows_another_ca_does_not_go_on_and_the_node_says_that_it_was_the_client() {
    let world = World::start(TlsConfig::default()).await;
    let error = known(&world, Side::new(&world).trusting(Trust::Another)).await.expect_err("not taken");
    let text = error.to_string();
    assert!(
        text.contains("does not take this node's certificate") && text.contains("give it the CA"),
        "{text}"
    );
    assert_eq!(world.certificates().stats().failed, 1);
}

#[tokio::test]
async fn a_node_s_certificate_that_has_expired_is_told_by_its_clients() {
    let world = World::with_days(TlsConfig::default(), -1).await;
    assert!(world.certificates().expires_ms() < world.env.wall_ms());
    let error = known(&world, Side::new(&world)).await.expect_err("not taken").to_string();
    assert!(error.contains("CertificateExpired"), "{error}");
}

#[tokio::test]
async fn whoever_has_to_show_a_certificate_is_known_by_it_and_is_refused_without_one() {
    let world = World::start(World::asking(ClientCertificates::Required)).await;
    let shown = Side::new(&world).showing(world.client("orders", 10));
    let (_, principal, names) = known(&world, shown).await.expect("let in");
    assert_eq!((principal.as_str(), names), ("CN=orders", vec!["DNS:orders.example".to_owned()]));
    let error = known(&world, Side::new(&world)).await.expect_err("it shows none").to_string();
    assert!(error.contains("shows no certificate") && error.contains("client_certificates"), "{error}");
}

#[tokio::test]
async fn whoever_may_show_a_certificate_is_known_by_it_or_not_at_all() {
    let world = World::start(World::asking(ClientCertificates::Optional)).await;
    let (_, principal, _) = known(&world, Side::new(&world)).await.expect("let in");
    assert_eq!(principal, "anonymous");
    let shown = Side::new(&world).showing(world.client("orders", 10));
    assert_eq!(known(&world, shown).await.expect("let in").1, "CN=orders");
}

#[tokio::test]
async fn a_client_s_certificate_of_another_ca_or_one_that_is_over_is_refused_with_which_it_is() {
    for asked in [ClientCertificates::Required, ClientCertificates::Optional] {
        let world = World::start(World::asking(asked)).await;
        let other = Side::new(&world).showing(world.client_of_another_ca("orders"));
        let error = known(&world, other).await.expect_err("another CA").to_string();
        assert!(error.contains("of none of the CAs of client_ca"), "{error}");
        let over = Side::new(&world).showing(world.client("orders", -1));
        let error = known(&world, over).await.expect_err("over").to_string();
        assert!(error.contains("the client's certificate has expired"), "{error}");
    }
}

#[tokio::test]
async fn new_files_are_used_for_new_connections_while_an_old_one_goes_on() {
    let mut world = World::start(TlsConfig::default()).await;
    let _watch = world.certificates().watch();
    let (socket, tcp) = world.pair().await;
    let side = Side::new(&world);
    let acceptor = world.acceptor();
    let connecting = world.spawn(side.connect(tcp));
    let mut old = acceptor.handshake(socket).await.expect("let in");
    let mut client = connecting.await.expect("no panic").expect("connected");
    let before = world.certificates().expires_ms();
    // Another CA: who trusts only the first one does not take what comes now.
    let old_side = Side::new(&world);
    world.replace_files(500);
    world.certificates().look();
    world.until(|| world.certificates().expires_ms() != before).await;
    assert_eq!(world.certificates().stats().reloads, 1);
    known(&world, Side::new(&world)).await.expect("the new CA is trusted");
    known(&world, old_side).await.expect_err("the old CA has not signed this");
    // The old one is as it was.
    client.write_all(b"still").await.expect("sent");
    let mut read = [0; 5];
    old.read_exact(&mut read).await.expect("read");
    assert_eq!(&read, b"still");
}

#[tokio::test]
async fn a_connection_goes_on_when_the_certificate_expires_under_it_and_new_ones_come_with_the_next_files() {
    let mut world = World::start(TlsConfig::default()).await;
    let _watch = world.certificates().watch();
    world.replace_files_for_seconds(10);
    world.certificates().look();
    world.until(|| world.certificates().stats().reloads == 1).await;
    let (socket, tcp) = world.pair().await;
    let acceptor = world.acceptor();
    let connecting = world.spawn(Side::new(&world).connect(tcp));
    let mut old = acceptor.handshake(socket).await.expect("still good");
    let mut client = connecting.await.expect("no panic").expect("still good");
    let mut goes_on = async || {
        client.write_all(b"still").await.expect("sent");
        let mut read = [0; 5];
        old.read_exact(&mut read).await.expect("read");
        assert_eq!(&read, b"still");
    };
    let error = loop {
        goes_on().await;
        if let Err(error) = known(&world, Side::new(&world)).await {
            break error.to_string();
        }
    };
    assert!(error.contains("CertificateExpired"), "{error}");
    assert!(world.certificates().expires_ms() <= world.env.wall_ms());
    goes_on().await;
    world.replace_files(90);
    world.certificates().look();
    world.until(|| world.certificates().stats().reloads == 2).await;
    known(&world, Side::new(&world)).await.expect("the next ones");
    goes_on().await;
}

#[tokio::test]
async fn files_that_can_not_be_used_leave_those_from_before_in_use_and_the_next_good_ones_are_taken() {
    let mut world = World::start(TlsConfig::default()).await;
    let _watch = world.certificates().watch();
    // The key is another one's, as while two files are replaced one behind the other.
    let whole = world.replace_certificate_only();
    world.certificates().look();
    world.until(|| world.certificates().stats().reloads_failed == 1).await;
    let before = Side::new(&world).trusting(Trust::First);
    known(&world, before).await.expect("the ones from before");
    world.write_key(&whole);
    world.certificates().look();
    world.until(|| world.certificates().stats().reloads == 1).await;
    known(&world, Side::new(&world)).await.expect("the new ones");
    std::fs::remove_file(world.path("node.key")).expect("removed");
    world.certificates().look();
    known(&world, Side::new(&world)).await.expect("what was read is still there");
}

#[tokio::test]
async fn clients_that_stop_within_a_handshake_hold_up_nobody() {
    let world = World::start(TlsConfig::default()).await;
    let acceptor = world.acceptor();
    let mut half = Vec::new();
    for _ in 0..50 {
        let (socket, mut tcp) = world.pair().await;
        // The beginning of a hello whose rest never comes.
        tcp.write_all(&[22, 3, 1, 2, 0, 1]).await.expect("sent");
        let acceptor = acceptor.clone();
        half.push((tcp, world.spawn(async move { acceptor.handshake(socket).await.map(drop) })));
    }
    known(&world, Side::new(&world)).await.expect("let in");
    for (_tcp, handshake) in &mut half {
        assert!(!handshake.is_finished(), "they are given their time");
    }
    let (_tcp, handshake) = half.pop().expect("one");
    let error = handshake.await.expect("no panic").expect_err("given up");
    assert!(matches!(error, HandshakeError::Slow(_)), "{error}");
}

#[tokio::test]
async fn whoever_speaks_no_tls_is_told_apart_and_in_http_also_told() {
    let world = World::start(TlsConfig::default()).await;
    let acceptor = world.acceptor();
    let kafka = [0, 0, 0, 20, 0, 18, 0, 3, 0, 0, 0, 1];
    for (sent, named) in [
        (&b"GET /metrics HTTP/1.1\r\n\r\n"[..], "HTTP without TLS"),
        (&kafka, "Kafka's protocol without TLS"),
        (b"\xff\x00garbage", "no TLS"),
        (b"G", "no TLS"),
    ] {
        let (socket, mut tcp) = world.pair().await;
        tcp.write_all(sent).await.expect("sent");
        let error = acceptor.handshake(socket).await.expect_err("no TLS").to_string();
        assert!(error.contains(named) && error.contains("takes TLS only"), "{error}");
        let mut answer = String::new();
        tcp.read_to_string(&mut answer).await.unwrap_or_default();
        let is_told = answer.starts_with("HTTP/1.1 400 ") && answer.contains("use https");
        assert_eq!(is_told, named.starts_with("HTTP"), "{answer}");
    }
    // Garbage that begins as TLS does.
    let (socket, mut tcp) = world.pair().await;
    tcp.write_all(&[22, 3, 1, 0, 5, 1, 2, 3, 4, 5]).await.expect("sent");
    let error = acceptor.handshake(socket).await.expect_err("garbage");
    assert!(matches!(error, HandshakeError::Refused(_)), "{error}");
    // Who only looks whether somebody listens is not counted.
    let failed = world.certificates().stats().failed;
    let (socket, tcp) = world.pair().await;
    drop(tcp);
    let error = acceptor.handshake(socket).await.expect_err("gone");
    assert!(matches!(error, HandshakeError::Silent), "{error}");
    assert_eq!(world.certificates().stats().failed, failed);
}

#[tokio::test]
async fn a_connection_that_ends_says_so_and_what_was_written_in_parts_arrives_whole() {
    let world = World::start(TlsConfig::default()).await;
    let (socket, tcp) = world.pair().await;
    let acceptor = world.acceptor();
    let connecting = world.spawn(Side::new(&world).connect(tcp));
    let mut stream = acceptor.handshake(socket).await.expect("let in");
    let mut client = connecting.await.expect("no panic").expect("connected");
    let parts: Vec<Vec<u8>> = (0..100_u8).map(|number| vec![number; 3_000]).collect();
    let whole = parts.concat();
    let (env, sent) = (world.env.clone(), whole.len());
    let writing = world.spawn(async move {
        let mut left: Vec<std::io::IoSlice<'_>> =
            parts.iter().map(|part| std::io::IoSlice::new(part)).collect();
        let mut left = &mut left[..];
        assert!(stream.is_write_vectored());
        while !left.is_empty() {
            let count = stream.write_vectored(left).await.expect("written");
            std::io::IoSlice::advance_slices(&mut left, count);
        }
        stream.flush().await.expect("flushed");
        stream.close(&env).await;
    });
    let mut read = Vec::with_capacity(sent);
    // Without the word that it ends this is an error.
    client.read_to_end(&mut read).await.expect("ended as it should");
    assert!(read == whole);
    writing.await.expect("no panic");
}

#[tokio::test]
async fn a_client_gets_the_certificate_of_the_name_that_it_asks_for_and_the_first_one_for_others() {
    let mut world = World::start(TlsConfig::default()).await;
    let further = vec![
        world.write_further("shop.pem", &["shop.example"]),
        world.write_further("any.pem", &["*.shop.example", "other.example"]),
    ];
    world.with_further(further.clone());
    let _watch = world.certificates().watch();
    for (name, is_known) in [
        ("localhost", true),
        ("127.0.0.1", true),
        ("shop.example", true),
        ("eu.shop.example", true),
        ("other.example", true),
        ("a.eu.shop.example", false),
        ("shop.example.org", false),
    ] {
        let acceptor = world.acceptor();
        let (socket, tcp) = world.pair().await;
        let dialling = world.spawn(dial(tcp, Side::new(&world).asking_for(name)));
        let accepted = acceptor.handshake(socket).await;
        if let Ok(mut stream) = accepted {
            echo(&mut stream).await;
        }
        let dialled = dialling.await.expect("no panic");
        assert_eq!(dialled.is_ok(), is_known, "{name}: {dialled:?}");
    }
    // It is read again as the others are.
    world.write_further("shop.pem", &["new.example"]);
    world.certificates().look();
    world.until(|| world.certificates().stats().reloads == 1).await;
    known(&world, Side::new(&world).asking_for("new.example")).await.expect("the new one");
    std::fs::write(world.path("any.pem"), "nothing").expect("written");
    let error = tailwater_tls::Certificates::open(&world.env, &world.config).expect_err("no certificate");
    assert!(error.to_string().contains("[[tls.certificates]] certificate = "), "{error}");
    let alone = TlsConfig { certificates: further, ..TlsConfig::default() };
    let error = alone.check(true, []).expect_err("there is no first one");
    assert!(error.contains("[tls] has no certificate for all others"), "{error}");
}

#[tokio::test]
async fn a_client_that_takes_new_keys_again_and_again_goes_on_in_both_directions() {
    let world = World::start(TlsConfig::default()).await;
    let (socket, tcp) = world.pair().await;
    let acceptor = world.acceptor();
    let connecting = world.spawn(Side::new(&world).connect(tcp));
    let stream = acceptor.handshake(socket).await.expect("let in");
    let mut client = connecting.await.expect("no panic").expect("connected");
    // Who reads and who writes may be apart: new keys are asked for where is read, and begin where is written.
    let (mut reads, mut writes) = stream.into_split();
    for number in 0..10_u8 {
        client.get_mut().1.refresh_traffic_keys().expect("TLS 1.3 has that");
        client.write_all(&[number; 100]).await.expect("sent");
        let mut read = [0; 100];
        reads.read_exact(&mut read).await.expect("read by the new keys");
        writes.write_all(&read).await.expect("written");
        writes.flush().await.expect("flushed");
        client.read_exact(&mut read).await.expect("written by the new keys");
        assert_eq!(read, [number; 100]);
    }
}

#[tokio::test]
async fn a_plain_listener_knows_a_client_that_speaks_tls_to_it() {
    let world = World::start(TlsConfig::default()).await;
    let acceptor = tailwater_tls::Acceptor::plain();
    for (sent, is_hello) in [(&[22, 3, 1, 2, 0, 1][..], true), (b"GET / HTTP/1.1\r\n", false), (&[22], false)]
    {
        let (socket, mut tcp) = world.pair().await;
        let mut stream = acceptor.handshake(socket).await.expect("as it comes");
        let opening = stream.opening();
        tcp.write_all(sent).await.expect("sent");
        let mut read = vec![0; sent.len()];
        stream.read_exact(&mut read).await.expect("read");
        assert_eq!((read.as_slice(), opening.is_hello()), (sent, is_hello));
    }
}

#[tokio::test]
async fn files_that_are_no_certificate_or_no_key_are_refused_with_their_name_and_what_is_wrong() {
    let world = World::start(World::asking(ClientCertificates::Required)).await;
    let refusal = |name: &str, text: Option<&str>| {
        let before = std::fs::read(world.path(name)).expect("there");
        match text {
            Some(text) => std::fs::write(world.path(name), text).expect("written"),
            None => std::fs::remove_file(world.path(name)).expect("removed"),
        }
        let error =
            tailwater_tls::Certificates::open(&world.env, &world.config).expect_err("refused").to_string();
        std::fs::write(world.path(name), before).expect("written");
        error
    };
    for (name, key) in [("node.pem", "certificate"), ("node.key", "key"), ("ca.pem", "client_ca")] {
        let error = refusal(name, None);
        assert!(error.contains(&format!("[tls] {key} = ")) && error.contains("can't be read"), "{error}");
        let error = refusal(name, Some("nothing"));
        assert!(error.contains(&format!("[tls] {key} = ")) && error.contains("in PEM"), "{error}");
        let error = refusal(name, Some(&"x".repeat(2 << 20)));
        assert!(error.contains("are the most"), "{error}");
    }
    let another = world.client("other", 10).key;
    let error = refusal("node.key", Some(&another));
    assert!(error.contains("is not the key of the certificate"), "{error}");
}

#[tokio::test]
async fn a_library_that_makes_its_connections_itself_is_carried_to_its_server_in_tls_with_a_certificate() {
    let world = World::start(World::asking(ClientCertificates::Required)).await;
    let shown = world.client("orders", 10);
    std::fs::write(world.path("client.pem"), shown.certificate + &shown.key).expect("written");
    let config = DialerConfig {
        ca: Some(world.path("ca.pem")),
        certificate: Some(world.path("client.pem")),
        ..DialerConfig::default()
    };
    let nobody =
        TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound").to_string();
    let servers = format!("{},{nobody}", world.address());
    let dialer = Dialer::open(&world.env, &config).expect("good files");
    let relays = Relays::open(&world.env, &dialer, &servers).await.expect("there are ports");
    let places: Vec<String> = relays.servers().split(',').map(str::to_owned).collect();
    assert_eq!(places.len(), 2, "{places:?}");

    let serving = async {
        let mut stream = world.acceptor().handshake(world.accepted().await).await.expect("let in");
        let peer = stream.peer("there".to_owned());
        echo(&mut stream).await;
        (stream, peer.principal.to_string())
    };
    let asking = async {
        let mut library = TcpStream::connect(&places[0]).await.expect("connected");
        library.write_all(b"hello").await.expect("written");
        let mut read = [0; 5];
        library.read_exact(&mut read).await.expect("read");
        (library, read)
    };
    let ((mut stream, principal), (mut library, read)) = tokio::join!(serving, asking);
    assert_eq!((&read, principal.as_str(), relays.refusal()), (b"hello", "CN=orders", None));
    stream.close(&world.env).await;
    assert_eq!(library.read(&mut [0; 5]).await.expect("it has ended well"), 0);

    let mut library = TcpStream::connect(&places[1]).await.expect("connected");
    assert_eq!(library.read(&mut [0; 5]).await.ok(), Some(0), "so that it tries another server");
    let told = relays.refusal().expect("nobody listens there");
    assert!(told.starts_with(&nobody) && !told.contains(&world.address()), "{told}");
}

#[tokio::test]
async fn whoever_is_carried_to_a_server_that_does_not_let_it_in_can_say_why() {
    let world = World::start(World::asking(ClientCertificates::Required)).await;
    let config = DialerConfig { ca: Some(world.path("ca.pem")), ..DialerConfig::default() };
    let dialer = Dialer::open(&world.env, &config).expect("good files");
    let relays = Relays::open(&world.env, &dialer, &world.address()).await.expect("there are ports");
    let serving = async { world.acceptor().handshake(world.accepted().await).await.map(drop) };
    let asking = async {
        let mut library = TcpStream::connect(relays.servers()).await.expect("connected");
        library.read(&mut [0; 5]).await.expect("it has ended")
    };
    let (refused, read) = tokio::join!(serving, asking);
    assert!(refused.is_err() && read == 0);
    world.until(|| relays.refusal().is_some_and(|why| why.contains("without a certificate"))).await;

    let plain = Relays::open(&world.env, &Dialer::plain(), "a:1,b:2").await.expect("nothing is opened");
    assert_eq!((plain.servers(), plain.refusal()), ("a:1,b:2", None));
}
