//! Who may do what to what: rules, where they are kept, and the authorizer that goes by them.
//!
//! A rule lets or forbids a principal an operation on resources of one kind, by their name or by how their names begin
//! ([`AccessRule`]). They mean what Kafka's access control lists mean, for every protocol: [`need`] says which
//! operation each request of each protocol is. A node keeps its rules in its metadata ([`Rules`]).
//!
//! What holds, once rules are enforced:
//! - What no rule lets is refused, and what a rule forbids is refused, whatever another one lets.
//! - A request that this crate does not know needs the right to alter the node.
//! - A changed rule holds for the next request after it is durable, and whoever serves what goes on for long is told.
//! - Super users may do everything, and no rule is about them.
//! - To decide waits for nothing and tells nobody whether what is named exists.

mod audit;
pub mod limits;
mod need;
mod rule;
mod rules;
mod subject;

pub use audit::{Audit, AuditEvent, AuditStats};
pub use need::{Need, need};
pub use rule::{AccessRule, Effect, Operation, ResourceKind, RuleError};
pub use rules::{Enforcement, RuleFilter, Rules, RulesStats};
pub use subject::SubjectMapping;
