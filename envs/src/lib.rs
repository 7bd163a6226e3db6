//! Environments: the contract that every one of them keeps, the sandbox that runs synthesised ones, and the
//! built-in target world.
//!
//! Use this crate alone to write and check an environment; it knows no policy, no LibTorch and no actor.

pub mod audit;
pub mod contract;
pub mod failure;
pub mod helpdesk;
pub mod library;
pub mod process;
pub mod registry;
pub mod sandbox;
pub mod screening;
pub mod seeds;

pub use contract::{
    Action, Call, CapabilityEvidence, Check, EnvSpec, Environment, Episode, Message, Opening, Role, StepReply,
    ToolCall, ToolSpec, Verdict,
};
pub use failure::EnvError;
pub use registry::EnvRegistry;
pub use seeds::{SeedStream, Split};
