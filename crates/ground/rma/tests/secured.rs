//! Connections in TLS that come to nothing, and why; and who is known by its certificate.

#![allow(missing_docs)]
#![allow(clippy::disallowed_methods)] // the hostile side is no part of any world

mod world;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tailwater_env::Env;
use tailwater_rma::{Address, ConnectError, Server, ServerConfig, connect, connect_with};
use tailwater_tls::{ClientCertificates, Dialer, DialerConfig};
use tempfile::TempDir;

use world::{METHOD_ECHO, METHOD_WHO, TestService, Tls, Transport, World, run};

/// A server whose certificate is for `host`, and where clients show certificates or not.
struct Secured {
    env: Env,
    dir: TempDir,
    tls: Tls,
    _server: Server,
    at: SocketAddr,
}

impl Secured {
    fn start(host: &str, client_certificates: ClientCertificates) -> Self {
        let (env, dir) = (Env::real(), tempfile::tempdir().expect("a directory"));
        let tls = Tls::of(&env, dir.path(), host, client_certificates);
        let config = ServerConfig {
            tcp: Some(([127, 0, 0, 1], 0).into()),
            tls: tls.acceptor.clone(),
            ..ServerConfig::default()
        };
        let service = TestService::new(tailwater_rma::Backing::Shared);
        let server = Server::start(&env, config, service).expect("it starts");
        let at = server.tcp_addr().expect("it listens");
        Self { env, dir, tls, _server: server, at }
    }

    async fn refusal(&self, address: &Address, dialer: &Dialer) -> String {
        let error = connect_with(&self.env, address, dialer).await.err().expect("refused");
        assert!(matches!(error, ConnectError::Secure { .. }), "{error:?}");
        error.to_string()
    }

    fn dialer(&self, config: DialerConfig) -> Dialer {
        let ca = config.ca.or_else(|| Some(self.dir.path().join("ca.pem")));
        Dialer::open(&self.env, &DialerConfig { ca, ..config }).expect("good files")
    }
}

#[test]
fn whoever_does_not_speak_as_the_other_end_does_is_told_what_to_do() {
    run(async {
        let secured = Secured::start("127.0.0.1", ClientCertificates::None);
        let told = secured.refusal(&Address::Tcp(secured.at), &Dialer::plain()).await;
        assert!(told.contains("it speaks TLS: connect with the file of its CA"), "{told}");
        let told = secured.refusal(&Address::Tls(secured.at), &Dialer::plain()).await;
        assert!(told.contains("name the file of its CA"), "{told}");
        let plain = World::new(Transport::Tcp).await;
        let at = plain.server.as_ref().and_then(Server::tcp_addr).expect("it listens");
        let error = connect_with(&secured.env, &Address::Tls(at), &secured.tls.dialer).await.err();
        let told = error.expect("no TLS").to_string();
        assert!(told.contains("does this listener speak TLS?"), "{told}");
        connect(&plain.env, &Address::Tcp(at)).await.expect("others are served");
    });
}

#[test]
fn a_server_of_another_ca_or_another_name_is_not_taken_and_a_name_that_is_expected_is() {
    run(async {
        let secured = Secured::start("node.example", ClientCertificates::None);
        let other = tempfile::tempdir().expect("a directory");
        Tls::new(&secured.env, other.path());
        let address = Address::Tls(secured.at);
        let dialer =
            secured.dialer(DialerConfig { ca: Some(other.path().join("ca.pem")), ..DialerConfig::default() });
        let told = secured.refusal(&address, &dialer).await;
        assert!(told.contains("is of none of the CAs that are trusted here"), "{told}");
        let told = secured.refusal(&address, &secured.tls.dialer).await;
        assert!(told.contains("node.example") && told.contains("not for 127.0.0.1"), "{told}");
        let names = vec!["other.example".to_owned(), "node.example".to_owned()];
        let dialer = secured.dialer(DialerConfig { names, ..DialerConfig::default() });
        connect_with(&secured.env, &address, &dialer).await.expect("it has that name");
    });
}

#[test]
fn a_client_is_known_by_its_certificate_and_without_one_is_not_let_in_where_it_has_to_show_one() {
    run(async {
        let secured = Secured::start("127.0.0.1", ClientCertificates::Required);
        let address = Address::Tls(secured.at);
        let connection = connect_with(&secured.env, &address, &secured.tls.dialer).await.expect("let in");
        let who = connection.call(METHOD_WHO, Bytes::new()).await;
        assert_eq!(who, Ok(Bytes::from_static(b"CN=alice")));
        let told = secured.refusal(&address, &secured.dialer(DialerConfig::default())).await;
        assert!(told.contains("lets nobody in without a certificate"), "{told}");
        let other = tempfile::tempdir().expect("a directory");
        Tls::of(&secured.env, other.path(), "127.0.0.1", ClientCertificates::Required);
        let shown = Some(other.path().join("alice.pem"));
        let dialer = secured.dialer(DialerConfig { certificate: shown, ..DialerConfig::default() });
        let told = secured.refusal(&address, &dialer).await;
        assert!(told.contains("does not take the certificate that is shown"), "{told}");
    });
}

#[test]
fn what_comes_before_a_handshake_or_in_its_place_costs_nobody_else_anything() {
    run(async {
        let secured = Secured::start("127.0.0.1", ClientCertificates::None);
        let connection =
            connect_with(&secured.env, &Address::Tls(secured.at), &secured.tls.dialer).await.expect("let in");
        let mut runner = TestRunner::new(Config { cases: 100, ..Config::default() });
        let input = (any::<bool>(), prop::collection::vec(any::<u8>(), 1..500));
        let result = runner.run(&input, |(is_like_tls, mut garbage)| {
            if is_like_tls {
                garbage.splice(0..0, [22, 3, 1, 1, 0]);
            }
            let mut socket = TcpStream::connect(secured.at).expect("it listens");
            socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a valid time");
            let _ = socket.write_all(&garbage);
            let _ = socket.shutdown(std::net::Shutdown::Write);
            // It is answered an alert at most.
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer);
            assert!(answer.len() < 64, "{answer:?}");
            Ok(())
        });
        result.expect("the server takes connections throughout");
        let answer = connection.call(METHOD_ECHO, Bytes::from_static(b"still here")).await;
        assert_eq!(answer, Ok(Bytes::from_static(b"still here")));
    });
}
