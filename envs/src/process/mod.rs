//! Environments that run as processes of their own and speak the [protocol].
//!
//! [`ProcessEnvironment`] starts any program that speaks it; the sandbox of Python files is built on the same client.
//! The client answers what the policy gets wrong about tools ([`crate::screening`]), repeats the reply to a step that
//! it has seen, keeps deadlines, and survives the process: a crash, a hang, garbage or a leak costs the process, and
//! each of its episodes is rebuilt in a new one, when it is next used, by repeating its actions. A rebuilt episode
//! must give the replies that it gave before, or the environment is not a function of its seed, and that is an error.

mod pool;
pub mod protocol;
mod spawn;
mod worker;

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use pool::ProcessLimits;
pub use spawn::Launch;

use crate::contract::{Action, EnvSpec, Environment, Episode, Opening, Role, StepReply, Verdict};
use crate::failure::EnvError;
use crate::screening::screen;
use pool::{Line, Pool};
use protocol::Request;

/// An environment in other processes.
pub struct ProcessEnvironment {
    pool: Arc<Pool>,
    spec: EnvSpec,
}

impl ProcessEnvironment {
    /// Starts a program and asks what environment it is.
    ///
    /// # Errors
    /// [`EnvError::Load`] where the program cannot be started, does not speak the protocol, or has a spec that cannot
    /// be used.
    pub fn start(launch: Launch, limits: ProcessLimits) -> Result<Self, EnvError> {
        let name = launch.program.display().to_string();
        Self::greeted(&name, launch, limits, None)
    }

    /// As [`ProcessEnvironment::start`], with a request that each new process gets first.
    pub(crate) fn greeted(
        name: &str,
        launch: Launch,
        limits: ProcessLimits,
        greeting: Option<Request>,
    ) -> Result<Self, EnvError> {
        let pool = Pool::new(launch, greeting, limits);
        let refused = |reason: String| EnvError::Load { name: name.to_string(), reason };
        let answer = pool.with(pool.assign(), |line, _| line.ask(&Request::Spec)).map_err(|e| match e {
            EnvError::Load { reason, .. } => refused(reason),
            other => refused(other.to_string()),
        })?;
        let spec: EnvSpec = answer
            .and_then(|value| serde_json::from_value(value).map_err(|e| format!("its spec cannot be read: {e}")))
            .map_err(refused)?;
        check_spec(&spec).map_err(refused)?;
        Ok(Self { pool: Arc::new(pool), spec })
    }

    /// The processes that run at the moment.
    pub fn process_ids(&self) -> Vec<u32> {
        self.pool.process_ids()
    }
}

/// What every spec must satisfy for its episodes to be run at all.
fn check_spec(spec: &EnvSpec) -> Result<(), String> {
    if spec.name.is_empty() {
        return Err("its spec has no name".to_string());
    }
    if spec.levels == 0 || spec.max_turns == 0 {
        return Err("its spec needs at least one level and one turn".to_string());
    }
    for (i, tool) in spec.tools.iter().enumerate() {
        if spec.tools[..i].iter().any(|t| t.name == tool.name) {
            return Err(format!("its spec has two tools named {:?}", tool.name));
        }
        if tool.parameters.get("type").and_then(Value::as_str) != Some("object") {
            return Err(format!("the parameters of its tool {:?} are no object schema", tool.name));
        }
    }
    Ok(())
}

impl Environment for ProcessEnvironment {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&self, seed: u64, level: u32) -> Result<Box<dyn Episode>, EnvError> {
        if level > self.spec.levels {
            return Err(EnvError::Misuse(format!(
                "{} has no level {level}: ask for 0 (its own mix) to {}",
                self.spec.name, self.spec.levels
            )));
        }
        let seat = self.pool.assign();
        let episode = self.pool.number();
        let (opening, generation) =
            self.pool.with(seat, |line, generation| Ok((open(line, episode, seed, level)?, generation)))?;
        if !(1..=self.spec.levels).contains(&opening.level) {
            self.pool.close(seat, episode);
            let reason = format!("the opening has level {}, not one of 1 to {}", opening.level, self.spec.levels);
            return Err(EnvError::Reset { seed, reason });
        }
        if opening.messages.first().map(|m| m.role) != Some(Role::System) {
            self.pool.close(seat, episode);
            return Err(EnvError::Reset { seed, reason: "the opening does not begin with a system message".into() });
        }
        Ok(Box::new(ProcessEpisode {
            pool: Arc::clone(&self.pool),
            seat,
            episode,
            generation,
            seed,
            level,
            max_turns: self.spec.max_turns,
            opening,
            steps: Vec::new(),
        }))
    }
}

/// Reads a reply's value; one of another shape is garbage.
fn typed<T: DeserializeOwned>(what: &str, value: Value) -> Result<T, EnvError> {
    serde_json::from_value(value).map_err(|e| EnvError::Garbage(format!("{what}: {e}")))
}

fn open(line: &mut Line<'_>, episode: u64, seed: u64, level: u32) -> Result<Opening, EnvError> {
    let value =
        line.ask(&Request::Reset { episode, seed, level })?.map_err(|reason| EnvError::Reset { seed, reason })?;
    typed("the opening", value)
}

fn act(line: &mut Line<'_>, episode: u64, step_id: u64, action: &Action) -> Result<StepReply, EnvError> {
    let value = line
        .ask(&Request::Step { episode, step_id, action: action.clone() })?
        .map_err(|reason| EnvError::Step { step_id, reason })?;
    typed("the reply to a step", value)
}

/// One step that was taken.
struct Step {
    id: u64,
    /// What reached the environment; `None` where all calls were refused before.
    executed: Option<(Action, StepReply)>,
    /// What the policy got.
    reply: StepReply,
}

/// An episode in another process.
struct ProcessEpisode {
    pool: Arc<Pool>,
    seat: usize,
    episode: u64,
    /// The process in which the episode was last alive.
    generation: u64,
    seed: u64,
    level: u32,
    max_turns: u32,
    opening: Opening,
    steps: Vec<Step>,
}

impl ProcessEpisode {
    /// Does `work` with the process that holds the episode, rebuilt there if need be.
    fn with<T>(&mut self, mut work: impl FnMut(&mut Line<'_>) -> Result<T, EnvError>) -> Result<T, EnvError> {
        let Self { pool, seat, episode, generation, seed, level, opening, steps, .. } = self;
        pool.with(*seat, |line, current| {
            if *generation != current {
                rebuild(line, *episode, *seed, *level, opening, steps)?;
                *generation = current;
            }
            work(line)
        })
    }
}

/// Opens an episode anew and repeats its actions.
fn rebuild(
    line: &mut Line<'_>,
    episode: u64,
    seed: u64,
    level: u32,
    opening: &Opening,
    steps: &[Step],
) -> Result<(), EnvError> {
    let differs = |what: &str| EnvError::Reset {
        seed,
        reason: format!("a rebuilt episode gave another {what}: the environment is not a function of its seed"),
    };
    if open(line, episode, seed, level)? != *opening {
        return Err(differs("opening"));
    }
    for step in steps {
        if let Some((action, reply)) = &step.executed
            && act(line, episode, step.id, action)? != *reply
        {
            return Err(differs(&format!("reply to step {}", step.id)));
        }
    }
    Ok(())
}

impl Episode for ProcessEpisode {
    fn opening(&self) -> &Opening {
        &self.opening
    }

    fn step(&mut self, step_id: u64, action: &Action) -> Result<StepReply, EnvError> {
        if let Some(step) = self.steps.iter().find(|s| s.id == step_id) {
            return Ok(step.reply.clone());
        }
        if self.steps.last().is_some_and(|s| s.reply.done) {
            return Err(EnvError::Misuse(format!("step {step_id}: the episode is over")));
        }
        if self.steps.len() >= self.max_turns as usize {
            return Err(EnvError::Misuse(format!("step {step_id}: the episode has had its {} turns", self.max_turns)));
        }
        let screened = screen(&self.opening.tools, action);
        let (executed, done) = if screened.all_refused() {
            (None, false)
        } else {
            let episode = self.episode;
            let reply = self.with(|line| act(line, episode, step_id, &screened.executable))?;
            let done = reply.done;
            (Some((screened.executable.clone(), reply)), done)
        };
        let replies = executed.as_ref().map(|(_, reply)| reply.messages.clone()).unwrap_or_default();
        let messages = screened.merge(replies).map_err(EnvError::Garbage)?;
        let reply = StepReply { messages, done };
        self.steps.push(Step { id: step_id, executed, reply: reply.clone() });
        Ok(reply)
    }

    fn verdict(&mut self) -> Result<Verdict, EnvError> {
        let episode = self.episode;
        let value = self.with(|line| line.ask(&Request::Verdict { episode }))?.map_err(EnvError::BadVerdict)?;
        typed::<Verdict>("the verdict", value)?.validated()
    }

    fn oracle(&mut self) -> Result<Option<Action>, EnvError> {
        let episode = self.episode;
        let step_id = self.steps.len() as u64;
        let value = self
            .with(|line| line.ask(&Request::Oracle { episode }))?
            .map_err(|reason| EnvError::Step { step_id, reason: format!("oracle: {reason}") })?;
        typed("the oracle's action", value)
    }
}

impl Drop for ProcessEpisode {
    fn drop(&mut self) {
        self.pool.close(self.seat, self.episode);
    }
}
