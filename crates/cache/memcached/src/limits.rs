//! Everything that a client could make grow, with its bound and the reason for it.

use std::time::Duration;

/// The longest key, in bytes, as memcached has it.
pub const KEY_BYTES_MAX: usize = 250;

/// The longest value, in bytes, as memcached has it, and the cell.
pub const VALUE_BYTES_MAX: usize = tailwater_cache::limits::VALUE_BYTES_MAX;

/// The longest command line, in bytes: room for a get of some hundred keys.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Flags of one meta command: there are fewer letters that mean something.
pub const META_FLAGS_MAX: usize = 24;

/// The longest opaque token, in bytes, as memcached has it.
pub const OPAQUE_BYTES_MAX: usize = 32;

/// Keys of a get that are looked up together: the values of as many are in memory at a time.
pub const GET_KEYS_MAX: usize = 16;

/// Answers of one connection that are sent together, in bytes; more are sent before anything else is carried out.
pub const FLUSH_BYTES: usize = 64 << 10;

/// A value of so many bytes is sent from where it is, and a shorter one is copied.
pub const APART_BYTES_MIN: usize = 4 << 10;

/// Values of more bytes than this take room of what all connections share, while they are received or sent.
pub const SMALL_BYTES: usize = 16 << 10;

/// Bytes that are read at once.
pub const READ_BYTES: usize = 16 << 10;

/// Locks by which updates of one key wait for each other; two keys may have the same one.
pub const KEY_LOCKS: usize = 256;

/// Keys whose last access is known.
pub const RECENT_KEYS_MAX: usize = 1 << 16;

/// How long who was refused waits to be told: guesses are not free.
pub const REFUSED_AFTER: Duration = Duration::from_millis(100);

/// How long a client has to log in.
pub const LOGIN_PATIENCE: Duration = Duration::from_secs(30);

/// A pause after the system had no descriptor left for a connection.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Seconds up to which an expiry counts from now, as memcached has it: 30 days. A greater one is a Unix time.
pub const RELATIVE_EXPIRY_S_MAX: i64 = 60 * 60 * 24 * 30;

const _: () = {
    assert!(KEY_BYTES_MAX <= tailwater_cache::limits::KEY_BYTES_MAX, "every key is a key of a cell");
    assert!(SMALL_BYTES <= FLUSH_BYTES && FLUSH_BYTES <= VALUE_BYTES_MAX, "each is part of the next");
    assert!(RECENT_KEYS_MAX.is_power_of_two() && KEY_LOCKS.is_power_of_two(), "both are masks");
};
