//! Group-relative advantages: pure arithmetic, and the book of the groups whose members are still arriving.
//!
//! GRPO compares a rollout with the others of its seed (TRACE, section 3 of the method):
//! `A_k = (r_k - mean) / (std + eps)`, population std. A member without a reward is absent from the statistics, not a
//! zero in them. A rollout of several segments counts once, and all its segments carry its advantage.

mod advantage;
mod book;
mod column;

pub use advantage::{CONSTANT_SPREAD, EPS, GroupAdvantages, GroupKind, LoneRollout, group_advantages};
pub use book::{Arrival, GroupBook, IgnoredArrival};
pub use column::{GroupCounts, NormalizeError, normalize};
