//! The answers, a file for each thing that clients ask about.

pub(crate) mod cluster;
pub(crate) mod configs;
pub(crate) mod consumer_groups;
pub(crate) mod fetch;
pub(crate) mod group_admin;
pub(crate) mod groups;
pub(crate) mod metadata;
pub(crate) mod offsets;
pub(crate) mod positions;
pub(crate) mod produce;
pub(crate) mod security;
pub(crate) mod topics;
pub(crate) mod versions;
