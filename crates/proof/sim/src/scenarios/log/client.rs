//! Those who use the log: producers, readers, and whoever looks after the stream.

use std::time::Duration;

use tailwater_env::Env;
use tailwater_format::{Codec, Offset, Producer, ShardId, ShardNumber};
use tailwater_log::{AppendAnswer, AppendError, Fetched, Log, ReadError, StreamError};

use crate::checkers::{Violation, ensure};
use crate::planted::Plant;
use crate::scenarios::outcome::{Outcome, spawn_client};
use crate::scenarios::records::{batch_of, take_in};

use super::model::{Batch, Generation};
use super::{IDEMPOTENT, Outside, SHARDS, STREAM, shard_id};

/// The reader of each shard, as its checker knows it.
const READER: u64 = 0;

#[derive(Clone)]
pub(super) struct Client {
    pub(super) env: Env,
    pub(super) log: Log,
    pub(super) plant: Plant,
    pub(super) model: Outside,
}

impl Client {
    /// Starts one of the methods below as a task of the node.
    pub(super) fn spawn(&self, name: &'static str, running: impl Future<Output = ()> + Send + 'static) {
        spawn_client(&self.env, &self.model, name, running);
    }

    /// Waits a moment; whether to go on.
    async fn pause(&self, most_us: u64) -> bool {
        self.env.sleep(Duration::from_micros(self.env.random_below(most_us))).await;
        !self.model.lock().is_over()
    }

    /// Reads all shards from their start to their end: everything that was acknowledged is there.
    pub(super) async fn verify(&self) -> Result<(), Violation> {
        let Some((generation, stream)) = self.model.lock().current() else { return Ok(()) };
        for shard in 0..SHARDS {
            let id = shard_id(stream, shard);
            let view = self.log.view(id).map_err(|error| Violation::new(error.to_string()))?;
            let start = view.tail.log_start;
            self.model.lock().checker(generation, shard).reader_at(READER, start.0);
            let mut next = start;
            while next < view.tail.next_offset {
                let fetched = self.fetch(id, next, 4 << 10).await;
                next = match fetched {
                    Ok(fetched) => {
                        ensure(!fetched.pieces.is_empty(), || {
                            format!("shard {shard} has nothing at {next}")
                        })?;
                        self.check(generation, shard, &fetched)?
                    }
                    Err(ReadError::Truncated { log_start }) => {
                        self.truncated(generation, shard, log_start)?;
                        log_start
                    }
                    Err(error) => {
                        let what = format!("shard {shard} can't be read at {next}: {error}");
                        return Err(Violation::new(what));
                    }
                };
            }
            self.model.lock().checker(generation, shard).complete(READER)?;
        }
        Ok(())
    }

    async fn fetch(&self, shard: ShardId, from: Offset, bytes: usize) -> Result<Fetched, ReadError> {
        let old = self.model.lock().old_answers.clone();
        self.plant.fetch(&self.log, shard, from, bytes, &old).await
    }

    /// Takes in what was read from where the reader is; where it is then.
    fn check(&self, generation: Generation, shard: u32, fetched: &Fetched) -> Result<Offset, Violation> {
        let mut model = self.model.lock();
        let checker = model.checker(generation, shard);
        let count = take_in(checker, READER, fetched, |_, _| Ok(()))
            .map_err(|violation| Violation::new(format!("shard {shard}: {violation}")))?;
        let next = Offset(checker.reader_next(READER));
        ensure(fetched.pieces.is_empty() || count > 0, || format!("shard {shard}: no record at {next}"))?;
        model.count("records read", count);
        Ok(next)
    }

    /// The reader was told that what it wants next was removed.
    fn truncated(&self, generation: Generation, shard: u32, log_start: Offset) -> Result<(), Violation> {
        let mut model = self.model.lock();
        model.told_of_start(generation, shard, log_start);
        model.count("readers told of a removal", 1);
        model.checker(generation, shard).reader_truncated(READER, log_start.0)
    }

    /// Follows a shard.
    pub(super) async fn read(self, shard: u32) {
        while self.pause(3_000).await {
            let Some((generation, stream)) = self.model.lock().current() else { continue };
            let next = Offset(self.model.lock().checker(generation, shard).reader_next(READER));
            let bytes = 1 + self.env.random_below(8 << 10) as usize;
            let fetched = self.fetch(shard_id(stream, shard), next, bytes).await;
            let checked = match fetched {
                Ok(fetched) => self.check(generation, shard, &fetched).map(drop),
                Err(ReadError::Truncated { log_start }) => self.truncated(generation, shard, log_start),
                Err(ReadError::NoStream) => {
                    self.model.lock().told_of_deletion(generation);
                    continue;
                }
                Err(ReadError::Unavailable(_)) => continue,
                Err(error) => Err(Violation::new(format!("shard {shard} can't be read at {next}: {error}"))),
            };
            self.model.lock().note(checked);
        }
    }

    /// Appends to a shard; waits for the answer before it sends the next batch. What an idempotent producer sends is
    /// now and then on its way twice at the same time.
    pub(super) async fn produce(self, shard: u32) {
        while self.pause(1_500).await {
            let Some((generation, stream)) = self.model.lock().current() else { continue };
            if shard == IDEMPOTENT && self.model.lock().producer.id.is_none() {
                self.ask_for_id().await;
                continue;
            }
            let batch = self.next_batch(generation, shard);
            let once = async {
                let answer = self.log.append(stream, ShardNumber(shard), batch.bytes.clone()).await;
                self.answered(shard, &batch, answer);
            };
            let is_new = shard == IDEMPOTENT && self.model.lock().producer.unanswered.is_some();
            if is_new && self.env.random_below(4) == 0 {
                futures::join!(once, self.append_again(shard_id(stream, shard), &batch));
            } else {
                once.await;
            }
        }
    }

    /// Appends what is on its way already.
    async fn append_again(&self, shard: ShardId, batch: &Batch) {
        let next = Offset(self.model.lock().checker(batch.generation, shard.shard.0).acknowledged_end());
        let (count, bytes) = (batch.identities.len(), batch.bytes.clone());
        let answer = self.plant.append_again(&self.log, shard, bytes, next, count).await;
        self.model.lock().count("appends sent twice at once", 1);
        self.answered(shard.shard.0, batch, answer);
    }

    /// An id that nobody else has.
    async fn ask_for_id(&self) {
        let Ok(id) = self.log.init_producer_id().await else { return };
        let mut model = self.model.lock();
        let fresh = model.producer_ids.insert(id);
        model.note(ensure(fresh, || format!("producer id {id} was handed out twice")));
        model.producer.id = Some(id);
    }

    /// What an idempotent producer has to send again, or something new.
    fn next_batch(&self, generation: Generation, shard: u32) -> Batch {
        let mut model = self.model.lock();
        // In another stream nobody knows the producer: it may go on with any sequence number.
        let unanswered = model.producer.unanswered.clone().filter(|batch| batch.generation == generation);
        if let Some(batch) = unanswered.filter(|_| shard == IDEMPOTENT) {
            model.count("appends sent again", 1);
            return batch;
        }
        let answered = model.producer.answered.clone().filter(|batch| batch.generation == generation);
        if shard == IDEMPOTENT
            && self.env.random_below(8) == 0
            && let Some(batch) = answered
        {
            model.count("answered appends sent again", 1);
            return batch;
        }
        let identities = model.identities(generation, shard, 1 + self.env.random_below(4));
        let mut builder = batch_of(&self.env, &identities, || {
            let most = if self.env.random_below(10) == 0 { 3_000 } else { 200 };
            self.env.random_below(most)
        });
        let id = model.producer.id.filter(|_| shard == IDEMPOTENT);
        let sequence = model.producer.sequence;
        if let Some(id) = id {
            builder.set_producer(Producer { id, epoch: 0, base_sequence: sequence });
        }
        let batch = Batch { generation, identities, sequence, bytes: builder.finish(Codec::None) };
        if id.is_some() {
            model.producer.unanswered = Some(batch.clone());
        }
        batch
    }

    fn answered(&self, shard: u32, batch: &Batch, answer: Result<AppendAnswer, AppendError>) {
        let mut model = self.model.lock();
        let is_idempotent = shard == IDEMPOTENT;
        match answer {
            Ok(appended) => {
                let checker = model.checker(batch.generation, shard);
                let checked =
                    checker.acknowledged(appended.base_offset.0, &batch.identities, appended.term.0);
                model.note(checked);
                model.answered[shard as usize] += 1;
                model.count("appends", 1);
                let producer = &mut model.producer;
                if is_idempotent
                    && producer.unanswered.as_ref().is_some_and(|it| it.sequence == batch.sequence)
                {
                    producer.sequence += batch.identities.len() as i32;
                    producer.answered = producer.unanswered.take();
                }
            }
            Err(AppendError::NoStream) => model.told_of_deletion(batch.generation),
            // It is sent again.
            Err(error) if error.is_retriable() && is_idempotent => {}
            Err(AppendError::Lost(_) | AppendError::Closed) => model.count("lost appends", 1),
            Err(error) if error.is_retriable() => {
                // Not in the log, and it never will be.
                let checked = model.checker(batch.generation, shard).refused(&batch.identities);
                model.note(checked);
                model.count("refused appends", 1);
            }
            Err(error) => {
                model.note(Err(Violation::new(format!("a correct append was refused: {error}"))));
            }
        }
    }

    /// Creates the stream where there is none, removes records of it, and deletes it.
    pub(super) async fn keep(self) {
        loop {
            let current = self.model.lock().current();
            match (current, self.env.random_below(12)) {
                (None, _) => self.create().await,
                (Some((generation, _)), 0) => self.delete(generation).await,
                (Some((generation, _)), 1..6) => self.truncate(generation).await,
                _ => {}
            }
            if !self.pause(8_000).await {
                return;
            }
        }
    }

    async fn create(&self) {
        let found = match self.log.stream(STREAM) {
            Ok(found) => Ok(found),
            Err(_) => {
                let config = self.model.lock().config.clone();
                self.log.create_stream(STREAM, config).await
            }
        };
        let mut model = self.model.lock();
        match found {
            Ok(found) => {
                let found = model.found(found.id);
                model.note(found);
            }
            Err(_) => model.count("failed creations", 1),
        }
    }

    async fn delete(&self, generation: Generation) {
        self.model.lock().streams[generation].deleting = true;
        let deleted = self.log.delete_stream(STREAM).await;
        let mut model = self.model.lock();
        match deleted {
            Ok(()) => {
                model.streams[generation].deleted = true;
                model.count("deletions", 1);
            }
            // Whether it happened is seen at the next start.
            Err(_) => model.count("failed deletions", 1),
        }
    }

    /// Removes records of a shard, all of them if it comes to that.
    async fn truncate(&self, generation: Generation) {
        let shard = self.env.random_below(u64::from(SHARDS)) as u32;
        let end = self.model.lock().checker(generation, shard).acknowledged_end();
        let before = self.env.random_below(end + 1);
        self.model.lock().checker(generation, shard).truncating(before);
        let answer = self.log.truncate(STREAM, ShardNumber(shard), Offset(before)).await;
        let mut model = self.model.lock();
        match answer {
            Ok(start) => {
                model.told_of_start(generation, shard, start);
                let truncated = model.checker(generation, shard).truncated(start.0);
                model.note(truncated);
                model.count("truncations", 1);
            }
            Err(error @ (StreamError::BeyondEnd { .. } | StreamError::NoShard { .. })) => {
                model.note(Err(Violation::new(format!("a correct truncation was refused: {error}"))));
            }
            Err(StreamError::NoStream(_)) => model.told_of_deletion(generation),
            Err(_) => model.count("failed truncations", 1),
        }
    }
}
