//! What is known about an event that is not at hand, and what follows from it.

use std::ops::{Bound, RangeBounds};

use bytes::Bytes;

use super::{BRANCHES_MAX, Field, Node, Order, PredicateCheck, Truth};

/// What is known about an event. All of it is true of the event; other things may be, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// About its key.
    pub key: Values,
    /// About its headers.
    pub headers: Vec<(Bytes, Values)>,
    /// About its number.
    pub seq: NumberFacts,
    /// About its time.
    pub time_ms: NumberFacts,
}

/// What a key or a header can be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// Anything, and missing.
    #[default]
    Any,
    /// Missing.
    Missing,
    /// One of these.
    OneOf(Vec<Bytes>),
    /// Something from the first to the second, in the order of bytes.
    Within(Bound<Bytes>, Bound<Bytes>),
}

/// The least and the greatest that a number can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberFacts(pub u64, pub u64);

impl Default for NumberFacts {
    fn default() -> Self {
        Self(0, u64::MAX)
    }
}

impl NumberFacts {
    /// Those smaller than this.
    pub fn below(bound: u64) -> Self {
        // Nothing is below 0: no number at all.
        bound.checked_sub(1).map_or(Self(1, 0), |last| Self(0, last))
    }

    /// Those that are in both.
    pub fn and(self, other: Self) -> Self {
        Self(self.0.max(other.0), self.1.min(other.1))
    }

    fn from(order: Order, value: u64) -> Self {
        match order {
            Order::Equal => Self(value, value),
            Order::NotEqual => Self::default(),
            Order::Less => Self::below(value),
            Order::AtMost => Self(0, value),
            Order::Greater => value.checked_add(1).map_or(Self(1, 0), |first| Self(first, u64::MAX)),
            Order::AtLeast => Self(value, u64::MAX),
        }
    }

    fn decide(self, check: &PredicateCheck) -> Truth {
        let Self(least, most) = self;
        if least == most {
            return check.holds_for_number(least).into();
        }
        match check {
            PredicateCheck::Number(Order::NotEqual, value) if *value < least || *value > most => Truth::True,
            PredicateCheck::Number(Order::NotEqual, _) => Truth::Unknown,
            PredicateCheck::Number(order, value) => {
                let Self(from, to) = Self::from(*order, *value);
                within(from <= least && most <= to, from > to || to < least || from > most)
            }
            PredicateCheck::InNumbers(list) => {
                let first = list.partition_point(|value| *value < least);
                within(false, list.get(first).is_none_or(|value| *value > most))
            }
            _ => Truth::False,
        }
    }
}

fn within(all: bool, none: bool) -> Truth {
    match (all, none) {
        (true, _) => Truth::True,
        (_, true) => Truth::False,
        _ => Truth::Unknown,
    }
}

/// The first text behind all those that start with a prefix.
fn behind(prefix: &[u8]) -> Bound<Bytes> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return Bound::Excluded(end.into());
        }
    }
    Bound::Unbounded
}

fn is_before(high: &Bound<Bytes>, low: &Bound<Bytes>) -> bool {
    match (high, low) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(high), Bound::Included(low)) => high < low,
        (Bound::Included(high) | Bound::Excluded(high), Bound::Included(low) | Bound::Excluded(low)) => {
            high <= low
        }
    }
}

impl Values {
    /// What a check says about the value that it holds for.
    fn from(check: &PredicateCheck) -> Self {
        use Bound::{Excluded, Included, Unbounded};
        match check {
            PredicateCheck::Missing => Self::Missing,
            PredicateCheck::InBytes(list) => Self::OneOf(list.clone()),
            PredicateCheck::StartsWith(prefix) => Self::Within(Included(prefix.clone()), behind(prefix)),
            PredicateCheck::Bytes(order, value) => match order {
                Order::Equal => Self::OneOf(vec![value.clone()]),
                Order::NotEqual => Self::Within(Unbounded, Unbounded),
                Order::Less => Self::Within(Unbounded, Excluded(value.clone())),
                Order::AtMost => Self::Within(Unbounded, Included(value.clone())),
                Order::Greater => Self::Within(Excluded(value.clone()), Unbounded),
                Order::AtLeast => Self::Within(Included(value.clone()), Unbounded),
            },
            PredicateCheck::Number(..) | PredicateCheck::InNumbers(_) => Self::OneOf(Vec::new()),
        }
    }

    /// What is in both.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Any, values) | (values, Self::Any) => values,
            (Self::Missing, Self::Missing) => Self::Missing,
            (Self::Missing, _) | (_, Self::Missing) => Self::OneOf(Vec::new()),
            (Self::OneOf(list), other) | (other, Self::OneOf(list)) => {
                Self::OneOf(list.into_iter().filter(|value| other.contains(value)).collect())
            }
            (Self::Within(low, high), Self::Within(other_low, other_high)) => {
                // The greater of the lows and the smaller of the highs.
                let low_is_less = match (&low, &other_low) {
                    (Bound::Unbounded, _) => true,
                    (_, Bound::Unbounded) => false,
                    (Bound::Included(a), Bound::Included(b) | Bound::Excluded(b)) => a <= b,
                    (Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => a < b,
                };
                let high_is_less = match (&high, &other_high) {
                    (_, Bound::Unbounded) => true,
                    (Bound::Unbounded, _) => false,
                    (Bound::Included(a), Bound::Included(b) | Bound::Excluded(b)) => a < b,
                    (Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => a <= b,
                };
                Self::Within(
                    if low_is_less { other_low } else { low },
                    if high_is_less { high } else { other_high },
                )
            }
        }
    }

    fn contains(&self, value: &Bytes) -> bool {
        match self {
            Self::Any => true,
            Self::Missing => false,
            Self::OneOf(list) => list.contains(value),
            Self::Within(low, high) => RangeBounds::<Bytes>::contains(&(low.as_ref(), high.as_ref()), value),
        }
    }

    fn is_impossible(&self) -> bool {
        match self {
            Self::Any | Self::Missing => false,
            Self::OneOf(list) => list.is_empty(),
            Self::Within(low, high) => is_before(high, low),
        }
    }

    fn decide(&self, check: &PredicateCheck) -> Truth {
        match self {
            Self::Any => Truth::Unknown,
            Self::Missing => check.holds_for(None).into(),
            Self::OneOf(list) => {
                let holding = list.iter().filter(|value| check.holds_for(Some(value))).count();
                within(holding == list.len(), holding == 0)
            }
            Self::Within(low, high) => match check {
                PredicateCheck::Bytes(Order::NotEqual, value) => within(!self.contains(value), false),
                PredicateCheck::InBytes(list) => {
                    within(false, !list.iter().any(|value| self.contains(value)))
                }
                check => match Self::from(check) {
                    Self::Within(from, to) => {
                        let covered = Self::Within(from.clone(), to.clone()).and(self.clone()) == *self;
                        within(covered, is_before(&to, low) || is_before(high, &from))
                    }
                    Self::OneOf(list) => within(false, !list.iter().any(|value| self.contains(value))),
                    Self::Any | Self::Missing => Truth::False,
                },
            },
        }
    }
}

impl Facts {
    /// What is known about a header.
    fn header(&self, name: &[u8]) -> &Values {
        self.headers.iter().find(|(n, _)| n == name).map_or(&Values::Any, |(_, values)| values)
    }

    /// The keys that the event can have, if they are known.
    pub(super) fn keys(&self) -> Option<&[Bytes]> {
        match &self.key {
            _ if self.is_impossible() => Some(&[]),
            Values::OneOf(list) => Some(list),
            _ => None,
        }
    }

    /// Whether no event can be like this.
    pub fn is_impossible(&self) -> bool {
        self.key.is_impossible()
            || self.headers.iter().any(|(_, values)| values.is_impossible())
            || self.seq.0 > self.seq.1
            || self.time_ms.0 > self.time_ms.1
    }

    /// What is known if both are known.
    pub fn and(mut self, other: Self) -> Self {
        self.key = self.key.and(other.key);
        self.seq = self.seq.and(other.seq);
        self.time_ms = self.time_ms.and(other.time_ms);
        for (name, values) in other.headers {
            match self.headers.iter_mut().find(|(n, _)| *n == name) {
                Some((_, known)) => *known = std::mem::take(known).and(values),
                None => self.headers.push((name, values)),
            }
        }
        self
    }

    /// Whether a comparison holds.
    pub(super) fn decide(&self, field: &Field, check: &PredicateCheck) -> Truth {
        match field {
            Field::Key => self.key.decide(check),
            Field::Header(name) => self.header(name).decide(check),
            Field::Seq => self.seq.decide(check),
            Field::Time => self.time_ms.decide(check),
        }
    }

    fn of_test(field: &Field, check: &PredicateCheck, negated: bool) -> Self {
        let mut facts = Self::default();
        match field {
            Field::Seq | Field::Time => {
                let numbers = match (check, negated) {
                    (PredicateCheck::Number(order, value), false) => NumberFacts::from(*order, *value),
                    (PredicateCheck::Number(order, value), true) => {
                        NumberFacts::from(opposite(*order), *value)
                    }
                    (PredicateCheck::InNumbers(list), false) => NumberFacts(
                        list.first().copied().unwrap_or_default(),
                        list.last().copied().unwrap_or(u64::MAX),
                    ),
                    _ => NumberFacts::default(),
                };
                if *field == Field::Seq { facts.seq = numbers } else { facts.time_ms = numbers }
            }
            Field::Key | Field::Header(_) => {
                let values = match (check, negated) {
                    (check, false) => Values::from(check),
                    (PredicateCheck::Missing, true) => Values::Within(Bound::Unbounded, Bound::Unbounded),
                    // What it is not says little, and it may be missing.
                    (_, true) => Values::Any,
                };
                match field {
                    Field::Header(name) => facts.headers.push((name.clone(), values)),
                    _ => facts.key = values,
                }
            }
        }
        facts
    }
}

fn opposite(order: Order) -> Order {
    match order {
        Order::Equal => Order::NotEqual,
        Order::NotEqual => Order::Equal,
        Order::Less => Order::AtLeast,
        Order::AtMost => Order::Greater,
        Order::Greater => Order::AtMost,
        Order::AtLeast => Order::Less,
    }
}

/// Takes a predicate apart: for each event that it holds for, all of the facts of one of the branches are true.
/// At most [`BRANCHES_MAX`]; what would make it more is left out, which says less and nothing wrong.
pub(super) fn branches(node: &Node) -> Vec<Facts> {
    branches_of(node, false)
}

fn branches_of(node: &Node, negated: bool) -> Vec<Facts> {
    match (node, negated) {
        (Node::Constant(value), _) if *value == negated => Vec::new(),
        (Node::Constant(_), _) => vec![Facts::default()],
        (Node::Test(field, check), _) => vec![Facts::of_test(field, check, negated)],
        (Node::Not(node), _) => branches_of(node, !negated),
        (Node::Or(nodes), false) | (Node::And(nodes), true) => {
            let mut all = Vec::new();
            for node in nodes {
                all.extend(branches_of(node, negated));
                if all.len() > BRANCHES_MAX {
                    return vec![Facts::default()];
                }
            }
            all
        }
        (Node::And(nodes), false) | (Node::Or(nodes), true) => {
            let mut all = vec![Facts::default()];
            for node in nodes {
                let more = branches_of(node, negated);
                if all.len() * more.len() <= BRANCHES_MAX {
                    all = all
                        .iter()
                        .flat_map(|facts| more.iter().map(|other| facts.clone().and(other.clone())))
                        .collect();
                }
            }
            all
        }
    }
}
