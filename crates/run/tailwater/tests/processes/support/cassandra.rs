//! A real Cassandra, fetched by `.ci/cassandra` when it is not there.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Process, free_port, wait_for};

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.ci/cassandra")
}

/// One node, with its data in a directory that outlives it.
pub struct Cassandra {
    process: Process,
    dir: PathBuf,
    /// Where it answers.
    pub address: SocketAddr,
}

impl Cassandra {
    /// Starts one and waits until it answers.
    pub fn start(dir: &Path) -> Self {
        let done = Command::new(script()).arg("install").status().expect("it runs");
        assert!(done.success(), "Cassandra can't be fetched: see above");
        // Its storage port is the next one.
        let port = loop {
            let port = free_port();
            if free_port() == port + 1 {
                break port;
            }
        };
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut cassandra = Self { process: Self::spawn(dir, address), dir: dir.to_owned(), address };
        cassandra.wait_until_ready();
        cassandra
    }

    fn spawn(dir: &Path, address: SocketAddr) -> Process {
        let mut command = Command::new(script());
        command.arg("run").arg(dir).arg(address.port().to_string());
        Process::start(&mut command, &dir.with_extension("log"))
    }

    fn wait_until_ready(&mut self) {
        wait_for("Cassandra to answer", || {
            assert!(self.process.is_running(), "Cassandra ended:\n{}", self.process.log());
            TcpStream::connect(self.address).ok()
        });
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on what it left.
    pub fn restart(&mut self) {
        self.process = Self::spawn(&self.dir, self.address);
        self.wait_until_ready();
    }

    /// What a node is configured with for its queues to be here, in a keyspace.
    pub fn environment(&self, keyspace: &str) -> Vec<(String, String)> {
        [
            ("STORE", "cassandra".to_owned()),
            ("CASSANDRA__CONTACT_POINTS", format!("[\"{}\"]", self.address)),
            ("CASSANDRA__KEYSPACE", keyspace.to_owned()),
            ("CASSANDRA__REPLICAS", "1".to_owned()),
            ("CASSANDRA__REQUEST_TIMEOUT_MS", "60000".to_owned()),
        ]
        .map(|(key, value)| (format!("TAILWATER_QUEUES__{key}"), value))
        .into()
    }
}
