//! Broadcasts between replicas, regions, publishers and listeners in TLS.

use crate::support::{Follower, Node, free_port, told, wait_for};
use crate::tls::{Files, wait_for_line};
use crate::tls_data::{by, command, done};

/// A node of `region` at `address`, with the files of a CA, and more variables.
fn replica(files: &Files, name: &str, (region, address): (&str, &str), more: &[(&str, &str)]) -> Node {
    let variables = files.variables("required");
    let variables = variables.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let region = [("TAILWATER_BROADCAST__REGION", region)];
    let variables: Vec<(&str, &str)> = variables.chain(region).chain(more.iter().copied()).collect();
    Node::start_at(&files.path(name), address, &[], &variables)
}

fn regions(files: &Files) -> [Node; 3] {
    let [us, eu, eu_tail] = std::array::from_fn(|_| format!("127.0.0.1:{}", free_port()));
    let eu_of_us = format!("{{eu=[\"{eu}\"]}}");
    let us_of_eu = format!("{{us=[\"{us}\"]}}");
    let bridge = "[{from=\"log:orders\", to=\"broadcast:eu/orders\"}]";
    let regions_of_us = [("TAILWATER_BROADCAST__REGIONS", &*eu_of_us), ("TAILWATER_BRIDGE", bridge)];
    let regions_of_eu = ("TAILWATER_BROADCAST__REGIONS", &*us_of_eu);
    let decided = ("TAILWATER_BROADCAST__CONFIGURATION", &*eu);
    let nodes = [
        replica(files, "us", ("us", &us), &regions_of_us),
        replica(files, "eu", ("eu", &eu), &[regions_of_eu]),
        replica(files, "eu-tail", ("eu", &eu_tail), &[regions_of_eu, decided]),
    ];
    wait_for("the chain of region eu", || {
        let view = nodes[2].get("/v1/broadcast")?;
        view.contains("\"role\":\"tail\"").then_some(())
    });
    nodes
}

#[test]
fn events_go_through_chains_and_regions_and_bridges_to_listeners_of_all_kinds_in_tls() {
    let files = Files::make();
    let [us, _eu, eu_tail] = regions(&files);
    let listen = |more: &[&str]| {
        let listen = ["broadcast", "listen", "us/prices", "eu/orders", "--format", "%S %v\\n"];
        Follower::of(&mut command(&eu_tail, &files, &[&listen[..], more].concat()))
    };
    let listeners = [listen(&[]), listen(&["--share"])];
    let lines: String = (0..500).map(|number| format!("{number} {}\n", "x".repeat(300))).collect();
    done(&mut command(&us, &files, &["broadcast", "publish", "prices"]), &lines);
    for listener in &listeners {
        for line in lines.lines() {
            assert_eq!(listener.next(), format!("us/prices {line}"));
        }
    }
    // A bridge's events are numbered in the other region.
    done(&mut command(&us, &files, &["stream", "create", "orders"]), "");
    done(&mut command(&us, &files, &["produce", "orders"]), "tea\n");
    for listener in &listeners {
        assert_eq!(listener.next(), "eu/orders tea");
    }
}

#[test]
fn a_listener_that_speaks_no_tls_or_trusts_nobody_is_told_so() {
    let files = Files::make();
    let address = format!("127.0.0.1:{}", free_port());
    let node = replica(&files, "us", ("us", &address), &[]);
    let (ok, _, err) = told(&mut by(&node, &["broadcast", "listen", "prices"]), "");
    assert!(!ok && err.contains("--ca or TAILWATER_CA"), "{err}");
    let other = Files::make();
    let ca = other.text("ca.pem");
    let (ok, _, err) = told(&mut by(&node, &["--ca", &ca, "broadcast", "listen", "prices"]), "");
    assert!(!ok && err.contains("is of none of the CAs that are trusted here"), "{err}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        use tailwater_client::broadcast::{Content, Publisher, Stream};
        let env = tailwater_env::Env::real();
        let publisher = Publisher::new(&env, vec![address.clone()]);
        let stream = Stream::parse("us/prices").expect("a name");
        let content = Content::default();
        let publishing = publisher.publish(&stream, &content, None);
        let told = async {
            tokio::task::spawn_blocking(move || {
                wait_for_line(&node, &["[broadcast] listen", "takes TLS only"]);
            })
            .await
        };
        tokio::select! {
            published = publishing => panic!("{published:?}"),
            told = told => told.expect("it was told"),
        }
    });
}
