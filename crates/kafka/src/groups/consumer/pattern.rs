//! Topics' names as patterns.
//!
//! To compile one and to look at all topics with it takes long beside a step of a group: whoever takes these steps does
//! both before, and what was found is kept for as long as the topics are the same.

use std::sync::Arc;

use parking_lot::Mutex;
use regex_automata::meta::Regex;
use regex_automata::util::syntax;
use tailwater_format::StreamId;

use super::{Catalog, Refused};
use crate::errors::ErrorCode;

/// Bytes that a compiled pattern may take.
const COMPILED_BYTES_MAX: usize = 1 << 20;
/// Bytes that matching with it may take besides.
const MATCHING_BYTES_MAX: usize = 64 << 10;

/// A pattern of topics' whole names. Members that say the same share what it was compiled to.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub text: String,
    compiled: Arc<Compiled>,
}

#[derive(Debug)]
struct Compiled {
    regex: Regex,
    /// The version of a catalog, and which of its topics match, in their order: a byte for each.
    matches: Mutex<Option<(u64, Arc<[bool]>)>>,
}

impl Pattern {
    /// Compiles a pattern, which takes some milliseconds at most.
    pub fn new(text: &str) -> Result<Self, Refused> {
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
        Ok(Self { text: text.to_owned(), compiled: Arc::new(Compiled { regex, matches: Mutex::default() }) })
    }

    /// Bytes that it takes beside its text.
    pub(super) fn compiled_bytes(&self) -> usize {
        self.compiled.regex.memory_usage() + MATCHING_BYTES_MAX
    }

    /// Looks its topics up in a catalog, unless that was done.
    pub fn look_up(&self, catalog: &Catalog) -> Arc<[bool]> {
        let mut matches = self.compiled.matches.lock();
        if let Some((version, matches)) = &*matches
            && *version == catalog.version
        {
            return Arc::clone(matches);
        }
        let found: Arc<[bool]> = catalog.keys().map(|name| self.compiled.regex.is_match(name)).collect();
        if matches.as_ref().is_none_or(|(version, _)| *version < catalog.version) {
            *matches = Some((catalog.version, Arc::clone(&found)));
        }
        found
    }

    /// Its topics.
    pub(super) fn topics(&self, catalog: &Catalog) -> Vec<StreamId> {
        let matches = self.look_up(catalog);
        let topics = catalog.values().zip(matches.iter()).filter(|(_, matches)| **matches);
        topics.map(|((id, _), _)| *id).collect()
    }
}
