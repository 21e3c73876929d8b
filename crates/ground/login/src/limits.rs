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

/// Iterations that are taken from whoever hashed a password himself, as Kafka's brokers take them.
pub const ITERATIONS_MIN: u32 = 4_096;

/// Bytes of a salt.
pub const SALT_BYTES_MAX: usize = 128;

/// Wrong logins of an address, or of a network of IPv6, that are answered as such. One is forgotten after each
/// [`WRONG_FORGOTTEN_AFTER_S`].
pub const WRONG_LOGINS_MAX: u32 = 30;

/// Seconds after which one wrong login is forgotten.
pub const WRONG_FORGOTTEN_AFTER_S: u64 = 2;

/// Addresses whose wrong logins are counted. Where there are more all of them together have what one has.
pub const WRONG_ADDRESSES_MAX: usize = 10_000;

/// Connections of an address that have not logged in.
pub const STRANGERS_MAX: usize = 256;

/// Keys of an issuer of JWTs.
pub const JWT_KEYS_MAX: usize = 100;

/// Bytes of the name that a JWT is of.
pub const JWT_SUBJECT_BYTES_MAX: usize = 256;

/// Tokens of a node.
pub const TOKENS_MAX: usize = 10_000;

/// Iterations that a stored user may have.
pub const ITERATIONS_MAX: u32 = 1 << 20;

/// Iterations that a server may ask of a client of ours: so many keep a core busy for some 50 ms.
pub const ITERATIONS_ASKED_MAX: u32 = 100_000;

/// Passwords that are hashed at the same time: each takes some milliseconds of a thread that others wait for.
pub const HASHES_MAX: usize = 1;

/// How often a change of a user is tried again when another node has changed the same meanwhile.
pub const CONFLICTS_MAX: usize = 16;
