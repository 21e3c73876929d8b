//! Connecting to a server, over what its address calls for.
//!
//! Over TCP all operations are frames on one socket, multiplexed by request id ([`tcp`]). Over a Unix socket the
//! server passes its regions, and READs are memory reads ([`shm`]); what is left of the socket are CALLs, and the
//! news of the server's end. In TLS it is as over TCP, behind a handshake in which the server's certificate is checked.
//! Where libfabric reads, everything but READs is as over TCP (`ofi`).

mod buffers;
mod login;
mod mux;
#[cfg(feature = "ofi")]
mod ofi;
mod outgoing;
mod secured;
mod shm;
#[allow(unsafe_code)]
mod stream;
mod tcp;
mod waiter;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use tailwater_env::Env;
use tailwater_tls::{DialError, Dialer};
use tokio::net::{TcpSocket, TcpStream, UnixStream};

use crate::address::Address;
use crate::connection::Connection;
use crate::frame::{self, Decoder, FrameKind, Header, HelloReply, Side};
use crate::limits::CONNECT_DEADLINE;
use crate::socket::{receive_with_files, tune_tcp};

pub use login::{ClientDialogue, LoginNext, LoginWish, ServerLogin};
use secured::SecuredStream;
use stream::Stream;

/// Bytes received at once until HELLO is answered.
const HELLO_RECEIVE_BYTES: usize = 4096;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens there, or the connection broke before it was there.
    #[error("cannot connect to {address}: {source}")]
    Io {
        /// Where to.
        address: Address,
        /// What went wrong.
        source: io::Error,
    },
    /// It took longer than [`crate::limits::CONNECT_DEADLINE`].
    #[error("{address} did not answer within {CONNECT_DEADLINE:?}")]
    Timeout {
        /// Where to.
        address: Address,
    },
    /// One of both does not take what the other one has shown, or is not set up for TLS.
    #[error("cannot connect to {address}: {reason}")]
    Secure {
        /// Where to.
        address: Address,
        /// What to do about it.
        reason: String,
    },
    /// It wants a login, or does not take the one that it is shown.
    #[error("cannot log in at {address}: {reason}")]
    Login {
        /// Where to.
        address: Address,
        /// The application's number for it, if the server said no.
        code: Option<u16>,
        /// What to do about it.
        reason: String,
    },
    /// What listens there is no server of ours, or one of another version.
    #[error("{address} answered what is no greeting of ours: {reason}")]
    Greeting {
        /// Where to.
        address: Address,
        /// What was wrong with it.
        reason: String,
    },
}

/// Connects to the server at `address`, which is none in TLS. Otherwise as [`connect_with`].
///
/// # Panics
/// Outside a tokio runtime that has its I/O enabled.
pub async fn connect(env: &Env, address: &Address) -> Result<Arc<dyn Connection>, ConnectError> {
    connect_with(env, address, &Dialer::plain()).await
}

/// Connects to the server at `address`; `dialer` says whom to trust there, if it is one in TLS. Takes at most
/// [`CONNECT_DEADLINE`]. Connections do not mend themselves: make another one when [`Connection::lost`] says so.
///
/// # Panics
/// Outside a tokio runtime that has its I/O enabled.
pub async fn connect_with(
    env: &Env,
    address: &Address,
    dialer: &Dialer,
) -> Result<Arc<dyn Connection>, ConnectError> {
    connect_as(env, address, dialer, None).await
}

/// The same, and logs in by `login`, if there is one, before anything else.
///
/// # Errors
/// Also that the server does not let in who shows that login, and without one that it wants one.
///
/// # Panics
/// Outside a tokio runtime that has its I/O enabled.
pub async fn connect_as(
    env: &Env,
    address: &Address,
    dialer: &Dialer,
    login: Option<LoginWish<'_>>,
) -> Result<Arc<dyn Connection>, ConnectError> {
    match env.timeout(CONNECT_DEADLINE, greet(env, address, dialer, login)).await {
        Some(Ok(connection)) => Ok(connection),
        Some(Err(Failure::Login(code, reason))) => {
            Err(ConnectError::Login { address: address.clone(), code, reason })
        }
        Some(Err(Failure::Secure(reason))) => Err(ConnectError::Secure { address: address.clone(), reason }),
        Some(Err(Failure::Io(source))) => Err(ConnectError::Io { address: address.clone(), source }),
        Some(Err(Failure::Greeting(reason))) => {
            Err(ConnectError::Greeting { address: address.clone(), reason })
        }
        None => Err(ConnectError::Timeout { address: address.clone() }),
    }
}

enum Failure {
    Io(io::Error),
    Secure(String),
    Login(Option<u16>, String),
    Greeting(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<frame::FrameError> for Failure {
    fn from(error: frame::FrameError) -> Self {
        Self::Greeting(error.to_string())
    }
}

impl From<DialError> for Failure {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Refused(why) => Self::Secure(why),
            DialError::Slow(_) => Self::Io(io::ErrorKind::TimedOut.into()),
            DialError::Io(error) => Self::Io(error),
        }
    }
}

async fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    tune_tcp(&socket)?;
    socket.connect(address).await
}

async fn greet(
    env: &Env,
    address: &Address,
    dialer: &Dialer,
    login: Option<LoginWish<'_>>,
) -> Result<Arc<dyn Connection>, Failure> {
    let stream = match address {
        Address::Tcp(address) | Address::Ofi(address) => Stream::Tcp(dial(*address).await?),
        Address::Tls(_) if !dialer.is_secured() => {
            let why =
                "it is one in TLS, and nothing says whose certificates are good: name the file of its CA";
            return Err(Failure::Secure(why.to_owned()));
        }
        Address::Tls(address) => {
            let secured = dialer.secure(dial(*address).await?, &address.ip().to_string()).await?;
            match secured.into_parts() {
                (tcp, Some(channel)) => Stream::Secured(SecuredStream::new(tcp, channel)),
                (tcp, None) => Stream::Tcp(tcp),
            }
        }
        Address::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
    };
    let (reply, decoder, files) = login::come_in(env, &stream, login).await?;
    let peer = address.to_string();
    if reply.files {
        let maps = shm::Maps::of(&reply, files).map_err(|error| Failure::Greeting(error.to_string()))?;
        return Ok(Arc::new(shm::Shm::start(env, peer, stream, decoder, maps)));
    }
    match address {
        #[cfg(feature = "ofi")]
        Address::Ofi(at) if reply.fabric => {
            Ok(Arc::new(ofi::Ofi::start(env, peer, at.ip(), stream, decoder, reply).await))
        }
        Address::Ofi(_) => {
            let why = if reply.fabric {
                "this program is built without libfabric (the feature ofi)"
            } else {
                "the server does not serve libfabric"
            };
            tracing::warn!(peer, why, "READs go over TCP");
            Ok(Arc::new(tcp::Tcp::start(env, peer, stream, decoder, reply)))
        }
        _ => Ok(Arc::new(tcp::Tcp::start(env, peer, stream, decoder, reply))),
    }
}

/// Says HELLO: what the server answers, what was received behind that, and the descriptors that came along.
async fn say_hello(
    stream: &Stream,
    encode: impl FnOnce(&mut Vec<u8>),
) -> Result<(HelloReply, Decoder, Vec<OwnedFd>), Failure> {
    let mut hello = Vec::new();
    encode(&mut hello);
    let mut decoder = Decoder::new(Side::Responses);
    let mut files = Vec::new();
    let (header, body) = ask(stream, &hello, &mut decoder, &mut files).await?;
    if header.kind != FrameKind::HelloReply {
        return Err(Failure::Greeting("another frame came first".to_owned()));
    }
    let reply = HelloReply::parse(body)?;
    if reply.version != frame::VERSION {
        return Err(Failure::Greeting(format!("it goes on in version {}", reply.version)));
    }
    Ok((reply, decoder, files))
}

/// Sends a frame, and receives the next one.
async fn ask(
    stream: &Stream,
    frame: &[u8],
    decoder: &mut Decoder,
    files: &mut Vec<OwnedFd>,
) -> Result<(Header, Bytes), Failure> {
    if let Err(error) = stream.write_all(frame).await {
        // In TLS 1.3 a server says behind the handshake that it does not take it, and goes: that says more.
        receive(stream, decoder, files).await?;
        return Err(error.into());
    }
    loop {
        if let Some(answer) = decoder.next()? {
            return Ok(answer);
        }
        receive(stream, decoder, files).await?;
    }
}

/// Receives some bytes, with the descriptors that come along.
async fn receive(stream: &Stream, decoder: &mut Decoder, files: &mut Vec<OwnedFd>) -> Result<(), Failure> {
    if let Stream::Secured(secured) = stream {
        return match secured.read_some(decoder.buffer(), HELLO_RECEIVE_BYTES).await {
            Ok(0) => Err(Failure::Greeting("it closed the connection".to_owned())),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(Failure::Secure(error.to_string()))
            }
            Err(error) => Err(error.into()),
        };
    }
    let mut buffer = [0; HELLO_RECEIVE_BYTES];
    let count = stream.read_with(|socket| receive_with_files(socket, &mut buffer, files)).await?;
    if count == 0 {
        return Err(Failure::Greeting("it closed the connection".to_owned()));
    }
    decoder.feed(&buffer[..count]);
    // A record of TLS that says what is wrong: no frame of ours begins so.
    match decoder.buffer()[..] {
        [21, 3, ..] => {
            let why = "it speaks TLS: connect with the file of its CA, and to an address of tls:IP:PORT";
            Err(Failure::Secure(why.to_owned()))
        }
        _ => Ok(()),
    }
}
