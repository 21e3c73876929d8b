//! One process full of listeners.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use tailwater_client::broadcast::{
    Batch, Listener, Positions, Received, RegionOptions, Sharing, SharingStats, Stream,
};
use tailwater_env::Env;
use tailwater_load::clock::monotonic_ns;
use tailwater_load::limits::{FINISH_DEADLINE, READY_DEADLINE};
use tailwater_load::messages::MessageOrder;
use tailwater_load::stats::{Durations, SparseDurations};
use tailwater_load::worker::{Orders, answer};
use tokio::time::MissedTickBehavior;

use super::MembersConfig;

/// Descriptors of a process that are no listener's connections.
const OTHER_DESCRIPTORS: usize = 300;
/// Connections that a listener makes at most, if there are descriptors for them.
const LINKS_MAX: usize = 64;
/// How often what a listener has counted is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Members that a listener knows before it counts as one that takes part.
const VIEW_LEAST: usize = 3;

/// What the process tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ListenerAnswer {
    /// Its listeners take part.
    Ready,
    /// What they got in all.
    Heard(MembersHeard),
}

/// What all listeners of a process got.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct MembersHeard {
    pub(super) delivered: u64,
    pub(super) measured: u64,
    pub(super) reordered: u64,
    pub(super) delays: SparseDurations,
    pub(super) from_proxy: u64,
    pub(super) requests_to_proxy: u64,
    pub(super) requests_to_peers: u64,
    pub(super) timeouts: u64,
    pub(super) duplicates: u64,
    pub(super) moves: u64,
    pub(super) fed: usize,
    pub(super) hops_max: u8,
    pub(super) view_min: usize,
    pub(super) links: usize,
}

impl MembersHeard {
    /// Adds the sums of another; delays and views are no sums.
    pub(super) fn add(&mut self, other: &MembersHeard) {
        for (own, more) in [
            (&mut self.delivered, other.delivered),
            (&mut self.measured, other.measured),
            (&mut self.reordered, other.reordered),
            (&mut self.from_proxy, other.from_proxy),
            (&mut self.requests_to_proxy, other.requests_to_proxy),
            (&mut self.requests_to_peers, other.requests_to_peers),
            (&mut self.timeouts, other.timeouts),
            (&mut self.duplicates, other.duplicates),
            (&mut self.moves, other.moves),
        ] {
            *own += more;
        }
        self.links += other.links;
        self.fed += other.fed;
    }
}

/// What they have in common; the process has one thread.
#[derive(Default)]
struct ListenerProcess {
    /// Events stamped from here on are measured.
    from_ns: u64,
    heard: MembersHeard,
    delays: Durations,
    /// What each one has.
    counts: Vec<u64>,
    members: Vec<Member>,
    failed: Option<String>,
}

/// How it stands with one that shares.
#[derive(Clone, Copy, Default)]
struct Member {
    stats: Option<SharingStats>,
    /// How often that was looked at.
    looks: u64,
}

/// Listens until it is told how much there was.
pub async fn be_members(config: MembersConfig, mut orders: Orders) -> anyhow::Result<()> {
    let env = Env::real();
    let stream = Stream::parse(&config.stream)?;
    let sharing = sharing(&config)?;
    let process = Rc::new(RefCell::new(ListenerProcess {
        from_ns: u64::MAX,
        counts: vec![0; config.count],
        members: vec![Member::default(); config.count],
        ..ListenerProcess::default()
    }));
    for number in 0..config.count {
        let (positions, addresses) = (Positions::of([stream.clone()]), config.addresses.clone());
        let listener = match config.protocol.proxy_alone {
            true => Listener::new(&env, addresses, positions),
            false => Listener::sharing(&env, addresses, positions, sharing.clone()).await?,
        };
        tokio::task::spawn_local(listen(listener, number, Rc::clone(&process)));
    }
    let least = if config.protocol.proxy_alone { 0 } else { VIEW_LEAST.min(config.count - 1) };
    wait(&process, READY_DEADLINE, |process| {
        process.members.iter().all(|member| member.stats.map_or(0, |stats| stats.region.view) >= least)
    })
    .await
    .context("the listeners do not find each other")?;
    answer(&ListenerAnswer::Ready)?;
    while let Some(order) = orders.recv().await {
        match order {
            MessageOrder::Start => {}
            MessageOrder::Measure { from_ns } => process.borrow_mut().from_ns = from_ns,
            MessageOrder::Finish { produced } => {
                let wanted = produced.first().map_or(0, |total| total.records);
                // Who has not everything by then has lost it.
                let _ = wait(&process, FINISH_DEADLINE, |process| {
                    process.counts.iter().all(|count| *count >= wanted)
                })
                .await;
                let looks: Vec<u64> = process.borrow().members.iter().map(|member| member.looks).collect();
                let looked = |process: &ListenerProcess| {
                    process.members.iter().zip(&looks).all(|(now, then)| now.looks > *then)
                };
                let _ = wait(&process, FINISH_DEADLINE, looked).await;
                return answer(&ListenerAnswer::Heard(process.borrow().sum()));
            }
        }
    }
    Ok(())
}

fn sharing(config: &MembersConfig) -> anyhow::Result<Sharing> {
    let protocol = &config.protocol;
    let descriptors =
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX) as usize;
    // Of each listener: those that it makes, as many that it takes, the one to the node, and the two where it listens.
    let fit = (descriptors.saturating_sub(OTHER_DESCRIPTORS) / config.count.max(1)).saturating_sub(3) / 2;
    let links_max = protocol.links_max.unwrap_or(fit.min(LINKS_MAX));
    ensure!(
        (1..=fit).contains(&links_max) || protocol.proxy_alone,
        "{descriptors} open files allow {} listeners {fit} connections each and way, not {links_max}: raise `ulimit \
         -n`, or give more --processes or fewer --links-max",
        config.count
    );
    let options = RegionOptions {
        view_max: protocol.view,
        fanout: protocol.fanout,
        feeds: protocol.feeds,
        gossip_ms: protocol.gossip_ms,
        shuffle_ms: protocol.shuffle_ms,
        notify_ms: protocol.notify_ms,
        request_bytes: protocol.request_kib << 10,
        request_timeout_ms: protocol.request_timeout_ms,
        recv_bytes: protocol.recv_kib << 10,
        ..RegionOptions::default()
    };
    Ok(Sharing { links_max, host_sockets: !protocol.tcp, options, ..Sharing::default() })
}

/// Waits for a condition; it looks every few milliseconds.
async fn wait(
    process: &RefCell<ListenerProcess>,
    limit: Duration,
    holds: impl Fn(&ListenerProcess) -> bool,
) -> anyhow::Result<()> {
    let begin_ns = monotonic_ns();
    loop {
        {
            let process = process.borrow();
            if let Some(error) = &process.failed {
                anyhow::bail!("a listener failed: {error}");
            }
            if holds(&process) {
                return Ok(());
            }
        }
        ensure!(Duration::from_nanos(monotonic_ns() - begin_ns) < limit, "not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl ListenerProcess {
    /// A listener of theirs says what it has counted.
    fn looked(&mut self, number: usize, stats: Option<SharingStats>) {
        self.members[number] = Member { stats, looks: self.members[number].looks + 1 };
    }

    /// Checks what a listener got behind the event with number `last`, and how long ago it was published.
    fn hear(&mut self, batch: &Batch, last: u64, now_ns: u64) -> Result<(), String> {
        let (mut last, mut reordered) = (last, u64::from(batch.after != last));
        let (mut stamp_ns, mut alike) = (0u64, 0u64);
        let mut cursor = batch.cursor();
        while let Some(event) = cursor.next().map_err(|error| error.to_string())? {
            let stamp = event.payload.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            if stamp != stamp_ns {
                self.delayed(now_ns, stamp_ns, alike);
                (stamp_ns, alike) = (stamp, 0);
            }
            reordered += u64::from(event.seq != last + 1);
            last = event.seq;
            alike += 1;
        }
        self.delayed(now_ns, stamp_ns, alike);
        self.heard.reordered += reordered;
        Ok(())
    }

    /// So many events came, published at the same time.
    fn delayed(&mut self, now_ns: u64, stamp_ns: u64, count: u64) {
        if count > 0 && stamp_ns >= self.from_ns {
            self.delays.record_many(now_ns.saturating_sub(stamp_ns), count);
            self.heard.measured += count;
        }
    }

    fn sum(&self) -> MembersHeard {
        let mut heard = MembersHeard { delays: self.delays.to_sparse(), ..self.heard.clone() };
        heard.delivered = self.counts.iter().sum();
        let stats: Vec<_> = self.members.iter().filter_map(|member| member.stats).collect();
        heard.view_min = stats.iter().map(|stats| stats.region.view).min().unwrap_or(0);
        let hops = stats.iter().filter(|stats| stats.region.fed > 0).map(|stats| stats.region.hops);
        heard.hops_max = hops.max().unwrap_or(0);
        for stats in stats {
            let region = stats.region;
            heard.add(&MembersHeard {
                from_proxy: region.from_proxy,
                requests_to_proxy: region.requests_to_proxy,
                requests_to_peers: region.requests_to_peers,
                timeouts: region.timeouts,
                duplicates: region.duplicates,
                moves: region.moves,
                fed: region.fed,
                links: stats.links,
                ..MembersHeard::default()
            });
        }
        heard
    }
}

/// Hears everything, and checks it.
async fn listen(mut listener: Listener, number: usize, process: Rc<RefCell<ListenerProcess>>) {
    let mut last = 0;
    // How it stands with the others is looked at while nothing comes, too.
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let next = tokio::select! {
            biased;
            _ = look.tick() => {
                process.borrow_mut().looked(number, listener.sharing_stats());
                continue;
            }
            next = listener.next() => next,
        };
        let now_ns = monotonic_ns();
        let process = &mut *process.borrow_mut();
        let heard = match next {
            Ok(Received::Events(_, batch)) => process.hear(&batch, last, now_ns).map(|()| batch),
            Ok(_) => continue,
            Err(error) => Err(error.to_string()),
        };
        match heard {
            Ok(batch) => {
                process.counts[number] += u64::from(batch.count);
                last = batch.last;
            }
            Err(error) => {
                process.failed = Some(error);
                return;
            }
        }
    }
}
