//! The pipeline of TRACE: configuration, the four steps, evaluation, report and command line.
//!
//! The crates below do the work: `trace_envs` makes episodes, `trace_policy` is the model, `trace_actors` runs both and
//! keeps the log. This crate decides what is run, in which order, and says what came of it.

pub mod analyze;
pub mod cli;
pub mod compare;
pub mod config;
pub mod pretrain;
pub mod progress;
pub mod record;
pub mod report;
pub mod stats;
pub mod steps;
