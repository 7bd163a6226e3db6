//! Several runs as one experiment: `trace compare RUN...`.
//!
//! Runs that differ in their seed alone are replicates: figures are means over them, and intervals come from resampling
//! runs and tasks ([`Bootstrap::over_runs_and_tasks`]). Runs of other shares of the rollouts make a curve. Runs on
//! another base policy are another experiment. A run that is not done is named, not dropped.

mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::config::{Config, ConfigError, ConfigFile};
use crate::record::{Evaluation, FileError, Metric, MetricsLog, read_json};
use crate::stats::{Bootstrap, Estimate, mean};

pub use tables::markdown;

/// Why runs cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A run's configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another file of a run.
    #[error(transparent)]
    File(#[from] FileError),
    /// Not one run has an evaluation.
    #[error("none of these runs is evaluated yet; `trace run RUN` goes on with each")]
    NothingDone,
}

/// A run as far as it matters here.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its directory.
    pub dir: PathBuf,
    /// Its base policy.
    pub base: PathBuf,
    /// Its share of the configured rollouts.
    pub share: f64,
    /// What was measured on the way.
    pub metrics: Vec<Metric>,
    /// `None` where it is not evaluated.
    pub evaluation: Option<Evaluation>,
}

impl Run {
    /// Reads a run directory.
    ///
    /// # Errors
    /// Where it is none, or a file of it cannot be understood.
    pub fn read(dir: &Path) -> Result<Self, CompareError> {
        let config = Config::load(&dir.join("config.toml"), &[])?;
        let evaluation = match read_json(&dir.join("evaluation.json"), "trace evaluate") {
            Ok(evaluation) => Some(evaluation),
            Err(FileError::Missing { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            dir: dir.to_owned(),
            base: config.policy.model,
            share: config.run.share,
            metrics: MetricsLog::read(&dir.join("metrics.jsonl"))?,
            evaluation,
        })
    }
}

/// Replicates: runs of one base policy and one share that are evaluated.
#[derive(Clone, Debug)]
pub struct Replicates<'a> {
    /// The base policy.
    pub base: &'a Path,
    /// The share of the rollouts.
    pub share: f64,
    /// Their metrics and evaluations.
    pub runs: Vec<(&'a [Metric], &'a Evaluation)>,
}

/// The evaluated runs by base policy (in the order given) and share (descending).
pub fn grouped(runs: &[Run]) -> Vec<Replicates<'_>> {
    let mut groups: Vec<Replicates> = Vec::new();
    for run in runs {
        let Some(evaluation) = &run.evaluation else { continue };
        let own = (run.metrics.as_slice(), evaluation);
        match groups.iter_mut().find(|group| group.base == run.base && group.share == run.share) {
            Some(group) => group.runs.push(own),
            None => groups.push(Replicates { base: &run.base, share: run.share, runs: vec![own] }),
        }
    }
    let first = |base: &Path| runs.iter().position(|run| run.base == base);
    groups.sort_by(|a, b| first(a.base).cmp(&first(b.base)).then(b.share.total_cmp(&a.share)));
    groups
}

impl Replicates<'_> {
    /// Names of the arms that every run has, in the first one's order.
    pub fn arms(&self) -> Vec<&str> {
        let Some(((_, first), others)) = self.runs.split_first() else { return Vec::new() };
        let everywhere =
            |name: &str| others.iter().all(|(_, evaluation)| evaluation.arms.iter().any(|arm| arm.name == name));
        first.arms.iter().map(|arm| arm.name.as_str()).filter(|name| everywhere(name)).collect()
    }

    /// How intervals are drawn.
    pub fn bootstrap(&self) -> Bootstrap {
        let confidence = self.runs.first().map_or(0.95, |(_, evaluation)| evaluation.confidence);
        Bootstrap { samples: 10_000, confidence, seed: 1 }
    }

    /// Per run, an arm's pass rate by task.
    fn rates(&self, arm: &str) -> Vec<BTreeMap<u64, f64>> {
        let of = |evaluation: &Evaluation| {
            evaluation.arms.iter().find(|result| result.name == arm).map(|result| result.rates()).unwrap_or_default()
        };
        self.runs.iter().map(|(_, evaluation)| of(evaluation)).collect()
    }

    /// An arm's pass rate over runs and tasks, over the tasks on which all runs have a verdict.
    pub fn pass_rate(&self, arm: &str) -> Option<Estimate> {
        let rates = self.rates(arm);
        let tasks = common(&rates)?;
        let values: Vec<Vec<f64>> = rates.iter().map(|run| tasks.iter().map(|task| run[task]).collect()).collect();
        self.bootstrap().over_runs_and_tasks(&values)
    }

    /// An arm's pass rate minus another's, paired by run and task.
    pub fn difference(&self, arm: &str, other: &str) -> Option<Estimate> {
        let (ours, theirs) = (self.rates(arm), self.rates(other));
        let tasks = common(&[ours.clone(), theirs.clone()].concat())?;
        let paired = ours.iter().zip(&theirs);
        let values: Vec<Vec<f64>> = paired.map(|(a, b)| tasks.iter().map(|task| a[task] - b[task]).collect()).collect();
        self.bootstrap().over_runs_and_tasks(&values)
    }

    /// A figure of an arm, averaged over the runs that have it.
    pub fn mean_of(&self, arm: &str, figure: impl Fn(&crate::record::ArmResult) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self
            .runs
            .iter()
            .filter_map(|(_, evaluation)| figure(evaluation.arms.iter().find(|result| result.name == arm)?))
            .collect();
        mean(&values)
    }

    /// Informative groups and all groups of each learner, summed over runs; learners in the order of their first metric.
    pub fn informative(&self) -> Vec<(String, u64, u64)> {
        let mut out: Vec<(String, u64, u64)> = Vec::new();
        for metric in self.runs.iter().flat_map(|(metrics, _)| metrics.iter()) {
            let Metric::Train(train) = metric else { continue };
            let at = out.iter().position(|(learner, _, _)| *learner == train.learner).unwrap_or_else(|| {
                out.push((train.learner.clone(), 0, 0));
                out.len() - 1
            });
            out[at].1 += train.informative;
            out[at].2 += train.groups;
        }
        out
    }

    /// How often an arm had a capability where it was called for: episodes with it and all, summed over runs.
    pub fn capability(&self, arm: &str, capability: &str) -> Option<(u64, u64)> {
        let rates = self.runs.iter().flat_map(|(_, evaluation)| {
            let arms = evaluation.arms.iter().filter(|result| result.name == arm);
            arms.flat_map(|result| result.capabilities.iter().filter(|rate| rate.capability == capability))
        });
        rates.map(|rate| (rate.present, rate.applicable)).reduce(|a, b| (a.0 + b.0, a.1 + b.1))
    }
}

/// The tasks that all have; `None` where there is none.
fn common(rates: &[BTreeMap<u64, f64>]) -> Option<Vec<u64>> {
    let (first, others) = rates.split_first()?;
    let tasks: BTreeSet<u64> =
        first.keys().copied().filter(|task| others.iter().all(|run| run.contains_key(task))).collect();
    if tasks.is_empty() { None } else { Some(tasks.into_iter().collect()) }
}

#[cfg(test)]
mod tests;
