//! Rules as Kafka's clients write them: access control lists, in numbers.
//!
//! Kafka has resources of its own: a topic is a stream, its cluster is the node. Rules about what it does not know
//! (queues, broadcasts, cells) are neither shown to its clients nor removed by them.

use tailwater_permissions::{AccessRule, Effect, Operation, ResourceKind, RuleFilter};

use crate::messages::security::{AclCreation, DeleteAclsFilter, DescribeAclsRequest};

/// What is before each principal: other types of principals are not known.
const USER: &str = "User:";

/// In a filter: whatever it is.
const ANY: i8 = 1;
/// In a filter, of a pattern: whatever is about the name.
const MATCH: i8 = 2;
const LITERAL: i8 = 3;
const PREFIXED: i8 = 4;
const DENY: i8 = 2;
const ALLOW: i8 = 3;

/// What a rule is about and its number, for all kinds that Kafka knows.
const KINDS: [(ResourceKind, i8); 3] =
    [(ResourceKind::Stream, 2), (ResourceKind::Group, 3), (ResourceKind::Node, 4)];

/// The number of the first operation, which is all of them; the others follow in order.
const FIRST_OPERATION: i8 = 2;

/// A rule in Kafka's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    pub(crate) resource_type: i8,
    pub(crate) resource_name: String,
    pub(crate) pattern_type: i8,
    pub(crate) principal: String,
    pub(crate) host: String,
    pub(crate) operation: i8,
    pub(crate) permission_type: i8,
}

/// None for a rule about what Kafka does not know.
pub(crate) fn from_rule(rule: &AccessRule) -> Option<Acl> {
    let (_, resource_type) = KINDS.into_iter().find(|(kind, _)| *kind == rule.kind)?;
    let place = Operation::EVERY.iter().position(|operation| *operation == rule.operation)?;
    Some(Acl {
        resource_type,
        resource_name: rule.name.clone(),
        pattern_type: if rule.is_prefix { PREFIXED } else { LITERAL },
        principal: format!("{USER}{}", rule.principal),
        host: rule.host.clone(),
        operation: FIRST_OPERATION + i8::try_from(place).ok()?,
        permission_type: if rule.effect == Effect::Allow { ALLOW } else { DENY },
    })
}

/// # Errors
/// What of it is not known here.
pub(crate) fn to_rule(acl: AclCreation) -> Result<AccessRule, String> {
    let kind = kind_of(acl.resource_type)?;
    let is_prefix = match acl.resource_pattern_type {
        LITERAL => false,
        PREFIXED => true,
        other => return Err(format!("a pattern is literal (3) or prefixed (4), and not {other}")),
    };
    Ok(AccessRule {
        principal: principal_of(&acl.principal)?.to_owned(),
        effect: effect_of(acl.permission_type)?,
        operation: operation_of(acl.operation)?,
        kind,
        name: acl.resource_name,
        is_prefix,
        host: acl.host,
    })
}

/// Which rules a filter means: those that one of the filters takes.
///
/// # Errors
/// What of it is not known here.
pub(crate) fn to_filters(filter: DeleteAclsFilter) -> Result<Vec<RuleFilter>, String> {
    let kinds = match filter.resource_type_filter {
        ANY => KINDS.map(|(kind, _)| kind).to_vec(),
        number => vec![kind_of(number)?],
    };
    let (is_prefix, is_match) = match filter.pattern_type_filter {
        ANY => (None, false),
        MATCH => (None, true),
        LITERAL => (Some(false), false),
        PREFIXED => (Some(true), false),
        other => return Err(format!("there is no pattern type {other}")),
    };
    let effect = (filter.permission_type != ANY).then(|| effect_of(filter.permission_type)).transpose()?;
    let operation = (filter.operation != ANY).then(|| operation_of(filter.operation)).transpose()?;
    let principal = filter.principal_filter.as_deref().map(principal_of).transpose()?.map(str::to_owned);
    let of_kind = |kind| {
        let name = filter.resource_name_filter.clone();
        let (name, about) = if is_match { (None, name) } else { (name, None) };
        RuleFilter {
            principal: principal.clone(),
            effect,
            operation,
            kind: Some(kind),
            name,
            is_prefix,
            about,
            host: filter.host_filter.clone(),
        }
    };
    Ok(kinds.into_iter().map(of_kind).collect())
}

/// What is asked for as what is removed.
pub(crate) fn filter_of(request: DescribeAclsRequest) -> DeleteAclsFilter {
    DeleteAclsFilter {
        resource_type_filter: request.resource_type_filter,
        resource_name_filter: request.resource_name_filter,
        pattern_type_filter: request.pattern_type_filter,
        principal_filter: request.principal_filter,
        host_filter: request.host_filter,
        operation: request.operation,
        permission_type: request.permission_type,
    }
}

fn kind_of(number: i8) -> Result<ResourceKind, String> {
    let known = KINDS.into_iter().find(|(_, own)| *own == number);
    known.map(|(kind, _)| kind).ok_or_else(|| {
        format!("rules are about topics (2), groups (3) and the cluster (4), and not about resources of type {number}")
    })
}

fn operation_of(number: i8) -> Result<Operation, String> {
    let place = number.checked_sub(FIRST_OPERATION).and_then(|place| usize::try_from(place).ok());
    let known = place.and_then(|place| Operation::EVERY.get(place));
    known.copied().ok_or_else(|| format!("there is no operation {number} here"))
}

fn effect_of(number: i8) -> Result<Effect, String> {
    match number {
        DENY => Ok(Effect::Deny),
        ALLOW => Ok(Effect::Allow),
        other => Err(format!("a rule denies (2) or allows (3), and there is no permission type {other}")),
    }
}

fn principal_of(text: &str) -> Result<&str, String> {
    let name = text.strip_prefix(USER);
    name.ok_or_else(|| format!("a principal is written {USER}NAME, as in {USER}alice or {USER}CN=alice"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(kind: ResourceKind, name: &str, is_prefix: bool) -> AccessRule {
        AccessRule {
            principal: "alice".to_owned(),
            effect: Effect::Allow,
            operation: Operation::Read,
            kind,
            name: name.to_owned(),
            is_prefix,
            host: "*".to_owned(),
        }
    }

    fn filter(pattern: i8, name: Option<&str>) -> DeleteAclsFilter {
        DeleteAclsFilter {
            resource_type_filter: ANY,
            resource_name_filter: name.map(str::to_owned),
            pattern_type_filter: pattern,
            operation: ANY,
            permission_type: ANY,
            ..Default::default()
        }
    }

    fn takes(filter: DeleteAclsFilter, rule: &AccessRule) -> bool {
        to_filters(filter).expect("a filter").iter().any(|filter| filter.takes(rule))
    }

    #[test]
    fn every_rule_about_what_kafka_knows_comes_back_as_it_was() {
        for (kind, _) in KINDS {
            for operation in Operation::EVERY {
                for effect in [Effect::Allow, Effect::Deny] {
                    let name = if kind == ResourceKind::Node { ResourceKind::NODE_NAME } else { "news" };
                    let rule = AccessRule { effect, operation, ..rule(kind, name, false) };
                    let acl = from_rule(&rule).expect("known");
                    let creation = AclCreation {
                        resource_type: acl.resource_type,
                        resource_name: acl.resource_name,
                        resource_pattern_type: acl.pattern_type,
                        principal: acl.principal,
                        host: acl.host,
                        operation: acl.operation,
                        permission_type: acl.permission_type,
                    };
                    assert_eq!(to_rule(creation), Ok(rule));
                }
            }
        }
    }

    #[test]
    fn the_numbers_are_those_of_kafka_s_clients() {
        let acl = from_rule(&rule(ResourceKind::Node, ResourceKind::NODE_NAME, false)).expect("known");
        assert_eq!((acl.resource_type, &*acl.resource_name, acl.pattern_type), (4, "kafka-cluster", 3));
        assert_eq!((acl.operation, acl.permission_type, &*acl.principal), (3, 3, "User:alice"));
        let write =
            AccessRule { operation: Operation::IdempotentWrite, ..rule(ResourceKind::Stream, "a", true) };
        let acl = from_rule(&write).expect("known");
        assert_eq!((acl.operation, acl.pattern_type), (12, 4));
    }

    #[test]
    fn a_match_means_what_is_about_the_name_and_a_literal_what_has_it() {
        let all = [
            rule(ResourceKind::Stream, "news", false),
            rule(ResourceKind::Stream, "ne", true),
            rule(ResourceKind::Stream, "*", false),
            rule(ResourceKind::Stream, "news", true),
            rule(ResourceKind::Stream, "old", false),
        ];
        let of = |pattern, name| all.clone().map(|rule| takes(filter(pattern, name), &rule));
        assert_eq!(of(MATCH, Some("news")), [true, true, true, true, false]);
        assert_eq!(of(LITERAL, Some("news")), [true, false, false, false, false]);
        assert_eq!(of(PREFIXED, Some("news")), [false, false, false, true, false]);
        assert_eq!(of(ANY, Some("news")), [true, false, false, true, false]);
        assert_eq!(of(PREFIXED, None), [false, true, false, true, false]);
        assert_eq!(of(ANY, None), [true; 5]);
    }

    #[test]
    fn rules_about_what_kafka_does_not_know_are_neither_shown_nor_meant() {
        for kind in [ResourceKind::Queue, ResourceKind::Broadcast, ResourceKind::Cell] {
            let rule = rule(kind, "data", false);
            assert_eq!(from_rule(&rule), None);
            assert!(!takes(filter(ANY, None), &rule), "{kind:?}");
        }
    }

    #[test]
    fn what_is_not_known_is_refused_and_said() {
        let right = AclCreation {
            resource_type: 2,
            resource_name: "news".to_owned(),
            resource_pattern_type: LITERAL,
            principal: "User:alice".to_owned(),
            host: "*".to_owned(),
            operation: 3,
            permission_type: ALLOW,
        };
        to_rule(right.clone()).expect("a rule");
        for (wrong, why) in [
            (AclCreation { resource_type: 5, ..right.clone() }, "type 5"),
            (AclCreation { resource_type: ANY, ..right.clone() }, "type 1"),
            (AclCreation { resource_pattern_type: MATCH, ..right.clone() }, "not 2"),
            (AclCreation { operation: ANY, ..right.clone() }, "operation 1"),
            (AclCreation { operation: i8::MIN, ..right.clone() }, "operation -128"),
            (AclCreation { operation: 13, ..right.clone() }, "operation 13"),
            (AclCreation { permission_type: ANY, ..right.clone() }, "type 1"),
            (AclCreation { principal: "alice".to_owned(), ..right }, "User:NAME"),
        ] {
            let error = to_rule(wrong).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }
}
