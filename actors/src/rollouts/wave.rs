//! A wave of rollouts, driven in lock-step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tokio::task::JoinSet;
use trace_policy::chat::{Chat, ChatError};

use super::seat::{Seat, Standing};
use crate::batch::trajectory_batch;
use crate::environments::{EnvFailure, EnvMessage};
use crate::metrics::{Counter, Metrics, Stage};
use crate::normalizer::NormalizerMessage;
use crate::plan::{Limits, WavePlan};
use crate::progress::{Progress, ProgressEvent};
use crate::rows::{RowError, Status};
use crate::serving::{PolicyFailure, PolicyMessage, TurnResult};
use crate::supervision::{CallError, Child, StopCause};

/// Where so many episodes of a wave could not be begun and not one could, the rest is not tried.
const RESETS_THAT_SAY_ALL: usize = 32;

/// Whom a rollout generator works with, and under which rules.
pub(crate) struct Crew {
    pub(crate) run_id: String,
    pub(crate) run_seed: u64,
    pub(crate) chat: Chat,
    pub(crate) limits: Limits,
    pub(crate) environments: Child<EnvMessage>,
    pub(crate) policy: Child<PolicyMessage>,
    pub(crate) normalizer: Child<NormalizerMessage>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: Arc<dyn Progress>,
}

/// Why a wave has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WaveError {
    /// Not one episode could be brought to an end.
    #[error("environment {environment}: all {episodes} episodes of wave {unit:?} failed; the first: {cause}")]
    EveryEpisodeFailed {
        /// The environment.
        environment: String,
        /// The wave.
        unit: String,
        /// How many episodes were tried.
        episodes: usize,
        /// What the first of them said.
        cause: String,
    },
    /// Threads that wait for environments pile up.
    #[error("{0}; look for an environment that hangs")]
    Stuck(EnvFailure),
    /// A conversation cannot be put into tokens.
    #[error("the conversation of seed {seed} cannot be put into tokens: {source}")]
    Chat {
        /// The seed.
        seed: u64,
        /// Why.
        source: Arc<ChatError>,
    },
    /// The policy server failed.
    #[error(transparent)]
    Policy(#[from] PolicyFailure),
    /// A row that the table refuses: a fault of the runtime, not of the environment.
    #[error(transparent)]
    Row(#[from] RowError),
    /// An actor was lost on the way.
    #[error("{0}")]
    Lost(String),
    /// The runtime has stopped.
    #[error(transparent)]
    Stopped(#[from] StopCause),
}

impl WaveError {
    /// True where the wave, handed out again, may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, WaveError::Lost(_) | WaveError::Policy(PolicyFailure::UnknownWave(_) | PolicyFailure::Failed(_)))
    }
}

impl From<CallError> for WaveError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Stopped(cause) => WaveError::Stopped(cause),
            lost => WaveError::Lost(lost.to_string()),
        }
    }
}

/// What a wave took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaveStats {
    pub(crate) rollouts: u64,
    pub(crate) sampled_tokens: u64,
}

/// Drives a wave to its end. Its rollouts go to the normaliser as they end; the policy server's session is closed
/// whatever happens.
pub(crate) async fn drive(crew: &Arc<Crew>, plan: &Arc<WavePlan>, issue: u32) -> Result<WaveStats, WaveError> {
    let deadline = Some(Duration::from_secs_f64(crew.limits.policy_seconds));
    let (wave, acting) = (plan.unit.clone(), plan.acting.clone());
    crew.policy.call(deadline, |reply| PolicyMessage::Open { wave, acting, reply }).await??;
    let result = Driver::new(crew, plan, issue).run(deadline).await;
    // Servers that are gone hold nothing.
    let _ = crew.policy.tell(PolicyMessage::Close { wave: plan.unit.clone() }).await;
    if result.is_err() {
        let _ = crew.environments.tell(EnvMessage::CloseAll).await;
    }
    result
}

/// What seats do side by side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Begin the episode, and judge it where there is no room for a turn.
    Begin,
    /// Answer the turn, and judge where the episode is over.
    Answer,
}

struct Driver<'a> {
    crew: &'a Arc<Crew>,
    plan: &'a Arc<WavePlan>,
    issue: u32,
    unit_key: u64,
    /// Rollouts that have no place yet, in (group, rollout) order.
    waiting: std::vec::IntoIter<Seat>,
    /// Rollouts that have a place.
    live: BTreeMap<usize, Seat>,
    /// Those of them whose turn the policy server is sampling.
    sampling: BTreeSet<usize>,
    /// Sessions that the policy server may forget.
    ended: Vec<u64>,
    stats: WaveStats,
    /// True once one episode was begun.
    any_begun: bool,
    failed: usize,
    first_failure: Option<String>,
}

impl<'a> Driver<'a> {
    fn new(crew: &'a Arc<Crew>, plan: &'a Arc<WavePlan>, issue: u32) -> Self {
        let mut seats = Vec::with_capacity(plan.rollouts());
        for group in &plan.groups {
            for (rollout, &hint) in group.hints.iter().enumerate() {
                seats.push(Seat::new(seats.len(), group.group, rollout as u16, group.seed, group.level, hint));
            }
        }
        Self {
            crew,
            plan,
            issue,
            unit_key: unit_key(&plan.unit),
            waiting: seats.into_iter(),
            live: BTreeMap::new(),
            sampling: BTreeSet::new(),
            ended: Vec::new(),
            stats: WaveStats::default(),
            any_begun: false,
            failed: 0,
            first_failure: None,
        }
    }

    async fn run(&mut self, deadline: Option<Duration>) -> Result<WaveStats, WaveError> {
        let total = self.plan.rollouts() as u64;
        self.crew.progress.event(ProgressEvent::Begun { unit: &self.plan.unit, total });
        while !self.live.is_empty() || self.waiting.len() > 0 {
            self.seat_waiting().await?;
            let turns = self.sample(deadline).await?;
            self.answer(turns).await?;
        }
        if self.failed == self.plan.rollouts() {
            return Err(self.every_episode_failed());
        }
        Ok(self.stats)
    }

    /// Gives free places to those who wait, in order.
    async fn seat_waiting(&mut self) -> Result<(), WaveError> {
        let places = self.crew.limits.max_live_episodes.max(1).saturating_sub(self.live.len());
        let seats: Vec<Seat> = self.waiting.by_ref().take(places).collect();
        if seats.is_empty() {
            return Ok(());
        }
        for seat in self.side_by_side(seats, Work::Begin).await? {
            self.place(seat).await?;
        }
        if !self.any_begun && self.failed >= RESETS_THAT_SAY_ALL {
            return Err(self.every_episode_failed());
        }
        Ok(())
    }

    /// Hands in the turns of all that wait for the policy, and takes those that are finished.
    async fn sample(&mut self, deadline: Option<Duration>) -> Result<Vec<TurnResult>, WaveError> {
        let mut requests = Vec::new();
        for (&index, seat) in &mut self.live {
            if !self.sampling.contains(&index) {
                requests.extend(seat.request(self.crew, self.plan, self.unit_key));
            }
        }
        self.sampling.extend(requests.iter().map(|r| r.session as usize));
        if self.sampling.is_empty() {
            return Ok(Vec::new());
        }
        let (wave, ended) = (self.plan.unit.clone(), std::mem::take(&mut self.ended));
        let begin = Instant::now();
        let asked = self.crew.policy.call(deadline, |reply| PolicyMessage::Advance { wave, requests, ended, reply });
        let turns = asked.await??;
        self.crew.metrics.record_since(Stage::PolicyCall, begin);
        Ok(turns)
    }

    /// Lets the environments of finished turns answer, side by side.
    async fn answer(&mut self, mut turns: Vec<TurnResult>) -> Result<(), WaveError> {
        turns.sort_by_key(|turn| turn.session);
        let mut seats = Vec::new();
        for turn in turns {
            let index = turn.session as usize;
            // A turn that nobody waits for was answered twice.
            if !self.sampling.remove(&index) {
                continue;
            }
            if let Some(mut seat) = self.live.remove(&index) {
                let sampled = turn.outcome.as_ref().map_or(0, |turn| turn.tokens.len() as u64);
                self.stats.sampled_tokens += sampled;
                self.crew.metrics.add(Counter::Turns, 1);
                self.crew.metrics.add(Counter::SampledTokens, sampled);
                seat.take_turn(&turn)?;
                seats.push(seat);
            }
        }
        for seat in self.side_by_side(seats, Work::Answer).await? {
            self.place(seat).await?;
        }
        Ok(())
    }

    /// Does the same for all seats at once and returns them in order.
    async fn side_by_side(&self, seats: Vec<Seat>, work: Work) -> Result<Vec<Seat>, WaveError> {
        let mut tasks = JoinSet::new();
        for mut seat in seats {
            let (crew, plan) = (Arc::clone(self.crew), Arc::clone(self.plan));
            tasks.spawn(async move {
                if work == Work::Begin {
                    seat.begin(&crew, &plan).await?;
                }
                seat.answer(&crew, &plan).await?;
                Ok::<Seat, WaveError>(seat)
            });
        }
        let mut done = Vec::new();
        while let Some(joined) = tasks.join_next().await {
            done.push(joined.map_err(|e| WaveError::Lost(format!("a rollout's task failed: {e}")))??);
        }
        done.sort_by_key(|seat| seat.index);
        Ok(done)
    }

    /// Keeps a rollout that goes on; delivers one that ended.
    async fn place(&mut self, mut seat: Seat) -> Result<(), WaveError> {
        let Standing::Ended(status, error) = &seat.standing else {
            self.any_begun = true;
            self.live.insert(seat.index, seat);
            return Ok(());
        };
        let status = *status;
        if status == Status::EnvironmentFailed {
            self.failed += 1;
            self.first_failure = self.first_failure.take().or_else(|| error.clone());
        } else {
            self.any_begun = true;
        }
        self.crew.metrics.add(Counter::of_status(status), 1);
        self.ended.push(seat.index as u64);
        if let Some(episode) = seat.take_episode() {
            // A server that is gone holds no episode.
            let _ = self.crew.environments.tell(EnvMessage::Close { episode }).await;
        }
        let (group, rollout) = (seat.group, seat.rollout);
        let rows = trajectory_batch(&seat.into_rows(self.crew, self.plan))?;
        let (unit, issue) = (self.plan.unit.clone(), self.issue);
        self.crew.normalizer.tell(NormalizerMessage::Arrive { unit, issue, group, rollout, rows }).await?;
        self.stats.rollouts += 1;
        self.crew.progress.event(ProgressEvent::Advanced {
            unit: &self.plan.unit,
            done: self.stats.rollouts,
            sampled_tokens: self.stats.sampled_tokens,
        });
        Ok(())
    }

    fn every_episode_failed(&self) -> WaveError {
        WaveError::EveryEpisodeFailed {
            environment: self.plan.environment.clone(),
            unit: self.plan.unit.clone(),
            episodes: self.failed,
            cause: self.first_failure.clone().unwrap_or_default(),
        }
    }
}

/// A unit's key as a number: what sets its random numbers apart from those of other units.
fn unit_key(unit: &str) -> u64 {
    let hash = Sha256::digest(unit.as_bytes());
    hash.iter().take(8).fold(0, |key, &byte| (key << 8) | u64::from(byte))
}
