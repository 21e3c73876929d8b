//! Connections to bookies: one for each, with any number of requests on their way, and another one for requests of
//! another version of the protocol. A connection comes up with the first request and again after it broke. What was on
//! its way then is answered with [`BookieError::Unreachable`]: whether the bookie did it is not known.
//!
//! Each request is answered exactly once, at its deadline at the latest. A connection on which a request ran out of
//! time while nothing at all was received is given up: its peer may be gone without a word.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use futures::future::{Either, select};
use parking_lot::Mutex;
use tailwater_env::{Env, Instant, Task};
use tailwater_tls::{DialError, PeerReadHalf, PeerStream, PeerWriteHalf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::batches::take_batch_response;
use crate::handshake;
use crate::ids::BookieId;
use crate::limits::{
    BATCHES_AGAIN, CONNECT_TIMEOUT, RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN, REQUEST_TIMEOUT, REQUESTS_MAX,
    WRITE_BYTES_MAX,
};
use crate::protocol::{BookieAnswer, BookieError, BookieRequest};
use crate::security::BookieSecurity;
use crate::step::StepInput;
use crate::wire::{FrameFault, NumberedAnswer, put_request, take_response};
use crate::zookeeper::Ledgers;

/// How often deadlines are looked at: they are late by so much at most.
const SWEEP: Duration = Duration::from_millis(100);

/// Where answers go: to whoever drives a state machine.
#[derive(Clone)]
pub(crate) struct Inbox {
    sender: mpsc::UnboundedSender<StepInput>,
}

impl Inbox {
    /// One, and what arrives in it. As many answers can be waiting as requests were made, and who makes them bounds
    /// those.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<StepInput>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { sender }, receiver)
    }

    /// Nobody may wait any more.
    pub(crate) fn put(&self, input: StepInput) {
        let _ = self.sender.send(input);
    }
}

/// A request on its way. Dropping it answers it.
struct WaitingRequest {
    inbox: Inbox,
    token: u64,
    deadline: Instant,
    sent_at: Instant,
    answer: Option<Result<BookieAnswer, BookieError>>,
    count: Arc<AtomicUsize>,
}

impl WaitingRequest {
    fn answer(mut self, result: Result<BookieAnswer, BookieError>) {
        self.answer = Some(result);
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let result = self.answer.take().unwrap_or(Err(BookieError::Unreachable));
        self.inbox.put(StepInput::Answer { token: self.token, result });
    }
}

/// What a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CarriedVersion {
    /// Requests of version 3.
    Messages,
    /// Those of version 2, see [`crate::batches`].
    Batches,
}

impl CarriedVersion {
    fn of(request: &BookieRequest) -> Self {
        match request {
            BookieRequest::ReadBatch { .. } => Self::Batches,
            _ => Self::Messages,
        }
    }

    /// The first answer in what was received.
    fn take(self, from: &mut BytesMut) -> Result<Option<NumberedAnswer>, FrameFault> {
        match self {
            Self::Messages => take_response(from),
            Self::Batches => take_batch_response(from),
        }
    }
}

type Queued = (BookieRequest, WaitingRequest);

struct Connection {
    queue: mpsc::UnboundedSender<Queued>,
    waiting: Arc<AtomicUsize>,
    _task: Task,
}

/// All connections of a client. Cheap to clone; the last one's drop ends them.
#[derive(Clone)]
pub(crate) struct Connections {
    env: Env,
    ledgers: Ledgers,
    security: BookieSecurity,
    bookies: Arc<Mutex<BTreeMap<(BookieId, CarriedVersion), Connection>>>,
}

impl Connections {
    pub(crate) fn new(env: Env, ledgers: Ledgers, security: BookieSecurity) -> Self {
        Self { env, ledgers, security, bookies: Arc::default() }
    }

    /// Asks a bookie; `inbox` gets the answer, with the token.
    pub(crate) fn ask(&self, bookie: &BookieId, request: BookieRequest, token: u64, inbox: &Inbox) {
        let now = self.env.now();
        let patience = match &request {
            BookieRequest::Poll { wait_ms, .. } => REQUEST_TIMEOUT + Duration::from_millis(*wait_ms),
            _ => REQUEST_TIMEOUT,
        };
        let mut bookies = self.bookies.lock();
        let carried = CarriedVersion::of(&request);
        let connection =
            bookies.entry((bookie.clone(), carried)).or_insert_with(|| self.connection(bookie, carried));
        let before = connection.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = WaitingRequest {
            inbox: inbox.clone(),
            token,
            deadline: now + patience,
            sent_at: now,
            answer: None,
            count: connection.waiting.clone(),
        };
        if before >= REQUESTS_MAX {
            return waiting.answer(Err(BookieError::Overloaded));
        }
        // What is not taken is dropped, and so answered.
        let _ = connection.queue.send((request, waiting));
    }

    fn connection(&self, bookie: &BookieId, carried: CarriedVersion) -> Connection {
        let (queue, requests) = mpsc::unbounded_channel();
        let target = BookieTarget {
            env: self.env.clone(),
            ledgers: self.ledgers.clone(),
            security: self.security.clone(),
            bookie: bookie.clone(),
            carried,
        };
        let task = self.env.spawn("bookie connection", run(target, requests));
        Connection { queue, waiting: Arc::default(), _task: task }
    }
}

/// A bookie, and how it is reached.
struct BookieTarget {
    env: Env,
    ledgers: Ledgers,
    security: BookieSecurity,
    bookie: BookieId,
    carried: CarriedVersion,
}

/// Connects whenever there is something to ask, and answers what can't be asked.
async fn run(target: BookieTarget, mut requests: mpsc::UnboundedReceiver<Queued>) {
    let BookieTarget { env, bookie, carried, .. } = &target;
    // Why the bookie refused the last connection: that is said once.
    let mut refused = None;
    let mut pause = RECONNECT_PAUSE_MIN;
    let mut again_at = env.now();
    // Until then it is not asked what it does not know.
    let mut unsupported_until = env.now();
    while let Some(first) = requests.recv().await {
        if env.now() < unsupported_until {
            first.1.answer(Err(BookieError::Unsupported));
            continue;
        }
        if env.now() < again_at {
            // It could not be reached a moment ago.
            continue;
        }
        match connect(&target).await {
            Ok(stream) => {
                refused = None;
                let begun = env.now();
                let Conversed { why, was_answered } =
                    converse(env, stream, *carried, first, &mut requests).await;
                tracing::debug!(%bookie, %why, "the connection to a bookie ended");
                if *carried == CarriedVersion::Batches
                    && !was_answered
                    && why.kind() != io::ErrorKind::TimedOut
                {
                    tracing::info!(%bookie, %why, "it takes no request for many entries: they are read one by one");
                    unsupported_until = env.now() + BATCHES_AGAIN;
                    continue;
                }
                if env.now().since(begun) > RECONNECT_PAUSE_MAX {
                    pause = RECONNECT_PAUSE_MIN;
                }
            }
            Err(why) => {
                if let DialError::Refused(why) = &why
                    && refused.as_ref() != Some(why)
                {
                    tracing::warn!(%bookie, %why, "a bookie can't be used");
                    refused = Some(why.clone());
                }
                tracing::debug!(%bookie, %why, "a bookie can't be reached");
                drop(first);
                while requests.try_recv().is_ok() {}
            }
        }
        again_at = env.now() + pause;
        pause = (pause * 2).min(RECONNECT_PAUSE_MAX);
    }
}

async fn connect(target: &BookieTarget) -> Result<PeerStream, DialError> {
    let BookieTarget { env, ledgers, security, bookie, .. } = target;
    let connecting = async {
        let address = ledgers.address_of(bookie).await.map_err(io::Error::other)?;
        let tcp = TcpStream::connect(&address).await?;
        tcp.set_nodelay(true)?;
        socket2::SockRef::from(&tcp).set_keepalive(true)?;
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        let nonce = format!("{:016x}{:016x}", env.random_u64(), env.random_u64());
        handshake::begin(tcp, host, security, &nonce).await
    };
    let late = || io::Error::new(io::ErrorKind::TimedOut, "it does not accept connections").into();
    env.timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(|| Err(late()))
}

/// What both directions of a connection know.
struct OnTheirWay {
    waiting: BTreeMap<u64, WaitingRequest>,
    received_at: Instant,
    was_answered: bool,
}

/// How a connection ended.
struct Conversed {
    why: io::Error,
    /// Whether the bookie did anything that it was asked.
    was_answered: bool,
}

/// Asks and takes answers until the connection ends; why it did. What is on its way then is dropped, and so answered.
async fn converse(
    env: &Env,
    stream: PeerStream,
    carried: CarriedVersion,
    first: Queued,
    requests: &mut mpsc::UnboundedReceiver<Queued>,
) -> Conversed {
    let (from, to) = stream.into_split();
    let shared =
        Mutex::new(OnTheirWay { waiting: BTreeMap::new(), received_at: env.now(), was_answered: false });
    let why = {
        let asking = std::pin::pin!(ask_all(env, to, first, requests, &shared));
        let answers = std::pin::pin!(take_answers(env, from, carried, &shared));
        let sweeping = std::pin::pin!(sweep(env, &shared));
        match select(answers, select(asking, sweeping)).await {
            Either::Left((why, _)) => why,
            Either::Right((either, _)) => either.factor_first().0,
        }
    };
    Conversed { why, was_answered: shared.into_inner().was_answered }
}

async fn ask_all(
    env: &Env,
    mut to: PeerWriteHalf,
    first: Queued,
    requests: &mut mpsc::UnboundedReceiver<Queued>,
    shared: &Mutex<OnTheirWay>,
) -> io::Error {
    let mut number = 0_u64;
    let mut buffer = BytesMut::new();
    let mut next = Some(first);
    loop {
        let Some((request, waiting)) = next.take() else {
            match requests.recv().await {
                Some(queued) => next = Some(queued),
                None => return io::Error::other("nobody asks any more"),
            }
            continue;
        };
        number += 1;
        put_request(number, &request, &mut buffer);
        shared.lock().waiting.insert(number, waiting);
        if buffer.len() < WRITE_BYTES_MAX
            && let Ok(queued) = requests.try_recv()
        {
            next = Some(queued);
            continue;
        }
        // In TLS what was written may wait.
        let writing = async {
            to.write_all(&buffer).await?;
            to.flush().await
        };
        // A bookie that reads nothing would hold what waits behind it, whatever it sends.
        match env.timeout(REQUEST_TIMEOUT, writing).await {
            Some(Ok(())) => {}
            Some(Err(why)) => return why,
            None => return io::Error::new(io::ErrorKind::TimedOut, "it does not read"),
        }
        buffer.clear();
    }
}

async fn take_answers(
    env: &Env,
    mut from: PeerReadHalf,
    carried: CarriedVersion,
    shared: &Mutex<OnTheirWay>,
) -> io::Error {
    let mut buffer = BytesMut::with_capacity(64 << 10);
    loop {
        match from.read_buf(&mut buffer).await {
            Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
            Ok(_) => {}
            Err(why) => return why,
        }
        shared.lock().received_at = env.now();
        loop {
            match carried.take(&mut buffer) {
                Ok(Some(answered)) => {
                    let is_known = answered.result != Err(BookieError::Unsupported);
                    // Of one that was given up there is nothing left.
                    let waiting = {
                        let mut shared = shared.lock();
                        shared.was_answered |= is_known;
                        shared.waiting.remove(&answered.number)
                    };
                    if let Some(waiting) = waiting {
                        waiting.answer(answered.result);
                    }
                    if !is_known {
                        return io::Error::other(BookieError::Unsupported);
                    }
                }
                Ok(None) => break,
                Err(fault) => return io::Error::new(io::ErrorKind::InvalidData, fault),
            }
        }
    }
}

/// Answers what is late.
async fn sweep(env: &Env, shared: &Mutex<OnTheirWay>) -> io::Error {
    loop {
        env.sleep(SWEEP).await;
        let now = env.now();
        let mut late = Vec::new();
        let received_at = {
            let mut shared = shared.lock();
            let numbers: Vec<u64> = shared
                .waiting
                .iter()
                .filter(|(_, waiting)| waiting.deadline <= now)
                .map(|(number, _)| *number)
                .collect();
            late.extend(numbers.iter().filter_map(|number| shared.waiting.remove(number)));
            shared.received_at
        };
        let silent = late.iter().any(|waiting| waiting.sent_at > received_at);
        for waiting in late {
            waiting.answer(Err(BookieError::TimedOut));
        }
        if silent {
            return io::Error::new(io::ErrorKind::TimedOut, "nothing was received for a whole time-out");
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::ids::{EntryId, LedgerId};

    #[tokio::test]
    async fn a_bookie_that_hangs_up_on_a_request_for_many_entries_gets_no_other_one_for_a_while() {
        let env = Env::real();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let bookie = BookieId::new(&listener.local_addr().expect("bound").to_string());
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        // As one before 4.17.
        let _old = env.spawn("old bookie", async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read_u32().await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let uri = "bookkeeper://127.0.0.1:1/ledgers".parse().expect("well-formed");
        let ledgers = Ledgers::unconnected(env.clone(), uri);
        let connections = Connections::new(env, ledgers, BookieSecurity::default());
        let ledger = LedgerId::new(1).expect("not negative");
        let ask = async || {
            let (inbox, mut answers) = Inbox::new();
            let first = EntryId::FIRST;
            let request = BookieRequest::ReadBatch { ledger, first, count_max: 9, bytes_max: 9 };
            connections.ask(&bookie, request, 7, &inbox);
            match answers.recv().await {
                Some(StepInput::Answer { token: 7, result }) => result,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            ask().await,
            Err(BookieError::Unreachable),
            "whether it knows the request shows only then"
        );
        for _ in 0..3 {
            assert_eq!(ask().await, Err(BookieError::Unsupported));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}
