//! Broadcast events in JSON: what listeners are sent over HTTP, and what the command line prints.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tailwater_broadcast::{Event, Kind};

/// Bytes in JSON: a string if they are UTF-8, otherwise `{"base64": "…"}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventText(pub Bytes);

impl Serialize for EventText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("base64", &STANDARD.encode(&self.0))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for EventText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EventForm)
    }
}

/// Reads either form, and nothing else that may be there instead.
struct EventForm;

impl<'de> Visitor<'de> for EventForm {
    type Value = EventText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or {\"base64\": \"…\"}")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<EventText, E> {
        Ok(EventText(Bytes::copy_from_slice(text.as_bytes())))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<EventText, E> {
        Ok(EventText(text.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<EventText, A::Error> {
        let other = || A::Error::invalid_type(Unexpected::Map, &EventForm);
        if map.next_key::<String>()?.as_deref() != Some("base64") {
            return Err(other());
        }
        let encoded: String = map.next_value()?;
        let bytes = STANDARD.decode(encoded).map_err(|_| A::Error::custom("it is no base64"))?;
        match map.next_key::<String>()? {
            None => Ok(EventText(bytes.into())),
            Some(_) => Err(other()),
        }
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventView {
    /// Its number; of a tombstone the last one that it covers.
    pub seq: u64,
    /// How many numbers it covers, if it is a tombstone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tombstone: Option<u64>,
    /// When it was given its number, in milliseconds since 1970.
    pub time_ms: u64,
    /// Its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<EventText>,
    /// Its headers' names and values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(EventText, EventText)>,
    /// What it collects: `same-key`, `keep-last=N`, `before=N`, `older-than=TIME_MS`, `matching=PREDICATE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collect: Option<String>,
    /// Its payload; none if it is a tombstone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<EventText>,
}

impl From<Event> for EventView {
    fn from(event: Event) -> Self {
        let Event { seq, range, time_ms, kind } = event;
        let (content, collect) = match kind {
            Kind::Data(content) => (Some(content), None),
            Kind::Collection(content, collect) => (Some(content), Some(collect.to_string())),
            Kind::Tombstone => (None, None),
        };
        let tombstone = content.is_none().then_some(range);
        let Some(content) = content else {
            return Self { seq, tombstone, time_ms, key: None, headers: Vec::new(), collect, payload: None };
        };
        Self {
            seq,
            tombstone,
            time_ms,
            key: content.key.map(EventText),
            headers: content
                .headers
                .into_iter()
                .map(|(name, value)| (EventText(name), EventText(value)))
                .collect(),
            collect,
            payload: Some(EventText(content.payload)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_travel_as_base64_and_come_back() {
        for bytes in [&b"text"[..], b"", b"\xff\x00", "\u{1f600}\n\"".as_bytes()] {
            let text = EventText(Bytes::from_static(bytes));
            let json = serde_json::to_string(&text).unwrap();
            assert_eq!(serde_json::from_str::<EventText>(&json).unwrap(), text, "{json}");
        }
        assert_eq!(
            serde_json::to_string(&EventText(Bytes::from_static(b"\xff"))).unwrap(),
            r#"{"base64":"/w=="}"#
        );
        assert!(serde_json::from_str::<EventText>(r#"{"base64":"?"}"#).is_err());
        assert!(serde_json::from_str::<EventText>("7").is_err());
    }
}
