//! What is kept of a password: enough to check it (RFC 5802, section 3).
//!
//! ```text
//! login/user/NAME
//!       0    1  format          1
//!       1    4  iterations      little-endian
//!       5   16  salt            of SHA-256
//!      21   32  stored key
//!      53   32  server key
//!      85   16  salt            of SHA-512
//!     101   64  stored key
//!     165   64  server key
//! ```

use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use pbkdf2::pbkdf2_hmac;
use sha2::{Digest, Sha256, Sha512};
use tailwater_access::are_same;

use crate::limits::{ITERATIONS, ITERATIONS_MAX};

const FORMAT: u8 = 1;

/// Bytes of a salt.
pub(crate) const SALT_BYTES: usize = 16;

/// Bytes of all of it.
const RECORD_BYTES: usize = 1 + 4 + 2 * SALT_BYTES + 2 * 32 + 2 * 64;

/// Which hash is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hash {
    Sha256,
    Sha512,
}

/// What is kept of a password for one hash.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ScramKeys {
    pub(crate) salt: [u8; SALT_BYTES],
    /// What the hash of a client's key has to be.
    pub(crate) stored: Vec<u8>,
    /// What the node shows that it knows.
    pub(crate) server: Vec<u8>,
}

/// What is kept of a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoredPassword {
    pub(crate) iterations: u32,
    sha256: ScramKeys,
    sha512: ScramKeys,
}

impl Hash {
    /// Bytes of its result.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    pub(crate) fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }

    pub(crate) fn mac(self, key: &[u8], bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => mac::<Hmac<Sha256>>(key, bytes),
            Self::Sha512 => mac::<Hmac<Sha512>>(key, bytes),
        }
    }

    /// A password, hashed so often (`Hi`, which is PBKDF2 with one block). Takes milliseconds.
    pub(crate) fn salted(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        let mut salted = vec![0; self.bytes()];
        match self {
            Self::Sha256 => pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut salted),
            Self::Sha512 => pbkdf2_hmac::<Sha512>(password, salt, iterations, &mut salted),
        }
        salted
    }
}

fn mac<M: Mac + KeyInit>(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mac = <M as Mac>::new_from_slice(key).expect("a key of any length will do");
    mac.chain_update(bytes).finalize().into_bytes().to_vec()
}

impl ScramKeys {
    fn derive(hash: Hash, password: &[u8], salt: [u8; SALT_BYTES], iterations: u32) -> Self {
        let salted = hash.salted(password, &salt, iterations);
        let client = hash.mac(&salted, b"Client Key");
        Self { salt, stored: hash.digest(&client), server: hash.mac(&salted, b"Server Key") }
    }
}

impl StoredPassword {
    /// What is kept of a password, with random salts. Takes milliseconds.
    pub(crate) fn derive(password: &[u8], salts: [[u8; SALT_BYTES]; 2], iterations: u32) -> Self {
        let keys = |hash, salt| ScramKeys::derive(hash, password, salt, iterations);
        let [one, other] = salts;
        Self { iterations, sha256: keys(Hash::Sha256, one), sha512: keys(Hash::Sha512, other) }
    }

    /// What stands for a user that there is not: nobody's password, and always the same for a name.
    pub(crate) fn decoy(secret: &[u8], name: &str) -> Self {
        let keys = |hash: Hash, label: &str| {
            let of = |part: &str| hash.mac(secret, format!("{label}{part}{name}").as_bytes());
            let mut salt = [0; SALT_BYTES];
            salt.copy_from_slice(&of("salt")[..SALT_BYTES]);
            ScramKeys { salt, stored: of("stored"), server: of("server") }
        };
        Self { iterations: ITERATIONS, sha256: keys(Hash::Sha256, "256"), sha512: keys(Hash::Sha512, "512") }
    }

    pub(crate) fn keys(&self, hash: Hash) -> &ScramKeys {
        match hash {
            Hash::Sha256 => &self.sha256,
            Hash::Sha512 => &self.sha512,
        }
    }

    /// Whether it is the password. Takes milliseconds, also if it is not.
    pub(crate) fn is_password(&self, password: &[u8]) -> bool {
        let ScramKeys { salt, stored, .. } = &self.sha256;
        are_same(&ScramKeys::derive(Hash::Sha256, password, *salt, self.iterations).stored, stored)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        bytes.extend(self.iterations.to_le_bytes());
        for ScramKeys { salt, stored, server } in [&self.sha256, &self.sha512] {
            bytes.extend(salt);
            bytes.extend(stored);
            bytes.extend(server);
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&[FORMAT]).filter(|_| bytes.len() == RECORD_BYTES)?;
        let mut take = |count: usize| {
            let (taken, left) = rest.split_at_checked(count)?;
            rest = left;
            Some(taken)
        };
        let iterations = u32::from_le_bytes(take(4)?.try_into().ok()?);
        let mut keys = |hash: Hash| {
            let salt = take(SALT_BYTES)?.try_into().ok()?;
            Some(ScramKeys {
                salt,
                stored: take(hash.bytes())?.to_vec(),
                server: take(hash.bytes())?.to_vec(),
            })
        };
        let (sha256, sha512) = (keys(Hash::Sha256)?, keys(Hash::Sha512)?);
        (1..=ITERATIONS_MAX).contains(&iterations).then_some(Self { iterations, sha256, sha512 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(password: &str) -> StoredPassword {
        StoredPassword::derive(password.as_bytes(), [[1; SALT_BYTES], [2; SALT_BYTES]], 10)
    }

    #[test]
    fn a_password_is_known_again_after_it_was_stored_and_no_other_one_is() {
        let stored = of("correct horse").encode();
        assert_eq!(stored.len(), RECORD_BYTES);
        let read = StoredPassword::decode(&stored).expect("ours");
        assert!(read.is_password(b"correct horse"));
        for other in ["correct horsf", "", "correct horse "] {
            assert!(!read.is_password(other.as_bytes()), "{other}");
        }
        let decoy = StoredPassword::decoy(b"secret", "nobody");
        assert!(!decoy.is_password(b"") && decoy == StoredPassword::decoy(b"secret", "nobody"));
    }

    #[test]
    fn what_is_damaged_or_of_a_later_version_is_no_user() {
        let stored = of("correct horse").encode();
        for cut in 0..stored.len() {
            assert!(StoredPassword::decode(&stored[..cut]).is_none(), "{cut}");
        }
        assert!(StoredPassword::decode(&[&stored[..], &[0]].concat()).is_none());
        let mut later = stored.clone();
        later[0] = 2;
        assert!(StoredPassword::decode(&later).is_none());
        let mut endless = stored;
        endless[1..5].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(StoredPassword::decode(&endless).is_none());
    }

    /// Those of RFC 7914, section 11, and of RFC 7677, section 3.
    #[test]
    fn a_password_is_hashed_as_others_hash_it() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let once = Hash::Sha256.salted(b"passwd", b"salt", 1);
        assert_eq!(hex(&once), "55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc");
        let often = Hash::Sha256.salted(b"Password", b"NaCl", 80_000);
        assert_eq!(hex(&often), "4ddcd8f60b98be21830cee5ef22701f9641a4418d04c0414aeff08876b34ab56");
    }
}
