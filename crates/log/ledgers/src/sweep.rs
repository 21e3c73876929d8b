//! Ledgers that no record names: found among all that there are, and deleted.
//!
//! The order is what makes it safe. A ledger's metadata are read first, then what decides about the segment: streams
//! and records, behind a `sync`. A stream is older than each of its ledgers, and its id is not used again: one that is
//! not there then, with a ledger that was, is deleted. The other way round it might be created between the two, and its
//! first ledger be taken for a deleted stream's. A segment's record is as old as the shard's next number that is beyond
//! it.
//!
//! A ledger is deleted at the version that was read. So one that somebody has touched since is left to the next sweep.
//!
//! Whose a ledger is only its own metadata say: one of another cluster, or of another program, is left alone, and so is
//! one whose metadata can't be read.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures::{StreamExt, stream};
use tailwater_bookkeeper::{BookKeeper, LedgerFault, LedgerId, VersionedMetadata};
use tailwater_env::Env;
use tailwater_format::SegmentId;
use tailwater_store::{KeptWhy, LeftOverWhy, SegmentJudge, SegmentVerdict};
use uuid::Uuid;

use crate::limits::{LEDGERS_AT_A_TIME, SWEEP_PAUSE, SWEPT_AT_A_TIME};
use crate::names::{LedgerOwner, owner_of};
use crate::store::LedgersShared;

/// What became of a ledger that a sweep has looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweptLedger {
    /// The ledger.
    pub ledger: LedgerId,
    /// The segment of this cluster that it is, if it is one.
    pub segment: Option<SegmentId>,
    /// What became of it.
    pub outcome: SweepOutcome,
}

/// See [`SweptLedger`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SweepOutcome {
    /// It is deleted, or would be if this were no trial.
    LeftOver(LeftOverWhy),
    /// It is this cluster's, and stays.
    Kept(KeptWhy),
    /// It was changed since it was looked at, and stays.
    Changed,
    /// It is another cluster's.
    OfAnotherCluster,
    /// It is another program's.
    OfAnotherProgram,
    /// Its metadata can't be read, or do not say which segment it is.
    Unreadable(String),
}

impl fmt::Display for SweepOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeftOver(why) => write!(f, "{why}"),
            Self::Kept(why) => write!(f, "{why}"),
            Self::Changed => f.write_str("somebody has changed it meanwhile"),
            Self::OfAnotherCluster => f.write_str("it is another Tailwater cluster's"),
            Self::OfAnotherProgram => f.write_str("it is another program's"),
            Self::Unreadable(why) => write!(f, "its metadata can't be read: {why}"),
        }
    }
}

/// A way through all ledgers.
#[derive(Clone, Copy, Debug)]
pub struct LedgerSweep {
    /// Whose ledgers are looked for.
    pub cluster: Uuid,
    /// Whether nothing is deleted.
    pub is_trial: bool,
    /// How long it waits each time it has looked at some.
    pub pause: Duration,
}

impl LedgerSweep {
    /// Goes through all ledgers, and deletes those that are left over as `judge` says. Tells what became of each, in
    /// the order of their numbers.
    ///
    /// # Errors
    /// Those of ZooKeeper. What was told is so.
    pub async fn run(
        self,
        env: &Env,
        client: &BookKeeper,
        judge: &dyn SegmentJudge,
        told: &mut (dyn FnMut(SweptLedger) + Send),
    ) -> Result<(), LedgerFault> {
        let all = client.ledgers().scan().await?;
        for some in all.ledgers().chunks(SWEPT_AT_A_TIME) {
            // First the ledgers, then whoever judges reads what decides: see the module.
            let reads = some.iter().map(|ledger| async { (*ledger, client.ledgers().read(*ledger).await) });
            let reads: Vec<_> = reads.collect();
            let read: Vec<_> = stream::iter(reads).buffered(LEDGERS_AT_A_TIME).collect().await;
            let mut found = Vec::with_capacity(read.len());
            for (ledger, read) in read {
                found.extend(self.look(ledger, read)?);
            }
            let ours: Vec<SegmentId> = found.iter().filter_map(|found| Some(found.segment?.0)).collect();
            let mut verdicts = judge.judge(&ours).await.into_iter();
            let mut deletions = Vec::with_capacity(found.len());
            for FoundLedger { ledger, segment, outcome } in found {
                let verdict = segment.and_then(|_| verdicts.next());
                deletions.push(async move {
                    let outcome = match (segment, verdict) {
                        (Some((_, version)), Some(SegmentVerdict::LeftOver(why))) => {
                            self.delete(client, ledger, version, why).await?
                        }
                        (_, Some(SegmentVerdict::Kept(why))) => SweepOutcome::Kept(why),
                        _ => outcome,
                    };
                    Ok::<_, LedgerFault>(SweptLedger { ledger, segment: segment.map(|(id, _)| id), outcome })
                });
            }
            let mut swept = stream::iter(deletions).buffered(LEDGERS_AT_A_TIME);
            while let Some(swept) = swept.next().await {
                told(swept?);
            }
            env.sleep(self.pause).await;
        }
        Ok(())
    }

    /// What a ledger's metadata say; `None` of one that is gone.
    fn look(
        self,
        ledger: LedgerId,
        read: Result<VersionedMetadata, LedgerFault>,
    ) -> Result<Option<FoundLedger>, LedgerFault> {
        let (segment, outcome) = match read {
            Ok(VersionedMetadata { metadata, version }) => match owner_of(self.cluster, &metadata) {
                LedgerOwner::This(id) => {
                    let nobody = SweepOutcome::Kept(KeptWhy::Unknown("nobody has judged it".to_owned()));
                    (Some((id, version)), nobody)
                }
                LedgerOwner::AnotherCluster => (None, SweepOutcome::OfAnotherCluster),
                LedgerOwner::AnotherProgram => (None, SweepOutcome::OfAnotherProgram),
                LedgerOwner::Unknown => {
                    (None, SweepOutcome::Unreadable("they do not say which segment it is".to_owned()))
                }
            },
            Err(LedgerFault::NoLedger) => return Ok(None),
            Err(LedgerFault::Metadata(fault)) => (None, SweepOutcome::Unreadable(fault.to_string())),
            Err(fault) => return Err(fault),
        };
        Ok(Some(FoundLedger { ledger, segment, outcome }))
    }

    async fn delete(
        self,
        client: &BookKeeper,
        ledger: LedgerId,
        version: i32,
        why: LeftOverWhy,
    ) -> Result<SweepOutcome, LedgerFault> {
        let is_gone = self.is_trial || client.ledgers().delete_version(ledger, version).await?;
        Ok(if is_gone { SweepOutcome::LeftOver(why) } else { SweepOutcome::Changed })
    }
}

/// A ledger as it was read.
struct FoundLedger {
    ledger: LedgerId,
    /// What it is of this cluster, and the version of its metadata.
    segment: Option<(SegmentId, i32)>,
    /// What becomes of it if nobody judges it.
    outcome: SweepOutcome,
}

impl LedgersShared {
    /// See [`StoreContract::sweep`](tailwater_store::StoreContract::sweep).
    pub(crate) async fn sweep(&self, judge: &dyn SegmentJudge) -> Result<(), String> {
        let (mut swept, mut away) = (0_u64, 0_u64);
        let sweep = LedgerSweep { cluster: self.cluster, is_trial: false, pause: SWEEP_PAUSE };
        let mut told = |found: SweptLedger| {
            swept += 1;
            self.counters.swept.fetch_add(1, Relaxed);
            let SweptLedger { ledger, segment, outcome } = found;
            if let (Some(segment), SweepOutcome::LeftOver(why)) = (segment, outcome) {
                away += 1;
                self.counters.swept_away.fetch_add(1, Relaxed);
                tracing::info!(%ledger, %segment, "a ledger that no record names is deleted: {why}");
            }
        };
        let result = sweep.run(&self.env, &self.client, judge, &mut told).await;
        tracing::debug!(swept, away, "ledgers were looked at");
        result.map_err(|fault| fault.to_string())
    }
}
