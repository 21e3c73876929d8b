//! Real processes under test: nodes, backends, and whoever uses them.

pub mod cargo;
#[cfg(feature = "cassandra")]
pub mod cassandra;
pub mod kafka;
pub mod load;
pub mod namespaces;
pub mod raw;
pub mod sqs;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tailwater_node::Config;
use tempfile::TempDir;

/// How long a condition is waited for before the test fails: for machines that are very busy.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The binary under test.
pub fn tailwater() -> Command {
    tailwater_within(&[])
}

/// Where a node listens that is told nothing else: taken for as long as the tests run. So one that a test starts there
/// fails every time, and not only on a machine where somebody else runs a node.
static DEFAULT_PORTS: LazyLock<Vec<TcpListener>> = LazyLock::new(|| {
    let Config { listen, kafka, sqs, broadcast, memcached, .. } = Config::default();
    let http = broadcast.http.listen;
    let defaults =
        [listen.data, listen.admin, kafka.listen, sqs.listen, broadcast.listen, http, memcached.listen];
    // What can't be listened at is taken already.
    defaults.into_iter().filter_map(|address| TcpListener::bind(address).ok()).collect()
});

/// The same, started by a command that ends in becoming it.
fn tailwater_within(starter: &[String]) -> Command {
    LazyLock::force(&DEFAULT_PORTS);
    let words: Vec<&str> =
        starter.iter().map(String::as_str).chain([env!("CARGO_BIN_EXE_tailwater")]).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    // Nothing of the caller's environment may change what is tested.
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("TAILWATER_")) {
        command.env_remove(key);
    }
    command
}

/// A node on a data directory, which listens at any port where its flags say nothing else: the ports of the defaults
/// are somebody else's.
pub fn serve(data: &Path) -> Command {
    serve_within(&[], data)
}

fn serve_within(starter: &[String], data: &Path) -> Command {
    let mut command = tailwater_within(starter);
    command.arg("serve").arg("--data").arg(data);
    let fronts = ["KAFKA__LISTEN", "SQS__LISTEN", "BROADCAST__LISTEN", "BROADCAST__HTTP__LISTEN"];
    for listen in ["LISTEN__DATA", "LISTEN__ADMIN"].into_iter().chain(fronts) {
        command.env(format!("TAILWATER_{listen}"), "127.0.0.1:0");
    }
    command
}

/// A port that nobody listens on, and that no connection is given meanwhile.
pub fn free_port() -> u16 {
    tailwater_load::free_address().expect("a port").port()
}

/// Waits until `done` answers something.
pub fn wait_for<T>(what: &str, done: impl FnMut() -> Option<T>) -> T {
    wait_for_or_tell(what, done, String::new)
}

/// The same; if it fails it says what `tell` knows then.
pub fn wait_for_or_tell<T>(
    what: &str,
    mut done: impl FnMut() -> Option<T>,
    tell: impl FnOnce() -> String,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        if start.elapsed() >= PATIENCE {
            panic!("waited {PATIENCE:?} for {what}\n{}", tell());
        }
        // Between two looks at another process there is nothing to be woken by.
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Compiles a library of this directory into `dir`, for `LD_PRELOAD`.
pub fn preloaded(dir: &Path, name: &str) -> String {
    let library = dir.join(format!("{name}.so"));
    let source = format!("{}/tests/processes/support/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-o"]).arg(&library).args([&source, "-ldl"]);
    assert!(compile.status().expect("a C compiler links Rust programs too").success());
    library.to_str().expect("text").to_owned()
}

/// A process that is killed with the test.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it with its standard error in `log`.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(log).expect("a log file");
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().expect("it starts");
        Self { child, log: log.to_owned() }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it is there");
    }

    /// Asks it to stop, and waits until it did; whether it ended well.
    pub fn stop(&mut self) -> bool {
        self.signal(rustix::process::Signal::TERM);
        self.ended().success()
    }

    /// Waits until it ended, and says how.
    pub fn ended(&mut self) -> std::process::ExitStatus {
        wait_for("a process to end", || self.child.try_wait().expect("it is ours"))
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is ours").is_none()
    }

    /// What it wrote to standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}:\n{}", self.log.display(), self.log());
        }
        let _ = std::fs::remove_file(&self.log);
    }
}

/// Where a node and the commands that talk to it run.
#[derive(Clone)]
pub struct Place {
    /// The address that it has there.
    pub host: String,
    /// What starts a program there, and becomes it; empty is here.
    pub starter: Vec<String>,
}

impl Place {
    /// Here, on loopback.
    pub fn here() -> Self {
        Self { host: "127.0.0.1".to_owned(), starter: Vec::new() }
    }
}

/// A node with a data directory that outlives it.
pub struct Node {
    pub dir: PathBuf,
    pub process: Process,
    pub admin: String,
    pub data: String,
    /// Where Kafka's clients connect.
    pub kafka: String,
    /// Where SQS's clients connect.
    pub sqs: String,
    /// Where publishers and listeners of broadcasts connect.
    pub broadcast: String,
    place: Place,
    flags: Vec<String>,
    environment: Vec<(String, String)>,
}

static NEXT: AtomicUsize = AtomicUsize::new(0);

impl Node {
    /// Starts one on `data` of a new directory, which goes with the first of the two.
    pub fn start_anew() -> (TempDir, Self) {
        let dir = tempfile::tempdir().expect("a directory");
        let node = Self::start(&dir.path().join("data"));
        (dir, node)
    }

    /// The same, with a stream: its name, and flags of `stream create`.
    pub fn with_stream(flags: &[&str]) -> (TempDir, Self) {
        let (dir, node) = Self::start_anew();
        node.run(&[&["stream", "create"], flags].concat());
        (dir, node)
    }

    /// Starts one on `dir`.
    pub fn start(dir: &Path) -> Self {
        Self::start_with(dir, &[], &[])
    }

    /// Starts one with more flags and variables.
    pub fn start_with(dir: &Path, flags: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_at(dir, &format!("127.0.0.1:{}", free_port()), flags, environment)
    }

    /// Starts one whose broadcasts are at an address that others were told of before.
    pub fn start_at(dir: &Path, broadcast: &str, flags: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_in(Place::here(), dir, broadcast, flags, environment)
    }

    /// Starts one, whose broadcasts are at that address, elsewhere.
    pub fn start_in(
        place: Place,
        dir: &Path,
        broadcast: &str,
        flags: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let broadcast = broadcast.to_owned();
        let environment: Vec<(String, String)> =
            environment.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let [admin, data, kafka, sqs] = std::array::from_fn(|_| format!("{}:{}", place.host, free_port()));
        let addresses = [&admin, &data, &kafka, &sqs, &broadcast].map(String::as_str);
        let process = Self::spawn(&place, dir, addresses, &flags, &environment);
        let dir = dir.to_owned();
        let mut node = Self { dir, process, admin, data, kafka, sqs, broadcast, place, flags, environment };
        node.wait_until_ready();
        node
    }

    /// Starts another one on `dir`, with the same flags and variables: where clients connect it is at the same
    /// addresses, so it can't serve them while this one does. It may stand by.
    pub fn start_beside(&self, dir: &Path) -> Self {
        let admin = format!("{}:{}", self.place.host, free_port());
        let addresses = [&admin, &self.data, &self.kafka, &self.sqs, &self.broadcast].map(String::as_str);
        let process = Self::spawn(&self.place, dir, addresses, &self.flags, &self.environment);
        let node = Self {
            dir: dir.to_owned(),
            process,
            admin,
            data: self.data.clone(),
            kafka: self.kafka.clone(),
            sqs: self.sqs.clone(),
            broadcast: self.broadcast.clone(),
            place: self.place.clone(),
            flags: self.flags.clone(),
            environment: self.environment.clone(),
        };
        wait_for("the node to answer", || node.get("/healthz"));
        node
    }

    /// What it says at a path, with whatever status.
    pub fn told_at(&self, path: &str) -> Option<(u16, String)> {
        let ask = ureq::get(format!("http://{}{path}", self.admin));
        let mut answer = ask.config().http_status_as_error(false).build().call().ok()?;
        let told = answer.body_mut().read_to_string().ok()?;
        Some((answer.status().as_u16(), told))
    }

    fn spawn(
        place: &Place,
        dir: &Path,
        [admin, data, kafka, sqs, broadcast]: [&str; 5],
        flags: &Vec<String>,
        environment: &[(String, String)],
    ) -> Process {
        // Not beside the data, whose disk a test may fill.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = std::env::temp_dir().join(format!("tailwater-test-{}-{number}.log", std::process::id()));
        // Of what is told by no flag, `/v1/node` tells the port.
        let mut command = serve_within(&place.starter, dir);
        command.args(["--admin", admin, "--listen", data, "--kafka", kafka, "--sqs", sqs]);
        // A start touches all memory of the cells and writes three files of the journal: with the defaults tests waited
        // for that, and for the disk, for a good part of their time.
        command.env("TAILWATER_JOURNAL__FILE_BYTES", (16 << 20).to_string());
        command.env("TAILWATER_DATA_CELL__CAPACITY_BYTES", (64 << 20).to_string());
        // In a network namespace of the test's own nobody else is.
        command.env("TAILWATER_LISTEN__INSECURE", (place.host != "127.0.0.1").to_string());
        // What is tested are the cells, and how a process reads them by itself: a test of the window says so.
        command.env("TAILWATER_LISTEN__WINDOW", "false");
        command.args(["--broadcast", broadcast]).args(flags);
        command.envs(environment.iter().map(|(key, value)| (key, value)));
        Process::start(&mut command, &log)
    }

    /// Starts it again on the same directory and ports, after it ended.
    pub fn restart(&mut self) {
        self.restart_unready();
        self.wait_until_ready();
    }

    /// The same with these variables besides: later ones count.
    pub fn restart_with(&mut self, environment: &[(&str, &str)]) {
        let owned = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.environment.extend(owned);
        self.restart();
    }

    /// The same with these variables besides, where it does not get through its recovery.
    pub fn restart_recovering_with(&mut self, environment: &[(&str, &str)]) {
        let owned = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.environment.extend(owned);
        self.restart_recovering();
    }

    /// Starts it again with these variables besides, which it does not take; what it said.
    pub fn restart_failing_with(&mut self, environment: &[(&str, &str)]) -> String {
        let owned = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.environment.extend(owned);
        self.respawn();
        assert!(!self.process.ended().success(), "it should not start");
        self.process.log()
    }

    /// The same where it can't take appends: it answers, and is read.
    pub fn restart_unready(&mut self) {
        self.respawn();
        self.wait_until_answered("/v1/node");
    }

    /// The same where it does not get through its recovery.
    pub fn restart_recovering(&mut self) {
        self.respawn();
        self.wait_until_answered("/healthz");
    }

    fn respawn(&mut self) {
        let addresses =
            [&self.admin, &self.data, &self.kafka, &self.sqs, &self.broadcast].map(String::as_str);
        self.process = Self::spawn(&self.place, &self.dir, addresses, &self.flags, &self.environment);
    }

    fn wait_until_ready(&mut self) {
        self.wait_until_answered("/readyz");
    }

    fn wait_until_answered(&mut self, path: &str) {
        wait_for("the node to answer", || {
            assert!(self.process.is_running(), "the node ended:\n{}", self.process.log());
            self.get(path)
        });
    }

    /// GET from its admin HTTP; `None` if it does not answer 200.
    pub fn get(&self, path: &str) -> Option<String> {
        let mut answer = ureq::get(format!("http://{}{path}", self.admin)).call().ok()?;
        answer.body_mut().read_to_string().ok()
    }

    /// The value of a series at `/metrics`: a name with its labels, if it has any.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let page = self.get("/metrics").expect("metrics");
        page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// A command that talks to this node, where that is.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = tailwater_within(&self.place.starter);
        command.args(["--server", &self.admin]).args(args);
        command
    }

    /// Runs a command that must succeed; its standard output.
    pub fn run(&self, args: &[&str]) -> String {
        let output = self.output(args, b"");
        assert!(
            output.status.success(),
            "tailwater {args:?} failed:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text")
    }

    /// The same of a command about keys of a cell, which has [`TIME_ENOUGH`].
    pub fn run_in_time(&self, args: &[&str]) -> String {
        self.run(&[args, &TIME_ENOUGH].concat())
    }

    /// Runs a command that must fail; its standard error.
    pub fn run_failing(&self, args: &[&str]) -> String {
        let output = self.output(args, b"");
        assert!(!output.status.success(), "tailwater {args:?} should fail");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Appends lines to a stream.
    pub fn produce(&self, stream: &str, lines: &[String]) {
        let mut text = lines.join("\n");
        text.push('\n');
        let output = self.output(&["produce", stream], text.as_bytes());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// All values of a stream, as they come.
    pub fn consume(&self, stream: &str) -> Vec<String> {
        let text = self.run(&["consume", stream, "--from", "start", "--exit-at-end"]);
        text.lines().map(str::to_owned).collect()
    }

    /// Runs a command with an input; what it wrote and whether it ended well.
    pub fn output(&self, args: &[&str], input: &[u8]) -> Output {
        run(&mut self.command(args), input)
    }
}

/// Runs a command to its end, which has to come in time; what it wrote and whether it ended well.
pub fn run(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    // Beside the reading of its output, or both could wait for one another.
    let writer = std::thread::Builder::new()
        .spawn(move || {
            let _ = stdin.write_all(&input);
        })
        .expect("a thread");
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let id = rustix::process::Pid::from_child(&child);
    let watch = std::thread::Builder::new()
        .spawn(move || {
            // A process that waits for ever is a failure, not a test that never ends.
            if ended.recv_timeout(2 * PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
            }
        })
        .expect("a thread");
    let output = child.wait_with_output().expect("it ends");
    drop(done);
    watch.join().expect("it watched");
    writer.join().expect("it wrote");
    output
}

/// What gives a command about keys of a cell as much time as a busy machine may need.
pub const TIME_ENOUGH: [&str; 2] = ["--deadline-ms", "60000"];

/// Runs a command; whether it ended well, and what it wrote, as text.
pub fn told(command: &mut Command, input: &str) -> (bool, String, String) {
    let output = run(command, input.as_bytes());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// A consumer process that writes one line for each record, followed line by line.
pub struct Follower {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Follower {
    /// Follows `stream` from its start.
    pub fn start(node: &Node, args: &[&str]) -> Self {
        Self::of(&mut node.command(args))
    }

    /// Follows what a command writes.
    pub fn of(command: &mut Command) -> Self {
        Self::with_errors_to(command, Stdio::inherit())
    }

    /// Follows what a command writes to standard output; what it writes to standard error goes elsewhere.
    pub fn with_errors_to(command: &mut Command, errors: Stdio) -> Self {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn().expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .spawn(move || {
                for line in out.lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            })
            .expect("a thread");
        Self { child, lines }
    }

    /// The next line.
    pub fn next(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a record within our patience")
    }

    /// The next line, or that there are no more.
    pub fn next_or_end(&self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => None,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("neither a line nor its end came"),
        }
    }

    /// The next line, if there is one already.
    pub fn try_next(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// The process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
