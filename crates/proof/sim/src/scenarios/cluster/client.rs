//! Producers, and readers' way to the durable layer: both ask the owner over the network.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Env;
use tailwater_format::{Codec, Producer, ShardNumber, StreamId};
use tailwater_log::{AppendAnswer, AppendError, Log};
use tailwater_tail::DurableSource;

use crate::checkers::{Violation, ensure};
use crate::log_source::{FoundLog, RemoteLog};
use crate::rng::Rng;
use crate::scenarios::records::batch_of;
use crate::world::run_on;

use super::{Cluster, Generation};

/// Records on their way, in one batch.
struct Batch {
    generation: Generation,
    identities: Vec<u64>,
    bytes: Bytes,
}

/// Appends to one shard until told to stop.
pub(super) async fn produce(shared: Cluster, shard: u32, rng: Rng) {
    Producing { shared, shard, rng, id: None, sequence: 0, unanswered: None }.run().await;
}

/// One producer. It waits for one answer before it sends the next batch.
struct Producing {
    shared: Cluster,
    shard: u32,
    rng: Rng,
    /// Of an idempotent producer.
    id: Option<i64>,
    /// Sequence number of its next record.
    sequence: i32,
    /// What an idempotent producer has to send again.
    unanswered: Option<Batch>,
}

impl Producing {
    async fn run(mut self) {
        let shared = self.shared.clone();
        while !shared.state.lock().stop && !shared.is_over() {
            shared.outside.sleep(Duration::from_micros(self.rng.between(100, 4_000))).await;
            // One that can't be sent twice may go to the wrong one now and then.
            let former = (!shared.idempotent && self.rng.below(6) == 0).then(|| shared.former()).flatten();
            let is_former = former.is_some();
            let Some((log, env)) = former.or_else(|| shared.log()) else { continue };
            let Some((generation, stream)) = shared.generation() else { continue };
            if shared.idempotent && self.id.is_none() {
                self.id = self.ask_for_id(log, &env).await;
                continue;
            }
            if self.unanswered.as_ref().is_none_or(|batch| batch.generation != generation) {
                // In another stream nobody knows this producer: it may go on with any sequence number.
                self.unanswered = None;
            }
            let batch = match self.unanswered.take() {
                Some(batch) => {
                    shared.count("appends sent again");
                    batch
                }
                None => self.make(generation, &env),
            };
            let appending = append(log, env.clone(), stream, ShardNumber(self.shard), batch.bytes.clone());
            let answer = run_on(&env, "append", appending).await;
            self.answered(batch, answer, is_former);
        }
    }

    /// An id that nobody else has; none if there was no answer.
    async fn ask_for_id(&self, log: Log, env: &Env) -> Option<i64> {
        let asked = run_on(env, "init-producer", async move { log.init_producer_id().await }).await;
        let id = asked?.ok()?;
        let mut state = self.shared.state.lock();
        let fresh = state.producer_ids.insert(id);
        state.note(ensure(fresh, || format!("producer id {id} was handed out twice")));
        Some(id)
    }

    fn make(&mut self, generation: Generation, env: &Env) -> Batch {
        let count = self.rng.between(1, 4);
        let identities: Vec<u64> = {
            let mut state = self.shared.state.lock();
            let first = state.identity_next;
            state.identity_next += count;
            let checker = state.checker(generation, self.shard);
            (first..first + count).inspect(|&identity| checker.produced(identity)).collect()
        };
        let mut builder = batch_of(env, &identities, || {
            let most = if self.rng.below(10) == 0 { 3_000 } else { 200 };
            self.rng.below(most)
        });
        if let Some(id) = self.id {
            builder.set_producer(Producer { id, epoch: 0, base_sequence: self.sequence });
        }
        Batch { generation, identities, bytes: builder.finish(Codec::None) }
    }

    fn answered(&mut self, batch: Batch, answer: Option<Result<AppendAnswer, AppendError>>, by_former: bool) {
        let shared = self.shared.clone();
        let mut state = shared.state.lock();
        let idempotent = shared.idempotent;
        match answer {
            Some(Ok(appended)) => {
                let acknowledged = ensure(!by_former, || {
                    "an append was acknowledged by an owner that has lost its disk".to_owned()
                });
                state.note(acknowledged);
                let checker = state.checker(batch.generation, self.shard);
                let checked =
                    checker.acknowledged(appended.base_offset.0, &batch.identities, appended.term.0);
                state.note(checked);
                *state.streams[batch.generation].appends.entry(self.shard).or_default() += 1;
                state.report.count("appends", 1);
                self.sequence += batch.identities.len() as i32;
            }
            Some(Err(AppendError::NoStream)) => {
                // An owner without its disk does not hear of streams that are created.
                let excused = by_former || state.streams[batch.generation].deleting;
                state.note(ensure(excused, || "the stream of an append is said to be none".to_owned()));
            }
            _ if idempotent && answer.as_ref().is_none_or(is_retriable) => self.unanswered = Some(batch),
            None => state.report.count("appends without an answer", 1),
            Some(Err(AppendError::Lost(_) | AppendError::Closed)) => state.report.count("lost appends", 1),
            Some(Err(error)) if error.is_retriable() => {
                // Not in the log, and it never will be.
                let checked = state.checker(batch.generation, self.shard).refused(&batch.identities);
                state.note(checked);
                state.report.count("refused appends", 1);
            }
            Some(Err(error)) => {
                let what = format!("a correct append was refused: {error}");
                state.note(Err(Violation::new(what)));
            }
        }
    }
}

fn is_retriable(answer: &Result<AppendAnswer, AppendError>) -> bool {
    answer.as_ref().is_err_and(AppendError::is_retriable)
}

async fn append(
    log: Log,
    env: Env,
    stream: StreamId,
    shard: ShardNumber,
    batch: Bytes,
) -> Result<AppendAnswer, AppendError> {
    env.sleep(Duration::from_micros(env.random_below(200))).await;
    log.append(stream, shard, batch).await
}

/// The durable layer of a reader: the owner's log, some way off.
pub(super) fn owners_log(shared: &Cluster) -> Arc<dyn DurableSource> {
    let shared = Arc::clone(shared);
    Arc::new(RemoteLog(move || -> FoundLog {
        let shared = Arc::clone(&shared);
        Box::pin(async move {
            shared.outside.sleep(Duration::from_micros(50)).await;
            shared.log()
        })
    }))
}
