//! Scenarios: outages, new clusters, costs that are wrong, and the pictures.

use tailwater_trees::{HopRole, PlanError, TreeCosts, TreePlan, TreeRequest, dot, plan, svg};

/// Costs of links as `a b cost delay` with one more word behind, `fails` or a bandwidth; clusters that are named alone,
/// with `fails` or `new`, have that.
fn costs(lines: &str) -> TreeCosts {
    let mut text = String::new();
    let mut known = std::collections::BTreeSet::new();
    let links: Vec<Vec<&str>> = lines.lines().map(|line| line.split_whitespace().collect()).collect();
    for words in &links {
        if let [name, is @ ("fails" | "new")] = words[..] {
            known.insert(name);
            let key = if is == "fails" { "failing" } else { "new" };
            text += &format!("[[cluster]]\nname = \"{name}\"\n{key} = true\n");
        }
    }
    for words in links.iter().filter(|words| words.len() > 2) {
        for name in &words[..2] {
            if known.insert(name) {
                text += &format!("[[cluster]]\nname = \"{name}\"\n");
            }
        }
        let more = match words.get(4) {
            Some(&"fails") => "failing = true".to_owned(),
            Some(bandwidth) => format!("bandwidth_bytes_per_s = {bandwidth}"),
            None => String::new(),
        };
        text += &format!(
            "[[link]]\nbetween = [\"{}\", \"{}\"]\ncost_per_gb = {}\ndelay_ms = {}\n{more}\n",
            words[0], words[1], words[2], words[3]
        );
    }
    TreeCosts::from_toml(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn edges(plan: &TreePlan) -> Vec<String> {
    plan.hops.iter().map(|hop| format!("{} {}", hop.from, hop.to)).collect()
}

fn request() -> TreeRequest {
    TreeRequest::new("orders", "us")
}

fn planned(lines: &str) -> TreePlan {
    plan(&costs(lines), &request()).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(lines: &str, request: &TreeRequest) -> String {
    plan(&costs(lines), request).expect_err("refused").to_string()
}

#[test]
fn one_hop_crosses_an_ocean_and_the_next_ones_stay_there() {
    let plan =
        planned("us eu 0.05 40\nus eu2 0.05 40\neu eu2 0.01 1\nus as 0.08 70\nus as2 0.08 70\nas as2 0.01 2");
    assert_eq!(edges(&plan), ["us as", "as as2", "us eu", "eu eu2"]);
    assert_eq!((plan.cost_per_gb, plan.depth, plan.fan_out, plan.delay_ms), (0.3, 2, 2, 72.0));
}

#[test]
fn of_trees_that_cost_the_same_the_shallow_one_is_taken_and_then_the_fast_one() {
    assert_eq!(edges(&planned("us a 1 5\nus b 1 5\na b 1 1")), ["us a", "us b"]);
    assert_eq!(edges(&planned("us a 1 1\nus b 1 9\na c 1 1\nb c 1 1")), ["us a", "a c", "us b"]);
}

#[test]
fn a_cluster_that_fails_is_a_leaf_and_forwards_only_where_nothing_else_leads_on() {
    let around = planned("a fails\nus a 1 1\na b 1 1\nus b 50 1");
    assert_eq!((edges(&around), around.notes.len()), (vec!["us a".to_owned(), "us b".to_owned()], 0));
    assert_eq!(around.hops[0].role, HopRole::Failing);
    let through = planned("a fails\nus a 1 1\na b 1 1");
    assert_eq!(edges(&through), ["us a", "a b"]);
    assert!(through.notes[0].contains("a has an outage"), "{:?}", through.notes);
}

#[test]
fn a_link_that_fails_is_used_only_where_nothing_else_leads_to_a_cluster() {
    assert_eq!(edges(&planned("us a 1 1 fails\nus b 9 1\na b 9 1")), ["us b", "b a"]);
    let through = planned("us a 1 1 fails\na b 1 1");
    assert!(through.hops[0].failing_link && through.notes[0].contains("from us to a"), "{:?}", through.notes);
}

#[test]
fn what_is_near_an_outage_is_avoided_where_that_costs_little() {
    // `a` has a link to what fails, and `b` has none: from 1 to 2 times the cost `b` is the better parent.
    let lines = |cost: &str| format!("x fails\nus a 1 1\nus b 1 1\na c 1 1\nb c {cost} 1\na x 1 1");
    let edges_for = |cost: &str| edges(&planned(&lines(cost))).contains(&"b c".to_owned());
    assert!(edges_for("1.5") && !edges_for("2.5"));
}

#[test]
fn a_new_cluster_is_a_leaf_with_a_limit_until_it_is_promoted() {
    let lines = "us a 1 1\na b 1 1\nus b 50 1";
    let plan = planned(&format!("a new\n{lines}"));
    assert_eq!(edges(&plan), ["us a", "us b"]);
    assert_eq!((plan.hops[0].role, plan.hops[0].limit_bytes_per_s), (HopRole::New, Some(16 << 20)));
    assert_eq!(edges(&planned(lines)), ["us a", "a b"]);
    let told = refused("a new\nus a 1 1\na b 1 1", &request());
    assert!(
        told.contains("b can't be reached") && told.contains("(a)") && told.contains("take `new` off"),
        "{told}"
    );
    let fast = TreeRequest { bytes_per_s: Some(9 << 20), ..request() };
    assert!(refused("a new\nus a 1 1", &fast).contains("raise its limit_bytes_per_s"));
}

#[test]
fn links_carry_both_operations_of_a_stream_or_are_left_out() {
    let lines = "us a 1 1 1999\nus b 5 1\nb a 5 1 2000";
    let at = |bytes_per_s| plan(&costs(lines), &TreeRequest { bytes_per_s: Some(bytes_per_s), ..request() });
    assert_eq!(edges(&at(999).expect("a plan")), ["us a", "us b"]);
    assert_eq!(edges(&at(1000).expect("a plan")), ["us b", "b a"]);
    assert!(at(1001).expect_err("refused").to_string().contains("carry less than both operations"));
    // 86.4 MB a day, twice, over links of 10.
    assert!((at(1000).expect("a plan").cost_per_day.expect("it is known") - 1.728).abs() < 1e-9);
}

#[test]
fn bounds_that_are_too_tight_are_told_with_those_that_would_do() {
    let chain = "us a 1 1\na b 1 1\nb c 1 1";
    let told = refused(chain, &TreeRequest { depth_max: 2, ..request() });
    assert!(told.contains("lead to c in 3 hops"), "{told}");
    let star = "us a 1 1\nus b 1 1\nus c 1 1";
    let told = refused(star, &TreeRequest { fan_out_max: 2, ..request() });
    assert!(told.contains("allow a fan-out of 3"), "{told}");
    assert_eq!(
        plan(&costs(chain), &TreeRequest { depth_max: 0, ..request() }),
        Err(PlanError::ZeroBound("the largest depth"))
    );
}

#[test]
fn costs_that_are_wrong_are_told_with_what_to_mend() {
    let mut twice = costs("us a 1 1");
    twice.clusters.push(twice.clusters[0].clone());
    assert_eq!(plan(&twice, &request()), Err(PlanError::DuplicateCluster("us".to_owned())));
    let mut unknown = costs("us a 1 1");
    unknown.clusters.pop();
    assert!(plan(&unknown, &request()).expect_err("refused").to_string().contains("names cluster a"));
    let mut none = costs("us a 1 1");
    none.links[0].delay_ms = f64::NAN;
    assert!(plan(&none, &request()).expect_err("refused").to_string().contains("delay_ms = NaN"));
    for (lines, right) in [
        ("us a 1 1\na us 2 1", "two links are between a and us"),
        ("us a -1 1", "cost_per_gb = -1: use a number from 0"),
        ("us a 1 1\nb c 1 1", "b, c can't be reached from us: no link leads there"),
        ("us a 1 1\nb b 1 1", "between b and itself"),
        ("us new\nus a 1 1", "us is the source, and new"),
        ("us a 1 1 0", "bandwidth_bytes_per_s = 0"),
        ("us a\"b 1 1".replace('"', "/").as_str(), "is no name of a cluster"),
    ] {
        let told = refused(lines, &request());
        assert!(told.contains(right), "{lines}: {told}");
    }
    assert!(TreeCosts::from_toml("[[cluster]]\nnam = \"a\"").is_err());
    assert!(TreeCosts::from_json("{\"cluster\": [{}]}").is_err());
}

#[test]
fn pictures_have_every_cluster_and_every_hop() {
    let mut plan = planned("a fails\nus a 1 1\nus b 1 1\nb c 1 1 fails");
    plan.stream = "a \"<b>\"".to_owned();
    let picture = svg(&plan);
    assert_eq!((picture.matches("<circle").count(), picture.matches("<polyline").count()), (4, 3));
    assert!(picture.contains("a \"&lt;b>\"") && picture.contains("stroke-dasharray"), "{picture}");
    let graph = dot(&plan);
    assert_eq!((graph.matches(" -> ").count(), graph.matches("style=dashed").count()), (3, 1));
    assert!(graph.contains("a \\\"<b>\\\""), "{graph}");
}
