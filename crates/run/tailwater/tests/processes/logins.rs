//! Kafka's clients, which others wrote, that log in as a node's users.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::kafka::{need, program};
use crate::support::{Follower, Node, free_port, told, wait_for};

/// A node whose first listener wants a login, with the user `orders`, and a further one that wants none.
fn node(dir: &tempfile::TempDir, more: &[(&str, &str)]) -> Node {
    let listeners = format!("[{{listen=\"127.0.0.1:{}\"}}]", free_port());
    let variables = [("TAILWATER_KAFKA__LOGIN", "true"), ("TAILWATER_KAFKA__LISTENERS", listeners.as_str())];
    let node = Node::start_with(&dir.path().join("data"), &[], &[&variables[..], more].concat());
    let added = node.output(&["user", "add", "orders"], b"correct horse\n");
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    node
}

fn kcat_as(
    node: &Node,
    mechanism: &str,
    password: &str,
    more: &[&str],
    args: &[&str],
    input: &str,
) -> (bool, String, String) {
    let mut command = Command::new("kcat");
    command.args([
        "-b",
        &node.kafka,
        "-m",
        "60",
        "-X",
        "broker.address.family=v4",
        "-X",
        "sasl.username=orders",
    ]);
    command.args(["-X", &format!("sasl.mechanism={mechanism}"), "-X", &format!("sasl.password={password}")]);
    told(command.args(more).args(args), input)
}

fn has_line(node: &Node, named: &[&str]) -> bool {
    node.process.log().lines().any(|line| named.iter().all(|named| line.contains(named)))
}

fn wait_for_line(node: &Node, named: &[&str]) {
    wait_for(&format!("a line with {named:?}"), || has_line(node, named).then_some(()));
}

/// What is tried must not succeed, and is tried until the node's log has a line about it: a client with little time may
/// have given up before it was heard.
fn fails_until_line(node: &Node, named: &[&str], mut succeeds: impl FnMut() -> bool) {
    wait_for(&format!("a line with {named:?}"), || {
        assert!(!succeeds(), "it should fail: {named:?}");
        has_line(node, named).then_some(())
    });
}

#[test]
fn kcat_logs_in_by_scram_and_whoever_does_not_is_told_nothing() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = node(&dir, &[]);
    let plaintext = ["-X", "security.protocol=SASL_PLAINTEXT"];
    for (mechanism, topic) in [("SCRAM-SHA-256", "a"), ("SCRAM-SHA-512", "b")] {
        let (ok, _, err) =
            kcat_as(&node, mechanism, "correct horse", &plaintext, &["-P", "-t", topic], "a line\n");
        assert!(ok, "{mechanism}: {err}");
        let read = &["-C", "-t", topic, "-e", "-q"];
        let (ok, out, err) = kcat_as(&node, mechanism, "correct horse", &plaintext, read, "");
        assert!(ok && out == "a line\n", "{mechanism}: {err}");
    }
    // A password in the clear is not taken, wherever it comes from.
    let quick = ["-X", "security.protocol=SASL_PLAINTEXT", "-m", "2"];
    wait_for("it to be told what is spoken", || {
        let (ok, _, err) = kcat_as(&node, "PLAIN", "correct horse", &quick, &["-L"], "");
        assert!(!ok, "{err}");
        err.contains("SCRAM-SHA-512").then_some(())
    });
    fails_until_line(&node, &["can't log in", "user=\"orders\""], || {
        kcat_as(&node, "SCRAM-SHA-256", "wrong horse", &quick, &["-L"], "").0
    });
    // Nothing is answered before.
    fails_until_line(&node, &["of a client that has not logged in"], || {
        told(Command::new("kcat").args(["-b", &node.kafka, "-m", "2", "-L"]), "").0
    });
    assert!(node.metric("tailwater_logins_refused_total").expect("a metric") >= 1.0);
    let log = node.process.log();
    assert!(!log.contains("correct horse") && !log.contains("wrong horse"), "no password is in the log");
    // Commands find the listener that wants none, and users are there after a restart, until they are removed.
    node.run(&["consume", "a", "--group", "g", "--exit-at-end"]);
    assert!(node.process.stop());
    node.restart();
    let (ok, _, err) = kcat_as(&node, "SCRAM-SHA-256", "correct horse", &plaintext, &["-L"], "");
    assert!(ok, "{err}");
    assert_eq!(node.run(&["user", "ls"]), "orders\n");
    let mut reading = Command::new("kcat");
    reading
        .args(["-b", &node.kafka, "-C", "-t", "a", "-u", "-X", "broker.address.family=v4"])
        .args(plaintext);
    reading.args(["-X", "sasl.username=orders", "-X", "sasl.password=correct horse"]);
    reading.args(["-X", "sasl.mechanism=SCRAM-SHA-256"]);
    let reading = Follower::with_errors_to(&mut reading, Stdio::null());
    assert_eq!(reading.next(), "a line");
    node.run(&["user", "rm", "orders"]);
    // While it waits for more.
    wait_for_line(&node, &["closed a Kafka client's connection", "its user, or its token, was removed"]);
    let (ok, ..) = kcat_as(&node, "SCRAM-SHA-256", "correct horse", &quick, &["-L"], "");
    assert!(!ok, "there is no such user any more");
    let error = node.run_failing(&["user", "rm", "orders"]);
    assert!(error.contains("there is no user \"orders\"") && error.contains("tailwater user ls"), "{error}");
}

/// A listener of broadcasts over HTTP who has been told where it begins; `authorization` says who it is.
fn listen(node: &Node, authorization: &str) -> impl BufRead + use<> {
    try_listen(node, authorization).expect("let in")
}

/// The same, if it is let in.
pub fn try_listen(node: &Node, authorization: &str) -> Option<impl BufRead + use<>> {
    let view: serde_json::Value =
        serde_json::from_str(&node.get("/v1/node").expect("it answers")).expect("JSON");
    let url = format!("http://{}/v1/events", view["broadcast"]["http"].as_str().expect("an address"));
    let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
    let answer = agent.get(url).header("Authorization", authorization).call().ok()?;
    let mut events = BufReader::new(answer.into_body().into_reader());
    let mut line = String::new();
    // Signs of life may come before.
    while matches!(line.trim_end(), "" | ":") {
        line.clear();
        if events.read_line(&mut line).expect("it is open, or ends in order") == 0 {
            return None;
        }
    }
    assert!(line.starts_with("id: "), "{line}");
    Some(events)
}

/// Reads until the answer ends, in order.
pub fn wait_for_end(mut events: impl BufRead) {
    let mut line = String::new();
    while events.read_line(&mut line).expect("it ends in order") > 0 {
        line.clear();
    }
}

#[test]
fn a_listener_over_http_ends_when_its_user_is_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir, &[]);
    // orders:correct horse
    let events = listen(&node, "Basic b3JkZXJzOmNvcnJlY3QgaG9yc2U=");
    node.run(&["user", "rm", "orders"]);
    wait_for_end(events);
}

#[test]
fn java_logs_in_by_scram_and_writes_and_reads() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir, &[]);
    let properties = dir.path().join("client.properties");
    let text = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config=\
                org.apache.kafka.common.security.scram.ScramLoginModule required username=\"orders\" \
                password=\"correct horse\";\n";
    std::fs::write(&properties, text).expect("written");
    let (ok, out, err) = told(program("Clients.java").args([&node.kafka, "records"]).arg(&properties), "");
    assert!(ok, "{out}\n{err}");
    assert!(node.metric("tailwater_logins_total").expect("a metric") >= 1.0);
}

#[cfg(feature = "tls")]
#[test]
fn kcat_logs_in_with_its_password_alone_where_the_connection_is_encrypted() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let (ok, _, err) = told(crate::support::tailwater().args(["init", "--tls", "--dir"]).arg(dir.path()), "");
    assert!(ok, "{err}");
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let (certificate, key) = (path("node.pem"), path("node.key"));
    let tls = [
        ("TAILWATER_TLS__CERTIFICATE", certificate.as_str()),
        ("TAILWATER_TLS__KEY", key.as_str()),
        ("TAILWATER_TLS__LISTENERS", "named"),
        ("TAILWATER_KAFKA__TLS", "true"),
        ("TAILWATER_BROADCAST__HTTP__TLS", "true"),
    ];
    let node = node(&dir, &tls);
    let ca = format!("ssl.ca.location={}", path("ca.pem"));
    let encrypted = ["-X", "security.protocol=SASL_SSL", "-X", &ca];
    for mechanism in ["PLAIN", "SCRAM-SHA-256"] {
        let (ok, _, err) =
            kcat_as(&node, mechanism, "correct horse", &encrypted, &["-P", "-t", "s"], "a line\n");
        assert!(ok, "{mechanism}: {err}");
    }
    let token = node.run(&["token", "create", "ci", "--allow", "write", "--topic", "s"]);
    let token = token.trim();
    let as_token = [&encrypted[..], &["-X", "sasl.username=token:ci"]].concat();
    let (ok, _, err) = kcat_as(&node, "PLAIN", token, &as_token, &["-P", "-t", "s"], "a line\n");
    assert!(ok, "{err}");
    let mut oauth = program("librdkafka.py");
    oauth.args([&node.kafka, "oauth", &path("ca.pem"), token]);
    let (ok, out, err) = told(&mut oauth, "");
    assert!(ok, "{out}\n{err}");
    let quick = [&encrypted[..], &["-m", "2"]].concat();
    fails_until_line(&node, &["can't log in", "user=\"orders\""], || {
        kcat_as(&node, "PLAIN", "wrong horse", &quick, &["-L"], "").0
    });
    curl_listens_with_a_token(&node, &path("ca.pem"), token);
}

/// As a program does, and as a browser's EventSource has to, which can set no header.
#[cfg(feature = "tls")]
fn curl_listens_with_a_token(node: &Node, ca: &str, token: &str) {
    let view: serde_json::Value =
        serde_json::from_str(&node.get("/v1/node").expect("it answers")).expect("JSON");
    let port = view["broadcast"]["http"].as_str().and_then(|at| at.rsplit_once(':')).expect("an address").1;
    let base = format!("https://localhost:{port}/v1/events?stream=local/s");
    let curl = |more: &[&str], url: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-sSN", "--noproxy", "*", "--cacert", ca, "-H", "Accept: text/event-stream"])
            .args(more)
            .arg(url);
        curl
    };
    let header = format!("Authorization: Bearer {token}");
    let in_query = format!("{base}&access_token={token}");
    for (more, url) in [(&["-H", header.as_str()][..], &base), (&[], &in_query)] {
        let events = Follower::of(&mut curl(more, url));
        let first =
            wait_for("an event", || Some(events.next()).filter(|line| !matches!(line.as_str(), "" | ":")));
        assert!(first.starts_with("id: "), "{first}");
    }
    let wrong = format!("{base}&access_token={token}x");
    let (ok, out, err) = told(&mut curl(&["-w", "%{http_code}"], &wrong), "");
    assert!(ok && out.ends_with("401"), "{out} {err}");
}

/// Why a login is refused: Kafka's code, and the words.
type Refusal = (i16, String);

/// A Kafka client at `from` that logs in as `orders` by SCRAM without its password: why it is refused, or `None` if the
/// node hung up before it said so.
async fn guess(node: String, from: IpAddr) -> Option<Refusal> {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::new(from, 0)).expect("an address of this machine");
    let mut stream = socket.connect(node.parse().expect("an address")).await.ok()?;
    // SaslHandshake, version 1, and SaslAuthenticate, version 0.
    let mechanism = "SCRAM-SHA-256";
    ask(&mut stream, 17, 1, &[&(mechanism.len() as u16).to_be_bytes()[..], mechanism.as_bytes()].concat())
        .await?;
    let first = authenticate(&mut stream, "n,,n=orders,r=abcdefgh").await?;
    if let Err(refused) = first {
        return Some(refused);
    }
    let challenge = first.unwrap_or_default();
    let nonce = challenge.split(',').next().expect("a nonce");
    // A proof of 32 bytes, all 0.
    let last = format!("c=biws,{nonce},p={}=", "A".repeat(43));
    authenticate(&mut stream, &last).await?.err()
}

/// Sends a message of a login: what is answered, or why it is refused.
async fn authenticate(stream: &mut TcpStream, message: &str) -> Option<Result<String, Refusal>> {
    let body = [&(message.len() as u32).to_be_bytes()[..], message.as_bytes()].concat();
    let answer = ask(stream, 36, 0, &body).await?;
    let error = i16::from_be_bytes([answer[0], answer[1]]);
    if error != 0 {
        let length = usize::from(u16::from_be_bytes([answer[2], answer[3]]));
        return Some(Err((error, String::from_utf8_lossy(&answer[4..4 + length]).into_owned())));
    }
    // No error's text, and the length of the bytes.
    Some(Ok(String::from_utf8(answer[8..].to_vec()).expect("text")))
}

/// Sends a request and reads the answer's body.
async fn ask(stream: &mut TcpStream, api: u16, version: u16, body: &[u8]) -> Option<Vec<u8>> {
    let mut request = ((10 + body.len()) as u32).to_be_bytes().to_vec();
    request.extend_from_slice(&api.to_be_bytes());
    request.extend_from_slice(&version.to_be_bytes());
    // Its number is 0, and the client has no name.
    request.extend_from_slice(&[0, 0, 0, 0, 0xff, 0xff]);
    request.extend_from_slice(body);
    stream.write_all(&request).await.ok()?;
    let length = stream.read_u32().await.ok()?;
    let mut answer = vec![0; length as usize];
    stream.read_exact(&mut answer).await.ok()?;
    Some(answer.split_off(4))
}

#[test]
fn what_is_too_long_for_a_login_ends_its_own_connection_only() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir, &[]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let connect = async || TcpStream::connect(&node.kafka).await.expect("it listens");
    for announced in [(64 << 10) + 1, i32::MAX, -1, 0] {
        runtime.block_on(async {
            let mut stream = connect().await;
            stream.write_all(&announced.to_be_bytes()).await.expect("sent");
            // What comes with it may be reset with the connection.
            let _ = stream.write_all(&[0; 100]).await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            assert!(answer.is_empty(), "{announced}: {answer:?}");
        });
    }
    let refused = runtime.block_on(async {
        let mut stream = connect().await;
        // The mechanism's length and its name.
        let chosen = [&[0, 13][..], b"SCRAM-SHA-256"].concat();
        ask(&mut stream, 17, 1, &chosen).await.expect("an answer");
        authenticate(&mut stream, &format!("n,,n=orders,r={}", "a".repeat(5_000))).await
    });
    let (code, why) = refused.expect("an answer").expect_err("it is refused");
    assert!(code == 58 && why.contains("too long"), "{code} {why}");
    let plaintext = ["-X", "security.protocol=SASL_PLAINTEXT"];
    let (ok, _, err) = kcat_as(&node, "SCRAM-SHA-256", "correct horse", &plaintext, &["-L"], "");
    assert!(ok, "{err}");
}

#[test]
fn a_thousand_wrong_logins_of_an_address_let_nobody_in_and_keep_nobody_elsewhere_from_working() {
    need("kcat");
    const AT_A_TIME: usize = 100;
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir, &[]);
    let plaintext = ["-X", "security.protocol=SASL_PLAINTEXT"];
    let as_orders = |args: &[&str], input: &str| {
        kcat_as(&node, "SCRAM-SHA-256", "correct horse", &plaintext, args, input)
    };
    let (ok, _, err) = as_orders(&["-P", "-t", "a"], "before\n");
    assert!(ok, "{err}");
    let mut reading = Command::new("kcat");
    reading
        .args(["-b", &node.kafka, "-C", "-t", "a", "-u", "-X", "broker.address.family=v4"])
        .args(plaintext)
        .args(["-X", "sasl.username=orders", "-X", "sasl.password=correct horse"])
        .args(["-X", "sasl.mechanism=SCRAM-SHA-256"]);
    let reading = Follower::with_errors_to(&mut reading, Stdio::null());
    assert_eq!(reading.next(), "before");

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let elsewhere = IpAddr::from([127, 0, 0, 2]);
    let mut told = Vec::new();
    for round in 0..10 {
        let guesses: Vec<_> =
            (0..AT_A_TIME).map(|_| runtime.spawn(guess(node.kafka.clone(), elsewhere))).collect();
        // Who is logged in goes on, and who knows the password comes in, while the guesses are answered.
        let line = format!("round {round}");
        let (ok, _, err) = as_orders(&["-P", "-t", "a"], &format!("{line}\n"));
        assert!(ok, "{err}");
        assert_eq!(reading.next(), line);
        let answers = runtime.block_on(async { futures::future::join_all(guesses).await });
        told.extend(answers.into_iter().map(|answer| answer.expect("no panic")));
    }
    // Each is told that it can't log in, and after some of them that no guess is looked at.
    const SASL_AUTHENTICATION_FAILED: i16 = 58;
    let refused: Vec<_> = told.into_iter().flatten().collect();
    assert!(refused.len() > 500, "{} of 1,000 were answered", refused.len());
    assert!(refused.iter().all(|(error, _)| *error == SASL_AUTHENTICATION_FAILED), "{refused:?}");
    let is_told_to_wait = |refused: &&Refusal| refused.1.contains("too many logins from this address");
    assert!(refused.iter().filter(is_told_to_wait).count() > 500, "{refused:?}");
    assert!(node.metric("tailwater_logins_refused_total") >= Some(refused.len() as f64), "they are counted");
}
