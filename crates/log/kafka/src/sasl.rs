//! The login of a client (SASL, KIP-43, KIP-152), and that it logs in again before a token's time is over (KIP-368).

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tailwater_access::AddressPlace;
use tailwater_env::Instant;
use tailwater_login::{Login, LoginError, LoginSession, LoginStep, Mechanism, Users};

use crate::api::Api;
use crate::broker::{Broker, Context};
use crate::errors::ErrorCode;
use crate::messages::security::{
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
};

/// How long who was refused waits to be told (`connection.failed.authentication.delay.ms`): guesses are not free.
const REFUSED_AFTER: Duration = Duration::from_millis(100);

/// How far a client is with its login.
#[derive(Debug)]
pub(crate) struct PeerLogin {
    users: Arc<Users>,
    /// When it has to be done.
    pub by: Instant,
    /// What it has begun; taken out while a step is carried out.
    begun: Mutex<Option<Login>>,
    known: OnceLock<tailwater_access::Peer>,
    /// How long it is.
    session: RwLock<Option<LoginSession>>,
    is_refused: AtomicBool,
    /// From where.
    address: IpAddr,
    /// Its place among those who have not logged in.
    place: Mutex<Option<AddressPlace>>,
}

impl PeerLogin {
    pub fn new(users: Arc<Users>, by: Instant, address: IpAddr, place: AddressPlace) -> Self {
        Self {
            users,
            by,
            begun: Mutex::default(),
            known: OnceLock::new(),
            session: RwLock::default(),
            is_refused: AtomicBool::new(false),
            address,
            place: Mutex::new(Some(place)),
        }
    }

    /// Who it is, once it has logged in.
    pub fn known(&self) -> Option<&tailwater_access::Peer> {
        self.known.get()
    }

    /// How long who has logged in may go on.
    pub fn session(&self) -> Option<LoginSession> {
        self.session.read().clone()
    }

    /// Whether the client may ask this. Who was refused may ask nothing, and so is closed; who is known no
    /// more may log in again.
    pub fn lets(&self, api: Api) -> bool {
        let is_first = matches!(api, Api::ApiVersions | Api::SaslHandshake | Api::SaslAuthenticate);
        let is_known = self.session.read().as_ref().is_some_and(|session| !session.is_over());
        !self.is_refused.load(Ordering::Relaxed) && (is_known || is_first)
    }

    /// The client has logged in, as the same as before if it had; for how many milliseconds, as it is told.
    fn log_in(
        &self,
        who: tailwater_access::Peer,
        session: Option<LoginSession>,
        until_ms: Option<i64>,
        now_ms: i64,
    ) -> Option<i64> {
        let known = self.known.get_or_init(|| who.clone());
        if known.principal != who.principal {
            return None;
        }
        *self.session.write() = session;
        drop(self.place.lock().take());
        Some(until_ms.map_or(0, |until| until.saturating_sub(now_ms).max(1)))
    }
}

/// The mechanisms by which clients of a listener log in. A password is not sent over a connection that others read.
fn mechanisms(is_secured: bool) -> impl Iterator<Item = Mechanism> {
    Mechanism::ALL.into_iter().filter(move |mechanism| is_secured || !mechanism.shows_password())
}

pub(crate) async fn handshake(
    _: Arc<Broker>,
    context: Context,
    request: SaslHandshakeRequest,
) -> SaslHandshakeResponse {
    let refused =
        |error: ErrorCode, mechanisms| SaslHandshakeResponse { error_code: error.number(), mechanisms };
    // As a listener of Kafka's without SASL answers.
    let Some(login) = &context.peer.login else { return refused(ErrorCode::IllegalSaslState, vec![]) };
    let offered: Vec<Mechanism> = mechanisms(context.peer.is_secured).collect();
    let wanted = Mechanism::from_name(&request.mechanism).filter(|wanted| offered.contains(wanted));
    let names = offered.iter().map(|mechanism| mechanism.name().to_owned()).collect();
    let Some(wanted) = wanted else { return refused(ErrorCode::UnsupportedSaslMechanism, names) };
    // Behind version 0 come messages that are no requests.
    if context.version == 0 {
        return refused(ErrorCode::UnsupportedVersion, names);
    }
    *login.begun.lock() = Some(Login::begin(&login.users, wanted, Some(login.address)));
    SaslHandshakeResponse { error_code: 0, mechanisms: names }
}

pub(crate) async fn authenticate(
    broker: Arc<Broker>,
    context: Context,
    request: SaslAuthenticateRequest,
) -> SaslAuthenticateResponse {
    let refused = |error: ErrorCode, why: &str| SaslAuthenticateResponse {
        error_code: error.number(),
        error_message: Some(why.to_owned()),
        ..Default::default()
    };
    let Some(login) = &context.peer.login else {
        return refused(ErrorCode::IllegalSaslState, "nobody has to authenticate here");
    };
    let begun = login.begun.lock().take();
    let Some(mut begun) = begun else {
        return refused(ErrorCode::IllegalSaslState, "a SaslHandshake comes first");
    };
    match begun.step(&request.auth_bytes).await {
        Ok(LoginStep::Challenge(auth_bytes)) => {
            *login.begun.lock() = Some(begun);
            SaslAuthenticateResponse { auth_bytes, ..Default::default() }
        }
        Ok(LoginStep::Done { user, answer: auth_bytes, until_ms }) => {
            let who = tailwater_access::Peer::of(context.peer.address.to_string(), &user);
            let Some(session_lifetime_ms) =
                login.log_in(who, begun.session().cloned(), until_ms, broker.env.wall_ms())
            else {
                login.is_refused.store(true, Ordering::Relaxed);
                return refused(
                    ErrorCode::SaslAuthenticationFailed,
                    "a connection stays with who it began with",
                );
            };
            tracing::debug!(peer = %context.peer.address, %user, "a Kafka client has logged in");
            SaslAuthenticateResponse { auth_bytes, session_lifetime_ms, ..Default::default() }
        }
        Err(error) => {
            if let Some(left_out) = broker.complain("login refused") {
                let user = match &error {
                    LoginError::Refused { user } => Some(user.as_str()),
                    LoginError::Malformed(_) | LoginError::NoToken | LoginError::TooMany => None,
                };
                tracing::warn!(peer = %context.peer.address, user, %error, left_out, "a Kafka client can't log in");
            }
            login.is_refused.store(true, Ordering::Relaxed);
            broker.env.sleep(REFUSED_AFTER).await;
            refused(ErrorCode::SaslAuthenticationFailed, &error.to_string())
        }
    }
}
