//! JSON Web Tokens (RFC 7519) of an issuer elsewhere, whose keys are a JWKS (RFC 7517): what OAUTHBEARER mostly shows.
//!
//! The library reads tokens and checks what they claim; signatures are checked by ring, which TLS uses too. Only
//! signatures with a public key are taken.

use std::sync::atomic::{AtomicBool, Ordering};

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::jwk::{AlgorithmParameters, JwkSet};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey, Validation, decode, decode_header};
use parking_lot::RwLock;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;

use crate::limits::{JWT_KEYS_MAX, JWT_SUBJECT_BYTES_MAX};
use crate::tokens::{ISSUED, TokenBearer};

/// Clocks that differ by so many seconds are the same.
const LEEWAY_S: u64 = 30;

/// Whose tokens are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtIssuer {
    /// What `iss` has to be.
    pub issuer: String,
    /// One of what `aud` has to name.
    pub audience: Vec<String>,
}

/// The keys of an issuer, and what its tokens have to claim.
#[derive(Debug)]
pub struct JwtKeys {
    of: JwtIssuer,
    keys: RwLock<JwkSet>,
    /// Whether a token named a key that is not among them.
    wanted: AtomicBool,
}

/// What is looked at of a token, besides what the library checks.
#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: u64,
}

impl JwtKeys {
    /// None yet: nobody is known.
    pub fn new(of: JwtIssuer) -> Self {
        // One that is there already is this one, too.
        let _ = PROVIDER.install_default();
        Self { of, keys: RwLock::new(JwkSet { keys: Vec::new() }), wanted: AtomicBool::new(false) }
    }

    /// Takes the keys of a JWKS in place of those from before; how many.
    ///
    /// # Errors
    /// What is wrong with it. Then those from before are taken on.
    pub fn replace(&self, jwks: &[u8]) -> Result<usize, String> {
        let mut keys: JwkSet =
            serde_json::from_slice(jwks).map_err(|error| format!("it is no JWKS: {error}"))?;
        // Neither a secret key, which signs as well, nor one of a kind that is not known.
        keys.keys.retain(|key| {
            use AlgorithmParameters::{EllipticCurve, OctetKeyPair, RSA};
            matches!(key.algorithm, RSA(_) | EllipticCurve(_) | OctetKeyPair(_))
        });
        match keys.keys.len() {
            0 => Err("it has no public key of a kind that is known".to_owned()),
            count if count > JWT_KEYS_MAX => {
                Err(format!("it has {count} keys, and {JWT_KEYS_MAX} are taken"))
            }
            count => {
                *self.keys.write() = keys;
                Ok(count)
            }
        }
    }

    /// Whether a token named a key that is not known since this was asked last: the issuer may have a new one.
    pub fn is_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::Relaxed)
    }

    /// Whom a token stands for, if it is good.
    pub(crate) fn bearer(&self, text: &str) -> Option<TokenBearer> {
        let header = decode_header(text).ok()?;
        let keys = self.keys.read();
        let key = match (&header.kid, &keys.keys[..]) {
            (Some(kid), _) => match keys.find(kid) {
                Some(key) => key,
                None => {
                    self.wanted.store(true, Ordering::Relaxed);
                    return None;
                }
            },
            (None, [only]) => only,
            (None, _) => return None,
        };
        // Of a token that says another algorithm than its key's nothing is believed.
        let said = key.common.key_algorithm.map(|algorithm| algorithm.to_string());
        if said.is_some_and(|said| said != format!("{:?}", header.alg)) {
            return None;
        }
        let key = DecodingKey::from_jwk(key).ok()?;
        drop(keys);
        let mut validation = Validation::new(header.alg);
        validation.leeway = LEEWAY_S;
        validation.validate_nbf = true;
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation.set_issuer(&[&self.of.issuer]);
        validation.set_audience(&self.of.audience);
        let Claims { sub, exp } = decode(text, &key, &validation).ok()?.claims;
        let is_name = (1..=JWT_SUBJECT_BYTES_MAX).contains(&sub.len()) && !sub.contains(char::is_control);
        let until_ms = i64::try_from(exp).ok()?.checked_mul(1_000)?;
        is_name.then(|| TokenBearer { principal: format!("{ISSUED}{sub}").into(), until_ms: Some(until_ms) })
    }
}

/// Checks signatures, and makes none.
static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_: &Algorithm, _: &EncodingKey| -> Result<Box<dyn JwtSigner>, Error> {
        Err(ErrorKind::InvalidAlgorithm.into())
    },
    verifier_factory: |algorithm, key| {
        let verifier = RingVerifier { algorithm: *algorithm, key: key.clone() };
        // A key of another kind is found out here, and not when something was signed.
        verifier.scheme().map(|_| Box::new(verifier) as Box<dyn JwtVerifier>)
    },
    key_utils: KeyUtils::new_unimplemented(),
};

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

/// How ring checks a signature.
enum RingScheme {
    Rsa(&'static RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
}

impl RingVerifier {
    fn scheme(&self) -> Result<RingScheme, Error> {
        let scheme = match self.algorithm {
            Algorithm::RS256 => RingScheme::Rsa(&RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => RingScheme::Rsa(&RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => RingScheme::Rsa(&RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => RingScheme::Rsa(&RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => RingScheme::Rsa(&RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => RingScheme::Rsa(&RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => RingScheme::Curve(&ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => RingScheme::Curve(&ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => RingScheme::Curve(&ED25519),
            _ => return Err(ErrorKind::InvalidAlgorithm.into()),
        };
        match self.key.family() == self.algorithm.family() {
            true => Ok(scheme),
            false => Err(ErrorKind::InvalidKeyFormat.into()),
        }
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], given: &Vec<u8>) -> Result<(), signature::Error> {
        let scheme = self.scheme().map_err(|_| signature::Error::new())?;
        let is_good = match (scheme, self.key.kind()) {
            (RingScheme::Rsa(scheme), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(scheme, message, given)
            }
            (RingScheme::Curve(scheme), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(scheme, key).verify(message, given)
            }
            _ => return Err(signature::Error::new()),
        };
        is_good.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
    use serde_json::{Value, json};

    use super::*;

    /// An issuer's key.
    struct Signing {
        id: &'static str,
        pair: EcdsaKeyPair,
    }

    impl Signing {
        fn new(id: &'static str) -> Self {
            let random = SystemRandom::new();
            let pkcs8 =
                EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
            let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random);
            Self { id, pair: pair.expect("a key") }
        }

        fn public(&self) -> Value {
            let point = self.pair.public_key().as_ref();
            let [x, y] = [&point[1..33], &point[33..]].map(|part| URL_SAFE_NO_PAD.encode(part));
            json!({"kty": "EC", "crv": "P-256", "kid": self.id, "x": x, "y": y})
        }

        fn sign(&self, header: &Value, claims: &Value) -> String {
            let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
            let message = format!("{}.{}", part(header), part(claims));
            let signed = self.pair.sign(&SystemRandom::new(), message.as_bytes()).expect("signed");
            format!("{message}.{}", URL_SAFE_NO_PAD.encode(signed))
        }
    }

    fn set(keys: &[&Signing]) -> Vec<u8> {
        json!({"keys": keys.iter().map(|key| key.public()).collect::<Vec<_>>()}).to_string().into_bytes()
    }

    fn claims(of: &[(&str, Value)]) -> Value {
        let exp = jsonwebtoken::get_current_timestamp() + 3_600;
        let mut claims = json!({"iss": "https://issuer", "aud": "tailwater", "sub": "app", "exp": exp});
        for (name, value) in of {
            claims[name] = value.clone();
        }
        claims
    }

    fn keys() -> JwtKeys {
        let of = JwtIssuer { issuer: "https://issuer".to_owned(), audience: vec!["tailwater".to_owned()] };
        JwtKeys::new(of)
    }

    const HEADER: fn(&str) -> Value = |kid| json!({"alg": "ES256", "typ": "JWT", "kid": kid});

    #[test]
    fn a_token_is_known_by_its_key_also_after_the_issuer_has_another_one() {
        let (old, new, known) = (Signing::new("old"), Signing::new("new"), keys());
        let by = |key: &Signing| known.bearer(&key.sign(&HEADER(key.id), &claims(&[])));
        assert_eq!(by(&old), None, "before there is a key");
        known.replace(&set(&[&old])).expect("a set");
        let bearer = by(&old).expect("known");
        assert_eq!(&*bearer.principal, "jwt:app");
        assert!(bearer.until_ms.is_some());
        assert_eq!(by(&new), None);
        known.replace(&set(&[&old, &new])).expect("a set");
        assert!(by(&old).is_some() && by(&new).is_some());
        known.replace(b"{}").expect_err("no set");
        assert!(by(&new).is_some(), "those from before");
    }

    #[test]
    fn what_claims_something_else_or_is_signed_otherwise_is_nobody_s() {
        let (key, known) = (Signing::new("a"), keys());
        known.replace(&set(&[&key])).expect("a set");
        for wrong in [
            ("iss", json!("https://other")),
            ("aud", json!("other")),
            ("exp", json!(1)),
            ("exp", json!("4102444800")),
            ("nbf", json!(jsonwebtoken::get_current_timestamp() + 3_600)),
            ("sub", json!("")),
            ("sub", json!("a\nb")),
            ("sub", json!(7)),
            ("sub", Value::Null),
        ] {
            let token = key.sign(&HEADER("a"), &claims(std::slice::from_ref(&wrong)));
            assert_eq!(known.bearer(&token), None, "{wrong:?}");
        }
        let right = key.sign(&HEADER("a"), &claims(&[]));
        assert!(known.bearer(&right).is_some());
        for header in [
            json!({"alg": "none", "kid": "a"}),
            json!({"alg": "HS256", "kid": "a"}),
            json!({"alg": "RS256", "kid": "a"}),
            json!({"alg": "ES384", "kid": "a"}),
            json!({"alg": "ES256", "kid": "b"}),
        ] {
            assert_eq!(known.bearer(&key.sign(&header, &claims(&[]))), None, "{header}");
        }
        let other = Signing::new("a").sign(&HEADER("a"), &claims(&[]));
        assert_eq!(known.bearer(&other), None);
        for cut in 0..right.len() {
            assert_eq!(known.bearer(&right[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn a_secret_key_in_a_set_is_none() {
        let set = br#"{"keys": [{"kty": "oct", "kid": "a", "alg": "HS256", "k": "c2VjcmV0"}]}"#;
        assert!(keys().replace(set).expect_err("no public key").contains("no public key"));
    }
}
