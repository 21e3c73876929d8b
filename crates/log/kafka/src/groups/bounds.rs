//! What a member may say of itself at most, and what is counted for what is kept of it.
//!
//! A group's bytes ([`GroupsConfig::group_bytes_max`](super::GroupsConfig::group_bytes_max)) are those of the texts and
//! byte strings that members brought, and for each member and each item of its lists what memory takes besides.

use std::sync::Arc;

/// Bytes of a client's, a member's or a rack's name, of a protocol's, and of a kind of protocol.
pub(crate) const NAME_BYTES_MAX: usize = 2 << 10;
/// Bytes of a member's id: the coordinator makes it of a name, a dash and a UUID.
pub(crate) const MEMBER_ID_BYTES_MAX: usize = NAME_BYTES_MAX + 64;
/// Bytes of a pattern's text.
pub(crate) const PATTERN_BYTES_MAX: usize = 4 << 10;
/// Protocols of one member.
pub(crate) const PROTOCOLS_MAX: usize = 256;

/// What a member takes besides what it says.
pub(crate) const MEMBER_BYTES: usize = 512;
/// What an item of its lists takes besides its text.
pub(crate) const ITEM_BYTES: usize = 64;

/// Bytes that are counted for topics by their names.
pub(crate) fn topics_bytes<'a>(topics: impl IntoIterator<Item = &'a String>) -> usize {
    topics.into_iter().map(|topic| topic.len() + ITEM_BYTES).sum()
}

/// Who a member is, as it says.
#[derive(Clone, Copy)]
pub(crate) struct Who<'a> {
    pub id: &'a str,
    pub instance: Option<&'a str>,
    pub client_id: &'a Arc<str>,
    pub client_host: &'a str,
}

impl Who<'_> {
    /// Bytes that are counted for it.
    pub fn bytes(&self) -> usize {
        // The id, and the name, are kept in several places.
        let names = 2 * (self.id.len() + self.instance.map_or(0, str::len));
        MEMBER_BYTES + names + self.client_id.len() + self.client_host.len()
    }

    /// Whether all of it is short enough.
    pub fn is_bounded(&self) -> bool {
        self.id.len() <= MEMBER_ID_BYTES_MAX
            && self.instance.is_none_or(|instance| instance.len() <= NAME_BYTES_MAX)
            && self.client_id.len() <= NAME_BYTES_MAX
    }
}
