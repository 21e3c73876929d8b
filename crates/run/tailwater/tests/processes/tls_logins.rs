//! Users and tokens on `[listen] data`: commands and the client library against a real node in TLS that wants a login,
//! and goes by rules.

use std::path::PathBuf;

use tailwater_client::{Client, ClientConfig, Dialer, DialerConfig, Error};
use tailwater_env::Env;
use tailwater_rma::{Address, ConnectError, connect_with};

use crate::support::{Node, told};
use crate::tls::{Files, node};
use crate::tls_data::{by, done};

/// The node, whose commands find no socket of it on this host, and a file with the password of all users: `orders`, who
/// has some rights, and `eve`, who may look at the node.
fn enforcing(files: &Files) -> (Node, String) {
    let wants = [
        ("TAILWATER_LISTEN__LOGIN", "true"),
        ("TAILWATER_KAFKA__LOGIN", "true"),
        ("TAILWATER_ACCESS__SUPER_USERS", "[\"ops\"]"),
    ];
    let mut node = node(files, "none", &wants);
    for user in ["ops", "orders", "eve"] {
        let added = node.output(&["user", "add", user], b"correct horse\n");
        assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
        node.run(&["acl", "add", "--user", user, "--allow", "describe", "--node"]);
    }
    // That the node has started is asked by nobody known.
    node.run(&["acl", "add", "--user", "anonymous", "--allow", "describe", "--node"]);
    node.run(&["stream", "create", "s"]);
    for more in [
        &["read,write", "--stream", "s"][..],
        &["read", "--group", "g"],
        &["read", "--cell", "data"],
        &["read", "--cell", "metadata"],
    ] {
        node.run(&[&["acl", "add", "--user", "orders", "--allow"], more].concat());
    }
    assert!(node.process.stop());
    node.restart_with(&[("TAILWATER_ACCESS__RULES", "enforce")]);
    for socket in ["node.sock", "data-cell.sock", "metadata-cell.sock"] {
        std::fs::remove_file(node.dir.join(socket)).expect("there");
    }
    let password = files.text("password");
    std::fs::write(&password, "correct horse\n").expect("written");
    (node, password)
}

/// What the CA of `files` lets know a node by.
fn trusting(env: &Env, files: &Files) -> Dialer {
    let trusted = DialerConfig { ca: Some(PathBuf::from(files.text("ca.pem"))), ..DialerConfig::default() };
    Dialer::open(env, &trusted).expect("a CA")
}

#[test]
fn records_are_produced_and_consumed_over_tls_by_password_and_by_token_and_by_nobody_who_does_not_log_in() {
    let files = Files::make();
    let (node, password) = enforcing(&files);
    let ca = files.text("ca.pem");
    let as_user = |user: &str, args: &[&str]| {
        let mut command = by(&node, &["--ca", &ca, "--login", user, "--login-password-file", &password]);
        command.args(args);
        command
    };
    done(&mut as_user("orders", &["produce", "s"]), "by SCRAM\n");
    for mechanism in ["plain", "scram-sha-512"] {
        let args = ["produce", "s", "--login-mechanism", mechanism];
        done(&mut as_user("orders", &args), &format!("by {mechanism}\n"));
    }
    let rights = ["--allow", "read,write", "--stream", "s"];
    let token = done(&mut as_user("ops", &[&["token", "create", "ci"], &rights[..]].concat()), "");
    let describe = ["acl", "add", "--user", "token:ci", "--allow", "describe", "--node"];
    done(&mut as_user("ops", &describe), "");
    let shown = files.text("token");
    std::fs::write(&shown, token).expect("written");
    let by_token = |args: &[&str]| {
        let mut command = by(&node, &["--ca", &ca, "--login-token-file", &shown]);
        command.args(args);
        command
    };
    done(&mut by_token(&["produce", "s"]), "by token\n");
    let all = "by SCRAM\nby plain\nby scram-sha-512\nby token\n";
    let consume = ["consume", "s", "--exit-at-end"];
    assert_eq!(done(&mut as_user("orders", &consume), ""), all);
    // It may read no cell: the node is asked for everything.
    assert_eq!(done(&mut by_token(&consume), ""), all);
    let grouped = [&consume[..], &["--group", "g"]].concat();
    assert_eq!(done(&mut as_user("orders", &grouped), ""), all);

    let (ok, out, err) = told(&mut as_user("eve", &consume), "");
    assert!(!ok && out.is_empty() && err.contains("eve has no right to"), "{out}{err}");
    std::fs::write(&password, "wrong horse\n").expect("written");
    let (ok, _, err) = told(&mut as_user("orders", &consume), "");
    assert!(!ok && err.contains("its password is another one"), "{err}");
    nobody_reads(&files, &node);
    assert!(!node.process.log().contains(" horse"), "no password is in the log");
}

/// Who does not log in is told of nothing, at the node and at a backend.
fn nobody_reads(files: &Files, node: &Node) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let env = Env::real();
        let dialer = trusting(&env, files);
        let config = ClientConfig { dialer: dialer.clone(), ..ClientConfig::default() };
        let refused = Client::connect_with(env.clone(), &format!("tls:{}", node.data), config).await;
        let refused = refused.err().expect("refused");
        assert!(
            matches!(&refused, Error::Login { reason, .. } if reason.contains("wants a login")),
            "{refused}"
        );
        // ops:correct horse
        let asked = ureq::get(format!("http://{}/v1/node", node.admin));
        let asked = asked.header("Authorization", "Basic b3BzOmNvcnJlY3QgaG9yc2U=").call();
        let view = asked.expect("let in").body_mut().read_to_string().expect("text");
        let view: serde_json::Value = serde_json::from_str(&view).expect("JSON");
        let cells = view["cells"].as_array().expect("cells").iter();
        let addresses = cells.flat_map(|cell| cell["backends"][0].as_array().expect("addresses").clone());
        let secured: Vec<Address> = addresses
            .filter_map(|address| address.as_str()?.parse().ok())
            .filter(|address| matches!(address, Address::Tls(_)))
            .collect();
        assert_eq!(secured.len(), 2, "{view}");
        for cell in secured {
            let refused = connect_with(&env, &cell, &dialer).await.err().expect("refused");
            assert!(matches!(&refused, ConnectError::Login { .. }), "{refused}");
        }
    });
}
