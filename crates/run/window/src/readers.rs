//! The connections of readers: who follows which shards, who was greeted, and who has which arenas.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tailwater_env::{Env, Task};
use tailwater_format::ShardId;
use tailwater_rma::{PassingListener, PassingSocket};
use tailwater_tail::window::{FRAME_BYTES, WindowFrame, WindowRequest};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::bells::BellTurns;
use crate::limits::{ARENAS_UNTAKEN_MAX, BELLS, READERS_MAX, REQUESTS_MAX, SHARDS_OF_READER_MAX};
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
    /// It was greeted: it has the notice, and this bell wakes it.
    bell: Option<usize>,
    follows: BTreeSet<ShardId>,
    /// The newest arena that it was passed.
    arena: u64,
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
    bells: BellTurns,
    /// The newest arena that all readers of each bell were passed.
    passed: [u64; BELLS],
    next: u64,
    sender: Sender<ReaderTold>,
    told: Receiver<ReaderTold>,
    _accept: Task,
}

impl ReaderConnections {
    pub(crate) fn new(env: &Env, listener: PassingListener, node: [u8; 16]) -> Self {
        let (sender, told) = channel(REQUESTS_MAX);
        let accept = env.spawn("window-accept", accept(env.clone(), listener, sender.clone()));
        let (readers, bells) = (BTreeMap::new(), BellTurns::new());
        let (env, passed) = (env.clone(), [0; BELLS]);
        Self { env, node, readers, bells, passed, next: 0, sender, told, _accept: accept }
    }

    /// How many are connected.
    pub(crate) fn count(&self) -> usize {
        self.readers.len()
    }

    /// How many are woken by what is published.
    pub(crate) fn greeted(&self) -> usize {
        self.readers.values().filter(|reader| reader.bell.is_some()).count()
    }

    /// The bells of those who were greeted.
    pub(crate) fn bells(&mut self) -> &mut BellTurns {
        &mut self.bells
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
        let (bell, follows) = (None, BTreeSet::new());
        let connection = ReaderConnection { socket, bell, follows, arena: 0, untaken: 0, _task: task };
        self.readers.insert(reader, connection);
    }

    /// Greets a reader that follows a shard which is fed, unless that was done.
    pub(crate) fn greet(&mut self, reader: u64, publisher: &ArenaPublisher) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.greet(self.node, publisher, &mut self.bells);
        }
    }

    /// Greets whoever follows a shard that is fed now.
    pub(crate) fn greet_followers(&mut self, shard: ShardId, publisher: &ArenaPublisher) {
        for reader in self.readers.values_mut().filter(|reader| reader.follows.contains(&shard)) {
            reader.greet(self.node, publisher, &mut self.bells);
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
        let Some(reader) = self.readers.remove(&reader) else { return BTreeSet::new() };
        if let Some(bell) = reader.bell {
            self.bells.take_back(bell);
        }
        reader.follows
    }

    /// Rings the bell whose turn it is, if it is due anywhere; whether one rang.
    pub(crate) fn ring_next(&mut self, publisher: &ArenaPublisher) -> bool {
        let Some(bell) = self.bells.next() else { return false };
        self.pass(bell, publisher);
        publisher.ring(bell);
        true
    }

    /// Passes the arena that is filled now to all that were greeted and don't have it yet.
    pub(crate) fn pass_to_all(&mut self, publisher: &ArenaPublisher) {
        (0..BELLS).for_each(|bell| self.pass(bell, publisher));
    }

    /// Passes the arena that is filled now to the readers of this bell. It wakes them, so it is passed when they are to
    /// be woken. Who does not take its arenas is hung up on, and said to be gone like others.
    fn pass(&mut self, bell: usize, publisher: &ArenaPublisher) {
        let (number, arena) = publisher.arena();
        if std::mem::replace(&mut self.passed[bell], number) == number {
            return;
        }
        let of_bell = self.readers.iter_mut().filter(|(_, reader)| reader.bell == Some(bell));
        for (id, reader) in of_bell.filter(|(_, reader)| reader.arena < number) {
            reader.arena = number;
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
    fn greet(&mut self, node: [u8; 16], publisher: &ArenaPublisher, bells: &mut BellTurns) {
        if self.bell.is_some() {
            return;
        }
        let bell = bells.give();
        self.bell = Some(bell);
        self.untaken = 1;
        let notice = WindowFrame::Notice { node, from: publisher.position() };
        let (number, arena) = publisher.arena();
        self.arena = number;
        let (page, bell) = publisher.notice(bell);
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
