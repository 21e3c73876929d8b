//! Who sends a request: whom its connection knows, the user whose name and password it has (RFC 7617, Basic), or the
//! token that it has (RFC 6750, Bearer). A browser can't say what is in the head of an EventSource or a WebSocket: its
//! token is `access_token` in the query.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use tailwater_access::Peer;
use tailwater_env::Env;
use tailwater_format::call::CallErrorCode;
use tailwater_login::{Login, LoginError, LoginStep, Mechanism, Users};

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
        Some(given) => given.to_str().ok().and_then(given_by),
        None => match request.uri().query().and_then(in_query) {
            Some(token) => Some((Mechanism::OAuthBearer, bearer(&token))),
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
    let stepped = Login::begin(&identities.users, mechanism, address).step(message.as_bytes()).await;
    let user = match stepped {
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
    request.extensions_mut().insert(ConnectionSender { peer: Arc::new(peer), ..sender });
    next.run(request).await
}

/// How a request says who sends it, and what is a message of SASL's for it.
fn given_by(header: &str) -> Option<(Mechanism, String)> {
    match header.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
            Some((Mechanism::OAuthBearer, bearer(token.trim())))
        }
        _ => Some((Mechanism::Plain, plain(header)?)),
    }
}

/// The first message of OAUTHBEARER (RFC 7628) with a token.
fn bearer(token: &str) -> String {
    format!("n,,\x01auth=Bearer {token}\x01\x01")
}

/// The token in a query.
fn in_query(query: &str) -> Option<String> {
    let token = query.split('&').find_map(|pair| pair.strip_prefix("access_token="))?;
    Some(percent_decode_str(token).decode_utf8().ok()?.into_owned())
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
    fn a_token_is_in_the_head_or_in_the_query() {
        let (mechanism, message) = given_by("Bearer tw.ci.x").expect("a token");
        assert_eq!((mechanism, &*message), (Mechanism::OAuthBearer, "n,,\x01auth=Bearer tw.ci.x\x01\x01"));
        assert_eq!(in_query("stream=a%2Fb&access_token=tw.ci.%78").as_deref(), Some("tw.ci.x"));
        assert_eq!(in_query("stream=access_token"), None);
    }

    #[test]
    fn what_is_not_basic_is_nobody() {
        for header in ["", "Basic", "Basic !", "Basic YWxpY2U=", "Bearer YTpi", "Basic /////w=="] {
            assert_eq!(plain(header), None, "{header}");
        }
    }
}
