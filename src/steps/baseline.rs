//! What TRACE is compared with: adapters trained in one environment by the same loop, under a stated budget.

use trace_actors::plan::AdapterShape;

use super::seeds::Block;
use super::train::{Budget, Job, learn};
use super::{Session, Step, StepError, environment_name};
use crate::config::BaselineBudget;
use crate::record::evaluation::RolloutCounts;
use crate::record::metrics::Metric;

/// Train seeds of baselines: apart from those of capabilities, of which there are fewer.
const FIRST_BLOCK: u16 = 128;

pub(super) async fn run(session: &mut Session) -> Result<u64, StepError> {
    let mut rollouts = 0;
    for (index, baseline) in session.config.baseline.clone().into_iter().enumerate() {
        let train = &session.config.train;
        let iterations = session.shared(train.iterations);
        let (budget, dev_every) = match baseline.budget {
            BaselineBudget::Adapter => (Budget::Iterations(iterations), train.dev_every),
            BaselineBudget::Run => {
                let total = session.spent().total();
                (Budget::Rollouts(total), every(total, u64::from(train.groups * train.k), session.dev_evaluations()?))
            }
        };
        let environment = session.environment(&baseline.environment)?;
        let job = Job {
            environment: environment_name(&baseline.environment).to_owned(),
            capability: environment.spec().capability.clone(),
            level: baseline.level,
            // No gate has to choose it: all layers.
            adapter: AdapterShape { rank: i64::from(baseline.rank), alpha: baseline.alpha, first_layer: 0 },
            hints: false,
            budget,
            dev_every,
            seeds: Block::Train(FIRST_BLOCK + index as u16),
            name: baseline.name,
        };
        rollouts += learn(session, &job).await?.rollouts;
    }
    Ok(rollouts)
}

/// Iterations between dev evaluations, so that there are about as many of them as TRACE had.
fn every(rollouts: u64, an_iteration: u64, evaluations: u64) -> u32 {
    let iterations = rollouts.div_ceil(an_iteration.max(1));
    iterations.div_ceil(evaluations.max(1)).clamp(1, u64::from(u32::MAX)) as u32
}

impl Session {
    /// What TRACE sampled up to its gates. Evaluations on dev seeds are not counted; baselines have as many.
    pub(super) fn spent(&self) -> RolloutCounts {
        let of = |step: Step| self.state.steps.get(&step).map_or(0, |progress| progress.rollouts);
        RolloutCounts {
            base: of(Step::Rollout),
            calibrate: of(Step::Synthesize),
            train: of(Step::Train),
            gate: of(Step::Compose),
        }
    }

    /// Dev evaluations of all adapters, those of untrained ones left out.
    fn dev_evaluations(&self) -> Result<u64, StepError> {
        let adapters = self.adapters()?;
        let of_an_adapter = |metric: &&Metric| match metric {
            Metric::Dev(dev) => dev.iteration > 0 && adapters.iter().any(|(name, _)| *name == dev.learner),
            _ => false,
        };
        Ok(self.metrics.metrics().iter().filter(of_an_adapter).count() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_baseline_is_evaluated_about_as_often_as_trace_was() {
        assert_eq!(every(8000, 512, 16), 1);
        assert_eq!(every(20_480, 512, 16), 3);
        assert_eq!(every(20_480, 512, 0), 40);
        assert_eq!(every(0, 0, 4), 1);
    }
}
