//! Who may use a backend that is a process of its own: whom its flags name.

use tailwater_access::{AccessRequest, Authorizer, Denied, Peer, Resource};

/// Who is let in by a backend. Nobody named is everybody.
#[derive(Debug, Default, clap::Args)]
pub struct BackendRights {
    /// Let this client read, and no client that is not named: the subject of a certificate (CN=orders), one of its
    /// alternative names (DNS:host), a user or a group of the system on --unix (uid:1000, gid:100), or anonymous. The
    /// user that runs the backend may do everything. You may give it several times.
    #[arg(long, value_name = "NAME")]
    reader: Vec<String>,
    /// Let this client do everything, and no client that is not named. Name the nodes that write to the cell, and its
    /// other backends. You may give it several times.
    #[arg(long, value_name = "NAME")]
    writer: Vec<String>,
}

impl BackendRights {
    /// With those who may do everything anyhow.
    pub fn with_own(mut self) -> Self {
        if !(self.reader.is_empty() && self.writer.is_empty()) {
            let own = [rustix::process::geteuid(), rustix::process::Uid::ROOT];
            self.writer.extend(own.map(|uid| Peer::principal_of_uid(uid.as_raw())));
        }
        self
    }
}

impl Authorizer for BackendRights {
    fn authorize(&self, peer: &Peer, request: AccessRequest<'_>) -> Result<(), Denied> {
        let is_of = |names: &[String]| {
            names.iter().any(|name| **name == *peer.principal || peer.names.contains(name))
        };
        let is_everybodys = self.reader.is_empty() && self.writer.is_empty();
        match is_everybodys || is_of(&self.writer) || (request.operation == "read" && is_of(&self.reader)) {
            true => Ok(()),
            false => {
                let Resource::Cell(cell) = request.resource else {
                    return Err(Denied(format!("{} is not let do this", peer.principal)));
                };
                Err(Denied(format!(
                    "{} may not {} the cell {cell}: --reader and --writer name who may",
                    peer.principal, request.operation
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tailwater_access::Protocol;

    use super::*;

    fn may(rights: &BackendRights, principal: &str, names: &[&str], operation: &str) -> bool {
        let names: Arc<[String]> = names.iter().map(|name| (*name).to_owned()).collect();
        let peer = Peer { names, ..Peer::of("127.0.0.1:1".to_owned(), principal) };
        let request = AccessRequest { protocol: Protocol::Cell, operation, resource: Resource::Cell("data") };
        rights.authorize(&peer, request).is_ok()
    }

    #[test]
    fn who_is_named_to_read_reads_and_who_is_named_to_write_does_everything_and_nobody_else_anything() {
        let rights =
            BackendRights { reader: vec!["CN=reader".to_owned()], writer: vec!["DNS:node".to_owned()] };
        let rights = rights.with_own();
        let own = Peer::principal_of_uid(rustix::process::geteuid().as_raw());
        for operation in ["read", "mutate", "configure", "clear"] {
            assert_eq!(may(&rights, "CN=reader", &[], operation), operation == "read", "{operation}");
            assert!(may(&rights, "CN=node", &["DNS:node"], operation));
            assert!(may(&rights, &own, &[], operation));
            assert!(!may(&rights, "CN=other", &["DNS:other"], operation));
        }
    }

    #[test]
    fn where_nobody_is_named_everybody_may_do_everything() {
        assert!(may(&BackendRights::default().with_own(), "anonymous", &[], "clear"));
    }
}
