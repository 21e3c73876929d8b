//! A client as a step function.

use std::collections::BTreeMap;

use crate::batch::Batch;
use crate::name::Stream;
use crate::positions::Position;

use super::fetch::{FetchAnswer, Has, RegionFetcher};
use super::message::{Member, Message, RegionProgress, UNFED};
use super::notify::{FED_HERE, Notifier};
use super::options::{Options, Stats};
use super::rng::RegionRng;
use super::serve::{ServeSource, Server, empty};
use super::view::MemberView;

/// About so many milliseconds after which one that nobody feeds asks the proxy how far its streams are: it may be in
/// nobody's view, and views change seldom.
const LONELY_MS: u64 = 5_000;
/// The same after a region has begun anew: at most so many, and not all at once.
const TURNED_MS: u64 = 1_000;

/// What a peer wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerOutput {
    /// A message for a member. [`Peer::address`] says where it is if there is no connection to it; if there is none
    /// and it has no address, or it can't be reached, the message is dropped, and `disconnected` told.
    Send {
        /// The member's id.
        to: u64,
        /// What to send.
        message: Message,
    },
    /// Events for the application: those that follow what was delivered of the stream before.
    Deliver {
        /// Their stream.
        stream: Stream,
        /// Of which lineage of its region they are.
        lineage: u64,
        /// The events.
        batch: Batch,
    },
    /// For the application: a region has begun anew. What is delivered of its streams after this is of this lineage,
    /// from the first event on.
    Anew {
        /// The region.
        region: String,
        /// The lineage.
        lineage: u64,
    },
}

/// A client of a region. Its outputs are appended to the outbox that each call is given.
#[derive(Debug)]
pub struct Peer {
    proxy: Member,
    rng: RegionRng,
    view: MemberView,
    fetcher: RegionFetcher,
    notifier: Notifier,
    server: Server,
    feeds: usize,
    lonely_at_ms: u64,
    tidy_at_ms: u64,
}

impl Peer {
    /// A client that begins after the given counts of the streams (see [`Options::begin`] for others), and knows
    /// nobody but the proxy. `seed` makes its choices; no two members should have the same.
    pub fn new(
        me: Member,
        proxy: Member,
        positions: BTreeMap<Stream, Position>,
        options: Options,
        seed: u64,
    ) -> Self {
        Self {
            view: MemberView::new(me, Some(proxy.clone()), &options),
            fetcher: RegionFetcher::new(proxy.id, positions, &options),
            notifier: Notifier::new(&options),
            // Half as long as the proxy takes: so what comes in the proxy's rounds is passed on at once.
            server: Server::new(&options, options.feed_ms / 2, 1),
            feeds: options.feeds,
            rng: RegionRng::new(seed),
            proxy,
            // The first exchange is with the proxy in any case.
            lonely_at_ms: if options.feeds == 0 { u64::MAX } else { 0 },
            tidy_at_ms: 0,
        }
    }

    /// Where a member is that may have to be connected to; `None` if that is not known (any more) or it is not
    /// reachable.
    pub fn address(&self, id: u64) -> Option<&str> {
        self.view.find(id).filter(|member| member.reachable()).map(|member| &*member.address)
    }

    /// When [`tick`](Self::tick) has to be called next, at the latest.
    pub fn due_ms(&self) -> u64 {
        let serve = self.server.due_ms();
        let due = self.view.due_ms().min(self.notifier.due_ms()).min(self.fetcher.due_ms());
        due.min(serve).min(self.lonely_at_ms)
    }

    /// Whether a connection with a member is worth keeping: it is in the view, or feeds this one, or is fed by it.
    pub fn needs(&self, id: u64) -> bool {
        self.view.members().any(|member| member.id == id)
            || self.fetcher.fed_by(id)
            || self.server.feeds_any(id)
    }

    /// Does what is due.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<PeerOutput>) {
        if now_ms >= self.view.due_ms() {
            self.view.tick(now_ms, &mut self.rng, |to, message| out.push(PeerOutput::Send { to, message }));
            self.view_changed();
        }
        if now_ms >= self.lonely_at_ms {
            let is_first = self.lonely_at_ms == 0;
            self.lonely_at_ms = now_ms + LONELY_MS / 2 + self.rng.below(LONELY_MS);
            // One that knows of no stream is not fed either.
            let is_fed =
                self.fetcher.hops().all(|hops| hops != UNFED) && self.fetcher.hops().next().is_some();
            if !is_fed && !is_first {
                let asked = self.view.ask_proxy();
                out.extend(asked.map(|(to, message)| PeerOutput::Send { to, message }));
            }
        }
        let fetched = self.fetcher.tick(now_ms, &mut self.rng, out);
        if now_ms >= self.tidy_at_ms {
            self.tidy_at_ms = now_ms + 10_000;
            self.fetcher.tidy(now_ms);
            self.server.tidy(now_ms);
        }
        self.server.tick();
        if fetched {
            self.settle(now_ms, out);
        } else {
            debug_assert!(self.is_settled(), "streams are where they were at the last step");
            self.serve(now_ms, out);
        }
    }

    /// A message has come from a member.
    pub fn receive(&mut self, now_ms: u64, from: u64, message: Message, out: &mut Vec<PeerOutput>) {
        match message {
            Message::Gossip { me, view, answer } if me.id == from => {
                if let Some(message) = self.view.receive(&mut self.rng, me, view, answer) {
                    out.push(PeerOutput::Send { to: from, message });
                }
                self.view_changed();
            }
            Message::Gossip { .. } => self.fetcher.stats.refused += 1,
            Message::Notify(streams) => self.fetcher.notified(now_ms, &mut self.rng, from, streams, out),
            Message::Request { stream, lineage, after, .. }
                if !self.fetcher.hears(now_ms, from, &stream, lineage, out) =>
            {
                let own = self.fetcher.recv.lineage(&stream);
                if lineage < own && !self.server.paused(from) {
                    out.push(PeerOutput::Send { to: from, message: empty(stream, own, after) });
                }
            }
            Message::Request { stream, after, up_to, bytes_max, .. } => {
                self.notifier.asked(from);
                let feeds_max = if self.fetcher.recv.held(&stream).is_some() { self.feeds } else { 0 };
                self.server.request(now_ms, from, (stream, after, up_to, bytes_max), feeds_max);
            }
            Message::Events { stream, lineage, .. }
                if !self.fetcher.hears(now_ms, from, &stream, lineage, out) => {}
            Message::Events { stream, after, held, count, hops, stands, batches, .. } => {
                let answer = FetchAnswer { from, after, has: Has { held, count, hops }, stands, batches };
                self.fetcher.answered(now_ms, &mut self.rng, &stream, answer, out);
            }
        }
        self.settle(now_ms, out);
    }

    /// The proxy says of which lineage a stream is; answers whether that is what this client has of it now, and not an
    /// earlier one.
    pub fn hear(&mut self, now_ms: u64, stream: &Stream, lineage: u64, out: &mut Vec<PeerOutput>) -> bool {
        let heard = self.fetcher.hears(now_ms, self.proxy.id, stream, lineage, out);
        if !self.fetcher.turned.is_empty() {
            self.settle(now_ms, out);
        }
        heard
    }

    /// There is a connection with a member, to or from it. What was sent to it before may be lost.
    pub fn connected(&mut self, now_ms: u64, member: &Member, out: &mut Vec<PeerOutput>) {
        self.notifier.forget(member.id);
        if member.id == self.proxy.id {
            self.fetcher.proxy_is(now_ms, &mut self.rng, member.id, out);
        }
        self.fetcher.reconnected(now_ms, member.id, out);
        self.settle(now_ms, out);
    }

    /// There is no connection with a member any more, or none could be made.
    pub fn disconnected(&mut self, now_ms: u64, id: u64, out: &mut Vec<PeerOutput>) {
        self.view.lost(id);
        self.view_changed();
        self.notifier.forget(id);
        self.server.forget(id);
        self.fetcher.lost(now_ms, &mut self.rng, id, out);
        self.settle(now_ms, out);
    }

    /// The proxy is another member now, or the same one elsewhere.
    pub fn proxy_moved(&mut self, now_ms: u64, proxy: Member, out: &mut Vec<PeerOutput>) {
        self.view.proxy_moved(proxy.clone());
        self.view_changed();
        self.notifier.forget(self.proxy.id);
        self.fetcher.proxy_is(now_ms, &mut self.rng, proxy.id, out);
        self.proxy = proxy;
        self.settle(now_ms, out);
    }

    /// A member's connection has so much to send that it takes nothing more (`true`), or it takes something again:
    /// until then its requests wait, and it is told nothing.
    pub fn pause(&mut self, now_ms: u64, id: u64, paused: bool, out: &mut Vec<PeerOutput>) {
        self.server.pause(now_ms, id, paused);
        self.settle(now_ms, out);
    }

    /// Whether the application takes events. While it does not nothing is asked for; what has been asked for before
    /// still comes.
    pub fn reading(&mut self, now_ms: u64, reading: bool, out: &mut Vec<PeerOutput>) {
        self.fetcher.reading(now_ms, &mut self.rng, reading, out);
        self.settle(now_ms, out);
    }

    /// The count of each known stream: where to begin again.
    pub fn positions(&self) -> impl Iterator<Item = (&Stream, u64)> {
        let recv = &self.fetcher.recv;
        (0..recv.streams()).map(|index| (recv.name(index), recv.count(index)))
    }

    /// The members that it knows, for those who watch.
    pub fn view(&self) -> impl Iterator<Item = &Member> {
        self.view.members()
    }

    /// Whether a stream was left out, as there were too many.
    pub fn leaves_out(&self) -> bool {
        self.fetcher.stats.left_out > 0
    }

    /// What it has counted.
    pub fn stats(&self) -> Stats {
        Stats {
            fed: self.fetcher.hops().filter(|hops| *hops != UNFED).count(),
            hops: self.fetcher.hops().filter(|hops| *hops != UNFED).max().unwrap_or(UNFED),
            served: self.server.served,
            feeds: self.server.standing(),
            dropped: self.server.dropped,
            view: self.view.len(),
            recv_bytes: self.fetcher.recv.bytes(),
            ..self.fetcher.stats
        }
    }

    fn view_changed(&mut self) {
        let members: Vec<u64> = self.view.members().map(|member| member.id).collect();
        self.notifier.view_changed(&members);
    }

    /// Whether it has been taken in how it stands with all streams.
    fn is_settled(&self) -> bool {
        let recv = &self.fetcher.recv;
        (0..recv.streams()).all(|index| {
            let (lineage, hops) = (recv.lineage(recv.name(index)), self.fetcher.hops_of(index));
            self.notifier.is_at(index, lineage, (recv.kept_after(index), recv.count(index)), hops)
        })
    }

    /// Answers what may be answered, and tells others what is new.
    fn settle(&mut self, now_ms: u64, out: &mut Vec<PeerOutput>) {
        let turned = std::mem::take(&mut self.fetcher.turned);
        if !turned.is_empty() && self.feeds > 0 {
            // What others told of it before this one believed it, they do not tell again.
            self.lonely_at_ms = self.lonely_at_ms.min(now_ms + 1 + self.rng.below(TURNED_MS));
        }
        for stream in turned {
            let lineage = self.fetcher.recv.lineage(&stream);
            self.server.end(&stream, lineage, |to, message| out.push(PeerOutput::Send { to, message }));
        }
        let recv = &self.fetcher.recv;
        for index in 0..recv.streams() {
            let (stream, held, count) = (recv.name(index), recv.kept_after(index), recv.count(index));
            let (lineage, hops) = (recv.lineage(stream), self.fetcher.hops_of(index));
            if self.notifier.is_at(index, lineage, (held, count), hops) {
                continue;
            }
            let progress = RegionProgress { stream: stream.clone(), lineage, held, count, hops };
            if self.notifier.progress(index, progress) {
                self.server.progressed(stream);
            }
        }
        self.serve(now_ms, out);
    }

    /// The same where nothing is new of any stream.
    fn serve(&mut self, now_ms: u64, out: &mut Vec<PeerOutput>) {
        let recv = &self.fetcher.recv;
        let mut send = |to, message| out.push(PeerOutput::Send { to, message });
        let hops = |stream: &Stream| recv.index(stream).map_or(UNFED, |index| self.fetcher.hops_of(index));
        self.server.serve(now_ms, recv, hops, &mut send);
        if self.server.overloaded() {
            return;
        }
        // The proxy has everything, and has told so.
        let neighbours = self.view.members().filter(|member| member.id != self.proxy.id);
        let knows = |id, stream: &Stream, index| match self.server.feeds(id, stream) {
            true => FED_HERE,
            false => self.fetcher.known(id, index),
        };
        let busy = |id| self.server.paused(id);
        self.notifier.flush(now_ms, &mut self.rng, neighbours, knows, busy, send);
    }
}
