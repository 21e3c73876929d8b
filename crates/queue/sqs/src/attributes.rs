//! Attributes of queues: from what a client sets to how a queue behaves, and back.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::Value;
use tailwater_queue::{
    Consistency, Fifo, NoConsistency, NoOrderHint, OrderHint, QueueRecord, Redrive, Scope, Settings,
};

use crate::error::{Code, ErrorRefusal};
use crate::limits::{
    ALLOW_POLICY_BYTES_MAX, ALLOWED_MAX, DELAY_S, KEY_ID_CHARS_MAX, MESSAGE_BYTES, POLICY_BYTES_MAX,
    RECEIVES, RETENTION_S, VISIBILITY_S, WAIT_S,
};
use crate::names;

/// The tag by which a queue's order hint is set: 1 for the best order, more for fewer duplicates under concurrency.
pub const ORDER_HINT_TAG: &str = "tailwater-order-hint";

/// The tag that says how many replicas have to answer: `one` or `quorum`.
pub const CONSISTENCY_TAG: &str = "tailwater-consistency";

/// Attributes that are kept and told, and have no effect on messages.
const KEPT: [&str; 5] = [
    "Policy",
    "KmsMasterKeyId",
    "KmsDataKeyReusePeriodSeconds",
    "SqsManagedSseEnabled",
    "RedriveAllowPolicy",
];

/// Attributes that can be asked for and not set.
const TOLD: [&str; 6] = [
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "QueueArn",
];

/// For how many seconds a key of data is used again, and the default of that.
const KEY_PERIOD: &str = "KmsDataKeyReusePeriodSeconds";
const KEY_PERIOD_DEFAULT: &str = "300";

/// What a redrive policy has.
const REDRIVE_KEYS: [&str; 2] = ["deadLetterTargetArn", "maxReceiveCount"];

fn unknown(name: &str) -> ErrorRefusal {
    ErrorRefusal::new(Code::InvalidAttributeName, format!("Unknown Attribute {name}."))
}

/// A standard queue was given an attribute of FIFO queues. Amazon has a text of its own for two of them.
fn of_fifo_alone(name: &str) -> ErrorRefusal {
    match name {
        "DeduplicationScope" | "FifoThroughputLimit" => {
            let message = format!("You can specify the {name} only when FifoQueue is set to true.");
            ErrorRefusal::new(Code::InvalidAttributeName, message)
        }
        _ => unknown(name),
    }
}

/// The value of an attribute of which a queue tells none.
pub(crate) fn untold(name: &str) -> &'static str {
    if name == KEY_PERIOD { KEY_PERIOD_DEFAULT } else { "" }
}

fn invalid(name: &str) -> ErrorRefusal {
    ErrorRefusal::new(Code::InvalidAttributeValue, format!("Invalid value for the parameter {name}."))
}

fn number(name: &str, text: &str, range: RangeInclusive<u32>) -> Result<u32, ErrorRefusal> {
    text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| invalid(name))
}

fn boolean(name: &str, text: &str) -> Result<bool, ErrorRefusal> {
    // Also as Python writes it.
    match text.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(invalid(name)),
    }
}

/// Changes settings and kept attributes by what a client sets. `account` is the queue's.
pub(crate) fn set(
    settings: &mut Settings,
    kept: &mut BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
    account: &str,
) -> Result<(), ErrorRefusal> {
    let is_fifo = settings.fifo.is_some();
    for (name, value) in wanted {
        match name.as_str() {
            "VisibilityTimeout" => settings.visibility_s = number(name, value, VISIBILITY_S)?,
            "DelaySeconds" => settings.delay_s = number(name, value, DELAY_S)?,
            "MessageRetentionPeriod" => settings.retention_s = number(name, value, RETENTION_S)?,
            "ReceiveMessageWaitTimeSeconds" => settings.wait_s = number(name, value, WAIT_S)?,
            "MaximumMessageSize" => settings.message_bytes_max = number(name, value, MESSAGE_BYTES)?,
            "RedrivePolicy" if value.is_empty() => settings.redrive = None,
            "RedrivePolicy" => settings.redrive = Some(redrive(value, account)?),
            "FifoQueue" => match (boolean(name, value)?, is_fifo) {
                (true, true) => {}
                (false, true) => {
                    let message = "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not \
                        supported.";
                    return Err(ErrorRefusal::new(Code::InvalidAttributeValue, message));
                }
                // As Amazon has it: a queue that is none can't be asked to be none.
                _ => return Err(unknown(name)),
            },
            "ContentBasedDeduplication" | "DeduplicationScope" | "FifoThroughputLimit" => {
                let fifo = settings.fifo.as_mut().ok_or_else(|| of_fifo_alone(name))?;
                set_fifo(fifo, name, value)?;
            }
            "RedriveAllowPolicy" if !value.is_empty() => {
                let is_short = value.len() <= ALLOW_POLICY_BYTES_MAX;
                match allow_policy(value).filter(|_| is_short).ok_or_else(|| invalid(name))? {
                    AllowPolicy::Only(arns) if !(1..=ALLOWED_MAX).contains(&arns.len()) => {
                        return Err(invalid(name));
                    }
                    _ => {}
                }
                kept.insert(name.clone(), value.clone());
            }
            "Policy" if !value.is_empty() => {
                let is_policy = serde_json::from_str::<Value>(value).is_ok_and(|policy| policy.is_object());
                if !is_policy || value.len() > POLICY_BYTES_MAX {
                    return Err(invalid(name));
                }
                kept.insert(name.clone(), value.clone());
            }
            "KmsMasterKeyId" if value.chars().count() > KEY_ID_CHARS_MAX => return Err(invalid(name)),
            "SqsManagedSseEnabled" => {
                kept.insert(name.clone(), boolean(name, value)?.to_string());
            }
            KEY_PERIOD => {
                kept.insert(name.clone(), number(name, value, 60..=86_400)?.to_string());
            }
            kept_name if KEPT.contains(&kept_name) && value.is_empty() => drop(kept.remove(kept_name)),
            kept_name if KEPT.contains(&kept_name) => drop(kept.insert(name.clone(), value.clone())),
            _ => return Err(unknown(name)),
        }
    }
    check_encryption(kept, wanted)?;
    // As Amazon has it: without a key its default is not told.
    if !kept.contains_key("KmsMasterKeyId")
        && kept.get(KEY_PERIOD).is_some_and(|period| period == KEY_PERIOD_DEFAULT)
    {
        kept.remove(KEY_PERIOD);
    }
    match settings.fifo {
        Some(Fifo { limit_by_group: true, scope: Scope::Queue, .. }) => Err(ErrorRefusal::new(
            Code::InvalidAttributeValue,
            "FifoThroughputLimit perMessageGroupId needs DeduplicationScope messageGroup.",
        )),
        _ => Ok(()),
    }
}

/// A queue is encrypted in one way at most. Which way it is on its own gives way to a key.
fn check_encryption(
    kept: &mut BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
) -> Result<(), ErrorRefusal> {
    const MANAGED: &str = "SqsManagedSseEnabled";
    let is_managed = kept.get(MANAGED).is_some_and(|value| value == "true");
    if !is_managed || !kept.contains_key("KmsMasterKeyId") {
        return Ok(());
    }
    if wanted.contains_key(MANAGED) {
        return Err(ErrorRefusal::new(
            Code::InvalidAttributeName,
            "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.",
        ));
    }
    kept.remove(MANAGED);
    Ok(())
}

fn set_fifo(fifo: &mut Fifo, name: &str, value: &str) -> Result<(), ErrorRefusal> {
    match (name, value) {
        ("ContentBasedDeduplication", value) => fifo.by_content = boolean(name, value)?,
        ("DeduplicationScope", "queue") => fifo.scope = Scope::Queue,
        ("DeduplicationScope", "messageGroup") => fifo.scope = Scope::Group,
        ("FifoThroughputLimit", "perQueue") => fifo.limit_by_group = false,
        ("FifoThroughputLimit", "perMessageGroupId") => fifo.limit_by_group = true,
        _ => return Err(invalid(name)),
    }
    Ok(())
}

fn redrive(policy: &str, account: &str) -> Result<Redrive, ErrorRefusal> {
    let refuse = |reason: &str| ErrorRefusal::value(policy, "RedrivePolicy", reason);
    let parsed: serde_json::Map<String, Value> =
        serde_json::from_str(policy).map_err(|_| refuse("Redrive policy is not a valid JSON map."))?;
    if parsed.keys().any(|key| !REDRIVE_KEYS.contains(&key.as_str())) {
        let known = REDRIVE_KEYS.join(", ");
        return Err(refuse(&format!("Only following attributes are supported: [{known}].")));
    }
    let arn = parsed.get("deadLetterTargetArn").and_then(Value::as_str);
    let arn = arn
        .ok_or_else(|| refuse("Redrive policy does not contain mandatory attribute: deadLetterTargetArn."))?;
    let given = match parsed.get("maxReceiveCount") {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => return Err(refuse("Redrive policy does not contain mandatory attribute: maxReceiveCount.")),
    };
    let most = given.parse().ok().filter(|most| RECEIVES.contains(most)).ok_or_else(|| {
        let valid = "valid values are from 1 to 1000 both inclusive.";
        refuse(&format!("Invalid value for maxReceiveCount: {given}, {valid}"))
    })?;
    match names::of_arn(arn) {
        None => Err(refuse("Invalid value for deadLetterTargetArn.")),
        Some((owner, target)) if owner == account => {
            Ok(Redrive { target: target.to_owned(), receives_max: u16::try_from(most).expect("checked") })
        }
        _ => Err(refuse("Dead-letter target owner should be same as the source.")),
    }
}

/// Who may have a queue for its dead letters: everybody, nobody, or the queues of these ARNs.
pub(crate) enum AllowPolicy {
    All,
    Nobody,
    Only(Vec<String>),
}

pub(crate) fn allow_policy(text: &str) -> Option<AllowPolicy> {
    let policy: Value = serde_json::from_str(text).ok()?;
    match policy.get("redrivePermission")?.as_str()? {
        "allowAll" => Some(AllowPolicy::All),
        "denyAll" => Some(AllowPolicy::Nobody),
        "byQueue" => {
            let arns = policy.get("sourceQueueArns")?.as_array()?;
            arns.iter()
                .map(|arn| arn.as_str().map(str::to_owned))
                .collect::<Option<_>>()
                .map(AllowPolicy::Only)
        }
        _ => None,
    }
}

/// Settings of a queue to be created, from all that was given.
pub(crate) fn create(
    name: &str,
    wanted: &BTreeMap<String, String>,
    account: &str,
) -> Result<(Settings, BTreeMap<String, String>), ErrorRefusal> {
    let is_fifo = wanted.get("FifoQueue").map(|value| boolean("FifoQueue", value)).transpose()?;
    let is_fifo = match is_fifo {
        Some(false) => return Err(unknown("FifoQueue")),
        given => given.is_some(),
    };
    names::check(name, is_fifo)?;
    let mut settings = Settings { fifo: is_fifo.then(Fifo::default), ..Settings::default() };
    let mut kept = BTreeMap::new();
    set(&mut settings, &mut kept, wanted, account)?;
    Ok((settings, kept))
}

/// The order hint that tags ask for, and `auto` where they ask for none.
pub(crate) fn order_hint(tags: &BTreeMap<String, String>) -> Result<OrderHint, ErrorRefusal> {
    match tags.get(ORDER_HINT_TAG) {
        None => Ok(OrderHint::default()),
        Some(text) => text.parse().map_err(|why: NoOrderHint| {
            ErrorRefusal::value(text, "Tags", &format!("{ORDER_HINT_TAG}: {why}."))
        }),
    }
}

/// The consistency level that tags ask for, if they do.
pub(crate) fn consistency(tags: &BTreeMap<String, String>) -> Result<Option<Consistency>, ErrorRefusal> {
    let level = tags.get(CONSISTENCY_TAG).map(|text| {
        text.parse().map_err(|why: NoConsistency| {
            ErrorRefusal::value(text, "Tags", &format!("{CONSISTENCY_TAG}: {why}."))
        })
    });
    level.transpose()
}

/// Sets what tags say; they were checked.
pub(crate) fn set_by_tags(settings: &mut Settings, tags: &BTreeMap<String, String>) {
    if let (Ok(hint), Ok(level)) = (order_hint(tags), consistency(tags)) {
        (settings.order_hint, settings.consistency) = (hint, level);
    }
}

/// All attributes of a queue that do not depend on its messages.
pub(crate) fn all(record: &QueueRecord, region: &str) -> BTreeMap<String, String> {
    let Settings {
        visibility_s,
        delay_s,
        retention_s,
        wait_s,
        message_bytes_max,
        redrive,
        fifo,
        order_hint: _,
        consistency: _,
    } = &record.settings;
    let mut all = BTreeMap::from([
        ("SqsManagedSseEnabled".to_owned(), "false".to_owned()),
        ("QueueArn".to_owned(), names::arn(region, &record.account, &record.name)),
        ("CreatedTimestamp".to_owned(), (record.created_at / 1_000).to_string()),
        ("LastModifiedTimestamp".to_owned(), (record.modified_at / 1_000).to_string()),
    ]);
    all.extend(record.attributes.clone());
    for (name, number) in [
        ("VisibilityTimeout", visibility_s),
        ("DelaySeconds", delay_s),
        ("MessageRetentionPeriod", retention_s),
        ("ReceiveMessageWaitTimeSeconds", wait_s),
        ("MaximumMessageSize", message_bytes_max),
    ] {
        all.insert(name.to_owned(), number.to_string());
    }
    if let Some(Redrive { target, receives_max }) = redrive {
        let arn = names::arn(region, &record.account, target);
        let policy = serde_json::json!({"deadLetterTargetArn": arn, "maxReceiveCount": receives_max});
        all.insert("RedrivePolicy".to_owned(), policy.to_string());
    }
    if let Some(Fifo { scope, by_content, limit_by_group }) = fifo {
        let scope = if *scope == Scope::Group { "messageGroup" } else { "queue" };
        let limit = if *limit_by_group { "perMessageGroupId" } else { "perQueue" };
        for (name, value) in [
            ("FifoQueue", "true"),
            ("ContentBasedDeduplication", if *by_content { "true" } else { "false" }),
            ("DeduplicationScope", scope),
            ("FifoThroughputLimit", limit),
        ] {
            all.insert(name.to_owned(), value.to_owned());
        }
    }
    all
}

/// Whether that is an attribute that can be asked for.
pub(crate) fn is_known(name: &str) -> bool {
    const SET: [&str; 10] = [
        "VisibilityTimeout",
        "DelaySeconds",
        "MessageRetentionPeriod",
        "ReceiveMessageWaitTimeSeconds",
        "MaximumMessageSize",
        "RedrivePolicy",
        "FifoQueue",
        "ContentBasedDeduplication",
        "DeduplicationScope",
        "FifoThroughputLimit",
    ];
    name == "All" || SET.contains(&name) || KEPT.contains(&name) || TOLD.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNT: &str = "000000000000";

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn code(pairs: &[(&str, &str)]) -> Code {
        create("q", &map(pairs), ACCOUNT).expect_err("refused").code
    }

    #[test]
    fn what_is_set_is_told_again() {
        let policy = "{\"deadLetterTargetArn\":\"arn:aws:sqs:us-east-1:000000000000:dead.fifo\",\"maxReceiveCount\":3}";
        let wanted = map(&[
            ("FifoQueue", "true"),
            ("ContentBasedDeduplication", "true"),
            ("DeduplicationScope", "messageGroup"),
            ("FifoThroughputLimit", "perMessageGroupId"),
            ("VisibilityTimeout", "0"),
            ("RedrivePolicy", policy),
            ("Policy", "{}"),
        ]);
        let (settings, attributes) = create("q.fifo", &wanted, ACCOUNT).expect("created");
        let new = QueueRecord::new(ACCOUNT, "q.fifo", settings);
        let record = QueueRecord { created_at: 5_000, modified_at: 6_000, attributes, ..new };
        let all = all(&record, "us-east-1");
        for (name, value) in &wanted {
            assert_eq!(all.get(name), Some(value), "{name}");
            assert!(is_known(name));
        }
        assert_eq!(all["CreatedTimestamp"], "5");
        assert!(all.keys().all(|name| is_known(name)));
    }

    #[test]
    fn what_is_out_of_bounds_or_unknown_is_refused_by_its_code() {
        assert_eq!(code(&[("VisibilityTimeout", "43201")]), Code::InvalidAttributeValue);
        assert_eq!(code(&[("DelaySeconds", "-1")]), Code::InvalidAttributeValue);
        assert_eq!(code(&[("Visibility", "1")]), Code::InvalidAttributeName);
        assert_eq!(code(&[("FifoQueue", "false")]), Code::InvalidAttributeName);
        assert_eq!(code(&[("ContentBasedDeduplication", "true")]), Code::InvalidAttributeName);
        assert_eq!(code(&[("QueueArn", "x")]), Code::InvalidAttributeName);
        assert_eq!(code(&[("RedrivePolicy", "{")]), Code::InvalidParameterValue);
        assert_eq!(code(&[("RedriveAllowPolicy", "{}")]), Code::InvalidAttributeValue);
        assert_eq!(code(&[("Policy", "no JSON")]), Code::InvalidAttributeValue);
    }

    #[test]
    fn what_is_only_kept_is_bounded_too() {
        let allow = |count: usize, filling: usize| {
            let arns = vec!["arn:aws:sqs:us-east-1:000000000000:q"; count];
            let policy = serde_json::json!({"redrivePermission": "byQueue", "sourceQueueArns": arns});
            policy.to_string() + &" ".repeat(filling)
        };
        let is_good = |name, value: &str| create("q", &map(&[(name, value)]), ACCOUNT).is_ok();
        assert!(is_good("RedriveAllowPolicy", &allow(10, 0)));
        for (count, filling) in [(0, 0), (11, 0), (1, ALLOW_POLICY_BYTES_MAX)] {
            let policy = allow(count, filling);
            assert_eq!(code(&[("RedriveAllowPolicy", &policy)]), Code::InvalidAttributeValue);
        }
        assert!(is_good("KmsMasterKeyId", &"\u{e9}".repeat(KEY_ID_CHARS_MAX)));
        let long = "x".repeat(KEY_ID_CHARS_MAX + 1);
        assert_eq!(code(&[("KmsMasterKeyId", &long)]), Code::InvalidAttributeValue);
    }

    #[test]
    fn an_empty_policy_takes_it_away() {
        let (mut settings, mut kept) = create("q", &map(&[("Policy", "{}")]), ACCOUNT).expect("created");
        settings.redrive = Some(Redrive { target: "dead".to_owned(), receives_max: 1 });
        set(&mut settings, &mut kept, &map(&[("Policy", ""), ("RedrivePolicy", "")]), ACCOUNT).expect("set");
        assert!(kept.is_empty() && settings.redrive.is_none());
    }

    #[test]
    fn the_order_hint_is_a_tag() {
        assert_eq!(order_hint(&map(&[])), Ok(OrderHint::Auto));
        assert_eq!(order_hint(&map(&[(ORDER_HINT_TAG, "7")])), Ok(OrderHint::K(7)));
        assert_eq!(order_hint(&map(&[(ORDER_HINT_TAG, "auto")])), Ok(OrderHint::Auto));
        assert_eq!(order_hint(&map(&[(ORDER_HINT_TAG, "infinity")])), Ok(OrderHint::Infinity));
        for bad in ["0", "1001", "x"] {
            assert!(order_hint(&map(&[(ORDER_HINT_TAG, bad)])).is_err(), "{bad}");
        }
        assert_eq!(consistency(&map(&[(CONSISTENCY_TAG, "ONE")])), Ok(Some(Consistency::One)));
        assert!(consistency(&map(&[(CONSISTENCY_TAG, "all")])).is_err());
    }
}
