//! A plan as a picture: for Graphviz, and as an SVG.

use std::fmt::Write;

use crate::plan::{HopRole, TreePlan};

fn colour(role: HopRole) -> &'static str {
    match role {
        HopRole::Forwards => "#1f77b4",
        HopRole::Leaf => "#555555",
        HopRole::Failing => "#d62728",
        HopRole::New => "#2ca02c",
    }
}

/// What is told below or above the picture.
fn title(plan: &TreePlan) -> String {
    format!(
        "{}: {} clusters, {} hops, fan-out {}, cost {} for each GB, {} ms",
        plan.stream, plan.clusters, plan.depth, plan.fan_out, plan.cost_per_gb, plan.delay_ms
    )
}

// Writing to a string does not fail, here and below.

/// The tree in Graphviz's language.
pub fn dot(plan: &TreePlan) -> String {
    // Names of clusters have nothing that a quoted text could not have, and the stream's is quoted.
    let title = title(plan).replace('\\', "\\\\").replace('"', "\\\"");
    let mut out = format!(
        "digraph tree {{\n  label=\"{title}\";\n  rankdir=LR;\n  node [shape=box];\n  \"{}\";\n",
        plan.source
    );
    for hop in &plan.hops {
        let _ = writeln!(out, "  \"{}\" [color=\"{}\"];", hop.to, colour(hop.role));
    }
    for hop in &plan.hops {
        let style = if hop.failing_link { ", style=dashed" } else { "" };
        let _ = writeln!(
            out,
            "  \"{}\" -> \"{}\" [label=\"{} / GB, {} ms\"{style}];",
            hop.from, hop.to, hop.cost_per_gb, hop.delay_ms
        );
    }
    out + "}\n"
}

/// The tree as an SVG: the source on the left, a column for each hop, a row for each cluster.
pub fn svg(plan: &TreePlan) -> String {
    const WIDTH: f64 = 900.0;
    const LEFT: f64 = 20.0;
    const TOP: f64 = 50.0;
    const ROW: f64 = 18.0;
    let column = (WIDTH - 400.0) / plan.depth.max(1) as f64;
    let x = |depth: usize| LEFT + depth as f64 * column;
    let (mut row, mut places) = (0.0, vec![(x(0), TOP)]);
    let (mut lines, mut labels) = (String::new(), String::new());
    let mut node = |x: f64, y: f64, colour: &str, name: &str| {
        let _ = writeln!(
            labels,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{name}</text>",
            x + 7.0,
            y - 3.0
        );
    };
    node(x(0), TOP, "#222", &plan.source);
    for hop in &plan.hops {
        row += 1.0;
        let (x, y) = (x(hop.depth), TOP + row * ROW);
        // The way here is what the last hops before it led to.
        places.truncate(hop.depth.max(1));
        let Some(&(from_x, from_y)) = places.last() else { continue };
        let dashes = if hop.failing_link { " stroke-dasharray=\"4\"" } else { "" };
        let _ = writeln!(
            lines,
            "<polyline points=\"{from_x:.1},{from_y:.1} {from_x:.1},{y:.1} {x:.1},{y:.1}\" fill=\"none\" stroke=\"#bbb\"{dashes}/>",
        );
        let label = match hop.limit_bytes_per_s {
            Some(limit) => format!(
                "{} ({} / GB, {} ms, at most {limit} B/s)",
                hop.to, hop.cost_per_gb, hop.delay_total_ms
            ),
            None => format!("{} ({} / GB, {} ms)", hop.to, hop.cost_per_gb, hop.delay_total_ms),
        };
        node(x, y, colour(hop.role), &label);
        places.push((x, y));
    }
    let roles = [HopRole::Forwards, HopRole::Leaf, HopRole::Failing, HopRole::New];
    let mut legend = String::new();
    for (at, role) in roles.into_iter().enumerate() {
        let x = LEFT + 80.0 * at as f64;
        let _ = writeln!(
            legend,
            "<text x=\"{x:.1}\" y=\"36.0\" fill=\"{}\">{}</text>",
            colour(role),
            role.name()
        );
    }
    let title = title(plan).replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT:.1}\" y=\"20.0\" fill=\"#222\">{title}</text>\n{legend}{lines}{labels}</svg>\n",
        TOP + row * ROW + 20.0
    )
}
