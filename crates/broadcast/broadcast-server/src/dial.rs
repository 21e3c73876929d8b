//! Connections that this replica opens: to the replica before it in the chain, to the replicas of other regions
//! and to the configuration service. Each is opened again when it ends.

use std::time::Duration;

use tailwater_broadcast::frame;
use tailwater_broadcast::message::{Message, Role, VERSION};
use tailwater_broadcast::replica::Peer;
use tailwater_env::{Complaints, Env};
use tailwater_tls::{DialError, Dialer};

use crate::inputs::Inputs;
use crate::{SILENCE_MAX, connection};

/// The first pause between two tries.
const PAUSE: Duration = Duration::from_millis(50);
/// A connection that held for so long was a good one.
const SETTLED: Duration = Duration::from_secs(1);

/// How patient a replica is with whom it connects to.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// A try takes so long at most.
    connect: Duration,
    /// Pauses between two tries grow up to here, and some of them are half as long again.
    pause: Duration,
}

impl Patience {
    /// With replicas of other regions.
    pub(crate) const FAR: Self = Self { connect: Duration::from_secs(2), pause: Duration::from_secs(1) };

    /// With those of this region, where silence may last so long: one that starts again waits no longer than that for
    /// the others.
    pub(crate) fn near(silence_ms: u64) -> Self {
        let (least, most) = (Duration::from_millis(500), Self::FAR);
        let silence = Duration::from_millis(silence_ms);
        Self { connect: (silence / 2).clamp(least, most.connect), pause: (silence / 4).min(most.pause) }
    }
}

/// Keeps a connection to `address` until it is dropped.
pub(crate) async fn keep(
    env: Env,
    dialer: Dialer,
    address: String,
    patience: Patience,
    hello: Message,
    inputs: Inputs,
) {
    let complaints = Complaints::default();
    let mut pause = PAUSE;
    loop {
        let settled = env.now() + SETTLED;
        match once(&env, &dialer, &address, patience.connect, &hello, &inputs).await {
            Ok(()) => tracing::debug!(%address, "a connection to another replica ended"),
            Err(error) => {
                // No other try helps until somebody has changed something.
                if matches!(error.downcast_ref(), Some(DialError::Refused(_)))
                    && let Some(left_out) = complaints.admit(env.now(), "refused")
                {
                    tracing::warn!(%address, %error, left_out, "another replica can't be connected to");
                }
                tracing::debug!(%address, %error, "a connection to another replica ended");
            }
        }
        pause = if env.now() > settled { PAUSE } else { pause * 2 }.min(patience.pause);
        // Not all at the same moment.
        let jitter = env.random_below(pause.as_millis().max(1) as u64 / 2 + 1);
        env.sleep(pause + Duration::from_millis(jitter)).await;
    }
}

async fn once(
    env: &Env,
    dialer: &Dialer,
    address: &str,
    timeout: Duration,
    hello: &Message,
    inputs: &Inputs,
) -> anyhow::Result<()> {
    let connecting = async {
        let stream = dialer.connect(address).await?;
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
    let Some(connected) = env.timeout(timeout, connecting).await else {
        anyhow::bail!("no answer within {timeout:?}");
    };
    let (reader, writer, peer) = connected?;
    connection::run(
        env,
        peer,
        Some(address.to_owned()),
        reader,
        writer,
        inputs,
        (Some(SILENCE_MAX), None, None),
    )
    .await
}
