//! What the policy gets wrong about tools in general is answered here, once for all environments that run elsewhere.
//!
//! A call that cannot be executed (broken JSON, a tool that does not exist, a missing, unknown or mistyped argument)
//! becomes an error observation; nothing of it reaches the environment, and the turn's other calls still do. What a
//! well-typed value means, the values of an `enum` included, is the environment's business: what a wrong one does can
//! be what it exercises.

use serde_json::{Map, Value, json};

use crate::contract::{Action, Call, Message, Role, ToolCall, ToolSpec};

/// An action, sorted into what can be executed and what is answered already.
#[derive(Clone, Debug, PartialEq)]
pub struct Screened {
    /// The action with the calls that can be executed.
    pub executable: Action,
    /// For each call of the original action, in order: the error observation, or `None` where it can be executed.
    pub refusals: Vec<Option<Message>>,
}

impl Screened {
    /// True where there were calls and none can be executed: such an action must not reach the environment, which
    /// would take it for a turn that only speaks.
    pub fn all_refused(&self) -> bool {
        !self.refusals.is_empty() && self.executable.calls.is_empty()
    }

    /// The messages of the whole turn: the environment's for what was executed, the refusals in their places.
    ///
    /// # Errors
    /// Where the environment did not answer each executed call with one `Tool` message, followed by at most one
    /// `User` message and nothing else.
    pub fn merge(self, replies: Vec<Message>) -> Result<Vec<Message>, String> {
        let executed = self.executable.calls.len();
        let tools = replies.iter().take_while(|m| m.role == Role::Tool).count();
        let rest = &replies[tools..];
        if tools != executed || rest.len() > 1 || rest.iter().any(|m| m.role != Role::User) {
            let roles: Vec<Role> = replies.iter().map(|m| m.role).collect();
            return Err(format!("{executed} calls were answered by messages of the roles {roles:?}"));
        }
        let mut replies = replies.into_iter();
        let mut out = Vec::with_capacity(self.refusals.len() + 1);
        for refusal in self.refusals {
            out.extend(refusal.or_else(|| replies.next()));
        }
        out.extend(replies);
        Ok(out)
    }
}

/// Sorts an action's calls by whether one of `tools` can execute them.
pub fn screen(tools: &[ToolSpec], action: &Action) -> Screened {
    let mut executable = Action::say(action.text.clone());
    let mut refusals = Vec::with_capacity(action.calls.len());
    for call in &action.calls {
        let problem = match call {
            Call::Malformed { error, .. } => Some(format!("the call could not be read: {error}")),
            Call::Tool(call) => problem_of(tools, call),
        };
        if problem.is_none() {
            executable.calls.push(call.clone());
        }
        refusals.push(problem.map(|text| error_observation(&text)));
    }
    Screened { executable, refusals }
}

/// The observation that tells the policy about an error: `{"error":"..."}`.
pub fn error_observation(text: &str) -> Message {
    Message::new(Role::Tool, json!({"error": text}).to_string())
}

/// Why a call cannot be executed, in a sentence for the policy.
fn problem_of(tools: &[ToolSpec], call: &ToolCall) -> Option<String> {
    let Some(tool) = tools.iter().find(|t| t.name == call.name) else {
        return Some(format!("there is no tool {}", call.name));
    };
    let none = Map::new();
    let properties = tool.parameters.get("properties").and_then(Value::as_object).unwrap_or(&none);
    if let Some(unknown) = call.arguments.keys().find(|name| !properties.contains_key(*name)) {
        return Some(format!("{} takes no {unknown}", tool.name));
    }
    let required = tool.parameters.get("required").and_then(Value::as_array).into_iter().flatten();
    if let Some(missing) = required.filter_map(Value::as_str).find(|name| !call.arguments.contains_key(*name)) {
        return Some(format!("{missing} is missing"));
    }
    call.arguments.iter().find_map(|(name, value)| mistyped(name, &properties[name], value))
}

/// Says that `value` is not of the type that `schema` wants, if it is not.
fn mistyped(name: &str, schema: &Value, value: &Value) -> Option<String> {
    let (fits, kind) = match schema.get("type").and_then(Value::as_str) {
        Some("string") => (value.is_string(), "a string"),
        Some("integer") => (value.is_i64() || value.is_u64(), "a whole number"),
        Some("number") => (value.is_number(), "a number"),
        Some("boolean") => (value.is_boolean(), "true or false"),
        Some("array") => (value.is_array(), "a list"),
        Some("object") => (value.is_object(), "an object"),
        _ => (true, ""),
    };
    if !fits {
        return Some(format!("{name} must be {kind}, not {value}"));
    }
    let item_schema = schema.get("items")?;
    let items = value.as_array()?;
    items.iter().enumerate().find_map(|(i, item)| mistyped(&format!("{name}[{i}]"), item_schema, item))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Vec<ToolSpec> {
        let parameters = json!({
            "type": "object",
            "properties": {
                "id": {"type": "string"},
                "count": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "method": {"type": "string", "enum": ["ST", "EX"]}
            },
            "required": ["id"]
        });
        vec![ToolSpec { name: "get".into(), description: "Read.".into(), parameters }]
    }

    fn call(name: &str, arguments: Value) -> Call {
        Call::Tool(ToolCall { name: name.into(), arguments: arguments.as_object().unwrap().clone() })
    }

    fn refusal(call: Call) -> Option<String> {
        let action = Action { text: String::new(), calls: vec![call] };
        screen(&tools(), &action).refusals.remove(0).map(|m| m.content)
    }

    #[test]
    fn each_mistake_is_named_to_the_policy() {
        let cases = [
            (
                Call::Malformed { raw: "{".into(), error: "it ends early".into() },
                "the call could not be read: it ends early",
            ),
            (call("fetch", json!({})), "there is no tool fetch"),
            (call("get", json!({})), "id is missing"),
            (call("get", json!({"id": "A", "user": "U"})), "get takes no user"),
            (call("get", json!({"id": 5})), "id must be a string, not 5"),
            (call("get", json!({"id": ["A"]})), "id must be a string, not [\"A\"]"),
            (call("get", json!({"id": null})), "id must be a string, not null"),
            (call("get", json!({"id": "A", "count": 1.5})), "count must be a whole number, not 1.5"),
            (call("get", json!({"id": "A", "tags": ["x", 2]})), "tags[1] must be a string, not 2"),
        ];
        for (bad, sentence) in cases {
            assert_eq!(refusal(bad), Some(json!({"error": sentence}).to_string()));
        }
        for good in [json!({"id": "A"}), json!({"id": "A", "count": 2, "tags": []}), json!({"id": "", "method": "?"})] {
            assert_eq!(refusal(call("get", good)), None);
        }
    }

    #[test]
    fn good_calls_run_and_refusals_keep_their_places() {
        let bad = call("fetch", json!({}));
        let good = |id: &str| call("get", json!({"id": id}));
        let action = Action { text: "one moment".into(), calls: vec![good("A"), bad, good("B")] };
        let screened = screen(&tools(), &action);
        assert_eq!(screened.executable, Action { text: "one moment".into(), calls: vec![good("A"), good("B")] });
        assert!(!screened.all_refused());
        let tool = |text: &str| Message::new(Role::Tool, text);
        let merged = screened.merge(vec![tool("a"), tool("b"), Message::new(Role::User, "thanks")]).unwrap();
        let texts: Vec<&str> = merged.iter().map(|m| m.content.as_str()).collect();
        assert_eq!(texts, ["a", "{\"error\":\"there is no tool fetch\"}", "b", "thanks"]);
    }

    #[test]
    fn an_action_whose_calls_are_all_refused_is_not_a_turn_that_speaks() {
        let action = Action { text: "done".into(), calls: vec![call("fetch", json!({}))] };
        assert!(screen(&tools(), &action).all_refused());
        assert!(!screen(&tools(), &Action::say("done")).all_refused());
    }

    #[test]
    fn replies_that_do_not_match_the_calls_are_refused() {
        let action = Action { text: String::new(), calls: vec![call("get", json!({"id": "A"}))] };
        let of = |roles: &[Role]| roles.iter().map(|r| Message::new(*r, "x")).collect::<Vec<_>>();
        for roles in
            [&[][..], &[Role::Tool, Role::Tool], &[Role::User, Role::Tool], &[Role::Tool, Role::User, Role::User]]
        {
            assert!(screen(&tools(), &action).merge(of(roles)).is_err(), "{roles:?}");
        }
        assert!(screen(&tools(), &action).merge(of(&[Role::Tool, Role::User])).is_ok());
    }
}
