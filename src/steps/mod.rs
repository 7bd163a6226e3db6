//! The steps of a run, and what happens when it is stopped between any two moments.
//!
//! A step asks the runtime for waves and batches by name; what was acknowledged before is read back, so a step can be called
//! again from its beginning at any time and does only what is left. Files that a step writes are written whole. Thus
//! `state.json` needs to say no more than which steps are done.
//!
//! Each step lives in a file of its own and reads the files of the step before, so that a person or a coding agent can do any
//! step by hand.

mod analyze;
mod arms;
mod baseline;
pub mod calibration;
mod compose;
mod evaluate;
mod layout;
mod report;
mod rollout;
pub mod seeds;
pub mod state;
mod synthesize;
mod train;
mod waves;

use std::path::Path;
use std::sync::Arc;

use trace_actors::log::LogError;
use trace_actors::rows::RowError;
use trace_actors::{LearnError, Runtime, RuntimeConfig, StartError, UnitError};
use trace_envs::{EnvError, EnvRegistry, Environment};
use trace_policy::config::ModelConfig;
use trace_policy::error::PolicyError;

use crate::analyze::LabelError;
use crate::config::Config;
use crate::progress::Display;
use crate::record::{FileError, MetricsLog};

pub use layout::RunDir;
pub use state::{ResumeError, State, Step};

/// Why a step did not come to its end. What was reached is on disk: the same command goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The run cannot go on under this configuration.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// A file of the run.
    #[error(transparent)]
    File(#[from] FileError),
    /// An environment.
    #[error(transparent)]
    Environment(#[from] EnvError),
    /// The runtime does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Rollouts.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// Training.
    #[error(transparent)]
    Learn(#[from] LearnError),
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Rows of the log.
    #[error(transparent)]
    Rows(#[from] RowError),
    /// Labels.
    #[error(transparent)]
    Labels(#[from] LabelError),
    /// A level that the environment does not have.
    #[error("{key} = {level}, but {environment} has levels 1 to {levels} (0 is its own mix)")]
    Level {
        /// The key of the configuration.
        key: &'static str,
        /// Its value.
        level: u32,
        /// The environment.
        environment: String,
        /// How many it has.
        levels: u32,
    },
    /// The policy's folder.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// What the configuration asks of a model that has less.
    #[error("{key} = {asked}, but {model} has {has}")]
    Model {
        /// The key of the configuration.
        key: &'static str,
        /// Its value.
        asked: u32,
        /// The model's folder.
        model: String,
        /// What it has.
        has: String,
    },
    /// A step whose result this one needs is not done.
    #[error("`{step}` needs what `{needs}` makes; run that first, or `trace run` for all")]
    NotYet {
        /// This step.
        step: &'static str,
        /// The one that is missing.
        needs: &'static str,
    },
    /// A step that a later one has built on.
    #[error("`{step}` is done, and `{user}` has built on it; give a new run another run.name to do it differently")]
    BuiltOn {
        /// This step.
        step: &'static str,
        /// The later one.
        user: &'static str,
    },
    /// The step cannot go on, for a reason that lies in the run's data.
    #[error("{0}")]
    Stuck(String),
}

/// A run that is open.
pub struct Session {
    /// The effective configuration.
    pub config: Config,
    /// Where it lies.
    pub dir: RunDir,
    /// What is done.
    pub state: State,
    /// What was measured.
    pub metrics: MetricsLog,
    /// The environments that it can name.
    pub environments: Arc<EnvRegistry>,
    /// Shows how far things are.
    pub display: Arc<Display>,
    runtime: Option<Arc<Runtime>>,
}

impl Session {
    /// Opens a run where `config` puts it, or begins one.
    ///
    /// # Errors
    /// Where it was begun with something else, or an environment that it names cannot be used.
    pub fn open(config: Config, display: Arc<Display>) -> Result<Self, StepError> {
        let dir = RunDir::new(config.run_dir());
        let environments = EnvRegistry::builtin();
        let mut session = Self {
            state: State::open(&dir, &config)?,
            metrics: MetricsLog::open(&dir.metrics())?,
            environments: Arc::new(environments),
            dir,
            config,
            display,
            runtime: None,
        };
        session.register_environments()?;
        session.check_levels()?;
        session.check_model()?;
        Ok(session)
    }

    /// Makes the run's own files known: those named by path, then those of its folder.
    fn register_environments(&mut self) -> Result<(), StepError> {
        let named = std::iter::once(&self.config.target.environment)
            .chain(self.config.baseline.iter().map(|baseline| &baseline.environment));
        for name in named.filter(|name| is_file(name)) {
            self.environments.add_file(Path::new(name))?;
        }
        if self.dir.environments().is_dir() {
            self.environments.add_folder(&self.dir.environments())?;
        }
        Ok(())
    }

    /// What would otherwise be found only when the runtime starts, or hours later when the first learner does.
    fn check_model(&self) -> Result<(), StepError> {
        let (policy, first) = (&self.config.policy, self.config.train.first_layer);
        let model = ModelConfig::load(&policy.model)?;
        let less =
            |key, asked, has| Err(StepError::Model { key, asked, model: policy.model.display().to_string(), has });
        if i64::from(policy.max_context) > model.max_position_embeddings {
            return less(
                "policy.max_context",
                policy.max_context,
                format!("{} positions", model.max_position_embeddings),
            );
        }
        if i64::from(first) >= model.num_hidden_layers {
            return less("train.first_layer", first, format!("{} blocks, counted from 0", model.num_hidden_layers));
        }
        Ok(())
    }

    fn check_levels(&self) -> Result<(), StepError> {
        let target = &self.config.target;
        let baselines = self.config.baseline.iter().map(|b| ("baseline.level", &b.environment, b.level));
        for (key, name, level) in std::iter::once(("target.level", &target.environment, target.level)).chain(baselines)
        {
            check_level(key, &*self.environment(name)?, level)?;
        }
        Ok(())
    }

    /// An environment by the name or path that the configuration gives.
    ///
    /// # Errors
    /// Where there is none.
    pub fn environment(&self, name: &str) -> Result<Arc<dyn Environment>, EnvError> {
        self.environments.get(environment_name(name))
    }

    /// The runtime, started at its first use.
    ///
    /// # Errors
    /// Where it does not start.
    pub async fn runtime(&mut self) -> Result<Arc<Runtime>, StepError> {
        if let Some(runtime) = &self.runtime {
            return Ok(Arc::clone(runtime));
        }
        let (config, registry) = (&self.config, Arc::clone(&self.environments));
        let source: trace_actors::EnvironmentSource = Arc::new(move |name| registry.get(name));
        let limits = &config.limits;
        let settings = RuntimeConfig {
            run_id: config.run.name.clone(),
            run_seed: config.run.seed,
            threads: self.state.threads as usize,
            max_slots: config.policy.max_slots as usize,
            limits: trace_actors::plan::Limits {
                max_context: config.policy.max_context as usize,
                max_turn_tokens: config.policy.max_new_tokens as usize,
                max_live_episodes: config.policy.max_slots as usize,
                env_retries: limits.env_retries as u8,
                env_step_seconds: limits.env_step_seconds,
                env_episode_seconds: limits.env_episode_seconds,
                policy_seconds: limits.policy_seconds,
                ..trace_actors::plan::Limits::default()
            },
            ..RuntimeConfig::new(&config.policy.model, self.dir.root(), source, Arc::clone(&self.display) as _)
        };
        let runtime = Arc::new(Runtime::start(settings).await?);
        self.runtime = Some(Arc::clone(&runtime));
        Ok(runtime)
    }

    /// Ends the runtime, if it was started.
    pub async fn close(mut self) {
        if let Some(runtime) = self.runtime.take().and_then(Arc::into_inner) {
            runtime.shut_down().await;
        }
    }

    /// Does every step that is not done yet, in order.
    ///
    /// # Errors
    /// The first step's that does not come to its end.
    pub async fn run_all(&mut self) -> Result<Outcome, StepError> {
        let mut worked = false;
        for step in Step::ALL {
            if !self.state.is_done(step) {
                self.carry_out(step, Labels::FromChecks).await?;
                worked = true;
            }
        }
        Ok(if worked { Outcome::Done } else { Outcome::WasDone })
    }

    /// Does one step.
    ///
    /// # Errors
    /// Where the step before is not done, a later one has built on it, or it does not come to its end.
    pub async fn run_step(&mut self, step: Step, labels: Labels) -> Result<(), StepError> {
        let before = Step::ALL.into_iter().rfind(|other| *other < step);
        if let Some(needs) = before.filter(|needs| step != Step::Report && !self.state.is_done(*needs)) {
            return Err(StepError::NotYet { step: step.name(), needs: needs.name() });
        }
        if let Some(user) = self.state.begun_after(step) {
            return Err(StepError::BuiltOn { step: step.name(), user: user.name() });
        }
        self.carry_out(step, labels).await
    }

    async fn carry_out(&mut self, step: Step, labels: Labels) -> Result<(), StepError> {
        self.state.begin(&self.dir, step)?;
        let rollouts = match step {
            Step::Rollout => rollout::run(self).await?,
            Step::Analyze => analyze::run(self, labels)?,
            Step::Synthesize => synthesize::run(self).await?,
            Step::Train => train::run(self).await?,
            Step::Compose => compose::run(self).await?,
            Step::Baseline => baseline::run(self).await?,
            Step::Evaluate => evaluate::run(self).await?,
            Step::Report => report::run(self)?,
        };
        Ok(self.state.finish(&self.dir, step, rollouts)?)
    }

    /// A count of the configuration under `run.share`: at least one.
    fn shared(&self, count: u32) -> u32 {
        ((f64::from(count) * self.config.run.share).ceil() as u32).clamp(1, count.max(1))
    }
}

/// Whether there was anything to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// At least one step was carried out.
    Done,
    /// All had been.
    WasDone,
}

/// Where the labels of analysis come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Labels {
    /// From the environment's process checks.
    #[default]
    FromChecks,
    /// From the files that lie in `capabilities/`, whoever wrote them.
    FromFiles,
}

/// Whether a name in the configuration is the path of a Python file.
fn is_file(name: &str) -> bool {
    name.ends_with(".py")
}

/// The registry's name for it.
fn environment_name(name: &str) -> &str {
    if is_file(name) { Path::new(name).file_stem().and_then(|stem| stem.to_str()).unwrap_or(name) } else { name }
}

fn check_level(key: &'static str, environment: &dyn Environment, level: u32) -> Result<(), StepError> {
    let spec = environment.spec();
    if level <= spec.levels {
        return Ok(());
    }
    Err(StepError::Level { key, level, environment: spec.name.clone(), levels: spec.levels })
}
