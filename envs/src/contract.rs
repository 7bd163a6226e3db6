//! The contract between an environment and whoever acts in it.
//!
//! An [`Environment`] makes [`Episode`]s. An episode is a pure function of (seed, level, actions): it opens with
//! messages and tools, answers each [`Action`] with messages, and at its end gives a [`Verdict`]. A step that is
//! repeated under the same `step_id` returns the same reply without acting again, so a lost reply can be retried.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::failure::EnvError;

/// Who speaks in a message, in OpenAI's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The policy text, the rules and the tools.
    System,
    /// The customer (or whoever the agent serves).
    User,
    /// The policy under training.
    Assistant,
    /// The result of one tool call.
    Tool,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; for `Tool` the result as text (usually JSON).
    pub content: String,
    /// The calls of an assistant's turn; empty elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

impl Message {
    /// A message without tool calls.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), tool_calls: Vec::new() }
    }
}

/// A well-formed call of a tool: the arguments are a JSON object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// Its arguments by name, in the order in which the policy wrote them.
    pub arguments: Map<String, Value>,
}

/// One call as the policy wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Call {
    /// A call that can be executed.
    Tool(ToolCall),
    /// A call that could not be read: nothing is executed, and the policy gets an error observation.
    Malformed {
        /// What the policy wrote between the tags.
        raw: String,
        /// Why it could not be read, in a sentence.
        error: String,
    },
}

/// What the policy does in one turn: text for the customer, calls, or both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// Text outside of tool calls, trimmed.
    pub text: String,
    /// Calls in the order written.
    #[serde(default)]
    pub calls: Vec<Call>,
}

impl Action {
    /// A turn that only speaks.
    pub fn say(text: impl Into<String>) -> Self {
        Self { text: text.into(), calls: Vec::new() }
    }

    /// A turn that calls one tool.
    pub fn call(name: impl Into<String>, arguments: Map<String, Value>) -> Self {
        Self { text: String::new(), calls: vec![Call::Tool(ToolCall { name: name.into(), arguments })] }
    }
}

/// The environment's answer to an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepReply {
    /// One `Tool` message per call, in order, and then possibly a `User` message. Empty when the episode is done
    /// and nothing more is said.
    pub messages: Vec<Message>,
    /// True when the episode takes no further action.
    pub done: bool,
}

/// One named check of a verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The check's name, stable across episodes.
    pub name: String,
    /// How well it was met, in `[0, 1]`.
    pub score: f64,
    /// Its weight in the reward; 0 marks a *process* check: evidence for analysis, not part of the reward.
    pub weight: f64,
    /// What was expected and what was found, for a reader.
    #[serde(default)]
    pub detail: String,
}

/// The end of an episode, judged by program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// In `[0, 1]`, finite.
    pub reward: f64,
    /// What the reward is made of, and the process checks. A check that does not apply to this task is absent.
    pub checks: Vec<Check>,
}

impl Verdict {
    /// Refuses what is not a verdict: a reward or score that is not finite or outside `[0, 1]`, a negative weight.
    pub fn validated(self) -> Result<Self, EnvError> {
        let in_range = |x: f64| x.is_finite() && (0.0..=1.0).contains(&x);
        if !in_range(self.reward) {
            return Err(EnvError::BadVerdict(format!("reward {} is not a number in [0, 1]", self.reward)));
        }
        for check in &self.checks {
            if !in_range(check.score) {
                return Err(EnvError::BadVerdict(format!(
                    "check {:?} has score {}, not a number in [0, 1]",
                    check.name, check.score
                )));
            }
            if !(check.weight.is_finite() && check.weight >= 0.0) {
                return Err(EnvError::BadVerdict(format!(
                    "check {:?} has weight {}, not a number >= 0",
                    check.name, check.weight
                )));
            }
        }
        Ok(self)
    }
}

/// A tool in OpenAI's function schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// The tool's name.
    pub name: String,
    /// What it does, in a line.
    pub description: String,
    /// JSON Schema of its arguments (an object schema).
    pub parameters: Value,
}

/// Which process check speaks for which capability.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapabilityEvidence {
    /// The capability's name, such as `precondition_verification`.
    pub capability: String,
    /// What it is, in a sentence.
    pub description: String,
    /// The checks whose scores say whether it was present: all 1 means present, any below 1 lacking, none there
    /// means not applicable.
    pub checks: Vec<String>,
}

/// What an environment is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnvSpec {
    /// The environment's name.
    pub name: String,
    /// What it exercises, in a sentence.
    pub description: String,
    /// The capability that it isolates; `None` for a target world.
    #[serde(default)]
    pub capability: Option<String>,
    /// Levels of difficulty, `1..=levels`. Level 0 asks for the environment's own mix.
    pub levels: u32,
    /// The most assistant turns of an episode; an episode that needs more is truncated.
    pub max_turns: u32,
    /// All tools that episodes may offer.
    pub tools: Vec<ToolSpec>,
    /// Which process check speaks for which capability.
    #[serde(default)]
    pub evidence: Vec<CapabilityEvidence>,
}

/// How an episode begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opening {
    /// The system message first, then usually the customer's.
    pub messages: Vec<Message>,
    /// The tools of this episode: a subset of the spec's.
    pub tools: Vec<ToolSpec>,
    /// One sentence that helps with what the environment exercises; given to the policy only where a hint is asked
    /// for, in a marked span at the end of the system message.
    #[serde(default)]
    pub hint: Option<String>,
    /// The level that this episode has (never 0).
    pub level: u32,
}

/// Something that makes episodes. Cheap to share between threads.
pub trait Environment: Send + Sync {
    /// What this environment is.
    fn spec(&self) -> &EnvSpec;

    /// A new episode: the same seed and level give the same one, always and everywhere.
    ///
    /// # Errors
    /// Where the environment cannot start one; the caller may retry with the same seed.
    fn reset(&self, seed: u64, level: u32) -> Result<Box<dyn Episode>, EnvError>;
}

/// One episode. Calls block: they belong on a thread that may wait.
pub trait Episode: Send {
    /// How it began.
    fn opening(&self) -> &Opening;

    /// Acts. A `step_id` that was answered before returns that answer again without acting.
    ///
    /// # Errors
    /// Failures of the environment, never of the policy: a bad tool call is answered with an error observation.
    fn step(&mut self, step_id: u64, action: &Action) -> Result<StepReply, EnvError>;

    /// Judges what has happened so far.
    ///
    /// # Errors
    /// Failures of the environment: they are never a reward.
    fn verdict(&mut self) -> Result<Verdict, EnvError>;

    /// What a policy without lapses does now; `None` where the environment has no oracle.
    ///
    /// # Errors
    /// Failures of the environment.
    fn oracle(&mut self) -> Result<Option<Action>, EnvError>;
}
