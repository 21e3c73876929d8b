//! Readers: one process each with one cursor for each shard, started again where they were when they die.

use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Env;
use tailwater_format::{Offset, Records, ShardId};
use tailwater_log::{LocateRead, ReadError as LocateError, ReadLocation};
use tailwater_tail::{Cells, Cursor, Entries, FeedReadError, Place, ReaderConfig, TailReader, Waiter};

use crate::checkers::{Violation, ensure};
use crate::planted::Plant;
use crate::scenarios::cells;
use crate::scenarios::records::decode;
use crate::world::{Node, run_on};

use super::client::owners_log;
use super::{Cluster, Generation, shard_id};

/// Keeps a reader's process up and reading.
pub(super) async fn keep_reading(shared: Cluster, node: Node, reader: u64) {
    while !shared.is_over() {
        if !node.is_up() {
            shared.outside.sleep(Duration::from_millis(3)).await;
            node.start();
        }
        let env = node.env();
        let reading = read_all(shared.clone(), node.clone(), env, reader);
        if node.run("reader", reading).await.is_ok() {
            // It only ends when the scenario does.
            return;
        }
        shared.count("readers killed");
    }
}

/// One process: follows all shards.
async fn read_all(shared: Cluster, node: Node, env: Env, reader: u64) {
    {
        let mut state = shared.state.lock();
        if state.may_lose {
            // What it has read may be lost and replaced while it is not there to see the new term.
            let checkers = state.streams.iter_mut().flat_map(|stream| stream.checkers.values_mut());
            checkers.for_each(|checker| checker.reader_at(reader, 0));
        }
    }
    // What a reader SETs is nothing, so no bug is planted in front of it.
    let cells = cells::both(&shared.net, &node, &env, Plant::None).await;
    let config = ReaderConfig { delay_max: Duration::from_millis(100), ..ReaderConfig::default() };
    let tail = TailReader::start(&env, Some(cells.clone()), owners_log(&shared), config);
    let shards =
        (0..shared.stream_config.shards).map(|shard| read_shard(&shared, &env, &cells, &tail, shard, reader));
    futures::future::join_all(shards).await;
    let stats = tail.stats();
    let mut state = shared.state.lock();
    state.report.count("reads relaxed", stats.relaxed);
    state.report.count("reads durable", stats.durable);
}

async fn read_shard(shared: &Cluster, env: &Env, cells: &Cells, tail: &TailReader, shard: u32, reader: u64) {
    // Where a planted bug lets it go on.
    let mut astray = None;
    while !shared.is_over() {
        let Some((generation, stream)) = shared.generation() else {
            env.sleep(Duration::from_millis(2)).await;
            continue;
        };
        let next = shared.checker(generation, shard).reader_next(reader);
        let offset = astray.take().map_or(next, |offset: Offset| offset.0);
        let id = shard_id(stream, shard);
        let location = match locate(shared, id, offset).await {
            Some(Ok(location)) => location,
            told => {
                if let Some(Err(LocateError::Truncated { log_start })) = told {
                    astray = shared.plant.untold(log_start);
                    truncated(shared, generation, shard, reader, log_start);
                }
                env.sleep(Duration::from_millis(2)).await;
                continue;
            }
        };
        shared.outside.record("reader begins", reader, location.offset.0);
        shared.outside.record("in segment", location.segment.0, location.position.0);
        let place = Place { segment: location.segment, position: location.position };
        let mut cursor = Cursor::new(tail, id, place, location.offset, Arc::new(Waiter::default()));
        loop {
            match cursor.next().await {
                Ok(entries) => {
                    let checked = check(shared, generation, shard, reader, &entries);
                    shared.note(checked);
                    astray = shared.plant.back_to(cells, id, entries.next_offset()).await;
                    if astray.is_some() {
                        break;
                    }
                }
                Err(FeedReadError::Truncated { log_start }) => {
                    astray = shared.plant.untold(log_start);
                    truncated(shared, generation, shard, reader, log_start);
                    break;
                }
                Err(FeedReadError::StreamDeleted) => {
                    shared.told_of_deletion(generation);
                    shared.count("readers told of a deletion");
                    break;
                }
                Err(error) => {
                    let what = format!("reader {reader} of shard {shard} can't go on: {error}");
                    shared.note(Err(Violation::new(what)));
                    return;
                }
            }
            if shared.is_over() {
                return;
            }
        }
    }
}

/// A reader was told that what it wants next was removed.
fn truncated(shared: &Cluster, generation: Generation, shard: u32, reader: u64, log_start: Offset) {
    shared.told_of_start(generation, shard, log_start);
    if shared.plant.untold(log_start).is_some() {
        return;
    }
    let mut state = shared.state.lock();
    let checker = state.checker(generation, shard);
    if log_start.0 > checker.reader_next(reader) {
        let told = checker.reader_truncated(reader, log_start.0);
        state.note(told);
        state.report.count("readers told of a removal", 1);
    }
}

/// Where the record at `offset` is, if the owner says so.
async fn locate(shared: &Cluster, id: ShardId, offset: u64) -> Option<Result<ReadLocation, LocateError>> {
    let (log, env) = shared.log()?;
    run_on(&env, "locate", async move { log.locate(id, LocateRead::Offset(Offset(offset))).await }).await
}

fn check(
    shared: &Cluster,
    generation: Generation,
    shard: u32,
    reader: u64,
    entries: &Entries,
) -> Result<(), Violation> {
    let mut state = shared.state.lock();
    let checker = state.checker(generation, shard);
    let term = entries.block().segment.term.0;
    let mut count = 0;
    for batch in entries.batches() {
        let mut records = Records::new(&batch.header, &batch.records);
        let skipped = records.skip_below(entries.from);
        skipped.map_err(|error| Violation::new(format!("reader {reader}: {error}")))?;
        for record in records {
            let record = record.map_err(|error| Violation::new(format!("reader {reader}: {error}")))?;
            let identity = record.value.and_then(decode);
            ensure(identity.is_some(), || format!("reader {reader}: damaged record at {}", record.offset))?;
            checker.read(reader, record.offset.0, identity.unwrap_or_default(), term)?;
            count += 1;
        }
    }
    state.report.count("records read", count);
    shared.outside.record("reader reads", reader, entries.from.0);
    shared.outside.record("in segment", entries.block().segment.number.0, entries.block().end.0);
    Ok(())
}
