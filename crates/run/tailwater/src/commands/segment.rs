//! `tailwater segment …`: ledgers of a BookKeeper cluster, whoever wrote them. They are found in ZooKeeper, so no node
//! is asked.
//!
//! Only `recover` and `gc` change anything. They need no password: whoever reads a ledger's metadata reads its password
//! there.

mod gc;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Subcommand;
use futures::StreamExt;
use serde_json::{Value, json};
use tailwater_bookkeeper::{
    BookKeeper, BookieId, LedgerCheck, LedgerFault, LedgerId, LedgerMetadata, LedgerStatus, LedgerTimes,
    LedgersUri,
};
use tailwater_env::Env;
use tailwater_node::Config;

use crate::output::{self, Format};
use crate::template::write_time;

/// Metadata that are read at a time.
const READS: usize = 64;

/// What to do with segments.
#[derive(Subcommand)]
pub enum Command {
    /// List the ledgers of a store, with the fewest copies that an entry of each has at bookies that are up.
    ///
    /// A ledger is short of copies if an entry has fewer than its write quorum.
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        store: Store,
        /// Only ledgers that are short of copies.
        #[arg(long)]
        short: bool,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Show a ledger's metadata, and which of its bookies are up.
    Describe {
        #[command(flatten)]
        store: Store,
        /// The ledger's number.
        #[arg(value_parser = ledger_id)]
        ledger: LedgerId,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Shut a ledger's writer out, find the end of the ledger and close it there.
    ///
    /// No acknowledged entry is lost, and the writer gets nothing acknowledged any more. If too few bookies answer, the
    /// command fails, and changes no acknowledged entry. A closed ledger stays as it is.
    Recover {
        #[command(flatten)]
        store: Store,
        /// The ledger's number.
        #[arg(value_parser = ledger_id)]
        ledger: LedgerId,
    },
    /// Read every copy of every entry, and compare digests, copies and lengths. This changes nothing.
    ///
    /// The command reads an open ledger up to the last entry that is known to be acknowledged. It fails if an entry has
    /// fewer right copies than its ledger's write quorum.
    Verify {
        #[command(flatten)]
        store: Store,
        /// The ledgers' numbers. By default all ledgers.
        #[arg(value_parser = ledger_id)]
        ledgers: Vec<LedgerId>,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Delete ledgers of this cluster that no record names, and say why each one goes or stays.
    ///
    /// A ledger goes if its stream is deleted, or if its shard has gone on without it. The command works beside running
    /// nodes. Ledgers of other clusters and of other programs stay, and those that an owner may have yet to record.
    /// The metadata has to be in ZooKeeper.
    Gc(gc::Args),
}

/// Where the segments are.
#[derive(clap::Args)]
pub struct Store {
    /// The store: bookkeeper://HOST[:PORT][,HOST[:PORT]...]/PATH, with the servers of ZooKeeper and the path of its
    /// ledgers. By default that of --config, whose logins and certificates are used in any case.
    #[arg(long, value_name = "URL")]
    store: Option<LedgersUri>,
}

fn ledger_id(text: &str) -> Result<LedgerId, String> {
    text.parse().ok().and_then(LedgerId::new).ok_or_else(|| "a ledger is a number, from 0 on".to_owned())
}

/// Runs one of them.
pub fn run(command: Command, file: Option<&PathBuf>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Ls { store, short, output } => list(&connect(store, file).await?, short, output).await,
            Command::Describe { store, ledger, output } => {
                describe(&connect(store, file).await?, ledger, output).await
            }
            Command::Recover { store, ledger } => recover(&connect(store, file).await?, ledger).await,
            Command::Verify { store, ledgers, output } => {
                verify(&connect(store, file).await?, ledgers, output).await
            }
            Command::Gc(args) => gc::run(args, file).await,
        }
    })
}

async fn connect(Store { store }: Store, file: Option<&PathBuf>) -> anyhow::Result<BookKeeper> {
    let env = Env::real();
    let (store, security, places) = Config::load(file, toml::Table::new())?.ledgers_at(&env, store)?;
    let connected = BookKeeper::connect_with(env, store.clone(), security, LedgerTimes::default()).await;
    // A recovery may have to put copies elsewhere.
    let placed = connected.map(|client| client.with_places(places));
    placed.map_err(|fault| anyhow::anyhow!("{store}: {fault}"))
}

fn of(ledger: LedgerId) -> impl Fn(LedgerFault) -> anyhow::Error {
    move |fault| anyhow::anyhow!("ledger {ledger}: {fault}")
}

/// The bookies that have what they were given: those that take entries, and those that take none.
async fn bookies_up(client: &BookKeeper) -> Result<BTreeSet<BookieId>, LedgerFault> {
    let mut up: BTreeSet<BookieId> = client.ledgers().bookies().await?.into_iter().collect();
    up.extend(client.ledgers().read_only_bookies().await?);
    Ok(up)
}

/// The fewest copies that an entry has at bookies that are up, and whether those are fewer than its write quorum.
fn copies_up(metadata: &LedgerMetadata, up: &BTreeSet<BookieId>) -> (usize, bool) {
    let copies = metadata.copies_min(|bookie| up.contains(bookie));
    (copies, copies < metadata.quorums.write())
}

async fn list(client: &BookKeeper, only_short: bool, output: Format) -> anyhow::Result<()> {
    let ledgers = client.ledgers();
    let up = bookies_up(client).await?;
    let (mut all, mut short) = (0, 0);
    let mut read = futures::stream::iter(ledgers.list().await?)
        .map(|ledger| async move { (ledger, ledgers.read(ledger).await) })
        .buffered(READS);
    let heads =
        ["ledger", "state", "last entry", "bytes", "quorums", "copies up", "ensembles", "created", "custom"];
    let mut table = output::table(&heads);
    while let Some((ledger, read)) = read.next().await {
        match (read, output) {
            // It was deleted a moment ago.
            (Err(LedgerFault::NoLedger), _) => {}
            (Err(fault @ LedgerFault::Metadata(_)), Format::Json) => {
                output::print_json(&json!({ "ledger": ledger.get(), "error": fault.to_string() }))?;
            }
            (Err(fault @ LedgerFault::Metadata(_)), Format::Table) => {
                table.add_row([ledger.to_string(), fault.to_string()]);
            }
            (Err(fault), _) => return Err(of(ledger)(fault)),
            (Ok(read), output) => {
                let metadata = read.metadata;
                let (copies, is_short) = copies_up(&metadata, &up);
                all += 1;
                short += u64::from(is_short);
                if only_short && !is_short {
                    continue;
                }
                if output == Format::Json {
                    let mut told = summary(ledger, &metadata);
                    told["copies_up"] = copies.into();
                    told["short"] = is_short.into();
                    output::print_json(&told)?;
                    continue;
                }
                let (last, length) = end(&metadata);
                table.add_row([
                    ledger.to_string(),
                    metadata.state.to_string(),
                    last.map_or("-".to_owned(), |last| last.to_string()),
                    length.map_or("-".to_owned(), output::bytes),
                    metadata.quorums.to_string(),
                    copies.to_string(),
                    metadata.ensembles().count().to_string(),
                    created(&metadata),
                    custom(&metadata),
                ]);
            }
        }
    }
    if output == Format::Json {
        return Ok(());
    }
    output::print(&table)?;
    match short {
        0 => Ok(()),
        short => output::print(&format!("{short} of {} short of copies", counted_ledgers(all))),
    }
}

/// A closed ledger's last entry, -1 if it has none, and its length.
fn end(metadata: &LedgerMetadata) -> (Option<i64>, Option<u64>) {
    match metadata.state {
        LedgerStatus::Closed { last, length } => (Some(last.get()), Some(length)),
        _ => (None, None),
    }
}

fn created(metadata: &LedgerMetadata) -> String {
    let mut text = Vec::new();
    match metadata.created_ms.map(|ms| write_time(&mut text, ms)) {
        Some(Ok(())) => String::from_utf8_lossy(&text).into_owned(),
        _ => "-".to_owned(),
    }
}

fn custom(metadata: &LedgerMetadata) -> String {
    let pairs = metadata.custom.iter().map(|(key, value)| format!("{key}={}", shown(value)));
    pairs.collect::<Vec<_>>().join(" ")
}

/// What others wrote, without what moves a terminal's cursor.
fn shown(value: &[u8]) -> String {
    String::from_utf8_lossy(value).escape_debug().to_string()
}

fn summary(ledger: LedgerId, metadata: &LedgerMetadata) -> Value {
    let (last, length) = end(metadata);
    let custom: serde_json::Map<String, Value> = metadata
        .custom
        .iter()
        .map(|(key, value)| (key.clone(), String::from_utf8_lossy(value).into_owned().into()))
        .collect();
    json!({
        "ledger": ledger.get(),
        "state": metadata.state.to_string(),
        "last_entry": last,
        "bytes": length,
        "ensemble": metadata.quorums.ensemble(),
        "write_quorum": metadata.quorums.write(),
        "ack_quorum": metadata.quorums.ack(),
        "digest": metadata.digest.to_string(),
        "created_ms": metadata.created_ms,
        "custom": custom,
        "ensembles": metadata
            .ensembles()
            .map(|(first, bookies)| json!({
                "first_entry": first.get(),
                "bookies": bookies.iter().map(|bookie| bookie.name()).collect::<Vec<_>>(),
            }))
            .collect::<Vec<_>>(),
    })
}

async fn describe(client: &BookKeeper, ledger: LedgerId, output: Format) -> anyhow::Result<()> {
    let metadata = client.ledgers().read(ledger).await.map_err(of(ledger))?.metadata;
    if output == Format::Json {
        return output::print_json(&summary(ledger, &metadata));
    }
    let mut table = output::table(&["key", "value"]);
    table.add_row(["ledger", &ledger.to_string()]);
    table.add_row(["state", &metadata.state.to_string()]);
    if let (Some(last), Some(length)) = end(&metadata) {
        table.add_row(["last entry", &last.to_string()]);
        table.add_row(["bytes", &length.to_string()]);
    }
    table.add_row(["quorums", &metadata.quorums.to_string()]);
    table.add_row(["digest", &metadata.digest.to_string()]);
    table.add_row(["created", &created(&metadata)]);
    for (key, value) in &metadata.custom {
        table.add_row([format!("custom {key}"), shown(value)]);
    }
    output::print(&table)?;
    output::print(&"")?;
    let (up, read_only) = (client.ledgers().bookies().await?, client.ledgers().read_only_bookies().await?);
    let mut table = output::table(&["first entry", "bookie", "is"]);
    for (first, bookies) in metadata.ensembles() {
        for bookie in bookies {
            let is = match bookie {
                bookie if up.contains(bookie) => "up",
                bookie if read_only.contains(bookie) => "read-only",
                _ => "not registered",
            };
            table.add_row([&first.to_string(), bookie.name(), is]);
        }
    }
    output::print(&table)
}

async fn recover(client: &BookKeeper, ledger: LedgerId) -> anyhow::Result<()> {
    let before = client.ledgers().read(ledger).await.map_err(of(ledger))?.metadata;
    let already = if matches!(before.state, LedgerStatus::Closed { .. }) { "already " } else { "" };
    let metadata = client.recover(ledger, &before.password).await.map_err(of(ledger))?;
    match end(&metadata) {
        (Some(last), Some(length)) if last >= 0 => output::print(&format!(
            "ledger {ledger} is {already}closed at entry {last}, with {}",
            output::bytes(length)
        )),
        _ => output::print(&format!("ledger {ledger} is {already}closed without an entry")),
    }
}

async fn verify(client: &BookKeeper, ledgers: Vec<LedgerId>, output: Format) -> anyhow::Result<()> {
    let all = ledgers.is_empty();
    let ledgers = if all { client.ledgers().list().await? } else { ledgers };
    let mut broken = 0;
    let heads = [
        "ledger",
        "state",
        "entries",
        "bytes",
        "copies",
        "absent",
        "damaged",
        "unanswered",
        "short",
        "unreadable",
    ];
    let mut table = output::table(&heads);
    let mut bad = Vec::new();
    for ledger in ledgers {
        let check = match check(client, ledger).await {
            Err(LedgerFault::NoLedger) if all => continue,
            other => other.map_err(of(ledger))?,
        };
        broken += u64::from(!check.is_whole());
        if output == Format::Json {
            output::print_json(&checked(ledger, &check))?;
            continue;
        }
        let counts =
            [check.copies, check.absent, check.damaged, check.unanswered, check.short, check.unreadable];
        let state = check.metadata.state.to_string();
        let entries = (check.last.get() + 1).to_string();
        let row = [ledger.to_string(), state, entries, output::bytes(check.bytes)];
        table.add_row(row.into_iter().chain(counts.map(|count| count.to_string())));
        for of in &check.bad {
            bad.push(format!("ledger {ledger}, entry {}, at {}: {}", of.entry, of.bookie, of.fault));
        }
        if let Some(entry) = check.wrong_length {
            bad.push(format!("ledger {ledger}: the lengths before entry {entry} do not add up"));
        }
    }
    if output == Format::Table {
        output::print(&table)?;
        bad.iter().try_for_each(output::print)?;
    }
    anyhow::ensure!(broken == 0, "{} not whole", counted_ledgers(broken));
    Ok(())
}

fn counted_ledgers(count: u64) -> String {
    format!("{} {}", output::counted(count, "ledger"), if count == 1 { "is" } else { "are" })
}

async fn check(client: &BookKeeper, ledger: LedgerId) -> Result<LedgerCheck, LedgerFault> {
    let password = client.ledgers().read(ledger).await?.metadata.password;
    Ok(client.open(ledger, &password).await?.check().await)
}

fn checked(ledger: LedgerId, check: &LedgerCheck) -> Value {
    json!({
        "ledger": ledger.get(),
        "state": check.metadata.state.to_string(),
        "whole": check.is_whole(),
        "entries": check.last.get() + 1,
        "bytes": check.bytes,
        "copies": check.copies,
        "absent": check.absent,
        "damaged": check.damaged,
        "unanswered": check.unanswered,
        "short": check.short,
        "unreadable": check.unreadable,
        "wrong_length_at": check.wrong_length.map(|entry| entry.get()),
        "bad": check
            .bad
            .iter()
            .map(|of| json!({
                "entry": of.entry.get(), "bookie": of.bookie.name(), "fault": of.fault.to_string()
            }))
            .collect::<Vec<_>>(),
    })
}
