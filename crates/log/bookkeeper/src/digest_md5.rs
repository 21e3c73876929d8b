//! The client's side of SASL's DIGEST-MD5 ([RFC 2831](https://www.rfc-editor.org/rfc/rfc2831)), as Java's servers speak
//! it. Each side shows the other one that it knows the password, and neither sends it.
//!
//! ```text
//!  server: realm="..",nonce="..",qop="auth",charset=utf-8,algorithm=md5-sess
//!  client: charset=utf-8,username="..",realm="..",nonce="..",nc=00000001,cnonce="..",digest-uri="..",
//!          response=..,qop=auth
//!  server: rspauth=..
//! ```
//!
//! MD5 is what these servers have. Where others can listen, TLS belongs below it.

use md5::{Digest, Md5};
use tailwater_access::{EngineLogin, are_same};

/// Why a login came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestFault {
    /// What the server sent is no challenge.
    #[error("its challenge is malformed")]
    Malformed,
    /// It wants something that this client does not have.
    #[error("its challenge is not for md5-sess with `auth`")]
    Unsupported,
    /// A name that can't be sent.
    #[error("a user's name has a quotation mark, a backslash or a control character")]
    Name,
    /// The server does not know the password.
    #[error("it has not shown that it knows the password")]
    Impostor,
}

/// A login on its way.
pub(crate) struct DigestLogin {
    /// What the server has to show at last.
    expected: String,
}

impl DigestLogin {
    /// The answer to a server's challenge; `service` is what it calls itself, as in `bookkeeper/bookkeeper`, and
    /// `nonce` a word that was never used before.
    pub(crate) fn answer(
        login: &EngineLogin,
        challenge: &[u8],
        service: &str,
        nonce: &str,
    ) -> Result<(String, Self), DigestFault> {
        let challenge = std::str::from_utf8(challenge).map_err(|_| DigestFault::Malformed)?;
        let directives = directives(challenge).ok_or(DigestFault::Malformed)?;
        let of = |name: &str| directives.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        let value = |name| of(name).map(|(_, value)| value.as_str());
        let server_nonce = value("nonce").ok_or(DigestFault::Malformed)?;
        let has_auth = value("qop").is_none_or(|offered| offered.split(',').any(|one| one.trim() == "auth"));
        if value("algorithm") != Some("md5-sess") || !has_auth {
            return Err(DigestFault::Unsupported);
        }
        let (user, realm) = (login.user.as_str(), value("realm").unwrap_or_default());
        for sent in [user, realm, server_nonce] {
            if sent.chars().any(|char| matches!(char, '"' | '\\') || char.is_control()) {
                return Err(if sent == user { DigestFault::Name } else { DigestFault::Malformed });
            }
        }
        let secret = Md5::digest(format!("{user}:{realm}:{}", login.password.text()));
        let mut session = Md5::new();
        session.update(secret);
        session.update(format!(":{server_nonce}:{nonce}"));
        let session = hex(&session.finalize());
        let shown = |who: &str| {
            let asked = hex(&Md5::digest(format!("{who}:{service}")));
            hex(&Md5::digest(format!("{session}:{server_nonce}:00000001:{nonce}:auth:{asked}")))
        };
        let response = shown("AUTHENTICATE");
        let charset = if of("charset").is_some() { "charset=utf-8," } else { "" };
        let answer = format!(
            "{charset}username=\"{user}\",realm=\"{realm}\",nonce=\"{server_nonce}\",nc=00000001,cnonce=\"{nonce}\",\
             digest-uri=\"{service}\",response={response},qop=auth"
        );
        Ok((answer, Self { expected: format!("rspauth={}", shown("")) }))
    }

    /// Whether the server's last word shows that it knows the password, too.
    pub(crate) fn check(&self, last: &[u8]) -> Result<(), DigestFault> {
        if are_same(last.trim_ascii(), self.expected.as_bytes()) {
            Ok(())
        } else {
            Err(DigestFault::Impostor)
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a text grows");
        text
    })
}

/// The pairs of `key=value,key="value",...`; `None` if it is nothing like that.
fn directives(text: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut rest = text.trim_start_matches([',', ' ', '\t']);
    while !rest.is_empty() {
        let (key, behind) = rest.split_once('=')?;
        let (value, behind) = match behind.strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let end = behind.find(',').unwrap_or(behind.len());
                (behind[..end].trim().to_owned(), &behind[end..])
            }
        };
        found.push((key.trim().to_owned(), value));
        rest = behind.trim_start_matches([',', ' ', '\t']);
    }
    Some(found)
}

/// A value up to its closing quotation mark, and what is behind that.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            char => value.push(char),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tailwater_access::SecretText;

    use super::*;

    fn login(user: &str) -> EngineLogin {
        EngineLogin { user: user.to_owned(), password: SecretText::new("secret") }
    }

    /// RFC 2831, section 4.
    #[test]
    fn the_answer_is_that_of_the_standard_s_example() {
        let challenge = br#"realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8"#;
        let answered =
            DigestLogin::answer(&login("chris"), challenge, "imap/elwood.innosoft.com", "OA6MHXh6VqTrRk");
        let (answer, login) = answered.expect("an answer");
        assert_eq!(
            answer,
            "charset=utf-8,username=\"chris\",realm=\"elwood.innosoft.com\",nonce=\"OA6MG9tEQGm2hh\",nc=00000001,\
             cnonce=\"OA6MHXh6VqTrRk\",digest-uri=\"imap/elwood.innosoft.com\",\
             response=d388dad90d4bbd760a152321f2143af7,qop=auth"
        );
        assert_eq!(login.check(b"rspauth=ea40f60335c427b5527b84dbabcdfffd"), Ok(()));
        assert_eq!(login.check(b"rspauth=00000000000000000000000000000000"), Err(DigestFault::Impostor));
        assert_eq!(login.check(b""), Err(DigestFault::Impostor));
    }

    #[test]
    fn a_challenge_that_is_none_and_a_name_that_can_t_be_sent_are_refused() {
        let fault = |user: &str, challenge: &str| {
            DigestLogin::answer(&login(user), challenge.as_bytes(), "s/s", "n").err().expect("refused")
        };
        assert_eq!(fault("u", "nonce"), DigestFault::Malformed);
        assert_eq!(fault("u", "nonce=\"open"), DigestFault::Malformed);
        assert_eq!(fault("u", "realm=\"r\",algorithm=md5-sess"), DigestFault::Malformed);
        assert_eq!(fault("u", "nonce=\"n\",algorithm=md5"), DigestFault::Unsupported);
        assert_eq!(fault("u", "nonce=\"n\",algorithm=md5-sess,qop=\"auth-conf\""), DigestFault::Unsupported);
        assert_eq!(fault("u\"", "nonce=\"n\",algorithm=md5-sess"), DigestFault::Name);
        assert_eq!(fault("u", "nonce=\"n\\\"\",algorithm=md5-sess"), DigestFault::Malformed);
    }

    proptest! {
        #[test]
        fn whatever_a_server_sends_is_answered_or_refused(challenge in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = DigestLogin::answer(&login("u"), &challenge, "s/s", "n");
        }
    }
}
