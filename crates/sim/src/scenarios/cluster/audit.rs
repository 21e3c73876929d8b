//! An auditor that looks into the cells beside the readers, and compares with what the owner knows to be durable.
//!
//! Readers check so much that a wrong chunk or length mostly costs them only time; here it is a violation.

use std::time::Duration;

use tailwater_cache::Lookup;
use tailwater_env::Env;
use tailwater_format::tails::{tail_page_key, tail_page_of};
use tailwater_format::{ChunkKey, Position, SegmentId, ShardNumber, Tail, TailPage};
use tailwater_log::Log;
use tailwater_tail::Cells;

use crate::checkers::{Violation, ensure};
use crate::planted::Plant;
use crate::world::{Node, run_on};

use super::Cluster;

/// Looks here and there, for as long as the scenario lasts.
pub(super) async fn audit(shared: Cluster, node: Node) {
    let env = node.env();
    let cells = shared.cells(&node, &env, Plant::None).await;
    while !shared.is_over() {
        env.sleep(Duration::from_micros(env.random_below(6_000))).await;
        let (Some((log, owner)), Some(shard)) =
            (shared.log(), shared.shard(env.random_below(u64::from(shared.shards)) as u32))
        else {
            continue;
        };
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
        let checked = check_length(&shared, &log, shard.shard, &tail);
        shared.note(checked);
        let checked = check_chunk(&shared, &cells, &env, &owner, log, tail.segment_id(shard), &tail).await;
        shared.note(checked);
    }
}

/// A published length is not beyond what is durable by now, if the owner still has that segment.
fn check_length(shared: &Cluster, log: &Log, shard: ShardNumber, tail: &Tail) -> Result<(), Violation> {
    ensure(tail.cached <= tail.durable, || {
        format!("shard {shard}: cached {} was published beyond durable {}", tail.cached, tail.durable)
    })?;
    let Some(id) = shared.shard(shard.0) else { return Ok(()) };
    let Ok(durable) = log.store().durable_length(&tail.segment_id(id)) else { return Ok(()) };
    // The owner may have died since it was asked for.
    if !shared.owner.is_up() {
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
    tail: &Tail,
) -> Result<(), Violation> {
    let chunks = tail.durable.0.div_ceil(u64::from(tail.chunk_bytes));
    if chunks == 0 {
        return Ok(());
    }
    // The last ones are written most often.
    let back = env.random_below(chunks.min(3));
    let key = ChunkKey { segment, chunk_bytes: tail.chunk_bytes, chunk: chunks - 1 - back };
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
    ensure(durable.starts_with(&value), || {
        let chunk = key.chunk;
        format!(
            "chunk {chunk} of {segment}: its {length} bytes in the cell are no prefix of the durable ones"
        )
    })
}
