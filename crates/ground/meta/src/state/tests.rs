use crate::contract::Expect;

use super::*;

fn empty() -> MetaState {
    MetaState::new(BTreeMap::new(), 0, 0)
}

fn put(key: &str, expect: Expect) -> Op {
    Op::Put { key: key.to_owned(), value: Bytes::from_static(b"value"), expect }
}

fn at(ms: u64) -> Instant {
    Instant::from_ns(ms * 1_000_000)
}

/// Judges, and appends at a position ten further on for each commit; the revision.
fn append(state: &mut MetaState, ops: &[Op]) -> (u64, SettledCommits) {
    let CommitVerdict::Changes(changes) = state.judge(ops) else { panic!("something is to be changed") };
    let commit = state.draft(changes);
    let revision = commit.revision;
    (revision, state.appended(commit, JournalPosition(revision * 10), 100, None))
}

fn lease(state: &mut MetaState, key: &str) -> (u64, watch::Receiver<bool>) {
    let commit = state.draft(Vec::new());
    let revision = commit.revision;
    let (lost, seen) = watch::channel(false);
    let grant = Grant { ttl: Duration::from_millis(100), lost };
    let grant = (Arc::from(key), Bytes::new(), grant);
    drop(state.appended(commit, JournalPosition(revision * 10), 100, Some(grant)));
    (revision, seen)
}

const LOST: Lost = Lost { incarnation: Incarnation(2), closed: false };

#[test]
fn a_commit_is_seen_by_readers_when_it_is_durable_and_by_later_commits_at_once() {
    let mut state = empty();
    let (revision, mut settled) = append(&mut state, &[put("a", Expect::Absent)]);
    assert_eq!(state.get("a"), None);
    assert!(matches!(state.judge(&[put("a", Expect::Version(revision))]), CommitVerdict::Changes(_)));
    assert!(settled.try_recv().is_err());
    state.apply_first(at(0));
    assert_eq!(state.get("a").map(|found| found.version), Some(revision));
    assert_eq!(settled.try_recv(), Ok(Ok(())));
}

#[test]
fn a_conflict_with_a_commit_on_its_way_is_one_only_if_that_lasts() {
    let mut state = empty();
    let _first = append(&mut state, &[put("a", Expect::Absent)]);
    let CommitVerdict::Conflict(key, Some(mut settled)) = state.judge(&[put("a", Expect::Absent)]) else {
        panic!("it conflicts with what is on its way");
    };
    assert_eq!(key, "a");
    state.lose_first(LOST);
    assert_eq!(settled.try_recv(), Ok(Err(LOST)));
    assert!(matches!(state.judge(&[put("a", Expect::Absent)]), CommitVerdict::Changes(_)));
    assert_eq!(state.incarnation, LOST.incarnation);
}

#[test]
fn a_conflict_with_a_durable_commit_is_one_at_once() {
    let mut state = empty();
    let _first = append(&mut state, &[put("a", Expect::Any)]);
    state.apply_first(at(0));
    assert!(matches!(state.judge(&[put("a", Expect::Absent)]), CommitVerdict::Conflict(_, None)));
}

#[test]
fn revisions_of_lost_commits_are_not_given_again_and_the_chain_leaves_them_out() {
    let mut state = empty();
    let (kept, _) = append(&mut state, &[put("a", Expect::Any)]);
    state.apply_first(at(0));
    let (lost, _) = append(&mut state, &[put("a", Expect::Any)]);
    state.lose_first(LOST);
    let next = state.draft(Vec::new());
    assert!(next.revision > lost);
    assert_eq!(next.previous, kept);
}

#[test]
fn the_oldest_pending_change_of_a_key_does_not_hide_the_newest() {
    let mut state = empty();
    append(&mut state, &[put("a", Expect::Any)]);
    let delete = Op::Delete { key: "a".to_owned(), expect: Expect::Any };
    append(&mut state, &[delete]);
    state.apply_first(at(0));
    assert!(state.get("a").is_some());
    assert!(matches!(state.judge(&[put("a", Expect::Absent)]), CommitVerdict::Changes(_)));
    state.apply_first(at(0));
    assert!(state.get("a").is_none() && state.newest.is_empty());
}

#[test]
fn a_lease_lives_by_being_renewed_and_is_in_no_snapshot() {
    let mut state = empty();
    let (version, lost) = lease(&mut state, "l");
    assert!(!state.renew("l", version, at(0)), "it is not given yet");
    state.apply_first(at(0));
    assert!(state.get("l").is_some() && state.snapshot().keys.is_empty());
    assert!(state.renew("l", version, at(90)));
    state.end_expired(at(189));
    assert!(state.get("l").is_some() && !*lost.borrow());
    assert!(!state.renew("l", version, at(190)), "too late, even if nobody has looked yet");
    assert_eq!(state.end_expired(at(190)), NEVER);
    assert!(state.get("l").is_none() && *lost.borrow());
}

#[test]
fn a_key_that_is_leased_or_about_to_be_can_not_be_written_but_deleted() {
    let mut state = empty();
    let (_, lost) = lease(&mut state, "l");
    assert!(matches!(state.judge(&[put("l", Expect::Any)]), CommitVerdict::Conflict(_, Some(_))));
    state.apply_first(at(0));
    assert!(matches!(state.judge(&[put("l", Expect::Any)]), CommitVerdict::Conflict(_, None)));
    append(&mut state, &[Op::Delete { key: "l".to_owned(), expect: Expect::Any }]);
    assert!(matches!(state.judge(&[put("l", Expect::Absent)]), CommitVerdict::Changes(_)));
    state.apply_first(at(0));
    assert!(*lost.borrow());
}

#[test]
fn the_journal_may_forget_what_was_applied_and_nothing_that_is_on_its_way() {
    let mut state = empty();
    assert_eq!(state.covered(JournalPosition(500)), JournalPosition(500));
    append(&mut state, &[put("a", Expect::Any)]);
    append(&mut state, &[put("a", Expect::Any)]);
    state.apply_first(at(0));
    // The second one is durable, and waits to be applied.
    assert_eq!(state.covered(JournalPosition(500)), JournalPosition(19));
    assert_eq!(state.covered(JournalPosition(12)), JournalPosition(12));
}

#[test]
fn snapshots_are_due_in_proportion_to_what_they_hold() {
    let mut state = empty();
    for number in 0..10 {
        append(&mut state, &[put(&number.to_string(), Expect::Any)]);
        state.apply_first(at(0));
    }
    assert!(state.snapshot_is_due(1000) && !state.snapshot_is_due(1001));
    state.bytes = 10_000;
    assert!(!state.snapshot_is_due(1000));
    state.snapshot_stored(900);
    assert_eq!(state.bytes_since_snapshot(), 100);
}
