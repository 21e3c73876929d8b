//! The broadcast experiments, each as a command and small, tell what they measured in the form that scripts read.

use serde_json::Value;

use crate::demo::{assert_numbers, last_line};

/// The object that `bench broadcast` ends with.
fn broadcast(args: &[&str]) -> Value {
    last_line(&[&["bench", "broadcast"], args].concat())
}

fn assert_nothing_lost_or_reordered(json: &Value) {
    for none in ["lost", "reordered"] {
        assert_eq!(json[none], 0, "{none} in {json}");
    }
}

fn list<'a>(json: &'a Value, field: &str) -> &'a Vec<Value> {
    json[field].as_array().unwrap_or_else(|| panic!("no {field} in {json}"))
}

#[test]
fn events_among_three_proxies_are_taken_one_by_one_or_in_batches_and_none_is_lost() {
    for (given, receive) in [(&[][..], "get-event"), (&["--receive", "batches"], "batches")] {
        let small = ["4", "--proxies", "3", "--batch", "50", "--duration-s", "1", "--warmup-s", "0"];
        let json = broadcast(&[&small[..], given].concat());
        assert_eq!((&json["proxies"], &json["receive"]), (&3.into(), &receive.into()), "{json}");
        assert_numbers(&json, &["events_per_s", "published", "collected", "lost", "reordered"]);
        assert_numbers(&json, &["delay_ms.p50", "delay_ms.p99", "delay_ms.max"]);
        assert_numbers(&json, &["cores.proxies", "cores.drivers_and_listeners"]);
        assert_nothing_lost_or_reordered(&json);
        assert!(json["published"].as_u64() > Some(0) && json["events_per_s"].as_f64() > Some(0.0), "{json}");
    }
}

/// Few clients for a short time at a load that they can carry.
const SMALL: [&str; 10] =
    ["--clients", "12", "--replicas", "2", "--view", "6", "--loads", "0.002", "--seconds", "0.2"];

fn assert_run(run: &Value) {
    assert_numbers(run, &["feeds", "fanout", "shuffle_ms", "load", "offered_s", "delivered_s"]);
    assert_numbers(run, &["to_all_mean_ms", "to_all_ms.p50", "to_all_ms.p99", "to_each_ms.p99"]);
    assert_numbers(run, &["from_proxy_percent", "requests_to_proxy_s", "duplicates_percent"]);
    assert_eq!(run["unfinished"], 0.0, "{run}");
    assert!(run["delivered_s"].as_f64() > Some(0.0), "{run}");
}

#[test]
fn fan_outs_and_shuffle_times_in_simulated_regions_end_with_the_best_fan_out_of_each_time() {
    let json = broadcast(&[&["5b", "--fanouts", "2,4", "--shuffles-ms", "20,60"], &SMALL[..]].concat());
    let runs = list(&json, "runs");
    assert_eq!((&json["regions"], &json["clients"], runs.len()), (&3.into(), &12.into(), 4), "{json}");
    runs.iter().for_each(assert_run);
    assert!([2, 4].contains(&json["best_fanout"].as_u64().expect("a fan-out")), "{json}");
    let best = list(&json, "best_fanouts");
    let times: Vec<_> = best.iter().map(|best| best["shuffle_ms"].as_u64()).collect();
    assert_eq!(times, [Some(20), Some(60)], "{json}");
    assert!(best.iter().all(|best| [2, 4].contains(&best["fanout"].as_u64().expect("a fan-out"))));
}

#[test]
fn loads_in_simulated_regions_end_with_a_run_of_each_form_and_the_best_fan_out() {
    let json = broadcast(&[&["6", "--fanouts", "3"], &SMALL[..]].concat());
    let runs = list(&json, "runs");
    runs.iter().for_each(assert_run);
    let forms: Vec<_> = runs.iter().map(|run| (run["feeds"].as_u64(), run["fanout"].as_u64())).collect();
    assert_eq!(forms, [(Some(0), Some(3)), (Some(6), Some(3))], "{json}");
    assert_eq!(json["best_fanout"], 3, "{json}");
}

#[test]
fn a_cut_link_between_simulated_regions_loses_nothing_and_each_region_s_seconds_are_told() {
    let json = broadcast(&["7", "--clients", "5", "--loads", "0.0002", "--seconds", "6", "--cut-s", "2,4"]);
    assert_eq!((&json["regions"], &json["unfinished"]), (&4.into(), &0.0.into()), "{json}");
    assert_numbers(&json, &["moved"]);
    assert_run(&json["run"]);
    assert!(json["moved"].as_u64() > Some(0), "a stream came over another region meanwhile: {json}");
    let regions = list(&json, "by_region");
    assert_eq!(regions.len(), 4, "{json}");
    for region in regions {
        let (delivered, delays) = (list(region, "delivered_s"), list(region, "to_all_mean_ms"));
        assert!(delivered.len() >= 6 && delays.len() == delivered.len(), "{region}");
    }
}

#[test]
fn ten_simulated_regions_end_with_one_run_in_which_clients_are_fed() {
    let json =
        broadcast(&["many", "--clients", "3", "--replicas", "2", "--seconds", "0.2", "--loads", "0.0004"]);
    let runs = list(&json, "runs");
    assert_eq!((&json["regions"], runs.len()), (&10.into(), 1), "{json}");
    runs.iter().for_each(assert_run);
    assert_eq!((&runs[0]["feeds"], &json["best_fanout"]), (&6.into(), &Value::Null), "{json}");
}

#[test]
fn ages_of_invalidated_keys_end_with_a_curve_for_each_skew_and_rate() {
    let json = broadcast(&["9", "--ticks", "60"]);
    let curves = list(&json, "curves");
    assert_eq!(curves.len(), 5, "{json}");
    for curve in curves {
        assert_numbers(curve, &["skew", "lambda", "events"]);
        assert!(!list(curve, "points").is_empty(), "{curve}");
    }
}

#[test]
fn events_that_are_kept_are_those_that_keeping_the_latest_of_each_key_keeps() {
    for (figure, cases) in [("10a", 1), ("10b", 2)] {
        let json = broadcast(&[figure, "--events", "5000", "--skew", "1.1,1.5"]);
        let difference = json["difference_points_max"].as_f64().expect("a number");
        assert!(difference <= 1.0, "{json}");
        let curves = list(&json, "curves");
        assert_eq!(curves.len(), 2 * cases, "{json}");
        for curve in curves {
            assert_numbers(curve, &["skew", "delivered_to_newcomer", "bytes_per_kept_event"]);
            let last = list(curve, "points").last().expect("a point");
            assert_numbers(last, &["events", "kept", "latest_per_key", "stored", "saved_percent"]);
            assert_eq!(last["events"], 5000, "{curve}");
        }
    }
}

#[test]
fn listeners_that_share_get_every_event_and_tell_where_from_and_how_late() {
    let small = ["members", "--clients", "5", "--rate", "300", "--duration-s", "1", "--warmup-s", "1"];
    let json = broadcast(&small);
    assert_numbers(&json, &["published_per_s", "delivered_per_s", "from_proxy", "view_min", "links_mean"]);
    assert_numbers(&json, &["delay_ms.p50", "delay_ms.p99", "cores.proxy", "cores.listeners"]);
    assert_nothing_lost_or_reordered(&json);
    let published = json["published"].as_u64().expect("a count");
    assert!(published > 0);
    assert_eq!(json["delivered"].as_u64(), Some(5 * published), "{json}");
    assert_eq!(json["warmup_s"], 1, "{json}");
}

#[test]
fn a_chain_s_replicas_are_killed_in_turn_and_one_object_tells_that_nothing_was_lost() {
    // A turn is brought to its end: one kill of each.
    let args = ["bench", "broadcast", "kills", "--duration-s", "0", "--rate", "500"];
    let json = last_line(&args);
    assert_eq!((&json["kills"], &json["read_again"]), (&3.into(), &4.into()), "{json}");
    for place in ["head", "middle", "tail"] {
        assert_eq!(json["pauses_ms"][place]["kills"], 1, "{json}");
    }
    assert_numbers(&json, &["longest_pause_ms", "pauses_ms.head.max", "ack_ms.p50", "delay_ms.p99"]);
    for none in ["lost", "reordered", "duplicated", "misnumbered", "differing"] {
        assert_eq!(json[none], 0, "{none} in {json}");
    }
    let published = json["published"].as_u64().expect("a count");
    assert!(published > 0);
    assert_eq!(json["delivered"], published, "{json}");
}

#[test]
fn proxies_with_few_and_with_many_keys_have_an_event_of_each_left_and_their_cost_is_told() {
    let args = ["bench", "broadcast", "keys", "--stored", "500,3000", "--turns", "1", "--duration-s", "1"];
    let json = last_line(&args);
    assert_eq!(json["lost"], 0, "{json}");
    let proxies = json["proxies"].as_array().expect("a list");
    assert_eq!(proxies.len(), 2, "{json}");
    for (proxy, stored) in proxies.iter().zip([500, 3000]) {
        assert_eq!((&proxy["stored"], &proxy["live"]), (&stored.into(), &stored.into()), "{json}");
        assert_numbers(proxy, &["cpu_ns", "events_per_s", "ack_ms.p50"]);
    }
    assert_numbers(&json, &["cpu_of_first"]);
}
