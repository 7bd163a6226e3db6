//! The actor that holds the live episodes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use trace_envs::{Action, EnvError, Environment, Episode, Opening, StepReply, Verdict};

use super::pool::{CallFailure, Pool};
use crate::metrics::{Counter, Metrics, Stage};

/// Finds an environment by name. May block: it is called on the environments' threads.
pub type EnvironmentSource = Arc<dyn Fn(&str) -> Result<Arc<dyn Environment>, EnvError> + Send + Sync>;

/// How a call of an environment fails. None of these is ever a reward.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvFailure {
    /// The environment says so itself.
    #[error(transparent)]
    Environment(#[from] EnvError),
    /// The environment's code panicked.
    #[error("the environment panicked: {0}")]
    Panicked(String),
    /// A call did not return in time; the episode was given up.
    #[error("no return from {call} within {milliseconds} ms; the episode was given up")]
    Deadline {
        /// reset, step or verdict.
        call: &'static str,
        /// The deadline.
        milliseconds: u128,
    },
    /// All calls of the episode together took longer than an episode may.
    #[error("the episode's calls took {seconds} s together, which is all that an episode has")]
    Exhausted {
        /// The limit.
        seconds: u64,
    },
    /// The episode went down with the server that held it.
    #[error("the episode was lost with its server")]
    Lost,
    /// Begun anew with the same seed and actions, it answered otherwise.
    #[error(
        "the environment is not a pure function of seed, level and actions: {0} differed when the episode was repeated"
    )]
    Impure(&'static str),
    /// So many calls never returned that going on would only pile up threads.
    #[error("{0} calls of environments were given up and never returned")]
    TooManyStuck(usize),
}

impl EnvFailure {
    /// True where beginning the episode anew may help.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            EnvFailure::Environment(EnvError::Load { .. } | EnvError::Misuse(_)) => false,
            EnvFailure::Environment(_) | EnvFailure::Panicked(_) | EnvFailure::Deadline { .. } | EnvFailure::Lost => {
                true
            }
            EnvFailure::Exhausted { .. } | EnvFailure::Impure(_) | EnvFailure::TooManyStuck(_) => false,
        }
    }
}

/// An episode that was begun, or begun anew and brought to where it was.
pub(crate) struct Opened {
    /// The server's name for it.
    pub(crate) episode: u64,
    /// How it began.
    pub(crate) opening: Opening,
    /// The most assistant turns.
    pub(crate) max_turns: u32,
    /// The replies to the actions that were repeated.
    pub(crate) replies: Vec<StepReply>,
    /// How long the environment took.
    pub(crate) took: Duration,
}

pub(crate) enum EnvMessage {
    /// Begin an episode, and repeat these actions in it.
    Open {
        environment: String,
        seed: u64,
        level: u32,
        history: Vec<Action>,
        deadline: Duration,
        reply: RpcReplyPort<Result<Opened, EnvFailure>>,
    },
    /// Act; replies with how long the environment took.
    Step {
        episode: u64,
        step_id: u64,
        action: Action,
        deadline: Duration,
        reply: RpcReplyPort<Result<(StepReply, Duration), EnvFailure>>,
    },
    /// Judge, and end the episode.
    Verdict { episode: u64, deadline: Duration, reply: RpcReplyPort<Result<Verdict, EnvFailure>> },
    /// End an episode without a verdict.
    Close { episode: u64 },
    /// End all episodes: those of a wave that was given up.
    CloseAll,
}

/// What an environment server is made of.
#[derive(Clone)]
pub(crate) struct EnvArguments {
    pub(crate) source: EnvironmentSource,
    pub(crate) threads: usize,
    pub(crate) tolerated_stuck: usize,
    pub(crate) metrics: Arc<Metrics>,
}

type Episodes = Arc<Mutex<HashMap<u64, Box<dyn Episode>>>>;

pub(crate) struct EnvState {
    source: EnvironmentSource,
    pool: Arc<Pool>,
    /// An episode is absent while one of its calls is under way.
    episodes: Episodes,
    next_episode: u64,
    metrics: Arc<Metrics>,
}

pub(crate) struct EnvServer;

impl Actor for EnvServer {
    type Msg = EnvMessage;
    type State = EnvState;
    type Arguments = EnvArguments;

    async fn pre_start(
        &self,
        _: ActorRef<EnvMessage>,
        arguments: EnvArguments,
    ) -> Result<EnvState, ActorProcessingErr> {
        let EnvArguments { source, threads, tolerated_stuck, metrics } = arguments;
        let pool = Arc::new(Pool::new(threads, tolerated_stuck));
        Ok(EnvState { source, pool, episodes: Episodes::default(), next_episode: 0, metrics })
    }

    async fn handle(
        &self,
        _: ActorRef<EnvMessage>,
        message: EnvMessage,
        state: &mut EnvState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            EnvMessage::Open { environment, seed, level, history, deadline, reply } => {
                let id = state.next_episode;
                state.next_episode += 1;
                let source = Arc::clone(&state.source);
                let open = move || open(&source, &environment, seed, level, &history);
                state.run(Stage::EnvReset, "reset", deadline, open, reply, move |opened, took, episodes| {
                    let (episode, opening, max_turns, replies) = opened;
                    keep(episodes, id, episode);
                    Opened { episode: id, opening, max_turns, replies, took }
                });
            }
            EnvMessage::Step { episode: id, step_id, action, deadline, reply } => match take(&state.episodes, id) {
                None => drop(reply.send(Err(EnvFailure::Lost))),
                Some(mut episode) => {
                    let step = move || episode.step(step_id, &action).map(|said| (episode, said));
                    state.run(Stage::EnvStep, "step", deadline, step, reply, move |(episode, said), took, episodes| {
                        keep(episodes, id, episode);
                        (said, took)
                    });
                }
            },
            EnvMessage::Verdict { episode: id, deadline, reply } => match take(&state.episodes, id) {
                None => drop(reply.send(Err(EnvFailure::Lost))),
                Some(mut episode) => {
                    let judge = move || episode.verdict().and_then(Verdict::validated);
                    state.run(Stage::EnvVerdict, "verdict", deadline, judge, reply, |verdict, _, _| verdict);
                }
            },
            EnvMessage::Close { episode } => {
                if let Some(episode) = take(&state.episodes, episode) {
                    state.pool.dispatch(move || drop(episode));
                }
            }
            EnvMessage::CloseAll => {
                let given_up = std::mem::take(&mut *state.episodes.lock().unwrap_or_else(PoisonError::into_inner));
                state.pool.dispatch(move || drop(given_up));
            }
        }
        Ok(())
    }
}

impl EnvState {
    /// Runs a call of an environment on a thread and replies when it returns, or why it did not.
    fn run<T, R>(
        &self,
        stage: Stage,
        name: &'static str,
        deadline: Duration,
        call: impl FnOnce() -> Result<T, EnvError> + Send + 'static,
        reply: RpcReplyPort<Result<R, EnvFailure>>,
        finish: impl FnOnce(T, Duration, &Episodes) -> R + Send + 'static,
    ) where
        T: Send + 'static,
        R: Send + 'static,
    {
        let (pool, episodes, metrics) = (Arc::clone(&self.pool), Arc::clone(&self.episodes), Arc::clone(&self.metrics));
        tokio::spawn(async move {
            let timed = move || {
                let begin = Instant::now();
                let out = call();
                (out, begin.elapsed())
            };
            let out = match pool.call(deadline, timed).await {
                Ok((Ok(out), took)) => {
                    metrics.record(stage, took);
                    Ok(finish(out, took, &episodes))
                }
                Ok((Err(error), _)) => Err(EnvFailure::Environment(error)),
                Err(CallFailure::Panicked(text)) => Err(EnvFailure::Panicked(text)),
                Err(CallFailure::TooManyStuck(stuck)) => Err(EnvFailure::TooManyStuck(stuck)),
                Err(CallFailure::Deadline) => {
                    metrics.add(Counter::EnvDeadlines, 1);
                    Err(EnvFailure::Deadline { call: name, milliseconds: deadline.as_millis() })
                }
            };
            // Whoever asked may be gone; its episode goes when it is closed, or with the server.
            let _ = reply.send(out);
        });
    }
}

type Begun = (Box<dyn Episode>, Opening, u32, Vec<StepReply>);

fn open(
    source: &EnvironmentSource,
    environment: &str,
    seed: u64,
    level: u32,
    history: &[Action],
) -> Result<Begun, EnvError> {
    let environment = source(environment)?;
    let levels = environment.spec().levels;
    if level > levels {
        let name = &environment.spec().name;
        return Err(EnvError::Misuse(format!("environment {name} has levels 0 to {levels}, not {level}")));
    }
    let mut episode = environment.reset(seed, level)?;
    let replies =
        history.iter().enumerate().map(|(i, action)| episode.step(i as u64, action)).collect::<Result<Vec<_>, _>>()?;
    let opening = episode.opening().clone();
    Ok((episode, opening, environment.spec().max_turns, replies))
}

fn take(episodes: &Episodes, id: u64) -> Option<Box<dyn Episode>> {
    episodes.lock().unwrap_or_else(PoisonError::into_inner).remove(&id)
}

fn keep(episodes: &Episodes, id: u64, episode: Box<dyn Episode>) {
    episodes.lock().unwrap_or_else(PoisonError::into_inner).insert(id, episode);
}
