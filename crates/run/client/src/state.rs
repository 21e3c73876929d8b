//! The state that a stream's updates come to: the newest snapshot of each shard, and the updates behind it.
//!
//! ```text
//!   Reset -> Entries ... -> Loaded -> Updates -> Updates -> ...       for each shard, beside the others
//!     ^______________________________________|   what was known is not true any more, or there is a gap
//! ```
//!
//! What holds for each shard:
//! - After `Loaded`, what was handed out since `Reset` is what the updates before [`StateConsumer::up_to`] come to.
//!   Each of them is in the snapshot, or was handed out behind it, once and in order. None is missed, and none comes
//!   twice.
//! - A snapshot that turns out to be torn, or to have updates that the log lost, is left out: `Reset` comes again, and
//!   then the one before it.
//! - A snapshot may be ahead of the updates that came to this cluster. Then it waits for them, and leaves those out
//!   that the snapshot has.
//! - Little is kept: parts are handed out as they come.

mod keyed;
mod shard;

use std::collections::VecDeque;

use bytes::Bytes;
use tailwater_format::Offset;
use tailwater_format::snapshot::{SnapshotAssembly, SnapshotEntry, SnapshotPart, SnapshotUpTo};

use crate::consumer::find_place;
use crate::snapshot::{SnapshotFit, Snapshots};
use crate::{Batch, Client, Consumer, Error, Lag, ShardSnapshot, Start, Stream};
pub use keyed::KeyedState;
use shard::{FollowedUpdates, StatePhase, StateShard, UpdateStep};

/// What comes next of a state.
#[derive(Debug)]
pub enum StateNews {
    /// A shard begins anew: what is known of it is to be forgotten.
    Reset {
        /// Which shard.
        shard: u32,
    },
    /// Entries of a shard's snapshot. The state is not to be used before [`StateNews::Loaded`].
    Entries {
        /// Which shard.
        shard: u32,
        /// The entries, in the order in which they were written.
        part: SnapshotPart,
    },
    /// The shard has all of its snapshot, which is whole; from here on there are updates.
    Loaded {
        /// Which shard.
        shard: u32,
        /// The snapshot; `None` if there is none, and all updates come.
        snapshot: Option<ShardSnapshot>,
    },
    /// Updates of a shard, in order.
    Updates(Batch),
}

impl StateNews {
    /// Which shard it is about.
    pub fn shard(&self) -> u32 {
        match self {
            Self::Reset { shard } | Self::Entries { shard, .. } | Self::Loaded { shard, .. } => *shard,
            Self::Updates(batch) => batch.shard,
        }
    }

    /// Calls `apply` with each key and value, in order, whether a snapshot has them or an update.
    pub fn apply(&self, mut apply: impl FnMut(SnapshotEntry<'_>)) {
        match self {
            Self::Entries { part, .. } => part.entries().for_each(apply),
            Self::Updates(batch) => batch.records().for_each(|record| apply((record.key, record.value))),
            Self::Reset { .. } | Self::Loaded { .. } => {}
        }
    }
}

/// How a state is brought. The defaults miss nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct StateConfig {
    /// Where updates were removed that no snapshot has, take those that are left for all.
    pub takes_what_is_left: bool,
}

/// Brings the state of all shards of a stream, and keeps it up to date.
pub struct StateConsumer {
    client: Client,
    stream: Stream,
    config: StateConfig,
    snapshots: Option<Snapshots>,
    shards: Vec<StateShard>,
    /// Reads snapshots of those that are loading; there once there are snapshots.
    loads: Option<Consumer>,
    /// Reads updates of those that follow.
    updates: Consumer,
    /// What was found, and is to be handed out: no more than one batch has.
    ready: VecDeque<StateNews>,
}

impl Client {
    /// The state of the stream of that name.
    pub async fn state(&self, stream: &str, config: StateConfig) -> Result<StateConsumer, Error> {
        let stream = self.stream(stream).await?;
        let updates = Consumer::start_at(self.clone(), stream.clone(), Vec::new()).await?;
        let shards = (0..stream.shards).map(|_| StateShard::default()).collect();
        let (client, ready) = (self.clone(), VecDeque::new());
        Ok(StateConsumer { client, stream, config, snapshots: None, shards, loads: None, updates, ready })
    }
}

impl StateConsumer {
    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Which updates a shard's state has, of what was handed out; `None` while the shard is not loaded.
    pub fn up_to(&self, shard: u32) -> Option<SnapshotUpTo> {
        let has_all = || self.ready.iter().all(|news| news.shard() != shard);
        match &self.shards.get(shard as usize)?.phase {
            StatePhase::Following(following) if has_all() => Some(following.up_to()),
            _ => None,
        }
    }

    /// Whether all shards are loaded.
    pub fn is_loaded(&self) -> bool {
        (0..self.stream.shards).all(|shard| self.up_to(shard).is_some())
    }

    /// Whether all shards are loaded and have at least all updates before these offsets, in the order of the shards.
    pub fn has_reached(&self, ends: &[Offset]) -> bool {
        (0..self.stream.shards).zip(ends).all(|(shard, end)| {
            let up_to = self.up_to(shard);
            up_to.is_some_and(|up_to| up_to.position >= *end)
        })
    }

    /// Where the updates of each shard end now.
    pub async fn ends(&self) -> Result<Vec<Offset>, Error> {
        let mut ends = Vec::new();
        for shard in 0..self.stream.shards {
            let end = find_place(&self.client, &self.stream, shard, Start::End).await?;
            ends.push(Offset(end.offset));
        }
        Ok(ends)
    }

    /// How far behind it is in each shard that follows updates.
    pub fn lags(&self) -> impl Iterator<Item = Lag> {
        self.updates.lags()
    }

    /// What comes next, as soon as it is there. Cancelling it loses nothing.
    ///
    /// A shard so far behind that its updates were removed is brought anew by a newer snapshot. After an error for
    /// which [`Error::is_retriable`] holds, the next call tries again.
    ///
    /// # Errors
    /// [`Error::Incomplete`] if updates were removed that no snapshot has, unless the configuration takes what is left.
    /// The next call looks for a snapshot again.
    pub async fn next(&mut self) -> Result<StateNews, Error> {
        loop {
            if let Some(news) = self.ready.pop_front() {
                return Ok(news);
            }
            if let Some((shard, phase)) = self.to_place() {
                match phase {
                    StatePhase::Loaded { snapshot } => self.attach(shard, snapshot).await?,
                    _ => self.place(shard).await?,
                }
                continue;
            }
            let Self { loads, updates, .. } = self;
            let loading = async {
                match loads {
                    Some(loads) => loads.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                part = loading => match part {
                    Ok(batch) => batch.into_iter().for_each(|batch| self.load(&batch)),
                    Err(error) => self.loading_failed(error)?,
                },
                updates = updates.next() => match updates {
                    Ok(Some(batch)) => {
                        if let Some(news) = self.update(batch) {
                            return Ok(news);
                        }
                    }
                    Ok(None) => {}
                    Err(Error::Truncated { shard, .. }) => self.begin_anew(shard, None),
                    Err(error) => return Err(error),
                },
            }
        }
    }

    /// A shard that waits for CALLs.
    fn to_place(&self) -> Option<(u32, StatePhase)> {
        let is_to_place =
            |phase: &StatePhase| matches!(phase, StatePhase::Unplaced | StatePhase::Loaded { .. });
        let mut shards = (0..).zip(&self.shards);
        let found = shards.find(|(_, shard)| is_to_place(&shard.phase));
        found.map(|(number, shard)| (number, shard.phase.clone()))
    }

    /// Looks for the newest snapshot of a shard that is of use. Changes nothing before it knows.
    async fn place(&mut self, shard: u32) -> Result<(), Error> {
        if self.snapshots.is_none() {
            self.snapshots = self.client.snapshots(&self.stream).await?;
        }
        if let Some(snapshots) = &self.snapshots {
            let mut next = snapshots.newest(shard).await?;
            while let Some(snapshot) = next {
                let is_known = self.shards[shard as usize].is_of_no_use(snapshot.offset);
                let fits = !is_known
                    && matches!(
                        snapshots.fit(&snapshot).await?,
                        SnapshotFit::Fits(_) | SnapshotFit::Ahead(_)
                    );
                if fits && let Some(first) = snapshots.first_part(&snapshot).await? {
                    let loads = match &mut self.loads {
                        Some(loads) => loads,
                        none => none.insert(snapshots.nothing_yet().await?),
                    };
                    loads.join(shard, &first)?;
                    let assembly = SnapshotAssembly::new(snapshot.offset, snapshot.manifest);
                    self.shards[shard as usize].phase =
                        StatePhase::Loading { snapshot, assembly: Box::new(assembly) };
                    self.ready.push_back(StateNews::Reset { shard });
                    return Ok(());
                }
                next = snapshots.before(&snapshot).await?;
            }
        }
        let start = find_place(&self.client, &self.stream, shard, Start::Beginning).await?;
        if start.offset > 0 && !self.config.takes_what_is_left {
            let (stream, log_start) = (self.stream.name.to_string(), Offset(start.offset));
            return Err(Error::Incomplete { stream, shard, log_start });
        }
        self.updates.join(shard, &start)?;
        self.shards[shard as usize].follow(FollowedUpdates::from(Offset(start.offset)));
        self.ready.extend([StateNews::Reset { shard }, StateNews::Loaded { shard, snapshot: None }]);
        Ok(())
    }

    /// Follows the updates behind a snapshot that was loaded.
    async fn attach(&mut self, shard: u32, snapshot: ShardSnapshot) -> Result<(), Error> {
        let Some(snapshots) = &self.snapshots else { return Ok(()) };
        let up_to = snapshot.manifest.up_to;
        let (place, following) = match snapshots.fit(&snapshot).await? {
            SnapshotFit::Fits(place) => (place, FollowedUpdates::behind(up_to)),
            SnapshotFit::Ahead(end) => {
                let following = FollowedUpdates::waiting_for(snapshot.offset, up_to, Offset(end.offset));
                (end, following)
            }
            // Meanwhile: there may be a newer one.
            SnapshotFit::Behind | SnapshotFit::Other => {
                self.begin_anew(shard, Some(snapshot.offset));
                return Ok(());
            }
        };
        self.updates.join(shard, &place)?;
        self.shards[shard as usize].follow(following);
        self.ready.push_back(StateNews::Loaded { shard, snapshot: Some(snapshot) });
        Ok(())
    }

    /// Takes records of the stream of snapshots.
    fn load(&mut self, batch: &Batch) {
        let shard = batch.shard;
        let StatePhase::Loading { snapshot, assembly } = &mut self.shards[shard as usize].phase else {
            return;
        };
        let snapshot = *snapshot;
        for record in batch.records() {
            let value = Bytes::copy_from_slice(record.value.unwrap_or_default());
            match assembly.take(record.offset, &value) {
                Ok(part) => {
                    let entries = part.map(|part| StateNews::Entries { shard, part });
                    self.ready.extend(entries);
                }
                Err(torn) => {
                    let (stream, offset) = (&self.stream.name, snapshot.offset);
                    tracing::warn!(%stream, shard, %offset, "a snapshot is left out: {torn}");
                    self.begin_anew(shard, Some(snapshot.offset));
                    return;
                }
            }
            if assembly.is_whole() {
                self.stop_loading(shard);
                self.shards[shard as usize].phase = StatePhase::Loaded { snapshot };
                return;
            }
        }
    }

    /// A snapshot that can't be read to its end is left out. It may have been removed, and then there is a newer one.
    fn loading_failed(&mut self, error: Error) -> Result<(), Error> {
        let shard = match error {
            Error::Truncated { shard, .. } => shard,
            Error::Corrupt { shard, .. } | Error::Unreadable { shard, .. } => {
                tracing::warn!(stream = %self.stream.name, shard, "a snapshot is left out: {error}");
                shard
            }
            other => return Err(other),
        };
        let loading = match &self.shards[shard as usize].phase {
            StatePhase::Loading { snapshot, .. } => Some(snapshot.offset),
            _ => None,
        };
        self.begin_anew(shard, loading);
        Ok(())
    }

    /// Takes updates: what is handed out of them.
    fn update(&mut self, mut batch: Batch) -> Option<StateNews> {
        let shard = batch.shard;
        let StatePhase::Following(following) = &mut self.shards[shard as usize].phase else { return None };
        match following.take(batch.first_offset(), batch.next_offset(), batch.term()) {
            UpdateStep::From(offset) => {
                batch.skip_below(offset);
                Some(StateNews::Updates(batch))
            }
            UpdateStep::Nothing => None,
            UpdateStep::Other { snapshot } => {
                tracing::warn!(stream = %self.stream.name, shard, "updates that the state has were lost");
                self.begin_anew(shard, snapshot);
                None
            }
        }
    }

    /// Brings a shard anew, without the snapshot whose manifest is at that offset.
    fn begin_anew(&mut self, shard: u32, without: Option<Offset>) {
        self.stop_loading(shard);
        self.updates.leave(shard);
        // What is not handed out yet is forgotten with the rest.
        self.ready.retain(|news| news.shard() != shard);
        self.shards[shard as usize].begin_anew(without);
    }

    fn stop_loading(&mut self, shard: u32) {
        if let Some(loads) = &mut self.loads {
            loads.leave(shard);
        }
    }
}
