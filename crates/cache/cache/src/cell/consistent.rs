//! Consistent reads: the version that two of three replicas agree on.
//!
//! In rounds, each of which goes by a [`LookupPlan`]: it asks some or all of a key's replicas at once, and one more if
//! they do not agree or one of them is late. As soon as a quorum names one version, the data is what came along, or
//! comes from the first that named it. The bytes must carry that very version. A key begins another round, after a
//! short pause, if the replicas disagree (a SET is under way, or one lost the key) or the data was replaced meanwhile;
//! a bounded number of rounds, the last of them by CALL, and never beyond the deadline.
//!
//! While the cell's backends change, quorums by two tables may have to agree ([`crate::Configuration::reads_both`]).
//!
//! What is answered is at least as new as every SET that was acknowledged before the read began, as long as no two
//! replicas of the key have lost what they held at the same time. A replica that has started again says *unknown* of
//! what it does not hold, until it is refilled from the others ([`crate::backend`]): that is no vote.
//!
//! A replica that is late is hedged: one that has answered nothing for a while at once, others within a budget.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tailwater_env::Instant;

use super::lookup::{Hit, Keys, LookupAsk, Named, NoAnswer, name_from, nanoseconds, read_data};
use super::placement::REPLICAS_MAX;
use super::policy::{LookupCase, LookupPlan, LookupValues, LookupWay, plan};
use super::quorum::{QuorumVerdict, Vote, Votes};
use super::relaxed::{SUSPECT_FACTOR, by_backend, first_of};
use super::replica::LiveReplica;
use super::{CellFailure, CellInner, Lookup, mapped};
use crate::layout::{KeyHash, Pointer};
use crate::limits::QUORUM_ROUNDS_MAX;
use crate::version::Version;

/// The pause before the second retry; it doubles. The first one follows at once.
const PAUSE: Duration = Duration::from_millis(1);

/// Of so many reads one asks the replicas in any order, so that what is known of them does not grow old.
const ANY_ORDER_ONE_IN: u64 = 16;

/// A replica that takes more than so many times as long as another one is asked after it.
const SLOWER_FACTOR: u64 = 2;

/// Reads a bounded number of keys, in this `way`. Ends at `end` at the latest, which begins to count when something
/// takes time.
pub(super) async fn get(
    cell: &CellInner,
    keys: &[Bytes],
    way: LookupWay,
    end: &mut Option<Instant>,
) -> Vec<Lookup> {
    match cell.by_other() {
        Some(other) => get_by_both(cell, &other, keys, way, end).await,
        None => get_by_one(cell, keys, way, end).await,
    }
}

/// The same while the cell's backends change, and two tables say who is read: the answer is what quorums by both agree
/// on. What a quorum by one of them has alone, no quorum by the other one may have soon.
async fn get_by_both(
    cell: &CellInner,
    other: &CellInner,
    keys: &[Bytes],
    way: LookupWay,
    end: &mut Option<Instant>,
) -> Vec<Lookup> {
    let mut lookups = get_by_one(cell, keys, way, end).await;
    let has_others = |key: &usize| {
        let hash = KeyHash::of(&keys[*key]);
        let others = other.placement.of(hash);
        cell.placement.of(hash).iter().any(|place| !others.contains(place))
    };
    let mut open: Vec<usize> = (0..keys.len()).filter(has_others).collect();
    let keys_of = |open: &[usize]| open.iter().map(|key| keys[*key].clone()).collect::<Vec<_>>();
    for round in 0..QUORUM_ROUNDS_MAX {
        if round > 0 {
            cell.env.sleep(PAUSE * (1 << (round - 1))).await;
            let again = get_by_one(cell, &keys_of(&open), way, end).await;
            open.iter().zip(again).for_each(|(key, again)| lookups[*key] = again);
        }
        let answers = get_by_one(other, &keys_of(&open), way, end).await;
        let mut answers = answers.iter();
        open.retain(|key| {
            let agreed = agreed(&lookups[*key], answers.next().expect("one for each key"));
            agreed.is_none_or(|agreed| {
                lookups[*key] = agreed;
                false
            })
        });
        if open.is_empty() {
            return lookups;
        }
    }
    cell.counters.disagreed.add(open.len() as u64);
    open.into_iter().for_each(|key| lookups[key] = Lookup::Failed(CellFailure::NoQuorum));
    lookups
}

/// What the answers of two quorums amount to; `None` if they do not agree.
fn agreed(one: &Lookup, other: &Lookup) -> Option<Lookup> {
    match (one, other) {
        (Lookup::Hit { version, .. }, Lookup::Hit { version: same, .. }) if version == same => {
            Some(one.clone())
        }
        (Lookup::Failed(_), _) | (Lookup::Miss, Lookup::Miss) => Some(one.clone()),
        (_, Lookup::Failed(_)) => Some(other.clone()),
        (Lookup::Hit { .. } | Lookup::Miss, Lookup::Hit { .. } | Lookup::Miss) => None,
    }
}

/// Reads keys by the table of those who are read alone.
async fn get_by_one(
    cell: &CellInner,
    keys: &[Bytes],
    way: LookupWay,
    end: &mut Option<Instant>,
) -> Vec<Lookup> {
    let mut lookups = vec![None; keys.len()];
    if matches!(way, LookupWay::Auto | LookupWay::Two) {
        mapped::consistent(cell, keys, &mut lookups);
    }
    let mut why = CellFailure::NoQuorum;
    if lookups.iter().any(Option::is_none) {
        why = get_open(cell, &Keys::new(keys), way, &mut lookups, end).await;
    }
    lookups.into_iter().map(|lookup| lookup.unwrap_or(Lookup::Failed(why))).collect()
}

/// Reads the keys that have no answer yet; some may still have none, for the reason returned.
async fn get_open(
    cell: &CellInner,
    keys: &Keys<'_>,
    way: LookupWay,
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
        let bytes = cell.times.bytes_of(open.len());
        let case = LookupCase {
            way,
            mode: cell.mode,
            round,
            is_wire: cell.replicas.iter().any(|replica| replica.is_far()),
            bytes,
            all_are_quicker: cell.times.all_are_quicker(bytes),
        };
        let mut this_round = Round::new(cell, keys, open, lookups, &case);
        if !this_round.run(end).await {
            return CellFailure::Deadline;
        }
        this_round.note(&case);
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
    /// The replicas that the data was asked of, a bit for each, and how many of them are still to answer.
    fetched_from: u8,
    fetching: u8,
}

impl LookupKey {
    /// The replica that named `version` and has not been asked for its data yet, if there is one.
    fn other_source(&self, agreed: Version) -> Option<usize> {
        let is_other = |place: &usize| {
            let of_version = match &self.named[*place] {
                Some((_, ConsistentSource::Data(version, _))) => *version == agreed,
                Some((_, ConsistentSource::Sent(_))) | None => false,
            };
            of_version && self.fetched_from & (1 << place) == 0
        };
        (0..REPLICAS_MAX).find(is_other)
    }

    /// Data is asked of this replica.
    fn will_fetch_from(&mut self, place: usize) {
        self.fetched_from |= 1 << place;
        self.fetching += 1;
    }

    /// The replicas that keep it waiting.
    fn late(&self) -> impl Iterator<Item = usize> + '_ {
        let is_voting = self.state == ConsistentState::Voting;
        let late = self.order[..self.asked].iter().copied();
        late.filter(move |place| match is_voting {
            true => !self.votes.has_voted(*place),
            false => self.fetched_from & (1 << place) != 0,
        })
    }
}

enum ConsistentSource {
    Data(Version, Pointer),
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
    plan: LookupPlan,
    is_wire: bool,
    /// When it began, where it takes round trips.
    began: Option<Instant>,
    /// Backends that are still to say what they hold, and since when, where that takes round trips; one that was asked
    /// twice is there twice.
    unanswered: Vec<(usize, Instant)>,
    is_hedged: bool,
}

impl<'a> Round<'a> {
    fn new(
        cell: &'a CellInner,
        keys: &'a Keys<'a>,
        open: Vec<usize>,
        lookups: &'a mut [Option<Lookup>],
        case: &LookupCase,
    ) -> Self {
        let plan = plan(case);
        if plan.by_call && case.round > 0 {
            cell.counters.called.add(open.len() as u64);
        }
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
                fetched_from: 0,
                fetching: 0,
            })
            .collect();
        let waiting = open.len();
        Self {
            cell,
            keys,
            open,
            states,
            lookups,
            waiting,
            plan,
            is_wire: case.is_wire,
            began: case.is_wire.then(|| cell.env.now()),
            unanswered: Vec::new(),
            is_hedged: false,
        }
    }

    /// One round; `false` if the deadline ended it.
    async fn run(&mut self, end: &mut Option<Instant>) -> bool {
        let cell = self.cell;
        let mut deadline = None;
        let mut under_way = FuturesUnordered::new();
        let mut fetches: Vec<(usize, usize)> = Vec::new();
        match self.is_wire {
            true => self.ask(&mut under_way, &mut fetches, self.plan.at_once, |_, _| true),
            // One after the other, each for all keys: over mapped memory the last may not be needed.
            false => {
                (0..self.plan.at_once).for_each(|_| self.ask(&mut under_way, &mut fetches, 1, |_, _| true))
            }
        }
        let mut hedge = None;
        while self.waiting > 0 {
            // All that were asked have answered, and do not agree.
            self.ask(&mut under_way, &mut fetches, 1, |_, key| key.votes.count() == key.asked);
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
                    let again = self.hedge(&mut under_way, &mut fetches);
                    *hedge = again.then(|| cell.env.sleep(cell.hedge_after));
                }
                () = deadline => {
                    self.note_unanswered();
                    return false;
                }
            }
            self.fetch(&mut under_way, &mut fetches);
        }
        self.note_unanswered();
        true
    }

    /// Notes the backends that have not answered yet, and whose answers nobody waits for any more.
    fn note_unanswered(&self) {
        if self.unanswered.is_empty() {
            return;
        }
        let now = self.cell.env.now();
        for (backend, asked) in &self.unanswered {
            self.cell.replicas[*backend].latency.note_unanswered(nanoseconds(now.since(*asked)));
        }
    }

    /// What the round, which is over, tells of those to come.
    fn note(&self, case: &LookupCase) {
        let hits = self.open.iter().filter_map(|key| match &self.lookups[*key] {
            Some(Lookup::Hit { value, .. }) => Some(value.len()),
            _ => None,
        });
        let (values, bytes) = hits.fold((0, 0), |(values, bytes), len| (values + 1, bytes + len));
        self.cell.times.note_values(values, bytes);
        let is_usual = case.round == 0 && !self.is_hedged && values == self.open.len();
        if let Some(began) = self.began.filter(|_| is_usual && self.plan.at_once > 1) {
            let took = self.cell.env.now().since(began);
            self.cell.times.note(case.bytes, self.plan.values, took);
        }
    }

    /// Asks up to so many more replicas of every key that `wants` them and is not agreed on.
    fn ask(
        &mut self,
        under_way: &mut FuturesUnordered<BoxFuture<'a, ConsistentReply>>,
        fetches: &mut Vec<(usize, usize)>,
        replicas: usize,
        wants: impl Fn(usize, &LookupKey) -> bool,
    ) {
        let (cell, keys) = (self.cell, self.keys);
        let [mut with_values, mut without] = [const { Vec::new() }; 2];
        for &key in &self.open {
            for _ in 0..replicas {
                let state = &mut self.states[key];
                let is_open = state.state == ConsistentState::Voting && state.asked < cell.mode.replicas();
                if !is_open || !wants(key, state) {
                    break;
                }
                let is_sent = match self.plan.values {
                    LookupValues::Nobody => false,
                    LookupValues::Preferred => state.asked == 0,
                    LookupValues::Everybody => true,
                };
                let groups: &mut Vec<(usize, usize)> = if is_sent { &mut with_values } else { &mut without };
                groups.push((cell.placement.backend_of(keys.hashes[key], state.order[state.asked]), key));
                state.asked += 1;
            }
        }
        let asked = self.is_wire.then(|| cell.env.now());
        let for_values = if self.plan.by_call { LookupAsk::Call } else { LookupAsk::Values };
        for (mut groups, ask) in [(with_values, for_values), (without, LookupAsk::Buckets)] {
            for (backend, wanted) in by_backend(&mut groups) {
                let replica = &cell.replicas[backend];
                self.unanswered.extend(asked.map(|asked| (backend, asked)));
                start(under_way, self, fetches, async move {
                    let (live, named) = name_from(cell, replica, keys, wanted, ask).await;
                    ConsistentReply::Named { backend, live, named }
                });
            }
        }
        self.fetch(under_way, fetches);
    }

    /// Asks another replica for the keys that wait for a backend which is stuck, and notes it; for the others as far as
    /// the budget goes. Whether some are left that may have to be asked of another one later.
    fn hedge(
        &mut self,
        under_way: &mut FuturesUnordered<BoxFuture<'a, ConsistentReply>>,
        fetches: &mut Vec<(usize, usize)>,
    ) -> bool {
        let cell = self.cell;
        let now = cell.env.now();
        let mut hedged = Vec::new();
        let mut left = false;
        for &key in &self.open {
            let (state, hash) = (&mut self.states[key], self.keys.hashes[key]);
            let mut is_stuck = false;
            for place in state.late() {
                let late = &cell.replicas[cell.placement.backend_of(hash, place)];
                if !late.has_answered_since(now - cell.hedge_after) {
                    late.suspect(now + SUSPECT_FACTOR * cell.hedge_after);
                    is_stuck = true;
                }
            }
            let other = match state.state {
                ConsistentState::Over => continue,
                ConsistentState::Voting if state.asked < cell.mode.replicas() => None,
                ConsistentState::Voting => continue,
                ConsistentState::Fetching(version) => match state.other_source(version) {
                    Some(other) => Some(other),
                    None => continue,
                },
            };
            if !(is_stuck || cell.hedges.spend()) {
                left = true;
                continue;
            }
            cell.counters.hedged.add(1);
            self.is_hedged = true;
            match other {
                Some(place) => {
                    state.will_fetch_from(place);
                    fetches.push((cell.placement.backend_of(hash, place), key));
                }
                None => hedged.push(key),
            }
        }
        // They are in the order of `open`, which is that of their numbers.
        self.ask(under_way, fetches, 1, |key, _| hedged.binary_search(&key).is_ok());
        left
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
                    if let Some((from, ConsistentSource::Data(_, pointer))) = &self.states[key].named[place] {
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
                if let Some(at) = self.unanswered.iter().position(|(of, _)| *of == backend) {
                    self.unanswered.swap_remove(at);
                }
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
        if self.states[key].state == ConsistentState::Over {
            return;
        }
        let (vote, source) = match named {
            Named::At(version, pointer) => {
                (Vote::Holds(version), Some(ConsistentSource::Data(version, pointer)))
            }
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
        state.named[place] = live.cloned().zip(source);
        if let ConsistentState::Fetching(_) = state.state {
            // It is agreed on. This one may have the data sooner than the one that was asked for it.
            return;
        }
        state.votes.cast(place, vote);
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
                        state.will_fetch_from(replica);
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
                let state = &mut self.states[key];
                state.fetching = state.fetching.saturating_sub(1);
                if state.fetching == 0 {
                    self.cell.counters.replaced.add(1);
                    self.leave(key);
                }
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

/// The order in which a key's replicas are asked: a random backend first, the same for all keys of a call that it has;
/// behind the others those that take much longer than one of them does, and last those that kept a read waiting lately.
fn order(cell: &CellInner, hash: KeyHash, random: u64) -> [usize; REPLICAS_MAX] {
    let replicas = cell.mode.replicas();
    let first = first_of(random, hash, &cell.placement, cell.replicas.len());
    let mut order: [usize; REPLICAS_MAX] = std::array::from_fn(|step| (first + step) % replicas);
    let replica = |place: usize| &cell.replicas[cell.placement.backend_of(hash, place)];
    let latency = |place: usize| replica(place).latency.get();
    let least = (0..replicas).map(latency).min().unwrap_or(0);
    let is_any_order = (random >> 32).is_multiple_of(ANY_ORDER_ONE_IN);
    let is_slow = |place: usize| !is_any_order && latency(place) > least.saturating_mul(SLOWER_FACTOR);
    order[..replicas].sort_by_key(|place| (!replica(*place).is_quick(&cell.env), is_slow(*place)));
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
