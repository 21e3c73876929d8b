//! Who was given the memory of a backend.
//!
//! Whoever has the regions' descriptors can read them without a connection. So who got them is kept for as long as they
//! may read, and not for as long as they are connected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tailwater_access::{PRINCIPAL_OF_UID, Peer};

/// A user of the system, with the groups that one of its processes was in.
type ReaderNames = (Arc<str>, Arc<[String]>);

/// Users of the system that may have the regions of one backend mapped. One counts for each set of groups that its
/// processes were in.
const READERS_MAX: usize = 1024;

/// Users of the system that were given a backend's regions, and may read it as far as is known.
#[derive(Debug)]
pub(super) struct MappedReaders {
    readers: Mutex<BTreeMap<ReaderNames, Peer>>,
    /// Whether anybody's right can be taken: nobody is noted otherwise.
    may_lose_rights: bool,
    is_bound_told: AtomicBool,
}

impl MappedReaders {
    pub(super) fn new(may_lose_rights: bool) -> Self {
        Self { readers: Mutex::default(), may_lose_rights, is_bound_told: AtomicBool::new(false) }
    }

    /// Notes a peer, which may be given the regions next if it is a process of this host; `false` if too many others
    /// were.
    pub(super) fn note(&self, peer: &Peer) -> bool {
        if !self.may_lose_rights || !peer.principal.starts_with(PRINCIPAL_OF_UID) {
            return true;
        }
        let mut readers = self.readers.lock();
        let names = names_of(peer);
        if readers.len() >= READERS_MAX && !readers.contains_key(&names) {
            if !self.is_bound_told.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "{READERS_MAX} users of the system have mapped a cell's memory, and no others may: start the node \
                     again to forget those that are gone"
                );
            }
            return false;
        }
        readers.entry(names).or_insert_with(|| peer.clone());
        true
    }

    /// Forgets all but those who may read; whether there were any.
    pub(super) fn forget_unless(&self, may_read: impl Fn(&Peer) -> bool) -> bool {
        // Asked without the lock, which engines take.
        let readers: Vec<_> = self.readers.lock().values().cloned().collect();
        let refused: Vec<_> = readers.into_iter().filter(|reader| !may_read(reader)).collect();
        let mut readers = self.readers.lock();
        refused.iter().filter(|reader| readers.remove(&names_of(reader)).is_some()).count() > 0
    }
}

fn names_of(peer: &Peer) -> ReaderNames {
    (Arc::clone(&peer.principal), Arc::clone(&peer.names))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Peer {
        Peer::of("1".to_owned(), &Peer::principal_of_uid(uid))
    }

    #[test]
    fn who_lost_the_right_is_told_of_once_and_who_reads_through_a_server_never() {
        let readers = MappedReaders::new(true);
        assert!(readers.note(&user(1)) && readers.note(&user(2)) && readers.note(&user(1)));
        assert!(readers.note(&Peer::of("10.0.0.1:1".to_owned(), "CN=far")));
        assert!(!readers.forget_unless(|_| true));
        let first = Peer::principal_of_uid(1);
        assert!(readers.forget_unless(|reader| *reader.principal != *first));
        assert!(!readers.forget_unless(|reader| *reader.principal != *first), "it is forgotten");
        assert!(readers.forget_unless(|_| false), "the other one is not");
    }

    #[test]
    fn a_user_whose_group_lost_the_right_is_told_of_also_if_another_group_of_another_process_has_it() {
        let readers = MappedReaders::new(true);
        let of = |gid| Peer::of_process("1".to_owned(), 1, gid, &[]);
        assert!(readers.note(&of(100)) && readers.note(&of(200)));
        let may_read = |reader: &Peer| reader.names.iter().any(|name| name == "gid:100");
        assert!(readers.forget_unless(may_read));
        assert!(!readers.forget_unless(may_read), "the other one may read");
    }

    #[test]
    fn only_so_many_users_are_given_the_regions_and_each_of_them_again() {
        let readers = MappedReaders::new(true);
        let max = u32::try_from(READERS_MAX).unwrap();
        assert!((0..max).all(|uid| readers.note(&user(uid))));
        assert!(!readers.note(&user(max)) && readers.note(&user(0)));
        let readers = MappedReaders::new(false);
        assert!((0..=max).all(|uid| readers.note(&user(uid))), "no right of theirs can be taken");
    }
}
