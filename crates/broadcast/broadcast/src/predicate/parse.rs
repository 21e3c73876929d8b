//! From text to a predicate.
//!
//! ```text
//! or     = and { "or" and }
//! and    = not { "and" not }
//! not    = "not" not | "(" or ")" | "true" | "false" | test
//! test   = field ( op value | "starts with" string | ["not"] "in" "(" value { "," value } ")"
//!                | "is" ["not"] "missing" )
//! field  = "key" | "seq" | "time" | "header" "." name | "header" "(" string ")"
//! op     = "=" | "!=" | "<" | "<=" | ">" | ">="
//! value  = string | number
//! ```

use bytes::Bytes;

use crate::limits::PREDICATE_BYTES_MAX;

use super::{Field, Node, Order, PredicateCheck};

/// Comparisons and operators of a predicate.
pub const NODES_MAX: usize = 64;
/// Levels of parentheses and `not`.
pub const DEPTH_MAX: usize = 32;

/// A text that is no predicate. It says where, and shows the line with a mark below the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("predicate, line {line}, column {column}: {what}\n  {shown}\n  {:>width$}", '^', width = shown_column)]
pub struct SyntaxError {
    /// What is wrong.
    pub what: String,
    /// The byte in the text where it is, from 0.
    pub offset: usize,
    /// Its line, from 1.
    pub line: usize,
    /// Its character in the line, from 1.
    pub column: usize,
    /// The line, or what of it is around the place.
    pub shown: String,
    shown_column: usize,
}

/// Characters of a line that an error shows on each side of the place.
const SHOWN: usize = 60;

impl SyntaxError {
    fn new(text: &str, offset: usize, what: String) -> Self {
        let before = &text[..offset];
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before[start..].chars().count() + 1;
        let line = before.matches('\n').count() + 1;
        let skipped = column.saturating_sub(SHOWN);
        let rest = text[start..].split('\n').next().unwrap_or_default().chars();
        let shown =
            rest.skip(skipped).take(2 * SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
        Self { what, offset, line, column, shown, shown_column: column - skipped }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PredicateToken {
    Word(String),
    Text(Bytes),
    Number(u64),
    Order(Order),
    Open,
    Close,
    Comma,
    Dot,
    End,
}

impl std::fmt::Display for PredicateToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Word(word) => write!(f, "'{word}'"),
            Self::Text(_) => write!(f, "a string"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Order(order) => write!(f, "'{}'", super::print::sign(*order)),
            Self::Open => write!(f, "'('"),
            Self::Close => write!(f, "')'"),
            Self::Comma => write!(f, "','"),
            Self::Dot => write!(f, "'.'"),
            Self::End => write!(f, "the end"),
        }
    }
}

/// Parses a text.
pub(super) fn parse(text: &[u8]) -> Result<Node, SyntaxError> {
    let text = match std::str::from_utf8(text) {
        Ok(text) => text,
        Err(error) => {
            let valid = String::from_utf8_lossy(&text[..error.valid_up_to()]).into_owned();
            return Err(SyntaxError::new(
                &valid,
                valid.len(),
                "the text is not UTF-8 from here on".to_owned(),
            ));
        }
    };
    if text.len() > PREDICATE_BYTES_MAX {
        let what = format!("the text has {} bytes, more than {PREDICATE_BYTES_MAX}", text.len());
        return Err(SyntaxError::new("", 0, what));
    }
    let mut parser = Parser { text, at: 0, token: PredicateToken::End, start: 0, nodes: 0, depth: 0 };
    parser.advance()?;
    let node = parser.any()?;
    match parser.token {
        PredicateToken::End => Ok(node),
        _ => parser.wrong("'and', 'or' or the end"),
    }
}

struct Parser<'a> {
    text: &'a str,
    /// Behind the token.
    at: usize,
    token: PredicateToken,
    /// Where the token begins.
    start: usize,
    nodes: usize,
    depth: usize,
}

impl Parser<'_> {
    fn error<T>(&self, offset: usize, what: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError::new(self.text, offset, what.into()))
    }

    fn wrong<T>(&self, wanted: &str) -> Result<T, SyntaxError> {
        self.error(self.start, format!("{wanted} should be here instead of {}", self.token))
    }

    fn advance(&mut self) -> Result<PredicateToken, SyntaxError> {
        let token = self.lex()?;
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn lex(&mut self) -> Result<PredicateToken, SyntaxError> {
        let rest = self.text[self.at..].trim_start();
        self.start = self.text.len() - rest.len();
        let mut chars = rest.chars();
        let Some(first) = chars.next() else {
            self.at = self.text.len();
            return Ok(PredicateToken::End);
        };
        let equal = chars.next() == Some('=');
        let (token, len) = match first {
            '(' => (PredicateToken::Open, 1),
            ')' => (PredicateToken::Close, 1),
            ',' => (PredicateToken::Comma, 1),
            '.' => (PredicateToken::Dot, 1),
            '=' => (PredicateToken::Order(Order::Equal), 1),
            '!' if equal => (PredicateToken::Order(Order::NotEqual), 2),
            '<' if equal => (PredicateToken::Order(Order::AtMost), 2),
            '>' if equal => (PredicateToken::Order(Order::AtLeast), 2),
            '<' => (PredicateToken::Order(Order::Less), 1),
            '>' => (PredicateToken::Order(Order::Greater), 1),
            '"' => return self.lex_text(),
            '0'..='9' => {
                let len = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                match rest[..len].parse() {
                    Ok(number) => (PredicateToken::Number(number), len),
                    Err(_) => {
                        return self.error(self.start, format!("the number is greater than {}", u64::MAX));
                    }
                }
            }
            first if is_word(first) => {
                let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                (PredicateToken::Word(rest[..len].to_owned()), len)
            }
            other => return self.error(self.start, format!("{other:?} has no meaning here")),
        };
        self.at = self.start + len;
        Ok(token)
    }

    fn lex_text(&mut self) -> Result<PredicateToken, SyntaxError> {
        let mut out = Vec::new();
        let mut chars = self.text[self.start + 1..].char_indices();
        while let Some((at, c)) = chars.next() {
            let at = self.start + 1 + at;
            match c {
                '"' => {
                    self.at = at + 1;
                    return Ok(PredicateToken::Text(out.into()));
                }
                '\\' => match chars.next().map(|(_, c)| c) {
                    Some(c @ ('"' | '\\')) => out.push(c as u8),
                    Some('n') => out.push(b'\n'),
                    Some('t') => out.push(b'\t'),
                    Some('x') => {
                        let digit = |next: Option<(usize, char)>| next.and_then(|(_, c)| c.to_digit(16));
                        let (high, low) = (digit(chars.next()), digit(chars.next()));
                        match (high, low) {
                            (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
                            _ => return self.error(at, "'\\x' wants two hexadecimal digits"),
                        }
                    }
                    _ => return self.error(at, "a '\\' has to be followed by '\"', '\\', 'n', 't' or 'x'"),
                },
                c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        self.error(self.start, "the string has no end")
    }

    fn is(&self, word: &str) -> bool {
        matches!(&self.token, PredicateToken::Word(it) if it == word)
    }

    fn take(&mut self, word: &str) -> Result<bool, SyntaxError> {
        let is = self.is(word);
        if is {
            self.advance()?;
        }
        Ok(is)
    }

    fn expect(&mut self, token: PredicateToken) -> Result<(), SyntaxError> {
        if self.token != token {
            return self.wrong(&token.to_string());
        }
        self.advance().map(|_| ())
    }

    fn count(&mut self) -> Result<(), SyntaxError> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return self.error(self.start, format!("it has more than {NODES_MAX} comparisons and operators"));
        }
        Ok(())
    }

    fn any(&mut self) -> Result<Node, SyntaxError> {
        let mut nodes = vec![self.all()?];
        while self.take("or")? {
            nodes.push(self.all()?);
        }
        self.group(nodes, Node::Or)
    }

    fn all(&mut self) -> Result<Node, SyntaxError> {
        let mut nodes = vec![self.one()?];
        while self.take("and")? {
            nodes.push(self.one()?);
        }
        self.group(nodes, Node::And)
    }

    fn group(&mut self, mut nodes: Vec<Node>, group: fn(Vec<Node>) -> Node) -> Result<Node, SyntaxError> {
        match (nodes.len(), nodes.pop()) {
            (1, Some(only)) => Ok(only),
            (_, last) => {
                nodes.extend(last);
                self.count()?;
                Ok(group(nodes))
            }
        }
    }

    fn one(&mut self) -> Result<Node, SyntaxError> {
        if !matches!(self.token, PredicateToken::Open) && !self.is("not") {
            return self.test();
        }
        if self.depth == DEPTH_MAX {
            return self.error(self.start, format!("it has more than {DEPTH_MAX} levels"));
        }
        self.depth += 1;
        let node = if self.take("not")? {
            self.count()?;
            Node::Not(Box::new(self.one()?))
        } else {
            self.expect(PredicateToken::Open)?;
            let node = self.any()?;
            self.expect(PredicateToken::Close)?;
            node
        };
        self.depth -= 1;
        Ok(node)
    }

    fn test(&mut self) -> Result<Node, SyntaxError> {
        self.count()?;
        if self.take("true")? {
            return Ok(Node::Constant(true));
        }
        if self.take("false")? {
            return Ok(Node::Constant(false));
        }
        let field = self.field()?;
        if let PredicateToken::Order(order) = self.token {
            self.advance()?;
            let check = match self.value(&field)? {
                PredicateToken::Number(number) => PredicateCheck::Number(order, number),
                PredicateToken::Text(text) => PredicateCheck::Bytes(order, text),
                _ => return self.wrong("a value"),
            };
            return Ok(Node::Test(field, check));
        }
        if self.is("starts") {
            if matches!(field, Field::Seq | Field::Time) {
                return self.error(self.start, "only 'key' and headers can start with something");
            }
            self.advance()?;
            if !self.take("with")? {
                return self.wrong("'with'");
            }
            return match self.value(&field)? {
                PredicateToken::Text(prefix) => Ok(Node::Test(field, PredicateCheck::StartsWith(prefix))),
                _ => self.wrong("a string"),
            };
        }
        if self.take("is")? {
            let not = self.take("not")?;
            if matches!(field, Field::Seq | Field::Time) {
                return self.error(self.start, "every event has a 'seq' and a 'time'");
            }
            if !self.take("missing")? {
                return self.wrong("'missing'");
            }
            return Ok(negated(not, Node::Test(field, PredicateCheck::Missing)));
        }
        let not = self.take("not")?;
        if self.take("in")? {
            return Ok(negated(not, self.list(field)?));
        }
        self.wrong("a comparison")
    }

    fn list(&mut self, field: Field) -> Result<Node, SyntaxError> {
        self.expect(PredicateToken::Open)?;
        let (mut texts, mut numbers) = (Vec::new(), Vec::new());
        loop {
            match self.value(&field)? {
                PredicateToken::Number(number) => numbers.push(number),
                PredicateToken::Text(text) => texts.push(text),
                _ => return self.wrong("a value"),
            }
            if self.token != PredicateToken::Comma {
                break;
            }
            self.advance()?;
        }
        self.expect(PredicateToken::Close)?;
        texts.sort();
        texts.dedup();
        numbers.sort_unstable();
        numbers.dedup();
        let check = if texts.is_empty() {
            PredicateCheck::InNumbers(numbers)
        } else {
            PredicateCheck::InBytes(texts)
        };
        Ok(Node::Test(field, check))
    }

    fn field(&mut self) -> Result<Field, SyntaxError> {
        let fields = "'key', 'header', 'seq', 'time', 'not' or '('";
        let start = self.start;
        let PredicateToken::Word(word) = self.token.clone() else { return self.wrong(fields) };
        let field = match word.as_str() {
            "key" => Field::Key,
            "seq" => Field::Seq,
            "time" => Field::Time,
            "header" => {
                self.advance()?;
                return self.header();
            }
            _ => return self.error(start, format!("{fields} should be here instead of '{word}'")),
        };
        self.advance()?;
        Ok(field)
    }

    fn header(&mut self) -> Result<Field, SyntaxError> {
        if self.token == PredicateToken::Dot {
            self.advance()?;
            let PredicateToken::Word(name) = self.token.clone() else { return self.wrong("a header's name") };
            self.advance()?;
            return Ok(Field::Header(name.into()));
        }
        if self.token != PredicateToken::Open {
            return self.wrong("'.' or '(' and a header's name");
        }
        self.advance()?;
        let PredicateToken::Text(name) = self.token.clone() else {
            return self.wrong("a header's name as a string");
        };
        self.advance()?;
        self.expect(PredicateToken::Close)?;
        Ok(Field::Header(name))
    }

    /// A value that a field can be compared with.
    fn value(&mut self, field: &Field) -> Result<PredicateToken, SyntaxError> {
        match (field, &self.token) {
            (Field::Seq | Field::Time, PredicateToken::Number(_))
            | (Field::Key | Field::Header(_), PredicateToken::Text(_)) => self.advance(),
            (Field::Seq | Field::Time, _) => self.wrong("a number"),
            (Field::Key | Field::Header(_), _) => self.wrong("a string"),
        }
    }
}

fn negated(not: bool, node: Node) -> Node {
    if not { Node::Not(Box::new(node)) } else { node }
}

/// Letters, digits, `_` and `-`; a number begins with a digit and is none of these.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}
