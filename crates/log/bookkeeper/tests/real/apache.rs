//! Apache's client in Java, as a process that carries out one command.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cluster::{Cluster, script};

/// A run of Apache's client.
pub struct Java {
    child: Child,
    input: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Java {
    /// Carries out a command of `tests/java/Ledgers.java`.
    pub fn start(cluster: &Cluster, arguments: &[&str]) -> Self {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let log = File::create(cluster.dir.join(format!("java-{run}.log"))).expect("a log file");
        let mut command = script();
        command.arg("client").arg(&cluster.zookeeper).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("it starts");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Self { child, input, lines: BufReader::new(output).lines() }
    }

    /// Its next line.
    pub fn line(&mut self) -> String {
        self.lines.next().expect("it says more").expect("text")
    }

    /// The lines up to "done".
    pub fn rest(mut self) -> Vec<String> {
        let lines: Vec<String> = self.lines.by_ref().map(|line| line.expect("text")).collect();
        self.child.wait().expect("it ends");
        assert_eq!(lines.last().map(String::as_str), Some("done"), "{lines:?}");
        lines[..lines.len() - 1].to_vec()
    }

    /// Sends it a line.
    pub fn go_on(&mut self) {
        self.input.as_mut().expect("piped").write_all(b"\n").expect("it reads");
    }
}
