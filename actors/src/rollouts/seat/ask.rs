//! Asking the environment, and asking again where it failed.

use std::time::Duration;

use trace_envs::{Action, StepReply, Verdict};

use super::Seat;
use crate::environments::{EnvFailure, EnvMessage, Opened};
use crate::metrics::Counter;
use crate::plan::WavePlan;
use crate::rollouts::wave::{Crew, WaveError};
use crate::supervision::CallError;

pub(super) enum Ask<'a> {
    Begin,
    Step(&'a Action),
    Judge,
}

pub(super) enum Answer {
    Begun,
    Stepped(StepReply, Duration),
    Judged(Verdict),
}

impl Seat {
    /// Asks the environment; where it fails, begins the episode anew, brings it to where it was, and asks again, as
    /// often as the limits say. The outer error ends the wave.
    pub(super) async fn ask(
        &mut self,
        crew: &Crew,
        plan: &WavePlan,
        what: Ask<'_>,
    ) -> Result<Result<Answer, EnvFailure>, WaveError> {
        loop {
            match self.ask_once(crew, plan, &what).await? {
                Ok(answer) => return Ok(Ok(answer)),
                Err(EnvFailure::TooManyStuck(stuck)) => return Err(WaveError::Stuck(EnvFailure::TooManyStuck(stuck))),
                Err(failure) => {
                    if let Some(episode) = self.episode.take() {
                        // A server that is gone holds no episode.
                        let _ = crew.environments.tell(EnvMessage::Close { episode }).await;
                    }
                    tracing::debug!(seed = self.seed, attempt = self.attempt, %failure, "an environment failed");
                    if !failure.may_pass() || self.attempt >= crew.limits.env_retries {
                        return Ok(Err(failure));
                    }
                    self.attempt += 1;
                    crew.metrics.add(Counter::EnvRetries, 1);
                }
            }
        }
    }

    async fn ask_once(
        &mut self,
        crew: &Crew,
        plan: &WavePlan,
        what: &Ask<'_>,
    ) -> Result<Result<Answer, EnvFailure>, WaveError> {
        let episode = match self.episode {
            Some(episode) => episode,
            None => match self.open_episode(crew, plan).await? {
                Ok(episode) => episode,
                Err(failure) => return Ok(Err(failure)),
            },
        };
        let deadline = match self.deadline(crew, 1) {
            Ok(deadline) => deadline,
            Err(exhausted) => return Ok(Err(exhausted)),
        };
        let answer = match what {
            Ask::Begin => return Ok(Ok(Answer::Begun)),
            Ask::Step(action) => {
                let (step_id, action) = (self.history.len() as u64, (*action).clone());
                let asked = crew.environments.call(None, |reply| EnvMessage::Step {
                    episode,
                    step_id,
                    action,
                    deadline,
                    reply,
                });
                survived(asked.await)?.map(|(said, took)| (Answer::Stepped(said, took), took))
            }
            Ask::Judge => {
                let asked = crew.environments.call(None, |reply| EnvMessage::Verdict { episode, deadline, reply });
                let answer = survived(asked.await)?;
                if answer.is_ok() {
                    self.episode = None;
                }
                answer.map(|verdict| (Answer::Judged(verdict), Duration::ZERO))
            }
        };
        self.spend(&answer, deadline);
        Ok(answer.map(|(answer, _)| answer))
    }

    async fn open_episode(&mut self, crew: &Crew, plan: &WavePlan) -> Result<Result<u64, EnvFailure>, WaveError> {
        let deadline = match self.deadline(crew, 1 + self.history.len() as u32) {
            Ok(deadline) => deadline,
            Err(exhausted) => return Ok(Err(exhausted)),
        };
        let environment = plan.environment.clone();
        let (seed, level, history) = (self.seed, self.level, self.history.clone());
        let asked = crew.environments.call(None, |reply| EnvMessage::Open {
            environment,
            seed,
            level,
            history,
            deadline,
            reply,
        });
        let opened = survived(asked.await)?.map(|opened| {
            let took = opened.took;
            (opened, took)
        });
        self.spend(&opened, deadline);
        Ok(opened.and_then(|(opened, _)| self.accept(opened)))
    }

    /// An episode begun anew must be the one that was begun first.
    fn accept(&mut self, opened: Opened) -> Result<u64, EnvFailure> {
        self.episode = Some(opened.episode);
        self.max_turns = opened.max_turns;
        match &self.opening {
            None => self.opening = Some(opened.opening),
            Some(first) if *first != opened.opening => return Err(EnvFailure::Impure("the opening")),
            Some(_) if self.replies != opened.replies => return Err(EnvFailure::Impure("a reply")),
            Some(_) => {}
        }
        Ok(opened.episode)
    }

    fn deadline(&self, crew: &Crew, calls: u32) -> Result<Duration, EnvFailure> {
        let whole = Duration::from_secs_f64(crew.limits.env_episode_seconds);
        match whole.checked_sub(self.env_spent) {
            Some(left) if !left.is_zero() => {
                Ok(left.min(Duration::from_secs_f64(crew.limits.env_step_seconds) * calls))
            }
            _ => Err(EnvFailure::Exhausted { seconds: whole.as_secs() }),
        }
    }

    fn spend<T>(&mut self, answer: &Result<(T, Duration), EnvFailure>, deadline: Duration) {
        self.env_spent += match answer {
            Ok((_, took)) => *took,
            Err(EnvFailure::Deadline { .. }) => deadline,
            Err(_) => Duration::ZERO,
        };
    }
}

/// A lost server is a failure of the episode; a stopped runtime ends the wave.
fn survived<T>(reply: Result<Result<T, EnvFailure>, CallError>) -> Result<Result<T, EnvFailure>, WaveError> {
    match reply {
        Ok(out) => Ok(out),
        Err(CallError::Lost(_) | CallError::Deadline { .. }) => Ok(Err(EnvFailure::Lost)),
        Err(CallError::Stopped(cause)) => Err(WaveError::Stopped(cause)),
    }
}
