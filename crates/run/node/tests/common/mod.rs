//! Nodes, some of which go by rules, and how they are asked.

#![allow(dead_code)] // each test uses some of it

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use tailwater_access::Peer;
use tailwater_env::Env;
use tailwater_kafka_wire::api::ApiRequest;
use tailwater_kafka_wire::messages::header::{read_response, request};
use tailwater_node::Config;
use tailwater_permissions::{AccessRule, Effect, Enforcement, Operation, ResourceKind, Rules};
use tailwater_rma::{Address, ConnectError};

/// A node below `dir`, at ports that are free.
pub fn config(dir: &Path) -> Config {
    let free = || tailwater_load::free_address().unwrap();
    let mut config = Config { data: dir.join("node"), ..Config::default() };
    (config.listen.data, config.listen.admin) = (free(), free());
    (config.kafka.listen, config.broadcast.listen) = (free(), free());
    (config.broadcast.http.listen, config.sqs.listen) = (free(), free());
    config
}

/// A request of Kafka's, and its answer.
pub fn kafka<R: ApiRequest>(socket: &mut TcpStream, version: i16, asked: &R) -> R::Response {
    kafka_asked(socket, version, asked);
    kafka_answer::<R>(socket, version)
}

/// Makes a request of Kafka's, whose answer may come later.
pub fn kafka_asked<R: ApiRequest>(socket: &mut TcpStream, version: i16, asked: &R) {
    socket.write_all(&request(asked, version, 7, "test").concat()).unwrap();
}

/// The answer to it.
pub fn kafka_answer<R: ApiRequest>(socket: &mut TcpStream, version: i16) -> R::Response {
    let mut len = [0; 4];
    socket.read_exact(&mut len).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(len) as usize];
    socket.read_exact(&mut answer).unwrap();
    read_response(R::API, version, answer.into()).unwrap().1
}

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

/// Whether a cell lets somebody in who connects: a machine that stands still may not let it answer in time.
pub fn connected(runtime: &tokio::runtime::Runtime, env: &Env, cell: &Address) -> bool {
    for _ in 0..20 {
        match runtime.block_on(tailwater_rma::connect(env, cell)) {
            Err(ConnectError::Timeout { .. }) => {}
            other => return other.is_ok(),
        }
    }
    panic!("{cell} answers nobody");
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
    let (_, meta) = tailwater_meta::testing::open(env, dir);
    let own = rustix::process::geteuid().as_raw();
    let rules = Rules::new(env, Enforcement::Enforce, vec![Peer::principal_of_uid(own)], None);
    rules.keep_in(meta).await.unwrap();
    rules.add(all).await.unwrap();
    rules
}
