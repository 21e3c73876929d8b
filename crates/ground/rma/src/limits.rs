//! Every limit of this crate: unit, reason, and how they hang together.

use std::time::Duration;

/// The longest READ, in bytes. One operation must not keep an engine busy: a copy of this takes about 150 us.
pub const READ_BYTES_MAX: u32 = 1 << 20;

/// The longest CALL payload or answer, in bytes.
pub const CALL_BYTES_MAX: usize = 8 << 20;

/// Regions of one server. Their descriptors, and the doorbell's, travel in one message, which carries at most
/// 253 (the kernel's `SCM_MAX_FD`).
pub const REGIONS_MAX: usize = 64;

/// Operations in one READ or SCAR frame; clients split longer batches.
pub const BATCH_OPS_MAX: usize = 1024;

/// Bytes that one READ frame may ask for, and that one SCAR frame is answered with; clients split and repeat.
pub const BATCH_BYTES_MAX: usize = 4 << 20;

/// The longest frame body, in bytes: a CALL with its method, or a full batch with its results.
pub const FRAME_BODY_MAX: usize = CALL_BYTES_MAX + (64 << 10);

/// A doorbell's first value. It is not 0, so that whoever has seen nothing yet and says 0 is told to look.
pub const DOORBELL_START: u32 = 1;

/// The longest a waiter sleeps before it looks at the doorbell's word again, where a look has found a move that
/// no wake had told of. A wake can be stolen by any other process that maps the word.
pub const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The longest sleep between two looks where wakes arrive: the sleep doubles from look to look. So the first ring whose
/// wake is stolen is noticed that much later, and an idle process wakes twice a second instead of 20 times.
pub const LOOK_AGAIN_IDLE: Duration = Duration::from_millis(500);

/// The longest a WATCH stays parked at a server; clients repeat it.
pub const WATCH_DEADLINE_MAX: Duration = Duration::from_secs(60);

/// WATCHes that one connection may have parked; one more is answered at once. A client needs one.
pub const WATCHES_PER_CONNECTION_MAX: usize = 16;

/// CALLs of one connection that the application may be working on; one more is answered "overloaded".
pub const CALLS_PER_CONNECTION_MAX: usize = 256;

/// The method of the CALLs by which a client logs in. The numbers of methods are applications'; this one is none of
/// theirs, as a connection is logged in whatever it is for.
pub const LOGIN_METHOD: u16 = 17;

/// The longest message of a login, in bytes, with what is around it.
pub const LOGIN_BYTES_MAX: usize = 8 << 10;

/// Messages of a client in one login: SCRAM has two.
pub const LOGIN_MESSAGES_MAX: usize = 4;

/// Bytes of unsent answers at which a connection is dropped. READ and SCAR answers stop far below it, at
/// [`crate::ServerConfig::output_bytes_max`] and one batch; CALL answers come when they come.
pub const OUTPUT_BYTES_HARD_MAX: usize = 64 << 20;

/// The largest output buffer that an engine keeps for the next turn, in bytes.
pub const OUTPUT_BYTES_KEPT: usize = 2 * BATCH_BYTES_MAX;

/// How long a connection is held for what it has read, before the service is asked again whether it still owes
/// something: so soon whoever is forgiven is heard.
pub const READS_HELD_MAX: Duration = Duration::from_secs(1);

/// A record of TLS with all that is around it, in bytes: what a connection in TLS may have received and can't decrypt
/// yet.
pub const RECORD_BYTES_MAX: usize = (16 << 10) + 256;

/// Bytes of one connection that are encrypted, or decrypted, together: many records, and few enough to stay in a core's
/// cache on their way.
pub const SEALED_BYTES: usize = 128 << 10;

/// Unsent bytes of a client's requests at which further ones wait.
pub const OUTGOING_BYTES_MAX: usize = 16 << 20;

/// How long a client tries to connect, HELLO included.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// How long a client's WATCH over a socket stays parked at the server before it is repeated; one serves all tasks
/// that wait, whatever their own deadlines.
pub const WATCH_PERIOD: Duration = Duration::from_secs(30);

/// Doorbells that one system call can wait for (the kernel's `FUTEX_WAITV_MAX`, less our own word). With more,
/// the waiter looks at all of them every [`POLL_PERIOD`].
pub const DOORBELLS_WAITED_MAX: usize = 127;

/// How often doorbells are looked at where the kernel cannot wait for them.
pub const POLL_PERIOD: Duration = Duration::from_millis(1);

/// Wakes of one doorbell are at least this far apart: each costs its server about 2 us per waiting process.
pub const WAKE_INTERVAL: Duration = Duration::from_micros(100);

/// Reads of one endpoint of libfabric that are under way together, and entries of its completion queue; further ones
/// wait for one of these to end.
pub const FABRIC_SLOTS: usize = 128;

/// Bytes of one of them: a longer READ is several.
pub const FABRIC_SLOT_BYTES: usize = 32 << 10;

/// The longest name of an endpoint of libfabric, in bytes: addresses of its formats have 128 at most.
pub const FABRIC_NAME_BYTES_MAX: usize = 256;

/// The longest name of a provider of libfabric, in bytes.
pub const FABRIC_PROVIDER_BYTES_MAX: usize = 64;

/// How long a read over libfabric may take: not all providers tell of a peer that is gone. Behind that it is asked over
/// TCP, and so are all others until there is a new endpoint.
pub const FABRIC_READ_DEADLINE: Duration = Duration::from_secs(2);

/// How long a client waits for an endpoint of libfabric when it connects. Behind that it reads over TCP.
pub const FABRIC_OPEN_DEADLINE: Duration = Duration::from_secs(3);

/// How long reads go over TCP after libfabric has failed, until a new endpoint is tried.
pub const FABRIC_AGAIN: Duration = Duration::from_secs(1);

const _: () = {
    assert!(READ_BYTES_MAX as usize <= BATCH_BYTES_MAX, "any READ fits a frame");
    assert!(2 * READ_BYTES_MAX as usize <= BATCH_BYTES_MAX, "any SCAR, bucket and data, fits a frame");
    assert!(BATCH_BYTES_MAX + BATCH_OPS_MAX * 16 <= FRAME_BODY_MAX, "a full batch with its results");
    assert!(FABRIC_OPEN_DEADLINE.as_secs() < CONNECT_DEADLINE.as_secs(), "who connects reads over TCP then");
    assert!(REGIONS_MAX < 253, "one message carries all descriptors");
    assert!(DOORBELL_START != 0);
    assert!(LOOK_AGAIN.as_millis() <= LOOK_AGAIN_IDLE.as_millis());
    assert!(WATCH_PERIOD.as_secs() <= WATCH_DEADLINE_MAX.as_secs(), "a server parks it for that long");
};

const _: () = {
    assert!(OUTPUT_BYTES_KEPT <= OUTPUT_BYTES_HARD_MAX, "what is kept is within the bound");
    assert!(
        FRAME_BODY_MAX < OUTGOING_BYTES_MAX && FRAME_BODY_MAX < OUTPUT_BYTES_HARD_MAX,
        "any frame can be sent"
    );
    assert!(FRAME_BODY_MAX < u32::MAX as usize, "a frame's length is 32 bits wide");
};
