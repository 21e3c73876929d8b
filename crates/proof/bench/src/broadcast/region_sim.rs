//! `bench broadcast 5b|6|7|many`: regions of a thousand clients, in simulated time, by the same protocol code that runs
//! on real connections (section 5.2 and 5.3 of Sprinkler).
//!
//! What the paper's pictures held and its text does not is chosen here: latencies of 11, 31 and 35 ms one way between
//! two regions on the west coast and one on the east coast, and for figure 8 a fourth region 15 ms from the third.

mod costs;
pub mod figures;
mod net;
mod watch;
mod world;
