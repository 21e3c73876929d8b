//! Records of one sequence through crashes: what was acknowledged is there, in order, and nothing comes back
//! from the dead.
//!
//! A record's life as the checker sees it:
//!
//! | state | what a recovery may find |
//! |---|---|
//! | refused (never accepted) | nothing |
//! | open (accepted, no answer) | the record, if every open one of its epoch before it was found too |
//! | lost (answered "lost") | the record, until a later one is acknowledged or a recovery did not find it |
//! | kept (acknowledged, or found by a recovery) | the record, always, unless it was trimmed |
//! | gone (a recovery did not find it) | nothing, ever |
//!
//! Found by a recovery counts as acknowledged, because whoever was replayed it has acted on it. A gap counts
//! within one epoch only: what a failure cut is missing in front of what was accepted after it.

use std::collections::BTreeMap;

use super::{Violation, ensure};

/// A record of a [`DeliveryLedger`]; in the order of acceptance.
pub type RecordId = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LedgerState {
    Open,
    Lost,
    Kept,
    Gone,
}

/// One sequence of records.
#[derive(Clone, Debug, Default)]
pub struct DeliveryLedger {
    states: Vec<LedgerState>,
    /// The epoch that each was accepted in, and the owner it belongs to.
    origins: Vec<(u64, u8)>,
    /// Those in state `Lost`.
    lost: Vec<RecordId>,
    /// By owner: records below it may be there or not.
    trimmed: BTreeMap<u8, RecordId>,
}

impl DeliveryLedger {
    /// An empty sequence.
    pub fn new() -> Self {
        Self::default()
    }

    /// The id that the next accepted record has to carry.
    pub fn next(&self) -> RecordId {
        self.states.len() as RecordId
    }

    /// A record of `owner` was accepted, after all accepted before it. Failures that cut records begin another
    /// `epoch`.
    pub fn accepted(&mut self, epoch: u64, owner: u8) -> RecordId {
        self.states.push(LedgerState::Open);
        self.origins.push((epoch, owner));
        self.next() - 1
    }

    /// A record was acknowledged.
    pub fn acknowledged(&mut self, id: RecordId) -> Result<(), Violation> {
        let state = &mut self.states[id as usize];
        ensure(matches!(state, LedgerState::Open | LedgerState::Kept), || {
            format!("record {id} was acknowledged, though it is {state:?}")
        })?;
        *state = LedgerState::Kept;
        // What acknowledges has begun a further file, which says that these were cut.
        for lost in std::mem::take(&mut self.lost) {
            if lost < id {
                self.states[lost as usize] = LedgerState::Gone;
            } else {
                self.lost.push(lost);
            }
        }
        Ok(())
    }

    /// A record was reported lost.
    pub fn lost(&mut self, id: RecordId) -> Result<(), Violation> {
        let state = &mut self.states[id as usize];
        ensure(matches!(state, LedgerState::Open | LedgerState::Lost | LedgerState::Gone), || {
            format!("record {id} was reported lost, though it is {state:?}")
        })?;
        if *state == LedgerState::Open {
            *state = LedgerState::Lost;
            self.lost.push(id);
        }
        Ok(())
    }

    /// `owner` does not need its records before `id` any more.
    pub fn trimmed(&mut self, owner: u8, id: RecordId) {
        let trimmed = self.trimmed.entry(owner).or_default();
        *trimmed = id.max(*trimmed);
    }

    /// Number of records that have to be there.
    pub fn kept(&self) -> u64 {
        let needed = (0..self.states.len()).filter(|&id| self.is_needed(id));
        needed.filter(|&id| self.states[id] == LedgerState::Kept).count() as u64
    }

    fn is_needed(&self, id: usize) -> bool {
        let (_, owner) = self.origins[id];
        self.trimmed.get(&owner).is_none_or(|&trimmed| id as RecordId >= trimmed)
    }

    /// Everything accepted so far, and not reported lost, was acknowledged at once.
    pub fn all_acknowledged(&mut self) {
        for state in self.states.iter_mut().filter(|state| **state == LedgerState::Open) {
            *state = LedgerState::Kept;
        }
    }

    /// Checks what a recovery found, in the order it found it, and takes it as what there is.
    pub fn recovered(&mut self, found: &[RecordId]) -> Result<(), Violation> {
        for pair in found.windows(2) {
            ensure(pair[0] < pair[1], || {
                format!("record {} was found after record {}: out of order or twice", pair[1], pair[0])
            })?;
        }
        let mut is_found = vec![false; self.states.len()];
        for &id in found {
            ensure(id < self.next(), || format!("record {id} was found, but was never accepted"))?;
            let gone = self.states[id as usize] == LedgerState::Gone;
            ensure(!gone || !self.is_needed(id as usize), || {
                format!("record {id} came back, though an earlier recovery did not find it")
            })?;
            is_found[id as usize] = true;
        }
        let mut missing_open = None;
        for (id, state) in self.states.iter().enumerate() {
            if !self.is_needed(id) {
                continue;
            }
            match (state, is_found[id]) {
                (LedgerState::Kept, false) => {
                    return Err(Violation::new(format!("record {id} was acknowledged and is not there")));
                }
                (LedgerState::Open, false) => missing_open = Some(id),
                (LedgerState::Open, true) => {
                    if let Some(missing) =
                        missing_open.filter(|&gap| self.origins[gap].0 == self.origins[id].0)
                    {
                        let what = format!("record {id} was found behind a gap: {missing} before it was not");
                        return Err(Violation::new(what));
                    }
                }
                _ => {}
            }
        }
        for (id, found) in is_found.into_iter().enumerate() {
            self.states[id] = if found { LedgerState::Kept } else { LedgerState::Gone };
        }
        self.lost.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(accepted: u64) -> DeliveryLedger {
        let mut ledger = DeliveryLedger::new();
        for _ in 0..accepted {
            ledger.accepted(1, 0);
        }
        ledger
    }

    #[test]
    fn an_acknowledged_record_has_to_be_found_and_an_open_one_may_be() {
        let mut ledger = ledger(3);
        ledger.acknowledged(0).expect("open");
        assert!(ledger.clone().recovered(&[]).is_err());
        assert!(ledger.clone().recovered(&[0]).is_ok());
        assert!(ledger.clone().recovered(&[0, 1]).is_ok());
        assert!(ledger.clone().recovered(&[0, 2]).is_err(), "a gap");
        assert!(ledger.clone().recovered(&[1, 0]).is_err(), "out of order");
        assert!(ledger.clone().recovered(&[0, 0]).is_err(), "twice");
        assert!(ledger.clone().recovered(&[0, 1, 2, 3]).is_err(), "never accepted");
    }

    #[test]
    fn what_a_recovery_found_stays_and_what_it_did_not_find_never_returns() {
        let mut ledger = ledger(4);
        ledger.recovered(&[0, 1]).expect("open ones");
        assert!(ledger.clone().recovered(&[0]).is_err(), "record 1 was found before");
        assert!(ledger.clone().recovered(&[0, 1, 2]).is_err(), "record 2 was gone");
        ledger.accepted(1, 0);
        ledger.recovered(&[0, 1, 4]).expect("those that were gone leave no gap");
    }

    #[test]
    fn a_record_reported_lost_leaves_no_gap_and_may_not_be_acknowledged() {
        let mut ledger = ledger(3);
        ledger.lost(1).expect("open");
        assert!(ledger.clone().acknowledged(1).is_err());
        assert!(ledger.clone().recovered(&[0, 2]).is_ok());
        assert!(ledger.clone().recovered(&[0, 1, 2]).is_ok(), "not cut before the crash");
        ledger.acknowledged(2).expect("open");
        assert!(ledger.clone().recovered(&[0, 1, 2]).is_err(), "cut before record 2 was acknowledged");
    }

    #[test]
    fn what_a_failure_cut_is_no_gap_in_front_of_what_came_after_it() {
        let mut ledger = ledger(2);
        ledger.accepted(2, 0);
        assert!(ledger.clone().recovered(&[0, 2]).is_ok());
        ledger.accepted(2, 0);
        assert!(ledger.clone().recovered(&[0, 3]).is_err());
    }

    #[test]
    fn trimmed_records_may_be_found_or_not() {
        let mut ledger = ledger(3);
        for id in 0..3 {
            ledger.acknowledged(id).expect("open");
        }
        ledger.trimmed(7, 3);
        assert_eq!(ledger.kept(), 3, "they belong to somebody else");
        ledger.trimmed(0, 2);
        assert_eq!(ledger.kept(), 1);
        assert!(ledger.clone().recovered(&[2]).is_ok());
        assert!(ledger.clone().recovered(&[1, 2]).is_ok());
        assert!(ledger.clone().recovered(&[0, 1]).is_err());
    }
}
