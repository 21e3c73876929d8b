//! Who sends a request: whom its connection knows, the user whose name and password it has, or whom its token stands
//! for.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tailwater_access::Peer;
use tailwater_env::Env;
use tailwater_format::call::CallErrorCode;
use tailwater_login::http::{in_authorization, in_query};
use tailwater_login::{Login, LoginError, LoginStep, Users};

use super::{ConnectionSender, refused};

/// How long who was refused waits to be told, as in Kafka's protocol: guesses are not free.
const REFUSED_AFTER: Duration = Duration::from_millis(100);

/// The users that requests may be of.
#[derive(Clone)]
pub(crate) struct Identities {
    pub(crate) env: Env,
    pub(crate) users: Arc<Users>,
    /// Whether all connections are encrypted: elsewhere than on loopback a password is taken over those only.
    pub(crate) is_secured: bool,
}

/// Finds out who sends a request before it is looked at. One with a password that is wrong is refused, whatever it asks
/// for.
pub(crate) async fn identify(
    State(identities): State<Identities>,
    mut request: Request,
    next: Next,
) -> Response {
    let given = match request.headers().get(header::AUTHORIZATION) {
        Some(given) => given.to_str().ok().and_then(in_authorization),
        None => match request.uri().query().and_then(in_query) {
            Some(token) => Some(token),
            None => return next.run(request).await,
        },
    };
    let Some(sender) = request.extensions().get::<ConnectionSender>().cloned() else {
        return next.run(request).await;
    };
    if !identities.is_secured && !sender.address.ip().to_canonical().is_loopback() {
        let why = "a password is taken from elsewhere in TLS only: see [tls]";
        return unknown(why.to_owned());
    }
    let Some((mechanism, message)) = given else {
        let why = "an Authorization that is neither Basic, with a user's name and password, nor Bearer, with a token";
        return unknown(why.to_owned());
    };
    let address = Some(sender.address.ip());
    let mut login = Login::begin(&identities.users, mechanism, address);
    let user = match login.step(message.as_bytes()).await {
        Ok(LoginStep::Done { user, .. }) => user,
        Ok(LoginStep::Challenge(_)) => return unknown("nobody logs in so".to_owned()),
        Err(error @ LoginError::TooMany) => {
            let mut answer =
                refused(StatusCode::TOO_MANY_REQUESTS, CallErrorCode::NotAuthorized, error.to_string());
            answer.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("60"));
            return answer;
        }
        Err(error) => {
            tracing::info!(peer = %sender.peer.address, %error, "can't log in");
            identities.env.sleep(REFUSED_AFTER).await;
            return unknown(error.to_string());
        }
    };
    let peer = Peer::of(sender.peer.address.clone(), &user);
    let session = login.session().cloned();
    request.extensions_mut().insert(ConnectionSender { peer: Arc::new(peer), session, ..sender });
    next.run(request).await
}

fn unknown(why: String) -> Response {
    let mut answer = refused(StatusCode::UNAUTHORIZED, CallErrorCode::NotAuthorized, why).into_response();
    let basic = header::HeaderValue::from_static("Basic realm=\"tailwater\", charset=\"UTF-8\"");
    answer.headers_mut().insert(header::WWW_AUTHENTICATE, basic);
    answer
}
