//! What may differ, and the sentence of `docs/kafka.md` that says so.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use tailwater_kafka::api::Api;
use tailwater_kafka::messages::cluster::ApiVersionsRequest;

use crate::common::Client;

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

const NOT_OFFERED: &str = "Tailwater does not offer Kafka's other APIs";

const NEVER_IN: &str = "A group does not exist until it has a member or a commit";
const COMMITS_LATE: &str = "A member that commits in an epoch before its own is told so";
const EPOCHS: &str = "Epochs of groups of KIP-848 begin with 1, and Kafka's with 2";

const FORGOTTEN: &str = "A member of KIP-848 that its group does not know is told to join again";

const JOINS_AGAIN: &str =
    "A static member of KIP-848 that joins once more, with the id that it has, is answered";

const AGREED: &str = "A member that syncs with a protocol of before a group moved is told to join again";

const LEFT_OUT: &str = "Metadata by id leaves out unknown ids";

const REMOVED: &str = "Removed records still count in a search by time, as transaction ids do";
const BEGIN_LATE: &str = "an epoch begins with the first record that is written in it";
const ENDS: &str = "An answer ends where an epoch does";

const NO_FEATURES: &str = "neither supported nor finalized ones are told";
const RECORD_ERRORS: &str = "`record_errors` is empty";
const EPOCHS_BEGIN: &str = "Epochs begin with 1, not with 0.";
const CHANGES: &str = "The high watermark is the number of the last change of the node's metadata.";
const OWN_LISTENER: &str = "The voter's listener is the one by which the client came";
const LAST_BATCH: &str = "DescribeProducers tells of a producer's last batch when it was appended";
const TAKES_IT: &str = "Kafka takes such a batch";
const SET_THERE: &str = "DescribeConfigs shows the settings that `[kafka]` has, from the file.";
const SET_HERE: &str = "In Kafka most of these are read-only, and others are not";
const NOT_SET: &str = "Any other name is refused with `INVALID_CONFIG`, and the answer says why.";
const ONLY_OWN: &str = "shows the settings that `[kafka]` has";

/// Steps that several differences are of.
const DESCRIBED_REFUSED: &str = "refusals, DescribeGroups *: \"refused\": is described";
const NAMED_AGAIN: &str = "consumer groups of names, *: a joins again";
const NEITHER: &str = "metadata, *: neither name nor id";
const NOTHING_LEFT: &str = "removed, *: time -3, which what is removed reached, from 12 on";

const NO_ID: &str = "00000000-0000-0000-0000-000000000000";

const DIFFERENCES: &[Difference] = &[
    differs("moving, *: a protocol that is not its own", "error_code", "23", "27", AGREED),
    differs("consumer groups, *: a group that is not there", "error_code", "69", "25", FORGOTTEN),
    differs("refusals, OffsetCommit *: \"refused\": commits", "*.error_code", "25", "22", NEVER_IN),
    differs("refusals, OffsetCommit *: \"refused\": commits", "*.error_code", "25", "69", NEVER_IN),
    differs(DESCRIBED_REFUSED, "*.group_state", "\"Empty\"", "\"Dead\"", NEVER_IN),
    differs(DESCRIBED_REFUSED, "*.authorized_operations", "3400", "-2147483648", NEVER_IN),
    differs(DESCRIBED_REFUSED, "*.error_code", "0", "69", NEVER_IN),
    differs("refusals, DeleteGroups *: \"refused\": is deleted", "*.error_code", "0", "69", NEVER_IN),
    differs(NAMED_AGAIN, "error_code", "111", "0", JOINS_AGAIN),
    differs(NAMED_AGAIN, "error_message", "words", "None", JOINS_AGAIN),
    differs(NAMED_AGAIN, "heartbeat_interval_ms", "0", "5000", JOINS_AGAIN),
    differs(NAMED_AGAIN, "member_id", "None", "\"a\"", JOINS_AGAIN),
    differs(NAMED_AGAIN, "member_epoch", "0", "first + 0", JOINS_AGAIN),
    differs(NAMED_AGAIN, "assignment", "None", NOTHING, JOINS_AGAIN),
    differs(NAMED_AGAIN, "assignment.*", NOTHING, EVERY, JOINS_AGAIN),
    differs("consumer groups, ConsumerGroup*", "*_epoch", "2", "1", EPOCHS),
    differs("consumer groups, ConsumerGroup*", "*_epoch", "3", "2", EPOCHS),
    differs("silence of KIP-848, *: described when *", "*_epoch", "2", "1", EPOCHS),
    differs("silence of KIP-848, *: described when *", "*_epoch", "3", "2", EPOCHS),
    differs("moving, *: commits too late", "*partitions[0].error_code", "0", "22", COMMITS_LATE),
    differs("moving, *: commits too late", "*partitions[1].error_code", "12", "22", COMMITS_LATE),
    differs(EVERY, "*error_message", "None", "words", SENTENCES),
    differs(EVERY, "*error_message", "\"\"", "words", SENTENCES),
    differs(EVERY, "*error_message", "\"\"", "None", SENTENCES),
    // Which ones these are is compared with the document (`check_versions`).
    differs("versions, *", "api_keys.len", EVERY, EVERY, NOT_OFFERED),
    differs("versions, *", "api_keys[*", EVERY, NOTHING, NOT_OFFERED),
    differs("versions, *", "finalized_features_epoch", EVERY, "-1", NO_FEATURES),
    differs("versions, *", "*ed_features", NOTHING, "[]", NO_FEATURES),
    differs("versions, *", "*ed_features.len", EVERY, NOTHING, NO_FEATURES),
    differs("versions, *", "*ed_features[*", EVERY, NOTHING, NO_FEATURES),
    differs("vanished, *: asked for by id", "topics", NOTHING, "[]", LEFT_OUT),
    differs("vanished, *: asked for by id", "topics.len", "1", NOTHING, LEFT_OUT),
    differs("vanished, *: asked for by id", "topics[0].*", EVERY, NOTHING, LEFT_OUT),
    differs("metadata, *: by an id that is not there", "topics", NOTHING, "[]", LEFT_OUT),
    differs("metadata, *: by an id that is not there", "topics.len", "1", NOTHING, LEFT_OUT),
    differs("metadata, *: by an id that is not there", "topics[0].*", EVERY, NOTHING, LEFT_OUT),
    // Kafka tells of no broker then, as of nothing else.
    differs(NEITHER, "brokers", "[]", NOTHING, SAYS_MORE),
    differs(NEITHER, "brokers*", NOTHING, EVERY, SAYS_MORE),
    differs(NEITHER, "controller_id", "-1", "1", SAYS_MORE),
    differs(NEITHER, "error_code", "-1", "0", SAYS_MORE),
    differs(NEITHER, "topics[0].error_code", "-1", "100", SAYS_MORE),
    differs(NEITHER, "topics[0].name", "\"\"", "None", SAYS_MORE),
    differs("configs, *: no such operation", "*error_code", "-1", "42", SAYS_MORE),
    differs("automatic creation, *: wanted*", "topics[\"wanted*\"].error_code", "3", "0", AT_ONCE),
    differs("automatic creation, *: wanted*", "topics[\"wanted*\"].partitions", "[]", NOTHING, AT_ONCE),
    differs("automatic creation, *: wanted*", "topics[\"wanted*\"].partitions.len", NOTHING, "1", AT_ONCE),
    differs("automatic creation, *: wanted*", "topics[\"wanted*\"].partitions[0].*", NOTHING, EVERY, AT_ONCE),
    differs(
        "creation, *: only validated",
        "*topic_id",
        "an id",
        NO_ID,
        "A validate-only answer has no topic id",
    ),
    differs("creation, *: cleanup.policy = *compact*", "*error_code", "0", "40", "`compact` is refused"),
    differs(EVERY, "*configs[*].read_only", "false", "true", READ_ONLY),
    differs(EVERY, "*configs[\"flush.messages\"]*value", "\"9223372036854775807\"", "\"1\"", "1 is `fsync`"),
    differs(EVERY, "*configs[\"max.message.bytes\"]*value", "\"1048588\"", "\"4194304\"", "at most 4194304"),
    differs(EVERY, "*configs[\"segment.bytes\"]*value", "\"1073741824\"", "\"268435456\"", DEFAULT),
    differs(EVERY, "*configs[\"segment.ms\"].value", "\"604800000\"", "\"86400000\"", DEFAULT),
    differs(EVERY, "*configs[\"min.insync.replicas\"].config_source", "3", "5", SYNONYMS),
    // Those of a broker's configuration that Kafka does not tell, as nothing sets them.
    differs("configs, *", "*.synonyms", "[]", NOTHING, SYNONYMS),
    differs("configs, *", "*.synonyms.len", NOTHING, "1", SYNONYMS),
    differs("configs, *", "*.synonyms.len", "1", "2", SYNONYMS),
    differs("configs, *", "*.synonyms[*", NOTHING, EVERY, SYNONYMS),
    differs("configs, *", "*[\"min.insync.replicas\"].synonyms.len", "2", "1", SYNONYMS),
    differs("configs, *", "*[\"min.insync.replicas\"].synonyms[*", EVERY, EVERY, SYNONYMS),
    differs("configs, *: this broker", "*.config_source", "5", "4", SET_THERE),
    differs("configs, *: this broker", "*.synonyms[*].source", "5", "4", SET_THERE),
    differs("configs, *: this broker", "*.read_only", "true", "false", SET_HERE),
    differs("configs, *: a broker's partitions", "*.error_code", "42", "0", SET_HERE),
    differs("configs, *: a broker's partitions", "*.error_message", "words", "None", SET_HERE),
    differs("configs, *: a broker's listeners", "*.error_code", "42", "40", NOT_SET),
    differs("configs, *a group*", "*.config_source", "5", "4", SET_THERE),
    differs("configs, *a group*", "*.synonyms[\"group.*\"].source", "5", "4", SET_THERE),
    differs("configs, *: all brokers", "*.configs", NOTHING, "[]", ONLY_OWN),
    differs("configs, *: all brokers", "*.configs.len", "1", NOTHING, ONLY_OWN),
    differs("configs, *: all brokers", "*.configs[\"min.insync.replicas\"].*", EVERY, NOTHING, ONLY_OWN),
    differs("cluster, *", "*total_bytes", "bytes", "-1", "the size of the disk is not told"),
    differs("*, Produce *", "*record_errors", NOTHING, "[]", RECORD_ERRORS),
    differs("*, Produce *", "*record_errors.len", EVERY, NOTHING, RECORD_ERRORS),
    differs("*, Produce *", "*record_errors[*", EVERY, NOTHING, RECORD_ERRORS),
    differs("produce, *: the append's time", "*.error_code", "0", "32", TAKES_IT),
    differs("produce, *: the append's time", "*_offset", "0", "-1", TAKES_IT),
    differs("compression, *: again to *", "*log_append_time_ms", "now", "-1", "but not with its time"),
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
    // Ours is the first record that is left, or none.
    differs("removed, *reached, from 3 on", "*.offset", EVERY, "3", REMOVED),
    differs("removed, *reached, from 3 on", "*.timestamp", EVERY, "250", REMOVED),
    differs("removed, *reached, from 5 on", "*.offset", EVERY, "5", REMOVED),
    differs("removed, *reached, from 5 on", "*.timestamp", EVERY, "400", REMOVED),
    differs("removed, *reached, from 9 on", "*.offset", EVERY, "9", REMOVED),
    differs("removed, *reached, from 9 on", "*.timestamp", EVERY, "500", REMOVED),
    differs("removed, *reached, from 10 on", "*.offset", EVERY, "10", REMOVED),
    differs("removed, *reached, from 10 on", "*.timestamp", EVERY, "450", REMOVED),
    differs("removed, *reached, from *", "*.leader_epoch", "-1", "first + 0", REMOVED),
    differs(NOTHING_LEFT, "*.offset", "1", "-1", REMOVED),
    differs(NOTHING_LEFT, "*.timestamp", "900", "-1", REMOVED),
    differs(NOTHING_LEFT, "*.leader_epoch", "first + 0", "-1", REMOVED),
    differs("controllers, *", "*.leader_epoch", "first + *", "first + 0", EPOCHS_BEGIN),
    differs("controllers, *: another *", "*.leader_epoch", "first + 0", "0", EPOCHS_BEGIN),
    differs("controllers, *: metadata", "*.log_end_offset", EVERY, EVERY, CHANGES),
    differs("controllers, *: metadata", "*.high_watermark", EVERY, EVERY, CHANGES),
    differs("controllers, *: metadata", "nodes[1].listeners[\"CONTROLLER\"].*", EVERY, NOTHING, OWN_LISTENER),
    differs("controllers, *: metadata", "nodes[1].listeners[\"PLAINTEXT\"].*", NOTHING, EVERY, OWN_LISTENER),
    differs("producers, *", "*.last_timestamp", "3", EVERY, LAST_BATCH),
    differs("fetch, *: session 99 in epoch 0", "session_id", EVERY, "0", "the session id is always 0"),
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

fn document() -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/kafka.md");
    std::fs::read_to_string(path).expect("readable")
}

pub fn check_documented() {
    let whole = document();
    let text = whole.split_whitespace().collect::<Vec<_>>().join(" ");
    for difference in DIFFERENCES {
        let words = difference.documented.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&words), "docs/kafka.md does not say: {words}");
    }
    let described: Vec<_> =
        answered(&whole).into_iter().map(|(number, name, here, _)| (number, name, here)).collect();
    let answered: Vec<_> =
        Api::ALL.iter().map(|api| (api.number(), api.name().to_owned(), api.versions())).collect();
    assert_eq!(described, answered, "docs/kafka.md lists every API with its versions, by number");
    assert!(matches("a*c", "abc") && matches("*", "") && matches("ab", "ab") && !matches("ab", "abc"));
    assert!(matches("*b", "ab b") && !matches("a*b", "abc"));
}

type Versions = RangeInclusive<i16>;

/// The versions of each API that two brokers tell of are those in the document's tables, and no others.
pub fn check_versions(kafka: &mut Client, tailwater: &mut Client) {
    let whole = document();
    let told = |client: &mut Client| -> BTreeMap<i16, Versions> {
        let asked = ApiVersionsRequest {
            client_software_name: "tests".to_owned(),
            client_software_version: "1".to_owned(),
        };
        let answer = client.ask(4, &asked).expect("an answer");
        answer.api_keys.into_iter().map(|api| (api.api_key, api.min_version..=api.max_version)).collect()
    };
    // The first ones are told and not answered, as the document says.
    let as_told = |number: i16, versions: Versions| match number {
        0 => (number, 0..=*versions.end()),
        _ => (number, versions),
    };
    let here = answered(&whole).into_iter().map(|(number, _, here, _)| as_told(number, here));
    assert_eq!(told(tailwater), here.collect(), "what docs/kafka.md says of Tailwater's versions");
    let theirs = answered(&whole).into_iter().map(|(number, _, _, theirs)| as_told(number, theirs));
    let theirs = theirs.chain(not_offered(&whole));
    assert_eq!(told(kafka), theirs.collect(), "what docs/kafka.md says of Apache Kafka's versions");
}

/// The rows of the tables that begin with an API's number and have so many columns.
fn rows(text: &str, columns: usize) -> impl Iterator<Item = (i16, Vec<&str>)> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix('|'));
    rows.filter_map(move |row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let number = cells[0].parse().ok()?;
        (cells.len() == columns).then_some((number, cells))
    })
}

fn versions(cell: &str) -> Versions {
    let (from, to) = cell.split_once(" to ").expect("versions");
    from.parse().expect("a number")..=to.parse().expect("a number")
}

/// The APIs that are answered: number, name, the versions here, and Kafka's.
fn answered(text: &str) -> Vec<(i16, String, Versions, Versions)> {
    let rows = rows(text, 5);
    rows.map(|(number, row)| (number, row[1].to_owned(), versions(row[2]), versions(row[3]))).collect()
}

/// The APIs that Kafka has, and that are not offered here: number and versions.
fn not_offered(text: &str) -> Vec<(i16, Versions)> {
    rows(text, 4).map(|(number, row)| (number, versions(row[2]))).collect()
}
