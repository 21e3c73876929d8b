//! One rule, and what it says of a request.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::{PRINCIPAL_BYTES_MAX, RESOURCE_BYTES_MAX};

/// What stands for all: every principal, every resource of a kind, every host.
pub(crate) const ALL: &str = "*";

/// Whether a rule lets or forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It lets.
    Allow,
    /// It forbids, whatever another rule lets.
    Deny,
}

/// What can be done to a resource: Kafka's operations, which the other protocols' are mapped on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// All of them.
    All,
    /// Records, messages, events and values are read; a group's member joins it and commits.
    Read,
    /// Records, messages, events and values are written.
    Write,
    /// It is created.
    Create,
    /// It is deleted, or what it holds.
    Delete,
    /// It is changed.
    Alter,
    /// What it is like is told, and that it is there.
    Describe,
    /// What only one node does with another.
    ClusterAction,
    /// Its configuration is told.
    DescribeConfigs,
    /// Its configuration is changed.
    AlterConfigs,
    /// A producer id is given. Whoever may write to any stream may have one.
    IdempotentWrite,
}

impl Operation {
    /// All that there are.
    pub const EVERY: [Operation; 11] = [
        Operation::All,
        Operation::Read,
        Operation::Write,
        Operation::Create,
        Operation::Delete,
        Operation::Alter,
        Operation::Describe,
        Operation::ClusterAction,
        Operation::DescribeConfigs,
        Operation::AlterConfigs,
        Operation::IdempotentWrite,
    ];

    /// Its name, as it is written in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::All => "all",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Create => "create",
            Operation::Delete => "delete",
            Operation::Alter => "alter",
            Operation::Describe => "describe",
            Operation::ClusterAction => "cluster_action",
            Operation::DescribeConfigs => "describe_configs",
            Operation::AlterConfigs => "alter_configs",
            Operation::IdempotentWrite => "idempotent_write",
        }
    }

    /// Whether who may do this may also do `other`: who reads, writes, deletes or alters something is told of it.
    pub(crate) fn implies(self, other: Operation) -> bool {
        use Operation::*;
        self == All
            || self == other
            || match other {
                Describe => matches!(self, Read | Write | Delete | Alter),
                DescribeConfigs => self == AlterConfigs,
                _ => false,
            }
    }

    /// Whether it leaves everything as it is.
    pub const fn only_looks(self) -> bool {
        matches!(self, Operation::Read | Operation::Describe | Operation::DescribeConfigs)
    }
}

impl FromStr for Operation {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let found = Self::EVERY.into_iter().find(|operation| operation.name() == text.to_ascii_lowercase());
        found.ok_or_else(|| {
            let all = Self::EVERY.map(Self::name).join(", ");
            RuleError::Invalid(format!("there is no operation {text:?}: {all}"))
        })
    }
}

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceKind {
    /// A stream of the log: a topic of Kafka's.
    Stream,
    /// A group of Kafka's.
    Group,
    /// A stream of broadcasts, as `REGION/NAME`.
    Broadcast,
    /// A queue, as `ACCOUNT/NAME`.
    Queue,
    /// A cell, by its name.
    Cell,
    /// The node as a whole: Kafka's cluster. It has one name, [`ResourceKind::NODE_NAME`].
    Node,
}

impl ResourceKind {
    /// All that there are.
    pub const EVERY: [ResourceKind; 6] = [
        ResourceKind::Stream,
        ResourceKind::Group,
        ResourceKind::Broadcast,
        ResourceKind::Queue,
        ResourceKind::Cell,
        ResourceKind::Node,
    ];
    /// The name of the one resource of the kind [`ResourceKind::Node`], as Kafka's clients know it.
    pub const NODE_NAME: &str = "kafka-cluster";

    /// Its name, as it is written in rules.
    pub const fn name(self) -> &'static str {
        match self {
            ResourceKind::Stream => "stream",
            ResourceKind::Group => "group",
            ResourceKind::Broadcast => "broadcast",
            ResourceKind::Queue => "queue",
            ResourceKind::Cell => "cell",
            ResourceKind::Node => "node",
        }
    }
}

/// Why a rule is not as it should be, or is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A rule that can't be one, or one too many.
    #[error("{0}")]
    Invalid(String),
    /// The metadata can't be read or written.
    #[error("{0}")]
    Unavailable(String),
}

/// Lets or forbids a principal an operation on some resources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AccessRule {
    /// Whom: a user's name, a certificate's subject, an account; `*` for everybody, also whom nobody authenticated.
    pub principal: String,
    /// Whether it lets or forbids.
    pub effect: Effect,
    /// What.
    pub operation: Operation,
    /// Of which kind the resources are.
    pub kind: ResourceKind,
    /// Their name, or how their names begin; `*` for all.
    pub name: String,
    /// Whether `name` is how their names begin.
    pub is_prefix: bool,
    /// From where: an address, or `*`. Unix sockets have none, so only `*` is about them.
    pub host: String,
}

impl AccessRule {
    /// Whether it can be a rule.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn check(&self) -> Result<(), RuleError> {
        let invalid = |why: String| Err(RuleError::Invalid(why));
        if self.principal.is_empty() || self.principal.len() > PRINCIPAL_BYTES_MAX {
            return invalid(format!(
                "a principal has 1 to {PRINCIPAL_BYTES_MAX} bytes: a user's name, a certificate's subject, or {ALL:?}"
            ));
        }
        if self.name.is_empty() || self.name.len() > RESOURCE_BYTES_MAX {
            return invalid(format!(
                "a resource's name has 1 to {RESOURCE_BYTES_MAX} bytes, or is {ALL:?} for all"
            ));
        }
        if self.is_prefix && self.name == ALL {
            return invalid(format!("{ALL:?} is a name for all, and no beginning of one"));
        }
        if self.kind == ResourceKind::Node && (self.is_prefix || !self.is_about_the_node()) {
            return invalid(format!("the node has the name {:?}", ResourceKind::NODE_NAME));
        }
        if self.host != ALL && self.host.parse::<IpAddr>().is_err() {
            return invalid(format!("{:?} is no address, as in 10.0.0.5, and not {ALL:?}", self.host));
        }
        Ok(())
    }

    fn is_about_the_node(&self) -> bool {
        self.name == ResourceKind::NODE_NAME || self.name == ALL
    }

    /// Whether it is about a resource of its kind with this name.
    pub(crate) fn covers(&self, name: &str) -> bool {
        match self.is_prefix {
            true => name.starts_with(&self.name),
            false => self.name == ALL || self.name == name,
        }
    }

    /// Whether it is about who asks from there.
    pub(crate) fn is_from(&self, host: Option<IpAddr>) -> bool {
        self.host == ALL
            || host.is_some_and(|host| {
                self.host.parse::<IpAddr>().is_ok_and(|own| own.to_canonical() == host.to_canonical())
            })
    }

    /// Whether it decides about `operation`. A rule that forbids is about what it says alone: to forbid reading does
    /// not hide what is not read.
    pub(crate) fn is_about(&self, operation: Operation) -> bool {
        match self.effect {
            Effect::Allow => self.operation.implies(operation),
            Effect::Deny => self.operation == Operation::All || self.operation == operation,
        }
    }
}

/// As people write it: `allow alice read stream news*`.
impl fmt::Display for AccessRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let effect = if self.effect == Effect::Allow { "allow" } else { "deny" };
        let (operation, kind) = (self.operation.name(), self.kind.name());
        write!(f, "{effect} {} {operation} {kind} {}", self.principal, self.name)?;
        if self.is_prefix {
            f.write_str(ALL)?;
        }
        match self.host.as_str() {
            ALL => Ok(()),
            host => write!(f, " from {host}"),
        }
    }
}
