//! Who sends a request: whom its connection knows, or the user whose name and password it has (RFC 7617, Basic).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tailwater_access::Peer;
use tailwater_env::Env;
use tailwater_format::call::CallErrorCode;
use tailwater_login::{Login, LoginStep, Mechanism, Users};

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
    let Some(given) = request.headers().get(header::AUTHORIZATION) else { return next.run(request).await };
    let Some(sender) = request.extensions().get::<ConnectionSender>().cloned() else {
        return next.run(request).await;
    };
    if !identities.is_secured && !sender.address.ip().to_canonical().is_loopback() {
        let why = "a password is taken from elsewhere in TLS only: see [tls]";
        return unknown(why.to_owned());
    }
    let Some(message) = given.to_str().ok().and_then(plain) else {
        return unknown("an Authorization that is not Basic, with a user's name and password".to_owned());
    };
    let stepped = Login::begin(&identities.users, Mechanism::Plain).step(message.as_bytes()).await;
    let user = match stepped {
        Ok(LoginStep::Done { user, .. }) => user,
        Ok(LoginStep::Challenge(_)) => return unknown("nobody logs in so".to_owned()),
        Err(error) => {
            tracing::info!(peer = %sender.peer.address, %error, "can't log in");
            identities.env.sleep(REFUSED_AFTER).await;
            return unknown(error.to_string());
        }
    };
    let peer = Peer::of(sender.peer.address.clone(), &user);
    request.extensions_mut().insert(ConnectionSender { peer: Arc::new(peer), ..sender });
    next.run(request).await
}

/// What of `Basic` is a message of SASL's PLAIN (RFC 4616): both are a name and a password.
fn plain(header: &str) -> Option<String> {
    let (scheme, encoded) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some(format!("\0{user}\0{password}"))
}

fn unknown(why: String) -> Response {
    let mut answer = refused(StatusCode::UNAUTHORIZED, CallErrorCode::NotAuthorized, why).into_response();
    let basic = header::HeaderValue::from_static("Basic realm=\"tailwater\", charset=\"UTF-8\"");
    answer.headers_mut().insert(header::WWW_AUTHENTICATE, basic);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_a_password_are_what_is_before_and_behind_the_first_colon() {
        let basic = |text: &str| plain(&format!("Basic {}", STANDARD.encode(text)));
        assert_eq!(basic("alice:correct horse").as_deref(), Some("\0alice\0correct horse"));
        assert_eq!(basic("alice:a:b").as_deref(), Some("\0alice\0a:b"));
        assert_eq!(plain("basic YTpi").as_deref(), Some("\0a\0b"));
    }

    #[test]
    fn what_is_not_basic_is_nobody() {
        for header in ["", "Basic", "Basic !", "Basic YWxpY2U=", "Bearer YTpi", "Basic /////w=="] {
            assert_eq!(plain(header), None, "{header}");
        }
    }
}
