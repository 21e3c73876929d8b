//! The order hint K (BDQS, section III.B.2): which of the oldest visible messages a receive takes.
//!
//! Receivers at several front ends that read the index at the same time see the same oldest messages. With K each takes
//! a random one of K, so that two of them take the same one less often the larger K is, and order is given up for it.

/// Chooses `count` of `candidates` by chance, each subset as likely as any other; the order stays. The second is how
/// many of those that are left are older than a chosen one, counted for each of the chosen.
pub(crate) fn choose<T>(
    candidates: Vec<T>,
    count: usize,
    mut random_below: impl FnMut(u64) -> u64,
) -> (Vec<T>, u64) {
    let mut left = candidates.len() as u64;
    let mut wanted = (count as u64).min(left);
    let (mut passed_over, mut passed) = (0, 0);
    let mut chosen = Vec::with_capacity(wanted as usize);
    // Selection sampling.
    for candidate in candidates {
        let take = wanted == left || (wanted > 0 && random_below(left) < wanted);
        left -= 1;
        if take {
            wanted -= 1;
            passed += passed_over;
            chosen.push(candidate);
        } else {
            passed_over += 1;
        }
    }
    (chosen, passed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::random_below;

    #[test]
    fn of_a_batch_each_subset_is_as_likely_and_the_order_stays() {
        let mut random = 7;
        let mut firsts = [0_u32; 4];
        for _ in 0..4_000 {
            let (chosen, passed) = choose(vec![0, 1, 2, 3], 2, |bound| random_below(&mut random, bound));
            assert!(chosen[0] < chosen[1], "{chosen:?}");
            assert_eq!(passed, (chosen[0] + chosen[1] - 1) as u64);
            chosen.iter().for_each(|one| firsts[*one] += 1);
        }
        assert!(firsts.iter().all(|times| (1_800..2_200).contains(times)), "{firsts:?}");
        assert_eq!(choose(vec![1, 2], 3, |_| 0), (vec![1, 2], 0));
    }
}
