//! What the policy wrote in a turn: thinking, text, and tool calls in the Hermes form
//! `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
//!
//! A call that cannot be read is data, not an error: it goes to the environment as [`ParsedCall::Malformed`], nothing
//! is executed for it, the policy gets an error observation, and the other calls of the turn still run.

use serde_json::{Map, Value};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const THINK_OPEN: &str = "<think>";
const THINK_CLOSE: &str = "</think>";

/// A turn taken apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParsedTurn {
    /// What was thought, without its tags; `None` where the turn has no thinking. Calls inside are not executed.
    pub thinking: Option<String>,
    /// What stands outside thinking and calls, trimmed.
    pub text: String,
    /// The calls in the order written.
    pub calls: Vec<ParsedCall>,
}

/// One call as the policy wrote it.
#[derive(Clone, Debug, PartialEq)]
pub enum ParsedCall {
    /// A name and an object of arguments, in the order written.
    Ok {
        /// The tool's name; not empty, not necessarily one that exists.
        name: String,
        /// Its arguments.
        arguments: Map<String, Value>,
    },
    /// What could not be read as a call.
    Malformed {
        /// What the policy wrote after the opening tag, trimmed.
        raw: String,
        /// Why it could not be read, in a sentence that is fit to show to the policy.
        error: String,
    },
}

/// Takes a turn apart. `text` is the turn without its end-of-turn token.
///
/// `thinking_open` says that the prompt ended inside a `<think>` block, as some templates' generation prompts do: then
/// the turn begins with thinking although it does not hold the opening tag.
pub fn parse(text: &str, thinking_open: bool) -> ParsedTurn {
    let (thinking, spoken) = split_thinking(text, thinking_open);
    let mut turn = ParsedTurn { thinking, ..ParsedTurn::default() };
    let mut outside = String::new();
    let mut rest = spoken.as_str();
    while let Some(at) = rest.find(OPEN) {
        outside.push_str(&rest[..at]);
        let (call, after) = parse_call(&rest[at + OPEN.len()..]);
        turn.calls.push(call);
        rest = after;
    }
    outside.push_str(rest);
    turn.text = outside.trim().to_string();
    turn
}

/// Thinking, and the rest. Thinking ends at the last closing tag; without one it lasts to the end of the turn.
fn split_thinking(text: &str, thinking_open: bool) -> (Option<String>, String) {
    let (before, inside_on) = match text.find(THINK_OPEN) {
        // The tag within a call's arguments or within text that follows a call is not an opener.
        Some(at) if !thinking_open && !text[..at].contains(OPEN) => (&text[..at], &text[at + THINK_OPEN.len()..]),
        _ if thinking_open => ("", text.strip_prefix(THINK_OPEN).unwrap_or(text)),
        _ => match text.find(THINK_CLOSE) {
            // Only the closing tag: the opener was in the prompt, whoever built it.
            Some(at) if !text[..at].contains(OPEN) => ("", text),
            _ => return (None, text.to_string()),
        },
    };
    match inside_on.rfind(THINK_CLOSE) {
        Some(at) => {
            let spoken = format!("{before}{}", &inside_on[at + THINK_CLOSE.len()..]);
            (Some(inside_on[..at].trim().to_string()), spoken)
        }
        None => (Some(inside_on.trim().to_string()), before.to_string()),
    }
}

/// Reads one call from just after its opening tag; also gives what follows the call.
fn parse_call(body: &str) -> (ParsedCall, &str) {
    // The JSON value is read first and the closing tag looked for after it, since a string among the arguments may
    // hold the closing tag.
    let mut values = serde_json::Deserializer::from_str(body).into_iter::<Value>();
    let parsed = values.next();
    let end = values.byte_offset();
    if let Some(Ok(value)) = &parsed {
        let after = body[end..].trim_start();
        if let Some(rest) = after.strip_prefix(CLOSE) {
            return (check_call(value, body[..end].trim()), rest);
        }
    }
    let (raw, rest, closed) = match (body.find(CLOSE), body.find(OPEN)) {
        (Some(close), next) if next.is_none_or(|open| close < open) => {
            (&body[..close], &body[close + CLOSE.len()..], true)
        }
        (_, Some(open)) => (&body[..open], &body[open..], false),
        (_, None) => (body, "", false),
    };
    let error = match parsed {
        _ if raw.trim().is_empty() => "the call is empty".to_string(),
        Some(Ok(_)) if closed => format!("something stands between the call's JSON and {CLOSE}"),
        Some(Err(e)) if closed => format!("the call is not valid JSON: {e}"),
        _ => format!("the call is not closed by {CLOSE}"),
    };
    (ParsedCall::Malformed { raw: raw.trim().to_string(), error }, rest)
}

fn check_call(value: &Value, raw: &str) -> ParsedCall {
    let malformed = |error: String| ParsedCall::Malformed { raw: raw.to_string(), error };
    let Value::Object(call) = value else {
        return malformed(format!("the call is {}, not a JSON object", kind(value)));
    };
    let name = match call.get("name") {
        Some(Value::String(name)) if !name.trim().is_empty() => name,
        Some(Value::String(_)) => return malformed("the call's \"name\" is empty".to_string()),
        Some(other) => return malformed(format!("the call's \"name\" is {}, not a string", kind(other))),
        None => return malformed("the call has no \"name\"".to_string()),
    };
    match call.get("arguments") {
        Some(Value::Object(arguments)) => ParsedCall::Ok { name: name.clone(), arguments: arguments.clone() },
        Some(other) => malformed(format!("the call's \"arguments\" is {}, not a JSON object", kind(other))),
        None => malformed("the call has no \"arguments\"".to_string()),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ok(name: &str, arguments: Value) -> ParsedCall {
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        ParsedCall::Ok { name: name.to_string(), arguments }
    }

    fn malformed(raw: &str, error: &str) -> ParsedCall {
        ParsedCall::Malformed { raw: raw.to_string(), error: error.to_string() }
    }

    fn spoken(text: &str, calls: Vec<ParsedCall>) -> ParsedTurn {
        ParsedTurn { thinking: None, text: text.to_string(), calls }
    }

    #[test]
    fn text_and_several_calls_are_taken_apart_in_order() {
        let text = "One moment.\n<tool_call>\n{\"name\": \"a\", \"arguments\": {\"z\": 1, \"b\": [2]}}\n</tool_call>\n\
                    <tool_call>{\"name\":\"b\",\"arguments\":{}}</tool_call>";
        let expected = spoken("One moment.", vec![ok("a", json!({"z": 1, "b": [2]})), ok("b", json!({}))]);
        assert_eq!(parse(text, false), expected);
        assert_eq!(parse("  Just text. ", false), spoken("Just text.", vec![]));
        assert_eq!(parse("", false), ParsedTurn::default());
    }

    #[test]
    fn arguments_keep_the_order_in_which_they_were_written() {
        let turn = parse("<tool_call>{\"arguments\":{\"z\":1,\"a\":2,\"m\":3},\"name\":\"t\"}</tool_call>", false);
        let ParsedCall::Ok { arguments, .. } = &turn.calls[0] else { panic!("{turn:?}") };
        assert_eq!(arguments.keys().collect::<Vec<_>>(), ["z", "a", "m"]);
    }

    #[test]
    fn a_broken_call_is_marked_and_the_others_still_run() {
        let text = "<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": }}</tool_call>\
                    <tool_call>{\"name\": \"b\", \"arguments\": {\"x\": 1}}</tool_call>";
        let expected = vec![
            malformed(
                "{\"name\": \"a\", \"arguments\": {\"x\": }}",
                "the call is not valid JSON: expected value at line 1 column 34",
            ),
            ok("b", json!({"x": 1})),
        ];
        assert_eq!(parse(text, false), spoken("", expected));
    }

    #[test]
    fn arguments_that_are_no_object_are_never_executed() {
        for (written, found) in [("[1]", "a list"), ("\"{}\"", "a string"), ("null", "null"), ("3", "a number")] {
            let raw = format!("{{\"name\": \"a\", \"arguments\": {written}}}");
            let error = format!("the call's \"arguments\" is {found}, not a JSON object");
            let expected = spoken("", vec![malformed(&raw, &error)]);
            assert_eq!(parse(&format!("<tool_call>{raw}</tool_call>"), false), expected);
        }
    }

    #[test]
    fn a_call_needs_a_name_and_arguments() {
        for (raw, error) in [
            ("{\"arguments\": {}}", "the call has no \"name\""),
            ("{\"name\": \" \", \"arguments\": {}}", "the call's \"name\" is empty"),
            ("{\"name\": 1, \"arguments\": {}}", "the call's \"name\" is a number, not a string"),
            ("{\"name\": \"a\"}", "the call has no \"arguments\""),
            ("[{\"name\": \"a\"}]", "the call is a list, not a JSON object"),
            ("", "the call is empty"),
        ] {
            let turn = parse(&format!("<tool_call>\n{raw}\n</tool_call>"), false);
            assert_eq!(turn, spoken("", vec![malformed(raw, error)]));
        }
    }

    #[test]
    fn a_call_without_its_closing_tag_is_malformed_and_ends_at_the_next_call() {
        let json = "{\"name\": \"a\", \"arguments\": {}}";
        let error = "the call is not closed by </tool_call>";
        assert_eq!(parse(&format!("Hm <tool_call>{json}"), false), spoken("Hm", vec![malformed(json, error)]));
        let two = format!("<tool_call>{json}\n<tool_call>{json}</tool_call> done");
        assert_eq!(parse(&two, false), spoken("done", vec![malformed(json, error), ok("a", json!({}))]));
        let cut = "<tool_call>{\"name\": \"a\", \"argu";
        let ParsedCall::Malformed { raw, .. } = &parse(cut, false).calls[0] else { panic!("a cut call is malformed") };
        assert_eq!(raw, "{\"name\": \"a\", \"argu");
    }

    #[test]
    fn what_stands_after_the_json_makes_the_call_malformed() {
        let turn = parse("<tool_call>{\"name\": \"a\", \"arguments\": {}} and {}</tool_call>x", false);
        let error = "something stands between the call's JSON and </tool_call>";
        assert_eq!(turn, spoken("x", vec![malformed("{\"name\": \"a\", \"arguments\": {}} and {}", error)]));
    }

    #[test]
    fn a_closing_tag_within_a_string_argument_does_not_end_the_call() {
        let text = "<tool_call>{\"name\": \"say\", \"arguments\": {\"t\": \"a</tool_call><tool_call>b\"}}</tool_call>";
        assert_eq!(parse(text, false), spoken("", vec![ok("say", json!({"t": "a</tool_call><tool_call>b"}))]));
    }

    #[test]
    fn thinking_is_neither_said_nor_executed() {
        let call = "<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>";
        let whole = format!("<think>\nmaybe {call}\n</think>\n\nDone. {call}");
        let expected = ParsedTurn {
            thinking: Some(format!("maybe {call}")),
            text: "Done.".to_string(),
            calls: vec![ok("a", json!({}))],
        };
        assert_eq!(parse(&whole, false), expected);
        // The opener was in the prompt: the same turn, with or without our being told.
        let opened = whole.strip_prefix("<think>").unwrap();
        assert_eq!(parse(opened, true), expected);
        let plain = ParsedTurn { thinking: Some("short".to_string()), text: "Yes.".to_string(), calls: vec![] };
        assert_eq!(parse("short\n</think>\n\nYes.", true), plain);
        assert_eq!(parse("short\n</think>\n\nYes.", false), plain);
        assert_eq!(parse("</think>Yes.", true).text, "Yes.");
    }

    #[test]
    fn thinking_that_never_ends_says_nothing() {
        let call = "<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>";
        for (text, open) in [(format!("<think>so {call}"), false), (format!("so {call}"), true)] {
            let expected = ParsedTurn { thinking: Some(format!("so {call}")), ..ParsedTurn::default() };
            assert_eq!(parse(&text, open), expected);
        }
    }

    #[test]
    fn think_tags_among_the_arguments_are_text() {
        let text = "<tool_call>{\"name\": \"say\", \"arguments\": {\"t\": \"<think>x</think>\"}}</tool_call>";
        assert_eq!(parse(text, false), spoken("", vec![ok("say", json!({"t": "<think>x</think>"}))]));
    }
}
