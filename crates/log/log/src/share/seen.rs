//! Which processes were seen, and when.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::{HashMap, Instant};

use super::ShardMember;

/// How long a process is not seen before its shards are claimed: longer than one needs to come back in another session.
pub const GONE_AFTER_MIN: Duration = Duration::from_millis(1_500);
/// How long nobody came or went before shards that live move: those of the dead do not wait.
pub const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// Looks that are so far apart say nothing of who was there in between.
const LOOKS_APART: Duration = Duration::from_secs(3);

/// Since when processes are seen, and when they were seen last. It goes by looks and not by the clock: where looks
/// stall, nobody is gone for that. Cheap to clone, and the same then.
#[derive(Clone, Debug, Default)]
pub struct MembersSeen(Arc<Mutex<MembersNoted>>);

#[derive(Debug, Default)]
struct MembersNoted {
    looked: Option<Instant>,
    /// The look before.
    before: Instant,
    since: Instant,
    last: HashMap<u64, Instant>,
    ids: Vec<(String, bool)>,
    changed: Instant,
}

impl MembersSeen {
    /// Takes note of who is there.
    pub fn look(&self, now: Instant, members: &[ShardMember]) {
        let seen = &mut *self.0.lock();
        // Whoever was away itself knows of nobody that it is gone.
        if seen.looked.is_none_or(|looked| now.since(looked) >= LOOKS_APART) {
            seen.last.clear();
            seen.since = now;
        }
        seen.before = seen.looked.replace(now).unwrap_or(now);
        // What was not seen for so long is gone as much as what was never seen.
        seen.last.retain(|_, last| now.since(*last) < LOOKS_APART);
        seen.last.extend(members.iter().map(|member| (member.owner, now)));
        let mut ids: Vec<_> = members.iter().map(|member| (member.id.clone(), member.takes)).collect();
        ids.sort();
        if ids != seen.ids {
            (seen.ids, seen.changed) = (ids, now);
        }
    }

    /// Whether what has that number is gone, or nobody: the last two looks have not seen it, nor has any in
    /// [`GONE_AFTER_MIN`] before the last one.
    pub fn is_gone(&self, owner: u64) -> bool {
        let seen = self.0.lock();
        let last = seen.last.get(&owner).copied().unwrap_or(seen.since);
        let is_missed = |looked: Instant| looked.since(last) >= GONE_AFTER_MIN && seen.before > last;
        owner == 0 || seen.looked.is_some_and(is_missed)
    }

    /// Whether nobody came or went for a while before the last look.
    pub fn is_settled(&self) -> bool {
        let seen = self.0.lock();
        seen.looked.is_some_and(|looked| looked.since(seen.changed) >= SETTLED_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: u64) -> ShardMember {
        ShardMember { id: format!("node-{number}"), owner: number, takes: true }
    }

    fn at(ms: u64) -> Instant {
        Instant::default() + Duration::from_millis(ms)
    }

    #[test]
    fn whoever_is_not_seen_for_a_while_is_gone_but_not_where_nobody_looked() {
        let (both, one) = ([member(1), member(2)], [member(1)]);
        let seen = MembersSeen::default();
        assert!(seen.is_gone(0) && !seen.is_gone(7) && !seen.is_settled(), "nobody has looked yet");
        seen.look(at(10_000), &both);
        assert!(seen.is_gone(0) && !seen.is_gone(7), "nobody is gone at once");
        seen.look(at(11_000), &one);
        assert!(!seen.is_gone(2) && !seen.is_settled());
        seen.look(at(11_500), &one);
        assert!(seen.is_gone(2) && seen.is_gone(7) && !seen.is_gone(1));
        seen.look(at(13_000), &one);
        assert!(seen.is_settled() && seen.is_gone(2));
        seen.look(at(20_000), &one);
        assert!(!seen.is_gone(2), "it may have been here meanwhile");
        seen.look(at(21_000), &one);
        seen.look(at(21_500), &one);
        assert!(seen.is_gone(2));
    }

    #[test]
    fn nobody_is_gone_because_looks_take_long() {
        let both = [member(1), member(2)];
        let seen = MembersSeen::default();
        seen.look(at(10_000), &both);
        for look in 1..5 {
            // Each is longer apart than one that is gone is waited for.
            seen.look(at(10_000 + 2_000 * look), &both);
            assert!(!seen.is_gone(2));
        }
        // Missed once, as by one that comes back in another session.
        seen.look(at(20_000), &both[..1]);
        assert!(!seen.is_gone(2));
        seen.look(at(22_000), &both[..1]);
        assert!(seen.is_gone(2));
    }
}
