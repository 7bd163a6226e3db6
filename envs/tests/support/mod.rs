//! What the tests of sandbox and processes share.

// Each test file uses some of it.
#![allow(dead_code)]

use std::time::Duration;

use serde_json::{Value, json};
use trace_envs::process::ProcessLimits;
use trace_envs::sandbox::{Limits, PythonEnvironment};
use trace_envs::{Action, EnvError};

/// A small environment: count up to a target with one tool, then say so.
pub const COUNTER: &str = r#"
SPEC = {
    "name": "counter",
    "description": "Counts to a number.",
    "levels": 2,
    "max_turns": 8,
    "tools": [{
        "name": "add",
        "description": "Add a number.",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    }],
}


def reset(rng, level):
    goal = rng.randint(2, 1000) * level
    return {
        "goal": goal,
        "count": 0,
        "messages": [
            {"role": "system", "content": "Count."},
            {"role": "user", "content": f"Count to {goal}."},
        ],
    }


def call(state, tool, args):
    state["count"] += args["n"]
    return {"count": state["count"]}


def reply(state, text):
    if "?" in text:
        return f"To {state['goal']}."
    return None


def verdict(state):
    right = state["count"] == state["goal"]
    return {"reward": 1.0 if right else 0.0, "checks": [{"name": "count", "score": 1.0 if right else 0.0, "weight": 1.0}]}


def oracle(state):
    if state["count"] != state["goal"]:
        return {"calls": [{"name": "add", "arguments": {"n": state["goal"] - state["count"]}}]}
    return {"text": "done"}
"#;

/// Limits that make a test of them short.
pub fn tight() -> Limits {
    Limits { seconds: 0.3, memory_bytes: 16 << 20, ..Limits::default() }
}

/// One process, tried twice.
pub fn one_process() -> ProcessLimits {
    ProcessLimits { processes: 1, call_deadline: Duration::from_secs(5), attempts: 2, ..ProcessLimits::default() }
}

/// The environment of a source under tight limits.
pub fn load(source: &str) -> Result<PythonEnvironment, EnvError> {
    PythonEnvironment::from_source("test.py", source, tight(), one_process())
}

/// The counter, with `body` put at the start of the function that `def` begins.
pub fn counter_with(def: &str, body: &str) -> String {
    assert!(COUNTER.contains(def), "{def}");
    COUNTER.replace(def, &format!("{def}\n    {}", body.replace('\n', "\n    ")))
}

/// A call of the counter's tool.
pub fn add(n: i64) -> Action {
    call("add", json!({"n": n}))
}

/// A call of any tool.
pub fn call(name: &str, arguments: Value) -> Action {
    Action::call(name, arguments.as_object().expect("an object").clone())
}
