//! The reader's end of a window: the process on this host that reads the cells for all processes of a user. It is a
//! sidecar that somebody started, or the node's own.
//!
//! It is there while something is followed, and greets who follows a shard that it feeds. What it brings goes to the
//! process's reader, which reads by itself whatever the window does not bring: before the greeting, behind the window,
//! and when it is gone. See [`tailwater_tail::window`].

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use bytes::Bytes;
use tailwater_env::Env;
use tailwater_format::ShardId;
use tailwater_rma::{ArenaReader, NoticeReader, PassingSocket, SameUser};
use tailwater_tail::TailReader;
use tailwater_tail::window::{
    ARENA_BYTES, FRAME_BYTES, UndecodedMessage, WindowFrame, WindowMessageError, WindowRequest,
};

use crate::cells::CellsAtNeed;
use crate::limits::{
    WINDOW_ARENAS_KEPT, WINDOW_BEAT_DEADLINE, WINDOW_LOOK_EVERY, WINDOW_MESSAGES_AT_ONCE, WINDOW_PAUSE_MAX,
    WINDOW_PAUSE_MIN, WINDOW_START_DEADLINE,
};

const ARENA: u64 = ARENA_BYTES as u64;
/// Numbers of arenas are at most this, so that what lies in them has a place.
const NUMBER_MAX: u64 = u64::MAX / ARENA - 2;

/// Why a window is left.
#[derive(Debug, thiserror::Error)]
enum WindowError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Message(#[from] WindowMessageError),
    #[error("{0}")]
    Strange(&'static str),
    #[error("it said nothing for {WINDOW_BEAT_DEADLINE:?}")]
    Silent,
    #[error("it ended")]
    Ended,
}

/// Where windows of a node may be.
pub(crate) struct WindowPlaces {
    /// Their sockets, in the order in which they are tried. There is one at least.
    pub(crate) sockets: Vec<PathBuf>,
    /// The node's id.
    pub(crate) node: String,
}

/// The Unix socket where a sidecar of this process's user listens for readers of the node, or of the nodes, with this
/// id, if it is not told another one. `None` for an id that is none.
pub fn sidecar_socket(node_id: &str) -> Option<PathBuf> {
    let is_id = !node_id.is_empty() && node_id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    // Everybody may make files there, and nobody replaces those of others. Both ends look whose process the other is.
    let socket = format!("/tmp/tailwater-{}-{node_id}.sidecar", rustix::process::geteuid().as_raw());
    is_id.then(|| socket.into())
}

/// Takes from the first window at `places` whatever it has for `reader`, and has `cells` rest meanwhile; for ever.
pub(crate) async fn follow(env: Env, reader: TailReader, mut cells: CellsAtNeed, places: WindowPlaces) {
    let mut followed = reader.followed();
    let mut pause = WINDOW_PAUSE_MIN;
    loop {
        while reader.shards().is_empty() {
            if followed.changed().await.is_err() {
                return;
            }
        }
        let begun = env.now();
        let why = match WindowSession::begin(&env, &reader, &places).await {
            Ok(mut session) => session.run(&mut cells).await,
            Err(why) => Err(why),
        };
        // So that not all processes of the host ask the node at once.
        cells.need().await;
        reader.window_is_gone();
        if let Err(why) = why {
            tracing::debug!(%why, "reading without a window");
        }
        // One that was there for a while is back soon.
        pause = if env.now().since(begun) > WINDOW_PAUSE_MAX { WINDOW_PAUSE_MIN } else { pause };
        env.sleep(pause).await;
        pause = (pause * 2).min(WINDOW_PAUSE_MAX);
    }
}

/// Connects to the first of `sockets` at which a process of this user listens; an error is why not to the last one.
async fn connect(sockets: &[PathBuf]) -> std::io::Result<(PassingSocket, SameUser)> {
    let mut why = std::io::ErrorKind::NotFound.into();
    for path in sockets {
        let connected = async {
            let socket = PassingSocket::connect(path).await?;
            let same_user = socket.same_user()?;
            Ok::<_, std::io::Error>((socket, same_user))
        };
        match connected.await {
            Ok(connected) => return Ok(connected),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// A connection to a window, and the shards that it was told of.
struct WindowConnection<'a> {
    env: &'a Env,
    reader: &'a TailReader,
    socket: PassingSocket,
    incoming: Incoming,
    follows: Vec<ShardId>,
}

/// A window that has greeted this process.
struct WindowSession<'a> {
    connection: WindowConnection<'a>,
    same_user: SameUser,
    notice: NoticeReader,
    arenas: BTreeMap<u64, ArenaReader>,
    /// How far it was read, as the notice counts.
    position: u64,
}

/// Frames as they come, and the files with them.
#[derive(Default)]
struct Incoming {
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Incoming {
    /// The next frame with its file. Cancelling it loses nothing.
    async fn next(&mut self, socket: &PassingSocket) -> Result<(WindowFrame, OwnedFd), WindowError> {
        loop {
            if let Some(frame) = self.bytes.first_chunk::<FRAME_BYTES>() {
                let frame = WindowFrame::decode(frame)?;
                self.bytes.drain(..FRAME_BYTES);
                if self.files.is_empty() {
                    return Err(WindowError::Strange("a frame without its file"));
                }
                return Ok((frame, self.files.remove(0)));
            }
            let mut buffer = [0; 16 * FRAME_BYTES];
            let received = socket.receive(&mut buffer, &mut self.files).await?;
            if received == 0 {
                return Err(WindowError::Ended);
            }
            self.bytes.extend_from_slice(&buffer[..received]);
        }
    }
}

impl WindowConnection<'_> {
    /// The next frame with its file. Cancelling it loses nothing.
    async fn next(&mut self) -> Result<(WindowFrame, OwnedFd), WindowError> {
        self.incoming.next(&self.socket).await
    }

    /// The next frame of a greeting, which comes in one piece.
    async fn soon(&mut self) -> Result<(WindowFrame, OwnedFd), WindowError> {
        let env = self.env;
        env.timeout(WINDOW_START_DEADLINE, self.next()).await.ok_or(WindowError::Silent)?
    }

    /// The first frame. It comes when the window feeds a shard that is followed here, which may be never.
    async fn greeting(&mut self) -> Result<(WindowFrame, OwnedFd), WindowError> {
        let mut followed = self.reader.followed();
        followed.mark_changed();
        loop {
            tokio::select! {
                biased;
                frame = self.incoming.next(&self.socket) => return frame,
                changed = followed.changed() => changed.map_err(|_| WindowError::Ended)?,
                // Nobody tells that a shard was left.
                () = self.env.sleep(WINDOW_LOOK_EVERY) => {}
            }
            self.follow().await?;
        }
    }

    /// Says which shards are followed.
    async fn follow(&mut self) -> Result<(), WindowError> {
        let shards = self.reader.shards();
        let is_in = |shards: &[ShardId], shard: &ShardId| shards.binary_search(shard).is_ok();
        let before = std::mem::take(&mut self.follows);
        for shard in shards.iter().filter(|shard| !is_in(&before, shard)) {
            self.say(WindowRequest::Follow(*shard)).await?;
        }
        for shard in before.iter().filter(|shard| !is_in(&shards, shard)) {
            self.say(WindowRequest::Leave(*shard)).await?;
        }
        self.follows = shards;
        Ok(())
    }

    async fn say(&self, request: WindowRequest) -> Result<(), WindowError> {
        let sent = self.env.timeout(WINDOW_START_DEADLINE, self.socket.send(&request.encode(), &[])).await;
        Ok(sent.ok_or(WindowError::Silent)??)
    }
}

impl<'a> WindowSession<'a> {
    async fn begin(env: &'a Env, reader: &'a TailReader, places: &WindowPlaces) -> Result<Self, WindowError> {
        let (socket, same_user) = connect(&places.sockets).await?;
        let (incoming, follows) = (Incoming::default(), Vec::new());
        let mut connection = WindowConnection { env, reader, socket, incoming, follows };
        let (WindowFrame::Notice { node: of, from }, page) = connection.greeting().await? else {
            return Err(WindowError::Strange("it does not begin with its notice"));
        };
        let (WindowFrame::Bell, bell) = connection.soon().await? else {
            return Err(WindowError::Strange("it does not go on with its bell"));
        };
        if of != WindowFrame::node(&places.node) {
            return Err(WindowError::Strange("it is another node's"));
        }
        let notice = NoticeReader::open(same_user, &page, bell)?;
        Ok(Self { connection, same_user, notice, arenas: BTreeMap::new(), position: from })
    }

    async fn run(&mut self, cells: &mut CellsAtNeed) -> Result<(), WindowError> {
        let (env, reader) = (self.connection.env, self.connection.reader);
        let mut followed = reader.followed();
        followed.mark_changed();
        let (mut beats, mut beaten_at) = (self.notice.beats(), env.now());
        let mut look_at = env.now();
        loop {
            // What is published from here on ends the wait below.
            self.read()?;
            cells.note(reader.is_fed());
            tokio::select! {
                biased;
                rung = self.notice.rung() => rung?,
                frame = self.connection.next() => {
                    let (frame, file) = frame?;
                    self.take(frame, &file).await?;
                }
                changed = followed.changed() => {
                    changed.map_err(|_| WindowError::Ended)?;
                    self.connection.follow().await?;
                }
                () = env.sleep_until(look_at) => {
                    let now = env.now();
                    look_at = now + WINDOW_LOOK_EVERY;
                    self.connection.follow().await?;
                    let told = self.notice.beats();
                    if told != beats {
                        (beats, beaten_at) = (told, now);
                        reader.window_is_alive();
                    } else if now.since(beaten_at) >= WINDOW_BEAT_DEADLINE {
                        return Err(WindowError::Silent);
                    }
                }
            }
        }
    }

    async fn take(&mut self, frame: WindowFrame, file: &OwnedFd) -> Result<(), WindowError> {
        let WindowFrame::Arena(number) = frame else {
            return Err(WindowError::Strange("a second notice or bell"));
        };
        if number > NUMBER_MAX {
            return Err(WindowError::Strange("no arena has such a number"));
        }
        self.arenas.insert(number, ArenaReader::open(self.same_user, file, ARENA_BYTES)?);
        self.connection.say(WindowRequest::Took(number)).await?;
        // Whoever is slow goes on where it can; what is left out it reads by itself.
        while self.arenas.len() > WINDOW_ARENAS_KEPT {
            self.arenas.pop_first();
        }
        self.connection.reader.let_go_before(number.saturating_sub(WINDOW_ARENAS_KEPT as u64 - 1));
        Ok(())
    }

    /// Takes what was published, as far as its arenas are here.
    fn read(&mut self) -> Result<(), WindowError> {
        let published = self.notice.published();
        if let Some((&oldest, _)) = self.arenas.first_key_value() {
            self.position = self.position.max(oldest * ARENA);
        }
        while self.position < published {
            let (number, at) = (self.position / ARENA, (self.position % ARENA) as usize);
            let Some(arena) = self.arenas.get(&number) else { break };
            let end = (published - number * ARENA).min(ARENA) as usize;
            let mut bytes = arena.bytes(at..end).ok_or(WindowError::Strange("it has published less"))?;
            loop {
                let messages = take_some(&mut bytes, number)?;
                if messages.is_empty() {
                    break;
                }
                self.connection.reader.take_from_window(messages)?;
            }
            // What is left of an arena behind its last message is not used.
            self.position = number * ARENA + end as u64;
            self.arenas = self.arenas.split_off(&(self.position / ARENA));
        }
        Ok(())
    }
}

/// The next messages, up to [`WINDOW_MESSAGES_AT_ONCE`].
fn take_some(bytes: &mut Bytes, arena: u64) -> Result<Vec<UndecodedMessage>, WindowError> {
    let mut messages = Vec::with_capacity(WINDOW_MESSAGES_AT_ONCE);
    while messages.len() < WINDOW_MESSAGES_AT_ONCE
        && let Some(message) = UndecodedMessage::take(bytes, arena)?
    {
        messages.push(message);
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_of_each_user_and_node_has_a_socket_of_its_own_and_an_id_that_is_a_path_has_none() {
        let socket = sidecar_socket("00ff").expect("an id");
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(socket.to_str(), Some(&*format!("/tmp/tailwater-{user}-00ff.sidecar")));
        assert_ne!(sidecar_socket("00fe"), Some(socket));
        for id in ["", "../x", "a/b", "a b"] {
            assert_eq!(sidecar_socket(id), None, "{id:?}");
        }
    }
}
