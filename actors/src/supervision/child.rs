//! A part that some actor plays, and how to make one that plays it.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorRef, ActorStatus, Message, RpcReplyPort, SpawnErr};
use tokio::sync::{oneshot, watch};

use super::supervisor::StopCause;

/// How long a call waits for a part to be filled again: longer than the longest back-off between restarts.
const VACANCY: Duration = Duration::from_secs(15);

/// How long an actor takes to stop once it has failed.
const DYING: Duration = Duration::from_secs(1);

/// Why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// The actor failed before it replied; what it was asked may or may not have been done.
    #[error("{0} failed before it replied")]
    Lost(String),
    /// The actor did not reply in time.
    #[error("{actor} did not reply within {seconds} s")]
    Deadline {
        /// The part.
        actor: String,
        /// The deadline.
        seconds: u64,
    },
    /// The runtime has stopped.
    #[error(transparent)]
    Stopped(#[from] StopCause),
}

/// A part and the actor that plays it now. Cheap to clone.
pub(crate) struct Child<M> {
    name: String,
    current: watch::Receiver<Option<ActorRef<M>>>,
    stop: watch::Receiver<Option<StopCause>>,
}

impl<M> Clone for Child<M> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), current: self.current.clone(), stop: self.stop.clone() }
    }
}

impl<M: Message> Child<M> {
    /// Asks, and waits for the reply at most `deadline` (for ever where `None`: only for calls whose own waits all have
    /// deadlines).
    pub(crate) async fn call<R: Send + 'static>(
        &self,
        deadline: Option<Duration>,
        message: impl FnOnce(RpcReplyPort<R>) -> M,
    ) -> Result<R, CallError> {
        let actor = self.current().await?;
        let (reply, answer) = oneshot::channel();
        let lost = || CallError::Lost(self.name.clone());
        actor.send_message(message(reply.into())).map_err(|_| lost())?;
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            cause = self.stopping() => return Err(CallError::Stopped(cause)),
            () = wait(deadline) => {
                let seconds = deadline.unwrap_or_default().as_secs();
                return Err(CallError::Deadline { actor: self.name.clone(), seconds });
            }
        };
        match answer {
            Ok(answer) => Ok(answer),
            Err(_) => {
                // A failing actor lets go of its messages before it counts as stopped: who asked again meanwhile would
                // ask the dead.
                let _ = actor.get_cell().wait(Some(DYING)).await;
                Err(lost())
            }
        }
    }

    /// Tells, without a reply.
    pub(crate) async fn tell(&self, message: M) -> Result<(), CallError> {
        let actor = self.current().await?;
        actor.send_message(message).map_err(|_| CallError::Lost(self.name.clone()))
    }

    /// The actor that plays the part, once there is one that is alive.
    pub(crate) async fn current(&self) -> Result<ActorRef<M>, CallError> {
        let alive =
            |actor: &Option<ActorRef<M>>| actor.as_ref().is_some_and(|a| a.get_status() < ActorStatus::Stopping);
        let mut current = self.current.clone();
        let filled = async { current.wait_for(alive).await.ok().and_then(|actor| actor.clone()) };
        tokio::select! {
            biased;
            cause = self.stopping() => Err(CallError::Stopped(cause)),
            actor = filled => actor.ok_or_else(|| CallError::Stopped(self.ended())),
            () = tokio::time::sleep(VACANCY) => Err(CallError::Lost(self.name.clone())),
        }
    }

    /// Waits until the runtime stops: why it did.
    async fn stopping(&self) -> StopCause {
        let mut stop = self.stop.clone();
        let cause = stop.wait_for(Option::is_some).await.ok().and_then(|cause| cause.clone());
        cause.unwrap_or_else(|| self.ended())
    }

    fn ended(&self) -> StopCause {
        StopCause::Ended { actor: self.name.clone() }
    }
}

async fn wait(deadline: Option<Duration>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline).await,
        None => std::future::pending().await,
    }
}

type Spawning = Pin<Box<dyn Future<Output = Result<ActorCell, SpawnErr>> + Send>>;

/// How to make an actor that plays a part.
pub(crate) struct Blueprint {
    pub(crate) name: String,
    pub(crate) spawn: Box<dyn Fn(ActorCell) -> Spawning + Send + Sync>,
    /// Says that nobody plays the part.
    pub(crate) vacate: Box<dyn Fn() + Send + Sync>,
}

impl Blueprint {
    /// A part played by actors that `make` makes, each with its arguments, and the handle on it.
    pub(crate) fn new<A, F>(name: &str, stop: watch::Receiver<Option<StopCause>>, make: F) -> (Self, Child<A::Msg>)
    where
        A: Actor,
        F: Fn() -> (A, A::Arguments) + Send + Sync + 'static,
    {
        let (publish, current) = watch::channel(None);
        let vacant = publish.clone();
        let spawn = move |supervisor: ActorCell| -> Spawning {
            let (actor, arguments) = make();
            let publish = publish.clone();
            Box::pin(async move {
                let (actor, _) = Actor::spawn_linked(None, actor, arguments, supervisor).await?;
                let cell = actor.get_cell();
                publish.send_replace(Some(actor));
                Ok(cell)
            })
        };
        let vacate = move || drop(vacant.send_replace(None));
        let child = Child { name: name.to_owned(), current, stop };
        (Self { name: name.to_owned(), spawn: Box::new(spawn), vacate: Box::new(vacate) }, child)
    }
}
