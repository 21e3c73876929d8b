//! Kafka's wire format: the primitive types, in both forms.
//!
//! ```text
//!                   plain                     flexible (compact)
//! string, bytes     length i16 / i32, -1 null unsigned varint of length + 1, 0 null
//! array             count i32, -1 null        unsigned varint of count + 1, 0 null
//! end of a struct   -                         tagged fields: count, then number, length, value of each
//! ```
//!
//! Which form a message has, and which fields, follows from its API and version: [`Reader`] and [`Writer`] carry both,
//! and the tables in [`crate::messages`] say for each field from which version to which one it is there. One table
//! serves for reading and writing, requests and responses, so the tests can send every message through both.
//!
//! What holds for reading: nothing panics on any bytes; no count or length is believed before as many bytes are there;
//! all arrays of a message together have at most [`ITEMS_MAX`] items, or what its reader was told, so the memory that
//! a message takes is bounded by its frame and by that.

#[macro_use]
mod table;
mod reader;
mod types;
mod writer;

pub use reader::{ITEMS_MAX, Malformed, Reader};
pub use types::{RecordsBytes, Wire};
pub use writer::{Frame, TooLong, Writer};

#[cfg(test)]
mod tests;
