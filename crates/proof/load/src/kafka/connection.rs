//! One connection: requests out, answers in, in their order. Nothing is handed to another thread, and no byte of
//! records is copied on its way out.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Poll, ready};

use anyhow::{Context, bail};
use bytes::{Buf, Bytes, BytesMut};
use tailwater_kafka_wire::api::ApiRequest;
use tailwater_kafka_wire::messages::header::{read_response, request};
use tailwater_tls::PeerStream;
use tokio::io::{AsyncReadExt, AsyncWrite, Interest};
use tokio::net::TcpStream;

use crate::address::LoadAddress;

/// Room in the buffer before each read.
const READ_BYTES: usize = 256 << 10;
/// Longest answer that is taken: that of a fetch, and what is around its records.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Pieces that go out with one system call.
const PIECES_AT_ONCE: usize = 32;

/// What its bytes go over. A plain one is used without anything around it.
enum KafkaStream {
    Plain(TcpStream),
    Secured(Box<PeerStream>),
}

/// A connection to a broker.
pub struct Connection {
    stream: KafkaStream,
    out: VecDeque<Bytes>,
    input: BytesMut,
    correlation_id: i32,
    client_id: String,
}

impl Connection {
    /// Connects to `host:port`, in TLS if there is a CA.
    pub async fn open(at: &LoadAddress) -> anyhow::Result<Self> {
        let stream = at.dialer()?.connect(&at.address).await;
        let stream = stream.with_context(|| format!("no connection to {}", at.address))?;
        let stream = match stream.is_secured() {
            true => KafkaStream::Secured(Box::new(stream)),
            false => KafkaStream::Plain(stream.into_parts().0),
        };
        Ok(Self {
            stream,
            out: VecDeque::new(),
            input: BytesMut::new(),
            correlation_id: 0,
            client_id: at.client_id().to_owned(),
        })
    }

    /// Puts a request in the queue that [`Connection::next`] sends.
    pub fn queue<R: ApiRequest>(&mut self, asked: &R, version: i16) {
        self.correlation_id = self.correlation_id.wrapping_add(1);
        self.out.extend(request(asked, version, self.correlation_id, &self.client_id).pieces);
    }

    /// Sends what is queued, and waits for the next answer, without its length. May be dropped at any time.
    pub async fn next(&mut self) -> anyhow::Result<Bytes> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(frame);
            }
            let Self { stream, out, input, .. } = self;
            match stream {
                KafkaStream::Plain(stream) => {
                    write(stream, out)?;
                    let interest = match out.is_empty() {
                        true => Interest::READABLE,
                        false => Interest::READABLE | Interest::WRITABLE,
                    };
                    if stream.ready(interest).await?.is_readable() {
                        read(stream, input)?;
                    }
                }
                KafkaStream::Secured(stream) => write_and_read(stream, out, input).await?,
            }
        }
    }

    /// Asks, and waits for the answer; nothing else may be under way.
    pub async fn ask<R: ApiRequest>(&mut self, asked: &R, version: i16) -> anyhow::Result<R::Response> {
        self.queue(asked, version);
        let frame = self.next().await?;
        answer::<R>(frame, version)
    }

    fn take_frame(&mut self) -> anyhow::Result<Option<Bytes>> {
        let Some(len) = self.input.first_chunk() else { return Ok(None) };
        let len = u32::from_be_bytes(*len) as usize;
        anyhow::ensure!(len <= ANSWER_BYTES_MAX, "an answer of {len} bytes");
        if self.input.len() < 4 + len {
            self.input.reserve(4 + len - self.input.len());
            return Ok(None);
        }
        self.input.advance(4);
        Ok(Some(self.input.split_to(len).freeze()))
    }
}

fn write(stream: &TcpStream, out: &mut VecDeque<Bytes>) -> io::Result<()> {
    while !out.is_empty() {
        match stream.try_write_vectored(&slices(out)) {
            Ok(written) => skip(out, written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read(stream: &TcpStream, input: &mut BytesMut) -> anyhow::Result<()> {
    make_room(input);
    match stream.try_read_buf(input) {
        Ok(0) => bail!("the server closed a connection"),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Writes what there is room for, and waits until something was read. May be dropped at any time.
async fn write_and_read(
    stream: &mut PeerStream,
    out: &mut VecDeque<Bytes>,
    input: &mut BytesMut,
) -> anyhow::Result<()> {
    let count = poll_fn(|context| {
        while !out.is_empty() {
            match Pin::new(&mut *stream).poll_write_vectored(context, &slices(out))? {
                Poll::Ready(written) => skip(out, written),
                Poll::Pending => break,
            }
        }
        let _ = Pin::new(&mut *stream).poll_flush(context)?;
        make_room(input);
        // It keeps nothing between two polls.
        let count = ready!(pin!(stream.read_buf(input)).poll(context))?;
        Poll::Ready(io::Result::Ok(count))
    });
    match count.await? {
        0 => bail!("the server closed a connection"),
        _ => Ok(()),
    }
}

fn slices(out: &VecDeque<Bytes>) -> Vec<IoSlice<'_>> {
    out.iter().take(PIECES_AT_ONCE).map(|piece| IoSlice::new(piece)).collect()
}

fn make_room(input: &mut BytesMut) {
    if input.capacity() - input.len() < READ_BYTES / 4 {
        input.reserve(READ_BYTES);
    }
}

/// What a frame answers to a request.
pub fn answer<R: ApiRequest>(frame: Bytes, version: i16) -> anyhow::Result<R::Response> {
    let (_, answer) = read_response(R::API, version, frame)
        .with_context(|| format!("the answer to {} can't be read", R::API.name()))?;
    Ok(answer)
}

fn skip(pieces: &mut VecDeque<Bytes>, mut count: usize) {
    while let Some(piece) = pieces.front_mut() {
        let some = count.min(piece.len());
        piece.advance(some);
        count -= some;
        if !piece.is_empty() {
            return;
        }
        pieces.pop_front();
    }
}
