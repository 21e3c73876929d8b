//! The reader's end of a window: the process on this host that reads the cells for all processes of a user.
//!
//! It is there while something is followed. What it brings goes to the process's reader, which reads by itself whatever
//! the window does not bring: before there is a window, behind it, and when it is gone. See [`tailwater_tail::window`].

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tailwater_env::Env;
use tailwater_format::ShardId;
use tailwater_rma::{ArenaReader, NoticeReader, PassingSocket, SameUser};
use tailwater_tail::TailReader;
use tailwater_tail::window::{
    ARENA_BYTES, FRAME_BYTES, WindowFrame, WindowMessage, WindowMessageError, WindowRequest,
};

use crate::limits::{
    WINDOW_ARENAS_KEPT, WINDOW_BEAT_DEADLINE, WINDOW_LOOK_EVERY, WINDOW_PAUSE_MAX, WINDOW_PAUSE_MIN,
    WINDOW_START_DEADLINE,
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

/// A connection to a window.
struct WindowSession<'a> {
    env: &'a Env,
    reader: &'a TailReader,
    socket: PassingSocket,
    same_user: SameUser,
    notice: NoticeReader,
    incoming: Incoming,
    arenas: BTreeMap<u64, ArenaReader>,
    /// How far it was read, as the notice counts.
    position: u64,
    follows: Vec<ShardId>,
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

impl<'a> WindowSession<'a> {
    async fn begin(
        env: &'a Env,
        reader: &'a TailReader,
        path: &Path,
        node: &str,
    ) -> Result<Self, WindowError> {
        let socket = PassingSocket::connect(path).await?;
        let same_user = socket.same_user()?;
        let mut incoming = Incoming::default();
        let next = async |incoming: &mut Incoming| {
            env.timeout(WINDOW_START_DEADLINE, incoming.next(&socket)).await.ok_or(WindowError::Silent)?
        };
        let (WindowFrame::Notice { node: of, from }, page) = next(&mut incoming).await? else {
            return Err(WindowError::Strange("it does not begin with its notice"));
        };
        let (WindowFrame::Bell, bell) = next(&mut incoming).await? else {
            return Err(WindowError::Strange("it does not go on with its bell"));
        };
        if of != WindowFrame::node(node) {
            return Err(WindowError::Strange("it is another node's"));
        }
        let notice = NoticeReader::open(same_user, &page, bell)?;
        let (arenas, follows) = (BTreeMap::new(), Vec::new());
        Ok(Self { env, reader, socket, same_user, notice, incoming, arenas, position: from, follows })
    }

    async fn run(&mut self) -> Result<(), WindowError> {
        let mut followed = self.reader.followed();
        followed.mark_changed();
        let (mut beats, mut beaten_at) = (self.notice.beats(), self.env.now());
        let mut look_at = self.env.now();
        loop {
            // What is published from here on ends the wait below.
            self.read()?;
            tokio::select! {
                biased;
                rung = self.notice.rung() => rung?,
                frame = self.incoming.next(&self.socket) => {
                    let (frame, file) = frame?;
                    self.take(frame, &file).await?;
                }
                changed = followed.changed() => {
                    changed.map_err(|_| WindowError::Ended)?;
                    self.follow().await?;
                }
                () = self.env.sleep_until(look_at) => {
                    let now = self.env.now();
                    look_at = now + WINDOW_LOOK_EVERY;
                    self.follow().await?;
                    let told = self.notice.beats();
                    if told != beats {
                        (beats, beaten_at) = (told, now);
                        self.reader.window_is_alive();
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
        self.say(WindowRequest::Took(number)).await?;
        // Whoever is slow goes on where it can; what is left out it reads by itself.
        while self.arenas.len() > WINDOW_ARENAS_KEPT {
            self.arenas.pop_first();
        }
        self.reader.let_go_before(number.saturating_sub(WINDOW_ARENAS_KEPT as u64 - 1));
        Ok(())
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

    /// Takes what was published, as far as its arenas are here.
    fn read(&mut self) -> Result<(), WindowError> {
        let published = self.notice.published();
        if let Some((&oldest, _)) = self.arenas.first_key_value() {
            self.position = self.position.max(oldest * ARENA);
        }
        let mut messages = Vec::new();
        let mut read = Ok(());
        while self.position < published && read.is_ok() {
            let (number, at) = (self.position / ARENA, (self.position % ARENA) as usize);
            let Some(arena) = self.arenas.get(&number) else { break };
            let end = (published - number * ARENA).min(ARENA) as usize;
            let mut bytes = arena.bytes(at..end).ok_or(WindowError::Strange("it has published less"))?;
            read = take_all(&mut bytes, number, &mut messages);
            // What is left of an arena behind its last message is not used.
            self.position = number * ARENA + end as u64;
            self.arenas = self.arenas.split_off(&(self.position / ARENA));
        }
        if !messages.is_empty() {
            self.reader.take_from_window(messages);
        }
        read
    }
}

fn take_all(bytes: &mut Bytes, arena: u64, messages: &mut Vec<WindowMessage>) -> Result<(), WindowError> {
    while let Some(message) = WindowMessage::take(bytes, arena)? {
        messages.push(message);
    }
    Ok(())
}
