//! `__consumer_offsets`: the topic in which Kafka's brokers keep groups and what these committed. Here that is in
//! metadata, so the topic is shown to those who look for it, and it has no records.
//!
//! What holds:
//! - It is there for whoever asks for it by its name, and is listed among all topics as soon as there is a group, as
//!   with Kafka's brokers.
//! - To read it finds nothing. To append to it, change it, create or delete it is refused.
//! - A stream of that name, which only Tailwater's own clients can make, is not shown.

use tailwater_access::Resource;
use tailwater_format::StreamId;
use tailwater_log::{LogStreamInfo, StreamConfig};
use uuid::Uuid;

use crate::broker::{Broker, Context};
use crate::errors::{ErrorCode, RefusedRequest};
use crate::messages::fetch::PartitionData;

/// Its name.
pub(crate) const OFFSETS_TOPIC: &str = "__consumer_offsets";
/// Its id, which is the beginning of its name and no random one, as streams have.
const OFFSETS_TOPIC_ID: Uuid = Uuid::from_u128(u128::from_be_bytes(*b"__consumer_offse"));
/// Whatever its number, no partition has anything in it.
const PARTITIONS: u32 = 1;
/// The epoch that its partitions are in.
pub(crate) const EPOCH: i32 = 1;

/// The topic, as if it were a stream.
fn offsets_topic() -> LogStreamInfo {
    LogStreamInfo {
        source: None,
        id: StreamId(OFFSETS_TOPIC_ID),
        name: OFFSETS_TOPIC.to_owned(),
        created_ms: 0,
        config: StreamConfig { shards: PARTITIONS, ..StreamConfig::default() },
    }
}

/// Whether a request that names topics by ids, or else by names, names it.
pub(crate) fn is_asked_for(name: &str, id: Uuid, by_id: bool) -> bool {
    if by_id { id == OFFSETS_TOPIC_ID } else { name == OFFSETS_TOPIC }
}

/// Whether that is its id.
pub(crate) fn is_internal(id: StreamId) -> bool {
    id.0 == OFFSETS_TOPIC_ID
}

/// Whether a topic of this name may be changed or deleted.
pub(crate) fn check_not_internal(name: &str) -> Result<(), RefusedRequest> {
    match name == OFFSETS_TOPIC {
        true => Err(RefusedRequest::new(
            ErrorCode::InvalidTopic,
            "the node keeps what groups commit in its metadata: __consumer_offsets is shown only",
        )),
        false => Ok(()),
    }
}

/// Whether a client knows the epoch; -1 is one that does not care.
pub(crate) fn check_epoch(given: i32) -> Result<(), ErrorCode> {
    match given {
        -1 | EPOCH => Ok(()),
        older if older < EPOCH => Err(ErrorCode::FencedLeaderEpoch),
        _ => Err(ErrorCode::UnknownLeaderEpoch),
    }
}

/// What a Fetch finds in one of its partitions.
pub(crate) fn look_at(data: &mut PartitionData, fetch_offset: i64, epoch: i32) -> Result<(), ErrorCode> {
    check_epoch(epoch)?;
    if fetch_offset != 0 {
        return Err(ErrorCode::OffsetOutOfRange);
    }
    (data.high_watermark, data.last_stable_offset, data.log_start_offset) = (0, 0, 0);
    Ok(())
}

impl Broker {
    /// The topic that somebody asks for who reads or describes: [`Broker::find_topic`], or the internal one.
    pub(crate) fn find_topic_to_read(
        &self,
        context: &Context,
        name: &str,
        id: Uuid,
        by_id: bool,
    ) -> Result<LogStreamInfo, ErrorCode> {
        if !is_asked_for(name, id, by_id) {
            return self.find_topic(context, name, id, by_id);
        }
        self.authorize_topic(context, OFFSETS_TOPIC)?;
        Ok(offsets_topic())
    }

    /// Whether a client that was let read a topic may read it still. One that was deleted meanwhile it may.
    pub(crate) fn may_still_read(&self, context: &Context, stream: StreamId) -> Result<(), ErrorCode> {
        match is_internal(stream) {
            true => self.authorize_topic(context, OFFSETS_TOPIC),
            false => match self.log.stream_by_id(stream) {
                Ok(stream) => self.authorize_topic(context, &stream.name),
                Err(_) => Ok(()),
            },
        }
    }

    /// All topics that a client may know of, in the order of their names.
    pub(crate) fn listed_topics(&self, context: &Context) -> Vec<LogStreamInfo> {
        let mut topics: Vec<LogStreamInfo> = self.visible_topics(context).collect();
        if self.groups.has_any() && self.shows(context, Resource::Stream(OFFSETS_TOPIC)) {
            let place = topics.partition_point(|stream| stream.name.as_str() < OFFSETS_TOPIC);
            topics.insert(place, offsets_topic());
        }
        topics
    }
}
