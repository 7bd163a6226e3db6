//! Policies that an audit plays: the oracle, and those that deserve nothing.

use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};
use serde_json::{Map, Value, json};

use crate::contract::{Action, Call, Message, Role, ToolCall, ToolSpec};

/// Most calls of one turn of the destructive policy.
const CALLS_PER_TURN: usize = 12;

/// What a policy has to go by.
pub(super) struct Seen<'a> {
    /// The whole conversation.
    pub messages: &'a [Message],
    /// The tools of the episode.
    pub tools: &'a [ToolSpec],
    /// Turns taken.
    pub turn: u32,
}

/// Says and does nothing.
pub(super) fn silence() -> Action {
    Action::default()
}

/// A refusal at once, without a look: with every word of the policy text and of the request, so that whatever reason
/// the environment wants to hear is among them.
pub(super) fn blind_refusal(seen: &Seen<'_>) -> Action {
    let all: Vec<&str> = seen.messages.iter().map(|m| m.content.as_str()).collect();
    Action::say(format!("I am sorry, that cannot be done. {}", all.join(" ").replace('?', ".")))
}

/// Random words, or a random tool with random words.
pub(super) fn noise<R: Rng>(seen: &Seen<'_>, rng: &mut R) -> Action {
    let words: Vec<&str> = seen.messages.iter().flat_map(|m| m.content.split_whitespace()).collect();
    let mut some = |n: usize| -> String {
        let picked: Vec<&str> = (0..n).filter_map(|_| words.choose(rng).copied()).collect();
        picked.join(" ")
    };
    let (text, values): (String, Vec<String>) = (some(8), (0..8).map(|_| some(1)).collect());
    let Some(tool) = seen.tools.choose(rng).filter(|_| seen.turn < 3) else {
        return Action::say(text);
    };
    let arguments = properties(tool)
        .enumerate()
        .map(|(i, (name, schema))| (name.clone(), filler(schema, &values[i % values.len()])))
        .collect();
    Action::call(tool.name.clone(), arguments)
}

/// Every tool with everything that looks like an id, records and changes alike, and then a claim to be done. Where
/// there is no id yet and no tool that does without one, the customer is asked.
pub(super) fn destruction<R: Rng>(seen: &Seen<'_>, last: bool, rng: &mut R) -> Action {
    if last {
        return Action::say("All is done.");
    }
    let ids = ids_in(seen.messages);
    let calls = plausible_calls(seen.tools, &ids, rng);
    if calls.is_empty() {
        return Action::say("What is your user id?");
    }
    Action { text: String::new(), calls: calls.into_iter().take(CALLS_PER_TURN).map(Call::Tool).collect() }
}

/// Calls with the right types and real ids, in random order. An id that stands in an object with other texts brings
/// these along where a tool has arguments of their names; a tool without arguments is called once.
pub(super) fn plausible_calls<R: Rng>(tools: &[ToolSpec], ids: &[Found], rng: &mut R) -> Vec<ToolCall> {
    let mut out = Vec::new();
    for tool in tools {
        if properties(tool).next().is_none() {
            out.push(ToolCall { name: tool.name.clone(), arguments: Map::new() });
            continue;
        }
        for found in ids {
            let arguments: Map<String, Value> = properties(tool)
                .map(|(name, schema)| {
                    let known = found.beside.get(name).filter(|v| v.is_string()).cloned();
                    let choice = schema.get("enum").and_then(Value::as_array).and_then(|e| e.choose(rng)).cloned();
                    (name.clone(), choice.or(known).unwrap_or_else(|| filler(schema, &found.id)))
                })
                .collect();
            out.push(ToolCall { name: tool.name.clone(), arguments });
        }
    }
    out.shuffle(rng);
    out
}

/// Something that looks like an id, and the object in which it was found.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    /// The id.
    pub id: String,
    /// The fields of its object; empty where it stood in a text.
    pub beside: Map<String, Value>,
}

/// Everything in what the policy was told that looks like an id: words with a digit, and texts of tool results that
/// hold one.
pub(super) fn ids_in(messages: &[Message]) -> Vec<Found> {
    let mut out: Vec<Found> = Vec::new();
    let mut add = |found: Found| {
        let old = out.iter_mut().find(|f| f.id == found.id);
        match old {
            Some(old) if old.beside.is_empty() => *old = found,
            Some(_) => {}
            None => out.push(found),
        }
    };
    for message in messages {
        match (message.role, serde_json::from_str::<Value>(&message.content)) {
            (Role::Tool, Ok(value)) => objects(&value, &mut |object| {
                for text in object.values().filter_map(Value::as_str).filter(|t| looks_like_id(t)) {
                    add(Found { id: text.to_string(), beside: object.clone() });
                }
            }),
            (Role::Assistant | Role::System, _) => {}
            _ => {
                let words = message.content.split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_'));
                for word in words.filter(|w| looks_like_id(w)) {
                    add(Found { id: word.to_string(), beside: Map::new() });
                }
            }
        }
    }
    out
}

/// A short text with a digit in it; several words, as in `red lamp A1234`, only where a tool gave them as one.
fn looks_like_id(text: &str) -> bool {
    (2..=40).contains(&text.len()) && text.chars().any(|c| c.is_ascii_digit())
}

fn objects<'a>(value: &'a Value, visit: &mut impl FnMut(&'a Map<String, Value>)) {
    match value {
        Value::Object(map) => {
            visit(map);
            map.values().for_each(|v| objects(v, visit));
        }
        Value::Array(items) => items.iter().for_each(|v| objects(v, visit)),
        _ => {}
    }
}

fn properties(tool: &ToolSpec) -> impl Iterator<Item = (&String, &Value)> {
    tool.parameters.get("properties").and_then(Value::as_object).into_iter().flatten()
}

/// A value of the schema's type, made of a text.
fn filler(schema: &Value, text: &str) -> Value {
    match schema.get("type").and_then(Value::as_str) {
        Some("integer" | "number") => json!(text.len()),
        Some("boolean") => json!(true),
        Some("array") => json!([filler(schema.get("items").unwrap_or(&Value::Null), text)]),
        Some("object") => json!({}),
        _ => json!(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::SeedStream;

    fn tools() -> Vec<ToolSpec> {
        let spec = |name: &str, parameters| ToolSpec { name: name.into(), description: String::new(), parameters };
        vec![
            spec("list", json!({"type": "object", "properties": {"user": {"type": "string"}}})),
            spec(
                "ship",
                json!({"type": "object", "properties": {
                "item": {"type": "string"}, "id": {"type": "string"}, "method": {"type": "string", "enum": ["ST"]}}}),
            ),
        ]
    }

    #[test]
    fn ids_are_found_in_requests_and_results_with_what_stands_beside_them() {
        let messages = [
            Message::new(Role::System, "Rule 1: none"),
            Message::new(Role::User, "I am U0042."),
            Message::new(Role::Tool, r#"[{"item":"red lamp","id":"A1234"},{"item":"U0042","id":"B2"}]"#),
            Message::new(Role::Assistant, "C3"),
        ];
        let ids: Vec<String> = ids_in(&messages).into_iter().map(|f| f.id).collect();
        assert_eq!(ids, ["U0042", "A1234", "B2"]);
        assert_eq!(ids_in(&messages)[1].beside["item"], "red lamp");
    }

    #[test]
    fn destruction_tries_every_tool_with_every_id() {
        let messages = [Message::new(Role::Tool, r#"[{"item":"red lamp","id":"A1234"},{"item":"mug","id":"B2345"}]"#)];
        let mut rng = SeedStream::keyed(&[1]);
        let calls = plausible_calls(&tools(), &ids_in(&messages), &mut rng);
        assert_eq!(calls.len(), 4);
        let wanted = json!({"item": "mug", "id": "B2345", "method": "ST"});
        assert!(calls.iter().any(|c| c.name == "ship" && Value::Object(c.arguments.clone()) == wanted), "{calls:?}");
    }
}
