//! `evaluation.json`: what each arm did on the test tasks, and how the arms compare.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stats::{Bootstrap, Estimate, mean, pass_at_k, pass_hat_k};

/// The file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The run's name.
    pub run: String,
    /// The run's seed.
    pub seed: u64,
    /// The target.
    pub environment: String,
    /// Test tasks.
    pub tasks: u64,
    /// Episodes of each task and arm.
    pub trials: u64,
    /// Sampling temperature.
    pub temperature: f64,
    /// Confidence of every interval.
    pub confidence: f64,
    /// The arms, in the order of the configuration.
    pub arms: Vec<ArmResult>,
    /// Differences of pass rates, paired over tasks.
    pub differences: Vec<ArmDifference>,
    /// What the run sampled before the evaluation.
    pub rollouts: RolloutCounts,
    /// One test conversation of the routed policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Conversation>,
}

/// An arm on the test tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmResult {
    /// Its name in the configuration.
    pub name: String,
    /// Its adapters, in the order of the slots after 0; none is the base.
    pub adapters: Vec<String>,
    /// Whether gates choose among them.
    pub routed: bool,
    /// Rollouts that were sampled to make it.
    pub rollouts: u64,
    /// Episodes with a verdict.
    pub episodes: u64,
    /// Episodes without one: infrastructure failures, outside of every figure.
    pub left_out: u64,
    /// Share of episodes with reward 1, averaged over tasks, with a bootstrap interval over tasks.
    pub pass_rate: Estimate,
    /// Unbiased pass@k: pairs of k and the mean over tasks.
    pub pass_at: Vec<(u64, f64)>,
    /// Unbiased pass^k, likewise.
    pub pass_hat: Vec<(u64, f64)>,
    /// Pass rate at temperature 0, one episode a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy: Option<Estimate>,
    /// How often each capability was called for and there.
    pub capabilities: Vec<CapabilityRate>,
    /// Share of sampled tokens by the slot that most layers chose, slot 0 = base first; empty without gates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<f64>,
    /// The counts that the figures follow from.
    pub per_task: Vec<TaskResult>,
}

/// An arm on one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskResult {
    /// The task's seed.
    pub seed: u64,
    /// Episodes with a verdict.
    pub episodes: u64,
    /// Those with reward 1.
    pub passed: u64,
}

/// How often a capability was called for and there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapabilityRate {
    /// The capability.
    pub capability: String,
    /// Episodes that called for it.
    pub applicable: u64,
    /// Those in which it was present.
    pub present: u64,
}

/// One arm's pass rate minus another's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmDifference {
    /// The arm.
    pub arm: String,
    /// The arm that it is compared with.
    pub against: String,
    /// The difference, with its interval, over the tasks that both have verdicts on.
    pub difference: Estimate,
}

/// Rollouts sampled in each step. Everything counts: failed episodes and discarded groups as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutCounts {
    /// Base rollouts on the target.
    pub base: u64,
    /// Calibration.
    pub calibrate: u64,
    /// Training of the capability adapters.
    pub train: u64,
    /// Rollouts for gates.
    pub gate: u64,
}

impl RolloutCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.base + self.calibrate + self.train + self.gate
    }
}

/// A conversation with the slot of every token that the policy sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// The task's seed.
    pub seed: u64,
    /// Its reward.
    pub reward: f64,
    /// Names of the slots; slot 0 is the base.
    pub slots: Vec<String>,
    /// Its turns.
    pub turns: Vec<ConversationTurn>,
}

/// A turn of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationTurn {
    /// system, user, assistant or tool.
    pub role: String,
    /// What it said; for the policy's turns, its tokens one by one.
    pub pieces: Vec<Piece>,
}

/// A piece of text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The text.
    pub text: String,
    /// The slot that most layers chose; `None` where nothing was sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u8>,
}

/// The k for which pass@k and pass^k are given, where there are that many trials.
const KS: [u64; 5] = [1, 2, 4, 8, 16];

impl ArmResult {
    /// The figures that follow from the counts per task.
    ///
    /// `None` where no episode has a verdict.
    pub fn from_counts(per_task: Vec<TaskResult>, trials: u64, bootstrap: &Bootstrap) -> Option<Self> {
        let judged: Vec<&TaskResult> = per_task.iter().filter(|task| task.episodes > 0).collect();
        let rates: Vec<f64> = judged.iter().map(|task| task.passed as f64 / task.episodes as f64).collect();
        let over_tasks = |figure: fn(u64, u64, u64) -> Option<f64>| {
            let at = |k: u64| {
                let values: Vec<f64> = judged.iter().filter_map(|task| figure(task.episodes, task.passed, k)).collect();
                mean(&values).map(|value| (k, value))
            };
            KS.into_iter().filter(|k| *k <= trials).filter_map(at).collect()
        };
        Some(Self {
            name: String::new(),
            adapters: Vec::new(),
            routed: false,
            rollouts: 0,
            episodes: per_task.iter().map(|task| task.episodes).sum(),
            left_out: per_task.iter().map(|task| trials.saturating_sub(task.episodes)).sum(),
            pass_rate: bootstrap.over_tasks(&rates)?,
            pass_at: over_tasks(pass_at_k),
            pass_hat: over_tasks(pass_hat_k),
            greedy: None,
            capabilities: Vec::new(),
            slots: Vec::new(),
            per_task,
        })
    }

    /// Pass rates per task, by seed; tasks without a verdict are absent.
    pub fn rates(&self) -> BTreeMap<u64, f64> {
        let judged = self.per_task.iter().filter(|task| task.episodes > 0);
        judged.map(|task| (task.seed, task.passed as f64 / task.episodes as f64)).collect()
    }

    /// This arm's pass rate minus another's, paired over the tasks that both have verdicts on. `None` where there is no such
    /// task.
    pub fn minus(&self, other: &ArmResult, bootstrap: &Bootstrap) -> Option<ArmDifference> {
        let others = other.rates();
        let (a, b): (Vec<f64>, Vec<f64>) =
            self.rates().into_iter().filter_map(|(seed, rate)| Some((rate, *others.get(&seed)?))).unzip();
        let difference = bootstrap.paired(&a, &b)?;
        Some(ArmDifference { arm: self.name.clone(), against: other.name.clone(), difference })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOTSTRAP: Bootstrap = Bootstrap { samples: 500, confidence: 0.95, seed: 3 };

    fn task(seed: u64, episodes: u64, passed: u64) -> TaskResult {
        TaskResult { seed, episodes, passed }
    }

    #[test]
    fn a_task_counts_once_however_many_of_its_trials_have_a_verdict() {
        let arm = ArmResult::from_counts(vec![task(2, 4, 4), task(5, 1, 0), task(8, 0, 0)], 4, &BOOTSTRAP).unwrap();
        assert_eq!((arm.pass_rate.value, arm.episodes, arm.left_out), (0.5, 5, 7));
        assert_eq!(arm.pass_at, [(1, 0.5), (2, 1.0), (4, 1.0)], "k above a task's trials leaves that task out");
    }

    #[test]
    fn nothing_judged_is_no_figure() {
        assert_eq!(ArmResult::from_counts(vec![task(2, 0, 0)], 4, &BOOTSTRAP), None);
    }

    #[test]
    fn arms_are_paired_by_seed_over_the_tasks_that_both_have() {
        let a = ArmResult::from_counts(vec![task(2, 2, 2), task(5, 2, 1), task(8, 2, 0)], 2, &BOOTSTRAP).unwrap();
        let b = ArmResult::from_counts(vec![task(8, 2, 0), task(5, 2, 1), task(2, 0, 0)], 2, &BOOTSTRAP).unwrap();
        let difference = a.minus(&b, &BOOTSTRAP).unwrap().difference;
        assert_eq!((difference.value, difference.interval.low, difference.interval.high), (0.0, 0.0, 0.0));
    }
}
