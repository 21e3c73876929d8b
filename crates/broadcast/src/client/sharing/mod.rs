//! A listener that shares events with the region's other listeners (section 3.2).
//!
//! ```text
//!   proxy.rs: the connection to the tail --------> inputs --> core.rs: region::Peer --> one writer a connection
//!   connection.rs: accepted, dialled ------------^               |
//!                                                                `--> Listener::next
//! ```
//!
//! [`region::Peer`](crate::region::Peer) decides everything about events; the core task owns it, and keeps the
//! [`links`] to other listeners that it wants to talk to: it dials those of its view, and what it has no use for any
//! more is closed with a goodbye, so that it is not taken for a failure. What others can make it keep is bounded: the
//! links, the bytes that wait for each, the inputs that wait. An application that does not read makes it ask for
//! nothing more; it goes on answering others.

mod connection;
mod core;
mod links;
mod outbox;
mod proxy;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tailwater_env::{Env, Task};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use self::core::Core;
use self::outbox::Outbox;
use crate::client::listener::Came;
use crate::limits::STREAM_BYTES_MAX;
use crate::message::Message;
use crate::name::Stream;
use crate::positions::{Position, Positions, TooManyStreams};
use crate::region::{Begin, Member, Options, Stats};

/// Inputs that wait for the core task; readers pause beyond it.
const INPUTS_MAX: usize = 1024;

/// How a listener shares.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// Where the other listeners connect to it. `None` if they can't: then the proxy sends it everything.
    pub listen: Option<SocketAddr>,
    /// The `HOST:PORT` that they are told, if it is not where it listens; at most 255 bytes.
    pub advertised: Option<String>,
    /// Connections to other listeners, and as many from them; from 1.
    pub links_max: usize,
    /// How often the proxy is asked how far it is, which [`Received::Counts`](crate::client::Received::Counts) tells; each second at least. It is
    /// asked by every listener of the region. A cache asks twice a second.
    pub ask_every: Duration,
    /// Of the protocol. `streams` and `begin` follow from the listener's positions.
    pub options: Options,
}

impl Default for Sharing {
    fn default() -> Self {
        let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let ask_every = Duration::from_secs(1);
        Self { listen, advertised: None, links_max: 64, ask_every, options: Options::default() }
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

/// Something for the core task.
enum Input {
    /// The tail is there, or there again, and says where the listener begins, and in which regions anew: with their lineages.
    Proxy {
        link: LinkId,
        proxy: Member,
        began: Vec<(Stream, Position)>,
        anew: Vec<(String, u64)>,
        writer: Outbox,
    },
    /// Another listener has connected.
    Opened { link: LinkId, member: Member, writer: Outbox },
    /// A message came.
    Message(LinkId, Message),
    /// Some of much that waited has left.
    Drained(LinkId),
    /// A connection is gone, or none could be made.
    Closed(LinkId),
}

/// Starts one.
pub(super) async fn start(
    env: &Env,
    addresses: Vec<String>,
    positions: Positions,
    sharing: Sharing,
    events: mpsc::Sender<Came>,
) -> io::Result<(watch::Receiver<SharingStats>, Task)> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    TooManyStreams::check(positions.streams.len()).map_err(|too_many| invalid(too_many.to_string()))?;
    let (listener, address) = match sharing.listen {
        None => (None, String::new()),
        Some(at) => {
            let listener = TcpListener::bind(at).await?;
            let bound = listener.local_addr()?;
            let address = match sharing.advertised {
                Some(advertised) => advertised,
                None if bound.ip().is_unspecified() => {
                    let text = format!("{at} is no address that others could be told: advertise one");
                    return Err(invalid(text));
                }
                None => bound.to_string(),
            };
            (Some(listener), address)
        }
    };
    if address.len() > STREAM_BYTES_MAX {
        return Err(invalid(format!("an advertised address has at most {STREAM_BYTES_MAX} bytes")));
    }
    let me = Member { id: env.random_u64(), address: address.into() };
    let (inputs, queue) = mpsc::channel(INPUTS_MAX);
    let mut tasks = Vec::new();
    let links_max = sharing.links_max.max(1);
    if let Some(listener) = listener {
        let accepting = connection::accept(env.clone(), listener, me.clone(), links_max, inputs.clone());
        tasks.push(env.spawn("broadcast-sharing-accept", accepting));
    }
    let proxy = proxy::Proxy::new(env, addresses, me.clone(), &positions, sharing.ask_every, inputs.clone());
    tasks.push(env.spawn("broadcast-sharing-proxy", proxy.run()));
    let options = Options {
        streams: (!positions.others).then(|| positions.streams.keys().cloned().collect()),
        begin: Begin::First,
        ..sharing.options
    };
    let (told, stats) = watch::channel(SharingStats::default());
    let core = Core::new(env, me, options, links_max, (events, inputs), told, tasks);
    Ok((stats, env.spawn("broadcast-sharing", core.run(queue))))
}
