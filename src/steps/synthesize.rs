//! Step 2: an environment for each kept capability, audited, and calibrated with the base policy.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use trace_actors::log::Phase;
use trace_actors::plan::{Acting, ArmSpec};
use trace_actors::rows::SamplingParams;
use trace_envs::audit::Audit;
use trace_envs::library::LIBRARY;

use super::calibration;
use super::seeds::{self, Block};
use super::waves::Batch;
use super::{RunDir, Session, StepError, check_level};
use crate::analyze::{Selected, Status};
use crate::config::OnReject;
use crate::config::compare::hex;
use crate::record::metrics::{CalibrationMetric, Metric};
use crate::record::{FileError, read_json, write_json, write_whole};

/// `reward_distribution` of a selected capability: what calibration measured, and what the environment was then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Calibrated {
    /// SHA-256 of the environment's file.
    pub(super) sha256: String,
    /// The level that is trained on.
    pub(super) level: u32,
    /// The measures at that level.
    pub(super) measured: CalibrationMetric,
}

pub(super) async fn run(session: &mut Session) -> Result<u64, StepError> {
    let mut selected: Vec<Selected> = read_json(&session.dir.selected(), "trace analyze")?;
    for capability in &mut selected {
        let name = capability.skill.clone();
        let Some(text) = source(session, &name)? else {
            session.display.line(&format!(
                "note: {name} has no environment and is left out; write {} (prompts/synthesize.md says how) and call this step again",
                session.dir.root().join(RunDir::environment_name(&name)).display()
            ));
            continue;
        };
        write_whole(&session.dir.root().join(RunDir::environment_name(&name)), text.as_bytes())?;
        session.environments.add_file(&session.dir.root().join(RunDir::environment_name(&name)))?;
        audit(session, &name)?;
        let calibrated = calibrate(session, &name, hex(&Sha256::digest(text.as_bytes()))).await?;
        capability.status = Status::Done;
        capability.environment_path = Some(RunDir::environment_name(&name));
        capability.reward_distribution = Some(
            serde_json::to_value(&calibrated)
                .map_err(|error| FileError::Malformed { path: session.dir.selected(), reason: error.to_string() })?,
        );
    }
    write_json(&session.dir.selected(), &selected)?;
    if !selected.iter().any(|capability| capability.status == Status::Done) {
        return Err(StepError::Stuck("none of the kept capabilities has an environment".to_owned()));
    }
    Ok(session.calibration_rollouts().values().sum())
}

/// The environment's text: the run's own file, where someone wrote one; else the library's.
fn source(session: &Session, capability: &str) -> Result<Option<String>, StepError> {
    let own = session.dir.root().join(RunDir::environment_name(capability));
    let library = session.config.synthesis.library.as_ref().map(|folder| folder.join(format!("{capability}.py")));
    let read = |path: &PathBuf| match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::Io { path: path.clone(), reason: error.to_string() }),
    };
    if let Some(text) = read(&own)? {
        return Ok(Some(text));
    }
    match &library {
        Some(path) => Ok(read(path)?),
        None => Ok(LIBRARY.iter().find(|(name, _)| *name == capability).map(|(_, text)| (*text).to_owned())),
    }
}

/// Seeds of the audit before training; `trace env check` plays more.
const AUDIT_SEEDS: u64 = 25;

fn audit(session: &Session, name: &str) -> Result<(), StepError> {
    let target = session.environment(&session.config.target.environment)?;
    let environment = session.environment(name)?;
    let audit = Audit { target: Some(target.spec()), seeds: AUDIT_SEEDS, ..Audit::default() };
    let failed: Vec<String> = audit
        .run(&*environment, |_| {})
        .into_iter()
        .filter(|item| !item.passed)
        .map(|item| format!("{}: {}", item.name, item.detail))
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(StepError::Stuck(format!(
        "the environment {name} is not fit for training ({}); `trace env check {}` says more",
        failed.join("; "),
        session.dir.root().join(RunDir::environment_name(name)).display()
    )))
}

/// Tries the levels in order until one is accepted.
async fn calibrate(session: &mut Session, name: &str, sha256: String) -> Result<Calibrated, StepError> {
    let bounds = session.config.synthesis.calibration.clone();
    let environment = session.environment(name)?;
    let mut tried: Vec<CalibrationMetric> = Vec::new();
    for level in &bounds.levels {
        check_level("synthesis.calibration.levels", &*environment, *level)?;
        let metric = measure(session, name, *level).await?;
        let accepted = metric.rejected_for.is_empty();
        session.metrics.append(&Metric::Calibration(metric.clone()))?;
        session.display.line(&format!(
            "{name}, {}: mean reward {:.2}, success {:.2}, informative groups {:.2}: {}",
            if *level == 0 { "mixed levels".to_owned() } else { format!("level {level}") },
            metric.mean.unwrap_or_default(),
            metric.success.unwrap_or_default(),
            metric.informative,
            if accepted { "accepted".to_owned() } else { metric.rejected_for.join("; ") }
        ));
        tried.push(metric);
        if accepted {
            break;
        }
    }
    // The accepted one is the last; without one, the level that teaches most.
    let best = match tried.last() {
        Some(last) if last.rejected_for.is_empty() => last.clone(),
        _ => match tried.into_iter().max_by(|a, b| a.informative.total_cmp(&b.informative)) {
            Some(best) if bounds.on_reject == OnReject::Proceed && best.informative > 0.0 => best,
            Some(best) if bounds.on_reject == OnReject::Proceed => {
                return Err(StepError::Stuck(format!(
                    "calibration found nothing to learn in {name}: in none of its {} groups do rewards differ; raise \
                     synthesis.calibration.seeds or .rollouts, try other levels, or change the environment",
                    best.groups
                )));
            }
            Some(best) => {
                return Err(StepError::Stuck(format!(
                    "calibration does not accept {name}: {}; change the environment, try other levels \
                     (synthesis.calibration.levels), or set synthesis.calibration.on_reject = \"proceed\"",
                    best.rejected_for.join("; ")
                )));
            }
            None => return Err(StepError::Stuck("synthesis.calibration.levels is empty".to_owned())),
        },
    };
    Ok(Calibrated { sha256, level: best.level, measured: best })
}

async fn measure(session: &mut Session, name: &str, level: u32) -> Result<CalibrationMetric, StepError> {
    let runtime = session.runtime().await?;
    let (config, calibration) = (&session.config, &session.config.synthesis.calibration);
    let train = &config.train;
    let count = u64::from(session.shared(calibration.seeds));
    let batch = Batch {
        unit: format!("calibrate/{name}/l{level}"),
        phase: Phase::Calibrate,
        environment: name.to_owned(),
        capability: Some(name.to_owned()),
        acting: Acting::Arm(ArmSpec::base()),
        iteration: 0,
        sampling: SamplingParams { temperature: train.temperature, top_p: train.top_p, top_k: train.top_k },
        seeds: (0..count).map(|i| seeds::train(config.run.seed, Block::Calibrate, i)).collect(),
        level,
        trials: calibration.rollouts,
    };
    session.display.begin(&format!("calibrating {name}"), batch.rollouts());
    let rollouts = batch.rolled_out(&runtime, &session.display).await?;
    session.display.end();
    let mut groups: BTreeMap<u64, Vec<Option<f64>>> = BTreeMap::new();
    for rollout in rollouts {
        groups.entry(rollout.seed).or_default().push(rollout.reward);
    }
    let groups: Vec<Vec<Option<f64>>> = groups.into_values().collect();
    Ok(calibration::measure(name, level, &groups, calibration))
}

impl Session {
    /// Rollouts of calibration by capability, rejected levels included.
    pub(super) fn calibration_rollouts(&self) -> BTreeMap<String, u64> {
        let mut sum = BTreeMap::new();
        for metric in self.metrics.metrics() {
            if let Metric::Calibration(metric) = metric {
                *sum.entry(metric.capability.clone()).or_default() += metric.rollouts + metric.left_out;
            }
        }
        sum
    }

    /// The capabilities that have an environment, in the order of their gaps.
    ///
    /// # Errors
    /// Where the file is missing, an environment was changed since its calibration, or none has one.
    pub(super) fn calibrated(&self) -> Result<Vec<(String, Calibrated)>, StepError> {
        let selected: Vec<Selected> = read_json(&self.dir.selected(), "trace analyze")?;
        let mut ready = Vec::new();
        for capability in selected {
            let (Status::Done, Some(path), Some(value)) =
                (capability.status, &capability.environment_path, capability.reward_distribution)
            else {
                continue;
            };
            let calibrated: Calibrated = serde_json::from_value(value).map_err(|error| FileError::Malformed {
                path: self.dir.selected(),
                reason: format!("reward_distribution of {}: {error}", capability.skill),
            })?;
            let path = self.dir.root().join(path);
            let text = std::fs::read(&path)
                .map_err(|error| FileError::Io { path: path.clone(), reason: error.to_string() })?;
            if hex(&Sha256::digest(&text)) != calibrated.sha256 {
                return Err(StepError::Stuck(format!(
                    "{} was changed since it was calibrated; put it back, or give a new run another run.name",
                    path.display()
                )));
            }
            ready.push((capability.skill, calibrated));
        }
        Ok(ready)
    }
}
