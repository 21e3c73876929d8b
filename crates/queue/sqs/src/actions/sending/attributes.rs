//! Attributes of messages, as clients send them.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::{check_characters, invalid};
use crate::content::{Attribute, Attributes, Value, md5_of_attributes};
use crate::error::ErrorRefusal;
use crate::limits::{ATTRIBUTE_NAME_CHARS_MAX, ATTRIBUTES_MAX, NUMBER_DIGITS_MAX, NUMBER_POWERS};
use crate::protocol::JsonObject;

pub(super) type AttributesIn = BTreeMap<String, JsonObject<AttributeIn>>;

/// An attribute as clients send it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct AttributeIn {
    string_value: Option<String>,
    binary_value: Option<String>,
    data_type: Option<String>,
}

impl AttributeIn {
    /// Bytes as they were given, whatever is wrong with them.
    pub(super) fn given_bytes(&self) -> usize {
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let binary = self.binary_value.as_deref().map_or(0, |text| text.trim_end_matches('=').len() * 3 / 4);
        length(&self.data_type) + length(&self.string_value) + binary
    }
}

/// Bytes of an attribute that count as its message's.
pub(super) fn attribute_bytes((name, attribute): (&String, &Attribute)) -> usize {
    let value = match &attribute.value {
        Value::Text(text) => text.len(),
        Value::Binary(bytes) => bytes.len(),
    };
    name.len() + attribute.data_type.len() + value
}

/// The attributes that a sender gives a message.
pub(super) fn of_user(given: AttributesIn) -> Result<Attributes, ErrorRefusal> {
    read(given, "(user)")
}

/// The one system attribute that can be sent, a trace, and the checksum of all of them.
pub(super) fn of_system(given: AttributesIn) -> Result<(String, Option<[u8; 16]>), ErrorRefusal> {
    const TRACE: &str = "AWSTraceHeader";
    let none = |name: &str| invalid(format!("Message system attribute name '{name}' is invalid."));
    if let Some(other) = given.keys().find(|name| *name != TRACE) {
        return Err(none(other));
    }
    let mut attributes = read(given, "system")?;
    let md5 = md5_of_attributes(attributes.iter());
    match attributes.remove(TRACE) {
        None => Ok((String::new(), md5)),
        Some(Attribute { data_type, value: Value::Text(text) })
            if data_type == "String" && text.len() <= usize::from(u16::MAX) =>
        {
            Ok((text, md5))
        }
        Some(_) => Err(none(TRACE)),
    }
}

/// `whose` is what texts call these attributes.
fn read(given: AttributesIn, whose: &str) -> Result<Attributes, ErrorRefusal> {
    if given.len() > ATTRIBUTES_MAX {
        return Err(invalid(format!(
            "Number of message attributes [{}] exceeds the allowed maximum [{ATTRIBUTES_MAX}].",
            given.len()
        )));
    }
    let read = given.into_iter().map(|(name, JsonObject(given))| {
        check_name(&name, whose)?;
        let attribute = attribute(&name, given, whose)?;
        Ok((name, attribute))
    });
    read.collect()
}

fn check_name(name: &str, whose: &str) -> Result<(), ErrorRefusal> {
    let lower = name.to_ascii_lowercase();
    let must_not = |what: &str| format!("Message {whose} attribute name must not {what}.");
    let is_good = |char: char| char.is_alphanumeric() || matches!(char, '_' | '-' | '.');
    let message = if name.is_empty() {
        format!("The request must contain non-empty message {whose} attribute names.")
    } else if name.chars().count() > ATTRIBUTE_NAME_CHARS_MAX {
        format!("Message {whose} attribute name must be shorter than {ATTRIBUTE_NAME_CHARS_MAX} bytes.")
    } else if lower.starts_with("aws.") || lower.starts_with("amazon.") {
        "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are reserved for \
         internal use."
            .to_owned()
    } else if name.starts_with('.') {
        must_not("begin with character '.'")
    } else if name.ends_with('.') {
        must_not("end with character '.'")
    } else if name.contains("..") {
        must_not("have successive '.' characters")
    } else if !name.chars().all(is_good) {
        format!(
            "The message attribute name '{name}' is invalid. Attribute name can contain A-Z, a-z, 0-9, underscore (_), \
             hyphen (-), and period (.) characters."
        )
    } else {
        return Ok(());
    };
    Err(invalid(message))
}

fn attribute(name: &str, given: AttributeIn, whose: &str) -> Result<Attribute, ErrorRefusal> {
    let refuse = |what: &str| Err(invalid(format!("Message {whose} attribute '{name}' {what}.")));
    let AttributeIn { string_value, binary_value, data_type } = given;
    let Some(data_type) = data_type.filter(|data_type| !data_type.is_empty()) else {
        let lacks = if string_value.is_none() && binary_value.is_none() { "value" } else { "type" };
        let message = format!(
            "The message {whose} attribute '{name}' must contain a non-empty message attribute {lacks}."
        );
        return Err(invalid(message));
    };
    let kind = data_type.split('.').next().unwrap_or_default();
    if !matches!(kind, "String" | "Number" | "Binary") {
        return Err(invalid(format!(
            "The type of message {whose} attribute '{name}' is invalid. You must use only the following supported type \
             prefixes: Binary, Number, String."
        )));
    }
    if data_type.len() > ATTRIBUTE_NAME_CHARS_MAX {
        return Err(invalid(format!(
            "Message {whose} attribute type must be shorter than {ATTRIBUTE_NAME_CHARS_MAX} bytes."
        )));
    }
    let is_none = |value: &Option<String>| value.as_deref().is_none_or(str::is_empty);
    let value = match (kind, string_value, binary_value) {
        (_, text, binary) if is_none(&text) && is_none(&binary) => {
            return refuse(&format!("must contain a non-empty value of type '{data_type}'"));
        }
        (_, Some(_), Some(_)) => return refuse("must have a single value"),
        ("Binary", None, Some(value)) => match STANDARD.decode(value) {
            Ok(bytes) => Value::Binary(bytes.into()),
            Err(_) => {
                return Err(invalid(format!("The value of the message attribute '{name}' is not base64.")));
            }
        },
        ("String" | "Number", Some(value), None) => Value::Text(value),
        (kind, ..) => {
            let field = if kind == "Binary" { "Binary" } else { "String" };
            return refuse(&format!("with type '{data_type}' must use field '{field}'"));
        }
    };
    match &value {
        Value::Text(text) if kind == "Number" && !is_number(text) => {
            return Err(invalid(format!(
                "Can't cast the value of message {whose} attribute '{name}' to a number."
            )));
        }
        // A body's are another error.
        Value::Text(text) => check_characters(text).map_err(|refusal| invalid(refusal.message))?,
        Value::Binary(_) => {}
    }
    Ok(Attribute { data_type, value })
}

/// Whether that is a number that an attribute can have: decimal, with at most 38 digits that count, and 0 or from
/// 10^-128 to 10^126.
fn is_number(text: &str) -> bool {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let Ok(exponent) = exponent.parse::<i32>() else { return false };
    let mantissa = mantissa.strip_prefix(['+', '-']).unwrap_or(mantissa);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = [whole, fraction].concat();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return false;
    }
    let from_first = digits.trim_start_matches('0');
    let counting = from_first.trim_end_matches('0');
    // The power of ten of the first digit that counts.
    let power = from_first.len() as i64 - fraction.len() as i64 - 1 + i64::from(exponent);
    counting.is_empty()
        || counting.len() <= NUMBER_DIGITS_MAX
            && (NUMBER_POWERS.contains(&power) || counting == "1" && power == *NUMBER_POWERS.end() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_attributes_have_so_many_digits_and_are_neither_too_large_nor_too_small() {
        let (long, longer) = ("1".repeat(NUMBER_DIGITS_MAX), "1".repeat(NUMBER_DIGITS_MAX + 1));
        let good =
            ["0", "-0.0", "1", "+1.50", ".5", "5.", "1e126", "-9.9e125", "1E-128", "0e999", "007", &long];
        for number in good {
            assert!(is_number(number), "{number}");
        }
        let bad = [
            "",
            "-",
            ".",
            "e1",
            "1e",
            "NaN",
            "inf",
            "1e127",
            "1.1e126",
            "1e999",
            "9e-129",
            "1e-400",
            "1e99999999999",
            "0x1",
            " 1",
            "1 ",
            "1_0",
            "--1",
            &longer,
        ];
        for number in bad {
            assert!(!is_number(number), "{number}");
        }
        assert!(is_number(&format!("{long}{}", "0".repeat(80))));
    }
}
