//! On whose behalf somebody asks. Every request passes through [`authorize`]: the one place where
//! authentication and authorization are decided.

use tailwater_format::call::{CallRefusal, Method};
use tailwater_rma::Peer;

/// Whether `peer` may call `method`. Everybody who reaches the node may: it binds to loopback unless it is
/// told otherwise, and whoever tells it otherwise puts it into a network that he trusts.
pub fn authorize(peer: &Peer, method: Method) -> Result<(), CallRefusal> {
    tracing::trace!(principal = %peer.principal, peer = %peer.address, method = method.name(), "call");
    Ok(())
}
