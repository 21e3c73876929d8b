//! Versioned keys, leases and watches, kept through the journal.
