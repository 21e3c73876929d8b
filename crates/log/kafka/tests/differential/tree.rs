//! An answer as its fields, each with a path: made from what `{:#?}` prints, so that no field of no message is
//! forgotten.
//!
//! What can't be the same on two brokers is replaced by what it is: an id, a port, words for people; the ids of members
//! by their numbers, in the order in which they were given. Items of lists are named by what they are about, as brokers
//! put them in any order.

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
    "group_instance_id",
];

/// Lists whose items may have nothing that names them, and are in any order all the same.
const UNORDERED: [&str; 1] = ["members"];

/// The ids that members were given, in this order.
pub type Members = Vec<String>;

/// The fields of an answer; members that are new in it get their numbers.
pub fn fields(answer: &impl Debug, members: &mut Members) -> BTreeMap<String, String> {
    let text = format!("{answer:#?}");
    let mut lines = text.lines();
    let mut fields = BTreeMap::new();
    if let Some(first) = lines.next() {
        flatten("", parse(first, &mut lines).1, members, &mut fields);
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

fn flatten(path: &str, node: Node, members: &mut Members, fields: &mut BTreeMap<String, String>) {
    match node {
        Node::Leaf(value) => {
            let name = path.rsplit('.').next().unwrap_or(path);
            fields.insert(path.to_owned(), masked(name, value, members));
        }
        Node::Struct(inner) => {
            for (name, node) in inner {
                let path = if path.is_empty() { name } else { format!("{path}.{name}") };
                flatten(&path, node, members, fields);
            }
        }
        Node::List(items) => {
            fields.insert(format!("{path}.len"), items.len().to_string());
            let mut found: Vec<(Option<String>, BTreeMap<String, String>)> = Vec::new();
            for item in items {
                let name = name_of(&item);
                let mut inner = BTreeMap::new();
                flatten("", item, members, &mut inner);
                found.push((name, inner));
            }
            if UNORDERED.contains(&path.rsplit('.').next().unwrap_or(path)) {
                found.sort();
            }
            for (index, (name, inner)) in found.into_iter().enumerate() {
                let name = name.unwrap_or_else(|| index.to_string());
                let fits = |inner: &str| inner.is_empty() || inner.starts_with('.') || inner.starts_with('[');
                fields.extend(inner.into_iter().map(|(inner, value)| {
                    let dot = if fits(&inner) { "" } else { "." };
                    (format!("{path}[{name}]{dot}{inner}"), value)
                }));
            }
        }
    }
}

/// What an item of a list is about.
fn name_of(item: &Node) -> Option<String> {
    let Node::Struct(inner) = item else { return None };
    NAMES.iter().find_map(|wanted| {
        let found = inner.iter().find(|(name, _)| name == wanted)?;
        match &found.1 {
            Node::Leaf(value) if value != "\"\"" && value != "None" => Some(value.clone()),
            _ => None,
        }
    })
}

fn masked(name: &str, value: String, members: &mut Members) -> String {
    let mask = match name {
        "topic_id" if !value.starts_with("00000000-") => "an id",
        "member_id" | "leader" if value.len() > 36 => {
            let known = members.iter().position(|known| *known == value);
            let number = known.unwrap_or_else(|| {
                members.push(value);
                members.len() - 1
            });
            return format!("member {number}");
        }
        "cluster_id" | "port" | "log_dir" => "its own",
        "error_message" | "batch_index_error_message" if value != "None" && value != "\"\"" => "words",
        "documentation" if value != "None" => "words",
        "producer_id" if !value.starts_with('-') && value != "0" => "an id",
        "log_append_time_ms" | "last_fetch_timestamp" | "last_caught_up_timestamp" if value != "-1" => "now",
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
    let fields = fields(&answer, &mut Members::new());
    assert_eq!(fields["topics.len"], "2");
    assert_eq!(fields["topics[\"b\"].error_code"], "0");
    assert_eq!(fields["topics[\"a: {\"].is_internal"], "false");
    assert_eq!(fields["cluster_id"], "its own");
    assert_eq!(fields["controller_id"], "-1");
}

#[test]
fn members_have_the_numbers_in_which_they_came_in_whatever_order_they_are_listed() {
    use tailwater_kafka::messages::membership::{JoinGroupResponse, JoinGroupResponseMember};
    let id = |n: u8| format!("test-{}", uuid::Uuid::from_u128(n.into()));
    let member =
        |n| JoinGroupResponseMember { member_id: id(n), metadata: vec![n].into(), ..Default::default() };
    let mut members = Members::new();
    let first = JoinGroupResponse { member_id: id(9), leader: id(9), ..Default::default() };
    assert_eq!(fields(&first, &mut members)["leader"], "member 0");
    let mut both = JoinGroupResponse { members: vec![member(1), member(9)], ..first };
    let listed = fields(&both, &mut members);
    assert_eq!(listed["members[0].member_id"], "member 0");
    assert_eq!(listed["members[1].metadata"], "b\"\\x01\"");
    both.members.reverse();
    assert_eq!(fields(&both, &mut members), listed);
}
