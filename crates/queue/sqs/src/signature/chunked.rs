//! A body in signed chunks: each signature covers the one before it, beginning with the request's own.
//!
//! ```text
//! <length in hex>;chunk-signature=<64 hex digits>\r\n<bytes>\r\n ... 0;chunk-signature=<64 hex digits>\r\n[\r\n]
//! ```

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tailwater_sqs_wire::{hex, is_signature};

use super::SignedClaim;

/// The body, if all its chunks are signed, and the last one is there.
pub(super) fn read(framed: &Bytes, key: &[u8; 32], claim: &SignedClaim) -> Option<Bytes> {
    let empty = hex(&Sha256::digest(b""));
    let mut before = claim.signature.clone();
    let mut rest = &framed[..];
    let mut body = Vec::with_capacity(framed.len());
    loop {
        let line_end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let line = std::str::from_utf8(&rest[..line_end]).ok()?;
        let (length, signature) = line.split_once(";chunk-signature=")?;
        let length = usize::from_str_radix(length, 16).ok()?;
        rest = &rest[line_end + 2..];
        let (chunk, after) = rest.split_at_checked(length)?;
        let to_sign = format!(
            "AWS4-HMAC-SHA256-PAYLOAD\n{}\n{}\n{before}\n{empty}\n{}",
            claim.time,
            claim.scope,
            hex(&Sha256::digest(chunk))
        );
        if !is_signature(key, &to_sign, signature) {
            return None;
        }
        before = signature.to_owned();
        if length == 0 {
            return (after.is_empty() || after == b"\r\n").then(|| Bytes::from(body));
        }
        body.extend_from_slice(chunk);
        rest = after.strip_prefix(b"\r\n")?;
    }
}
