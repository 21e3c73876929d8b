//! A result's picture, of the result's own figures.

use crate::charts::{self, Curve, Row};
use crate::compare::series::Series;

use super::recorded::{Drawing, Quantity, Recorded};

/// The picture, if there is one.
pub fn draw(result: &Recorded) -> Option<String> {
    let drawing = result.picture.as_ref()?;
    if !drawing.curves.is_empty() {
        let curve = |points: &super::recorded::Points| Curve {
            name: points.name.clone(),
            points: points.points.clone(),
        };
        let curves: Vec<_> = drawing.curves.iter().map(curve).collect();
        return Some(charts::curves(&drawing.title, &drawing.across, &drawing.unit, &curves));
    }
    let rows = if drawing.by_figure { by_figure(result, drawing) } else { by_system(result, drawing) };
    Some(charts::bars(&drawing.title, &drawing.unit, drawing.logarithmic, &rows))
}

/// What is drawn, and what it is called there.
fn drawn<'a>(result: &'a Recorded, drawing: &'a Drawing) -> Vec<(&'a str, &'a Quantity)> {
    if drawing.bars.is_empty() {
        return result.figures.iter().map(|figure| (figure.what.as_str(), figure)).collect();
    }
    let find = |what: &str| result.figures.iter().find(|figure| figure.what == what);
    drawing.bars.iter().filter_map(|(name, what)| Some((name.as_str(), find(what)?))).collect()
}

/// The columns' names, ours first.
fn systems(result: &Recorded) -> impl Iterator<Item = &str> {
    std::iter::once(&result.ours).chain(&result.beside).map(String::as_str)
}

/// The median of a column, ours being the first.
fn value(figure: &Quantity, column: usize) -> Option<f64> {
    let values = match column {
        0 => &figure.ours,
        _ => figure.beside.get(column - 1)?,
    };
    (!values.is_empty()).then(|| Series::of(values.iter().copied()).median())
}

fn by_system<'a>(result: &'a Recorded, drawing: &'a Drawing) -> Vec<Row<'a>> {
    let figures = drawn(result, drawing);
    let row = |(column, system): (usize, &str)| {
        let values: Vec<_> =
            figures.iter().filter_map(|&(name, figure)| Some((name, value(figure, column)?))).collect();
        Row { label: system.to_owned(), values }
    };
    systems(result).enumerate().map(row).filter(|row| !row.values.is_empty()).collect()
}

fn by_figure<'a>(result: &'a Recorded, drawing: &'a Drawing) -> Vec<Row<'a>> {
    let row = |(name, figure): (&str, &'a Quantity)| {
        let bar = |(column, system): (usize, &'a str)| Some((system, value(figure, column)?));
        Row { label: name.to_owned(), values: systems(result).enumerate().filter_map(bar).collect() }
    };
    drawn(result, drawing).into_iter().map(row).collect()
}
