//! ZooKeeper and bookies that end with a measurement.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use anyhow::Context;
use tailwater_load::clock::cpu_of;
use tailwater_load::free_address;
use tailwater_load::measuring::until;

/// How long a server may take to start.
const GIVE_UP: Duration = Duration::from_secs(120);

/// Where bookies listen to which a way of its own leads.
const BEHIND: [u8; 4] = [127, 0, 0, 2];

/// How large servers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerSize {
    /// Quick to start, with a compiler that is done soon: for measurements of some seconds.
    Small,
    /// With the memory and the compiler of servers that run for long. They are slow for their first half minute.
    Large,
}

/// ZooKeeper and bookies, which end with this.
pub struct LedgerServers {
    script: PathBuf,
    size: ServerSize,
    dir: tempfile::TempDir,
    zookeeper: String,
    children: Vec<Child>,
    bookies: Vec<String>,
}

impl Drop for LedgerServers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl LedgerServers {
    /// Starts them by the `script` that runs one of them. Clients reach the first `near` bookies as they listen. The
    /// other `far` ones are reached by what `open_way` opens for each: from the first address to the second one.
    ///
    /// # Errors
    /// What is not installed, or does not start.
    pub fn start(
        script: &Path,
        size: ServerSize,
        near: usize,
        far: usize,
        mut open_way: impl FnMut(SocketAddr, SocketAddr) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let found = script.canonicalize();
        let script = found.with_context(|| format!("{}: no such script", script.display()))?;
        let installed = Process::new(&script).arg("install").status()?;
        anyhow::ensure!(installed.success(), "{} install failed", script.display());
        let zookeeper = free_address()?;
        let dir = tempfile::tempdir_in("/var/tmp")?;
        let (children, addresses) = (Vec::new(), Vec::new());
        let mut servers =
            Self { script, size, dir, zookeeper: zookeeper.to_string(), children, bookies: addresses };
        let place = servers.dir.path().join("zookeeper");
        let port = zookeeper.port().to_string();
        servers.spawn(&["zookeeper", &place.to_string_lossy(), &port], None, zookeeper)?;
        let formatted = Process::new(&servers.script).args(["format", &servers.zookeeper]).output()?;
        anyhow::ensure!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
        for number in 0..near + far {
            let told = free_address()?;
            let behind = (number >= near).then(|| SocketAddr::from((BEHIND, told.port())));
            if let Some(behind) = behind {
                open_way(told, behind)?;
            }
            let place = servers.dir.path().join(format!("bookie{number}"));
            let (place, port) = (place.to_string_lossy().into_owned(), told.port().to_string());
            let zookeeper = servers.zookeeper.clone();
            servers.spawn(&["bookie", &place, &port, &zookeeper], behind, behind.unwrap_or(told))?;
            let name = behind.map_or(told.to_string(), |behind| format!("localhost:{}", behind.port()));
            servers.bookies.push(name);
        }
        Ok(servers)
    }

    /// Starts a server, and waits until it listens.
    fn spawn(
        &mut self,
        args: &[&str],
        behind: Option<SocketAddr>,
        listens: SocketAddr,
    ) -> anyhow::Result<()> {
        let log = self.dir.path().join(format!("{}{}.log", args[0], self.children.len()));
        let out = std::fs::File::create(&log)?;
        let mut command = Process::new(&self.script);
        command.args(args).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        if self.size == ServerSize::Large {
            command.env("BOOKKEEPER_SIZE", "server");
        }
        if let Some(behind) = behind {
            command.env("BOOKKEEPER_BEHIND", behind.ip().to_string());
        }
        let mut child = command.spawn()?;
        let listening = until("a server to listen", GIVE_UP, || {
            let ended = child.try_wait()?;
            anyhow::ensure!(ended.is_none(), "{}", std::fs::read_to_string(&log).unwrap_or_default());
            Ok(TcpStream::connect(listens).ok())
        });
        self.children.push(child);
        listening.map(drop)
    }

    /// The script that started them.
    pub fn script(&self) -> &Path {
        &self.script
    }

    /// Their directory, which goes with them.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// ZooKeeper's address.
    pub fn zookeeper(&self) -> &str {
        &self.zookeeper
    }

    /// How a node's configuration names them.
    pub fn uri(&self) -> String {
        format!("bookkeeper://{}/ledgers", self.zookeeper)
    }

    /// The bookies' names, which are the addresses by which clients know them.
    pub fn bookies(&self) -> &[String] {
        &self.bookies
    }

    /// Processes of ZooKeeper, and of the bookies behind it.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        self.children.iter().map(Child::id)
    }

    /// Processor time of all bookies so far.
    pub fn cpu(&self) -> Duration {
        self.children[1..].iter().filter_map(|bookie| cpu_of(bookie.id())).sum()
    }
}
