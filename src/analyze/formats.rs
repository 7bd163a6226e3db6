//! The files that steps, people and coding agents exchange: `candidate_capabilities.json` and `selected_capabilities.json`.
//! Names and shapes are those of the reference; unknown fields are ignored when read.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use trace_envs::CapabilityEvidence;

use super::Trajectory;
use super::examples::spread;
use super::labels::{Label, label};
use super::select::CapabilityMeasure;

/// `candidate_capabilities.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CandidateFile {
    /// The fixed candidates that every label run labels.
    pub candidates: Vec<Candidate>,
}

/// A capability that might be lacking.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// What it is, in a sentence.
    pub description: String,
    /// Trajectories that show it.
    #[serde(default)]
    pub example_trajectories: Vec<Example>,
}

/// A trajectory that shows a capability, or its lack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Example {
    /// The task.
    pub task_id: String,
    /// The trajectory's reward.
    pub reward: f64,
    /// What to see in it.
    pub note: String,
}

/// One entry of `selected_capabilities.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Selected {
    /// The capability's name.
    pub skill: String,
    /// What it is.
    pub description: String,
    /// Mean coverage over label runs.
    pub mean_cov: f64,
    /// Population standard deviation of it.
    pub std_cov: f64,
    /// Mean gap over label runs.
    pub mean_delta: f64,
    /// Population standard deviation of it.
    pub std_delta: f64,
    /// Label runs that pass it.
    pub n_runs_passed: u32,
    /// Label runs.
    pub n_runs_total: u32,
    /// Whether enough of them pass it.
    pub passes_consistency: bool,
    /// Ids of failed trajectories that lack it.
    pub example_failed_cases: Vec<String>,
    /// Whether it has an environment yet.
    pub status: Status,
    /// Where its environment lies, relative to the run's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_path: Option<PathBuf>,
    /// The Python module of an environment of the reference; kept, not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_module: Option<String>,
    /// What calibration measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward_distribution: Option<serde_json::Value>,
}

/// How far a selected capability is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// No environment yet.
    Pending,
    /// It has an environment.
    Done,
}

/// The entry of a kept capability. A kept one passed a run, so its means are defined.
pub(super) fn selected(capability: &CapabilityMeasure, examples: Vec<String>) -> Selected {
    Selected {
        skill: capability.name.clone(),
        description: capability.description.clone(),
        mean_cov: capability.mean_coverage.unwrap_or_default(),
        std_cov: capability.std_coverage.unwrap_or_default(),
        mean_delta: capability.mean_gap.unwrap_or_default(),
        std_delta: capability.std_gap.unwrap_or_default(),
        n_runs_passed: capability.runs_passed,
        n_runs_total: capability.runs.len() as u32,
        passes_consistency: capability.kept,
        example_failed_cases: examples,
        status: Status::Pending,
        environment_path: None,
        environment_module: None,
        reward_distribution: None,
    }
}

/// Examples of a candidate.
const EXAMPLES: usize = 4;

/// The candidates that an environment's evidence names, with examples of trajectories that lack each.
pub(super) fn candidates(trajectories: &[Trajectory], evidence: &[CapabilityEvidence], seed: u64) -> CandidateFile {
    let candidate = |capability: &CapabilityEvidence| {
        let lacking: Vec<(&Trajectory, usize)> = trajectories
            .iter()
            .filter(|trajectory| label(&trajectory.checks, capability) == Label::Lacking)
            .map(|trajectory| (trajectory, 0))
            .collect();
        let example = |trajectory: &Trajectory| Example {
            task_id: trajectory.task.clone(),
            reward: trajectory.reward,
            note: note(trajectory, capability),
        };
        Candidate {
            name: capability.capability.clone(),
            description: capability.description.clone(),
            example_trajectories: spread(&lacking, EXAMPLES, seed, &capability.capability)
                .into_iter()
                .map(example)
                .collect(),
        }
    };
    CandidateFile { candidates: evidence.iter().map(candidate).collect() }
}

/// The first check that speaks against the capability, in words.
fn note(trajectory: &Trajectory, capability: &CapabilityEvidence) -> String {
    let against = |check: &&trace_envs::Check| capability.checks.contains(&check.name) && check.score < 1.0 - 1e-6;
    match trajectory.checks.iter().find(against) {
        Some(check) if check.detail.is_empty() => format!("{} scored {}", check.name, check.score),
        Some(check) => format!("{} scored {}: {}", check.name, check.score, check.detail),
        None => String::new(),
    }
}
