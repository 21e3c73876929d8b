//! What stands for libfabric in a program that is built without it.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tailwater_env::Env;

use crate::frame::FabricReply;
use crate::service::Service;

/// None can be started.
pub(crate) enum FabricHost {}

impl FabricHost {
    pub(crate) fn start(_: &Env, _: &str, _: IpAddr, _: Arc<dyn Service>) -> io::Result<Self> {
        let why = "this program is built without libfabric: build it with the feature ofi, or all of them (`make dist`)";
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    pub(crate) fn told(&self) -> Arc<FabricReply> {
        match *self {}
    }

    pub(crate) fn renew(&self) {
        match *self {}
    }
}
