//! The runtime: supervised actors that exchange trajectories as Arrow batches.
//!
//! # How a trajectory travels
//!
//! ```text
//! WavePlan -> RolloutGenerator <-> EnvServer          (one episode: reset, step..., verdict)
//!                  |          <-> PolicyServer        (token ids in, token ids + log-probs + version out)
//!                  v
//!          AdvantageNormalizer                        (gathers groups, adds the column `advantage`)
//!                  v
//!          TrajectoryLog                              (fsynced = acknowledged)
//!                  v
//!          Learner, GateTrainer                       (checkpointed = consumed)
//! ```
//!
//! [`Runtime`] is all of it behind a few calls: [`Runtime::rollout`], [`Runtime::train`], [`Runtime::train_gates`],
//! [`Runtime::score`]. Each is named by a unit's key and may be repeated: what was acknowledged or consumed is not done
//! again. Use [`log`] and [`normalize`] alone to read a run's trajectories, without a model.
//!
//! # Words
//!
//! - **unit**: what is logged, trained on and redone as a whole; it has a key.
//! - **wave**: a unit of rollouts that are sampled together.
//! - **group**: the rollouts of one seed in a wave; advantages compare them.
//! - **arm**: a variant of the policy: the base, one adapter, or adapters behind gates.
//! - **version**: one publication of an adapter; every sampled token knows its own.

pub mod batch;
pub mod log;
pub mod metrics;
pub mod normalize;
pub mod plan;
pub mod progress;
pub mod rows;
pub mod schema;

mod device;
mod environments;
mod learning;
mod ledger;
mod logger;
mod normalizer;
mod pipeline;
mod rollouts;
mod runtime;
mod serving;
mod supervision;

pub use device::DeviceError;
pub use environments::{EnvFailure, EnvironmentSource};
pub use learning::{GateJob, GatePass, GateReport, LearnError, LearnerStatus, TrainOutcome, TrainReport};
pub use pipeline::{UnitError, WaveOutcome};
pub use rollouts::WaveError;
pub use runtime::{Accelerator, LearnerSpec, Runtime, RuntimeConfig, StartError};
pub use serving::{FinishReason, PolicyFailure};
pub use supervision::{Intensity, StopCause};

/// How a learner's batch is done: the policy library's own settings.
pub use trace_policy::learner::LearnerConfig;

/// How gates are trained: the policy library's own settings.
pub use trace_policy::gate_trainer::GateConfig;

#[cfg(test)]
mod samples;
