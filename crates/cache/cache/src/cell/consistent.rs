//! Consistent reads: the version that two of three replicas agree on.
//!
//! In rounds. Each asks a quorum of a key's replicas for their bucket, and one more if they do not agree or one of them
//! is late. The first that is asked sends the data along, where that takes no more round trips. As soon as a quorum
//! names one version, the data is what came along, or comes from the first that named it. The bytes must carry that
//! very version. A key begins another round, after a short pause, if the replicas disagree (a SET is under way, or one
//! lost the key) or the data was replaced meanwhile; a bounded number of rounds, and never beyond the deadline.
//!
//! What is answered is at least as new as every SET that was acknowledged before the read began, as long as no two
//! replicas of the key have lost what they held at the same time. A replica that has started again says *unknown* of
//! what it does not hold, until it is refilled from the others ([`crate::backend`]): that is no vote.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tailwater_env::Instant;

use super::lookup::{Hit, Keys, LookupAsk, Named, NoAnswer, name_from, read_data};
use super::placement::REPLICAS_MAX;
use super::quorum::{QuorumVerdict, Vote, Votes};
use super::relaxed::{SUSPECT_FACTOR, by_backend, first_of};
use super::replica::LiveReplica;
use super::{CellFailure, CellInner, Lookup, mapped};
use crate::layout::{KeyHash, Pointer};
use crate::limits::QUORUM_ROUNDS_MAX;
use crate::version::Version;

/// The pause before the second retry; it doubles. The first one follows at once.
const PAUSE: Duration = Duration::from_millis(1);

/// Reads a bounded number of keys. Ends at `end` at the latest, which begins to count when something takes time.
pub(super) async fn get(cell: &CellInner, keys: &[Bytes], end: &mut Option<Instant>) -> Vec<Lookup> {
    let mut lookups = vec![None; keys.len()];
    mapped::consistent(cell, keys, &mut lookups);
    let mut why = CellFailure::NoQuorum;
    if lookups.iter().any(Option::is_none) {
        why = get_open(cell, &Keys::new(keys), &mut lookups, end).await;
    }
    lookups.into_iter().map(|lookup| lookup.unwrap_or(Lookup::Failed(why))).collect()
}

/// Reads the keys that have no answer yet; some may still have none, for the reason returned.
async fn get_open(
    cell: &CellInner,
    keys: &Keys<'_>,
    lookups: &mut [Option<Lookup>],
    end: &mut Option<Instant>,
) -> CellFailure {
    for round in 0..QUORUM_ROUNDS_MAX {
        let open: Vec<usize> = (0..lookups.len()).filter(|key| lookups[*key].is_none()).collect();
        if open.is_empty() {
            break;
        }
        if round >= 2 {
            cell.env.sleep(PAUSE * (1 << (round - 2))).await;
        }
        let mut this_round = Round::new(cell, keys, open, lookups);
        if !this_round.run(end).await {
            return CellFailure::Deadline;
        }
    }
    CellFailure::NoQuorum
}

/// A key's state in one round.
struct LookupKey {
    /// Its replicas in the order in which they are asked.
    order: [usize; REPLICAS_MAX],
    /// How many of them were.
    asked: usize,
    votes: Votes,
    /// What each replica named: where, or the value itself.
    named: [Option<(Arc<LiveReplica>, ConsistentSource)>; REPLICAS_MAX],
    state: ConsistentState,
}

enum ConsistentSource {
    Data(Pointer),
    Sent(Hit),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConsistentState {
    Voting,
    /// Data of this version is on its way, or was asked for.
    Fetching(Version),
    /// Answered, or left to the next round.
    Over,
}

/// What comes back from one replica.
enum ConsistentReply {
    Named { backend: usize, live: Option<Arc<LiveReplica>>, named: Vec<(usize, Named)> },
    Fetched { backend: usize, hits: Vec<(usize, Option<Hit>)>, gone: Option<(Arc<LiveReplica>, NoAnswer)> },
}

struct Round<'a> {
    cell: &'a CellInner,
    keys: &'a Keys<'a>,
    open: Vec<usize>,
    /// By key; those that are not open stay `Over`.
    states: Vec<LookupKey>,
    lookups: &'a mut [Option<Lookup>],
    /// Keys that are neither answered nor left to the next round.
    waiting: usize,
}

impl<'a> Round<'a> {
    fn new(
        cell: &'a CellInner,
        keys: &'a Keys<'a>,
        open: Vec<usize>,
        lookups: &'a mut [Option<Lookup>],
    ) -> Self {
        let state =
            |key: usize| if lookups[key].is_none() { ConsistentState::Voting } else { ConsistentState::Over };
        let random = cell.env.random_u64();
        let states = (0..lookups.len())
            .map(|key| LookupKey {
                order: order(cell, keys.hashes[key], random),
                asked: 0,
                votes: Votes::new(cell.mode),
                named: [const { None }; REPLICAS_MAX],
                state: state(key),
            })
            .collect();
        let waiting = open.len();
        Self { cell, keys, open, states, lookups, waiting }
    }

    /// One round; `false` if the deadline ended it.
    async fn run(&mut self, end: &mut Option<Instant>) -> bool {
        let cell = self.cell;
        let mut deadline = None;
        let mut under_way = FuturesUnordered::new();
        let mut fetches: Vec<(usize, usize)> = Vec::new();
        for _ in 0..cell.mode.quorum() {
            // One after the other, each for all keys: over mapped memory the last may not be needed.
            self.ask(&mut under_way, &mut fetches, |_| true);
        }
        let mut hedge = None;
        while self.waiting > 0 {
            // All that were asked have answered, and do not agree.
            self.ask(&mut under_way, &mut fetches, |key| key.votes.count() == key.asked);
            if self.waiting == 0 {
                break;
            }
            let deadline = deadline.get_or_insert_with(|| {
                cell.env.sleep_until(*end.get_or_insert_with(|| cell.env.now() + cell.deadline))
            });
            let hedge = hedge.get_or_insert_with(|| Some(cell.env.sleep(cell.hedge_after)));
            let late = async {
                match hedge {
                    Some(hedge) => hedge.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                reply = under_way.next() => match reply {
                    Some(reply) => self.take(reply, &mut fetches),
                    None => unreachable!("every open key waits for a reply"),
                },
                () = late => {
                    *hedge = None;
                    self.suspect_late();
                    self.ask(&mut under_way, &mut fetches, |_| true);
                }
                () = deadline => return false,
            }
            self.fetch(&mut under_way, &mut fetches);
        }
        true
    }

    /// Asks one more replica of every key that `wants` one and is not agreed on.
    fn ask(
        &mut self,
        under_way: &mut FuturesUnordered<BoxFuture<'a, ConsistentReply>>,
        fetches: &mut Vec<(usize, usize)>,
        wants: impl Fn(&LookupKey) -> bool,
    ) {
        let (cell, keys) = (self.cell, self.keys);
        let [mut first, mut others] = [const { Vec::new() }; 2];
        for &key in &self.open {
            let state = &mut self.states[key];
            if state.state == ConsistentState::Voting && state.asked < cell.mode.replicas() && wants(state) {
                let place = state.order[state.asked];
                let groups: &mut Vec<(usize, usize)> =
                    if state.asked == 0 { &mut first } else { &mut others };
                state.asked += 1;
                groups.push((cell.placement.backend_of(keys.hashes[key], place), key));
            }
        }
        for (mut groups, ask) in [(first, LookupAsk::Values), (others, LookupAsk::Buckets)] {
            for (backend, wanted) in by_backend(&mut groups) {
                let replica = &cell.replicas[backend];
                start(under_way, self, fetches, async move {
                    let (live, named) = name_from(cell, replica, keys, wanted, ask).await;
                    ConsistentReply::Named { backend, live, named }
                });
            }
        }
        self.fetch(under_way, fetches);
    }

    /// Notes the backends that keep keys waiting and answer nobody else either: others are asked before them.
    fn suspect_late(&self) {
        let cell = self.cell;
        let now = cell.env.now();
        for &key in &self.open {
            let state = &self.states[key];
            let asked = state.order[..state.asked].iter();
            for place in asked
                .filter(|place| state.state == ConsistentState::Voting && !state.votes.has_voted(**place))
            {
                let late = &cell.replicas[cell.placement.backend_of(self.keys.hashes[key], *place)];
                if !late.has_answered_since(now - cell.hedge_after) {
                    late.suspect(now + SUSPECT_FACTOR * cell.hedge_after);
                }
            }
        }
    }

    /// Starts reading the data of keys that have just been agreed on.
    fn fetch(
        &mut self,
        under_way: &mut FuturesUnordered<BoxFuture<'a, ConsistentReply>>,
        fetches: &mut Vec<(usize, usize)>,
    ) {
        let (cell, keys) = (self.cell, self.keys);
        while !fetches.is_empty() {
            for (backend, wanted) in by_backend(fetches) {
                let mut live = None;
                let mut found = Vec::with_capacity(wanted.len());
                for key in wanted {
                    let place = self.place(key, backend);
                    if let Some((from, ConsistentSource::Data(pointer))) = &self.states[key].named[place] {
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
                        Err(why) => {
                            let missing = found.iter().map(|(key, _)| *key);
                            let missing: Vec<usize> =
                                missing.filter(|key| hits.iter().all(|(hit, _)| hit != key)).collect();
                            hits.extend(missing.into_iter().map(|key| (key, None)));
                            Some((live, why))
                        }
                    };
                    ConsistentReply::Fetched { backend, hits, gone }
                });
            }
        }
    }

    /// Which of the key's replicas `backend` is.
    fn place(&self, key: usize, backend: usize) -> usize {
        let place = self.cell.placement.replica_at(self.keys.hashes[key], backend);
        place.expect("only the key's own backends are asked")
    }

    fn take(&mut self, reply: ConsistentReply, fetches: &mut Vec<(usize, usize)>) {
        match reply {
            ConsistentReply::Named { backend, live, named } => {
                for (key, named) in named {
                    self.take_vote(key, backend, live.as_ref(), named, fetches);
                }
            }
            ConsistentReply::Fetched { backend, hits, gone } => {
                if let Some((gone, why)) = gone {
                    self.cell.replicas[backend].failed(&gone, why);
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
        live: Option<&Arc<LiveReplica>>,
        named: Named,
        fetches: &mut Vec<(usize, usize)>,
    ) {
        let place = self.place(key, backend);
        if self.states[key].state != ConsistentState::Voting {
            return;
        }
        let (vote, source) = match named {
            Named::At(version, pointer) => (Vote::Holds(version), Some(ConsistentSource::Data(pointer))),
            Named::Sent(hit) => (Vote::Holds(hit.version), Some(ConsistentSource::Sent(hit))),
            Named::Absent => (Vote::Absent, None),
            Named::Unknown => {
                let (cell, now) = (self.cell, self.cell.env.now());
                // Others know. For a while they are asked first.
                cell.replicas[backend].suspect(now + SUSPECT_FACTOR * cell.hedge_after);
                (Vote::None, None)
            }
            Named::Torn | Named::Unreachable => (Vote::None, None),
        };
        let state = &mut self.states[key];
        state.votes.cast(place, vote);
        state.named[place] = live.cloned().zip(source);
        match state.votes.verdict() {
            QuorumVerdict::Wait => {}
            QuorumVerdict::Agreed { version, replica } => {
                state.state = ConsistentState::Fetching(version);
                let sent = state.named.iter().flatten().find_map(|(_, source)| match source {
                    ConsistentSource::Sent(hit) if hit.version == version => Some(hit.clone()),
                    _ => None,
                });
                match sent {
                    Some(hit) => self.take_data(key, Some(hit)),
                    None => {
                        let preferred = self.cell.placement.backend_of(self.keys.hashes[key], replica);
                        fetches.push((preferred, key));
                    }
                }
            }
            QuorumVerdict::Miss => self.answer(key, Lookup::Miss),
            QuorumVerdict::Unreachable => self.answer(key, Lookup::Failed(CellFailure::Unreachable)),
            QuorumVerdict::Disagree => {
                self.cell.counters.disagreed.add(1);
                self.leave(key);
            }
        }
    }

    fn take_data(&mut self, key: usize, hit: Option<Hit>) {
        let ConsistentState::Fetching(agreed) = self.states[key].state else { return };
        match hit {
            Some(Hit { version, value, extras, .. }) if version == agreed => {
                self.answer(key, Lookup::Hit { version, value, extras })
            }
            _ => {
                self.cell.counters.replaced.add(1);
                self.leave(key);
            }
        }
    }

    fn answer(&mut self, key: usize, lookup: Lookup) {
        self.lookups[key] = Some(lookup);
        self.leave(key);
    }

    /// Ends this round for a key.
    fn leave(&mut self, key: usize) {
        self.states[key].state = ConsistentState::Over;
        self.waiting -= 1;
    }
}

/// The order in which a key's replicas are asked: a random backend first, the same for all keys of a call that it has,
/// and last those that kept a read waiting lately.
fn order(cell: &CellInner, hash: KeyHash, random: u64) -> [usize; REPLICAS_MAX] {
    let replicas = cell.mode.replicas();
    let first = first_of(random, hash, &cell.placement, cell.replicas.len());
    let mut order: [usize; REPLICAS_MAX] = std::array::from_fn(|step| (first + step) % replicas);
    order[..replicas]
        .sort_by_key(|place| !cell.replicas[cell.placement.backend_of(hash, *place)].is_quick(&cell.env));
    order
}

/// Polls a request once, takes its reply if it is there at once, and else leaves it under way.
fn start<'a>(
    under_way: &mut FuturesUnordered<BoxFuture<'a, ConsistentReply>>,
    round: &mut Round<'a>,
    fetches: &mut Vec<(usize, usize)>,
    request: impl Future<Output = ConsistentReply> + Send + 'a,
) {
    let mut request: BoxFuture<'a, ConsistentReply> = Box::pin(request);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match request.as_mut().poll(&mut context) {
        Poll::Ready(reply) => round.take(reply, fetches),
        // It is polled again with the task's own waker as part of the collection.
        Poll::Pending => under_way.push(request),
    }
}
