//! The units that were asked for and are not yet acknowledged.
//!
//! It lives outside of every mailbox, so an actor's failure loses nothing of it. What is acknowledged is no longer
//! here: that is what the log is for, and what makes both halves of the ledger survive the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What was asked and is not acknowledged: unit -> how often it was handed out.
#[derive(Clone, Default)]
pub(crate) struct Ledger {
    asked: Arc<Mutex<BTreeMap<String, u32>>>,
}

/// A unit that somebody works on; it leaves the ledger when this is dropped.
pub(crate) struct Claim {
    ledger: Ledger,
    unit: String,
}

impl Ledger {
    /// Claims a unit. `None` where somebody else has it: the same work must not be done twice at once.
    pub(crate) fn claim(&self, unit: &str) -> Option<Claim> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.contains_key(unit) {
            return None;
        }
        asked.insert(unit.to_owned(), 0);
        Some(Claim { ledger: self.clone(), unit: unit.to_owned() })
    }

    /// The units under way and how often each was handed out.
    pub(crate) fn under_way(&self) -> BTreeMap<String, u32> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Claim {
    /// Hands the unit out: the number of this issue, from 1.
    pub(crate) fn issue(&self) -> u32 {
        let mut asked = self.ledger.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let issue = asked.entry(self.unit.clone()).or_default();
        *issue += 1;
        *issue
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.ledger.asked.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.unit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_worked_on_by_one_at_a_time_and_counts_its_issues() {
        let ledger = Ledger::default();
        let claim = ledger.claim("u").unwrap();
        assert!(ledger.claim("u").is_none());
        assert_eq!((claim.issue(), claim.issue()), (1, 2));
        assert_eq!(ledger.under_way(), BTreeMap::from([("u".to_owned(), 2)]));
        drop(claim);
        assert!(ledger.under_way().is_empty());
        assert_eq!(ledger.claim("u").unwrap().issue(), 1);
    }
}
