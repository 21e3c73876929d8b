//! Several listeners of Kafka's protocol on one node.

use std::process::Command;

use crate::support::kafka::need;
use crate::support::{Node, free_port, serve, tailwater, told};

fn kcat_at(broker: &str, args: &[&str], input: &str) -> String {
    let mut command = Command::new("kcat");
    command.args(["-b", broker, "-m", "60", "-X", "broker.address.family=v4"]).args(args);
    let (ok, out, err) = told(&mut command, input);
    assert!(ok, "kcat {args:?} failed:\n{err}");
    out
}

#[test]
fn kcat_is_told_the_address_of_the_listener_by_which_it_came_and_reads_there_what_was_written_elsewhere() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let [by_file, by_flag] = [free_port(), free_port()];
    let (outside, inside) = (format!("localhost:{by_file}"), format!("localhost:{by_flag}"));
    let listeners = format!("[{{listen=\"127.0.0.1:{by_file}\", advertised=\"{outside}\"}}]");
    let variable = [("TAILWATER_KAFKA__LISTENERS", listeners.as_str())];
    let flag = format!("127.0.0.1:{by_flag}={inside}");
    // The node's own flag is the first one; a second one stands instead of what the variable says.
    for (flags, variables, second) in
        [(vec![], &variable[..], &outside), (vec!["--kafka", flag.as_str()], &[], &inside)]
    {
        let node = Node::start_with(&dir.path().join(second.as_str()), &flags, variables);
        for (came_by, told) in [(&node.kafka, &node.kafka), (second, second)] {
            let listed = kcat_at(came_by, &["-L"], "");
            assert!(listed.contains(&format!(" broker 1 at {told} ")), "{listed}");
        }
        kcat_at(second, &["-P", "-t", "s"], "a line\n");
        assert_eq!(kcat_at(&node.kafka, &["-C", "-t", "s", "-e", "-q"], ""), "a line\n");
        // Groups have a coordinator, which is at the same address.
        let grouped = ["-G", "g", "-X", "auto.offset.reset=earliest", "-c", "1", "-q", "s"];
        assert_eq!(kcat_at(second, &grouped, ""), "a line\n");
    }
}

#[test]
fn listeners_of_flags_are_printed_as_a_file_has_them_and_such_as_can_not_be_are_refused_with_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let shown = |args: &[&str]| told(tailwater().arg("serve").args(args), "");
    let three = ["--kafka", "127.0.0.1:1=a:11", "--kafka", "127.0.0.1:2", "--kafka", "0.0.0.0:3=c:13"];
    let (ok, _, error) = shown(&[&three[..], &["--print-config"]].concat());
    assert!(!ok && error.contains("[[kafka.listeners]] listen = \"0.0.0.0:3\""), "{error}");
    let (ok, printed, _) = shown(&[&three[..], &["--insecure", "--print-config"]].concat());
    assert!(ok);
    let config: toml::Table = toml::from_str(&printed).expect("TOML");
    let kafka = &config["kafka"];
    assert_eq!((kafka["listen"].as_str(), kafka["advertised"].as_str()), (Some("127.0.0.1:1"), Some("a:11")));
    let further = kafka["listeners"].as_array().expect("a list");
    let further: Vec<_> = further
        .iter()
        .map(|listener| (listener["listen"].as_str().unwrap(), listener["advertised"].as_str().unwrap()))
        .collect();
    assert_eq!(further, [("127.0.0.1:2", ""), ("0.0.0.0:3", "c:13")]);
    let file = dir.path().join("printed.toml");
    std::fs::write(&file, &printed).expect("written");
    let file = file.to_str().expect("text");
    let (_, again, _) = shown(&["--config", file, "--print-config"]);
    assert_eq!(again, printed);
    // One flag is the first listener, and what it does not say is not changed.
    let (_, changed, _) = shown(&["--config", file, "--kafka", "127.0.0.1:4", "--print-config"]);
    assert_eq!(changed, printed.replace("127.0.0.1:1\"", "127.0.0.1:4\""));

    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("bound").to_string();
    for (first, second, why) in [
        ("127.0.0.1:1", "0.0.0.0:2", "set its `advertised`"),
        ("127.0.0.1:1", "0.0.0.0:1=a:1", "an address or a port of its own"),
        ("127.0.0.1:1", "127.0.0.1:2=0.0.0.0:2", "nothing that clients can connect to"),
        ("127.0.0.1:1", "127.0.0.1:2=a", "no host:port"),
        ("127.0.0.1:1", "a:2=a:2", "0.0.0.0:9092=kafka.example:9092"),
        ("127.0.0.1:0", taken.as_str(), "choose another address for it in [[kafka.listeners]]"),
    ] {
        let mut second_listener = serve(&dir.path().join("data"));
        let (ok, _, error) = told(second_listener.args(["--kafka", first, "--kafka", second]), "");
        assert!(!ok && error.contains(why), "{second}: {error}");
    }
}
