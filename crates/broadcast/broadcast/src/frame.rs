//! Messages on a byte stream.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tailwater_env::{Env, Instant};
use tailwater_tls::{PeerReadHalf, PeerStream, PeerWriteHalf};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::message::{FRAME_BYTES_MAX, Message};
use crate::pieces::Pieces;
use crate::wire::BadMessage;

/// Read at once from a connection.
const READ_BYTES: usize = 256 << 10;
/// The same where there are many connections with little on each: of a thread, through which what comes to any of them
/// is read.
const READ_BYTES_SPARING: usize = 64 << 10;
/// Longer messages are not copied for their own sake; shorter ones are, so that who keeps one does not keep all that
/// was read with it.
const COPIED_BYTES_MAX: usize = 64 << 10;

/// Messages up to this size take nothing of what all large ones share ([`Arrivals`]).
const SMALL_BYTES: usize = 64 << 10;
/// In the time that a step of a large one has, so many bytes of it have to come, or its rest, if others wait for room,
const STEP_BYTES: usize = 64 << 10;
/// and so many if nobody does: where a link is slow that is no reason to end it. What comes in one drop after the other
/// takes room for an hour, and from nobody.
const SLOW_STEP_BYTES: usize = 4 << 10;

thread_local! {
    /// Where those that are sparing read.
    static READ: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES_SPARING]);
}

/// What was sent and not acknowledged for so long ends a connection.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(5);

/// Sets a connection up, as [`set_up`] does, for messages.
///
/// # Errors
/// What the system says where the connection is broken already.
pub fn split(
    stream: impl Into<PeerStream>,
) -> std::io::Result<(FrameReader<PeerReadHalf>, FrameWriter<PeerWriteHalf>)> {
    let stream = stream.into();
    set_up(stream.tcp())?;
    let (read, write) = stream.into_split();
    Ok((FrameReader::new(read), FrameWriter::new(write)))
}

/// Sets a connection up: no delay, and an end to it when what was sent is not acknowledged for some seconds.
pub(crate) fn set_up(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    // Where bbr is the default it caps a loopback stream near 10 Gbit/s; where cubic is not there, so be it.
    let _ = socket.set_tcp_congestion(b"cubic");
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))
}

/// Why no more messages come.
#[derive(Debug, thiserror::Error)]
pub enum WireFrameError {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(#[from] std::io::Error),
    /// What came is no message.
    #[error(transparent)]
    Bad(#[from] BadMessage),
}

/// Room for the large messages of many connections: each takes its own when as much of it is there as a small one has,
/// so that to announce one holds nobody up, and has to go on coming, faster while somebody waits for room: so whoever
/// waits waits for what ends soon.
#[derive(Clone, Debug)]
pub struct Arrivals {
    env: Env,
    room: Arc<Semaphore>,
    step: Duration,
    /// Messages that wait for room.
    waiting: Arc<AtomicUsize>,
}

/// One of those, until it is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Arrivals {
    /// For so many bytes; each step of a message may take `step`.
    pub fn new(env: &Env, bytes: usize, step: Duration) -> Self {
        Self { env: env.clone(), room: Arc::new(Semaphore::new(bytes)), step, waiting: Arc::default() }
    }

    /// Room for a message, once it is there.
    async fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        if let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(bytes as u32) {
            return Some(room);
        }
        let _waits = Waits::begin(&self.waiting);
        Arc::clone(&self.room).acquire_many_owned(bytes as u32).await.ok()
    }

    /// Bytes of a message that have to come in a step.
    fn least(&self) -> usize {
        if self.waiting.load(Ordering::Relaxed) > 0 { STEP_BYTES } else { SLOW_STEP_BYTES }
    }
}

/// A large message that comes.
#[derive(Debug)]
struct FrameArrival {
    _room: OwnedSemaphorePermit,
    /// When its step ends, and how many bytes there were when that began.
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
    /// Whether nothing was cut off the buffer's beginning.
    is_whole: bool,
    sparing: bool,
    /// Bytes of a message at most.
    longest: usize,
    arrivals: Option<Arrivals>,
    arrival: Option<FrameArrival>,
    /// Reads that brought something.
    reads: u64,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader of what comes from `from`.
    pub fn new(from: R) -> Self {
        let (buffer, longest) = (BytesMut::new(), FRAME_BYTES_MAX);
        Self {
            from,
            buffer,
            is_whole: true,
            sparing: false,
            longest,
            arrivals: None,
            arrival: None,
            reads: 0,
        }
    }

    /// From now on no message may be longer.
    pub fn set_longest(&mut self, bytes: usize) {
        self.longest = bytes.min(FRAME_BYTES_MAX);
    }

    /// For one of many connections whose other ends are not known: its large messages share room with theirs.
    pub fn within(self, arrivals: Arrivals) -> Self {
        Self { arrivals: Some(arrivals), ..self }
    }

    /// For one of many connections: it has no buffer while nothing has begun to come, and who keeps a message keeps
    /// little else.
    pub fn sparing(self) -> Self {
        Self { sparing: true, ..self }
    }

    /// The next message; `None` at the end. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Result<Option<Message>, WireFrameError> {
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
            self.is_whole |= self.buffer.is_empty();
            let read = if self.sparing {
                self.read_sparing().await?
            } else {
                self.buffer.reserve(if is_small { SMALL_BYTES } else { READ_BYTES });
                self.read().await?
            };
            if read == 0 {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                return Err(BadMessage("the connection ended within one".to_owned()).into());
            }
            self.reads += 1;
        }
    }

    /// Adds the messages that came together with the last one, until there are `most`.
    ///
    /// # Errors
    /// If what came is no message; those before it were added.
    pub fn take_buffered(&mut self, to: &mut Vec<Message>, most: usize) -> Result<(), WireFrameError> {
        while to.len() < most
            && self.arrival.is_none()
            && let Some(frame) = self.buffered()?
        {
            to.push(Message::decode(frame)?);
        }
        Ok(())
    }

    /// As [`FrameReader::next`]; `None` if nothing comes for `limit`, or at most twice as long. Where the link is slow
    /// a message may take longer: as long as some of it comes the other end is not silent.
    pub async fn next_unless_silent(
        &mut self,
        env: &Env,
        limit: Duration,
    ) -> Option<Result<Option<Message>, WireFrameError>> {
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
        let Some(arrivals) = self.arrivals.as_ref() else { return };
        let Some(length) = self.length().filter(|length| *length > SMALL_BYTES) else { return };
        if self.arrival.is_some() || self.buffer.len() < SMALL_BYTES {
            return;
        }
        // It is never closed.
        let Some(_room) = arrivals.room(length).await else { return };
        let (by, bytes) = (arrivals.env.now() + arrivals.step, self.buffer.len());
        self.arrival = Some(FrameArrival { _room, by, bytes, is_over: false });
    }

    /// Reads once.
    async fn read(&mut self) -> Result<usize, WireFrameError> {
        let Self { from, buffer, arrivals, arrival, .. } = self;
        let (Some(arrivals), Some(arrival)) = (arrivals, arrival) else {
            return Ok(from.read_buf(buffer).await?);
        };
        let Arrivals { env, step, .. } = &*arrivals;
        loop {
            let read = env.timeout(arrival.by.since(env.now()), from.read_buf(buffer)).await;
            let came = buffer.len() - arrival.bytes;
            if came >= STEP_BYTES || (read.is_none() && came >= arrivals.least()) {
                (arrival.by, arrival.bytes) = (env.now() + *step, buffer.len());
            } else if read.is_none() {
                return Err(BadMessage(format!("one did not go on coming for {step:?}")).into());
            }
            if let Some(read) = read {
                return Ok(read?);
            }
        }
    }

    /// How often something came: whoever waits for a message that takes long can tell that it is on its way.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Reads once: what has come, or the rest of a message that has begun to.
    async fn read_sparing(&mut self) -> std::io::Result<usize> {
        let Self { from, buffer, .. } = self;
        if buffer.is_empty() {
            let read = poll_fn(|context| {
                READ.with_borrow_mut(|room| {
                    let mut room = ReadBuf::new(room);
                    ready!(Pin::new(&mut *from).poll_read(context, &mut room))?;
                    Poll::Ready(std::io::Result::Ok(BytesMut::from(room.filled())))
                })
            });
            *buffer = read.await?;
            return Ok(buffer.len());
        }
        let length = buffer.first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
        let missing = (4 + length).saturating_sub(buffer.len()).min(READ_BYTES);
        buffer.reserve(missing);
        from.read_buf(&mut buffer.limit(missing)).await
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
        // Nothing else is in there, so that it may as well have the buffer.
        if self.is_whole && self.buffer.len() == length && self.buffer.capacity() <= 2 * length {
            return Ok(Some(std::mem::take(&mut self.buffer).freeze()));
        }
        self.is_whole = false;
        if length <= COPIED_BYTES_MAX {
            let frame = Bytes::copy_from_slice(&self.buffer[..length]);
            self.buffer.advance(length);
            if self.sparing && self.buffer.is_empty() {
                self.buffer = BytesMut::new();
            }
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

    /// Where it writes to. What was added and not written is lost.
    pub fn into_inner(self) -> W {
        self.to
    }

    /// Whether all that was added is written.
    pub fn is_empty(&self) -> bool {
        !self.pieces.has_remaining()
    }

    /// Writes what was added. Cancelling it loses nothing: the next one goes on.
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
    use std::sync::atomic::AtomicU64;
    use std::task::{Context, Waker};

    use tailwater_env::{Clock, Random, Task, Tasks};

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
        let bytes = large();
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
        assert!(matches!(came, Ok(Some(Message::Events { .. }))));
        // It has its room until whoever asked for it asks for the next one.
        assert!(arrivals.room.available_permits() < 200 << 10);
        assert!(waits(third.next()));
        assert_eq!(arrivals.room.available_permits(), 300 << 10);
    }

    /// A world in which nothing runs and time passes by hand.
    #[derive(Clone, Default)]
    struct ByHand(Arc<AtomicU64>);

    impl ByHand {
        fn advance(&self, by: Duration) {
            self.0.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    impl Clock for ByHand {
        fn now(&self) -> Instant {
            Instant::from_ns(self.0.load(Ordering::Relaxed))
        }

        fn wall_ms(&self) -> i64 {
            0
        }

        fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
            let clock = self.clone();
            Box::pin(poll_fn(move |_| if clock.now() >= deadline { Poll::Ready(()) } else { Poll::Pending }))
        }
    }

    impl Random for ByHand {
        fn next_u64(&self) -> u64 {
            0
        }
    }

    impl Tasks for ByHand {
        fn spawn(&self, _: &'static str, _: Pin<Box<dyn Future<Output = ()> + Send>>) -> Task {
            Task::new(|| ())
        }

        fn spawn_dedicated(&self, _: &'static str, _: Pin<Box<dyn Future<Output = ()> + Send>>) -> Task {
            Task::new(|| ())
        }
    }

    /// A message of 200 KiB, as it is sent.
    fn large() -> BytesMut {
        let mut events = Writer::new(0);
        let content = Content { payload: vec![7; 200 << 10].into(), ..Content::default() };
        events.publish(&content, None).unwrap();
        let stream = Stream::parse("eu/prices").unwrap();
        let mut bytes = BytesMut::new();
        Message::Events { stream, lineage: 0, batch: events.finish(0) }.encode(&mut bytes);
        bytes
    }

    fn poll<T>(future: &mut Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    const STEP: Duration = Duration::from_secs(5);

    /// Time, and room for one large message and a half.
    fn arrivals_by_hand() -> (ByHand, Arrivals) {
        let clock = ByHand::default();
        let parts = Arc::new(clock.clone());
        let env = Env::new(parts.clone(), parts.clone(), parts, Arc::clone(Env::real().disk()));
        (clock, Arrivals::new(&env, 300 << 10, STEP))
    }

    #[tokio::test]
    async fn a_large_message_may_come_slowly_where_nobody_waits_for_room_and_one_that_stands_still_is_ended()
    {
        let (clock, arrivals) = arrivals_by_hand();
        let bytes = large();
        for stands_still in [false, true] {
            let (mut ours, theirs) = tokio::io::duplex(1 << 20);
            let mut reader = FrameReader::new(theirs).within(arrivals.clone());
            let mut next = pin!(reader.next());
            let (begin, rest) = bytes.split_at(2 * SMALL_BYTES);
            ours.write_all(begin).await.unwrap();
            assert!(poll(&mut next).is_pending());
            let (most, last) = rest.split_at(rest.len() - 1);
            // A rest that is less makes no step.
            for piece in most.chunks_exact(SLOW_STEP_BYTES) {
                clock.advance(STEP - Duration::from_millis(1));
                ours.write_all(piece).await.unwrap();
                assert!(poll(&mut next).is_pending());
                clock.advance(Duration::from_millis(1));
                assert!(poll(&mut next).is_pending());
            }
            ours.write_all(most.chunks_exact(SLOW_STEP_BYTES).remainder()).await.unwrap();
            assert!(poll(&mut next).is_pending());
            if stands_still {
                clock.advance(STEP);
                let Poll::Ready(Err(error)) = poll(&mut next) else { panic!("it is not ended") };
                assert!(error.to_string().contains("did not go on coming"), "{error}");
            } else {
                ours.write_all(last).await.unwrap();
                assert!(matches!(poll(&mut next), Poll::Ready(Ok(Some(Message::Events { .. })))));
            }
        }
    }

    #[tokio::test]
    async fn a_large_message_that_comes_slowly_gives_its_room_to_one_that_waits_for_it() {
        let (clock, arrivals) = arrivals_by_hand();
        let bytes = large();
        let ends = || {
            let (ours, theirs) = tokio::io::duplex(1 << 20);
            (ours, FrameReader::new(theirs).within(arrivals.clone()))
        };
        let ((mut slow, mut first), (mut quick, mut second)) = (ends(), ends());
        slow.write_all(&bytes[..2 * SMALL_BYTES]).await.unwrap();
        quick.write_all(&bytes).await.unwrap();
        let mut comes = Box::pin(first.next());
        let mut waits = pin!(second.next());
        assert!(poll(&mut comes.as_mut()).is_pending());
        assert!(poll(&mut waits).is_pending());
        slow.write_all(&bytes[2 * SMALL_BYTES..][..SLOW_STEP_BYTES]).await.unwrap();
        assert!(poll(&mut comes.as_mut()).is_pending());
        clock.advance(STEP);
        assert!(matches!(poll(&mut comes.as_mut()), Poll::Ready(Err(_))));
        drop(comes);
        drop(first);
        assert!(matches!(poll(&mut waits), Poll::Ready(Ok(Some(Message::Events { .. })))));
        assert_eq!(arrivals.waiting.load(Ordering::Relaxed), 0);
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

    #[test]
    fn a_message_has_the_buffer_that_it_came_in_if_nothing_else_did() {
        let mut bytes = BytesMut::new();
        (1..=3).for_each(|epoch| Message::Token { epoch }.encode(&mut bytes));
        for first in [0, bytes.len() / 3 * 2] {
            let mut reader = FrameReader::new(tokio::io::empty()).sparing();
            reader.buffer = BytesMut::from(&bytes[first..]);
            let read = reader.buffer.as_ptr_range();
            let mut frames = std::iter::from_fn(|| reader.buffered().unwrap());
            assert!(frames.all(|frame| read.contains(&frame.as_ptr()) == (first > 0)));
            assert_eq!(reader.buffer.capacity(), 0);
        }
    }

    #[tokio::test]
    async fn one_that_is_sparing_reads_messages_of_all_sizes_however_they_come_and_has_no_buffer_between_them()
     {
        let large = large();
        let small = [Message::Bye, Message::Token { epoch: 7 }];
        let mut bytes = BytesMut::new();
        for message in &small {
            message.encode(&mut bytes);
        }
        let messages = [&bytes[..], &large, &bytes, &large].concat();
        for step in [1, 3, 4_096, 60_000, messages.len()] {
            let (mut ours, theirs) = tokio::io::duplex(messages.len());
            let mut reader = FrameReader::new(theirs).sparing();
            let mut came = Vec::new();
            for piece in messages.chunks(step) {
                ours.write_all(piece).await.unwrap();
                loop {
                    let Poll::Ready(next) = poll(&mut pin!(reader.next())) else { break };
                    came.push(next.unwrap().unwrap());
                    reader.take_buffered(&mut came, 9).unwrap();
                }
            }
            assert_eq!(came.len(), 6);
            assert_eq!((&came[..2], &came[3..5]), (&small[..], &small[..]));
            for at in [2, 5] {
                let Message::Events { batch, .. } = &came[at] else { panic!("{:?}", came[at]) };
                batch.check().unwrap();
            }
            assert_eq!(reader.buffer.capacity(), 0);
        }
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
