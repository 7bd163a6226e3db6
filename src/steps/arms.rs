//! The names in `evaluate.arms` as things that can act.

use trace_actors::plan::ArmSpec;

use super::compose::Composed;
use super::train::Kept;
use super::{Session, StepError};
use crate::config::check::ADAPTER_ARM;
use crate::record::read_json;

/// An arm of the evaluation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Arm {
    /// Its name in tables.
    pub(super) name: String,
    /// What acts.
    pub(super) spec: ArmSpec,
    /// Rollouts that were sampled to make it.
    pub(super) rollouts: u64,
}

impl Session {
    /// The capabilities that have an adapter, in slot order, each with what is known of it.
    pub(super) fn adapters(&self) -> Result<Vec<(String, Kept)>, StepError> {
        let ready = self.calibrated()?;
        ready
            .into_iter()
            .map(|(name, _)| Ok((name.clone(), read_json(&self.dir.kept(&name), "trace train")?)))
            .collect()
    }

    /// The adapter of a learner, on every token.
    pub(super) fn adapter_arm(&self, name: &str, kept: &Kept) -> ArmSpec {
        ArmSpec::adapter(name, kept.iteration, self.dir.learner(name))
    }

    /// What an arm of this name is. `best` is the capability that `best_single` stands for.
    pub(super) fn arms(&self, name: &str, best: Option<&str>) -> Result<Vec<Arm>, StepError> {
        let adapters = self.adapters()?;
        let base = self.state.steps.get(&super::Step::Rollout).map_or(0, |progress| progress.rollouts);
        let calibration = self.calibration_rollouts();
        let single = |shown: String, capability: &str| -> Result<Arm, StepError> {
            let Some((_, kept)) = adapters.iter().find(|(name, _)| name == capability) else {
                let known: Vec<&str> = adapters.iter().map(|(name, _)| name.as_str()).collect();
                return Err(StepError::Stuck(format!(
                    "evaluate.arms has {shown:?}, but there is no such adapter; there are {}",
                    known.join(", ")
                )));
            };
            let spent = base + calibration.get(capability).copied().unwrap_or_default() + kept.rollouts;
            Ok(Arm { name: shown, spec: self.adapter_arm(capability, kept), rollouts: spent })
        };
        match name {
            "base" => Ok(vec![Arm { name: name.to_owned(), spec: ArmSpec::base(), rollouts: 0 }]),
            "trace" => {
                let composed: Composed = read_json(&self.dir.composed(), "trace compose")?;
                let spec = self.composition_arm(&adapters, composed.round);
                Ok(vec![Arm { name: name.to_owned(), spec, rollouts: self.spent().total() }])
            }
            "singles" => adapters.iter().map(|(name, _)| single(format!("{ADAPTER_ARM}{name}"), name)).collect(),
            "best_single" => Ok(best.map(|best| single(name.to_owned(), best)).transpose()?.into_iter().collect()),
            other => match other.strip_prefix(ADAPTER_ARM) {
                Some(capability) => Ok(vec![single(other.to_owned(), capability)?]),
                None => {
                    let kept: Kept = read_json(&self.dir.kept(other), "trace baseline")?;
                    let spec = self.adapter_arm(other, &kept);
                    Ok(vec![Arm { name: other.to_owned(), spec, rollouts: kept.rollouts }])
                }
            },
        }
    }

    /// The adapters behind the gates of a round.
    pub(super) fn composition_arm(&self, adapters: &[(String, Kept)], round: u32) -> ArmSpec {
        let members = adapters.iter().map(|(name, _)| (name.clone(), self.dir.learner(name))).collect();
        ArmSpec::composition("trace", round, members, self.dir.composition(round))
    }
}
