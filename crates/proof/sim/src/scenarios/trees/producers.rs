//! The producers of a cluster, which are served where the source is.

use std::time::Duration;

use tailwater_format::{Codec, ShardNumber};
use tailwater_log::AppendError;

use crate::checkers::ShardChecker;
use crate::scenarios::records::batch_of;

use super::{ClusterLife, Lineage, Trees, TreesState};

/// Appends to a shard as long as this cluster has the source; waits for the answer before it sends the next batch.
pub(super) async fn produce(shared: Trees, number: usize, life: ClusterLife, shard: u32) {
    let (env, log) = (&life.env, &life.log);
    while !shared.outcome.has_failed() {
        env.sleep(Duration::from_micros(1_000 + env.random_below(60_000))).await;
        let (stream, stop) = {
            let state = shared.state.lock();
            (state.stream, state.stop)
        };
        // One that does not know that it is not the source any more takes records all the same.
        let Some(stream) = stream.filter(|_| !stop && life.leads(number).is_some()) else { continue };
        let Some(lineage) = shared.lineage(&life) else { continue };
        let identities: Vec<u64> = {
            let mut state = shared.state.lock();
            (0..1 + life.env.random_below(4)).map(|_| state.produced(lineage, shard)).collect()
        };
        let batch = batch_of(env, &identities, || env.random_below(300)).finish(Codec::None);
        let answer = log.append(stream, ShardNumber(shard), batch).await;
        let is_same = shared.lineage(&life) == Some(lineage);
        let mut state = shared.state.lock();
        let checker = state.checker(lineage, shard);
        let checked = match answer {
            // Of which lineage it is is not known where that has just changed.
            Ok(_) | Err(_) if !is_same => Ok(()),
            Ok(answer) => checker.acknowledged(answer.base_offset.0, &identities, answer.term.0),
            // It was never begun.
            Err(AppendError::NoStream | AppendError::Copy { .. }) => checker.refused(&identities),
            Err(_) => Ok(()),
        };
        drop(state);
        shared.outcome.note(checked);
    }
}

impl TreesState {
    pub(super) fn lineage(&mut self, lineage: u64) -> &mut Lineage {
        self.lineages.get_mut(&lineage).expect("whoever makes a lineage says so before others go by it")
    }

    pub(super) fn checker(&mut self, lineage: u64, shard: u32) -> &mut ShardChecker {
        &mut self.lineage(lineage).checkers[shard as usize]
    }

    /// A new record's identity.
    fn produced(&mut self, lineage: u64, shard: u32) -> u64 {
        self.identity_next += 1;
        let identity = self.identity_next;
        self.checker(lineage, shard).produced(identity);
        identity
    }
}
