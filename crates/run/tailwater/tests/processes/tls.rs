//! Listeners in TLS, with the files of `tailwater init`, and clients that others wrote.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use tailwater_access::{AccessRequest, Authorizer, Denied, Peer, Resource};
use tailwater_node::Config;
use tailwater_tls::ClientCertificates;
use tempfile::TempDir;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use crate::support::kafka::{need, program};
use crate::support::{Node, Process, free_port, serve, tailwater, told, wait_for};

/// What `init` makes for a node, and for a client besides.
pub struct Files(TempDir);

impl Files {
    pub fn make() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let init = ["init", "--tls", "--client", "orders", "--host", "node.example", "--dir"];
        let (ok, out, err) = told(tailwater().args(init).arg(dir.path()), "");
        assert!(
            ok && out.contains("node.key (for its owner only)") && err.contains("--config"),
            "{out}\n{err}"
        );
        Self(dir)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("text").to_owned()
    }

    /// The variables that make a node use them, with admin HTTP as the tests' own helpers ask it.
    pub fn variables(&self, client_certificates: &str) -> Vec<(String, String)> {
        let mut variables = vec![
            ("TLS__CERTIFICATE", self.text("node.pem")),
            ("TLS__KEY", self.text("node.key")),
            ("TLS__CLIENT_CERTIFICATES", client_certificates.to_owned()),
            ("ADMIN__TLS", "false".to_owned()),
        ];
        if client_certificates != "none" {
            variables.push(("TLS__CLIENT_CA", self.text("ca.pem")));
        }
        variables.into_iter().map(|(key, value)| (format!("TAILWATER_{key}"), value)).collect()
    }

    /// What curl and the like have for `https`.
    fn agent(&self, shown: Option<&str>) -> ureq::Agent {
        tailwater_tls::use_everywhere();
        let items = |name: &str| -> (Vec<Certificate<'static>>, Option<PrivateKey<'static>>) {
            let (mut certificates, mut key) = (Vec::new(), None);
            for item in parse_pem(&std::fs::read(self.path(name)).expect("there")) {
                match item.expect("PEM") {
                    PemItem::Certificate(certificate) => certificates.push(certificate),
                    PemItem::PrivateKey(found) => key = Some(found),
                    _ => {}
                }
            }
            (certificates, key)
        };
        let shown = shown.map(|name| {
            let (chain, key) = items(name);
            ClientCert::new_with_certs(&chain, key.expect("a key"))
        });
        let roots = RootCerts::new_with_certs(&items("ca.pem").0);
        let tls = TlsConfig::builder().root_certs(roots).client_cert(shown).build();
        let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).tls_config(tls);
        config.build().into()
    }
}

pub fn node(files: &Files, client_certificates: &str, more: &[(&str, &str)]) -> Node {
    let variables = files.variables(client_certificates);
    let variables = variables.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let variables: Vec<(&str, &str)> = variables.chain(more.iter().copied()).collect();
    Node::start_with(&files.path("node-data"), &[], &variables)
}

/// kcat's options for TLS, with the CA in one file and a certificate with its key in another.
fn ssl(ca: &Path, shown: Option<&Path>) -> Vec<String> {
    let mut options = vec!["security.protocol=SSL".to_owned(), format!("ssl.ca.location={}", ca.display())];
    if let Some(shown) = shown {
        options.push(format!("ssl.certificate.location={}", shown.display()));
        options.push(format!("ssl.key.location={}", shown.display()));
    }
    options.into_iter().flat_map(|option| ["-X".to_owned(), option]).collect()
}

fn kcat_at(broker: &str, options: &[String], args: &[&str], input: &str) -> (bool, String, String) {
    let mut command = Command::new("kcat");
    command.args(["-b", broker, "-m", "60", "-X", "broker.address.family=v4"]).args(options).args(args);
    told(&mut command, input)
}

/// A kcat that is not let in, for which the node's log says `named`.
fn is_refused(node: &Node, broker: &str, options: &[String], named: &[&str]) {
    let mut command = Command::new("kcat");
    command.args(["-b", broker, "-m", "300", "-X", "broker.address.family=v4", "-L"]).args(options);
    // It tries again and again, for as long as it is told to.
    let mut kcat = Process::start(&mut command, &node.dir.with_extension("kcat.log"));
    wait_for_line(node, named);
    assert!(kcat.is_running() || !kcat.ended().success(), "it was let in");
}

/// Gives a node the certificate of another CA, each file as a whole, and waits until it has it.
pub fn replace_certificate(files: &Files, new: &Files, node: &Node) {
    for name in ["node.pem", "node.key"] {
        let beside = files.path("new");
        std::fs::copy(new.path(name), &beside).expect("copied");
        std::fs::rename(beside, files.path(name)).expect("renamed");
    }
    node.process.signal(Signal::HUP);
    wait_for_line(node, &["new certificates are used from now on"]);
}

pub fn wait_for_line(node: &Node, named: &[&str]) {
    wait_for(&format!("a line with {named:?}"), || {
        let log = node.process.log();
        log.lines().any(|line| named.iter().all(|named| line.contains(named))).then_some(())
    });
}

#[test]
fn kcat_writes_and_reads_over_tls_beside_a_plain_listener_and_whoever_is_not_let_in_is_told_apart() {
    need("kcat");
    let files = Files::make();
    let plain = format!("127.0.0.1:{}", free_port());
    let listeners = format!("[{{listen=\"{plain}\", tls=false}}]");
    let node = node(&files, "required", &[("TAILWATER_KAFKA__LISTENERS", &listeners)]);
    let (ca, orders) = (files.path("ca.pem"), files.path("orders.pem"));
    let shown = ssl(&ca, Some(&orders));
    let lines: String = (0..5_000).map(|number| format!("line {number} {}\n", "x".repeat(200))).collect();
    let (ok, _, err) = kcat_at(&node.kafka, &shown, &["-P", "-t", "s"], &lines);
    assert!(ok, "{err}");
    for (broker, options) in [(&node.kafka, &shown[..]), (&plain, &[])] {
        let (ok, out, err) = kcat_at(broker, options, &["-C", "-t", "s", "-e", "-q"], "");
        assert!(ok && out == lines, "{err}");
    }
    // Groups find their coordinator at the same listener.
    let grouped = ["-G", "g", "-X", "auto.offset.reset=earliest", "-c", "1", "-q", "s"];
    let (ok, out, err) = kcat_at(&node.kafka, &shown, &grouped, "");
    assert!(ok && out == lines.lines().next().expect("one").to_owned() + "\n", "{err}");
    // And those that may not come in are told apart.
    is_refused(&node, &node.kafka, &ssl(&ca, None), &["Kafka", "shows no certificate"]);
    let other = Files::make();
    let knows_another = ssl(&other.path("ca.pem"), Some(&orders));
    is_refused(&node, &node.kafka, &knows_another, &["does not take this node's certificate"]);
    is_refused(&node, &node.kafka, &[], &["Kafka's protocol without TLS", "takes TLS only"]);
    is_refused(&node, &plain, &shown, &["the client speaks TLS", "set `tls = true`"]);
    assert!(node.metric("tailwater_tls_handshakes_failed_total").expect("a metric") >= 3.0);
}

#[test]
fn java_writes_and_reads_over_tls_with_certificates_in_pem_as_they_are_made() {
    let files = Files::make();
    let node = node(&files, "required", &[]);
    let properties = files.path("client.properties");
    let text = format!(
        "security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={}\nssl.keystore.type=PEM\n\
         ssl.keystore.location={}\n",
        files.text("ca.pem"),
        files.text("orders.pem")
    );
    std::fs::write(&properties, text).expect("written");
    let mut java = program("Clients.java");
    let (ok, out, err) = told(java.args([&node.kafka, "records"]).arg(&properties), "");
    assert!(ok, "{out}\n{err}");
    // What kind of listener it is, is told as brokers of Kafka tell it.
    let (ok, _, err) = told(program("Clients.java").args([&node.kafka, "ssl"]).arg(&properties), "");
    assert!(ok, "{err}");
}

#[test]
fn a_consumer_goes_on_over_the_certificate_s_replacement_and_whoever_comes_then_sees_the_new_one() {
    need("kcat");
    let files = Files::make();
    let node = node(&files, "none", &[]);
    let old_ca = files.path("old-ca.pem");
    std::fs::copy(files.path("ca.pem"), &old_ca).expect("copied");
    let old = ssl(&old_ca, None);
    let (ok, _, err) = kcat_at(&node.kafka, &old, &["-P", "-t", "s"], "first\n");
    assert!(ok, "{err}");
    let mut command = Command::new("kcat");
    command.args(["-b", &node.kafka, "-C", "-t", "s", "-u", "-q"]).args(&old);
    let follower = crate::support::Follower::of(&mut command);
    assert_eq!(follower.next(), "first");
    let new = Files::make();
    replace_certificate(&files, &new, &node);
    let (ok, _, err) = kcat_at(&node.kafka, &ssl(&new.path("ca.pem"), None), &["-P", "-t", "s"], "second\n");
    assert!(ok, "{err}");
    assert_eq!(follower.next(), "second", "over the connection from before");
    is_refused(&node, &node.kafka, &old, &["does not take this node's certificate"]);
    assert_eq!(node.metric("tailwater_tls_reloads_total"), Some(1.0));
}

#[test]
fn sqs_s_clients_are_answered_over_https_and_told_of_queues_there() {
    let files = Files::make();
    let node = node(&files, "optional", &[]);
    let base = format!("https://{}", node.sqs);
    let ask = |agent: ureq::Agent, action: &str, body: serde_json::Value| -> serde_json::Value {
        let request = agent.post(&base).header("x-amz-target", format!("AmazonSQS.{action}"));
        let mut answer = request.send_json(body).expect("it answers");
        answer.body_mut().read_json().expect("JSON")
    };
    let made = ask(files.agent(None), "CreateQueue", serde_json::json!({ "QueueName": "q" }));
    let url = made["QueueUrl"].as_str().expect("an address").to_owned();
    assert!(url.starts_with(&base), "{url}");
    let body = "x".repeat(200_000);
    ask(files.agent(None), "SendMessage", serde_json::json!({ "QueueUrl": url, "MessageBody": body }));
    let known = files.agent(Some("orders.pem"));
    let received = ask(known, "ReceiveMessage", serde_json::json!({ "QueueUrl": url }));
    assert!(received["Messages"][0]["Body"] == body, "{} bytes", received.to_string().len());
    let plain: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().into();
    let mut answer = plain.get(format!("http://{}/health", node.sqs)).call().expect("it answers");
    assert_eq!(answer.status(), 400);
    assert!(answer.body_mut().read_to_string().expect("text").contains("use https"));
}

#[test]
fn events_are_published_and_heard_over_https_as_they_come() {
    let files = Files::make();
    let node = node(&files, "none", &[]);
    let view: serde_json::Value =
        serde_json::from_str(&node.get("/v1/node").expect("it answers")).expect("JSON");
    let base = format!("https://{}", view["broadcast"]["http"].as_str().expect("an address"));
    let answer = files
        .agent(None)
        .get(format!("{base}/v1/events?stream=local/s&from=start"))
        .call()
        .expect("it answers");
    assert_eq!(answer.status(), 200);
    let mut events = BufReader::new(answer.into_body().into_reader());
    let mut next = |named: &str| loop {
        let mut line = String::new();
        assert_ne!(events.read_line(&mut line).expect("it is open"), 0, "the stream ended");
        if line.contains(named) {
            break;
        }
    };
    next("begin");
    for number in 0..20 {
        let mut request = files.agent(None).post(format!("{base}/v1/streams/local/s/events"));
        request = request.header("content-type", "text/plain");
        assert!(request.send(format!("event-{number}")).expect("it answers").status().is_success());
        next(&format!("event-{number}"));
    }
}

/// A node with the configuration of `init`, whose admin HTTP is in TLS as well, asked by commands with the same file.
#[test]
fn a_node_of_init_s_own_configuration_is_reached_by_commands_with_it_and_by_nobody_without() {
    let files = Files::make();
    let config = files.text("tailwater.toml");
    let admin = format!("127.0.0.1:{}", free_port());
    let log = files.path("node.log");
    // As `serve --config` alone, but for ports that others may have.
    let mut command = serve(&files.path("data"));
    command.args(["--config", &config, "--admin", &admin]);
    let mut process = Process::start(&mut command, &log);
    let server = format!("https://{admin}");
    let run = |args: &[&str]| told(tailwater().args(["--server", &server]).args(args), "");
    let with = |args: &[&str]| run(&[&["--config", &config], args].concat());
    wait_for("the node to answer", || {
        assert!(process.is_running(), "it ended:\n{}", process.log());
        with(&["stream", "ls"]).0.then_some(())
    });
    let (ok, _, err) = with(&["stream", "create", "s"]);
    assert!(ok, "{err}");
    let ca = files.text("ca.pem");
    let (ok, _, err) = run(&["--ca", &ca, "stream", "ls"]);
    assert!(!ok && err.contains("no node's admin HTTP answers"), "it shows no certificate: {err}");
    let (ok, _, err) = run(&["stream", "ls"]);
    assert!(!ok && err.contains("--ca or TAILWATER_CA"), "{err}");
    let (ok, _, err) = told(tailwater().args(["--server", &admin, "stream", "ls"]), "");
    assert!(!ok && err.contains("use https"), "{err}");
    let (ok, _, err) =
        told(tailwater().args(["--server", &admin, "--ca", &ca, "--certificate", &ca, "stream", "ls"]), "");
    assert!(!ok && err.contains("has no key"), "{err}");
    let is_tls = |name: &str| name.starts_with("tailwater_tls_");
    let metrics = || {
        let mut answer =
            files.agent(Some("admin.pem")).get(format!("{server}/metrics")).call().expect("it answers");
        answer.body_mut().read_to_string().expect("text")
    };
    let page = metrics();
    let names = page.lines().filter_map(|line| line.split([' ', '{']).next().filter(|name| is_tls(name)));
    let documented = crate::metrics::documented().into_iter().filter(|name| is_tls(name));
    assert_eq!(names.map(str::to_owned).collect::<BTreeSet<_>>(), documented.collect());
    let left = page.lines().find_map(|line| line.strip_prefix("tailwater_tls_certificate_left_seconds "));
    let days = left.expect("a metric").parse::<f64>().expect("a number") / 86_400.0;
    assert!((820.0..826.0).contains(&days), "{days}");
    assert!(process.stop());
}

#[test]
fn init_makes_keys_for_their_owner_only_and_changes_nothing_that_is_there() {
    use std::os::unix::fs::PermissionsExt;

    let files = Files::make();
    let mode = |name: &str| files.path(name).metadata().expect("there").permissions().mode() & 0o777;
    for secret in ["ca.key", "node.key", "admin.pem", "orders.pem"] {
        assert_eq!(mode(secret), 0o600, "{secret}");
    }
    let contents = || -> Vec<String> {
        let names = ["ca.pem", "ca.key", "node.pem", "node.key", "admin.pem", "orders.pem", "tailwater.toml"];
        names.map(|name| std::fs::read_to_string(files.path(name)).expect("there")).to_vec()
    };
    let before = contents();
    let init =
        |args: &[&str]| told(tailwater().args(["init", "--tls", "--dir"]).arg(files.0.path()).args(args), "");
    for args in [&[][..], &["--client", "orders"]] {
        let (ok, _, err) = init(args);
        assert!(!ok && err.contains("is there already, and nothing was made"), "{err}");
    }
    let (ok, out, err) = init(&["--client", "invoices"]);
    assert!(ok && out.lines().count() == 1 && out.contains("invoices.pem"), "{out}\n{err}");
    assert!(contents() == before, "nothing was changed");
    // What is printed of a configuration has no key in it.
    let (ok, printed, _) =
        told(tailwater().args(["serve", "--print-config", "--config"]).arg(files.path("tailwater.toml")), "");
    assert!(ok && printed.contains("node.key") && !printed.contains("PRIVATE KEY"), "{printed}");
}

#[test]
fn doctor_says_how_long_the_certificate_of_a_configuration_is_good_and_what_is_wrong_with_it() {
    let files = Files::make();
    let doctor = || {
        let mut command = tailwater();
        command.args(["doctor", "--output", "json", "--data"]).arg(files.0.path());
        let (_, out, _) = told(command.arg("--config").arg(files.path("tailwater.toml")), "");
        let checks: Vec<serde_json::Value> = serde_json::from_str(&out).expect("JSON");
        checks.into_iter().find(|check| check["name"] == "certificate").expect("it is looked at")
    };
    let good = doctor();
    assert_eq!(good["verdict"], "ok", "{good}");
    assert!(good["found"].as_str().expect("text").contains("good for 824 days"), "{good}");
    std::fs::write(files.path("node.key"), "nothing").expect("written");
    let bad = doctor();
    assert_eq!(bad["verdict"], "fail", "{bad}");
    assert!(bad["found"].as_str().expect("text").contains("node.key"), "{bad}");
}

#[test]
fn a_health_check_that_only_connects_and_garbage_leave_a_listener_in_tls_as_it_was() {
    need("kcat");
    let files = Files::make();
    let node = node(&files, "none", &[]);
    for sent in [&b""[..], &[22, 3, 1], &[22, 3, 1, 0, 4, 9, 9, 9, 9], &[0xff; 4_000]] {
        let mut stream = std::net::TcpStream::connect(&node.kafka).expect("it listens");
        stream.write_all(sent).expect("sent");
        if sent.len() > 3 {
            // Closed, perhaps with an alert before.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
    let options = ssl(&files.path("ca.pem"), None);
    let (ok, _, err) = kcat_at(&node.kafka, &options, &["-P", "-t", "s"], "yes\n");
    assert!(ok, "{err}");
}

#[test]
fn a_client_of_tls_1_2_that_asks_for_another_handshake_gets_none_and_others_are_answered() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    assert!(Command::new(root.join(".ci/need")).arg("openssl").status().expect("it runs").success());
    need("kcat");
    let files = Files::make();
    let node = node(&files, "none", &[("TAILWATER_TLS__MIN_VERSION", "1.2")]);
    let mut client = Command::new("openssl");
    client.args(["s_client", "-tls1_2", "-connect", &node.kafka, "-CAfile"]).arg(files.path("ca.pem"));
    client.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut client = client.spawn().expect("it runs");
    // It asks at a line of its own.
    client.stdin.as_mut().expect("piped").write_all(b"R\n").expect("written");
    let mut told = BufReader::new(client.stderr.take().expect("piped")).lines();
    let before: Vec<_> =
        told.by_ref().map(|line| line.expect("text")).take_while(|line| line != "RENEGOTIATING").collect();
    assert!(before.iter().any(|line| line.starts_with("verify return:1")), "{before:?}");
    let options = ssl(&files.path("ca.pem"), None);
    let (ok, _, err) = kcat_at(&node.kafka, &options, &["-P", "-t", "s"], "yes\n");
    assert!(ok, "{err}");
    client.kill().expect("killed");
    client.wait().expect("it ended");
    let after: Vec<_> = told.map(|line| line.expect("text")).collect();
    assert!(!after.iter().any(|line| line.starts_with("verify return")), "another handshake: {after:?}");
}

/// Notes who asks for what.
#[derive(Default)]
struct Noting(Mutex<Vec<(String, String)>>);

impl Authorizer for Noting {
    fn authorize(&self, peer: &Peer, request: AccessRequest<'_>) -> Result<(), Denied> {
        if let Resource::Path(path) = request.resource {
            self.0.lock().expect("no panic").push((path.to_owned(), peer.principal.to_string()));
        }
        Ok(())
    }
}

#[test]
fn who_asks_is_known_to_the_authorizer_by_its_certificate_or_not_at_all() {
    let files = Files::make();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut config = Config { data: files.path("data"), ..Config::default() };
    config.tls.certificate = Some(files.path("node.pem"));
    config.tls.key = Some(files.path("node.key"));
    config.tls.client_ca = Some(files.path("ca.pem"));
    config.tls.client_certificates = ClientCertificates::Optional;
    (config.log.cells, config.kafka.enabled) = (false, false);
    (config.sqs.enabled, config.broadcast.enabled) = (false, false);
    config.journal.file_bytes = 16 << 20;
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    (config.listen.data, config.listen.admin) = (any, any);
    let noting = Arc::new(Noting::default());
    let authorizer: Arc<dyn Authorizer> = noting.clone();
    let node = runtime.block_on(tailwater_node::Node::start_with(config, authorizer)).expect("it starts");
    for (shown, path) in [(Some("orders.pem"), "/readyz"), (None, "/livez"), (Some("admin.pem"), "/healthz")]
    {
        let answer = files.agent(shown).get(format!("https://{}{path}", node.admin_addr())).call();
        assert_eq!(answer.expect("it answers").status(), 200);
    }
    runtime.block_on(node.stop()).expect("stopped");
    let noted = noting.0.lock().expect("no panic").clone();
    let noted: Vec<(&str, &str)> = noted.iter().map(|(path, who)| (path.as_str(), who.as_str())).collect();
    assert_eq!(noted, [("/readyz", "CN=orders"), ("/livez", "anonymous"), ("/healthz", "CN=admin")]);
}

#[test]
fn whoever_shows_a_certificate_has_the_rights_of_the_user_whom_its_subject_stands_for_and_of_no_other() {
    need("kcat");
    let files = Files::make();
    let mapped = r#"[{subject="CN=ord*", user="team-*"}, {subject="CN=*", user="guest"}]"#;
    let variables = [
        ("TAILWATER_ACCESS__RULES", "report"),
        ("TAILWATER_ACCESS__SUPER_USERS", r#"["CN=nobody"]"#),
        ("TAILWATER_ACCESS__CERTIFICATES", mapped),
    ];
    let mut node = node(&files, "required", &variables);
    for (user, stream) in [("team-ers", "news"), ("guest", "lobby"), ("ers", "other"), ("CN=orders", "own")] {
        node.run(&["stream", "create", stream]);
        node.run(&["acl", "add", "--user", user, "--allow", "write", "--topic", stream]);
    }
    node.run(&["acl", "add", "--user", "anonymous", "--allow", "describe", "--node"]);
    assert!(node.process.stop());
    node.restart_with(&[("TAILWATER_ACCESS__RULES", "enforce")]);
    let written = |certificate: &str| {
        let ca = files.path("ca.pem");
        let options = ssl(&ca, Some(&files.path(certificate)));
        let all = ["news", "lobby", "other", "own"].into_iter();
        let may = all.filter(|stream| kcat_at(&node.kafka, &options, &["-P", "-t", stream], "a line\n").0);
        may.collect::<Vec<_>>()
    };
    // The first that fits says who it is, and it is itself as well.
    assert_eq!(written("orders.pem"), ["news", "own"]);
    assert_eq!(written("admin.pem"), ["lobby"]);
    let audit = std::fs::read_to_string(node.dir.join("audit.jsonl")).expect("a file");
    let refused = audit.lines().any(|line| line.contains("\"refused\"") && line.contains("CN=orders"));
    assert!(refused, "the audit names the subject: {audit}");
}
