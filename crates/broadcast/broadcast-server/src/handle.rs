//! Looking at a replica from its own process.

use std::collections::BTreeMap;

use tailwater_broadcast::message::Chain;
use tailwater_broadcast::name::Stream;
use tailwater_broadcast::replica::{Counters, Delays};
use tokio::sync::{mpsc, oneshot};

use crate::disk::DiskStats;
use crate::{RegionSnapshot, ReplicaInput};

/// To look at a running replica; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    inputs: mpsc::Sender<ReplicaInput>,
}

/// How a replica stands.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The chain as it knows it.
    pub chain: Chain,
    /// Its place in it, from 1; 0 if it is no member.
    pub place: usize,
    /// Whether it gives numbers, and whether it answers readers.
    pub is_head: bool,
    /// See [`Snapshot::is_head`].
    pub is_tail: bool,
    /// Its streams.
    pub streams: Vec<StreamSnapshot>,
    /// Connections.
    pub connections: usize,
    /// The region's clients that share events among each other.
    pub region: RegionSnapshot,
    /// Since the start.
    pub counters: Counters,
    /// Its disk, if it has one.
    pub disk: Option<DiskStats>,
    /// See [`tailwater_broadcast::replica::Replica::delays`].
    pub delays: BTreeMap<String, Delays>,
}

/// How a stream stands in a replica.
#[derive(Clone, Debug)]
pub struct StreamSnapshot {
    /// The stream.
    pub stream: Stream,
    /// Of another region's stream: the region whose proxy the head fetches it from.
    pub source: Option<String>,
    /// The lineage of the stream's region, of which its events are.
    pub lineage: u64,
    /// The last number it has.
    pub last: u64,
    /// The last number that all replicas from it to the tail hold.
    pub held: u64,
    /// Of these, the events whose answers wait for listeners, as the tail knows them.
    pub held_back: u64,
    /// Events up to `held` that are not collected.
    pub live: u64,
    /// Events that are stored: those, and collected ones that were not dropped yet.
    pub stored: u64,
    /// Bytes of the stored ones, encoded.
    pub bytes: u64,
    /// Predicates that are being applied to all events.
    pub predicates: u64,
}

/// A look at the replica that somebody waits for.
pub(crate) struct SnapshotWanted {
    pub(crate) holds: Box<dyn Fn(&Snapshot) -> bool + Send>,
    pub(crate) answer: oneshot::Sender<Snapshot>,
}

impl Handle {
    pub(crate) fn new(inputs: mpsc::Sender<ReplicaInput>) -> Self {
        Self { inputs }
    }

    /// How the replica stands; `None` if it has ended.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        self.until(|_| true).await
    }

    /// Waits until the replica stands so that `holds` is true, looked at now and at each of its ticks; `None` if it
    /// has ended. Dropping it ends the looking.
    pub async fn until(&self, holds: impl Fn(&Snapshot) -> bool + Send + 'static) -> Option<Snapshot> {
        let (answer, snapshot) = oneshot::channel();
        let wanted = SnapshotWanted { holds: Box::new(holds), answer };
        self.inputs.send(ReplicaInput::Snapshot(wanted)).await.ok()?;
        snapshot.await.ok()
    }
}
