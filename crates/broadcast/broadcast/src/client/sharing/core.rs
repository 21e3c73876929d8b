//! What owns the peer: it takes inputs, and does what follows. One task of its own looks after its clock, and waits for
//! the application.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tailwater_env::{Env, Instant, Task};
use tokio::sync::mpsc;

use super::inputs::{Input, InputsShared, SharingInputs};
use super::links::{LinkGone, LinkSent, Links};
use super::outbox::{Outbox, outbox};
use super::{LinkId, SharingStats, connection};
use crate::batch::Batch;
use crate::client::received::{Came, Count, Received, removed_of};
use crate::limits::STREAMS_MAX;
use crate::message::Message;
use crate::name::Stream;
use crate::positions::Position;
use crate::region::{Member, Options, Peer, PeerOutput};

/// Bytes of events that wait for the application after which nothing more is asked for.
const UNREAD_BYTES_MAX: usize = 1 << 20;
/// How often links that are of no use are looked for, in milliseconds.
const SWEEP_MS: u64 = 1_000;

pub(super) struct Core {
    env: Env,
    me: Member,
    options: Options,
    /// Once the tail has said where the listener begins.
    peer: Option<Peer>,
    /// The tail that was there last, and the connection to it, if it stands.
    proxy: Member,
    tail: Option<(LinkId, Arc<Outbox>)>,
    /// Whether the tail is to be sent something that was not written yet.
    tail_unwritten: bool,
    links: Links,
    host_sockets: bool,
    /// The last number of each stream that the listener began with or has.
    positions: BTreeMap<Stream, Position>,
    outbox: Vec<PeerOutput>,
    /// What waits for the application, and how many bytes of events that is.
    waiting: VecDeque<Came>,
    waiting_bytes: usize,
    reading: bool,
    events: mpsc::Sender<Came>,
    inputs: SharingInputs,
    sweep_at_ms: u64,
    /// When its task looks at it next, and whether it does when the application has room.
    wakes_at: Instant,
    awaits_room: bool,
    /// Whether it was said that there are too many streams.
    told_left_out: bool,
}

/// Ends a listener with its core's task, even with one that has not begun.
pub(super) struct Ending(Arc<InputsShared>);

impl Ending {
    pub(super) fn of(shared: &Arc<InputsShared>) -> Self {
        Self(Arc::clone(shared))
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Looks after a core until it is dropped, or the core has ended, and its `tasks` with it.
pub(super) async fn run(env: Env, ending: Ending, tasks: Vec<Task>) {
    let (shared, _tasks) = (&ending.0, tasks);
    let Ok(events) = shared.with(|core| core.events.clone()) else { return };
    let mut wakes_at = env.now();
    let mut wake = env.sleep_until(wakes_at);
    loop {
        let looked = shared.with(|core| {
            core.hand_over();
            core.carry_out();
            core.awaits_room = !core.waiting.is_empty();
            // Most often something comes before it is due, and it can stay as it is; a wake too many does no harm.
            let due = core.due();
            if due < wakes_at || wakes_at <= env.now() {
                (wakes_at, wake) = (due, env.sleep_until(due));
            }
            core.wakes_at = wakes_at;
            core.awaits_room
        });
        let Ok(awaits_room) = looked else { return };
        shared.counted.notify_waiters();
        tokio::select! {
            biased;
            // It is taken when the lock is.
            permit = events.reserve(), if awaits_room => match permit {
                Ok(_) => {}
                Err(_) => return,
            },
            () = shared.wake.notified() => {}
            () = &mut wake => {}
        }
    }
}

impl Core {
    pub(super) fn new(
        env: &Env,
        me: Member,
        options: Options,
        (links_max, host_sockets): (usize, bool),
        (events, inputs): (mpsc::Sender<Came>, SharingInputs),
    ) -> Self {
        Self {
            env: env.clone(),
            proxy: Member { id: 0, address: "".into() },
            me,
            options,
            peer: None,
            tail: None,
            tail_unwritten: false,
            links: Links::new(links_max),
            host_sockets,
            positions: BTreeMap::new(),
            outbox: Vec::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            reading: true,
            events,
            inputs,
            sweep_at_ms: 0,
            wakes_at: env.now(),
            awaits_room: false,
            told_left_out: false,
        }
    }

    fn now_ms(&self) -> u64 {
        self.env.now().as_ns() / 1_000_000
    }

    fn due(&self) -> Instant {
        let due_ms = self.peer.as_ref().map_or(u64::MAX, Peer::due_ms).min(self.sweep_at_ms);
        let wait_ms = due_ms.saturating_sub(self.now_ms()).clamp(1, SWEEP_MS);
        self.env.now() + Duration::from_millis(wait_ms)
    }

    /// Whether its task is to look at it: it waits for something else.
    pub(super) fn wants_to_be_woken(&self) -> bool {
        self.due() < self.wakes_at || (!self.waiting.is_empty() && !self.awaits_room)
    }

    /// What it has counted.
    pub(super) fn stats(&self) -> SharingStats {
        let region = self.peer.as_ref().map(Peer::stats).unwrap_or_default();
        SharingStats { region, links: self.links.len() }
    }

    /// Takes an input; what follows from it is done by [`carry_out`](Self::carry_out).
    pub(super) fn take(&mut self, input: Input) {
        let now_ms = self.now_ms();
        match input {
            Input::Proxy { link, proxy, began, anew, writer } => {
                self.proxy_is(now_ms, (link, writer), proxy, began, anew);
            }
            Input::Opened { link, member, writer } => {
                let Some(peer) = &mut self.peer else { return };
                if member.id != self.me.id && member.id != self.proxy.id {
                    self.links.accepted(now_ms, link, member.id, writer);
                    peer.pause(now_ms, member.id, self.links.is_full(member.id), &mut self.outbox);
                    peer.connected(now_ms, &member, &mut self.outbox);
                }
            }
            Input::Message(link, message) if self.is_tail(link) => match message {
                Message::Advertise { answers, counts, .. } if !counts.is_empty() => {
                    let Some(peer) = &mut self.peer else { return };
                    let mut counts = counts;
                    counts
                        .retain(|told| peer.hear(now_ms, &told.stream, told.count.lineage, &mut self.outbox));
                    // That a region has begun anew is told before how far it is.
                    self.carry_out_outputs(now_ms);
                    if !counts.is_empty() {
                        self.tell(Received::Counts(Count::all(&self.env, answers, counts)));
                    }
                }
                Message::Region(message) => {
                    if let Some(peer) = &mut self.peer {
                        peer.receive(now_ms, self.proxy.id, message, &mut self.outbox);
                    }
                }
                _ => {}
            },
            Input::Message(link, message) => self.message(now_ms, link, message),
            Input::Drained(link) => {
                if let (Some(member), Some(peer)) = (self.links.drained(now_ms, link), &mut self.peer) {
                    peer.pause(now_ms, member, self.links.is_full(member), &mut self.outbox);
                }
            }
            Input::Closed(link) if self.is_tail(link) => {
                self.tail = None;
                self.tell(Received::Lost);
                if let Some(peer) = &mut self.peer {
                    peer.disconnected(now_ms, self.proxy.id, &mut self.outbox);
                }
            }
            Input::Closed(link) => {
                if let Some(gone) = self.links.remove(link) {
                    self.gone(now_ms, gone);
                }
            }
        }
    }

    fn is_tail(&self, link: LinkId) -> bool {
        self.tail.as_ref().is_some_and(|(tail, _)| *tail == link)
    }

    /// The tail is there: the first one, the same one again, or another one.
    fn proxy_is(
        &mut self,
        now_ms: u64,
        tail: (LinkId, Arc<Outbox>),
        proxy: Member,
        mut began: Vec<(Stream, Position)>,
        anew: Vec<(String, u64)>,
    ) {
        self.tail = Some(tail);
        let old = std::mem::replace(&mut self.proxy, proxy.clone());
        match &mut self.peer {
            Some(peer) if old == proxy => peer.connected(now_ms, &proxy, &mut self.outbox),
            Some(peer) => peer.proxy_moved(now_ms, proxy, &mut self.outbox),
            None => {
                for (region, lineage) in anew {
                    self.tell(Received::Anew { region, lineage });
                }
                self.positions = began.iter().cloned().collect();
                let (me, positions, options) =
                    (self.me.clone(), self.positions.clone(), self.options.clone());
                self.peer = Some(Peer::new(me, proxy, positions, options, self.env.random_u64()));
            }
        }
        if let Some(peer) = &mut self.peer {
            for (stream, position) in &began {
                peer.hear(now_ms, stream, position.lineage, &mut self.outbox);
            }
        }
        self.carry_out_outputs(now_ms);
        for (stream, position) in &mut began {
            *position = self.positions.get(stream).copied().unwrap_or(*position);
        }
        self.tell(Received::Began(began));
    }

    /// Another listener says something.
    fn message(&mut self, now_ms: u64, link: LinkId, message: Message) {
        let (Some(member), Some(peer)) = (self.links.heard(now_ms, link), &mut self.peer) else { return };
        match message {
            Message::Region(message) => peer.receive(now_ms, member, message, &mut self.outbox),
            Message::Bye => {
                self.links.remove(link);
                // What was on its way to it may be lost; that it is gone is no failure.
                peer.pause(now_ms, member, self.links.is_full(member), &mut self.outbox);
                let member = Member { id: member, address: "".into() };
                peer.connected(now_ms, &member, &mut self.outbox);
            }
            other => {
                tracing::debug!(member, ?other, "another listener sent what it may not");
                if let Some(gone) = self.links.remove(link) {
                    self.gone(now_ms, gone);
                }
            }
        }
    }

    /// A link is gone without a goodbye.
    fn gone(&mut self, now_ms: u64, gone: LinkGone) {
        let Some(peer) = &mut self.peer else { return };
        if gone.last {
            peer.disconnected(now_ms, gone.member, &mut self.outbox);
        } else {
            let member = Member { id: gone.member, address: "".into() };
            peer.pause(now_ms, gone.member, self.links.is_full(gone.member), &mut self.outbox);
            peer.connected(now_ms, &member, &mut self.outbox);
        }
    }

    /// Does what follows from the inputs so far, and what is due.
    pub(super) fn carry_out(&mut self) {
        let now_ms = self.now_ms();
        if now_ms >= self.sweep_at_ms {
            self.sweep_at_ms = now_ms + SWEEP_MS;
            self.sweep(now_ms);
        }
        let Some(peer) = &mut self.peer else { return };
        if now_ms >= peer.due_ms() {
            peer.tick(now_ms, &mut self.outbox);
        }
        loop {
            self.carry_out_outputs(now_ms);
            self.flush();
            self.hand_over();
            let reading =
                self.waiting_bytes < if self.reading { UNREAD_BYTES_MAX } else { UNREAD_BYTES_MAX / 2 };
            let Some(peer) = self.peer.as_mut().filter(|_| reading != self.reading) else { break };
            self.reading = reading;
            peer.reading(now_ms, reading, &mut self.outbox);
        }
        let left_out = self.peer.as_ref().is_some_and(Peer::leaves_out);
        if left_out && !std::mem::replace(&mut self.told_left_out, true) {
            tracing::warn!(
                max = STREAMS_MAX,
                "there are more streams than a listener that shares takes: others are left out"
            );
        }
    }

    /// Writes what is to be sent.
    fn flush(&mut self) {
        self.links.flush();
        if std::mem::take(&mut self.tail_unwritten)
            && let Some((_, writer)) = &self.tail
        {
            writer.flush();
        }
    }

    /// Does what the peer wants done.
    fn carry_out_outputs(&mut self, now_ms: u64) {
        // Who can't be reached, or has enough, changes what is to be sent.
        while !self.outbox.is_empty() {
            for output in std::mem::take(&mut self.outbox) {
                match output {
                    PeerOutput::Send { to, message } => self.send(now_ms, to, Message::Region(message)),
                    PeerOutput::Deliver { stream, lineage, batch } => {
                        self.positions.insert(stream.clone(), Position { lineage, seq: batch.last });
                        self.waiting_bytes += weight(&batch);
                        self.waiting.extend(removed_of(&stream, &batch).map(Came::from));
                        self.waiting
                            .push_back(Came { received: Ok(Received::Events(stream, batch)), lineage });
                    }
                    PeerOutput::Anew { region, lineage } => {
                        tracing::warn!(
                            region,
                            "a region has begun anew: its streams' numbers are those of other events now, which come from the \
                             first one on"
                        );
                        let of_region = |stream: &Stream| stream.region() == region;
                        for (_, position) in self.positions.iter_mut().filter(|(stream, _)| of_region(stream))
                        {
                            *position = Position { lineage, seq: 0 };
                        }
                        self.drop_waiting(&region);
                        self.tell(Received::Anew { region, lineage });
                    }
                }
            }
        }
    }

    /// A region begins anew: what the application has not seen of it is no more.
    fn drop_waiting(&mut self, region: &str) {
        let mut freed = 0;
        self.waiting.retain(|came| match &came.received {
            Ok(Received::Events(stream, batch)) if stream.region() == region => {
                freed += weight(batch);
                false
            }
            Ok(Received::Anew { region: before, .. }) => before != region,
            Ok(Received::Removed { stream, .. }) => stream.region() != region,
            _ => true,
        });
        self.waiting_bytes -= freed;
    }

    fn sweep(&mut self, now_ms: u64) {
        let Some(peer) = &self.peer else { return };
        for gone in self.links.sweep(now_ms, |member| peer.needs(member)) {
            self.gone(now_ms, gone);
        }
    }

    fn send(&mut self, now_ms: u64, to: u64, message: Message) {
        let Some(peer) = &mut self.peer else { return };
        if to == self.proxy.id {
            match &self.tail {
                Some((_, writer)) => {
                    writer.add(&message);
                    self.tail_unwritten = true;
                }
                None => peer.disconnected(now_ms, to, &mut self.outbox),
            }
            return;
        }
        if !self.links.leads_to(to) {
            let Some(address) = peer.address(to).filter(|_| self.me.reachable()) else {
                peer.disconnected(now_ms, to, &mut self.outbox);
                return;
            };
            let member = Member { id: to, address: address.into() };
            let (link, (writer, written)) = (connection::next_id(), outbox());
            let (env, me, inputs) = (self.env.clone(), self.me.clone(), self.inputs.clone());
            let dialling = connection::dial(env, link, (member, self.host_sockets), me, written, inputs);
            let task = self.env.spawn("broadcast-sharing-dial", dialling);
            self.links.dialled(now_ms, link, to, writer, task);
        }
        match self.links.send(now_ms, to, &message) {
            LinkSent::Yes => {}
            LinkSent::Full => peer.pause(now_ms, to, true, &mut self.outbox),
            LinkSent::No => peer.disconnected(now_ms, to, &mut self.outbox),
        }
    }

    /// Something about the connection to the tail. However long the application reads nothing, a few of these wait.
    fn tell(&mut self, received: Received) {
        if matches!(received, Received::Counts(_) | Received::Lost) {
            self.waiting.retain(|waiting| !matches!(waiting.received, Ok(Received::Counts(_))));
        }
        let alike = |waiting: &Came| match received {
            Received::Began(_) => matches!(waiting.received, Ok(Received::Began(_))),
            Received::Lost => matches!(waiting.received, Ok(Received::Lost)),
            Received::Counts(_) | Received::Events(..) | Received::Anew { .. } | Received::Removed { .. } => {
                false
            }
        };
        if !self.waiting.iter().any(alike) {
            self.waiting.push_back(received.into());
        }
    }

    fn next_for_application(&mut self) -> Option<Came> {
        let came = self.waiting.pop_front()?;
        if let Ok(Received::Events(_, batch)) = &came.received {
            self.waiting_bytes -= weight(batch);
        }
        Some(came)
    }

    /// Hands the application what it has room for.
    fn hand_over(&mut self) {
        let events = self.events.clone();
        while !self.waiting.is_empty()
            && let Ok(permit) = events.try_reserve()
            && let Some(came) = self.next_for_application()
        {
            permit.send(came);
        }
    }
}

/// What a batch that waits for the application counts as.
fn weight(batch: &Batch) -> usize {
    batch.bytes.len() + 64
}
