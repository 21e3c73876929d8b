//! Kafka's clients, unmodified, one program for each below `tests/clients/`: round trips that check content, order,
//! offsets and times, and what administrators do.

use crate::support::Node;
use crate::support::kafka::scenario;

fn with_node(test: impl FnOnce(&Node)) {
    let dir = tempfile::tempdir().expect("a directory");
    // Groups don't wait for more members than there are.
    let quick = [
        ("TAILWATER_KAFKA__GROUPS__INITIAL_REBALANCE_DELAY_MS", "0"),
        ("TAILWATER_KAFKA__GROUPS__CONSUMER_HEARTBEAT_MS", "300"),
    ];
    test(&Node::start_with(&dir.path().join("data"), &[], &quick));
}

/// All records of a stream's shards, as our own consumer sees them: offset, timestamp, key, value.
fn ours(node: &Node, stream: &str) -> Vec<String> {
    let text = node.run(&["consume", stream, "--exit-at-end", "--format", "%o %t %k %v\\n"]);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn java_with_its_defaults_writes_reads_and_finds_what_our_own_consumer_reads_too() {
    with_node(|node| {
        scenario(node, "Clients.java", "records");
        let mut found = ours(node, "java");
        let mut expected: Vec<String> = (0..6_000_u64)
            .map(|i| format!("{} {} key {i} value {i}", i / 3, 1_700_000_000_000 + i))
            .collect();
        found.sort();
        expected.sort();
        assert!(found == expected, "{} records", found.len());
    });
}

#[test]
fn java_s_admin_client_creates_alters_describes_truncates_and_deletes() {
    with_node(|node| scenario(node, "Clients.java", "admin"));
}

#[test]
fn java_is_told_what_is_refused_in_exceptions_that_it_knows() {
    with_node(|node| scenario(node, "Clients.java", "refusals"));
}

#[test]
fn java_s_admin_client_is_told_that_a_node_is_alone() {
    with_node(|node| scenario(node, "Clients.java", "alone"));
}

#[test]
fn librdkafka_brings_every_codec_back_whole_and_in_order() {
    with_node(|node| scenario(node, "librdkafka.py", "records"));
}

#[test]
fn librdkafka_s_pipelined_idempotent_producers_lose_and_repeat_nothing() {
    with_node(|node| scenario(node, "librdkafka.py", "pipelines"));
}

#[test]
fn librdkafka_s_admin_client_creates_alters_describes_truncates_and_deletes() {
    with_node(|node| scenario(node, "librdkafka.py", "admin"));
}

#[test]
fn librdkafka_is_told_that_nobody_logs_in_here() {
    with_node(|node| scenario(node, "librdkafka.py", "no_sasl"));
}

#[test]
fn kafka_python_brings_every_codec_back_whole_and_in_order() {
    with_node(|node| scenario(node, "kafka_python.py", "records"));
}

#[test]
fn franz_go_brings_every_codec_back_whole_and_in_order() {
    with_node(|node| scenario(node, "main.go", "records"));
}

#[test]
fn franz_go_s_admin_client_creates_alters_describes_and_deletes() {
    with_node(|node| scenario(node, "main.go", "admin"));
}

#[test]
fn java_s_members_come_and_go_and_all_is_read_in_order_whichever_way_they_share() {
    for strategy in ["range", "cooperative"] {
        with_node(|node| scenario(node, "Clients.java", strategy));
    }
}

#[test]
fn java_is_told_that_there_are_no_transactions() {
    with_node(|node| scenario(node, "Clients.java", "transactions"));
}

#[test]
fn librdkafka_s_members_come_and_go_and_all_is_read_in_order_whichever_way_they_share() {
    for strategy in ["range", "cooperative"] {
        with_node(|node| scenario(node, "librdkafka.py", strategy));
    }
}

#[test]
fn librdkafka_is_told_that_there_are_no_transactions() {
    with_node(|node| scenario(node, "librdkafka.py", "transactions"));
}

#[test]
fn java_s_members_of_kip_848_come_and_go_and_all_is_read_in_order() {
    with_node(|node| scenario(node, "Clients.java", "kip848"));
}

#[test]
fn java_s_consumer_with_a_pattern_of_kip_848_reads_what_matches_also_what_is_created_later_and_nothing_else()
{
    with_node(|node| scenario(node, "Clients.java", "pattern"));
}

#[test]
fn java_s_members_move_from_the_classic_protocol_to_kip_848_one_by_one_and_back_and_all_is_read_in_order() {
    with_node(|node| scenario(node, "Clients.java", "moving"));
}

#[test]
fn librdkafka_s_members_move_from_the_classic_protocol_to_kip_848_one_by_one_and_all_is_read_in_order() {
    with_node(|node| scenario(node, "librdkafka.py", "moving"));
}

#[test]
fn java_s_static_members_come_back_to_what_they_had() {
    with_node(|node| scenario(node, "Clients.java", "static"));
}

#[test]
fn java_s_admin_client_lists_describes_moves_and_deletes_groups() {
    with_node(|node| scenario(node, "Clients.java", "groups"));
}

#[test]
fn kafka_python_s_members_come_and_go_and_all_is_read_in_order() {
    with_node(|node| scenario(node, "kafka_python.py", "group"));
}

#[test]
fn franz_go_s_members_come_and_go_and_all_is_read_in_order() {
    with_node(|node| scenario(node, "main.go", "group"));
}
