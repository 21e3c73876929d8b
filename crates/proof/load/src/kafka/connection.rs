//! One connection: requests out, answers in, in their order. Nothing is handed to another thread, and no byte of
//! records is copied on its way out.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use anyhow::{Context, bail};
use bytes::{Buf, Bytes, BytesMut};
use tailwater_kafka_wire::api::ApiRequest;
use tailwater_kafka_wire::messages::header::{read_response, request};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Room in the buffer before each read.
const READ_BYTES: usize = 256 << 10;
/// Longest answer that is taken: that of a fetch, and what is around its records.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Pieces that go out with one system call.
const PIECES_AT_ONCE: usize = 32;

/// A connection to a broker.
pub struct Connection {
    stream: TcpStream,
    out: VecDeque<Bytes>,
    input: BytesMut,
    correlation_id: i32,
}

impl Connection {
    /// Connects to `host:port`.
    pub async fn open(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await;
        let stream = stream.with_context(|| format!("nobody listens at {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, out: VecDeque::new(), input: BytesMut::new(), correlation_id: 0 })
    }

    /// Puts a request in the queue that [`Connection::next`] sends.
    pub fn queue<R: ApiRequest>(&mut self, asked: &R, version: i16) {
        self.correlation_id = self.correlation_id.wrapping_add(1);
        self.out.extend(request(asked, version, self.correlation_id, "tailwater-bench").pieces);
    }

    /// Sends what is queued, and waits for the next answer, without its length. May be dropped at any time.
    pub async fn next(&mut self) -> anyhow::Result<Bytes> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(frame);
            }
            self.write()?;
            let interest = match self.out.is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            };
            let ready = self.stream.ready(interest).await?;
            if ready.is_readable() {
                self.read()?;
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

    fn write(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            let slices: Vec<_> =
                self.out.iter().take(PIECES_AT_ONCE).map(|piece| IoSlice::new(piece)).collect();
            match self.stream.try_write_vectored(&slices) {
                Ok(written) => skip(&mut self.out, written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read(&mut self) -> anyhow::Result<()> {
        if self.input.capacity() - self.input.len() < READ_BYTES / 4 {
            self.input.reserve(READ_BYTES);
        }
        match self.stream.try_read_buf(&mut self.input) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
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
