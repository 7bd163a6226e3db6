//! `metrics.jsonl`: one measurement a line, appended while the run goes on.
//!
//! A line is identified by what it measures, not by when it was written: work that is redone after a kill finds its line
//! there and adds none, so nothing is counted twice.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::FileError;

/// A measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Metric {
    /// An environment at one level, under the base policy.
    Calibration(CalibrationMetric),
    /// An iteration of training.
    Train(TrainMetric),
    /// An evaluation on dev seeds.
    Dev(DevMetric),
    /// A round of gate training.
    Gate(GateMetric),
}

/// How hard an environment is for the base policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationMetric {
    /// The capability.
    pub capability: String,
    /// The level; 0 is the environment's own mix.
    pub level: u32,
    /// Groups sampled.
    pub groups: u64,
    /// Rollouts with a verdict.
    pub rollouts: u64,
    /// Rollouts without one.
    pub left_out: u64,
    /// Mean reward; `None` where no rollout has a verdict.
    pub mean: Option<f64>,
    /// Population standard deviation of the reward over all rollouts.
    pub std: Option<f64>,
    /// Share of rollouts with reward 1.
    pub success: Option<f64>,
    /// Share of groups in which all rewards are 1.
    pub all_success: f64,
    /// Share of groups in which all rewards are 0.
    pub all_zero: f64,
    /// Share of groups without a difference in reward.
    pub constant: f64,
    /// Share of groups with one.
    pub informative: f64,
    /// Unbiased pass@k, for the k of 1, 4, 8, 16 that a group can tell: pairs of k and the mean over groups.
    pub pass_at: Vec<(u64, f64)>,
    /// What is out of bounds; empty where it is accepted.
    pub rejected_for: Vec<String>,
}

/// An iteration of a learner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainMetric {
    /// The learner: a capability or a baseline.
    pub learner: String,
    /// From 1.
    pub iteration: u32,
    /// Rollouts sampled, those of discarded groups included.
    pub rollouts: u64,
    /// Rollouts without a verdict.
    pub left_out: u64,
    /// Groups sampled.
    pub groups: u64,
    /// Groups without a difference in reward, dropped.
    pub constant: u64,
    /// Groups sampled in place of constant ones.
    pub replaced: u64,
    /// Groups trained on.
    pub informative: u64,
    /// Mean reward over all rollouts with a verdict; `None` where there is none.
    pub reward: Option<f64>,
    /// Share of them with reward 1.
    pub passed: Option<f64>,
    /// Mean loss over optimiser steps; `None` where no group was informative.
    pub loss: Option<f64>,
    /// Share of trained tokens whose ratio was clipped.
    pub clipped: Option<f64>,
    /// Norm of the gradient before it was scaled, mean over optimiser steps.
    pub grad_norm: Option<f64>,
    /// Seconds of sampling and training.
    pub seconds: f64,
}

/// An evaluation on dev seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DevMetric {
    /// The learner.
    pub learner: String,
    /// Iterations trained before it; 0 is the base.
    pub iteration: u32,
    /// Episodes with a verdict.
    pub rollouts: u64,
    /// Mean reward.
    pub reward: Option<f64>,
    /// Share with reward 1.
    pub passed: Option<f64>,
    /// Whether no earlier one was as good; the adapter of the last such is kept.
    pub best: bool,
}

/// A round of gate training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GateMetric {
    /// From 1.
    pub round: u32,
    /// Rollouts sampled for it.
    pub rollouts: u64,
    /// Winning trajectories learned from, those of earlier rounds included.
    pub wins: u64,
    /// Tokens learned from.
    pub tokens: u64,
    /// Mean cross-entropy of the first pass, in nats.
    pub loss_first: f64,
    /// And of the last.
    pub loss_last: f64,
    /// Share of states, over layers, that choose the best slot in the last pass.
    pub agreement: f64,
}

impl Metric {
    /// What it measures: two lines of one key are one measurement.
    fn key(&self) -> (u8, &str, u32) {
        match self {
            Metric::Calibration(m) => (0, &m.capability, m.level),
            Metric::Train(m) => (1, &m.learner, m.iteration),
            Metric::Dev(m) => (2, &m.learner, m.iteration),
            Metric::Gate(m) => (3, "", m.round),
        }
    }
}

/// The file, open for appending.
pub struct MetricsLog {
    path: PathBuf,
    /// What the file holds.
    metrics: Vec<Metric>,
}

impl MetricsLog {
    /// Opens the file of a run, or begins one. A last line that a kill cut short is removed: its work is redone.
    ///
    /// # Errors
    /// Where the system refuses, or a whole line is no measurement.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let mut text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(FileError::io(path)(error)),
        };
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            text.truncate(whole);
            super::write_whole(path, text.as_bytes())?;
        }
        Ok(Self { path: path.to_owned(), metrics: parse(path, &text)? })
    }

    /// Everything measured so far.
    pub fn metrics(&self) -> &[Metric] {
        &self.metrics
    }

    /// The iterations of a learner, in order.
    pub fn iterations<'a>(&'a self, learner: &'a str) -> impl Iterator<Item = &'a TrainMetric> {
        self.metrics.iter().filter_map(move |metric| match metric {
            Metric::Train(train) if train.learner == learner => Some(train),
            _ => None,
        })
    }

    /// Appends a measurement unless the file has it.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn append(&mut self, metric: &Metric) -> Result<(), FileError> {
        if self.metrics.iter().any(|other| other.key() == metric.key()) {
            return Ok(());
        }
        let mut line = serde_json::to_string(metric)
            .map_err(|error| FileError::Malformed { path: self.path.clone(), reason: error.to_string() })?;
        line.push('\n');
        let write = || -> std::io::Result<()> {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&self.path)?;
            file.write_all(line.as_bytes())?;
            file.sync_data()
        };
        write().map_err(FileError::io(&self.path))?;
        self.metrics.push(metric.clone());
        Ok(())
    }

    /// All measurements of a run so far; none where there is no file.
    ///
    /// # Errors
    /// Where the system refuses, or a whole line is no measurement.
    pub fn read(path: &Path) -> Result<Vec<Metric>, FileError> {
        match std::fs::read_to_string(path) {
            Ok(text) => parse(path, &text[..text.rfind('\n').map_or(0, |end| end + 1)]),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(FileError::io(path)(error)),
        }
    }
}

fn parse(path: &Path, text: &str) -> Result<Vec<Metric>, FileError> {
    let line = |(index, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| FileError::Malformed {
            path: path.to_owned(),
            reason: format!("line {}: {error}", index + 1),
        })
    };
    text.lines().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dev(iteration: u32, reward: f64) -> Metric {
        Metric::Dev(DevMetric {
            learner: "cap".into(),
            iteration,
            rollouts: 4,
            reward: Some(reward),
            passed: None,
            best: true,
        })
    }

    #[test]
    fn work_that_is_redone_adds_no_second_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut log = MetricsLog::open(&path).unwrap();
        log.append(&dev(0, 0.25)).unwrap();
        log.append(&dev(5, 0.5)).unwrap();
        let mut again = MetricsLog::open(&path).unwrap();
        again.append(&dev(5, 0.5)).unwrap();
        again.append(&dev(10, 0.75)).unwrap();
        assert_eq!(MetricsLog::read(&path).unwrap(), [dev(0, 0.25), dev(5, 0.5), dev(10, 0.75)]);
    }

    #[test]
    fn a_line_that_a_kill_cut_short_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        MetricsLog::open(&path).unwrap().append(&dev(0, 0.25)).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{whole}{}", &whole[..whole.len() / 2])).unwrap();
        assert_eq!(MetricsLog::read(&path).unwrap(), [dev(0, 0.25)]);
        MetricsLog::open(&path).unwrap().append(&dev(1, 0.5)).unwrap();
        assert_eq!(MetricsLog::read(&path).unwrap(), [dev(0, 0.25), dev(1, 0.5)]);
    }

    #[test]
    fn a_whole_line_that_is_no_measurement_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        std::fs::write(&path, "{\"kind\":\"other\"}\n").unwrap();
        let error = MetricsLog::open(&path).err().unwrap().to_string();
        assert!(error.contains("metrics.jsonl") && error.contains("line 1"), "{error}");
    }
}
