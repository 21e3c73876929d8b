//! Bounds.

use std::time::Duration;

/// Handshakes at the same time, of all listeners that share their certificates. One more waits for its turn.
pub const HANDSHAKES_MAX: usize = 1_024;

/// How long a handshake may take, with the wait for its turn.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// How often the files of certificates are looked at.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Bytes of a file with certificates or a key.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// How long a client is given to take the word that its connection ends.
pub const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// Connections that a relay carries to one server at the same time: a library has one, and for a moment another one.
pub const RELAYED_MAX: usize = 64;

/// Bytes that a relay reads at a time, for each direction of a connection.
pub const RELAY_BUFFER_BYTES: usize = 16 << 10;

/// How long a relay tries to reach its server, before the library is to try another one.
pub const RELAY_DIAL_DEADLINE: Duration = Duration::from_secs(4);

/// How long a relay waits that could not accept a connection.
pub const RELAY_PAUSE: Duration = Duration::from_millis(100);

/// How long before its end a certificate is worth a warning.
pub const EXPIRY_WARNING: Duration = Duration::from_secs(30 * 86_400);

/// Certificates of a node besides its first one. A client's handshake looks through them.
pub const FURTHER_CERTIFICATES_MAX: usize = 100;
