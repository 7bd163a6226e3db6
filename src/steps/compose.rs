//! Step 4: gates that choose an adapter, or none, for every token, learned from winning trajectories: on the target, where
//! the base, each adapter and then the routed policy itself sample, and those of each adapter's own training. The latter
//! cost nothing, and show each adapter where it is needed; wins on the target come mostly from tasks that need little.

use std::collections::BTreeMap;

use arrow::record_batch::RecordBatch;
use serde::{Deserialize, Serialize};
use trace_actors::batch::trajectory_rows;
use trace_actors::log::{LogReader, Phase, RowFilter};
use trace_actors::plan::{Acting, ArmSpec};
use trace_actors::rows::{SamplingParams, SegmentRow};
use trace_actors::{GateConfig, GateJob, GateReport, Runtime};

use super::seeds::{self, Block};
use super::train::{Kept, joined};
use super::waves::{self, Batch};
use super::{Session, StepError, environment_name};
use crate::record::metrics::{GateMetric, Metric};
use crate::record::{FileError, read_json, write_json};

/// `composed.json`: the composition that is used, and what made it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Composed {
    /// The round whose gates are used: the last that is done.
    pub(super) round: u32,
    /// The adapters in slot order; slot 0 is the base.
    pub(super) adapters: Vec<String>,
    /// What each round did.
    pub(super) rounds: Vec<Round>,
}

/// A round of gate training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Round {
    /// Rollouts sampled for it.
    pub(super) rollouts: u64,
    /// What the gates learned.
    pub(super) report: GateReport,
}

/// Rows that gates may learn from, and what each counts.
#[derive(Default)]
struct Evidence {
    batches: Vec<RecordBatch>,
    weights: Vec<f32>,
    /// Rows that win and count.
    wins: u64,
}

impl Evidence {
    fn push(&mut self, batch: RecordBatch, weight: impl Fn(&SegmentRow) -> f32) -> Result<(), StepError> {
        for row in trajectory_rows(&batch)? {
            let weight = weight(&row);
            self.weights.push(weight);
            self.wins += u64::from(row.passed() == Some(true) && weight > 0.0);
        }
        self.batches.push(batch);
        Ok(())
    }
}

/// What became of one task under all arms of a round.
#[derive(Default)]
struct Tries {
    passed: usize,
    all: usize,
}

impl Tries {
    fn add(&mut self, passed: bool) {
        self.all += 1;
        self.passed += usize::from(passed);
    }

    /// What a win of this task counts. Where every arm wins, a win does not tell which slot it took; many such wins are
    /// luck (a step left out that happened not to matter), and unweighted they outnumber those that tell.
    fn failed_share(&self) -> f32 {
        1.0 - self.passed as f32 / self.all as f32
    }
}

pub(super) async fn run(session: &mut Session) -> Result<u64, StepError> {
    let adapters = session.adapters()?;
    let runtime = session.runtime().await?;
    let mut composed = match read_json::<Composed>(&session.dir.composed(), "trace compose") {
        Ok(composed) => composed,
        Err(FileError::Missing { .. }) => {
            Composed { adapters: adapters.iter().map(|(name, _)| name.clone()).collect(), ..Composed::default() }
        }
        Err(error) => return Err(error.into()),
    };
    let mut evidence = own_wins(session, &adapters)?;
    for round in 1..=session.config.compose.rounds {
        let (rollouts, wins) = sample(session, &runtime, &adapters, round, &mut evidence).await?;
        if round as usize > composed.rounds.len() {
            let report = train(session, &runtime, &adapters, round, &evidence).await?;
            composed.rounds.push(Round { rollouts, report });
            composed.round = round;
            write_json(&session.dir.composed(), &composed)?;
        }
        let report = &composed.rounds[round as usize - 1].report;
        session.metrics.append(&Metric::Gate(gate_metric(round, rollouts, report)))?;
        session.display.line(&format!("gates, round {round}: {wins} wins of {rollouts} rollouts"));
    }
    Ok(composed.rounds.iter().map(|round| round.rollouts).sum())
}

fn gate_metric(round: u32, rollouts: u64, report: &GateReport) -> GateMetric {
    let loss = |pass: Option<&trace_actors::GatePass>| pass.map_or(0.0, |pass| pass.loss);
    GateMetric {
        round,
        rollouts,
        wins: report.examples as u64,
        tokens: report.tokens as u64,
        loss_first: loss(report.passes.first()),
        loss_last: loss(report.passes.last()),
        agreement: report.passes.last().map_or(0.0, |pass| pass.agreement),
    }
}

/// The rollouts of a round: base and each adapter in the first, then the routed policy itself. Returns rollouts and wins.
async fn sample(
    session: &mut Session,
    runtime: &Runtime,
    adapters: &[(String, Kept)],
    round: u32,
    evidence: &mut Evidence,
) -> Result<(u64, usize), StepError> {
    let arms: Vec<ArmSpec> = if round == 1 {
        let singles = adapters.iter().map(|(name, kept)| session.adapter_arm(name, kept));
        std::iter::once(ArmSpec::base()).chain(singles).collect()
    } else {
        vec![session.composition_arm(adapters, round - 1)]
    };
    let (config, compose) = (&session.config, &session.config.compose);
    let tasks = u64::from(session.shared(compose.tasks));
    let first = u64::from(round - 1) * tasks;
    let asked: Vec<Batch> = arms
        .into_iter()
        .map(|arm| Batch {
            unit: format!("gate/r{round}/{}", arm.name),
            phase: Phase::Gate,
            environment: environment_name(&config.target.environment).to_owned(),
            capability: None,
            acting: Acting::Arm(arm),
            iteration: round,
            sampling: SamplingParams { temperature: compose.temperature, ..SamplingParams::default() },
            seeds: (first..first + tasks).map(|i| seeds::train(config.run.seed, Block::Gate, i)).collect(),
            level: config.target.level,
            trials: compose.trials,
        })
        .collect();
    let total = asked.iter().map(Batch::rollouts).sum();
    session.display.begin(&format!("rollouts for gates, round {round}"), total);
    let (mut batches, mut tries) = (Vec::new(), BTreeMap::<u64, Tries>::new());
    for batch in &asked {
        let take = |outcome: trace_actors::WaveOutcome| {
            for rollout in waves::rollouts(trajectory_rows(&outcome.batch)?) {
                tries.entry(rollout.seed).or_default().add(rollout.passed());
            }
            batches.push(outcome.batch);
            Ok(())
        };
        batch.sample(runtime, &session.display, take).await?;
    }
    session.display.end();
    for batch in batches {
        evidence.push(batch, |row| tries[&row.seed].failed_share())?;
    }
    Ok((total, tries.values().map(|tries| tries.passed).sum()))
}

/// The newest winning rows of each adapter's training, at most `compose.own_wins` of each.
fn own_wins(session: &Session, adapters: &[(String, Kept)]) -> Result<Evidence, StepError> {
    let log = LogReader::open(session.dir.root())?;
    let mut evidence = Evidence::default();
    for (name, _) in adapters {
        let wins = RowFilter {
            phases: vec![Phase::Train],
            unit_prefix: Some(format!("train/{name}/")),
            passed: Some(true),
            ..RowFilter::default()
        };
        for batch in log.newest(&wins, session.config.compose.own_wins as usize)? {
            evidence.push(batch, |_| 1.0)?;
        }
    }
    Ok(evidence)
}

async fn train(
    session: &mut Session,
    runtime: &Runtime,
    adapters: &[(String, Kept)],
    round: u32,
    evidence: &Evidence,
) -> Result<GateReport, StepError> {
    let compose = &session.config.compose;
    let job = GateJob {
        unit: format!("gates/r{round}"),
        arm: session.composition_arm(adapters, round),
        config: GateConfig {
            tau: compose.tau,
            prior: compose.prior,
            context_weight: compose.context_weight,
            lr: compose.lr,
            passes: compose.passes,
            steps: compose.steps,
            max_states: compose.max_states as usize,
            max_tokens_per_pass: session.config.train.max_tokens_per_pass as usize,
        },
        temperature: compose.temperature,
        rows: joined(&evidence.batches)?,
        weights: evidence.weights.clone(),
    };
    let judged = evidence.wins * (adapters.len() as u64 + 1);
    session.display.begin(&format!("training gates, round {round}"), judged);
    let report = runtime.train_gates(job).await?;
    session.display.settle(judged);
    session.display.end();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_win_counts_as_much_as_its_task_is_failed() {
        let tried = |results: &[bool]| {
            let mut tries = Tries::default();
            results.iter().for_each(|&passed| tries.add(passed));
            tries.failed_share()
        };
        assert_eq!(tried(&[true, true]), 0.0);
        assert_eq!(tried(&[true, false, false, false]), 0.75);
        assert_eq!(tried(&[false]), 1.0);
    }
}
