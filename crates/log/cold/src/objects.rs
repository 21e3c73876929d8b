//! What is asked of a place of cold storage.

use std::fmt;

use bytes::Bytes;
use tailwater_env::BoxFuture;

/// Why cold storage did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColdError {
    /// There is no such object.
    #[error("{0} is not there")]
    Missing(String),
    /// An object is not what was written.
    #[error("{name} is not what was written: {why}")]
    Damaged {
        /// The object.
        name: String,
        /// How it differs.
        why: String,
    },
    /// It does not answer as it should: it is down, slow or full, or lets nobody in.
    #[error("{0}")]
    Unavailable(String),
}

/// An answer of a place of cold storage.
pub type FromCold<'a, T> = BoxFuture<'a, Result<T, ColdError>>;

/// Objects by name, in folders that `/` divides. An object is there as a whole or not at all, and what was put is read
/// by whoever reads it after that. Nobody changes an object: a name tells what is in it.
pub trait ColdObjects: Send + Sync + fmt::Debug {
    /// Puts an object, over one that is there. It survives a crash when this is answered.
    ///
    /// # Errors
    /// `Unavailable`. The object may be there all the same.
    fn put<'a>(&'a self, name: &'a str, bytes: Bytes) -> FromCold<'a, ()>;

    /// The bytes from `from` on, at most `length`; fewer at the object's end, and none at or behind it.
    ///
    /// # Errors
    /// `Missing`, `Unavailable`.
    fn read<'a>(&'a self, name: &'a str, from: u64, length: usize) -> FromCold<'a, Bytes>;

    /// The names right below a folder, without its own: of folders and of objects. None if there is no such folder.
    ///
    /// # Errors
    /// `Unavailable`.
    fn list<'a>(&'a self, folder: &'a str) -> FromCold<'a, Vec<String>>;

    /// Removes everything below a folder; no error if there is nothing.
    ///
    /// # Errors
    /// `Unavailable`. Any part of it may be gone.
    fn remove<'a>(&'a self, folder: &'a str) -> FromCold<'a, ()>;
}
