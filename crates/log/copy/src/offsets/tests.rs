//! What becomes of a neighbour's connection.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tailwater_format::call::encode_call;
use tailwater_rma::{
    CallError, Capabilities, ConnectionLost, OpError, ReadOp, RegionInfo, ScarOp, ScarReply,
};

use super::*;

const ADDRESS: &str = "tcp:elsewhere:1";

/// Answers about the streams that are not refused.
struct Elsewhere {
    refused: StreamId,
    connects: AtomicUsize,
}

struct OneConnection(Arc<Elsewhere>);

fn lost() -> ConnectionLost {
    ConnectionLost { peer: ADDRESS.to_owned(), reason: "it is none for this".to_owned() }
}

impl Connection for OneConnection {
    fn peer(&self) -> &str {
        ADDRESS
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { memory: false, scar: false }
    }

    fn regions(&self) -> Vec<RegionInfo> {
        Vec::new()
    }

    fn read<'a>(
        &'a self,
        _ops: &'a [ReadOp],
        _out: &'a mut [u8],
    ) -> BoxFuture<'a, Result<Vec<Result<(), OpError>>, ConnectionLost>> {
        Box::pin(async { Err(lost()) })
    }

    fn scar<'a>(
        &'a self,
        _ops: &'a [ScarOp],
    ) -> BoxFuture<'a, Result<Vec<Result<ScarReply, OpError>>, ConnectionLost>> {
        Box::pin(async { Err(lost()) })
    }

    fn watch(&self, _last_seen: u32, _deadline: Duration) -> BoxFuture<'_, Result<u32, ConnectionLost>> {
        Box::pin(async { Err(lost()) })
    }

    fn call(&self, _method: u16, payload: Bytes) -> BoxFuture<'_, Result<Bytes, CallError>> {
        let asked: CopyOffsets = tailwater_format::call::decode_call(payload).expect("a message");
        let is_refused = asked.stream == stream_to_wire(self.0.refused);
        let message = "it may not".to_owned();
        Box::pin(async move {
            match is_refused {
                true => Err(CallError::Refused { code: 1, message }),
                false => Ok(encode_call(&CopiedOffsets::default())),
            }
        })
    }

    fn lost(&self) -> Option<ConnectionLost> {
        None
    }
}

struct Links(Arc<Elsewhere>);

impl ClusterLinks for Links {
    fn connect<'a>(&'a self, _address: &'a str) -> BoxFuture<'a, Result<Arc<dyn Connection>, String>> {
        self.0.connects.fetch_add(1, Ordering::Relaxed);
        let connection: Arc<dyn Connection> = Arc::new(OneConnection(Arc::clone(&self.0)));
        Box::pin(std::future::ready(Ok(connection)))
    }
}

struct Nothing;

impl OffsetsKeeper for Nothing {
    fn since(&self, _stream: StreamId, _life: u64, _after: u64) -> CopiedOffsets {
        CopiedOffsets::default()
    }

    fn follow(&self, _stream: StreamId, _offsets: Vec<CopiedOffset>) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

#[tokio::test]
async fn a_neighbour_that_refuses_one_stream_keeps_the_connection_that_others_are_asked_over() {
    let stream = |number| StreamId(uuid::Uuid::from_u128(number));
    let elsewhere = Arc::new(Elsewhere { refused: stream(1), connects: AtomicUsize::new(0) });
    let links = Links(Arc::clone(&elsewhere));
    let asker = OffsetsAsker::new(Env::real(), Arc::new(Nothing));
    for number in [1, 2, 1, 2] {
        let (cluster, address) = ("eu".to_owned(), ADDRESS.to_owned());
        asker.ask(&links, Neighbour { stream: stream(number), cluster, address }).await;
    }
    assert_eq!(elsewhere.connects.load(Ordering::Relaxed), 1);
}
