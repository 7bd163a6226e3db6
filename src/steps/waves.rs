//! Many tasks as waves: sampled one after the other, each logged and redone as a whole.

use trace_actors::batch::trajectory_rows;
use trace_actors::log::Phase;
use trace_actors::plan::{Acting, GroupPlan, WavePlan};
use trace_actors::rows::{SamplingParams, SegmentRow};
use trace_actors::{Runtime, WaveOutcome};
use trace_envs::Check;

use super::StepError;
use crate::progress::Display;

/// Rollouts of a wave, about: enough to keep every slot busy for most of it, little enough to be redone after a kill.
const WAVE: usize = 256;

/// Rollouts of many tasks by one arm.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    /// What the units' keys begin with.
    pub(super) unit: String,
    /// The phase of the log.
    pub(super) phase: Phase,
    /// The registry's name of the environment.
    pub(super) environment: String,
    /// The capability that it isolates.
    pub(super) capability: Option<String>,
    /// Who acts.
    pub(super) acting: Acting,
    /// The iteration or round.
    pub(super) iteration: u32,
    /// How tokens are drawn.
    pub(super) sampling: SamplingParams,
    /// The tasks.
    pub(super) seeds: Vec<u64>,
    /// The level asked for.
    pub(super) level: u32,
    /// Rollouts of each task.
    pub(super) trials: u32,
}

impl Batch {
    /// The waves that it is made of.
    fn plans(&self) -> Vec<WavePlan> {
        let trials = self.trials.max(1) as usize;
        let groups = (WAVE / trials).max(1);
        let wave = |(index, seeds): (usize, &[u64])| WavePlan {
            unit: format!("{}/w{index:03}", self.unit),
            phase: self.phase,
            environment: self.environment.clone(),
            capability: self.capability.clone(),
            acting: self.acting.clone(),
            iteration: self.iteration,
            trials: true,
            sampling: self.sampling,
            groups: seeds
                .iter()
                .enumerate()
                .map(|(group, seed)| GroupPlan::new((index * groups + group) as u64, *seed, self.level, trials))
                .collect(),
        };
        self.seeds.chunks(groups).enumerate().map(wave).collect()
    }

    /// How many rollouts it has.
    pub(super) fn rollouts(&self) -> u64 {
        self.seeds.len() as u64 * u64::from(self.trials)
    }

    /// Samples it, wave by wave; each outcome is given to `take`.
    pub(super) async fn sample(
        &self,
        runtime: &Runtime,
        display: &Display,
        mut take: impl FnMut(WaveOutcome) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        for plan in self.plans() {
            let rollouts = plan.rollouts() as u64;
            let outcome = runtime.rollout(plan).await?;
            take(outcome)?;
            display.settle(rollouts);
        }
        Ok(())
    }

    /// Samples it and returns its rollouts in order.
    pub(super) async fn rolled_out(&self, runtime: &Runtime, display: &Display) -> Result<Vec<Rollout>, StepError> {
        let mut all = Vec::new();
        let take = |outcome: WaveOutcome| {
            all.extend(rollouts(trajectory_rows(&outcome.batch)?));
            Ok(())
        };
        self.sample(runtime, display, take).await?;
        Ok(all)
    }
}

/// What is looked at of a rollout after it was sampled.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rollout {
    /// Its id in the log, the segment left out.
    pub(super) id: String,
    /// Its task.
    pub(super) task: String,
    /// The task's seed.
    pub(super) seed: u64,
    /// The trial of the task.
    pub(super) trial: u32,
    /// The verdict; `None` where it failed to run.
    pub(super) reward: Option<f64>,
    /// What the verdict is made of.
    pub(super) checks: Vec<Check>,
}

impl Rollout {
    /// Whether it has reward 1, within 1e-6.
    pub(super) fn passed(&self) -> bool {
        self.reward.is_some_and(|reward| reward >= 1.0 - 1e-6)
    }
}

/// One rollout for each first segment: the verdict is the same on all.
pub(super) fn rollouts(rows: Vec<SegmentRow>) -> impl Iterator<Item = Rollout> {
    rows.into_iter().filter(|row| row.segment == 0).map(|row| Rollout {
        id: row.id.rsplit_once("/s").map_or(row.id.as_str(), |(id, _)| id).to_owned(),
        task: row.task,
        seed: row.seed,
        trial: row.trial,
        reward: row.reward.map(f64::from),
        checks: row.checks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_actors::plan::ArmSpec;

    fn batch(tasks: u64, trials: u32) -> Batch {
        Batch {
            unit: "base".into(),
            phase: Phase::Base,
            environment: "helpdesk".into(),
            capability: None,
            acting: Acting::Arm(ArmSpec::base()),
            iteration: 0,
            sampling: SamplingParams::default(),
            seeds: (0..tasks).map(|i| 3 * i).collect(),
            level: 0,
            trials,
        }
    }

    #[test]
    fn waves_hold_each_task_once_with_all_its_trials() {
        for (tasks, trials) in [(1, 1), (200, 4), (100, 16), (3, 1000)] {
            let batch = batch(tasks, trials);
            let plans = batch.plans();
            let seeds: Vec<u64> = plans.iter().flat_map(|p| p.groups.iter().map(|g| g.seed)).collect();
            assert_eq!(seeds, batch.seeds);
            let mut groups: Vec<u64> = plans.iter().flat_map(|p| p.groups.iter().map(|g| g.group)).collect();
            groups.dedup();
            assert_eq!(groups, (0..tasks).collect::<Vec<_>>());
            assert_eq!(plans.iter().map(|p| p.rollouts() as u64).sum::<u64>(), batch.rollouts());
            assert!(plans.iter().all(|p| p.rollouts() <= WAVE.max(trials as usize) && p.validate().is_ok()));
        }
    }
}
