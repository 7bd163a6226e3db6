//! What is asked of the runtime: arms, groups, waves.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::log::Phase;
use crate::rows::SamplingParams;

/// A fixed variant of the policy that is compared with others: the base, one adapter, or adapters behind gates.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ArmSpec {
    /// The name in tables and in the column `adapter`; not shown for the base.
    pub name: String,
    /// The version in the column `versions`: the publication that the files come from; 0 for the base.
    pub version: u32,
    /// Adapters by name and folder (PEFT). None: the base. One without gates: that adapter.
    pub adapters: Vec<(String, PathBuf)>,
    /// The folder of a composition: gates over exactly these adapters, in this order.
    pub composition: Option<PathBuf>,
}

impl ArmSpec {
    /// The base alone.
    pub fn base() -> Self {
        Self { name: "base".to_owned(), ..Self::default() }
    }

    /// One adapter on every token.
    pub fn adapter(name: impl Into<String>, version: u32, folder: impl Into<PathBuf>) -> Self {
        let name = name.into();
        Self { adapters: vec![(name.clone(), folder.into())], name, version, composition: None }
    }

    /// Adapters behind the gates of a composition.
    pub fn composition(
        name: impl Into<String>,
        version: u32,
        adapters: Vec<(String, PathBuf)>,
        folder: impl Into<PathBuf>,
    ) -> Self {
        Self { name: name.into(), version, adapters, composition: Some(folder.into()) }
    }
}

/// Who acts in a wave.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Acting {
    /// A fixed arm.
    Arm(ArmSpec),
    /// The newest published adapter of a learner that is open.
    Learner(String),
}

impl Acting {
    /// What the column `adapter` says: nothing for the base.
    pub fn adapter(&self) -> Option<&str> {
        match self {
            Acting::Arm(arm) if arm.adapters.is_empty() => None,
            Acting::Arm(arm) => Some(&arm.name),
            Acting::Learner(name) => Some(name),
        }
    }
}

/// A group: rollouts of one seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupPlan {
    /// The group's number, unique in its wave.
    pub group: u64,
    /// The seed of the task.
    pub seed: u64,
    /// The level asked for; 0 is the environment's own mix.
    pub level: u32,
    /// Which of its rollouts see the hint; one entry per rollout, so its length is the group's size.
    pub hints: Vec<bool>,
}

impl GroupPlan {
    /// A group of `k` rollouts without hints.
    pub fn new(group: u64, seed: u64, level: u32, k: usize) -> Self {
        Self { group, seed, level, hints: vec![false; k] }
    }
}

/// What an adapter that is to be trained looks like: pairs on all linears of its blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterShape {
    /// Rank of every pair.
    pub rank: i64,
    /// Its scale is `alpha / rank`.
    pub alpha: f64,
    /// The first block that it changes, counted from 0.
    pub first_layer: u32,
}

/// A wave: rollouts that are sampled together, logged as one unit, and redone as one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WavePlan {
    /// The unit's key, unique in the run; it also keys the random numbers. `train/counting/i0003`, say.
    pub unit: String,
    /// The phase it is logged under.
    pub phase: Phase,
    /// The environment's name.
    pub environment: String,
    /// The capability that the environment isolates.
    pub capability: Option<String>,
    /// Who acts.
    pub acting: Acting,
    /// The iteration that asks.
    pub iteration: u32,
    /// True where each rollout of a group is a trial of its task, to be compared (evaluation); then the column `trial`
    /// counts them.
    pub trials: bool,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// The groups.
    pub groups: Vec<GroupPlan>,
}

impl WavePlan {
    /// How many rollouts the wave has.
    pub fn rollouts(&self) -> usize {
        self.groups.iter().map(|g| g.hints.len()).sum()
    }

    /// Refuses a plan that cannot be carried out.
    ///
    /// # Errors
    /// A sentence that names what is wrong.
    pub fn validate(&self) -> Result<(), String> {
        if self.unit.is_empty() {
            return Err("a wave needs a unit key".to_owned());
        }
        if self.rollouts() == 0 {
            return Err(format!("wave {:?} has no rollouts", self.unit));
        }
        let mut seen = BTreeSet::new();
        for group in &self.groups {
            if !seen.insert(group.group) {
                return Err(format!("wave {:?} has group {} twice", self.unit, group.group));
            }
            if group.hints.is_empty() || group.hints.len() > usize::from(u16::MAX) {
                return Err(format!(
                    "group {} of wave {:?} has {} rollouts",
                    group.group,
                    self.unit,
                    group.hints.len()
                ));
            }
        }
        let SamplingParams { temperature, top_p, .. } = self.sampling;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(format!("temperature {temperature} is not a number >= 0"));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(format!("top_p {top_p} is not in (0, 1]"));
        }
        Ok(())
    }
}

/// How far an episode may go and how long it may take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The most tokens of a context, prompt and sampled: a rollout that would need more is truncated.
    pub max_context: usize,
    /// The most tokens of one assistant turn; a turn that is cut truncates its rollout.
    pub max_turn_tokens: usize,
    /// The most assistant turns, where the environment allows more.
    pub max_turns: u32,
    /// Episodes that are live at once in a wave; the rest wait for a place.
    pub max_live_episodes: usize,
    /// How often an episode is begun anew after a failure of its environment.
    pub env_retries: u8,
    /// How long one call of an environment may take, in seconds.
    pub env_step_seconds: f64,
    /// How long all calls of one episode may take together, repeats included, in seconds.
    pub env_episode_seconds: f64,
    /// How long one call of the policy server may take, in seconds.
    pub policy_seconds: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_context: 4096,
            max_turn_tokens: 512,
            max_turns: 64,
            max_live_episodes: 256,
            env_retries: 2,
            env_step_seconds: 30.0,
            env_episode_seconds: 300.0,
            policy_seconds: 600.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> WavePlan {
        WavePlan {
            unit: "base/0".into(),
            phase: Phase::Base,
            environment: "desk".into(),
            capability: None,
            acting: Acting::Arm(ArmSpec::base()),
            iteration: 0,
            trials: false,
            sampling: SamplingParams::default(),
            groups: vec![GroupPlan::new(0, 3, 1, 4), GroupPlan::new(1, 6, 1, 4)],
        }
    }

    #[test]
    fn a_wave_that_cannot_be_carried_out_is_refused() {
        assert_eq!(plan().validate(), Ok(()));
        let refuse = |edit: fn(&mut WavePlan)| {
            let mut plan = plan();
            edit(&mut plan);
            plan.validate().unwrap_err()
        };
        assert!(refuse(|p| p.groups[1].group = 0).contains("group 0 twice"));
        assert!(refuse(|p| p.groups[1].hints.clear()).contains("has 0 rollouts"));
        assert!(refuse(|p| p.groups.clear()).contains("no rollouts"));
        assert!(refuse(|p| p.unit.clear()).contains("unit key"));
        assert!(refuse(|p| p.sampling.temperature = f64::NAN).contains("temperature"));
        assert!(refuse(|p| p.sampling.top_p = 0.0).contains("top_p"));
    }

    #[test]
    fn the_base_has_no_adapter_name() {
        assert_eq!(Acting::Arm(ArmSpec::base()).adapter(), None);
        assert_eq!(Acting::Arm(ArmSpec::adapter("counting", 3, "a")).adapter(), Some("counting"));
        assert_eq!(Acting::Learner("counting".into()).adapter(), Some("counting"));
    }
}
