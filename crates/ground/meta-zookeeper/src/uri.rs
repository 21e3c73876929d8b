//! How a place of metadata is named.

use crate::limits::ROOT_BYTES_MAX;

/// The port of a server that is named without one.
const PORT: &str = "2181";

use tailwater_access::EngineLogin;
use tailwater_tls::Dialer;

/// Where metadata is: `zookeeper://HOST[:PORT][,HOST[:PORT]...]/PATH`. And how the servers are reached, of which a text
/// says nothing.
#[derive(Clone, Debug)]
pub struct MetadataUri {
    pub(crate) servers: String,
    pub(crate) root: String,
    pub(crate) login: Option<EngineLogin>,
    pub(crate) dialer: Dialer,
}

impl MetadataUri {
    /// The same with a login, by SASL with DIGEST-MD5: the password is not sent.
    #[must_use]
    pub fn with_login(self, login: Option<EngineLogin>) -> Self {
        Self { login, ..self }
    }

    /// The same with connections by `dialer`: in TLS, if it trusts anybody. A server's certificate has to be for its
    /// host as it is named here.
    #[must_use]
    pub fn with_dialer(self, dialer: Dialer) -> Self {
        Self { dialer, ..self }
    }
}

/// Why a text is no place of metadata.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not of the form zookeeper://HOST[:PORT][,HOST[:PORT]...]/PATH, with a path of letters, digits, \
     dots, underscores, hyphens and slashes, and of {ROOT_BYTES_MAX} bytes at most"
)]
pub struct MetadataUriFault(String);

impl std::str::FromStr for MetadataUri {
    type Err = MetadataUriFault;

    fn from_str(text: &str) -> Result<Self, MetadataUriFault> {
        let parsed = || {
            let (servers, path) = text.strip_prefix("zookeeper://")?.split_once('/')?;
            let path = path.trim_end_matches('/');
            let is_name = |part: &str| {
                let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
                !matches!(part, "" | "." | "..") && part.bytes().all(is_plain)
            };
            // ZooKeeper's own nodes are below that name.
            if path.len() >= ROOT_BYTES_MAX || path == "zookeeper" || !path.split('/').all(is_name) {
                return None;
            }
            let servers: Option<Vec<String>> = servers.split(',').map(with_port).collect();
            Some(Self {
                servers: servers?.join(","),
                root: format!("/{path}"),
                login: None,
                dialer: Dialer::plain(),
            })
        };
        parsed().ok_or_else(|| MetadataUriFault(text.to_owned()))
    }
}

fn with_port(server: &str) -> Option<String> {
    let (host, port) = server.rsplit_once(':').unwrap_or((server, PORT));
    let is_named = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'@');
    (is_named && port.parse::<u16>().is_ok()).then(|| format!("{host}:{port}"))
}

impl std::fmt::Display for MetadataUri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "zookeeper://{}{}", self.servers, self.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_servers_and_a_path() {
        let uri: MetadataUri = "zookeeper://zk1,zk2:2182/tailwater/eu/".parse().expect("a place");
        assert_eq!(uri.to_string(), "zookeeper://zk1:2181,zk2:2182/tailwater/eu");
        for wrong in [
            "zookeeper://zk1",
            "zookeeper://zk1/",
            "zookeeper:///tailwater",
            "zookeeper://zk1:port/tailwater",
            "zookeeper://zk1/zookeeper",
            "zookeeper://zk1/tail water",
            "zookeeper://zk1/a//b",
            "zookeeper://zk1/../b",
            "zookeeper://zk1/a-path-that-is-longer-than-is-allowed",
            "bookkeeper://zk1/tailwater",
        ] {
            let fault = wrong.parse::<MetadataUri>().expect_err(wrong).to_string();
            assert!(fault.contains(wrong), "{fault}");
        }
    }
}
