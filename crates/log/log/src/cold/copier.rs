//! The task of cold storage: removes copies, copies segments, sweeps; one after the other, and again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tailwater_cold::{ColdCopy, ColdCounters, ColdError, CopyPace, SegmentCopyError, SegmentToCopy};
use tailwater_env::{Env, Instant, yield_once};
use tailwater_format::{Position, SegmentId};

use super::LogCold;
use crate::log::LogInner;
use crate::owner::OwnerRequest;
use crate::shard::SegmentCopied;
use crate::slots::Slot;

/// How long the copier waits after cold storage failed, at most. The first wait is as long as its usual pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How soon after the start it sweeps, at most.
const FIRST_SWEEP_MAX: Duration = Duration::from_secs(60);

/// A completed segment without a copy.
#[derive(Clone, Copy)]
struct Uncopied {
    owner: usize,
    slot: Slot,
    id: SegmentId,
    length: Position,
}

/// See the module.
pub(super) struct Copier {
    pub(super) env: Env,
    pub(super) cold: LogCold,
    pub(super) log: Weak<LogInner>,
    pace: CopyPace,
    /// Copies that the owners were told of, and that the view does not show yet.
    pub(super) told: BTreeMap<SegmentId, ColdCopy>,
    /// Segments that can't be copied.
    damaged: BTreeSet<SegmentId>,
    pause: Duration,
    sweep_at: Instant,
}

impl Copier {
    pub(super) fn new(env: &Env, cold: LogCold, log: Weak<LogInner>) -> Self {
        let pace = CopyPace::new(env, cold.config.bytes_per_s);
        let pause = cold.config.look_every;
        let sweep_at = env.now() + cold.config.sweep_every.min(FIRST_SWEEP_MAX);
        let (told, damaged) = (BTreeMap::new(), BTreeSet::new());
        Self { env: env.clone(), cold, log, pace, told, damaged, pause, sweep_at }
    }

    /// Goes on until the log is dropped or closed.
    pub(super) async fn run(mut self) {
        loop {
            self.env.sleep(self.pause).await;
            match self.round().await {
                Ok(has_copied) => {
                    // There may be more.
                    self.pause = if has_copied { Duration::ZERO } else { self.cold.config.look_every };
                    if self.counters().trouble.lock().take().is_some() {
                        tracing::info!(place = ?self.cold.config.objects, "cold storage does what it is asked again");
                    }
                }
                Err(error) => self.failed(&error),
            }
            if self.log.strong_count() == 0 {
                return;
            }
        }
    }

    /// Does what there is to do, with one segment of each shard; whether there were any.
    async fn round(&mut self) -> Result<bool, ColdError> {
        self.cold.tier.remove_waiting().await?;
        let uncopied = self.uncopied();
        let has_copied = !uncopied.is_empty();
        for segment in uncopied {
            self.copy(segment).await?;
            // Copies take turns with everybody else on this thread.
            yield_once().await;
        }
        let now = self.env.now();
        if now >= self.sweep_at {
            self.sweep().await?;
            self.sweep_at = self.env.now() + self.cold.config.sweep_every;
        }
        Ok(has_copied)
    }

    /// The oldest segment of each shard that is to be copied and is not. Tells the owners again of those that are.
    fn uncopied(&mut self) -> Vec<Uncopied> {
        let Some(inner) = self.log.upgrade() else { return Vec::new() };
        let (mut uncopied, mut waiting, mut seen) = (Vec::new(), 0, BTreeSet::new());
        let streams: Vec<_> = inner.streams.read().by_id.values().cloned().collect();
        for handle in
            streams.iter().filter(|stream| stream.record.config.cold).flat_map(|stream| stream.shards())
        {
            let Ok(slot) = handle.slot_or_closed() else { continue };
            let view = handle.view();
            let mut first = None;
            for segment in view.completed.iter().filter(|segment| segment.cold.is_none()) {
                let id = view.id(segment);
                waiting += 1;
                seen.insert(id);
                if let Some(copy) = self.told.get(&id) {
                    tell(&inner, handle.owner, slot, id, *copy);
                } else if first.is_none() && !self.damaged.contains(&id) {
                    first = Some(Uncopied { owner: handle.owner, slot, id, length: segment.length });
                }
            }
            uncopied.extend(first);
        }
        self.told.retain(|id, _| seen.contains(id));
        self.damaged.retain(|id| seen.contains(id));
        self.counters().segments_waiting.store(waiting, Relaxed);
        self.counters().segments_damaged.store(self.damaged.len() as u64, Relaxed);
        uncopied
    }

    async fn copy(&mut self, segment: Uncopied) -> Result<(), ColdError> {
        let Uncopied { owner, slot, id, length } = segment;
        let copying = SegmentToCopy {
            env: &self.env,
            store: &*self.cold.store,
            objects: self.cold.tier.objects(),
            cluster: self.cold.tier.cluster(),
            id,
            length,
            part_bytes: self.cold.config.part_bytes,
            pace: &self.pace,
            counters: self.cold.tier.counters(),
        };
        match copying.copy().await {
            Ok(copy) => {
                ColdCounters::one(&self.counters().segments_copied);
                tracing::debug!(segment = %id, %length, "copied to cold storage");
                self.told.insert(id, copy);
                if let Some(inner) = self.log.upgrade() {
                    tell(&inner, owner, slot, id, copy);
                }
                Ok(())
            }
            // Retention was faster, where copies are not kept.
            Err(SegmentCopyError::Gone) => Ok(()),
            Err(SegmentCopyError::Damaged(why)) => {
                tracing::error!(
                    segment = %id, why,
                    "a segment can't be copied to cold storage, and is not removed before it is: restore its file from a \
                     backup, or switch cold off for its stream"
                );
                ColdCounters::one(&self.counters().failures);
                self.damaged.insert(id);
                Ok(())
            }
            Err(SegmentCopyError::Store(error)) => {
                Err(ColdError::Unavailable(format!("the segment {id}: {error}")))
            }
            Err(SegmentCopyError::Cold(error)) => Err(error),
        }
    }

    fn failed(&mut self, error: &ColdError) {
        let why = error.to_string();
        ColdCounters::one(&self.counters().failures);
        self.pause = (self.pause * 2).max(self.cold.config.look_every).min(PAUSE_MAX);
        let before = self.counters().trouble.lock().replace(why.as_str().into());
        // Once for each reason: it may be down for long.
        if before.as_deref() != Some(why.as_str()) {
            tracing::warn!(
                place = ?self.cold.config.objects, why,
                "cold storage does not do what it is asked; until it does nothing leaves this node's disk"
            );
        }
    }

    pub(super) fn counters(&self) -> &ColdCounters {
        self.cold.tier.counters()
    }
}

/// Tells the owner of a segment that it was copied. Where it has too much to do it is told with the next look.
fn tell(inner: &Arc<LogInner>, owner: usize, slot: Slot, id: SegmentId, copy: ColdCopy) {
    let copied = SegmentCopied { number: id.number, term: id.term, copy };
    let _ = inner.owners[owner].try_send(OwnerRequest::Copied(slot, copied), false);
}
