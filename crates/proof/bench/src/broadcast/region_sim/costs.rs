//! What a message and an event cost a processor, measured: the real codec, the real steps of a client, and a real
//! connection on this machine.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tailwater_broadcast::region::{Member, Message, Options, Peer, RegionProgress};
use tailwater_broadcast::{Batch, Collect, Content, Stream, Writer};

use super::net::Costs;

/// How long each measurement takes at least.
const LONG_ENOUGH: Duration = Duration::from_millis(300);
/// Events of a large message.
const EVENTS: u64 = 2_000;

/// Measures both.
pub fn measure() -> anyhow::Result<Costs> {
    let empty = receive_ns(1);
    let large = receive_ns(EVENTS);
    let event_ns = 2.0 * (large - empty).max(0.0) / (EVENTS - 1) as f64;
    Ok(Costs { message_ns: empty + socket_ns()?, event_ns })
}

/// Nanoseconds to encode a message with so many events, to decode it and to deliver them.
fn receive_ns(events: u64) -> f64 {
    let stream = Stream::parse("region0/events").expect("a name");
    let me = |id| Member { id, address: Arc::from("a:1") };
    let mut writer = Writer::new(0);
    let content = Content { payload: vec![7; 10].into(), ..Content::default() };
    for _ in 0..events {
        writer.publish(&content, Some(&Collect::KeepLast(100))).expect("a small event");
    }
    let lot = writer.finish(0);
    let mut peer = Peer::new(me(1), me(2), BTreeMap::new(), Options { feeds: 0, ..Options::default() }, 1);
    let mut out = Vec::new();
    let mut count = 0;
    let pair = least_ns(|| {
        let after = count;
        count += events;
        let progress = RegionProgress { stream: stream.clone(), lineage: 0, held: 0, count, hops: 1 };
        peer.receive(0, 3, Message::Notify(vec![progress]), &mut out);
        let batch = Batch { after, last: count, ..lot.clone() };
        let (stream, batches) = (stream.clone(), vec![batch]);
        let (lineage, held, hops, stands) = (0, 0, 1, false);
        let answer = Message::Events { stream, lineage, after, held, count, hops, stands, batches };
        let mut bytes = BytesMut::new();
        answer.encode(&mut bytes);
        let answer = Message::decode(bytes.freeze()).expect("what was encoded");
        peer.receive(0, 3, answer, &mut out);
        out.clear();
        Ok(())
    });
    // The notification beside it is a message of its own.
    pair.map_or(0.0, |ns| ns / 2.0)
}

/// Nanoseconds that one end of a connection takes for a message: half of writing and reading it.
fn socket_ns() -> anyhow::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut one = TcpStream::connect(listener.local_addr()?)?;
    let (mut other, _) = listener.accept()?;
    one.set_nodelay(true)?;
    let mut bytes = [1; 64];
    let round_trip = least_ns(|| {
        one.write_all(&bytes)?;
        other.read_exact(&mut bytes)
    })?;
    Ok(round_trip / 2.0)
}

/// Nanoseconds of one call, in the fastest of many short stretches: the machine may be busy with other things too.
fn least_ns(mut call: impl FnMut() -> std::io::Result<()>) -> std::io::Result<f64> {
    const CALLS: u32 = 20;
    let (start, mut least) = (Instant::now(), f64::MAX);
    while start.elapsed() < LONG_ENOUGH {
        let stretch = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        least = least.min(stretch.elapsed().as_nanos() as f64 / f64::from(CALLS));
    }
    Ok(least)
}
