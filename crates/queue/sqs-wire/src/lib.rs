//! What both sides of Amazon SQS's protocol need: AWS Signature Version 4, as a client signs with it and a server
//! verifies it.
//!
//! Pure functions over text and bytes: nothing here knows of connections or accounts.

use hmac::{Hmac, Mac};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode, utf8_percent_encode};
use sha2::{Digest, Sha256};

/// The only algorithm.
pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// What the specification calls unreserved stays as it is.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// The same in a path.
const ESCAPED_IN_PATH: &AsciiSet = &ESCAPED.remove(b'/');

/// A request to be signed.
#[derive(Clone, Copy, Debug)]
pub struct Unsigned<'a> {
    /// `POST`, `GET`.
    pub method: &'a str,
    /// The path, escaped as it is sent.
    pub path: &'a str,
    /// What comes after `?`, escaped as it is sent.
    pub query: &'a str,
    /// The header `Host`.
    pub host: &'a str,
    /// The header `X-Amz-Target`, which in JSON names the action; none in the Query protocol.
    pub target: Option<&'a str>,
    /// The body.
    pub body: &'a [u8],
}

/// Signs a request in its header: the values of `X-Amz-Date` and `Authorization`. Host, date and target are what is
/// signed of the headers.
pub fn sign(
    request: &Unsigned<'_>,
    time: jiff::Timestamp,
    (key_id, secret): (&str, &str),
    region: &str,
) -> (String, String) {
    let time = time.strftime("%Y%m%dT%H%M%SZ").to_string();
    let scope = format!("{}/{region}/sqs/aws4_request", &time[..8]);
    let head = canonical_head(request.method, request.path, request.query);
    let (host, digest) = (request.host, hex(&Sha256::digest(request.body)));
    // Who could change the target could make another action of the request.
    let (target, names) = match request.target {
        Some(target) => (format!("x-amz-target:{target}\n"), "host;x-amz-date;x-amz-target"),
        None => (String::new(), "host;x-amz-date"),
    };
    let canonical = format!("{head}host:{host}\nx-amz-date:{time}\n{target}\n{names}\n{digest}");
    let key = signing_key(secret, &scope).expect("the scope has four parts");
    let signature = signature(&key, &string_to_sign(&time, &scope, &canonical));
    let authorization =
        format!("{ALGORITHM} Credential={key_id}/{scope}, SignedHeaders={names}, Signature={signature}");
    (time, authorization)
}

/// What is signed of a request's first line.
pub fn canonical_head(method: &str, path: &str, query: &str) -> String {
    let path = utf8_percent_encode(path, ESCAPED_IN_PATH);
    format!("{method}\n{path}\n{}\n", canonical_query(query))
}

/// The address's parameters in the order of their names, escaped as the specification has it, but for the signature.
fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<String> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .filter(|(name, _)| *name != "X-Amz-Signature")
        .map(|(name, value)| {
            let again = |text: &str| {
                let bytes: Vec<u8> = percent_decode_str(text).collect();
                percent_encode(&bytes, ESCAPED).to_string()
            };
            format!("{}={}", again(name), again(value))
        })
        .collect();
    pairs.sort();
    pairs.join("&")
}

/// What the signing key codes, of a request in its canonical form.
pub fn string_to_sign(time: &str, scope: &str, canonical: &str) -> String {
    format!("{ALGORITHM}\n{time}\n{scope}\n{}", hex(&Sha256::digest(canonical)))
}

/// The key of a scope, which is date, region, service and `aws4_request`; none if it is not of these four.
pub fn signing_key(secret: &str, scope: &str) -> Option<[u8; 32]> {
    let mut parts = scope.split('/');
    let (date, region, service, end) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if end != "aws4_request" || parts.next().is_some() {
        return None;
    }
    let first = code(format!("AWS4{secret}").as_bytes(), date.as_bytes());
    Some([region, service, end].iter().fold(first, |key, part| code(&key, part.as_bytes())))
}

/// A text's signature, in hexadecimal digits.
pub fn signature(key: &[u8], text: &str) -> String {
    hex(&code(key, text.as_bytes()))
}

fn code(key: &[u8], message: &[u8]) -> [u8; 32] {
    keyed(key, message).finalize().into_bytes().into()
}

fn keyed(key: &[u8], message: &[u8]) -> Hmac<Sha256> {
    let mut code = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    code.update(message);
    code
}

/// Whether a signature in hexadecimal digits is the one of that text; takes as long for any wrong one.
pub fn is_signature(key: &[u8], text: &str, signature: &str) -> bool {
    let digits: Option<Vec<u8>> = signature
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    digits.is_some_and(|digits| keyed(key, text.as_bytes()).verify_slice(&digits).is_ok())
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 0xf])
        .map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_signed_as_amazon_s_own_example_is() {
        // get-vanilla-query-order-key-case of the specification's test suite, whose service is none of Amazon's.
        let scope = "20150830/us-east-1/service/aws4_request";
        let head = canonical_head("GET", "/", "Param2=value2&Param1=value1");
        let canonical = format!(
            "{head}host:example.amazonaws.com\nx-amz-date:20150830T123600Z\n\nhost;x-amz-date\n{}",
            hex(&Sha256::digest(b""))
        );
        let key = signing_key("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", scope).expect("a scope");
        let text = string_to_sign("20150830T123600Z", scope, &canonical);
        assert!(is_signature(
            &key,
            &text,
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"
        ));
        assert!(!is_signature(&key, &text, "b97d"));
        assert!(!is_signature(&key, &text, "no digits"));
    }
}
