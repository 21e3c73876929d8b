//! `tailwater tree plan` on files of costs.

use std::path::Path;

use serde_json::Value;

use crate::support::{tailwater, told};

const COSTS: &str = r#"
cluster = [
    { name = "us" },
    { name = "eu" },
    { name = "eu2" },
    { name = "asia", failing = true },
    { name = "asia2" },
    { name = "asia3", new = true },
]
link = [
    { between = ["us", "eu"], cost_per_gb = 0.05, delay_ms = 40 },
    { between = ["us", "eu2"], cost_per_gb = 0.05, delay_ms = 40 },
    { between = ["eu", "eu2"], cost_per_gb = 0.01, delay_ms = 1 },
    { between = ["us", "asia"], cost_per_gb = 0.08, delay_ms = 70 },
    { between = ["us", "asia2"], cost_per_gb = 0.09, delay_ms = 75 },
    { between = ["asia", "asia2"], cost_per_gb = 0.01, delay_ms = 2 },
    { between = ["asia", "asia3"], cost_per_gb = 0.01, delay_ms = 2 },
    { between = ["asia2", "asia3"], cost_per_gb = 0.01, delay_ms = 2 },
]
"#;

/// Whether a plan for these costs came of these flags, and what was said.
fn planned(costs: &Path, flags: &[&str]) -> (bool, String, String) {
    told(tailwater().args(["tree", "plan", "orders", "--costs"]).arg(costs).args(flags), "")
}

#[test]
fn a_plan_is_told_as_a_table_as_json_for_graphviz_and_as_a_picture() {
    let dir = tempfile::tempdir().expect("a directory");
    let costs = dir.path().join("costs.toml");
    std::fs::write(&costs, COSTS).expect("written");
    let (ended, json, why) = planned(&costs, &["--source", "us", "--bytes-per-s", "1000000", "-o", "json"]);
    assert!(ended, "{why}");
    let plan: Value = serde_json::from_str(&json).expect("JSON");
    // Both operations of each file send: twice 0.05 + 0.01 + 0.09 + 0.01 + 0.01.
    assert_eq!(
        (&plan["cost_per_gb"], &plan["depth"], &plan["delay_ms"]),
        (&0.34.into(), &2.into(), &77.0.into())
    );
    let hops: Vec<(&str, &str, &str)> = plan["hops"]
        .as_array()
        .expect("hops")
        .iter()
        .map(|hop| {
            (
                hop["from"].as_str().expect("a"),
                hop["to"].as_str().expect("b"),
                hop["role"].as_str().expect("c"),
            )
        })
        .collect();
    assert_eq!(
        hops,
        [
            ("us", "asia2", "forwards"),
            ("asia2", "asia", "failing"),
            ("asia2", "asia3", "new"),
            ("us", "eu", "forwards"),
            ("eu", "eu2", "leaf"),
        ]
    );
    let (_, table, _) = planned(&costs, &["--source", "us", "--to", "eu,eu2"]);
    assert!(table.contains("orders from us to 2 clusters: 2 hops deep"), "{table}");
    assert!(table.contains("cost: 0.12 for each GB"), "{table}");
    let (_, dot, _) = planned(&costs, &["--source", "us", "-o", "dot"]);
    assert!(dot.starts_with("digraph") && dot.contains("\"asia2\" -> \"asia3\""), "{dot}");
    let (_, svg, _) = planned(&costs, &["--source", "us", "-o", "svg"]);
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && svg.contains(">eu2 ("), "{svg}");
    // The same costs as JSON.
    let value: Value = toml::from_str(COSTS).expect("TOML");
    let costs = dir.path().join("costs.json");
    std::fs::write(&costs, value.to_string()).expect("written");
    let (_, again, why) = planned(&costs, &["--source", "us", "--bytes-per-s", "1000000", "-o", "json"]);
    assert_eq!(json, again, "{why}");
}

#[test]
fn a_file_or_a_flag_that_is_wrong_is_told_with_what_would_be_right() {
    let dir = tempfile::tempdir().expect("a directory");
    let costs = dir.path().join("costs.toml");
    let refused = |text: &str, flags: &[&str], right: &str| {
        std::fs::write(&costs, text).expect("written");
        let (ended, out, why) = planned(&costs, flags);
        assert!(!ended && out.is_empty() && why.contains(right), "{flags:?}: {why}");
    };
    refused(COSTS, &["--source", "mars"], "the source names cluster mars");
    refused(COSTS, &["--source", "us", "--to", "eu,mars"], "names cluster mars");
    refused(COSTS, &["--source", "us", "--to", "asia3"], "name these as destinations too");
    refused(COSTS, &["--source", "us", "--depth-max", "1"], "in 2 hops; allow that many");
    refused(COSTS, &["--source", "us", "--fan-out-max", "0"], "use a whole number from 1 to 512");
    refused(&COSTS.replace("0.08", "-1"), &["--source", "us"], "cost_per_gb = -1: use a number from 0");
    refused(&COSTS.replace("delay_ms = 70", "delay = 70"), &["--source", "us"], "unknown field `delay`");
}
