//! Users with passwords, and how they log in, whatever the protocol.
//!
//! A node keeps its [`Users`] in its metadata, without their passwords: what it keeps of one suffices to check a
//! password, and not to log in elsewhere with it (RFC 5802). A server that wants its clients to log in begins a
//! `Login` for each connection, hands it what the client sends, and sends back what it says, until it says who the
//! client is. A program may show a token in place of a name and a password (`Tokens`).
//!
//! What holds:
//! - Nobody learns from an answer, or from the time that it takes, whether a user exists.
//! - A password is in no log line and in no debug output.
//! - An address that guesses wrong too often is not listened to for a while, and has few connections before it logs in.
//! - Whoever has logged in goes on until the user, or the token, is removed, or its time is over (`LoginSession`).
//! - What a client sends is bounded before it is looked at ([`limits`]), and checks that take long wait for each other.
//!
//! A client's side of it is here as well ([`ClientLogin`]), and needs none of the rest: that is behind the feature
//! `server`.

mod client;
#[cfg(feature = "server")]
mod credentials;
#[cfg(feature = "server")]
mod following;
#[cfg(feature = "fuzz")]
pub mod fuzz;
#[cfg(feature = "server")]
mod guesses;
mod hash;
#[cfg(feature = "server")]
pub mod http;
#[cfg(feature = "jwt")]
mod jwt;
pub mod limits;
#[cfg(feature = "server")]
mod login;
mod mechanism;
#[cfg(feature = "server")]
mod scram;
#[cfg(feature = "server")]
mod session;
#[cfg(feature = "server")]
mod tokens;
#[cfg(feature = "server")]
mod users;

pub use client::{ClientExchange, ClientLogin};
#[cfg(feature = "jwt")]
pub use jwt::{JwtIssuer, JwtKeys};
#[cfg(feature = "server")]
pub use login::{Login, LoginError, LoginStep};
pub use mechanism::Mechanism;
#[cfg(feature = "server")]
pub use session::LoginSession;
#[cfg(feature = "server")]
pub use tokens::{TokenBearer, TokenInfo, Tokens};
#[cfg(feature = "server")]
pub use users::{LoginStats, RefusedLogin, SaltedPassword, ScramChange, UserError, Users};
