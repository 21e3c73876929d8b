//! Variables of a configuration. One whose key is a text is the text that it is written as, whatever else it looks
//! like: `123456789012` is an account, and no number.

use figment::error::{Actual, Kind};
use figment::providers::Serialized;
use figment::value::Value;
use figment::{Figment, Provider};
use serde::Serialize;

use super::Config;

/// The configuration of `figment` under the variables that `provider` has under `flags`. `given` are the variables once
/// more: their keys, and what is written. A key that takes a text, and has none by default, takes what its variable
/// looks like if it can be nothing else.
///
/// # Errors
/// The first value that its key does not take.
pub(super) fn extract(
    figment: &Figment,
    provider: impl Provider,
    mut given: Vec<(String, String)>,
    flags: &Serialized<impl Serialize>,
) -> Result<Config, Box<figment::Error>> {
    let mut merged = texts(&given).fold(figment.clone().merge(provider), |figment, text| figment.merge(text));
    loop {
        let error = match merged.clone().merge(flags).extract::<Config>() {
            Ok(config) => return Ok(config),
            Err(error) => error,
        };
        let is_no_text =
            matches!(&error.kind, Kind::InvalidType(found, _) if !matches!(found, Actual::Str(_)));
        let refused = given.iter().position(|(key, _)| is_no_text && *key == error.path.join("."));
        let Some(refused) = refused else { return Err(Box::new(error)) };
        let (key, text) = given.swap_remove(refused);
        let as_text = merged.clone().merge(Serialized::default(&key, text));
        // Of a key that takes no text the first error says what would be right.
        match as_text.clone().merge(flags).extract::<Config>() {
            Err(again) if again.path == error.path => return Err(Box::new(error)),
            _ => merged = as_text,
        }
    }
}

/// Those of keys that are texts by default which look like something else.
fn texts(given: &[(String, String)]) -> impl Iterator<Item = Serialized<String>> {
    let defaults = Figment::from(Serialized::defaults(Config::default()));
    let is_text = |value: &Value| matches!(value, Value::String(..));
    given.iter().filter_map(move |(key, text)| {
        let Ok(read) = text.parse::<Value>();
        let is_wanted = !is_text(&read) && defaults.find_value(key).is_ok_and(|default| is_text(&default));
        is_wanted.then(|| Serialized::default(key, text.clone()))
    })
}

#[cfg(test)]
mod tests {
    use figment::value::Dict;

    use super::*;

    /// Numbers, truths, times, lists and the like.
    const LOOKS: [&str; 17] = [
        "123456789012",
        "000000000012",
        "-5",
        "1.50",
        "1e3",
        "18446744073709551616",
        "true",
        "false",
        "null",
        "2026-11-30",
        "2026-11-30T13:00:00Z",
        "[1]",
        "[1, 2]",
        "[]",
        "{a=1}",
        "{}",
        "a,b",
    ];

    /// Keys that are texts in what is not there by default.
    const FURTHER: [&str; 7] = [
        "cold.options.aws_region",
        "broadcast.streams.s.durability",
        "access.audit",
        "access.audit_stream",
        "access.jwt.issuer",
        "access.jwt.jwks",
        "access.jwt.ca",
    ];

    /// The defaults under a variable.
    fn with(key: &str, text: &str) -> Result<Config, Box<figment::Error>> {
        let Ok(value) = text.parse::<Value>();
        let figment = Figment::from(Serialized::defaults(Config::default()));
        let flags = Serialized::defaults(Dict::new());
        extract(&figment, Serialized::default(key, value), vec![(key.to_owned(), text.to_owned())], &flags)
    }

    /// What a configuration shows of a key.
    fn shown(config: &Config, key: &str) -> Value {
        Figment::from(Serialized::defaults(config)).find_value(key).expect("it has the key")
    }

    /// The keys below `value` that have no keys below them, with what they have.
    fn leaves(key: &str, value: &Value, into: &mut Vec<(String, Value)>) {
        match value.as_dict() {
            Some(dict) => {
                for (name, value) in dict {
                    let dot = if key.is_empty() { "" } else { "." };
                    leaves(&format!("{key}{dot}{name}"), value, into);
                }
            }
            None => into.push((key.to_owned(), value.clone())),
        }
    }

    /// Whether a key takes texts, be it only some of them.
    fn takes_text(key: &str) -> bool {
        match with(key, "a text").err().map(|error| error.kind) {
            Some(Kind::InvalidType(Actual::Str(_), _)) => false,
            Some(Kind::Message(why)) => !why.contains("untagged"),
            _ => true,
        }
    }

    #[test]
    fn a_variable_of_any_key_that_takes_texts_is_the_text_that_it_is_written_as() {
        let mut keys = Vec::new();
        leaves("", &Value::serialize(Config::default()).expect("values"), &mut keys);
        let texts = keys.into_iter().map(|(key, _)| key).filter(|key| takes_text(key));
        let texts: Vec<String> = texts.chain(FURTHER.map(str::to_owned)).collect();
        for key in ["data", "sqs.account", "queues.cassandra.password", "tls.ca", "listen.advertised_data"] {
            assert!(texts.iter().any(|text| text == key), "{key} is a text");
        }
        for key in ["log.owners", "sqs.enabled", "listen.insecure", "data_cell.backends"] {
            assert!(!texts.iter().any(|text| text == key), "{key} is no text");
        }
        for (key, text) in texts.iter().flat_map(|key| LOOKS.map(|text| (key, text))) {
            match with(key, text) {
                Ok(config) => match shown(&config, key).as_str() {
                    Some("***") => {}
                    shown => assert_eq!(shown, Some(text), "{key}"),
                },
                // An address, or one of a few names.
                Err(error) => assert!(with(key, "a text").is_err(), "{key} = {text}: {error}"),
            }
        }
    }

    #[test]
    fn a_secret_that_looks_like_a_number_is_that_text() {
        for text in LOOKS {
            let read = with("queues.cassandra.password", text).expect("a password");
            assert_eq!(read.queues.cassandra.password.text(), text);
        }
    }

    #[test]
    fn what_is_no_text_stays_what_it_is_and_so_does_a_text_that_is_written_as_one() {
        assert_eq!(with("sqs.idle_ms", "5").expect("a number").sqs.idle_ms, 5);
        assert!(with("sqs.enabled", "true").expect("a truth").sqs.enabled);
        assert_eq!(with("sqs.account", "\"x\"").expect("a text").sqs.account, "x");
        let refused = with("sqs.idle_ms", "true").expect_err("a truth is no number");
        assert!(refused.to_string().contains("found bool true, expected u64"), "{refused}");
        let refused = with("none", "1").expect_err("there is no such key");
        assert!(matches!(refused.kind, Kind::UnknownField(..)), "{refused}");
    }
}
