//! The connections of readers: who follows which shards, who was greeted, and who has which arenas.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tailwater_env::{Env, Task};
use tailwater_format::ShardId;
use tailwater_rma::{PassingListener, PassingSocket};
use tailwater_tail::window::{FRAME_BYTES, WindowFrame, WindowRequest};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::limits::{ARENAS_UNTAKEN_MAX, READERS_MAX, REQUESTS_MAX, SHARDS_OF_READER_MAX};
use crate::publisher::ArenaPublisher;

/// After accepting failed, as where no more files can be opened.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What readers want.
pub(crate) enum ReaderAsked {
    /// One has connected.
    Come(PassingSocket),
    /// One follows a shard.
    Follow(u64, ShardId),
    /// Not any more.
    Leave(u64, ShardId),
    /// One is gone.
    Gone(u64),
}

/// What the tasks that read sockets tell.
enum ReaderTold {
    Come(PassingSocket),
    Said(u64, WindowRequest),
    Gone(u64),
}

struct ReaderConnection {
    socket: Arc<PassingSocket>,
    /// Whether it has the notice, and is woken by what is published.
    is_greeted: bool,
    follows: BTreeSet<ShardId>,
    /// Arenas that it has not said that it has.
    untaken: usize,
    /// Ends with the connection.
    _task: Task,
}

/// All readers that are connected.
pub(crate) struct ReaderConnections {
    env: Env,
    node: [u8; 16],
    readers: BTreeMap<u64, ReaderConnection>,
    next: u64,
    sender: Sender<ReaderTold>,
    told: Receiver<ReaderTold>,
    _accept: Task,
}

impl ReaderConnections {
    pub(crate) fn new(env: &Env, listener: PassingListener, node: [u8; 16]) -> Self {
        let (sender, told) = channel(REQUESTS_MAX);
        let accept = env.spawn("window-accept", accept(env.clone(), listener, sender.clone()));
        let readers = BTreeMap::new();
        Self { env: env.clone(), node, readers, next: 0, sender, told, _accept: accept }
    }

    /// How many are connected.
    pub(crate) fn count(&self) -> usize {
        self.readers.len()
    }

    /// How many are woken by what is published.
    pub(crate) fn greeted(&self) -> usize {
        self.readers.values().filter(|reader| reader.is_greeted).count()
    }

    /// The next thing that a reader wants. Cancelling it loses nothing.
    pub(crate) async fn next(&mut self) -> ReaderAsked {
        loop {
            match self.told.recv().await.expect("this has a sender") {
                ReaderTold::Come(socket) => return ReaderAsked::Come(socket),
                ReaderTold::Gone(reader) => return ReaderAsked::Gone(reader),
                ReaderTold::Said(reader, WindowRequest::Follow(shard)) => {
                    return ReaderAsked::Follow(reader, shard);
                }
                ReaderTold::Said(reader, WindowRequest::Leave(shard)) => {
                    return ReaderAsked::Leave(reader, shard);
                }
                ReaderTold::Said(reader, WindowRequest::Took(_)) => {
                    if let Some(reader) = self.readers.get_mut(&reader) {
                        reader.untaken = reader.untaken.saturating_sub(1);
                    }
                }
            }
        }
    }

    /// Takes a connection, if it is of this user and there is room.
    pub(crate) fn admit(&mut self, socket: PassingSocket) {
        if self.readers.len() >= READERS_MAX {
            tracing::warn!(
                readers = READERS_MAX,
                "the window has no room for another reader, which reads by itself"
            );
            return;
        }
        if let Err(why) = socket.same_user() {
            tracing::warn!(%why, "a reader is refused");
            return;
        }
        let reader = self.next;
        self.next += 1;
        let socket = Arc::new(socket);
        let task = self.env.spawn("window-reader", listen(reader, Arc::clone(&socket), self.sender.clone()));
        let (is_greeted, follows) = (false, BTreeSet::new());
        let connection = ReaderConnection { socket, is_greeted, follows, untaken: 0, _task: task };
        self.readers.insert(reader, connection);
    }

    /// Greets a reader that follows a shard which is fed, unless that was done.
    pub(crate) fn greet(&mut self, reader: u64, publisher: &ArenaPublisher) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.greet(self.node, publisher);
        }
    }

    /// Greets whoever follows a shard that is fed now.
    pub(crate) fn greet_followers(&mut self, shard: ShardId, publisher: &ArenaPublisher) {
        for reader in self.readers.values_mut().filter(|reader| reader.follows.contains(&shard)) {
            reader.greet(self.node, publisher);
        }
    }

    /// A reader follows a shard; whether that is new.
    pub(crate) fn follows(&mut self, reader: u64, shard: ShardId) -> bool {
        let Some(reader) = self.readers.get_mut(&reader) else { return false };
        reader.follows.len() < SHARDS_OF_READER_MAX && reader.follows.insert(shard)
    }

    /// A reader leaves a shard; whether it had followed it.
    pub(crate) fn leaves(&mut self, reader: u64, shard: ShardId) -> bool {
        self.readers.get_mut(&reader).is_some_and(|reader| reader.follows.remove(&shard))
    }

    /// A reader is gone; what it had followed.
    pub(crate) fn gone(&mut self, reader: u64) -> BTreeSet<ShardId> {
        self.readers.remove(&reader).map(|reader| reader.follows).unwrap_or_default()
    }

    /// Passes a new arena to all that were greeted. Who does not take them is hung up on, and said to be gone like
    /// others.
    pub(crate) fn pass(&mut self, publisher: &ArenaPublisher) {
        let (number, arena) = publisher.arena();
        for (id, reader) in self.readers.iter_mut().filter(|(_, reader)| reader.is_greeted) {
            reader.untaken += 1;
            if reader.untaken <= ARENAS_UNTAKEN_MAX
                && send(&reader.socket, WindowFrame::Arena(number), arena).is_ok()
            {
                continue;
            }
            tracing::debug!(reader = id, "a reader does not take its arenas: it is hung up on");
            reader.socket.hang_up();
        }
    }
}

impl ReaderConnection {
    /// Gives the notice, its bell and the arena that is filled now.
    fn greet(&mut self, node: [u8; 16], publisher: &ArenaPublisher) {
        if self.is_greeted {
            return;
        }
        self.is_greeted = true;
        self.untaken = 1;
        let notice = WindowFrame::Notice { node, from: publisher.position() };
        let (number, arena) = publisher.arena();
        let (page, bell) = publisher.notice();
        // The buffer of a socket that nothing was sent to has room for all.
        let sent = send(&self.socket, notice, page)
            .and_then(|()| send(&self.socket, WindowFrame::Bell, bell))
            .and_then(|()| send(&self.socket, WindowFrame::Arena(number), arena));
        if let Err(why) = sent {
            tracing::debug!(%why, "a reader left before it was greeted");
            self.socket.hang_up();
        }
    }
}

/// Sends a frame with its file, all of it or not at all.
fn send(
    socket: &PassingSocket,
    frame: WindowFrame,
    file: std::os::fd::BorrowedFd<'_>,
) -> std::io::Result<()> {
    // A frame is so short that a socket takes all of it or nothing.
    match socket.try_send(&frame.encode(), &[file])? {
        FRAME_BYTES => Ok(()),
        _ => Err(std::io::ErrorKind::WriteZero.into()),
    }
}

async fn accept(env: Env, listener: PassingListener, told: Sender<ReaderTold>) {
    loop {
        match listener.accept().await {
            Ok(socket) => {
                if told.send(ReaderTold::Come(socket)).await.is_err() {
                    return;
                }
            }
            Err(why) => {
                tracing::warn!(%why, "the window can't take a reader");
                env.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Hands on what a reader says, until it ends or says what no reader does.
async fn listen(reader: u64, socket: Arc<PassingSocket>, told: Sender<ReaderTold>) {
    let mut bytes: Vec<u8> = Vec::new();
    let mut buffer = [0; 64 * FRAME_BYTES];
    'connected: while let Ok(received @ 1..) = socket.receive(&mut buffer, &mut Vec::new()).await {
        bytes.extend_from_slice(&buffer[..received]);
        while let Some(frame) = bytes.first_chunk::<FRAME_BYTES>() {
            let request = WindowRequest::decode(frame);
            bytes.drain(..FRAME_BYTES);
            match request {
                Ok(request) if told.send(ReaderTold::Said(reader, request)).await.is_ok() => {}
                _ => break 'connected,
            }
        }
    }
    // The window itself is gone otherwise.
    let _ = told.send(ReaderTold::Gone(reader)).await;
}
