//! What learners report, and how they fail.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use trace_envs::Split;
use trace_policy::learner::UpdateMetrics;

use crate::device::DeviceError;
use crate::log::LogError;
use crate::rows::RowError;
use crate::supervision::{CallError, StopCause};

/// Why a batch was not trained on, or a learner does not open.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LearnError {
    /// A row's seed is not for training. Nothing of the batch was used.
    #[error("row {row} is of seed {seed}, a {} seed; only train seeds are trained on", .split.name())]
    Split {
        /// The row.
        row: String,
        /// Its seed.
        seed: u64,
        /// The seed's split.
        split: Split,
    },
    /// A row was sampled in a way that its log-probs cannot be compared with the learner's.
    #[error("row {row} cannot be trained on: it was sampled with {found}, and the learner works at {wanted}")]
    Sampling {
        /// The row.
        row: String,
        /// How it was sampled.
        found: String,
        /// How it must have been sampled.
        wanted: String,
    },
    /// The batch is not one.
    #[error(transparent)]
    Rows(#[from] RowError),
    /// No trajectory to learn from.
    #[error("none of the {rows} rows has reward 1 and a weight; gates are trained on wins")]
    NoWins {
        /// How many rows there were.
        rows: usize,
    },
    /// The policy library refused or failed.
    #[error("{name}: {reason}")]
    Failed {
        /// The learner, or the gates' unit.
        name: String,
        /// Why.
        reason: String,
    },
    /// The LibTorch thread failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// What became of the rows cannot be made durable.
    #[error(transparent)]
    Log(#[from] Arc<LogError>),
    /// The learner is open, or is not.
    #[error("learner {0:?} is {1}")]
    Open(String, &'static str),
    /// Its actor was lost time and again.
    #[error("{0}")]
    Lost(String),
    /// The runtime has stopped.
    #[error(transparent)]
    Stopped(#[from] StopCause),
}

impl From<CallError> for LearnError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Stopped(cause) => LearnError::Stopped(cause),
            lost => LearnError::Lost(lost.to_string()),
        }
    }
}

/// What a learner did with a batch. Means are over trained tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainReport {
    /// The unit that was consumed.
    pub unit: String,
    /// The version that was published after it, from 1.
    pub version: u32,
    /// Optimiser steps.
    pub steps: u64,
    /// Groups trained on.
    pub groups: usize,
    /// Groups without a signal.
    pub constant_groups: usize,
    /// Rows trained on.
    pub rows_used: usize,
    /// Rows not trained on; `updates/1` says why.
    pub rows_unused: usize,
    /// Rows trained on from which a hint was taken out.
    pub hinted_rows: usize,
    /// Sampled tokens trained on.
    pub trained_tokens: usize,
    /// Tokens computed, shared beginnings once a pass.
    pub computed_tokens: usize,
    /// Mean of the steps' losses.
    pub loss: f64,
    /// Mean of the steps' gradient norms before clipping.
    pub grad_norm: f64,
    /// Share of tokens whose gradient the clip removed.
    pub clip_fraction: f64,
    /// Mean ratio of new to old probability.
    pub mean_ratio: f64,
    /// Estimate of KL(old || new).
    pub old_kl: f64,
    /// Estimate of KL(new || base); 0 where it is not computed.
    pub reference_kl: f64,
}

impl TrainReport {
    pub(super) fn with_metrics(mut self, metrics: &UpdateMetrics) -> Self {
        self.steps = metrics.steps;
        self.trained_tokens = metrics.trained_tokens;
        self.computed_tokens = metrics.computed_tokens;
        self.loss = metrics.loss;
        self.grad_norm = metrics.grad_norm;
        self.clip_fraction = metrics.clip_fraction;
        self.mean_ratio = metrics.mean_ratio;
        self.old_kl = metrics.old_kl;
        self.reference_kl = metrics.reference_kl;
        self
    }
}

/// What became of a unit that was handed to a learner.
#[derive(Clone, Debug, PartialEq)]
pub enum TrainOutcome {
    /// It was trained on now, or it was the last that was: its report is at hand.
    Trained(TrainReport),
    /// It was consumed before, and others after it.
    ConsumedBefore,
}

/// Where a learner stands: its ledger on disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LearnerStatus {
    /// The version that acts: how many units were consumed.
    pub version: u32,
    /// The units, in order.
    pub consumed: Vec<String>,
    /// What it did with the last of them.
    pub last: Option<TrainReport>,
}
