//! What comes before the first request on a connection to a bookie: TLS, if it is wanted, and then a login.
//!
//! ```text
//!  client: START_TLS          bookie: OK      then the handshake of TLS, on the same connection
//!  client: AUTH, nothing      bookie: AUTH, a challenge
//!  client: AUTH, the answer   bookie: AUTH, what shows that it knows the password, too
//! ```
//!
//! Behind the handshake of TLS a bookie that wants a login says once more, with an error, that START_TLS is not done
//! yet. That is no answer to what is asked then.

use bytes::{Bytes, BytesMut};
use tailwater_access::EngineLogin;
use tailwater_tls::{DialError, PeerStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::digest_md5::DigestLogin;
use crate::security::BookieSecurity;
use crate::wire::messages::{
    AuthPacket, HeaderPacket, OPERATION_AUTH, OPERATION_START_TLS, RequestPacket, ResponsePacket,
    StartTlsPacket, VERSION,
};
use crate::wire::{put_packet, take_packet};

/// What bookies and their clients call this way to log in.
const PLUGIN: &str = "sasl";
/// What a bookie calls itself in it, whatever its host's name is.
const SERVICE: &str = "bookkeeper/bookkeeper";
/// Bytes of an answer in a handshake: more than a challenge has.
const ANSWER_BYTES_MAX: usize = 16 << 10;
/// Characters of a bookie's text that are told.
const TOLD_CHARS_MAX: usize = 64;

/// Makes `tcp` what the bookie at `host` and its configuration want.
///
/// # Errors
/// `Refused` if no further try helps until somebody has changed something.
pub(crate) async fn begin(
    tcp: TcpStream,
    host: &str,
    security: &BookieSecurity,
    nonce: &str,
) -> Result<PeerStream, DialError> {
    let mut stream = PeerStream::plain(tcp);
    if security.dialer.is_secured() {
        start_tls(&mut stream).await?;
        // Nothing in TLS was read or written yet.
        let (tcp, _) = stream.into_parts();
        stream = security.dialer.secure(tcp, host).await?;
    }
    if let Some(login) = &security.login {
        log_in(&mut stream, login, nonce).await?;
    }
    Ok(stream)
}

async fn start_tls(stream: &mut PeerStream) -> Result<(), DialError> {
    let request = RequestPacket { start_tls: Some(StartTlsPacket {}), ..packet(OPERATION_START_TLS) };
    let answer = ask(stream, &request).await?;
    if answer.status == 0 && answer.header.operation == OPERATION_START_TLS {
        return Ok(());
    }
    Err(DialError::Refused(format!(
        "it does not speak TLS (status {}): set tlsProviderFactoryClass in its configuration, or leave `ca` out here",
        answer.status
    )))
}

async fn log_in(stream: &mut PeerStream, login: &EngineLogin, nonce: &str) -> Result<(), DialError> {
    let challenge = authenticate(stream, Bytes::new()).await?;
    let refused = |fault| DialError::Refused(format!("{} can't log in: {fault}", login.user));
    let (answer, expected) = DigestLogin::answer(login, &challenge, SERVICE, nonce).map_err(refused)?;
    let last = authenticate(stream, answer.into()).await.map_err(|error| match error {
        DialError::Refused(why) => DialError::Refused(format!("{} can't log in: {why}", login.user)),
        other => other,
    })?;
    expected.check(&last).map_err(refused)
}

/// One step of a login: what the bookie says to it.
async fn authenticate(stream: &mut PeerStream, payload: Bytes) -> Result<Bytes, DialError> {
    let auth = AuthPacket { plugin: PLUGIN.to_owned(), payload };
    let answer = ask(stream, &RequestPacket { auth: Some(auth), ..packet(OPERATION_AUTH) }).await?;
    match answer.auth {
        Some(auth) if answer.status == 0 && auth.plugin == PLUGIN => Ok(auth.payload),
        Some(auth) if answer.status == 0 => Err(DialError::Refused(format!(
            "it logs clients in by {:?}, and this client can {PLUGIN} with DIGEST-MD5 only",
            auth.plugin.chars().take(TOLD_CHARS_MAX).collect::<String>()
        ))),
        _ => Err(DialError::Refused(format!("it refuses the login with status {}", answer.status))),
    }
}

fn packet(operation: i32) -> RequestPacket {
    RequestPacket {
        header: HeaderPacket { version: VERSION, operation, number: 0 },
        ..RequestPacket::default()
    }
}

/// Asks, and waits for the answer to it: nothing else is on its way.
async fn ask(stream: &mut PeerStream, request: &RequestPacket) -> Result<ResponsePacket, DialError> {
    let mut buffer = BytesMut::new();
    put_packet(request, &mut buffer);
    stream.write_all(&buffer).await?;
    stream.flush().await?;
    buffer.clear();
    loop {
        if stream.read_buf(&mut buffer).await? == 0 {
            return Err(DialError::Io(std::io::ErrorKind::UnexpectedEof.into()));
        }
        if buffer.len() > ANSWER_BYTES_MAX {
            return Err(DialError::Refused("its answer is too long".to_owned()));
        }
        while let Some(answer) = take_packet(&mut buffer).map_err(std::io::Error::other)? {
            if answer.header.operation != request.header.operation {
                continue;
            }
            // What came before TLS could be anybody's.
            if buffer.is_empty() {
                return Ok(answer);
            }
            return Err(DialError::Refused("it says more than it was asked".to_owned()));
        }
    }
}
