//! A real Cassandra, fetched by `.ci/cassandra` when it is not there.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Process, free_port, wait_for};

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.ci/cassandra")
}

/// A node, alone or one of a cluster, with its data in a directory that outlives it.
pub struct Cassandra {
    process: Process,
    dir: PathBuf,
    /// Where it answers.
    pub address: SocketAddr,
}

impl Cassandra {
    /// Starts one and waits until it answers.
    pub fn start(dir: &Path) -> Self {
        let [one] = Self::start_cluster([dir]);
        one
    }

    /// Starts some, one after the other, as one cluster whose members are at the first loopback addresses; each may
    /// have all data.
    pub fn start_cluster<const NODES: usize>(dirs: [&Path; NODES]) -> [Self; NODES] {
        let done = Command::new(script()).arg("install").status().expect("it runs");
        assert!(done.success(), "Cassandra can't be fetched: see above");
        // The storage port is the next one.
        let port = loop {
            let port = free_port();
            if free_port() == port + 1 {
                break port;
            }
        };
        let mut number = 0;
        dirs.map(|dir| {
            number += 1;
            let address = SocketAddr::from(([127, 0, 0, number], port));
            let mut cassandra = Self { process: Self::spawn(dir, address), dir: dir.to_owned(), address };
            cassandra.wait_until_ready();
            cassandra
        })
    }

    fn spawn(dir: &Path, address: SocketAddr) -> Process {
        // Anywhere on the ring, if nowhere twice.
        let token = address.ip().to_string().replace('.', "");
        let mut command = Command::new(script());
        command.arg("run").arg(dir).args([address.port().to_string(), address.ip().to_string()]);
        command.args(["127.0.0.1", &token]);
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

    /// What a node is configured with for its queues to be here, in a keyspace of so many replicas.
    pub fn environment(&self, keyspace: &str, replicas: usize) -> Vec<(String, String)> {
        [
            ("STORE", "cassandra".to_owned()),
            ("CASSANDRA__CONTACT_POINTS", format!("[\"{}\"]", self.address)),
            ("CASSANDRA__KEYSPACE", keyspace.to_owned()),
            ("CASSANDRA__REPLICAS", replicas.to_string()),
            ("CASSANDRA__REQUEST_TIMEOUT_MS", "60000".to_owned()),
        ]
        .map(|(key, value)| (format!("TAILWATER_QUEUES__{key}"), value))
        .into()
    }
}
