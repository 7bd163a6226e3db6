//! `helpdesk`, the target world: a customer-service desk over a customer's orders and trips.
//!
//! A task is drawn from a seed ([`Task::target`]): a customer, their records, and a request of one or two parts that
//! exercises none to three of four capabilities, each at a level of difficulty. The agent reads and writes through
//! eleven tools and talks to a scripted customer who answers questions. The tools do what they are told; the policy
//! text says what may be done, and some requests must be refused. At the end a program compares the desk's data and
//! what was sent with what they should be, and looks whether the customer was told what they needed to know
//! (`verify.rs`).

mod demos;
mod records;
mod script;
mod task;
mod tools;
mod verify;
mod words;

use std::collections::HashMap;

use serde_json::json;

pub use demos::{Demo, DemoTurn, DemoWorld, Habits, Listed, listing};
pub use records::{Desk, Record, Records};
pub use script::{Lapses, script};
pub use task::{Capability, Demands, Part, Task, Want};
pub use tools::{Code, Tool, codes_of, option_of};
pub use verify::{OUTCOME, evidence};
pub use words::{CLAUSES, policy};

use crate::contract::{
    Action, Call, EnvSpec, Environment, Episode, Message, Opening, Role, StepReply, ToolSpec, Verdict,
};
use crate::failure::EnvError;
use crate::seeds::SeedStream;

/// The most assistant turns of an episode; the oracle needs at most seven.
pub const MAX_TURNS: u32 = 10;

/// Level 1: the same mix of tasks, each capability at its easiest.
const EASY: u32 = 1;
/// Level 2, and the target's own: mostly at their hardest.
const HARD: u32 = 2;

/// How the reward is made of the outcome checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reward {
    /// 1 only if every outcome check is met, else 0.
    AllOrNothing,
    /// The mean of the outcome checks, and nothing where the customer was told nothing that they needed (two of three
    /// checks hold for whoever never acts): a denser signal to train on, not the measure of success.
    MeanCheck,
}

/// The environment.
pub struct Helpdesk {
    spec: EnvSpec,
    reward: Reward,
}

impl Helpdesk {
    /// The target world.
    pub fn new() -> Self {
        Self::with_reward("helpdesk", Reward::AllOrNothing)
    }

    /// The same world and tasks, with the mean of the outcome checks as its reward.
    pub fn mean_check() -> Self {
        Self::with_reward("helpdesk_mean_check", Reward::MeanCheck)
    }

    fn with_reward(name: &str, reward: Reward) -> Self {
        let spec = EnvSpec {
            name: name.to_string(),
            description: "A customer-service desk over a customer's orders and trips.".to_string(),
            capability: None,
            levels: HARD,
            max_turns: MAX_TURNS,
            tools: Tool::ALL.iter().map(|t| t.spec()).collect(),
            evidence: evidence(),
        };
        Self { spec, reward }
    }
}

impl Default for Helpdesk {
    fn default() -> Self {
        Self::new()
    }
}

impl Environment for Helpdesk {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&self, seed: u64, level: u32) -> Result<Box<dyn Episode>, EnvError> {
        if level > self.spec.levels {
            return Err(EnvError::Misuse(format!(
                "helpdesk has no level {level}: ask for 0 (its own mix) to {}",
                self.spec.levels
            )));
        }
        let mut rng = SeedStream::keyed(&[0x6865_6c70, seed]);
        let (task, level) = match level {
            EASY => (Task::easy(&mut rng), EASY),
            _ => (Task::target(&mut rng), HARD),
        };
        let mut episode = DeskEpisode::new(task, &policy(&CLAUSES), self.spec.tools.clone(), self.reward);
        episode.opening.level = level;
        Ok(Box::new(episode))
    }
}

/// One conversation with one customer.
pub struct DeskEpisode {
    task: Task,
    opening: Opening,
    records: Records,
    history: verify::History,
    replies: HashMap<u64, StepReply>,
    turns: usize,
    done: bool,
    reward: Reward,
}

impl DeskEpisode {
    /// An episode of `task` under a policy text and a set of tools.
    pub fn new(task: Task, policy: &str, tools: Vec<ToolSpec>, reward: Reward) -> Self {
        let opening = Opening {
            messages: vec![Message::new(Role::System, policy), Message::new(Role::User, task.request.clone())],
            tools,
            hint: Capability::ALL
                .into_iter()
                .max_by_key(|&c| task.demands.level(c))
                .filter(|&c| task.demands.level(c) > 0)
                .map(|c| c.hint().to_string()),
            level: 1,
        };
        let records = task.records.clone();
        let history = verify::History::default();
        Self { task, opening, records, history, replies: HashMap::new(), turns: 0, done: false, reward }
    }

    /// The task, for demonstrations and analyses of the world itself.
    pub fn task(&self) -> &Task {
        &self.task
    }

    fn execute(&mut self, call: &Call) -> Message {
        let observation = match call {
            Call::Malformed { error, .. } => {
                self.history.malformed += 1;
                json!({"error": format!("the call could not be read: {error}")})
            }
            Call::Tool(call) => {
                let tool = Tool::named(&call.name).filter(|_| self.opening.tools.iter().any(|t| t.name == call.name));
                let result = match tool {
                    Some(tool) => self.records.execute(tool, &call.arguments),
                    None => Err(format!("there is no tool {}", call.name)),
                };
                self.history.calls.push(verify::Called { call: call.clone(), tool, succeeded: result.is_ok() });
                result.unwrap_or_else(|error| json!({"error": error}))
            }
        };
        Message::new(Role::Tool, observation.to_string())
    }
}

impl Episode for DeskEpisode {
    fn opening(&self) -> &Opening {
        &self.opening
    }

    fn step(&mut self, step_id: u64, action: &Action) -> Result<StepReply, EnvError> {
        if let Some(reply) = self.replies.get(&step_id) {
            return Ok(reply.clone());
        }
        if self.done {
            return Err(EnvError::Misuse(format!("step {step_id}: the episode is over")));
        }
        self.turns += 1;
        let mut messages: Vec<Message> = action.calls.iter().map(|call| self.execute(call)).collect();
        if !action.text.is_empty() {
            self.history.said.push(action.text.clone());
        }
        if action.calls.is_empty() {
            if action.text.contains('?') {
                if self.task.id_missing && self.history.calls.is_empty() {
                    self.history.asked_for_id |= action.text.to_lowercase().contains("user id");
                }
                messages.push(Message::new(Role::User, words::answer(&self.records, &action.text)));
            } else {
                self.done = true;
            }
        }
        let reply = StepReply { messages, done: self.done };
        self.replies.insert(step_id, reply.clone());
        Ok(reply)
    }

    fn verdict(&mut self) -> Result<Verdict, EnvError> {
        let mut checks = verify::outcome(&self.task, &self.records, &self.history);
        let mean = checks.iter().map(|c| c.score).sum::<f64>() / checks.len() as f64;
        let all = checks.iter().all(|c| c.score >= 1.0);
        let told = checks.iter().any(|c| c.name == OUTCOME[2] && c.score > 0.0);
        checks.extend(verify::process(&self.task, &self.history));
        let reward = match self.reward {
            Reward::AllOrNothing => f64::from(u8::from(all)),
            Reward::MeanCheck => {
                if told {
                    mean
                } else {
                    0.0
                }
            }
        };
        Verdict { reward, checks }.validated()
    }

    fn oracle(&mut self) -> Result<Option<Action>, EnvError> {
        Ok(script(&self.task, Lapses::NONE).into_iter().nth(self.turns))
    }
}

#[cfg(test)]
mod tests;
