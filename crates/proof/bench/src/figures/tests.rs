//! The committed page is what the committed results make, and a result says all that it has to.

use std::path::PathBuf;

use super::page::without_ages;
use super::recorded::{Machines, Recorded, parse};
use super::*;
use crate::compare::series::Series;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

#[test]
fn the_page_and_the_pictures_are_what_the_committed_results_make_but_for_ages() {
    let (machines, results) = recorded::read(&root()).expect("results");
    let unknown = vec![Freshness::Unknown; results.len()];
    let made = without_ages(&page::write(&machines, &results, &unknown));
    let committed = without_ages(&std::fs::read_to_string(root().join(PAGE)).expect("readable"));
    for (number, (committed, made)) in committed.lines().zip(made.lines()).enumerate() {
        assert_eq!(committed, made, "{PAGE}, line {}: run `make figures`", number + 1);
    }
    assert_eq!(committed.lines().count(), made.lines().count(), "{PAGE}: run `make figures`");
    let pictures = pictures(&results);
    let names: BTreeSet<_> = pictures.keys().cloned().collect();
    assert_eq!(files(&root().join(PICTURES)).expect("readable"), names, "{PICTURES}: run `make figures`");
    for (name, made) in pictures {
        let committed = std::fs::read_to_string(root().join(PICTURES).join(&name)).expect("readable");
        assert!(committed == made, "{PICTURES}/{name} is not of its result: run `make figures`");
    }
}

/// Where there is no history, as in an archive of the source, nothing can be said, and the test says that.
#[test]
fn a_result_that_the_page_calls_current_is_as_new_as_its_code() {
    let (_, results) = recorded::read(&root()).expect("results");
    let page = std::fs::read_to_string(root().join(PAGE)).expect("readable");
    let [in_sections, at_head] = page::called_current(&page, &results).map(|called| {
        called.into_iter().map(|result| (result.name.clone(), result)).collect::<BTreeMap<_, _>>()
    });
    assert!(
        in_sections.keys().eq(at_head.keys()),
        "{PAGE}: its head and its sections differ: run `make figures`"
    );
    let history = CodeHistory::of(&root()).expect("readable");
    for (name, result) in in_sections {
        match history.freshness(&result.build, &result.paths) {
            Freshness::Current => {}
            Freshness::Older { first, .. } => {
                panic!(
                    "{PAGE} calls {name} as new as its code, which {first} has changed: run `make figures`"
                )
            }
            Freshness::Unknown => {
                eprintln!("whether {name} is current is unknown: git has no history to its build")
            }
        }
    }
}

#[test]
fn a_page_says_in_two_places_which_results_are_current() {
    let older = Freshness::Older { commits: 2, first: "`0123456` of 2026-11-27".to_owned() };
    let results =
        ["one", "other"].map(|title| Recorded { title: title.to_owned(), ..read(RESULT).expect("a result") });
    let page = page::write(&Machines::new(), &results, &[older, Freshness::Current]);
    let called = page::called_current(&page, &results);
    assert_eq!(
        called.map(|called| called.into_iter().map(|result| &*result.title).collect::<Vec<_>>()),
        [["other"]; 2]
    );
}

#[test]
fn the_readme_names_the_days_of_the_builds_whose_figures_it_has() {
    let (_, results) = recorded::read(&root()).expect("results");
    let readme = std::fs::read_to_string(root().join("README.md")).expect("readable");
    for name in ["append-4096", "tcp-connections", "tcp-shared", "fanout-apart", "fanout-aeron"] {
        let result = results.iter().find(|result| result.name == name).expect(name);
        assert!(readme.contains(&result.date), "README.md lacks {}, the day of {name}", result.date);
    }
    for (name, what) in
        [("append-4096", "acknowledged after, p99, ms"), ("fanout-apart", "256 processes: cores in all")]
    {
        let result = results.iter().find(|result| result.name == name).expect(name);
        let figure = result.figures.iter().find(|figure| figure.what == what).expect(what);
        for values in std::iter::once(&figure.ours).chain(&figure.beside).filter(|values| !values.is_empty())
        {
            let value = Series::of(values.iter().copied()).show(figure.digits);
            assert!(readme.contains(&value), "README.md lacks {value}, {what} of {name}");
        }
    }
}

#[test]
fn titles_are_unlike_so_that_each_section_has_its_anchor() {
    let (_, results) = recorded::read(&root()).expect("results");
    let titles: BTreeSet<_> = results.iter().map(|result| result.title.to_lowercase()).collect();
    assert_eq!(titles.len(), results.len());
}

const RESULT: &str = r#"
part = "appends"
title = "Appends"
claim = "Twice the peer's."
commands = ["bench append"]
machine = "m"
date = "2026-11-27"
build = "0123456789012345678901234567890123456789"
profile = "release"
paths = ["Cargo.toml"]
beside = ["peer", "disk"]

[[figures]]
what = "records/s"
ours = [200, 330, 400]
beside = [[100, 110, 100]]
aims = [{ over = "peer", at_least = 3.5 }]

[[figures]]
what = "ms"
digits = 1
ours = [0.5]
beside = [[], [0.25]]
aims = [{ above = "disk", at_most = 0.3 }]

[picture]
title = "Records"
bars = [["rate", "records/s"]]
"#;

fn read(text: &str) -> anyhow::Result<Recorded> {
    let machines = Machines::from([("m".to_owned(), "a machine".to_owned())]);
    parse(&root(), "appends", text, &machines)
}

#[test]
fn ratios_and_differences_are_of_the_same_run_and_their_median_decides() {
    let result = read(RESULT).expect("a result");
    let text = page::write(&Machines::new(), &[result], &[Freshness::Unknown]);
    let rate = "| records/s | 330 (200 to 400) | 100 (100 to 110) | - | at least 3.5 × peer: **3.00 (2.00 to 4.00)**, **not reached** |";
    assert!(text.contains(rate), "{text}");
    assert!(text.contains("| ms | 0.5 | - | 0.3 | at most 0.3 above disk: **0.25**, reached |"), "{text}");
}

#[test]
fn a_picture_has_the_table_s_figures() {
    let result = read(RESULT).expect("a result");
    let picture = picture::draw(&result).expect("drawn");
    assert!(picture.contains(">330 </text>") && picture.contains(">100 </text>"), "{picture}");
    assert!(!picture.contains(">disk</text>"), "the disk has no records: {picture}");
}

#[test]
fn a_page_without_ages_is_the_same_at_any_age() {
    let older = Freshness::Older { commits: 2, first: "`0123456` of 2026-11-27".to_owned() };
    let write = |age: Freshness| page::write(&Machines::new(), &[read(RESULT).expect("a result")], &[age]);
    let pages = [Freshness::Current, older, Freshness::Unknown].map(write);
    assert!(pages[0] != pages[1] && pages[1] != pages[2]);
    let masked = pages.map(|page| without_ages(&page));
    assert!(masked[0] == masked[1] && masked[1] == masked[2]);
    assert!(masked[0].contains("**3.00 (2.00 to 4.00)**"), "{}", masked[0]);
}

#[test]
fn a_result_that_names_what_is_not_there_is_refused_with_what_to_do() {
    let refused = |from: &str, to: &str| {
        assert!(RESULT.contains(from), "{from}");
        format!("{:#}", read(&RESULT.replacen(from, to, 1)).expect_err(to))
    };
    assert!(refused("machine = \"m\"", "machine = \"n\"").contains("machines.toml"));
    assert!(refused("\"Cargo.toml\"", "\"crates/gone/src\"").contains("say its new name"));
    assert!(refused("over = \"peer\"", "over = \"pear\"").contains("\"pear\" is not in the file's `beside`"));
    assert!(refused("over = \"peer\"", "over = \"disk\"").contains("no value"));
    assert!(refused("\"disk\"]", "\"peer\"]").contains("the same name"));
    assert!(refused("0123456789", "").contains("40 hexadecimal digits"));
    assert!(refused("2026-11-27", "yesterday").contains("YYYY-MM-DD"));
    assert!(refused("[\"rate\", \"records/s\"]", "[\"rate\", \"rate\"]").contains("is no figure"));
    assert!(refused("ours = [0.5]", "ours = []").contains("`ours` is empty"));
}

#[test]
fn a_link_into_the_page_names_a_section_of_it() {
    let page = std::fs::read_to_string(root().join(PAGE)).expect("readable");
    let headings =
        page.lines().filter_map(|line| line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")));
    let anchors: BTreeSet<String> = headings.map(page::anchor).collect();
    let mut documents =
        vec![root().join("README.md"), root().join("CHANGELOG.md"), root().join("bench/README.md")];
    documents.push(root().join("crates/proof/bench/README.md"));
    documents.push(root().join("crates/run/tailwater/src/allocator.rs"));
    for folder in ["docs", "docs/adr", "docs/notes"] {
        let names =
            files(&root().join(folder)).expect("readable").into_iter().filter(|name| name.ends_with(".md"));
        documents.extend(names.map(|name| root().join(folder).join(name)));
    }
    let mut links = 0;
    for document in documents {
        let text = std::fs::read_to_string(&document).expect("readable");
        for after in text.split("benchmarks.md#").skip(1) {
            let anchor = after.split(')').next().unwrap_or_default();
            assert!(
                anchors.contains(anchor),
                "{} names the section {anchor:?} of {PAGE}",
                document.display()
            );
            links += 1;
        }
    }
    assert!(links > 1, "only {links} links were found: does this test still look for the right words?");
}

#[test]
fn a_result_that_was_started_is_read_once_it_is_filled_in_and_not_before() {
    let template = recorded::template("0123456789012345678901234567890123456789", "2026-11-27");
    assert!(format!("{:#}", read(&template).expect_err("empty")).contains("`machine` \"\""));
    let filled = template.replace("machine = \"\"", "machine = \"m\"");
    assert!(format!("{:#}", read(&filled).expect_err("no values")).contains("`ours` is empty"));
    let filled = filled.replace("ours = []", "ours = [2]").replace("[[]]", "[[1]]");
    assert_eq!(read(&filled).expect("filled in").figures.len(), 1);
}

#[test]
fn the_readme_s_picture_is_drawn_from_the_results_as_they_are() {
    let (_, results) = recorded::read(&root()).expect("results");
    let picture = std::fs::read_to_string(root().join(compared::PICTURE)).expect("readable");
    assert!(picture == compared::draw(&results).expect("drawn"), "{}: run make figures", compared::PICTURE);
}
