//! What is kept of a password: enough to check it (RFC 5802, section 3). For each hash there may be keys of a password
//! of their own: Kafka's clients set them one by one.
//!
//! ```text
//! login/user/NAME
//!       0    1  format          2
//!       1       keys            of SHA-256
//!               keys            of SHA-512
//!
//! keys
//!       0    4  iterations      little-endian; 0: there are none, and no more of them
//!       4    1  bytes of the salt
//!       5       salt
//!           32  stored key      64 of SHA-512
//!           32  server key      64 of SHA-512
//! ```

use tailwater_access::are_same;

use crate::hash::Hash;
use crate::limits::{ITERATIONS, ITERATIONS_MAX, SALT_BYTES_MAX};

const FORMAT: u8 = 2;

/// Bytes of a salt that is made here.
pub(crate) const SALT_BYTES: usize = 16;

/// What is kept of a password for one hash.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ScramKeys {
    pub(crate) iterations: u32,
    pub(crate) salt: Vec<u8>,
    /// What the hash of a client's key has to be.
    pub(crate) stored: Vec<u8>,
    /// What the node shows that it knows.
    pub(crate) server: Vec<u8>,
}

/// What is kept of a user's password, or of one for each hash; of one at least.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct StoredPassword {
    pub(crate) sha256: Option<ScramKeys>,
    pub(crate) sha512: Option<ScramKeys>,
}

impl ScramKeys {
    fn derive(hash: Hash, password: &[u8], salt: &[u8], iterations: u32) -> Self {
        Self::of_salted(hash, &hash.salted(password, salt, iterations), salt, iterations)
    }

    /// Of a password that was hashed so often with this salt already.
    pub(crate) fn of_salted(hash: Hash, salted: &[u8], salt: &[u8], iterations: u32) -> Self {
        let client = hash.mac(salted, b"Client Key");
        let (stored, server) = (hash.digest(&client), hash.mac(salted, b"Server Key"));
        Self { iterations, salt: salt.to_vec(), stored, server }
    }

    /// What stands for keys that there are not: nobody's, and always the same for a name.
    pub(crate) fn decoy(secret: &[u8], hash: Hash, name: &str) -> Self {
        let label = match hash {
            Hash::Sha256 => "256",
            Hash::Sha512 => "512",
        };
        let of = |part: &str| hash.mac(secret, format!("{label}{part}{name}").as_bytes());
        let salt = of("salt")[..SALT_BYTES].to_vec();
        Self { iterations: ITERATIONS, salt, stored: of("stored"), server: of("server") }
    }

    /// Whether it is the password. Takes milliseconds, also if it is not.
    pub(crate) fn is_password(&self, hash: Hash, password: &[u8]) -> bool {
        are_same(&Self::derive(hash, password, &self.salt, self.iterations).stored, &self.stored)
    }

    fn encode(keys: Option<&Self>, bytes: &mut Vec<u8>) {
        let Some(Self { iterations, salt, stored, server }) = keys else {
            return bytes.extend([0; 4]);
        };
        bytes.extend(iterations.to_le_bytes());
        bytes.push(u8::try_from(salt.len()).expect("a salt that was checked"));
        [salt, stored, server].into_iter().for_each(|part| bytes.extend(part));
    }

    fn decode(hash: Hash, rest: &mut &[u8]) -> Option<Option<Self>> {
        let mut take = |count: usize| {
            let (taken, left) = rest.split_at_checked(count)?;
            *rest = left;
            Some(taken.to_vec())
        };
        let iterations = u32::from_le_bytes(take(4)?.try_into().ok()?);
        if iterations == 0 {
            return Some(None);
        }
        let bytes = usize::from(*take(1)?.first()?);
        let salt = take(bytes)?;
        let (stored, server) = (take(hash.bytes())?, take(hash.bytes())?);
        let is_right = iterations <= ITERATIONS_MAX && (1..=SALT_BYTES_MAX).contains(&salt.len());
        is_right.then_some(Some(Self { iterations, salt, stored, server }))
    }
}

impl StoredPassword {
    /// What is kept of a password, with random salts. Takes milliseconds.
    pub(crate) fn derive(password: &[u8], salts: [[u8; SALT_BYTES]; 2], iterations: u32) -> Self {
        let keys = |hash, salt: &[u8]| Some(ScramKeys::derive(hash, password, salt, iterations));
        let [one, other] = salts;
        Self { sha256: keys(Hash::Sha256, &one), sha512: keys(Hash::Sha512, &other) }
    }

    pub(crate) fn keys(&self, hash: Hash) -> Option<&ScramKeys> {
        match hash {
            Hash::Sha256 => self.sha256.as_ref(),
            Hash::Sha512 => self.sha512.as_ref(),
        }
    }

    pub(crate) fn set(&mut self, hash: Hash, keys: Option<ScramKeys>) {
        match hash {
            Hash::Sha256 => self.sha256 = keys,
            Hash::Sha512 => self.sha512 = keys,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sha256.is_none() && self.sha512.is_none()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        [&self.sha256, &self.sha512]
            .into_iter()
            .for_each(|keys| ScramKeys::encode(keys.as_ref(), &mut bytes));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&[FORMAT])?;
        let sha256 = ScramKeys::decode(Hash::Sha256, &mut rest)?;
        let sha512 = ScramKeys::decode(Hash::Sha512, &mut rest)?;
        let read = Self { sha256, sha512 };
        (rest.is_empty() && !read.is_empty()).then_some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(password: &str) -> StoredPassword {
        StoredPassword::derive(password.as_bytes(), [[1; SALT_BYTES], [2; SALT_BYTES]], 10)
    }

    fn knows(stored: &StoredPassword, password: &str) -> bool {
        let known = [Hash::Sha256, Hash::Sha512]
            .map(|hash| stored.keys(hash).expect("keys of both").is_password(hash, password.as_bytes()));
        assert_eq!(known[0], known[1]);
        known[0]
    }

    #[test]
    fn a_password_is_known_again_after_it_was_stored_and_no_other_one_is() {
        let read = StoredPassword::decode(&of("correct horse").encode()).expect("ours");
        assert!(knows(&read, "correct horse"));
        for other in ["correct horsf", "", "correct horse "] {
            assert!(!knows(&read, other), "{other}");
        }
        let decoy = || ScramKeys::decoy(b"secret", Hash::Sha256, "nobody");
        assert!(!decoy().is_password(Hash::Sha256, b"") && decoy() == decoy());
    }

    #[test]
    fn keys_of_one_hash_are_kept_without_those_of_the_other() {
        let mut stored = of("correct horse");
        stored.set(Hash::Sha256, None);
        let read = StoredPassword::decode(&stored.encode()).expect("ours");
        assert!(read == stored && read.keys(Hash::Sha256).is_none());
        stored.set(Hash::Sha512, None);
        assert!(stored.is_empty() && StoredPassword::decode(&stored.encode()).is_none());
    }

    #[test]
    fn what_is_damaged_or_of_a_later_version_is_no_user() {
        let stored = of("correct horse").encode();
        for cut in 0..stored.len() {
            assert!(StoredPassword::decode(&stored[..cut]).is_none(), "{cut}");
        }
        assert!(StoredPassword::decode(&[&stored[..], &[0]].concat()).is_none());
        let mut later = stored.clone();
        later[0] = 3;
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
