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

/// A test each: its name, the bug, the scenario that catches it, and what that says.
macro_rules! are_caught {
    ($($name:ident: $plant:ident in $scenario:literal, $words:expr;)*) => {
        $(#[test]
        fn $name() {
            is_caught(Plant::$plant, $scenario, &$words);
        })*
    };
}

are_caught! {
    a_shard_that_is_taken_over_without_a_fence_is_caught:
        TakenOverUnfenced in "nodes", ["but it was", "already", "not all is well", "acknowledged in term"];
    a_segment_that_is_begun_without_the_right_to_is_caught:
        RightNotConfirmed in "nodes", ["but it was", "already", "not all is well", "acknowledged in term"];
    a_ledger_that_ends_where_one_bookie_s_entries_end_is_caught:
        EndOfOneBookie in "nodes", ["but it was", "already", "not all is well"];
    a_ledger_that_is_swept_away_before_the_next_owner_has_found_it_is_caught:
        EndedTermSweptAway in "nodes", ["but it was", "already", "not all is well"];
    commits_about_a_shard_that_do_not_say_whose_it_is_are_caught:
        ShardRecordUnchecked in "nodes", ["a segment goes on where the last one ended", "but it was", "already", "acknowledged in term"];
    a_cluster_that_keeps_an_older_plan_is_caught: OlderPlanKept in "trees", ["not all is well"];
    an_entry_that_is_copied_to_another_place_is_caught: CopiedElsewhere in "trees", ["but it was", "out of the order"];
    a_copy_that_goes_on_behind_a_gap_without_telling_is_caught:
        CopyGapNotTold in "trees", ["was told that retention removed"];
    a_cycle_of_two_plans_that_is_not_dissolved_is_caught: WayNotTold in "trees", ["no cycle is dissolved"];
    a_surplus_of_an_old_source_that_stays_is_caught: SurplusCopied in "trees", ["foreign record", "but it was"];
    an_entry_that_a_worker_copies_to_another_place_is_caught:
        CopiedElsewhere in "schedule", ["but it was", "out of the order"];
    a_gap_of_which_a_worker_is_not_told_is_caught:
        CopyGapNotTold in "schedule", ["was told that retention removed"];
    a_worker_whose_pushes_are_forgotten_is_caught: PushForgotten in "schedule", ["not all is well"];
    a_worker_that_is_not_told_where_a_shard_goes_on_is_caught:
        PushedPlaceNotTold in "schedule", ["not all is well"];
    a_cycle_that_a_worker_does_not_notice_is_caught: WayNotTold in "schedule", ["no cycle is dissolved"];
    a_dead_worker_whose_operations_stay_its_own_is_caught:
        DeadWorkerHeard in "schedule", ["was not found dead"];
    an_operation_that_ends_where_it_was_before_it_flows_elsewhere_is_caught:
        BreakBeforeMake in "schedule", ["did not flow while a worker left"];
    a_shard_that_is_held_and_never_goes_on_is_caught: ResumeNotTold in "ahead", ["not all is well"];
    a_source_that_sends_what_it_has_not_on_its_disk_is_caught:
        // The last ones where what was durable is not, after a sync that failed: the source does not start with that.
        AckBeforeSync in "ahead",
        ["more than its source has", "but it was", "foreign record", "the floor goes forward only", "not all is well"];
    an_acknowledgement_before_the_sync_is_caught:
        AckBeforeSync in "journal", ["acknowledged and is not there"];
    names_that_are_not_synced_are_caught:
        NamesNotSynced in "journal", ["acknowledged and is not there", "is missing"];
    a_data_directory_whose_own_name_is_not_synced_is_caught:
        DataDirNameNotSynced in "cluster", ["the stream is gone"];
    a_failed_sync_that_is_tried_again_is_caught:
        FailedSyncRetried in "journal",
        ["acknowledged and is not there", "damaged", "is not a readable journal file"];
    a_failed_write_that_is_ignored_is_caught:
        FailedWriteIgnored in "journal", ["acknowledged and is not there", "damaged"];
    a_journal_that_is_trimmed_before_segments_are_synced_is_caught:
        TrimBeforeFill in "store", ["is damaged", "were acknowledged or read", "is not there"];
    a_partial_chunk_written_from_its_middle_is_caught:
        PartialChunkFromItsMiddle in "cluster", ["no prefix of the durable"];
    a_length_published_too_early_is_caught: LengthTooEarly in "cluster", ["was published, but only"];
    a_segment_that_is_appended_to_after_a_recovery_is_caught:
        AppendAfterRecovery in "store", ["was appended to after a recovery"];
    a_chunk_key_without_its_term_is_caught: ChunkKeyWithoutTerm in "duel", ["no prefix of the durable"];
    a_set_that_is_acknowledged_and_not_applied_is_caught:
        SetAcknowledgedUnapplied in "cache", ["was acknowledged"];
    a_quorum_of_one_is_caught: OneReplicaCountsTwice in "cache", ["was acknowledged", "had been acknowledged"];
    a_backend_that_ignores_versions_is_caught: VersionIgnored in "refill", ["at another version"];
    a_backend_that_drops_its_tombstones_is_caught: TombstoneDropped in "refill", ["had been acknowledged"];
    a_backend_whose_memory_moves_and_that_does_not_say_so_is_caught:
        MoveNotSaid in "cache", ["was acknowledged", "had been acknowledged"];
    a_set_that_a_backend_takes_under_any_configuration_is_caught:
        SetUnderAnyConfiguration in "cell", ["was acknowledged", "had been acknowledged", "set in the cell before", "goes by configuration"];
    a_configuration_that_backends_do_not_tell_is_caught:
        ConfigurationNotTold in "cell", ["goes by configuration", "finds no cell"];
    a_backend_that_is_not_told_that_it_has_left_is_caught: LeaveNotTold in "cell", ["goes by configuration"];
    a_configuration_that_is_told_with_old_backends_is_caught:
        OldBackendsTold in "cell", ["was acknowledged", "had been acknowledged", "in fair weather"];
    a_cell_that_is_created_anew_and_goes_on_with_old_ids_is_caught:
        CellAnewUnderOldIds in "cell", ["set in the cell before"];
    a_backend_that_does_not_say_that_it_is_not_refilled_is_caught:
        UnfilledNotSaid in "refill", ["is missing", "had been acknowledged"];
    a_backend_that_starts_again_and_tells_no_other_is_caught:
        StartNotTold in "refill", ["is missing", "had been acknowledged", "acknowledged and"];
    a_backend_that_is_refilled_from_one_of_two_is_caught:
        RefilledFromOne in "refill", ["is missing", "had been acknowledged", "acknowledged and"];
    a_backend_that_is_not_told_what_was_erased_is_caught:
        ErasuresNotTold in "refill", ["had been acknowledged"];
    a_copy_that_gets_a_version_of_its_own_is_caught: CopiedAtNewVersion in "refill", ["at another version", "acknowledged and"];
    a_copy_whose_life_begins_again_is_caught: LifeBegunAgain in "refill", ["when it is too old"];
    a_change_of_backends_that_clients_are_not_told_is_caught:
        ChangeNotTold in "resize",
        ["is missing", "had been acknowledged", "acknowledged and", "another version", "the change to", "the roll of"];
    a_change_of_backends_that_goes_on_before_all_is_copied_is_caught:
        CopiedTooEarly in "resize", ["is missing", "had been acknowledged", "acknowledged and"];
    backends_that_are_restarted_one_after_another_too_early_are_caught:
        RolledTooEarly in "resize", ["is missing", "had been acknowledged", "acknowledged and"];
    a_backend_of_a_loaded_cell_that_does_not_say_that_it_is_not_refilled_is_caught:
        UnfilledNotSaid in "loads", ["is missing"];
    an_update_that_nobody_promised_is_caught:
        UpdateWithoutPromise in "updates", ["was changed twice", "acknowledged and"];
    a_value_that_a_clock_far_behind_keeps_from_expiring_is_caught:
        ClockFarBehind in "updates", ["after it had expired"];
    a_stream_that_acknowledges_before_the_sync_is_caught:
        IntervalAsFsync in "cluster",
        ["was published, but only", "but it was", "foreign record", "no prefix of the durable"];
    a_stream_that_acknowledges_before_the_sync_is_caught_at_an_io:
        IntervalAsFsync in "log-every-io", ["but acknowledged records reach", "but it was", "is not durable up to"];
    lengths_that_are_asked_for_too_seldom_are_caught: LengthsAskedSeldom in "lengths", ["that it may"];
    lengths_that_are_asked_for_too_often_are_caught:
        LengthsAskedOften in "lengths", ["an idle process asked"];
    a_durable_layer_that_tells_lengths_once_is_caught:
        LengthsToldOnce in "lengths", ["a record is never read"];
    a_reader_that_follows_a_length_which_goes_back_is_caught:
        LengthGoesBack in "cluster", ["was handed offset"];
    a_truncation_that_a_one_sided_reader_is_not_told_of_is_caught:
        TruncationNotTold in "cluster", ["was handed offset"];
    a_truncation_that_a_reader_of_the_log_is_not_told_of_is_caught:
        TruncationNotTold in "log", ["was handed offset"];
    old_bytes_of_a_stream_that_was_deleted_and_created_again_are_caught_in_a_cell:
        ChunkKeyWithoutStream in "cluster", ["no prefix of the durable"];
    old_bytes_of_a_stream_that_was_deleted_and_created_again_are_caught_by_who_reads_them:
        OldStreamRead in "log", ["foreign record"];
    // It is lost in a crash: its reader misses it, or where it should be can't be truncated.
    a_duplicate_that_is_answered_before_the_first_is_durable_is_caught:
        DuplicateAnsweredEarly in "log", ["but acknowledged records reach", "can't be truncated before"];
    producers_that_are_dropped_when_a_segment_is_completed_are_caught:
        ProducersSnapshotEmpty in "log", ["already", "the next sequence number of producer"];
    producers_that_a_recovery_does_not_rebuild_are_caught:
        ProducersNotReplayed in "log", ["already", "the next sequence number of producer"];
    a_log_whose_data_directory_s_own_name_is_not_synced_is_caught_at_an_io:
        DataDirNameNotSynced in "log-every-io", ["the stream is gone", "but acknowledged records reach"];
    a_log_s_journal_that_is_trimmed_before_segments_are_synced_is_caught:
        TrimBeforeFill in "log", ["damaged", "stored bytes are corrupt", "but acknowledged records reach"];
    a_process_that_keeps_what_it_acknowledged_to_itself_is_caught:
        KeptUntilSynced in "cluster-interval", ["but it was", "foreign record", "not all is well"];
    a_checkpoint_that_takes_its_name_before_it_is_synced_is_caught:
        RenameBeforeSync in "cluster", ["can't be read: it is not a snapshot"];
    a_snapshot_of_metadata_whose_name_is_not_synced_is_caught:
        NamesNotSynced in "meta", ["was committed and is not there"];
    a_queue_whose_journal_acknowledges_before_the_sync_is_caught:
        AckBeforeSync in "queue",
        ["acknowledged and is not there", "deleted and came back", "later ones knew it durable"];
    a_journal_that_is_trimmed_before_the_queues_tree_is_synced_is_caught:
        TreeNotSynced in "queue", ["acknowledged and is not there", "deleted and came back", "can't be opened"];
    a_tree_that_takes_its_name_before_it_is_synced_is_caught:
        RenameBeforeSync in "queue-every-io", ["can't be opened"];
    a_receive_that_makes_nothing_invisible_is_caught: VisibleAtOnce in "queue", ["while it was invisible"];
    a_deduplication_id_that_is_another_each_time_is_caught:
        DeduplicationIdAnew in "queue", ["by its deduplication id"];
    messages_of_a_group_that_are_sent_to_others_are_caught:
        GroupNotKept in "queue", ["others of its group were received before it"];
    dead_letters_that_are_brought_back_by_sending_them_again_are_caught:
        BroughtBackBySending in "queue", ["acknowledged and is not there", "was purged and came back"];
    a_head_that_acknowledges_what_it_alone_has_is_caught:
        HeadAcknowledgesAlone in "broadcast",
        ["and is not there", "two events were published", "not what was published", "never given"];
    a_replica_that_tells_too_early_that_all_hold_an_event_is_caught:
        HeldTooEarly in "broadcast",
        ["and is not there", "two events", "repeated", "never given", "not what was published"];
    // One that is a member too early keeps the others waiting, is removed, and is a member too early again.
    a_replica_that_joins_before_it_has_everything_is_caught:
        JoinedBeforeCaughtUp in "broadcast",
        ["and is not there", "two events", "repeated", "never given", "not what was published", "the chain changed"];
    a_configuration_service_that_begins_a_chain_before_it_has_listened_for_what_replicas_have_is_caught:
        ChainBegunAtOnce in "broadcast",
        ["two events were published", "not what was published", "repeated", "misses what publisher"];
    replicas_that_are_not_told_that_their_region_has_begun_anew_are_caught:
        LineageNotTold in "broadcast-anew", ["not what was published", "two events", "repeated"];
    proxies_that_do_not_tell_others_in_which_lineage_their_events_are_are_caught:
        LineageNotToldElsewhere in "broadcast-anew",
        ["not everything was delivered", "not what was published", "was not told"];
    a_listener_that_goes_on_at_its_number_whichever_lineage_that_is_of_by_now_is_caught:
        ResumedInAnyLineage in "broadcast-anew",
        ["came an event that covers", "not what was published", "was not told"];
    replicas_that_do_not_say_what_they_wait_for_are_caught:
        WaitsNotTold in "broadcast", ["for long: publisher"];
    replicas_that_do_not_say_that_they_hear_nothing_of_the_one_before_them_are_caught:
        BeforeNotTold in "broadcast", ["to which nothing happened"];
    replicas_that_say_what_they_waited_for_a_while_ago_are_caught:
        WaitsToldLate in "broadcast", ["to which nothing happened"];
    a_tail_that_does_not_say_how_old_its_knowledge_is_is_caught:
        AgeNotTold in "broadcast", ["had been acknowledged before then"];
    event_times_that_go_back_are_caught: TimesGoBack in "broadcast", ["before that of the one before it"];
    a_publisher_that_tries_again_as_another_is_caught:
        RetryAsAnother in "broadcast",
        [
            "and is not there", "repeated", "not what was published", "not everything was delivered",
            "misses what publisher",
        ];
    a_publisher_that_takes_another_name_at_every_gap_is_caught: RenamedOnGap in "broadcast", ["repeated"];
    a_listener_that_keeps_where_it_is_before_what_it_got_is_caught:
        PositionKeptTooEarly in "broadcast", ["came an event that covers"];
    a_replica_that_counts_as_read_what_it_has_sent_is_caught:
        DrainedTooEarly in "broadcast", ["bytes wait for a connection"];
    listeners_that_share_and_ask_the_proxy_for_nothing_that_is_old_are_caught:
        FallbackLeftOut in "broadcast-sharing", ["not everything was delivered"];
    a_listener_that_shares_with_a_hole_in_it_is_caught:
        HoleHidden in "broadcast-sharing", ["not what was published", "nothing that came later"];
    a_listener_that_shares_and_comes_back_one_number_too_far_is_caught:
        ResumedTooFar in "broadcast-sharing", ["came an event that covers"];
    replicas_that_acknowledge_too_early_are_caught_by_listeners_that_share:
        HeadAcknowledgesAlone in "broadcast-sharing",
        ["and is not there", "two events", "not what was published", "never given", "repeated"];
    a_listener_that_goes_on_one_number_too_far_is_caught:
        ResumedTooFar in "broadcast", ["came an event that covers"];
    a_tombstone_for_an_event_that_nothing_collected_is_caught:
        TombstoneForNothing in "broadcast", ["nothing that came later collects it"];
    a_listener_that_is_not_told_what_retention_removed_is_caught:
        RemovalNotTold in "broadcast-retention", ["nothing that came later collects it"];
    a_replica_that_is_not_told_what_retention_removed_is_caught:
        RemovalNotHandedOn in "broadcast-retention", ["and retention removed it up to"];
    // It asks again for each batch that does not continue what it has, for ever.
    a_subscription_from_beyond_ones_own_count_is_caught:
        SubscribedTooFar in "broadcast", ["not everything was delivered", "a task does not yield: message"];
    an_event_that_counts_as_held_before_it_is_synced_is_caught:
        HeldBeforeSync in "broadcast",
        ["two events", "not what was published", "not everything was delivered", "never given", "repeated"];
    a_replica_s_journal_that_is_trimmed_before_the_checkpoint_counts_is_caught:
        TrimBeforeCheckpoint in "broadcast",
        ["a disk can't be read", "two events were published", "is not what was published"];
    // Others know them, and leave out what it takes: it may be one that has another event under a number.
    a_replica_that_restarts_without_its_publishers_numbers_is_caught:
        PublishersNotRestored in "broadcast",
        ["repeated", "not what was published", "not everything was delivered", "misses what publisher"];
    a_replica_s_journal_that_acknowledges_before_the_sync_is_caught:
        AckBeforeSync in "broadcast-disk", ["acknowledged and is not there", "can't be opened"];
    a_replica_s_checkpoint_that_takes_its_name_before_it_is_synced_is_caught:
        RenameBeforeSync in "broadcast-disk", ["can't be opened"];
    a_body_that_is_not_put_is_caught: BodyNotPut in "queue-cassandra", ["was acknowledged and is lost"];
    a_body_that_is_not_deleted_is_caught: BodyNotDeleted in "queue-cassandra", ["deleted and came back"];
    // A message whose body is not seen is taken out of its group.
    reads_of_one_replica_where_a_quorum_is_promised_are_caught:
        ReadOfOne in "queue-cassandra", ["deleted and came back", "of its group", "is lost"];
    // In a FIFO queue what comes next tells of it before the end does.
    a_bucket_that_is_dropped_with_bodies_in_it_is_caught:
        FullBucketDropped in "queue-cassandra", ["was acknowledged and is lost", "before message"];
    conditional_writes_that_do_not_compare_are_caught:
        ConditionNotChecked in "queue-cassandra",
        ["while it was invisible", "of its group", "by its deduplication id", "is lost"];
    a_group_that_forgets_deduplication_ids_is_caught:
        SeenNotKept in "queue-cassandra", ["by its deduplication id"];
    writes_to_one_replica_where_a_quorum_is_promised_are_caught:
        QuorumOfOne in "queue-cassandra", ["was acknowledged and is lost", "of its group"];
    shares_of_a_quota_that_nobody_is_told_are_caught:
        ReportNotPut in "quota-shares", ["come to more than the quota"];
    shares_of_a_quota_that_are_raised_by_what_was_claimed_before_are_caught:
        ReportsReadTooEarly in "quota-shares", ["come to more than the quota"];
    shares_of_a_quota_that_one_replica_alone_is_told_are_caught:
        QuorumOfOne in "quota-shares", ["come to more than the quota"];
    dead_letters_that_are_not_put_are_caught:
        LetterNotPut in "queue-cassandra-letters", ["was acknowledged and is lost"];
    dead_letters_that_a_delete_does_not_find_are_caught:
        LetterNotNoted in "queue-cassandra-letters", ["deleted elsewhere and came back"];
    messages_that_stay_where_they_were_when_they_become_dead_letters_are_caught:
        MovedAndKept in "queue-cassandra-letters", ["became a dead letter again", "places at the end"];
    messages_that_are_sent_without_their_delay_are_caught:
        DelayNotSent in "queue-cassandra-letters", ["before its delay"];
    front_ends_with_k_auto_that_do_not_see_each_other_are_caught:
        OthersNotSeen in "queue-auto", ["with K = auto were duplicates"];
    duplicates_that_are_counted_by_both_receivers_are_caught:
        OthersSeenFirst in "queue-auto", ["is out of order"];
}
