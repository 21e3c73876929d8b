//! Whether a queue's policy lets another account do something.
//!
//! Each element of a statement says yes, no, or what nothing here understands: a condition, an element that is not
//! known, a value of a wrong kind. A statement allows if all of it says yes, and it denies unless some of it says no.
//! So what is not understood never allows, and never keeps a statement from denying.
//!
//! Principals are accounts: a user or a role stands for the account that it is of. Resources are compared with the
//! queue's ARN, but for the region, as everywhere here.

use serde_json::{Map, Value};

use super::list;

/// What only the account of a queue may do with it, whatever a policy says.
pub(super) const OWNERS: [&str; 12] = [
    "AddPermission",
    "CancelMessageMoveTask",
    "CreateQueue",
    "DeleteQueue",
    "ListMessageMoveTasks",
    "ListQueueTags",
    "ListQueues",
    "RemovePermission",
    "SetQueueAttributes",
    "StartMessageMoveTask",
    "TagQueue",
    "UntagQueue",
];

/// Whether something applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Applies {
    Yes,
    No,
    /// It is not understood.
    Unknown,
}

use Applies::{No, Unknown, Yes};

/// What is asked for.
struct PolicyQuestion<'a> {
    account: &'a str,
    action: &'a str,
    queue_arn: &'a str,
}

/// Whether a policy lets `account`, which is not the queue's, do an action with the queue of that ARN.
pub(crate) fn allows(policy: &str, account: &str, action: &str, queue_arn: &str) -> bool {
    if OWNERS.contains(&action) {
        return false;
    }
    let Ok(policy) = serde_json::from_str::<Value>(policy) else { return false };
    // What is allowed for a message is allowed for several.
    let action = action.strip_suffix("Batch").unwrap_or(action);
    let asked = PolicyQuestion { account, action, queue_arn };
    let statements = policy.get("Statement").map(list).unwrap_or_default();
    let mut is_allowed = false;
    for statement in statements {
        // What is no statement could have been one that denies.
        let Some(statement) = statement.as_object() else { return false };
        let is_allowing = statement.get("Effect").and_then(Value::as_str) == Some("Allow");
        match (is_allowing, applies(statement, &asked, is_allowing)) {
            (true, Yes) => is_allowed = true,
            (true, No | Unknown) | (false, No) => {}
            (false, Yes | Unknown) => return false,
        }
    }
    is_allowed
}

fn applies(statement: &Map<String, Value>, asked: &PolicyQuestion<'_>, is_allowing: bool) -> Applies {
    let is_known = |name: &String| {
        let not = name.strip_prefix("Not").unwrap_or(name);
        matches!(name.as_str(), "Sid" | "Effect") || matches!(not, "Principal" | "Action" | "Resource")
    };
    let rest = if statement.keys().all(is_known) { Yes } else { Unknown };
    let principal = match element(statement, "Principal", |given| principals(given, asked.account)) {
        // To allow everybody but some is nothing that Amazon has.
        Yes if is_allowing && !statement.contains_key("Principal") => Unknown,
        principal => principal,
    };
    let action = element(statement, "Action", |given| any(given, |given| is_action(given, asked.action)));
    let resource =
        element(statement, "Resource", |given| any(given, |given| is_resource(given, asked.queue_arn)));
    all([rest, principal, action, resource])
}

/// An element, or its opposite: there has to be one of them.
fn element(statement: &Map<String, Value>, name: &str, applies: impl Fn(&Value) -> Applies) -> Applies {
    match (statement.get(name), statement.get(&format!("Not{name}"))) {
        (Some(given), None) => applies(given),
        (None, Some(given)) => match applies(given) {
            Yes => No,
            No => Yes,
            Unknown => Unknown,
        },
        _ => Unknown,
    }
}

fn all(of: impl IntoIterator<Item = Applies>) -> Applies {
    of.into_iter().fold(Yes, |all, one| match (all, one) {
        (No, _) | (_, No) => No,
        (Unknown, _) | (_, Unknown) => Unknown,
        (Yes, Yes) => Yes,
    })
}

/// One text, or several: whether any applies.
fn any(given: &Value, applies: impl Fn(&str) -> Applies) -> Applies {
    any_of(list(given).into_iter().map(|item| item.as_str().map_or(Unknown, &applies)))
}

fn any_of(of: impl IntoIterator<Item = Applies>) -> Applies {
    of.into_iter().fold(No, |any, one| match (any, one) {
        (Yes, _) | (_, Yes) => Yes,
        (Unknown, _) | (_, Unknown) => Unknown,
        (No, No) => No,
    })
}

fn principals(given: &Value, account: &str) -> Applies {
    match given {
        Value::Object(by_kind) => any_of(by_kind.iter().map(|(kind, given)| match kind.as_str() {
            "AWS" => any(given, |given| is_principal(given, account)),
            // These are no accounts.
            "Service" | "Federated" | "CanonicalUser" => No,
            _ => Unknown,
        })),
        Value::String(everybody) if everybody == "*" => Yes,
        _ => Unknown,
    }
}

fn is_principal(given: &str, account: &str) -> Applies {
    let is_account = |text: &str| text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit());
    let named = if given.starts_with("arn:") { given.split(':').nth(4).unwrap_or_default() } else { given };
    match named {
        "*" if given == "*" => Yes,
        named if is_account(named) && named == account => Yes,
        named if is_account(named) => No,
        _ => Unknown,
    }
}

fn is_action(given: &str, action: &str) -> Applies {
    let given = given.to_ascii_lowercase();
    let (service, named) = given.split_once(':').unwrap_or(("sqs", &given));
    yes_if(is_match(service, "sqs") && is_match(named, &action.to_ascii_lowercase()))
}

fn is_resource(given: &str, queue_arn: &str) -> Applies {
    // A variable, which stands for something else.
    if given.contains("${") {
        return Unknown;
    }
    let queue: Vec<&str> = queue_arn.splitn(6, ':').collect();
    let parts: Vec<&str> = given.splitn(6, ':').collect();
    let is_same =
        parts.len() == queue.len() && [0, 2, 4, 5].into_iter().all(|at| is_match(parts[at], queue[at]));
    yes_if(is_same || is_match(given, queue_arn))
}

fn yes_if(applies: bool) -> Applies {
    if applies { Yes } else { No }
}

/// Whether `pattern`, in which `*` is any text and `?` any character, is that text.
fn is_match(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut at, mut begin) = (0, 0);
    // Where the last star is, and what of the text is behind what it stands for.
    let mut star: Option<(usize, usize)> = None;
    while begin < text.len() {
        match (pattern.get(at), star) {
            (Some(b'*'), _) => {
                star = Some((at, begin));
                at += 1;
            }
            (Some(byte), _) if *byte == b'?' || *byte == text[begin] => (at, begin) = (at + 1, begin + 1),
            // It stands for one more.
            (_, Some((star_at, behind))) => {
                star = Some((star_at, behind + 1));
                (at, begin) = (star_at + 1, behind + 1);
            }
            (_, None) => return false,
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ARN: &str = "arn:aws:sqs:us-east-1:111111111111:orders";
    const OTHER: &str = "222222222222";

    /// Of one statement, which allows that account to send to the queue but for what is changed of it.
    fn statement(changes: Value) -> Value {
        let mut statement = json!({
            "Effect": "Allow", "Principal": {"AWS": OTHER}, "Action": "sqs:SendMessage", "Resource": ARN,
        });
        for (name, value) in changes.as_object().expect("changes") {
            match value {
                Value::Null => drop(statement.as_object_mut().expect("one").remove(name)),
                value => statement[name] = value.clone(),
            }
        }
        statement
    }

    fn may_send(statements: Value) -> bool {
        allows(&json!({"Statement": statements}).to_string(), OTHER, "SendMessage", ARN)
    }

    #[test]
    fn a_statement_allows_if_all_of_it_is_understood_and_says_so() {
        for (changes, is_allowed) in [
            (json!({}), true),
            (json!({"Sid": "any"}), true),
            (json!({"Principal": "*"}), true),
            (json!({"Principal": {"AWS": ["333333333333", OTHER]}}), true),
            (json!({"Principal": {"AWS": "arn:aws:iam::222222222222:role/sender"}}), true),
            (json!({"Principal": {"AWS": "333333333333"}}), false),
            (json!({"Principal": {"Service": "sns.amazonaws.com"}}), false),
            (json!({"Principal": null}), false),
            (json!({"Principal": null, "NotPrincipal": {"AWS": "333333333333"}}), false),
            (json!({"Action": "*"}), true),
            (json!({"Action": ["sqs:ReceiveMessage", "SQS:sendmessage"]}), true),
            (json!({"Action": "sqs:*Message"}), true),
            (json!({"Action": "sqs:S??d*e"}), true),
            (json!({"Action": "sqs:Receive*"}), false),
            (json!({"Action": "sns:*"}), false),
            (json!({"Action": null}), false),
            (json!({"Action": null, "NotAction": "sqs:DeleteMessage"}), true),
            (json!({"Action": null, "NotAction": "sqs:Send*"}), false),
            (json!({"Resource": "*"}), true),
            (json!({"Resource": "arn:aws:sqs:*:111111111111:ord*"}), true),
            // Wherever it was written for.
            (json!({"Resource": "arn:aws:sqs:eu-west-1:111111111111:orders"}), true),
            (json!({"Resource": "arn:aws:sqs:us-east-1:111111111111:others"}), false),
            (json!({"Resource": "arn:aws:sqs:us-east-1:444444444444:orders"}), false),
            (json!({"Resource": "arn:aws:sqs:us-east-1:111111111111:${aws:username}*"}), false),
            (json!({"Resource": null}), false),
            (json!({"Condition": {"Bool": {"aws:SecureTransport": "true"}}}), false),
            (json!({"Unless": "it rains"}), false),
            (json!({"Effect": "allow"}), false),
            (json!({"Effect": null}), false),
        ] {
            assert_eq!(may_send(statement(changes.clone())), is_allowed, "{changes}");
        }
        assert!(!may_send(json!([])));
        assert!(!allows("no JSON", OTHER, "SendMessage", ARN));
    }

    #[test]
    fn a_statement_denies_unless_some_of_it_says_that_it_is_about_something_else() {
        for (changes, is_denied) in [
            (json!({}), true),
            (json!({"Principal": {"AWS": "333333333333"}}), false),
            (json!({"Principal": null, "NotPrincipal": {"AWS": "333333333333"}}), true),
            (json!({"Principal": null, "NotPrincipal": {"AWS": OTHER}}), false),
            (json!({"Principal": {"AWS": "arn:aws:iam::2*:root"}}), true),
            (json!({"Principal": null}), true),
            (json!({"Action": "sqs:*Message"}), true),
            (json!({"Action": "*e"}), true),
            (json!({"Action": "sqs:ReceiveMessage"}), false),
            (json!({"Action": null, "NotAction": "sqs:ReceiveMessage"}), true),
            (json!({"Action": null, "NotAction": ["sqs:Send*"]}), false),
            (json!({"Action": 1}), true),
            (json!({"Resource": "arn:aws:sqs:us-east-1:111111111111:others"}), false),
            (json!({"Resource": null, "NotResource": ARN}), false),
            (json!({"Resource": null, "NotResource": "arn:aws:sqs:us-east-1:111111111111:others"}), true),
            (json!({"Condition": {}}), true),
            (json!({"Condition": {}, "Action": "sqs:ReceiveMessage"}), false),
            (json!({"Unless": "it rains"}), true),
        ] {
            let mut denying = changes.clone();
            denying["Effect"] = "Deny".into();
            let statements = json!([statement(json!({})), statement(denying)]);
            assert_eq!(!may_send(statements), is_denied, "{changes}");
        }
        assert!(!may_send(json!([statement(json!({})), statement(json!({"Effect": "deny"}))])));
        assert!(!may_send(json!([statement(json!({})), "Deny"])));
    }

    #[test]
    fn nobody_is_let_administer_another_account_s_queue() {
        let everything =
            json!({"Statement": statement(json!({"Principal": "*", "Action": "*", "Resource": "*"}))})
                .to_string();
        for action in ["SendMessageBatch", "ReceiveMessage", "GetQueueUrl", "PurgeQueue"] {
            assert!(allows(&everything, OTHER, action, ARN), "{action}");
        }
        for action in OWNERS {
            assert!(!allows(&everything, OTHER, action, ARN), "{action}");
        }
    }

    #[test]
    fn a_star_is_any_text_and_a_question_mark_one_character() {
        for (pattern, text, is_one) in [
            ("", "", true),
            ("*", "", true),
            ("?", "", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a?c*", "abc", true),
            ("abc", "abcd", false),
            ("**d", "abcd", true),
        ] {
            assert_eq!(is_match(pattern, text), is_one, "{pattern} {text}");
        }
    }
}
