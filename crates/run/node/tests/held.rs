//! CALLs of who has used up a quota.

#![allow(clippy::disallowed_methods)] // a test of real sockets, which waits for their other ends

mod common;

use bytes::Bytes;
use common::{anybody, config};
use tailwater_env::Env;
use tailwater_format::call::{
    Append, AppendItem, AppendOutcome, Appends, CallErrorCode, FindStream, Method, StreamInfo, decode_call,
    encode_call,
};
use tailwater_format::{BatchBuilder, Codec, Producer};
use tailwater_node::Node;
use tailwater_rma::{Address, CallError};

/// One record of an idempotent producer, with that sequence number.
fn record(base_sequence: i32) -> Bytes {
    let mut batch = BatchBuilder::new();
    batch.append(None, Some(b"value"), &[], 1_000).unwrap();
    batch.set_producer(Producer { id: 7, epoch: 0, base_sequence });
    batch.finish(Codec::None)
}

#[test]
fn what_a_producer_sends_behind_an_append_that_its_quota_refused_is_not_appended_before_it() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let (admin, data) = (config.listen.admin, Address::Tcp(config.listen.data));
    let _entered = runtime.enter();
    let node = runtime.block_on(Node::start(config)).unwrap();
    let created = anybody(admin, "POST", "/v1/streams", "{\"name\":\"s\"}");
    assert!(created.starts_with("HTTP/1.1 200 "), "{created}");
    let calling = runtime.block_on(tailwater_rma::connect(&Env::real(), &data)).unwrap();
    let call = |method: Method, payload: Bytes| runtime.block_on(calling.call(method.number(), payload));
    let find = encode_call(&FindStream { name: "s".to_owned() });
    let info: StreamInfo = decode_call(call(Method::FindStream, find).unwrap()).unwrap();
    let append = |batches: Bytes| {
        let items = vec![AppendItem { shard: 0, batches, expected_term: None }];
        let append = Append { stream: info.stream.clone(), items, ..Default::default() };
        call(Method::Append, encode_call(&append))
    };
    let appended = |batches: Bytes| {
        let answer: Appends = decode_call(append(batches).unwrap()).unwrap();
        matches!(answer.results[0].outcome, Some(AppendOutcome::Appended(_)))
    };
    let quota = |bound: &str| {
        let body = format!("{{\"entity\":{{\"user\":\"*\"}},\"bounds\":{{\"producer_byte_rate\":{bound}}}}}");
        let set = anybody(admin, "PUT", "/v1/quotas", &body);
        assert!(set.starts_with("HTTP/1.1 200 "), "{set}");
    };

    quota("1");
    let mut other = BatchBuilder::new();
    other.append(None, Some(b"value"), &[], 1_000).unwrap();
    assert!(appended(other.finish(Codec::None)), "there is a second's worth");
    let refused = append(record(0)).unwrap_err();
    let code = CallErrorCode::Overloaded.number();
    assert!(matches!(refused, CallError::Refused { code: own, .. } if own == code), "{refused:?}");
    quota("null");
    assert!(!appended(record(1)), "what is before it is missing");
    assert!(appended(record(0)) && appended(record(1)));
    runtime.block_on(node.stop()).unwrap();
}
