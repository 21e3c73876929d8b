//! Messages on a byte stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tailwater_env::{Env, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::message::{FRAME_BYTES_MAX, Message};
use crate::pieces::Pieces;
use crate::wire::BadMessage;

/// Read at once from a connection.
const READ_BYTES: usize = 256 << 10;
/// The same where there are many connections with little on each; more, as much as it lacks, if a message is larger.
const READ_BYTES_SPARING: usize = 4 << 10;
/// Room beyond what is expected: a read that does not fill its buffer was the last one, and need not be tried again.
const BEYOND_BYTES: usize = 64;
/// Longer messages are not copied for their own sake; shorter ones are, so that who keeps one does not keep all that was
/// read with it.
const COPIED_BYTES_MAX: usize = 64 << 10;

/// Messages up to this size take nothing of what all large ones share ([`Arrivals`]).
const SMALL_BYTES: usize = 64 << 10;
/// In the time that a step of a large one has, so many bytes of it have to come, or its rest.
const STEP_BYTES: usize = 64 << 10;

/// What was sent and not acknowledged for so long ends a connection.
const UNACKNOWLEDGED: Duration = Duration::from_secs(5);

/// Sets a connection up: no delay, and an end to it when what was sent is not acknowledged for some seconds.
///
/// # Errors
/// What the system says where the connection is broken already.
pub fn split(
    stream: TcpStream,
) -> std::io::Result<(FrameReader<OwnedReadHalf>, FrameWriter<OwnedWriteHalf>)> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(&stream);
    // Where bbr is the default it caps a loopback stream near 10 Gbit/s; where cubic is not there, so be it.
    let _ = socket.set_tcp_congestion(b"cubic");
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    let (read, write) = stream.into_split();
    Ok((FrameReader::new(read), FrameWriter::new(write)))
}

/// Why no more messages come.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(#[from] std::io::Error),
    /// What came is no message.
    #[error(transparent)]
    Bad(#[from] BadMessage),
}

/// Room for the large messages of many connections: each takes its own when as much of it is there as a small one has, so that
/// to announce one holds nobody up, and has to go on coming, so that whoever waits for room waits for what ends.
#[derive(Clone, Debug)]
pub struct Arrivals {
    env: Env,
    room: Arc<Semaphore>,
    step: Duration,
}

impl Arrivals {
    /// For so many bytes; each step of a message may take `step`.
    pub fn new(env: &Env, bytes: usize, step: Duration) -> Self {
        Self { env: env.clone(), room: Arc::new(Semaphore::new(bytes)), step }
    }
}

/// A large message that comes.
#[derive(Debug)]
struct Arrival {
    _room: OwnedSemaphorePermit,
    /// When how many bytes have to be there.
    by: Instant,
    bytes: usize,
    /// Whether it was handed over: its room is given back when the next one is asked for.
    is_over: bool,
}

/// Reads messages.
#[derive(Debug)]
pub struct FrameReader<R> {
    from: R,
    buffer: BytesMut,
    sparing: bool,
    /// Bytes of a message at most.
    longest: usize,
    arrivals: Option<Arrivals>,
    arrival: Option<Arrival>,
    /// Bytes of the last message, as which the next one may be.
    last: usize,
    /// Reads that brought something.
    reads: u64,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader of what comes from `from`.
    pub fn new(from: R) -> Self {
        let (buffer, longest) = (BytesMut::new(), FRAME_BYTES_MAX);
        Self { from, buffer, sparing: false, longest, arrivals: None, arrival: None, last: 0, reads: 0 }
    }

    /// From now on no message may be longer.
    pub fn set_longest(&mut self, bytes: usize) {
        self.longest = bytes.min(FRAME_BYTES_MAX);
    }

    /// For one of many connections whose other ends are not known: its large messages share room with theirs.
    pub fn within(self, arrivals: Arrivals) -> Self {
        Self { arrivals: Some(arrivals), ..self }
    }

    /// For one of many connections: it keeps a small buffer, which the last message would have fitted into.
    pub fn sparing(self) -> Self {
        Self { sparing: true, ..self }
    }

    /// The next message; `None` at the end. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Result<Option<Message>, FrameError> {
        drop(self.arrival.take_if(|arrival| arrival.is_over));
        if let (Some(Arrivals { env, step, .. }), Some(arrival)) = (&self.arrivals, &mut self.arrival)
            && env.now() >= arrival.by
        {
            // Nobody has read meanwhile.
            arrival.by = env.now() + *step;
        }
        loop {
            if let Some(frame) = self.buffered()? {
                if let Some(arrival) = &mut self.arrival {
                    arrival.is_over = true;
                }
                return Ok(Some(Message::decode(frame)?));
            }
            self.make_room().await;
            let is_small = self.arrivals.is_some() && self.arrival.is_none();
            self.buffer.reserve(match self.sparing {
                false if is_small => SMALL_BYTES,
                false => READ_BYTES,
                true => self.missing().clamp(READ_BYTES_SPARING, READ_BYTES) + BEYOND_BYTES,
            });
            if self.read().await? == 0 {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                return Err(BadMessage("the connection ended within one".to_owned()).into());
            }
            self.reads += 1;
        }
    }

    /// As [`FrameReader::next`]; `None` if nothing comes for `limit`, or at most twice as long. Where the link is slow a message may
    /// take longer: as long as some of it comes the other end is not silent.
    pub async fn next_unless_silent(
        &mut self,
        env: &Env,
        limit: Duration,
    ) -> Option<Result<Option<Message>, FrameError>> {
        loop {
            let before = self.reads;
            match env.timeout(limit, self.next()).await {
                None if self.reads == before => return None,
                None => {}
                next => return next,
            }
        }
    }

    /// Waits for the room of a large message, once it is time.
    async fn make_room(&mut self) {
        let Some(Arrivals { env, room, step }) = self.arrivals.as_ref() else { return };
        let Some(length) = self.length().filter(|length| *length > SMALL_BYTES) else { return };
        if self.arrival.is_some() || self.buffer.len() < SMALL_BYTES {
            return;
        }
        // It is never closed.
        let Ok(_room) = Arc::clone(room).acquire_many_owned(length as u32).await else { return };
        let (by, bytes) = (env.now() + *step, self.buffer.len() + STEP_BYTES);
        self.arrival = Some(Arrival { _room, by, bytes, is_over: false });
    }

    /// Reads once.
    async fn read(&mut self) -> Result<usize, FrameError> {
        let Self { from, buffer, arrivals, arrival, .. } = self;
        let reading = from.read_buf(buffer);
        let (Some(Arrivals { env, step, .. }), Some(arrival)) = (arrivals, arrival) else {
            return Ok(reading.await?);
        };
        let left = arrival.by.since(env.now());
        let Some(read) = env.timeout(left, reading).await else {
            return Err(BadMessage(format!("one did not go on coming for {step:?}")).into());
        };
        if buffer.len() >= arrival.bytes {
            (arrival.by, arrival.bytes) = (env.now() + *step, buffer.len() + STEP_BYTES);
        }
        Ok(read?)
    }

    /// How often something came: whoever waits for a message that takes long can tell that it is on its way.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Bytes that the message lacks whose beginning is there, or that the next one may have.
    fn missing(&self) -> usize {
        let expected = self.length().unwrap_or(if self.last <= COPIED_BYTES_MAX {
            self.last + self.last / 4
        } else {
            0
        });
        (4 + expected).saturating_sub(self.buffer.len())
    }

    /// The length of the message whose beginning is there.
    fn length(&self) -> Option<usize> {
        self.buffer.first_chunk().map(|length| u32::from_le_bytes(*length) as usize)
    }

    fn buffered(&mut self) -> Result<Option<Bytes>, BadMessage> {
        let Some(length) = self.length() else { return Ok(None) };
        if length > self.longest {
            return Err(BadMessage(format!("a frame of {length} bytes, more than {}", self.longest)));
        }
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        self.buffer.advance(4);
        self.last = length;
        // Nothing else is in there, so that it may as well have the buffer.
        let alone = self.buffer.len() == length && self.buffer.capacity() <= 2 * length;
        if length <= COPIED_BYTES_MAX && !alone {
            let frame = Bytes::copy_from_slice(&self.buffer[..length]);
            self.buffer.advance(length);
            return Ok(Some(frame));
        }
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

/// Writes messages; several leave together.
#[derive(Debug)]
pub struct FrameWriter<W> {
    to: W,
    pieces: Pieces,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// A writer to `to`.
    pub fn new(to: W) -> Self {
        Self { to, pieces: Pieces::default() }
    }

    /// Adds a message to what the next [`FrameWriter::flush`] writes; answers how much that is, in bytes.
    pub fn add(&mut self, message: &Message) -> usize {
        self.pieces.add(message);
        self.pieces.remaining()
    }

    /// Writes what was added.
    pub async fn flush(&mut self) -> std::io::Result<()> {
        self.to.write_all_buf(&mut self.pieces).await?;
        self.to.flush().await
    }

    /// As [`FrameWriter::flush`], for the messages of a queue: those that come meanwhile are put into `waiting`, and if
    /// it ends while the other end reads nothing, the rest is given up and `false` answered.
    pub async fn flush_while(
        &mut self,
        messages: &mut UnboundedReceiver<Message>,
        waiting: &mut VecDeque<Message>,
    ) -> std::io::Result<bool> {
        let mut flushing = std::pin::pin!(self.flush());
        loop {
            tokio::select! {
                biased;
                flushed = &mut flushing => return flushed.map(|()| true),
                message = messages.recv() => match message {
                    Some(message) => waiting.push_back(message),
                    None => return Ok(false),
                }
            }
        }
    }

    /// Writes one message.
    pub async fn send(&mut self, message: &Message) -> std::io::Result<()> {
        self.add(message);
        self.flush().await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::{Content, Stream, Writer};

    fn waits(future: impl Future) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[tokio::test]
    async fn messages_cross_a_stream_and_a_frame_too_long_is_refused() {
        let (ours, theirs) = tokio::io::duplex(7);
        let sending = async {
            let mut writer = FrameWriter::new(ours);
            writer.add(&Message::Token { epoch: 1 });
            writer.send(&Message::Token { epoch: 2 }).await.unwrap();
            writer.to.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        };
        let receiving = async {
            let mut reader = FrameReader::new(theirs);
            assert_eq!(reader.next().await.unwrap(), Some(Message::Token { epoch: 1 }));
            assert_eq!(reader.next().await.unwrap(), Some(Message::Token { epoch: 2 }));
            assert!(reader.next().await.unwrap_err().to_string().contains("a frame of 4294967295 bytes"));
        };
        tokio::join!(sending, receiving);
    }

    #[tokio::test]
    async fn large_messages_that_have_only_begun_share_their_room_and_one_that_stands_still_gives_it_back() {
        let env = Env::real();
        let arrivals = Arrivals::new(&env, 300 << 10, Duration::from_millis(50));
        let mut events = Writer::new(0);
        let content = Content { payload: vec![7; 200 << 10].into(), ..Content::default() };
        events.publish(&content, None).unwrap();
        let stream = Stream::parse("eu/prices").unwrap();
        let large = Message::Events { stream, lineage: 0, batch: events.finish(0) };
        let mut bytes = BytesMut::new();
        large.encode(&mut bytes);
        let ends = || {
            let (ours, theirs) = tokio::io::duplex(1 << 20);
            (ours, FrameReader::new(theirs).within(arrivals.clone()))
        };
        let ((mut announced, mut first), (mut begun, mut second), (mut whole, mut third)) =
            (ends(), ends(), ends());
        // One is announced only: it takes no room.
        announced.write_all(&bytes[..1_000]).await.unwrap();
        assert!(waits(first.next()));
        begun.write_all(&bytes[..100 << 10]).await.unwrap();
        assert!(waits(second.next()));
        // There is no room for a second one, of which no more is read before there is.
        whole.write_all(&bytes).await.unwrap();
        assert!(waits(third.next()));
        assert!(third.buffer.len() <= 2 * SMALL_BYTES, "{}", third.buffer.len());
        let patience = Duration::from_secs(60);
        let ended = env.timeout(patience, second.next()).await.expect("it ends");
        assert!(ended.unwrap_err().to_string().contains("did not go on coming"));
        drop(second);
        let came = env.timeout(patience, third.next()).await.expect("it comes");
        assert_eq!(came.unwrap(), Some(large));
        // It has its room until whoever asked for it asks for the next one.
        assert!(arrivals.room.available_permits() < 200 << 10);
        assert!(waits(third.next()));
        assert_eq!(arrivals.room.available_permits(), 300 << 10);
    }

    #[tokio::test]
    async fn a_message_that_is_longer_than_may_be_for_now_is_refused_when_its_length_is_there() {
        let (mut ours, theirs) = tokio::io::duplex(100);
        let mut reader = FrameReader::new(theirs);
        reader.set_longest(1_000);
        ours.write_all(&1_001u32.to_le_bytes()).await.unwrap();
        drop(ours);
        assert!(reader.next().await.unwrap_err().to_string().contains("1001 bytes, more than 1000"));
    }

    #[tokio::test]
    async fn a_small_message_that_is_kept_does_not_keep_what_was_read_with_it() {
        let (ours, theirs) = tokio::io::duplex(4096);
        let mut events = Writer::new(0);
        events.publish(&Content::default(), None).unwrap();
        let stream = Stream::parse("eu/prices").unwrap();
        let events = Message::Events { stream, lineage: 0, batch: events.finish(0) };
        FrameWriter::new(ours).send(&events).await.unwrap();
        let mut reader = FrameReader::new(theirs);
        let kept = reader.next().await.unwrap();
        assert!(matches!(kept, Some(Message::Events { .. })));
        assert!(reader.buffer.try_reclaim(READ_BYTES), "the buffer is its own");
    }
}
