//! The clusters that a cluster knows, by name.

use std::str::FromStr;

use prost::Message;
use tailwater_rma::Address;

use crate::error::CopyError;
use crate::limits::ADDRESS_BYTES_MAX;

/// Where they are in metadata, each below its name.
pub(crate) const PREFIX: &str = "copy/cluster/";

/// A cluster that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownCluster {
    /// Its name.
    pub name: String,
    /// Where its node listens for CALLs: `tcp:IP:PORT`, `tls:IP:PORT`.
    pub address: String,
    /// Nothing is copied through it, and no stream is placed there.
    pub is_draining: bool,
}

/// As it is stored. Field numbers are for ever.
#[derive(Clone, PartialEq, Message)]
struct StoredCluster {
    #[prost(string, tag = "1")]
    address: String,
    #[prost(bool, tag = "2")]
    is_draining: bool,
}

impl KnownCluster {
    /// One of that name at that address, which is checked. An address without a scheme is one of `tcp`.
    pub(crate) fn new(name: &str, address: &str) -> Result<Self, CopyError> {
        check_name(name)?;
        let has_scheme = ["tcp:", "tls:"].iter().any(|scheme| address.starts_with(scheme));
        let address = if has_scheme { address.to_owned() } else { format!("tcp:{address}") };
        if address.len() > ADDRESS_BYTES_MAX {
            return Err(CopyError::Invalid(format!("an address of more than {ADDRESS_BYTES_MAX} bytes")));
        }
        Address::from_str(&address).map_err(|error| {
            CopyError::Invalid(format!("{error}: give the address of [listen] data, as in 10.0.0.5:7420"))
        })?;
        Ok(Self { name: name.to_owned(), address, is_draining: false })
    }

    pub(crate) fn key(name: &str) -> String {
        format!("{PREFIX}{name}")
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        StoredCluster { address: self.address.clone(), is_draining: self.is_draining }.encode_to_vec()
    }

    pub(crate) fn decode(key: &str, value: &[u8]) -> Result<Self, CopyError> {
        let unreadable = |error: &dyn std::fmt::Display| CopyError::Unavailable(format!("{key}: {error}"));
        let stored = StoredCluster::decode(value).map_err(|error| unreadable(&error))?;
        let known = Self::new(key.trim_start_matches(PREFIX), &stored.address)?;
        Ok(Self { is_draining: stored.is_draining, ..known })
    }
}

/// Whether a cluster may have that name.
pub(crate) fn check_name(name: &str) -> Result<(), CopyError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let most = tailwater_trees::limits::CLUSTER_NAME_BYTES_MAX;
    if (1..=most).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    let shown: String = name.chars().take(most).collect();
    Err(CopyError::Invalid(format!("{shown:?} is no name of a cluster: 1 to {most} of a-z A-Z 0-9 . _ -")))
}
