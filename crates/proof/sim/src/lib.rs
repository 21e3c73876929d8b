//! The seeded world behind `env`: its executor, disk, regions and checkers, and the scenarios that run in it.
//!
//! Everything that happens in a [`World`] follows from its seed: the order in which tasks run, how long things
//! take, what a crash leaves on a disk, which messages arrive. So a failure is a number, and running that
//! number again shows the failure again. The code that runs in it is the real code of the other crates, given
//! an `Env` (and connections) from here.

mod checkers;
pub mod chunks;
mod disk;
mod log_source;
mod net;
mod planted;
mod rng;
pub mod scenarios;
mod trace;
mod world;

pub use checkers::{DeliveryLedger, RecordId, Report, ShardChecker, Violation, ensure};
pub use disk::{Fault, Faults, SECTOR_BYTES, SimDisk};
pub use net::{Net, SILENCE_MAX, Weather};
pub use planted::Plant;
pub use rng::Rng;
pub use trace::{Event, Trace};
pub use world::{Crash, Crashed, Node, Outside, STEPS_MAX_DEFAULT, StuckWorld, World, run_on};
