//! A load that goes on while something dies: a producer process that is fed numbered lines, and consumer processes that
//! check them as they come.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Follower, Node, wait_for};

/// What a producer sends: its name, a number, and filling.
#[derive(Clone)]
pub struct Lines {
    name: String,
    bytes: usize,
}

impl Lines {
    /// Lines of at least so many bytes of a producer called `name`.
    pub fn new(name: &str, bytes: usize) -> Self {
        Self { name: name.to_owned(), bytes }
    }

    /// Those with these numbers.
    pub fn range(&self, range: Range<u64>) -> impl Iterator<Item = String> {
        range.map(|number| {
            let mut line = format!("{} {number} ", self.name);
            line.extend(std::iter::repeat_n('.', self.bytes.saturating_sub(line.len())));
            line
        })
    }
}

/// A `produce` that is fed some thousand lines a second, until it is told to finish or killed.
pub struct Load {
    child: Child,
    stop: Arc<AtomicBool>,
    acked: Arc<AtomicU64>,
    feeding: JoinHandle<u64>,
    counting: JoinHandle<()>,
}

impl Load {
    /// Begins to append `lines` to `stream`.
    pub fn start(node: &Node, stream: &str, lines: &Lines) -> Self {
        let mut child = node
            .command(&["produce", stream, "-o", "json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stop = Arc::new(AtomicBool::new(false));
        let mut stdin = child.stdin.take().expect("piped");
        let (stopping, lines) = (Arc::clone(&stop), lines.clone());
        let feed = move || {
            let mut sent = 0;
            while !stopping.load(Ordering::Relaxed) {
                let group: Vec<String> = lines.range(sent..sent + 10).collect();
                if writeln!(stdin, "{}", group.join("\n")).is_err() {
                    break;
                }
                sent += 10;
                // What makes it a load of some rate rather than as much as there is room for.
                std::thread::park_timeout(Duration::from_millis(2));
            }
            sent
        };
        let acked = Arc::new(AtomicU64::new(0));
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let counter = Arc::clone(&acked);
        let count = move || {
            for line in out.lines().map_while(Result::ok) {
                let batch: serde_json::Value = serde_json::from_str(&line).expect("JSON");
                counter.fetch_add(batch["count"].as_u64().expect("a number"), Ordering::Relaxed);
            }
        };
        let thread = std::thread::Builder::new;
        let feeding = thread().spawn(feed).expect("a thread");
        let counting = thread().spawn(count).expect("a thread");
        Self { child, stop, acked, feeding, counting }
    }

    /// Records that were acknowledged to it so far.
    pub fn acked(&self) -> u64 {
        self.acked.load(Ordering::Relaxed)
    }

    /// Waits until so many more are acknowledged; the number of all.
    pub fn wait_for_more(&self, more: u64) -> u64 {
        let wanted = self.acked() + more;
        wait_for("appends to be acknowledged", || Some(self.acked()).filter(|acked| *acked >= wanted))
    }

    /// Stops it; all that it sent must be acknowledged. Their number.
    pub fn finish(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.feeding.join().expect("it fed");
        self.counting.join().expect("it counted");
        assert!(self.child.wait().expect("ours").success());
        assert_eq!(self.acked.load(Ordering::Relaxed), sent, "of those that were sent");
        sent
    }

    /// kill -9; how many were acknowledged to it.
    pub fn kill(mut self) -> u64 {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
        self.feeding.join().expect("it fed");
        self.counting.join().expect("it counted");
        self.acked.load(Ordering::Relaxed)
    }

    /// Waits until it fails by itself; how many were acknowledged to it, and what it said.
    pub fn failed(self) -> (u64, String) {
        let output = self.child.wait_with_output().expect("it ends");
        self.feeding.join().expect("it fed");
        self.counting.join().expect("it counted");
        assert!(!output.status.success(), "it should fail");
        (self.acked.load(Ordering::Relaxed), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// A consumer process that tells where its bytes come from.
pub struct Reader {
    pub follower: Follower,
    /// Its standard error.
    log: PathBuf,
    /// How many lines were looked at.
    at: Cell<u64>,
}

impl Reader {
    /// Starts a `consume` of `stream` from its start, with more flags; its standard error goes to `log`.
    pub fn start(node: &Node, stream: &str, log: &Path, flags: &[&str]) -> Self {
        let mut command = node.command(&["consume", stream, "--stats=1"]);
        let file = std::fs::File::create(log).expect("a log file");
        let follower = Follower::with_errors_to(command.args(flags), file.into());
        Self { follower, log: log.to_owned(), at: Cell::new(0) }
    }

    /// Reads until it has seen the first `end` lines of a load, which must come one after the other.
    pub fn follow(&self, lines: &Lines, end: u64, what: &str) {
        for line in lines.range(self.at.get()..end) {
            assert_eq!(self.follower.next(), line, "{what}");
        }
        self.at.set(self.at.get().max(end));
    }

    /// The same to its end, after the process ended; how many lines it saw in all.
    pub fn follow_to_its_end(&self, lines: &Lines) -> u64 {
        while let Some(line) = self.follower.next_or_end() {
            let at = self.at.get();
            assert!(lines.range(at..at + 1).eq([line]), "line {at}");
            self.at.set(at + 1);
        }
        self.at.get()
    }

    /// What it wrote to standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Bytes that came from cells, and from the durable layer, as it told last.
    pub fn bytes(&self) -> Option<(u64, u64)> {
        let log = self.log();
        // A line may be half there.
        let whole = &log[..log.rfind('\n')?];
        let told = whole.lines().rev().find_map(|line| line.split_once("; bytes: "))?.1;
        let (cells, durable) = told.split_once(" durable")?.0.split_once(" from cells, ")?;
        Some((cells.parse().ok()?, durable.parse().ok()?))
    }

    /// Waits until more came from a cell than now.
    pub fn until_it_reads_from_a_cell(&self) {
        let before = self.bytes().map_or(0, |(cells, _)| cells);
        wait_for("bytes from a cell", || self.bytes().filter(|(cells, _)| *cells > before));
    }
}
