//! Connecting to a server, over what its address calls for.
//!
//! Over TCP all operations are frames on one socket, multiplexed by request id ([`tcp`]). Over a Unix socket the
//! server passes its regions, and READs are memory reads ([`shm`]); what is left of the socket are CALLs, and the
//! news of the server's end.

mod buffers;
mod mux;
mod outgoing;
mod shm;
#[allow(unsafe_code)]
mod stream;
mod tcp;
mod waiter;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tailwater_env::Env;
use tokio::net::{TcpSocket, UnixStream};

use crate::address::Address;
use crate::connection::Connection;
use crate::frame::{self, Decoder, FrameKind, HelloReply, Side};
use crate::limits::CONNECT_DEADLINE;
use crate::socket::{receive_with_files, tune_tcp};

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
    /// What listens there is no server of ours, or one of another version.
    #[error("{address} answered what is no greeting of ours: {reason}")]
    Greeting {
        /// Where to.
        address: Address,
        /// What was wrong with it.
        reason: String,
    },
}

/// Connects to the server at `address`. Takes at most [`CONNECT_DEADLINE`]. Connections do not mend themselves:
/// make another one when [`Connection::lost`] says so.
///
/// # Panics
/// Outside a tokio runtime that has its I/O enabled.
pub async fn connect(env: &Env, address: &Address) -> Result<Arc<dyn Connection>, ConnectError> {
    match env.timeout(CONNECT_DEADLINE, greet(env, address)).await {
        Some(Ok(connection)) => Ok(connection),
        Some(Err(Failure::Io(source))) => Err(ConnectError::Io { address: address.clone(), source }),
        Some(Err(Failure::Greeting(reason))) => {
            Err(ConnectError::Greeting { address: address.clone(), reason })
        }
        None => Err(ConnectError::Timeout { address: address.clone() }),
    }
}

enum Failure {
    Io(io::Error),
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

async fn greet(env: &Env, address: &Address) -> Result<Arc<dyn Connection>, Failure> {
    let stream = match address {
        Address::Tcp(address) => {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            tune_tcp(&socket)?;
            Stream::Tcp(socket.connect(*address).await?)
        }
        Address::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
    };
    let mut hello = Vec::new();
    frame::encode_hello(&mut hello, 0);
    stream.write_all(&hello).await?;
    let mut decoder = Decoder::new(Side::Responses);
    let mut files = Vec::new();
    let reply = loop {
        if let Some((header, body)) = decoder.next()? {
            if header.kind != FrameKind::HelloReply {
                return Err(Failure::Greeting("another frame came first".to_owned()));
            }
            break HelloReply::parse(body)?;
        }
        receive(&stream, &mut decoder, &mut files).await?;
    };
    if reply.version != frame::VERSION {
        return Err(Failure::Greeting(format!("it goes on in version {}", reply.version)));
    }
    let peer = address.to_string();
    if reply.files {
        let maps = shm::Maps::of(&reply, files).map_err(|error| Failure::Greeting(error.to_string()))?;
        Ok(Arc::new(shm::Shm::start(env, peer, stream, decoder, maps)))
    } else {
        Ok(Arc::new(tcp::Tcp::start(env, peer, stream, decoder, reply)))
    }
}

/// Receives some bytes, with the descriptors that come along.
async fn receive(stream: &Stream, decoder: &mut Decoder, files: &mut Vec<OwnedFd>) -> Result<(), Failure> {
    let mut buffer = [0; HELLO_RECEIVE_BYTES];
    let count = stream.read_with(|socket| receive_with_files(socket, &mut buffer, files)).await?;
    if count == 0 {
        return Err(Failure::Greeting("it closed the connection".to_owned()));
    }
    decoder.feed(&buffer[..count]);
    Ok(())
}
