//! The label file `run_NN.json`, and the rule that its six lists partition the trajectories that it is about.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::labels::Label;

/// One labelling run over the fixed candidates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelRun {
    /// Number of the run, from 1.
    pub attempt: u32,
    /// As stated by the writer; recomputed from the lists before anything is concluded from them.
    pub totals: Totals,
    /// The trajectories that this run is about. Files of the reference have no such list: they are about all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trajectories: Option<Vec<String>>,
    /// The six lists of each candidate.
    #[serde(deserialize_with = "without_doubled_capabilities")]
    pub labels: BTreeMap<String, SixLists>,
}

/// How many of a run's trajectories failed and passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Failed trajectories.
    pub total_failed: u64,
    /// Passed trajectories.
    pub total_passed: u64,
}

/// The ids of a run's trajectories by label and outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SixLists {
    /// Failed, and lacking the capability.
    pub lacking_failed: Vec<String>,
    /// Failed, with the capability.
    pub present_failed: Vec<String>,
    /// Failed; the capability was not called for.
    pub na_failed: Vec<String>,
    /// Passed, and lacking the capability: by luck.
    pub lacking_passed: Vec<String>,
    /// Passed, with the capability.
    pub present_passed: Vec<String>,
    /// Passed; the capability was not called for.
    pub na_passed: Vec<String>,
}

impl SixLists {
    /// The list of a label and an outcome.
    pub fn list_mut(&mut self, label: Label, passed: bool) -> &mut Vec<String> {
        match (label, passed) {
            (Label::Lacking, false) => &mut self.lacking_failed,
            (Label::Present, false) => &mut self.present_failed,
            (Label::Na, false) => &mut self.na_failed,
            (Label::Lacking, true) => &mut self.lacking_passed,
            (Label::Present, true) => &mut self.present_passed,
            (Label::Na, true) => &mut self.na_passed,
        }
    }

    /// Name, outcome and ids of each list.
    fn each(&self) -> [(&'static str, bool, &[String]); 6] {
        [
            ("lacking_failed", false, &self.lacking_failed),
            ("present_failed", false, &self.present_failed),
            ("na_failed", false, &self.na_failed),
            ("lacking_passed", true, &self.lacking_passed),
            ("present_passed", true, &self.present_passed),
            ("na_passed", true, &self.na_passed),
        ]
    }

    /// Totals as the lists have them.
    pub fn totals(&self) -> Totals {
        let count = |lists: [&Vec<String>; 3]| lists.iter().map(|list| list.len() as u64).sum();
        Totals {
            total_failed: count([&self.lacking_failed, &self.present_failed, &self.na_failed]),
            total_passed: count([&self.lacking_passed, &self.present_passed, &self.na_passed]),
        }
    }
}

/// Why labels are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// Two trajectories of the sample have one id, so that labels could not be told apart.
    #[error("two trajectories have the id {id:?}")]
    DoubledTrajectory {
        /// The id.
        id: String,
    },
    /// A trajectory of the run has no label for this capability.
    #[error("label run {attempt}, {capability}: trajectory {id:?} is in none of the six lists; add it to one")]
    Missing {
        /// The run.
        attempt: u32,
        /// The capability.
        capability: String,
        /// The trajectory.
        id: String,
    },
    /// A trajectory has two labels for this capability, or the same one twice.
    #[error("label run {attempt}, {capability}: trajectory {id:?} is in {first} and again in {second}; keep one")]
    Doubled {
        /// The run.
        attempt: u32,
        /// The capability.
        capability: String,
        /// The trajectory.
        id: String,
        /// The list that it was found in first.
        first: &'static str,
        /// The list that it was found in then.
        second: &'static str,
    },
    /// An id that the sample does not have.
    #[error(
        "label run {attempt}, {place}: trajectory {id:?} is not in the sample (episodes without a verdict are outside it)"
    )]
    Unknown {
        /// The run.
        attempt: u32,
        /// The capability and list, or the list of trajectories.
        place: String,
        /// The id.
        id: String,
    },
    /// A passed trajectory in a list of failed ones, or the other way round.
    #[error("label run {attempt}, {capability}: trajectory {id:?} is in {list}, but its outcome is {outcome}")]
    WrongOutcome {
        /// The run.
        attempt: u32,
        /// The capability.
        capability: String,
        /// The trajectory.
        id: String,
        /// The list.
        list: &'static str,
        /// What its reward says.
        outcome: &'static str,
    },
    /// A candidate that the run does not label.
    #[error("label run {attempt} has no labels for the candidate {capability:?}")]
    MissingCapability {
        /// The run.
        attempt: u32,
        /// The candidate.
        capability: String,
    },
    /// A capability that is no candidate.
    #[error("label run {attempt} labels {capability:?}, which is not in candidate_capabilities.json")]
    UnknownCapability {
        /// The run.
        attempt: u32,
        /// The capability.
        capability: String,
    },
}

impl LabelRun {
    /// Holds this run to its rule: for every candidate, each trajectory of the run is in exactly one list, one that fits its
    /// outcome. `outcomes`: id to whether it passed, for the whole sample.
    ///
    /// # Errors
    /// The first breach, with the id.
    pub fn validate(&self, outcomes: &BTreeMap<&str, bool>, candidates: &[&str]) -> Result<(), LabelError> {
        let attempt = self.attempt;
        if let Some(capability) = self.labels.keys().find(|name| !candidates.contains(&name.as_str())) {
            return Err(LabelError::UnknownCapability { attempt, capability: capability.clone() });
        }
        let about = self.about(outcomes)?;
        for candidate in candidates {
            let capability = (*candidate).to_owned();
            let Some(lists) = self.labels.get(*candidate) else {
                return Err(LabelError::MissingCapability { attempt, capability });
            };
            let mut seen: BTreeMap<&str, &'static str> = BTreeMap::new();
            for (list, passed, ids) in lists.each() {
                for id in ids {
                    let capability = capability.clone();
                    let Some(outcome) = about.contains(id.as_str()).then(|| outcomes[id.as_str()]) else {
                        return Err(LabelError::Unknown {
                            attempt,
                            place: format!("{capability}, {list}"),
                            id: id.clone(),
                        });
                    };
                    if outcome != passed {
                        let outcome = if outcome { "passed" } else { "failed" };
                        return Err(LabelError::WrongOutcome { attempt, capability, id: id.clone(), list, outcome });
                    }
                    if let Some(first) = seen.insert(id, list) {
                        return Err(LabelError::Doubled { attempt, capability, id: id.clone(), first, second: list });
                    }
                }
            }
            if let Some(id) = about.iter().find(|id| !seen.contains_key(**id)) {
                return Err(LabelError::Missing { attempt, capability, id: (*id).to_owned() });
            }
        }
        Ok(())
    }

    /// The ids that this run is about.
    fn about<'a>(&'a self, outcomes: &BTreeMap<&'a str, bool>) -> Result<BTreeSet<&'a str>, LabelError> {
        let Some(listed) = &self.trajectories else {
            return Ok(outcomes.keys().copied().collect());
        };
        let mut about = BTreeSet::new();
        for id in listed {
            if !outcomes.contains_key(id.as_str()) {
                let place = "its list of trajectories".to_owned();
                return Err(LabelError::Unknown { attempt: self.attempt, place, id: id.clone() });
            }
            if !about.insert(id.as_str()) {
                let place = "trajectories";
                return Err(LabelError::Doubled {
                    attempt: self.attempt,
                    capability: "its list".to_owned(),
                    id: id.clone(),
                    first: place,
                    second: place,
                });
            }
        }
        Ok(about)
    }

    /// A sentence when the stated totals are not those of the lists; the lists count.
    pub fn disagreeing_totals(&self) -> Option<String> {
        let counted = self.labels.values().next()?.totals();
        (counted != self.totals).then(|| {
            format!(
                "label run {} states {} failed and {} passed trajectories, but its lists hold {} and {}; the lists count",
                self.attempt,
                self.totals.total_failed,
                self.totals.total_passed,
                counted.total_failed,
                counted.total_passed
            )
        })
    }
}

/// A JSON object silently keeps the last of two equal keys: labels would be lost.
fn without_doubled_capabilities<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, SixLists>, D::Error> {
    struct Labels;
    impl<'de> Visitor<'de> for Labels {
        type Value = BTreeMap<String, SixLists>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of capabilities, each with six lists of trajectory ids")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut labels = BTreeMap::new();
            while let Some((capability, lists)) = map.next_entry::<String, SixLists>()? {
                if labels.contains_key(&capability) {
                    return Err(A::Error::custom(format!("the capability {capability:?} is labelled twice")));
                }
                labels.insert(capability, lists);
            }
            Ok(labels)
        }
    }
    from.deserialize_map(Labels)
}
