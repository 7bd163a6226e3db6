//! Rows of the tables as plain structs, and what makes a row acceptable.
//!
//! A [`SegmentRow`] is checked before it becomes part of a batch: a row whose ids, mask, log-probs and versions do not
//! fit together, or whose numbers are not numbers, is refused with its id and the reason, never repaired.

mod validate;

use serde::{Deserialize, Serialize};
use trace_envs::{Call, Check, Role, Split};

use validate::is_logprob;

/// How a rollout ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The episode ended by itself.
    Completed,
    /// It was cut by the turn limit, by the length of a turn, or by the context; the verdict is on what had happened.
    Truncated,
    /// The environment failed, on every attempt.
    EnvironmentFailed,
    /// The policy server failed, or returned what cannot be stored.
    PolicyFailed,
    /// It was no longer wanted.
    Cancelled,
}

impl Status {
    /// All statuses.
    pub const ALL: [Status; 5] =
        [Status::Completed, Status::Truncated, Status::EnvironmentFailed, Status::PolicyFailed, Status::Cancelled];

    /// The name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Status::Completed => "completed",
            Status::Truncated => "truncated",
            Status::EnvironmentFailed => "environment_failed",
            Status::PolicyFailed => "policy_failed",
            Status::Cancelled => "cancelled",
        }
    }

    /// The status of that name.
    pub fn parse(name: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|s| s.name() == name)
    }

    /// True where a rollout of this status has a verdict.
    pub fn has_reward(self) -> bool {
        matches!(self, Status::Completed | Status::Truncated)
    }
}

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// Softmax temperature, >= 0; 0 is greedy.
    pub temperature: f64,
    /// Nucleus mass in (0, 1]; 1 keeps all tokens.
    pub top_p: f64,
    /// Most likely tokens kept; 0 keeps all.
    pub top_k: u32,
}

impl Default for SamplingParams {
    /// The training setting: temperature 1 over the whole vocabulary.
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: 0 }
    }
}

/// A half-open span of token indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSpan {
    /// Index of the first token.
    pub start: u32,
    /// Index after the last token.
    pub end: u32,
}

/// One message of a rollout and the tokens it became.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnRow {
    /// Who speaks.
    pub role: Role,
    /// What is said, in full; for an assistant the text outside of its calls.
    pub text: String,
    /// The calls of an assistant's turn, broken ones included.
    pub tool_calls: Vec<Call>,
    /// The turn's tokens, end-of-turn included; messages that were appended together share their span. `None` where
    /// there are no tokens.
    pub span: Option<TokenSpan>,
    /// Milliseconds the policy took; assistant turns only.
    pub policy_ms: Option<f32>,
    /// Milliseconds the environment took to answer; assistant turns only.
    pub env_ms: Option<f32>,
    /// Why sampling ended: stop, length or cancelled; assistant turns only.
    pub finish_reason: Option<String>,
}

/// What the policy's tokens were: five lists of one length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenColumns {
    /// Token ids: prompt, sampled and observed, in order.
    pub tokens: Vec<i32>,
    /// True where the policy sampled the token.
    pub action_mask: Vec<bool>,
    /// Log-probability in nats of each sampled token under the distribution it was drawn from.
    pub logprobs: Vec<Option<f32>>,
    /// Adapter version that sampled the token.
    pub versions: Vec<Option<u32>>,
    /// The slot that most layers' gates chose for the token; `None` without gates.
    pub slots: Option<Vec<Option<u8>>>,
}

impl TokenColumns {
    /// Appends tokens that the policy did not sample.
    pub fn extend_given(&mut self, tokens: &[i32]) {
        let n = self.tokens.len() + tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.action_mask.resize(n, false);
        self.logprobs.resize(n, None);
        self.versions.resize(n, None);
        if let Some(slots) = &mut self.slots {
            slots.resize(n, None);
        }
    }

    /// Appends tokens that the policy sampled under one version.
    ///
    /// # Errors
    /// Where the log-probs (or slots) are not one per token, or a log-prob is not finite; nothing is appended then.
    pub fn extend_sampled(
        &mut self,
        tokens: &[i32],
        logprobs: &[f32],
        slots: Option<&[u8]>,
        version: u32,
    ) -> Result<(), String> {
        if logprobs.len() != tokens.len() {
            return Err(format!("{} log-probs for {} sampled tokens", logprobs.len(), tokens.len()));
        }
        if let Some(slots) = slots
            && slots.len() != tokens.len()
        {
            return Err(format!("{} slots for {} sampled tokens", slots.len(), tokens.len()));
        }
        if let Some((i, bad)) = logprobs.iter().enumerate().find(|(_, lp)| !is_logprob(**lp)) {
            return Err(format!("log-prob {bad} of sampled token {i} is not a finite number <= 0"));
        }
        if slots.is_some() && self.slots.is_none() {
            self.slots = Some(vec![None; self.tokens.len()]);
        }
        let n = self.tokens.len() + tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.action_mask.resize(n, true);
        self.logprobs.extend(logprobs.iter().map(|&lp| Some(lp)));
        self.versions.resize(n, Some(version));
        if let Some(own) = &mut self.slots {
            match slots {
                Some(slots) => own.extend(slots.iter().map(|&s| Some(s))),
                None => own.resize(n, None),
            }
        }
        Ok(())
    }

    /// The oldest version among the sampled tokens.
    pub fn oldest_version(&self) -> Option<u32> {
        self.versions.iter().flatten().min().copied()
    }
}

/// One row of `trajectory/1`. The columns are documented in [`crate::schema::trajectory_schema`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SegmentRow {
    /// `UNIT/gGROUP/rROLLOUT/sSEGMENT`.
    pub id: String,
    /// The run.
    pub run: String,
    /// `trace`, or the format it was imported from.
    pub source: String,
    /// The environment's name.
    pub environment: String,
    /// The capability that the environment isolates.
    pub capability: Option<String>,
    /// The part of the target world.
    pub domain: Option<String>,
    /// The task within (environment, domain).
    pub task: String,
    /// Counts comparable attempts at one task, from 0.
    pub trial: u32,
    /// As read from the seed; `None` for an imported row.
    pub split: Option<Split>,
    /// The seed that made the task.
    pub seed: u64,
    /// Level asked for; 0 is the environment's own mix.
    pub level: u32,
    /// The group.
    pub group: u64,
    /// The rollout within its group.
    pub rollout: u16,
    /// The segment within its rollout.
    pub segment: u16,
    /// How often the episode was begun anew.
    pub attempt: u8,
    /// The iteration that asked for it.
    pub iteration: u32,
    /// The arm that acted; `None` is the base.
    pub adapter: Option<String>,
    /// How it ended.
    pub status: Status,
    /// Why it failed.
    pub error: Option<String>,
    /// The verdict.
    pub reward: Option<f32>,
    /// The reward relative to the group.
    pub advantage: Option<f32>,
    /// How tokens were drawn.
    pub sampling: Option<SamplingParams>,
    /// The hint's tokens.
    pub hint_span: Option<TokenSpan>,
    /// Tokens, mask, log-probs, versions, slots; `None` where there are no tokens (imports, a failed reset).
    pub columns: Option<TokenColumns>,
    /// The conversation that is new in this segment.
    pub turns: Vec<TurnRow>,
    /// What the verdict is made of.
    pub checks: Vec<Check>,
    /// Microseconds since the Unix epoch.
    pub started_at_us: i64,
    /// Milliseconds from the beginning to the verdict.
    pub wall_ms: u64,
}

impl SegmentRow {
    /// Whether the verdict is reward 1, within 1e-6; nothing where there is no reward.
    pub fn passed(&self) -> Option<bool> {
        self.reward.map(|reward| reward >= 1.0 - 1e-6)
    }
}

/// One row of `updates/1`. The columns are documented in [`crate::schema::updates_schema`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateRow {
    /// The id of the row of `trajectory/1`.
    pub row: String,
    /// The learner.
    pub learner: String,
    /// The version that this batch publishes, from 1.
    pub step: u64,
    /// Learner version minus the oldest version in the row's sampled tokens.
    pub staleness: Option<u32>,
    /// True where the row contributed to the gradient.
    pub used: bool,
    /// Why it did not.
    pub reason: Option<String>,
}

/// Why rows or a batch were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The row contradicts itself or holds what is not a number.
    #[error("row {id:?} is refused: {reason}")]
    Refused {
        /// The row's id.
        id: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A batch does not have the schema that it should have.
    #[error("the batch does not have schema {expected}: {reason}")]
    Schema {
        /// The version expected.
        expected: &'static str,
        /// What differs.
        reason: String,
    },
}
