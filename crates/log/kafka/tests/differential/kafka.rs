//! Apache Kafka, one broker that is its own controller, in a process of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(180);

pub struct Kafka {
    child: Child,
    address: SocketAddr,
    dir: tempfile::TempDir,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn java(main: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx512m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", "-cp"]);
    command.arg(root().join(".tools/kafka/lib/*")).arg(main).args(arguments);
    command.stdin(Stdio::null());
    command
}

/// Starts what was prepared in a directory.
fn spawn(dir: &Path) -> Child {
    let output = std::fs::File::create(dir.join("log")).expect("a file");
    java("kafka.Kafka", &[&dir.join("server.properties").display().to_string()])
        .stdout(output.try_clone().expect("a file"))
        .stderr(output)
        .spawn()
        .expect("it starts")
}

impl Kafka {
    /// Installs it if it is not there, starts it, and waits until it is ready.
    pub fn start() -> Self {
        let done = Command::new(root().join("bench/peers/install")).arg("kafka").status().expect("it runs");
        assert!(done.success(), "Kafka can't be installed: see above");
        let dir = tempfile::tempdir().expect("a directory");
        let [port, controller] = [(); 2].map(|()| tailwater_load::free_address().expect("a port").port());
        let data = dir.path().join("data");
        let file = dir.path().join("server.properties");
        let properties = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n\
             offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n\
             broker.session.timeout.ms=600000\n\
             group.initial.rebalance.delay.ms=0\ngroup.consumer.assignor.offload.enable=false\n\
             group.consumer.min.assignment.interval.ms=0\ngroup.consumer.assignment.interval.ms=0\nlog.dirs={}\n",
            data.display()
        );
        std::fs::write(&file, properties).expect("written");
        let file = file.display().to_string();
        let format = ["format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", &file];
        let formatted = java("kafka.tools.StorageTool", &format).output().expect("it runs");
        assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
        let child = spawn(dir.path());
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut kafka = Self { child, address, dir };
        kafka.wait_until_ready();
        kafka
    }

    /// Ends it, so that it can say that it does, and starts it again: its controller would wait for the session of a
    /// broker that was killed.
    pub fn restart(&mut self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").arg(id).status().expect("it runs").success());
        self.child.wait().expect("it is ours");
        self.child = spawn(self.dir.path());
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        let start = Instant::now();
        while std::net::TcpStream::connect(self.address).is_err() {
            let ended = self.child.try_wait().expect("it is ours");
            let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            assert!(ended.is_none() && start.elapsed() < PATIENCE, "Kafka did not start:\n{}", log());
            // Between two looks at another process there is nothing to be woken by.
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
