//! One rollout under way: its episode, its conversation, and the rows that it becomes.

mod ask;
mod row;

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use trace_envs::{Action, Call, Message, Opening, Role, StepReply, ToolCall, ToolSpec, Verdict};
use trace_policy::chat::{ChatError, Conversation, Extension};
use trace_policy::toolcall::{ParsedCall, ParsedTurn};

use self::ask::{Answer, Ask};
use super::wave::{Crew, WaveError};
use crate::plan::{Limits, WavePlan};
use crate::rows::{Status, TokenColumns, TokenSpan, TurnRow};
use crate::serving::{FinishReason, TurnRequest, TurnResult};

/// Where a rollout stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Standing {
    /// The policy is to write.
    PolicysTurn,
    /// The environment is to answer this action.
    EnvironmentsTurn(Action),
    /// The episode is over; its verdict is to be asked for.
    Over(Status),
    /// It has its end: a status, and why it failed.
    Ended(Status, Option<String>),
}

/// A segment under way.
struct Draft {
    columns: TokenColumns,
    turns: Vec<TurnRow>,
    hint_span: Option<TokenSpan>,
}

/// One rollout of a wave.
pub(super) struct Seat {
    /// Index within the wave, which is its session with the policy server.
    pub(super) index: usize,
    pub(super) group: u64,
    pub(super) rollout: u16,
    pub(super) standing: Standing,
    seed: u64,
    level: u32,
    hint: bool,
    attempt: u8,
    /// The environment server's name for the episode; `None` while there is none.
    episode: Option<u64>,
    max_turns: u32,
    /// How long the environment took in all, against the episode's limit.
    env_spent: Duration,
    opening: Option<Opening>,
    /// What was done and answered, to bring an episode that is begun anew to where it was.
    history: Vec<Action>,
    replies: Vec<StepReply>,
    conversation: Option<Conversation>,
    drafts: Vec<Draft>,
    verdict: Option<Verdict>,
    started_at: SystemTime,
    started: Instant,
    turn_begun: Instant,
}

impl Seat {
    pub(super) fn new(index: usize, group: u64, rollout: u16, seed: u64, level: u32, hint: bool) -> Self {
        Self {
            index,
            group,
            rollout,
            standing: Standing::PolicysTurn,
            seed,
            level,
            hint,
            attempt: 0,
            episode: None,
            max_turns: 0,
            env_spent: Duration::ZERO,
            opening: None,
            history: Vec::new(),
            replies: Vec::new(),
            conversation: None,
            drafts: Vec::new(),
            verdict: None,
            started_at: SystemTime::now(),
            started: Instant::now(),
            turn_begun: Instant::now(),
        }
    }

    /// Begins the episode and the conversation.
    pub(super) async fn begin(&mut self, crew: &Crew, plan: &WavePlan) -> Result<(), WaveError> {
        (self.started_at, self.started) = (SystemTime::now(), Instant::now());
        match self.ask(crew, plan, Ask::Begin).await? {
            Err(failure) => self.fail(Status::EnvironmentFailed, failure.to_string()),
            Ok(_) => self.open_conversation(crew).map_err(|e| WaveError::Chat { seed: self.seed, source: e.into() })?,
        }
        Ok(())
    }

    fn open_conversation(&mut self, crew: &Crew) -> Result<(), ChatError> {
        let Some(opening) = &self.opening else { return Ok(()) };
        let hint = match (self.hint, &opening.hint) {
            (false, _) => None,
            (true, Some(hint)) => Some(hint.as_str()),
            (true, None) => {
                return Err(ChatError::Hint("a hint was asked for, but this episode has none".to_owned()));
            }
        };
        let messages = opening.messages.iter().map(message_json).collect();
        let tools = opening.tools.iter().map(tool_json).collect();
        let conversation = crew.chat.open(messages, tools, hint)?;
        let opened: Vec<Message> = opening.messages.clone();
        self.begin_segment(&conversation);
        self.conversation = Some(conversation);
        self.add_given_turns(&opened, self.prompt_span());
        self.next_turn(&crew.limits);
        Ok(())
    }

    /// A new segment with the conversation's present tokens as its prompt.
    fn begin_segment(&mut self, conversation: &Conversation) {
        let mut columns = TokenColumns::default();
        columns.extend_given(conversation.tokens());
        let span = conversation.segments().last().and_then(|s| s.hint_span);
        let hint_span = span.map(|s| TokenSpan { start: s.start as u32, end: s.end as u32 });
        self.drafts.push(Draft { columns, turns: Vec::new(), hint_span });
    }

    /// The span of all tokens of the present segment.
    fn prompt_span(&self) -> Option<TokenSpan> {
        self.drafts.last().map(|d| TokenSpan { start: 0, end: d.columns.tokens.len() as u32 })
    }

    fn add_given_turns(&mut self, messages: &[Message], span: Option<TokenSpan>) {
        let Some(draft) = self.drafts.last_mut() else { return };
        draft.turns.extend(messages.iter().map(|message| TurnRow {
            role: message.role,
            text: message.content.clone(),
            tool_calls: message.tool_calls.iter().cloned().map(Call::Tool).collect(),
            // An assistant's turn that the environment wrote is not the policy's: its tokens were not sampled.
            span: span.filter(|_| message.role != Role::Assistant),
            policy_ms: None,
            env_ms: None,
            finish_reason: None,
        }));
    }

    /// The policy's turn, unless there is no room for one.
    fn next_turn(&mut self, limits: &Limits) {
        let turns = self.history.len() as u32;
        let room = limits.max_context > self.context_length();
        let allowed = turns < self.max_turns.min(limits.max_turns);
        self.standing = if room && allowed { Standing::PolicysTurn } else { Standing::Over(Status::Truncated) };
    }

    fn context_length(&self) -> usize {
        self.conversation.as_ref().map_or(0, |c| c.tokens().len())
    }

    /// The next turn as a request to the policy server.
    pub(super) fn request(&mut self, crew: &Crew, plan: &WavePlan, unit_key: u64) -> Option<TurnRequest> {
        let conversation = self.conversation.as_ref()?;
        self.turn_begun = Instant::now();
        let context = conversation.tokens().to_vec();
        let room = crew.limits.max_context.saturating_sub(context.len());
        let place = (self.group << 16) | u64::from(self.rollout);
        Some(TurnRequest {
            session: self.index as u64,
            // The prefix is that of the first prompt; a later segment has another.
            shared_prefix: if self.drafts.len() == 1 { conversation.system_tokens() } else { 0 },
            max_tokens: room.min(crew.limits.max_turn_tokens),
            context,
            sampling: plan.sampling,
            stop_ids: crew.chat.tokenizer().stop_ids().to_vec(),
            stream: [crew.run_seed, unit_key, place, self.history.len() as u64],
        })
    }

    /// Takes in what the policy sampled.
    pub(super) fn take_turn(&mut self, result: &TurnResult) -> Result<(), WaveError> {
        let (Some(conversation), Some(draft)) = (self.conversation.as_mut(), self.drafts.last_mut()) else {
            return Ok(());
        };
        let result = match &result.outcome {
            Ok(turn) => turn,
            Err(reason) => {
                let reason = format!("the policy server could not sample a turn: {reason}");
                self.fail(Status::PolicyFailed, reason);
                return Ok(());
            }
        };
        if result.finish == FinishReason::Cancelled {
            self.fail(Status::Cancelled, "the policy server cancelled the turn".to_owned());
            return Ok(());
        }
        let start = draft.columns.tokens.len() as u32;
        let slots = result.slots.as_deref();
        if let Err(reason) = draft.columns.extend_sampled(&result.tokens, &result.logprobs, slots, result.version) {
            self.fail(Status::PolicyFailed, format!("the policy server's turn is refused: {reason}"));
            return Ok(());
        }
        let source = |e: ChatError| WaveError::Chat { seed: self.seed, source: e.into() };
        let parsed = conversation.sampled(&result.tokens).map_err(source)?;
        let (text, action) = read_turn(parsed);
        draft.turns.push(TurnRow {
            role: Role::Assistant,
            text,
            tool_calls: action.calls.clone(),
            span: Some(TokenSpan { start, end: draft.columns.tokens.len() as u32 }),
            policy_ms: Some(milliseconds(self.turn_begun.elapsed())),
            env_ms: None,
            finish_reason: Some(result.finish.name().to_owned()),
        });
        self.standing = match result.finish {
            FinishReason::Stop => Standing::EnvironmentsTurn(action),
            // Half a turn is not acted on.
            FinishReason::Length | FinishReason::Cancelled => Standing::Over(Status::Truncated),
        };
        Ok(())
    }

    /// Lets the environment answer, and judge where the episode is over.
    pub(super) async fn answer(&mut self, crew: &Crew, plan: &WavePlan) -> Result<(), WaveError> {
        if let Standing::EnvironmentsTurn(action) = self.standing.clone() {
            match self.ask(crew, plan, Ask::Step(&action)).await? {
                Err(failure) => self.fail(Status::EnvironmentFailed, failure.to_string()),
                Ok(Answer::Stepped(said, took)) => self.observe(action, said, took, &crew.limits)?,
                Ok(Answer::Begun | Answer::Judged(_)) => {}
            }
        }
        if let Standing::Over(status) = self.standing {
            match self.ask(crew, plan, Ask::Judge).await? {
                Err(failure) => self.fail(Status::EnvironmentFailed, failure.to_string()),
                Ok(Answer::Judged(verdict)) => {
                    self.verdict = Some(verdict);
                    self.standing = Standing::Ended(status, None);
                }
                Ok(Answer::Begun | Answer::Stepped(..)) => {}
            }
        }
        Ok(())
    }

    fn observe(&mut self, action: Action, said: StepReply, took: Duration, limits: &Limits) -> Result<(), WaveError> {
        if let Some(turn) = self.drafts.last_mut().and_then(|d| d.turns.last_mut()) {
            turn.env_ms = Some(milliseconds(took));
        }
        self.history.push(action);
        let (messages, done) = (said.messages.clone(), said.done);
        self.replies.push(said);
        let last_turn = self.history.len() as u32 >= self.max_turns.min(limits.max_turns);
        if done || last_turn {
            // Nothing is sampled after these, so they need no tokens.
            self.add_given_turns(&messages, None);
            self.standing = Standing::Over(if done { Status::Completed } else { Status::Truncated });
            return Ok(());
        }
        let Some(mut conversation) = self.conversation.take() else { return Ok(()) };
        let extension = conversation
            .observe(messages.iter().map(message_json).collect())
            .map_err(|e| WaveError::Chat { seed: self.seed, source: e.into() })?;
        let span = match extension {
            Extension::Appended(ids) => self.drafts.last_mut().map(|draft| {
                let start = draft.columns.tokens.len() as u32;
                draft.columns.extend_given(&ids);
                TokenSpan { start, end: draft.columns.tokens.len() as u32 }
            }),
            Extension::Rewritten { .. } => {
                self.begin_segment(&conversation);
                self.prompt_span()
            }
        };
        self.conversation = Some(conversation);
        self.add_given_turns(&messages, span);
        self.next_turn(limits);
        Ok(())
    }

    fn fail(&mut self, status: Status, why: String) {
        self.standing = Standing::Ended(status, Some(why));
    }

    /// The episode that the environment server still holds for a rollout that ended without a verdict.
    pub(super) fn take_episode(&mut self) -> Option<u64> {
        self.episode.take()
    }
}

fn milliseconds(duration: Duration) -> f32 {
    duration.as_secs_f32() * 1e3
}

/// What the log says and what the environment gets of a parsed turn: thinking is logged, not acted on.
fn read_turn(turn: ParsedTurn) -> (String, Action) {
    let calls = turn.calls.into_iter().map(|call| match call {
        ParsedCall::Ok { name, arguments } => Call::Tool(ToolCall { name, arguments }),
        ParsedCall::Malformed { raw, error } => Call::Malformed { raw, error },
    });
    let action = Action { text: turn.text, calls: calls.collect() };
    let text = match turn.thinking {
        Some(thinking) => format!("<think>{thinking}</think>{}", action.text),
        None => action.text.clone(),
    };
    (text, action)
}

/// A message as chat templates take it: OpenAI's form.
fn message_json(message: &Message) -> Value {
    let mut out = json!({"role": message.role, "content": message.content});
    if !message.tool_calls.is_empty() {
        let call = |c: &ToolCall| json!({"type": "function", "function": {"name": c.name, "arguments": c.arguments}});
        out["tool_calls"] = message.tool_calls.iter().map(call).collect();
    }
    out
}

/// A tool as chat templates take it.
fn tool_json(tool: &ToolSpec) -> Value {
    json!({"type": "function", "function": tool})
}
