//! Rollouts: a wave of episodes, each a conversation between the policy and its environment.
//!
//! The generator drives a wave in lock-step. All live episodes that wait for the policy hand in their turn, in (group,
//! rollout) order; when turns finish, their environments answer, side by side, and the next turns are handed in before
//! the policy goes on. So the policy's work depends on nothing but the plan: not on how long an environment took.

mod actor;
mod seat;
mod wave;

pub(crate) use actor::{GeneratorMessage, RolloutGenerator};
pub(crate) use wave::Crew;
pub use wave::WaveError;
