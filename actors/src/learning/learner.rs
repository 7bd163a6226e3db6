//! The actor of one learner.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::record_batch::RecordBatch;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use trace_policy::learner::LearnerConfig;
use trace_policy::rows::{TrainGroup, TrainRow};

use super::report::{LearnError, LearnerStatus, TrainOutcome, TrainReport};
use super::selection::{Selection, select};
use crate::batch::trajectory_rows;
use crate::device::{DeviceError, DeviceHandle, DeviceState, LearnerHome, Subject};
use crate::logger::LogMessage;
use crate::metrics::{Counter, Metrics, Stage};
use crate::pipeline::repeated;
use crate::plan::Acting;
use crate::rows::UpdateRow;
use crate::supervision::Child;

/// Making a batch's updates durable takes no longer than this.
const LOG_DEADLINE: Option<Duration> = Some(Duration::from_secs(300));

pub(crate) enum LearnerMessage {
    /// Train on a unit's rows.
    Train {
        unit: String,
        rows: RecordBatch,
        config: Box<LearnerConfig>,
        reply: RpcReplyPort<Result<TrainOutcome, LearnError>>,
    },
    /// Where it stands.
    Status { reply: RpcReplyPort<LearnerStatus> },
    /// Write what was published last as a PEFT adapter; replies with its digest.
    Export { folder: PathBuf, reply: RpcReplyPort<Result<String, LearnError>> },
}

#[derive(Clone)]
pub(crate) struct LearnerArguments {
    pub(crate) home: LearnerHome,
    pub(crate) device: DeviceHandle,
    pub(crate) log: Child<LogMessage>,
    pub(crate) metrics: Arc<Metrics>,
}

pub(crate) struct LearnerState {
    arguments: LearnerArguments,
    /// What the last checkpoint says.
    ledger: LearnerStatus,
}

pub(crate) struct LearnerActor;

impl Actor for LearnerActor {
    type Msg = LearnerMessage;
    type State = LearnerState;
    type Arguments = LearnerArguments;

    async fn pre_start(
        &self,
        _: ActorRef<LearnerMessage>,
        arguments: LearnerArguments,
    ) -> Result<LearnerState, ActorProcessingErr> {
        let mut state = LearnerState { arguments, ledger: LearnerStatus::default() };
        state.restore().await?;
        Ok(state)
    }

    async fn handle(
        &self,
        _: ActorRef<LearnerMessage>,
        message: LearnerMessage,
        state: &mut LearnerState,
    ) -> Result<(), ActorProcessingErr> {
        // Whoever asked may have been stopped meanwhile; what was checkpointed stays.
        match message {
            LearnerMessage::Train { unit, rows, config, reply } => {
                let result = survived(state.train(&unit, &rows, *config).await)?;
                let failed = result.is_err();
                let _ = reply.send(result);
                if failed {
                    // Some steps may have been taken: they are forgotten.
                    state.restore().await?;
                }
            }
            LearnerMessage::Status { reply } => {
                let _ = reply.send(state.ledger.clone());
            }
            LearnerMessage::Export { folder, reply } => {
                let name = state.arguments.home.name.clone();
                let exported = survived(state.run(move |device| device.export(&name, &folder)).await)?;
                let _ = reply.send(exported);
            }
        }
        Ok(())
    }
}

/// Where the device failed, or let go of the learner since a job on it panicked, this actor goes too, and its successor
/// restores the last checkpoint.
fn survived<T>(result: Result<T, LearnError>) -> Result<Result<T, LearnError>, DeviceError> {
    match result {
        Err(LearnError::Device(error)) => Err(error),
        result => Ok(result),
    }
}

impl LearnerState {
    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut DeviceState) -> Result<T, String> + Send + 'static,
    ) -> Result<T, LearnError> {
        let name = self.arguments.home.name.clone();
        let its_name = name.clone();
        let checked = move |device: &mut DeviceState| device.has_learner(&its_name).then(|| job(device));
        let out = self.arguments.device.run(Subject::Learner(name.clone()), checked).await?;
        let out = out.ok_or_else(|| DeviceError::Refused(format!("learner {name} is no longer on the device")))?;
        out.map_err(|reason| LearnError::Failed { name, reason })
    }

    /// The last checkpoint, or a new learner where there is none.
    async fn restore(&mut self) -> Result<(), LearnError> {
        let home = self.arguments.home.clone();
        let failed = |reason: String| LearnError::Failed { name: self.arguments.home.name.clone(), reason };
        let opened = self.arguments.device.run(Subject::Learner(home.name.clone()), move |d| d.open_learner(&home));
        let note = opened.await?.map_err(failed)?;
        let broken = |e: serde_json::Error| failed(format!("the ledger in its checkpoint cannot be read: {e}"));
        self.ledger = note.map(|n| serde_json::from_str(&n)).transpose().map_err(broken)?.unwrap_or_default();
        self.publish(self.ledger.version).await
    }

    async fn publish(&self, version: u32) -> Result<(), LearnError> {
        let name = self.arguments.home.name.clone();
        self.run(move |device| device.publish(&name, version)).await
    }

    async fn train(
        &mut self,
        unit: &str,
        rows: &RecordBatch,
        config: LearnerConfig,
    ) -> Result<TrainOutcome, LearnError> {
        if let Some(last) = self.ledger.last.as_ref().filter(|last| last.unit == unit) {
            return Ok(TrainOutcome::Trained(last.clone()));
        }
        if self.ledger.consumed.iter().any(|consumed| consumed == unit) {
            return Ok(TrainOutcome::ConsumedBefore);
        }
        let begin = Instant::now();
        let name = self.arguments.home.name.clone();
        let mut selection = select(&trajectory_rows(rows)?, &name, self.ledger.version, config.temperature)?;
        self.recompute_hinted(&mut selection, &config).await?;
        let report = TrainReport {
            unit: unit.to_owned(),
            version: self.ledger.version + 1,
            groups: selection.groups.len(),
            constant_groups: selection.constant_groups,
            rows_used: selection.rows_used(),
            rows_unused: selection.updates.len() - selection.rows_used(),
            hinted_rows: selection.hinted_rows(),
            ..TrainReport::default()
        };
        let Selection { groups, updates, .. } = selection;
        let groups: Vec<TrainGroup> =
            groups.into_iter().map(|group| group.into_iter().map(|chosen| chosen.row).collect()).collect();
        let metrics = self.run(move |device| device.update(&name, &groups, &config)).await?;
        self.finish(report.with_metrics(&metrics), updates).await.map(|report| {
            self.arguments.metrics.record_since(Stage::LearnerStep, begin);
            self.arguments.metrics.add(Counter::RowsUsed, report.rows_used as u64);
            self.arguments.metrics.add(Counter::RowsUnused, report.rows_unused as u64);
            TrainOutcome::Trained(report)
        })
    }

    /// A row that lost its hint gets the log-probs that the learner, as it is before this batch, gives to its tokens.
    async fn recompute_hinted(&self, selection: &mut Selection, config: &LearnerConfig) -> Result<(), LearnError> {
        let hinted: Vec<&mut TrainRow> =
            selection.groups.iter_mut().flatten().filter(|c| c.hinted).map(|c| &mut c.row).collect();
        if hinted.is_empty() {
            return Ok(());
        }
        let acting = Acting::Learner(self.arguments.home.name.clone());
        let (rows, config) = (hinted.iter().map(|row| (*row).clone()).collect::<Vec<_>>(), config.clone());
        let scores = self
            .run(move |device| device.score(&acting, &rows, config.temperature, config.max_tokens_per_pass))
            .await?;
        for (row, scores) in hinted.into_iter().zip(scores) {
            let mut scores = scores.into_iter();
            for (old, sampled) in row.old_logprobs.iter_mut().zip(&row.action_mask) {
                *old = if *sampled { scores.next().unwrap_or(f32::NAN) } else { f32::NAN };
            }
        }
        Ok(())
    }

    /// Makes durable what became of the rows, then the checkpoint that consumes the unit, then publishes.
    async fn finish(&mut self, report: TrainReport, updates: Vec<UpdateRow>) -> Result<TrainReport, LearnError> {
        let key = format!("{}/{}", self.arguments.home.name, report.unit);
        let asked = repeated(|| {
            let (key, rows) = (key.clone(), updates.clone());
            self.arguments.log.call(LOG_DEADLINE, |reply| LogMessage::AppendUpdates { key, rows, reply })
        });
        asked.await??;
        let mut ledger = self.ledger.clone();
        ledger.version = report.version;
        ledger.consumed.push(report.unit.clone());
        ledger.last = Some(report.clone());
        let note = serde_json::to_string(&ledger).map_err(|e| LearnError::Failed {
            name: self.arguments.home.name.clone(),
            reason: format!("its ledger cannot be written: {e}"),
        })?;
        let home = self.arguments.home.clone();
        self.run(move |device| device.checkpoint(&home, note)).await?;
        self.ledger = ledger;
        self.publish(report.version).await?;
        Ok(report)
    }
}
