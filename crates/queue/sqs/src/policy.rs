//! Who else may use a queue: its policy ([`decision`]), and permissions, which are statements of it.

mod decision;

use serde_json::{Value, json};

use crate::error::{Code, ErrorRefusal};
use crate::limits::POLICY_BYTES_MAX;
use crate::names::is_simple;

use decision::OWNERS;
pub(crate) use decision::allows;

/// Actions that can be permitted.
const PERMITTED: [&str; 9] = [
    "*",
    "SendMessage",
    "ReceiveMessage",
    "DeleteMessage",
    "ChangeMessageVisibility",
    "GetQueueAttributes",
    "GetQueueUrl",
    "ListDeadLetterSourceQueues",
    "PurgeQueue",
];

/// Most statements that permissions make.
const STATEMENTS_MAX: usize = 20;

/// Actions of one permission.
const ACTIONS_MAX: usize = 7;

fn list(value: &Value) -> Vec<&Value> {
    value.as_array().map_or_else(|| vec![value], |items| items.iter().collect())
}

/// As Amazon writes what is often one text: that, or a list.
fn one_or_more(texts: impl Iterator<Item = String>) -> Value {
    let mut texts: Vec<Value> = texts.map(Value::from).collect();
    if texts.len() == 1 { texts.remove(0) } else { texts.into() }
}

/// The policy with a permission more.
pub(crate) fn with_permission(
    policy: Option<&str>,
    queue_arn: &str,
    label: &str,
    accounts: &[String],
    actions: &[String],
) -> Result<String, ErrorRefusal> {
    if !is_simple(label) {
        return Err(ErrorRefusal::value(
            label,
            "Label",
            "Must be alphanumeric characters, hyphens, or underscores.",
        ));
    }
    let is_account = |id: &String| id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_digit());
    if accounts.is_empty() || !accounts.iter().all(is_account) {
        let given = format!("[{}]", accounts.join(", "));
        return Err(ErrorRefusal::value(given, "PrincipalId", "Unable to verify."));
    }
    if actions.len() > ACTIONS_MAX {
        let message = format!("{} Actions were found, maximum allowed is {ACTIONS_MAX}.", actions.len());
        return Err(ErrorRefusal::new(Code::OverLimit, message));
    }
    if let Some(action) = actions.iter().find(|action| !PERMITTED.contains(&action.as_str())) {
        let reason = match OWNERS.contains(&action.as_str()) {
            true => "Only the queue owner is allowed to invoke this action.",
            false => "Please refer to the appropriate WSDL for a list of valid actions.",
        };
        return Err(ErrorRefusal::value(format!("SQS:{action}"), "ActionName", reason));
    }
    let empty =
        || json!({"Version": "2008-10-17", "Id": format!("{queue_arn}/SQSDefaultPolicy"), "Statement": []});
    let known = policy.and_then(|policy| serde_json::from_str(policy).ok());
    let mut policy = known.filter(Value::is_object).unwrap_or_else(empty);
    let mut statements: Vec<Value> =
        policy.get("Statement").map(list).unwrap_or_default().into_iter().cloned().collect();
    if statements.iter().any(|statement| statement.get("Sid").and_then(Value::as_str) == Some(label)) {
        return Err(ErrorRefusal::value(label, "Label", "Already exists."));
    }
    if statements.len() >= STATEMENTS_MAX {
        let message =
            format!("{} Statements were found, maximum allowed is {STATEMENTS_MAX}.", statements.len() + 1);
        return Err(ErrorRefusal::new(Code::OverLimit, message));
    }
    let principals = one_or_more(accounts.iter().map(|account| format!("arn:aws:iam::{account}:root")));
    let actions = one_or_more(actions.iter().map(|action| format!("SQS:{action}")));
    statements.push(json!({
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": principals},
        "Action": actions,
        "Resource": queue_arn,
    }));
    policy["Statement"] = statements.into();
    let policy = policy.to_string();
    match policy.len() <= POLICY_BYTES_MAX {
        true => Ok(policy),
        false => Err(ErrorRefusal::new(Code::OverLimit, "The policy is too long.")),
    }
}

/// The policy without a permission; none if it was the last one.
pub(crate) fn without_permission(policy: Option<&str>, label: &str) -> Result<Option<String>, ErrorRefusal> {
    let absent = || {
        let reason = match policy {
            Some(_) => "can't find label on existing policy.",
            None => "can't find label.",
        };
        ErrorRefusal::value(label, "Label", reason)
    };
    let parsed = policy.and_then(|policy| serde_json::from_str(policy).ok());
    let mut changed: Value = parsed.ok_or_else(absent)?;
    let statements = changed.get("Statement").map(list).unwrap_or_default();
    let is_it = |statement: &&&Value| statement.get("Sid").and_then(Value::as_str) == Some(label);
    let rest: Vec<Value> =
        statements.iter().filter(|statement| !is_it(statement)).map(|item| (*item).clone()).collect();
    if rest.len() == statements.len() {
        return Err(absent());
    }
    let is_last = rest.is_empty();
    changed["Statement"] = rest.into();
    Ok((!is_last).then(|| changed.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARN: &str = "arn:aws:sqs:us-east-1:111111111111:q";

    #[test]
    fn a_permission_lets_an_account_do_what_it_names_until_it_is_removed() {
        let accounts = ["222222222222".to_owned()];
        let policy =
            with_permission(None, ARN, "one", &accounts, &["SendMessage".to_owned()]).expect("added");
        assert!(allows(&policy, "222222222222", "SendMessage", ARN));
        assert!(allows(&policy, "222222222222", "SendMessageBatch", ARN));
        assert!(!allows(&policy, "222222222222", "ReceiveMessage", ARN));
        assert!(!allows(&policy, "333333333333", "SendMessage", ARN));
        let more =
            with_permission(Some(&policy), ARN, "all", &["333333333333".to_owned()], &["*".to_owned()]);
        let policy = more.expect("added");
        assert!(allows(&policy, "333333333333", "DeleteMessage", ARN));
        assert!(with_permission(Some(&policy), ARN, "one", &accounts, &["*".to_owned()]).is_err());
        let policy = without_permission(Some(&policy), "one").expect("removed").expect("one is left");
        assert!(!allows(&policy, "222222222222", "SendMessage", ARN));
        assert_eq!(without_permission(Some(&policy), "all"), Ok(None));
        assert!(without_permission(Some(&policy), "one").is_err());
    }
}
