//! On whose behalf somebody asks. Every CALL to the node, and every request to its admin HTTP, passes through
//! [`authorize`]: the place where authentication and authorization are decided for them. SQS has accounts of its own,
//! with keys and policies; Kafka's clients, listeners to broadcasts and those who write to a cell's backend are let in by
//! whoever lets them reach the port.

use tailwater_format::call::CallRefusal;

/// Whether `principal`, at `address`, may do `what`: a CALL's name, or a request's method and path. Everybody who
/// reaches the node may: it binds to loopback unless it is told otherwise, and whoever tells it otherwise puts it into a
/// network that he trusts.
pub fn authorize(principal: &str, address: &str, what: &str) -> Result<(), CallRefusal> {
    tracing::trace!(principal, address, what, "asked");
    Ok(())
}
