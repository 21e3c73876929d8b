//! Nodes that carry broadcasts only, each a process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::child::Child;
use crate::system::free_address;

/// One that may be started again and again, with what it has on its disk.
pub struct Node {
    name: String,
    dir: PathBuf,
    /// Where its admin HTTP is.
    pub admin: SocketAddr,
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

    /// Starts it.
    pub fn start(&self) -> anyhow::Result<Child> {
        Child::start(&self.name, &["serve", "--config", &self.file().display().to_string()], &self.dir)
    }
}
