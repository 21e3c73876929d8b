//! One file for each command.

use std::net::SocketAddr;

#[cfg(not(feature = "bench"))]
pub mod bench;
pub mod broadcast;
pub mod cache;
pub mod consume;
pub mod doctor;
pub mod group;
pub mod produce;
pub mod queue;
pub mod serve;
pub mod stream;
pub mod window;

/// An address to listen on.
fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "use an IP address and a port, as in 127.0.0.1:7420 or [::1]:7420".to_owned())
}
