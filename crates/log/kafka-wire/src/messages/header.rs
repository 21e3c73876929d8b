//! What is before a message's body.
//!
//! ```text
//! request                                 response
//! 0  4  length of what follows            0  4  length of what follows
//! 4  2  API                               4  4  correlation id
//! 6  2  version                           8     tagged fields, if the API's version is flexible
//! 8  4  correlation id
//! 12    client id: i16 length, -1 null; in this plain form always
//!       tagged fields, if the API's version is flexible
//! ```
//! The answer to ApiVersions has no tagged fields in its header in any version: whoever asks does not know yet which
//! versions there are.

use bytes::Bytes;

use crate::api::{Api, ApiRequest};
use crate::wire::{Frame, Malformed, Reader, TooLong, Wire, Writer};

/// A request's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    pub api: i16,
    pub version: i16,
    pub correlation_id: i32,
    pub client_id: Option<String>,
}

impl RequestHeader {
    /// Reads the header at the beginning of a request without its length. The reader is at the body then, if the API
    /// and its version are known, of whose arrays it takes `items_max` items; if not, only `api`, `version` and
    /// `correlation_id` are right.
    pub fn read(request: Bytes, items_max: usize) -> Result<(Self, Reader), Malformed> {
        let mut reader = Reader::new(request.clone(), 0, false);
        let (api, version) = (i16::read(&mut reader)?, i16::read(&mut reader)?);
        let correlation_id = i32::read(&mut reader)?;
        let Some(known) = Api::from_number(api).filter(|api| api.versions().contains(&version)) else {
            return Ok((Self { api, version, correlation_id, client_id: None }, reader));
        };
        let client_id = Option::<String>::read(&mut reader)?;
        let at = request.len() - reader.left();
        let flexible = known.is_flexible(version);
        let mut reader = Reader::new(request.slice(at..), version, flexible).with_items_max(items_max);
        if flexible {
            reader.tagged(|_, _| Ok(false))?;
        }
        Ok((Self { api, version, correlation_id, client_id }, reader))
    }
}

/// The frame of a request.
pub fn request<R: ApiRequest>(request: &R, version: i16, correlation_id: i32, client_id: &str) -> Frame {
    let flexible = R::API.is_flexible(version);
    let mut writer = Writer::new(version, false);
    R::API.number().write(&mut writer);
    version.write(&mut writer);
    correlation_id.write(&mut writer);
    client_id.to_owned().write(&mut writer);
    writer.set_form(version, flexible);
    if flexible {
        writer.tagged(Vec::new());
    }
    request.write(&mut writer);
    writer.finish().expect("whoever asks bounds what it sends")
}

/// The frame of a response to a request of `version`.
///
/// # Errors
/// There is too much in it.
pub fn response<M: Wire>(
    api: Api,
    version: i16,
    correlation_id: i32,
    response: &M,
) -> Result<Frame, TooLong> {
    let flexible = api.is_flexible(version);
    let mut writer = Writer::new(version, flexible);
    correlation_id.write(&mut writer);
    if flexible && api != Api::ApiVersions {
        writer.tagged(Vec::new());
    }
    response.write(&mut writer);
    writer.finish()
}

/// Reads a response without its length: its correlation id and body.
pub fn read_response<M: Wire>(api: Api, version: i16, response: Bytes) -> Result<(i32, M), Malformed> {
    let flexible = api.is_flexible(version);
    let mut reader = Reader::new(response, version, flexible);
    let correlation_id = i32::read(&mut reader)?;
    if flexible && api != Api::ApiVersions {
        reader.tagged(|_, _| Ok(false))?;
    }
    Ok((correlation_id, M::read(&mut reader)?))
}
