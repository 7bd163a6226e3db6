//! Step 3: one adapter for each capability, by GRPO in its environment. Baselines are trained by the same loop.

use std::path::Path;

use arrow::compute::concat_batches;
use arrow::record_batch::RecordBatch;
use serde::{Deserialize, Serialize};
use trace_actors::batch::trajectory_rows;
use trace_actors::log::Phase;
use trace_actors::normalize::GroupCounts;
use trace_actors::plan::{Acting, AdapterShape, ArmSpec, GroupPlan, WavePlan};
use trace_actors::rows::SamplingParams;
use trace_actors::{LearnerConfig, LearnerSpec, Runtime, TrainOutcome, TrainReport};

use super::seeds::{self, Block};
use super::waves::{self, Batch, Rollout};
use super::{Session, StepError};
use crate::config::Hints;
use crate::record::metrics::{DevMetric, Metric, TrainMetric};
use crate::record::{FileError, read_json, write_json};
use crate::stats::mean;

/// A learner and what it is to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Job {
    /// Its name: the capability's or the baseline's.
    pub(super) name: String,
    /// The registry's name of its environment.
    pub(super) environment: String,
    /// The capability that the environment isolates.
    pub(super) capability: Option<String>,
    /// The level asked for.
    pub(super) level: u32,
    /// What the adapter looks like.
    pub(super) adapter: AdapterShape,
    /// Whether a share of each group sees the hint.
    pub(super) hints: bool,
    /// When it is over.
    pub(super) budget: Budget,
    /// Iterations between dev evaluations.
    pub(super) dev_every: u32,
    /// Which train seeds it takes.
    pub(super) seeds: Block,
}

/// When a learner is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Budget {
    /// After so many iterations.
    Iterations(u32),
    /// When so many rollouts were sampled.
    Rollouts(u64),
}

/// `kept.json`: the adapter of a learner that is used from here on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// Iterations that it was trained for; 0 is an adapter that changes nothing.
    pub(super) iteration: u32,
    /// Its mean reward on dev tasks of its environment.
    pub(super) dev_reward: Option<f64>,
    /// SHA-256 of the adapter.
    pub(super) digest: String,
    /// Rollouts that the learner sampled in all.
    pub(super) rollouts: u64,
}

pub(super) async fn run(session: &mut Session) -> Result<u64, StepError> {
    let ready = session.calibrated()?;
    let bound = session.config.synthesis.calibration.max_all_zero;
    let mut rollouts = 0;
    for (index, (name, calibrated)) in ready.into_iter().enumerate() {
        let train = &session.config.train;
        let job = Job {
            environment: name.clone(),
            capability: Some(name.clone()),
            level: calibrated.level,
            adapter: AdapterShape { rank: i64::from(train.rank), alpha: train.alpha, first_layer: train.first_layer },
            hints: match train.hints {
                Hints::On => true,
                Hints::Off => false,
                Hints::Auto => calibrated.measured.all_zero > bound,
            },
            budget: Budget::Iterations(session.shared(train.iterations)),
            dev_every: train.dev_every,
            seeds: Block::Train(index as u16),
            name,
        };
        rollouts += learn(session, &job).await?.rollouts;
    }
    Ok(rollouts)
}

/// Trains one learner to its end and keeps its best adapter.
pub(super) async fn learn(session: &mut Session, job: &Job) -> Result<Kept, StepError> {
    let kept_path = session.dir.kept(&job.name);
    if kept_path.is_file() {
        return Ok(read_json(&kept_path, "trace train")?);
    }
    let runtime = session.runtime().await?;
    let spec = LearnerSpec { name: job.name.clone(), adapter: job.adapter, seed: session.config.run.seed };
    let mut consumed = runtime.open_learner(&spec).await?.version;
    let mut best: Option<(u32, Option<f64>)> = None;
    let mut iteration = 0;
    loop {
        let (sampled, next) = (session.sampled_by(&job.name, iteration), iteration + 1);
        let groups = groups_left(session, job, iteration, sampled);
        if iteration == 0 || iteration % job.dev_every == 0 || groups == 0 {
            let reward = develop(session, &runtime, job, iteration, consumed, &mut best).await?;
            if groups == 0 {
                let word = if best.is_some_and(|(at, _)| at == iteration) { "the last" } else { "an earlier" };
                let shown = reward.map_or_else(|| "no verdict".to_owned(), |reward| format!("{reward:.3}"));
                session.display.line(&format!("{}: dev reward {shown} at the end; {word} adapter is kept", job.name));
                break;
            }
        }
        consumed = iterate(session, &runtime, job, next, groups, consumed).await?;
        iteration = next;
    }
    runtime.close_learner(&job.name).await?;
    let (iteration, dev_reward) = best.unwrap_or((iteration, None));
    let digest = keep(session, job, iteration)?;
    let kept = Kept { iteration, dev_reward, digest, rollouts: session.sampled_by(&job.name, u32::MAX) };
    write_json(&kept_path, &kept)?;
    Ok(kept)
}

/// Groups of the iteration after `iteration`; 0 where the learner is done.
fn groups_left(session: &Session, job: &Job, iteration: u32, sampled: u64) -> u32 {
    let train = &session.config.train;
    match job.budget {
        Budget::Iterations(count) => {
            if iteration < count {
                train.groups
            } else {
                0
            }
        }
        Budget::Rollouts(count) => {
            let groups = count.saturating_sub(sampled) / u64::from(train.k);
            groups.min(u64::from(train.groups)) as u32
        }
    }
}

impl Session {
    /// Rollouts that a learner sampled up to an iteration, discarded groups included.
    pub(super) fn sampled_by(&self, learner: &str, up_to: u32) -> u64 {
        self.metrics.iterations(learner).filter(|m| m.iteration <= up_to).map(|m| m.rollouts).sum()
    }

    /// How learners take their steps.
    fn learner_config(&self) -> LearnerConfig {
        let train = &self.config.train;
        LearnerConfig {
            lr: train.lr,
            clip_low: train.clip_low,
            clip_high: train.clip_high,
            kl_beta: train.kl,
            max_grad_norm: train.max_grad_norm,
            weight_decay: train.weight_decay,
            groups_per_step: train.groups_per_step as usize,
            temperature: train.temperature,
            max_tokens_per_pass: train.max_tokens_per_pass as usize,
        }
    }

    fn train_sampling(&self) -> SamplingParams {
        let train = &self.config.train;
        SamplingParams { temperature: train.temperature, top_p: train.top_p, top_k: train.top_k }
    }
}

/// One iteration: a wave, a second one in place of its constant groups, and the learner's steps. Returns how many units the
/// learner has consumed. An iteration that was measured before is passed over.
async fn iterate(
    session: &mut Session,
    runtime: &Runtime,
    job: &Job,
    iteration: u32,
    groups: u32,
    consumed: u32,
) -> Result<u32, StepError> {
    if session.metrics.iterations(&job.name).any(|m| m.iteration == iteration) {
        return Ok(consumed.max(iteration));
    }
    let begun = std::time::Instant::now();
    let k = session.config.train.k;
    let unit = format!("train/{}/i{iteration:04}", job.name);
    // The seeds of an iteration follow from its number alone, whatever earlier ones replaced.
    let replaceable = (session.config.train.replacement * f64::from(groups)).ceil() as u32;
    let stride = u64::from(session.config.train.groups)
        + (session.config.train.replacement * f64::from(session.config.train.groups)).ceil() as u64;
    let first = u64::from(iteration - 1) * stride;
    let plan = |part: u32, from: u32, count: u32| WavePlan {
        unit: format!("{unit}/a{part}"),
        phase: Phase::Train,
        environment: job.environment.clone(),
        capability: job.capability.clone(),
        acting: Acting::Learner(job.name.clone()),
        iteration,
        trials: false,
        sampling: session.train_sampling(),
        groups: (from..from + count)
            .map(|group| GroupPlan {
                group: u64::from(group),
                seed: seeds::train(session.config.run.seed, job.seeds, first + u64::from(group)),
                level: job.level,
                hints: hints(job.hints, k, session.config.train.hint_share),
            })
            .collect(),
    };
    session.display.begin(&format!("{} {}", job.name, iteration_of(session, job, iteration)), u64::from(groups * k));
    let wave = runtime.rollout(plan(0, 0, groups)).await?;
    session.display.settle(u64::from(groups * k));
    let mut counts = wave.counts;
    let mut batch = wave.batch;
    let without_signal = (groups as u64 - counts.informative.min(u64::from(groups))) as u32;
    let replaced = without_signal.min(replaceable).min(affordable(session, job, iteration, groups));
    if replaced > 0 {
        let second = runtime.rollout(plan(1, groups, replaced)).await?;
        counts = sum(counts, second.counts);
        batch = joined(&[batch, second.batch])?;
    }
    let outcome = runtime.train(&job.name, &unit, &batch, &session.learner_config()).await?;
    session.display.end();
    let report = match outcome {
        TrainOutcome::Trained(report) => Some(report),
        TrainOutcome::ConsumedBefore => None,
    };
    let rollouts: Vec<Rollout> = waves::rollouts(trajectory_rows(&batch)?).collect();
    let metric =
        train_metric(job, iteration, &rollouts, counts, replaced, report.as_ref(), begun.elapsed().as_secs_f64());
    session.metrics.append(&Metric::Train(metric))?;
    Ok(consumed.max(iteration))
}

/// `3 of 20`, as far as the end is known.
fn iteration_of(session: &Session, job: &Job, iteration: u32) -> String {
    match job.budget {
        Budget::Iterations(count) => format!("{iteration}/{count}"),
        Budget::Rollouts(count) => {
            format!(
                "{iteration} ({:.0} %)",
                100.0 * session.sampled_by(&job.name, iteration) as f64 / count.max(1) as f64
            )
        }
    }
}

/// Groups that the budget of a learner allows beyond those of this iteration.
fn affordable(session: &Session, job: &Job, iteration: u32, groups: u32) -> u32 {
    match job.budget {
        Budget::Iterations(_) => u32::MAX,
        Budget::Rollouts(count) => {
            let k = u64::from(session.config.train.k);
            let spent = session.sampled_by(&job.name, iteration - 1) + u64::from(groups) * k;
            (count.saturating_sub(spent) / k).min(u64::from(u32::MAX)) as u32
        }
    }
}

/// Which rollouts of a group see the hint: the first ones, about the share, but never all.
fn hints(given: bool, k: u32, share: f64) -> Vec<bool> {
    let hinted = if given { (share * f64::from(k)).round() as u32 } else { 0 };
    (0..k).map(|rollout| rollout < hinted.min(k - 1)).collect()
}

fn sum(a: GroupCounts, b: GroupCounts) -> GroupCounts {
    GroupCounts {
        informative: a.informative + b.informative,
        constant: a.constant + b.constant,
        all_zero: a.all_zero + b.all_zero,
        all_one: a.all_one + b.all_one,
        lone: a.lone + b.lone,
        empty: a.empty + b.empty,
        failed_rollouts: a.failed_rollouts + b.failed_rollouts,
    }
}

/// Batches of one schema as one.
pub(super) fn joined(batches: &[RecordBatch]) -> Result<RecordBatch, StepError> {
    let Some(first) = batches.first() else {
        return Err(StepError::Stuck("no rollouts to learn from".to_owned()));
    };
    concat_batches(&first.schema(), batches)
        .map_err(|error| StepError::Stuck(format!("rollouts of one table differ: {error}")))
}

fn train_metric(
    job: &Job,
    iteration: u32,
    rollouts: &[Rollout],
    counts: GroupCounts,
    replaced: u32,
    report: Option<&TrainReport>,
    seconds: f64,
) -> TrainMetric {
    let rewards: Vec<f64> = rollouts.iter().filter_map(|rollout| rollout.reward).collect();
    let passed = rollouts.iter().filter(|rollout| rollout.passed()).count();
    // A report without a step has no loss.
    let report = report.filter(|report| report.steps > 0);
    TrainMetric {
        learner: job.name.clone(),
        iteration,
        rollouts: rollouts.len() as u64,
        left_out: counts.failed_rollouts,
        groups: counts.groups(),
        constant: counts.constant,
        replaced: u64::from(replaced),
        informative: counts.informative,
        reward: mean(&rewards),
        passed: (!rewards.is_empty()).then(|| passed as f64 / rewards.len() as f64),
        loss: report.map(|report| report.loss),
        clipped: report.map(|report| report.clip_fraction),
        grad_norm: report.map(|report| report.grad_norm),
        seconds,
    }
}

/// Writes the adapter as it stands after an iteration and evaluates it on dev tasks. Returns the mean reward.
async fn develop(
    session: &mut Session,
    runtime: &Runtime,
    job: &Job,
    iteration: u32,
    consumed: u32,
    best: &mut Option<(u32, Option<f64>)>,
) -> Result<Option<f64>, StepError> {
    let folder = session.dir.adapter_after(&job.name, iteration);
    if !folder.is_dir() {
        if consumed != iteration {
            return Err(StepError::Stuck(format!(
                "{} is missing, and its learner is {consumed} iterations on; only iteration {iteration} could write it",
                folder.display()
            )));
        }
        // Whole or not at all: written beside its place, then renamed.
        let partial = folder.with_extension("partial");
        remove(&partial)?;
        runtime.export_adapter(&job.name, &partial).await?;
        std::fs::rename(&partial, &folder).map_err(FileError::io(&folder))?;
    }
    let train = &session.config.train;
    let batch = Batch {
        unit: format!("dev/{}/i{iteration:04}", job.name),
        phase: Phase::Evaluate,
        environment: job.environment.clone(),
        capability: job.capability.clone(),
        acting: Acting::Arm(ArmSpec::adapter(&job.name, iteration, &folder)),
        iteration,
        sampling: session.train_sampling(),
        seeds: seeds::dev(train.dev_tasks),
        level: job.level,
        trials: train.dev_trials,
    };
    session.display.begin(&format!("{} on dev", job.name), batch.rollouts());
    let rollouts = batch.rolled_out(runtime, &session.display).await?;
    session.display.end();
    let rewards: Vec<f64> = rollouts.iter().filter_map(|rollout| rollout.reward).collect();
    let reward = mean(&rewards);
    let better = match (&best, reward) {
        (None, _) => true,
        (Some((_, before)), Some(reward)) => before.is_none_or(|before| reward > before),
        (Some(_), None) => false,
    };
    if better {
        *best = Some((iteration, reward));
    }
    session.metrics.append(&Metric::Dev(DevMetric {
        learner: job.name.clone(),
        iteration,
        rollouts: rewards.len() as u64,
        reward,
        passed: (!rewards.is_empty())
            .then(|| rollouts.iter().filter(|rollout| rollout.passed()).count() as f64 / rewards.len() as f64),
        best: better,
    }))?;
    Ok(reward)
}

/// Puts the adapter of an iteration in the learner's folder. Returns its digest.
fn keep(session: &Session, job: &Job, iteration: u32) -> Result<String, StepError> {
    use sha2::{Digest, Sha256};
    let (from, to) = (session.dir.adapter_after(&job.name, iteration), session.dir.learner(&job.name));
    let mut digest = Sha256::new();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        let bytes = std::fs::read(from.join(name)).map_err(FileError::io(&from.join(name)))?;
        digest.update(&bytes);
        crate::record::write_whole(&to.join(name), &bytes)?;
    }
    Ok(crate::config::compare::hex(&digest.finalize()))
}

fn remove(folder: &Path) -> Result<(), FileError> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(FileError::io(folder)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_given_to_a_share_of_a_group_and_never_to_all() {
        let count = |given, k, share| hints(given, k, share).into_iter().filter(|hint| *hint).count();
        assert_eq!([count(true, 16, 0.25), count(true, 8, 0.5), count(false, 16, 0.25)], [4, 4, 0]);
        assert_eq!(count(true, 4, 1.0), 3);
        assert_eq!(hints(true, 4, 0.25), [true, false, false, false]);
    }
}
