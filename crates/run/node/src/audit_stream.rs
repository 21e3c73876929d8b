//! The audit in a stream of the log, as records of JSON with the node's id as their key.
//!
//! - No request waits for it: events wait in the bounded queue of the audit's follower. What does not fit is missed,
//!   and counted.
//! - A node appends its events in their order, and the next ones when those before are as durable as the stream
//!   promises. After an append whose end is not known it appends them again, so an event may be there twice, with its
//!   number.
//! - It appends to a shard that this node owns. Where it owns none, or the stream is not there, events wait.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::channel::mpsc;
use tailwater_env::{Env, Task};
use tailwater_format::ShardNumber;
use tailwater_format::batch::{BatchBuilder, Codec};
use tailwater_log::{Log, LogStreamInfo};
use tailwater_permissions::{AuditEvent, Rules};

/// Bytes of one append, roughly.
const PIECE_BYTES: usize = 256 << 10;
/// How long after an append that failed until the next one.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Appends what the audit is told to the stream `name`, until it is dropped. `None` where there is no audit.
pub(crate) fn follow(env: &Env, rules: &Rules, log: &Log, name: &str, node: &str) -> Option<Task> {
    let events = rules.audit()?.follow()?;
    let stream = AuditStream {
        env: env.clone(),
        log: log.clone(),
        name: name.to_owned(),
        node: node.to_owned(),
        shard: 0,
        is_told: false,
    };
    Some(env.spawn("audit-stream", stream.carry(events)))
}

struct AuditStream {
    env: Env,
    log: Log,
    name: String,
    node: String,
    /// The shard that is tried first: the one that took the last append.
    shard: u32,
    /// Whether the node's log says already why nothing is appended.
    is_told: bool,
}

impl AuditStream {
    async fn carry(mut self, mut events: mpsc::Receiver<AuditEvent>) {
        while let Some(first) = events.next().await {
            let mut builder = BatchBuilder::new();
            self.add(&mut builder, &first);
            while builder.len() < PIECE_BYTES
                && let Ok(event) = events.try_recv()
            {
                self.add(&mut builder, &event);
            }
            if !builder.is_empty() {
                self.append(&builder.finish(Codec::None)).await;
            }
        }
    }

    fn add(&self, builder: &mut BatchBuilder, event: &AuditEvent) {
        // Its texts are short: it fits, and it is JSON.
        let Ok(json) = serde_json::to_vec(event) else { return };
        let _ = builder.append(Some(self.node.as_bytes()), Some(&json), &[], event.time_ms);
    }

    /// Appends until some shard has taken it.
    async fn append(&mut self, batch: &Bytes) {
        loop {
            let appended = match self.log.stream(&self.name) {
                Ok(stream) => self.append_to(&stream, batch).await,
                Err(error) => Err(format!("{error}: `tailwater stream create {}` makes it", self.name)),
            };
            match appended {
                Ok(()) => return self.is_told = false,
                Err(why) => self.fails(&why),
            }
            self.env.sleep(AGAIN_AFTER).await;
        }
    }

    /// Appends to the first shard that takes it; what the last one said, if none does.
    async fn append_to(&mut self, stream: &LogStreamInfo, batch: &Bytes) -> Result<(), String> {
        let shards = stream.config.shards;
        let mut why = "it has no shards".to_owned();
        for number in 0..shards {
            let shard = (self.shard + number) % shards;
            match self.log.append(stream.id, ShardNumber(shard), batch.clone()).await {
                Ok(_) => {
                    self.shard = shard;
                    return Ok(());
                }
                Err(error) => why = error.to_string(),
            }
        }
        Err(why)
    }

    fn fails(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(stream = self.name, why, "the audit is not in its stream: its events wait");
        }
    }
}
