//! The actor that trains gates on winning trajectories.

use std::sync::Arc;
use std::time::Instant;

use arrow::record_batch::RecordBatch;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use serde::{Deserialize, Serialize};
use trace_policy::gate_trainer::{GateConfig, GateExample};
use trace_policy::rows::TrainRow;

use super::report::LearnError;
use super::selection::{check_split, scoring_row};
use crate::batch::trajectory_rows;
use crate::device::{DeviceHandle, Subject};
use crate::metrics::{Metrics, Stage};
use crate::plan::{Acting, ArmSpec};
use crate::progress::{Progress, ProgressEvent};

/// Rows that are scored by one LibTorch job, so that others have their turn in between.
const ROWS_PER_JOB: usize = 16;

/// Gates to be trained.
#[derive(Clone, Debug)]
pub struct GateJob {
    /// The work's name, for progress and errors.
    pub unit: String,
    /// What is to be made: new gates over its adapters, in slot order, written to the folder of its composition.
    pub arm: ArmSpec,
    /// Rows (`trajectory/1`) of train seeds; those that win are learned from.
    pub rows: RecordBatch,
    /// What each row counts, in the rows' order; rows that count 0 are left out.
    pub weights: Vec<f32>,
    /// How gates are trained.
    pub config: GateConfig,
    /// The temperature at which slots judge tokens.
    pub temperature: f64,
}

/// What a pass over the wins did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatePass {
    /// Mean cross-entropy at its end, in nats, by weight.
    pub loss: f64,
    /// Share of predicting states, over layers and by weight, whose chosen slot is the target's best one.
    pub agreement: f64,
}

/// What the training of gates did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GateReport {
    /// Winning rows learned from.
    pub examples: usize,
    /// Their sampled tokens.
    pub tokens: usize,
    /// The passes, in order.
    pub passes: Vec<GatePass>,
}

pub(crate) enum GateMessage {
    /// Train gates and save the composition.
    Train { job: Box<GateJob>, reply: RpcReplyPort<Result<GateReport, LearnError>> },
}

#[derive(Clone)]
pub(crate) struct GateTrainerArguments {
    pub(crate) device: DeviceHandle,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: Arc<dyn Progress>,
}

pub(crate) struct GateTrainer;

impl Actor for GateTrainer {
    type Msg = GateMessage;
    type State = GateTrainerArguments;
    type Arguments = GateTrainerArguments;

    async fn pre_start(
        &self,
        _: ActorRef<GateMessage>,
        arguments: GateTrainerArguments,
    ) -> Result<GateTrainerArguments, ActorProcessingErr> {
        Ok(arguments)
    }

    async fn handle(
        &self,
        _: ActorRef<GateMessage>,
        message: GateMessage,
        state: &mut GateTrainerArguments,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            GateMessage::Train { job, reply } => {
                let result = state.train(*job).await;
                // Whoever asked may have been stopped meanwhile; the composition is written.
                let _ = reply.send(result);
            }
        }
        Ok(())
    }
}

impl GateTrainerArguments {
    async fn train(&self, job: GateJob) -> Result<GateReport, LearnError> {
        let begin = Instant::now();
        let mut examples = wins(&job)?;
        let rows: Vec<TrainRow> = examples.iter().map(|example| example.row.clone()).collect();
        let slots = slots(&job.arm);
        let total = (slots.len() * rows.len()) as u64;
        self.progress.event(ProgressEvent::Begun { unit: &job.unit, total });
        let mut done = 0;
        for slot in slots {
            for (chunk, examples) in rows.chunks(ROWS_PER_JOB).zip(examples.chunks_mut(ROWS_PER_JOB)) {
                let scores = self.score(&job, &slot, chunk.to_vec()).await?;
                examples.iter_mut().zip(scores).for_each(|(example, scores)| example.slot_logprobs.push(scores));
                done += chunk.len() as u64;
                self.progress.event(ProgressEvent::Advanced { unit: &job.unit, done, sampled_tokens: 0 });
            }
        }
        let report = GateReport {
            examples: rows.len(),
            tokens: rows.iter().map(TrainRow::actions).sum(),
            passes: self.fit(&job, examples).await?,
        };
        self.metrics.record_since(Stage::GateTraining, begin);
        self.progress.event(ProgressEvent::Ended { unit: &job.unit });
        Ok(report)
    }

    async fn score(&self, job: &GateJob, slot: &Acting, rows: Vec<TrainRow>) -> Result<Vec<Vec<f32>>, LearnError> {
        let (slot, temperature, most) = (slot.clone(), job.temperature, job.config.max_tokens_per_pass);
        let scored = self.device.run(Subject::Nothing, move |device| device.score(&slot, &rows, temperature, most));
        scored.await?.map_err(|reason| LearnError::Failed { name: job.unit.clone(), reason })
    }

    async fn fit(&self, job: &GateJob, examples: Vec<GateExample>) -> Result<Vec<GatePass>, LearnError> {
        let (arm, config) = (job.arm.clone(), job.config.clone());
        let fitted = self.device.run(Subject::Nothing, move |device| {
            let mut passes = Vec::new();
            let tell = |_, m: trace_policy::gate_trainer::GateMetrics| {
                passes.push(GatePass { loss: m.loss, agreement: m.agreement });
            };
            device.train_gates(&arm, &examples, &config, tell).map(|()| passes)
        });
        fitted.await?.map_err(|reason| LearnError::Failed { name: job.unit.clone(), reason })
    }
}

/// The winning rows that count, hints taken out, not yet scored.
fn wins(job: &GateJob) -> Result<Vec<GateExample>, LearnError> {
    let rows = trajectory_rows(&job.rows)?;
    rows.iter().try_for_each(check_split)?;
    if rows.len() != job.weights.len() {
        let reason = format!("{} rows came with {} weights", rows.len(), job.weights.len());
        return Err(LearnError::Failed { name: job.unit.clone(), reason });
    }
    let counted = rows.iter().zip(&job.weights).filter(|(row, weight)| row.passed() == Some(true) && **weight != 0.0);
    let wins: Vec<GateExample> = counted
        .filter_map(|(row, &weight)| Some(GateExample { row: scoring_row(row)?, slot_logprobs: Vec::new(), weight }))
        .collect();
    match wins.is_empty() {
        true => Err(LearnError::NoWins { rows: rows.len() }),
        false => Ok(wins),
    }
}

/// Who judges tokens, slot by slot: the base, then each adapter.
fn slots(arm: &ArmSpec) -> Vec<Acting> {
    let adapters = arm.adapters.iter().map(|(name, folder)| ArmSpec::adapter(name, arm.version, folder));
    std::iter::once(ArmSpec::base()).chain(adapters).map(Acting::Arm).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::trajectory_batch;
    use crate::rows::{SegmentRow, TokenSpan};
    use crate::samples::row;

    fn job(rows: &[SegmentRow]) -> GateJob {
        GateJob {
            unit: "gates".into(),
            arm: ArmSpec::composition("trace", 0, vec![("a".into(), "x".into()), ("b".into(), "y".into())], "c"),
            rows: trajectory_batch(rows).unwrap(),
            weights: vec![1.0; rows.len()],
            config: GateConfig {
                tau: 1.0,
                prior: 0.0,
                context_weight: 0.5,
                lr: 0.1,
                passes: 1,
                steps: 1,
                max_states: 100,
                max_tokens_per_pass: 100,
            },
            temperature: 1.0,
        }
    }

    #[test]
    fn gates_learn_from_wins_on_train_seeds_without_their_hints() {
        let hinted = SegmentRow { hint_span: Some(TokenSpan { start: 0, end: 2 }), ..row(3, 1, 1.0) };
        let rows = [row(3, 0, 0.99), hinted, row(6, 0, 1.0), row(9, 0, 1.0)];
        let weighed = GateJob { weights: vec![1.0, 0.5, 0.25, 0.0], ..job(&rows) };
        let found: Vec<(Vec<i32>, f32)> =
            wins(&weighed).unwrap().into_iter().map(|win| (win.row.tokens, win.weight)).collect();
        assert_eq!(found, [(vec![12, 20, 21, 30, 22], 0.5), (vec![10, 11, 12, 20, 21, 30, 22], 0.25)]);
        let short = GateJob { weights: vec![1.0], ..job(&rows) };
        assert!(wins(&short).unwrap_err().to_string().contains("4 rows came with 1 weights"));
    }

    #[test]
    fn gates_refuse_test_seeds_and_a_sample_without_wins() {
        assert!(matches!(wins(&job(&[row(3, 0, 1.0), row(5, 0, 0.0)])), Err(LearnError::Split { seed: 5, .. })));
        let message = wins(&job(&[row(3, 0, 0.5)])).unwrap_err().to_string();
        assert!(message.contains("none of the 1 rows"), "{message}");
    }

    #[test]
    fn slot_0_is_the_base_and_the_others_are_the_adapters_in_order() {
        let names: Vec<Option<String>> =
            slots(&job(&[row(3, 0, 1.0)]).arm).iter().map(|a| a.adapter().map(str::to_owned)).collect();
        assert_eq!(names, [None, Some("a".to_owned()), Some("b".to_owned())]);
    }
}
