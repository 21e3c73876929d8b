//! Nodes that carry broadcasts only, each a process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tailwater_load::child::Child;
use tailwater_load::system::{agent, free_address};

/// A stream, of `GET /v1/broadcast/streams`.
#[derive(Deserialize)]
pub struct SeenStreamView {
    /// The last number that the node has.
    pub last: u64,
    /// The last one that it knows all replicas to hold.
    pub held: u64,
    /// Events that are not collected.
    pub live: u64,
}

/// One that may be started again and again, with what it has on its disk.
pub struct Node {
    name: String,
    dir: PathBuf,
    admin: SocketAddr,
}

impl Node {
    /// Writes its configuration below `dir`; `broadcast` are the lines of that section and those behind it.
    pub fn prepare(name: &str, dir: &Path, broadcast: &str) -> anyhow::Result<Self> {
        let (admin, data) = (free_address()?, free_address()?);
        let config = format!(
            "data = {:?}\n[listen]\ndata = \"{data}\"\nadmin = \"{admin}\"\nunix = {:?}\n\
             [data_cell]\ncapacity_bytes = 67108864\n[metadata_cell]\ncapacity_bytes = 67108864\n\
             [kafka]\nenabled = false\n[sqs]\nenabled = false\n\
             [broadcast.http]\nenabled = false\n[broadcast]\n{broadcast}\n",
            dir.join(name),
            dir.join(format!("{name}.sock")),
        );
        let node = Self { name: name.to_owned(), dir: dir.to_owned(), admin };
        std::fs::write(node.file(), config)?;
        Ok(node)
    }

    fn file(&self) -> PathBuf {
        self.dir.join(format!("{}.toml", self.name))
    }

    /// What its admin HTTP answers; `None` if it does not, or that is something else.
    pub fn ask<T: DeserializeOwned>(&self, path: &str) -> Option<T> {
        let mut answer = agent().get(format!("http://{}{path}", self.admin)).call().ok()?;
        serde_json::from_str(&answer.body_mut().read_to_string().ok()?).ok()
    }

    /// Its streams; `None` if it does not answer.
    pub fn streams(&self) -> Option<Vec<SeenStreamView>> {
        self.ask("/v1/broadcast/streams")
    }

    /// Starts it.
    pub fn start(&self) -> anyhow::Result<Child> {
        Child::start(&self.name, &["serve", "--config", &self.file().display().to_string()], &self.dir)
    }
}
