//! The LibTorch thread: one per device. It owns the model, the arms, the waves' engines and the learners; the actors
//! submit short jobs to it and wait for their replies, so that LibTorch never runs in an actor's `handle`.
//!
//! Jobs wait in a bounded queue, first come, first served; each is a decode slice, a scoring pass or one learner batch,
//! so shares are fair as long as jobs are short. A job that panics fails alone: what it worked on is let go, since
//! nobody knows in which state it is, and its actor is restarted from what is on disk.

mod arms;
mod learning;
mod state;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use tch::Device;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use trace_policy::engine::EngineConfig;

pub(crate) use learning::LearnerHome;
pub(crate) use state::{DeviceState, Subject};

use crate::environments::panic_text;

/// Jobs that may wait. Each actor has at most one under way, so this many never wait in practice; it is a bound.
const QUEUE: usize = 64;

/// How a device fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The model cannot be loaded.
    #[error("the model in {folder} cannot be loaded: {reason}")]
    Load {
        /// The model's folder.
        folder: PathBuf,
        /// Why.
        reason: String,
    },
    /// A job panicked; what it worked on was let go.
    #[error("a LibTorch job panicked: {0}")]
    Panicked(String),
    /// The thread is gone: the runtime was shut down.
    #[error("the LibTorch thread is gone")]
    Gone,
    /// What was asked cannot be done.
    #[error("{0}")]
    Refused(String),
}

struct Job {
    run: Box<dyn FnOnce(&mut DeviceState) + Send>,
    /// Its place in the queue, free once the job runs.
    place: OwnedSemaphorePermit,
}

/// What a device is started with.
#[derive(Clone, Debug)]
pub(crate) struct DeviceOptions {
    pub(crate) model_dir: PathBuf,
    pub(crate) device: Device,
    /// LibTorch's threads; part of the state of a deterministic run.
    pub(crate) threads: usize,
    pub(crate) engine: EngineConfig,
}

/// A device from outside. Cheap to clone; the thread ends when the last one is dropped.
#[derive(Clone)]
pub(crate) struct DeviceHandle {
    jobs: Sender<Job>,
    places: Arc<Semaphore>,
}

impl DeviceHandle {
    /// Starts the thread and loads the model on it.
    pub(crate) async fn start(options: DeviceOptions) -> Result<Self, DeviceError> {
        let (jobs, queue) = bounded(QUEUE);
        let (ready, started) = oneshot::channel();
        thread::Builder::new()
            .name("libtorch".to_owned())
            .spawn(move || serve(options, &queue, ready))
            .map_err(|e| DeviceError::Refused(format!("a thread for LibTorch cannot be started: {e}")))?;
        started.await.map_err(|_| DeviceError::Gone)??;
        Ok(Self { jobs, places: Arc::new(Semaphore::new(QUEUE)) })
    }

    /// Runs a job that works on `subject` and waits for what it returns.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        subject: Subject,
        job: impl FnOnce(&mut DeviceState) -> T + Send + 'static,
    ) -> Result<T, DeviceError> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| DeviceError::Gone)?;
        let (reply, returned) = oneshot::channel();
        let run = Box::new(move |state: &mut DeviceState| {
            let out = catch_unwind(AssertUnwindSafe(|| job(state))).map_err(|panic| {
                state.let_go(&subject);
                DeviceError::Panicked(panic_text(&*panic))
            });
            // Whoever asked may have been stopped meanwhile.
            let _ = reply.send(out);
        });
        // Never blocks: the queue has as many places as there are permits.
        self.jobs.send(Job { run, place }).map_err(|_| DeviceError::Gone)?;
        returned.await.map_err(|_| DeviceError::Gone)?
    }
}

fn serve(options: DeviceOptions, queue: &Receiver<Job>, ready: oneshot::Sender<Result<(), DeviceError>>) {
    tch::set_num_threads(i32::try_from(options.threads).unwrap_or(i32::MAX));
    let mut state = match catch_unwind(|| DeviceState::load(&options)) {
        Ok(Ok(state)) => state,
        Ok(Err(reason)) => return drop(ready.send(Err(DeviceError::Load { folder: options.model_dir, reason }))),
        Err(panic) => return drop(ready.send(Err(DeviceError::Panicked(panic_text(&*panic))))),
    };
    if ready.send(Ok(())).is_err() {
        return;
    }
    while let Ok(Job { run, place }) = queue.recv() {
        drop(place);
        run(&mut state);
    }
}

#[cfg(test)]
pub(crate) mod fixture {
    use std::path::Path;

    use trace_policy::config::ModelConfig;
    use trace_policy::model::Model;

    use super::*;

    /// A device with a random model of 32 tokens and 64 positions, written to `dir`.
    pub(crate) async fn device(dir: &Path) -> DeviceHandle {
        let config = ModelConfig {
            vocab_size: 32,
            hidden_size: 16,
            num_hidden_layers: 2,
            num_attention_heads: 2,
            num_key_value_heads: 1,
            head_dim: 8,
            intermediate_size: 24,
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            tie_word_embeddings: true,
            max_position_embeddings: 64,
        };
        Model::random(config, 3, Device::Cpu).unwrap().save(dir).unwrap();
        DeviceHandle::start(DeviceOptions {
            model_dir: dir.to_owned(),
            device: Device::Cpu,
            threads: 1,
            engine: EngineConfig { max_slots: 4, kv_budget_bytes: 1 << 20 },
        })
        .await
        .unwrap()
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use trace_policy::learner::LearnerConfig;
    use trace_policy::rows::TrainRow;

    use super::fixture::device;
    use super::*;
    use crate::plan::{Acting, AdapterShape, ArmSpec};
    use crate::rows::SamplingParams;
    use crate::serving::{FinishReason, PolicyFailure, TurnRequest};

    fn turn(session: u64, context: Vec<i32>) -> TurnRequest {
        TurnRequest {
            session,
            context,
            shared_prefix: 0,
            max_tokens: 3,
            sampling: SamplingParams::default(),
            stop_ids: vec![31],
            stream: [1, 2, session, 0],
        }
    }

    async fn open(device: &DeviceHandle, wave: &str) {
        let name = wave.to_owned();
        let acting = Acting::Arm(ArmSpec::base());
        let opened = device.run(Subject::Wave(wave.to_owned()), move |state| state.open_wave(name, &acting)).await;
        assert_eq!(opened, Ok(Ok(())));
    }

    fn home(dir: &TempDir) -> LearnerHome {
        LearnerHome {
            name: "a".into(),
            folder: dir.path().join("learner"),
            adapter: AdapterShape { rank: 2, alpha: 2.0, first_layer: 0 },
            seed: 1,
        }
    }

    #[tokio::test]
    async fn a_job_that_panics_loses_what_it_worked_on_and_nothing_else() {
        let dir = TempDir::new().unwrap();
        let device = device(dir.path()).await;
        open(&device, "one").await;
        open(&device, "other").await;
        let its_home = home(&dir);
        device.run(Subject::Nothing, move |state| state.open_learner(&its_home)).await.unwrap().unwrap();
        let failed: Result<(), _> = device.run(Subject::Wave("one".into()), |_| panic!("shapes do not match")).await;
        assert_eq!(failed, Err(DeviceError::Panicked("shapes do not match".into())));
        let advance = async |wave: &'static str| {
            let advanced = device.run(Subject::Nothing, move |state| state.advance(wave, vec![turn(0, vec![1])], &[]));
            advanced.await.unwrap().map(|advanced| advanced.turns.len())
        };
        assert_eq!(advance("one").await, Err(PolicyFailure::UnknownWave("one".into())));
        assert_eq!(advance("other").await, Ok(1));
        let update = |state: &mut DeviceState| {
            state.update("a", &[vec![row(1.0), row(-1.0)]], &LearnerConfig::default()).map(|metrics| metrics.steps)
        };
        assert_eq!(device.run(Subject::Nothing, update).await, Ok(Ok(1)));
        let _: Result<(), _> = device.run(Subject::Learner("a".into()), |_| panic!("out of memory")).await;
        assert_eq!(device.run(Subject::Nothing, update).await, Ok(Err("learner a is not open".into())));
    }

    fn row(advantage: f32) -> TrainRow {
        TrainRow {
            tokens: vec![1, 2, 3],
            action_mask: vec![false, false, true],
            old_logprobs: vec![f32::NAN, f32::NAN, -3.4],
            advantage,
        }
    }

    #[tokio::test]
    async fn a_request_that_does_not_fit_fails_alone() {
        let dir = TempDir::new().unwrap();
        let device = device(dir.path()).await;
        open(&device, "wave").await;
        let requests = vec![turn(0, vec![1, 2]), turn(1, vec![99]), turn(2, vec![3; 63])];
        let first = device.run(Subject::Nothing, move |state| state.advance("wave", requests, &[])).await;
        let Ok(Ok(first)) = first else { panic!("the wave goes on") };
        let refused: Vec<u64> = first.turns.iter().filter(|t| t.outcome.is_err()).map(|t| t.session).collect();
        assert_eq!((refused, first.under_way), (vec![1, 2], true));
        // A slice may end before the turn does.
        let rest = loop {
            let slice = device.run(Subject::Nothing, |state| state.advance("wave", Vec::new(), &[])).await;
            if let Some(turn) = slice.unwrap().unwrap().turns.pop() {
                break turn;
            }
        };
        let sampled = rest.outcome.unwrap();
        assert_eq!((rest.session, sampled.finish), (0, FinishReason::Length));
        assert_eq!((sampled.tokens.len(), sampled.logprobs.len(), sampled.slots), (3, 3, None));
    }

    #[tokio::test]
    async fn a_model_that_cannot_be_loaded_is_said() {
        let dir = TempDir::new().unwrap();
        let options = DeviceOptions {
            model_dir: dir.path().join("nowhere"),
            device: Device::Cpu,
            threads: 1,
            engine: EngineConfig { max_slots: 4, kv_budget_bytes: 1 << 20 },
        };
        let error = DeviceHandle::start(options).await.err().unwrap();
        assert!(matches!(&error, DeviceError::Load { .. }) && error.to_string().contains("nowhere"), "{error}");
    }
}
