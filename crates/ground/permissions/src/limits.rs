//! Bounds of rules and of the audit.

/// Rules that a node keeps at most: each is in memory and is looked at in every decision about its principal.
pub const RULES_MAX: usize = 10_000;
/// Bytes of a principal's name in a rule: more than a certificate's subject has.
pub const PRINCIPAL_BYTES_MAX: usize = 1024;
/// Bytes of a resource's name in a rule: Kafka's longest name of a topic, and an account before a queue's.
pub const RESOURCE_BYTES_MAX: usize = 512;
/// Rules that one request adds or removes at most, so that it is one commit of the metadata.
pub const CHANGES_MAX: usize = 500;
/// Events of the audit that wait to be written: beyond them events are dropped, and counted.
pub const AUDIT_WAITING_MAX: usize = 4096;
/// Bytes of the audit's file, from which on it is put aside as `FILE.1` and begun anew.
pub const AUDIT_FILE_BYTES_MAX: u64 = 256 << 20;
/// Characters of a name that are kept in an event: a peer names what it likes, at any length.
pub const AUDIT_NAME_CHARS_MAX: usize = 256;
/// How often a change of rules is tried again when another node has changed the same meanwhile.
pub const CONFLICTS_MAX: usize = 16;
