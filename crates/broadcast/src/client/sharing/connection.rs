//! Connections of two listeners: each says hello and who it is, and then they talk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tailwater_env::{Env, Task};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

use super::outbox::{Written, outbox};
use super::{Input, LinkId};
use crate::client::link::{CLIENT, hello};
use crate::frame::{self, FrameReader, FrameWriter};
use crate::message::{Message, VERSION};
use crate::region::Member;

/// A pause after the system had no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the other end may take until it has said who it is.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// Every connection of this process has its own number.
pub(super) fn next_id() -> LinkId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Takes connections until it is dropped; then they end. Those beyond `links_max` are closed at once.
pub(super) async fn accept(
    env: Env,
    listener: TcpListener,
    me: Member,
    links_max: usize,
    inputs: mpsc::Sender<Input>,
) {
    let room = Arc::new(Semaphore::new(links_max));
    let mut connections: Vec<(std::sync::Weak<()>, Task)> = Vec::new();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "no connection of another listener can be accepted at the moment");
                env.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        connections.retain(|(alive, _)| alive.strong_count() > 0);
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let alive = Arc::new(());
        let watch = Arc::downgrade(&alive);
        let (env_, me, inputs) = (env.clone(), me.clone(), inputs.clone());
        let task = env.spawn("broadcast-sharing-link", async move {
            if let Err(error) = accepted(&env_, stream, &me, &inputs).await {
                tracing::debug!(%from, %error, "a connection of another listener was ended");
            }
            drop((alive, permit));
        });
        connections.push((watch, task));
    }
}

async fn accepted(
    env: &Env,
    stream: TcpStream,
    me: &Member,
    inputs: &mpsc::Sender<Input>,
) -> anyhow::Result<()> {
    let (reader, mut writer) = frame::split(stream)?;
    let mut reader = reader.sparing();
    let opening = async {
        let member = introduced(&mut reader).await?;
        greet(&mut writer, me);
        writer.flush().await?;
        anyhow::Ok(member)
    };
    let Some(member) = env.timeout(OPEN_TIMEOUT, opening).await else {
        anyhow::bail!("it did not say who it is within {OPEN_TIMEOUT:?}");
    };
    let member = member?;
    let link = next_id();
    let (outbox, written) = outbox();
    if inputs.send(Input::Opened { link, member, writer: outbox }).await.is_err() {
        return Ok(());
    }
    run(link, reader, writer, written, inputs).await
}

/// Connects to another listener, and says what waits for it.
pub(super) async fn dial(
    env: Env,
    link: LinkId,
    to: Member,
    me: Member,
    written: Written,
    inputs: mpsc::Sender<Input>,
) {
    let opening = async {
        let (reader, mut writer) = frame::split(TcpStream::connect(&*to.address).await?)?;
        let mut reader = reader.sparing();
        greet(&mut writer, &me);
        writer.flush().await?;
        let found = introduced(&mut reader).await?;
        anyhow::ensure!(found.id == to.id, "another one is there now");
        anyhow::Ok((reader, writer))
    };
    let ended = match env.timeout(OPEN_TIMEOUT, opening).await {
        Some(Ok((reader, writer))) => run(link, reader, writer, written, &inputs).await,
        Some(Err(error)) => Err(error),
        None => Err(anyhow::anyhow!("no answer within {OPEN_TIMEOUT:?}")),
    };
    if let Err(error) = ended {
        tracing::debug!(address = %to.address, %error, "a connection to another listener ended");
        let _ = inputs.send(Input::Closed(link)).await;
    }
}

fn greet(writer: &mut FrameWriter<OwnedWriteHalf>, me: &Member) {
    writer.add(&hello((u128::from(me.id), CLIENT)));
    writer.add(&Message::Share { member: me.clone(), positions: Vec::new() });
}

async fn introduced(reader: &mut FrameReader<OwnedReadHalf>) -> anyhow::Result<Member> {
    match reader.next().await? {
        Some(Message::Hello { version: VERSION, .. }) => {}
        other => anyhow::bail!("it said {other:?} instead of a hello of version {VERSION}"),
    }
    match reader.next().await? {
        Some(Message::Share { member, .. }) => Ok(member),
        other => anyhow::bail!("it said {other:?} instead of who it is"),
    }
}

/// Serves a connection until it ends, or the core task drops its writer.
async fn run(
    link: LinkId,
    mut reader: FrameReader<OwnedReadHalf>,
    writer: FrameWriter<OwnedWriteHalf>,
    written: Written,
    inputs: &mpsc::Sender<Input>,
) -> anyhow::Result<()> {
    let reading = async {
        while let Some(message) = reader.next().await? {
            if inputs.send(Input::Message(link, message)).await.is_err() {
                break;
            }
        }
        anyhow::Ok(())
    };
    let result = tokio::select! {
        biased;
        result = reading => result,
        result = written.write(link, writer, inputs) => result,
    };
    let _ = inputs.send(Input::Closed(link)).await;
    result
}
