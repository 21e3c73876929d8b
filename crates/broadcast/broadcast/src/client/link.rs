//! A client's connection to the head or the tail of a region's chain.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tailwater_env::{Complaints, Env};
use tailwater_tls::{DialError, Dialer, PeerReadHalf, PeerWriteHalf};

use crate::frame::{self, FrameReader, FrameWriter};
use crate::message::{Chain, Message, PublisherId, Role, VERSION};

/// How long a replica may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Which end of the chain is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkEnd {
    Head,
    Tail,
}

/// Where the replicas of a region are, any of which is enough, and how they are reached.
#[derive(Clone, Debug, Default)]
pub struct ReplicasAt {
    addresses: Vec<String>,
    dialer: Dialer,
    complaints: Arc<Complaints>,
}

impl ReplicasAt {
    /// Their `HOST:PORT`s, and what makes the connections: in TLS, if it can.
    pub fn new(addresses: Vec<String>, dialer: Dialer) -> Self {
        Self { addresses, dialer, complaints: Arc::default() }
    }

    /// Their `HOST:PORT`s.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }
}

impl From<Vec<String>> for ReplicasAt {
    /// Reached without TLS.
    fn from(addresses: Vec<String>) -> Self {
        Self::new(addresses, Dialer::plain())
    }
}

/// An open connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) reader: FrameReader<PeerReadHalf>,
    pub(super) writer: FrameWriter<PeerWriteHalf>,
    /// The chain as this replica knows it.
    pub(super) chain: Chain,
    /// Where it leads.
    pub(super) address: String,
}

impl Chain {
    fn address_of(&self, end: LinkEnd) -> Option<&str> {
        let member = match end {
            LinkEnd::Head => self.members.first(),
            LinkEnd::Tail => self.members.last(),
        };
        member.map(|member| member.address.as_str())
    }
}

impl Link {
    /// Whether a chain still has this connection's replica at the wanted end.
    pub(super) fn is_at(&self, chain: &Chain, end: LinkEnd) -> bool {
        chain.address_of(end) == Some(self.address.as_str())
    }
}

/// The region that a client says it is of.
pub(super) const CLIENT: &str = "client";

/// Connects to an end of the chain that these replicas know; tries them in turn.
pub(super) async fn connect(
    env: &Env,
    at: &ReplicasAt,
    (client, region): (PublisherId, &str),
    end: LinkEnd,
) -> anyhow::Result<Link> {
    let mut last = anyhow::anyhow!("no address is given");
    let addresses = &at.addresses;
    let offset = env.random_below(addresses.len().max(1) as u64) as usize;
    for place in 0..addresses.len() {
        match open(env, at, &addresses[(place + offset) % addresses.len()], (client, region)).await {
            Ok(link) => match link.chain.address_of(end).map(str::to_owned) {
                Some(wanted) if wanted == link.address => return Ok(link),
                Some(wanted) => match open(env, at, &wanted, (client, region)).await {
                    Ok(link) => return Ok(link),
                    Err(error) => last = error,
                },
                None => last = anyhow::anyhow!("{} is in no chain yet", link.address),
            },
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What a client begins a connection with.
pub(super) fn hello((client, region): (PublisherId, &str)) -> Message {
    Message::Hello { version: VERSION, region: region.to_owned(), role: Role::Client(client) }
}

async fn open(
    env: &Env,
    at: &ReplicasAt,
    address: &str,
    client: (PublisherId, &str),
) -> anyhow::Result<Link> {
    let opening = async {
        let stream = at.dialer.connect(address).await.inspect_err(|error| {
            // No other try helps until somebody has changed something.
            if matches!(error, DialError::Refused(_))
                && let Some(left_out) = at.complaints.admit(env.now(), "refused")
            {
                tracing::warn!(address, %error, left_out, "a replica can't be connected to");
            }
        })?;
        let (mut reader, mut writer) = frame::split(stream)?;
        writer.send(&hello(client)).await?;
        match reader.next().await? {
            Some(Message::Hello { version: VERSION, .. }) => {}
            Some(Message::Hello { version, .. }) => {
                anyhow::bail!(
                    "{address} speaks version {version} of the protocol, and this program version {VERSION}"
                )
            }
            other => anyhow::bail!("{address} answered {other:?} instead of a hello"),
        }
        let Some(Message::Chain(chain)) = reader.next().await? else {
            anyhow::bail!("{address} did not tell its chain");
        };
        Ok(Link { reader, writer, chain, address: address.to_owned() })
    };
    match env.timeout(CONNECT_TIMEOUT, opening).await {
        Some(link) => link,
        None => anyhow::bail!("{address} did not answer within {CONNECT_TIMEOUT:?}"),
    }
}

/// The newest of a region's chains: those of a greater lineage come after all of a smaller one, however their epochs
/// are, as these may begin again with the configuration service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Newest {
    /// Its lineage; 0 if none is known.
    pub lineage: u64,
    /// Its epoch.
    pub epoch: u64,
}

impl From<&Chain> for Newest {
    fn from(chain: &Chain) -> Self {
        Self { lineage: chain.lineage, epoch: chain.epoch }
    }
}

/// The newest chain of which somebody was heard.
#[derive(Debug, Default)]
pub(super) struct Hears(Mutex<Newest>);

impl Hears {
    pub(super) fn new(since: Newest) -> Self {
        Self(Mutex::new(since))
    }

    pub(super) fn get(&self) -> Newest {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hear(&self, chain: &Chain) {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *newest = Newest::from(chain).max(*newest);
    }
}
