//! ZooKeeper and bookies as processes, fetched by `.ci/bookkeeper` where they are not there.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use tailwater_bookkeeper::{BookKeeper, LedgerTimes, LedgersUri};
use tailwater_env::Env;

/// How long a condition is waited for before the test fails: for machines that are very busy.
const PATIENCE: Duration = Duration::from_secs(300);

/// The processes, which end with the program that started them.
pub struct Cluster {
    /// Where ZooKeeper answers.
    pub zookeeper: String,
    /// Where it speaks TLS, if it does.
    #[allow(dead_code)] // not all programs that have this file ask there
    pub secure: Option<String>,
    /// Data and logs.
    pub dir: PathBuf,
    /// Where it is what the servers want to know, if they want to know anything.
    security: Option<PathBuf>,
    server: Mutex<Child>,
    bookies: Vec<(u16, Mutex<Child>)>,
    spawner: Mutex<mpsc::Sender<Job>>,
}

type Job = (Command, mpsc::Sender<Child>);

/// The program that starts them.
pub fn script() -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.ci/bookkeeper"));
    command.stdin(Stdio::null());
    command
}

fn free_port() -> u16 {
    tailwater_load::free_address().expect("a port").port()
}

/// Waits until `done` answers something.
pub fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        // Between two looks at another process there is nothing to be woken by.
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

impl Cluster {
    /// Starts ZooKeeper without bookies.
    #[allow(dead_code)] // some of the programs that have this file need bookies
    pub fn zookeeper() -> Self {
        Self::zookeeper_with(None)
    }

    /// The same where it lets in only who is in `jaas.conf` of the folder `security`.
    pub fn zookeeper_with(security: Option<PathBuf>) -> Self {
        static CLUSTERS: AtomicUsize = AtomicUsize::new(0);
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        assert!(script().arg("install").status().expect("it runs").success(), "see above");
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("bookkeeper-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        remove_left_behind(&dir);
        // The servers end with the thread that starts them. Those of tests end with their tests, this one never.
        let (spawner, jobs) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, started) in jobs {
                let _ = started.send(command.spawn().expect("it starts"));
            }
        });
        let zookeeper = format!("127.0.0.1:{}", free_port());
        let speaks_tls = security.as_ref().is_some_and(|dir| dir.join("zookeeper.pem").exists());
        let secure = speaks_tls.then(|| format!("127.0.0.1:{}", free_port()));
        let spawner = Mutex::new(spawner);
        let server = Mutex::new(spawn_in(
            &spawner,
            &dir,
            zookeeper_at(&dir, &zookeeper, secure.as_deref(), security.as_deref()),
            "zookeeper",
        ));
        let cluster = Self { zookeeper, secure, dir, security, server, bookies: Vec::new(), spawner };
        cluster.wait_for_zookeeper();
        cluster
    }

    fn wait_for_zookeeper(&self) {
        wait_for("ZooKeeper to answer", || {
            let mut stream = TcpStream::connect(&self.zookeeper).ok()?;
            // Asked while it starts it may leave a connection without an answer.
            stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
            stream.write_all(b"ruok").ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            (answer == "imok").then_some(())
        });
    }

    /// kill -9 of ZooKeeper.
    #[allow(dead_code)] // not all programs that have this file kill it
    pub fn kill_zookeeper(&self) {
        let mut server = self.server.lock().expect("whole");
        server.kill().expect("it can be killed");
        server.wait().expect("it ends");
    }

    /// Starts it again on what it left.
    #[allow(dead_code)] // as above
    pub fn restart_zookeeper(&self) {
        let (secure, security) = (self.secure.as_deref(), self.security.as_deref());
        let command = zookeeper_at(&self.dir, &self.zookeeper, secure, security);
        *self.server.lock().expect("whole") = self.spawn(command, "zookeeper");
        self.wait_for_zookeeper();
    }

    /// Starts ZooKeeper and so many bookies, and waits until a client finds them.
    #[allow(dead_code)] // some of the programs that have this file need none
    pub fn start(bookies: usize) -> Self {
        let cluster = Self::start_with(bookies, None);
        cluster.wait_until_bookies_are_known();
        cluster
    }

    /// The same where the servers let in only who shows what is in the folder `security`: see `.ci/bookkeeper`. Waits
    /// until bookies listen.
    #[allow(dead_code)] // as above
    pub fn start_with(bookies: usize, security: Option<PathBuf>) -> Self {
        let mut cluster = Self::zookeeper_with(security);
        let mut format = secured(cluster.security.as_deref());
        let formatted = format.arg("format").arg(&cluster.zookeeper).output().expect("it runs");
        assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
        for number in 0..bookies {
            let port = free_port();
            let child = cluster.spawn_bookie(number, port);
            cluster.bookies.push((port, Mutex::new(child)));
        }
        for number in 0..bookies {
            cluster.wait_until_it_listens(number);
        }
        cluster
    }

    /// On a thread of its own: whoever starts the cluster is in a runtime already.
    fn wait_until_bookies_are_known(&self) {
        let wait = || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let client = runtime.block_on(self.client());
            wait_for("the bookies to be registered", || {
                let known = runtime.block_on(client.ledgers().bookies()).expect("ZooKeeper answers");
                (known.len() == self.bookies.len()).then_some(())
            });
        };
        std::thread::scope(|scope| {
            scope.spawn(wait);
        });
    }

    fn spawn(&self, command: Command, name: &str) -> Child {
        spawn_in(&self.spawner, &self.dir, command, name)
    }

    fn spawn_bookie(&self, number: usize, port: u16) -> Child {
        let name = format!("bookie{number}");
        let mut command = secured(self.security.as_deref());
        command.arg("bookie").arg(self.dir.join(&name)).arg(port.to_string()).arg(&self.zookeeper);
        self.spawn(command, &name)
    }

    fn wait_until_it_listens(&self, number: usize) {
        let (port, child) = &self.bookies[number];
        wait_for("a bookie to listen", || {
            let ended = child.lock().expect("whole").try_wait().expect("it is ours");
            let log =
                || std::fs::read_to_string(self.dir.join(format!("bookie{number}.log"))).unwrap_or_default();
            assert!(ended.is_none(), "bookie {number} ended:\n{}", log());
            TcpStream::connect(("127.0.0.1", *port)).ok()
        });
    }

    /// Where ZooKeeper is.
    pub fn uri(&self) -> LedgersUri {
        format!("bookkeeper://{}/ledgers", self.zookeeper).parse().expect("well-formed")
    }

    /// A client, in the runtime that this is called in.
    pub async fn client(&self) -> BookKeeper {
        let times =
            LedgerTimes { entry: PATIENCE, recovery: PATIENCE, read: PATIENCE, ..LedgerTimes::default() };
        BookKeeper::connect(Env::real(), self.uri(), times).await.expect("ZooKeeper is there")
    }

    /// kill -9 of the bookie of this name.
    pub fn kill(&self, bookie: &str) -> usize {
        let port: u16 = bookie.rsplit_once(':').expect("an address").1.parse().expect("a port");
        let number = self.bookies.iter().position(|(of, _)| *of == port).expect("one of ours");
        let mut child = self.bookies[number].1.lock().expect("whole");
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
        number
    }

    /// kill -9 of all bookies but so many.
    #[allow(dead_code)] // some of the programs that have this file kill one only
    pub fn kill_all_but(&self, left: usize) -> Vec<usize> {
        let bookies = &self.bookies[left..];
        bookies.iter().map(|(port, _)| self.kill(&format!("127.0.0.1:{port}"))).collect()
    }

    /// Starts it again on what it left.
    #[allow(dead_code)] // as above
    pub fn restart(&self, number: usize) {
        *self.bookies[number].1.lock().expect("whole") = self.spawn_bookie(number, self.bookies[number].0);
        self.wait_until_it_listens(number);
    }
}

/// The program for servers that want to know something.
fn secured(security: Option<&Path>) -> Command {
    let mut command = script();
    command.envs(security.map(|dir| ("BOOKKEEPER_SECURITY", dir)));
    command
}

fn zookeeper_at(dir: &Path, address: &str, secure: Option<&str>, security: Option<&Path>) -> Command {
    let port = |address: &str| address.rsplit_once(':').expect("an address").1.to_owned();
    let mut command = secured(security);
    command.arg("zookeeper").arg(dir.join("zookeeper")).arg(port(address)).args(secure.map(port));
    command
}

fn spawn_in(spawner: &Mutex<mpsc::Sender<Job>>, dir: &Path, mut command: Command, name: &str) -> Child {
    let log = File::options().create(true).append(true).open(dir.join(format!("{name}.log")));
    let log = log.expect("a log file");
    command.stdout(log.try_clone().expect("a descriptor")).stderr(log);
    let (started, child) = mpsc::channel();
    spawner.lock().expect("whole").send((command, started)).expect("it never ends");
    child.recv().expect("it starts")
}

/// Data of earlier runs, whose processes are gone.
fn remove_left_behind(own: &Path) {
    for entry in std::fs::read_dir(own.parent().expect("it has one")).expect("it is there").flatten() {
        let name = entry.file_name();
        let Some(process) = name.to_str().and_then(|name| name.strip_prefix("bookkeeper-")) else { continue };
        let process = process.split('-').next().unwrap_or_default();
        if entry.path() != own && !Path::new("/proc").join(process).exists() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
