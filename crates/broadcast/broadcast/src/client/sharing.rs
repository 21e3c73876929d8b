//! A listener that shares events with the region's other listeners (section 3.2).
//!
//! ```text
//!   proxy.rs: the connection to the tail -----.   inputs.rs: its lock
//!   connection.rs, socket.rs: those to others -+--> core.rs: region::Peer --> outbox.rs: to each connection
//!   core.rs: its clock ------------------------'         `--> Listener::next
//! ```
//!
//! [`region::Peer`](crate::region::Peer) decides everything about events; the core has it, and keeps the [`links`] to
//! other listeners that it wants to talk to: it dials those of its view, and what it has no use for any more is closed
//! with a goodbye, so that it is not taken for a failure. What others can make it keep is bounded: the links, and the
//! bytes that wait for each. An application that does not read makes it ask for nothing more; it goes on answering
//! others.

mod connection;
mod core;
mod inputs;
mod links;
mod outbox;
mod proxy;
mod socket;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tailwater_env::{Env, Task};
use tokio::sync::mpsc;

use self::core::Core;
pub(super) use self::inputs::InputsShared;
use self::inputs::SharingInputs;
use self::socket::Door;
use crate::client::link::ReplicasAt;
use crate::client::received::Came;
use crate::limits::STREAM_BYTES_MAX;
use crate::positions::{Positions, TooManyStreams};
use crate::region::{Begin, Member, Options, Stats};

/// How a listener shares.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// Where the other listeners connect to it. `None` if they can't: then the proxy sends it everything.
    pub listen: Option<SocketAddr>,
    /// The `HOST:PORT` that they are told, if it is not where it listens; at most 255 bytes.
    pub advertised: Option<String>,
    /// Connections to other listeners, and as many from them; from 1.
    pub links_max: usize,
    /// Whether listeners of this host meet at Unix sockets, if they do so too, which costs all of them less; others use
    /// TCP.
    pub host_sockets: bool,
    /// How often the proxy is asked how far it is, which [`Received::Counts`](crate::client::Received::Counts) tells;
    /// each second at least. It is asked by every listener of the region. A cache asks twice a second.
    pub ask_every: Duration,
    /// Of the protocol. `streams` and `begin` follow from the listener's positions.
    pub options: Options,
}

impl Default for Sharing {
    fn default() -> Self {
        let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let ask_every = Duration::from_secs(1);
        let options = Options::default();
        Self { listen, advertised: None, links_max: 64, host_sockets: true, ask_every, options }
    }
}

/// What a listener that shares has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharingStats {
    /// By the protocol.
    pub region: Stats,
    /// Connections with other listeners now.
    pub links: usize,
}

/// A connection of this listener.
type LinkId = u64;

/// Starts one.
pub(super) async fn start(
    env: &Env,
    replicas: ReplicasAt,
    positions: Positions,
    sharing: Sharing,
    events: mpsc::Sender<Came>,
) -> io::Result<(Arc<InputsShared>, Task)> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    TooManyStreams::check(positions.streams.len()).map_err(|too_many| invalid(too_many.to_string()))?;
    let (mut door, address) = match sharing.listen {
        None => (None, String::new()),
        Some(at) => {
            let door = Door::bind(at).await?;
            let bound = door.address()?;
            let address = match sharing.advertised {
                Some(advertised) => advertised,
                None if bound.ip().is_unspecified() => {
                    let text = format!("{at} is no address that others could be told: advertise one");
                    return Err(invalid(text));
                }
                None => bound.to_string(),
            };
            (Some(door), address)
        }
    };
    if address.len() > STREAM_BYTES_MAX {
        return Err(invalid(format!("an advertised address has at most {STREAM_BYTES_MAX} bytes")));
    }
    let me = Member { id: env.random_u64(), address: address.into() };
    let host_sockets = sharing.host_sockets;
    if let Some(door) = door.as_mut().filter(|_| host_sockets) {
        door.open_for_host(me.id);
    }
    let links_max = sharing.links_max.max(1);
    let options = Options {
        streams: (!positions.others).then(|| positions.streams.keys().cloned().collect()),
        begin: Begin::First,
        ..sharing.options
    };
    let shared = Arc::new_cyclic(|shared| {
        let core = Core::new(
            env,
            me.clone(),
            options,
            (links_max, host_sockets),
            (events, SharingInputs::to(shared)),
        );
        InputsShared::new(core)
    });
    let inputs = SharingInputs::to(&Arc::downgrade(&shared));
    let mut tasks = Vec::new();
    if let Some(door) = door {
        let accepting = connection::accept(env.clone(), door, me.clone(), links_max, inputs.clone());
        tasks.push(env.spawn("broadcast-sharing-accept", accepting));
    }
    let proxy = proxy::Proxy::new(env, replicas, me, &positions, sharing.ask_every, inputs);
    tasks.push(env.spawn("broadcast-sharing-proxy", proxy.run()));
    let run = core::run(env.clone(), core::Ending::of(&shared), tasks);
    Ok((shared, env.spawn("broadcast-sharing", run)))
}
