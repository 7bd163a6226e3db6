//! The runtime as the pipeline above it uses it: rollouts, learners, gates and scores of one run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use arrow::record_batch::RecordBatch;
use trace_policy::chat::{Chat, ChatError};
use trace_policy::engine::EngineConfig;
use trace_policy::learner::LearnerConfig;

use crate::batch::trajectory_rows;
use crate::device::{DeviceError, DeviceHandle, DeviceOptions, LearnerHome, Subject};
use crate::environments::EnvironmentSource;
use crate::learning::{
    GateJob, GateMessage, GateReport, GateTrainer, GateTrainerArguments, LearnError, LearnerActor, LearnerArguments,
    LearnerMessage, LearnerStatus, TrainOutcome, scoring_row,
};
use crate::metrics::{Metrics, MetricsSnapshot};
use crate::normalize::LoneRollout;
use crate::pipeline::{Pipeline, PipelineParts, UnitError, WaveOutcome, repeated};
use crate::plan::{Acting, AdapterShape, Limits, WavePlan};
use crate::progress::Progress;
use crate::serving::EmbeddedServer;
use crate::supervision::{Child, Intensity, StopCause};

/// A quick question to an actor that may be in the middle of a long batch.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(24 * 3600));

/// Rows that are scored by one LibTorch job.
const ROWS_PER_JOB: usize = 16;

/// Where LibTorch computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accelerator {
    /// On the processor.
    #[default]
    Cpu,
    /// On this NVIDIA GPU.
    Cuda(usize),
}

/// What a runtime is started with.
#[derive(Clone)]
pub struct RuntimeConfig {
    /// The base policy's folder: `config.json`, weights, `tokenizer.json`, chat template.
    pub model_dir: PathBuf,
    /// The run's folder: `trajectories/`, `updates/` and `adapters/` are kept in it.
    pub run_dir: PathBuf,
    /// The run's id, as rows say it.
    pub run_id: String,
    /// What all random numbers of sampling follow from, with the units' keys.
    pub run_seed: u64,
    /// What chat templates see as the present; fixed, so that a resumed run has the same prompts.
    pub template_time: SystemTime,
    /// Where LibTorch computes.
    pub accelerator: Accelerator,
    /// LibTorch's threads. Results depend on it, bit by bit.
    pub threads: usize,
    /// Turns that are sampled at once. Results depend on it, bit by bit.
    pub max_slots: usize,
    /// Bytes for keys and values of a wave.
    pub kv_budget_bytes: u64,
    /// Finds environments by name.
    pub environments: EnvironmentSource,
    /// Threads on which environments' calls block.
    pub env_threads: usize,
    /// Calls of environments that may be given up and not have returned before the run stops.
    pub env_tolerated_stuck: usize,
    /// How far episodes may go and how long they may take.
    pub limits: Limits,
    /// What becomes of the only member of a group that has a reward.
    pub lone: LoneRollout,
    /// How often one actor may fail.
    pub intensity: Intensity,
    /// Who is told how far things are.
    pub progress: Arc<dyn Progress>,
}

impl RuntimeConfig {
    /// The defaults for a model, a run directory and a source of environments.
    pub fn new(
        model_dir: impl Into<PathBuf>,
        run_dir: impl Into<PathBuf>,
        environments: EnvironmentSource,
        progress: Arc<dyn Progress>,
    ) -> Self {
        Self {
            model_dir: model_dir.into(),
            run_dir: run_dir.into(),
            run_id: "run".to_owned(),
            run_seed: 0,
            template_time: SystemTime::UNIX_EPOCH,
            accelerator: Accelerator::Cpu,
            threads: 1,
            max_slots: 64,
            kv_budget_bytes: 2 << 30,
            environments,
            env_threads: 8,
            env_tolerated_stuck: 64,
            limits: Limits::default(),
            lone: LoneRollout::Drop,
            intensity: Intensity::default(),
            progress,
        }
    }
}

/// A learner to be opened.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnerSpec {
    /// Its name: the capability's, or the baseline's. Its state is kept in `RUN/adapters/NAME/learner/`.
    pub name: String,
    /// What it looks like.
    pub adapter: AdapterShape,
    /// What the adapter's first weights are drawn from.
    pub seed: u64,
}

/// Why a runtime does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The chat template or tokenizer of the model cannot be used.
    #[error("the model's tokenizer or chat template cannot be used: {0}")]
    Chat(#[from] ChatError),
    /// The model cannot be loaded.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Episodes would outgrow the model.
    #[error("limits.max_context is {asked}, but the model has {positions} positions; lower it")]
    Context {
        /// What was asked for.
        asked: usize,
        /// What the model has.
        positions: usize,
    },
    /// An actor does not start.
    #[error("{0}")]
    Actor(String),
}

/// The running system. Dropping it without [`Runtime::shut_down`] loses only what is not acknowledged.
pub struct Runtime {
    config: RuntimeConfig,
    chat: Chat,
    device: DeviceHandle,
    pipeline: Pipeline,
    gates: Child<GateMessage>,
    learners: Mutex<BTreeMap<String, Child<LearnerMessage>>>,
    metrics: Arc<Metrics>,
}

impl Runtime {
    /// Loads the model, opens the run's logs, repairing what a crash left, and starts the actors. Needs tokio's
    /// multi-threaded scheduler.
    ///
    /// # Errors
    /// Where the model, its tokenizer or the log cannot be used.
    pub async fn start(config: RuntimeConfig) -> Result<Self, StartError> {
        let chat = Chat::load(&config.model_dir, config.template_time)?;
        let device = DeviceHandle::start(DeviceOptions {
            model_dir: config.model_dir.clone(),
            device: match config.accelerator {
                Accelerator::Cpu => tch::Device::Cpu,
                Accelerator::Cuda(index) => tch::Device::Cuda(index),
            },
            threads: config.threads.max(1),
            engine: EngineConfig { max_slots: config.max_slots, kv_budget_bytes: config.kv_budget_bytes },
        })
        .await?;
        let positions = device.run(Subject::Nothing, |state| state.max_positions()).await?;
        if config.limits.max_context > positions {
            return Err(StartError::Context { asked: config.limits.max_context, positions });
        }
        let metrics = Arc::new(Metrics::default());
        let parts = PipelineParts {
            run_dir: config.run_dir.clone(),
            run_id: config.run_id.clone(),
            run_seed: config.run_seed,
            chat: chat.clone(),
            limits: config.limits.clone(),
            lone: config.lone,
            intensity: config.intensity,
            env_source: Arc::clone(&config.environments),
            env_threads: config.env_threads.max(1),
            env_tolerated_stuck: config.env_tolerated_stuck,
            metrics: Arc::clone(&metrics),
            progress: Arc::clone(&config.progress),
        };
        let its_device = device.clone();
        let pipeline = Pipeline::start(parts, move || (EmbeddedServer, its_device.clone())).await;
        let pipeline = pipeline.map_err(StartError::Actor)?;
        let arguments = GateTrainerArguments {
            device: device.clone(),
            metrics: Arc::clone(&metrics),
            progress: Arc::clone(&config.progress),
        };
        let gates = pipeline.supervision.adopt("the gate trainer", move || (GateTrainer, arguments.clone())).await;
        let gates = gates.map_err(StartError::Actor)?;
        Ok(Self { config, chat, device, pipeline, gates, learners: Mutex::default(), metrics })
    }

    /// Samples a wave and makes it durable. A unit that was acknowledged before is read back from the log instead: the
    /// same plan may be asked for any number of times.
    ///
    /// # Errors
    /// A plan that cannot be carried out; [`crate::WaveError`] where no rollout came to an end, whatever was tried; the
    /// log's refusal; [`StopCause`] once the runtime has stopped.
    pub async fn rollout(&self, plan: WavePlan) -> Result<WaveOutcome, UnitError> {
        self.pipeline.rollout(plan).await
    }

    /// Opens a learner: where its last checkpoint left off, or anew.
    ///
    /// # Errors
    /// Where it is open, or its checkpoint is of another model or adapter.
    pub async fn open_learner(&self, spec: &LearnerSpec) -> Result<LearnerStatus, LearnError> {
        if self.learners.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&spec.name) {
            return Err(LearnError::Open(spec.name.clone(), "open already"));
        }
        let home = LearnerHome {
            name: spec.name.clone(),
            folder: self.config.run_dir.join("adapters").join(&spec.name).join("learner"),
            adapter: spec.adapter,
            seed: spec.seed,
        };
        let arguments = LearnerArguments {
            home,
            device: self.device.clone(),
            log: self.pipeline.log.clone(),
            metrics: Arc::clone(&self.metrics),
        };
        let part = format!("learner {}", spec.name);
        let child = self.pipeline.supervision.adopt(&part, move || (LearnerActor, arguments.clone())).await;
        let child = child.map_err(|reason| LearnError::Failed { name: spec.name.clone(), reason })?;
        self.learners.lock().unwrap_or_else(PoisonError::into_inner).insert(spec.name.clone(), child);
        self.learner_status(&spec.name).await
    }

    /// Where an open learner stands.
    ///
    /// # Errors
    /// Where it is not open.
    pub async fn learner_status(&self, name: &str) -> Result<LearnerStatus, LearnError> {
        let child = self.learner(name)?;
        Ok(repeated(|| child.call(PATIENCE, |reply| LearnerMessage::Status { reply })).await?)
    }

    /// Trains a learner on a unit's rows: chooses them, takes the steps, writes `updates/1`, checkpoints, publishes the
    /// next version. A unit that was consumed before changes nothing.
    ///
    /// # Errors
    /// A row of a dev or test seed, or sampled otherwise than the learner computes; the policy library's failures. The
    /// learner then stands where its last checkpoint left it.
    pub async fn train(
        &self,
        name: &str,
        unit: &str,
        rows: &RecordBatch,
        config: &LearnerConfig,
    ) -> Result<TrainOutcome, LearnError> {
        let child = self.learner(name)?;
        let asked = repeated(|| {
            let (unit, rows, config) = (unit.to_owned(), rows.clone(), Box::new(config.clone()));
            child.call(PATIENCE, |reply| LearnerMessage::Train { unit, rows, config, reply })
        });
        asked.await?
    }

    /// Writes a learner's published adapter in PEFT format and returns its digest (SHA-256).
    ///
    /// # Errors
    /// Where it is not open, or the folder cannot be written.
    pub async fn export_adapter(&self, name: &str, folder: &Path) -> Result<String, LearnError> {
        let child = self.learner(name)?;
        let asked = repeated(|| {
            let folder = folder.to_owned();
            child.call(PATIENCE, |reply| LearnerMessage::Export { folder, reply })
        });
        asked.await?
    }

    /// Closes a learner. Its checkpoint stays; it can be opened again.
    ///
    /// # Errors
    /// Where it is not open.
    pub async fn close_learner(&self, name: &str) -> Result<(), LearnError> {
        let child = self.learner(name)?;
        self.learners.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.pipeline.supervision.dismiss(&child).await?;
        let its_name = name.to_owned();
        Ok(self.device.run(Subject::Nothing, move |state| state.close_learner(&its_name)).await?)
    }

    /// Teacher-forced log-probs of each row's sampled tokens under an arm, hints taken out; nothing for a row without
    /// sampled tokens.
    ///
    /// # Errors
    /// Where the batch is not `trajectory/1`, or the arm cannot be loaded.
    pub async fn score(
        &self,
        acting: &Acting,
        rows: &RecordBatch,
        temperature: f64,
        max_tokens_per_pass: usize,
    ) -> Result<Vec<Vec<f32>>, LearnError> {
        let rows = trajectory_rows(rows)?;
        let mut out = vec![Vec::new(); rows.len()];
        let sampled: Vec<_> = rows.iter().enumerate().filter_map(|(i, row)| Some((i, scoring_row(row)?))).collect();
        for chunk in sampled.chunks(ROWS_PER_JOB) {
            let (acting, rows) = (acting.clone(), chunk.iter().map(|(_, row)| row.clone()).collect::<Vec<_>>());
            let scored = self
                .device
                .run(Subject::Nothing, move |device| device.score(&acting, &rows, temperature, max_tokens_per_pass));
            let scores = scored.await?.map_err(|reason| LearnError::Failed { name: "score".to_owned(), reason })?;
            chunk.iter().zip(scores).for_each(|((i, _), scores)| out[*i] = scores);
        }
        Ok(out)
    }

    /// Trains gates on winning trajectories and writes the composition.
    ///
    /// # Errors
    /// A row of a dev or test seed; no winning row; adapters that do not fit; the policy library's failures.
    pub async fn train_gates(&self, job: GateJob) -> Result<GateReport, LearnError> {
        let asked = repeated(|| {
            let job = Box::new(job.clone());
            self.gates.call(PATIENCE, |reply| GateMessage::Train { job, reply })
        });
        asked.await?
    }

    /// The tokenizer and chat template of the base policy.
    pub fn chat(&self) -> &Chat {
        &self.chat
    }

    /// All measurements at this moment.
    pub fn metrics(&self) -> MetricsSnapshot {
        self.metrics.snapshot()
    }

    /// The units under way and how often each was handed out.
    pub fn under_way(&self) -> BTreeMap<String, u32> {
        self.pipeline.under_way()
    }

    /// Why the runtime stopped, if it did by itself.
    pub fn stop_cause(&self) -> Option<StopCause> {
        self.pipeline.supervision.cause()
    }

    /// Ends all actors. What is acknowledged is on disk; what is under way is done again by the next run.
    pub async fn shut_down(self) {
        self.pipeline.supervision.shut_down().await;
    }

    fn learner(&self, name: &str) -> Result<Child<LearnerMessage>, LearnError> {
        let learners = self.learners.lock().unwrap_or_else(PoisonError::into_inner);
        learners.get(name).cloned().ok_or_else(|| LearnError::Open(name.to_owned(), "not open"))
    }
}
