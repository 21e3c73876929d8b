//! The largest number that something still holds for.

/// Doubles from `start`, or halves, until one number is good and one is bad, then bisects until they are one apart or
/// a part in `exact` of the good one. `None` if not even 1 is good; never more than `limit`.
pub fn largest<E>(
    start: usize,
    limit: usize,
    exact: usize,
    mut is_good: impl FnMut(usize) -> Result<bool, E>,
) -> Result<Option<usize>, E> {
    let (mut good, mut bad) = (None, None);
    let mut number = start.clamp(1, limit);
    let (mut good, mut bad) = loop {
        if is_good(number)? {
            good = Some(number);
            number = (number * 2).min(limit);
        } else {
            bad = Some(number);
            number /= 2;
        }
        match (good, bad) {
            (Some(good), Some(bad)) => break (good, bad),
            (Some(good), None) if good == limit => return Ok(Some(good)),
            (None, _) if number == 0 => return Ok(None),
            _ => {}
        }
    };
    while bad - good > (good / exact).max(1) {
        let middle = good + (bad - good) / 2;
        if is_good(middle)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Ok(Some(good))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn largest_up_to(most: usize, start: usize, exact: usize) -> Option<usize> {
        largest::<Infallible>(start, 4_096, exact, |number| Ok(number <= most)).unwrap_or_default()
    }

    proptest! {
        #[test]
        fn it_is_found_from_anywhere(most in 0usize..5_000, start in 1usize..5_000) {
            let found = largest_up_to(most, start, usize::MAX);
            prop_assert_eq!(found, Some(most.min(4_096)).filter(|&most| most > 0));
        }

        #[test]
        fn it_is_as_exact_as_was_asked_for(most in 1usize..4_096, start in 1usize..4_096) {
            let found = largest_up_to(most, start, 8).unwrap_or(0);
            prop_assert!(found <= most && most - found <= (found / 8).max(1), "{found}");
        }
    }

    #[test]
    fn a_rough_search_takes_few_attempts() {
        let mut tried = Vec::new();
        let found = largest::<Infallible>(32, 4_096, 1, |number| {
            tried.push(number);
            Ok(number < 100)
        });
        assert_eq!((found, tried), (Ok(Some(64)), vec![32, 64, 128]));
    }
}
