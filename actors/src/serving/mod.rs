//! The policy server: token ids in, token ids with log-probs and versions out.
//!
//! The messages are one protocol for every server. A wave opens a session on a server, hands in requests, and takes the
//! turns that are finished as they finish: the server replies as soon as at least one is. For a rollout driver that
//! hands in a request only when all its live episodes wait, this makes every decode step one over all of them.

mod embedded;
mod protocol;

pub(crate) use embedded::EmbeddedServer;
pub use protocol::{FinishReason, PolicyFailure};
pub(crate) use protocol::{PolicyMessage, SampledTurn, TurnRequest, TurnResult};
