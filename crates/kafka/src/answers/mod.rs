//! The answers, a file for each thing that clients ask about.

pub(crate) mod cluster;
pub(crate) mod configs;
pub(crate) mod fetch;
pub(crate) mod metadata;
pub(crate) mod positions;
pub(crate) mod produce;
pub(crate) mod security;
pub(crate) mod topics;
pub(crate) mod versions;
