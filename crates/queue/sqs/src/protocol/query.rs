//! A Query request: `Action=SendMessage&MessageAttribute.1.Name=a&MessageAttribute.1.Value.DataType=String`.
//!
//! Names are paths; lists are numbered. What is a list, and what a map, is in a table: so `Attribute.1.Name` and
//! `Attribute.1.Value` become an entry of the map `Attributes`. Bounded by [`PARAMETERS_MAX`] and [`DEPTH_MAX`].

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::number;
use crate::error::{Code, ErrorRefusal};
use crate::limits::PARAMETERS_MAX;

/// Most parts of a parameter's name.
const DEPTH_MAX: usize = 8;

/// What a repeated parameter is in the JSON form.
enum Repeated {
    /// A list of that name.
    List(&'static str),
    /// A map of that name, with keys and values of these names.
    Map(&'static str, &'static str, &'static str),
}

fn repeated(name: &str) -> Option<Repeated> {
    Some(match name {
        "AttributeName" => Repeated::List("AttributeNames"),
        "MessageAttributeName" => Repeated::List("MessageAttributeNames"),
        "MessageSystemAttributeName" => Repeated::List("MessageSystemAttributeNames"),
        "TagKey" => Repeated::List("TagKeys"),
        "AWSAccountId" => Repeated::List("AWSAccountIds"),
        "ActionName" => Repeated::List("Actions"),
        "SendMessageBatchRequestEntry"
        | "DeleteMessageBatchRequestEntry"
        | "ChangeMessageVisibilityBatchRequestEntry" => Repeated::List("Entries"),
        "Attribute" => Repeated::Map("Attributes", "Name", "Value"),
        "MessageAttribute" => Repeated::Map("MessageAttributes", "Name", "Value"),
        "MessageSystemAttribute" => Repeated::Map("MessageSystemAttributes", "Name", "Value"),
        "Tag" => Repeated::Map("Tags", "Key", "Value"),
        _ => return None,
    })
}

/// Whether that is a list's, or a map's, name in the JSON form. Python's clients send an empty one as that, without a
/// value.
fn is_plural(name: &str) -> bool {
    matches!(
        name,
        "AttributeNames"
            | "MessageAttributeNames"
            | "MessageSystemAttributeNames"
            | "TagKeys"
            | "AWSAccountIds"
            | "Actions"
            | "Entries"
            | "Attributes"
            | "MessageAttributes"
            | "MessageSystemAttributes"
            | "Tags"
    )
}

fn is_number(name: &str) -> bool {
    matches!(
        name,
        "DelaySeconds"
            | "VisibilityTimeout"
            | "WaitTimeSeconds"
            | "MaxNumberOfMessages"
            | "MaxResults"
            | "MaxNumberOfMessagesPerSecond"
    )
}

/// Parameters by name, as they came.
#[derive(Debug, Default)]
pub(crate) struct Form(BTreeMap<String, String>);

/// Reads `name=value&...`.
pub(crate) fn parse_form(bytes: &[u8]) -> Result<Form, ErrorRefusal> {
    let mut form = Form::default();
    for (name, value) in form_urlencoded::parse(bytes) {
        form.insert(name.into_owned(), value.into_owned())?;
    }
    Ok(form)
}

impl Form {
    fn insert(&mut self, name: String, value: String) -> Result<(), ErrorRefusal> {
        self.0.insert(name, value);
        match self.0.len() <= PARAMETERS_MAX {
            true => Ok(()),
            false => {
                Err(ErrorRefusal::new(Code::Malformed, format!("more than {PARAMETERS_MAX} parameters")))
            }
        }
    }

    pub(super) fn extend(&mut self, other: Form) -> Result<(), ErrorRefusal> {
        other.0.into_iter().try_for_each(|(name, value)| self.insert(name, value))
    }

    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The parameters under the names of the JSON form.
    pub(super) fn tree(&self) -> Result<Value, ErrorRefusal> {
        let mut root = Node::default();
        for (name, value) in &self.0 {
            let mut node = &mut root;
            for (depth, part) in name.split('.').enumerate() {
                if depth >= DEPTH_MAX {
                    return Err(ErrorRefusal::new(
                        Code::Malformed,
                        format!("the parameter {name} is no name"),
                    ));
                }
                node = node.children.entry(part).or_default();
            }
            node.value = Some(value);
        }
        root.object()
    }
}

/// A part of a name, what is below it, and its value.
#[derive(Default)]
struct Node<'a> {
    value: Option<&'a str>,
    children: BTreeMap<&'a str, Node<'a>>,
}

impl Node<'_> {
    fn object(&self) -> Result<Value, ErrorRefusal> {
        let mut object = Map::new();
        for (name, node) in &self.children {
            match repeated(name) {
                _ if node.is_empty() && (is_plural(name) || repeated(name).is_some()) => {}
                Some(Repeated::List(plural)) => {
                    let items: Result<Vec<Value>, ErrorRefusal> =
                        node.items().iter().map(|item| item.any()).collect();
                    object.insert(plural.to_owned(), items?.into());
                }
                Some(Repeated::Map(plural, key, value)) => {
                    let mut map = Map::new();
                    for item in node.items() {
                        let Some(key) = item.children.get(key).and_then(|key| key.value) else { continue };
                        let value = item.children.get(value).map_or(Ok(Value::Null), |value| value.any())?;
                        map.insert(key.to_owned(), value);
                    }
                    object.insert(plural.to_owned(), map.into());
                }
                None if is_number(name) => {
                    let text = node.value.unwrap_or_default();
                    let value =
                        number(text).ok_or_else(|| ErrorRefusal::value(text, name, "Must be an integer."))?;
                    object.insert((*name).to_owned(), value);
                }
                None => {
                    object.insert((*name).to_owned(), node.any()?);
                }
            }
        }
        Ok(object.into())
    }

    /// Whether there is a name, and nothing else.
    fn is_empty(&self) -> bool {
        self.value == Some("") && self.children.is_empty()
    }

    fn any(&self) -> Result<Value, ErrorRefusal> {
        match self.value {
            Some(text) if self.children.is_empty() => Ok(text.into()),
            _ => self.object(),
        }
    }

    /// The items of a list, in the order of their numbers; one without a number is the only one.
    fn items(&self) -> Vec<&Node<'_>> {
        let numbered =
            self.children.iter().filter_map(|(name, node)| Some((name.parse::<u32>().ok()?, node)));
        let mut numbered: Vec<(u32, &Node<'_>)> = numbered.collect();
        if numbered.is_empty() {
            return vec![self];
        }
        numbered.sort_by_key(|(number, _)| *number);
        numbered.into_iter().map(|(_, node)| node).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn tree(form: &str) -> Value {
        parse_form(form.as_bytes()).and_then(|form| form.tree()).expect("a form")
    }

    #[test]
    fn numbered_names_become_lists_and_maps() {
        let form = "QueueUrl=http%3A%2F%2Fh%2F1%2Fq&DelaySeconds=5\
            &MessageAttribute.2.Name=b&MessageAttribute.2.Value.DataType=Number&MessageAttribute.2.Value.StringValue=1\
            &MessageAttribute.1.Name=a&MessageAttribute.1.Value.DataType=Binary&MessageAttribute.1.Value.BinaryValue=AA\
            &AttributeName.10=c&AttributeName.9=b&TagKey=one&Tag.1.Key=k&Tag.1.Value=";
        assert_eq!(
            tree(form),
            json!({
                "QueueUrl": "http://h/1/q",
                "DelaySeconds": 5,
                "MessageAttributes": {
                    "a": {"DataType": "Binary", "BinaryValue": "AA"},
                    "b": {"DataType": "Number", "StringValue": "1"},
                },
                "AttributeNames": ["b", "c"],
                "TagKeys": ["one"],
                "Tags": {"k": ""},
            })
        );
    }

    #[test]
    fn lists_and_maps_without_a_value_are_empty() {
        assert_eq!(
            tree("AttributeNames=&AttributeName=&Tags=&Entries=&Attribute=&QueueName="),
            json!({"QueueName": ""})
        );
    }

    #[test]
    fn entries_of_a_batch_have_attributes_of_their_own() {
        let form = "SendMessageBatchRequestEntry.1.Id=x&SendMessageBatchRequestEntry.1.MessageBody=m\
            &SendMessageBatchRequestEntry.1.MessageAttribute.1.Name=a\
            &SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringValue=v";
        assert_eq!(
            tree(form),
            json!({"Entries": [{"Id": "x", "MessageBody": "m", "MessageAttributes": {"a": {"StringValue": "v"}}}]})
        );
    }

    #[test]
    fn what_is_too_much_or_no_number_is_refused() {
        let many: String = (0..=PARAMETERS_MAX).map(|number| format!("p{number}=1&")).collect();
        assert_eq!(
            parse_form(many.as_bytes()).map(|_| ()).map_err(|refusal| refusal.code),
            Err(Code::Malformed)
        );
        for form in ["DelaySeconds=x", "a.a.a.a.a.a.a.a.a=1"] {
            assert!(parse_form(form.as_bytes()).expect("a form").tree().is_err(), "{form}");
        }
    }

    proptest! {
        #[test]
        fn no_form_makes_reading_panic(bytes: Vec<u8>, text in "[A-Za-z0-9.&=]{0,80}") {
            for form in [bytes, text.into_bytes()] {
                let _ = parse_form(&form).and_then(|form| form.tree());
            }
        }
    }
}
