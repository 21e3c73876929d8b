//! What every store of metadata provides.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::BoxFuture;

use crate::lease::Lease;
use crate::limits::{COMMIT_BYTES_MAX, KEY_BYTES_MAX, KEYS_BYTES_MAX, OPS_MAX, VALUE_BYTES_MAX};
use crate::watch::Watch;

/// A value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The value.
    pub value: Bytes,
    /// Of the commit that wrote it, from 1. It says whether a key is as it was: it is compared for equality, and with
    /// versions of the same key only. A key that is deleted and written again has another one.
    pub version: u64,
}

/// What [`Meta::list`] has in place of a value that can't be read: nothing that anybody puts, and no program takes it
/// for anything of its own.
pub const UNREADABLE: &[u8] = &[0xff];

/// What a commit expects of a key before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Any,
    /// That it is not there.
    Absent,
    /// That it is there.
    Present,
    /// That it is there with that version.
    Version(u64),
}

impl Expect {
    /// Whether a key of that version, or none, is what is expected.
    pub fn holds(self, version: Option<u64>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => version.is_none(),
            Self::Present => version.is_some(),
            Self::Version(expected) => version == Some(expected),
        }
    }
}

/// One operation of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes a key.
    Put {
        /// The key.
        key: String,
        /// Its value.
        value: Bytes,
        /// What it has to be before.
        expect: Expect,
    },
    /// Removes a key; one that is not there stays so.
    Delete {
        /// The key.
        key: String,
        /// What it has to be before.
        expect: Expect,
    },
    /// Changes nothing, but is a condition for all others.
    Check {
        /// The key.
        key: String,
        /// What it has to be.
        expect: Expect,
    },
}

impl Op {
    /// The key it is about.
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key, .. } | Self::Check { key, .. } => key,
        }
    }

    /// What it expects of the key.
    pub fn expect(&self) -> Expect {
        match self {
            Self::Put { expect, .. } | Self::Delete { expect, .. } | Self::Check { expect, .. } => *expect,
        }
    }
}

/// Why there is no answer, or not the one wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// An expectation did not hold; nothing was changed.
    #[error("{key:?} is not what the commit expects")]
    Conflict {
        /// The first operation's key whose expectation did not hold.
        key: String,
    },
    /// The request can't be carried out by anybody; nothing was changed.
    #[error("not a possible request: {0}")]
    Invalid(String),
    /// The store can't answer. A commit is not visible, but may become so after a restart: read before trying
    /// it again, or let its expectations tell.
    #[error("metadata is not available: {0}")]
    Unavailable(String),
    /// Another process has taken over what is kept in the metadata, and is the only one that may change it from now on;
    /// nothing was changed.
    #[error("this process may not change the metadata any more: {0}")]
    TakenOver(String),
}

/// An answer of [`Meta`].
pub type FromMeta<'a, T> = BoxFuture<'a, Result<T, MetaError>>;

/// Versioned keys.
///
/// Keys are UTF-8, at most [`KEY_BYTES_MAX`] bytes, not empty; values at most [`VALUE_BYTES_MAX`].
///
/// - **Order.** Commits are atomic and in one order. Once a commit is answered, every later `get`, `list` and `commit`,
///   by anyone, sees it. Nobody sees a commit before it is durable.
/// - **Conflicts are exact.** `Conflict` is answered only if an expectation did not hold of the state between
///   two durable commits, and a `get` after it shows that state or a later one.
/// - **One process commits.** Where several can reach the same metadata, one of them may change it, and the others
///   are answered `TakenOver`. So a commit that is answered, one without operations too, says that the process was
///   still the one when it was carried out.
/// - **Cancellation.** Dropping the future of a commit leaves it open whether it is carried out. Dropping any
///   other future has no effect.
/// - **After the end** of the store everything answers `Unavailable`.
pub trait Meta: Send + Sync + 'static {
    /// A key's value, or `None`.
    fn get<'a>(&'a self, key: &'a str) -> FromMeta<'a, Option<Versioned>>;

    /// All keys that begin with `prefix` (all keys, if it is empty), in ascending order of their bytes. Each is as it
    /// was at some time during the call: of commits that are carried out meanwhile a part may be seen. A value that
    /// can't be read keeps nobody from the others: it is [`UNREADABLE`] here, and `Unavailable` from `get`.
    fn list<'a>(&'a self, prefix: &'a str) -> FromMeta<'a, Vec<(String, Versioned)>>;

    /// Carries out all operations, or none. All expectations are about the state before the commit, and a key
    /// may be changed only once in it. The answer is the version that all keys written by it have; if nothing
    /// was written, one that says nothing.
    fn commit(&self, ops: Vec<Op>) -> FromMeta<'_, u64>;

    /// Follows the keys that begin with `prefix`. Every change after this is answered comes as an event, in
    /// order; if several follow each other quickly, a key's earlier ones may be left out. So: watch first, then
    /// list, then follow.
    fn watch<'a>(&'a self, prefix: &'a str) -> FromMeta<'a, Watch>;

    /// Writes a key that is not there (`Conflict` if it is), for as long as the lease lives: until the answered
    /// [`Lease`] is dropped, or could not be renewed for `ttl`, or the store restarts, or somebody deletes the
    /// key. A store across a network goes by the time to live of its session, in place of `ttl`. A `Check` of the key
    /// with [`Lease::version`] makes a commit depend on it. A commit can't `Put` it.
    fn lease<'a>(&'a self, key: &'a str, value: Bytes, ttl: Duration) -> FromMeta<'a, Lease>;
}

/// Whether a commit is within the limits and changes no key twice, for whoever implements [`Meta`].
///
/// # Errors
/// `Invalid`.
pub fn check_ops(ops: &[Op]) -> Result<(), MetaError> {
    if ops.len() > OPS_MAX {
        return Err(MetaError::Invalid(format!("{} operations in one commit, {OPS_MAX} at most", ops.len())));
    }
    let mut changed = BTreeSet::new();
    let (mut bytes, mut keys_bytes) = (0, 0);
    for op in ops {
        check_key(op.key())?;
        keys_bytes += op.key().len();
        if let Op::Put { key, value, .. } = op {
            bytes += value.len();
            check_value(key, value)?;
        }
        if !matches!(op, Op::Check { .. }) && !changed.insert(op.key()) {
            return Err(MetaError::Invalid(format!("{:?} is changed twice in one commit", op.key())));
        }
    }
    if keys_bytes > KEYS_BYTES_MAX {
        return Err(MetaError::Invalid(format!(
            "a commit with {keys_bytes} bytes of keys, {KEYS_BYTES_MAX} at most"
        )));
    }
    bytes += keys_bytes;
    // Leaves room for what encoding adds to each operation.
    if bytes + ops.len() * 32 > COMMIT_BYTES_MAX {
        return Err(MetaError::Invalid(format!("a commit of {bytes} bytes, {COMMIT_BYTES_MAX} at most")));
    }
    Ok(())
}

/// Whether a key is within the limits, for whoever implements [`Meta`].
///
/// # Errors
/// `Invalid`.
pub fn check_key(key: &str) -> Result<(), MetaError> {
    match key.len() {
        0 => Err(MetaError::Invalid("a key is empty".to_owned())),
        length if length > KEY_BYTES_MAX => {
            Err(MetaError::Invalid(format!("a key of {length} bytes, {KEY_BYTES_MAX} at most")))
        }
        _ => Ok(()),
    }
}

/// Whether a key's value is within the limits, for whoever implements [`Meta`].
///
/// # Errors
/// `Invalid`.
pub fn check_value(key: &str, value: &[u8]) -> Result<(), MetaError> {
    if value.len() > VALUE_BYTES_MAX {
        let length = value.len();
        let reason = format!("the value of {key:?} has {length} bytes, {VALUE_BYTES_MAX} at most");
        return Err(MetaError::Invalid(reason));
    }
    Ok(())
}
