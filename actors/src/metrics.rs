//! What the runtime measures: a latency histogram per stage and counters, under one table of names.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::rows::Status;

/// Two significant digits: a p99 of 12 ms is known to 0.1 ms.
const SIGNIFICANT_DIGITS: u8 = 2;

/// A day: what takes longer is recorded as this.
const LONGEST_US: u64 = 86_400_000_000;

/// A stage whose calls are timed, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// One call of the policy server, from its submission to the turns it finished.
    PolicyCall,
    /// Beginning an episode, on the environment's thread.
    EnvReset,
    /// One step of an episode, on the environment's thread.
    EnvStep,
    /// Judging an episode, on the environment's thread.
    EnvVerdict,
    /// Computing the advantages of a wave's groups.
    Normalize,
    /// Making a unit durable.
    LogWrite,
    /// One batch of a learner, checkpoint included.
    LearnerStep,
    /// Training gates.
    GateTraining,
}

/// Something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counter {
    /// Rollouts that completed.
    Completed,
    /// Rollouts that were cut.
    Truncated,
    /// Rollouts whose environment failed on every attempt.
    EnvironmentFailed,
    /// Rollouts whose policy failed.
    PolicyFailed,
    /// Rollouts that were no longer wanted.
    Cancelled,
    /// Assistant turns.
    Turns,
    /// Tokens that the policy sampled.
    SampledTokens,
    /// Episodes begun anew after a failure of their environment.
    EnvRetries,
    /// Calls of an environment that passed their deadline.
    EnvDeadlines,
    /// Units handed out again after an actor was lost.
    Reissues,
    /// Actors that were restarted.
    Restarts,
    /// Rollouts that arrived after their group was closed or handed out again.
    IgnoredArrivals,
    /// Units read back from the log instead of being sampled again.
    UnitsReadBack,
    /// Rows that contributed to a gradient.
    RowsUsed,
    /// Rows that did not.
    RowsUnused,
}

/// Name, unit and meaning of a stage or counter.
pub struct MetricName {
    /// The name in snapshots, files and pages.
    pub name: &'static str,
    /// The unit.
    pub unit: &'static str,
}

impl Stage {
    /// All stages.
    pub const ALL: [Stage; 8] = [
        Stage::PolicyCall,
        Stage::EnvReset,
        Stage::EnvStep,
        Stage::EnvVerdict,
        Stage::Normalize,
        Stage::LogWrite,
        Stage::LearnerStep,
        Stage::GateTraining,
    ];

    /// The stage's entry in the table of names.
    pub fn metric(self) -> MetricName {
        let name = match self {
            Stage::PolicyCall => "policy_call",
            Stage::EnvReset => "env_reset",
            Stage::EnvStep => "env_step",
            Stage::EnvVerdict => "env_verdict",
            Stage::Normalize => "normalize",
            Stage::LogWrite => "log_write",
            Stage::LearnerStep => "learner_step",
            Stage::GateTraining => "gate_training",
        };
        MetricName { name, unit: "us" }
    }
}

impl Counter {
    /// All counters.
    pub const ALL: [Counter; 15] = [
        Counter::Completed,
        Counter::Truncated,
        Counter::EnvironmentFailed,
        Counter::PolicyFailed,
        Counter::Cancelled,
        Counter::Turns,
        Counter::SampledTokens,
        Counter::EnvRetries,
        Counter::EnvDeadlines,
        Counter::Reissues,
        Counter::Restarts,
        Counter::IgnoredArrivals,
        Counter::UnitsReadBack,
        Counter::RowsUsed,
        Counter::RowsUnused,
    ];

    /// The counter's entry in the table of names.
    pub fn metric(self) -> MetricName {
        let (name, unit) = match self {
            Counter::Completed => ("rollouts_completed", "rollouts"),
            Counter::Truncated => ("rollouts_truncated", "rollouts"),
            Counter::EnvironmentFailed => ("rollouts_environment_failed", "rollouts"),
            Counter::PolicyFailed => ("rollouts_policy_failed", "rollouts"),
            Counter::Cancelled => ("rollouts_cancelled", "rollouts"),
            Counter::Turns => ("turns", "turns"),
            Counter::SampledTokens => ("sampled_tokens", "tokens"),
            Counter::EnvRetries => ("env_retries", "episodes"),
            Counter::EnvDeadlines => ("env_deadlines", "calls"),
            Counter::Reissues => ("reissues", "units"),
            Counter::Restarts => ("restarts", "actors"),
            Counter::IgnoredArrivals => ("ignored_arrivals", "rollouts"),
            Counter::UnitsReadBack => ("units_read_back", "units"),
            Counter::RowsUsed => ("rows_used", "rows"),
            Counter::RowsUnused => ("rows_unused", "rows"),
        };
        MetricName { name, unit }
    }

    /// The counter of rollouts of that status.
    pub fn of_status(status: Status) -> Counter {
        match status {
            Status::Completed => Counter::Completed,
            Status::Truncated => Counter::Truncated,
            Status::EnvironmentFailed => Counter::EnvironmentFailed,
            Status::PolicyFailed => Counter::PolicyFailed,
            Status::Cancelled => Counter::Cancelled,
        }
    }
}

/// The measurements of one process. Shared by all actors; survives their restarts.
pub struct Metrics {
    histograms: Vec<Mutex<Histogram<u64>>>,
    counters: Vec<AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let histogram = || {
            let bounded = Histogram::new_with_bounds(1, LONGEST_US, SIGNIFICANT_DIGITS);
            Mutex::new(bounded.expect("valid bounds and number of digits"))
        };
        Self {
            histograms: Stage::ALL.iter().map(|_| histogram()).collect(),
            counters: Counter::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Metrics {
    /// Records how long a stage took.
    pub fn record(&self, stage: Stage, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.histograms[stage as usize].lock().unwrap_or_else(PoisonError::into_inner).saturating_record(micros);
    }

    /// Records how long a stage took that began at `since`.
    pub fn record_since(&self, stage: Stage, since: Instant) {
        self.record(stage, since.elapsed());
    }

    /// Adds to a counter.
    pub fn add(&self, counter: Counter, n: u64) {
        self.counters[counter as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// A counter's value.
    pub fn count(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Ordering::Relaxed)
    }

    /// All measurements at this moment.
    pub fn snapshot(&self) -> MetricsSnapshot {
        let stages = Stage::ALL.into_iter().map(|stage| {
            let histogram = self.histograms[stage as usize].lock().unwrap_or_else(PoisonError::into_inner);
            let summary = StageSummary {
                count: histogram.len(),
                mean_us: histogram.mean(),
                p50_us: histogram.value_at_quantile(0.5),
                p90_us: histogram.value_at_quantile(0.9),
                p99_us: histogram.value_at_quantile(0.99),
                max_us: histogram.max(),
            };
            (stage.metric().name, summary)
        });
        let counters = Counter::ALL.into_iter().map(|counter| (counter.metric().name, self.count(counter)));
        MetricsSnapshot { stages: stages.collect(), counters: counters.collect() }
    }
}

/// How long the calls of one stage took, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageSummary {
    /// How many there were.
    pub count: u64,
    /// Their mean.
    pub mean_us: f64,
    /// Their median.
    pub p50_us: u64,
    /// What nine of ten took at most.
    pub p90_us: u64,
    /// What 99 of 100 took at most.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// All measurements at one moment, by name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetricsSnapshot {
    /// Latencies by stage.
    pub stages: BTreeMap<&'static str, StageSummary>,
    /// Counts.
    pub counters: BTreeMap<&'static str, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_and_counter_has_a_place_and_a_name_of_its_own() {
        assert!(Stage::ALL.iter().enumerate().all(|(i, s)| *s as usize == i));
        assert!(Counter::ALL.iter().enumerate().all(|(i, c)| *c as usize == i));
        let metrics = Metrics::default();
        Counter::ALL.iter().enumerate().for_each(|(i, c)| metrics.add(*c, i as u64 + 1));
        Stage::ALL.iter().for_each(|s| metrics.record(*s, Duration::from_micros(100 * (*s as u64 + 1))));
        let snapshot = metrics.snapshot();
        assert_eq!((snapshot.stages.len(), snapshot.counters.len()), (Stage::ALL.len(), Counter::ALL.len()));
        assert_eq!(snapshot.counters["rows_unused"], 15);
        let env_step = &snapshot.stages["env_step"];
        assert_eq!((env_step.count, env_step.max_us / 10), (1, 30));
    }
}
