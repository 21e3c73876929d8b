//! A broker in this process, and a client that sends what it is told to.

#![allow(dead_code, clippy::disallowed_methods)] // each test binary uses a part of it, of the real world

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_access::{Authorizer, Everybody};
use tailwater_env::Env;
use tailwater_format::{BatchBuilder, BatchError, Codec, Producer};
use tailwater_kafka::api::ApiRequest;
use tailwater_kafka::messages::header::{read_response, request};
use tailwater_kafka::{Broker, KafkaConfig, Server};
use tailwater_log::{Log, LogConfig};

/// How long an answer is waited for: for machines that are very busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// Tailwater in this process, on a directory of its own.
pub struct Tailwater {
    running: Option<Running>,
    config: KafkaConfig,
    authorizer: Arc<dyn Authorizer>,
    dir: tempfile::TempDir,
}

struct Running {
    server: Server,
    log: Log,
    env: Env,
    runtime: tokio::runtime::Runtime,
}

impl Tailwater {
    pub fn start(config: KafkaConfig) -> Self {
        Self::start_for(config, Arc::new(Everybody))
    }

    /// The same for those whom `authorizer` lets.
    pub fn start_for(config: KafkaConfig, authorizer: Arc<dyn Authorizer>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let running = Some(Running::start(config.clone(), dir.path(), Arc::clone(&authorizer)));
        Self { running, config, authorizer, dir }
    }

    /// Ends it and starts it again on its directory, at another address.
    pub fn restart(&mut self) {
        self.end();
        let authorizer = Arc::clone(&self.authorizer);
        self.running = Some(Running::start(self.config.clone(), self.dir.path(), authorizer));
    }

    /// What is still under way then ends with the runtime.
    fn end(&mut self) {
        let Some(Running { server, log, runtime, .. }) = self.running.take() else { return };
        let context = runtime.enter();
        drop(server);
        runtime.block_on(log.close());
        drop(context);
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    pub fn address(&self) -> SocketAddr {
        self.addresses()[0]
    }

    /// Of all its listeners.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.running().server.addresses()
    }

    /// The clock, in ms.
    pub fn now(&self) -> i64 {
        self.running().env.wall_ms()
    }

    pub fn broker(&self) -> &Broker {
        self.running().server.broker()
    }
}

impl Running {
    fn start(config: KafkaConfig, dir: &std::path::Path, authorizer: Arc<dyn Authorizer>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (env, log, server) = runtime.block_on(async {
            let env = Env::real();
            let mut log_config = LogConfig { hot_bytes: config.hot_bytes, ..LogConfig::default() };
            log_config.journal.file_bytes = 16 << 20;
            log_config.journal.files_max = 8;
            let log = Log::open(&env, log_config, dir, None).await.expect("opened");
            let mut listeners = Vec::new();
            for listener in config.all_listeners() {
                // Any port, whatever is configured.
                let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
                listeners.push((socket, listener));
            }
            let broker = Broker::open(&env, config, log.clone(), "tailwater".to_owned(), authorizer, None);
            let broker = broker.await.expect("a broker");
            let server = Server::start(listeners, broker).expect("it listens");
            (env, log, server)
        });
        Self { server, log, env, runtime }
    }
}

impl Drop for Tailwater {
    fn drop(&mut self) {
        self.end();
    }
}

/// A connection to a broker.
pub struct Client {
    address: SocketAddr,
    stream: TcpStream,
    correlation_id: i32,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self { address, stream, correlation_id: 0 }
    }

    /// The answer to a request; `None` if the broker closes the connection instead, after which there is a new one.
    pub fn ask<R: ApiRequest>(&mut self, version: i16, asked: &R) -> Option<R::Response> {
        let frame = self.frame(version, asked);
        let answer = self.exchange(&frame)?;
        Some(self.read::<R>(version, answer))
    }

    /// Sends a request, and waits for nothing.
    pub fn begin<R: ApiRequest>(&mut self, version: i16, asked: &R) {
        let frame = self.frame(version, asked);
        self.send(&frame).expect("it is sent");
    }

    /// The answer to what was begun.
    pub fn end<R: ApiRequest>(&mut self, version: i16) -> R::Response {
        let answer = self.receive().expect("an answer");
        self.read::<R>(version, answer)
    }

    fn frame<R: ApiRequest>(&mut self, version: i16, asked: &R) -> Vec<u8> {
        self.correlation_id += 1;
        request(asked, version, self.correlation_id, "test").concat().to_vec()
    }

    fn read<R: ApiRequest>(&self, version: i16, answer: Bytes) -> R::Response {
        let (id, answer) = read_response(R::API, version, answer).unwrap_or_else(|error| {
            panic!("the answer to {} {version} can't be read: {error}", R::API.name())
        });
        assert_eq!(id, self.correlation_id);
        answer
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends what it is; the frame that is answered, without its length.
    pub fn exchange(&mut self, frame: &[u8]) -> Option<Bytes> {
        let answer = self.send(frame).and_then(|()| self.receive());
        match answer {
            Ok(answer) => Some(answer),
            Err(error) if is_closed(&error) => {
                *self = Self { correlation_id: self.correlation_id, ..Self::connect(self.address) };
                None
            }
            Err(error) => panic!("no answer: {error}"),
        }
    }

    pub fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.stream.write_all(frame)
    }

    pub fn receive(&mut self) -> io::Result<Bytes> {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len)?;
        let mut answer = vec![0; u32::from_be_bytes(len) as usize];
        self.stream.read_exact(&mut answer)?;
        Ok(answer.into())
    }
}

pub fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe | ConnectionAborted)
}

/// A batch of records with these timestamps.
pub fn batch(timestamps: &[i64], codec: Codec, producer: Option<(i64, i16, i32)>) -> Bytes {
    let mut builder = BatchBuilder::new();
    for (number, timestamp) in timestamps.iter().enumerate() {
        let value = format!("value {number}");
        builder.append(Some(b"key"), Some(value.as_bytes()), &[], *timestamp).expect("small");
    }
    if let Some((id, epoch, base_sequence)) = producer {
        builder.set_producer(Producer { id, epoch, base_sequence });
    }
    builder.finish(codec)
}

/// The batch with other bytes somewhere, and a checksum that fits them.
pub fn changed(batch: &Bytes, at: usize, bytes: &[u8]) -> Bytes {
    let mut changed = batch.to_vec();
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    if let Err(BatchError::Crc { computed, .. }) = tailwater_format::Batch::validate(&changed, usize::MAX) {
        changed[17..21].copy_from_slice(&computed.to_be_bytes());
    }
    changed.into()
}

/// Reads partition 0 of a topic to its end; its records, each of which has to be readable.
pub fn read_all(client: &mut Client, name: &str, topic_id: uuid::Uuid) -> usize {
    use tailwater_kafka::messages::fetch::{FetchPartition, FetchRequest, FetchTopic};
    let (mut offset, mut count) = (0, 0);
    loop {
        let partition =
            FetchPartition { fetch_offset: offset, partition_max_bytes: 1 << 20, ..Default::default() };
        let topic = FetchTopic { topic: name.to_owned(), topic_id, partitions: vec![partition] };
        let asked = FetchRequest { topics: vec![topic], ..Default::default() };
        let mut answer = client.ask(12, &asked).expect("an answer");
        let partition = answer.responses[0].partitions.remove(0);
        assert_eq!(partition.error_code, 0);
        if partition.high_watermark == offset {
            return count;
        }
        let bytes = partition.records.into_bytes();
        let mut decompressor = tailwater_format::Decompressor::new();
        for batch in tailwater_format::batches(&bytes) {
            let batch = batch.expect("whole");
            batch.check_crc().expect("a right checksum");
            for record in batch.records(&mut decompressor, 64 << 20).expect("readable") {
                record.expect("readable");
                count += 1;
            }
            offset = batch.header().next_offset().0 as i64;
        }
    }
}
