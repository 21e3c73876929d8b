use proptest::prelude::*;

use super::*;
use crate::event::{Content, Kind};

fn event(key: Option<&str>, headers: &[(&str, &str)], seq: u64, time_ms: u64) -> Event {
    let own = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let headers = headers.iter().map(|(name, value)| (own(name), own(value))).collect();
    let content = Content { key: key.map(own), headers, payload: Bytes::new() };
    Event { seq, range: 1, time_ms, kind: Kind::Data(content) }
}

fn parse(text: &str) -> Predicate {
    Predicate::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn comparisons_hold_as_written_and_for_a_missing_value_never() {
    let e = event(Some("user/7"), &[("type", "temp"), ("Trace", "a b")], 20, 1000);
    for holds in [
        r#"key = "user/7""#,
        r#"key != "user/8""#,
        r#"key starts with "user/""#,
        r#"key in ("x", "user/7")"#,
        r#"key not in ("x", "y")"#,
        r#"key > "user/" and key < "user0""#,
        r#"header.type = "temp""#,
        r#"header("Trace") = "a b""#,
        "header.none is missing",
        "key is not missing",
        r#"not header.none = "x""#,
        r#"not (header.none != "x" or header.none >= "")"#,
        "seq >= 20 and seq <= 20 and seq in (1, 20)",
        "time < 1001 or false",
        r#"key = "\x75ser\x2f7""#,
    ] {
        assert!(parse(holds).holds(&e), "{holds}");
        assert!(!parse(&format!("not ({holds})")).holds(&e), "{holds}");
    }
}

#[test]
fn an_error_shows_the_place_with_a_mark_under_it() {
    let error = Predicate::parse(b"key = \"a\"\n  and seq < \"7\"").unwrap_err();
    assert_eq!(
        error.to_string(),
        "predicate, line 2, column 13: a number should be here instead of a string\n    and seq < \"7\"\n              ^"
    );
    for (text, column, what) in [
        ("", 1, "'key', 'header', 'seq', 'time', 'not' or '(' should be here instead of the end"),
        ("key", 4, "a comparison should be here instead of the end"),
        ("key = 'a'", 7, "'\\'' has no meaning here"),
        ("key = \"a", 7, "the string has no end"),
        ("key = \"a\\q\"", 9, "a '\\' has to be followed by '\"', '\\', 'n', 't' or 'x'"),
        ("kye = \"a\"", 1, "'key', 'header', 'seq', 'time', 'not' or '(' should be here instead of 'kye'"),
        ("seq < 99999999999999999999", 7, "the number is greater than 18446744073709551615"),
        ("(key = \"a\"", 11, "')' should be here instead of the end"),
        ("seq < 1 seq", 9, "'and', 'or' or the end should be here instead of 'seq'"),
        ("seq starts with \"a\"", 5, "only 'key' and headers can start with something"),
        ("header x", 8, "'.' or '(' and a header's name should be here instead of 'x'"),
    ] {
        let error = Predicate::parse(text.as_bytes()).unwrap_err();
        assert_eq!((error.line, error.column, error.what.as_str()), (1, column, what), "{text}");
    }
    assert!(Predicate::parse(b"key = \"\xff\"").unwrap_err().what.contains("UTF-8"));
}

#[test]
fn a_predicate_that_is_too_large_or_too_deep_is_refused() {
    let long = vec!["seq = 1"; NODES_MAX + 1].join(" or ");
    assert!(Predicate::parse(long.as_bytes()).unwrap_err().what.contains("64 comparisons"));
    let deep = format!("{}seq = 1{}", "(".repeat(DEPTH_MAX + 1), ")".repeat(DEPTH_MAX + 1));
    assert!(Predicate::parse(deep.as_bytes()).unwrap_err().what.contains("32 levels"));
    let deep = format!("{}true", "not ".repeat(5000));
    assert!(Predicate::parse(deep.as_bytes()).is_err());
    assert!(Predicate::parse(&[b' '; 5000]).unwrap_err().what.contains("4096"));
}

#[test]
fn the_keys_that_a_predicate_pins_are_found() {
    let pins =
        |text: &str| parse(text).pins().map(|pins| pins.iter().map(|pin| pin.to_vec()).collect::<Vec<_>>());
    assert_eq!(pins(r#"key = "a" and seq < 7"#), Some(vec![b"a".to_vec()]));
    assert_eq!(
        pins(r#"key in ("b", "a") and header.x = "y" or key = "c""#),
        Some(vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()])
    );
    assert_eq!(pins(r#"key = "a" or seq < 7"#), None);
    assert_eq!(pins(r#"not key = "a""#), None);
    assert_eq!(pins(r#"key = "a" and key = "b""#), Some(vec![]), "nothing at all");
}

#[test]
fn what_follows_from_facts_is_found_where_it_is_simple() {
    let implies = |a: &str, b: &str| {
        let (a, b) = (parse(a), parse(b));
        a.branches().iter().all(|facts| b.holds_given(facts) == Truth::True)
    };
    assert!(implies(r#"key = "a" and header.x = "1""#, r#"key = "a""#));
    assert!(implies(r#"key = "a" or key = "b""#, r#"key in ("a", "b", "c")"#));
    assert!(implies(r#"key starts with "user/7/""#, r#"key starts with "user/""#));
    assert!(implies("seq < 10", "seq <= 20"));
    assert!(implies(r#"header.x in ("a", "b")"#, "header.x is not missing"));
    assert!(implies("not (seq >= 10 or time > 5)", "seq < 10 and time < 6"));
    assert!(implies("false", r#"key = "a""#));
    assert!(!implies(r#"key = "a""#, r#"key = "a" and header.x = "1""#));
    assert!(!implies(r#"key starts with "user""#, r#"key starts with "user/""#));
    assert!(!implies("seq < 21", "seq < 20"));
    assert!(!implies("not key = \"a\"", "key != \"a\""), "it may be missing");
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![Just(r#""""#), Just(r#""a""#), Just(r#""ab""#), Just(r#""b""#), Just(r#""\xff""#)]
        .prop_map(str::to_owned)
}

/// A text that is a predicate.
fn predicate() -> impl Strategy<Value = String> {
    let order = || prop_oneof![Just("="), Just("!="), Just("<"), Just("<="), Just(">"), Just(">=")];
    let field = || prop_oneof![Just("key"), Just("header.x"), Just(r#"header("y")"#)];
    let number = || prop_oneof![Just("seq"), Just("time")];
    let test = prop_oneof![
        (field(), order(), value()).prop_map(|(field, order, value)| format!("{field} {order} {value}")),
        (field(), value()).prop_map(|(field, value)| format!("{field} starts with {value}")),
        (field(), value(), value()).prop_map(|(field, a, b)| format!("{field} in ({a}, {b})")),
        (field(), value(), value()).prop_map(|(field, a, b)| format!("{field} not in ({a}, {b})")),
        field().prop_map(|field| format!("{field} is missing")),
        (number(), order(), 0..5u64).prop_map(|(field, order, value)| format!("{field} {order} {value}")),
        (number(), 0..5u64, 0..5u64).prop_map(|(field, a, b)| format!("{field} in ({a}, {b})")),
        Just("true".to_owned()),
        Just("false".to_owned()),
    ];
    test.prop_recursive(4, 16, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 2..4).prop_map(|all| format!("({})", all.join(" and "))),
            proptest::collection::vec(inner.clone(), 2..4).prop_map(|all| format!("({})", all.join(" or "))),
            inner.prop_map(|one| format!("not {one}")),
        ]
    })
}

fn any_event() -> impl Strategy<Value = Event> {
    let text = || proptest::option::of(prop_oneof![Just(""), Just("a"), Just("ab"), Just("b"), Just("c")]);
    (text(), text(), text(), 0..6u64, 0..6u64).prop_map(|(key, x, y, seq, time_ms)| {
        let headers: Vec<_> = [("x", x), ("y", y)].into_iter().filter_map(|(n, v)| Some((n, v?))).collect();
        event(key, &headers, seq, time_ms)
    })
}

proptest! {
    #[test]
    fn a_text_that_is_anything_is_parsed_or_refused_without_a_panic(text in any::<Vec<u8>>(), words in "[a-z\"\\\\().,=<> 0-9\n\u{e9}]{0,60}") {
        let _ = Predicate::parse(&text).map_err(|error| error.to_string());
        let _ = Predicate::parse(words.as_bytes()).map_err(|error| error.to_string());
    }

    #[test]
    fn a_mangled_predicate_is_parsed_or_refused_without_a_panic(text in predicate(), at in any::<prop::sample::Index>(), c in any::<char>()) {
        let mut chars: Vec<char> = text.chars().collect();
        let at = at.index(chars.len());
        chars[at] = c;
        let text: String = chars.into_iter().collect();
        let _ = Predicate::parse(text.as_bytes()).map_err(|error| error.to_string());
    }

    #[test]
    fn what_is_printed_parses_to_the_same(text in predicate()) {
        let parsed = parse(&text);
        let printed = parsed.to_string();
        prop_assert_eq!(&parse(&printed), &parsed, "{}", printed);
    }

    #[test]
    fn facts_are_true_of_every_event_that_a_predicate_holds_for(a in predicate(), b in predicate(), e in any_event()) {
        let (a, b) = (parse(&a), parse(&b));
        if let Some(pins) = a.pins() && a.holds(&e) {
            let key = e.content().unwrap().key.clone();
            prop_assert!(key.is_some_and(|key| pins.contains(&key)));
        }
        // If all branches of `a` say that `b` holds, it does.
        if a.holds(&e) {
            let truths: Vec<Truth> = a.branches().iter().map(|facts| b.holds_given(facts)).collect();
            prop_assert!(!truths.is_empty());
            if truths.iter().all(|truth| *truth == Truth::True) {
                prop_assert!(b.holds(&e));
            }
            if a.branches().iter().all(|facts| !facts.is_impossible() && b.holds_given(facts) == Truth::False) {
                prop_assert!(!b.holds(&e));
            }
        }
    }

    #[test]
    fn a_stable_predicate_holds_for_what_comes_before(text in predicate(), g in any_event(), e in any_event()) {
        let predicate = parse(&text);
        let same_key = Subject::key(&g) == Subject::key(&e);
        if predicate.holds(&g) && e.seq < g.seq && e.time_ms <= g.time_ms && predicate.is_stable(same_key) {
            prop_assert!(predicate.holds(&e));
        }
    }
}
