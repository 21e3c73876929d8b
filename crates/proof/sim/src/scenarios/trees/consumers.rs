//! The consumers of a cluster: one that follows each shard through all lives of the cluster, and at the end one that
//! reads it from its start.

use std::time::Duration;

use tailwater_format::Offset;
use tailwater_log::{Fetched, ReadError};

use crate::checkers::{Violation, ensure};
use crate::scenarios::records::{shard_id, take_in};

use super::{ClusterLife, LATE, Lineage, NAMES, Trees};

/// Follows a shard of a cluster.
pub(super) async fn consume(shared: Trees, number: usize, life: ClusterLife, shard: u32) {
    let mut reader = number as u64;
    let mut began_late = None;
    while !shared.outcome.has_failed() {
        life.env.sleep(Duration::from_micros(1_000 + life.env.random_below(50_000))).await;
        let (stream, stop) = {
            let state = shared.state.lock();
            (state.stream, state.stop)
        };
        let (Some(stream), Some(lineage)) = (stream, shared.lineage(&life)) else { continue };
        // Both have their turn, once nothing is appended any more.
        reader = if stop && reader < LATE { LATE + number as u64 } else { number as u64 };
        if reader >= LATE && began_late != Some(lineage) {
            began_late = Some(lineage);
            shared.state.lock().checker(lineage, shard).reader_at(reader, 0);
        }
        let next = Offset(shared.state.lock().checker(lineage, shard).reader_next(reader));
        let bytes = 1 + life.env.random_below(8 << 10) as usize;
        let fetched = life.log.fetch(shard_id(stream, shard), next, bytes, true).await;
        if shared.lineage(&life) != Some(lineage) {
            continue;
        }
        let checked = match fetched {
            Ok(fetched) => check(&shared, lineage, reader, shard, &fetched),
            Err(ReadError::Truncated { log_start }) => {
                shared.outcome.count("consumers told of a removal", 1);
                shared.state.lock().checker(lineage, shard).reader_truncated(reader, log_start.0)
            }
            // Its copy is not there, or is not so far, or a part of it was just cut off.
            Err(
                ReadError::NoStream
                | ReadError::BeyondEnd { .. }
                | ReadError::Unavailable(_)
                | ReadError::NoSegment,
            ) => Ok(()),
            Err(error) => Err(Violation::new(format!("shard {shard} can't be read at {next}: {error}"))),
        };
        shared.outcome.note(checked.map_err(|violation| {
            Violation::new(format!("in {}, shard {shard}: {violation}", NAMES[number]))
        }));
    }
}

/// Takes in what was read from where the consumer is.
fn check(shared: &Trees, lineage: u64, reader: u64, shard: u32, fetched: &Fetched) -> Result<(), Violation> {
    let mut state = shared.state.lock();
    let Lineage { checkers, terms } = state.lineage(lineage);
    let read = take_in(&mut checkers[shard as usize], reader, fetched, |offset, term| {
        let known = *terms.entry((shard, offset)).or_insert(term);
        ensure(known == term, || format!("offset {offset} is of term {term}, and elsewhere of {known}"))
    })?;
    shared.outcome.count("records read", read);
    Ok(())
}
