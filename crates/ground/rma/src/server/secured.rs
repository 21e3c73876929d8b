//! What is between a socket and its session where the connection is in TLS: the handshake, and then the cipher.

use std::net::TcpStream as StdStream;
use std::sync::Arc;

use bytes::BytesMut;
use tailwater_tls::{Acceptor, Channel};
use tokio::net::TcpStream;

use crate::limits::SEALED_BYTES;
use crate::server::driver::Gone;
use crate::server::listen::AcceptedConnection;
use crate::server::mailbox::Message;
use crate::server::session::Session;
use crate::server::shared::EngineShared;

/// Begins TLS on a connection, in a task of its own, and gives it to `engine` then.
pub(crate) fn shake_hands(shared: &Arc<EngineShared>, accepted: AcceptedConnection, engine: usize) {
    let of_task = Arc::clone(shared);
    let task = async move {
        match secure(&of_task.config.tls, accepted).await {
            Some(secured) => of_task.mailboxes[engine].send(Message::Serve(secured)),
            None => of_task.uncount_connection(),
        }
    };
    // The acceptor bounds how many there are and for how long.
    shared.env.spawn("rma-handshake", task).detach();
}

/// `None` where it came to nothing, which the acceptor has told in the log.
async fn secure(acceptor: &Acceptor, accepted: AcceptedConnection) -> Option<AcceptedConnection> {
    // Without an address it is gone already; so is what fails behind the handshake.
    let tcp = TcpStream::from_std(StdStream::from(accepted.socket)).ok()?;
    let from = tcp.peer_addr().ok()?;
    let stream = acceptor.accept(tcp, from).await?;
    let peer = Arc::new(stream.peer(accepted.peer.address.clone()));
    let (tcp, channel) = stream.into_parts();
    let socket = tcp.into_std().ok()?.into();
    Some(AcceptedConnection { socket, peer, channel, ..accepted })
}

/// A connection's cipher, and how much of what the session is owed is behind it.
#[derive(Debug)]
pub(crate) struct Cipher {
    channel: Channel,
    /// Bytes that the session has given and does not know to be sent.
    owed: usize,
}

impl Cipher {
    pub(crate) fn new(channel: Channel) -> Self {
        Self { channel, owed: 0 }
    }

    /// Appends to `plain` what bytes of the socket say. To be called with none at the beginning.
    pub(crate) fn open(&mut self, sealed: &[u8], plain: &mut BytesMut) -> Result<(), Gone> {
        self.channel.open(sealed, plain)?;
        if self.channel.is_over() { Err(Gone::Closed) } else { Ok(()) }
    }

    /// Appends to `sealed` some of what the session is to send next, which it is to be told of by what [`Cipher::sent`]
    /// answers until it knows all of it. `plain` is memory for it in between.
    pub(crate) fn seal(
        &mut self,
        session: &mut Session,
        plain: &mut Vec<u8>,
        sealed: &mut Vec<u8>,
    ) -> Result<(), Gone> {
        debug_assert_eq!(self.owed, 0, "one at a time");
        plain.clear();
        session.take_output_into(plain, SEALED_BYTES);
        self.owed = plain.len();
        self.channel.seal(plain)?;
        self.channel.take_sealed(sealed);
        Ok(())
    }

    /// Of how many bytes the session is to hear when the socket has taken `count` encrypted ones, the last if `is_all`.
    /// What goes in a connection's last bytes is more than what they say, so that it never hears too early.
    pub(crate) fn sent(&mut self, count: usize, is_all: bool) -> usize {
        let told = if is_all { self.owed } else { count.min(self.owed.saturating_sub(1)) };
        self.owed -= told;
        told
    }
}
