//! Which trajectories stand as examples: spread over tasks, never simply the first ids.

use std::collections::{BTreeMap, BTreeSet};

use rand::seq::SliceRandom;
use sha2::{Digest, Sha256};
use trace_envs::SeedStream;

use super::Trajectory;
use super::partition::LabelRun;

/// Up to `count` ids of failed trajectories that lack a capability in any of the runs, one task after the other. Tasks whose
/// failure is most surely of this kind come first: those of trajectories that lack the fewest other capabilities.
pub fn failed(
    trajectories: &[Trajectory],
    runs: &[LabelRun],
    capability: &str,
    count: usize,
    seed: u64,
) -> Vec<String> {
    let mut lacks: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for run in runs {
        for (name, lists) in &run.labels {
            for id in &lists.lacking_failed {
                lacks.entry(id).or_default().insert(name);
            }
        }
    }
    let lacking: Vec<(&Trajectory, usize)> = trajectories
        .iter()
        .filter_map(|trajectory| {
            let lacked = lacks.get(trajectory.id.as_str())?;
            lacked.contains(capability).then_some((trajectory, lacked.len()))
        })
        .collect();
    spread(&lacking, count, seed, capability).into_iter().map(|trajectory| trajectory.id.clone()).collect()
}

/// Up to `count` of the given trajectories: one of each task before a second of any, tasks in random order (keyed by `seed` and
/// `what`), lower ranks first.
pub fn spread<'a>(ranked: &[(&'a Trajectory, usize)], count: usize, seed: u64, what: &str) -> Vec<&'a Trajectory> {
    let mut by_task: BTreeMap<&str, Vec<(usize, u32, &'a Trajectory)>> = BTreeMap::new();
    for (trajectory, rank) in ranked {
        by_task.entry(&trajectory.task).or_default().push((*rank, trajectory.trial, trajectory));
    }
    let mut tasks: Vec<Vec<(usize, u32, &Trajectory)>> = by_task.into_values().collect();
    tasks.iter_mut().for_each(|task| task.sort_by_key(|(rank, trial, _)| (*rank, *trial)));
    let name = Sha256::digest(what.as_bytes()).iter().take(8).fold(0u64, |key, byte| key << 8 | u64::from(*byte));
    tasks.shuffle(&mut SeedStream::keyed(&[seed, u64::from_le_bytes(*b"examples"), name]));
    tasks.sort_by_key(|task| task.first().map(|(rank, ..)| *rank));
    let rounds = tasks.iter().map(Vec::len).max().unwrap_or(0);
    (0..rounds)
        .flat_map(|round| tasks.iter().filter_map(move |task| task.get(round)))
        .map(|(_, _, trajectory)| *trajectory)
        .take(count)
        .collect()
}
