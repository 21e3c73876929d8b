//! What commands do with single keys of a cell.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use tailwater_cache::layout::KeyHash;
use tailwater_cache::{CasError, Cell, CellNews, ItemExtras, Lookup, Mode, Version};
use tailwater_env::Env;

use crate::output::{self, Format};

/// The pause before a key is looked up again of which nothing could be said.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A value as it is printed.
#[derive(Serialize)]
struct KeyView {
    key: String,
    value: String,
    version: String,
    /// Milliseconds since the Unix epoch; none: it does not expire.
    expires_ms: Option<u64>,
    tag: u64,
}

impl KeyView {
    fn of(key: String, value: &[u8], version: Version, extras: ItemExtras) -> Self {
        Self {
            key,
            value: String::from_utf8_lossy(value).into_owned(),
            version: version.to_string(),
            expires_ms: Some(extras.expires_ms).filter(|expires_ms| *expires_ms != 0),
            tag: extras.tag,
        }
    }
}

/// What a backend tells of itself.
#[derive(Serialize)]
struct BackendView {
    number: u32,
    entries: u64,
    live_bytes: u64,
    capacity_bytes: u64,
    sets: u64,
    erases: u64,
    superseded: u64,
    evicted: u64,
    expired: u64,
    overflowed: u64,
    lookups: u64,
}

/// When something expires that lives for so many milliseconds from now on; 0: it does not.
fn expires_ms(ttl_ms: u64) -> u64 {
    let now_ms = u64::try_from(Env::real().wall_ms()).unwrap_or(0);
    if ttl_ms == 0 { 0 } else { now_ms.saturating_add(ttl_ms) }
}

/// A version as it is printed: `TIMESTAMP.CLIENT.SEQUENCE`.
pub(super) fn version(text: &str) -> Result<Version, String> {
    let read = || {
        let mut parts = text.split('.');
        let mut part = || parts.next();
        let version = Version {
            timestamp_us: part()?.parse().ok()?,
            client_id: part()?.parse().ok()?,
            sequence: part()?.parse().ok()?,
        };
        parts.next().is_none().then_some(version)
    };
    read().ok_or_else(|| {
        "use a version as `tailwater cache get -o json` prints it, as in 1800000000000000.17.0".to_owned()
    })
}

pub(super) async fn set(cell: Cell, key: String, value: String, ttl_ms: u64) -> anyhow::Result<()> {
    let extras = ItemExtras { expires_ms: expires_ms(ttl_ms), tag: 0, token: 0 };
    let results = cell.set_with(vec![(key.clone().into(), value.into(), extras)]).await;
    let result = results.into_iter().next().context("no answer to one SET")?;
    let version = result.map_err(|error| {
        let what = match error.is_unknown() {
            true => format!("it is not known whether {key} was set: get it to see"),
            false => format!("{key} may not be set"),
        };
        anyhow::Error::new(error).context(what)
    })?;
    output::print(&format!("{key} set at version {version}"))
}

pub(super) async fn get(cell: Cell, key: String, form: Format) -> anyhow::Result<()> {
    let lookups = cell.get_consistent(&[key.clone().into()]).await;
    match lookups.into_iter().next().context("no answer to one GET")? {
        Lookup::Hit { value, version, extras } => match form {
            Format::Table => output::print(&String::from_utf8_lossy(&value)),
            Format::Json => output::print_json(&KeyView::of(key, &value, version, extras)),
        },
        Lookup::Miss => anyhow::bail!("the cell has no value for {key}"),
        Lookup::Failed(why) => Err(why).context(format!("{key} can't be got")),
    }
}

/// Prints the values of keys, and each again that has changed, as often as `count` says.
pub(super) async fn follow(
    cell: Cell,
    keys: Vec<String>,
    count: Option<u64>,
    form: Format,
) -> anyhow::Result<()> {
    let env = Env::real();
    let mut follower = cell.follow();
    // What was printed of each key; and those of which nothing could be said yet.
    let mut printed: BTreeMap<String, Option<Version>> = BTreeMap::new();
    let mut open: BTreeSet<String> = BTreeSet::new();
    let mut prints = 0;
    loop {
        let news = match open.is_empty() {
            true => Some(follower.next().await),
            false => env.timeout(LOOK_AGAIN, follower.next()).await,
        };
        match news {
            Some(CellNews::Everything) => open.extend(keys.iter().cloned()),
            Some(CellNews::Keys(hashes)) => {
                open.extend(keys.iter().filter(|key| hashes.contains(&KeyHash::of(key.as_bytes()))).cloned());
            }
            None => {}
        }
        let looked: Vec<String> = std::mem::take(&mut open).into_iter().collect();
        let wanted: Vec<Bytes> = looked.iter().map(|key| key.clone().into()).collect();
        for (key, lookup) in looked.into_iter().zip(cell.get_consistent(&wanted).await) {
            let version = match &lookup {
                Lookup::Hit { version, .. } => Some(*version),
                Lookup::Miss => None,
                Lookup::Failed(_) => {
                    open.insert(key);
                    continue;
                }
            };
            if printed.insert(key.clone(), version) == Some(version) {
                continue;
            }
            print_followed(key, lookup, form)?;
            prints += 1;
            if count == Some(prints) {
                return Ok(());
            }
        }
    }
}

fn print_followed(key: String, lookup: Lookup, form: Format) -> anyhow::Result<()> {
    match (lookup, form) {
        (Lookup::Hit { value, .. }, Format::Table) => {
            output::print(&format!("{key} = {}", String::from_utf8_lossy(&value)))
        }
        (_, Format::Table) => output::print(&format!("{key} has no value")),
        (Lookup::Hit { value, version, extras }, Format::Json) => {
            output::print_json(&KeyView::of(key, &value, version, extras))
        }
        (_, Format::Json) => output::print_json(&json!({ "key": key, "value": null })),
    }
}

pub(super) async fn cas(
    cell: Cell,
    key: String,
    value: String,
    expected: Option<Version>,
    ttl_ms: u64,
) -> anyhow::Result<()> {
    let extras = ItemExtras { expires_ms: expires_ms(ttl_ms), tag: 0, token: 0 };
    match cell.cas(key.clone().into(), expected, value.into(), extras).await {
        Ok(version) => output::print(&format!("{key} set at version {version}")),
        Err(CasError::Other(held)) => anyhow::bail!("{key} is at version {held}, and was left as it is"),
        Err(CasError::Absent) => anyhow::bail!("the cell has no value for {key}"),
        Err(error @ CasError::Update(_)) => Err(error).context(format!("{key} was to be exchanged")),
    }
}

pub(super) async fn delete(cell: Cell, key: String) -> anyhow::Result<()> {
    let results = cell.erase(vec![Bytes::from(key.clone())]).await;
    let result = results.into_iter().next().context("no answer to one ERASE")?;
    let version =
        result.with_context(|| format!("it is not known whether {key} was deleted: get it to see"))?;
    output::print(&format!("{key} deleted at version {version}"))
}

pub(super) async fn touch(cell: Cell, key: String, ttl_ms: u64) -> anyhow::Result<()> {
    let touched = cell.touch(key.clone().into(), expires_ms(ttl_ms)).await;
    match touched.with_context(|| format!("{key} was to be touched"))? {
        Some(version) => output::print(&format!("{key} touched at version {version}")),
        None => anyhow::bail!("the cell has no value for {key}"),
    }
}

pub(super) async fn stats(cell: Cell, form: Format) -> anyhow::Result<()> {
    let told: Vec<BackendView> = cell
        .backend_stats()
        .await
        .into_iter()
        .map(|(number, of)| BackendView {
            number,
            entries: of.items,
            live_bytes: of.live_bytes,
            capacity_bytes: of.capacity_bytes,
            sets: of.sets,
            erases: of.erases,
            superseded: of.superseded,
            evicted: of.evicted,
            expired: of.expired,
            overflowed: of.overflowed,
            lookups: of.lookups,
        })
        .collect();
    if form == Format::Json {
        return output::print_json(&told);
    }
    let heads = ["BACKEND", "VALUES", "LIVE", "CAPACITY", "SETS", "ERASES", "REFUSED", "EVICTED", "EXPIRED"];
    let mut table = output::table(&heads);
    for of in &told {
        let counts =
            [of.sets, of.erases, of.superseded, of.evicted, of.expired].map(|count| count.to_string());
        let first = [
            of.number.to_string(),
            of.entries.to_string(),
            output::bytes(of.live_bytes),
            output::bytes(of.capacity_bytes),
        ];
        table.add_row(first.into_iter().chain(counts));
    }
    output::print(&table)?;
    let configuration = cell.configuration();
    let copies = match configuration.mode {
        Mode::R1 => "one copy",
        Mode::R32 => "three copies",
        Mode::R2Immutable => "two copies",
    };
    let (live, all) = (told.len(), configuration.backends.len());
    output::print(&format!("{live} of {all} backends answer; a value has {copies}"))
}
