//! A predicate as text, which parses to the same predicate.

use std::fmt::{Display, Formatter, Result, Write};

use super::{Field, Node, Order, Predicate, PredicateCheck};

/// How a comparison is written.
pub(super) fn sign(order: Order) -> &'static str {
    match order {
        Order::Equal => "=",
        Order::NotEqual => "!=",
        Order::Less => "<",
        Order::AtMost => "<=",
        Order::Greater => ">",
        Order::AtLeast => ">=",
    }
}

impl Display for Predicate {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.root.print(f, Within::Nothing)
    }
}

/// What a node is written in: it decides whether it wants parentheses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Nothing,
    Or,
    And,
    Not,
}

fn group(f: &mut Formatter<'_>, nodes: &[Node], word: &str, within: Within, parentheses: bool) -> Result {
    f.write_str(if parentheses { "(" } else { "" })?;
    for (at, node) in nodes.iter().enumerate() {
        f.write_str(if at > 0 { word } else { "" })?;
        node.print(f, within)?;
    }
    f.write_str(if parentheses { ")" } else { "" })
}

impl Node {
    fn print(&self, f: &mut Formatter<'_>, within: Within) -> Result {
        match self {
            Self::Constant(value) => write!(f, "{value}"),
            Self::And(nodes) => {
                group(f, nodes, " and ", Within::And, matches!(within, Within::And | Within::Not))
            }
            Self::Or(nodes) => group(f, nodes, " or ", Within::Or, within != Within::Nothing),
            Self::Not(node) => {
                f.write_str("not ")?;
                node.print(f, Within::Not)
            }
            Self::Test(field, check) => {
                match field {
                    Field::Key => f.write_str("key")?,
                    Field::Seq => f.write_str("seq")?,
                    Field::Time => f.write_str("time")?,
                    Field::Header(name) => {
                        f.write_str("header(")?;
                        text(f, name)?;
                        f.write_str(")")?;
                    }
                }
                check.print(f)
            }
        }
    }
}

impl PredicateCheck {
    fn print(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Bytes(order, value) => {
                write!(f, " {} ", sign(*order))?;
                text(f, value)
            }
            Self::Number(order, value) => write!(f, " {} {value}", sign(*order)),
            Self::StartsWith(prefix) => {
                f.write_str(" starts with ")?;
                text(f, prefix)
            }
            Self::Missing => f.write_str(" is missing"),
            Self::InBytes(values) => list(f, values, |f, value| text(f, value)),
            Self::InNumbers(values) => list(f, values, |f, value| write!(f, "{value}")),
        }
    }
}

fn list<T>(f: &mut Formatter<'_>, values: &[T], print: impl Fn(&mut Formatter<'_>, &T) -> Result) -> Result {
    f.write_str(" in (")?;
    for (at, value) in values.iter().enumerate() {
        f.write_str(if at > 0 { ", " } else { "" })?;
        print(f, value)?;
    }
    f.write_str(")")
}

fn text(f: &mut Formatter<'_>, bytes: &[u8]) -> Result {
    f.write_char('"')?;
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => write!(f, "\\{}", byte as char)?,
            b' '..=b'~' => f.write_char(byte as char)?,
            _ => write!(f, "\\x{byte:02x}")?,
        }
    }
    f.write_char('"')
}
