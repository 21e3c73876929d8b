//! Plans of any small graphs, beside all trees that there are.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tailwater_trees::{ClusterEntry, HopRole, LinkEntry, PlanError, TreeCosts, TreePlan, TreeRequest, plan};

fn name(cluster: usize) -> String {
    format!("c{cluster}")
}

fn costs(clusters: usize, links: &[(usize, usize, u32)]) -> TreeCosts {
    let cluster = |number| ClusterEntry { name: name(number), ..ClusterEntry::default() };
    let link = |&(a, b, cost): &(usize, usize, u32)| LinkEntry {
        between: [name(a), name(b)],
        cost_per_gb: cost.into(),
        delay_ms: 1.0,
        bandwidth_bytes_per_s: None,
        failing: false,
    };
    TreeCosts { clusters: (0..clusters).map(cluster).collect(), links: links.iter().map(link).collect() }
}

fn request(depth_max: usize, fan_out_max: usize) -> TreeRequest {
    TreeRequest { depth_max, fan_out_max, ..TreeRequest::new("s", &name(0)) }
}

/// 3 to `most` clusters, all or some of the links between them, and bounds that may be too tight.
fn cases(
    most: usize,
    links_percent: u32,
) -> impl Strategy<Value = (usize, Vec<(usize, usize, u32)>, usize, usize)> {
    (3..=most).prop_flat_map(move |clusters| {
        let pairs: Vec<(usize, usize)> = (0..clusters).flat_map(|a| (0..a).map(move |b| (b, a))).collect();
        let links = prop::collection::vec((1..50u32, 0..100u32), pairs.len()).prop_map(move |drawn| {
            let kept = pairs.iter().zip(drawn).filter(|(_, (_, percent))| *percent < links_percent);
            kept.map(|(&(a, b), (cost, _))| (a, b, cost)).collect::<Vec<_>>()
        });
        (Just(clusters), links, 1..=4usize, 1..=4usize)
    })
}

/// The cost of the cheapest tree, by looking at all of them; `forwards` says who may send.
fn cheapest(
    clusters: usize,
    links: &[(usize, usize, u32)],
    (depth_max, fan_out_max): (usize, usize),
    forwards: &dyn Fn(usize) -> bool,
) -> Option<u32> {
    let cost: BTreeMap<(usize, usize), u32> =
        links.iter().flat_map(|&(a, b, cost)| [((a, b), cost), ((b, a), cost)]).collect();
    let mut parents = vec![0; clusters];
    let mut least = None;
    loop {
        let fan_out = |of: usize| (1..clusters).filter(|&child| parents[child] == of).count();
        // A way with as many hops as there are clusters is a cycle.
        let depth = |of: usize| {
            let mut way = std::iter::successors(Some(of), |&at| Some(parents[at])).take(clusters);
            way.position(|at| at == 0)
        };
        let is_right = (1..clusters).all(|child| cost.contains_key(&(parents[child], child)))
            && (1..clusters).all(|of| depth(of).is_some_and(|depth| depth <= depth_max))
            && (0..clusters).all(|of| fan_out(of) <= if forwards(of) { fan_out_max } else { 0 });
        if is_right {
            let sum = (1..clusters).map(|child| cost[&(parents[child], child)]).sum::<u32>();
            least = Some(least.map_or(sum, |least: u32| least.min(sum)));
        }
        let Some(at) = (1..clusters).find(|&of| parents[of] + 1 < clusters) else { return least };
        parents[1..at].fill(0);
        parents[at] += 1;
    }
}

/// The cost of the cheapest tree without bounds, as Kruskal finds it.
fn least_spanning(clusters: usize, links: &[(usize, usize, u32)]) -> Option<u32> {
    let mut links = links.to_vec();
    links.sort_by_key(|&(_, _, cost)| cost);
    let mut parts: Vec<usize> = (0..clusters).collect();
    let mut sum = 0;
    for (a, b, cost) in links {
        let (a, b) = (parts[a], parts[b]);
        if a != b {
            sum += cost;
            parts.iter_mut().filter(|part| **part == b).for_each(|part| *part = a);
        }
    }
    parts.iter().all(|&part| part == parts[0]).then_some(sum)
}

/// Every destination once, each below one that is there before it, within the bounds.
fn is_a_tree(found: &TreePlan, clusters: usize, depth_max: usize, fan_out_max: usize) -> bool {
    let mut depths = BTreeMap::from([(found.source.clone(), 0)]);
    let mut fan_outs: BTreeMap<&str, usize> = BTreeMap::new();
    for hop in &found.hops {
        let Some(&depth) = depths.get(&hop.from) else { return false };
        *fan_outs.entry(&hop.from).or_default() += 1;
        if hop.depth != depth + 1 || depths.insert(hop.to.clone(), hop.depth).is_some() {
            return false;
        }
    }
    let said = |hop: &tailwater_trees::TreeHop| fan_outs.get(&*hop.to).copied().unwrap_or(0) == hop.fan_out;
    depths.len() == clusters
        && depths.values().all(|&depth| depth <= depth_max)
        && fan_outs.values().all(|&fan_out| fan_out <= fan_out_max)
        && found.hops.iter().all(said)
}

fn beside_all_trees(
    (clusters, links, depth_max, fan_out_max): &(usize, Vec<(usize, usize, u32)>, usize, usize),
) -> Result<(), TestCaseError> {
    let best = cheapest(*clusters, links, (*depth_max, *fan_out_max), &|_| true);
    match (plan(&costs(*clusters, links), &request(*depth_max, *fan_out_max)), best) {
        (Ok(found), Some(best)) => {
            prop_assert!(is_a_tree(&found, *clusters, *depth_max, *fan_out_max), "{found:?}");
            // Both operations of a file send.
            prop_assert_eq!(found.cost_per_gb, f64::from(best) * 2.0, "{:?}", found);
        }
        (Err(PlanError::Unreachable { .. } | PlanError::Bounds { .. }), None) => {}
        (found, best) => prop_assert!(false, "{found:?} where the cheapest is {best:?}"),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn with_all_links_a_plan_is_a_tree_within_its_bounds_and_the_cheapest(case in cases(6, 100)) {
        beside_all_trees(&case)?;
    }

    #[test]
    fn with_some_links_a_plan_is_there_whenever_a_tree_is(case in cases(6, 60)) {
        beside_all_trees(&case)?;
    }

    #[test]
    fn of_more_clusters_with_all_links_a_plan_is_a_tree_whenever_one_fits((clusters, links, depth_max, fan_out_max) in cases(24, 100)) {
        let room: usize = (1..=depth_max as u32).map(|depth| fan_out_max.pow(depth)).sum();
        match plan(&costs(clusters, &links), &request(depth_max, fan_out_max)) {
            Ok(found) => prop_assert!(is_a_tree(&found, clusters, depth_max, fan_out_max), "{found:?}"),
            Err(error) => prop_assert!(room < clusters - 1, "{error}"),
        }
    }

    #[test]
    fn without_tight_bounds_a_plan_is_the_cheapest_tree((clusters, links, _, _) in cases(6, 60)) {
        let best = cheapest(clusters, &links, (clusters, clusters), &|_| true);
        let found = plan(&costs(clusters, &links), &request(clusters, clusters));
        prop_assert_eq!(found.ok().map(|found| found.cost_per_gb), best.map(|best| f64::from(best) * 2.0));
    }

    #[test]
    fn of_more_clusters_without_tight_bounds_a_plan_is_the_cheapest_tree((clusters, links, _, _) in cases(24, 60)) {
        let best = least_spanning(clusters, &links).map(|best| f64::from(best) * 2.0);
        let found = plan(&costs(clusters, &links), &request(clusters, clusters));
        prop_assert_eq!(found.ok().map(|found| found.cost_per_gb), best);
    }

    #[test]
    fn a_failing_cluster_is_a_leaf_whenever_a_tree_allows_that(
        (clusters, links, depth_max, fan_out_max) in cases(6, 80),
        failing in 1..3usize,
    ) {
        let mut given = costs(clusters, &links);
        given.clusters[failing.min(clusters - 1)].failing = true;
        let as_leaf = cheapest(clusters, &links, (depth_max, fan_out_max), &|of| of != failing.min(clusters - 1));
        if let Ok(found) = plan(&given, &request(depth_max, fan_out_max)) {
            let hop = found.hops.iter().find(|hop| hop.role == HopRole::Failing).expect("it is in the tree");
            prop_assert_eq!(hop.fan_out == 0, as_leaf.is_some(), "{:?}", found);
            prop_assert_eq!(found.notes.len(), usize::from(hop.fan_out > 0));
        }
    }

    #[test]
    fn the_same_costs_in_another_order_have_the_same_plan(
        (clusters, links, depth_max, fan_out_max) in cases(12, 70),
        shuffled in any::<prop::sample::Index>(),
    ) {
        let given = costs(clusters, &links);
        let mut turned = given.clone();
        turned.clusters.reverse();
        if !turned.links.is_empty() {
            let by = shuffled.index(turned.links.len());
            turned.links.rotate_left(by);
        }
        turned.links.iter_mut().step_by(2).for_each(|link| link.between.reverse());
        let request = request(depth_max, fan_out_max);
        prop_assert_eq!(plan(&given, &request), plan(&turned, &request));
    }

    #[test]
    fn what_a_refusal_says_would_do_does((clusters, links, depth_max, fan_out_max) in cases(12, 50)) {
        let given = costs(clusters, &links);
        let Err(PlanError::Bounds { remedy, .. }) = plan(&given, &request(depth_max, fan_out_max)) else { return Ok(()) };
        let behind = |text: &str| {
            let digits = remedy.split_once(text)?.1.split(|char: char| !char.is_ascii_digit()).next()?;
            digits.parse::<usize>().ok()
        };
        if let Some(depth) = behind("a depth of ") {
            prop_assert!(plan(&given, &request(depth, fan_out_max)).is_ok(), "{}", remedy);
        }
        if let Some(fan_out) = behind("a fan-out of ") {
            prop_assert!(plan(&given, &request(depth_max, fan_out)).is_ok(), "{}", remedy);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn of_seven_clusters_a_plan_is_the_cheapest_tree(case in cases(7, 100)) {
        beside_all_trees(&case)?;
    }
}
