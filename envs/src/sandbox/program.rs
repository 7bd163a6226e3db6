//! One Python file, compiled once and run anew for every call.
//!
//! The file's module is executed from the top for each call, together with the sandbox's own lines that are appended
//! to it (`harness.py`), and everything that it made is thrown away afterwards. An episode's state goes in and comes
//! out as plain data. So nothing can leak from one episode into another, a call that raises leaves the state as it
//! was, and a state can be read, stored and rebuilt. What a module does at its top level is thus paid for at every
//! call: tables of words are fine (microseconds), long computations are not.

use std::time::Duration;

use monty::{MontyRun, RunProgress};
use monty_types::{
    CompileOptions, ExcType, ExtFunctionResult, MontyException, MontyObject, NameLookupResult, PrintWriter,
    ResourceLimits, ResourceTracker,
};
use serde::{Deserialize, Serialize};

use super::rng::EpisodeRng;

/// The lines that call the file's functions. They stand after the file's own, so that line numbers are the author's.
const HARNESS: &str = include_str!("harness.py");

/// The names under which a call's inputs reach the harness.
const INPUTS: [&str; 5] = ["trace__op", "trace__state", "trace__argument", "trace__below", "trace__unit"];

/// What one call of a Python file may use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Seconds of execution.
    pub seconds: f64,
    /// Bytes allocated beyond those that the worker held before the call.
    pub memory_bytes: usize,
    /// Depth of function calls.
    pub recursion: usize,
    /// Random draws of one `reset`.
    pub draws: usize,
    /// Bytes of an episode's state, counted as JSON text.
    pub state_bytes: usize,
    /// Bytes of everything that one call returns besides the state.
    pub reply_bytes: usize,
    /// Bytes that one call may print.
    pub print_bytes: usize,
}

impl Default for Limits {
    /// Far above what a customer-service world needs, far below what would disturb its neighbours.
    fn default() -> Self {
        Self {
            seconds: 2.0,
            memory_bytes: 64 << 20,
            recursion: 200,
            draws: 100_000,
            state_bytes: 1 << 20,
            reply_bytes: 256 << 10,
            print_bytes: 64 << 10,
        }
    }
}

/// A compiled file.
pub(super) struct Program {
    /// As compiled; a run with a host works on a copy.
    pristine: MontyRun,
    /// The copy that runs without a host use. It remembers the largest heap seen and makes room for it in advance, so
    /// it is replaced after a failed run, which may have been one that took all memory.
    warm: MontyRun,
    limits: Limits,
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Spec,
    Reset,
    Step,
    Verdict,
    Oracle,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::Spec => "spec",
            Op::Reset => "reset",
            Op::Step => "step",
            Op::Verdict => "verdict",
            Op::Oracle => "oracle",
        }
    }
}

impl Program {
    /// Compiles a file; `name` is what tracebacks call it.
    ///
    /// # Errors
    /// Python's own message where the file does not parse.
    pub(super) fn compile(name: &str, source: &str, limits: Limits) -> Result<Self, String> {
        let inputs = INPUTS.map(str::to_string).to_vec();
        let pristine = MontyRun::new(format!("{source}{HARNESS}"), name, inputs, CompileOptions::default())
            .map_err(|e| e.to_string())?;
        Ok(Self { warm: pristine.clone(), pristine, limits })
    }

    /// What a call may use.
    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Runs one call and returns what the harness returns, and what was printed.
    ///
    /// # Errors
    /// Python's traceback, or the limit that was exceeded.
    pub(super) fn call(
        &mut self,
        op: Op,
        state: MontyObject,
        argument: MontyObject,
        rng: Option<&mut EpisodeRng>,
    ) -> (Result<MontyObject, String>, String) {
        let mut printed = String::new();
        let result = self.attempt(op, state, argument, rng, &mut printed).map_err(|e| e.to_string());
        if result.is_err() {
            self.warm = self.pristine.clone();
        }
        (result, printed)
    }

    fn attempt(
        &self,
        op: Op,
        state: MontyObject,
        argument: MontyObject,
        rng: Option<&mut EpisodeRng>,
        printed: &mut String,
    ) -> Result<MontyObject, MontyException> {
        let host = |name: &str| MontyObject::Function { name: name.to_string(), docstring: None };
        let inputs = vec![MontyObject::String(op.name().to_string()), state, argument, host("below"), host("unit")];
        let tracker = ResourceTracker::new(
            ResourceLimits::default()
                .max_duration(Duration::from_secs_f64(self.limits.seconds))
                .max_memory(self.limits.memory_bytes)
                .max_recursion_depth(self.limits.recursion),
        );
        let cap = Some(self.limits.print_bytes);
        let Some(rng) = rng else {
            return self.warm.run(inputs, tracker, PrintWriter::CollectString(printed, cap));
        };
        let mut draws = 0;
        let mut progress = self.pristine.clone().start(inputs, tracker, PrintWriter::CollectString(printed, cap))?;
        loop {
            let print = PrintWriter::CollectString(printed, cap);
            progress = match progress {
                RunProgress::Complete(value) => return Ok(value),
                RunProgress::FunctionCall(call) => {
                    draws += 1;
                    if draws > self.limits.draws {
                        let message = format!("reset drew more than {} random numbers", self.limits.draws);
                        call.abort(MontyException::new(ExcType::RuntimeError, Some(message)), print)?
                    } else {
                        let answer = draw(rng, &call.function_name, &call.args);
                        call.resume(answer, print)?
                    }
                }
                RunProgress::OsCall(call) => {
                    let message = "an environment has no files, network, variables or clock".to_string();
                    let refusal = MontyException::new(ExcType::PermissionError, Some(message));
                    call.resume(ExtFunctionResult::Error(refusal), print)?
                }
                RunProgress::NameLookup(lookup) => lookup.resume(NameLookupResult::Undefined, print)?,
                RunProgress::ResolveFutures(futures) => {
                    let message = "an environment has nothing to await".to_string();
                    futures.abort(MontyException::new(ExcType::RuntimeError, Some(message)), print)?
                }
            };
        }
    }
}

/// Answers a draw.
fn draw(rng: &mut EpisodeRng, function: &str, args: &[MontyObject]) -> ExtFunctionResult {
    match (function, args) {
        ("below", [MontyObject::Int(n)]) if *n >= 1 => {
            // Below n, which is an i64.
            ExtFunctionResult::Return(MontyObject::Int(rng.below(*n as u64) as i64))
        }
        ("unit", []) => ExtFunctionResult::Return(MontyObject::Float(rng.unit())),
        _ => ExtFunctionResult::Error(MontyException::new(
            ExcType::TypeError,
            Some("the bounds of a draw are whole numbers".to_string()),
        )),
    }
}
