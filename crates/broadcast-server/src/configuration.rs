//! The configuration service of a region: [`Membership`]'s decisions, durable in `meta` before anybody hears of
//! them. The key is `broadcast/chain/REGION`, its value as [`put_chain`] writes it.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tailwater_broadcast::membership::Membership;
use tailwater_broadcast::message::{Chain, Member, ReplicaId, Waits, put_chain, take_chain};
use tailwater_broadcast::wire::Reader;
use tailwater_env::Env;
use tailwater_meta::{Expect, Meta, Op};
use tokio::sync::mpsc;

use crate::Input;

/// How often silent members are looked for.
const LOOK: Duration = Duration::from_millis(50);
/// A pause after the metadata could not be written.
const PAUSE: Duration = Duration::from_millis(200);

/// What a replica tells the service.
pub(crate) enum Report {
    Join { member: Member, durable: bool, started: bool },
    Alive { id: ReplicaId, epoch: u64, caught_up: Vec<ReplicaId>, waits: Waits },
}

/// Runs the service until it is dropped or nobody reports any more.
pub(crate) async fn run(
    env: Env,
    meta: Arc<dyn Meta>,
    region: String,
    (silence_ms, lost_ms): (u64, u64),
    mut reports: mpsc::Receiver<Report>,
    inputs: mpsc::Sender<Input>,
) {
    let now_ms = || env.now().as_ns() / 1_000_000;
    let key = format!("broadcast/chain/{region}");
    let (chain, mut expect) = loop {
        match load(meta.as_ref(), &key, &region).await {
            Ok(loaded) => break loaded,
            Err(error) => {
                tracing::error!(%error, key, "the chain of this region can't be read");
                env.sleep(PAUSE).await;
            }
        }
    };
    let mut membership = Membership::new(now_ms(), chain, silence_ms, lost_ms);
    let mut looked_ms = now_ms();
    // Whoever spoke while a commit took long, or this process stood still, was not heard yet.
    let mut look = |membership: &mut Membership| {
        let before_ms = std::mem::replace(&mut looked_ms, now_ms());
        membership.did_not_listen((looked_ms - before_ms).saturating_sub(LOOK.as_millis() as u64));
        looked_ms
    };
    loop {
        let report = env.timeout(LOOK, reports.recv()).await;
        look(&mut membership);
        match report {
            Some(None) => return,
            Some(Some(Report::Join { member, durable, started })) => {
                membership.join(now_ms(), member, durable, started);
                // It may be a member already: then nothing changes, and it still has to know.
                let _ = inputs.send(Input::Chain(membership.chain().clone())).await;
            }
            Some(Some(Report::Alive { id, epoch, caught_up, waits })) => {
                membership.alive(now_ms(), id, epoch, &caught_up, waits);
            }
            None => {}
        }
        loop {
            let now_ms = look(&mut membership);
            let Some(chain) = membership.next(now_ms) else { break };
            let mut value = BytesMut::new();
            put_chain(&mut value, &chain);
            let put = Op::Put { key: key.clone(), value: value.freeze(), expect };
            match meta.commit(vec![put]).await {
                Ok(version) => {
                    let ids = |members: &[Member]| members.iter().map(|m| m.id).collect::<Vec<_>>();
                    let (members, joining) = (ids(&chain.members), ids(&chain.joining));
                    tracing::info!(
                        region,
                        epoch = chain.epoch,
                        ?members,
                        ?joining,
                        "the broadcast chain changed"
                    );
                    if let Some(replica) = membership.leaves() {
                        tracing::warn!(region, replica, "a replica that did not move on was removed");
                    }
                    expect = Expect::Version(version);
                    membership.changed(chain.clone());
                    let _ = inputs.send(Input::Chain(chain)).await;
                }
                Err(error) => {
                    // It may have been written all the same: what is there now decides.
                    tracing::error!(%error, key, "the chain of this region can't be changed");
                    env.sleep(PAUSE).await;
                    if let Ok((chain, version)) = load(meta.as_ref(), &key, &region).await {
                        expect = version;
                        if chain.epoch > membership.chain().epoch {
                            membership.changed(chain.clone());
                            let _ = inputs.send(Input::Chain(chain)).await;
                        }
                    }
                    break;
                }
            }
        }
    }
}

async fn load(meta: &dyn Meta, key: &str, region: &str) -> anyhow::Result<(Chain, Expect)> {
    let Some(found) = meta.get(key).await? else {
        return Ok((Chain { region: region.to_owned(), ..Chain::default() }, Expect::Absent));
    };
    let mut reader = Reader::new(found.value);
    let chain = take_chain(&mut reader)?;
    reader.end()?;
    Ok((chain, Expect::Version(found.version)))
}
