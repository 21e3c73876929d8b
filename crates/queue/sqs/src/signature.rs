//! Signatures of requests: AWS Signature Version 4, in the header, in the address (presigned), and of a body in chunks.
//!
//! What is verified: that the request was signed with the secret of the access key that it names, for a service of the
//! scope that it names, at a time near ours, that body, address and signed headers are what was signed, and that the
//! host and every `X-Amz-` header that is there are among these. Any region and service will do: a client's endpoint
//! does not have to say which it stands for.

mod chunked;

use std::fmt::Write;

use bytes::Bytes;
use hyper::header::HeaderMap;
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use tailwater_sqs_wire::{ALGORITHM, canonical_head, hex, is_signature, signing_key, string_to_sign};

use crate::error::{Code, ErrorRefusal};
use crate::limits::{PRESIGNED_S_MAX, SKEW_S};

const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
const STREAMING: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";

/// A request, as it came.
#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    /// `POST`, `GET`.
    pub method: &'a str,
    /// The path, as it came.
    pub path: &'a str,
    /// What comes after `?`, as it came.
    pub query: &'a str,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The body.
    pub body: &'a Bytes,
}

/// What a signature says.
struct SignedClaim {
    key_id: String,
    /// Date, region, service, `aws4_request`.
    scope: String,
    time: String,
    signed_headers: String,
    signature: String,
    /// For how long, if it was signed in advance.
    expires_s: Option<u64>,
}

/// Verifies a request's signature at `now_s`, seconds since the epoch; `secret_of` knows the secrets by access key. The
/// access key, and the body if that had to be put together from chunks.
pub fn verify(
    request: &Signed<'_>,
    now_s: u64,
    secret_of: impl Fn(&str) -> Option<String>,
) -> Result<(String, Option<Bytes>), ErrorRefusal> {
    let claim = read_claim(request)?;
    check_time(&claim, now_s)?;
    let secret = secret_of(&claim.key_id).ok_or_else(|| {
        ErrorRefusal::new(
            Code::InvalidClientTokenId,
            "The security token included in the request is invalid.",
        )
    })?;
    let given = request.headers.get("x-amz-content-sha256").and_then(|value| value.to_str().ok());
    let payload = match given {
        Some(given @ (UNSIGNED | STREAMING)) => given.to_owned(),
        _ => hex(&Sha256::digest(request.body)),
    };
    if given.is_some_and(|given| given != payload) {
        return Err(mismatch());
    }
    let canonical = canonical_request(request, &claim, &payload)?;
    let key = signing_key(&secret, &claim.scope).ok_or_else(incomplete)?;
    let to_sign = string_to_sign(&claim.time, &claim.scope, &canonical);
    if !is_signature(&key, &to_sign, &claim.signature) {
        return Err(mismatch());
    }
    let body = match payload == STREAMING {
        true => Some(chunked::read(request.body, &key, &claim).ok_or_else(mismatch)?),
        false => None,
    };
    Ok((claim.key_id, body))
}

fn mismatch() -> ErrorRefusal {
    ErrorRefusal::new(
        Code::SignatureDoesNotMatch,
        "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access \
         Key and signing method.",
    )
}

fn incomplete() -> ErrorRefusal {
    ErrorRefusal::new(Code::IncompleteSignature, "The request signature does not conform to AWS standards.")
}

fn read_claim(request: &Signed<'_>) -> Result<SignedClaim, ErrorRefusal> {
    let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
    let with_scope = |credential: &str| {
        let (key_id, scope) = credential.split_once('/')?;
        Some((key_id.to_owned(), scope.to_owned()))
    };
    if let Some(authorization) = header("authorization") {
        let fields = authorization.strip_prefix(ALGORITHM).ok_or_else(incomplete)?;
        let field = |name: &str| {
            fields
                .split(',')
                .find_map(|field| field.trim().strip_prefix(name)?.strip_prefix('='))
                .ok_or_else(incomplete)
        };
        let (key_id, scope) = with_scope(field("Credential")?).ok_or_else(incomplete)?;
        return Ok(SignedClaim {
            key_id,
            scope,
            time: header("x-amz-date").ok_or_else(incomplete)?.to_owned(),
            signed_headers: field("SignedHeaders")?.to_owned(),
            signature: field("Signature")?.to_owned(),
            expires_s: None,
        });
    }
    let parameter = |name: &str| {
        let mut pairs = request.query.split('&').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(key, _)| *key == name)?;
        Some(percent_decode_str(value).decode_utf8().ok()?.into_owned())
    };
    if parameter("X-Amz-Algorithm").as_deref() != Some(ALGORITHM) {
        return Err(ErrorRefusal::new(
            Code::MissingAuthenticationToken,
            "Request is missing Authentication Token.",
        ));
    }
    let needed = |name: &str| parameter(name).ok_or_else(incomplete);
    let (key_id, scope) = with_scope(&needed("X-Amz-Credential")?).ok_or_else(incomplete)?;
    Ok(SignedClaim {
        key_id,
        scope,
        time: needed("X-Amz-Date")?,
        signed_headers: needed("X-Amz-SignedHeaders")?,
        signature: needed("X-Amz-Signature")?,
        expires_s: Some(needed("X-Amz-Expires")?.parse().map_err(|_| incomplete())?),
    })
}

fn check_time(claim: &SignedClaim, now_s: u64) -> Result<(), ErrorRefusal> {
    let parsed = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", &claim.time);
    let zoned = parsed.and_then(|time| time.to_zoned(jiff::tz::TimeZone::UTC)).map_err(|_| incomplete())?;
    let signed_s = u64::try_from(zoned.timestamp().as_second()).map_err(|_| incomplete())?;
    if claim.time.get(..8).is_none_or(|date| !claim.scope.starts_with(date)) {
        return Err(incomplete());
    }
    let for_s = match claim.expires_s {
        Some(expires_s) if expires_s > PRESIGNED_S_MAX => return Err(incomplete()),
        Some(expires_s) => expires_s,
        None => SKEW_S,
    };
    if now_s > signed_s + for_s || now_s + SKEW_S < signed_s {
        let node = i64::try_from(now_s).ok().and_then(|now| jiff::Timestamp::from_second(now).ok());
        let node = node.map(|now| now.strftime("%Y%m%dT%H%M%SZ").to_string()).unwrap_or_default();
        // Whoever signed it finds out from this whose clock is wrong.
        let message = format!(
            "Signature expired: it was signed at {} by the client's clock, it is {node} by the node's, and {for_s} seconds \
             may be between them.",
            claim.time
        );
        return Err(ErrorRefusal::new(Code::RequestExpired, message));
    }
    Ok(())
}

fn canonical_request(
    request: &Signed<'_>,
    claim: &SignedClaim,
    payload: &str,
) -> Result<String, ErrorRefusal> {
    check_signed_headers(request.headers, &claim.signed_headers)?;
    let mut canonical = canonical_head(request.method, request.path, request.query);
    for name in claim.signed_headers.split(';') {
        let mut values = Vec::new();
        for value in request.headers.get_all(name) {
            let value = value.to_str().map_err(|_| incomplete())?;
            values.push(value.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        if values.is_empty() {
            return Err(mismatch());
        }
        writeln!(canonical, "{name}:{}", values.join(",")).expect("a string takes everything");
    }
    write!(canonical, "\n{}\n{payload}", claim.signed_headers).expect("a string takes everything");
    Ok(canonical)
}

/// Whether the headers that say what is asked for, and of whom, are signed. Without the host a request to another
/// server could be sent here; without `X-Amz-Target` one that receives could be made one that deletes.
fn check_signed_headers(headers: &HeaderMap, signed: &str) -> Result<(), ErrorRefusal> {
    let is_signed = |name: &str| signed.split(';').any(|signed| signed == name);
    let must_be = |name: &&str| name.starts_with("x-amz-");
    let mut unsigned = ["host"].into_iter().chain(headers.keys().map(|name| name.as_str()).filter(must_be));
    match unsigned.find(|name| !is_signed(name)) {
        None => Ok(()),
        Some(name) => Err(ErrorRefusal::new(
            Code::SignatureDoesNotMatch,
            format!(
                "The header {name} is not among the signed ones: Host and all X-Amz- headers have to be."
            ),
        )),
    }
}

#[cfg(test)]
mod tests;
