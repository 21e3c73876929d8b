//! Bugs on purpose: each is caught by the scenario that is there for its kind, with a seed for which the code as it
//! is holds. What is not caught here is not checked anywhere.

use tailwater_sim::Plant;
use tailwater_sim::scenarios;

/// Seeds tried before a bug counts as not caught.
const SEEDS: u64 = 300;

/// The bug is caught, and by a check that has to do with it: one of `words` is in what it says.
fn is_caught(plant: Plant, scenario: &str, words: &[&str]) {
    let scenario = scenarios::find(scenario).expect("it is listed");
    for seed in 0..SEEDS {
        let Err(failure) = scenario.run_seed(seed, plant, false) else { continue };
        let what = failure.violation.to_string();
        println!("{plant:?}: {failure}");
        assert!(words.iter().any(|word| what.contains(word)), "caught by chance only: {failure}");
        scenario.run_seed(seed, Plant::None, false).expect("without the bug this seed holds");
        return;
    }
    panic!("{plant:?} was not caught in {SEEDS} seeds of {}", scenario.name);
}

#[test]
fn an_acknowledgement_before_the_sync_is_caught() {
    is_caught(Plant::AckBeforeSync, "journal", &["acknowledged and is not there"]);
}

#[test]
fn names_that_are_not_synced_are_caught() {
    is_caught(Plant::NamesNotSynced, "journal", &["acknowledged and is not there", "is missing"]);
}

#[test]
fn a_data_directory_whose_own_name_is_not_synced_is_caught() {
    is_caught(Plant::DataDirNameNotSynced, "cluster", &["the stream is gone"]);
}

#[test]
fn a_failed_sync_that_is_tried_again_is_caught() {
    let words = ["acknowledged and is not there", "damaged", "is not a readable journal file"];
    is_caught(Plant::FailedSyncRetried, "journal", &words);
}

#[test]
fn a_failed_write_that_is_ignored_is_caught() {
    is_caught(Plant::FailedWriteIgnored, "journal", &["acknowledged and is not there", "damaged"]);
}

#[test]
fn a_journal_that_is_trimmed_before_segments_are_synced_is_caught() {
    is_caught(Plant::TrimBeforeFill, "store", &["is damaged", "were acknowledged or read", "is not there"]);
}

#[test]
fn a_partial_chunk_written_from_its_middle_is_caught() {
    is_caught(Plant::PartialChunkFromItsMiddle, "cluster", &["no prefix of the durable"]);
}

#[test]
fn a_length_published_too_early_is_caught() {
    is_caught(Plant::LengthTooEarly, "cluster", &["was published, but only"]);
}

#[test]
fn a_segment_that_is_appended_to_after_a_recovery_is_caught() {
    is_caught(Plant::AppendAfterRecovery, "store", &["was appended to after a recovery"]);
}

#[test]
fn a_chunk_key_without_its_term_is_caught() {
    is_caught(Plant::ChunkKeyWithoutTerm, "duel", &["no prefix of the durable"]);
}

#[test]
fn a_set_that_is_acknowledged_and_not_applied_is_caught() {
    is_caught(Plant::SetAcknowledgedUnapplied, "cache", &["was acknowledged"]);
}

#[test]
fn a_stream_that_acknowledges_before_the_sync_is_caught() {
    let words = ["was published, but only", "but it was", "foreign record", "no prefix of the durable"];
    is_caught(Plant::IntervalAsFsync, "cluster", &words);
}

#[test]
fn a_stream_that_acknowledges_before_the_sync_is_caught_at_an_io() {
    let words = ["but acknowledged records reach", "but it was", "is not durable up to"];
    is_caught(Plant::IntervalAsFsync, "log-every-io", &words);
}

#[test]
fn lengths_that_are_asked_for_too_seldom_are_caught() {
    is_caught(Plant::LengthsAskedSeldom, "lengths", &["that it may"]);
}

#[test]
fn lengths_that_are_asked_for_too_often_are_caught() {
    is_caught(Plant::LengthsAskedOften, "lengths", &["an idle process asked"]);
}

#[test]
fn a_durable_layer_that_tells_lengths_once_is_caught() {
    is_caught(Plant::LengthsToldOnce, "lengths", &["a record is never read"]);
}

#[test]
fn a_reader_that_follows_a_length_which_goes_back_is_caught() {
    is_caught(Plant::LengthGoesBack, "cluster", &["was handed offset"]);
}

#[test]
fn a_truncation_that_a_one_sided_reader_is_not_told_of_is_caught() {
    is_caught(Plant::TruncationNotTold, "cluster", &["was handed offset"]);
}

#[test]
fn a_truncation_that_a_reader_of_the_log_is_not_told_of_is_caught() {
    is_caught(Plant::TruncationNotTold, "log", &["was handed offset"]);
}

#[test]
fn old_bytes_of_a_stream_that_was_deleted_and_created_again_are_caught_in_a_cell() {
    is_caught(Plant::ChunkKeyWithoutStream, "cluster", &["no prefix of the durable"]);
}

#[test]
fn old_bytes_of_a_stream_that_was_deleted_and_created_again_are_caught_by_who_reads_them() {
    is_caught(Plant::OldStreamRead, "log", &["foreign record"]);
}

#[test]
fn a_duplicate_that_is_answered_before_the_first_is_durable_is_caught() {
    // It is lost in a crash: its reader misses it, or where it should be can't be truncated.
    let words = ["but acknowledged records reach", "can't be truncated before"];
    is_caught(Plant::DuplicateAnsweredEarly, "log", &words);
}

#[test]
fn producers_that_are_dropped_when_a_segment_is_completed_are_caught() {
    is_caught(Plant::ProducersSnapshotEmpty, "log", &["already", "the next sequence number of producer"]);
}

#[test]
fn producers_that_a_recovery_does_not_rebuild_are_caught() {
    is_caught(Plant::ProducersNotReplayed, "log", &["already", "the next sequence number of producer"]);
}

#[test]
fn a_log_whose_data_directory_s_own_name_is_not_synced_is_caught_at_an_io() {
    let words = ["the stream is gone", "but acknowledged records reach"];
    is_caught(Plant::DataDirNameNotSynced, "log-every-io", &words);
}

#[test]
fn a_log_s_journal_that_is_trimmed_before_segments_are_synced_is_caught() {
    let words = ["damaged", "stored bytes are corrupt", "but acknowledged records reach"];
    is_caught(Plant::TrimBeforeFill, "log", &words);
}

#[test]
fn a_process_that_keeps_what_it_acknowledged_to_itself_is_caught() {
    let words = ["but it was", "foreign record", "not all is well"];
    is_caught(Plant::KeptUntilSynced, "cluster-interval", &words);
}

#[test]
fn a_checkpoint_that_takes_its_name_before_it_is_synced_is_caught() {
    is_caught(Plant::RenameBeforeSync, "cluster", &["can't be read: it is not a snapshot"]);
}

#[test]
fn a_snapshot_of_metadata_whose_name_is_not_synced_is_caught() {
    is_caught(Plant::NamesNotSynced, "meta", &["was committed and is not there"]);
}

#[test]
fn a_queue_whose_journal_acknowledges_before_the_sync_is_caught() {
    let words = ["acknowledged and is not there", "deleted and came back", "later ones knew it durable"];
    is_caught(Plant::AckBeforeSync, "queue", &words);
}

#[test]
fn a_journal_that_is_trimmed_before_the_queues_tree_is_synced_is_caught() {
    let words = ["acknowledged and is not there", "deleted and came back", "can't be opened"];
    is_caught(Plant::TreeNotSynced, "queue", &words);
}

#[test]
fn a_tree_that_takes_its_name_before_it_is_synced_is_caught() {
    is_caught(Plant::RenameBeforeSync, "queue-every-io", &["can't be opened"]);
}

#[test]
fn a_receive_that_makes_nothing_invisible_is_caught() {
    is_caught(Plant::VisibleAtOnce, "queue", &["while it was invisible"]);
}

#[test]
fn a_deduplication_id_that_is_another_each_time_is_caught() {
    is_caught(Plant::DeduplicationIdAnew, "queue", &["by its deduplication id"]);
}

#[test]
fn messages_of_a_group_that_are_sent_to_others_are_caught() {
    is_caught(Plant::GroupNotKept, "queue", &["others of its group were received before it"]);
}

#[test]
fn dead_letters_that_are_brought_back_by_sending_them_again_are_caught() {
    is_caught(
        Plant::BroughtBackBySending,
        "queue",
        &["acknowledged and is not there", "was purged and came back"],
    );
}

#[test]
fn a_head_that_acknowledges_what_it_alone_has_is_caught() {
    let words = ["and is not there", "two events were published", "not what was published", "never given"];
    is_caught(Plant::HeadAcknowledgesAlone, "broadcast", &words);
}

#[test]
fn a_replica_that_tells_too_early_that_all_hold_an_event_is_caught() {
    is_caught(
        Plant::HeldTooEarly,
        "broadcast",
        &["and is not there", "two events", "repeated", "never given", "not what was published"],
    );
}

#[test]
fn a_replica_that_joins_before_it_has_everything_is_caught() {
    // One that is a member too early keeps the others waiting, is removed, and is a member too early again.
    let words = [
        "and is not there",
        "two events",
        "repeated",
        "never given",
        "not what was published",
        "the chain changed",
    ];
    is_caught(Plant::JoinedBeforeCaughtUp, "broadcast", &words);
}

#[test]
fn a_configuration_service_that_begins_a_chain_before_it_has_listened_for_what_replicas_have_is_caught() {
    let words = ["two events were published", "not what was published", "repeated", "misses what publisher"];
    is_caught(Plant::ChainBegunAtOnce, "broadcast", &words);
}

#[test]
fn replicas_that_are_not_told_that_their_region_has_begun_anew_are_caught() {
    let words = ["not what was published", "two events", "repeated"];
    is_caught(Plant::LineageNotTold, "broadcast-anew", &words);
}

#[test]
fn proxies_that_do_not_tell_others_in_which_lineage_their_events_are_are_caught() {
    let words = ["not everything was delivered", "not what was published", "was not told"];
    is_caught(Plant::LineageNotToldElsewhere, "broadcast-anew", &words);
}

#[test]
fn a_listener_that_goes_on_at_its_number_whichever_lineage_that_is_of_by_now_is_caught() {
    let words = ["came an event that covers", "not what was published", "was not told"];
    is_caught(Plant::ResumedInAnyLineage, "broadcast-anew", &words);
}

#[test]
fn replicas_that_do_not_say_what_they_wait_for_are_caught() {
    is_caught(Plant::WaitsNotTold, "broadcast", &["for long: publisher"]);
}

#[test]
fn replicas_that_do_not_say_that_they_hear_nothing_of_the_one_before_them_are_caught() {
    is_caught(Plant::BeforeNotTold, "broadcast", &["to which nothing happened"]);
}

#[test]
fn replicas_that_say_what_they_waited_for_a_while_ago_are_caught() {
    is_caught(Plant::WaitsToldLate, "broadcast", &["to which nothing happened"]);
}

#[test]
fn a_tail_that_does_not_say_how_old_its_knowledge_is_is_caught() {
    is_caught(Plant::AgeNotTold, "broadcast", &["had been acknowledged before then"]);
}

#[test]
fn event_times_that_go_back_are_caught() {
    is_caught(Plant::TimesGoBack, "broadcast", &["before that of the one before it"]);
}

#[test]
fn a_publisher_that_tries_again_as_another_is_caught() {
    is_caught(
        Plant::RetryAsAnother,
        "broadcast",
        &[
            "and is not there",
            "repeated",
            "not what was published",
            "not everything was delivered",
            "misses what publisher",
        ],
    );
}

#[test]
fn a_publisher_that_takes_another_name_at_every_gap_is_caught() {
    is_caught(Plant::RenamedOnGap, "broadcast", &["repeated"]);
}

#[test]
fn a_listener_that_keeps_where_it_is_before_what_it_got_is_caught() {
    is_caught(Plant::PositionKeptTooEarly, "broadcast", &["came an event that covers"]);
}

#[test]
fn a_replica_that_counts_as_read_what_it_has_sent_is_caught() {
    is_caught(Plant::DrainedTooEarly, "broadcast", &["bytes wait for a connection"]);
}

#[test]
fn listeners_that_share_and_ask_the_proxy_for_nothing_that_is_old_are_caught() {
    is_caught(Plant::FallbackLeftOut, "broadcast-sharing", &["not everything was delivered"]);
}

#[test]
fn a_listener_that_shares_with_a_hole_in_it_is_caught() {
    is_caught(Plant::HoleHidden, "broadcast-sharing", &["not what was published", "nothing that came later"]);
}

#[test]
fn a_listener_that_shares_and_comes_back_one_number_too_far_is_caught() {
    is_caught(Plant::ResumedTooFar, "broadcast-sharing", &["came an event that covers"]);
}

#[test]
fn replicas_that_acknowledge_too_early_are_caught_by_listeners_that_share() {
    let words = ["and is not there", "two events", "not what was published", "never given", "repeated"];
    is_caught(Plant::HeadAcknowledgesAlone, "broadcast-sharing", &words);
}

#[test]
fn a_listener_that_goes_on_one_number_too_far_is_caught() {
    is_caught(Plant::ResumedTooFar, "broadcast", &["came an event that covers"]);
}

#[test]
fn a_tombstone_for_an_event_that_nothing_collected_is_caught() {
    is_caught(Plant::TombstoneForNothing, "broadcast", &["nothing that came later collects it"]);
}

#[test]
fn a_subscription_from_beyond_ones_own_count_is_caught() {
    // It asks again for each batch that does not continue what it has, for ever.
    let words = ["not everything was delivered", "a task does not yield: message"];
    is_caught(Plant::SubscribedTooFar, "broadcast", &words);
}

#[test]
fn an_event_that_counts_as_held_before_it_is_synced_is_caught() {
    let words =
        ["two events", "not what was published", "not everything was delivered", "never given", "repeated"];
    is_caught(Plant::HeldBeforeSync, "broadcast", &words);
}

#[test]
fn a_replica_s_journal_that_is_trimmed_before_the_checkpoint_counts_is_caught() {
    is_caught(
        Plant::TrimBeforeCheckpoint,
        "broadcast",
        &["a disk can't be read", "two events were published", "is not what was published"],
    );
}

#[test]
fn a_replica_that_restarts_without_its_publishers_numbers_is_caught() {
    // Others know them, and leave out what it takes: it may be one that has another event under a number.
    let words =
        ["repeated", "not what was published", "not everything was delivered", "misses what publisher"];
    is_caught(Plant::PublishersNotRestored, "broadcast", &words);
}

#[test]
fn a_replica_s_journal_that_acknowledges_before_the_sync_is_caught() {
    let words = ["acknowledged and is not there", "can't be opened"];
    is_caught(Plant::AckBeforeSync, "broadcast-disk", &words);
}

#[test]
fn a_replica_s_checkpoint_that_takes_its_name_before_it_is_synced_is_caught() {
    is_caught(Plant::RenameBeforeSync, "broadcast-disk", &["can't be opened"]);
}

#[test]
fn a_body_that_is_not_put_is_caught() {
    is_caught(Plant::BodyNotPut, "queue-cassandra", &["was acknowledged and is lost"]);
}

#[test]
fn a_body_that_is_not_deleted_is_caught() {
    is_caught(Plant::BodyNotDeleted, "queue-cassandra", &["deleted and came back"]);
}

#[test]
fn reads_of_one_replica_where_a_quorum_is_promised_are_caught() {
    // A message whose body is not seen is taken out of its group.
    is_caught(Plant::ReadOfOne, "queue-cassandra", &["deleted and came back", "of its group", "is lost"]);
}

#[test]
fn a_bucket_that_is_dropped_with_bodies_in_it_is_caught() {
    // In a FIFO queue what comes next tells of it before the end does.
    let words = ["was acknowledged and is lost", "before message"];
    is_caught(Plant::FullBucketDropped, "queue-cassandra", &words);
}

#[test]
fn conditional_writes_that_do_not_compare_are_caught() {
    let words = ["while it was invisible", "of its group", "by its deduplication id", "is lost"];
    is_caught(Plant::ConditionNotChecked, "queue-cassandra", &words);
}

#[test]
fn a_group_that_forgets_deduplication_ids_is_caught() {
    is_caught(Plant::SeenNotKept, "queue-cassandra", &["by its deduplication id"]);
}

#[test]
fn writes_to_one_replica_where_a_quorum_is_promised_are_caught() {
    is_caught(Plant::QuorumOfOne, "queue-cassandra", &["was acknowledged and is lost", "of its group"]);
}

#[test]
fn dead_letters_that_are_not_put_are_caught() {
    is_caught(Plant::LetterNotPut, "queue-cassandra-letters", &["was acknowledged and is lost"]);
}

#[test]
fn dead_letters_that_a_delete_does_not_find_are_caught() {
    is_caught(Plant::LetterNotNoted, "queue-cassandra-letters", &["deleted elsewhere and came back"]);
}

#[test]
fn messages_that_stay_where_they_were_when_they_become_dead_letters_are_caught() {
    let words = ["became a dead letter again", "places at the end"];
    is_caught(Plant::MovedAndKept, "queue-cassandra-letters", &words);
}

#[test]
fn messages_that_are_sent_without_their_delay_are_caught() {
    is_caught(Plant::DelayNotSent, "queue-cassandra-letters", &["before its delay"]);
}

#[test]
fn front_ends_with_k_auto_that_do_not_see_each_other_are_caught() {
    is_caught(Plant::OthersNotSeen, "queue-auto", &["with K = auto were duplicates"]);
}

#[test]
fn duplicates_that_are_counted_by_both_receivers_are_caught() {
    is_caught(Plant::OthersSeenFirst, "queue-auto", &["is out of order"]);
}
