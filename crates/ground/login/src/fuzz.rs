//! What a fuzzer runs: what a client sends to log in, tokens and the keys of their issuer, and what is kept of
//! passwords. Nobody is ever let in: none of these texts was made by somebody who knows a password.

use crate::credentials::{ScramKeys, StoredPassword};
use crate::hash::Hash;
use crate::jwt::{JwtIssuer, JwtKeys};
use crate::mechanism::Mechanism;
use crate::scram::FirstMessage;
use crate::tokens::StoredToken;
use crate::{http, login};

/// The two messages of SCRAM, with a 0 between them.
pub fn scram(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (first, last) = text.split_once('\0').unwrap_or((text, ""));
    for hash in [Hash::Sha256, Hash::Sha512] {
        let first = match FirstMessage::read(first) {
            Ok(first) => first,
            Err(why) => return assert!(!why.is_empty()),
        };
        let keys = ScramKeys::decoy(b"secret", hash, &first.user);
        let challenged = first.challenge(hash, keys, "0123456789abcdef");
        assert!(challenged.message().starts_with("r=") && !challenged.user().is_empty());
        assert!(!matches!(challenged.finish(last), Ok(Some(_))), "nobody knows that password");
    }
}

/// The message of PLAIN, and that of OAUTHBEARER.
pub fn passwords(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok((user, password)) = login::plain(text) {
        assert!(!user.is_empty() && text.ends_with(password));
    }
    if let Some(token) = login::bearer(text) {
        assert_eq!(token, token.trim());
    }
}

/// What of a request over HTTP says who sends it: the value of `Authorization`, or a query.
pub fn http(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for (mechanism, message) in [http::in_authorization(text), http::in_query(text)].into_iter().flatten() {
        match mechanism {
            Mechanism::Plain => drop(login::plain(&message)),
            Mechanism::OAuthBearer => assert!(login::bearer(&message).is_some()),
            Mechanism::ScramSha256 | Mechanism::ScramSha512 => unreachable!("a request is one message"),
        }
    }
}

/// A JWT for an issuer with one key of each kind.
pub fn jwts(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let keys = keys();
    keys.replace(JWKS.as_bytes()).expect("a set");
    assert_eq!(keys.bearer(text), None, "nobody has the secret keys");
}

/// A set of keys, and a JWT behind a 0, whose header may name one of them.
pub fn jwks(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let keys = keys();
    match keys.replace(&data[..at]) {
        Ok(count) => assert!(count > 0),
        Err(why) => assert!(!why.is_empty()),
    }
    if let Ok(token) = std::str::from_utf8(data.get(at + 1..).unwrap_or_default()) {
        let _ = keys.bearer(token);
    }
}

/// What the metadata keeps of a password, and of a token.
pub fn stored(data: &[u8]) {
    if let Some(stored) = StoredPassword::decode(data) {
        assert!(!stored.is_empty());
        assert_eq!(stored.encode(), data);
    }
    if let Some(stored) = StoredToken::decode(data) {
        assert_eq!(stored.encode(), data);
    }
}

fn keys() -> JwtKeys {
    JwtKeys::new(JwtIssuer { issuer: "https://issuer".to_owned(), audience: vec!["tailwater".to_owned()] })
}

/// The points and the modulus are those of the specifications' own examples (RFC 7517, appendix A; RFC 8037, appendix
/// A).
pub const JWKS: &str = r#"{"keys":[
{"kty":"EC","crv":"P-256","kid":"e","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"},
{"kty":"OKP","crv":"Ed25519","kid":"o","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
{"kty":"RSA","alg":"RS256","kid":"r","e":"AQAB","n":"0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"}]}"#;

/// Texts for [`scram`], [`passwords`], [`jwts`], [`jwks`] and [`http`].
pub fn seeds() -> [Vec<Vec<u8>>; 5] {
    let of = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    let proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    let last = format!("c=biws,r=rOprNGfwEbeRWgbN0123456789abcdef,p={proof}");
    let scram = format!("n,,n=us=2Cer,r=rOprNGfwEbeRWgbN\0{last}");
    // {"alg":"ES256","kid":"e"} and {"alg":"RS256","kid":"r"}, and the claims that a token has to have.
    let claims =
        "eyJpc3MiOiJodHRwczovL2lzc3VlciIsImF1ZCI6InRhaWx3YXRlciIsInN1YiI6ImFwcCIsImV4cCI6NDEwMjQ0NDgwMH0";
    let curve = format!("eyJhbGciOiJFUzI1NiIsImtpZCI6ImUifQ.{claims}.{}", "A".repeat(86));
    let rsa = format!("eyJhbGciOiJSUzI1NiIsImtpZCI6InIifQ.{claims}.{}", "A".repeat(342));
    [
        of(&[&scram, "n,a=user,n=user,r=12345678,ext=1", "y,,n=a=3Db,r=12345678"]),
        of(&[
            "\0user\0password",
            "user\0user\0password",
            "\0token:ci\0tw.ci.secret",
            "n,,\x01auth=Bearer tw.ci.secret\x01\x01",
            "y,,\x01host=h\x01port=9092\x01auth=bearer x\x01\x01",
        ]),
        of(&[&curve, &rsa]),
        of(&[&format!("{JWKS}\0{curve}"), JWKS]),
        of(&[
            "Basic YWxpY2U6cHc=",
            "Bearer tw.ci.x",
            "stream=a%2Fb&access_token=tw.ci.%78",
            "Digest username=a",
        ]),
    ]
}

/// Records for [`stored`].
pub fn stored_seeds() -> Vec<Vec<u8>> {
    let stored = StoredPassword::derive(b"correct horse", [[1; 16], [2; 16]], 1);
    let mut one = stored.clone();
    one.set(Hash::Sha256, None);
    vec![stored.encode(), one.encode(), StoredToken { expires_ms: 7, hash: [3; 32] }.encode()]
}
