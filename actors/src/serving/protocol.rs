//! Requests, results and messages of a policy server.

use ractor::RpcReplyPort;

use crate::plan::Acting;
use crate::rows::SamplingParams;

/// Why the sampling of a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The policy ended its turn; the stop token is among the sampled ones.
    Stop,
    /// The turn reached its limit of tokens.
    Length,
    /// The turn was no longer wanted.
    Cancelled,
}

impl FinishReason {
    /// The name in the table.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// Why a policy server did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyFailure {
    /// The arm cannot be made: a file is missing, an adapter does not fit, a learner is not open.
    #[error("the arm {name} cannot be loaded: {reason}")]
    Arm {
        /// The arm.
        name: String,
        /// Why.
        reason: String,
    },
    /// The server does not know the wave, since it was restarted.
    #[error("the policy server was restarted and does not know wave {0:?}")]
    UnknownWave(String),
    /// The server failed.
    #[error("the policy server failed: {0}")]
    Failed(String),
}

/// One assistant turn to be sampled.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TurnRequest {
    /// The rollout, unique in its wave: what its KV cache is kept under. One turn of it is sampled at a time.
    pub(crate) session: u64,
    /// All token ids so far.
    pub(crate) context: Vec<i32>,
    /// How many of the first ids other rollouts share, so that they are worth computing once.
    pub(crate) shared_prefix: usize,
    /// The most tokens to sample, at least 1.
    pub(crate) max_tokens: usize,
    /// How tokens are drawn.
    pub(crate) sampling: SamplingParams,
    /// The ids that end a turn.
    pub(crate) stop_ids: Vec<i32>,
    /// The key of the turn's random numbers.
    pub(crate) stream: [u64; 4],
}

/// A turn that was asked for, and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TurnResult {
    /// The rollout.
    pub(crate) session: u64,
    /// The turn, or why this one turn could not be sampled.
    pub(crate) outcome: Result<SampledTurn, String>,
}

/// A sampled turn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampledTurn {
    /// The adapter version that sampled the whole turn.
    pub(crate) version: u32,
    /// The sampled ids, stop token included.
    pub(crate) tokens: Vec<i32>,
    /// One per token.
    pub(crate) logprobs: Vec<f32>,
    /// One per token where gates acted.
    pub(crate) slots: Option<Vec<u8>>,
    /// Why sampling ended.
    pub(crate) finish: FinishReason,
}

/// What a policy server is told.
pub(crate) enum PolicyMessage {
    /// A wave begins under an arm.
    Open { wave: String, acting: Acting, reply: RpcReplyPort<Result<(), PolicyFailure>> },
    /// Takes requests in, in order, and forgets rollouts that ended. Replies with the turns that finished, in the
    /// order of their sessions: at least one, unless none is under way.
    Advance {
        wave: String,
        requests: Vec<TurnRequest>,
        ended: Vec<u64>,
        reply: RpcReplyPort<Result<Vec<TurnResult>, PolicyFailure>>,
    },
    /// A wave is over; what it held is let go.
    Close { wave: String },
}
