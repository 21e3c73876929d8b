//! What a fuzzer runs: bytes of a client, and bytes of a broker. What holds besides that nothing panics: what was read
//! is written as bytes that read the same.

use bytes::Bytes;

use crate::api::{Api, ApiRequest, for_each_request};
use crate::consumer;
use crate::messages::header::{RequestHeader, read_response, request, response};
use crate::messages::{
    cluster::*, configs::*, fetch::*, groups::*, membership::*, offsets::*, produce::*, replicas::*,
    security::*, topics::*,
};
use crate::wire::{ITEMS_MAX, Reader, Wire, Writer};

/// A request without its length, as it comes from a client that may be anybody.
pub fn requests(data: &[u8]) {
    let Ok((header, reader)) = RequestHeader::read(Bytes::copy_from_slice(data), ITEMS_MAX) else { return };
    let known = Api::from_number(header.api).filter(|api| api.versions().contains(&header.version));
    let Some(api) = known else { return };
    macro_rules! one {
        ($request:ident) => {
            if api == <$request as ApiRequest>::API {
                there_and_back::<$request>(reader.clone());
            }
        };
    }
    for_each_request!(one);
}

/// An answer without its length, as our own client reads it. Before it are its API and version, two bytes each.
pub fn responses(data: &[u8]) {
    let Some((number, rest)) = data.split_first_chunk() else { return };
    let Some((version, answer)) = rest.split_first_chunk() else { return };
    let (number, version) = (i16::from_be_bytes(*number), i16::from_be_bytes(*version));
    let Some(api) = Api::from_number(number).filter(|api| api.versions().contains(&version)) else { return };
    macro_rules! one {
        ($request:ident) => {
            if api == <$request as ApiRequest>::API {
                answer_there_and_back::<$request>(version, answer);
            }
        };
    }
    for_each_request!(one);
}

/// What the members of a group say to each other.
pub fn consumers(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let version = consumer::version(data);
    if let Some(said) = consumer::subscription(bytes.clone()) {
        let written = consumer::encode(&said, version);
        let again = consumer::subscription(written.clone()).expect("what was written is read");
        assert_eq!(consumer::encode(&again, version), written);
    }
    let _ = (consumer::topics(bytes.clone()), consumer::assigned(bytes));
}

/// Requests and answers of every API and version, as [`requests`] and [`responses`] take them.
pub fn seeds() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut requests, mut responses) = (Vec::new(), Vec::new());
    macro_rules! both {
        ($request:ident) => {
            let api = <$request as ApiRequest>::API;
            for version in api.versions() {
                requests.push(request(&$request::default(), version, 7, "fuzz").concat()[4..].to_vec());
                let answer = <$request as ApiRequest>::Response::default();
                let answer = response(api, version, 7, &answer).expect("short").concat();
                responses
                    .push([&api.number().to_be_bytes()[..], &version.to_be_bytes(), &answer[4..]].concat());
            }
        };
    }
    for_each_request!(both);
    (requests, responses)
}

fn there_and_back<M: Wire>(mut reader: Reader) {
    let (version, flexible) = (reader.version(), reader.is_flexible());
    let Ok(message) = M::read(&mut reader) else { return };
    let written = written(&message, version, flexible);
    let mut reader = Reader::new(written.clone(), version, flexible);
    let again = M::read(&mut reader).expect("what was written is read");
    // By their bytes: no number that is none is the same as itself.
    assert_eq!((self::written(&again, version, flexible), reader.left()), (written, 0));
}

fn written<M: Wire>(message: &M, version: i16, flexible: bool) -> Bytes {
    let mut writer = Writer::new(version, flexible);
    message.write(&mut writer);
    writer.finish().expect("no longer than what was read").concat().slice(4..)
}

fn answer_there_and_back<R: ApiRequest>(version: i16, answer: &[u8]) {
    let read = |bytes: Bytes| read_response::<R::Response>(R::API, version, bytes);
    let Ok((id, message)) = read(Bytes::copy_from_slice(answer)) else { return };
    let write = |id, message| response(R::API, version, id, message).expect("short").concat();
    let written = write(id, &message);
    let (id, again) = read(written.slice(4..)).expect("what was written is read");
    assert_eq!(write(id, &again), written);
}
