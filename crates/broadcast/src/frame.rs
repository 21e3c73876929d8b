//! Messages on a byte stream.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tailwater_env::Env;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::UnboundedReceiver;

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

/// Reads messages.
#[derive(Debug)]
pub struct FrameReader<R> {
    from: R,
    buffer: BytesMut,
    sparing: bool,
    /// Bytes of the last message, as which the next one may be.
    last: usize,
    /// Reads that brought something.
    reads: u64,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader of what comes from `from`.
    pub fn new(from: R) -> Self {
        Self { from, buffer: BytesMut::new(), sparing: false, last: 0, reads: 0 }
    }

    /// For one of many connections: it keeps a small buffer, which the last message would have fitted into.
    pub fn sparing(self) -> Self {
        Self { sparing: true, ..self }
    }

    /// The next message; `None` at the end. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Result<Option<Message>, FrameError> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(Some(Message::decode(frame)?));
            }
            self.buffer.reserve(match self.sparing {
                false => READ_BYTES,
                true => self.missing().clamp(READ_BYTES_SPARING, READ_BYTES) + BEYOND_BYTES,
            });
            if self.from.read_buf(&mut self.buffer).await? == 0 {
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

    /// How often something came: whoever waits for a message that takes long can tell that it is on its way.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Bytes that the message lacks whose beginning is there, or that the next one may have.
    fn missing(&self) -> usize {
        let length = self.buffer.first_chunk().map(|length| u32::from_le_bytes(*length) as usize);
        let expected =
            length.unwrap_or(if self.last <= COPIED_BYTES_MAX { self.last + self.last / 4 } else { 0 });
        (4 + expected).saturating_sub(self.buffer.len())
    }

    fn buffered(&mut self) -> Result<Option<Bytes>, BadMessage> {
        let Some(length) = self.buffer.first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(BadMessage(format!("a frame of {length} bytes, more than {FRAME_BYTES_MAX}")));
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
    use super::*;
    use crate::{Content, Stream, Writer};

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
