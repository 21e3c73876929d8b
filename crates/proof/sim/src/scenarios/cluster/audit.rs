//! An auditor that looks into the cells beside the readers, and compares with what the owner knows to be durable.
//!
//! Readers check so much that a wrong chunk or length mostly costs them only time; here it is a violation.

use std::time::Duration;

use tailwater_cache::Lookup;
use tailwater_env::Env;
use tailwater_format::tails::{tail_page_key, tail_page_of};
use tailwater_format::{ChunkKey, Position, SegmentId, SegmentNumber, ShardId, Tail, TailPage};
use tailwater_log::Log;
use tailwater_tail::Cells;

use crate::checkers::{Violation, ensure};
use crate::planted::Plant;
use crate::scenarios::cells;
use crate::world::{Node, run_on};

use super::{Cluster, shard_id};

/// Looks here and there, for as long as the scenario lasts.
pub(super) async fn audit(shared: Cluster, node: Node) {
    let env = node.env();
    let cells = cells::both(&shared.net, &node, &env, Plant::None).await;
    while !shared.is_over() {
        // Most of what can go wrong does so while things do.
        let pause_us = if shared.state.lock().calm { 60_000 } else { 6_000 };
        env.sleep(Duration::from_micros(env.random_below(pause_us))).await;
        let process = shared.process();
        let (Some((log, owner)), Some((_, stream))) = (shared.log(), shared.generation()) else { continue };
        let shard = shard_id(stream, env.random_below(u64::from(shared.stream_config.shards)) as u32);
        if env.random_below(2) == 0 {
            // A segment as the owner knows it, whatever was published of it.
            let Ok(segments) = log.segments(shard, SegmentNumber(0)) else { continue };
            let newest: Vec<_> = segments.iter().rev().take(3).collect();
            if newest.is_empty() {
                continue;
            }
            let segment = newest[env.random_below(newest.len() as u64) as usize];
            let id = SegmentId { shard, number: segment.number, term: segment.term };
            let checked = check_chunk(&shared, &cells, &env, &owner, log, id, segment.length).await;
            if shared.process() == process {
                shared.note(checked);
            }
            continue;
        }
        let (page, slot) = tail_page_of(shard.shard);
        let looked = cells.metadata.get_relaxed(&[tail_page_key(shard.stream, page)]).await;
        let Some(Lookup::Hit { value, .. }) = looked.into_iter().next() else { continue };
        let tail = match TailPage::decode(&value) {
            Ok(page) => page.tails.get(slot).copied().flatten(),
            Err(error) => {
                shared.note(Err(Violation::new(format!("a page of tails is damaged: {error}"))));
                return;
            }
        };
        let Some(tail) = tail else { continue };
        shared.count("audits of lengths");
        // What the cell says may be of a process that has come since, and that has recovered more.
        if shared.process() != process {
            continue;
        }
        let checked = check_length(&shared, &log, shard, &tail);
        shared.note(checked);
        let checked =
            check_chunk(&shared, &cells, &env, &owner, log, tail.segment_id(shard), tail.durable).await;
        if shared.process() == process {
            shared.note(checked);
        }
    }
}

/// A published length is not beyond what is durable by now, if the owner still has that segment.
fn check_length(shared: &Cluster, log: &Log, id: ShardId, tail: &Tail) -> Result<(), Violation> {
    let shard = id.shard;
    ensure(tail.cached <= tail.durable, || {
        format!("shard {shard}: cached {} was published beyond durable {}", tail.cached, tail.durable)
    })?;
    if shared.is_interval() {
        return Ok(());
    }
    let Ok(durable) = log.store().durable_length(&tail.segment_id(id)) else { return Ok(()) };
    // The owner may have died since it was asked for.
    if !shared.owner().is_up() {
        return Ok(());
    }
    ensure(tail.durable <= durable, || {
        format!("shard {shard}: length {} was published, but only {durable} is durable", tail.durable)
    })
}

/// A chunk in the cell is a prefix of the segment's durable bytes there.
async fn check_chunk(
    shared: &Cluster,
    cells: &Cells,
    env: &Env,
    owner: &Env,
    log: Log,
    segment: SegmentId,
    length: Position,
) -> Result<(), Violation> {
    let chunk_bytes = shared.stream_config.chunk_bytes;
    let chunks = length.0.div_ceil(u64::from(chunk_bytes));
    if chunks == 0 {
        return Ok(());
    }
    // The last ones are written most often.
    let back = env.random_below(chunks.min(3));
    let key = ChunkKey { segment, chunk_bytes, chunk: chunks - 1 - back };
    let looked = cells.data.get_relaxed(&[key.to_bytes()]).await;
    let Some(Lookup::Hit { value, .. }) = looked.into_iter().next() else { return Ok(()) };
    let (start, length) = (key.start(), value.len());
    let durable = run_on(owner, "audit", async move {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let at = Position(start.0 + bytes.len() as u64);
            let read = log.read_durable(segment, at, (length - bytes.len()) as u32).await;
            match read {
                Ok(more) if !more.is_empty() => bytes.extend_from_slice(&more),
                Ok(_) => break,
                Err(tailwater_log::ReadError::BeyondEnd { .. }) => break,
                Err(_) => return None,
            }
        }
        Some(bytes)
    });
    let Some(Some(durable)) = durable.await else { return Ok(()) };
    shared.count("audits of chunks");
    let is_prefix = durable.starts_with(&value) || (shared.is_interval() && value.starts_with(&durable));
    ensure(is_prefix, || {
        let chunk = key.chunk;
        format!(
            "chunk {chunk} of {segment}: its {length} bytes in the cell are no prefix of the durable ones"
        )
    })
}
