//! What all batches have in common: entries with ids, of which each succeeds or fails by itself.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::error::{Code, ErrorRefusal};
use crate::limits::BATCH_MAX;
use crate::names::is_simple;

/// A batch's answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct BatchAnswer<T> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) successful: Vec<T>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) failed: Vec<FailedEntry>,
}

/// An entry that succeeded and has nothing to say.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DoneEntry {
    pub(super) id: String,
}

/// An entry that failed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct FailedEntry {
    id: String,
    sender_fault: bool,
    code: &'static str,
    message: String,
}

impl FailedEntry {
    pub(super) fn new(id: String, refusal: ErrorRefusal) -> Self {
        let ErrorRefusal { code, message } = refusal;
        Self { id, sender_fault: code.is_sender(), code: code.query_code(), message }
    }
}

/// Checks what holds for all entries together. `kind` is their name in messages.
pub(super) fn check<'a>(ids: impl ExactSizeIterator<Item = &'a str>, kind: &str) -> Result<(), ErrorRefusal> {
    match ids.len() {
        0 => {
            let message = format!("There should be at least one {kind} in the request.");
            return Err(ErrorRefusal::new(Code::EmptyBatchRequest, message));
        }
        1..=BATCH_MAX => {}
        count => {
            let message =
                format!("Maximum number of entries per request are {BATCH_MAX}. You have sent {count}.");
            return Err(ErrorRefusal::new(Code::TooManyEntriesInBatchRequest, message));
        }
    }
    let mut seen = BTreeSet::new();
    for id in ids {
        if !is_simple(id) {
            return Err(ErrorRefusal::new(
                Code::InvalidBatchEntryId,
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 \
                 letters long.",
            ));
        }
        if !seen.insert(id) {
            return Err(ErrorRefusal::new(Code::BatchEntryIdsNotDistinct, format!("Id {id} repeated.")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_one_to_ten_entries_with_ids_of_their_own() {
        let code = |ids: &[&str]| check(ids.iter().copied(), "Entry").map_err(|refusal| refusal.code);
        assert_eq!(code(&["a", "b"]), Ok(()));
        assert_eq!(code(&[]), Err(Code::EmptyBatchRequest));
        assert_eq!(code(&["a"; 11]), Err(Code::TooManyEntriesInBatchRequest));
        assert_eq!(code(&["a", "a"]), Err(Code::BatchEntryIdsNotDistinct));
        assert_eq!(code(&["a b"]), Err(Code::InvalidBatchEntryId));
    }
}
