//! The supervisor: restarts its children one by one, and stops the runtime with a cause when one fails too often.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, Message, RpcReplyPort, SupervisionEvent};
use tokio::sync::watch;

use super::child::{Blueprint, CallError, Child};
use crate::metrics::{Counter, Metrics};
use crate::progress::{Progress, ProgressEvent};

/// The first restart waits this long, each further one within the window twice as long.
const FIRST_BACK_OFF: Duration = Duration::from_millis(10);

/// No restart waits longer than this.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(5);

/// How often one child may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intensity {
    /// Restarts within `window` that are tolerated.
    pub restarts: u32,
    /// The window.
    pub window: Duration,
}

impl Default for Intensity {
    /// Five restarts in ten minutes: a passing trouble is survived, a lasting one is seen within minutes.
    fn default() -> Self {
        Self { restarts: 5, window: Duration::from_secs(600) }
    }
}

/// Why the runtime stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopCause {
    /// A child failed more often than its intensity allows.
    #[error("{actor} failed {failures} times within {window_seconds} s; the last time: {last}")]
    TooManyFailures {
        /// The part.
        actor: String,
        /// How often it failed.
        failures: u32,
        /// The window.
        window_seconds: u64,
        /// What it said the last time.
        last: String,
    },
    /// The runtime was shut down.
    #[error("the runtime was shut down while {actor} was asked")]
    Ended {
        /// The part that was asked.
        actor: String,
    },
}

pub(crate) enum SupervisorMessage {
    /// Start a child; replies when it runs, or why it does not.
    Adopt(Blueprint, RpcReplyPort<Result<(), String>>),
    /// Try a restart.
    Restart(usize),
    /// End a child for good.
    Dismiss(ActorCell, RpcReplyPort<()>),
}

pub(crate) struct SupervisorArguments {
    intensity: Intensity,
    stop: watch::Sender<Option<StopCause>>,
    metrics: Arc<Metrics>,
    progress: Arc<dyn Progress>,
}

struct Part {
    blueprint: Blueprint,
    failures: VecDeque<Instant>,
}

pub(crate) struct SupervisorState {
    arguments: SupervisorArguments,
    parts: Vec<Part>,
    playing: HashMap<ActorId, usize>,
}

struct Supervisor;

/// The supervisor from outside.
pub(crate) struct Supervision {
    actor: ActorRef<SupervisorMessage>,
    stop: watch::Sender<Option<StopCause>>,
}

/// Starts a supervisor without children.
pub(crate) async fn start(
    intensity: Intensity,
    metrics: Arc<Metrics>,
    progress: Arc<dyn Progress>,
) -> Result<Supervision, String> {
    let (stop, _) = watch::channel(None);
    let arguments = SupervisorArguments { intensity, stop: stop.clone(), metrics, progress };
    let (actor, _) = Actor::spawn(None, Supervisor, arguments).await.map_err(|e| e.to_string())?;
    Ok(Supervision { actor, stop })
}

impl Supervision {
    /// Starts a child and keeps it running.
    pub(crate) async fn adopt<A, F>(&self, name: &str, make: F) -> Result<Child<A::Msg>, String>
    where
        A: Actor,
        F: Fn() -> (A, A::Arguments) + Send + Sync + 'static,
    {
        let (blueprint, child) = Blueprint::new(name, self.stop.subscribe(), make);
        let started = self.actor.call(|reply| SupervisorMessage::Adopt(blueprint, reply), None).await;
        match started {
            Ok(ractor::rpc::CallResult::Success(Ok(()))) => Ok(child),
            Ok(ractor::rpc::CallResult::Success(Err(reason))) => Err(reason),
            _ => Err("the supervisor is gone".to_owned()),
        }
    }

    /// Ends a child for good.
    pub(crate) async fn dismiss<M: Message>(&self, child: &Child<M>) -> Result<(), CallError> {
        let cell = child.current().await?.get_cell();
        // A supervisor that is gone has ended its children.
        let _ = self.actor.call(|reply| SupervisorMessage::Dismiss(cell, reply), None).await;
        Ok(())
    }

    /// Why the runtime stopped, if it did.
    pub(crate) fn cause(&self) -> Option<StopCause> {
        self.stop.borrow().clone()
    }

    /// Ends all children and the supervisor. Every call that waits ends with [`StopCause::Ended`].
    pub(crate) async fn shut_down(&self) {
        self.stop.send_if_modified(|cause| {
            let running = cause.is_none();
            cause.get_or_insert(StopCause::Ended { actor: "an actor".to_owned() });
            running
        });
        let patience = Some(Duration::from_secs(5));
        let cell = self.actor.get_cell();
        cell.stop_children_and_wait(None, patience).await;
        // A child that is deep in a wait does not come to its stop message.
        cell.get_children().iter().for_each(ActorCell::kill);
        let _ = cell.stop_and_wait(None, patience).await;
    }
}

impl Actor for Supervisor {
    type Msg = SupervisorMessage;
    type State = SupervisorState;
    type Arguments = SupervisorArguments;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(SupervisorState { arguments, parts: Vec::new(), playing: HashMap::new() })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SupervisorMessage::Adopt(blueprint, reply) => {
                let started = (blueprint.spawn)(myself.get_cell()).await;
                let part = state.parts.len();
                let result = started.map(|cell| {
                    state.playing.insert(cell.get_id(), part);
                    state.parts.push(Part { blueprint, failures: VecDeque::new() });
                });
                // Nobody waits any more where the runtime's start was given up.
                let _ = reply.send(result.map_err(|e| e.to_string()));
            }
            SupervisorMessage::Restart(part) => state.restart(part, &myself).await,
            SupervisorMessage::Dismiss(cell, reply) => {
                // Its end is no failure any more.
                state.playing.remove(&cell.get_id());
                let _ = cell.stop_and_wait(None, None).await;
                let _ = reply.send(());
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let (cell, reason) = match event {
            SupervisionEvent::ActorFailed(cell, error) => (cell, error.to_string()),
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                (cell, reason.unwrap_or_else(|| "it ended without a reason".to_owned()))
            }
            _ => return Ok(()),
        };
        if let Some(part) = state.playing.remove(&cell.get_id()) {
            state.failed(part, reason, &myself);
        }
        Ok(())
    }
}

impl SupervisorState {
    fn failed(&mut self, index: usize, reason: String, myself: &ActorRef<SupervisorMessage>) {
        let part = &mut self.parts[index];
        (part.blueprint.vacate)();
        if self.arguments.stop.borrow().is_some() {
            return;
        }
        let Intensity { restarts, window } = self.arguments.intensity;
        let now = Instant::now();
        part.failures.push_back(now);
        while part.failures.front().is_some_and(|first| now.duration_since(*first) > window) {
            part.failures.pop_front();
        }
        let failures = part.failures.len() as u32;
        let actor = part.blueprint.name.clone();
        if failures > restarts {
            let cause = StopCause::TooManyFailures { actor, failures, window_seconds: window.as_secs(), last: reason };
            tracing::error!(%cause, "the runtime stops");
            self.arguments.stop.send_replace(Some(cause));
            myself.stop_children(None);
            return;
        }
        let back_off = LONGEST_BACK_OFF.min(FIRST_BACK_OFF * 2u32.saturating_pow(failures - 1));
        tracing::warn!(actor, reason, failures, "an actor failed and is restarted");
        let message = format!("{actor} failed and is restarted ({failures} of {restarts}): {reason}");
        self.arguments.progress.event(ProgressEvent::Noted { message: &message });
        myself.send_after(back_off, move || SupervisorMessage::Restart(index));
    }

    async fn restart(&mut self, index: usize, myself: &ActorRef<SupervisorMessage>) {
        if self.arguments.stop.borrow().is_some() {
            return;
        }
        match (self.parts[index].blueprint.spawn)(myself.get_cell()).await {
            Ok(cell) => {
                self.playing.insert(cell.get_id(), index);
                self.arguments.metrics.add(Counter::Restarts, 1);
            }
            Err(error) => self.failed(index, error.to_string(), myself),
        }
    }
}
