//! The owner of one shard, as `log` is one: takes the shard over with a higher term, seals what it finds, appends,
//! rolls, and stops when it is fenced.

use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Env;
use tailwater_format::{Position, SegmentId, SegmentNumber, ShardId, Term};
use tailwater_journal::{JournalAppendError, JournalPosition};
use tailwater_store::{SegmentStore, StoreError};
use tokio::sync::Semaphore;

use crate::checkers::Violation;
use crate::scenarios::outcome::Outcome;

use super::Outside;

/// Appends that an eager writer has under way, at most.
const EAGER_APPENDS_MAX: usize = 20;

#[derive(Clone)]
pub(super) struct Writer {
    env: Env,
    store: SegmentStore,
    model: Outside,
    shard: ShardId,
    /// Does not wait for one append before the next.
    eager: bool,
    under_way: Arc<Semaphore>,
}

/// What ends a turn of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// Somebody with a higher term has the shard, or the scenario ends.
    Stop,
    /// This segment is over: it is to be sealed there, and another begun.
    Segment(Position),
}

impl Writer {
    pub(super) fn new(env: &Env, store: &SegmentStore, model: &Outside, shard: ShardId, eager: bool) -> Self {
        let under_way = Arc::new(Semaphore::new(EAGER_APPENDS_MAX));
        Self { env: env.clone(), store: store.clone(), model: model.clone(), shard, eager, under_way }
    }

    /// Owns the shard, after a while, for as long as it can.
    pub(super) async fn run(self, after: Duration) {
        self.env.sleep(after).await;
        let mut term = None;
        loop {
            let Some(id) = self.begin(term).await else { return };
            if term.is_none() {
                self.seal_others(&id).await;
            }
            term = Some(id.term);
            match self.fill(&id).await {
                Over::Stop => return,
                Over::Segment(length) => {
                    if !self.seal(&id, length).await {
                        return;
                    }
                }
            }
            self.delete_now_and_then().await;
        }
    }

    /// Begins a segment; none if somebody else has the shard.
    async fn begin(&self, term: Option<Term>) -> Option<SegmentId> {
        loop {
            let (id, created) = {
                // One step: what is created is known to have been.
                let mut model = self.model.lock();
                if model.is_over() {
                    return None;
                }
                let (number, term) = model.next_segment(&self.shard, term);
                let id = SegmentId { shard: self.shard, number: SegmentNumber(number), term };
                let created = self.store.create(id);
                if created.is_ok() {
                    let created = model.created(&id);
                    model.note(created);
                }
                (id, created)
            };
            match created {
                Ok(end) => {
                    let (writer, id) = (self.clone(), id);
                    let acknowledge = async move {
                        if writer.is_durable(end).await {
                            writer.model.lock().creation_acknowledged(&id);
                        }
                    };
                    self.env.spawn("creation", acknowledge).detach();
                    return Some(id);
                }
                Err(StoreError::Fenced { .. }) => return None,
                Err(error) => self.refused(error).await?,
            }
        }
    }

    /// Appends until the segment is over.
    async fn fill(&self, id: &SegmentId) -> Over {
        let entries = 1 + self.env.random_below(40);
        for _ in 0..entries {
            let body = match self.env.random_below(12) {
                0 => 0,
                1 => self.env.random_below(6_000) as usize,
                _ => self.env.random_below(400) as usize,
            };
            let (end, position) = match self.append(id, body).await {
                Ok(appended) => appended,
                Err(over) => return over,
            };
            if self.eager {
                let Ok(permit) = self.under_way.clone().acquire_owned().await else { return Over::Stop };
                let (writer, id) = (self.clone(), *id);
                let acknowledge = async move {
                    if writer.is_durable(end).await {
                        writer.model.lock().acknowledged(&id, position);
                    }
                    drop(permit);
                };
                self.env.spawn("acknowledge", acknowledge).detach();
                self.env.sleep(Duration::from_micros(self.env.random_below(300))).await;
            } else if self.is_durable(end).await {
                self.model.lock().acknowledged(id, position);
            }
        }
        let end = self.model.lock().end(id);
        Over::Segment(end)
    }

    /// Appends one entry, in as many attempts as it takes; where its record and where it ends.
    async fn append(&self, id: &SegmentId, body: usize) -> Result<(JournalPosition, u64), Over> {
        loop {
            let sync = self.env.random_below(5) != 0;
            let appended = {
                let mut model = self.model.lock();
                if model.is_over() {
                    return Err(Over::Stop);
                }
                let entry = model.next_entry(id, body);
                let position = model.end(id);
                self.store.append_with(id, position, entry.clone(), sync).map(|end| {
                    let appended = model.appended(id, &entry, (body as u32).min(3));
                    let position = *appended.as_ref().unwrap_or(&0);
                    model.note(appended.map(drop));
                    (end, position)
                })
            };
            match appended {
                Ok(appended) => return Ok(appended),
                Err(StoreError::Fenced { .. }) => return Err(Over::Stop),
                Err(StoreError::Lost { durable }) => {
                    self.model.lock().count("lost", 1);
                    return Err(Over::Segment(durable));
                }
                // A rival that has taken over seals before its creation fences.
                Err(StoreError::Sealed { .. }) => return Err(Over::Stop),
                Err(error) => {
                    if self.refused(error).await.is_none() {
                        return Err(Over::Stop);
                    }
                }
            }
        }
    }

    /// Seals at `length`, until that is durable; whether it is.
    async fn seal(&self, id: &SegmentId, length: Position) -> bool {
        loop {
            if self.model.lock().has_failed() {
                return false;
            }
            match self.store.seal(id, length) {
                Ok(end) => {
                    if self.is_durable(end).await {
                        let mut model = self.model.lock();
                        let sealed = model.sealed(id, length.0);
                        model.note(sealed);
                        return true;
                    }
                    self.env.sleep(Duration::from_millis(1)).await;
                }
                // A failure cut what was appended meanwhile: it ends earlier than we thought.
                Err(StoreError::SealBeyondEnd { appended, .. }) => {
                    return Box::pin(self.seal(id, appended)).await;
                }
                Err(StoreError::Sealed { .. } | StoreError::Unknown(_)) => return true,
                Err(error) => {
                    if self.refused(error).await.is_none() {
                        return false;
                    }
                }
            }
        }
    }

    /// Seals what the owners before left, at the length it has by now.
    async fn seal_others(&self, own: &SegmentId) {
        let unsealed = self.model.lock().unsealed(&self.shard);
        for (number, term, _) in unsealed {
            let id = SegmentId { shard: self.shard, number: SegmentNumber(number), term };
            if term >= own.term {
                continue;
            }
            if let Ok(appended) = self.store.appended(&id) {
                self.seal(&id, appended).await;
            }
        }
    }

    async fn delete_now_and_then(&self) {
        if self.env.random_below(4) > 0 {
            return;
        }
        let deleted = {
            let mut model = self.model.lock();
            let Some((number, term)) = model.oldest_sealed(&self.shard) else { return };
            let id = SegmentId { shard: self.shard, number: SegmentNumber(number), term };
            let deleted = self.store.delete(&id);
            if deleted.is_ok() {
                model.deleting(&id);
            }
            deleted.map(|end| (id, end))
        };
        if let Ok((id, end)) = deleted
            && self.is_durable(end).await
        {
            self.model.lock().deleted(&id);
        }
    }

    async fn is_durable(&self, end: JournalPosition) -> bool {
        self.store.journal().durable().wait_for(end).await.is_ok()
    }

    /// Waits if it is worth another try; none if the writer has to end.
    async fn refused(&self, error: StoreError) -> Option<()> {
        self.model.lock().count("refusals", 1);
        match error {
            StoreError::Journal(JournalAppendError::Stale { .. }) => {}
            StoreError::Full { .. }
            | StoreError::NoSpace { .. }
            | StoreError::DiskFailed(_)
            | StoreError::Journal(
                JournalAppendError::Full(_)
                | JournalAppendError::Latched(_)
                | JournalAppendError::Backlog { .. },
            ) => {}
            error => {
                let what = format!("a correct operation was refused: {error}");
                self.model.lock().note(Err(Violation::new(what)));
                return None;
            }
        }
        self.env.sleep(Duration::from_micros(100 + self.env.random_below(3_000))).await;
        Some(())
    }
}
