//! One request after the other in Kafka's protocol. What fails, or is cancelled, closes the connection; the next
//! request opens another.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tailwater_env::Env;
use tailwater_kafka_wire::ErrorCode;
use tailwater_kafka_wire::api::{Api, ApiRequest};
use tailwater_kafka_wire::messages::cluster::{ApiVersionsRequest, ApiVersionsResponse};
use tailwater_kafka_wire::messages::header::{read_response, request};
use tailwater_kafka_wire::messages::security::{
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
};
use tailwater_login::ClientLogin;
use tailwater_tls::{Dialer, PeerStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Error;

/// Longest answer that is taken: that of a leader of a large group.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// How long an answer may take beyond what it has to wait for.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// The first question, in a version that every broker since 2018 has.
const FIRST_VERSION: i16 = 3;
/// A login's first question, and its others.
const HANDSHAKE_VERSION: i16 = 1;
const AUTHENTICATE_VERSION: i16 = 1;

/// A connection to a node's port for Kafka's protocol.
pub(super) struct Connection {
    env: Env,
    address: String,
    dialer: Dialer,
    login: Option<ClientLogin>,
    client_id: String,
    open: Option<Open>,
    correlation_id: i32,
}

struct Open {
    stream: PeerStream,
    /// The newest version that the node has of each API.
    versions: BTreeMap<i16, i16>,
}

impl Connection {
    /// One to `HOST:PORT`, or to `tls:HOST:PORT`, which `dialer` makes.
    /// Where members have to log in they do so by `login`.
    pub(super) fn new(
        env: &Env,
        address: &str,
        (dialer, login): (&Dialer, Option<&ClientLogin>),
        client_id: &str,
    ) -> Self {
        let (address, dialer) = match address.strip_prefix("tls:") {
            Some(secured) => (secured, dialer.clone()),
            None => (address, Dialer::plain()),
        };
        let (address, client_id) = (address.to_owned(), client_id.to_owned());
        let (env, login) = (env.clone(), login.cloned());
        Self { env, address, dialer, login, client_id, open: None, correlation_id: 0 }
    }

    /// Asks, and waits for the answer: for `wait`, if it is one that the node holds back, and a little longer.
    pub(super) async fn call<R: ApiRequest>(
        &mut self,
        asked: &R,
        wait: Duration,
    ) -> Result<R::Response, Error> {
        let limit = wait + ANSWER_DEADLINE;
        let env = self.env.clone();
        // Whatever ends this early leaves no connection behind on which the answer would come later.
        let open = self.open.take();
        let answered = env.timeout(limit, self.call_on(open, asked)).await;
        let answered =
            answered.ok_or_else(|| Error::Deadline { address: self.address.clone(), deadline: limit });
        let (open, answer) = answered??;
        self.open = Some(open);
        Ok(answer)
    }

    async fn call_on<R: ApiRequest>(
        &mut self,
        open: Option<Open>,
        asked: &R,
    ) -> Result<(Open, R::Response), Error> {
        let mut open = match open {
            Some(open) => open,
            None => self.connect().await?,
        };
        let newest = open.versions.get(&R::API.number()).copied();
        let ours = R::API.versions();
        let version = newest.map(|newest| newest.min(*ours.end())).filter(|version| ours.contains(version));
        let version = version.ok_or_else(|| {
            Error::Malformed(format!("it does not speak {} in a version that is known here", R::API.name()))
        })?;
        let answer = self.exchange(&mut open.stream, asked, version).await?;
        Ok((open, answer))
    }

    async fn connect(&mut self) -> Result<Open, Error> {
        let stream = self.dialer.connect(&self.address).await;
        let mut stream = stream.map_err(|error| Error::from_dial(&self.address, error))?;
        let asked = ApiVersionsRequest {
            client_software_name: "tailwater".to_owned(),
            client_software_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let answer: ApiVersionsResponse = self.exchange(&mut stream, &asked, FIRST_VERSION).await?;
        let versions = answer.api_keys.into_iter().map(|api| (api.api_key, api.max_version)).collect();
        if let Some(login) = self.login.clone() {
            self.log_in(&mut stream, &login).await?;
        }
        Ok(Open { stream, versions })
    }

    /// Logs in (SASL). Where nobody has to it goes on without.
    async fn log_in(&mut self, stream: &mut PeerStream, login: &ClientLogin) -> Result<(), Error> {
        let refused = |at: &Self, reason: String| Error::Login { address: at.address.clone(), reason };
        let mechanism = login.mechanism().name();
        let asked = SaslHandshakeRequest { mechanism: mechanism.to_owned() };
        let offered: SaslHandshakeResponse = self.exchange(stream, &asked, HANDSHAKE_VERSION).await?;
        match ErrorCode::from_number(offered.error_code) {
            Some(ErrorCode::None) => {}
            Some(ErrorCode::IllegalSaslState) => return Ok(()),
            _ => {
                let offered = offered.mechanisms.join(", ");
                let why = format!("nobody logs in by {mechanism} there; it offers {offered}");
                return Err(refused(self, why));
            }
        }
        let exchange = login.begin(&self.env, self.dialer.is_secured());
        let mut exchange = exchange.map_err(|why| refused(self, why))?;
        let mut said = Bytes::new();
        while let Some(message) = exchange.next(&said).map_err(|why| refused(self, why.to_owned()))? {
            let asked = SaslAuthenticateRequest { auth_bytes: message.into() };
            let answer: SaslAuthenticateResponse =
                self.exchange(stream, &asked, AUTHENTICATE_VERSION).await?;
            if answer.error_code != 0 {
                return Err(refused(self, answer.error_message.unwrap_or_default()));
            }
            said = answer.auth_bytes;
        }
        Ok(())
    }

    async fn exchange<R: ApiRequest>(
        &mut self,
        stream: &mut PeerStream,
        asked: &R,
        version: i16,
    ) -> Result<R::Response, Error> {
        self.correlation_id = self.correlation_id.wrapping_add(1);
        let frame = request(asked, version, self.correlation_id, &self.client_id).concat();
        stream.write_all(&frame).await.map_err(|error| self.unreachable(&error))?;
        stream.flush().await.map_err(|error| self.unreachable(&error))?;
        let answer = read_frame(stream).await.map_err(|error| self.unreachable(&error))?;
        let malformed = |why: String| Error::Malformed(format!("{}: {why}", Api::name(R::API)));
        let (id, answer) =
            read_response(R::API, version, answer).map_err(|error| malformed(error.to_string()))?;
        if id != self.correlation_id {
            return Err(malformed(format!("an answer to request {id} instead of {}", self.correlation_id)));
        }
        Ok(answer)
    }

    fn unreachable(&self, reason: &std::io::Error) -> Error {
        Error::Unreachable { address: self.address.clone(), reason: reason.to_string() }
    }
}

async fn read_frame(stream: &mut PeerStream) -> std::io::Result<Bytes> {
    let len = stream.read_i32().await?;
    let len = usize::try_from(len).ok().filter(|len| *len <= ANSWER_BYTES_MAX);
    let len = len.ok_or_else(|| std::io::Error::other("an answer of an impossible length"))?;
    // Grows with what really comes.
    let mut answer = BytesMut::new();
    let mut limited = stream.take(len as u64);
    while answer.len() < len {
        if limited.read_buf(&mut answer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(answer.freeze())
}
