//! Step 1, contrastive capability analysis: which capabilities do failed trajectories lack that passed ones have?
//!
//! [`labels`] gives every (trajectory, capability) pair a label from the environment's process checks, over independent
//! random halves of the tasks. [`partition`] is the label file and the rule that it partitions its trajectories; files
//! written by hand, by a language model or by the reference are read by the same code. [`select`] turns label files into
//! coverage, gap and the choice, and [`formats`] holds the files that the next step reads.
//!
//! Pure: no file is touched and no clock is read. Trajectories without a reward (infrastructure failures) must not be
//! given; they are outside the sample.

pub mod examples;
pub mod formats;
pub mod labels;
pub mod partition;
pub mod select;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use trace_envs::{CapabilityEvidence, Check};

pub use formats::{CandidateFile, Selected, Status};
pub use labels::Label;
pub use partition::{LabelError, LabelRun};
pub use select::{CapabilityMeasure, Rule};

/// A judged trajectory, as analysis sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Trajectory {
    /// Its id in the log.
    pub id: String,
    /// Its task: all trials of one task have the same.
    pub task: String,
    /// Which trial of the task.
    pub trial: u32,
    /// In [0, 1].
    pub reward: f64,
    /// The verdict's checks.
    pub checks: Vec<Check>,
}

impl Trajectory {
    /// Whether it belongs to D+: reward 1, within 1e-6.
    pub fn passed(&self) -> bool {
        self.reward >= 1.0 - 1e-6
    }
}

/// Everything that analysis found, before it is written to files.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// `candidate_capabilities.json`.
    pub candidates: CandidateFile,
    /// `run_NN.json`, in order.
    pub runs: Vec<LabelRun>,
    /// `selected_capabilities.json`: the kept ones, largest mean gap first.
    pub selected: Vec<Selected>,
    /// `analysis.json`: the measures of every candidate.
    pub record: Record,
}

/// `analysis.json`: what was measured for every candidate, kept or not, and what a reader should know about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The rule that was applied.
    pub rule: Rule,
    /// Judged trajectories that failed.
    pub failed: u64,
    /// Judged trajectories that passed.
    pub passed: u64,
    /// Trajectories without a verdict, which are outside the sample.
    pub left_out: u64,
    /// Every candidate; kept ones first, then by mean gap.
    pub capabilities: Vec<CapabilityMeasure>,
    /// What is undefined, or disagrees, and was reported instead of assumed.
    pub warnings: Vec<String>,
}

/// What analysis needs besides trajectories.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// When a capability is kept.
    pub rule: Rule,
    /// Number of label runs, N.
    pub runs: u32,
    /// Example trajectories of each kept capability.
    pub examples: usize,
    /// Seed of the random halves.
    pub seed: u64,
    /// Trajectories without a verdict, to be reported.
    pub left_out: u64,
}

/// The whole step from process checks: `evidence` names the candidates and the checks that speak for each.
///
/// # Errors
/// Where a trajectory id is doubled.
pub fn from_process_checks(
    trajectories: &[Trajectory],
    evidence: &[CapabilityEvidence],
    settings: &Settings,
) -> Result<Findings, LabelError> {
    let runs = labels::label_runs(trajectories, evidence, settings.runs, settings.seed);
    let candidates = formats::candidates(trajectories, evidence, settings.seed);
    from_labels(trajectories, candidates, runs, settings)
}

/// The rest of the step from label runs, whoever wrote them.
///
/// # Errors
/// Where a label run does not partition its trajectories; the error names the id.
pub fn from_labels(
    trajectories: &[Trajectory],
    candidates: CandidateFile,
    runs: Vec<LabelRun>,
    settings: &Settings,
) -> Result<Findings, LabelError> {
    let outcomes = outcomes(trajectories)?;
    let names: Vec<&str> = candidates.candidates.iter().map(|candidate| candidate.name.as_str()).collect();
    let mut warnings = Vec::new();
    for run in &runs {
        run.validate(&outcomes, &names)?;
        warnings.extend(run.disagreeing_totals());
    }
    let mut capabilities = select::measure(&candidates, &runs, settings.rule);
    warnings.extend(capabilities.iter().filter_map(CapabilityMeasure::undefined));
    select::rank(&mut capabilities);
    let selected = capabilities
        .iter()
        .filter(|capability| capability.kept)
        .map(|capability| {
            let examples = examples::failed(trajectories, &runs, &capability.name, settings.examples, settings.seed);
            formats::selected(capability, examples)
        })
        .collect();
    let failed = trajectories.iter().filter(|trajectory| !trajectory.passed()).count() as u64;
    let record = Record {
        rule: settings.rule,
        failed,
        passed: trajectories.len() as u64 - failed,
        left_out: settings.left_out,
        capabilities,
        warnings,
    };
    Ok(Findings { candidates, runs, selected, record })
}

/// Id to whether it passed.
fn outcomes(trajectories: &[Trajectory]) -> Result<BTreeMap<&str, bool>, LabelError> {
    let mut outcomes = BTreeMap::new();
    for trajectory in trajectories {
        if outcomes.insert(trajectory.id.as_str(), trajectory.passed()).is_some() {
            return Err(LabelError::DoubledTrajectory { id: trajectory.id.clone() });
        }
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests;
