//! `tailwater segment gc`: ledgers that no record names.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tailwater_env::Env;
use tailwater_ledgers::{LedgerSweep, SweepOutcome, SweptLedger};
use tailwater_log::SegmentRecords;
use tailwater_meta_zookeeper::ZooKeeperReader;
use tailwater_store::{KeptWhy, LeftOverWhy};

use super::{Store, connect};
use crate::commands::node::MetadataPlace;
use crate::output::{self, Format};

/// Whose ledgers, and how.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    store: Store,
    #[command(flatten)]
    metadata: MetadataPlace,
    /// Say what would be deleted, and delete nothing.
    #[arg(long)]
    dry_run: bool,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// Looks through all ledgers, and deletes what is left over.
pub async fn run(args: Args, file: Option<&PathBuf>) -> anyhow::Result<()> {
    let Args { store, metadata, dry_run, output } = args;
    let (env, metadata) = (Env::real(), metadata.find(file)?);
    let client = connect(store, file).await?;
    let place = metadata.to_string();
    let records = SegmentRecords::new(Arc::new(ZooKeeperReader::open(&env, metadata).await?));
    let cluster = records.cluster().await.map_err(anyhow::Error::msg)?;
    let cluster = cluster.ok_or_else(|| {
        anyhow::anyhow!(
            "{place} is of no segments: no node with its segments in BookKeeper was started on it"
        )
    })?;
    let mut swept = Swept::new(output, dry_run);
    let mut failed = None;
    let sweep = LedgerSweep { cluster, is_trial: dry_run, pause: Duration::ZERO };
    let mut told = |ledger: SweptLedger| {
        if failed.is_none() {
            failed = swept.tell(&ledger).err();
        }
    };
    let result = sweep.run(&env, &client, &records, &mut told).await;
    // What was deleted before it failed is told.
    swept.end()?;
    failed.map_or(Ok(()), Err)?;
    Ok(result?)
}

/// What is shown.
struct Swept {
    output: Format,
    is_trial: bool,
    table: comfy_table::Table,
    left_over: u64,
    /// Ledgers that stay and have no row of their own, and why.
    named: u64,
    others: u64,
    /// Those that stay and have one.
    told: u64,
}

impl Swept {
    fn new(output: Format, is_trial: bool) -> Self {
        let table = output::table(&["ledger", "segment", "is", "why"]);
        Self { output, is_trial, table, left_over: 0, named: 0, others: 0, told: 0 }
    }

    fn tell(&mut self, ledger: &SweptLedger) -> anyhow::Result<()> {
        let SweptLedger { ledger: number, segment, outcome } = ledger;
        let (count, has_row) = match outcome {
            SweepOutcome::LeftOver(_) => (&mut self.left_over, true),
            SweepOutcome::Kept(KeptWhy::Named) => (&mut self.named, false),
            SweepOutcome::OfAnotherCluster | SweepOutcome::OfAnotherProgram => (&mut self.others, false),
            _ => (&mut self.told, true),
        };
        *count += 1;
        if self.output == Format::Json {
            return output::print_json(&self.document(ledger));
        }
        if has_row {
            let segment = segment.map_or("-".to_owned(), |segment| segment.to_string());
            self.table.add_row([
                number.to_string(),
                segment,
                self.is(outcome).to_owned(),
                outcome.to_string(),
            ]);
        }
        Ok(())
    }

    fn is(&self, outcome: &SweepOutcome) -> &'static str {
        match outcome {
            SweepOutcome::LeftOver(_) if self.is_trial => "left over",
            SweepOutcome::LeftOver(_) => "deleted",
            _ => "kept",
        }
    }

    fn document(&self, SweptLedger { ledger, segment, outcome }: &SweptLedger) -> Value {
        json!({
            "ledger": ledger.get(),
            "stream": segment.map(|segment| segment.shard.stream.to_string()),
            "shard": segment.map(|segment| segment.shard.shard.0),
            "segment": segment.map(|segment| segment.number.0),
            "term": segment.map(|segment| segment.term.0),
            "left_over": matches!(outcome, SweepOutcome::LeftOver(_)),
            "deleted": matches!(outcome, SweepOutcome::LeftOver(_)) && !self.is_trial,
            "reason": reason(outcome),
            "why": outcome.to_string(),
        })
    }

    fn end(&self) -> anyhow::Result<()> {
        if self.output == Format::Json {
            return Ok(());
        }
        if !self.table.is_empty() {
            output::print(&self.table)?;
        }
        let left_over = output::counted(self.left_over, "ledger");
        let done = match self.is_trial {
            true => format!("{left_over} {} left over", if self.left_over == 1 { "is" } else { "are" }),
            false => format!("{left_over} {} deleted", output::were(self.left_over)),
        };
        let kept = self.named + self.others + self.told;
        let Self { named, others, told, .. } = self;
        output::print(&format!(
            "{done}; {} kept: {named} named by records, {others} of others, {told} for the reason above",
            output::counted(kept, "ledger"),
        ))
    }
}

/// The reason, for programs.
fn reason(outcome: &SweepOutcome) -> &'static str {
    match outcome {
        SweepOutcome::LeftOver(LeftOverWhy::StreamGone) => "stream-gone",
        SweepOutcome::LeftOver(LeftOverWhy::NotNamed { .. }) => "not-named",
        SweepOutcome::LeftOver(LeftOverWhy::Released) => "released",
        SweepOutcome::Kept(KeptWhy::Named) => "named",
        SweepOutcome::Kept(KeptWhy::OwnersTerm { .. }) => "owners-term",
        SweepOutcome::Kept(KeptWhy::Undecided { .. }) => "undecided",
        SweepOutcome::Kept(KeptWhy::Unknown(_)) => "unknown",
        SweepOutcome::Changed => "changed",
        SweepOutcome::OfAnotherCluster => "other-cluster",
        SweepOutcome::OfAnotherProgram => "other-program",
        SweepOutcome::Unreadable(_) => "unreadable",
    }
}
