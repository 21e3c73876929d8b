//! The configuration service of a region: [`Membership`]'s decisions, durable in `meta` before anybody hears of them.
//! The key is `broadcast/chain/REGION`, its value the magic "TWbm", u16 version 2, u16 zero and a chain in
//! the forms of [`wire`](tailwater_broadcast::wire).
//!
//! Metadata that has no chain may be that of a region which starts for the first time, or what is there in the place of
//! metadata that is lost: the service listens for what replicas have before it begins one ([`Membership`]).

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tailwater_broadcast::membership::{Membership, unbegun};
use tailwater_broadcast::message::{Chain, Has, Member, ReplicaId, Waits};
use tailwater_broadcast::wire::{Reader, WirePiece};
use tailwater_env::Env;
use tailwater_meta::{Expect, Meta, Op};
use tokio::sync::mpsc;

use crate::ReplicaInput;

/// How often silent members are looked for.
const LOOK: Duration = Duration::from_millis(50);
/// A pause after the metadata could not be written.
const PAUSE: Duration = Duration::from_millis(200);
const MAGIC: [u8; 4] = *b"TWbm";
const VERSION: u16 = 2;

/// What a replica tells the service.
pub(crate) enum Report {
    Join { member: Member, durable: bool, started: bool, has: Has },
    Alive { id: ReplicaId, epoch: u64, caught_up: Vec<ReplicaId>, waits: Waits, has: Has },
}

/// Runs the service until it is dropped or nobody reports any more.
pub(crate) async fn run(
    env: Env,
    meta: Arc<dyn Meta>,
    region: String,
    (silence_ms, lost_ms): (u64, u64),
    mut reports: mpsc::Receiver<Report>,
    inputs: mpsc::Sender<ReplicaInput>,
) {
    let key = format!("broadcast/chain/{region}");
    let fresh = unbegun(&region, env.wall_ms().max(0) as u64, env.random_u64());
    let (chain, expect) = loop {
        match load(meta.as_ref(), &key, &fresh).await {
            Ok(loaded) => break loaded,
            Err(error) => {
                tracing::error!(%error, key, "the chain of this region can't be read");
                env.sleep(PAUSE).await;
            }
        }
    };
    let now_ms = now_ms(&env);
    let membership = Membership::new(now_ms, chain, silence_ms, lost_ms);
    let mut service =
        ConfigurationService { env, meta, region, key, fresh, expect, membership, looked_ms: now_ms, inputs };
    loop {
        let report = service.env.timeout(LOOK, reports.recv()).await;
        service.look();
        match report {
            Some(None) => return,
            Some(Some(report)) => service.heard(report).await,
            None => {}
        }
        service.decide().await;
    }
}

fn now_ms(env: &Env) -> u64 {
    env.now().as_ns() / 1_000_000
}

/// What the service decides with, and where that is kept.
struct ConfigurationService {
    env: Env,
    meta: Arc<dyn Meta>,
    region: String,
    key: String,
    /// The chain of metadata that has none.
    fresh: Chain,
    /// What the metadata has, as far as is known.
    expect: Expect,
    membership: Membership,
    /// When it last looked.
    looked_ms: u64,
    inputs: mpsc::Sender<ReplicaInput>,
}

impl ConfigurationService {
    /// Looks at the clock. Whoever spoke while a commit took long, or this process stood still, was not heard yet.
    fn look(&mut self) -> u64 {
        let before_ms = std::mem::replace(&mut self.looked_ms, now_ms(&self.env));
        self.membership.did_not_listen((self.looked_ms - before_ms).saturating_sub(LOOK.as_millis() as u64));
        self.looked_ms
    }

    async fn heard(&mut self, report: Report) {
        let now_ms = now_ms(&self.env);
        match report {
            Report::Join { member, durable, started, has } => {
                let id = member.id;
                self.membership.join(now_ms, member, durable, started);
                self.membership.has(id, has);
                // It may be a member already: then nothing changes, and it still has to know.
                let _ = self.inputs.send(ReplicaInput::Chain(self.membership.chain().clone())).await;
            }
            Report::Alive { id, epoch, caught_up, waits, has } => {
                self.membership.alive(now_ms, id, epoch, &caught_up, waits);
                self.membership.has(id, has);
            }
        }
    }

    /// Decides on chains until there is nothing to change, or it could not be written.
    async fn decide(&mut self) {
        loop {
            let now_ms = self.look();
            let Some(chain) = self.membership.next(now_ms) else { return };
            let put = Op::Put { key: self.key.clone(), value: stored(&chain), expect: self.expect };
            match self.meta.commit(vec![put]).await {
                Ok(version) => {
                    self.say_what_changed(&chain);
                    self.expect = Expect::Version(version);
                    self.is_in_force(chain).await;
                }
                Err(error) => {
                    tracing::error!(%error, key = self.key, "the chain of this region can't be changed");
                    return self.load_again().await;
                }
            }
        }
    }

    /// A chain is durable.
    async fn is_in_force(&mut self, chain: Chain) {
        self.membership.changed(chain.clone());
        let _ = self.inputs.send(ReplicaInput::Chain(chain)).await;
    }

    /// A chain may have been written though its commit failed: what is there now decides.
    async fn load_again(&mut self) {
        self.env.sleep(PAUSE).await;
        if let Ok((chain, expect)) = load(self.meta.as_ref(), &self.key, &self.fresh).await {
            self.expect = expect;
            if chain.epoch > self.membership.chain().epoch {
                self.is_in_force(chain).await;
            }
        }
    }

    /// For the log: what the next chain changes, before it is in force.
    fn say_what_changed(&self, chain: &Chain) {
        let region = &self.region;
        let ids = |members: &[Member]| members.iter().map(|m| m.id).collect::<Vec<_>>();
        let (members, joining) = (ids(&chain.members), ids(&chain.joining));
        tracing::info!(region, epoch = chain.epoch, ?members, ?joining, "the broadcast chain changed");
        let before = self.membership.chain();
        let events = chain.head().map_or(0, |head| self.membership.events_of(head));
        if before.lineage != chain.lineage && (events > 0 || !before.members.is_empty()) {
            let why = match before.members.is_empty() {
                true => "the metadata here does not know the chain before",
                false => "no member of the chain before is left",
            };
            let lineage = format_args!("{:x}", chain.lineage);
            tracing::warn!(region, ?members, events, why, %lineage, "the region's broadcasts begin anew");
        }
        if let Some(replica) = self.membership.leaves() {
            tracing::warn!(region, replica, "a replica that did not move on was removed");
        }
    }
}

/// The chain in the metadata; if there is none, `fresh`.
async fn load(meta: &dyn Meta, key: &str, fresh: &Chain) -> anyhow::Result<(Chain, Expect)> {
    let Some(found) = meta.get(key).await? else {
        return Ok((fresh.clone(), Expect::Absent));
    };
    Ok((read(found.value)?, Expect::Version(found.version)))
}

fn stored(chain: &Chain) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(&MAGIC);
    out.put_u16_le(VERSION);
    out.put_u16_le(0);
    chain.append(&mut out);
    out.freeze()
}

fn read(value: Bytes) -> anyhow::Result<Chain> {
    let mut reader = Reader::new(value);
    anyhow::ensure!(
        reader.bytes(MAGIC.len()).is_ok_and(|magic| magic == MAGIC[..]),
        "it is no chain, or one of version 1, which this program does not know"
    );
    let (version, _) = (reader.u16()?, reader.u16()?);
    anyhow::ensure!(
        version == VERSION,
        "it is of version {version}, and this program knows version {VERSION}"
    );
    let chain = Chain::take(&mut reader)?;
    reader.end()?;
    Ok(chain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_comes_back_and_one_of_another_version_is_refused_by_name() {
        let member = Member { id: 4, address: "127.0.0.1:9400".to_owned() };
        let (members, joining) = (vec![member.clone()], vec![member]);
        let chain = Chain { epoch: 3, lineage: 9, region: "eu".to_owned(), members, joining };
        let value = stored(&chain);
        assert_eq!(value[..24], *b"TWbm\x02\0\0\0\x03\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0");
        assert_eq!(read(value.clone()).unwrap(), chain);
        for cut in 0..value.len() {
            assert!(read(value.slice(..cut)).is_err(), "{cut}");
        }
        let mut later = BytesMut::from(&value[..]);
        later[4] = 3;
        assert!(read(later.freeze()).unwrap_err().to_string().contains("version 3"));
        assert!(read(value.slice(8..)).unwrap_err().to_string().contains("version 1"));
    }
}
