//! The node's page of metrics, read as strictly as `promtool check metrics` and an OpenMetrics parser would.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Node, wait_for};

/// One family of a page.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    /// Suffix and labels of each series, with its value.
    series: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

impl Family {
    fn value(&self, suffix: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        self.series.get(&(suffix.to_owned(), labels)).copied()
    }
}

/// All families of a page, or the first thing that is wrong with it.
fn parse(page: &str) -> Result<BTreeMap<String, Family>, String> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let (mut helped, mut current) = (None, None::<String>);
    let text = page.strip_suffix("# EOF\n").ok_or("the page does not end with # EOF")?;
    for line in text.lines() {
        let at_line = |why: String| format!("{why}: {line}");
        let wrong = |why: &str| Err(at_line(why.to_owned()));
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let Some((name, help)) = rest.split_once(' ') else { return wrong("no help") };
            if help.trim().is_empty() || families.contains_key(name) {
                return wrong("a family without help, or for the second time");
            }
            helped = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = rest.split_once(' ') else { return wrong("no type") };
            if helped.as_deref() != Some(name) {
                return wrong("a type without its help before it");
            }
            check_name(name, kind).map_err(at_line)?;
            families.insert(name.to_owned(), Family { kind: kind.to_owned(), ..Family::default() });
            current = Some(name.to_owned());
        } else {
            let Some(family) = current.as_deref() else { return wrong("a sample before any family") };
            let (name, labels, value) = sample(line).map_err(at_line)?;
            let Some(suffix) = name.strip_prefix(family) else {
                return wrong("a sample among those of others");
            };
            let found = families.get_mut(family).expect("it is the current one");
            let allowed: &[&str] = match found.kind.as_str() {
                "counter" => &["_total"],
                "gauge" => &[""],
                "info" => &["_info"],
                _ => &["_sum", "_count", "_bucket"],
            };
            if !allowed.contains(&suffix) {
                return wrong("a name that does not fit the family's type");
            }
            if found.series.insert((suffix.to_owned(), labels), value).is_some() {
                return wrong("the same series for the second time");
            }
        }
    }
    for (name, family) in families.iter().filter(|(_, family)| family.kind == "histogram") {
        check_histogram(family).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(families)
}

fn check_name(name: &str, kind: &str) -> Result<(), String> {
    if !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
        return Err("not in snake case".to_owned());
    }
    if !name.starts_with("tailwater_") && !name.starts_with("process_") {
        return Err("a prefix that is not ours".to_owned());
    }
    for unit in ["_ms", "_us", "_ns", "_millis", "_kb", "_mb", "_total", "_count", "_sum", "_bucket", "_info"]
    {
        if name.ends_with(unit) {
            return Err(format!("{unit} is no base unit, or belongs to the samples"));
        }
    }
    match kind {
        "counter" | "gauge" | "info" => Ok(()),
        "histogram" if name.ends_with("_seconds") => Ok(()),
        other => Err(format!("{other} is not expected here")),
    }
}

fn sample(line: &str) -> Result<(String, BTreeMap<String, String>, f64), String> {
    let (series, value) = line.rsplit_once(' ').ok_or("no value")?;
    let value: f64 = value.parse().map_err(|_| "a value that is no number")?;
    let Some((name, rest)) = series.split_once('{') else {
        return Ok((series.to_owned(), BTreeMap::new(), value));
    };
    let mut labels = BTreeMap::new();
    // No label value of ours has a comma in it.
    for label in rest.strip_suffix('}').ok_or("labels without an end")?.split(',') {
        let (key, value) = label.split_once('=').ok_or("a label without a value")?;
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).ok_or("no quotes")?;
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err("a label twice".to_owned());
        }
    }
    Ok((name.to_owned(), labels, value))
}

/// Of each set of its labels; there is none before something was counted.
fn check_histogram(family: &Family) -> Result<(), String> {
    let mut of: BTreeMap<BTreeMap<String, String>, BTreeMap<(String, String), f64>> = BTreeMap::new();
    for ((suffix, labels), value) in &family.series {
        let mut labels = labels.clone();
        let end = labels.remove("le").unwrap_or_default();
        of.entry(labels).or_default().insert((suffix.clone(), end), *value);
    }
    of.into_values().try_for_each(|series| check_buckets(&series))
}

/// By suffix, and `le` if it is a bucket.
fn check_buckets(series: &BTreeMap<(String, String), f64>) -> Result<(), String> {
    let buckets = series.iter().filter(|((suffix, _), _)| suffix == "_bucket");
    let mut buckets: Vec<(f64, f64)> = buckets
        .map(|((_, end), count)| {
            Ok((end.replace("+Inf", "inf").parse().map_err(|_| "le is no number")?, *count))
        })
        .collect::<Result<_, &str>>()?;
    buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
    if !buckets.is_sorted_by(|one, other| one.1 <= other.1) {
        return Err("buckets do not add up".to_owned());
    }
    let last = buckets.last().filter(|(end, _)| end.is_infinite()).ok_or("no bucket for +Inf")?;
    let one = |suffix: &str| series.get(&(suffix.to_owned(), String::new()));
    let count = one("_count").ok_or("no count")?;
    one("_sum").ok_or("no sum")?;
    if last.1 == *count { Ok(()) } else { Err("the last bucket is not the count".to_owned()) }
}

#[test]
fn pages_with_something_wrong_are_refused() {
    let good = "# HELP tailwater_x Help.\n# TYPE tailwater_x counter\ntailwater_x_total{a=\"1\"} 5\n";
    assert!(parse(&format!("{good}# EOF\n")).is_ok());
    let histogram = "# HELP tailwater_h_seconds Help.\n# TYPE tailwater_h_seconds histogram\n";
    for bad in [
        good.to_owned(),
        format!("{good}{good}# EOF\n"),
        format!("{good}tailwater_x_total{{a=\"1\"}} 6\n# EOF\n"),
        format!("{good}tailwater_x 6\n# EOF\n"),
        format!("{good}tailwater_y_total 6\n# EOF\n"),
        good.replace("Help.", "") + "# EOF\n",
        good.replace("tailwater_x", "tailwater_x_ms") + "# EOF\n",
        good.replace("tailwater_x", "other_x") + "# EOF\n",
        good.replace(" 5", " five") + "# EOF\n",
        "tailwater_x_total 5\n# EOF\n".to_owned(),
        format!("{histogram}tailwater_h_seconds_sum 1\ntailwater_h_seconds_count 1\n# EOF\n"),
        format!(
            "{histogram}tailwater_h_seconds_sum 1\ntailwater_h_seconds_count 2\n\
             tailwater_h_seconds_bucket{{le=\"1\"}} 3\ntailwater_h_seconds_bucket{{le=\"+Inf\"}} 2\n# EOF\n"
        ),
    ] {
        assert!(parse(&bad).is_err(), "{bad}");
    }
}

fn page(node: &Node) -> BTreeMap<String, Family> {
    let page = node.get("/metrics").expect("it answers");
    parse(&page).unwrap_or_else(|why| panic!("{why}\n{page}"))
}

#[test]
fn the_page_is_well_formed_and_counts_what_was_done() {
    let dir = tempfile::tempdir().expect("a directory");
    let environment = [("TAILWATER_METRICS__STREAMS_MAX", "2")];
    let node = Node::start_with(&dir.path().join("data"), &[], &environment);
    for name in ["a", "b", "c"] {
        node.run(&["stream", "create", name]);
    }
    let lines: Vec<String> = (0..300).map(|number| format!("line {number}")).collect();
    node.produce("b", &lines);
    node.run(&["stream", "truncate", "b", "--before", "100"]);
    // Chunks follow what is durable.
    wait_for("the chunks to be written", || {
        (page(&node)["tailwater_stream_uncached_bytes"].value("", &[("stream", "b")]) == Some(0.0))
            .then_some(())
    });
    let page = page(&node);
    let value = |name: &str, suffix: &str, labels: &[(&str, &str)]| {
        page.get(name).and_then(|family| family.value(suffix, labels)).unwrap_or_else(|| panic!("no {name}"))
    };
    let of_b = [("stream", "b")];
    assert_eq!(value("tailwater_log_records", "_total", &[]), 300.0);
    assert_eq!(value("tailwater_stream_appended_records", "_total", &of_b), 300.0);
    assert!(value("tailwater_stream_appended_bytes", "_total", &of_b) > 300.0);
    assert_eq!(value("tailwater_stream_records", "", &of_b), 200.0);
    assert!(value("tailwater_stream_bytes", "", &of_b) > 300.0);
    assert_eq!(value("tailwater_log_streams", "", &[]), 3.0);
    assert_eq!(value("tailwater_streams_omitted", "", &[]), 1.0);
    assert_eq!(page["tailwater_stream_records"].value("", &[("stream", "c")]), None);
    let appends = value("tailwater_log_appends", "_total", &[]);
    assert_eq!(value("tailwater_append_seconds", "_count", &[]), appends);
    assert!(value("tailwater_append_seconds", "_sum", &[]) > 0.0);
    assert!(value("tailwater_journal_sync_seconds", "_count", &[]) >= 1.0);
    assert!(value("tailwater_calls", "_total", &[("method", "append")]) >= 1.0);
    assert_eq!(value("tailwater_calls_refused", "_total", &[("method", "append")]), 0.0);
    assert_eq!(value("tailwater_build", "_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    assert_eq!(value("tailwater_ready", "", &[]), 1.0);
    assert_eq!(value("tailwater_cell_backends_live", "", &[("cell", "data")]), 1.0);
    assert!(value("process_resident_memory_bytes", "", &[]) > 1e6);
    assert!(value("process_open_fds", "", &[]) > 5.0);
    node.run(&["stream", "delete", "b"]);
    let after = self::page(&node);
    assert_eq!(after["tailwater_stream_appended_records"].value("_total", &of_b), None);
}

#[test]
fn every_metric_is_documented_and_nothing_else_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let cold = format!("file://{}", dir.path().display());
    let environment = [
        ("TAILWATER_COLD__URL", cold.as_str()),
        ("TAILWATER_MEMCACHED__ENABLED", "true"),
        ("TAILWATER_MEMCACHED__LISTEN", "127.0.0.1:0"),
    ];
    let node = Node::start_with(&dir.path().join("data"), &[], &environment);
    // The name that a query uses; that of a histogram is the family's.
    let name = |(family, Family { kind, .. }): (String, Family)| match kind.as_str() {
        "counter" => format!("{family}_total"),
        "info" => format!("{family}_info"),
        _ => family,
    };
    let told: BTreeSet<String> = page(&node).into_iter().map(name).collect();
    // Without certificates or ledgers a node has none of those: `tls.rs` and `replicated.rs` look at one that has.
    let elsewhere =
        |name: &String| name.starts_with("tailwater_tls_") || name.starts_with("tailwater_ledger_");
    let documented = documented().into_iter().filter(|name| !elsewhere(name));
    assert_eq!(told, documented.collect());
}

/// The metrics in the document, by the names that queries use.
pub fn documented() -> BTreeSet<String> {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/metrics.md");
    let document = std::fs::read_to_string(document).expect("readable");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    // What begins with a query is no metric's row.
    let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    rows.map(|(name, _)| name).filter(|name| is_name(name)).map(str::to_owned).collect()
}
