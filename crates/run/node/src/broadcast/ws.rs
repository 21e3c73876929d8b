//! Listening over a WebSocket.
//!
//! ```text
//!   server --> client   text  {"token": …}                                            once, where it begins
//!                       text  {"token": …, "stream": …, "after": …, "last": …, "events": […]}   a batch each
//!                       text  {"token": …, "anew": REGION}, {"token": …, "stale": true}         as in `hub.rs`
//!                       ping  every HEARTBEAT in which nothing else was sent
//!   client --> server   pong, close; nothing else
//! ```
//!
//! A batch's JSON is the one that server-sent events have: a message is two fragments, of which the second one is all
//! of that but its opening brace, and so shared by all listeners. A feed waits until its socket took a message, so what
//! waits for a slow client is that message, and what the kernel holds.
//!
//! Whatever a client sends concerns its own connection only: it is ended, with a code that says why.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::Response;
use futures::{SinkExt, Stream, StreamExt};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tailwater_env::{Env, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::CapacityError;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{CloseFrame, Frame};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::http::ListenRight;
use super::hub::{HubFeed, HubPiece};

/// How long nothing is sent before a ping is.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Bytes of a client's message; it has no reason to send any.
const MESSAGE_BYTES_MAX: usize = 4 << 10;
/// How long a client may take to answer a close.
const CLOSING: Duration = Duration::from_secs(2);
/// Bytes that are read while it does.
const CLOSING_BYTES_MAX: usize = 1 << 20;

type EventSocket = WebSocketStream<TokioIo<Upgraded>>;

/// What a request for a WebSocket needs to become one.
pub(super) struct Upgrade {
    on_upgrade: OnUpgrade,
    key: String,
}

/// Why a request is none.
pub(super) struct NoUpgrade(pub(super) StatusCode, pub(super) &'static str);

impl Upgrade {
    /// Of a request (RFC 6455, section 4.2.1).
    pub(super) fn of(request: &mut Request) -> Result<Self, NoUpgrade> {
        let headers = request.headers();
        let is_asked = request.method() == Method::GET
            && has_token(headers, header::CONNECTION, "upgrade")
            && has_token(headers, header::UPGRADE, "websocket");
        if !is_asked {
            return Err(NoUpgrade(
                StatusCode::UPGRADE_REQUIRED,
                "this is for WebSockets: see /v1/events else",
            ));
        }
        if !has_token(headers, header::SEC_WEBSOCKET_VERSION, "13") {
            return Err(NoUpgrade(StatusCode::UPGRADE_REQUIRED, "WebSockets of version 13 are known"));
        }
        let key = headers.get(header::SEC_WEBSOCKET_KEY).and_then(|key| key.to_str().ok());
        let key = key.filter(|key| key.len() == 24).map(|key| derive_accept_key(key.as_bytes()));
        let key =
            key.ok_or(NoUpgrade(StatusCode::BAD_REQUEST, "there is no Sec-WebSocket-Key of 16 bytes"))?;
        let on_upgrade = request.extensions_mut().remove::<OnUpgrade>();
        let on_upgrade =
            on_upgrade.ok_or(NoUpgrade(StatusCode::BAD_REQUEST, "WebSockets begin with HTTP/1.1"))?;
        Ok(Self { on_upgrade, key })
    }

    /// The answer that makes it one, and what completes when it is.
    pub(super) fn accept(self) -> (Response, OnUpgrade) {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, header::HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, header::HeaderValue::from_static("websocket"));
        let key = header::HeaderValue::try_from(self.key).expect("base64 is text");
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, key);
        (response, self.on_upgrade)
    }
}

fn has_token(headers: &HeaderMap, name: header::HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(token))
}

/// Sends `feed` until the client ends it, breaks a rule, says nothing for `patience` or loses its `right`, or until
/// `stopping` closes.
/// `permit` is its place among the sockets.
pub(super) async fn serve(
    env: Env,
    on_upgrade: OnUpgrade,
    feed: HubFeed,
    patience: Duration,
    (right, mut stopping): (ListenRight, watch::Receiver<()>),
    permit: OwnedSemaphorePermit,
) {
    let Ok(upgraded) = on_upgrade.await else { return };
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX))
        .read_buffer_size(MESSAGE_BYTES_MAX);
    let mut socket = EventSocket::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
    let ended = tokio::select! {
        ended = follow(&env, &mut socket, feed, patience) => ended,
        () = right.revoked() => Some(closing(CloseCode::Policy, "the right to listen was taken away")),
        // Nobody sends anything: it completes when the server is dropped.
        _ = stopping.changed() => Some(closing(CloseCode::Away, "the node is stopping: resume elsewhere")),
    };
    if let Some(frame) = ended {
        let _ = env.timeout(CLOSING, close(socket, frame)).await;
    }
    drop(permit);
}

fn closing(code: CloseCode, reason: &'static str) -> CloseFrame {
    CloseFrame { code, reason: reason.into() }
}

/// What a client is sent next.
enum NextFrame {
    Begin(String),
    Piece(HubPiece),
}

/// Answers what the client is told at its end, if it is still there.
async fn follow(
    env: &Env,
    socket: &mut EventSocket,
    mut feed: HubFeed,
    patience: Duration,
) -> Option<CloseFrame> {
    let (mut sink, mut source) = socket.split();
    let heard = Mutex::new(env.now());
    let sending = async {
        let mut has_begun = false;
        loop {
            let next = async {
                match has_begun {
                    true => NextFrame::Piece(feed.next().await),
                    false => NextFrame::Begin(feed.begin().await),
                }
            };
            match env.timeout(HEARTBEAT, next).await {
                Some(NextFrame::Begin(token)) => {
                    has_begun = true;
                    let begin = serde_json::json!({ "token": token }).to_string();
                    sink.send(Message::text(begin)).await.ok()?;
                    *heard.lock() = env.now();
                }
                Some(NextFrame::Piece(piece)) => {
                    let [head, rest] = fragments(piece);
                    sink.feed(Message::Frame(head)).await.ok()?;
                    sink.send(Message::Frame(rest)).await.ok()?;
                    // Who takes what it is sent is there, however long its answer to a ping waits behind that.
                    *heard.lock() = env.now();
                }
                None if env.now().since(*heard.lock()) > patience + HEARTBEAT => {
                    return Some(closing(CloseCode::Policy, "no ping was answered for too long"));
                }
                None => sink.send(Message::Ping(Bytes::new())).await.ok()?,
            }
        }
    };
    tokio::select! {
        ended = sending => ended,
        ended = listen(env, &mut source, &heard) => ended,
    }
}

/// Reads what the client sends; `heard` is when it last did.
async fn listen(
    env: &Env,
    source: &mut (impl Stream<Item = Result<Message, Error>> + Unpin),
    heard: &Mutex<Instant>,
) -> Option<CloseFrame> {
    loop {
        match source.next().await {
            // The answer to a close is sent by the library, before the stream ends.
            None => return None,
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_))) => *heard.lock() = env.now(),
            Some(Ok(_)) => {
                return Some(closing(CloseCode::Policy, "nothing is taken here: publish by POST"));
            }
            Some(Err(Error::Capacity(CapacityError::MessageTooLong { .. }))) => {
                return Some(closing(CloseCode::Size, "nothing is taken here: publish by POST"));
            }
            Some(Err(Error::Utf8(_))) => {
                return Some(closing(CloseCode::Invalid, "a text is not UTF-8"));
            }
            Some(Err(Error::Protocol(_))) => {
                return Some(closing(CloseCode::Protocol, "that is no frame of a WebSocket's client"));
            }
            Some(Err(_)) => return None,
        }
    }
}

/// Says why it ends, and gives the client the time to read it: what it sent and nobody read would make the kernel
/// throw away what it was sent.
async fn close(mut socket: EventSocket, frame: CloseFrame) {
    if socket.close(Some(frame)).await.is_err() {
        return;
    }
    let raw = socket.get_mut();
    let _ = raw.shutdown().await;
    let (mut left, mut discarded) = (CLOSING_BYTES_MAX, vec![0; MESSAGE_BYTES_MAX]);
    while let Ok(count) = raw.read(&mut discarded).await
        && count > 0
        && left > count
    {
        left -= count;
    }
}

/// A batch's message. Its JSON is an object that is not empty.
fn fragments(piece: HubPiece) -> [Frame; 2] {
    let head = format!("{{\"token\":\"{}\",", piece.token);
    let rest = piece.json.slice(1..);
    [
        Frame::message(head, OpCode::Data(Data::Text), false),
        Frame::message(rest, OpCode::Data(Data::Continue), true),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_fragments_are_one_object_and_the_second_is_shared() {
        let json = Bytes::from_static(b"{\"stream\":\"a/s\",\"after\":4}");
        let [head, rest] = fragments(HubPiece { token: "t".into(), event: None, json: json.clone() });
        assert!(!head.header().is_final && rest.header().is_final);
        assert_eq!(rest.payload().as_ptr(), json[1..].as_ptr());
        let whole = [head.payload(), rest.payload()].concat();
        let value: serde_json::Value = serde_json::from_slice(&whole).unwrap();
        assert_eq!(value, serde_json::json!({"token": "t", "stream": "a/s", "after": 4}));
    }
}
