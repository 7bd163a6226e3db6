//! One episode played by a policy.

use std::time::{Duration, Instant};

use super::players::Seen;
use crate::contract::{Action, Environment, Episode, Message, Role, Verdict};
use crate::failure::EnvError;

/// An episode from its opening to its verdict.
#[derive(Clone, Debug)]
pub(super) struct Game {
    /// Everything that the policy saw and said, in order.
    pub messages: Vec<Message>,
    /// What it did, by turn.
    pub actions: Vec<Action>,
    /// True where the episode ended by itself and not at its turn limit.
    pub done: bool,
    /// The end.
    pub verdict: Verdict,
    /// The longest call of the environment.
    pub slowest: Duration,
}

impl Game {
    /// What must be equal where the same actions are played again.
    pub fn outcome(&self) -> (&[Message], bool, &Verdict) {
        (&self.messages, self.done, &self.verdict)
    }
}

/// Plays one episode; `act` gets what a policy sees, and the episode for the oracle's sake, and returns `None` to stop.
pub(super) fn play(
    env: &dyn Environment,
    seed: u64,
    level: u32,
    mut act: impl FnMut(&Seen<'_>, &mut dyn Episode) -> Result<Option<Action>, EnvError>,
) -> Result<Game, EnvError> {
    let mut slowest = Duration::ZERO;
    let mut timed = |started: Instant| slowest = slowest.max(started.elapsed());
    let started = Instant::now();
    let mut episode = env.reset(seed, level)?;
    timed(started);
    let mut messages = episode.opening().messages.clone();
    let tools = episode.opening().tools.clone();
    let mut actions = Vec::new();
    let mut done = false;
    for turn in 0..env.spec().max_turns {
        let seen = Seen { messages: &messages, tools: &tools, turn };
        let Some(action) = act(&seen, episode.as_mut())? else { break };
        messages.push(Message::new(Role::Assistant, action.text.clone()));
        let started = Instant::now();
        let reply = episode.step(u64::from(turn), &action)?;
        timed(started);
        actions.push(action);
        messages.extend(reply.messages);
        if reply.done {
            done = true;
            break;
        }
    }
    let started = Instant::now();
    let verdict = episode.verdict()?.validated()?;
    timed(started);
    Ok(Game { messages, actions, done, verdict, slowest })
}

/// Plays the oracle.
pub(super) fn play_oracle(env: &dyn Environment, seed: u64, level: u32) -> Result<Game, EnvError> {
    play(env, seed, level, |_, episode| episode.oracle())
}

/// Plays actions that are fixed beforehand.
pub(super) fn replay(env: &dyn Environment, seed: u64, level: u32, actions: &[Action]) -> Result<Game, EnvError> {
    play(env, seed, level, |seen, _| Ok(actions.get(seen.turn as usize).cloned()))
}
