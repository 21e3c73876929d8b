//! An entry as bookies keep it: a header, a digest and the payload. Bookies look at the header only; the digest is
//! made by who writes and checked by who reads.
//!
//! ```text
//!  0         8         16        24        32            32 + D
//!  | ledger  | entry   | LAC     | length  | digest      | payload ...
//!  |   i64   |   i64   |   i64   |   i64   | D bytes     |
//!
//!  LAC     the last entry that was acknowledged when this one was sent, -1 for none
//!  length  bytes of all payloads of the ledger up to this one, and with it
//!  digest  over the 32 bytes before it and the payload: CRC32C, D = 4; CRC-32 as 64 bits, D = 8;
//!          HMAC-SHA1, D = 20; none, D = 0
//! ```
//!
//! All numbers are big-endian. An explicit LAC has the same form without entry, length and payload:
//!
//! ```text
//!  0         8         16            16 + D
//!  | ledger  | LAC     | digest      |
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use crc_fast::{CrcAlgorithm, Digest};
use hmac::{Hmac, Mac};
use sha1::{Digest as _, Sha1};

use crate::ids::{EntryId, LedgerId};

const HEADER_BYTES: usize = 32;
const LAC_HEADER_BYTES: usize = 16;

/// How the entries of a ledger are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestKind {
    /// CRC-32 of Ethernet: what the Java client takes by default.
    Crc32,
    /// HMAC-SHA1 with the ledger's password.
    Hmac,
    /// CRC-32C: what this client takes.
    Crc32c,
    /// Not at all.
    Unchecked,
}

impl std::fmt::Display for DigestKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Crc32 => "crc32",
            Self::Hmac => "hmac-sha1",
            Self::Crc32c => "crc32c",
            Self::Unchecked => "none",
        })
    }
}

/// What a bookie compares: who writes or fences a ledger has to know its password.
#[derive(Clone, PartialEq, Eq)]
pub struct MasterKey(Bytes);

impl MasterKey {
    /// SHA-1 of `ledger` and the password.
    pub fn of(password: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(&sha1_of("ledger", password)))
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.0.clone()
    }
}

impl std::fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MasterKey")
    }
}

fn sha1_of(word: &str, password: &[u8]) -> [u8; 20] {
    Sha1::new().chain_update(word).chain_update(password).finalize().into()
}

/// An entry whose digest was right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Which.
    pub entry: EntryId,
    /// The last entry that was acknowledged when this one was sent.
    pub lac: EntryId,
    /// Bytes of all payloads up to this one, and with it.
    pub length: u64,
    /// What was appended.
    pub payload: Bytes,
}

/// What is wrong with bytes that should be an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryFault {
    /// Shorter than a header and a digest.
    #[error("it is shorter than its header")]
    Short,
    /// The digest is of other bytes.
    #[error("its digest is wrong")]
    Digest,
    /// Another ledger's or another entry's.
    #[error("it is another entry")]
    Other,
}

/// Makes and checks the entries of one ledger.
#[derive(Clone)]
pub struct EntryCodec {
    ledger: LedgerId,
    kind: DigestKind,
    hmac: Option<Hmac<Sha1>>,
}

impl EntryCodec {
    /// Of a ledger with this password.
    pub fn new(ledger: LedgerId, kind: DigestKind, password: &[u8]) -> Self {
        let hmac = (kind == DigestKind::Hmac)
            .then(|| Hmac::new_from_slice(&sha1_of("mac", password)).expect("HMAC takes keys of any length"));
        Self { ledger, kind, hmac }
    }

    fn digest_bytes(&self) -> usize {
        match self.kind {
            DigestKind::Crc32 => 8,
            DigestKind::Hmac => 20,
            DigestKind::Crc32c => 4,
            DigestKind::Unchecked => 0,
        }
    }

    /// The digest of two pieces, at the end of `to`.
    fn put_digest(&self, header: &[u8], payload: &[u8], to: &mut impl BufMut) {
        let crc = |algorithm| {
            let mut digest = Digest::new(algorithm);
            digest.update(header);
            digest.update(payload);
            digest.finalize()
        };
        match self.kind {
            DigestKind::Crc32 => to.put_u64(crc(CrcAlgorithm::Crc32IsoHdlc)),
            DigestKind::Crc32c => to.put_u32(crc(CrcAlgorithm::Crc32Iscsi) as u32),
            DigestKind::Hmac => {
                if let Some(hmac) = &self.hmac {
                    to.put_slice(
                        &hmac.clone().chain_update(header).chain_update(payload).finalize().into_bytes(),
                    );
                }
            }
            DigestKind::Unchecked => {}
        }
    }

    /// An entry's bytes; `length` is with its own payload.
    pub fn pack(&self, entry: EntryId, lac: EntryId, length: u64, payload: &[u8]) -> Bytes {
        let mut packet = BytesMut::with_capacity(HEADER_BYTES + self.digest_bytes() + payload.len());
        packet.put_i64(self.ledger.get());
        packet.put_i64(entry.get());
        packet.put_i64(lac.get());
        packet.put_i64(i64::try_from(length).unwrap_or(i64::MAX));
        let mut digest = Vec::with_capacity(20);
        self.put_digest(&packet, payload, &mut digest);
        packet.put_slice(&digest);
        packet.put_slice(payload);
        packet.freeze()
    }

    /// Checks what a bookie sent for an entry, or for the last one it has, which is `None` here.
    pub fn open(&self, wanted: Option<EntryId>, packet: Bytes) -> Result<LedgerEntry, EntryFault> {
        let head = HEADER_BYTES + self.digest_bytes();
        if packet.len() < head {
            return Err(EntryFault::Short);
        }
        let mut digest = Vec::with_capacity(20);
        self.put_digest(&packet[..HEADER_BYTES], &packet[head..], &mut digest);
        if digest != packet[HEADER_BYTES..head] {
            return Err(EntryFault::Digest);
        }
        let mut header = &packet[..HEADER_BYTES];
        let (ledger, entry) = (header.get_i64(), header.get_i64());
        let (lac, length) = (header.get_i64(), header.get_i64());
        if ledger != self.ledger.get() || entry < 0 || wanted.is_some_and(|wanted| wanted.get() != entry) {
            return Err(EntryFault::Other);
        }
        Ok(LedgerEntry {
            entry: EntryId::new(entry),
            lac: EntryId::new(lac),
            length: u64::try_from(length).unwrap_or(0),
            payload: packet.slice(head..),
        })
    }

    /// The bytes of an explicit LAC.
    pub fn pack_lac(&self, lac: EntryId) -> Bytes {
        let mut packet = BytesMut::with_capacity(LAC_HEADER_BYTES + 20);
        packet.put_i64(self.ledger.get());
        packet.put_i64(lac.get());
        let mut digest = Vec::with_capacity(20);
        self.put_digest(&packet, &[], &mut digest);
        packet.put_slice(&digest);
        packet.freeze()
    }

    /// Checks an explicit LAC.
    pub fn open_lac(&self, packet: &[u8]) -> Result<EntryId, EntryFault> {
        if packet.len() < LAC_HEADER_BYTES + self.digest_bytes() {
            return Err(EntryFault::Short);
        }
        let (mut header, digest) = packet.split_at(LAC_HEADER_BYTES);
        let mut wanted = Vec::with_capacity(20);
        self.put_digest(header, &[], &mut wanted);
        if wanted != digest[..self.digest_bytes()] {
            return Err(EntryFault::Digest);
        }
        if header.get_i64() != self.ledger.get() {
            return Err(EntryFault::Other);
        }
        Ok(EntryId::new(header.get_i64()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [DigestKind; 4] =
        [DigestKind::Crc32, DigestKind::Hmac, DigestKind::Crc32c, DigestKind::Unchecked];

    fn codec(kind: DigestKind) -> EntryCodec {
        EntryCodec::new(LedgerId::new(7).expect("not negative"), kind, b"secret")
    }

    #[test]
    fn what_is_packed_is_opened_and_no_changed_byte_of_it() {
        for kind in KINDS {
            let packed = codec(kind).pack(EntryId::new(5), EntryId::new(3), 100, b"payload");
            let opened = codec(kind).open(Some(EntryId::new(5)), packed.clone()).expect("whole");
            assert_eq!((opened.lac.get(), opened.length, &opened.payload[..]), (3, 100, &b"payload"[..]));
            assert_eq!(codec(kind).open(Some(EntryId::new(4)), packed.clone()), Err(EntryFault::Other));
            let lac = codec(kind).pack_lac(EntryId::new(9));
            assert_eq!(codec(kind).open_lac(&lac), Ok(EntryId::new(9)));
            for at in (0..packed.len()).filter(|_| kind != DigestKind::Unchecked) {
                let mut changed = packed.to_vec();
                changed[at] ^= 1;
                assert_eq!(codec(kind).open(None, changed.into()), Err(EntryFault::Digest), "{kind:?} {at}");
            }
        }
    }

    #[test]
    fn a_packet_is_what_the_java_client_makes() {
        // Ledger 7, entry 0, LAC -1, length 1, CRC32C of the 32 bytes and "x".
        let packed = codec(DigestKind::Crc32c).pack(EntryId::FIRST, EntryId::NONE, 1, b"x");
        let mut checked = packed[..32].to_vec();
        checked.push(b'x');
        assert_eq!(packed[..8], 7_i64.to_be_bytes());
        assert_eq!(packed[16..24], [0xff; 8]);
        assert_eq!(packed[32..36], crc_fast::crc32_iscsi(&checked).to_be_bytes());
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_are_refused_or_opened(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            for kind in KINDS {
                let _ = codec(kind).open(None, bytes.clone().into());
                let _ = codec(kind).open_lac(&bytes);
            }
        }
    }
}
