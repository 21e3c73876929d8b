//! Consistent reads: the version that two of three replicas agree on.
//!
//! In rounds. Each asks all replicas of a key for their bucket, and as soon as a quorum names one version fetches
//! the data from the first that named it. The bytes must carry that very version. A key begins another round,
//! after a short pause, if the replicas disagree (a SET is under way, or one lost the key) or the data was
//! replaced meanwhile; a bounded number of rounds, and never beyond the deadline.
//!
//! What is answered is at least as new as every SET that was acknowledged before the read began, as long as at
//! most one replica of the key lost it meanwhile.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;

use super::lookup::{Gone, Hit, Keys, Named, name_from, read_data};
use super::placement::backend_of;
use super::quorum::{Verdict, Vote, Votes};
use super::relaxed::by_backend;
use super::replica::Live;
use super::{Failure, Inner, Lookup, mapped};
use crate::layout::Pointer;
use crate::limits::QUORUM_ROUNDS_MAX;
use crate::version::Version;

/// The pause before the second retry; it doubles. The first one follows at once.
const PAUSE: Duration = Duration::from_millis(1);

/// Reads a bounded number of keys. Ends at the cell's deadline at the latest.
pub(super) async fn get(cell: &Inner, keys: &[Bytes]) -> Vec<Lookup> {
    let mut lookups = vec![None; keys.len()];
    mapped::consistent(cell, keys, &mut lookups);
    let mut why = Failure::NoQuorum;
    if lookups.iter().any(Option::is_none) {
        why = get_open(cell, &Keys::new(keys), &mut lookups).await;
    }
    lookups.into_iter().map(|lookup| lookup.unwrap_or(Lookup::Failed(why))).collect()
}

/// Reads the keys that have no answer yet; some may still have none, for the reason returned.
async fn get_open(cell: &Inner, keys: &Keys<'_>, lookups: &mut [Option<Lookup>]) -> Failure {
    let mut deadline = None;
    for round in 0..QUORUM_ROUNDS_MAX {
        let open: Vec<usize> = (0..lookups.len()).filter(|key| lookups[*key].is_none()).collect();
        if open.is_empty() {
            break;
        }
        if round >= 2 {
            cell.env.sleep(PAUSE * (1 << (round - 2))).await;
        }
        let mut this_round = Round::new(cell, keys, open, lookups);
        if !this_round.run(&mut deadline).await {
            return Failure::Deadline;
        }
    }
    Failure::NoQuorum
}

/// A key's state in one round.
struct Key {
    votes: Votes,
    /// What each replica named: where, or the value itself.
    named: [Option<(Arc<Live>, Source)>; super::placement::REPLICAS_MAX],
    state: State,
}

enum Source {
    Data(Pointer),
    Sent(Hit),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Voting,
    /// Data of this version is on its way, or was asked for.
    Fetching(Version),
    /// Answered, or left to the next round.
    Over,
}

/// What comes back from one replica.
enum Reply {
    Named { backend: usize, live: Option<Arc<Live>>, named: Vec<(usize, Named)> },
    Fetched { backend: usize, hits: Vec<(usize, Option<Hit>)>, gone: Option<Arc<Live>> },
}

struct Round<'a> {
    cell: &'a Inner,
    keys: &'a Keys<'a>,
    open: Vec<usize>,
    /// By key; those that are not open stay `Over`.
    states: Vec<Key>,
    lookups: &'a mut [Option<Lookup>],
    /// Keys that are neither answered nor left to the next round.
    waiting: usize,
}

type Timer = BoxFuture<'static, ()>;

impl<'a> Round<'a> {
    fn new(cell: &'a Inner, keys: &'a Keys<'a>, open: Vec<usize>, lookups: &'a mut [Option<Lookup>]) -> Self {
        let state = |key: usize| if lookups[key].is_none() { State::Voting } else { State::Over };
        let states = (0..lookups.len())
            .map(|key| Key {
                votes: Votes::new(cell.mode),
                named: [const { None }; super::placement::REPLICAS_MAX],
                state: state(key),
            })
            .collect();
        let waiting = open.len();
        Self { cell, keys, open, states, lookups, waiting }
    }

    /// One round; `false` if the deadline ended it.
    async fn run(&mut self, deadline: &mut Option<Timer>) -> bool {
        let (cell, keys) = (self.cell, self.keys);
        let mut under_way = FuturesUnordered::new();
        let mut fetches: Vec<(usize, usize)> = Vec::new();
        let first = cell.env.random_below(cell.mode.replicas() as u64) as usize;
        for step in 0..cell.mode.replicas() {
            // A replica after the other, each for all keys: over mapped memory the third is not needed.
            let place = (first + step) % cell.mode.replicas();
            let voting = self.open.iter().copied().filter(|key| self.states[*key].state == State::Voting);
            let mut groups: Vec<(usize, usize)> =
                voting.map(|key| (backend_of(keys.hashes[key], place, cell.replicas.len()), key)).collect();
            for (backend, wanted) in by_backend(&mut groups) {
                let replica = &cell.replicas[backend];
                start(&mut under_way, self, &mut fetches, async move {
                    let (live, named) = name_from(cell, replica, keys, wanted).await;
                    Reply::Named { backend, live, named }
                });
            }
            self.fetch(&mut under_way, &mut fetches);
        }
        while self.waiting > 0 {
            let deadline = deadline.get_or_insert_with(|| cell.env.sleep(cell.deadline));
            tokio::select! {
                biased;
                reply = under_way.next() => match reply {
                    Some(reply) => self.take(reply, &mut fetches),
                    None => unreachable!("every open key waits for a reply"),
                },
                () = deadline => return false,
            }
            self.fetch(&mut under_way, &mut fetches);
        }
        true
    }

    /// Starts reading the data of keys that have just been agreed on.
    fn fetch(
        &mut self,
        under_way: &mut FuturesUnordered<BoxFuture<'a, Reply>>,
        fetches: &mut Vec<(usize, usize)>,
    ) {
        let (cell, keys) = (self.cell, self.keys);
        while !fetches.is_empty() {
            for (backend, wanted) in by_backend(fetches) {
                let mut live = None;
                let mut found = Vec::with_capacity(wanted.len());
                for key in wanted {
                    let place = self.place(key, backend);
                    if let Some((from, Source::Data(pointer))) = &self.states[key].named[place] {
                        live = Some(Arc::clone(from));
                        found.push((key, *pointer));
                    }
                }
                let Some(live) = live else { continue };
                start(under_way, self, fetches, async move {
                    let mut hits = Vec::with_capacity(found.len());
                    let read = read_data(cell, &live, keys, &found, |key, hit| hits.push((key, hit))).await;
                    let gone = match read {
                        Ok(()) => None,
                        Err(Gone) => {
                            let missing = found.iter().map(|(key, _)| *key);
                            let missing: Vec<usize> =
                                missing.filter(|key| hits.iter().all(|(hit, _)| hit != key)).collect();
                            hits.extend(missing.into_iter().map(|key| (key, None)));
                            Some(live)
                        }
                    };
                    Reply::Fetched { backend, hits, gone }
                });
            }
        }
    }

    /// Which of the key's replicas `backend` is.
    fn place(&self, key: usize, backend: usize) -> usize {
        let backends = self.cell.replicas.len();
        let first = backend_of(self.keys.hashes[key], 0, backends);
        (backend + backends - first) % backends
    }

    fn take(&mut self, reply: Reply, fetches: &mut Vec<(usize, usize)>) {
        match reply {
            Reply::Named { backend, live, named } => {
                for (key, named) in named {
                    self.take_vote(key, backend, live.as_ref(), named, fetches);
                }
            }
            Reply::Fetched { backend, hits, gone } => {
                if let Some(gone) = gone {
                    self.cell.replicas[backend].give_up(&gone);
                }
                for (key, hit) in hits {
                    self.take_data(key, hit);
                }
            }
        }
    }

    fn take_vote(
        &mut self,
        key: usize,
        backend: usize,
        live: Option<&Arc<Live>>,
        named: Named,
        fetches: &mut Vec<(usize, usize)>,
    ) {
        let place = self.place(key, backend);
        if self.states[key].state != State::Voting {
            return;
        }
        let (vote, source) = match named {
            Named::At(version, pointer) => (Vote::Holds(version), Some(Source::Data(pointer))),
            Named::Sent(hit) => (Vote::Holds(hit.version), Some(Source::Sent(hit))),
            Named::Absent => (Vote::Absent, None),
            Named::Torn | Named::Unreachable => (Vote::None, None),
        };
        let state = &mut self.states[key];
        state.votes.cast(place, vote);
        state.named[place] = live.cloned().zip(source);
        match state.votes.verdict() {
            Verdict::Wait => {}
            Verdict::Agreed { version, replica } => {
                state.state = State::Fetching(version);
                match &state.named[replica] {
                    Some((_, Source::Sent(hit))) => {
                        let hit = hit.clone();
                        self.take_data(key, Some(hit));
                    }
                    _ => {
                        let preferred = backend_of(self.keys.hashes[key], replica, self.cell.replicas.len());
                        fetches.push((preferred, key));
                    }
                }
            }
            Verdict::Miss => self.answer(key, Lookup::Miss),
            Verdict::Unreachable => self.answer(key, Lookup::Failed(Failure::Unreachable)),
            Verdict::Disagree => self.leave(key),
        }
    }

    fn take_data(&mut self, key: usize, hit: Option<Hit>) {
        let State::Fetching(agreed) = self.states[key].state else { return };
        match hit {
            Some(Hit { version, value }) if version == agreed => {
                self.answer(key, Lookup::Hit { version, value })
            }
            _ => self.leave(key),
        }
    }

    fn answer(&mut self, key: usize, lookup: Lookup) {
        self.lookups[key] = Some(lookup);
        self.leave(key);
    }

    /// Ends this round for a key.
    fn leave(&mut self, key: usize) {
        self.states[key].state = State::Over;
        self.waiting -= 1;
    }
}

/// Polls a request once, takes its reply if it is there at once, and else leaves it under way.
fn start<'a>(
    under_way: &mut FuturesUnordered<BoxFuture<'a, Reply>>,
    round: &mut Round<'a>,
    fetches: &mut Vec<(usize, usize)>,
    request: impl Future<Output = Reply> + Send + 'a,
) {
    let mut request: BoxFuture<'a, Reply> = Box::pin(request);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match request.as_mut().poll(&mut context) {
        Poll::Ready(reply) => round.take(reply, fetches),
        // It is polled again with the task's own waker as part of the collection.
        Poll::Pending => under_way.push(request),
    }
}
