//! What the load appends with: our own client library, or Kafka's protocol.

use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tailwater_client::{Client, ClientConfig, Error, Producer, ProducerSettings};
use tailwater_env::Env;

use crate::acks::AckCounts;
use crate::address::LoadAddress;
use crate::kafka;
use crate::messages::MessageProtocol;

/// How records gather.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Gathering {
    /// Bytes of records in one batch.
    pub batch_bytes: usize,
    /// How long a batch waits for more, in microseconds.
    pub linger_us: u64,
    /// Requests that wait for their answers, in Kafka's protocol; a broker remembers five batches of an idempotent
    /// producer.
    pub requests_in_flight: usize,
}

impl Default for Gathering {
    fn default() -> Self {
        Self { batch_bytes: 256 << 10, linger_us: 0, requests_in_flight: 5 }
    }
}

/// A producer of either kind; for one thread.
pub enum Appender {
    /// Our own.
    Own {
        /// What is sent with.
        producer: Producer,
        /// What was sent.
        acks: AckCounts,
    },
    /// In Kafka's protocol.
    Kafka(Box<kafka::producer::Producer>),
}

impl Appender {
    /// Connects to the server at `address`, for a stream of `shards` shards.
    pub async fn connect(
        protocol: MessageProtocol,
        address: &LoadAddress,
        stream: &str,
        shards: u32,
        gathering: Gathering,
    ) -> anyhow::Result<Self> {
        if protocol == MessageProtocol::Kafka {
            let producer = kafka::producer::Producer::connect(address, stream, shards, gathering).await?;
            return Ok(Self::Kafka(Box::new(producer)));
        }
        let (name, dialer) = ("bench-producer".to_owned(), address.dialer()?);
        let config = ClientConfig { name, dialer, ..ClientConfig::default() };
        let client = Client::connect_with(Env::real(), &address.address, config).await?;
        let config = ProducerSettings {
            batch_bytes: gathering.batch_bytes,
            linger: Duration::from_micros(gathering.linger_us),
            ..ProducerSettings::default()
        };
        Ok(Self::Own { producer: client.producer(stream, config).await?, acks: AckCounts::new(shards) })
    }

    /// Hands a record over, stamped `stamp_ns`; whether there was room for it.
    pub fn send(&mut self, shard: u32, record: &[u8], stamp_ns: u64) -> anyhow::Result<bool> {
        match self {
            Self::Kafka(producer) => producer.send(shard, record, stamp_ns),
            Self::Own { producer, acks } => match producer.send_to(shard, None, record) {
                Ok(ack) => {
                    acks.sent(shard, ack, stamp_ns);
                    Ok(true)
                }
                Err(Error::BufferFull { .. }) => Ok(false),
                Err(error) => Err(error).context("the producer can't append"),
            },
        }
    }

    /// Records that were sent and not acknowledged.
    pub fn in_flight(&self) -> usize {
        match self {
            Self::Own { acks, .. } => acks.in_flight(),
            Self::Kafka(producer) => producer.in_flight(),
        }
    }

    /// When the records of the next acknowledged batch were sent; waits for ever if nothing is in flight. May be
    /// dropped at any time.
    pub async fn next(&mut self) -> anyhow::Result<Vec<u64>> {
        match self {
            Self::Own { acks, .. } => acks.next().await.context("the producer can't append"),
            Self::Kafka(producer) => producer.next().await,
        }
    }

    /// The same, if there is one already.
    pub fn next_now(&mut self) -> anyhow::Result<Option<Vec<u64>>> {
        match self {
            Self::Own { acks, .. } => acks.next_now().transpose().context("the producer can't append"),
            Self::Kafka(producer) => Ok(producer.next_now()),
        }
    }

    /// Waits until a record was refused for want of room may find some.
    pub async fn room(&self) {
        match self {
            Self::Own { producer, .. } => producer.room().await,
            // It has room when acknowledgements come, which its caller waits for.
            Self::Kafka(_) => {}
        }
    }
}
