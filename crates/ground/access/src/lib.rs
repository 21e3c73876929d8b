//! Who asks, and whether they may.
//!
//! Every server gives each connection that it accepts a [`Peer`], or each request where that is signed, and asks an
//! [`Authorizer`] before it does what the peer wants. Which one that is, whoever starts the server decides:
//! authentication and authorization are then in one place, whatever the protocol. A refusal goes back in the form that
//! the protocol's clients understand.

mod changes;
mod places;
mod secret;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

pub use crate::changes::{RightsBell, RightsChanges};
pub use crate::places::{AddressPlace, PlacesByAddress};
pub use crate::secret::{EngineLogin, SecretText, are_same};

/// On whose behalf a peer asks that nobody authenticated.
pub const ANONYMOUS: &str = "anonymous";

/// What the principals of processes on a Unix socket begin with.
pub const PRINCIPAL_OF_UID: &str = "uid:";

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address, or process id on a Unix socket.
    pub address: String,
    /// On whose behalf it asks: in SQS's protocol the account that signed; elsewhere the subject of the certificate
    /// that it has shown, as in `CN=alice,O=Example`; on a Unix socket the user of its process, as in `uid:1000`;
    /// [`ANONYMOUS`] where nobody authenticated.
    pub principal: Arc<str>,
    /// What that certificate calls it besides: `DNS:host`, `IP:10.0.0.5`, `URI:spiffe://example/alice`. On a Unix
    /// socket the groups of its process, as in `gid:100`, each once and in order.
    pub names: Arc<[String]>,
}

impl Peer {
    /// One that nobody authenticated.
    pub fn anonymous(address: String) -> Self {
        Self::of(address, ANONYMOUS)
    }

    /// One that was authenticated as `principal`, by no certificate.
    pub fn of(address: String, principal: &str) -> Self {
        Self { address, principal: principal.into(), names: Arc::default() }
    }

    /// A process of this host, by its user and its groups of the system.
    pub fn of_process(address: String, uid: u32, gid: u32, others: &[u32]) -> Self {
        let groups: BTreeSet<u32> = others.iter().copied().chain([gid]).collect();
        let names = groups.into_iter().map(|gid| format!("gid:{gid}")).collect();
        Self { names, ..Self::of(address, &Self::principal_of_uid(uid)) }
    }

    /// The address of its host; `None` on a Unix socket. It is written as `ADDRESS:PORT`, and with `tcp:` before it.
    pub fn ip(&self) -> Option<IpAddr> {
        let address = self.address.strip_prefix("tcp:").unwrap_or(&self.address);
        address.parse::<SocketAddr>().ok().map(|address| address.ip())
    }

    /// On whose behalf a process of this user of the system asks.
    pub fn principal_of_uid(uid: u32) -> String {
        format!("{PRINCIPAL_OF_UID}{uid}")
    }
}

/// What an address counts as where each has a share of something: whoever has one of IPv6 has all of its /64 network.
pub fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(of) => match of.to_ipv4_mapped() {
            Some(address) => address.into(),
            None => Ipv6Addr::from_bits(of.to_bits() >> 64 << 64).into(),
        },
    }
}

/// The ways in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// CALLs of the client library to a node.
    Call,
    /// A cell's backend: one-sided reads, and CALLs that change it.
    Cell,
    /// A node's admin HTTP.
    Http,
    /// Kafka's.
    Kafka,
    /// Broadcasts, over frames of their own or over HTTP.
    Broadcast,
    /// Amazon SQS's.
    Sqs,
    /// memcached's.
    Memcached,
}

/// What an operation is carried out on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource<'a> {
    /// The node or backend as a whole, or what the operation does not say beforehand.
    Node,
    /// A stream of the log, by its name.
    Stream(&'a str),
    /// A group of Kafka's, by its name.
    Group(&'a str),
    /// A stream of broadcasts, as `REGION/NAME`.
    Broadcast(&'a str),
    /// A queue, as `ACCOUNT/NAME`.
    Queue(&'a str),
    /// A cell, by its name.
    Cell(&'a str),
    /// A path of HTTP.
    Path(&'a str),
}

/// What a peer wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessRequest<'a> {
    /// By which way it came.
    pub protocol: Protocol,
    /// The protocol's own name for it: a method, an API, a message.
    pub operation: &'a str,
    /// To what.
    pub resource: Resource<'a>,
}

/// That a peer may not do what it wants, and why, in words for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(pub String);

/// Decides. It is asked once for each resource that a request names, on the thread that serves the connection: it must
/// not block.
pub trait Authorizer: Send + Sync + 'static {
    /// Whether `peer` may do what it wants.
    fn authorize(&self, peer: &Peer, request: AccessRequest<'_>) -> Result<(), Denied>;

    /// Whether something is shown to `peer`, who asked for all there is: that it is not is no refusal to tell of.
    fn shows(&self, peer: &Peer, request: AccessRequest<'_>) -> bool {
        self.authorize(peer, request).is_ok()
    }

    /// Tells when something may have been taken from somebody. Whoever serves what goes on for long (a fetch that
    /// waits, a listener, a connection that reads one-sidedly) asks again then, and ends what is not let any more. What
    /// is taken once this was called is told.
    fn changes(&self) -> RightsChanges {
        RightsChanges::never()
    }
}

/// Lets everybody do everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Everybody;

impl Authorizer for Everybody {
    fn authorize(&self, _: &Peer, _: AccessRequest<'_>) -> Result<(), Denied> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_of_ipv6_count_as_one_and_one_of_ipv4_by_itself_however_it_is_written() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("::ffff:192.0.2.1"), of("::ffff:192.0.2.2"));
    }
}
