//! The protocol between an environment's client and the process that holds its episodes.
//!
//! One JSON object a line, in UTF-8: requests on the process's standard input, replies on its standard output, in the
//! order asked, one at a time. Standard error is free for messages to people. The process ends when its input ends.
//!
//! | request | `ok` of the reply |
//! |---|---|
//! | `{"id": 1, "op": "spec"}` | an [`EnvSpec`](crate::EnvSpec) |
//! | `{"id": 2, "op": "reset", "episode": 7, "seed": 12, "level": 1}` | an [`Opening`](crate::Opening) |
//! | `{"id": 3, "op": "step", "episode": 7, "step_id": 0, "action": {"text": "", "calls": [{"name": .., "arguments": {..}}]}}` | a [`StepReply`](crate::StepReply) |
//! | `{"id": 4, "op": "verdict", "episode": 7}` | a [`Verdict`](crate::Verdict) |
//! | `{"id": 5, "op": "oracle", "episode": 7}` | an [`Action`] or null |
//! | `{"id": 6, "op": "close", "episodes": [7]}` | null |
//!
//! A reply is `{"id": 3, "ok": ...}` or `{"id": 3, "error": "a sentence"}`, with the request's id. An error is a failure
//! of the environment, never a judgement of the policy. An episode is a pure function of seed, level and actions:
//! after a crash the client opens it again in a new process, repeats its actions and expects the same replies.
//! Calls that no tool can execute (broken JSON, unknown names, wrong types) are answered by the client and do not
//! reach the process.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::contract::Action;
use crate::sandbox::Limits;

/// A request with its number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// Repeated in the reply.
    pub id: u64,
    /// What is asked.
    #[serde(flatten)]
    pub request: Request,
}

/// What is asked of the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Take this Python file; only the sandbox's own worker is asked, and before all else.
    Load {
        /// What tracebacks call the file.
        name: String,
        /// Its text.
        source: String,
        /// What a call may use.
        limits: Limits,
    },
    /// Describe the environment.
    Spec,
    /// Open an episode.
    Reset {
        /// The number by which it is called from now on, chosen by the client and never used twice in a process.
        episode: u64,
        /// Its seed.
        seed: u64,
        /// Its level; 0 asks for the environment's own mix.
        level: u32,
    },
    /// Act.
    Step {
        /// The episode.
        episode: u64,
        /// The step's number.
        step_id: u64,
        /// What the policy does; only calls that name a tool and have arguments of the right types.
        action: Action,
    },
    /// Judge what has happened so far.
    Verdict {
        /// The episode.
        episode: u64,
    },
    /// Say what a policy without lapses does now.
    Oracle {
        /// The episode.
        episode: u64,
    },
    /// Forget these episodes.
    Close {
        /// The episodes; unknown ones are ignored.
        episodes: Vec<u64>,
    },
}

/// The line, without its end, that answers request `id`.
pub fn reply_line(id: u64, result: Result<Value, String>) -> String {
    match result {
        Ok(value) => json!({"id": id, "ok": value}).to_string(),
        Err(sentence) => json!({"id": id, "error": sentence}).to_string(),
    }
}

/// Reads the reply to request `id`: the outer error says that the line is no such reply, the inner one is the
/// process's own.
pub fn parse_reply(line: &[u8], id: u64) -> Result<Result<Value, String>, String> {
    let excerpt = || {
        let text = String::from_utf8_lossy(line);
        let cut: String = text.chars().take(120).collect();
        if cut.len() < text.len() { format!("{cut}...") } else { cut }
    };
    let value: Value = serde_json::from_slice(line).map_err(|e| {
        format!("not JSON ({e}): {:?}; print to standard error, standard output is for replies", excerpt())
    })?;
    let Value::Object(mut reply) = value else {
        return Err(format!("not a JSON object: {:?}", excerpt()));
    };
    if reply.get("id").and_then(Value::as_u64) != Some(id) {
        return Err(format!("not the reply to request {id}: {:?}", excerpt()));
    }
    match (reply.remove("ok"), reply.remove("error")) {
        (Some(ok), None) => Ok(Ok(ok)),
        (None, Some(Value::String(sentence))) => Ok(Err(sentence)),
        _ => Err(format!("needs either \"ok\" or a text \"error\": {:?}", excerpt())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Call, ToolCall};

    #[test]
    fn requests_look_as_documented() {
        let step = Envelope {
            id: 3,
            request: Request::Step {
                episode: 7,
                step_id: 0,
                action: Action {
                    text: String::new(),
                    calls: vec![Call::Tool(ToolCall {
                        name: "get_order".into(),
                        arguments: json!({"id": "A1"}).as_object().unwrap().clone(),
                    })],
                },
            },
        };
        let line = serde_json::to_value(&step).unwrap();
        assert_eq!(
            line,
            json!({"id": 3, "op": "step", "episode": 7, "step_id": 0,
                   "action": {"text": "", "calls": [{"name": "get_order", "arguments": {"id": "A1"}}]}})
        );
        assert_eq!(serde_json::from_value::<Envelope>(line).unwrap(), step);
        let reset = Envelope { id: 2, request: Request::Reset { episode: 7, seed: u64::MAX, level: 1 } };
        assert_eq!(serde_json::from_str::<Envelope>(&serde_json::to_string(&reset).unwrap()).unwrap(), reset);
    }

    #[test]
    fn replies_are_read_back_and_anything_else_is_refused() {
        let line = reply_line(4, Ok(Value::Null));
        assert_eq!(parse_reply(line.as_bytes(), 4), Ok(Ok(Value::Null)));
        let line = reply_line(4, Err("no".into()));
        assert_eq!(parse_reply(line.as_bytes(), 4), Ok(Err("no".into())));
        for bad in ["hello", "[]", "{}", r#"{"id":5,"ok":1}"#, r#"{"id":4}"#, r#"{"id":4,"ok":1,"error":"x"}"#, "\u{0}"]
        {
            assert!(parse_reply(bad.as_bytes(), 4).is_err(), "{bad}");
        }
    }
}
