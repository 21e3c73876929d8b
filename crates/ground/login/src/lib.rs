//! Users with passwords, and how they log in, whatever the protocol.
//!
//! A node keeps its [`Users`] in its metadata, without their passwords: what it keeps of one suffices to check a
//! password, and not to log in elsewhere with it (RFC 5802). A server that wants its clients to log in begins a
//! [`Login`] for each connection, hands it what the client sends, and sends back what it says, until it says who the
//! client is.
//!
//! What holds:
//! - Nobody learns from an answer, or from the time that it takes, whether a user exists.
//! - A password is in no log line and in no debug output.
//! - What a client sends is bounded before it is looked at ([`limits`]), and checks that take long wait for each other.

mod credentials;
pub mod limits;
mod login;
mod scram;
mod users;

pub use login::{Login, LoginError, LoginStep, Mechanism};
pub use users::{LoginStats, UserError, Users};
