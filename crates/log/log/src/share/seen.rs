//! Which processes were seen, and when.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::{HashMap, Instant};

use super::ShardMember;

/// How long a process is not seen before its shards are claimed: longer than one needs to come back in another session.
pub const GONE_AFTER: Duration = Duration::from_millis(1_500);
/// How long nobody came or went before shards that live move: those of the dead do not wait.
pub const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// Looks that are so far apart say nothing of who was there in between.
const LOOKS_APART: Duration = Duration::from_secs(3);

/// Since when processes are seen, and when they were seen last. Cheap to clone, and the same then.
#[derive(Clone, Debug, Default)]
pub struct MembersSeen(Arc<Mutex<MembersNoted>>);

#[derive(Debug, Default)]
struct MembersNoted {
    looked: Option<Instant>,
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
        seen.looked = Some(now);
        // What was not seen for so long is gone as much as what was never seen.
        seen.last.retain(|_, last| now.since(*last) < GONE_AFTER);
        seen.last.extend(members.iter().map(|member| (member.owner, now)));
        let mut ids: Vec<_> = members.iter().map(|member| (member.id.clone(), member.takes)).collect();
        ids.sort();
        if ids != seen.ids {
            (seen.ids, seen.changed) = (ids, now);
        }
    }

    /// Whether what has that number is gone, or nobody.
    pub fn is_gone(&self, owner: u64, now: Instant) -> bool {
        let seen = self.0.lock();
        owner == 0 || now.since(seen.last.get(&owner).copied().unwrap_or(seen.since)) >= GONE_AFTER
    }

    /// Whether nobody came or went for a while.
    pub fn is_settled(&self, now: Instant) -> bool {
        now.since(self.0.lock().changed) >= SETTLED_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: u64) -> ShardMember {
        ShardMember { id: format!("node-{number}"), owner: number, takes: true }
    }

    #[test]
    fn whoever_is_not_seen_for_a_while_is_gone_but_not_where_nobody_looked() {
        let at = |ms| Instant::default() + Duration::from_millis(ms);
        let (both, one) = ([member(1), member(2)], [member(1)]);
        let seen = MembersSeen::default();
        seen.look(at(10_000), &both);
        assert!(seen.is_gone(0, at(10_000)) && !seen.is_gone(7, at(10_000)), "nobody is gone at once");
        seen.look(at(11_000), &one);
        assert!(!seen.is_gone(2, at(11_000)) && !seen.is_settled(at(11_000)));
        seen.look(at(11_500), &one);
        assert!(seen.is_gone(2, at(11_500)) && !seen.is_gone(1, at(11_500)));
        assert!(seen.is_settled(at(13_000)));
        seen.look(at(20_000), &one);
        assert!(!seen.is_gone(2, at(20_000)), "it may have been here meanwhile");
        seen.look(at(21_500), &one);
        assert!(seen.is_gone(2, at(21_500)));
    }
}
