//! Who a client is, as far as its certificate says that.

use std::sync::Arc;

use tailwater_access::Peer;

/// A client that has shown a certificate, which is of one of the CAs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The subject, as RFC 4514 writes it: `CN=alice,O=Example`. Empty where it has none.
    pub subject: String,
    /// The alternative names: `DNS:host`, `IP:10.0.0.5`, `URI:spiffe://example/alice`, `email:alice@example.com`.
    pub names: Arc<[String]>,
}

impl ClientIdentity {
    /// The client as who asks, from `address`: by its subject, or by its first name where it has no subject.
    pub fn peer(&self, address: String) -> Peer {
        let principal = match (self.subject.as_str(), self.names.first()) {
            ("", Some(name)) => name,
            // Nobody is called so.
            ("", None) => "certificate without a name",
            (subject, _) => subject,
        };
        Peer { address, principal: principal.into(), names: Arc::clone(&self.names) }
    }
}
