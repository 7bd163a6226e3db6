//! Python environments: one file each, run by the Monty interpreter in worker processes.
//!
//! What a file defines is described in `PYTHON.md` beside this crate's `Cargo.toml`. [`PythonEnvironment`] is the
//! client; the worker, a binary of this crate, holds the episodes and speaks the
//! [environment protocol](crate::process::protocol). Three rings keep a bad file from harming anybody else:
//!
//! 1. the interpreter: no files, network, variables or clock; [`Limits`] on time, memory, recursion, output and the
//!    size of states, whose excess is an error of that one call;
//! 2. the worker process: limits of the kernel on address space and processor time, no core dump, no file writes; it
//!    ends with its parent;
//! 3. the client: a deadline on every call and a bound on every line; a worker that breaks one is killed and
//!    replaced, and its episodes are rebuilt by repeating their actions.

mod host;
mod locate;
mod plain;
mod program;
mod rlimits;
mod rng;

use std::path::Path;

pub use host::serve;
pub use locate::{WORKER, WORKER_VARIABLE, find_worker};
pub use program::Limits;
pub use rlimits::confine;

use crate::contract::{EnvSpec, Environment, Episode};
use crate::failure::EnvError;
use crate::process::protocol::Request;
use crate::process::{Launch, ProcessEnvironment, ProcessLimits};

/// An environment written in Python.
pub struct PythonEnvironment(ProcessEnvironment);

impl PythonEnvironment {
    /// The environment of a file's text; `name` is what messages call the file.
    ///
    /// # Errors
    /// [`EnvError::Load`] where the worker is not found or the file does not define an environment.
    pub fn from_source(name: &str, source: &str, limits: Limits, process: ProcessLimits) -> Result<Self, EnvError> {
        let mut launch = Launch::new(find_worker()?);
        launch.clear_variables = true;
        let greeting = Request::Load { name: name.to_string(), source: source.to_string(), limits };
        ProcessEnvironment::greeted(name, launch, process, Some(greeting)).map(Self)
    }

    /// The environment of a file.
    ///
    /// # Errors
    /// [`EnvError::Load`] where the file cannot be read, and as [`PythonEnvironment::from_source`].
    pub fn from_file(path: &Path, limits: Limits, process: ProcessLimits) -> Result<Self, EnvError> {
        let name = path.display().to_string();
        let source =
            std::fs::read_to_string(path).map_err(|e| EnvError::Load { name: name.clone(), reason: e.to_string() })?;
        Self::from_source(&name, &source, limits, process)
    }

    /// The processes that run it at the moment.
    pub fn process_ids(&self) -> Vec<u32> {
        self.0.process_ids()
    }
}

impl Environment for PythonEnvironment {
    fn spec(&self) -> &EnvSpec {
        self.0.spec()
    }

    fn reset(&self, seed: u64, level: u32) -> Result<Box<dyn Episode>, EnvError> {
        self.0.reset(seed, level)
    }
}
