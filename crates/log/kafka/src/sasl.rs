//! The login of a client (SASL, KIP-43, KIP-152).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::Instant;
use tailwater_login::{Login, LoginError, LoginStep, Mechanism, Users};

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
    is_refused: AtomicBool,
}

impl PeerLogin {
    pub fn new(users: Arc<Users>, by: Instant) -> Self {
        Self {
            users,
            by,
            begun: Mutex::default(),
            known: OnceLock::new(),
            is_refused: AtomicBool::new(false),
        }
    }

    /// Who it is, once it has logged in.
    pub fn known(&self) -> Option<&tailwater_access::Peer> {
        self.known.get()
    }

    /// Whether the client may ask this so far. Who was refused may ask nothing, and so is closed.
    pub fn lets(&self, api: Api) -> bool {
        let is_first = matches!(api, Api::ApiVersions | Api::SaslHandshake | Api::SaslAuthenticate);
        self.known.get().is_some() || (is_first && !self.is_refused.load(Ordering::Relaxed))
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
    let login = match &context.peer.login {
        Some(login) if context.peer.is_stranger() => login,
        // As a listener of Kafka's without SASL answers.
        _ => return refused(ErrorCode::IllegalSaslState, vec![]),
    };
    let offered: Vec<Mechanism> = mechanisms(context.peer.is_secured).collect();
    let wanted = Mechanism::from_name(&request.mechanism).filter(|wanted| offered.contains(wanted));
    let names = offered.iter().map(|mechanism| mechanism.name().to_owned()).collect();
    let Some(wanted) = wanted else { return refused(ErrorCode::UnsupportedSaslMechanism, names) };
    // Behind version 0 come messages that are no requests.
    if context.version == 0 {
        return refused(ErrorCode::UnsupportedVersion, names);
    }
    *login.begun.lock() = Some(Login::begin(&login.users, wanted));
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
    let Some(mut begun) = begun.filter(|_| context.peer.is_stranger()) else {
        return refused(ErrorCode::IllegalSaslState, "a SaslHandshake comes first, and one login is enough");
    };
    match begun.step(&request.auth_bytes).await {
        Ok(LoginStep::Challenge(auth_bytes)) => {
            *login.begun.lock() = Some(begun);
            SaslAuthenticateResponse { auth_bytes, ..Default::default() }
        }
        Ok(LoginStep::Done { user, answer: auth_bytes }) => {
            let known = tailwater_access::Peer::of(context.peer.address.to_string(), &user);
            // It is a stranger's first login that gets here.
            let _ = login.known.set(known);
            tracing::debug!(peer = %context.peer.address, %user, "a Kafka client has logged in");
            SaslAuthenticateResponse { auth_bytes, ..Default::default() }
        }
        Err(error) => {
            if let Some(left_out) = broker.complain("login refused") {
                let user = match &error {
                    LoginError::Refused { user } => Some(user.as_str()),
                    LoginError::Malformed(_) => None,
                };
                tracing::warn!(peer = %context.peer.address, user, %error, left_out, "a Kafka client can't log in");
            }
            login.is_refused.store(true, Ordering::Relaxed);
            broker.env.sleep(REFUSED_AFTER).await;
            refused(ErrorCode::SaslAuthenticationFailed, &error.to_string())
        }
    }
}
