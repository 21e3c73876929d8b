//! An answer as its fields, each with a path: made from what `{:#?}` prints, so that no field of no message is forgotten.
//!
//! What can't be the same on two brokers is replaced by what it is: an id, a port, words for people. Items of lists are
//! named by what they are about, as brokers put them in any order.

use std::collections::BTreeMap;
use std::fmt::Debug;

#[derive(Debug)]
enum Node {
    Leaf(String),
    Struct(Vec<(String, Node)>),
    List(Vec<Node>),
}

/// Fields that name the item that they are in.
const NAMES: [&str; 12] = [
    "api_key",
    "name",
    "topic",
    "resource_name",
    "topic_name",
    "partition_index",
    "partition",
    "index",
    "node_id",
    "broker_id",
    "group_id",
    "key",
];

/// The fields of an answer.
pub fn fields(answer: &impl Debug) -> BTreeMap<String, String> {
    let text = format!("{answer:#?}");
    let mut lines = text.lines();
    let mut fields = BTreeMap::new();
    if let Some(first) = lines.next() {
        flatten("", parse(first, &mut lines).1, &mut fields);
    }
    fields
}

/// The field that begins with `line`: its name, if it has one, and what it is.
fn parse<'a>(line: &'a str, lines: &mut impl Iterator<Item = &'a str>) -> (String, Node) {
    let line = line.trim().trim_end_matches(',');
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let (name, value) = line.split_once(": ").filter(|(name, _)| is_name(name)).unwrap_or(("", line));
    let open = value.chars().next_back().filter(|_| !value.starts_with(['"', 'b']));
    let node = match open {
        Some('{') => Node::Struct(inner(lines)),
        Some('[') => Node::List(inner(lines).into_iter().map(|(_, node)| node).collect()),
        // `Some(` and other wrappers are looked through.
        Some('(') => inner(lines).pop().map_or(Node::List(vec![]), |(_, node)| node),
        _ => Node::Leaf(value.to_owned()),
    };
    (name.to_owned(), node)
}

fn inner<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<(String, Node)> {
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with(['}', ']', ')']) {
            break;
        }
        found.push(parse(line, lines));
    }
    found
}

fn flatten(path: &str, node: Node, fields: &mut BTreeMap<String, String>) {
    match node {
        Node::Leaf(value) => {
            let name = path.rsplit('.').next().unwrap_or(path);
            fields.insert(path.to_owned(), masked(name, value));
        }
        Node::Struct(inner) => {
            for (name, node) in inner {
                let path = if path.is_empty() { name } else { format!("{path}.{name}") };
                flatten(&path, node, fields);
            }
        }
        Node::List(items) => {
            fields.insert(format!("{path}.len"), items.len().to_string());
            for (index, item) in items.into_iter().enumerate() {
                let name = match &item {
                    Node::Struct(inner) => NAMES.iter().find_map(|wanted| {
                        let found = inner.iter().find(|(name, _)| name == wanted)?;
                        match &found.1 {
                            Node::Leaf(value) if value != "\"\"" && value != "None" => Some(value.clone()),
                            _ => None,
                        }
                    }),
                    _ => None,
                };
                let name = name.unwrap_or_else(|| index.to_string());
                flatten(&format!("{path}[{name}]"), item, fields);
            }
        }
    }
}

fn masked(name: &str, value: String) -> String {
    let mask = match name {
        "member_id" | "leader" if value != "\"\"" && value != "\"nobody\"" => "a member",
        "topic_id" if !value.starts_with("00000000-") => "an id",
        "cluster_id" | "port" | "log_dir" => "its own",
        "error_message" | "batch_index_error_message" if value != "None" && value != "\"\"" => "words",
        "documentation" if value != "None" => "words",
        "producer_id" if !value.starts_with('-') && value != "0" => "an id",
        "log_append_time_ms" if value != "-1" => "now",
        "partition_size" | "total_bytes" | "usable_bytes" if !value.starts_with('-') => "bytes",
        _ => return value,
    };
    mask.to_owned()
}

#[test]
fn every_field_has_a_path_and_items_are_named_by_what_they_are_about() {
    use tailwater_kafka::messages::cluster::{MetadataResponse, MetadataResponseTopic};
    let topic = |name: &str| MetadataResponseTopic { name: Some(name.to_owned()), ..Default::default() };
    let answer = MetadataResponse {
        cluster_id: Some("x".to_owned()),
        topics: vec![topic("b"), topic("a: {")],
        ..Default::default()
    };
    let fields = fields(&answer);
    assert_eq!(fields["topics.len"], "2");
    assert_eq!(fields["topics[\"b\"].error_code"], "0");
    assert_eq!(fields["topics[\"a: {\"].is_internal"], "false");
    assert_eq!(fields["cluster_id"], "its own");
    assert_eq!(fields["controller_id"], "-1");
}
