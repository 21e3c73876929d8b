//! The committed page is what the committed results make, and a result says all that it has to.

use std::path::PathBuf;

use super::recorded::{Machines, Recorded, parse};
use super::*;
use crate::compare::series::Series;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The folder of the pages of details, and what is there.
fn committed_details() -> BTreeMap<String, String> {
    let folder = root().join(sections::FOLDER);
    let names = files(&folder).expect("readable").into_iter();
    names.map(|name| (name.clone(), std::fs::read_to_string(folder.join(&name)).expect("readable"))).collect()
}

fn committed_overview() -> String {
    std::fs::read_to_string(root().join(PAGE)).expect("readable")
}

#[test]
fn the_pages_and_the_pictures_are_what_the_committed_results_make_but_for_ages() {
    let (machines, results) = recorded::read(&root()).expect("results");
    let unknown = vec![Freshness::Unknown; results.len()];
    let equal = |name: &str, committed: &str, made: &str| {
        for (number, (committed, made)) in committed.lines().zip(made.lines()).enumerate() {
            assert_eq!(committed, made, "{name}, line {}: run `make figures`", number + 1);
        }
        assert_eq!(committed.lines().count(), made.lines().count(), "{name}: run `make figures`");
    };
    let [committed, made] = [committed_overview(), overview::write(&machines, &results, &unknown)]
        .map(|page| overview::without_ages(&page));
    equal(PAGE, &committed, &made);
    let (committed, made) = (committed_details(), details(&results, &unknown));
    assert!(committed.keys().eq(made.keys()), "{}: run `make figures`", sections::FOLDER);
    for (name, page) in &made {
        equal(name, &sections::without_ages(&committed[name]), &sections::without_ages(page));
    }
    let pictures = pictures(&results);
    let names: BTreeSet<_> = pictures.keys().cloned().collect();
    assert_eq!(files(&root().join(PICTURES)).expect("readable"), names, "{PICTURES}: run `make figures`");
    for (name, made) in pictures {
        let committed = std::fs::read_to_string(root().join(PICTURES).join(&name)).expect("readable");
        assert!(committed == made, "{PICTURES}/{name} is not of its result: run `make figures`");
    }
}

/// What a reader looks over, and searches.
const PAGE_BYTES_MAX: usize = 24 << 10;

#[test]
fn the_page_of_claims_is_one_page() {
    let length = committed_overview().len();
    assert!(
        length <= PAGE_BYTES_MAX,
        "{PAGE} has {length} bytes: shorten titles, or what figures are called"
    );
}

/// Where there is no history, as in an archive of the source, nothing can be said, and the test says that.
#[test]
fn a_result_that_a_page_calls_current_is_as_new_as_its_code() {
    let (_, results) = recorded::read(&root()).expect("results");
    let (overview, details) = (committed_overview(), committed_details());
    let history = CodeHistory::of(&root()).expect("readable");
    for result in &results {
        let (name, page) = (&result.name, &details[&format!("{}.md", result.part.stem())]);
        let in_section = sections::calls_current(page, result);
        assert_eq!(
            in_section,
            overview::calls_current(&overview, result),
            "{name}: its line and its section differ: run `make figures`"
        );
        if !in_section {
            continue;
        }
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
fn two_pages_say_of_a_result_whether_it_is_current() {
    let older = Freshness::Older { commits: 2, first: "`0123456` of 2026-11-27".to_owned() };
    let results =
        ["one", "other"].map(|title| Recorded { title: title.to_owned(), ..read(RESULT).expect("a result") });
    let ages = [older, Freshness::Current];
    let overview = overview::write(&Machines::new(), &results, &ages);
    let pages = details(&results, &ages);
    let details = &pages["appends.md"];
    for (result, is_current) in results.iter().zip([false, true]) {
        assert_eq!(overview::calls_current(&overview, result), is_current, "{overview}");
        assert_eq!(sections::calls_current(details, result), is_current, "{details}");
    }
}

/// Numbers of a title, those in parentheses apart: words from two on, and figures from 100 on.
fn numbers(title: &str) -> Vec<String> {
    let mut depth = 0;
    let is_outside = |char: &char| {
        depth += i32::from(*char == '(') - i32::from(*char == ')');
        depth == 0
    };
    let outside = title.chars().filter(is_outside).collect::<String>().to_lowercase();
    let words = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
    let kept = |word: &str| {
        let digits = word.chars().filter(char::is_ascii_digit).count();
        words.contains(&word) || digits >= 3 && digits + word.matches(',').count() == word.len()
    };
    let parts = outside.split(|char: char| char.is_whitespace() || matches!(char, ':' | ';' | '/'));
    parts.map(|word| word.trim_matches(',')).filter(|word| kept(word)).map(str::to_owned).collect()
}

#[test]
fn a_number_in_a_title_stands_in_its_claim() {
    assert_eq!(numbers("1(b): 1,000 shards, 60 ms apart, of three (of nine)"), ["1,000", "three"]);
    let (_, results) = recorded::read(&root()).expect("results");
    let mut found = Vec::new();
    for result in &results {
        let claim = result.claim.to_lowercase();
        let claimed: BTreeSet<_> = claim
            .split(|char: char| !char.is_alphanumeric() && char != ',')
            .map(|word| word.trim_matches(','))
            .collect();
        let absent = numbers(&result.title).into_iter().filter(|number| !claimed.contains(number.as_str()));
        found.extend(absent.map(|number| format!("{}: {number} of {:?}", result.name, result.title)));
    }
    assert!(found.is_empty(), "titles with numbers that their claims lack:\n{}", found.join("\n"));
}

#[test]
fn the_readme_names_the_days_of_the_builds_whose_figures_it_has() {
    let (_, results) = recorded::read(&root()).expect("results");
    let readme = std::fs::read_to_string(root().join("README.md")).expect("readable");
    for name in ["append-4096", "tcp-connections", "tcp-shared", "fanout-apart", "fanout-aeron"] {
        let result = results.iter().find(|result| result.name == name).expect(name);
        assert!(readme.contains(&result.date), "README.md lacks {}, the day of {name}", result.date);
    }
    for (name, what) in [
        ("append-4096", "acknowledged after, p99, ms"),
        ("tcp-connections", "most consumers that keep up"),
        ("fanout-apart", "256 processes: cores in all"),
    ] {
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
profile = "dist"
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
    let text = section(&result);
    let rate = "| records/s | 330 (200 to 400) | 100 (100 to 110) | - | at least 3.5 × peer: **3.00 (2.00 to 4.00)**, **not reached** |";
    assert!(text.contains(rate), "{text}");
    assert!(text.contains("| ms | 0.5 | - | 0.3 | at most 0.3 above disk: **0.25**, reached |"), "{text}");
    let line = overview::write(&Machines::new(), &[result], &[Freshness::Unknown]);
    let expected = "| [Appends](figures/appends.md#appends) | records/s | 330 | 100 (peer) | 3.00 | **1 of 2 not reached** |";
    assert!(line.contains(expected), "{line}");
}

/// The section of one result.
fn section(result: &Recorded) -> String {
    sections::write(result.part, &[(result, &Freshness::Unknown)])
}

#[test]
fn what_is_not_0_is_not_shown_as_0() {
    let text = RESULT.replace("ours = [0.5]", "ours = [0.0003]").replace("[0.25]", "[0.0017, 0.0019]");
    let text = section(&read(&text).expect("a result"));
    assert!(
        text.contains("| ms | 0.0003 | - | 0.002 | at most 0.3 above disk: **-0.002**, reached |"),
        "{text}"
    );
}

#[test]
fn a_claim_s_line_has_the_figure_that_it_names() {
    let named = RESULT.replacen("paths", "headline = \"ms\"\npaths", 1);
    let text = overview::write(&Machines::new(), &[read(&named).expect("a result")], &[Freshness::Current]);
    let expected =
        "#appends) | ms | 0.5 | 0.3 (disk) | - | **1 of 2 not reached** | m, 2026-11-27, dist | current |";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_picture_has_the_table_s_figures() {
    let result = read(RESULT).expect("a result");
    let picture = picture::draw(&result).expect("drawn");
    assert!(picture.contains(">330 </text>") && picture.contains(">100 </text>"), "{picture}");
    assert!(!picture.contains(">disk</text>"), "the disk has no records: {picture}");
}

#[test]
fn pages_without_ages_are_the_same_at_any_age() {
    let older = Freshness::Older { commits: 2, first: "`0123456` of 2026-11-27".to_owned() };
    let ages = [Freshness::Current, older, Freshness::Unknown];
    let result = read(RESULT).expect("a result");
    let details = ages.each_ref().map(|age| sections::write(result.part, &[(&result, age)]));
    let results = [result];
    let overviews = ages.map(|age| overview::write(&Machines::new(), &results, &[age]));
    let without: [fn(&str) -> String; 2] = [sections::without_ages, overview::without_ages];
    for (pages, without) in [details, overviews].into_iter().zip(without) {
        assert!(pages[0] != pages[1] && pages[1] != pages[2]);
        let masked = pages.map(|page| without(&page));
        assert!(masked[0] == masked[1] && masked[1] == masked[2]);
        assert!(masked[0].contains("3.00"), "{}", masked[0]);
    }
}

#[test]
fn a_result_that_names_what_is_not_there_is_refused_with_what_to_do() {
    let refused = |from: &str, to: &str| {
        assert!(RESULT.contains(from), "{from}");
        format!("{:#}", read(&RESULT.replacen(from, to, 1)).expect_err(to))
    };
    assert!(refused("machine = \"m\"", "machine = \"n\"").contains("machines.toml"));
    assert!(refused("\"Cargo.toml\"", "\"crates/gone/src\"").contains("say its new name"));
    assert!(refused("\"dist\"", "\"fast\"").contains("release (thin LTO)"));
    assert!(refused("paths", "headline = \"rate\"\npaths").contains("no figure"));
    assert!(refused("over = \"peer\"", "over = \"pear\"").contains("\"pear\" is not in the file's `beside`"));
    assert!(refused("over = \"peer\"", "over = \"disk\"").contains("no value"));
    assert!(refused("\"disk\"]", "\"peer\"]").contains("the same name"));
    assert!(refused("0123456789", "").contains("40 hexadecimal digits"));
    assert!(refused("2026-11-27", "yesterday").contains("YYYY-MM-DD"));
    assert!(refused("[\"rate\", \"records/s\"]", "[\"rate\", \"rate\"]").contains("is no figure"));
    assert!(refused("ours = [0.5]", "ours = []").contains("`ours` is empty"));
}

#[test]
fn a_link_into_a_page_of_figures_names_a_section_of_it() {
    let headings = |page: &str| -> BTreeSet<String> {
        page.lines().filter_map(|line| line.strip_prefix("## ")).map(sections::anchor).collect()
    };
    let mut anchors: BTreeMap<String, BTreeSet<String>> = committed_details()
        .into_iter()
        .map(|(name, page)| (format!("figures/{name}"), headings(&page)))
        .collect();
    anchors.insert("benchmarks.md".to_owned(), headings(&committed_overview()));
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
        for (page, anchors) in &anchors {
            for after in text.split(&format!("{page}#")).skip(1) {
                let anchor = after.split(')').next().unwrap_or_default();
                assert!(
                    anchors.contains(anchor),
                    "{} names the section {anchor:?} of {page}",
                    document.display()
                );
                links += 1;
            }
        }
    }
    assert!(links > 65, "only {links} links were found: does this test still look for the right words?");
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
