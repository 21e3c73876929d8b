//! A cluster of the demo: a node with its own directory, in a process of its own, and the gateway by which others reach
//! it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::relay::{Gateway, Gateways};
use crate::child::Child;
use crate::system::{agent, free_address};

/// How long a node may take until it is ready, on a machine that does much besides, too.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// What a cluster is like.
#[derive(Clone, Copy, Debug)]
pub struct ClusterPlace {
    /// Its name.
    pub name: &'static str,
    /// Where it is.
    pub continent: &'static str,
    /// The cluster that it copies from; none for the source.
    pub above: Option<&'static str>,
    /// Delay of the line to it, in each direction, in ms.
    pub delay_ms: u64,
}

/// A cluster that was started.
pub struct ClusterNode {
    /// What it is like.
    pub place: ClusterPlace,
    /// By which others reach it.
    pub gateway: Gateway,
    child: Child,
    dir: PathBuf,
    admin: SocketAddr,
    unix: PathBuf,
}

impl ClusterNode {
    /// Starts one below `dir`, with a data cell of so many bytes; does not wait until it is ready.
    ///
    /// # Errors
    /// Its directory can't be made, no port is free, or the process can't be started.
    pub fn start(
        place: ClusterPlace,
        cells_bytes: u64,
        dir: &Path,
        gateways: &Gateways,
    ) -> anyhow::Result<Self> {
        let dir = dir.join(place.name);
        std::fs::create_dir_all(&dir).with_context(|| format!("{} can't be made", dir.display()))?;
        let (admin, data, unix) = (free_address()?, free_address()?, dir.join("node.sock"));
        let gateway = gateways.open(data, Duration::from_millis(place.delay_ms))?;
        let config = format!(
            "data = {:?}\n[cluster]\nname = {:?}\n[listen]\ndata = \"{data}\"\nadmin = \"{admin}\"\nunix = {unix:?}\n\
             advertised_data = \"{}\"\nwindow = false\n[kafka]\nenabled = false\n[sqs]\nenabled = false\n\
             [broadcast]\nenabled = false\n[data_cell]\ncapacity_bytes = {cells_bytes}\n",
            dir.join("data"),
            place.name,
            gateway.address,
        );
        std::fs::write(dir.join("node.toml"), config)?;
        let child = serve(&dir)?;
        Ok(Self { place, gateway, child, dir, admin, unix })
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// It ends, or is not ready within a minute.
    pub fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let url = self.url("/readyz");
        let is_ready = || agent().get(&url).call().is_ok_and(|answer| answer.status().is_success());
        self.child.until("is not ready", START_DEADLINE, is_ready)
    }

    /// Kills it as a crash does.
    ///
    /// # Errors
    /// It can't be killed.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()
    }

    /// Starts it again; does not wait until it is ready.
    ///
    /// # Errors
    /// The process can't be started.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.child = serve(&self.dir)?;
        Ok(())
    }

    /// Fails if it has ended.
    ///
    /// # Errors
    /// What it wrote last.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.child.check()
    }

    /// CPU time since its start; zero if it is gone.
    pub fn cpu(&self) -> Duration {
        self.child.cpu()
    }

    /// Where programs on this host connect.
    pub fn address(&self) -> String {
        format!("unix:{}", self.unix.display())
    }

    /// Asks its admin HTTP to do something.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<()> {
        let url = self.url(path);
        let request = if method == "PUT" { agent().put(&url) } else { agent().post(&url) };
        let mut answer = request.send_json(body)?;
        if !answer.status().is_success() {
            bail!("{}: {method} {path}: {}", self.place.name, answer.body_mut().read_to_string()?);
        }
        Ok(())
    }

    /// Makes another cluster known to it.
    ///
    /// # Errors
    /// As of [`ClusterNode::ask`].
    pub fn add(&self, other: &Self) -> anyhow::Result<()> {
        let path = format!("/v1/clusters/{}", other.place.name);
        self.ask("PUT", &path, &json!({ "address": other.gateway.address.to_string() }))
    }

    /// Whether it has a stream.
    pub fn has(&self, stream: &str) -> bool {
        let answer = agent().get(self.url(&format!("/v1/streams/{stream}"))).call();
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin)
    }
}

fn serve(dir: &Path) -> anyhow::Result<Child> {
    Child::start("node", &["serve", "--config", &dir.join("node.toml").display().to_string()], dir)
}
