//! Many requests at once over one socket.
//!
//! Each request has an id; a reader task hands each response to whoever waits for that id. A request that is alone
//! is written by the task that makes it, without a detour. While others are under way it is left to a writer task,
//! so that what many tasks ask for at the same time goes out in one write; so is what a full socket did not take.
//!
//! Cancelling a request drops its entry, and the answer is thrown away when it comes. Unsent requests are bounded
//! ([`OUTGOING_BYTES_MAX`]); what comes back is bounded by what was asked for.

use std::future::Future;
use std::io::{self, IoSlice};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::{Env, HashMap, Task};
use tokio::sync::{Notify, oneshot, watch};

use crate::atomics::{AtomicBool, Ordering};
use crate::client::buffers::{RECEIVE, SHORT_BYTES};
use crate::client::outgoing::{Outgoing, PIECES_MAX};
use crate::client::stream::Stream;
use crate::connection::{CallError, ConnectionLost};
use crate::frame::{self, CallAnswer, Decoder, FrameError, FrameKind, Header};
use crate::limits::{CALL_BYTES_MAX, OUTGOING_BYTES_MAX, WATCH_PERIOD};
use crate::local::too_large;
use crate::service::Refusal;

/// Bytes that are received at once where it is not known what comes: all of most frames, and of a long one no more than
/// is copied without a thought.
const FIRST_BYTES: usize = 8 << 10;

/// A frame from this length on has memory of its own. What borrows from it keeps not much more than the frame then.
const LONG_BYTES: usize = 64 << 10;

/// Bytes of a long frame that are waited for before any of them is received: what comes is checked at once, while it is
/// in the core's cache, and neither a wake nor a system call is spent on a part of it. More would keep the sender
/// waiting for room.
const WAITED_FOR_BYTES_MAX: usize = 1 << 20;

/// The id of WATCH requests, whose answers go to nobody in particular.
const WATCH_REQUEST: u64 = 0;

/// One socket's requests. Dropping it closes the socket.
pub(crate) struct Mux {
    inner: Arc<MuxInner>,
    _reader: Task,
    _writer: Task,
}

struct MuxInner {
    peer: String,
    stream: Stream,
    state: Mutex<MuxState>,
    /// Some of the outgoing bytes went.
    room: Notify,
    /// The writer task is to write: `writing` is set, and for it to clear.
    writer_due: Notify,
    /// Set once, together with `why`; read on every operation.
    is_lost: AtomicBool,
    why: OnceLock<ConnectionLost>,
    /// The doorbell as it was last told; notified for every answered WATCH.
    doorbell: watch::Sender<u32>,
    watch_sent: AtomicBool,
}

#[derive(Default)]
struct MuxState {
    /// Who waits for which request. Emptied when the connection is lost.
    waiting: HashMap<u64, oneshot::Sender<(Header, Bytes)>>,
    last_request: u64,
    /// Requests that somebody who is writing will write next.
    outgoing: Outgoing,
    /// Somebody is writing: a caller, or the writer task.
    writing: bool,
    /// What the socket did not take, for the writer task.
    leftover: Option<Outgoing>,
}

/// A request under way; dropping it abandons the answer.
pub(crate) struct PendingRequest {
    inner: Arc<MuxInner>,
    request: u64,
    answer: oneshot::Receiver<(Header, Bytes)>,
}

impl Mux {
    /// Takes over a socket on which HELLO was exchanged. `decoder` has what was received behind it; `on_lost`
    /// runs once when the connection is lost.
    pub(crate) fn start(
        env: &Env,
        peer: String,
        stream: Stream,
        decoder: Decoder,
        doorbell: u32,
        on_lost: impl FnOnce() + Send + 'static,
    ) -> Self {
        let inner = Arc::new(MuxInner {
            peer,
            stream,
            state: Mutex::new(MuxState::default()),
            room: Notify::new(),
            writer_due: Notify::new(),
            is_lost: AtomicBool::new(false),
            why: OnceLock::new(),
            doorbell: watch::Sender::new(doorbell),
            watch_sent: AtomicBool::new(false),
        });
        let reader = {
            let inner = inner.clone();
            env.spawn("rma-reader", async move {
                let reason = inner.read_all(decoder).await;
                inner.lose(reason);
                on_lost();
            })
        };
        let writer = {
            let inner = inner.clone();
            env.spawn("rma-writer", async move { inner.write_for_others().await })
        };
        Self { inner, _reader: reader, _writer: writer }
    }

    pub(crate) fn peer(&self) -> &str {
        &self.inner.peer
    }

    /// Why the connection is gone, once it is.
    pub(crate) fn lost(&self) -> Option<ConnectionLost> {
        if self.inner.is_lost.load(Ordering::Acquire) { self.inner.why.get().cloned() } else { None }
    }

    /// As [`Mux::lost`], as an error.
    #[inline]
    pub(crate) fn alive(&self) -> Result<(), ConnectionLost> {
        if self.inner.is_lost.load(Ordering::Acquire) { Err(self.inner.why()) } else { Ok(()) }
    }

    /// Ends the connection because of what its peer sent.
    pub(crate) fn refuse(&self, error: &FrameError) -> ConnectionLost {
        self.inner.lose(format!("the server sent what it should not: {error}"));
        self.inner.why()
    }

    /// Sends the request that `encode` writes under the id it is given, as soon as there is room for it.
    pub(crate) async fn request(
        &self,
        encode: impl FnOnce(&mut Vec<u8>, u64),
    ) -> Result<PendingRequest, ConnectionLost> {
        self.request_and(encode, &[]).await
    }

    /// As [`Mux::request`], of which `pieces` are the end.
    async fn request_and(
        &self,
        encode: impl FnOnce(&mut Vec<u8>, u64),
        pieces: &[Bytes],
    ) -> Result<PendingRequest, ConnectionLost> {
        let look = || {
            if let Err(lost) = self.alive() {
                return Some(Err(lost));
            }
            let state = self.inner.state.lock();
            (state.outgoing.len() < OUTGOING_BYTES_MAX).then_some(Ok(state))
        };
        let state = look_until(&self.inner.room, look).await?;
        Ok(self.inner.submit(state, encode, pieces))
    }

    /// A CALL from request to answer; its payload is these pieces together.
    pub(crate) async fn call(&self, method: u16, pieces: &[Bytes]) -> Result<Bytes, CallError> {
        let len = pieces.iter().map(Bytes::len).sum();
        if len > CALL_BYTES_MAX {
            return Err(too_large("payload", len));
        }
        let header = |out: &mut Vec<u8>, id| frame::encode_call(out, id, method, len);
        let pending = self.request_and(header, pieces).await?;
        let (header, body) = pending.answer(FrameKind::CallReply).await?;
        match CallAnswer::parse(&header, body) {
            Ok(CallAnswer::Done(bytes)) => Ok(bytes),
            Ok(CallAnswer::Refused(Refusal { code, message })) => Err(CallError::Refused { code, message }),
            Ok(CallAnswer::Overloaded) => Err(CallError::Overloaded { peer: self.inner.peer.clone() }),
            Err(error) => Err(self.refuse(&error).into()),
        }
    }

    /// Completes when the doorbell differs from `last_seen`. One WATCH at the server serves all who wait here.
    pub(crate) async fn doorbell_moved(&self, last_seen: u32) -> Result<u32, ConnectionLost> {
        let inner = &self.inner;
        let mut doorbell = inner.doorbell.subscribe();
        loop {
            self.alive()?;
            let known = *doorbell.borrow_and_update();
            if known != last_seen {
                return Ok(known);
            }
            // AcqRel: the reader clears it before it tells of the answer, which wakes us again.
            if !inner.watch_sent.swap(true, Ordering::AcqRel) {
                inner.write(
                    inner.state.lock(),
                    |out| {
                        frame::encode_watch(out, WATCH_REQUEST, known, WATCH_PERIOD);
                    },
                    &[],
                );
            }
            // The sender lives as long as `inner`, and a loss is notified too.
            let _ = doorbell.changed().await;
        }
    }

    /// The doorbell as it was last told.
    pub(crate) fn doorbell(&self) -> u32 {
        *self.inner.doorbell.borrow()
    }
}

impl PendingRequest {
    /// The response, whose kind is to be `kind`.
    pub(crate) async fn answer(mut self, kind: FrameKind) -> Result<(Header, Bytes), ConnectionLost> {
        let Ok((header, body)) = (&mut self.answer).await else {
            return Err(self.inner.why());
        };
        if header.kind != kind {
            self.inner.lose(format!("the server answered a {:?} where a {kind:?} was due", header.kind));
            return Err(self.inner.why());
        }
        Ok((header, body))
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.inner.state.lock().waiting.remove(&self.request);
    }
}

impl MuxInner {
    fn why(&self) -> ConnectionLost {
        self.why.get().cloned().expect("it is set before anybody is told")
    }

    fn lose(&self, reason: String) {
        let _ = self.why.set(ConnectionLost { peer: self.peer.clone(), reason });
        // Release: `why` is there for whoever sees this.
        if !self.is_lost.swap(true, Ordering::AcqRel) {
            tracing::debug!(peer = self.peer, reason = self.why().reason, "connection lost");
        }
        // Ends the reader, if it was not the reader who noticed; the far side gets to know as well.
        self.stream.shut_down();
        self.state.lock().waiting.clear();
        self.room.notify_waiters();
        self.doorbell.send_modify(|_| {});
    }

    fn submit(
        self: &Arc<Self>,
        mut state: parking_lot::MutexGuard<'_, MuxState>,
        encode: impl FnOnce(&mut Vec<u8>, u64),
        pieces: &[Bytes],
    ) -> PendingRequest {
        state.last_request += 1;
        let request = state.last_request;
        let (send, answer) = oneshot::channel();
        // Checked with the lock held, which `lose` takes behind setting it: nobody waits on after that.
        if !self.is_lost.load(Ordering::Acquire) {
            state.waiting.insert(request, send);
        }
        self.write(state, |out| encode(out, request), pieces);
        PendingRequest { inner: self.clone(), request, answer }
    }

    /// Appends what `encode` writes and `pieces`, and has it written out if nobody is writing.
    fn write(
        &self,
        mut state: parking_lot::MutexGuard<'_, MuxState>,
        encode: impl FnOnce(&mut Vec<u8>),
        pieces: &[Bytes],
    ) {
        encode(state.outgoing.tail());
        for piece in pieces {
            state.outgoing.push(piece);
        }
        if std::mem::replace(&mut state.writing, true) {
            return;
        }
        if state.waiting.len() > 1 {
            // Tasks that are about to run may ask for something as well.
            drop(state);
            self.writer_due.notify_one();
            return;
        }
        let outgoing = std::mem::take(&mut state.outgoing);
        drop(state);
        self.write_on(outgoing);
    }

    /// Writes what it is given, and what others add meanwhile, until all is written or the socket is full; the rest
    /// is then the writer task's.
    fn write_on(&self, mut outgoing: Outgoing) {
        loop {
            while !outgoing.is_empty() || !self.stream.is_flushed() {
                let mut slices = [IoSlice::new(&[]); PIECES_MAX];
                let pieces = outgoing.slices(&mut slices);
                match self.stream.try_write(&slices[..pieces]) {
                    Ok(count) => outgoing.written(count),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.state.lock().leftover = Some(outgoing);
                        self.writer_due.notify_one();
                        return;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        self.lose(error.to_string());
                        return;
                    }
                }
            }
            outgoing = outgoing.cleared();
            let mut state = self.state.lock();
            if state.outgoing.is_empty() {
                state.writing = false;
                state.outgoing = outgoing;
                return;
            }
            std::mem::swap(&mut outgoing, &mut state.outgoing);
            drop(state);
            self.room.notify_waiters();
        }
    }

    /// The writer task: writes what was left to it.
    async fn write_for_others(&self) {
        loop {
            self.writer_due.notified().await;
            let leftover = self.state.lock().leftover.take();
            let outgoing = match leftover {
                Some(leftover) => {
                    if self.stream.writable().await.is_err() {
                        // The reader finds out why.
                        return;
                    }
                    leftover
                }
                None => {
                    let outgoing = std::mem::take(&mut self.state.lock().outgoing);
                    self.room.notify_waiters();
                    outgoing
                }
            };
            self.write_on(outgoing);
        }
    }

    /// Hands out responses until the connection ends, and says why it did.
    async fn read_all(&self, mut decoder: Decoder) -> String {
        // The buffer is a long frame's.
        let mut is_long = false;
        let mut readable_from = 1;
        loop {
            if let Err(error) = self.dispatch(&mut decoder) {
                return format!("the server sent what it should not: {error}");
            }
            let missing = decoder.missing();
            let buffer = decoder.buffer();
            let was_long =
                std::mem::replace(&mut is_long, missing > 0 && buffer.len() + missing >= LONG_BYTES);
            // Behind a long frame there is room for a little of what follows: a receive that is full may have left
            // more.
            let room = if is_long { missing + FIRST_BYTES } else { missing.max(FIRST_BYTES) };
            let room = room + self.stream.slack();
            if is_long != was_long || buffer.capacity() - buffer.len() < room {
                let mut roomy = RECEIVE.take(SHORT_BYTES.max(buffer.len() + room));
                roomy.extend_from_slice(buffer);
                RECEIVE.keep(std::mem::replace(buffer, roomy));
            }
            match self.stream.try_read_buf(buffer, room) {
                Ok(0) => return "closed by the server".to_owned(),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if buffer.is_empty() {
                        RECEIVE.keep(std::mem::take(buffer));
                    }
                    let enough = if is_long { missing.min(WAITED_FOR_BYTES_MAX) } else { 1 };
                    if let Err(error) = self.stream.readable_from(enough, &mut readable_from).await {
                        return error.to_string();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.to_string(),
            }
        }
    }

    /// Hands out the responses that are whole.
    fn dispatch(&self, decoder: &mut Decoder) -> Result<(), FrameError> {
        while let Some((header, body)) = decoder.next()? {
            if header.kind == FrameKind::WatchReply {
                self.watch_sent.store(false, Ordering::Release);
                self.doorbell.send_replace(frame::parse_watch_reply(body));
                continue;
            }
            let mut state = self.state.lock();
            if header.request > state.last_request {
                return Err(FrameError::Body("an answer to nothing that was asked"));
            }
            let waiting = state.waiting.remove(&header.request);
            drop(state);
            if let Some(waiting) = waiting {
                // Whoever asked may have just given up.
                let _ = waiting.send((header, body));
            }
        }
        Ok(())
    }
}

/// Looks until there is something, and again whenever `changed` was notified: also while it looked.
async fn look_until<T>(changed: &Notify, mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        // Counts what is notified from here on.
        let notified = changed.notified();
        if let Some(found) = look() {
            return found;
        }
        notified.await;
    }
}

/// Waits for `moved`, but no longer than `deadline`, behind which the doorbell is `value` at that moment.
pub(crate) async fn watch_until(
    env: &Env,
    deadline: std::time::Duration,
    moved: impl Future<Output = Result<u32, ConnectionLost>>,
    value: impl FnOnce() -> u32,
) -> Result<u32, ConnectionLost> {
    match env.timeout(deadline, moved).await {
        Some(moved) => moved,
        None => Ok(value()),
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn what_changes_while_somebody_looks_is_looked_at_again() {
        let changed = Notify::new();
        let mut looks = 0;
        let found = look_until(&changed, || {
            looks += 1;
            // As when the connection is lost right behind the look: nobody notifies again.
            changed.notify_waiters();
            (looks > 1).then_some(looks)
        });
        assert_eq!(found.now_or_never(), Some(2), "it sleeps through the change");
    }
}
