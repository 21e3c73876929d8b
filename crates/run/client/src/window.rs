//! The reader's end of a window: the process on this host that reads the cells for all processes of a user.
//!
//! It is there while something is followed, and greets who follows a shard that it feeds. What it brings goes to the
//! process's reader, which reads by itself whatever the window does not bring: before the greeting, behind the window,
//! and when it is gone. See [`tailwater_tail::window`].

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tailwater_env::Env;
use tailwater_format::ShardId;
use tailwater_rma::{ArenaReader, NoticeReader, PassingSocket, SameUser};
use tailwater_tail::TailReader;
use tailwater_tail::window::{
    ARENA_BYTES, FRAME_BYTES, UndecodedMessage, WindowFrame, WindowMessageError, WindowRequest,
};

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

/// Takes from the window at `path`, which has to be of the node with this id, whatever it has for `reader`; for ever.
pub(crate) async fn follow(env: Env, reader: TailReader, path: PathBuf, node: String) {
    let mut followed = reader.followed();
    let mut pause = WINDOW_PAUSE_MIN;
    loop {
        while reader.shards().is_empty() {
            if followed.changed().await.is_err() {
                return;
            }
        }
        let begun = env.now();
        let why = match WindowSession::begin(&env, &reader, &path, &node).await {
            Ok(mut session) => session.run().await,
            Err(why) => Err(why),
        };
        reader.window_is_gone();
        if let Err(why) = why {
            tracing::debug!(window = %path.display(), %why, "reading without a window");
        }
        // One that was there for a while is back soon.
        pause = if env.now().since(begun) > WINDOW_PAUSE_MAX { WINDOW_PAUSE_MIN } else { pause };
        env.sleep(pause).await;
        pause = (pause * 2).min(WINDOW_PAUSE_MAX);
    }
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
    async fn begin(
        env: &'a Env,
        reader: &'a TailReader,
        path: &Path,
        node: &str,
    ) -> Result<Self, WindowError> {
        let socket = PassingSocket::connect(path).await?;
        let same_user = socket.same_user()?;
        let (incoming, follows) = (Incoming::default(), Vec::new());
        let mut connection = WindowConnection { env, reader, socket, incoming, follows };
        let (WindowFrame::Notice { node: of, from }, page) = connection.greeting().await? else {
            return Err(WindowError::Strange("it does not begin with its notice"));
        };
        let (WindowFrame::Bell, bell) = connection.soon().await? else {
            return Err(WindowError::Strange("it does not go on with its bell"));
        };
        if of != WindowFrame::node(node) {
            return Err(WindowError::Strange("it is another node's"));
        }
        let notice = NoticeReader::open(same_user, &page, bell)?;
        Ok(Self { connection, same_user, notice, arenas: BTreeMap::new(), position: from })
    }

    async fn run(&mut self) -> Result<(), WindowError> {
        let (env, reader) = (self.connection.env, self.connection.reader);
        let mut followed = reader.followed();
        followed.mark_changed();
        let (mut beats, mut beaten_at) = (self.notice.beats(), env.now());
        let mut look_at = env.now();
        loop {
            // What is published from here on ends the wait below.
            self.read()?;
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
