//! The actor that owns the log. Its disk work runs on a thread that may block.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use arrow::record_batch::RecordBatch;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};

use crate::log::{LogError, Phase, Recovery, TrajectoryLog, UpdateLog};
use crate::metrics::{Metrics, Stage};
use crate::progress::{Progress, ProgressEvent};
use crate::rows::UpdateRow;

pub(crate) enum LogMessage {
    /// Make a unit durable. The reply is its acknowledgement.
    Append { phase: Phase, unit: String, batch: RecordBatch, reply: RpcReplyPort<Result<(), Arc<LogError>>> },
    /// The rows of a unit that is acknowledged.
    Read { unit: String, reply: RpcReplyPort<Result<Option<RecordBatch>, Arc<LogError>>> },
    /// Make durable what a learner did with a batch.
    AppendUpdates { key: String, rows: Vec<UpdateRow>, reply: RpcReplyPort<Result<(), Arc<LogError>>> },
}

#[derive(Clone)]
pub(crate) struct LogArguments {
    pub(crate) run_dir: PathBuf,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: Arc<dyn Progress>,
}

struct Logs {
    trajectories: TrajectoryLog,
    updates: UpdateLog,
}

pub(crate) struct LogState {
    /// Absent only while a message is handled.
    logs: Option<Logs>,
    metrics: Arc<Metrics>,
}

pub(crate) struct LogWriter;

impl Actor for LogWriter {
    type Msg = LogMessage;
    type State = LogState;
    type Arguments = LogArguments;

    async fn pre_start(
        &self,
        _: ActorRef<LogMessage>,
        arguments: LogArguments,
    ) -> Result<LogState, ActorProcessingErr> {
        let LogArguments { run_dir, metrics, progress } = arguments;
        let open = move || -> Result<_, LogError> {
            let (trajectories, recovered) = TrajectoryLog::open(&run_dir)?;
            let (updates, also_recovered) = UpdateLog::open(&run_dir)?;
            Ok((Logs { trajectories, updates }, [("trajectories", recovered), ("updates", also_recovered)]))
        };
        let (logs, recovered) = tokio::task::spawn_blocking(open).await??;
        for (log, recovery) in recovered {
            tell_repairs(log, &recovery, &*progress);
        }
        Ok(LogState { logs: Some(logs), metrics })
    }

    async fn handle(
        &self,
        _: ActorRef<LogMessage>,
        message: LogMessage,
        state: &mut LogState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            LogMessage::Append { phase, unit, batch, reply } => {
                let begin = Instant::now();
                let done = state.run(move |logs| logs.trajectories.append(phase, &unit, &batch).map(drop)).await?;
                state.metrics.record_since(Stage::LogWrite, begin);
                answer(reply, done);
            }
            LogMessage::Read { unit, reply } => {
                let read = move |logs: &mut Logs| match logs.trajectories.contains(&unit) {
                    true => logs.trajectories.read_unit(&unit),
                    false => Ok(None),
                };
                answer(reply, state.run(read).await?);
            }
            LogMessage::AppendUpdates { key, rows, reply } => {
                let begin = Instant::now();
                let done = state.run(move |logs| logs.updates.append(&key, &rows).map(drop)).await?;
                state.metrics.record_since(Stage::LogWrite, begin);
                answer(reply, done);
            }
        }
        Ok(())
    }
}

impl LogState {
    async fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Logs) -> Result<T, LogError> + Send + 'static,
    ) -> Result<Result<T, Arc<LogError>>, ActorProcessingErr> {
        let mut logs = self.logs.take().ok_or("the log's last work did not come to its end")?;
        let (logs, out) = tokio::task::spawn_blocking(move || {
            let out = work(&mut logs);
            (logs, out)
        })
        .await?;
        self.logs = Some(logs);
        Ok(out.map_err(Arc::new))
    }
}

fn answer<T>(reply: RpcReplyPort<T>, value: T) {
    // Whoever asked may have been stopped meanwhile; what was made durable stays.
    let _ = reply.send(value);
}

fn tell_repairs(log: &str, recovery: &Recovery, progress: &dyn Progress) {
    let Recovery { removed, adopted, set_aside, manifest_cut } = recovery;
    let note = |message: String| progress.event(ProgressEvent::Noted { message: &message });
    if !removed.is_empty() {
        note(format!("{log}: {} half-written files were removed; their units are done again", removed.len()));
    }
    if !adopted.is_empty() {
        note(format!("{log}: {} sealed segments were taken up", adopted.len()));
    }
    if *manifest_cut {
        note(format!("{log}: the manifest's last line was not whole and was dropped"));
    }
    for (file, why) in set_aside {
        note(format!("{log}: {file} cannot be used and was set aside: {why}"));
    }
}
