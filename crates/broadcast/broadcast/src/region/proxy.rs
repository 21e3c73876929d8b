//! The proxy's side as a step function: a member that keeps everything and fetches nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::STREAMS_MAX;
use crate::name::Stream;
use crate::positions::Position;

use super::message::{Member, Message, RegionProgress};
use super::notify::{FED_HERE, Notifier};
use super::options::{Options, Stats};
use super::peer::PeerOutput;
use super::rng::RegionRng;
use super::serve::{MOST_OF, ServeSource, Server, empty};
use super::view::MemberView;

/// Of its members, the proxy feeds one in so many.
const FEEDS_ONE_IN: usize = 20;
/// Members that the proxy feeds with a stream, if it does not have to feed more.
const FEEDS_MAX: usize = 128;

/// The one who tells the first few clients of each event, and whom all others fall back on. Its outputs are appended
/// to the outbox that each call is given, and none is to deliver something.
#[derive(Debug)]
pub struct ProxyPeer {
    rng: RegionRng,
    view: MemberView,
    notifier: Notifier,
    server: Server,
    /// Their places in the notifier, and their lineages.
    streams: BTreeMap<Stream, (usize, u64)>,
    /// Those that are connected, and those of them that nobody can connect to.
    members: BTreeSet<u64>,
    unreachable: BTreeSet<u64>,
    /// As in the options.
    feeds: usize,
    tidy_at_ms: u64,
    refused: u64,
    left_out: u64,
}

impl ProxyPeer {
    /// A proxy that knows nobody yet and has nothing. `seed` makes its choices.
    pub fn new(me: Member, options: &Options, seed: u64) -> Self {
        Self {
            rng: RegionRng::new(seed),
            view: MemberView::new(me, None, options),
            notifier: Notifier::new(options),
            server: Server::new(options, options.feed_ms, MOST_OF),
            streams: BTreeMap::new(),
            members: BTreeSet::new(),
            unreachable: BTreeSet::new(),
            feeds: options.feeds,
            tidy_at_ms: 0,
            refused: 0,
            left_out: 0,
        }
    }

    /// Where a member is that may have to be connected to.
    pub fn address(&self, id: u64) -> Option<&str> {
        self.view.find(id).filter(|member| member.reachable()).map(|member| &*member.address)
    }

    /// When [`tick`](Self::tick) has to be called next, at the latest.
    pub fn due_ms(&self) -> u64 {
        self.view.due_ms().min(self.notifier.due_ms()).min(self.server.due_ms())
    }

    /// Does what is due. Whose connection takes no more of what was to be sent before has to be said first.
    pub fn tick(&mut self, now_ms: u64, source: &impl ServeSource, out: &mut Vec<PeerOutput>) {
        if now_ms >= self.view.due_ms() {
            self.view.tick(now_ms, &mut self.rng, |to, message| out.push(PeerOutput::Send { to, message }));
            self.view_changed();
        }
        if now_ms >= self.tidy_at_ms {
            self.tidy_at_ms = now_ms + 10_000;
            self.server.tidy(now_ms);
        }
        self.server.tick();
        self.settle(now_ms, source, out);
    }

    /// The source has a stream's events up to `last` now. Clients are told when it is time: see
    /// [`due_ms`](Self::due_ms). A stream beyond the first [`STREAMS_MAX`] is not told of.
    pub fn appended(&mut self, stream: &Stream, last: Position, out: &mut Vec<PeerOutput>) {
        let Position { lineage, seq: count } = last;
        let known = self.streams.get(stream).copied();
        if known.is_none() && self.streams.len() >= STREAMS_MAX {
            self.left_out += 1;
            return;
        }
        let index = known.map_or(self.streams.len(), |(index, _)| index);
        self.streams.insert(stream.clone(), (index, lineage));
        if known.is_some_and(|(_, before)| before != lineage) {
            self.server.end(stream, lineage, |to, message| out.push(PeerOutput::Send { to, message }));
        }
        self.notifier
            .progress(index, RegionProgress { stream: stream.clone(), lineage, held: 0, count, hops: 0 });
        self.server.progressed(stream);
    }

    /// A message has come from a member.
    pub fn receive(
        &mut self,
        now_ms: u64,
        from: u64,
        message: Message,
        source: &impl ServeSource,
        out: &mut Vec<PeerOutput>,
    ) {
        match message {
            Message::Gossip { me, view, answer } if me.id == from => {
                let mut send = |message| out.push(PeerOutput::Send { to: from, message });
                if !me.reachable() {
                    self.notifier.add_direct(from);
                    self.unreachable.insert(from);
                }
                if let Some(message) = self.view.receive(&mut self.rng, me, view, answer) {
                    send(message);
                    // Whoever nobody tells of events hears of them here, so that none is ever forgotten.
                    self.notifier.greet(from).into_iter().for_each(send);
                }
                self.view_changed();
            }
            // Who has not heard of what is here is told; who has heard of more asks again.
            Message::Request { stream, lineage, after, .. } if lineage != source.lineage(&stream) => {
                let own = source.lineage(&stream);
                if lineage < own && !self.server.paused(from) {
                    out.push(PeerOutput::Send { to: from, message: empty(stream, own, after) });
                }
            }
            Message::Request { stream, after, up_to, bytes_max, .. } => {
                self.notifier.asked(from);
                let is_here = source.held(&stream).is_some();
                let feeds_max = if is_here { self.feeds_max(from) } else { 0 };
                self.server.request(now_ms, from, (stream, after, up_to, bytes_max), feeds_max);
            }
            // It is told of nothing that it has not.
            Message::Notify(_) => {}
            Message::Gossip { .. } | Message::Events { .. } => self.refused += 1,
        }
        self.settle(now_ms, source, out);
    }

    /// There is a connection with a member. One that nobody can connect to is told of everything from here.
    pub fn connected(
        &mut self,
        now_ms: u64,
        member: &Member,
        source: &impl ServeSource,
        out: &mut Vec<PeerOutput>,
    ) {
        self.notifier.forget(member.id);
        self.members.insert(member.id);
        if !member.reachable() {
            self.notifier.add_direct(member.id);
            self.unreachable.insert(member.id);
        }
        self.settle(now_ms, source, out);
    }

    /// There is no connection with a member any more, or none could be made.
    pub fn disconnected(
        &mut self,
        now_ms: u64,
        id: u64,
        source: &impl ServeSource,
        out: &mut Vec<PeerOutput>,
    ) {
        self.view.lost(id);
        self.view_changed();
        self.notifier.forget(id);
        self.server.forget(id);
        self.members.remove(&id);
        self.unreachable.remove(&id);
        self.settle(now_ms, source, out);
    }

    /// As [`Peer::pause`](super::Peer::pause).
    pub fn pause(
        &mut self,
        now_ms: u64,
        id: u64,
        paused: bool,
        source: &impl ServeSource,
        out: &mut Vec<PeerOutput>,
    ) {
        self.server.pause(now_ms, id, paused);
        self.settle(now_ms, source, out);
    }

    /// How far the middle one is of those that are fed here with a stream, if there are three at least: for
    /// [`Replica::readers_have`](crate::replica::Replica::readers_have).
    pub fn fed_up_to(&self, stream: &Stream) -> Option<u64> {
        self.server.fed_up_to(stream)
    }

    /// The members that it knows, for those who watch.
    pub fn view(&self) -> impl Iterator<Item = &Member> {
        self.view.members()
    }

    /// What it has counted.
    pub fn stats(&self) -> Stats {
        Stats {
            served: self.server.served,
            feeds: self.server.standing(),
            dropped: self.server.dropped,
            refused: self.refused,
            left_out: self.left_out,
            view: self.view.len(),
            ..Stats::default()
        }
    }

    /// How many may be fed with a stream for a member to be fed as well: a small part of the region, and whoever has
    /// nobody else.
    fn feeds_max(&self, member: u64) -> usize {
        match self.feeds {
            0 => 0,
            _ if self.unreachable.contains(&member) => usize::MAX,
            least => {
                let part = (self.members.len() / FEEDS_ONE_IN).min(FEEDS_MAX).max(least);
                part + self.unreachable.len()
            }
        }
    }

    fn view_changed(&mut self) {
        let members: Vec<u64> = self.view.members().map(|member| member.id).collect();
        self.notifier.view_changed(&members);
    }

    fn settle(&mut self, now_ms: u64, source: &impl ServeSource, out: &mut Vec<PeerOutput>) {
        let mut send = |to, message| out.push(PeerOutput::Send { to, message });
        self.server.serve(now_ms, source, |_| 0, &mut send);
        if self.server.overloaded() {
            return;
        }
        let busy = |id| self.server.paused(id);
        let knows = |id, stream: &Stream, _| if self.server.feeds(id, stream) { FED_HERE } else { 0 };
        self.notifier.flush(now_ms, &mut self.rng, self.view.members(), knows, busy, send);
    }
}
