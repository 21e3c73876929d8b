//! The peers' programs and servers.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::runner::{Missing, Runner};

/// How long a server may take to start: its own script gives it a minute.
const START: Duration = Duration::from_secs(120);

/// A system that Tailwater is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Apache Kafka.
    Kafka,
    /// NATS with JetStream.
    Nats,
    /// Aeron IPC.
    Aeron,
    /// Redis.
    Redis,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Peer::Kafka => "kafka",
            Peer::Nats => "nats",
            Peer::Aeron => "aeron",
            Peer::Redis => "redis",
        }
    }

    /// The file that its installation ends with, in `.tools`.
    fn installed(self) -> &'static str {
        match self {
            Peer::Kafka => "kafka/classes/KafkaBench.class",
            Peer::Nats => "nats/bin/nats-bench",
            Peer::Aeron => "aeron/classes/AeronFanout.class",
            Peer::Redis => "redis/wanted",
        }
    }

    /// Where its server listens.
    fn port(self) -> u16 {
        match self {
            Peer::Kafka => 9092,
            Peer::Nats => 4222,
            Peer::Redis => 6380,
            Peer::Aeron => 0, // it has none
        }
    }

    /// Whether it is there.
    pub fn check(self, root: &Path) -> Result<(), Missing> {
        if root.join(".tools").join(self.installed()).is_file() {
            return Ok(());
        }
        Err(Missing("not installed: make bench-peers".to_owned()))
    }

    /// A name with the version that was installed, if it was.
    pub fn title(self, name: &str, root: &Path) -> String {
        format!("{name} {}", self.version(root)).trim_end().to_owned()
    }

    /// The version that was installed, as its package calls it; empty if it is not there.
    fn version(self, root: &Path) -> String {
        let wanted = std::fs::read_to_string(root.join(".tools").join(self.name()).join("wanted"));
        let wanted = wanted.unwrap_or_default();
        let first = wanted.split_ascii_whitespace().next().unwrap_or_default();
        let version = first.rsplit([':', '@']).next().unwrap_or_default();
        version.trim_start_matches('v').to_owned()
    }
}

/// A server of a peer; it ends with this.
pub struct Server {
    peer: Peer,
    script: PathBuf,
    dir: PathBuf,
    pid: String,
}

impl Server {
    /// Starts one without data. With `fsync` it acknowledges what is on disk.
    pub fn start(runner: &mut Runner, peer: Peer, fsync: bool) -> anyhow::Result<Result<Self, Missing>> {
        if let Err(missing) = peer.check(runner.root()) {
            return Ok(Err(missing));
        }
        let name = peer.name();
        let mut server = Server {
            peer,
            script: runner.root().join("bench/peers").join(name),
            dir: runner.work().join(name),
            pid: String::new(),
        };
        let mut command = runner.command(&server.script);
        let fsync = if fsync { "1" } else { "0" };
        command.arg("start").arg(&server.dir).env(format!("{}_FSYNC", name.to_uppercase()), fsync);
        // From here on it is stopped, however far it came.
        if let Err(missing) = runner.call(&format!("{name}-start"), command, START)? {
            runner.keep_log(&format!("{name}-server"), &server.dir.join("log"));
            return Ok(Err(missing));
        }
        server.pid = std::fs::read_to_string(server.dir.join("pid"))?.trim().to_owned();
        Ok(Ok(server))
    }

    /// Loads it; `args` as the peer's program takes them, with two dashes.
    pub fn load(
        &self,
        runner: &mut Runner,
        label: &str,
        args: &[String],
        takes_s: u64,
    ) -> anyhow::Result<Result<serde_json::Value, Missing>> {
        let mut command = match self.peer {
            Peer::Kafka => java(runner, "kafka", "KafkaBench"),
            Peer::Nats => runner.command(&runner.root().join(".tools/nats/bin/nats-bench")),
            Peer::Aeron | Peer::Redis => anyhow::bail!("{} has no load of its own", self.peer.name()),
        };
        command.args(args).args(["--server-pid", &self.pid]);
        runner.run(label, command, takes_s)
    }

    /// Loads it by this program.
    pub fn load_broadcast(
        &self,
        runner: &mut Runner,
        label: &str,
        args: &[String],
        takes_s: u64,
    ) -> anyhow::Result<Result<serde_json::Value, Missing>> {
        let mut command = runner.command(&std::env::current_exe()?);
        command.arg("broadcast-peer").args(args);
        command.args(["--port", &self.peer.port().to_string(), "--server-pid", &self.pid]);
        runner.run(label, command, takes_s)
    }

    /// Stops it, and keeps its log.
    pub fn stop(self, runner: &mut Runner) {
        runner.keep_log(&format!("{}-server", self.peer.name()), &self.dir.join("log"));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut command = Command::new(&self.script);
        command.arg("stop").arg(&self.dir).stdin(Stdio::null()).stdout(Stdio::null());
        if !command.status().is_ok_and(|status| status.success()) {
            eprintln!("{} stop {} failed", self.script.display(), self.dir.display());
        }
        // The workspace that it is in is removed at the end.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A class of a peer, in a JVM with the peer's jars.
pub fn java(runner: &Runner, peer: &str, class: &str) -> Command {
    let mut command = runner.command(Path::new("java"));
    command.args(["--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED", "-cp"]);
    command.args([&format!(".tools/{peer}/classes:.tools/{peer}/lib/*"), class]);
    command
}

/// Words of a command line.
pub fn words(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_not_there_says_how_to_get_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let missing = Peer::Kafka.check(dir.path()).expect_err("nothing is there");
        assert_eq!(missing.0, "not installed: make bench-peers");
    }

    #[test]
    fn versions_are_those_that_were_installed() {
        let dir = tempfile::tempdir().expect("a directory");
        for (peer, wanted) in
            [("kafka", "org.apache.kafka:kafka_2.13:1.2.3 a:b:9"), ("nats", "github.com/x/v2@v2.0.1")]
        {
            std::fs::create_dir_all(dir.path().join(".tools").join(peer)).expect("made");
            std::fs::write(dir.path().join(".tools").join(peer).join("wanted"), wanted).expect("written");
        }
        assert_eq!(Peer::Kafka.version(dir.path()), "1.2.3");
        assert_eq!(Peer::Nats.version(dir.path()), "2.0.1");
        assert_eq!(Peer::Aeron.version(dir.path()), "");
    }
}
