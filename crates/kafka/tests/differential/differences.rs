//! What may differ, and the sentence of `docs/kafka.md` that says so.

use std::collections::BTreeMap;

use tailwater_kafka::api::Api;

/// A difference. In patterns `*` stands for anything.
struct Difference {
    /// The script, and the step of it.
    step: &'static str,
    path: &'static str,
    /// What Kafka answers.
    kafka: &'static str,
    /// What Tailwater answers.
    tailwater: &'static str,
    /// A part of the document.
    documented: &'static str,
}

const EVERY: &str = "*";
const NOTHING: &str = "-";

/// Shorthand for the table below.
const fn differs(
    step: &'static str,
    path: &'static str,
    kafka: &'static str,
    tailwater: &'static str,
    documented: &'static str,
) -> Difference {
    Difference { step, path, kafka, tailwater, documented }
}

const SENTENCES: &str =
    "Errors carry a sentence for people in more places than Kafka's, and an empty one is null.";
const SAYS_MORE: &str = "an error that says more";
const DEFAULT: &str = "Kafka's default is";
const SYNONYMS: &str = "Synonyms are the name in a broker's configuration with the default";
const READ_ONLY: &str = "Names that have one value here are shown with it, read-only";
const AT_ONCE: &str = "a topic that is created because somebody asks for it is there at once";

const NEVER_IN: &str = "A group that nobody was ever let into, and that has committed nothing, is not there";
const COMMITS_LATE: &str = "A member that commits in an epoch before its own is told so";
const EPOCHS: &str = "Epochs of groups of KIP-848 begin with 1, and Kafka's with 2";

const FORGOTTEN: &str = "A member of KIP-848 that its group does not know is told to join again";

const JOINS_AGAIN: &str =
    "A static member of KIP-848 that joins once more, with the id that it has, is answered";

const AGREED: &str = "A member that syncs with a protocol of before a group moved is told to join again";

const LEFT_OUT: &str = "Metadata that is asked for by ids leaves those out that no topic has";

const REMOVED: &str = "what was removed still counts, as transaction ids do";
const BEGIN_LATE: &str = "an epoch begins with the first record that is written in it";
const ENDS: &str = "An answer ends where an epoch does";

const DIFFERENCES: &[Difference] = &[
    differs("moving, *: a protocol that is not its own", "error_code", "23", "27", AGREED),
    differs("consumer groups, *: a group that is not there", "error_code", "69", "25", FORGOTTEN),
    differs("refusals, *: \"refused\": *", "*", EVERY, EVERY, NEVER_IN),
    differs("consumer groups of names, *: a joins again", "*", EVERY, EVERY, JOINS_AGAIN),
    differs("consumer groups, ConsumerGroup*", "*_epoch", EVERY, EVERY, EPOCHS),
    differs("silence of KIP-848, *: described when *", "*_epoch", EVERY, EVERY, EPOCHS),
    differs("moving, *: commits too late", "*error_code", EVERY, "22", COMMITS_LATE),
    differs(EVERY, "*error_message", "None", "words", SENTENCES),
    differs(EVERY, "*error_message", "\"\"", EVERY, SENTENCES),
    differs("versions, *", "api_keys.len", EVERY, EVERY, "APIs that are not in this table are not offered"),
    differs("versions, *", "api_keys[*", EVERY, NOTHING, "APIs that are not in this table are not offered"),
    differs("versions, *", "*ed_features*", EVERY, EVERY, "neither supported nor finalized ones are told"),
    differs("vanished, *: asked for by id", "topics*", EVERY, EVERY, LEFT_OUT),
    differs("metadata, *: by an id that is not there", "topics*", EVERY, EVERY, LEFT_OUT),
    differs("metadata, *: neither name nor id", EVERY, EVERY, EVERY, SAYS_MORE),
    differs("configs, *: no such operation", "*error_code", "-1", "42", SAYS_MORE),
    differs("automatic creation, *: wanted", "*", EVERY, EVERY, AT_ONCE),
    differs("automatic creation, *: wanted before one could say so", "*", EVERY, EVERY, AT_ONCE),
    differs("creation, *: only validated", "*topic_id", "an id", EVERY, "A validated topic has no id yet"),
    differs("creation, *: cleanup.policy = *compact*", "*error_code", "0", "40", "`compact` is refused"),
    differs(
        "creation, *: compression.type = *zstd*",
        "*error_code",
        "0",
        "40",
        "the node never compresses again",
    ),
    differs(EVERY, "*configs[*].read_only", "false", "true", READ_ONLY),
    differs(EVERY, "*configs[\"flush.messages\"]*value", EVERY, "\"1\"", "1 is `fsync`"),
    differs(EVERY, "*configs[\"max.message.bytes\"]*value", EVERY, "\"4194304\"", "at most 4194304"),
    differs(EVERY, "*configs[\"segment.bytes\"]*value", EVERY, "\"268435456\"", DEFAULT),
    differs(EVERY, "*configs[\"segment.ms\"].value", "\"604800000\"", "\"86400000\"", DEFAULT),
    differs(EVERY, "*configs[\"min.insync.replicas\"].config_source", "3", "5", SYNONYMS),
    differs("configs, *", "*.synonyms*", EVERY, EVERY, SYNONYMS),
    differs("configs, *: this broker", "*.config_source", "5", "4", "from its file, and changed there"),
    differs("configs, *: all brokers", "*.configs*", EVERY, EVERY, "only what `[kafka]` configures is shown"),
    differs("cluster, *", "*total_bytes", "bytes", "-1", "the size of the disk is not told"),
    differs("*, Produce *", "*record_errors*", EVERY, EVERY, "`record_errors` is empty"),
    differs("produce, *: the append's time", EVERY, EVERY, EVERY, "Kafka takes such a batch"),
    differs("idempotence, *", "*log_append_time_ms", "now", "-1", "but not with its time"),
    differs("terms, *: the same again", "*log_append_time_ms", "now", "-1", "but not with its time"),
    differs("terms, *: before anything is written", "*leader_epoch", EVERY, "first + 0", BEGIN_LATE),
    differs("terms, Fetch *: *first epoch*", "records of 0", "*first + 0*second + 0*", "*first + 0*", ENDS),
    differs(
        "terms, Fetch *: in it: *second epoch",
        "records of *",
        "*first*second + 0*",
        "*first + 0*",
        ENDS,
    ),
    differs("removed, *, which what is removed reached, *", "*", EVERY, EVERY, REMOVED),
    differs("fetch, *", "session_id", EVERY, "0", "the session id is always 0"),
];

/// Whether `text` is what the pattern says.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, after)) => text.strip_prefix(before).is_some_and(|rest| {
            let mut starts = (0..=rest.len()).filter(|at| rest.is_char_boundary(*at));
            after.is_empty() || starts.any(|at| matches(after, &rest[at..]))
        }),
    }
}

/// Which documented difference it is.
pub fn documented(script: &str, step: &str, path: &str, kafka: &str, tailwater: &str) -> Option<usize> {
    let step = format!("{script}, {step}");
    DIFFERENCES.iter().position(|known| {
        matches(known.step, &step)
            && matches(known.path, path)
            && matches(known.kafka, kafka)
            && matches(known.tailwater, tailwater)
    })
}

/// What no longer differs is no difference.
pub fn check_all_used(used: &BTreeMap<usize, usize>) {
    for (number, difference) in DIFFERENCES.iter().enumerate() {
        assert!(
            used.contains_key(&number),
            "no difference any more: {} {}",
            difference.step,
            difference.path
        );
    }
}

pub fn check_documented() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kafka.md");
    let whole = std::fs::read_to_string(path).expect("readable");
    let text = whole.split_whitespace().collect::<Vec<_>>().join(" ");
    for difference in DIFFERENCES {
        let words = difference.documented.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&words), "docs/kafka.md does not say: {words}");
    }
    let described: Vec<(i16, String, std::ops::RangeInclusive<i16>)> = text_of_table(&whole);
    let answered: Vec<_> =
        Api::ALL.iter().map(|api| (api.number(), api.name().to_owned(), api.versions())).collect();
    assert_eq!(described, answered, "docs/kafka.md lists every API with its versions, by number");
    assert!(matches("a*c", "abc") && matches("*", "") && matches("ab", "ab") && !matches("ab", "abc"));
    assert!(matches("*b", "ab b") && !matches("a*b", "abc"));
}

/// The APIs that the document lists.
fn text_of_table(text: &str) -> Vec<(i16, String, std::ops::RangeInclusive<i16>)> {
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let (from, to) = cells.get(2)?.split_once(" to ")?;
        Some((cells[0].parse().ok()?, cells[1].to_owned(), from.parse().ok()?..=to.parse().ok()?))
    });
    rows.collect()
}
