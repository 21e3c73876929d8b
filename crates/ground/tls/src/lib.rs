//! Connections that may be encrypted: one way to accept them, and one to make them, whatever the protocol behind it.
//!
//! A server gives each connection that it accepts to the [`Acceptor`] of its listener, in the task that serves the
//! connection, and gets a [`PeerStream`]: the plain connection, or one in TLS. Which it is, and who is at the other end
//! as far as its certificate says that, the server need not know.
//!
//! - [`Certificates`] are read from files, and read again when these change. A connection keeps those with which it
//!   began, and new ones have the new ones.
//! - A handshake has a deadline, and there are [`limits::HANDSHAKES_MAX`] of them at the same time.
//! - Whoever speaks something else than the listener is told apart from whoever errs, for the line in the log.
//!
//! A client gives each connection that it makes to its [`Dialer`], which trusts the CAs of its configuration, and gets
//! the same [`PeerStream`]. Who moves the bytes in a way of its own takes it apart into its socket and a [`Channel`]. A
//! library that makes its connections itself gets [`Relays`] to connect to.
//!
//! Without the feature `rustls` there is no encryption: [`Certificates::open`] says so, and everything else is there.

mod acceptor;
mod config;
mod dialer;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod halves;
mod identity;
pub mod limits;
mod relay;
mod stats;
mod stream;

/// Has every part of this process use the same cryptography, also a library that does not say which. To be called
/// before such a library is; a second time does nothing.
#[cfg(feature = "rustls")]
pub fn use_everywhere() {
    // Another one is there already where somebody was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(feature = "rustls")]
pub mod authority;
#[cfg(feature = "rustls")]
mod by_name;
#[cfg(feature = "rustls")]
mod certificates;
#[cfg(not(feature = "rustls"))]
#[path = "certificates_none.rs"]
mod certificates;
#[cfg(feature = "rustls")]
mod channel;
#[cfg(not(feature = "rustls"))]
#[path = "channel_none.rs"]
mod channel;
#[cfg(feature = "rustls")]
mod parsed;
#[cfg(feature = "rustls")]
mod trust;
#[cfg(not(feature = "rustls"))]
#[path = "trust_none.rs"]
mod trust;

pub use acceptor::{Acceptor, HandshakeError};
pub use certificates::Certificates;
pub use channel::Channel;
pub use config::{ClientCertificates, FurtherCertificate, SecuredListeners, TlsConfig, TlsError, TlsVersion};
pub use dialer::{DialError, Dialer, DialerConfig};
pub use halves::{PeerReadHalf, PeerWriteHalf};
pub use identity::ClientIdentity;
pub use relay::Relays;
pub use stats::TlsStats;
pub use stream::{HELLO_IN_HTTP, Opening, PeerStream, is_hello};
