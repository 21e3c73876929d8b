//! How a request over HTTP says who sends it, as what a [`Login`](crate::Login) is told: a name and a password (RFC
//! 7617, Basic), or a token (RFC 6750, Bearer). A browser can't say what is in the head of an EventSource or a
//! WebSocket: its token is `access_token` in the query.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;

use crate::mechanism::Mechanism;

/// By which mechanism the value of `Authorization` would log in, and with what message; `None` if it is neither Basic,
/// nor Bearer.
pub fn in_authorization(value: &str) -> Option<(Mechanism, String)> {
    match value.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
            Some((Mechanism::OAuthBearer, bearer(token.trim())))
        }
        _ => Some((Mechanism::Plain, plain(value)?)),
    }
}

/// The same of the token in a query, if there is one.
pub fn in_query(query: &str) -> Option<(Mechanism, String)> {
    let token = query.split('&').find_map(|pair| pair.strip_prefix("access_token="))?;
    Some((Mechanism::OAuthBearer, bearer(&percent_decode_str(token).decode_utf8().ok()?)))
}

/// The first message of OAUTHBEARER (RFC 7628) with a token.
fn bearer(token: &str) -> String {
    format!("n,,\x01auth=Bearer {token}\x01\x01")
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
        let token = Some((Mechanism::OAuthBearer, "n,,\x01auth=Bearer tw.ci.x\x01\x01".to_owned()));
        assert_eq!(in_authorization("Bearer tw.ci.x"), token);
        assert_eq!(in_query("stream=a%2Fb&access_token=tw.ci.%78"), token);
        assert_eq!(in_query("stream=access_token"), None);
    }

    #[test]
    fn what_is_not_basic_is_nobody() {
        for header in ["", "Basic", "Basic !", "Basic YWxpY2U=", "Basic /////w=="] {
            assert_eq!(in_authorization(header), None, "{header}");
        }
    }
}
