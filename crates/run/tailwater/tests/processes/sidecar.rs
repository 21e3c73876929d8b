//! A sidecar: a window that somebody starts, for consumers on a host where the node need not be.

use crate::support::{Node, Process, free_port, wait_for};
use crate::window::{ROUND, Reader, round};

/// A sidecar, and where it answers probes.
struct Sidecar {
    process: Process,
    http: String,
}

impl Sidecar {
    /// Starts one as on another host: it reads the cells over TCP.
    fn start(node: &Node, streams: &[&str]) -> Self {
        let http = format!("127.0.0.1:{}", free_port());
        let mut command = node.command(&["sidecar", "--transport", "tcp", "--http", &http]);
        command.args(streams.iter().flat_map(|stream| ["--stream", stream]));
        let process = Process::start(&mut command, &node.dir.with_extension(format!("sidecar-{http}")));
        Self { process, http }
    }

    /// What it answers at a path.
    fn get(&self, path: &str) -> Option<(u16, String)> {
        let ask = ureq::get(format!("http://{}{path}", self.http));
        let mut answer = ask.config().http_status_as_error(false).build().call().ok()?;
        let told = answer.body_mut().read_to_string().ok()?;
        Some((answer.status().as_u16(), told))
    }

    fn wait_until_ready(&mut self) {
        wait_for("the sidecar to be ready", || {
            assert!(self.process.is_running(), "it ended:\n{}", self.process.log());
            self.get("/readyz").filter(|(status, _)| *status == 200)
        });
    }

    fn metric(&self, name: &str) -> Option<f64> {
        let (_, page) = self.get("/metrics")?;
        page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }
}

const READERS: usize = 8;

/// Appends and reads until the sidecar has brought something to each reader.
fn wait_until_served(node: &Node, readers: &mut [Reader]) {
    let before: Vec<u64> = readers.iter().map(Reader::window_bytes).collect();
    wait_for("the sidecar to serve all readers", || {
        round(node);
        readers.iter_mut().for_each(|reader| reader.read(ROUND));
        let mut served = readers.iter().zip(&before);
        served.all(|(reader, before)| reader.window_bytes() > *before).then_some(())
    });
}

#[test]
fn consumers_are_one_reader_of_the_cell_through_a_sidecar_go_on_without_it_and_come_back_to_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(&dir.path().join("data"));
    node.run(&["stream", "create", "s", "--shards", "2"]);
    let connections = || node.metric("tailwater_backend_connections{cell=\"data\"}").expect("it is told");
    let own = connections();
    let mut readers: Vec<_> =
        (0..READERS).map(|number| Reader::start(&node, &format!("reader-{number}"))).collect();
    let mut sidecar = Sidecar::start(&node, &["s"]);
    sidecar.wait_until_ready();
    wait_until_served(&node, &mut readers);
    wait_for("the cell to have one reader", || (connections() == own + 1.0).then_some(()));
    let before: Vec<u64> = readers.iter().map(Reader::own_bytes).collect();

    // What is under way is cut off anywhere.
    round(&node);
    sidecar.process.kill();
    round(&node);
    readers.iter_mut().for_each(|reader| reader.read(2 * ROUND));
    wait_for("all consumers to read the cell by themselves", || {
        round(&node);
        readers.iter_mut().for_each(|reader| reader.read(ROUND));
        let mut own = readers.iter().zip(&before);
        own.all(|(reader, before)| reader.own_bytes() > *before).then_some(())
    });
    assert!(connections() >= own + READERS as f64, "each has a connection again");

    let mut sidecar = Sidecar::start(&node, &[]);
    wait_until_served(&node, &mut readers);
    wait_for("the sidecar to tell of it", || {
        let told = ["readers", "readers_fed", "shards"].map(|name| format!("tailwater_sidecar_{name}"));
        (told.map(|name| sidecar.metric(&name)) == [Some(8.0), Some(8.0), Some(2.0)]).then_some(())
    });
    let read = sidecar.metric("tailwater_sidecar_cell_read_bytes_total").expect("it is told");
    let lent = sidecar.metric("tailwater_sidecar_lent_bytes_total").expect("it is told");
    assert!(read > 0.0 && lent > 0.0, "{read} {lent}");
    assert!(sidecar.process.stop(), "it ends well:\n{}", sidecar.process.log());
    round(&node);
    readers.iter_mut().for_each(|reader| reader.read(ROUND));
}

#[test]
fn a_sidecar_is_ready_once_it_reads_its_streams_and_says_which_one_it_does_not_find() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(&dir.path().join("data"));
    let mut sidecar = Sidecar::start(&node, &["s"]);
    wait_for("the sidecar to say what is missing", || {
        let (status, why) = sidecar.get("/readyz")?;
        (status == 503 && why.contains("stream s")).then_some(())
    });
    assert_eq!(sidecar.get("/healthz").expect("it answers").0, 200);
    node.run(&["stream", "create", "s"]);
    sidecar.wait_until_ready();
    // Nobody follows it, and it is read.
    round(&node);
    wait_for("what nobody follows to be read", || {
        sidecar.metric("tailwater_sidecar_published_age_seconds").map(|_| ())
    });
    // The socket is taken.
    let refused = node.run_failing(&["sidecar"]);
    assert!(refused.contains("can't listen"), "{refused}");
    let refused = node.run_failing(&["sidecar", "--http", "0.0.0.0:7424"]);
    assert!(refused.contains("--insecure"), "{refused}");
    assert!(sidecar.process.stop(), "it takes its socket along");
}
