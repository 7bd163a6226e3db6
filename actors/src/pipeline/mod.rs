//! From a plan to an acknowledged unit: generator, normaliser and log under one supervisor.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use ractor::Actor;
use trace_policy::chat::Chat;

#[cfg(test)]
use crate::environments::EnvMessage;
use crate::environments::{EnvArguments, EnvServer, EnvironmentSource};
use crate::ledger::Ledger;
use crate::log::LogError;
use crate::logger::{LogArguments, LogMessage, LogWriter};
use crate::metrics::{Counter, Metrics};
use crate::normalize::{GroupCounts, LoneRollout, NormalizeError, normalize};
use crate::normalizer::{AdvantageNormalizer, CollectError, Collected, NormalizerArguments, NormalizerMessage};
use crate::plan::{Limits, WavePlan};
use crate::progress::{Progress, ProgressEvent};
use crate::rollouts::{Crew, GeneratorMessage, RolloutGenerator, WaveError};
use crate::serving::PolicyMessage;
use crate::supervision::{self, CallError, Child, Intensity, StopCause, Supervision};

#[cfg(test)]
mod fakes;
#[cfg(test)]
mod tests;

/// Making a unit durable takes no longer than this, or the disk is at fault.
const LOG_DEADLINE: Option<Duration> = Some(Duration::from_secs(300));

/// Handing a message through a mailbox takes no longer than this.
const MAILBOX_DEADLINE: Option<Duration> = Some(Duration::from_secs(60));

/// How often a unit is handed out before its failure is the caller's.
const MOST_ISSUES: u32 = 6;

/// Why a unit has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UnitError {
    /// The plan cannot be carried out.
    #[error("{0}")]
    Plan(String),
    /// The unit is being worked on.
    #[error("unit {0:?} is under way already; ask for it once")]
    UnderWay(String),
    /// Its rollouts have no result.
    #[error(transparent)]
    Wave(#[from] WaveError),
    /// Its rows contradict each other.
    #[error(transparent)]
    Normalize(#[from] NormalizeError),
    /// It cannot be made durable, or not be read back.
    #[error(transparent)]
    Log(#[from] Arc<LogError>),
    /// The log's actor was lost time and again.
    #[error("{0}")]
    Lost(String),
    /// The runtime has stopped.
    #[error(transparent)]
    Stopped(#[from] StopCause),
}

impl From<CallError> for UnitError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Stopped(cause) => UnitError::Stopped(cause),
            lost => UnitError::Lost(lost.to_string()),
        }
    }
}

/// An acknowledged wave.
#[derive(Clone, Debug)]
pub struct WaveOutcome {
    /// Its rows (`trajectory/1`), advantages included, groups and rollouts in order.
    pub batch: RecordBatch,
    /// What its groups can teach.
    pub counts: GroupCounts,
    /// True where it was acknowledged before and read back from the log.
    pub read_back: bool,
}

/// What a pipeline is made of.
pub(crate) struct PipelineParts {
    pub(crate) run_dir: PathBuf,
    pub(crate) run_id: String,
    pub(crate) run_seed: u64,
    pub(crate) chat: Chat,
    pub(crate) limits: Limits,
    pub(crate) lone: LoneRollout,
    pub(crate) intensity: Intensity,
    pub(crate) env_source: EnvironmentSource,
    pub(crate) env_threads: usize,
    pub(crate) env_tolerated_stuck: usize,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: Arc<dyn Progress>,
}

/// Generator, normaliser and log, and the supervisor of all actors.
pub(crate) struct Pipeline {
    pub(crate) supervision: Supervision,
    pub(crate) log: Child<LogMessage>,
    #[cfg(test)]
    pub(crate) environments: Child<EnvMessage>,
    #[cfg(test)]
    pub(crate) policy: Child<PolicyMessage>,
    normalizer: Child<NormalizerMessage>,
    generator: Child<GeneratorMessage>,
    ledger: Ledger,
    lone: LoneRollout,
    metrics: Arc<Metrics>,
    progress: Arc<dyn Progress>,
}

impl Pipeline {
    /// Starts the actors, the log first: what it repaired is said before anything runs. `policy` makes the policy
    /// server's actor.
    pub(crate) async fn start<P, F>(parts: PipelineParts, policy: F) -> Result<Self, String>
    where
        P: Actor<Msg = PolicyMessage>,
        F: Fn() -> (P, P::Arguments) + Send + Sync + 'static,
    {
        let PipelineParts { metrics, progress, lone, .. } = &parts;
        let (metrics, progress, lone) = (Arc::clone(metrics), Arc::clone(progress), *lone);
        let supervision = supervision::start(parts.intensity, Arc::clone(&metrics), Arc::clone(&progress)).await?;

        let log = LogArguments {
            run_dir: parts.run_dir.clone(),
            metrics: Arc::clone(&metrics),
            progress: Arc::clone(&progress),
        };
        let log = supervision.adopt("the log", move || (LogWriter, log.clone())).await?;
        let environments = EnvArguments {
            source: Arc::clone(&parts.env_source),
            threads: parts.env_threads,
            tolerated_stuck: parts.env_tolerated_stuck,
            metrics: Arc::clone(&metrics),
        };
        let environments =
            supervision.adopt("the environment server", move || (EnvServer, environments.clone())).await?;
        let policy = supervision.adopt("the policy server", policy).await?;
        let counted = Arc::clone(&metrics);
        let normalizer = supervision
            .adopt("the advantage normaliser", move || {
                (AdvantageNormalizer, NormalizerArguments { lone, metrics: Arc::clone(&counted) })
            })
            .await?;
        let crew = Arc::new(Crew {
            run_id: parts.run_id,
            run_seed: parts.run_seed,
            chat: parts.chat,
            limits: parts.limits,
            environments,
            policy,
            normalizer: normalizer.clone(),
            metrics: Arc::clone(&metrics),
            progress: Arc::clone(&progress),
        });
        let its_crew = Arc::clone(&crew);
        let generator =
            supervision.adopt("the rollout generator", move || (RolloutGenerator, Arc::clone(&its_crew))).await?;
        Ok(Self {
            supervision,
            log,
            #[cfg(test)]
            environments: crew.environments.clone(),
            #[cfg(test)]
            policy: crew.policy.clone(),
            normalizer,
            generator,
            ledger: Ledger::default(),
            lone,
            metrics,
            progress,
        })
    }

    /// Samples a wave and makes it durable, or reads it back where that was done before.
    pub(crate) async fn rollout(&self, plan: WavePlan) -> Result<WaveOutcome, UnitError> {
        plan.validate().map_err(UnitError::Plan)?;
        let claim = self.ledger.claim(&plan.unit).ok_or_else(|| UnitError::UnderWay(plan.unit.clone()))?;
        if let Some(batch) = self.read_back(&plan.unit).await? {
            let (batch, counts) = normalize(&batch, self.lone)?;
            self.metrics.add(Counter::UnitsReadBack, 1);
            return Ok(WaveOutcome { batch, counts, read_back: true });
        }
        let plan = Arc::new(plan);
        let collected = loop {
            let issue = claim.issue();
            match self.sample(&plan, issue).await {
                Ok(collected) => break collected,
                Err(UnitError::Wave(error)) if error.may_pass() && issue < MOST_ISSUES => {
                    self.metrics.add(Counter::Reissues, 1);
                    let message = format!("unit {:?} is done again ({issue} of {MOST_ISSUES}): {error}", plan.unit);
                    self.progress.event(ProgressEvent::Noted { message: &message });
                }
                Err(error) => {
                    // A normaliser that is gone remembers nothing.
                    let _ = self.normalizer.tell(NormalizerMessage::Forget { unit: plan.unit.clone() }).await;
                    return Err(error);
                }
            }
        };
        let Collected { batch, counts } = collected;
        self.append(&plan, &batch).await?;
        self.progress.event(ProgressEvent::Ended { unit: &plan.unit });
        Ok(WaveOutcome { batch, counts, read_back: false })
    }

    async fn sample(&self, plan: &Arc<WavePlan>, issue: u32) -> Result<Collected, UnitError> {
        let wave = |error: CallError| UnitError::Wave(error.into());
        let groups = plan.groups.iter().map(|g| (g.group, g.hints.len())).collect();
        self.normalizer.tell(NormalizerMessage::Open { unit: plan.unit.clone(), issue, groups }).await.map_err(wave)?;
        let its_plan = Arc::clone(plan);
        // Without a deadline of its own: each of its waits has one.
        let driven = self.generator.call(None, |reply| GeneratorMessage::Drive { plan: its_plan, issue, reply });
        driven.await.map_err(wave)??;
        let unit = plan.unit.clone();
        let collected =
            self.normalizer.call(MAILBOX_DEADLINE, |reply| NormalizerMessage::Collect { unit, issue, reply });
        match collected.await.map_err(wave)? {
            Ok(collected) => Ok(collected),
            Err(CollectError::Normalize(error)) => Err(error.into()),
            // A normaliser that was restarted in mid-wave has only a part of it.
            Err(error @ CollectError::Incomplete { .. }) => Err(WaveError::Lost(error.to_string()).into()),
        }
    }

    /// Appends a unit. An append whose reply was lost is repeated: the log takes a key once.
    async fn append(&self, plan: &WavePlan, batch: &RecordBatch) -> Result<(), UnitError> {
        let asked = repeated(|| {
            let (phase, unit, batch) = (plan.phase, plan.unit.clone(), batch.clone());
            self.log.call(LOG_DEADLINE, move |reply| LogMessage::Append { phase, unit, batch, reply })
        });
        Ok(asked.await??)
    }

    async fn read_back(&self, unit: &str) -> Result<Option<RecordBatch>, UnitError> {
        let asked = repeated(|| {
            let unit = unit.to_owned();
            self.log.call(LOG_DEADLINE, |reply| LogMessage::Read { unit, reply })
        });
        Ok(asked.await??)
    }

    /// The units under way and how often each was handed out.
    pub(crate) fn under_way(&self) -> std::collections::BTreeMap<String, u32> {
        self.ledger.under_way()
    }
}

/// Asks again where the actor that was asked was lost; for what may be done twice without harm.
pub(crate) async fn repeated<T, F>(mut ask: impl FnMut() -> F) -> Result<T, CallError>
where
    F: Future<Output = Result<T, CallError>>,
{
    let mut issue = 1;
    loop {
        match ask().await {
            Err(CallError::Lost(_)) if issue < MOST_ISSUES => issue += 1,
            result => return result,
        }
    }
}
