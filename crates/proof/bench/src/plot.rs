//! What happened over time, drawn as an SVG: delays on a logarithmic scale above, rates below.

use std::path::Path;

use anyhow::Context;
use tailwater_load::experiment::Sample;

use crate::svg::{Canvas, WIDTH, short};

const PANEL_HEIGHT: f64 = 180.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 50.0;
const GAP: f64 = 40.0;

/// Something that happened at a time, in seconds.
pub struct PlotMark {
    /// When.
    pub t_s: f64,
    /// What.
    pub what: String,
}

/// Values over time, with a name and a colour.
struct PlotLine<'a> {
    name: &'a str,
    colour: &'a str,
    value: fn(&Sample) -> f64,
}

/// Draws `samples` into `file`.
pub fn write(file: &Path, title: &str, samples: &[Sample], marks: &[PlotMark]) -> anyhow::Result<()> {
    write_with(file, title, samples, marks, "delivered/s")
}

/// The same where [`Sample::delivered_s`] is something else: `rate` is its name.
pub fn write_with(
    file: &Path,
    title: &str,
    samples: &[Sample],
    marks: &[PlotMark],
    rate: &str,
) -> anyhow::Result<()> {
    std::fs::write(file, draw(title, samples, marks, rate))
        .with_context(|| format!("{} can't be written", file.display()))
}

fn draw(title: &str, samples: &[Sample], marks: &[PlotMark], rate: &str) -> String {
    let end = samples.last().map_or(1.0, |sample| sample.t_s);
    let mut svg = Svg { canvas: Canvas::default(), end };
    svg.canvas.text(LEFT, 22.0, "start", "#222", title);
    let delays = [
        PlotLine { name: "delay p50", colour: "#1f77b4", value: |sample| sample.delay_ms.p50 },
        PlotLine { name: "delay p99", colour: "#d62728", value: |sample| sample.delay_ms.p99 },
        PlotLine { name: "ack p99", colour: "#7f7f7f", value: |sample| sample.ack_ms.p99 },
    ];
    let durable = [PlotLine { name: "durable reads/s", colour: "#2ca02c", value: |sample| sample.durable_s }];
    let delivered = [PlotLine { name: rate, colour: "#9467bd", value: |sample| sample.delivered_s }];
    svg.panel(0, "ms", true, samples, &delays, marks);
    svg.panel(1, "", false, samples, &durable, &[]);
    svg.panel(2, "", false, samples, &delivered, &[]);
    let height = TOP + 3.0 * (PANEL_HEIGHT + GAP) + 10.0;
    svg.canvas.finish(height)
}

struct Svg {
    canvas: Canvas,
    end: f64,
}

impl Svg {
    fn panel(
        &mut self,
        number: usize,
        unit: &str,
        logarithmic: bool,
        samples: &[Sample],
        lines: &[PlotLine<'_>],
        marks: &[PlotMark],
    ) {
        let top = TOP + number as f64 * (PANEL_HEIGHT + GAP);
        let bottom = top + PANEL_HEIGHT;
        let values = lines.iter().flat_map(|line| samples.iter().map(line.value));
        let most = values.fold(0.0, f64::max);
        let (low, high) = if logarithmic {
            (-2.0, most.max(1.0).log10().ceil())
        } else {
            (0.0, if most > 0.0 { most * 1.1 } else { 1.0 })
        };
        let scale = |value: f64| if logarithmic { value.max(0.01).log10() } else { value };
        let y = |value: f64| bottom - (scale(value) - low) / (high - low) * PANEL_HEIGHT;
        let ticks: Vec<f64> = if logarithmic {
            (low as i32..=high as i32).map(|power| 10f64.powi(power)).collect()
        } else {
            (0..=4).map(|i| high * f64::from(i) / 4.0).collect()
        };
        for tick in ticks {
            let at = y(tick);
            self.canvas.line(LEFT, at, WIDTH - RIGHT, at, "#ddd");
            self.canvas.text(LEFT - 6.0, at + 4.0, "end", "#555", &format!("{} {unit}", short(tick)));
        }
        let step = (self.end / 10.0).ceil().max(1.0);
        for second in (0..=(self.end / step) as u32).map(|i| f64::from(i) * step) {
            self.canvas.text(self.x(second), bottom + 14.0, "middle", "#555", &format!("{second} s"));
        }
        for mark in marks {
            let x = self.x(mark.t_s);
            self.canvas.line(x, top, x, TOP + 3.0 * (PANEL_HEIGHT + GAP) - GAP, "#f0a030");
            self.canvas.text(x + 3.0, top - 6.0, "start", "#c07000", &mark.what);
        }
        for (index, line) in lines.iter().enumerate() {
            let points: Vec<_> = samples
                .iter()
                .filter(|sample| !logarithmic || (line.value)(sample) > 0.0)
                .map(|sample| (self.x(sample.t_s), y((line.value)(sample))))
                .collect();
            self.canvas.polyline(&points, line.colour);
            self.canvas.text(
                WIDTH - RIGHT + 8.0,
                top + 14.0 * (index + 1) as f64,
                "start",
                line.colour,
                line.name,
            );
        }
    }

    fn x(&self, t_s: f64) -> f64 {
        LEFT + t_s / self.end * (WIDTH - LEFT - RIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_load::stats::PercentilesMs;

    #[test]
    fn every_line_has_a_point_for_every_sample() {
        let sample = |t_s| Sample {
            t_s,
            appended_s: 1.0,
            delivered_s: 2.0,
            delay_ms: PercentilesMs { p50: 1.0, p99: 2.0, p999: 3.0, max: 4.0 },
            ack_ms: PercentilesMs { p50: 1.0, p99: 2.0, p999: 3.0, max: 4.0 },
            durable_s: 0.0,
        };
        let marks = [PlotMark { t_s: 1.0, what: "a < b".to_owned() }];
        let svg = draw("t", &[sample(1.0), sample(2.0)], &marks, "delivered/s");
        assert_eq!(svg.matches("<polyline").count(), 5);
        for line in svg.lines().filter(|line| line.starts_with("<polyline")) {
            assert_eq!(line.matches(',').count(), 2, "{line}");
        }
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
    }
}
