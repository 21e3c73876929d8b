//! A small language for which events a garbage-collection event matches (docs/predicates.md): over the key, the
//! headers, the number and the time of an event.
//!
//! A predicate looks at one event at a time, has no loops and no state, and its cost is bounded when it is
//! parsed: a text of 4 KiB, [`NODES_MAX`] comparisons and operators, [`DEPTH_MAX`] levels; see
//! [`Predicate::cost`]. It can be evaluated on an event, with true or false for an answer, and on
//! [`Facts`] about an event that is not known, with [`Truth::Unknown`] for a third. The second is what decides
//! whether one predicate matches all that another one does (section 2.1).

mod facts;
mod parse;
mod print;
#[cfg(test)]
mod tests;

use bytes::Bytes;

use crate::batch::EventRef;
use crate::event::Event;

pub use facts::{Facts, NumberFacts, Values};
pub use parse::{DEPTH_MAX, NODES_MAX, SyntaxError};

/// Branches that a predicate is taken apart into, to see what it says about the events it holds for.
const BRANCHES_MAX: usize = 64;
/// Keys of a predicate that are looked up one by one; one with more goes through all events.
const PINS_MAX: usize = 64;

/// A parsed predicate.
#[derive(Clone, Debug)]
pub struct Predicate {
    root: Node,
    branches: Vec<Facts>,
    pins: Option<Vec<Bytes>>,
    cost: u32,
}

impl PartialEq for Predicate {
    fn eq(&self, other: &Self) -> bool {
        self.root == other.root
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Constant(bool),
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    Test(Field, PredicateCheck),
}

/// What a comparison looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Key,
    Header(Bytes),
    Seq,
    Time,
}

/// What it asks of it. Bytes for a key or a header, numbers for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PredicateCheck {
    Bytes(Order, Bytes),
    StartsWith(Bytes),
    /// Sorted.
    InBytes(Vec<Bytes>),
    Missing,
    Number(Order, u64),
    /// Sorted.
    InNumbers(Vec<u64>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

impl Order {
    pub(crate) fn holds<T: Ord + ?Sized>(self, a: &T, b: &T) -> bool {
        match self {
            Self::Equal => a == b,
            Self::NotEqual => a != b,
            Self::Less => a < b,
            Self::AtMost => a <= b,
            Self::Greater => a > b,
            Self::AtLeast => a >= b,
        }
    }
}

/// Whether something holds, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It does.
    True,
    /// It does not.
    False,
    /// It may.
    Unknown,
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// What a predicate can be evaluated on.
pub trait Subject {
    /// Its key.
    fn key(&self) -> Option<&[u8]>;
    /// The first header of a name.
    fn header(&self, name: &[u8]) -> Option<&[u8]>;
    /// Its number.
    fn seq(&self) -> u64;
    /// Its time, in milliseconds since 1970.
    fn time_ms(&self) -> u64;
}

impl Subject for EventRef<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.key
    }
    fn header(&self, name: &[u8]) -> Option<&[u8]> {
        EventRef::header(self, name)
    }
    fn seq(&self) -> u64 {
        self.seq
    }
    fn time_ms(&self) -> u64 {
        self.time_ms
    }
}

impl Subject for Event {
    fn key(&self) -> Option<&[u8]> {
        self.content()?.key.as_deref()
    }
    fn header(&self, name: &[u8]) -> Option<&[u8]> {
        let mut headers = self.content()?.headers.iter();
        headers.find(|(n, _)| n == name).map(|(_, value)| value.as_ref())
    }
    fn seq(&self) -> u64 {
        self.seq
    }
    fn time_ms(&self) -> u64 {
        self.time_ms
    }
}

impl PredicateCheck {
    fn holds_for(&self, value: Option<&[u8]>) -> bool {
        let Some(value) = value else { return *self == Self::Missing };
        match self {
            Self::Bytes(order, other) => order.holds(value, other.as_ref()),
            Self::StartsWith(prefix) => value.starts_with(prefix),
            Self::InBytes(list) => list.binary_search_by(|other| other.as_ref().cmp(value)).is_ok(),
            Self::Missing | Self::Number(..) | Self::InNumbers(_) => false,
        }
    }

    fn holds_for_number(&self, value: u64) -> bool {
        match self {
            Self::Number(order, other) => order.holds(&value, other),
            Self::InNumbers(list) => list.binary_search(&value).is_ok(),
            _ => false,
        }
    }
}

impl Node {
    /// Three-valued: `test` answers for the comparisons.
    fn evaluate(&self, test: &impl Fn(&Field, &PredicateCheck) -> Truth) -> Truth {
        let first = |nodes: &[Node], decides: Truth, otherwise: Truth| {
            let mut unknown = false;
            for node in nodes {
                match node.evaluate(test) {
                    truth if truth == decides => return decides,
                    truth => unknown |= truth == Truth::Unknown,
                }
            }
            if unknown { Truth::Unknown } else { otherwise }
        };
        match self {
            Self::Constant(value) => (*value).into(),
            Self::And(nodes) => first(nodes, Truth::False, Truth::True),
            Self::Or(nodes) => first(nodes, Truth::True, Truth::False),
            Self::Not(node) => match node.evaluate(test) {
                Truth::True => Truth::False,
                Truth::False => Truth::True,
                Truth::Unknown => Truth::Unknown,
            },
            Self::Test(field, check) => test(field, check),
        }
    }

    fn cost(&self) -> u32 {
        match self {
            Self::Constant(_) => 1,
            Self::And(nodes) | Self::Or(nodes) => 1 + nodes.iter().map(Self::cost).sum::<u32>(),
            Self::Not(node) => 1 + node.cost(),
            Self::Test(Field::Header(_), _) => 8,
            Self::Test(..) => 2,
        }
    }

    /// Whether it holds for every event `e` before an event `g` that it holds for, if `e` has `g`'s key
    /// (`by_key`) or any.
    fn is_stable(&self, negated: bool, by_key: bool) -> bool {
        match self {
            Self::Constant(_) => true,
            Self::And(nodes) | Self::Or(nodes) => nodes.iter().all(|node| node.is_stable(negated, by_key)),
            Self::Not(node) => node.is_stable(!negated, by_key),
            Self::Test(Field::Key, _) => by_key,
            Self::Test(Field::Header(_), _) => false,
            // Of the number or the time: what comes before has a smaller number, and no later time.
            Self::Test(_, PredicateCheck::Number(order, _)) => matches!(
                (order, negated),
                (Order::Less | Order::AtMost, false) | (Order::AtLeast | Order::Greater, true)
            ),
            Self::Test(..) => false,
        }
    }
}

impl Predicate {
    /// Parses a predicate; see docs/predicates.md.
    pub fn parse(text: &[u8]) -> Result<Self, SyntaxError> {
        Ok(Self::new(parse::parse(text)?))
    }

    fn new(root: Node) -> Self {
        let branches = facts::branches(&root);
        let keys: Option<Vec<&[Bytes]>> = branches.iter().map(Facts::keys).collect();
        let pins = keys.and_then(|keys| {
            let mut pins: Vec<Bytes> = keys.concat();
            pins.sort();
            pins.dedup();
            (pins.len() <= PINS_MAX).then_some(pins)
        });
        let cost = root.cost();
        Self { root, branches, pins, cost }
    }

    /// Whether it holds for an event.
    #[inline]
    pub fn holds(&self, event: &impl Subject) -> bool {
        let truth = self.root.evaluate(&|field, check| {
            let holds = match field {
                Field::Key => check.holds_for(event.key()),
                Field::Header(name) => check.holds_for(event.header(name)),
                Field::Seq => check.holds_for_number(event.seq()),
                Field::Time => check.holds_for_number(event.time_ms()),
            };
            holds.into()
        });
        truth == Truth::True
    }

    /// Whether it holds for an event of which only these facts are known.
    pub fn holds_given(&self, facts: &Facts) -> Truth {
        if facts.is_impossible() {
            return Truth::True;
        }
        self.root.evaluate(&|field, check| facts.decide(field, check))
    }

    /// What it says about the events that it holds for: one of these is true of each.
    pub fn branches(&self) -> &[Facts] {
        &self.branches
    }

    /// The only keys that an event can have for which it holds, if it names them and they are few.
    pub fn pins(&self) -> Option<&[Bytes]> {
        self.pins.as_deref()
    }

    /// What an evaluation costs at most, in steps of some 5 ns; more for events with many headers.
    pub fn cost(&self) -> u32 {
        self.cost
    }

    /// Whether it holds for every event that comes before one that it holds for: for those with the same key
    /// (`by_key`), or for all.
    pub fn is_stable(&self, by_key: bool) -> bool {
        self.root.is_stable(false, by_key)
    }
}
