//! The hashes of SCRAM.

use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use pbkdf2::pbkdf2_hmac;
use sha2::{Digest, Sha256, Sha512};

/// Which hash is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hash {
    Sha256,
    Sha512,
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
