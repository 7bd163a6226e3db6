//! What the LibTorch thread owns, and the sampling of waves.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use trace_policy::engine::{Engine, EngineConfig, EngineError, Finish, GenRequest, GenResult};
use trace_policy::model::Model;
use trace_policy::sampling::Sampling;

use super::DeviceOptions;
use super::arms::LoadedArm;
use super::learning::LearnerSlot;
use crate::plan::Acting;
use crate::serving::{FinishReason, PolicyFailure, SampledTurn, TurnRequest, TurnResult};

/// A job of the policy server decodes for about this long before others have their turn.
const SLICE: Duration = Duration::from_millis(50);

/// What a job works on, to be let go where the job panics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Nothing that lasts.
    Nothing,
    /// A wave's engine.
    Wave(String),
    /// A learner.
    Learner(String),
}

/// What the LibTorch thread owns.
pub(crate) struct DeviceState {
    pub(super) model: Model,
    pub(super) learners: BTreeMap<String, LearnerSlot>,
    engine: EngineConfig,
    waves: BTreeMap<String, WaveSession>,
}

/// A wave's arm and the engine that samples it.
struct WaveSession {
    arm: Rc<LoadedArm>,
    engine: Engine,
}

/// What a slice of decoding brought.
pub(crate) struct Advanced {
    /// The turns that finished.
    pub(crate) turns: Vec<TurnResult>,
    /// True while others are under way.
    pub(crate) under_way: bool,
}

impl DeviceState {
    pub(super) fn load(options: &DeviceOptions) -> Result<Self, String> {
        let model = Model::load(&options.model_dir, options.device).map_err(|e| e.to_string())?;
        Ok(Self { model, learners: BTreeMap::new(), engine: options.engine, waves: BTreeMap::new() })
    }

    pub(super) fn let_go(&mut self, subject: &Subject) {
        match subject {
            Subject::Nothing => {}
            Subject::Wave(wave) => drop(self.waves.remove(wave)),
            Subject::Learner(learner) => drop(self.learners.remove(learner)),
        }
    }

    /// The most positions of a context.
    pub(crate) fn max_positions(&self) -> usize {
        usize::try_from(self.model.config().max_position_embeddings).unwrap_or(0)
    }

    /// Begins a wave; one of that name that was under way is given up.
    pub(crate) fn open_wave(&mut self, wave: String, acting: &Acting) -> Result<(), PolicyFailure> {
        let arm = self.arm(acting)?;
        let engine = Engine::new(self.engine, &self.model);
        self.waves.insert(wave, WaveSession { arm, engine });
        Ok(())
    }

    /// Lets go of a wave.
    pub(crate) fn close_wave(&mut self, wave: &str) {
        self.waves.remove(wave);
    }

    /// Lets go of all waves.
    pub(crate) fn close_all_waves(&mut self) {
        self.waves.clear();
    }

    /// Takes requests in and decodes until a turn is finished or the slice is over.
    pub(crate) fn advance(
        &mut self,
        wave: &str,
        requests: Vec<TurnRequest>,
        ended: &[u64],
    ) -> Result<Advanced, PolicyFailure> {
        let Some(session) = self.waves.get_mut(wave) else {
            return Err(PolicyFailure::UnknownWave(wave.to_owned()));
        };
        ended.iter().for_each(|&rollout| session.engine.release(rollout));
        let mut turns = Vec::new();
        for request in requests {
            let rollout = request.session;
            match session.engine.admit(admission(request)) {
                Ok(()) => {}
                Err(error) => turns.push(TurnResult { session: rollout, outcome: Err(error.to_string()) }),
            }
        }
        let begin = Instant::now();
        while turns.is_empty() && session.under_way() && begin.elapsed() < SLICE {
            turns.extend(session.decode(&self.model)?);
        }
        Ok(Advanced { turns, under_way: session.under_way() })
    }
}

impl WaveSession {
    fn under_way(&self) -> bool {
        self.engine.running() + self.engine.waiting() > 0
    }

    /// One decode step. A turn without numbers fails alone.
    fn decode(&mut self, model: &Model) -> Result<Vec<TurnResult>, PolicyFailure> {
        let version = self.arm.version;
        match self.engine.step(model, &self.arm.active(), u64::from(version)) {
            Ok(finished) => Ok(finished.into_iter().map(|result| sampled(result, version)).collect()),
            Err(error @ EngineError::NotFinite { id, .. }) => {
                self.engine.cancel(id);
                Ok(vec![TurnResult { session: id, outcome: Err(error.to_string()) }])
            }
            Err(error) => Err(PolicyFailure::Failed(error.to_string())),
        }
    }
}

fn admission(request: TurnRequest) -> GenRequest {
    let TurnRequest { session, context, shared_prefix, max_tokens, sampling, stop_ids, stream } = request;
    let sampling = Sampling { temperature: sampling.temperature, top_p: sampling.top_p, top_k: sampling.top_k };
    GenRequest { id: session, session, context, shared_prefix, max_tokens, sampling, stop_ids, stream }
}

fn sampled(result: GenResult, version: u32) -> TurnResult {
    let GenResult { id, tokens, logprobs, slots, finish } = result;
    let finish = match finish {
        Finish::Stop => FinishReason::Stop,
        Finish::Length => FinishReason::Length,
        Finish::Cancelled => FinishReason::Cancelled,
    };
    TurnResult { session: id, outcome: Ok(SampledTurn { version, tokens, logprobs, slots, finish }) }
}
