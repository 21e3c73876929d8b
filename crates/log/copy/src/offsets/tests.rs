//! What becomes of a neighbour's connection.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tailwater_format::call::{decode_call, encode_call};
use tailwater_rma::{LocalDoorbell, Peer, Refusal, Region, Reply, ScarHit, ScarOp, Service};

use super::*;

const ADDRESS: &str = "tcp:elsewhere:1";

/// Answers about the streams that are not refused.
struct Elsewhere {
    refused: StreamId,
    connects: AtomicUsize,
}

impl Service for Elsewhere {
    fn regions(&self) -> Vec<Arc<Region>> {
        Vec::new()
    }

    fn scar(&self, _op: &ScarOp) -> Option<ScarHit> {
        None
    }

    fn call(&self, _peer: &Peer, _method: u16, payload: Bytes, reply: Reply) {
        let asked: CopyOffsets = decode_call(payload).expect("a message");
        reply.send(match asked.stream == stream_to_wire(self.refused) {
            true => Err(Refusal { code: 1, message: "it may not".to_owned() }),
            false => Ok(encode_call(&CopiedOffsets::default())),
        });
    }
}

struct Links(Arc<Elsewhere>);

impl ClusterLinks for Links {
    fn connect<'a>(&'a self, _address: &'a str) -> BoxFuture<'a, Result<Arc<dyn Connection>, String>> {
        self.0.connects.fetch_add(1, Ordering::Relaxed);
        let service: Arc<dyn Service> = self.0.clone();
        let connection = tailwater_rma::local::connect(service, LocalDoorbell::new(), &Env::real());
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
