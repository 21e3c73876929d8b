use hyper::header::HeaderValue;
use tailwater_sqs_wire::{Unsigned, sign};

use super::*;

const KEY: (&str, &str) = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
/// 2015-08-30T12:36:00Z, the time of Amazon's own examples.
const NOW_S: u64 = 1_440_938_160;

fn secret_of(key: &str) -> Option<String> {
    (key == KEY.0).then(|| KEY.1.to_owned())
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_str(value).expect("a value")))
        .collect()
}

fn code_of(result: Result<(String, Option<Bytes>), ErrorRefusal>) -> Code {
    result.expect_err("it is refused").code
}

#[test]
fn amazon_s_own_example_is_verified() {
    // get-vanilla-query-order-key-case of the specification's test suite.
    let authorization = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
        SignedHeaders=host;x-amz-date, \
        Signature=b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500";
    let headers = headers(&[
        ("host", "example.amazonaws.com"),
        ("x-amz-date", "20150830T123600Z"),
        ("authorization", authorization),
    ]);
    let body = Bytes::new();
    let request = Signed {
        method: "GET",
        path: "/",
        query: "Param2=value2&Param1=value1",
        headers: &headers,
        body: &body,
    };
    assert_eq!(verify(&request, NOW_S, secret_of), Ok((KEY.0.to_owned(), None)));
}

fn signed_for(target: Option<&str>, body: &Bytes) -> HeaderMap {
    let request = Unsigned { method: "POST", path: "/", query: "", host: "localhost:9324", target, body };
    let time = jiff::Timestamp::from_second(NOW_S as i64).expect("a time");
    let (date, authorization) = sign(&request, time, KEY, "eu-central-1");
    let mut all =
        headers(&[("host", "localhost:9324"), ("x-amz-date", &date), ("authorization", &authorization)]);
    if let Some(target) = target {
        all.insert("x-amz-target", HeaderValue::from_str(target).expect("a value"));
    }
    all
}

fn signed(body: &Bytes) -> HeaderMap {
    signed_for(None, body)
}

#[test]
fn a_signature_is_for_one_action_and_does_not_do_for_another() {
    let body = Bytes::from_static(b"{}");
    let verify_with = |headers: &HeaderMap| {
        let request = Signed { method: "POST", path: "/", query: "", headers, body: &body };
        verify(&request, NOW_S, secret_of)
    };
    let target = HeaderValue::from_static("AmazonSQS.DeleteQueue");
    let mut headers = signed_for(Some("AmazonSQS.ReceiveMessage"), &body);
    assert_eq!(verify_with(&headers), Ok((KEY.0.to_owned(), None)));
    headers.insert("x-amz-target", target.clone());
    assert_eq!(code_of(verify_with(&headers)), Code::SignatureDoesNotMatch);
    // One that was signed without a target gets none.
    let mut headers = signed(&body);
    headers.insert("x-amz-target", target);
    assert_eq!(code_of(verify_with(&headers)), Code::SignatureDoesNotMatch);
    // What is not Amazon's may be added on the way.
    let mut headers = signed(&body);
    headers.insert("x-forwarded-for", HeaderValue::from_static("192.0.2.1"));
    headers.insert("x-amzn-trace-id", HeaderValue::from_static("Root=1"));
    assert_eq!(verify_with(&headers), Ok((KEY.0.to_owned(), None)));
}

#[test]
fn what_we_sign_is_verified_and_anything_else_is_not() {
    let body = Bytes::from_static(b"{}");
    let headers = signed(&body);
    let request = Signed { method: "POST", path: "/", query: "", headers: &headers, body: &body };
    assert_eq!(verify(&request, NOW_S, secret_of), Ok((KEY.0.to_owned(), None)));
    let other = Bytes::from_static(b"[]");
    assert_eq!(
        code_of(verify(&Signed { body: &other, ..request }, NOW_S, secret_of)),
        Code::SignatureDoesNotMatch
    );
    assert_eq!(
        code_of(verify(&Signed { path: "/q", ..request }, NOW_S, secret_of)),
        Code::SignatureDoesNotMatch
    );
    assert_eq!(code_of(verify(&request, NOW_S, |_| Some("other".to_owned()))), Code::SignatureDoesNotMatch);
    assert_eq!(code_of(verify(&request, NOW_S, |_| None)), Code::InvalidClientTokenId);
    let bare = HeaderMap::new();
    assert_eq!(
        code_of(verify(&Signed { headers: &bare, ..request }, NOW_S, secret_of)),
        Code::MissingAuthenticationToken
    );
}

#[test]
fn a_signature_is_good_for_a_quarter_of_an_hour_before_and_after() {
    let body = Bytes::new();
    let headers = signed(&body);
    let request = Signed { method: "POST", path: "/", query: "", headers: &headers, body: &body };
    for (now_s, is_good) in [
        (NOW_S - SKEW_S, true),
        (NOW_S - SKEW_S - 1, false),
        (NOW_S + SKEW_S, true),
        (NOW_S + SKEW_S + 1, false),
    ] {
        assert_eq!(verify(&request, now_s, secret_of).is_ok(), is_good, "{now_s}");
    }
    assert_eq!(code_of(verify(&request, NOW_S + SKEW_S + 1, secret_of)), Code::RequestExpired);
}

#[test]
fn a_request_that_was_signed_in_advance_is_good_for_as_long_as_it_says() {
    let body = Bytes::new();
    let headers = headers(&[("host", "localhost:9324")]);
    let scope = "20150830/us-east-1/sqs/aws4_request";
    let query = format!(
        "Action=ListQueues&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F{}&X-Amz-Date=20150830T123600Z\
         &X-Amz-Expires=60&X-Amz-SignedHeaders=host",
        scope.replace('/', "%2F")
    );
    let canonical = format!("GET\n/\n{query}\nhost:localhost:9324\n\nhost\n{}", hex(&Sha256::digest(b"")));
    let key = signing_key(KEY.1, scope).expect("a scope");
    let signature =
        tailwater_sqs_wire::signature(&key, &string_to_sign("20150830T123600Z", scope, &canonical));
    let query = format!("{query}&X-Amz-Signature={signature}");
    let request = Signed { method: "GET", path: "/", query: &query, headers: &headers, body: &body };
    assert_eq!(verify(&request, NOW_S + 60, secret_of).map(|(key, _)| key), Ok(KEY.0.to_owned()));
    assert_eq!(code_of(verify(&request, NOW_S + 61, secret_of)), Code::RequestExpired);
    // Nor does it become another action by a header.
    let mut with_target = headers.clone();
    with_target.insert("x-amz-target", HeaderValue::from_static("AmazonSQS.DeleteQueue"));
    let request = Signed { headers: &with_target, ..request };
    assert_eq!(code_of(verify(&request, NOW_S, secret_of)), Code::SignatureDoesNotMatch);
}

#[test]
fn a_body_in_chunks_is_put_together_if_each_is_signed() {
    let scope = "20150830/us-east-1/sqs/aws4_request";
    let canonical = "POST\n/\n\nhost:h\nx-amz-content-sha256:STREAMING-AWS4-HMAC-SHA256-PAYLOAD\n\
        x-amz-date:20150830T123600Z\n\nhost;x-amz-content-sha256;x-amz-date\nSTREAMING-AWS4-HMAC-SHA256-PAYLOAD";
    let key = signing_key(KEY.1, scope).expect("a scope");
    let signature =
        tailwater_sqs_wire::signature(&key, &string_to_sign("20150830T123600Z", scope, canonical));
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/{scope}, SignedHeaders=host;x-amz-content-sha256;x-amz-date, \
         Signature={signature}"
    );
    let headers = headers(&[
        ("host", "h"),
        ("x-amz-content-sha256", STREAMING),
        ("x-amz-date", "20150830T123600Z"),
        ("authorization", &authorization),
    ]);
    let (mut framed, mut before) = (Vec::new(), signature);
    for chunk in [&b"{\"QueueName\""[..], b":\"q\"}", b""] {
        let to_sign = format!(
            "AWS4-HMAC-SHA256-PAYLOAD\n20150830T123600Z\n{scope}\n{before}\n{}\n{}",
            hex(&Sha256::digest(b"")),
            hex(&Sha256::digest(chunk))
        );
        before = tailwater_sqs_wire::signature(&key, &to_sign);
        framed.extend_from_slice(format!("{:x};chunk-signature={before}\r\n", chunk.len()).as_bytes());
        framed.extend_from_slice(chunk);
        framed.extend_from_slice(b"\r\n");
    }
    let whole = Bytes::from(framed.clone());
    let request = Signed { method: "POST", path: "/", query: "", headers: &headers, body: &whole };
    let body = Bytes::from_static(b"{\"QueueName\":\"q\"}");
    assert_eq!(verify(&request, NOW_S, secret_of), Ok((KEY.0.to_owned(), Some(body))));
    for at in [3, 100, framed.len() - 10] {
        let mut changed = framed.clone();
        changed[at] ^= 1;
        let changed = Bytes::from(changed);
        assert_eq!(
            code_of(verify(&Signed { body: &changed, ..request }, NOW_S, secret_of)),
            Code::SignatureDoesNotMatch
        );
        let cut = whole.slice(..at);
        assert_eq!(
            code_of(verify(&Signed { body: &cut, ..request }, NOW_S, secret_of)),
            Code::SignatureDoesNotMatch
        );
    }
}
