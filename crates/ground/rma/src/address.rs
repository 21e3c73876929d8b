//! Where a server is.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Where a server is: `tcp:127.0.0.1:7421`, `tls:10.0.0.5:7421`, `ofi:10.0.0.5:7421` or `unix:/run/cell.sock`. The
/// transport follows from it: over a Unix socket the regions themselves are handed over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// The same in TLS.
    Tls(SocketAddr),
    /// An IP address and port, where READs go over libfabric beside the TCP connection, as far as both ends can.
    Ofi(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// A text that is no [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an address: write tcp:IP:PORT, tls:IP:PORT, ofi:IP:PORT or unix:PATH")]
pub struct AddressError {
    /// The text.
    pub text: String,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError { text: text.to_owned() };
        match text.split_once(':') {
            Some(("tcp", rest)) => rest.parse().map(Address::Tcp).map_err(|_| error()),
            Some(("tls", rest)) => rest.parse().map(Address::Tls).map_err(|_| error()),
            Some(("ofi", rest)) => rest.parse().map(Address::Ofi).map_err(|_| error()),
            Some(("unix", rest)) if !rest.is_empty() => Ok(Address::Unix(rest.into())),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "tcp:{address}"),
            Address::Tls(address) => write!(f, "tls:{address}"),
            Address::Ofi(address) => write!(f, "ofi:{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_they_are_shown() {
        for text in [
            "tcp:127.0.0.1:7421",
            "tcp:[::1]:80",
            "tls:10.0.0.5:1",
            "ofi:[fe80::1]:7421",
            "unix:/run/cell.sock",
            "unix:relative:odd",
        ] {
            let address: Address = text.parse().expect("it is one");
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_named_in_the_error() {
        for text in [
            "",
            "tcp",
            "tcp:",
            "tcp:localhost:80",
            "tcp:127.0.0.1",
            "tls:host:1",
            "ofi:1",
            "unix:",
            "udp:127.0.0.1:1",
        ] {
            let error = text.parse::<Address>().expect_err("it is none");
            assert_eq!(error.text, text);
        }
    }
}
