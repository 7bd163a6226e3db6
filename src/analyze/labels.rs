//! Labels from process checks.

use std::collections::BTreeSet;

use rand::seq::SliceRandom;
use trace_envs::{CapabilityEvidence, Check, SeedStream};

use super::Trajectory;
use super::partition::{LabelRun, SixLists};

/// What a trajectory says about a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Label {
    /// The task did not call for it.
    Na,
    /// It was there.
    Present,
    /// It was called for and was not there.
    Lacking,
}

/// The label that a trajectory's checks give: lacking when any check that speaks for the capability is below 1, present
/// when all are 1, not applicable when there is none.
pub fn label(checks: &[Check], evidence: &CapabilityEvidence) -> Label {
    let mut found = Label::Na;
    for check in checks.iter().filter(|check| evidence.checks.contains(&check.name)) {
        if check.score < 1.0 - 1e-6 {
            return Label::Lacking;
        }
        found = Label::Present;
    }
    found
}

/// N label runs, each over its own random half of the tasks (rounded up) with all their trials, so that the runs differ
/// in which tasks they saw, and a capability that only a few tasks speak for does not pass all of them.
pub fn label_runs(trajectories: &[Trajectory], evidence: &[CapabilityEvidence], runs: u32, seed: u64) -> Vec<LabelRun> {
    let tasks: BTreeSet<&str> = trajectories.iter().map(|trajectory| trajectory.task.as_str()).collect();
    (1..=runs)
        .map(|attempt| {
            let mut order: Vec<&str> = tasks.iter().copied().collect();
            let mut rng = SeedStream::keyed(&[seed, u64::from_le_bytes(*b"labelrun"), u64::from(attempt)]);
            order.shuffle(&mut rng);
            order.truncate(order.len().div_ceil(2));
            let half: BTreeSet<&str> = order.into_iter().collect();
            let sample = trajectories.iter().filter(|trajectory| half.contains(trajectory.task.as_str()));
            label_run(attempt, sample, evidence)
        })
        .collect()
}

fn label_run<'a>(
    attempt: u32,
    sample: impl Iterator<Item = &'a Trajectory>,
    evidence: &[CapabilityEvidence],
) -> LabelRun {
    let mut run = LabelRun { attempt, ..LabelRun::default() };
    let mut ids = Vec::new();
    for capability in evidence {
        run.labels.insert(capability.capability.clone(), SixLists::default());
    }
    for trajectory in sample {
        ids.push(trajectory.id.clone());
        for capability in evidence {
            if let Some(lists) = run.labels.get_mut(&capability.capability) {
                let label = label(&trajectory.checks, capability);
                lists.list_mut(label, trajectory.passed()).push(trajectory.id.clone());
            }
        }
        if trajectory.passed() {
            run.totals.total_passed += 1;
        } else {
            run.totals.total_failed += 1;
        }
    }
    run.trajectories = Some(ids);
    run
}
