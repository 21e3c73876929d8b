//! Rules about who may do what, as real clients meet them.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::kafka::{need, program};
use crate::support::{Follower, Node, free_port, told, wait_for};

const REPORT: (&str, &str) = ("TAILWATER_ACCESS__RULES", "report");
const ENFORCE: (&str, &str) = ("TAILWATER_ACCESS__RULES", "enforce");

/// A node whose users are `ops`, who may do everything, and `orders`; it goes by rules as `rules` says. Commands are
/// users without a login, who may look at the node.
fn node(dir: &tempfile::TempDir, rules: (&str, &str)) -> Node {
    let variables = [
        ("TAILWATER_KAFKA__LOGIN", "true"),
        ("TAILWATER_ACCESS__SUPER_USERS", "[\"ops\"]"),
        ("TAILWATER_ACCESS__AUDIT_STREAM", "audit"),
        REPORT,
    ];
    let mut node = Node::start_with(&dir.path().join("data"), &[], &variables);
    for user in ["ops", "orders"] {
        let added = node.output(&["user", "add", user], b"correct horse\n");
        assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    }
    node.run(&["acl", "add", "--user", "anonymous", "--allow", "describe", "--node"]);
    for stream in ["news", "other"] {
        node.run(&["stream", "create", stream]);
    }
    if rules != REPORT {
        assert!(node.process.stop());
        node.restart_with(&[rules]);
    }
    node
}

fn kcat_as(node: &Node, user: &str, args: &[&str], input: &str) -> (bool, String, String) {
    kcat_with(node, user, "correct horse", args, input)
}

fn kcat_with(node: &Node, user: &str, password: &str, args: &[&str], input: &str) -> (bool, String, String) {
    let mut command = Command::new("kcat");
    command.args(["-b", &node.kafka, "-m", "60", "-X", "broker.address.family=v4"]);
    command.args(["-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=SCRAM-SHA-256"]);
    command.args(["-X", &format!("sasl.username={user}"), "-X", &format!("sasl.password={password}")]);
    // What is refused is told once, and not tried again until a message's time is over.
    command.args(["-X", "message.timeout.ms=60000"]);
    told(command.args(args), input)
}

fn java_as_ops(node: &Node, dir: &tempfile::TempDir, scenario: &str) {
    let properties = dir.path().join("ops.properties");
    let text = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config=\
                org.apache.kafka.common.security.scram.ScramLoginModule required username=\"ops\" \
                password=\"correct horse\";\n";
    std::fs::write(&properties, text).expect("written");
    let (ok, out, err) = told(program("Clients.java").args([&node.kafka, scenario]).arg(&properties), "");
    assert!(ok, "{out}\n{err}");
}

#[test]
fn what_would_be_refused_is_done_and_told_until_rules_are_enforced_and_then_only_what_is_allowed_is() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = node(&dir, REPORT);
    // Reported only.
    let (ok, _, err) = kcat_as(&node, "orders", &["-P", "-t", "news"], "one\n");
    assert!(ok, "{err}");
    let audit = wait_for("an event", || {
        let audit = node.run(&["audit", "tail", "-n", "100"]);
        audit.contains("would_refuse orders write stream news").then_some(audit)
    });
    assert!(audit.contains("(kafka Produce)"), "{audit}");
    let following = Follower::of(&mut node.command(&["audit", "tail", "--follow", "-n", "0"]));
    assert!(following.next().contains("would_refuse"), "what comes is shown");
    drop(following);
    assert!(node.metric("tailwater_access_refused_total").expect("a metric") >= 1.0);
    node.run(&["acl", "add", "--user", "orders", "--allow", "write,read", "--topic", "ne*", "--group", "g"]);
    wait_for("a line of the file", || {
        let written = std::fs::read_to_string(dir.path().join("data/audit.jsonl")).expect("a file");
        let is_it = |line: &str| line.contains("\"would_refuse\"") && line.contains("\"news\"");
        written.lines().any(is_it).then_some(())
    });
    let (ok, ..) = kcat_with(&node, "orders", "wrong horse", &["-P", "-t", "news", "-m", "5"], "one\n");
    assert!(!ok, "a wrong password");
    // The stream is made after the node began, and has what was told before it was there.
    node.run(&["stream", "create", "audit", "--shards", "2"]);
    wait_for("the stream to tell of both", || {
        let events = node.consume("audit");
        let events: Vec<Value> =
            events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect();
        let is_there = |outcome: &str, operation: &str, name: &str| {
            events.iter().any(|event| {
                event["outcome"] == outcome && event["operation"] == operation && event["name"] == name
            })
        };
        (is_there("would_refuse", "write", "news") && is_there("refused", "login", "orders")).then_some(())
    });
    let audit = node.run(&["audit", "tail", "-n", "100"]);
    assert!(audit.contains("refused anonymous login user orders"), "{audit}");
    assert_eq!(node.metric("tailwater_access_audit_missed_total"), Some(0.0));

    assert!(node.process.stop());
    node.restart_with(&[ENFORCE]);
    // The rules are still there.
    let (ok, _, err) = kcat_as(&node, "orders", &["-P", "-t", "news"], "two\n");
    assert!(ok, "{err}");
    let (ok, out, err) = kcat_as(&node, "orders", &["-C", "-t", "news", "-e", "-q"], "");
    assert!(ok && out == "one\ntwo\n", "{out} {err}");
    let (_, out, err) = kcat_as(&node, "orders", &["-P", "-t", "other"], "three\n");
    assert!(err.contains("Topic authorization failed"), "{out} {err}");
    // Nothing is told that names what he may not know of.
    let (ok, out, err) = kcat_as(&node, "orders", &["-L"], "");
    assert!(ok && out.contains("\"news\"") && !out.contains("other"), "{out} {err}");
    assert_eq!(node.run(&["stream", "ls"]).lines().count(), 1, "a command sees no stream, only the head");
    let refused = node.run_failing(&["stream", "describe", "news"]);
    assert!(refused.contains("anonymous has no right to describe this stream"), "{refused}");
    let refused = node.run_failing(&["acl", "add", "--user", "*", "--allow", "all", "--topic", "*"]);
    assert!(refused.contains("anonymous has no right to alter this node"), "{refused}");
    let refused = node.run_failing(&["user", "rm", "ops"]);
    assert!(refused.contains("no right"), "{refused}");
    let (ok, ..) = kcat_as(&node, "ops", &["-P", "-t", "other"], "three\n");
    assert!(ok, "a super user may do everything");
}

#[test]
fn who_has_rights_goes_on_while_rules_go_from_off_to_report_to_enforce() {
    const EACH: usize = 500;
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = node(&dir, ("TAILWATER_ACCESS__RULES", "off"));
    node.run(&["acl", "add", "--user", "orders", "--allow", "write,read", "--topic", "news"]);
    let kcat = |node: &Node| {
        let mut command = Command::new("kcat");
        // It goes on where its one broker is away.
        command.args(["-b", &node.kafka, "-X", "broker.address.family=v4", "-q", "-E", "-t", "news"]);
        command.args(["-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=SCRAM-SHA-256"]);
        command.args(["-X", "sasl.username=orders", "-X", "sasl.password=correct horse"]);
        command
    };
    let mut write = kcat(&node);
    write.args(["-P", "-X", "enable.idempotence=true", "-X", "message.timeout.ms=120000"]);
    let mut writer = write.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut lines = writer.stdin.take().expect("piped");
    let reader = Follower::of(kcat(&node).args(["-C", "-o", "beginning", "-u"]));
    let mut numbers = 0..;
    let mut send = |lines: &mut std::process::ChildStdin| {
        for number in numbers.by_ref().take(EACH) {
            writeln!(lines, "{number}").expect("it reads");
        }
    };
    send(&mut lines);
    for (round, rules) in [REPORT, ENFORCE].into_iter().enumerate() {
        // What was sent last is on its way, and comes again.
        assert!(node.process.stop());
        send(&mut lines);
        node.restart_with(&[rules]);
        send(&mut lines);
        for number in 2 * EACH * round..2 * EACH * (round + 1) {
            assert_eq!(reader.next(), number.to_string(), "in order, once each");
        }
    }
    drop(lines);
    assert!(writer.wait().expect("its end").success(), "nothing was refused");
    for number in 4 * EACH..5 * EACH {
        assert_eq!(reader.next(), number.to_string());
    }
    let refused = node.run_failing(&["stream", "describe", "news"]);
    assert!(refused.contains("anonymous has no right to describe this stream"), "{refused}");
}

/// A command of a user who logs in.
fn as_user(node: &Node, user: &str, password: &str, args: &[&str]) -> (bool, String, String) {
    let mut command = node.command(args);
    told(command.env("TAILWATER_LOGIN", user).env("TAILWATER_LOGIN_PASSWORD", password), "")
}

#[test]
fn commands_and_broadcasts_over_http_are_of_the_user_whose_password_they_show() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir, ENFORCE);
    let ops = |args: &[&str]| as_user(&node, "ops", "correct horse", args);
    let (ok, out, err) = ops(&["stream", "ls"]);
    assert!(ok && out.contains("news") && out.contains("other"), "{out} {err}");
    let (ok, _, err) = ops(&["acl", "add", "--user", "orders", "--allow", "read", "--topic", "news"]);
    assert!(ok, "{err}");
    let (ok, out, err) = as_user(&node, "orders", "correct horse", &["stream", "ls"]);
    assert!(ok && out.contains("news") && !out.contains("other"), "{out} {err}");
    let (ok, _, err) = as_user(&node, "orders", "correct horse", &["stream", "delete", "news"]);
    assert!(!ok && err.contains("orders has no right to delete this stream"), "{err}");
    let (ok, _, err) = as_user(&node, "ops", "wrong horse", &["stream", "ls"]);
    assert!(!ok && err.contains("there is no such user, or its password is another one"), "{err}");
    let (ok, _, err) = as_user(&node, "nobody", "correct horse", &["stream", "ls"]);
    assert!(!ok && err.contains("there is no such user, or its password is another one"), "{err}");
    // Nobody locks himself out.
    let (ok, _, err) = ops(&["user", "rm", "ops"]);
    assert!(!ok && err.contains("last super user"), "{err}");
    let (ok, ..) = ops(&["user", "rm", "orders"]);
    assert!(ok);
    wait_for("the audit to tell of both", || {
        let told = ops(&["audit", "tail"]).1;
        (told.contains("allowed ops") && told.contains("refused orders delete stream news")).then_some(())
    });

    let file = dir.path().join("password");
    std::fs::write(&file, "correct horse\n").expect("written");
    let file = file.to_str().expect("text");
    let (ok, _, err) = told_of(node.command(&["--login", "ops", "--login-password-file", file, "acl", "ls"]));
    assert!(ok, "{err}");
    let (ok, _, err) = told_of(node.command(&["--login", "ops", "acl", "ls"]));
    assert!(!ok && err.contains("--login needs a password"), "{err}");
}

fn told_of(mut command: Command) -> (bool, String, String) {
    told(&mut command, "")
}

#[test]
fn kafka_s_admin_for_java_looks_at_rules_and_changes_them_and_they_hold_at_once() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir, ENFORCE);
    let (_, _, err) = kcat_as(&node, "orders", &["-P", "-t", "news"], "one\n");
    assert!(err.contains("Topic authorization failed"), "{err}");
    java_as_ops(&node, &dir, "acls");
    let (ok, _, err) = kcat_as(&node, "orders", &["-P", "-t", "news"], "two\n");
    assert!(ok, "{err}");
    let (_, out, err) = kcat_as(&node, "orders", &["-C", "-t", "news", "-e", "-q"], "");
    assert!(!out.contains("two"), "who may write may not read: {out} {err}");
}

#[test]
fn rules_are_enforced_only_where_somebody_can_change_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let admin = format!("127.0.0.1:{}", free_port());
    let mut command = crate::support::tailwater();
    command.args(["serve", "--data"]).arg(dir.path().join("data")).args(["--admin", &admin]);
    for (name, value) in [ENFORCE, ("TAILWATER_LISTEN__DATA", "127.0.0.1:0")] {
        command.env(name, value);
    }
    for listener in ["KAFKA", "SQS", "BROADCAST"] {
        command.env(format!("TAILWATER_{listener}__ENABLED"), "false");
    }
    let (ok, _, err) = told(&mut command, "");
    assert!(!ok && err.contains("no super user can log in"), "{err}");
}

#[test]
fn kafka_s_admin_for_java_looks_at_users_and_changes_their_passwords() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir, ENFORCE);
    let ops = |args: &[&str]| as_user(&node, "ops", "correct horse", args);
    let (ok, _, err) = ops(&["acl", "add", "--user", "orders", "--allow", "write", "--topic", "news"]);
    assert!(ok, "{err}");
    java_as_ops(&node, &dir, "passwords");
    let write = ["-P", "-t", "news"];
    let (ok, _, err) = kcat_with(&node, "orders", "battery staple", &write, "one\n");
    assert!(ok, "{err}");
    let write = [&write[..], &["-m", "2"]].concat();
    let (ok, ..) = kcat_with(&node, "orders", "correct horse", &write, "two\n");
    assert!(!ok, "that was its password");
}

/// A command that shows a token.
fn with_token(node: &Node, token: &str, args: &[&str]) -> (bool, String, String) {
    told(node.command(args).env("TAILWATER_LOGIN_TOKEN", token), "")
}

#[test]
fn a_token_may_do_what_it_was_created_for_until_it_is_removed_or_has_expired() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir, ENFORCE);
    let ops = |args: &[&str]| as_user(&node, "ops", "correct horse", args);
    let create = ["token", "create", "ci", "--allow", "read,delete", "--topic", "ne*", "--expires", "30d"];
    let (ok, token, err) = ops(&create);
    assert!(ok && token.starts_with("tw.ci."), "{token} {err}");
    let token = token.trim();
    let (ok, out, err) = with_token(&node, token, &["stream", "ls"]);
    assert!(ok && out.contains("news") && !out.contains("other"), "{out} {err}");
    let (ok, _, err) = with_token(&node, token, &["stream", "delete", "other"]);
    assert!(!ok && err.contains("token:ci has no right to delete this stream"), "{err}");
    let (ok, out, _) = ops(&["token", "ls"]);
    assert!(ok && out.contains("ci") && !out.contains(token), "{out}");
    let (ok, _, err) = ops(&create);
    assert!(!ok && err.contains("there is a token"), "{err}");
    assert!(ops(&["acl", "ls", "--user", "token:ci"]).1.contains("delete"));
    assert!(ops(&["token", "rm", "ci"]).0);
    let (ok, _, err) = with_token(&node, token, &["stream", "ls"]);
    assert!(!ok && err.contains("no such token, or it has expired"), "{err}");
    assert!(!ops(&["acl", "ls", "--user", "token:ci"]).1.contains("delete"), "its rights went with it");
    let (ok, _, err) = ops(&["token", "rm", "ci"]);
    assert!(!ok && err.contains("no token"), "{err}");
    let (ok, short, err) =
        ops(&["token", "create", "short", "--allow", "read", "--topic", "news", "--expires", "1s"]);
    assert!(ok, "{err}");
    wait_for("its end", || (!ops(&["token", "ls"]).1.contains("short")).then_some(()));
    assert!(!with_token(&node, short.trim(), &["stream", "ls"]).0);
    let (ok, _, err) =
        ops(&["token", "create", "ci", "--allow", "read", "--topic", "news", "--expires", "1 day"]);
    assert!(!ok && err.contains("as in 90s, 30m, 12h, 30d"), "{err}");
}
