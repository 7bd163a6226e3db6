//! `trace env play`: a person, or the oracle, acts as the policy.

use std::io::{BufRead, Write};
use std::process::ExitCode;

use console::style;
use serde_json::{Map, Value};
use trace_envs::{Action, Call, EnvSpec, Episode, Role, ToolCall, ToolSpec};

use super::{Done, shown, transcript};

/// Who acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Player {
    Person,
    Oracle,
}

const HELP: &str = "say something          any line that is no command is said to the customer
TOOL {\"name\": \"value\"}  calls a tool; TOOL name=value works as well
/tools                 the tools with their parameters
/hint                  the environment's hint
/oracle                lets the oracle take this turn
/verdict               how it would be judged now
/quit                  ends it here
";

/// Plays one episode; `input` and `output` are the terminal.
pub(super) fn play(
    spec: &EnvSpec,
    episode: &mut dyn Episode,
    player: Player,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
) -> Done {
    let opening = episode.opening().clone();
    let say = |output: &mut dyn Write, text: &str| output.write_all(text.as_bytes()).map_err(shown);
    for message in &opening.messages {
        say(output, &transcript::message(message))?;
    }
    if player == Player::Person {
        say(output, &format!("{}\n", style("you are the assistant; /help says how").dim()))?;
    }
    let mut turns = 0;
    while turns < spec.max_turns {
        let action = match player {
            Player::Oracle => match episode.oracle().map_err(shown)? {
                Some(action) => action,
                None => break,
            },
            Player::Person => {
                say(output, &format!("{} ", style(">").bold()))?;
                output.flush().map_err(shown)?;
                let mut line = String::new();
                if input.read_line(&mut line).map_err(shown)? == 0 {
                    break;
                }
                match line.trim() {
                    "" => continue,
                    "/quit" => break,
                    "/help" => {
                        say(output, HELP)?;
                        continue;
                    }
                    "/tools" => {
                        for tool in &opening.tools {
                            say(output, &format!("{}  {}  {}\n", tool.name, tool.description, tool.parameters))?;
                        }
                        continue;
                    }
                    "/hint" => {
                        let hint = opening.hint.as_deref().unwrap_or("this environment has no hint");
                        say(output, &format!("{hint}\n"))?;
                        continue;
                    }
                    "/verdict" => {
                        let verdict = episode.verdict().map_err(shown)?;
                        say(output, &transcript::verdict(Some(verdict.reward), &verdict.checks))?;
                        continue;
                    }
                    "/oracle" => match episode.oracle().map_err(shown)? {
                        Some(action) => action,
                        None => {
                            say(output, "the oracle has nothing to do here\n")?;
                            continue;
                        }
                    },
                    command if command.starts_with('/') => {
                        say(output, &format!("there is no {command}\n{HELP}"))?;
                        continue;
                    }
                    line => read_action(line, &opening.tools),
                }
            }
        };
        say(output, &transcript::turn(Role::Assistant, &action.text, &action.calls))?;
        let reply = episode.step(u64::from(turns), &action).map_err(shown)?;
        turns += 1;
        for message in &reply.messages {
            say(output, &transcript::message(message))?;
        }
        if reply.done {
            break;
        }
    }
    let verdict = episode.verdict().map_err(shown)?;
    say(output, &transcript::verdict(Some(verdict.reward), &verdict.checks))?;
    Ok(ExitCode::SUCCESS)
}

/// What a typed line means: a call where it begins with a tool's name, else speech.
fn read_action(line: &str, tools: &[ToolSpec]) -> Action {
    let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let takes_arguments = rest.is_empty() || rest.starts_with('{') || rest.contains('=');
    if !takes_arguments || !tools.iter().any(|tool| tool.name == first) {
        return Action::say(line);
    }
    let call = match arguments(rest) {
        Ok(arguments) => Call::Tool(ToolCall { name: first.to_owned(), arguments }),
        Err(error) => Call::Malformed { raw: line.to_owned(), error },
    };
    Action { text: String::new(), calls: vec![call] }
}

/// `{"a": 1}`, or `a=1 b=two words`: a value goes on until the next `name=`.
fn arguments(text: &str) -> Result<Map<String, Value>, String> {
    if text.starts_with('{') {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    let mut arguments: Vec<(String, String)> = Vec::new();
    for word in text.split_whitespace() {
        match (word.split_once('='), arguments.last_mut()) {
            (Some((name, value)), _) => arguments.push((name.to_owned(), value.to_owned())),
            (None, Some((_, value))) => *value += &format!(" {word}"),
            (None, None) => return Err(format!("{word:?} is not name=value")),
        }
    }
    let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    Ok(arguments.into_iter().map(|(name, text)| (name, value(&text))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use trace_envs::Environment;
    use trace_envs::helpdesk::Helpdesk;

    fn tools() -> Vec<ToolSpec> {
        vec![ToolSpec { name: "find".into(), description: String::new(), parameters: json!({}) }]
    }

    #[test]
    fn a_line_that_begins_with_a_tools_name_calls_it_and_any_other_is_speech() {
        let call = |line: &str| match read_action(line, &tools()).calls.as_slice() {
            [Call::Tool(call)] => Some(Value::Object(call.arguments.clone())),
            _ => None,
        };
        assert_eq!(call(r#"find {"item": "red lamp", "n": 2}"#), Some(json!({"item": "red lamp", "n": 2})));
        assert_eq!(call("find item=red lamp n=2"), Some(json!({"item": "red lamp", "n": 2})));
        assert_eq!(call("find"), Some(json!({})));
        assert_eq!(read_action("find me a lamp", &tools()), Action::say("find me a lamp"));
        assert_eq!(read_action("Hello.", &tools()), Action::say("Hello."));
        let broken = read_action("find {\"item\":", &tools());
        assert!(matches!(broken.calls.as_slice(), [Call::Malformed { .. }]), "{broken:?}");
    }

    #[test]
    fn the_oracle_can_take_every_turn_of_a_person() {
        let env = Helpdesk::new();
        let mut episode = env.reset(0, 0).unwrap();
        let input = "/help\n/nothing\n".to_owned() + &"/oracle\n".repeat(10) + "/quit\n";
        let mut output = Vec::new();
        play(env.spec(), &mut *episode, Player::Person, &mut input.as_bytes(), &mut output).unwrap();
        let text = console::strip_ansi_codes(&String::from_utf8(output).unwrap()).into_owned();
        assert!(text.contains("there is no /nothing") && text.contains("reward 1\n"), "{text}");
    }

    #[test]
    fn the_end_of_input_ends_the_episode_with_a_verdict() {
        let env = Helpdesk::new();
        let mut episode = env.reset(0, 0).unwrap();
        let mut output = Vec::new();
        play(env.spec(), &mut *episode, Player::Person, &mut "".as_bytes(), &mut output).unwrap();
        assert!(String::from_utf8(output).unwrap().contains("reward"));
    }
}
