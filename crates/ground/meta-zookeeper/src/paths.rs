//! Where a key stands below `ROOT/keys`, for ever.
//!
//! ```text
//!  log/stream/UUID      log/stream/~3f/=UUID         a key's last part has = before it
//!  kafka/group/a/b      kafka/group/~0c/a/=b         so what is below it is elsewhere
//! ```
//!
//! Keys of many streams or groups differ in their third part. So one of 256 nodes stands before that, named `~` and two
//! hexadecimal digits of the part's CRC32C: an answer that has all children of a node stays small.
//!
//! Bytes that ZooKeeper does not take in a path, and those that mean something here, are written as `%` and two
//! hexadecimal digits. An empty part is `%`.

use crc_fast::crc32_iscsi;

/// The part of a key that stands below one of 256 nodes.
const SPREAD_PART: usize = 2;

/// The path of a key.
pub(crate) fn path_of(keys: &str, key: &str) -> String {
    let (dirs, last) = split(key);
    let mut path = dir_path(keys, &dirs);
    if dirs.len() == SPREAD_PART {
        push_spread(&mut path, last);
    }
    path.push_str("/=");
    push_escaped(&mut path, last);
    path
}

/// The node below which everything is that begins with `prefix`, and how the keys below it begin.
pub(crate) fn base_of<'a>(keys: &str, prefix: &'a str) -> (String, &'a str) {
    let (dirs, last) = split(prefix);
    (dir_path(keys, &dirs), &prefix[..prefix.len() - last.len()])
}

/// What a child of a node is, of which the keys begin with `above`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyChild {
    Key(String),
    /// The keys below it begin with that.
    Dir(String),
}

/// `None` for what is not ours.
pub(crate) fn child_of(above: &str, name: &str) -> Option<KeyChild> {
    if name.starts_with('~') {
        return Some(KeyChild::Dir(above.to_owned()));
    }
    match name.strip_prefix('=') {
        Some(last) => Some(KeyChild::Key(format!("{above}{}", unescaped(last)?))),
        None => Some(KeyChild::Dir(format!("{above}{}/", unescaped(name)?))),
    }
}

/// The key that has this path; `None` if none has.
pub(crate) fn key_at(keys: &str, path: &str) -> Option<String> {
    let mut above = String::new();
    let mut names = path.strip_prefix(keys)?.strip_prefix('/')?.split('/').peekable();
    while let Some(name) = names.next() {
        match child_of(&above, name)? {
            KeyChild::Dir(dir) => above = dir,
            KeyChild::Key(key) => return names.peek().is_none().then_some(key),
        }
    }
    None
}

fn split(key: &str) -> (Vec<&str>, &str) {
    let mut parts: Vec<&str> = key.split('/').collect();
    let last = parts.pop().unwrap_or_default();
    (parts, last)
}

fn dir_path(keys: &str, dirs: &[&str]) -> String {
    let mut path = keys.to_owned();
    for (number, dir) in dirs.iter().enumerate() {
        if number == SPREAD_PART {
            push_spread(&mut path, dir);
        }
        path.push('/');
        match *dir {
            "" => path.push('%'),
            "." => path.push_str("%2e"),
            ".." => path.push_str("%2e."),
            dir => push_escaped(&mut path, dir),
        }
    }
    path
}

fn push_spread(path: &mut String, part: &str) {
    path.push_str(&format!("/~{:02x}", crc32_iscsi(part.as_bytes()) & 0xff));
}

fn push_escaped(path: &mut String, part: &str) {
    for byte in part.bytes() {
        match byte {
            b'%' | b'=' | b'~' => path.push_str(&format!("%{byte:02x}")),
            b' '..=b'~' => path.push(char::from(byte)),
            _ => path.push_str(&format!("%{byte:02x}")),
        }
    }
}

fn unescaped(name: &str) -> Option<String> {
    if name == "%" {
        return Some(String::new());
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = behind;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEYS: &str = "/tailwater/keys";

    #[test]
    fn paths_stay_the_same_for_ever() {
        for (key, path) in [
            ("log/segments", "/tailwater/keys/log/=segments"),
            ("log/name/orders", "/tailwater/keys/log/name/~8a/=orders"),
            ("a", "/tailwater/keys/=a"),
            ("a//./..", "/tailwater/keys/a/%/~a8/%2e/=.."),
            ("100%/=~/ä", "/tailwater/keys/100%25/%3d%7e/~0f/=%c3%a4"),
        ] {
            assert_eq!(path_of(KEYS, key), path);
        }
    }

    #[test]
    fn nothing_else_is_a_key() {
        for path in [
            "/tailwater/keys",
            "/tailwater/keys/log",
            "/tailwater/keys/log/~0b",
            "/tailwater/keys/=a/=b",
            "/tailwater/keys/=%f",
            "/tailwater/keys/=%ff",
            "/tailwater/other/=a",
        ] {
            assert_eq!(key_at(KEYS, path), None, "{path}");
        }
    }

    proptest! {
        #[test]
        fn a_key_is_found_again_at_its_path_and_below_each_of_its_prefixes(key in "([a-z.%=~ä\u{1}😀]{0,3}/){0,4}[a-z.%=~ä]{0,3}") {
            prop_assume!(!key.is_empty());
            let path = path_of(KEYS, &key);
            prop_assert_eq!(key_at(KEYS, &path), Some(key.clone()));
            let is_taken = |byte: u8| (b' '..=b'~').contains(&byte);
            prop_assert!(path.bytes().all(is_taken) && !path.contains("//") && !path.contains("/./") && !path.contains("/../"));
            for end in (0..=key.len()).filter(|end| key.is_char_boundary(*end)) {
                let (base, above) = base_of(KEYS, &key[..end]);
                prop_assert!(path.starts_with(&format!("{base}/")) && key.starts_with(above), "{}", base);
            }
        }

        #[test]
        fn different_keys_have_different_paths(one in "[a=~%/.]{1,5}", other in "[a=~%/.]{1,5}") {
            prop_assert_eq!(one == other, path_of(KEYS, &one) == path_of(KEYS, &other));
        }

        #[test]
        fn no_name_makes_it_panic(name: String) {
            let _ = child_of("log/", &name);
            let _ = key_at(KEYS, &format!("{KEYS}/{name}"));
        }
    }
}
