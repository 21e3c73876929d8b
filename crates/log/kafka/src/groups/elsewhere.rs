//! What groups commit in other clusters that have the same stream: told to them, and kept here. Streams are copied
//! between clusters where one node is active.

use std::collections::BTreeMap;

use tailwater_format::StreamId;
use tailwater_format::call::{CopiedOffset, CopiedOffsets};

use super::coordinator::Coordinator;
use super::offsets::{CLOCK_AHEAD_MS_MAX, GroupOffsets};
use super::records::{Committed, DELETED};
use crate::broker::Broker;
use crate::errors::ErrorCode;

impl Broker {
    /// Has what groups delete be told to other clusters, in the streams of which `is_copied` says that they have them.
    pub fn tell_of_deletions(&self, is_copied: impl Fn(StreamId) -> bool + Send + Sync + 'static) {
        // Where several nodes are active no stream is copied.
        if let Some(groups) = self.groups.only() {
            groups.offsets().are_copied(Box::new(is_copied));
        }
    }

    /// Whether groups had members before this start. Until those have joined again nothing says that a group is in use
    /// here.
    pub fn groups_had_members(&self) -> bool {
        self.groups.only().is_some_and(Coordinator::had_members)
    }

    /// What groups have committed of a stream since another cluster was answered with `life` and `after`; 0 and 0 where
    /// it was not. Nothing is left where none is answered.
    pub fn offsets_since(&self, stream: StreamId, life: u64, after: u64) -> CopiedOffsets {
        self.groups.only().map(|groups| groups.offsets().since(stream, life, after)).unwrap_or_default()
    }

    /// Keeps what groups have committed of a stream in another cluster, or deleted there, where it is later than what
    /// they have committed here, and nobody here is in the group. Offsets that this node would not keep for a client
    /// are left out, and deletions of a clock that is more than [`CLOCK_AHEAD_MS_MAX`] ahead.
    ///
    /// # Errors
    /// In words: what was not left out can't be made durable for now.
    pub async fn follow_offsets(&self, stream: StreamId, offsets: Vec<CopiedOffset>) -> Result<(), String> {
        let Some(coordinator) = self.groups.only() else { return Ok(()) };
        let Ok(shards) = self.log.stream_by_id(stream).map(|stream| stream.config.shards) else {
            return Ok(());
        };
        let now_ms = self.env.wall_ms();
        let newest_ms = now_ms.saturating_add(CLOCK_AHEAD_MS_MAX);
        let mut groups = BTreeMap::<String, GroupOffsets>::new();
        let mut ahead = 0;
        for told in offsets {
            let is_possible = told.offset >= DELETED
                && told.shard < shards
                && told.metadata.len() <= self.configs.now().groups.offset_metadata_bytes_max;
            if !is_possible {
                continue;
            }
            let is_ahead = told.committed_ms > newest_ms;
            if is_ahead && told.offset == DELETED {
                // It is told again after each start: taken as one of now it would delete what was committed since.
                ahead += 1;
                continue;
            }
            let committed = Committed {
                offset: told.offset,
                leader_epoch: told.leader_epoch.max(-1),
                // Nothing would be later for as long as that clock is ahead.
                committed_ms: if is_ahead { now_ms } else { told.committed_ms },
                expires_ms: told.expires_ms,
                metadata: if told.offset == DELETED { String::new() } else { told.metadata },
            };
            groups.entry(told.group).or_default().insert((stream, told.shard), committed);
        }
        if ahead > 0 {
            tracing::warn!(
                %stream,
                offsets = ahead,
                "deletions in another cluster are left out, whose clock is an hour ahead: delete the groups here"
            );
        }
        for (name, offsets) in groups {
            match coordinator.follow(&name, offsets).await {
                Err(ErrorCode::CoordinatorNotAvailable) => {
                    return Err("what other clusters commit can't be kept at the moment".to_owned());
                }
                Err(error) => tracing::debug!(group = name, ?error, "what it commits elsewhere is left out"),
                Ok(()) => {}
            }
        }
        Ok(())
    }
}
