//! The same figure from several rounds.

use tailwater_load::stats::round;

/// Values in the order of their rounds; those that are no numbers are left out.
#[derive(Clone, Debug, Default)]
pub struct Series(Vec<f64>);

impl Series {
    /// Takes them in.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        Self(values.into_iter().filter(|value| value.is_finite()).collect())
    }

    /// The middle one, or the mean of the two in the middle; NaN if there is none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match (sorted.len() / 2, sorted.len() % 2) {
            (0, 0) => f64::NAN,
            (middle, 0) => (sorted[middle - 1] + sorted[middle]) / 2.0,
            (middle, _) => sorted[middle],
        }
    }

    /// The median with `digits` behind the point and, if they differ, the least and the most behind it.
    pub fn show(&self, digits: i32) -> String {
        match self.bounds(digits) {
            None => "-".to_owned(),
            Some((low, high)) if low == high => low,
            Some((low, high)) => format!("{} ({low} to {high})", shown(self.median(), digits)),
        }
    }

    /// The least and the most.
    pub fn range(&self, digits: i32) -> String {
        match self.bounds(digits) {
            None => "-".to_owned(),
            Some((low, high)) if low == high => low,
            Some((low, high)) => format!("{low} to {high}"),
        }
    }

    /// The values.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// The quotient of each round; a round that one of them lacks has none.
    pub fn ratios(own: &[f64], other: &[f64]) -> Series {
        Series::of(own.iter().zip(other).map(|(own, other)| own / other))
    }

    fn bounds(&self, digits: i32) -> Option<(String, String)> {
        let low = self.0.iter().copied().reduce(f64::min)?;
        let high = self.0.iter().copied().reduce(f64::max)?;
        Some((shown(low, digits), shown(high, digits)))
    }
}

/// A number with separated thousands.
fn shown(value: f64, digits: i32) -> String {
    let text = format!("{:.*}", digits.max(0) as usize, round(value, digits));
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let mut parted = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 && digit.is_ascii_digit() {
            parted.push(',');
        }
        parted.push(digit);
    }
    if rest.is_empty() { parted } else { format!("{parted}.{rest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_shown_as_their_median_and_range() {
        assert_eq!(Series::of([1_000_000.0, 2_000_000.0]).show(0), "1,500,000 (1,000,000 to 2,000,000)");
        assert_eq!(Series::of([3.0, 1.0, 2.0]).show(1), "2.0 (1.0 to 3.0)");
        assert_eq!(Series::of([0.42]).show(2), "0.42");
        assert_eq!(Series::of([f64::NAN]).show(2), "-");
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let ratios = Series::ratios(&[10.0, f64::NAN, 30.0], &[5.0, 1.0, 10.0]);
        assert_eq!(ratios.show(1), "2.5 (2.0 to 3.0)");
        assert_eq!(Series::ratios(&[10.0], &[]).show(1), "-");
    }
}
