//! The configuration of a run: one TOML file, typed, every key documented in its type.
//!
//! [`ConfigFile::load`] reads a file, applies `--set` overrides, names unknown keys with the nearest known one, and refuses
//! combinations that cannot work ([`check`]). What it returns can be run. [`show`] prints the effective configuration
//! with the documentation of each key, and [`compare`] says which keys two configurations differ in, which is what
//! makes a resume safe.

pub mod check;
pub mod compare;
pub mod read;
pub mod section;
pub mod show;
mod tables;

pub use read::{ConfigError, ConfigFile};
pub use tables::{
    Analysis, Baseline, BaselineBudget, Calibration, Compose, Config, Evaluate, Hints, Limits, OnReject, Policy,
    Rollout, Run, Synthesis, Target, Train,
};
