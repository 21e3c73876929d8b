//! The server's side of SCRAM (RFC 5802, RFC 7677), without channel binding: messages in, messages out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tailwater_access::are_same;

use crate::credentials::ScramKeys;
use crate::hash::Hash;

/// Shortest nonce of a client: a shorter one could come twice.
const NONCE_BYTES_MIN: usize = 8;

/// What the client begins with, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FirstMessage {
    pub(crate) user: String,
    nonce: String,
    /// Its header, which it has to repeat.
    header: String,
    /// The rest, which both sides sign.
    bare: String,
}

/// The dialogue after the first message.
pub(crate) struct Challenged {
    hash: Hash,
    first: FirstMessage,
    nonce: String,
    challenge: String,
    keys: ScramKeys,
}

impl FirstMessage {
    /// Reads `n,,n=USER,r=NONCE`.
    pub(crate) fn read(message: &str) -> Result<Self, &'static str> {
        let mut parts = message.splitn(3, ',');
        let (binding, identity) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let bare = parts.next().ok_or("it is no first message of SCRAM")?;
        // `y` is a client that could, and takes us for one that can't, which we are.
        if !matches!(binding, "n" | "y") {
            return Err("channel binding is not spoken");
        }
        let mut attributes = bare.split(',');
        let user = attributes.next().and_then(|user| user.strip_prefix("n=")).ok_or("it names no user")?;
        let user = unescaped(user).ok_or("the user's name is not escaped as it should be")?;
        let nonce = attributes.next().and_then(|nonce| nonce.strip_prefix("r=")).ok_or("it has no nonce")?;
        let is_nonce = |nonce: &str| nonce.bytes().all(|byte| (0x21..=0x7e).contains(&byte) && byte != b',');
        if nonce.len() < NONCE_BYTES_MIN || !is_nonce(nonce) {
            return Err("its nonce is too short, or has characters that it can't have");
        }
        // Who acts for somebody else would say so here. Kafka's extensions, such as tokens, stand behind the nonce.
        if !identity.is_empty() && identity.strip_prefix("a=").and_then(unescaped).as_ref() != Some(&user) {
            return Err("it wants to act for another user");
        }
        if attributes.next().is_some_and(|extension| extension.eq_ignore_ascii_case("tokenauth=true")) {
            return Err("there are no delegation tokens here");
        }
        let header = format!("{binding},{identity},");
        Ok(Self { user, nonce: nonce.to_owned(), header, bare: bare.to_owned() })
    }

    /// Answers it for a user with these keys, with a random text of the server's own.
    pub(crate) fn challenge(self, hash: Hash, keys: ScramKeys, random: &str) -> Challenged {
        let nonce = format!("{}{random}", self.nonce);
        let salt = STANDARD.encode(&keys.salt);
        let challenge = format!("r={nonce},s={salt},i={}", keys.iterations);
        Challenged { hash, first: self, nonce, challenge, keys }
    }
}

impl Challenged {
    /// What the client is sent.
    pub(crate) fn message(&self) -> &str {
        &self.challenge
    }

    /// Who it says it is.
    pub(crate) fn user(&self) -> &str {
        &self.first.user
    }

    /// Reads `c=HEADER,r=NONCE,p=PROOF`; what proves that the server knows the user, if the client knows the password.
    pub(crate) fn finish(&self, message: &str) -> Result<Option<String>, &'static str> {
        let (unsigned, proof) = message.rsplit_once(",p=").ok_or("it has no proof")?;
        let proof = STANDARD.decode(proof).map_err(|_| "its proof is no base64")?;
        let mut attributes = unsigned.split(',');
        let header =
            attributes.next().and_then(|header| header.strip_prefix("c=")).ok_or("it has no header")?;
        let header = STANDARD.decode(header).map_err(|_| "its header is no base64")?;
        if header != self.first.header.as_bytes() {
            return Err("its header is not the one that it began with");
        }
        // librdkafka before 2.6.1 puts its own part of it before it once more (its pull request 4895).
        let nonce = attributes.next().and_then(|nonce| nonce.strip_prefix("r="));
        let is_sent = |nonce: &str| nonce == self.nonce;
        let is_twice = |nonce: &str| nonce.strip_prefix(self.first.nonce.as_str()).is_some_and(is_sent);
        if !nonce.is_some_and(|nonce| is_sent(nonce) || is_twice(nonce)) {
            return Err("its nonce is not the one that it was sent");
        }
        let signed = format!("{},{},{unsigned}", self.first.bare, self.challenge);
        let keys = &self.keys;
        let signature = self.hash.mac(&keys.stored, signed.as_bytes());
        if proof.len() != signature.len() {
            return Err("its proof has another length");
        }
        let client: Vec<u8> =
            proof.iter().zip(&signature).map(|(proof, signature)| proof ^ signature).collect();
        let is_known = are_same(&self.hash.digest(&client), &keys.stored);
        let own = || STANDARD.encode(self.hash.mac(&keys.server, signed.as_bytes()));
        Ok(is_known.then(|| format!("v={}", own())))
    }
}

/// A name in which `=2C` is a comma and `=3D` an equals sign.
fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('=');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let (char, rest) = match (part.strip_prefix("2C"), part.strip_prefix("3D")) {
            (Some(rest), _) => (',', rest),
            (_, Some(rest)) => ('=', rest),
            _ => return None,
        };
        name.push(char);
        name.push_str(rest);
    }
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dialogue of RFC 7677, section 3.
    #[test]
    fn the_dialogue_of_the_specification_ends_as_it_says() {
        let first = FirstMessage::read("n,,n=user,r=rOprNGfwEbeRWgbNEkqO").expect("a first message");
        assert_eq!(first.user, "user");
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").expect("base64");
        let salted = Hash::Sha256.salted(b"pencil", &salt, 4_096);
        let credentials = ScramKeys::of_salted(Hash::Sha256, &salted, &salt, 4_096);
        let challenged = first.challenge(Hash::Sha256, credentials, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0");
        assert_eq!(
            challenged.message(),
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        let last = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                    p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        let answer = challenged.finish(last).expect("well formed").expect("the password");
        assert_eq!(answer, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        let wrong = last.replace("dHzb", "dHzc");
        assert_eq!(challenged.finish(&wrong), Ok(None));
    }

    #[test]
    fn what_is_no_first_message_is_refused_with_what_is_wrong() {
        for (message, named) in [
            ("", "no first message"),
            ("n,,", "names no user"),
            ("p=tls-unique,,n=a,r=12345678", "channel binding"),
            ("n,a=other,n=user,r=12345678", "another user"),
            ("n,,n=us=er,r=12345678", "escaped"),
            ("n,,n=user,r=1", "nonce"),
            ("n,,n=user,r=1234567\u{7f}", "nonce"),
            ("n,,n=user,r=12345678,tokenauth=true", "tokens"),
        ] {
            let why = FirstMessage::read(message).expect_err(message);
            assert!(why.contains(named), "{message}: {why}");
        }
        assert_eq!(FirstMessage::read("y,a=a=2Cb,n=a=2Cb,r=12345678").expect("fine").user, "a,b");
    }

    #[test]
    fn what_is_no_last_message_is_refused_with_what_is_wrong() {
        let first = FirstMessage::read("n,,n=user,r=12345678").expect("a first message");
        let challenged =
            first.challenge(Hash::Sha512, ScramKeys::decoy(b"secret", Hash::Sha512, "user"), "abc");
        for (message, named) in [
            ("", "no proof"),
            ("c=biws,r=12345678abc,p=!", "no base64"),
            ("c=eSws,r=12345678abc,p=aaaa", "began with"),
            ("c=biws,r=12345678,p=aaaa", "was sent"),
            ("c=biws,r=1234567812345678,p=aaaa", "was sent"),
            ("c=biws,r=abc,p=aaaa", "was sent"),
            // As librdkafka has it, which is looked at further.
            ("c=biws,r=1234567812345678abc,p=aaaa", "another length"),
            ("c=biws,r=12345678abc,p=aaaa", "another length"),
        ] {
            let why = challenged.finish(message).expect_err(message);
            assert!(why.contains(named), "{message}: {why}");
        }
    }
}
