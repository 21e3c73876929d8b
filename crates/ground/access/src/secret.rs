//! Secrets of a configuration, which nobody is shown.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use subtle::ConstantTimeEq;

/// What stands for a secret wherever it would be shown.
const HIDDEN: &str = "***";

/// A secret of a configuration: a password, or the secret of an access key. Empty is none.
///
/// It is not in what is printed of it, neither by `Debug` nor as a configuration, where `***` stands for it. What is
/// printed so is refused when it is read again. Comparing two takes as long wherever they differ.
#[derive(Clone, Default)]
pub struct SecretText {
    text: String,
    /// It is in a file of its own, which the configuration names: then nothing stands for it.
    is_of_file: bool,
}

impl SecretText {
    /// One that the configuration has itself.
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), is_of_file: false }
    }

    /// One that a file has, of which this is the content: its first line.
    ///
    /// # Errors
    /// A first line that is empty.
    pub fn of_file(content: &str) -> Result<Self, String> {
        match content.lines().next() {
            None | Some("") => Err("its first line is empty, and should be the secret".to_owned()),
            Some(line) => Ok(Self { text: line.to_owned(), is_of_file: true }),
        }
    }

    /// The secret itself, for whoever has to show that he knows it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Whether it came from a file of its own.
    pub fn is_of_file(&self) -> bool {
        self.is_of_file
    }
}

/// A name and its password, which a client of ours shows to servers that others run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineLogin {
    /// The name.
    pub user: String,
    /// Its password.
    pub password: SecretText,
}

/// Whether both are the same, in a time that does not tell where they differ.
pub fn are_same(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}

impl PartialEq for SecretText {
    fn eq(&self, other: &Self) -> bool {
        are_same(self.text.as_bytes(), other.text.as_bytes())
    }
}

impl Eq for SecretText {}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "none" } else { HIDDEN })
    }
}

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(if self.is_empty() || self.is_of_file { "" } else { HIDDEN })
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // Of anything: what the deserializers themselves say of another type shows what they got.
        from.deserialize_any(SecretVisitor)
    }
}

struct SecretVisitor;

impl SecretVisitor {
    fn no_text<T, E: Error>() -> Result<T, E> {
        Err(E::custom("a secret is a text: write it in quotes"))
    }
}

impl Visitor<'_> for SecretVisitor {
    type Value = SecretText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret, which is a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<SecretText, E> {
        match text {
            HIDDEN => Err(E::custom(format!(
                "\"{HIDDEN}\" is what stands for a secret that is not printed: write the secret itself, or name a file \
                 that has it"
            ))),
            _ => Ok(SecretText::new(text)),
        }
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<SecretText, E> {
        Self::no_text()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<SecretText, E> {
        Self::no_text()
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<SecretText, E> {
        Self::no_text()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<SecretText, E> {
        Self::no_text()
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<SecretText, E> {
        Self::no_text()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<SecretText, E> {
        Self::no_text()
    }
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer;
    use serde::de::value::Error as ValueError;

    use super::*;

    fn read<'de>(from: impl IntoDeserializer<'de, ValueError>) -> Result<SecretText, String> {
        SecretText::deserialize(from.into_deserializer()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_secret_is_not_in_what_is_shown_of_it() {
        assert_eq!(format!("{:?} {:#?}", SecretText::new("hidden"), SecretText::new("hidden")), "*** ***");
        assert_eq!(format!("{:?}", SecretText::default()), "none");
    }

    #[test]
    fn what_stands_for_a_secret_is_read_as_none_and_the_error_says_what_to_write() {
        let error = read("***").expect_err("refused");
        assert!(error.contains("not printed") && error.contains("a file that has it"), "{error}");
        assert_eq!(read("hidden").expect("a secret").text(), "hidden");
        assert!(read("").expect("none").is_empty());
    }

    #[test]
    fn what_is_no_text_is_refused_without_being_shown() {
        for error in [read(4711_u64), read(-4711_i64), read(47.11_f64), read(true)].map(Result::unwrap_err) {
            assert!(
                error.contains("in quotes") && !error.contains("47") && !error.contains("true"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_s_secret_is_its_first_line() {
        for content in ["hidden", "hidden\n", "hidden\r\n", "hidden\nmore"] {
            let read = SecretText::of_file(content).expect("a secret");
            assert!(read.is_of_file() && read.text() == "hidden", "{content:?}");
        }
        for content in ["", "\n", "\nhidden"] {
            SecretText::of_file(content).expect_err(content);
        }
    }

    #[test]
    fn secrets_are_the_same_where_their_texts_are() {
        let one = SecretText::new("hidden");
        assert_eq!(one, SecretText::of_file("hidden").expect("a secret"));
        for other in ["", "hidde", "hidden ", "Hidden", "hiddem"] {
            assert_ne!(one, SecretText::new(other));
        }
    }
}
