//! Topics' names as patterns.
//!
//! To compile one and to look at all topics with it takes long beside a step of a group, and so may asking whether a
//! member may know of what it finds. So whoever takes these steps does all that before, and a step has what was found
//! last: a topic that is created is found with the next heartbeat of a member that has the pattern.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use regex_automata::meta::Regex;
use regex_automata::util::syntax;
use tailwater_env::Instant;
use tailwater_format::StreamId;

use super::{Catalog, MemberRefused};
use crate::errors::ErrorCode;

/// Bytes that a compiled pattern may take.
const COMPILED_BYTES_MAX: usize = 1 << 20;
/// Bytes that matching with it may take besides.
const MATCHING_BYTES_MAX: usize = 64 << 10;
/// After so long topics are looked up again although they are the same: who may know of them can change by itself.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

/// A pattern of topics' whole names, on somebody's behalf. Members of the same principal that say the same share what
/// it was compiled to, and what it found.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub text: String,
    /// Whoever may know of what it finds.
    pub principal: Arc<str>,
    compiled: Arc<Compiled>,
}

/// What tells a pattern from others: its text, and on whose behalf.
pub(super) type PatternKey<'a> = (&'a str, &'a str);

#[derive(Debug)]
struct Compiled {
    regex: Regex,
    /// Held while topics are looked up: who wants the same waits for what is found.
    looking: Mutex<()>,
    /// Held for a moment only: steps read it.
    found: Mutex<Option<Found>>,
    /// Whether no step has seen yet what was found.
    is_news: AtomicBool,
}

/// What a pattern found.
#[derive(Clone, Debug)]
struct Found {
    /// The version of the catalog that it was looked up in, and when.
    version: u64,
    at: Instant,
    /// In order.
    topics: Arc<[StreamId]>,
}

impl Pattern {
    /// Compiles a pattern, which takes some milliseconds at most.
    pub fn new(text: &str, principal: &Arc<str>) -> Result<Self, MemberRefused> {
        let invalid = |why: String| (ErrorCode::InvalidRegularExpression, why);
        // By itself first: within the group that makes it one of whole names, a parenthesis too many could end that.
        syntax::parse(text).map_err(|error| invalid(error.to_string()))?;
        let limits = Regex::config()
            .nfa_size_limit(Some(COMPILED_BYTES_MAX))
            .onepass_size_limit(Some(COMPILED_BYTES_MAX))
            .hybrid_cache_capacity(MATCHING_BYTES_MAX);
        let built = Regex::builder().configure(limits).build(&format!("^(?:{text})$"));
        let regex = built.map_err(|error| {
            invalid(error.syntax_error().map_or_else(|| error.to_string(), ToString::to_string))
        })?;
        let compiled = Compiled {
            regex,
            looking: Mutex::default(),
            found: Mutex::default(),
            is_news: AtomicBool::new(false),
        };
        Ok(Self { text: text.to_owned(), principal: Arc::clone(principal), compiled: Arc::new(compiled) })
    }

    /// Goes on with what it had found before a restart: of these topics those that match. They are looked up again
    /// with the next heartbeat of whoever has it.
    pub(super) fn had_found(&self, now: Instant, catalog: &Catalog, had: &BTreeSet<StreamId>) {
        let matching =
            catalog.iter().filter(|(name, (id, _))| had.contains(id) && self.compiled.regex.is_match(name));
        let mut topics: Vec<StreamId> = matching.map(|(_, (id, _))| *id).collect();
        topics.sort_unstable();
        *self.compiled.found.lock() = Some(Found { version: 0, at: now, topics: topics.into() });
    }

    pub(super) fn key(&self) -> PatternKey<'_> {
        (&self.text, &self.principal)
    }

    /// Bytes that it takes beside its text.
    pub(super) fn compiled_bytes(&self) -> usize {
        let found = self.compiled.found.lock().as_ref().map_or(0, |found| size_of_val(&*found.topics));
        // A group has them in a set besides, from which its target was made.
        self.compiled.regex.memory_usage() + MATCHING_BYTES_MAX + 3 * found
    }

    /// Looks its topics up in a catalog, unless that was done: those of which `may_know` says so.
    pub fn look_up(&self, now: Instant, catalog: &Catalog, may_know: impl Fn(&str) -> bool) {
        let _looking = self.compiled.looking.lock();
        let before = self.compiled.found.lock().clone();
        if before.as_ref().is_some_and(|found| {
            found.version > catalog.version
                || (found.version == catalog.version && now < found.at + LOOK_AGAIN)
        }) {
            return;
        }
        let matching =
            catalog.iter().filter(|(name, _)| self.compiled.regex.is_match(name) && may_know(name));
        let mut topics: Vec<StreamId> = matching.map(|(_, (id, _))| *id).collect();
        topics.sort_unstable();
        let is_news = before.is_none_or(|before| *before.topics != topics[..]);
        let found = Found { version: catalog.version, at: now, topics: topics.into() };
        *self.compiled.found.lock() = Some(found);
        // Behind what was found: a step that misses one sees the other.
        self.compiled.is_news.fetch_or(is_news, Ordering::Release);
    }

    /// Whether something else was found since this was asked last.
    pub(super) fn take_news(&self) -> bool {
        self.compiled.is_news.swap(false, Ordering::Acquire)
    }

    /// Of the topics that were found last those that there are.
    pub(super) fn topics(&self, catalog: &Catalog) -> Vec<StreamId> {
        let Some(found) = self.compiled.found.lock().clone() else { return Vec::new() };
        let topics = catalog.values().map(|(id, _)| *id);
        topics.filter(|id| found.topics.binary_search(id).is_ok()).collect()
    }
}
