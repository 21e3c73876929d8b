//! Bounds.

/// Users of a node.
pub const USERS_MAX: usize = 10_000;

/// Bytes of a user's name.
pub const NAME_BYTES_MAX: usize = 128;

/// Bytes of a password.
pub const PASSWORD_BYTES_MAX: usize = 1_024;

/// Bytes of a password: a shorter one is guessed.
pub const PASSWORD_BYTES_MIN: usize = 8;

/// Bytes of what a client sends at once to log in.
pub const MESSAGE_BYTES_MAX: usize = 4_096;

/// How often a password is hashed. Whoever guesses pays for it, and so do the clients of SCRAM; Kafka's brokers take
/// 4,096 to 16,384.
pub const ITERATIONS: u32 = 8_192;

/// Iterations that a stored user may have.
pub const ITERATIONS_MAX: u32 = 1 << 20;

/// Passwords that are hashed at the same time: each takes some milliseconds of a thread that others wait for.
pub const HASHES_MAX: usize = 1;
