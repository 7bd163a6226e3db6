//! Environments and policies that behave, or misbehave, as their names say.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ractor::{Actor, ActorProcessingErr, ActorRef};
use serde_json::json;
use tempfile::TempDir;
use trace_envs::{
    Action, Call, Check, EnvError, EnvSpec, Environment, Episode, Message, Opening, Role, StepReply, ToolSpec, Verdict,
};
use trace_policy::chat::{Chat, ChatTemplate};
use trace_policy::tokenizer::{BASE_TOKENS, train_bpe};

use crate::serving::{FinishReason, PolicyFailure, PolicyMessage, SampledTurn, TurnRequest, TurnResult};

/// A customer asks for a number that only the tool `count` knows; the episode ends with the first text.
pub(super) struct CountingEnv {
    spec: EnvSpec,
    /// As many references beside this one as there are episodes.
    pub(super) alive: Arc<()>,
}

/// What a [`CountingEnv`] does at a call, by seed, name of the call and number of the attempt.
type Mischief = dyn Fn(u64, &str, usize) -> Result<(), EnvError> + Send + Sync;

/// A [`CountingEnv`] in which something happens before each call is answered.
pub(super) struct MischievousEnv {
    inner: CountingEnv,
    mischief: Arc<Mischief>,
    attempts: Mutex<BTreeMap<u64, usize>>,
}

struct CountingEpisode {
    seed: u64,
    attempt: usize,
    opening: Opening,
    steps: BTreeMap<u64, StepReply>,
    said: Option<String>,
    looked_up: bool,
    mischief: Arc<Mischief>,
    _alive: Arc<()>,
}

/// The number that the tool knows.
pub(super) fn number(seed: u64) -> u64 {
    seed % 10
}

impl CountingEnv {
    pub(super) fn new() -> Self {
        let tool = ToolSpec {
            name: "count".into(),
            description: "Counts.".into(),
            parameters: json!({"type": "object", "properties": {"what": {"type": "string"}}}),
        };
        let spec = EnvSpec {
            name: "counting".into(),
            description: "Counts things.".into(),
            capability: Some("counting".into()),
            levels: 3,
            max_turns: 4,
            tools: vec![tool],
            evidence: Vec::new(),
        };
        Self { spec, alive: Arc::new(()) }
    }

    fn episode(&self, seed: u64, level: u32, attempt: usize, mischief: Arc<Mischief>) -> Box<dyn Episode> {
        let messages = vec![
            Message::new(Role::System, "You count."),
            Message::new(Role::User, format!("How many for {seed} at level {level}?")),
        ];
        let opening = Opening {
            messages,
            tools: self.spec.tools.clone(),
            hint: Some("Ask the tool first.".into()),
            level: level.max(1),
        };
        Box::new(CountingEpisode {
            seed,
            attempt,
            opening,
            steps: BTreeMap::new(),
            said: None,
            looked_up: false,
            mischief,
            _alive: Arc::clone(&self.alive),
        })
    }
}

impl Environment for CountingEnv {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&self, seed: u64, level: u32) -> Result<Box<dyn Episode>, EnvError> {
        Ok(self.episode(seed, level, 0, Arc::new(|_, _, _| Ok(()))))
    }
}

impl MischievousEnv {
    fn new(mischief: impl Fn(u64, &str, usize) -> Result<(), EnvError> + Send + Sync + 'static) -> Arc<Self> {
        let attempts = Mutex::new(BTreeMap::new());
        Arc::new(Self { inner: CountingEnv::new(), mischief: Arc::new(mischief), attempts })
    }
}

impl Environment for MischievousEnv {
    fn spec(&self) -> &EnvSpec {
        &self.inner.spec
    }

    fn reset(&self, seed: u64, level: u32) -> Result<Box<dyn Episode>, EnvError> {
        let attempt = {
            let mut attempts = self.attempts.lock().unwrap();
            let attempt = attempts.entry(seed).or_default();
            *attempt += 1;
            *attempt - 1
        };
        (self.mischief)(seed, "reset", attempt)?;
        Ok(self.inner.episode(seed, level, attempt, Arc::clone(&self.mischief)))
    }
}

impl Episode for CountingEpisode {
    fn opening(&self) -> &Opening {
        &self.opening
    }

    fn step(&mut self, step_id: u64, action: &Action) -> Result<StepReply, EnvError> {
        if let Some(reply) = self.steps.get(&step_id) {
            return Ok(reply.clone());
        }
        (self.mischief)(self.seed, &format!("step {step_id}"), self.attempt)?;
        let observe = |call: &Call| match call {
            Call::Tool(call) if call.name == "count" => {
                self.looked_up = true;
                Message::new(Role::Tool, number(self.seed).to_string())
            }
            Call::Tool(call) => Message::new(Role::Tool, format!("{{\"error\":\"no tool {}\"}}", call.name)),
            Call::Malformed { error, .. } => Message::new(Role::Tool, format!("{{\"error\":\"{error}\"}}")),
        };
        let mut messages: Vec<Message> = action.calls.iter().map(observe).collect();
        let done = action.calls.is_empty() && !action.text.ends_with('?');
        if done {
            self.said = Some(action.text.clone());
        } else if messages.is_empty() {
            messages.push(Message::new(Role::User, "I do not know."));
        }
        let reply = StepReply { messages, done };
        self.steps.insert(step_id, reply.clone());
        Ok(reply)
    }

    fn verdict(&mut self) -> Result<Verdict, EnvError> {
        (self.mischief)(self.seed, "verdict", self.attempt)?;
        let right = self.said.as_deref() == Some(number(self.seed).to_string().as_str());
        let check = |name: &str, met: bool, weight| Check {
            name: name.into(),
            score: f64::from(u8::from(met)),
            weight,
            detail: String::new(),
        };
        let checks = vec![check("right", right, 1.0), check("looked_up", self.looked_up, 0.0)];
        Ok(Verdict { reward: f64::from(u8::from(right)), checks })
    }

    fn oracle(&mut self) -> Result<Option<Action>, EnvError> {
        Ok(None)
    }
}

fn refusal(step_id: u64) -> EnvError {
    EnvError::Step { step_id, reason: "out of order".into() }
}

/// Never returns from a call of one seed, on the first `attempts` attempts.
pub(super) struct HangingEnv;

impl HangingEnv {
    pub(super) fn at(call: &'static str, seed: u64, attempts: usize) -> Arc<MischievousEnv> {
        MischievousEnv::new(move |s, c, attempt| {
            if s == seed && c == call && attempt < attempts {
                std::thread::sleep(Duration::from_secs(30));
            }
            Ok(())
        })
    }
}

/// Panics at a call of one seed, on the first `attempts` attempts.
pub(super) struct PanickingEnv;

impl PanickingEnv {
    pub(super) fn at(call: &'static str, seed: u64, attempts: usize) -> Arc<MischievousEnv> {
        MischievousEnv::new(move |s, c, attempt| {
            assert!(!(s == seed && c == call && attempt < attempts), "the environment's own panic");
            Ok(())
        })
    }
}

/// Refuses a call of the seeds that match, always.
pub(super) struct RefusingEnv;

impl RefusingEnv {
    pub(super) fn at(call: &'static str, seeds: fn(u64) -> bool) -> Arc<MischievousEnv> {
        MischievousEnv::new(move |s, c, _| if seeds(s) && c == call { Err(refusal(0)) } else { Ok(()) })
    }
}

/// Cannot begin an episode of the seeds that match.
pub(super) struct ResetFailsEnv;

impl ResetFailsEnv {
    pub(super) fn on(seeds: fn(u64) -> bool) -> Arc<MischievousEnv> {
        MischievousEnv::new(move |seed, call, _| {
            if call == "reset" && seeds(seed) {
                return Err(EnvError::Reset { seed, reason: "the database is down".into() });
            }
            Ok(())
        })
    }
}

/// Answers after a time that differs from call to call.
pub(super) struct UnevenEnv;

impl UnevenEnv {
    pub(super) fn shared() -> Arc<MischievousEnv> {
        let calls = AtomicUsize::new(0);
        MischievousEnv::new(move |_, _, _| {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros((call as u64 * 7919) % 3000));
            Ok(())
        })
    }
}

/// What a scripted policy writes, given the number of the turn and the text so far.
pub(super) type Script = dyn Fn(u64, &str) -> String + Send + Sync;

/// A policy server that writes what its script says, and finishes at most `at_once` turns per call.
#[derive(Clone)]
pub(super) struct ScriptedPolicy {
    pub(super) chat: Chat,
    pub(super) script: Arc<Script>,
    pub(super) at_once: usize,
    /// True where it samples letter by letter, whatever the tokenizer would make of the whole text.
    pub(super) spells: bool,
    /// What the log-prob of every token is.
    pub(super) logprob: f32,
    /// Turns sampled, over all restarts.
    pub(super) turns: Arc<AtomicUsize>,
}

impl ScriptedPolicy {
    fn turn(&self, request: &TurnRequest) -> TurnResult {
        let context = self.chat.tokenizer().decode(&request.context).unwrap();
        let said = (self.script)(request.stream[3], &context);
        let encode = |text: &str| self.chat.tokenizer().encode(text).unwrap();
        let mut tokens = match self.spells {
            true => said.split_inclusive(|_| true).flat_map(encode).collect(),
            false => encode(&said),
        };
        let mut finish = FinishReason::Stop;
        tokens.push(request.stop_ids[0]);
        if tokens.len() > request.max_tokens {
            tokens.truncate(request.max_tokens);
            finish = FinishReason::Length;
        }
        self.turns.fetch_add(1, Ordering::Relaxed);
        let logprobs = vec![self.logprob; tokens.len()];
        TurnResult {
            session: request.session,
            outcome: Ok(SampledTurn { version: 3, tokens, logprobs, slots: None, finish }),
        }
    }
}

impl Actor for ScriptedPolicy {
    type Msg = PolicyMessage;
    type State = BTreeMap<String, VecDeque<TurnRequest>>;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<PolicyMessage>, (): ()) -> Result<Self::State, ActorProcessingErr> {
        Ok(BTreeMap::new())
    }

    async fn handle(
        &self,
        _: ActorRef<PolicyMessage>,
        message: PolicyMessage,
        waves: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PolicyMessage::Open { wave, reply, .. } => {
                waves.insert(wave, VecDeque::new());
                let _ = reply.send(Ok(()));
            }
            PolicyMessage::Advance { wave, requests, reply, .. } => {
                let Some(queue) = waves.get_mut(&wave) else {
                    let _ = reply.send(Err(PolicyFailure::UnknownWave(wave)));
                    return Ok(());
                };
                queue.extend(requests);
                let now = self.at_once.min(queue.len());
                let turns = queue.drain(..now).map(|request| self.turn(&request)).collect();
                let _ = reply.send(Ok(turns));
            }
            PolicyMessage::Close { wave } => drop(waves.remove(&wave)),
        }
        Ok(())
    }
}

/// Looks the number up, then says it.
pub(super) fn looks_up(turn: u64, context: &str) -> String {
    if turn == 0 {
        return "<tool_call>\n{\"name\": \"count\", \"arguments\": {\"what\": \"all\"}}\n</tool_call>".into();
    }
    let result = context.rsplit("<tool_response>\n").next().unwrap_or("");
    result.split('\n').next().unwrap_or("").to_owned()
}

const TEMPLATE: &str = "\
{%- for m in messages -%}
<|im_start|>{{ m.role if m.role != 'tool' else 'user' }}
{% if m.role == 'tool' %}<tool_response>
{{ m.content }}
</tool_response>{% elif m.role == 'assistant' and drop_thinking is defined and not loop.last %}\
{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor -%}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}";

/// A chat with a small tokenizer of its own. `drop_thinking` lets the template forget old thinking.
pub(super) fn chat(drop_thinking: bool) -> Chat {
    let dir = TempDir::new().unwrap();
    let corpus =
        "You count. How many for 12 at level 3? I do not know. Ask the tool first. count name arguments what all";
    let tokenizer = train_bpe(std::iter::repeat_n(corpus.to_owned(), 8), 290, &BASE_TOKENS, dir.path()).unwrap();
    let mut template = ChatTemplate::new(TEMPLATE, tokenizer.special_tokens(), SystemTime::UNIX_EPOCH).unwrap();
    if drop_thinking {
        template = template.with_variable("drop_thinking", &json!(true));
    }
    Chat::new(Arc::new(tokenizer), Arc::new(template))
}

/// Takes a time for each call.
pub(super) struct SlowEnv;

impl SlowEnv {
    pub(super) fn taking(time: Duration) -> Arc<MischievousEnv> {
        MischievousEnv::new(move |_, _, _| {
            std::thread::sleep(time);
            Ok(())
        })
    }
}

/// Answers otherwise when an episode is begun anew, and fails once so that it is.
pub(super) struct ForgetfulEnv;

struct ForgetfulEpisode(Box<dyn Episode>, bool);

impl ForgetfulEnv {
    pub(super) fn shared() -> Arc<impl Environment> {
        struct Forgetful(Arc<MischievousEnv>, AtomicUsize);
        impl Environment for Forgetful {
            fn spec(&self) -> &EnvSpec {
                self.0.spec()
            }
            fn reset(&self, seed: u64, level: u32) -> Result<Box<dyn Episode>, EnvError> {
                let first = self.1.fetch_add(1, Ordering::Relaxed) < 2;
                Ok(Box::new(ForgetfulEpisode(self.0.reset(seed, level)?, first)))
            }
        }
        Arc::new(Forgetful(MischievousEnv::new(|_, _, _| Ok(())), AtomicUsize::new(0)))
    }
}

impl Episode for ForgetfulEpisode {
    fn opening(&self) -> &Opening {
        self.0.opening()
    }

    fn step(&mut self, step_id: u64, action: &Action) -> Result<StepReply, EnvError> {
        if self.1 && step_id == 1 {
            return Err(refusal(step_id));
        }
        let mut reply = self.0.step(step_id, action)?;
        if !self.1 {
            reply.messages.iter_mut().for_each(|m| m.content.push('!'));
        }
        Ok(reply)
    }

    fn verdict(&mut self) -> Result<Verdict, EnvError> {
        self.0.verdict()
    }

    fn oracle(&mut self) -> Result<Option<Action>, EnvError> {
        self.0.oracle()
    }
}
