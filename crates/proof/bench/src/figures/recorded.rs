//! A result file: what one claim says, and the run that shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use crate::compare::series::Series;

/// Where result files are, from the repository's root.
pub const FOLDER: &str = "bench/results";
/// The machines that results name, in the same folder.
const MACHINES: &str = "machines.toml";

/// What a machine is, by the name that results call it.
pub type Machines = BTreeMap<String, String>;

/// The parts of the page, in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PagePart {
    /// Appends to the log.
    Appends,
    /// Consumers in shared memory.
    SharedMemory,
    /// Consumers over TCP.
    Tcp,
    /// Consumers of large clusters, computed.
    Modelled,
    /// Kafka's protocol.
    Kafka,
    /// Streams in ledgers, and the client of BookKeeper.
    Ledgers,
    /// The cache by itself.
    Cache,
    /// Broadcasts on real processes.
    Broadcast,
    /// Broadcasts in simulated time.
    Regions,
    /// Queues.
    Queues,
    /// What all of it shares.
    Binary,
}

impl PagePart {
    /// Every part, in the page's order.
    pub const ALL: [Self; 11] = [
        Self::Appends,
        Self::SharedMemory,
        Self::Tcp,
        Self::Modelled,
        Self::Kafka,
        Self::Ledgers,
        Self::Cache,
        Self::Broadcast,
        Self::Regions,
        Self::Queues,
        Self::Binary,
    ];

    /// What it is called at the head of its table and of its page.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Appends => "The log: appends",
            Self::SharedMemory => "The log: consumers in shared memory",
            Self::Tcp => "The log: consumers over TCP",
            Self::Modelled => "The log: large clusters, computed",
            Self::Kafka => "Kafka's protocol",
            Self::Ledgers => "Streams in ledgers",
            Self::Cache => "The cache",
            Self::Broadcast => "Broadcasts",
            Self::Regions => "Broadcasts in simulated time",
            Self::Queues => "Queues",
            Self::Binary => "The binary",
        }
    }

    /// The name of its page's file, without the ending: what result files call it.
    pub fn stem(self) -> &'static str {
        match self {
            Self::Appends => "appends",
            Self::SharedMemory => "shared-memory",
            Self::Tcp => "tcp",
            Self::Modelled => "modelled",
            Self::Kafka => "kafka",
            Self::Ledgers => "ledgers",
            Self::Cache => "cache",
            Self::Broadcast => "broadcast",
            Self::Regions => "regions",
            Self::Queues => "queues",
            Self::Binary => "binary",
        }
    }
}

/// What a build may be called: the page's head says what they are.
const PROFILES: [&str; 5] = ["dist", "dev", "release", "release (thin LTO)", "release (no LTO)"];

/// One claim and its run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// The file's name without its ending; the picture has the same.
    #[serde(skip)]
    pub name: String,
    /// Where on the page it is. Within a part results are in the order of their files' names.
    pub part: PagePart,
    /// It stands before the others of its part.
    #[serde(default)]
    pub leads: bool,
    /// The section's title.
    pub title: String,
    /// What is claimed, in one sentence or two.
    pub claim: String,
    /// What was typed, a line each.
    pub commands: Vec<String>,
    /// A name in `machines.toml`.
    pub machine: String,
    /// The day of the run, YYYY-MM-DD.
    pub date: String,
    /// The commit that was built, in full.
    pub build: String,
    /// How it was built: one of [`PROFILES`].
    pub profile: String,
    /// The folders and files whose change makes the figure old, from the root.
    pub paths: Vec<String>,
    /// What our column is called.
    #[serde(default = "tailwater")]
    pub ours: String,
    /// What the other columns are called: who ran beside it, in the same run.
    #[serde(default)]
    pub beside: Vec<String>,
    /// What has to be said about the run.
    #[serde(default)]
    pub note: String,
    /// The `what` of the figure that stands in the claim's line; none: the first one with an aim, or the first.
    pub headline: Option<String>,
    /// What was measured.
    pub figures: Vec<Quantity>,
    /// What is drawn.
    pub picture: Option<Drawing>,
}

fn tailwater() -> String {
    "Tailwater".to_owned()
}

/// One thing that was measured, of each system.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantity {
    /// What, with its unit.
    pub what: String,
    /// Digits behind the point.
    #[serde(default)]
    pub digits: i32,
    /// Ours, a value for each run.
    pub ours: Vec<f64>,
    /// The others', in the order of the columns; empty where one has none.
    #[serde(default)]
    pub beside: Vec<Vec<f64>>,
    /// Only the file has it, and pictures; the page has the others.
    #[serde(default)]
    pub detail: bool,
    /// What it should be, or be beside another.
    #[serde(default)]
    pub aims: Vec<Bound>,
}

/// A bound, of a value or of two values' ratio or difference.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// The column that ours is divided by.
    pub over: Option<String>,
    /// The column that is taken from ours.
    pub above: Option<String>,
    /// The least that it should be.
    pub at_least: Option<f64>,
    /// The most that it should be.
    pub at_most: Option<f64>,
}

/// What a picture shows: bars of figures that the table has, or curves of their own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drawing {
    /// What stands above it.
    pub title: String,
    /// Of what is drawn upwards, or along the bars.
    #[serde(default)]
    pub unit: String,
    /// Whether bars have a logarithmic scale; curves have.
    #[serde(default)]
    pub logarithmic: bool,
    /// For each bar the name that it has in the picture, and the figure's; none: all of them by the figure's.
    #[serde(default)]
    pub bars: Vec<(String, String)>,
    /// A row for each figure, with a bar for each system, in place of the other way round.
    #[serde(default)]
    pub by_figure: bool,
    /// What is across under curves.
    #[serde(default)]
    pub across: String,
    /// Curves in place of bars.
    #[serde(default)]
    pub curves: Vec<Points>,
}

/// A curve's points.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Points {
    /// What it shows.
    pub name: String,
    /// Points, in the order of their first coordinate, both above 0.
    pub points: Vec<(f64, f64)>,
}

impl Quantity {
    /// Those of its aims that ask for something.
    pub fn bounding(&self) -> impl Iterator<Item = &Bound> {
        self.aims.iter().filter(|aim| aim.at_least.is_some() || aim.at_most.is_some())
    }
}

impl Recorded {
    /// The figure that stands in the claim's line.
    pub fn headline(&self) -> &Quantity {
        let find = |wanted: &dyn Fn(&&Quantity) -> bool| self.figures.iter().find(wanted);
        let named = self.headline.as_ref().and_then(|name| find(&|figure| figure.what == *name));
        let chosen = named.or_else(|| find(&|figure| !figure.aims.is_empty()));
        chosen
            .or_else(|| find(&|figure| !figure.detail))
            .expect("a result that was read has a figure that is shown")
    }

    /// Whether the columns are systems, rather than cases of one.
    pub fn are_systems(&self) -> bool {
        self.ours == tailwater()
    }

    /// The picture's file, if there is one.
    pub fn picture_file(&self) -> Option<String> {
        self.picture.as_ref().map(|_| format!("{}.svg", self.name))
    }

    /// What `bound` bounds: a value, a ratio or a difference for each run.
    pub fn bounded(&self, quantity: &Quantity, bound: &Bound) -> Series {
        let column = |name: &String| {
            self.beside
                .iter()
                .position(|column| column == name)
                .and_then(|number| quantity.beside.get(number))
        };
        let join = |other: Option<&Vec<f64>>, of: fn(f64, f64) -> f64| {
            let other = other.map_or(&[][..], Vec::as_slice);
            if other.len() == quantity.ours.len() {
                return Series::of(quantity.ours.iter().zip(other).map(|(&ours, &other)| of(ours, other)));
            }
            let median = |values: &[f64]| Series::of(values.iter().copied()).median();
            Series::of([of(median(&quantity.ours), median(other))])
        };
        match (&bound.over, &bound.above) {
            (Some(name), _) => join(column(name), |ours, other| ours / other),
            (None, Some(name)) => join(column(name), |ours, other| ours - other),
            (None, None) => Series::of(quantity.ours.iter().copied()),
        }
    }

    /// Whether it says all that it has to, of things that are there.
    fn check(&self, root: &Path, machines: &Machines) -> anyhow::Result<()> {
        ensure!(machines.contains_key(&self.machine), "`machine` {:?} is not in {MACHINES}", self.machine);
        ensure!(self.date.parse::<jiff::civil::Date>().is_ok(), "`date` {:?} is no YYYY-MM-DD", self.date);
        let hash = self.build.len() == 40 && self.build.bytes().all(|byte| byte.is_ascii_hexdigit());
        ensure!(hash, "`build` {:?} is no commit's 40 hexadecimal digits", self.build);
        ensure!(!self.commands.is_empty(), "`commands` is empty: say what was typed");
        let shown = self.figures.iter().any(|figure| !figure.detail);
        ensure!(shown, "`figures` has nothing that the page shows: say what was measured");
        let known = PROFILES.contains(&self.profile.as_str());
        ensure!(known, "`profile` {:?} is none of {}", self.profile, PROFILES.join(", "));
        if let Some(name) = &self.headline {
            let is_shown = |figure: &Quantity| figure.what == *name && !figure.detail;
            ensure!(
                self.figures.iter().any(is_shown),
                "`headline` {name:?} is no figure that the page shows"
            );
        }
        ensure!(!self.paths.is_empty(), "`paths` is empty: say which folders' change makes the figures old");
        let columns: BTreeSet<_> = self.beside.iter().chain([&self.ours]).collect();
        ensure!(columns.len() == self.beside.len() + 1, "two columns have the same name");
        for path in &self.paths {
            ensure!(root.join(path).exists(), "`paths` has {path}, which is not there: say its new name");
        }
        for quantity in &self.figures {
            self.check_figure(quantity).with_context(|| format!("figure {:?}", quantity.what))?;
        }
        for (_, what) in self.picture.iter().flat_map(|picture| &picture.bars) {
            ensure!(
                self.figures.iter().any(|figure| figure.what == *what),
                "the picture's {what:?} is no figure"
            );
        }
        Ok(())
    }

    fn check_figure(&self, quantity: &Quantity) -> anyhow::Result<()> {
        ensure!(!quantity.ours.is_empty(), "`ours` is empty");
        ensure!(
            !quantity.detail || quantity.aims.is_empty(),
            "a `detail` has no `aims`, as the page does not show it"
        );
        ensure!(
            quantity.beside.len() <= self.beside.len(),
            "`beside` has {} values, and the file names {} systems",
            quantity.beside.len(),
            self.beside.len()
        );
        for bound in &quantity.aims {
            for name in bound.over.iter().chain(&bound.above) {
                ensure!(self.beside.contains(name), "the aim's {name:?} is not in the file's `beside`");
            }
            let value = self.bounded(quantity, bound).median();
            ensure!(value.is_finite(), "an aim is about a system that has no value in this figure");
        }
        Ok(())
    }
}

/// Every machine and every result, in the page's order.
///
/// # Errors
/// A file that can't be read, is not of this form, or names what is not there; the error says which and what to do.
pub fn read(root: &Path) -> anyhow::Result<(Machines, Vec<Recorded>)> {
    let folder = root.join(FOLDER);
    let text = |name: &str| {
        std::fs::read_to_string(folder.join(name)).with_context(|| {
            format!("{FOLDER}/{name} can't be read; start this in the repository's directory")
        })
    };
    let machines: Machines =
        toml::from_str(&text(MACHINES)?).with_context(|| format!("{FOLDER}/{MACHINES}"))?;
    let mut results = Vec::new();
    for name in super::files(&folder)? {
        let Some(stem) = name.strip_suffix(".toml").filter(|_| name != MACHINES) else { continue };
        results
            .push(parse(root, stem, &text(&name)?, &machines).with_context(|| format!("{FOLDER}/{name}"))?);
    }
    if results.is_empty() {
        bail!("{FOLDER} has no results");
    }
    results.sort_by(|a, b| (a.part, !a.leads, &a.name).cmp(&(b.part, !b.leads, &b.name)));
    Ok((machines, results))
}

/// One result file's text.
pub fn parse(root: &Path, stem: &str, text: &str, machines: &Machines) -> anyhow::Result<Recorded> {
    let mut result: Recorded = toml::from_str(text)?;
    stem.clone_into(&mut result.name);
    result.check(root, machines)?;
    Ok(result)
}

/// A result file that is yet to be filled in.
pub fn template(build: &str, date: &str) -> String {
    format!(
        r#"part = "appends" # shared-memory, tcp, modelled, kafka, ledgers, cache, broadcast, regions, queues, binary
title = ""
claim = ""
commands = [""]
machine = ""
date = "{date}"
build = "{build}"
profile = "dist"
paths = ["crates/"]
beside = ["PEER VERSION"]

[[figures]]
what = "records/s"
ours = []
beside = [[]]
aims = [{{ over = "PEER VERSION", at_least = 1 }}]
"#
    )
}
