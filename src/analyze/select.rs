//! Coverage, error rates and gap of every capability in every label run, and the choice of K of N.

use serde::{Deserialize, Serialize};

use super::formats::CandidateFile;
use super::partition::{LabelRun, SixLists};
use crate::stats::{mean, population_std};

/// When a capability is kept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// Least coverage in a run.
    pub rho: f64,
    /// Least gap in a run.
    pub delta: f64,
    /// Least number of runs that pass, K.
    pub keep: u32,
}

/// A capability in one label run. What has no denominator is `None`: undefined, not 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunMeasure {
    /// The run.
    pub attempt: u32,
    /// lacking_failed / total_failed; trajectories to which it does not apply stay in the denominator.
    pub coverage: Option<f64>,
    /// lacking_failed / (lacking_failed + present_failed).
    pub error_rate_failed: Option<f64>,
    /// lacking_passed / (lacking_passed + present_passed).
    pub error_rate_passed: Option<f64>,
    /// error_rate_failed - error_rate_passed.
    pub gap: Option<f64>,
    /// Whether coverage and gap are defined and large enough.
    pub passes: bool,
}

/// A capability over all label runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapabilityMeasure {
    /// Its name.
    pub name: String,
    /// What it is.
    pub description: String,
    /// Each run.
    pub runs: Vec<RunMeasure>,
    /// Mean coverage over the runs in which it is defined.
    pub mean_coverage: Option<f64>,
    /// Population standard deviation of it.
    pub std_coverage: Option<f64>,
    /// Mean gap over the runs in which it is defined.
    pub mean_gap: Option<f64>,
    /// Population standard deviation of it.
    pub std_gap: Option<f64>,
    /// Runs that pass.
    pub runs_passed: u32,
    /// Whether at least K runs pass.
    pub kept: bool,
}

impl CapabilityMeasure {
    /// A sentence when the gap is undefined in some run.
    pub fn undefined(&self) -> Option<String> {
        let undefined = |get: fn(&RunMeasure) -> Option<f64>| self.runs.iter().filter(|run| get(run).is_none()).count();
        let (failed, passed) = (undefined(|run| run.error_rate_failed), undefined(|run| run.error_rate_passed));
        let side = match (failed, passed) {
            (0, 0) => return None,
            (0, n) => format!("to no passed trajectory in {n} of {} label runs", self.runs.len()),
            (n, 0) => format!("to no failed trajectory in {n} of {} label runs", self.runs.len()),
            (n, m) => {
                format!("to no failed trajectory in {n} and to no passed one in {m} of {} label runs", self.runs.len())
            }
        };
        Some(format!("{} applies {side}: its gap is undefined there, and these runs do not pass it", self.name))
    }
}

/// The measures of one run's lists.
pub fn run_measure(attempt: u32, lists: &SixLists, rule: Rule) -> RunMeasure {
    let share = |part: usize, whole: usize| (whole > 0).then(|| part as f64 / whole as f64);
    let (lacking_failed, lacking_passed) = (lists.lacking_failed.len(), lists.lacking_passed.len());
    let coverage = share(lacking_failed, lists.totals().total_failed as usize);
    let error_rate_failed = share(lacking_failed, lacking_failed + lists.present_failed.len());
    let error_rate_passed = share(lacking_passed, lacking_passed + lists.present_passed.len());
    let gap = error_rate_failed.zip(error_rate_passed).map(|(failed, passed)| failed - passed);
    // A share that equals a threshold passes it, whatever its last bit: 0.3 - 0.1 is a gap of 0.2.
    let reaches = |value: Option<f64>, least: f64| value.is_some_and(|value| value >= least - 1e-9);
    let passes = reaches(coverage, rule.rho) && reaches(gap, rule.delta);
    RunMeasure { attempt, coverage, error_rate_failed, error_rate_passed, gap, passes }
}

/// Every candidate over all runs, in the candidates' order. The runs must be valid.
pub fn measure(candidates: &CandidateFile, runs: &[LabelRun], rule: Rule) -> Vec<CapabilityMeasure> {
    candidates
        .candidates
        .iter()
        .map(|candidate| {
            let runs: Vec<RunMeasure> = runs
                .iter()
                .filter_map(|run| Some(run_measure(run.attempt, run.labels.get(&candidate.name)?, rule)))
                .collect();
            let coverages: Vec<f64> = runs.iter().filter_map(|run| run.coverage).collect();
            let gaps: Vec<f64> = runs.iter().filter_map(|run| run.gap).collect();
            let runs_passed = runs.iter().filter(|run| run.passes).count() as u32;
            CapabilityMeasure {
                name: candidate.name.clone(),
                description: candidate.description.clone(),
                mean_coverage: mean(&coverages),
                std_coverage: population_std(&coverages),
                mean_gap: mean(&gaps),
                std_gap: population_std(&gaps),
                runs_passed,
                kept: runs_passed >= rule.keep,
                runs,
            }
        })
        .collect()
}

/// Kept capabilities first, then by mean gap, largest first, an undefined one last; equal ones by name.
pub fn rank(capabilities: &mut [CapabilityMeasure]) {
    capabilities.sort_by(|a, b| {
        let gap = |c: &CapabilityMeasure| c.mean_gap.unwrap_or(f64::NEG_INFINITY);
        b.kept.cmp(&a.kept).then(gap(b).total_cmp(&gap(a))).then(a.name.cmp(&b.name))
    });
}
