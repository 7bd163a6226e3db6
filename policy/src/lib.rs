//! The policy on LibTorch: decoder, adapters, gates, sampling and learning, without any actor or file of a run.
//!
//! A map of the modules:
//!
//! - what a model is: [`config`], [`model`], [`attention`], [`packed`] (sequences that share their beginning),
//!   [`tensorfile`] (safetensors, written whole or not at all);
//! - what acts on top of it: [`active`], [`lora`], [`gates`];
//! - how text becomes tokens and back: [`tokenizer`], [`chat`], [`toolcall`];
//! - how tokens are sampled: [`engine`], [`sampling`];
//! - how it learns: [`rows`] and [`objective`] (plain data and plain arithmetic), [`learner`], [`score`],
//!   [`gate_trainer`], [`pretrain`], [`optim`], [`head`].
//!
//! LibTorch's number of CPU threads belongs to the process (`tch::set_num_threads`) and is part of a run's state: results
//! are the same, bit for bit, only under the same number. Its threads spin while they wait for each other, which is
//! ruinous when anything else runs on the cores; `OMP_WAIT_POLICY=passive`, set before the process starts, stops that.

pub mod active;
pub mod attention;
pub mod chat;
pub mod config;
pub mod engine;
pub mod error;
pub mod gate_trainer;
pub mod gates;
pub mod head;
mod kv;
pub mod learner;
pub mod lora;
pub mod model;
pub mod objective;
pub mod optim;
pub mod packed;
pub mod pretrain;
pub mod rows;
pub mod sampling;
pub mod score;
pub mod tensorfile;
pub mod tokenizer;
pub mod toolcall;
