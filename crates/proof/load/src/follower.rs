//! What the load reads one shard with outside of its processes of consumers: our own client library, or Kafka's
//! protocol.

use tailwater_client::{Client, ClientConfig, Consumer, ConsumerConfig, Start};
use tailwater_env::Env;

use crate::address::LoadAddress;
use crate::kafka::consumer::PartitionReader;
use crate::messages::MessageProtocol;

/// A reader of shard 0, of either kind.
pub enum LoadFollower {
    /// Our own, one-sided.
    Own(Box<Consumer>),
    /// In Kafka's protocol.
    Kafka(Box<PartitionReader>),
}

impl LoadFollower {
    /// Connects to the server at `address`, to read `stream` from an offset on, or from its end.
    pub async fn connect(
        protocol: MessageProtocol,
        address: &LoadAddress,
        stream: &str,
        from: Option<u64>,
        config: ClientConfig,
    ) -> anyhow::Result<Self> {
        if protocol == MessageProtocol::Kafka {
            return Ok(Self::Kafka(Box::new(PartitionReader::open(address, stream, 0, from).await?)));
        }
        let client = Client::connect_with(Env::real(), &address.address, config).await?;
        let start = from.map_or(Start::End, |offset| Start::Offset(tailwater_format::Offset(offset)));
        let consumer = client.consumer(stream, ConsumerConfig { shards: vec![0], start }).await?;
        Ok(Self::Own(Box::new(consumer)))
    }

    /// Hands out the values that come next; there may be none. Whoever gets an error may connect again from
    /// [`LoadFollower::next_offset`] on.
    pub async fn next(&mut self, mut each: impl FnMut(&[u8])) -> anyhow::Result<()> {
        match self {
            Self::Own(consumer) => {
                if let Some(batch) = consumer.next().await? {
                    batch.records().for_each(|record| each(record.value.unwrap_or_default()));
                }
                Ok(())
            }
            Self::Kafka(reader) => reader.next(each).await,
        }
    }

    /// The offset of the record that comes next.
    pub fn next_offset(&self) -> u64 {
        match self {
            Self::Own(consumer) => consumer.offsets().next().map_or(0, |(_, offset)| offset.0),
            Self::Kafka(reader) => reader.next_offset(),
        }
    }
}
