//! The worker's side: holds episodes of one Python file and answers the protocol.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::sync::atomic::Ordering;

use monty_types::{BASELINE_MEMORY, LIVE_MEMORY, MontyObject};
use serde::Deserialize;
use serde_json::{Value, json};

use super::plain::{plain_size, to_json, to_python};
use super::program::{Limits, Op, Program};
use super::rng::{EpisodeRng, draw_level};
use crate::contract::{
    Action, Call, CapabilityEvidence, Check, EnvSpec, Message, Opening, Role, StepReply, ToolCall, ToolSpec, Verdict,
};
use crate::process::protocol::{Envelope, Request, reply_line};

/// Episodes that one worker holds at a time. At the state limit of 1 MiB each, most of a worker's address space.
const MAX_EPISODES: usize = 1024;

/// Answers requests until the input ends. Nothing but replies is written to `output`; what the file prints goes to
/// standard error.
///
/// # Errors
/// Where input or output fails.
pub fn serve(input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let mut host = None;
    for line in input.lines() {
        let line = line?;
        let mut reply = match serde_json::from_str::<Envelope>(&line) {
            Ok(Envelope { id, request }) => reply_line(id, answer(&mut host, request)),
            Err(e) => reply_line(0, Err(format!("the request cannot be read: {e}"))),
        };
        reply.push('\n');
        output.write_all(reply.as_bytes())?;
        output.flush()?;
    }
    Ok(())
}

fn answer(host: &mut Option<Host>, request: Request) -> Result<Value, String> {
    if let Request::Load { name, source, limits } = request {
        *host = Some(Host::load(&name, &source, limits)?);
        return Ok(Value::Null);
    }
    let host = host.as_mut().ok_or("no file was loaded")?;
    let written = |e: serde_json::Error| e.to_string();
    match request {
        Request::Load { .. } => unreachable!("handled above"),
        Request::Spec => serde_json::to_value(&host.spec).map_err(written),
        Request::Reset { episode, seed, level } => {
            serde_json::to_value(host.reset(episode, seed, level)?).map_err(written)
        }
        Request::Step { episode, action, .. } => serde_json::to_value(host.step(episode, action)?).map_err(written),
        Request::Verdict { episode } => serde_json::to_value(host.verdict(episode)?).map_err(written),
        Request::Oracle { episode } => serde_json::to_value(host.oracle(episode)?).map_err(written),
        Request::Close { episodes } => {
            for episode in episodes {
                host.episodes.remove(&episode);
            }
            Ok(Value::Null)
        }
    }
}

/// `SPEC` as a file writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PythonSpec {
    name: String,
    description: String,
    #[serde(default)]
    capability: Option<String>,
    levels: u32,
    /// How often level 0 means level 1, 2, ...; equally often where absent.
    #[serde(default)]
    mix: Option<Vec<f64>>,
    max_turns: u32,
    tools: Vec<ToolSpec>,
    #[serde(default)]
    evidence: Vec<CapabilityEvidence>,
}

/// What `oracle` returns.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PythonAction {
    #[serde(default)]
    text: String,
    #[serde(default)]
    calls: Vec<ToolCall>,
}

/// One element of what `verdict` returns.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PythonVerdict {
    reward: f64,
    checks: Vec<Check>,
}

/// A message of `state["messages"]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PythonMessage {
    role: Role,
    content: String,
}

struct Host {
    program: Program,
    spec: EnvSpec,
    mix: Vec<f64>,
    /// The state of each living episode, as the file returned it.
    episodes: HashMap<u64, MontyObject>,
}

impl Host {
    fn load(name: &str, source: &str, limits: Limits) -> Result<Self, String> {
        let mut program = Program::compile(name, source, limits)?;
        let spec = run(&mut program, Op::Spec, MontyObject::None, MontyObject::None, None)?;
        let spec: PythonSpec = read("SPEC", &spec)?;
        let even = vec![1.0; spec.levels as usize];
        let mix = spec.mix.unwrap_or_else(|| even.clone());
        if mix.len() != even.len() || !mix.iter().all(|w| *w >= 0.0) || (mix != even && mix.iter().sum::<f64>() <= 0.0)
        {
            return Err(format!("SPEC[\"mix\"] needs {} weights >= 0, not all 0", spec.levels));
        }
        let spec = EnvSpec {
            name: spec.name,
            description: spec.description,
            capability: spec.capability,
            levels: spec.levels,
            max_turns: spec.max_turns,
            tools: spec.tools,
            evidence: spec.evidence,
        };
        Ok(Self { program, spec, mix, episodes: HashMap::new() })
    }

    fn state(&self, episode: u64) -> Result<MontyObject, String> {
        self.episodes.get(&episode).cloned().ok_or_else(|| format!("no episode {episode} is open"))
    }

    fn reset(&mut self, episode: u64, seed: u64, level: u32) -> Result<Opening, String> {
        if self.episodes.len() >= MAX_EPISODES {
            return Err(format!("{MAX_EPISODES} episodes are open already: close some"));
        }
        if level > self.spec.levels {
            return Err(format!("level {level} is above the {} of SPEC[\"levels\"]", self.spec.levels));
        }
        let level = if level == 0 { draw_level(seed, &self.mix) } else { level };
        let mut rng = EpisodeRng::new(seed, level);
        let argument = MontyObject::Int(i64::from(level));
        let [state, hint] = parts(run(&mut self.program, Op::Reset, MontyObject::None, argument, Some(&mut rng))?)?;
        self.check_state(&state)?;
        let messages: Vec<PythonMessage> = match item(&state, "messages") {
            Some(messages) => read("state[\"messages\"]", messages)?,
            None => return Err("reset() must return a dict with \"messages\"".to_string()),
        };
        if messages.first().map(|m| m.role) != Some(Role::System) {
            return Err("state[\"messages\"] must begin with a message of the role \"system\"".to_string());
        }
        let tools = match item(&state, "tools") {
            None => self.spec.tools.clone(),
            Some(names) => {
                let names: Vec<String> = read("state[\"tools\"]", names)?;
                let find = |name: &String| {
                    let found = self.spec.tools.iter().find(|t| t.name == *name).cloned();
                    found.ok_or_else(|| format!("state[\"tools\"] names {name:?}, which SPEC[\"tools\"] lacks"))
                };
                names.iter().map(find).collect::<Result<_, _>>()?
            }
        };
        let hint: Option<String> = read("hint()", &hint)?;
        let messages = messages.into_iter().map(|m| Message::new(m.role, m.content)).collect();
        self.episodes.insert(episode, state);
        Ok(Opening { messages, tools, hint, level })
    }

    fn step(&mut self, episode: u64, action: Action) -> Result<StepReply, String> {
        let state = self.state(episode)?;
        let mut calls = Vec::with_capacity(action.calls.len());
        for call in action.calls {
            match call {
                Call::Tool(call) => calls.push(json!({"name": call.name, "arguments": call.arguments})),
                Call::Malformed { error, .. } => return Err(format!("a malformed call reached the worker: {error}")),
            }
        }
        let argument = to_python(&json!({"text": action.text, "calls": calls}));
        let [state, observations, answer] = parts(run(&mut self.program, Op::Step, state, argument, None)?)?;
        self.check_state(&state)?;
        let spoken = calls.is_empty();
        let answer: Option<String> = read("reply()", &answer)?;
        let observations: Vec<Value> = read("call()", &observations)?;
        let done = match item(&state, "done") {
            None => false,
            Some(MontyObject::Bool(done)) => *done,
            Some(other) => return Err(format!("state[\"done\"] must be True or False, not {other}")),
        };
        let mut messages: Vec<Message> =
            observations.iter().map(|o| Message::new(Role::Tool, observation_text(o))).collect();
        // A customer without an answer has left.
        let done = done || (spoken && answer.is_none());
        messages.extend(answer.map(|text| Message::new(Role::User, text)));
        let size: usize = messages.iter().map(|m| m.content.len()).sum();
        if size > self.program.limits().reply_bytes {
            return Err(format!("a reply of {size} bytes is above the limit of {}", self.program.limits().reply_bytes));
        }
        self.episodes.insert(episode, state);
        Ok(StepReply { messages, done })
    }

    fn verdict(&mut self, episode: u64) -> Result<Verdict, String> {
        let state = self.state(episode)?;
        let verdict = run(&mut self.program, Op::Verdict, state, MontyObject::None, None)?;
        let PythonVerdict { reward, checks } = read("verdict()", &verdict)?;
        Ok(Verdict { reward, checks })
    }

    fn oracle(&mut self, episode: u64) -> Result<Option<Action>, String> {
        let state = self.state(episode)?;
        let action = run(&mut self.program, Op::Oracle, state, MontyObject::None, None)?;
        let action: Option<PythonAction> = read("oracle()", &action)?;
        Ok(action.map(|a| Action { text: a.text, calls: a.calls.into_iter().map(Call::Tool).collect() }))
    }

    fn check_state(&self, state: &MontyObject) -> Result<(), String> {
        if !matches!(state, MontyObject::Dict(_)) {
            return Err(format!("the state must be a dict, not {state}"));
        }
        let size = plain_size(state, "state")?;
        let limit = self.program.limits().state_bytes;
        if size > limit { Err(format!("a state of {size} bytes is above the limit of {limit}")) } else { Ok(()) }
    }
}

/// The text of a tool's result: a text as it is, anything else as compact JSON.
fn observation_text(result: &Value) -> String {
    match result {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The value of a dict's key.
fn item<'a>(dict: &'a MontyObject, key: &str) -> Option<&'a MontyObject> {
    match dict {
        MontyObject::Dict(pairs) => {
            pairs.into_iter().find(|(k, _)| matches!(k, MontyObject::String(s) if s == key)).map(|(_, v)| v)
        }
        _ => None,
    }
}

/// What the harness returned, taken apart.
fn parts<const N: usize>(value: MontyObject) -> Result<[MontyObject; N], String> {
    match value {
        MontyObject::List(items) => items.try_into().map_err(|_| "the harness returned another list".to_string()),
        _ => Err("the harness returned no list".to_string()),
    }
}

/// Reads a value of the file as a `T`; `place` is what the author calls it.
fn read<T: for<'de> Deserialize<'de>>(place: &str, value: &MontyObject) -> Result<T, String> {
    serde_json::from_value(to_json(value, place)?).map_err(|e| format!("{place} cannot be used: {e}"))
}

/// Runs one call under its limits; what it printed goes to standard error.
fn run(
    program: &mut Program,
    op: Op,
    state: MontyObject,
    argument: MontyObject,
    rng: Option<&mut EpisodeRng>,
) -> Result<MontyObject, String> {
    let limits = program.limits().clone();
    // Each call is charged for what it allocates itself, not for the states that the worker holds.
    BASELINE_MEMORY.store(LIVE_MEMORY.load(Ordering::Relaxed), Ordering::Relaxed);
    // Without the counting allocator (in a test within one process) only the other limits hold.
    let counted = monty_alloc::set_limit(Some(limits.memory_bytes), false).is_ok();
    super::rlimits::allow_cpu_seconds(limits.seconds);
    let (result, printed) = program.call(op, state, argument, rng);
    if counted {
        // The conversion of the result is ours and bounded by the size limits.
        let _ = monty_alloc::set_limit(None, false);
    }
    if !printed.is_empty() {
        eprint!("{printed}");
    }
    result
}
