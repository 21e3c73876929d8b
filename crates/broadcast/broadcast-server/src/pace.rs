//! Slows publishers down to their quotas.
//!
//! A connection is read on while its publishes wait: a publisher has only so many batches on its way, so it is slowed
//! by the answers that it does not get yet. If it were not read, its system would take it for dead after some seconds.
//! Beyond [`WAITING_BYTES_MAX`] it is not read all the same: only who ignores answers gets there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_broadcast::message::{GATEWAY, Message, Role};
use tailwater_broadcast::quota::{Meter, Quota};
use tailwater_broadcast::replica::{Peer, size_of_message};
use tailwater_env::{Env, Instant};

/// Bytes of one connection's publishes that wait.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// The quotas of a replica's publishers.
#[derive(Debug)]
pub struct Quotas {
    env: Env,
    connection: Quota,
    region: Mutex<Meter>,
    delayed: AtomicU64,
}

impl Quotas {
    /// For each connection, and for all together, which counts where the region's head is.
    pub fn new(env: &Env, connection: Quota, region: Quota) -> Arc<Self> {
        let region = Mutex::new(Meter::new(region, env.now()));
        Arc::new(Self { env: env.clone(), connection, region, delayed: AtomicU64::new(0) })
    }

    /// Batches that had to wait, since the start.
    pub fn delayed(&self) -> u64 {
        self.delayed.load(Ordering::Relaxed)
    }

    pub(crate) fn pace(self: &Arc<Self>, peer: &Peer) -> Option<ReplicaPace> {
        let own = match peer {
            Peer::In(name, Role::Client(_)) if name == GATEWAY => Quota::NONE,
            Peer::In(_, Role::Client(_)) => self.connection,
            _ => return None,
        };
        let own = Meter::new(own, self.env.now());
        Some(ReplicaPace { quotas: Arc::clone(self), own, waiting: VecDeque::new(), bytes: 0 })
    }
}

/// A connection's publishes on their way to the replica.
#[derive(Debug)]
pub(crate) struct ReplicaPace {
    quotas: Arc<Quotas>,
    own: Meter,
    waiting: VecDeque<Message>,
    bytes: usize,
}

impl ReplicaPace {
    /// Whether more may be read.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes < WAITING_BYTES_MAX
    }

    /// Takes a message; answers one that may go on at once.
    pub(crate) fn take(&mut self, message: Message) -> Option<Message> {
        if !matches!(message, Message::Publish { .. }) {
            return Some(message);
        }
        if self.waiting.is_empty() && self.wait(self.quotas.env.now()).is_zero() {
            self.spend(&message);
            return Some(message);
        }
        self.quotas.delayed.fetch_add(1, Ordering::Relaxed);
        self.bytes += size_of_message(&message);
        self.waiting.push_back(message);
        None
    }

    /// The next one that waits, when its time has come; never completes if none does. Cancelling it loses nothing.
    pub(crate) async fn next(&mut self) -> Message {
        loop {
            if self.waiting.is_empty() {
                std::future::pending::<()>().await;
            }
            let wait = self.wait(self.quotas.env.now());
            if wait.is_zero()
                && let Some(message) = self.waiting.pop_front()
            {
                self.bytes -= size_of_message(&message);
                self.spend(&message);
                return message;
            }
            self.quotas.env.sleep(wait).await;
        }
    }

    fn wait(&mut self, now: Instant) -> Duration {
        self.own.wait(now).max(self.quotas.region.lock().wait(now))
    }

    fn spend(&mut self, message: &Message) {
        let Message::Publish { batch, .. } = message else { return };
        let (bytes, events) = (batch.bytes.len() as u64, u64::from(batch.count));
        self.own.spend(bytes, events);
        self.quotas.region.lock().spend(bytes, events);
    }
}
