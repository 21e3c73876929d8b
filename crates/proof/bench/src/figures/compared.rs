//! The README's picture: a few results beside each other, each in a panel of its own.

use std::fmt::Write as _;

use anyhow::Context;

use crate::compare::series::Series;

use super::recorded::Recorded;

/// Where it is, from the repository's root.
pub const PICTURE: &str = "docs/img/compared.svg";

/// One figure of one result.
struct Panel {
    result: &'static str,
    what: &'static str,
    title: &'static str,
    note: &'static str,
    /// What our column and those beside it are called here, as far as they are shown.
    systems: &'static [&'static str],
}

const PANELS: [Panel; 3] = [
    Panel {
        result: "append-4096",
        what: "records/s",
        title: "Durable appends of 128 bytes, a second",
        note: "more is better",
        systems: &["Tailwater", "Kafka, flush each", "NATS, sync always"],
    },
    Panel {
        result: "tcp-connections",
        what: "most consumers that keep up",
        title: "Consumers of 240 Mbit/s that keep up",
        note: "a TCP connection each; more is better",
        systems: &["Tailwater", "Kafka, its Java client", "Kafka, minimal reader"],
    },
    Panel {
        result: "fanout-apart",
        what: "256 processes: cores in all",
        title: "Cores for 256 processes of 240 Mbit/s",
        note: "in shared memory; less is better",
        systems: &["Tailwater, all on disk", "Aeron, nothing stored"],
    },
];

const PANEL_WIDTH: f64 = 318.0;
/// Where bars begin in a panel.
const BARS_AT: f64 = 136.0;
const BAR_WIDTH: f64 = 80.0;

const HEAD: &str = r##"  <style>
    .page { fill: #ffffff } text { fill: #1b2733 } .small { font-size: 11.5px; fill: #47586a } .head { font-size: 13px; font-weight: 600 }
    .ours { fill: #1f6fb2 } .theirs { fill: #9aabb9 } .value { font-weight: 600 } .rule { stroke: #c9d3dc }
    @media (prefers-color-scheme: dark) {
      .page { fill: #141b22 } text { fill: #e8eef4 } .small { fill: #b4c2cf } .ours { fill: #5aa9e6 } .theirs { fill: #6f8292 } .rule { stroke: #3a4956 }
    }
  </style>
  <rect class="page" width="960" height="176" rx="10"/>
  <path class="rule" d="M323 14V126M641 14V126"/>
"##;

/// Draws it.
///
/// # Errors
/// If a result or a figure is missing that it shows.
pub fn draw(results: &[Recorded]) -> anyhow::Result<String> {
    let (mut panels, mut described, mut sources) = (String::new(), Vec::new(), Vec::new());
    for (number, panel) in PANELS.iter().enumerate() {
        let result = results.iter().find(|result| result.name == panel.result);
        let result =
            result.with_context(|| format!("{PICTURE} shows {}, which is not there", panel.result))?;
        let figure = result.figures.iter().find(|figure| figure.what == panel.what);
        let figure = figure.with_context(|| format!("{PICTURE} shows {} of {}", panel.what, panel.result))?;
        let columns = std::iter::once(&figure.ours).chain(&figure.beside);
        let columns = columns.filter(|values| !values.is_empty());
        let columns: Vec<_> = columns.map(|values| Series::of(values.iter().copied())).collect();
        let most = columns.iter().map(Series::median).fold(0.0, f64::max);
        let (x, Panel { title, note, .. }) = (16.0 + number as f64 * (PANEL_WIDTH + 2.0), panel);
        writeln!(panels, "  <g transform=\"translate({x} 0)\">")?;
        writeln!(panels, "    <text class=\"head\" x=\"0\" y=\"26\">{title}</text>")?;
        writeln!(panels, "    <text class=\"small\" x=\"0\" y=\"44\">{note}</text>")?;
        let mut values = Vec::new();
        for (row, (system, column)) in panel.systems.iter().zip(&columns).enumerate() {
            let (y, value) = (70 + 24 * row, column.show(figure.digits));
            let width = (column.median() / most * BAR_WIDTH).max(1.0);
            let class = if row == 0 { "ours" } else { "theirs" };
            let (top, behind) = (y - 11, BARS_AT + width + 6.0);
            write!(panels, "    <text class=\"small\" x=\"0\" y=\"{y}\">{system}</text>")?;
            write!(
                panels,
                "<rect class=\"{class}\" x=\"{BARS_AT}\" y=\"{top}\" width=\"{width:.1}\" height=\"13\"/>"
            )?;
            writeln!(panels, "<text class=\"value\" x=\"{behind:.1}\" y=\"{y}\">{value}</text>")?;
            values.push(format!("{system} {value}"));
        }
        panels.push_str("  </g>\n");
        described.push(format!("{title}: {}.", values.join(", ")));
        sources.push(format!("{} ({}, {})", panel.result, result.machine, result.date));
    }
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 176\" width=\"960\" height=\"176\" role=\"img\"\n     \
         aria-labelledby=\"title description\" font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\" \
         font-size=\"13\">\n  <title id=\"title\">Tailwater beside its peers</title>\n  \
         <desc id=\"description\">{}</desc>\n{HEAD}{panels}  \
         <text class=\"small\" x=\"16\" y=\"147\">Client and server on the same two processors, each group on one machine and day. Every \
         record was checked; none was lost or reordered.</text>\n  \
         <text class=\"small\" x=\"16\" y=\"164\">{}</text>\n</svg>\n",
        described.join(" "),
        sources.join("; "),
    ))
}
