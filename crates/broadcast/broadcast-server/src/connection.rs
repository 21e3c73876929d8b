//! Accepted connections, and what both kinds have in common.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tailwater_access::Denied;
use tailwater_broadcast::frame::{self, Arrivals, FrameReader, FrameWriter};
use tailwater_broadcast::message::{FRAME_BYTES_MAX, Message, Role, VERSION};
use tailwater_broadcast::name::is_region;
use tailwater_broadcast::replica::{ConnectionId, Peer, size_of_message};
use tailwater_env::{Complaints, Env, TaskGroup};
use tailwater_tls::{PeerReadHalf, PeerStream, PeerWriteHalf};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};

use crate::gate::ReplicaGate;
use crate::inputs::{Inputs, Intake};
use crate::pace::{Quotas, ReplicaPace};
use crate::{ReplicaInput, ReplicaServerConfig};

/// A pause after the system had no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the other end may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a hello.
const HELLO_BYTES_MAX: usize = 1 << 10;
/// Bytes of all large messages of clients that are on their way here, and how long a step of one may take.
const ARRIVALS_BYTES_MAX: usize = 64 << 20;
const ARRIVAL_STEP: Duration = Duration::from_secs(5);
/// Bytes after which a writer writes what it gathered.
const WRITE_BYTES: usize = 512 << 10;

/// Every connection of this process has its own number.
pub(crate) fn next_id() -> ConnectionId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Takes connections until it is dropped; then they end.
pub(crate) async fn accept(
    env: Env,
    listener: TcpListener,
    hello: Message,
    config: ReplicaServerConfig,
    inputs: Inputs,
) {
    let ReplicaServerConfig { connections_max, quotas, authorizer, acceptor, .. } = config;
    let room = Arc::new(Semaphore::new(connections_max));
    let arrivals = Arrivals::new(&env, ARRIVALS_BYTES_MAX, ARRIVAL_STEP);
    let complaints = Arc::new(Complaints::default());
    let mut connections = TaskGroup::default();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(left_out) = complaints.admit(env.now(), "not accepted") {
                    tracing::warn!(%error, left_out, "no connection can be accepted at the moment");
                }
                env.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            if let Some(left_out) = complaints.admit(env.now(), "too many connections") {
                let max = connections_max;
                tracing::warn!(%peer, max, left_out, "refused: [broadcast] connections_max are open");
            }
            continue;
        };
        let (env_, hello, inputs, quotas) = (env.clone(), hello.clone(), inputs.clone(), quotas.clone());
        let (acceptor, authorizer) = (acceptor.clone(), Arc::clone(&authorizer));
        let arrivals = arrivals.clone();
        let complaints = Arc::clone(&complaints);
        connections.spawn(&env, "broadcast-connection", async move {
            // The acceptor says in the log what came to nothing.
            let Some(stream) = acceptor.accept(stream, peer).await else { return };
            let gate = ReplicaGate::new(authorizer, stream.peer(peer.to_string()));
            let ended = accepted(&env_, stream, hello, &inputs, (quotas, arrivals), gate).await;
            if let Err(error) = ended
                && let Some(left_out) = complaints.admit(env_.now(), "ended")
            {
                tracing::warn!(%peer, %error, left_out, "a broadcast connection was ended");
            }
            drop(permit);
        });
    }
}

async fn accepted(
    env: &Env,
    stream: PeerStream,
    hello: Message,
    inputs: &Inputs,
    (quotas, arrivals): (Option<Arc<Quotas>>, Arrivals),
    gate: ReplicaGate,
) -> anyhow::Result<()> {
    let (mut reader, mut writer) = frame::split(stream)?;
    reader.set_longest(HELLO_BYTES_MAX);
    let first = env.timeout(HELLO_TIMEOUT, reader.next()).await;
    let Some(first) = first else { anyhow::bail!("it said no hello within {HELLO_TIMEOUT:?}") };
    let (region, role) = match first? {
        Some(Message::Hello { version: VERSION, region, role }) if is_region(&region) => (region, role),
        Some(Message::Hello { version, region, .. }) => {
            // So that it can say the same.
            writer.send(&hello).await?;
            anyhow::bail!("its hello is of version {version}, region {region:?}; wanted is version {VERSION}")
        }
        Some(_) => anyhow::bail!("its first message is no hello"),
        None => return Ok(()),
    };
    gate.admit(&role)?;
    writer.send(&hello).await?;
    reader.set_longest(FRAME_BYTES_MAX);
    let is_client = matches!(role, Role::Client(_));
    let reader = if is_client { reader.within(arrivals) } else { reader };
    let peer = Peer::In(region, role);
    let pace = quotas.and_then(|quotas| quotas.pace(&peer));
    run(env, peer, None, reader, writer, inputs, (None, pace, Some(gate))).await
}

/// Serves a connection until it ends. `silence`: how long the other end may say nothing; `pace`: what its publishes
/// wait for; `gate`: says what whoever connected here may do.
pub(crate) async fn run(
    env: &Env,
    peer: Peer,
    address: Option<String>,
    mut reader: FrameReader<PeerReadHalf>,
    writer: FrameWriter<PeerWriteHalf>,
    inputs: &Inputs,
    (silence, mut pace, gate): (Option<Duration>, Option<ReplicaPace>, Option<ReplicaGate>),
) -> anyhow::Result<()> {
    let id = next_id();
    let is_client = matches!(peer, Peer::In(_, Role::Client(_)));
    let inputs = inputs.of_connection(&peer);
    let (outbox, messages) = mpsc::unbounded_channel();
    let opened = ReplicaInput::Opened { id, peer, address, writer: outbox };
    inputs.send(opened).await.map_err(|_| anyhow::anyhow!("the replica has ended"))?;
    let reading = async {
        loop {
            let next = match silence {
                None => match &mut pace {
                    None => reader.next().await?,
                    Some(pace) => paced(&mut reader, pace).await?,
                },
                Some(limit) => match reader.next_unless_silent(env, limit).await {
                    Some(next) => next?,
                    None => anyhow::bail!("it said nothing for {limit:?}"),
                },
            };
            let Some(message) = next else { return Ok(()) };
            // What another replica hands on was allowed where it came from.
            if let Some(Err(denied)) = gate.as_ref().filter(|_| is_client).map(|gate| gate.check(&message)) {
                // Who may not listen finds that out by the connection's end.
                let Message::Publish { stream, first, .. } = message else { return Err(denied.into()) };
                if inputs.send(ReplicaInput::Denied(id, stream, first, denied)).await.is_err() {
                    return Ok(());
                }
                continue;
            }
            if !inputs.message(id, message).await {
                return Ok(());
            }
        }
    };
    let result = tokio::select! {
        result = reading => result,
        result = write(id, messages, writer, &inputs) => result,
        denied = revoked(gate.as_ref()) => Err(denied.into()),
    };
    let _ = inputs.send(ReplicaInput::Closed(id)).await;
    result
}

/// Completes when whoever connected may not go on.
async fn revoked(gate: Option<&ReplicaGate>) -> Denied {
    match gate {
        Some(gate) => gate.revoked().await,
        None => std::future::pending().await,
    }
}

/// The next message that may go on to the replica; `None` at the connection's end.
async fn paced(
    reader: &mut FrameReader<PeerReadHalf>,
    pace: &mut ReplicaPace,
) -> anyhow::Result<Option<Message>> {
    loop {
        let has_room = pace.has_room();
        let message = tokio::select! {
            message = pace.next() => return Ok(Some(message)),
            message = reader.next(), if has_room => message?,
        };
        let Some(message) = message else { return Ok(None) };
        if let Some(message) = pace.take(message) {
            return Ok(Some(message));
        }
    }
}

/// Writes what the replica has for a connection; ends when the replica drops it, whether or not the other end reads.
async fn write(
    id: ConnectionId,
    mut messages: mpsc::UnboundedReceiver<Message>,
    mut writer: FrameWriter<PeerWriteHalf>,
    inputs: &Intake,
) -> anyhow::Result<()> {
    let mut gathered = VecDeque::new();
    loop {
        // What came while the last ones were written, or the next one.
        if gathered.is_empty() {
            let Some(message) = messages.recv().await else { break };
            gathered.push_back(message);
        }
        let (mut left, mut bytes) = (0, 0);
        while bytes < WRITE_BYTES
            && let Some(message) = gathered.pop_front().or_else(|| messages.try_recv().ok())
        {
            left += size_of_message(&message);
            bytes = writer.add(&message);
        }
        if !writer.flush_while(&mut messages, &mut gathered).await? {
            break;
        }
        if inputs.send(ReplicaInput::Drained(id, left)).await.is_err() {
            break;
        }
    }
    Ok(())
}
