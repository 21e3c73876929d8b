//! What an application provides to be served.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tailwater_access::Peer;

use crate::connection::ScarOp;
use crate::region::Region;

/// Where the data of a SCAR lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScarHit {
    /// Place in [`Service::regions`] and range of the bucket.
    pub bucket: (usize, u64, u32),
    /// Place and range of the data, if an index entry matched.
    pub data: Option<(usize, u64, u32)>,
}

/// An application behind a server. Everything but `call` is called on engine threads, which serve all
/// connections: it must neither block, nor take a lock that a writer holds for long.
pub trait Service: Send + Sync + 'static {
    /// Whether a peer is served at all; asked when it says HELLO, before it learns of any region: its one-sided reads
    /// ask nobody. Asked again for every connection when a [`ServiceAdmission`](crate::ServiceAdmission) says so. The
    /// reason for which it is not is for the log.
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        let _ = peer;
        Ok(())
    }

    /// Whether `peer` may log in, or has to; `None` where it is taken for what it is. Asked while it has not logged in.
    fn login_demand(&self, peer: &Peer) -> Option<LoginDemand> {
        let _ = peer;
        None
    }

    /// Begins the login of a peer that [may log in](Self::login_demand). `is_private`: nobody else reads what goes over
    /// its connection.
    ///
    /// # Errors
    /// Why nobody can log in at the moment, for the client.
    fn begin_login(&self, peer: &Peer, is_private: bool) -> Result<Box<dyn LoginDialogue>, Refusal> {
        let _ = (peer, is_private);
        Err(Refusal { code: REFUSED_ABANDONED, message: "nobody logs in here".to_owned() })
    }

    /// The regions that clients may read, in the order of their ids; new connections are told of these. Which ones they
    /// are never changes, though where they are in memory may
    /// ([`ServiceAdmission::regions_moved`](crate::ServiceAdmission::regions_moved)).
    fn regions(&self) -> Vec<Arc<Region>>;

    /// Scans a bucket; `None` where the service has no buckets or `op` is out of their range.
    fn scar(&self, op: &ScarOp) -> Option<ScarHit>;

    /// How long a peer is held until it owes nothing, now that it was sent so many bytes of the regions, frames
    /// included. Nothing more of it is read for so long, and it is asked again with 0 bytes. What a peer reads by
    /// itself, because it has mapped the regions or has their keys, is not told here.
    fn owed_for_reads(&self, peer: &Peer, bytes: usize) -> Duration {
        let _ = (peer, bytes);
        Duration::ZERO
    }

    /// Whether a CALL of this method with this payload, which is a client's and may be anything, is work of some
    /// microseconds without waiting. The engine then does it itself, which spares two threads waking each other; as
    /// long as it does, nobody else is served.
    fn is_short(&self, method: u16, payload: &Bytes) -> bool {
        let _ = (method, payload);
        false
    }

    /// A CALL. Answer through `reply`, from any thread, now or later; dropping it answers an error. Runs on a
    /// worker that may do some work, or on an engine thread if it [is short](Self::is_short) and none of its
    /// connection is with the workers. With one worker, CALLs of one connection thus run in the order in which they
    /// were sent.
    fn call(&self, peer: &Peer, method: u16, payload: Bytes, reply: Reply);
}

/// What a service wants of a peer that has not logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginDemand {
    /// Whether it has to. Otherwise it may, and says so when it says HELLO.
    pub is_required: bool,
    /// What is answered to its CALLs before it has.
    pub refusal: Refusal,
}

/// A login that has begun, over the CALLs of one connection ([`crate::limits::LOGIN_METHOD`]).
pub trait LoginDialogue: Send + 'static {
    /// Goes on with what the client sent: at most [`crate::limits::LOGIN_BYTES_MAX`], which may be anything. May be
    /// dropped at any point, with the connection.
    fn step(self: Box<Self>, message: Bytes) -> BoxFuture<'static, LoginTurn>;
}

/// What comes of a message of a login.
pub enum LoginTurn {
    /// The client is sent this, and goes on.
    Challenge(Bytes, Box<dyn LoginDialogue>),
    /// The client is known.
    Done {
        /// What it is sent.
        answer: Bytes,
        /// Who it is from now on.
        peer: Peer,
        /// Completes when it is that no more. Then the connection ends.
        over: BoxFuture<'static, ()>,
    },
    /// The client is not let in, and told why. Whatever it sends next ends the connection.
    Refused(Refusal),
}

impl std::fmt::Debug for LoginTurn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Challenge(..) => f.write_str("Challenge"),
            Self::Done { peer, .. } => f.debug_tuple("Done").field(peer).finish(),
            Self::Refused(refusal) => f.debug_tuple("Refused").field(refusal).finish(),
        }
    }
}

type SendReply = Box<dyn FnOnce(Result<Bytes, Refusal>) + Send>;

/// The way back of a CALL.
pub struct Reply {
    send: Option<SendReply>,
}

/// An application error as it crosses the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The application's number for it.
    pub code: u16,
    /// In words, for a person.
    pub message: String,
}

/// [`Refusal::code`] of a CALL whose [`Reply`] was dropped.
pub const REFUSED_ABANDONED: u16 = 0xffff;

/// [`Refusal::code`] of a CALL whose payload or answer is longer than [`crate::CALL_BYTES_MAX`].
pub const REFUSED_TOO_LARGE: u16 = 0xfffe;

impl Reply {
    /// A way back that ends in `send`.
    pub fn new(send: impl FnOnce(Result<Bytes, Refusal>) + Send + 'static) -> Self {
        Self { send: Some(Box::new(send)) }
    }

    /// Answers.
    pub fn send(mut self, answer: Result<Bytes, Refusal>) {
        if let Some(send) = self.send.take() {
            send(answer);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(send) = self.send.take() {
            let message = "the server gave up on this call".to_owned();
            send(Err(Refusal { code: REFUSED_ABANDONED, message }));
        }
    }
}
