//! What must hold in the simulated world, each broken by some mistake of [`crate::planted`].

use super::actors::{Heard, Role};
use super::world::{World, payload};
use crate::digest::{EntryCodec, LedgerEntry};
use crate::ids::EntryId;
use crate::metadata::{LedgerMetadata, LedgerStatus};
use crate::protocol::BookieRequest;
use crate::step::LedgerFault;

type Checked = Result<(), String>;

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}

/// A closed ledger never changes, and nothing takes an ensemble of it away that has acknowledged entries.
pub fn change(before: &LedgerMetadata, after: &LedgerMetadata) -> Checked {
    let stays = match (before.state, after.state) {
        (LedgerStatus::Closed { .. }, _) => before == after,
        (LedgerStatus::InRecovery, LedgerStatus::Open) => false,
        _ => true,
    };
    ensure(stays, || format!("a ledger that was {:?} became {:?}", before.state, after.state))
}

/// Before a recovery reads entries no ack quorum of bookies is left that would take more of them.
pub fn recovery_asks(world: &mut World, request: &BookieRequest) -> Checked {
    let (BookieRequest::Read { entry, .. }, Some(claimed)) = (request, &world.claimed) else {
        world.outcome.written_back += u64::from(matches!(request, BookieRequest::Add { .. }));
        return Ok(());
    };
    let fenced = claimed.last_ensemble().1.iter().enumerate();
    let fenced =
        fenced.filter(|(_, bookie)| world.bookies[bookie].fenced).fold(0, |bits, (at, _)| bits | 1 << at);
    ensure(!entry.is_some() || world.quorums.covered(fenced), || {
        format!("entry {entry} is read by a recovery while the fenced bookies are {fenced:b}")
    })
}

/// What an actor learned.
pub fn heard(world: &mut World, heard: Heard) -> Checked {
    match heard {
        Heard::Acked(entry) => {
            if entry < world.acked {
                return Err(format!("the LAC went back from {} to {entry}", world.acked));
            }
            world.acked = entry;
            acked(world)
        }
        Heard::Lac(lac) => ensure(lac <= world.acked, || {
            format!("a reader was told that {lac} is acknowledged, and {} is", world.acked)
        }),
        Heard::Entry(read) => entry_read(world, &read.0, &read.1),
        Heard::Nothing => Ok(()),
    }
}

fn entry_read(
    world: &mut World,
    read: &Result<LedgerEntry, LedgerFault>,
    metadata: &LedgerMetadata,
) -> Checked {
    match read {
        Ok(entry) => {
            world.outcome.read_entries += 1;
            ensure(entry.payload == payload(entry.entry), || format!("entry {} is another one", entry.entry))
        }
        // Its bookies may have been replaced since the reader had the metadata.
        Err(LedgerFault::Lost(entry)) => {
            ensure(metadata.ensemble_of(*entry) != world.stored.metadata.ensemble_of(*entry), || {
                format!("entry {entry} was acknowledged, and its bookies do not have it")
            })
        }
        Err(LedgerFault::Damaged(entry)) => Err(format!("entry {entry} is damaged")),
        Err(_) => Ok(()),
    }
}

/// What is acknowledged is within what the closed ledger has.
fn acked(world: &World) -> Checked {
    match world.stored.metadata.state {
        LedgerStatus::Closed { last, .. } => ensure(world.acked <= last, || {
            format!("entry {} was acknowledged, and the ledger is closed at {last}", world.acked)
        }),
        _ => Ok(()),
    }
}

/// Everything was well for long enough.
pub fn at_the_end(world: &mut World) -> Checked {
    let last = world.last.map(|actor| &world.actors[actor]);
    match last.and_then(|actor| actor.recovered()) {
        Some(Ok(_)) => {}
        other => return Err(format!("everything is well, and the last recovery ended with {other:?}")),
    }
    acked(world)?;
    let metadata = &world.stored.metadata;
    let LedgerStatus::Closed { last, length } = metadata.state else {
        return Err(format!("it is recovered, and {:?}", metadata.state));
    };
    let ends = world.actors.iter().filter_map(|actor| actor.recovered()?.as_ref().ok());
    let mut same = 0;
    for end in ends {
        same += 1;
        ensure(end.state == metadata.state, || {
            format!("a recovery ended {:?}, the ledger {:?}", end.state, metadata.state)
        })?;
    }
    let Role::Writer { appender, .. } = &world.actors[0].role else { return Err("no writer".to_owned()) };
    ensure(!appender.is_closed() || appender.lac() == last, || {
        format!("the writer closed it at {}, and it ends at {last}", appender.lac())
    })?;
    world.outcome.fenced_writers = u64::from(appender.failure() == Some(&LedgerFault::Fenced));
    world.outcome.acknowledged = (world.acked.get() + 1) as u64;
    world.outcome.closed_by_two = u64::from(same > 1);
    copies(world, last, length)
}

/// An ack quorum has each entry, as it was appended.
fn copies(world: &World, last: EntryId, length: u64) -> Checked {
    let metadata = &world.stored.metadata;
    let codec = EntryCodec::new(world.ledger, metadata.digest, &metadata.password);
    let mut sum = 0;
    for entry in (0..=last.get()).map(EntryId::new) {
        sum += payload(entry).len() as u64;
        let ensemble = metadata.ensemble_of(entry);
        let mut right = 0;
        for position in world.quorums.write_set(entry) {
            let Some(packet) = world.bookies[&ensemble[position]].entries.get(&entry) else { continue };
            let opened =
                codec.open(Some(entry), packet.clone()).map_err(|fault| format!("entry {entry}: {fault}"))?;
            ensure(opened.payload == payload(entry) && opened.length == sum, || {
                format!("{} has another entry {entry}", ensemble[position])
            })?;
            right += 1;
        }
        ensure(right >= world.quorums.ack(), || {
            format!("entry {entry} has {right} copies on its bookies, {ensemble:?}")
        })?;
    }
    ensure(sum == length, || format!("{sum} bytes were appended, and the ledger's length is {length}"))
}
