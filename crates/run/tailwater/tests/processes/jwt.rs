//! Tokens of an issuer elsewhere, whose keys are at a URL.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};

use crate::logins::{try_listen, wait_for_end};
use crate::support::kafka::program;
use crate::support::{Node, free_port, told, wait_for};

/// An issuer's key.
struct Signing {
    id: &'static str,
    pair: EcdsaKeyPair,
}

impl Signing {
    fn new(id: &'static str) -> Self {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random);
        Self { id, pair: pair.expect("a key") }
    }

    fn jwks(&self) -> String {
        let point = self.pair.public_key().as_ref();
        let [x, y] = [&point[1..33], &point[33..]].map(|part| URL_SAFE_NO_PAD.encode(part));
        json!({"keys": [{"kty": "EC", "crv": "P-256", "kid": self.id, "x": x, "y": y}]}).to_string()
    }

    fn token(&self, subject: &str) -> String {
        self.token_for(subject, 3_600)
    }

    /// One that is good for so many seconds.
    fn token_for(&self, subject: &str, seconds: u64) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
        let claims = json!({"iss": "issuer", "aud": ["tailwater"], "sub": subject, "exp": now + seconds});
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(&json!({"alg": "ES256", "kid": self.id})), part(&claims));
        let signed = self.pair.sign(&SystemRandom::new(), message.as_bytes()).expect("signed");
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signed))
    }
}

/// Answers every request with what is published; its URL.
fn publish(jwks: Arc<Mutex<String>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/jwks", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.expect("a connection");
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && socket.read_exact(&mut byte).is_ok() {
                head.extend(byte);
            }
            let body = jwks.lock().expect("no panic").clone();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            // Whoever asked may be gone.
            let _ = socket.write_all(answer.as_bytes());
        }
    });
    url
}

/// Whether a command with this token is let in.
fn is_known(node: &Node, token: &str) -> (bool, String) {
    let (ok, out, err) = told(node.command(&["stream", "ls"]).env("TAILWATER_LOGIN_TOKEN", token), "");
    (ok, format!("{out}{err}"))
}

/// A node whose Kafka clients log in over TLS, and which takes the tokens of the issuer whose keys are at `jwks`; its
/// files are in `dir`.
fn node(dir: &Path, jwks: &str) -> Node {
    node_with(dir, jwks, &[])
}

fn node_with(dir: &Path, jwks: &str, more: &[(&str, &str)]) -> Node {
    let (ok, _, err) = told(crate::support::tailwater().args(["init", "--tls", "--dir"]).arg(dir), "");
    assert!(ok, "{err}");
    let path = |name: &str| dir.join(name).to_str().expect("text").to_owned();
    let (certificate, key) = (path("node.pem"), path("node.key"));
    let variables = [
        ("TAILWATER_TLS__CERTIFICATE", certificate.as_str()),
        ("TAILWATER_TLS__KEY", key.as_str()),
        ("TAILWATER_TLS__LISTENERS", "named"),
        ("TAILWATER_KAFKA__TLS", "true"),
        ("TAILWATER_KAFKA__LOGIN", "true"),
        ("TAILWATER_ACCESS__JWT__ISSUER", "issuer"),
        ("TAILWATER_ACCESS__JWT__AUDIENCE", "[\"tailwater\"]"),
        ("TAILWATER_ACCESS__JWT__JWKS", jwks),
    ];
    Node::start_with(&dir.join("data"), &[], &[&variables[..], more].concat())
}

#[test]
fn an_issuer_s_tokens_are_taken_by_http_and_kafka_also_after_it_has_another_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let (old, new) = (Signing::new("old"), Signing::new("new"));
    let jwks = Arc::new(Mutex::new(old.jwks()));
    let node = node(dir.path(), &publish(Arc::clone(&jwks)));
    // Asked in vain once, as it may be, it asks again later.
    wait_for("the old key", || is_known(&node, &old.token("app")).0.then_some(()));
    let (known, said) = is_known(&node, &new.token("app"));
    assert!(!known && said.contains("no such token"), "{said}");
    let mut oauth = program("librdkafka.py");
    let (ok, out, err) = told(oauth.args([&node.kafka, "oauth", &path("ca.pem"), &old.token("app")]), "");
    assert!(ok, "{out}\n{err}");

    // Whoever listens does so as long as the token is good.
    let mut seconds = 5;
    wait_for_end(wait_for("one that listens in time", || {
        // Where a token's time is over before, the next one has more.
        seconds *= 2;
        try_listen(&node, &format!("Bearer {}", old.token_for("app", seconds / 2)))
    }));

    *jwks.lock().expect("no panic") = new.jwks();
    let token = new.token("app");
    wait_for("the new key", || is_known(&node, &token).0.then_some(()));
    assert!(!is_known(&node, &old.token("app")).0, "the old key is gone");
}

#[test]
fn java_shows_its_next_token_on_the_connections_that_it_has_before_the_time_of_the_last_one_is_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let issuer = Signing::new("key");
    let node = node(dir.path(), &publish(Arc::new(Mutex::new(issuer.jwks()))));
    node.run(&["stream", "create", "renewed"]);
    let properties = dir.path().join("client.properties");
    let text = format!(
        "security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={}\n\
         sasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=file://{}\n\
         sasl.login.callback.handler.class=\
         org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler\n\
         sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;\n\
         sasl.login.refresh.min.period.seconds=0\nsasl.login.refresh.buffer.seconds=0\n\
         sasl.login.refresh.window.factor=0.5\n",
        path("ca.pem"),
        path("token")
    );
    std::fs::write(&properties, text).expect("written");
    let renew = || {
        std::fs::write(path("token.new"), issuer.token_for("app", 10)).expect("written");
        std::fs::rename(path("token.new"), path("token")).expect("renamed");
    };
    renew();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                renew();
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let mut clients = program("Clients.java");
        let (ok, out, err) = told(clients.args([&node.kafka, "reauthenticates"]).arg(&properties), "");
        is_over.store(true, Ordering::Relaxed);
        assert!(ok, "{out}\n{err}\n{}", node.process.log());
    });
    assert!(node.metric("tailwater_logins_total").expect("a metric") >= 4.0);
}

#[test]
fn clients_that_others_wrote_log_in_by_each_mechanism_in_tls_and_by_a_certificate() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let issuer = Signing::new("key");
    let jwks = publish(Arc::new(Mutex::new(issuer.jwks())));
    let certificates = format!("localhost:{}", free_port());
    let listeners =
        format!("[{{listen=\"{}\", tls=true, login=false}}]", certificates.replace("localhost", "127.0.0.1"));
    let client_ca = dir.path().join("ca.pem");
    let mut node = node_with(
        dir.path(),
        &jwks,
        &[
            ("TAILWATER_KAFKA__LISTENERS", listeners.as_str()),
            ("TAILWATER_TLS__CLIENT_CA", client_ca.to_str().expect("text")),
            ("TAILWATER_TLS__CLIENT_CERTIFICATES", "optional"),
            ("TAILWATER_ACCESS__RULES", "report"),
            ("TAILWATER_ACCESS__SUPER_USERS", "[\"ops\"]"),
        ],
    );
    for user in ["ops", "orders"] {
        let added = node.output(&["user", "add", user], b"correct horse\n");
        assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    }
    node.run(&["stream", "create", "logins"]);
    // That the node has started is asked by nobody known.
    node.run(&["acl", "add", "--user", "anonymous", "--allow", "describe", "--node"]);
    for user in ["orders", "jwt:app", "CN=admin"] {
        node.run(&[
            "acl",
            "add",
            "--user",
            user,
            "--allow",
            "write,read",
            "--topic",
            "logins",
            "--group",
            "nobody",
        ]);
    }
    wait_for("the key", || is_known(&node, &issuer.token("app")).0.then_some(()));
    assert!(node.process.stop());
    node.restart_with(&[("TAILWATER_ACCESS__RULES", "enforce")]);
    std::fs::write(path("token"), issuer.token("app")).expect("written");
    let file = format!(
        "ca={}\nuser=orders\npassword=correct horse\ntoken={}\ntoken.file={}\ncertificates={certificates}\ncertificate={}\n",
        path("ca.pem"),
        issuer.token("app"),
        path("token"),
        path("admin.pem")
    );
    std::fs::write(path("logins"), file).expect("written");
    let kafka = node.kafka.replace("127.0.0.1", "localhost");
    for client in ["librdkafka.py", "kafka_python.py", "Clients.java", "main.go"] {
        let (ok, out, err) = told(program(client).args([&kafka, "logins", &path("logins")]), "");
        assert!(ok, "{client}: {out}\n{err}\n{}", node.process.log());
    }
}
