//! Producers and consumers, which go from node to node.

use std::time::Duration;

use tailwater_format::{Codec, Offset, ShardNumber};
use tailwater_log::{AppendError, Fetched, ReadError};

use crate::checkers::{Violation, ensure};
use crate::rng::Rng;
use crate::scenarios::records::{batch_of, shard_id, take_in};
use crate::world::run_on;

use super::{LATE, NAMES, SHARDS, SharedNodes};

/// How long a client waits for an answer: longer than the store does before it gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// A node that a client asks: the one that answered last, or any.
fn next_node(rng: &mut Rng, last: Option<usize>) -> usize {
    last.unwrap_or_else(|| rng.index(NAMES.len()))
}

/// Appends to a shard; waits for the answer before it sends the next batch. What was not answered is not sent again.
pub(super) async fn produce(shared: SharedNodes, shard: u32, mut rng: Rng) {
    let mut last = None;
    while !shared.outcome.has_failed() && !shared.state.lock().stop {
        shared.outside.sleep(Duration::from_micros(rng.between(2_000, 60_000))).await;
        let node = next_node(&mut rng, last.take());
        let (Some(life), Some(stream)) = (shared.life(node), shared.stream()) else { continue };
        let (identities, least) = {
            let mut state = shared.state.lock();
            let identities: Vec<u64> = (0..rng.between(1, 4)).map(|_| state.produced(shard)).collect();
            (identities, state.terms[shard as usize])
        };
        let bytes = batch_of(&life.env, &identities, || rng.below(300)).finish(Codec::None);
        let log = life.log.clone();
        let append = async move { log.append(stream, ShardNumber(shard), bytes).await };
        let answer = shared.outside.timeout(PATIENCE, run_on(&life.env, "append", append)).await;
        let mut state = shared.state.lock();
        match answer {
            Some(Some(Ok(appended))) => {
                last = Some(node);
                let term = appended.term;
                let checked = ensure(term >= least, || {
                    format!(
                        "shard {shard}: {} acknowledged in term {term} after one was acknowledged in {least}",
                        NAMES[node]
                    )
                });
                state.terms[shard as usize] = state.terms[shard as usize].max(term);
                let checker = &mut state.checkers[shard as usize];
                let checked = checked.and(checker.acknowledged(appended.base_offset.0, &identities, term.0));
                state.appended[shard as usize] += 1;
                shared.outcome.count("appends", 1);
                drop(state);
                shared.outcome.note(checked);
            }
            Some(Some(Err(AppendError::NotOwner | AppendError::NoStream))) => {
                shared.outcome.count("appends to another's shard", 1);
            }
            Some(Some(Err(AppendError::Damaged(why)))) => {
                drop(state);
                shared.outcome.note(Err(Violation::new(format!("shard {shard} is damaged: {why}"))));
            }
            Some(Some(Err(error))) if error.is_retriable() => {
                shared.outcome.count("appends lost or refused", 1);
            }
            Some(Some(Err(error))) => {
                drop(state);
                shared.outcome.note(Err(Violation::new(format!("a correct append was refused: {error}"))));
            }
            Some(None) | None => shared.outcome.count("appends without an answer", 1),
        }
    }
}

/// Follows a shard; once nothing is appended any more, reads it from its start.
pub(super) async fn consume(shared: SharedNodes, shard: u32, mut rng: Rng) {
    let mut last = None;
    let mut began_late = false;
    while !shared.outcome.has_failed() {
        shared.outside.sleep(Duration::from_micros(rng.between(2_000, 60_000))).await;
        let reader = if shared.state.lock().stop && rng.below(2) == 0 { LATE } else { 0 };
        let next = {
            let mut state = shared.state.lock();
            let checker = &mut state.checkers[shard as usize];
            if reader == LATE && !std::mem::replace(&mut began_late, true) {
                checker.reader_at(LATE, 0);
            }
            Offset(checker.reader_next(reader))
        };
        let node = next_node(&mut rng, last.take());
        let (Some(life), Some(stream)) = (shared.life(node), shared.stream()) else { continue };
        let (log, bytes) = (life.log.clone(), rng.between(1, 8 << 10) as usize);
        let fetch = async move { log.fetch(shard_id(stream, shard), next, bytes, true).await };
        let fetched = shared.outside.timeout(PATIENCE, run_on(&life.env, "fetch", fetch)).await;
        let checked = match fetched {
            Some(Some(Ok(fetched))) => {
                last = (!fetched.pieces.is_empty()).then_some(node);
                check(&shared, reader, shard, &fetched)
            }
            // Of a former owner that is behind, or one whose bookies do not answer.
            Some(Some(Err(
                ReadError::NotOwner
                | ReadError::NoStream
                | ReadError::BeyondEnd { .. }
                | ReadError::Unavailable(_)
                | ReadError::NoSegment,
            )))
            | Some(None)
            | None => Ok(()),
            Some(Some(Err(error))) => Err(Violation::new(format!("it can't be read at {next}: {error}"))),
        };
        let told = |violation| Violation::new(format!("at {}, shard {shard}: {violation}", NAMES[node]));
        shared.outcome.note(checked.map_err(told));
    }
}

/// Takes in what was read from where the consumer is.
fn check(shared: &SharedNodes, reader: u64, shard: u32, fetched: &Fetched) -> Result<(), Violation> {
    let checker = &mut shared.state.lock().checkers[shard as usize];
    let read = take_in(checker, reader, fetched, |_, _| Ok(()))?;
    shared.outcome.count("records read", read);
    Ok(())
}

/// Starts all of them.
pub(super) fn start(shared: &SharedNodes, seed: u64) {
    for shard in 0..SHARDS {
        let rng = |what: &str| Rng::new(seed, &format!("scenario/nodes/{what}/{shard}"));
        let producing = produce(SharedNodes::clone(shared), shard, rng("producer"));
        shared.outside.spawn("producer", producing).detach();
        let consuming = consume(SharedNodes::clone(shared), shard, rng("consumer"));
        shared.outside.spawn("consumer", consuming).detach();
    }
}
