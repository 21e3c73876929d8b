//! The two forms of a request and its answer: JSON 1.0, as newer clients have it, and Query with XML.
//!
//! Both are read into the same types, which have the names of the JSON form. A Query request is made into a tree of
//! these names first ([`query`]), and an answer in XML is written from the tree of its JSON form ([`xml`]); JSON itself
//! is read and written without one.

mod query;
mod xml;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::error::{Code, ErrorRefusal};

pub(crate) use query::{Form, parse_form};

/// A request's form, and so its answer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SqsProtocol {
    /// `X-Amz-Target` names the action, the body is JSON.
    Json,
    /// A form names action and parameters, the answer is XML.
    Query,
}

/// Whose action it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolService {
    /// Amazon SQS.
    Sqs,
    /// Amazon STS.
    Sts,
    /// What only Tailwater has.
    Tailwater,
}

/// A request's parameters, not yet looked at.
#[derive(Debug)]
pub(crate) enum Parameters {
    Json(Bytes),
    Form(Form),
}

/// What was asked for.
#[derive(Debug)]
pub(crate) struct ActionAsked {
    pub(crate) protocol: SqsProtocol,
    pub(crate) service: ProtocolService,
    pub(crate) action: String,
    pub(crate) parameters: Parameters,
}

const JSON_TYPE: HeaderValue = HeaderValue::from_static("application/x-amz-json-1.0");
/// What the Query protocol tells of a queue that is not there.
const NO_QUEUE: &str = "The specified queue does not exist for this wsdl version.";

const XML_TYPE: HeaderValue = HeaderValue::from_static("text/xml");

/// Reads what was asked for. The form of an answer to a request that makes no sense is the Query protocol's, unless it
/// names a target.
pub(crate) fn read(
    headers: &HeaderMap,
    query: &str,
    body: Bytes,
) -> Result<ActionAsked, (SqsProtocol, ErrorRefusal)> {
    if let Some(target) = headers.get("x-amz-target") {
        let target = target.to_str().unwrap_or_default();
        let unknown = || {
            (SqsProtocol::Json, ErrorRefusal::new(Code::InvalidAction, format!("{target:?} is no action")))
        };
        let (service, action) = target.split_once('.').ok_or_else(unknown)?;
        let service = match service {
            "AmazonSQS" => ProtocolService::Sqs,
            "Tailwater" => ProtocolService::Tailwater,
            _ => return Err(unknown()),
        };
        let action = action.to_owned();
        return Ok(ActionAsked {
            protocol: SqsProtocol::Json,
            service,
            action,
            parameters: Parameters::Json(body),
        });
    }
    let refused = |refusal| (SqsProtocol::Query, refusal);
    let mut form = parse_form(query.as_bytes()).map_err(refused)?;
    let is_form = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !body.is_empty() && (is_form.is_empty() || is_form.starts_with("application/x-www-form-urlencoded")) {
        form.extend(parse_form(&body).map_err(refused)?).map_err(refused)?;
    }
    let action = form.take("Action").ok_or_else(|| {
        refused(ErrorRefusal::new(
            Code::NoAction,
            "The request names no action: neither X-Amz-Target nor Action.",
        ))
    })?;
    let version = form.take("Version");
    let is_sts = action == "GetCallerIdentity" || version.as_deref() == Some("2011-06-15");
    let service = if is_sts { ProtocolService::Sts } else { ProtocolService::Sqs };
    Ok(ActionAsked { protocol: SqsProtocol::Query, service, action, parameters: Parameters::Form(form) })
}

impl ActionAsked {
    /// The parameters, as the action has them.
    pub(crate) fn parameters<T: DeserializeOwned>(&self) -> Result<T, ErrorRefusal> {
        let read = match &self.parameters {
            Parameters::Json(body) if body.is_empty() => serde_json::from_slice(b"{}"),
            Parameters::Json(body) => serde_json::from_slice(body),
            Parameters::Form(form) => serde_json::from_value(form.tree()?),
        };
        read.map(|JsonObject(parameters)| parameters)
            .map_err(|error| ErrorRefusal::new(Code::Malformed, error.to_string()))
    }

    /// The parameter of a queue's address, without looking at the others.
    pub(crate) fn form_queue_url(&self) -> Option<&str> {
        match &self.parameters {
            Parameters::Json(_) => None,
            Parameters::Form(form) => form.get("QueueUrl"),
        }
    }

    /// An answer.
    pub(crate) fn answer(&self, request_id: &str, result: &impl Serialize) -> Response<Bytes> {
        match self.protocol {
            SqsProtocol::Json => {
                let body = serde_json::to_vec(result).expect("answers are plain data");
                respond(StatusCode::OK, JSON_TYPE, request_id, body)
            }
            SqsProtocol::Query => {
                let result = serde_json::to_value(result).expect("answers are plain data");
                let body = xml::result(self.service, &self.action, &result, request_id);
                respond(StatusCode::OK, XML_TYPE, request_id, body.into_bytes())
            }
        }
    }
}

/// The answer to what is not done.
pub(crate) fn refuse(protocol: SqsProtocol, request_id: &str, refusal: &ErrorRefusal) -> Response<Bytes> {
    let ErrorRefusal { code, message } = refusal;
    let status_of = |status| StatusCode::from_u16(status).expect("statuses are valid");
    let fault = if code.is_sender() { "Sender" } else { "Receiver" };
    match protocol {
        SqsProtocol::Json => {
            let body = serde_json::json!({"__type": code.json_type(), "message": message});
            let status = status_of(code.json_status());
            let mut response = respond(status, JSON_TYPE, request_id, body.to_string().into_bytes());
            let error = HeaderValue::from_str(&format!("{};{fault}", code.query_code()));
            response.headers_mut().insert("x-amzn-query-error", error.expect("codes are ASCII"));
            response
        }
        SqsProtocol::Query => {
            let body = match code {
                Code::NoAction => xml::unknown_operation(message),
                Code::QueueDoesNotExist => xml::error(fault, code.query_code(), NO_QUEUE, request_id),
                code => xml::error(fault, code.query_code(), message, request_id),
            };
            respond(status_of(code.status()), XML_TYPE, request_id, body.into_bytes())
        }
    }
}

fn respond(
    status: StatusCode,
    content_type: HeaderValue,
    request_id: &str,
    body: Vec<u8>,
) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert("x-amzn-requestid", HeaderValue::from_str(request_id).expect("an id is ASCII"));
    response
}

/// What is an object in JSON: an array of its values, which serde would take in place of it, is none.
#[derive(Clone, Debug, Default)]
pub struct JsonObject<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = JsonObject<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(JsonObject)
            }
        }

        deserializer.deserialize_map(ObjectVisitor(std::marker::PhantomData))
    }
}

/// A parameter that may be null, which is the same as none.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// An answer without anything in it.
#[derive(Debug, Serialize)]
pub(crate) struct Nothing {}

/// Turns a value that a client sent as text into the number that it stands for.
fn number(text: &str) -> Option<Value> {
    text.parse::<i64>().ok().map(Value::from)
}
