//! Nodes that go by rules, and how they are asked.

#![allow(dead_code)] // each test uses some of it

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use tailwater_access::Peer;
use tailwater_env::Env;
use tailwater_journal::{Journal, JournalConfig};
use tailwater_meta::{Meta, MetaConfig, Recovery};
use tailwater_permissions::{AccessRule, Effect, Enforcement, Operation, ResourceKind, Rules};

pub fn asked(address: SocketAddr, method: &str, path: &str, head: &str, body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).unwrap();
    let whole = format!(
        "{method} {path} HTTP/1.1\r\nhost: node\r\n{head}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(whole.as_bytes()).unwrap();
    socket
}

/// A request of nobody known, and its answer.
pub fn anybody(address: SocketAddr, method: &str, path: &str, body: &str) -> String {
    let head = "content-type: application/json\r\nconnection: close\r\n";
    rest(&mut asked(address, method, path, head, body))
}

/// What comes until the connection ends.
pub fn rest(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Lets somebody do this.
pub fn rule(principal: &str, operation: Operation, kind: ResourceKind, name: &str) -> AccessRule {
    AccessRule {
        principal: principal.to_owned(),
        effect: Effect::Allow,
        operation,
        kind,
        name: name.to_owned(),
        is_prefix: false,
        host: "*".to_owned(),
    }
}

/// Rules that are enforced, in metadata of their own below `dir`.
pub async fn enforced(env: &Env, dir: &Path, all: Vec<AccessRule>) -> Arc<Rules> {
    let mut recovery = Recovery::begin(env, &dir.join("meta")).unwrap();
    let mut replay = |_, position, bytes: &[u8]| recovery.replay(position, bytes);
    let config = JournalConfig { file_bytes: 16 << 20, ..JournalConfig::default() };
    let journal = Journal::open(env, &dir.join("journal"), config, &mut replay).unwrap();
    let meta: Arc<dyn Meta> = Arc::new(recovery.finish(env, journal, MetaConfig::default()));
    let own = rustix::process::geteuid().as_raw();
    let rules = Rules::new(env, Enforcement::Enforce, vec![Peer::principal_of_uid(own)], None);
    rules.keep_in(meta).await.unwrap();
    rules.add(all).await.unwrap();
    rules
}
