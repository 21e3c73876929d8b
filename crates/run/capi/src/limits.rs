//! Every bound of this crate, with its unit and its reason.

/// Threads that carry out what callers started with a notifier, and what clients do in the background. Callers that
/// wait carry their operations out themselves.
pub const THREADS: usize = 2;

/// Keys, items, seeds or shards in one call, at most: far more than one lookup asks for at once.
pub const ITEMS_MAX: usize = 65_536;

/// Operations of one notifier that are under way, or done and not taken, at most. Each may wait for a backend that is
/// gone as long as its deadline.
pub const NOTIFIER_OPERATIONS_MAX: usize = 65_536;

/// The longest text that is taken, in bytes: an address, a name or a path.
pub const TEXT_BYTES_MAX: usize = 4_096;

/// The longest deadline of a cell's operations, in milliseconds: an hour, as on the command line.
pub const DEADLINE_MS_MAX: u32 = 3_600_000;
