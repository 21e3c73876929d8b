//! A member's view: the few others that it knows, kept random and connected by gossip with reinforcement (after
//! Allavena, Demers and Hopcroft).
//!
//! - Each round a member sends its view to a random neighbour, which answers with its own. Both keep a random part of
//!   the union, with a few that are new to it, as each of them costs a connection; each keeps the other for sure: that
//!   is the reinforcement.
//! - The proxy is a member like all. A view that is not full has it, a new one has nothing else, and every few rounds
//!   a client exchanges views with it anyway: so parts that lost each other find together again.
//! - Who crashes is reinforced by nobody, and its entries age: the number of rounds since it was heard itself travels
//!   with an entry, and ends it. Who finds that a neighbour's connection ended forgets it at once.

use super::message::{Member, Message, MessageSeen};
use super::options::Options;
use super::rng::RegionRng;

/// Rounds after which an entry is dropped that nobody has renewed. Entries live for about V / 2 rounds anyway.
const ROUNDS_MAX: u16 = 30;
/// Members that were lost and are not taken from others' views again before their entries have aged.
const LOST_MAX: usize = 64;

/// Of a full view, one in so many is taken over from another one at most.
const NEW_ONE_IN: usize = 4;

#[derive(Debug)]
pub(super) struct MemberView {
    me: Member,
    /// `None` in the proxy's own view.
    proxy: Option<Member>,
    seen: Vec<MessageSeen>,
    /// Lost members, and the round until which others' word for them is not taken.
    lost: Vec<(u64, u64)>,
    round: u64,
    next_ms: u64,
    view_max: usize,
    gossip_ms: u64,
    proxy_rounds: u64,
}

impl MemberView {
    pub(super) fn new(me: Member, proxy: Option<Member>, options: &Options) -> Self {
        let mut view = Self {
            me,
            proxy,
            seen: Vec::new(),
            lost: Vec::new(),
            round: 0,
            next_ms: 0,
            view_max: options.view_max.clamp(1, super::message::MEMBERS_MAX),
            gossip_ms: options.gossip_ms.max(1),
            proxy_rounds: options.proxy_rounds.max(1),
        };
        view.complete();
        view
    }

    /// Its members, the proxy among them or not.
    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.seen.iter().map(|seen| &seen.member)
    }

    pub(super) fn len(&self) -> usize {
        self.seen.len()
    }

    pub(super) fn find(&self, id: u64) -> Option<&Member> {
        self.members().chain(&self.proxy).find(|member| member.id == id)
    }

    /// When the next round is due.
    pub(super) fn due_ms(&self) -> u64 {
        self.next_ms
    }

    /// The round, if it is due: whom to send what.
    pub(super) fn tick(&mut self, now_ms: u64, rng: &mut RegionRng, mut send: impl FnMut(u64, Message)) {
        if now_ms < self.next_ms {
            return;
        }
        // Some sooner and some later, so that those who started together do not stay together.
        let round_ms =
            if self.seen.len() < self.view_max { self.gossip_ms.div_ceil(8) } else { self.gossip_ms };
        self.next_ms = now_ms + round_ms / 2 + rng.below(round_ms + 1);
        let first = self.round == 0;
        self.round += 1;
        self.seen.iter_mut().for_each(|seen| seen.rounds = seen.rounds.saturating_add(1));
        self.seen.retain(|seen| seen.rounds <= ROUNDS_MAX);
        let round = self.round;
        self.lost.retain(|(_, until)| *until > round);
        self.complete();
        let mut asked = None;
        // Who is not reachable is in nobody's view, and has no use for one.
        if self.me.reachable() && !self.seen.is_empty() {
            let id = self.seen[rng.index(self.seen.len())].member.id;
            send(id, self.message(false));
            asked = Some(id);
        }
        let due = first || self.round.is_multiple_of(self.proxy_rounds);
        if let Some(proxy) = self.proxy.as_ref().filter(|proxy| due && asked != Some(proxy.id)) {
            send(proxy.id, self.message(false));
        }
    }

    /// What to send to the proxy, from one that nobody may know.
    pub(super) fn ask_proxy(&self) -> Option<(u64, Message)> {
        self.proxy.as_ref().map(|proxy| (proxy.id, self.message(false)))
    }

    /// Takes over what another member sent; its answer, if it wants one.
    pub(super) fn receive(
        &mut self,
        rng: &mut RegionRng,
        from: Member,
        view: Vec<MessageSeen>,
        answer: bool,
    ) -> Option<Message> {
        let reply = (!answer).then(|| match from.reachable() {
            true => self.message(true),
            false => Message::Gossip { me: self.me.clone(), view: Vec::new(), answer: true },
        });
        if !self.me.reachable() {
            return reply;
        }
        let sender = from.id;
        self.lost.retain(|(id, _)| *id != sender);
        if from.reachable() {
            self.take(MessageSeen { member: from, rounds: 0 });
        }
        let (known, mut new): (Vec<MessageSeen>, Vec<MessageSeen>) = view
            .into_iter()
            .filter(|seen| {
                let lost = self.lost.iter().any(|(id, _)| *id == seen.member.id);
                seen.member.reachable() && seen.rounds <= ROUNDS_MAX && !lost
            })
            .partition(|seen| self.seen.iter().any(|other| other.member.id == seen.member.id));
        known.into_iter().for_each(|seen| self.take(seen));
        // Each member that is new costs a connection: a view changes a little at a time.
        let room = self.view_max.saturating_sub(self.seen.len()) + self.view_max.div_ceil(NEW_ONE_IN);
        rng.draw(&mut new, room);
        new.truncate(room);
        new.into_iter().for_each(|seen| self.take(seen));
        while self.seen.len() > self.view_max {
            let at = rng.index(self.seen.len());
            if self.seen[at].member.id != sender {
                self.seen.swap_remove(at);
            }
        }
        self.complete();
        reply
    }

    /// Forgets a member to which no connection is left.
    pub(super) fn lost(&mut self, id: u64) {
        self.seen.retain(|seen| seen.member.id != id);
        self.lost.retain(|(lost, _)| *lost != id);
        if self.lost.len() < LOST_MAX {
            self.lost.push((id, self.round + u64::from(ROUNDS_MAX)));
        }
        self.complete();
    }

    /// The proxy is another one now, or elsewhere.
    pub(super) fn proxy_moved(&mut self, proxy: Member) {
        if let Some(old) = self.proxy.replace(proxy) {
            self.seen.retain(|seen| seen.member.id != old.id);
        }
        self.complete();
        self.next_ms = 0;
        self.round = 0;
    }

    fn message(&self, answer: bool) -> Message {
        Message::Gossip { me: self.me.clone(), view: self.seen.clone(), answer }
    }

    fn take(&mut self, new: MessageSeen) {
        if new.member.id == self.me.id {
            return;
        }
        match self.seen.iter_mut().find(|seen| seen.member.id == new.member.id) {
            Some(known) if new.rounds < known.rounds => *known = new,
            Some(_) => {}
            None => self.seen.push(new),
        }
    }

    /// A view that is not full has the proxy.
    fn complete(&mut self) {
        let Some(proxy) = &self.proxy else { return };
        let id = proxy.id;
        if self.seen.len() < self.view_max && self.seen.iter().all(|seen| seen.member.id != id) {
            self.seen.push(MessageSeen { member: proxy.clone(), rounds: 0 });
        }
    }
}
