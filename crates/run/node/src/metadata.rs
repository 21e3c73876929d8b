//! Metadata that is elsewhere than in the data directory: the node among those that share it, of which one has its
//! turn.
//!
//! A node that waits for its turn has its data directory locked and admin HTTP, which says that it stands by. It opens
//! nothing else.

#[cfg(feature = "bookkeeper")]
mod sharing;
#[cfg(feature = "bookkeeper")]
mod turn;

#[cfg(feature = "bookkeeper")]
pub(crate) use sharing::NodeSharing;
#[cfg(feature = "bookkeeper")]
pub(crate) use turn::{Turn, node_id};

/// What a node that stands by is at.
pub(crate) const STANDING_BY: &str = "the wait for its turn: it stands by, and another node is active";

/// In a build without ZooKeeper's client there is none.
#[cfg(not(feature = "bookkeeper"))]
pub(crate) enum Turn {}

/// Nor is anything shared.
#[cfg(not(feature = "bookkeeper"))]
pub(crate) enum NodeSharing {}

#[cfg(not(feature = "bookkeeper"))]
impl NodeSharing {
    pub(crate) fn drain(&self) {
        match *self {}
    }

    pub(crate) async fn drained(&self) -> bool {
        match *self {}
    }

    pub(crate) fn end(&self) {
        match *self {}
    }
}

#[cfg(not(feature = "bookkeeper"))]
impl Turn {
    pub(crate) async fn take(
        _: &tailwater_env::Env,
        _: &crate::Config,
        _: std::net::SocketAddr,
        _: &tailwater_env::Progress,
    ) -> anyhow::Result<Option<Self>> {
        // Any other metadata was refused with the configuration.
        Ok(None)
    }

    pub(crate) fn shared(&self) -> tailwater_log::SharedMetadata {
        match *self {}
    }

    pub(crate) async fn broker_number(&self) -> anyhow::Result<Option<i32>> {
        match *self {}
    }

    pub(crate) fn share(
        &self,
        _: &tailwater_env::Env,
        _: &tailwater_log::Log,
        _: Option<std::sync::Arc<tailwater_kafka::Broker>>,
        _: Option<(i32, Vec<(String, u16)>)>,
    ) -> anyhow::Result<Option<NodeSharing>> {
        match *self {}
    }

    pub(crate) fn announce(&self, _: Vec<(String, String)>) {
        match *self {}
    }

    pub(crate) async fn taken_over(&self) -> String {
        match *self {}
    }

    pub(crate) async fn leave(&self) {
        match *self {}
    }
}
