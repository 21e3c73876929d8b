//! Systems side by side, drawn as SVGs: bars for one figure of each, curves for one figure against another.

use crate::svg::{Canvas, WIDTH, short};

const COLOURS: [&str; 6] = ["#1f77b4", "#d62728", "#7f7f7f", "#2ca02c", "#9467bd", "#ff7f0e"];
const TOP: f64 = 50.0;
const BAR: f64 = 14.0;

/// One system's bars, each with the name of what it shows.
pub struct Row<'a> {
    /// The system.
    pub label: String,
    /// What is shown, and how much of it.
    pub values: Vec<(&'a str, f64)>,
}

/// Draws a row for each system. What is no number, and 0 on a logarithmic scale, has a bar without length.
pub fn bars(title: &str, unit: &str, logarithmic: bool, rows: &[Row<'_>]) -> String {
    const LEFT: f64 = 300.0;
    const RIGHT: f64 = 90.0;
    let mut canvas = Canvas::default();
    canvas.text(20.0, 22.0, "start", "#222", title);
    let values = || rows.iter().flat_map(|row| row.values.iter());
    let most = values().map(|value| value.1).fold(0.0, f64::max);
    let least = values().map(|value| value.1).filter(|&value| value > 0.0).fold(most, f64::min);
    let low = if logarithmic { least.max(1e-6).log10().floor() } else { 0.0 };
    let high = if logarithmic { most.max(1e-6).log10().ceil().max(low + 1.0) } else { most.max(1e-9) };
    let width = |value: f64| {
        let scaled = if logarithmic { value.max(1e-6).log10() } else { value };
        let part = (scaled - low) / (high - low);
        if part.is_finite() { part.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT) } else { 0.0 }
    };
    let mut names: Vec<&str> = Vec::new();
    let mut y = TOP;
    for row in rows {
        let middle = y + row.values.len() as f64 * BAR / 2.0 + 4.0;
        canvas.text(LEFT - 8.0, middle, "end", "#222", &row.label);
        for &(name, value) in &row.values {
            let number = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            });
            canvas.bar(LEFT, y, width(value), BAR - 2.0, COLOURS[number % COLOURS.len()]);
            let label = format!("{} {unit}", short(value));
            canvas.text(LEFT + width(value) + 4.0, y + BAR - 4.0, "start", "#555", &label);
            y += BAR;
        }
        y += 12.0;
    }
    // A letter is some 6 pixels wide.
    let wide = |name: &&str| (6.0 * name.chars().count() as f64 + 16.0).max(110.0);
    let mut x = if names.iter().map(wide).sum::<f64>() < WIDTH - LEFT { LEFT } else { 20.0 };
    for (number, name) in names.iter().enumerate() {
        canvas.text(x, 40.0, "start", COLOURS[number % COLOURS.len()], name);
        x += wide(name);
    }
    canvas.finish(y + 10.0)
}

/// A line through points, with a name.
pub struct Curve {
    /// What it shows.
    pub name: String,
    /// Points, in the order of their first coordinate, both above 0.
    pub points: Vec<(f64, f64)>,
}

/// Draws curves with both scales logarithmic.
pub fn curves(title: &str, across: &str, unit: &str, curves: &[Curve]) -> String {
    const LEFT: f64 = 70.0;
    const RIGHT: f64 = 240.0;
    const HEIGHT: f64 = 320.0;
    let points = || curves.iter().flat_map(|curve| curve.points.iter());
    let range = |value: fn(&(f64, f64)) -> f64, base: f64| {
        let low = points().map(value).fold(f64::INFINITY, f64::min);
        let high = points().map(value).fold(0.0, f64::max);
        if high <= 0.0 {
            return (0.0, 1.0);
        }
        let (low, high) = (low.log(base).floor(), high.log(base).ceil());
        (low, high.max(low + 1.0))
    };
    let (x_low, x_high) = range(|point| point.0, 2.0);
    let (y_low, y_high) = range(|point| point.1, 10.0);
    let x = |value: f64| LEFT + (value.log2() - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| TOP + HEIGHT - (value.log10() - y_low) / (y_high - y_low) * HEIGHT;
    let mut canvas = Canvas::default();
    canvas.text(LEFT, 22.0, "start", "#222", title);
    for power in y_low as i32..=y_high as i32 {
        let value = 10f64.powi(power);
        canvas.line(LEFT, y(value), WIDTH - RIGHT, y(value), "#ddd");
        canvas.text(LEFT - 6.0, y(value) + 4.0, "end", "#555", &format!("{} {unit}", short(value)));
    }
    for power in x_low as i32..=x_high as i32 {
        let value = 2f64.powi(power);
        canvas.text(x(value), TOP + HEIGHT + 16.0, "middle", "#555", &short(value));
    }
    canvas.text((LEFT + WIDTH - RIGHT) / 2.0, TOP + HEIGHT + 34.0, "middle", "#555", across);
    for (number, curve) in curves.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<_> = curve.points.iter().map(|point| (x(point.0), y(point.1))).collect();
        canvas.polyline(&points, colour);
        for (x, y) in points {
            canvas.bar(x - 2.0, y - 2.0, 4.0, 4.0, colour);
        }
        canvas.text(WIDTH - RIGHT + 8.0, TOP + 14.0 * (number + 1) as f64, "start", colour, &curve.name);
    }
    canvas.finish(TOP + HEIGHT + 50.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_bar_and_every_name_stands_once_above_them() {
        let row = |label: &str| Row { label: label.to_owned(), values: vec![("p50", 0.2), ("p99", 30.0)] };
        let svg = bars("t", "ms", true, &[row("a < b"), row("c")]);
        assert_eq!(svg.matches("<rect x=").count(), 4);
        assert_eq!(svg.matches(">p99</text>").count(), 1);
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn nothing_to_draw_is_an_empty_plot() {
        assert!(!bars("t", "", false, &[]).contains("NaN"));
        assert!(!curves("t", "x", "ms", &[]).contains("NaN"));
    }

    #[test]
    fn larger_values_are_further_right_and_higher() {
        let points = vec![(1.0, 0.1), (100.0, 10.0)];
        let svg = curves("t", "consumers", "ms", &[Curve { name: "a".to_owned(), points }]);
        assert!(svg.contains("<polyline points=\"70.0,370.0 630.0,50.0\""), "{svg}");
    }
}
