//! SETs and ERASEs: to all replicas at once, answered as soon as a quorum has acknowledged.
//!
//! The rest goes on in the background, bounded by the queues and by the deadline. A mutation that lost against
//! another client's higher version is made again with a higher one, a bounded number of times: whoever writes
//! last wins, also from a machine whose clock is slow.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::Instant;
use tokio::sync::Notify;

use super::placement::Mode;
use super::quorum::{AllAcks, ReplicaAck, Settled, WriteQuorums};
use super::sender::{self, SenderWaiting};
use super::{CellInner, SetError};
use crate::layout::{EncodedItem, ItemExtras, KeyHash};
use crate::limits::{KEY_BYTES_MAX, SUPERSEDED_RETRIES_MAX, VALUE_BYTES_MAX};
use crate::version::Version;

/// The first pause before a backend is tried again that has just started; it doubles.
const NOT_YET_PAUSE: Duration = Duration::from_millis(1);
/// How often.
const NOT_YET_DOUBLINGS_MAX: u32 = 4;

/// The acknowledgements of the SETs of one call, counted by the senders, awaited by the caller.
pub(super) struct Mutation {
    client_id: u32,
    config_id: u64,
    items: Mutex<Items>,
    done: Notify,
}

struct Items {
    acks: Vec<AllAcks>,
    unsettled: usize,
}

impl Mutation {
    /// With `has_other` a second quorum has to acknowledge each item.
    pub(super) fn new(
        mode: Mode,
        has_other: bool,
        client_id: u32,
        config_id: u64,
        items: usize,
    ) -> Arc<Self> {
        let items = Items { acks: vec![AllAcks::new(mode, has_other); items], unsettled: items };
        Arc::new(Self { client_id, config_id, items: Mutex::new(items), done: Notify::new() })
    }

    /// Whose versions these are.
    pub(super) fn client_id(&self) -> u32 {
        self.client_id
    }

    /// The configuration by which its backends were chosen: under no other one they may apply it.
    pub(super) fn config_id(&self) -> u64 {
        self.config_id
    }

    /// Counts one replica's answer for one item.
    pub(super) fn count(&self, item: usize, of: WriteQuorums, ack: ReplicaAck) {
        let mut items = self.items.lock();
        let acks = &mut items.acks[item];
        let was_open = acks.settled() == Settled::Wait;
        acks.count(of, ack);
        if was_open && acks.settled() != Settled::Wait {
            items.unsettled -= 1;
            if items.unsettled == 0 {
                self.done.notify_one();
            }
        }
    }

    pub(super) fn settled(&self, item: usize) -> Settled {
        self.items.lock().acks[item].settled()
    }

    async fn all_settled(&self) {
        while self.items.lock().unsettled > 0 {
            self.done.notified().await;
        }
    }
}

/// A key, and what it is SET to; `None` ERASEs it.
pub(super) type CellMutation = (Bytes, Option<(Bytes, ItemExtras)>);

/// Hands an item that a quorum has to a replica that has not, as it is. Whether it arrives is not waited for.
pub(super) fn mend(cell: &CellInner, backend: usize, item: &EncodedItem, deadline: Instant) {
    let mutation = Mutation::new(Mode::R1, false, cell.versions.client_id(), cell.config_id, 1);
    let waiting = SenderWaiting::new(item.clone(), mutation, (0, WriteQuorums::READ), deadline);
    cell.replicas[backend].sender.send(std::iter::once(waiting));
    sender::begin(&cell.sending, &cell.replicas[backend]);
}

/// SETs (`Some`) and ERASEs (`None`), all at once. Ends at the deadline at the latest; what is unsettled by
/// then may or may not come about.
pub(super) async fn mutate(
    cell: &CellInner,
    items: &[CellMutation],
    deadline: Instant,
) -> Vec<Result<Version, SetError>> {
    let mut results: Vec<Result<Version, SetError>> = items.iter().map(|_| Err(SetError::Deadline)).collect();
    let mut open = Vec::with_capacity(items.len());
    for (index, (key, set)) in items.iter().enumerate() {
        let value_len = set.as_ref().map_or(0, |(value, _)| value.len());
        if key.len() > KEY_BYTES_MAX || value_len > VALUE_BYTES_MAX {
            results[index] = Err(SetError::TooLarge { key_len: key.len(), value_len });
        } else {
            open.push(index);
        }
    }
    let (mut superseded, mut not_yet) = (0, 0);
    while superseded <= SUPERSEDED_RETRIES_MAX {
        // What is not sent by then is not sent any more: it is no backend's fault.
        if open.is_empty() || cell.env.now() >= deadline {
            break;
        }
        let (mutation, versions) = send(cell, items, &open, deadline);
        let left = deadline.since(cell.env.now());
        // On time out the items that did settle are answered as they did.
        let _ = cell.env.timeout(left, mutation.all_settled()).await;
        let mut again = Vec::new();
        let (mut was_superseded, mut was_not_yet) = (false, false);
        for (item, (index, version)) in open.into_iter().zip(versions).enumerate() {
            results[index] = match mutation.settled(item) {
                Settled::Applied => Ok(version),
                Settled::Wait => Err(SetError::Deadline),
                Settled::Overloaded => Err(SetError::Overloaded),
                Settled::NoRoom => Err(SetError::NoRoom),
                Settled::Unreachable => Err(SetError::Unreachable),
                Settled::NotYet => {
                    was_not_yet = true;
                    again.push(index);
                    Err(SetError::Unreachable)
                }
                Settled::Superseded(held) => {
                    was_superseded = true;
                    if cell.versions.follow(held, cell.env.wall_ms()) {
                        again.push(index);
                    }
                    Err(SetError::Superseded { held })
                }
            };
        }
        open = again;
        superseded += u32::from(was_superseded);
        if was_not_yet {
            cell.env.sleep(NOT_YET_PAUSE * (1 << not_yet)).await;
            not_yet = (not_yet + 1).min(NOT_YET_DOUBLINGS_MAX);
        }
    }
    results
}

/// Queues the items for all their replicas.
fn send(
    cell: &CellInner,
    items: &[CellMutation],
    open: &[usize],
    deadline: Instant,
) -> (Arc<Mutation>, Vec<Version>) {
    let has_other = cell.other.is_some();
    let mutation = Mutation::new(cell.mode, has_other, cell.versions.client_id(), cell.config_id, open.len());
    let wall_ms = cell.env.wall_ms();
    let mut versions = Vec::with_capacity(open.len());
    let mut queued: Vec<(usize, SenderWaiting)> = Vec::with_capacity(open.len() * cell.mode.replicas());
    for (part, index) in open.iter().enumerate() {
        let (key, set) = &items[*index];
        let version = cell.versions.next(wall_ms);
        versions.push(version);
        let item = EncodedItem::new(
            key,
            version,
            set.as_ref().map(|(value, _)| value),
            set.as_ref().map(|(_, extras)| *extras).unwrap_or_default(),
        );
        let hash = KeyHash::of(key);
        for (backend, of) in cell.writers(hash) {
            let waiting = SenderWaiting::new(item.clone(), Arc::clone(&mutation), (part, of), deadline);
            queued.push((backend, waiting));
        }
    }
    // One key's items keep their order in each queue; versions decide anyway.
    queued.sort_by_key(|(backend, _)| *backend);
    let mut queued = queued.into_iter().peekable();
    while let Some((backend, _)) = queued.peek() {
        let backend = *backend;
        let same =
            std::iter::from_fn(|| queued.next_if(|(next, _)| *next == backend).map(|(_, waiting)| waiting));
        cell.replicas[backend].sender.send(same);
        sender::begin(&cell.sending, &cell.replicas[backend]);
    }
    (mutation, versions)
}
