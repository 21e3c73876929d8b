//! Scripts about members of KIP-848 that nobody hears of any more.

use tailwater_kafka::messages::membership::ConsumerGroupHeartbeatRequest;

use crate::groups::{commit, ready};
use crate::pairs::{create_for_groups, tell, until};
use crate::session::Session;
use crate::vanished::describe;

/// Nobody gives anything up here.
const REBALANCE_MS: i32 = 600_000;

const SILENT: &str = "groups-silent";

fn silent(group: &str, member: &str, name: Option<&str>, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    let rebalance_timeout_ms = if epoch == 0 { REBALANCE_MS } else { -1 };
    ConsumerGroupHeartbeatRequest { rebalance_timeout_ms, ..tell(group, member, name, epoch, SILENT) }
}

/// Members, of whom nobody hears any more while the other scripts run: [`is_over`] goes on.
pub fn begins(session: &mut Session) {
    ready(session);
    create_for_groups(session, SILENT);
    for (group, name) in [("silent", None), ("silent-named", Some("name"))] {
        let first = session.client.ask(1, &silent(group, "a", name, 0)).expect("an answer");
        session.first_group_epoch = Some(first.member_epoch);
        session.ask("described while it is heard of", 1, &describe(group));
    }
}

/// Their sessions are over: 45 s, by the defaults of both brokers.
pub fn is_over(session: &mut Session) {
    let id = (SILENT, session.wait_for(SILENT, 4));
    for (group, name) in [("silent", None), ("silent-named", Some("name"))] {
        let mut epoch = 0;
        until(|| {
            let described = session.client.ask(1, &describe(group)).expect("an answer");
            epoch = described.groups[0].group_epoch;
            described.groups[0].members.is_empty()
        });
        session.first_group_epoch = None;
        session.ask("described when nobody was heard of", 1, &describe(group));
        let before = epoch - 1;
        session.ask("a beats too late", 1, &silent(group, "a", name, before));
        session.ask("a leaves too late", 1, &silent(group, "a", name, -1));
        session.ask("a commits too late", 9, &commit(group, id, before, "a"));
        let joined = session.client.ask(1, &silent(group, "b", name, 0)).expect("an answer");
        session.first_group_epoch = Some(joined.member_epoch);
        session.ask("b beats", 1, &silent(group, "b", name, joined.member_epoch));
        session.ask("a beats although b is there", 1, &silent(group, "a", name, before));
        session.ask("a commits although b is there", 9, &commit(group, id, before, "a"));
        session.ask("a joins again", 1, &silent(group, "a", None, 0));
        session.ask("described", 1, &describe(group));
        session.ask("a leaves", 1, &silent(group, "a", None, -1));
        session.ask("b leaves", 1, &silent(group, "b", name, -1));
    }
}
