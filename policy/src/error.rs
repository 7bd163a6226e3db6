//! What can go wrong in this crate, each with where it happened and what to do about it.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// A failure of the policy library.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// A file or folder could not be read.
    #[error("cannot read {path}: {source}. Check that the path exists and is readable")]
    Read {
        /// What was to be read.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file or folder could not be written.
    #[error("cannot write {path}: {source}. Check free space and permissions")]
    Write {
        /// What was to be written.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A JSON file does not have the form that its reader needs.
    #[error("{path} is not valid: {source}. Fix the named field")]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        source: serde_json::Error,
    },
    /// A tensor file is not readable as safetensors.
    #[error("{path} is not a usable safetensors file: {reason}. It may be incomplete: fetch or write it again")]
    TensorFile {
        /// The file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// A tensor that the configuration demands is absent.
    #[error("tensor `{name}` is missing from {place}. The file and its configuration belong to different models")]
    MissingTensor {
        /// The absent key.
        name: String,
        /// Where it was looked for.
        place: String,
    },
    /// A tensor is present that nothing would use: silently leaving it out could change the model.
    #[error("tensor `{name}` in {place} matches no part of the model. The file and its configuration belong together?")]
    UnknownTensor {
        /// The key without a place.
        name: String,
        /// Where it was found.
        place: String,
    },
    /// A tensor has another shape than its place in the model.
    #[error("tensor `{name}` in {place} has shape {found:?} where the configuration demands {expected:?}")]
    TensorShape {
        /// The key.
        name: String,
        /// Where it was found.
        place: String,
        /// The shape found.
        found: Vec<i64>,
        /// The shape that the configuration implies.
        expected: Vec<i64>,
    },
    /// A configuration asks for what is not implemented or is inconsistent.
    #[error("{place}: `{key}` {reason}")]
    Config {
        /// The configuration's file or name.
        place: String,
        /// The key at fault.
        key: String,
        /// What is wrong with it and what to do.
        reason: String,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} at {place} is outside the vocabulary of {vocab_size}. Tokenizer and model differ")]
    TokenId {
        /// The id.
        id: i32,
        /// Where it stands in the input.
        place: String,
        /// Ids run from 0 to this number less one.
        vocab_size: i64,
    },
    /// More tokens than the model has positions for.
    #[error("a sequence of {length} tokens is longer than the model's {limit} positions. Shorten the episode")]
    TooLong {
        /// Tokens of prefix and branch together.
        length: usize,
        /// The model's limit.
        limit: i64,
    },
    /// A training row whose parts do not fit together. The row is refused, never repaired.
    #[error("training row {row} of group {group} is refused: {reason}")]
    Row {
        /// Index of the group in the call.
        group: usize,
        /// Index of the row in its group.
        row: usize,
        /// What is inconsistent.
        reason: String,
    },
    /// A call that has nothing to compute, or whose arguments contradict each other.
    #[error("{0}")]
    Usage(String),
    /// A training step gave a number that is not finite; the weights have not been changed by it.
    #[error(
        "{quantity} is {value} at step {step}: the step was not applied. Lower the learning rate or check the data"
    )]
    NotFinite {
        /// What was computed: the loss or the gradient's norm.
        quantity: &'static str,
        /// Its value.
        value: f64,
        /// Optimiser steps done before.
        step: u64,
    },
}

impl PolicyError {
    /// Makes the wrapper for a read failure at `path`.
    pub fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Read { path, source }
    }

    /// Makes the wrapper for a write failure at `path`.
    pub fn write(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Write { path, source }
    }

    /// Makes the wrapper for a JSON failure in `path`.
    pub fn json(path: &Path) -> impl FnOnce(serde_json::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Json { path, source }
    }
}
