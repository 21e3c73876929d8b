//! Connections that this replica opens: to the replica before it in the chain, to the replicas of other regions
//! and to the configuration service. Each is opened again when it ends.

use std::time::Duration;

use tailwater_broadcast::frame;
use tailwater_broadcast::message::{Message, Role, VERSION};
use tailwater_broadcast::replica::Peer;
use tailwater_env::Env;
use tokio::net::TcpStream;

use crate::inputs::Inputs;
use crate::{SILENCE, connection};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pauses between two tries grow from the first to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Keeps a connection to `address` until it is dropped.
pub(crate) async fn keep(env: Env, address: String, hello: Message, inputs: Inputs) {
    let mut pause = PAUSES.0;
    loop {
        let settled = env.now() + PAUSES.1;
        match once(&env, &address, &hello, &inputs).await {
            Ok(()) => tracing::debug!(%address, "a connection to another replica ended"),
            Err(error) => tracing::debug!(%address, %error, "a connection to another replica ended"),
        }
        pause = if env.now() > settled { PAUSES.0 } else { (pause * 2).min(PAUSES.1) };
        // Not all at the same moment.
        let jitter = env.random_below(pause.as_millis().max(1) as u64 / 2 + 1);
        env.sleep(pause + Duration::from_millis(jitter)).await;
    }
}

async fn once(env: &Env, address: &str, hello: &Message, inputs: &Inputs) -> anyhow::Result<()> {
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        let (mut reader, mut writer) = frame::split(stream)?;
        writer.send(hello).await?;
        match reader.next().await? {
            Some(Message::Hello { version: VERSION, region, role: Role::Replica(id) }) => {
                Ok((reader, writer, Peer::Out(region, id)))
            }
            Some(Message::Hello { version, .. }) if version != VERSION => {
                tracing::warn!(address, version, "a replica speaks another version than {VERSION}");
                anyhow::bail!("it speaks version {version}, and this program version {VERSION}")
            }
            other => anyhow::bail!("it answered {other:?} instead of a replica's hello"),
        }
    };
    let Some(connected) = env.timeout(CONNECT_TIMEOUT, connecting).await else {
        anyhow::bail!("no answer within {CONNECT_TIMEOUT:?}");
    };
    let (reader, writer, peer) = connected?;
    connection::run(env, peer, Some(address.to_owned()), reader, writer, inputs, (Some(SILENCE), None, None))
        .await
}
