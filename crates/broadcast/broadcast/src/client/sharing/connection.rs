//! Connections of two listeners: each says hello and who it is, and then they talk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use tailwater_env::{Env, TaskGroup};
use tokio::sync::Semaphore;

use super::LinkId;
use super::inputs::{Input, SharingInputs};
use super::outbox::{OutboxWritten, outbox};
use super::socket::{self, Door, ReadHalf, WriteHalf};
use crate::client::link::{CLIENT, hello};
use crate::frame::FrameReader;
use crate::message::{Message, VERSION};
use crate::region::Member;

/// A pause after the system had no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Messages that are dealt with together.
const TOGETHER_MAX: usize = 256;
/// How long the other end may take until it has said who it is.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// Every connection of this process has its own number.
pub(super) fn next_id() -> LinkId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Takes connections until it is dropped; then they end. Those beyond `links_max` are closed at once.
pub(super) async fn accept(env: Env, door: Door, me: Member, links_max: usize, inputs: SharingInputs) {
    let room = Arc::new(Semaphore::new(links_max));
    let mut connections = TaskGroup::default();
    loop {
        let (reader, writer) = match door.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "no connection of another listener can be accepted at the moment");
                env.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let (env_, me, inputs) = (env.clone(), me.clone(), inputs.clone());
        connections.spawn(&env, "broadcast-sharing-link", async move {
            if let Err(error) = accepted(&env_, (reader, writer), &me, &inputs).await {
                tracing::debug!(%error, "a connection of another listener was ended");
            }
            drop(permit);
        });
    }
}

async fn accepted(
    env: &Env,
    (reader, writer): (ReadHalf, WriteHalf),
    me: &Member,
    inputs: &SharingInputs,
) -> anyhow::Result<()> {
    let mut reader = FrameReader::new(reader).sparing();
    let opening = async {
        let member = introduced(&mut reader).await?;
        writer.write_all(greeting(me)).await?;
        anyhow::Ok(member)
    };
    let Some(member) = env.timeout(OPEN_TIMEOUT, opening).await else {
        anyhow::bail!("it did not say who it is within {OPEN_TIMEOUT:?}");
    };
    let member = member?;
    let link = next_id();
    let (outbox, written) = outbox();
    if inputs.give([Input::Opened { link, member, writer: outbox }]).is_err() {
        return Ok(());
    }
    run(link, reader, writer, written, inputs).await
}

/// Connects to another listener, by a socket of this host if there is one and it may be, and says what waits for it.
pub(super) async fn dial(
    env: Env,
    link: LinkId,
    (to, host_sockets): (Member, bool),
    me: Member,
    written: OutboxWritten,
    inputs: SharingInputs,
) {
    let opening = async {
        let (reader, writer) = socket::connect(&to, host_sockets).await?;
        let mut reader = FrameReader::new(reader).sparing();
        writer.write_all(greeting(&me)).await?;
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
        let _ = inputs.give([Input::Closed(link)]);
    }
}

fn greeting(me: &Member) -> BytesMut {
    let mut bytes = BytesMut::new();
    hello((u128::from(me.id), CLIENT)).encode(&mut bytes);
    Message::Share { member: me.clone(), positions: Vec::new() }.encode(&mut bytes);
    bytes
}

async fn introduced(reader: &mut FrameReader<ReadHalf>) -> anyhow::Result<Member> {
    match reader.next().await? {
        Some(Message::Hello { version: VERSION, .. }) => {}
        other => anyhow::bail!("it said {other:?} instead of a hello of version {VERSION}"),
    }
    match reader.next().await? {
        Some(Message::Share { member, .. }) => Ok(member),
        other => anyhow::bail!("it said {other:?} instead of who it is"),
    }
}

/// Serves a connection until it ends, or the core drops its outbox.
async fn run(
    link: LinkId,
    mut reader: FrameReader<ReadHalf>,
    writer: WriteHalf,
    written: OutboxWritten,
    inputs: &SharingInputs,
) -> anyhow::Result<()> {
    let reading = async {
        let mut came = Vec::new();
        while let Some(message) = reader.next().await? {
            came.push(message);
            let rest = reader.take_buffered(&mut came, TOGETHER_MAX);
            if inputs.give(came.drain(..).map(|message| Input::Message(link, message))).is_err() {
                break;
            }
            rest?;
        }
        anyhow::Ok(())
    };
    let result = tokio::select! {
        biased;
        result = reading => result,
        result = written.write(link, writer, inputs) => result.map_err(Into::into),
    };
    let _ = inputs.give([Input::Closed(link)]);
    result
}
