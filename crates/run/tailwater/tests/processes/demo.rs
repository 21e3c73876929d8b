//! The demo shows what it does and tells how it ended, as do the load programs that are made of the same.

use crate::support::{run, tailwater};

/// The object in the last line of a command that must end well.
pub fn last_line(args: &[&str]) -> serde_json::Value {
    let text = written(&[args, &["-o", "json"]].concat());
    let last = text.lines().last().expect("a line");
    let json: serde_json::Value = serde_json::from_str(last).expect("JSON");
    assert!(json.is_object(), "{last}");
    json
}

/// What a command writes to standard output, which must end well.
fn written(args: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let output = run(tailwater().args(args).current_dir(dir.path()), b"");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Whether all of these are there and numbers; a dot goes into an object.
pub fn assert_numbers(json: &serde_json::Value, fields: &[&str]) {
    for field in fields {
        let found = field.split('.').fold(json, |json, name| &json[name]);
        assert!(found.is_number(), "{field} is {found} in {json}");
    }
}

/// Few consumers, for as long as the demo's own warm-up and a little more.
const SHORT_DEMO: [&str; 9] =
    ["demo", "--consumers", "6", "--processes", "2", "--seconds", "2.5", "--rate", "500"];

#[test]
fn the_demo_shows_a_table_of_this_machine_s_text_and_ends_with_its_verdict() {
    let text = written(&SHORT_DEMO);
    let heads = ["appended/s", "relaxed/s", "verified so far"];
    assert!(heads.iter().all(|head| text.contains(head)), "{text}");
    let last = text.lines().last().expect("a line");
    assert!(last.starts_with("verdict ") && last.ends_with("0 lost, 0 reordered, 0 corrupted"), "{text}");
}

#[test]
fn the_demo_appends_a_file_of_one_s_own_and_every_consumer_reads_all_of_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let input = dir.path().join("own.txt");
    std::fs::write(&input, "a line\nand another one\n").expect("written");
    let input = input.to_str().expect("text");
    let json = last_line(&[&SHORT_DEMO[..], &["--input", input]].concat());
    let appended = json["appended"].as_u64().expect("a count");
    assert!(appended > 0);
    assert_eq!(json["delivered"].as_u64(), Some(6 * appended), "{json}");
    assert_eq!(json["verdict"], "0 lost, 0 reordered, 0 corrupted");
    assert_numbers(&json, &["delay_ms.p50", "ack_ms.p99", "reads.relaxed", "delivered_per_s"]);
    let absent = run(tailwater().args(SHORT_DEMO).args(["--input", "/no/such/file"]), b"");
    assert!(!absent.status.success());
    let told = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert!(told.contains("/no/such/file can't be read"), "{told}");
}

#[test]
fn the_demo_of_five_clusters_ends_with_everything_in_each_after_a_cut_and_a_kill() {
    let short = ["demo-clusters", "--consumers", "3", "--shards", "2", "--rate", "100", "--seconds", "10"];
    let json = last_line(&short);
    let appended = json["appended"].as_u64().expect("a count");
    assert!(appended > 0);
    assert_eq!(json["verdict"], "0 lost, 0 reordered, 0 corrupted");
    let clusters = json["clusters"].as_array().expect("clusters");
    assert_eq!(clusters.len(), 5);
    for cluster in clusters {
        assert_eq!(cluster["delivered"].as_u64(), Some(3 * appended), "{cluster}");
        assert_numbers(cluster, &["before_ms.p50", "before_ms.p99", "all_ms.p50", "all_ms.p99"]);
    }
    // What comes over two lines takes as long at least, and what waited for the cluster that was killed longer.
    let p50 = |index: usize| clusters[index]["before_ms"]["p50"].as_f64().expect("a number");
    assert!(p50(0) < p50(4) && p50(4) >= 85.0, "{json}");
    let longest = |index: usize| clusters[index]["all_ms"]["max"].as_f64().expect("a number");
    assert!(longest(3) > 1_000.0 && longest(4) > 1_000.0, "{json}");
}

#[cfg(not(feature = "bench"))]
#[test]
fn a_build_without_benches_says_which_one_has_them_whatever_it_is_asked_for() {
    for asked in [&["bench"][..], &["bench", "append", "--record-bytes", "128"], &["bench", "--help"]] {
        let output = run(tailwater().args(asked), b"");
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && why.contains("make dist"), "{why}");
    }
}
