//! Figures of the listeners in TLS.

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlsStats {
    /// Handshakes that came to a connection.
    pub handshakes: u64,
    /// Handshakes that did not; clients that said nothing are not among them.
    pub failed: u64,
    /// Times that new certificates were taken.
    pub reloads: u64,
    /// Times that files had changed and could not be used.
    pub reloads_failed: u64,
}
