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

/// How long before its end a certificate is worth a warning.
pub const EXPIRY_WARNING: Duration = Duration::from_secs(30 * 86_400);
