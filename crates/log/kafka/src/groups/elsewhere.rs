//! What groups commit in other clusters that have the same stream: told to them, and kept here. Streams are copied
//! between clusters where one node is active.

use std::collections::BTreeMap;

use tailwater_format::StreamId;
use tailwater_format::call::{CopiedOffset, CopiedOffsets};

use super::coordinator::Coordinator;
use super::offsets::GroupOffsets;
use super::records::Committed;
use crate::broker::Broker;
use crate::errors::ErrorCode;

impl Broker {
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

    /// Keeps what groups have committed of a stream in another cluster, where it is later than what they have committed
    /// here, and nobody here is in the group. Offsets that this node would not keep for a client are left out.
    ///
    /// # Errors
    /// In words: what was not left out can't be made durable for now.
    pub async fn follow_offsets(&self, stream: StreamId, offsets: Vec<CopiedOffset>) -> Result<(), String> {
        let Some(coordinator) = self.groups.only() else { return Ok(()) };
        let Ok(shards) = self.log.stream_by_id(stream).map(|stream| stream.config.shards) else {
            return Ok(());
        };
        let now_ms = self.env.wall_ms();
        let mut groups = BTreeMap::<String, GroupOffsets>::new();
        for told in offsets {
            let is_possible = told.offset >= 0
                && told.shard < shards
                && told.metadata.len() <= self.configs.now().groups.offset_metadata_bytes_max;
            if !is_possible {
                continue;
            }
            let committed = Committed {
                offset: told.offset,
                leader_epoch: told.leader_epoch.max(-1),
                // Of a clock that is ahead nothing would ever be later.
                committed_ms: told.committed_ms.min(now_ms),
                expires_ms: told.expires_ms,
                metadata: told.metadata,
            };
            groups.entry(told.group).or_default().insert((stream, told.shard), committed);
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
