//! The library's environments: each passes the audit, and speaks exactly as the target world does, so that what a
//! policy learns in them is of use there.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use trace_envs::audit::Audit;
use trace_envs::helpdesk::{CLAUSES, Capability, Demands, DeskEpisode, Helpdesk, Reward, Task, Tool, policy};
use trace_envs::library::LIBRARY;
use trace_envs::{Action, Call, EnvRegistry, Environment, Episode, Message, Role, SeedStream, Split};

fn environments() -> Vec<Arc<dyn Environment>> {
    let registry = EnvRegistry::builtin();
    LIBRARY.iter().map(|(name, _)| registry.get(name).unwrap()).collect()
}

fn capability(env: &dyn Environment) -> Option<Capability> {
    Capability::ALL.into_iter().find(|c| Some(c.name()) == env.spec().capability.as_deref())
}

#[test]
fn every_environment_passes_the_audit() {
    let target = Helpdesk::new();
    let audit = Audit {
        target: Some(target.spec()),
        writing_tools: Tool::ALL.iter().filter(|t| t.writes()).map(|t| t.name().to_string()).collect(),
        ..Audit::default()
    };
    for env in environments() {
        let items = audit.run(env.as_ref(), |item| println!("{}: {item:?}", env.spec().name));
        let failed: Vec<_> = items.iter().filter(|item| !item.passed).collect();
        assert!(failed.is_empty(), "{}: {failed:#?}", env.spec().name);
        assert_eq!(items.len(), 14, "{}", env.spec().name);
    }
}

#[test]
fn the_target_world_passes_the_audit_too() {
    let target = Helpdesk::new();
    let writing_tools = Tool::ALL.iter().filter(|t| t.writes()).map(|t| t.name().to_string()).collect();
    let items = Audit { target: Some(target.spec()), writing_tools, ..Audit::default() }.run(&target, |_| ());
    let failed: Vec<_> = items.iter().filter(|item| !item.passed).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// An action or message with what is drawn anew each time replaced by its kind.
fn pattern(text: &str) -> String {
    let quoted: Vec<&str> = text.split('"').collect();
    let text = if text.starts_with(['{', '[']) {
        text.to_string()
    } else {
        quoted.iter().enumerate().map(|(i, part)| if i % 2 == 1 { "\"ITEM\"" } else { part }).collect()
    };
    let mut out = String::new();
    for word in text.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let (body, end) = match word.chars().last() {
            Some(c) if !c.is_alphanumeric() => word.split_at(word.len() - c.len_utf8()),
            _ => (word, ""),
        };
        let digits = body.chars().filter(char::is_ascii_digit).count();
        let kind = match (body.len(), digits) {
            // Answers name a record by its item and its id; requests have the item in quotes.
            (5, 4) if quoted.len() == 1 => {
                let words: Vec<&str> = out.split_inclusive(' ').collect();
                out = words[..words.len().saturating_sub(2)].concat();
                "RECORD"
            }
            (5, 4) => "ID",
            (2, 2) => "00",
            _ => body,
        };
        out.push_str(kind);
        out.push_str(end);
    }
    out
}

/// The shape of a tool's result: its keys in order and the types of their values.
fn shape(content: &str) -> String {
    fn of(value: &Value) -> String {
        match value {
            Value::Object(map) => {
                let fields: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", of(v))).collect();
                format!("{{{}}}", fields.join(","))
            }
            Value::Array(items) => {
                let all: BTreeSet<String> = items.iter().map(of).collect();
                format!("[{}]", all.into_iter().collect::<Vec<_>>().join("|"))
            }
            Value::String(_) => "text".to_string(),
            Value::Number(_) => "number".to_string(),
            other => other.to_string(),
        }
    }
    let value: Value = serde_json::from_str(content).unwrap();
    // Compact, in the order written: reading and writing it again must not change a byte.
    assert_eq!(value.to_string(), content);
    of(&value)
}

/// All patterns of an episode played by its oracle: requests, calls with their results, answers.
fn patterns(episode: &mut dyn Episode, into: &mut BTreeSet<String>) {
    into.insert(format!("request: {}", pattern(&episode.opening().messages[1].content)));
    for step in 0..10 {
        let action = episode.oracle().unwrap().unwrap();
        let reply = episode.step(step, &action).unwrap();
        if action.calls.is_empty() {
            into.insert(format!("said: {}", pattern(&action.text)));
            into.extend(reply.messages.iter().map(|m: &Message| format!("heard: {}", pattern(&m.content))));
        }
        for (call, result) in action.calls.iter().zip(&reply.messages) {
            let Call::Tool(call) = call else { panic!("an oracle writes no malformed call") };
            let keys: Vec<&String> = call.arguments.keys().collect();
            into.insert(format!("{} {keys:?} -> {}", call.name, shape(&result.content)));
        }
        if reply.done {
            return;
        }
    }
    panic!("the oracle did not end");
}

#[test]
fn requests_calls_results_and_answers_look_as_in_the_target_world() {
    for env in environments() {
        let capability = capability(env.as_ref());
        for level in 1..=3u8 {
            let (mut theirs, mut ours) = (BTreeSet::new(), BTreeSet::new());
            for index in 0..6000 {
                let mut rng = SeedStream::keyed(&[1, index, u64::from(level)]);
                // The precision environment has changes too, which the desk checks: asked for at a level of their own,
                // at which the customer says nothing of the check.
                let mut demands = capability.map_or(Demands::default(), |c| Demands::default().with(c, level));
                if capability == Some(Capability::ToolPrecision) && index % 2 == 1 {
                    demands = demands.with(Capability::Precondition, 2);
                }
                let task = Task::generate(&mut rng, demands);
                if task.id_missing == (env.spec().name == "information_gathering") {
                    let tools = Helpdesk::new().spec().tools.clone();
                    let mut episode = DeskEpisode::new(task, &policy(&CLAUSES), tools, Reward::AllOrNothing);
                    patterns(&mut episode, &mut theirs);
                }
                if index < 200 {
                    let mut episode = env.reset(Split::Train.seed(index), u32::from(level)).unwrap();
                    patterns(episode.as_mut(), &mut ours);
                }
            }
            if env.spec().name == "information_gathering" {
                // What its customers add at levels 1 and 3 is their own.
                ours = ours
                    .iter()
                    .map(|p| p.replace(" Ask me for what you need.", "").replace(" You know me.", ""))
                    .collect();
            }
            let strange: Vec<&String> = ours.difference(&theirs).collect();
            assert!(strange.is_empty(), "{} at level {level}: {strange:#?}", env.spec().name);
            assert!(ours.len() >= 8, "{} at level {level}: only {ours:#?}", env.spec().name);
        }
    }
}

#[test]
fn the_policy_text_the_tools_and_the_hints_are_the_target_s_to_the_byte() {
    for env in environments() {
        for tool in &env.spec().tools {
            let wanted = Tool::named(&tool.name).unwrap().spec();
            // As texts, because the order of keys is part of what a policy reads.
            assert_eq!(json!(tool).to_string(), json!(wanted).to_string());
        }
        for level in 1..=3 {
            let episode = env.reset(Split::Train.seed(0), level).unwrap();
            let opening = episode.opening();
            assert_eq!(opening.messages[0], Message::new(Role::System, policy(&CLAUSES)));
            assert!((3..=5).contains(&opening.tools.len()));
            if let Some(capability) = capability(env.as_ref()) {
                assert_eq!(opening.hint.as_deref(), Some(capability.hint()));
            }
        }
    }
}

/// What the oracle does, and the first tool's result.
fn oracle(env: &dyn Environment, seed: u64, level: u32) -> (Vec<Action>, Value) {
    let mut episode = env.reset(seed, level).unwrap();
    let (mut actions, mut first) = (Vec::new(), Value::Null);
    loop {
        let action = episode.oracle().unwrap().unwrap();
        let reply = episode.step(actions.len() as u64, &action).unwrap();
        if first.is_null() && !action.calls.is_empty() {
            first = serde_json::from_str(&reply.messages[0].content).unwrap();
        }
        actions.push(action);
        if reply.done {
            return (actions, first);
        }
    }
}

/// The oracle's actions with the arguments of its calls changed.
fn with_arguments(actions: &[Action], change: impl Fn(&mut serde_json::Map<String, Value>)) -> Vec<Action> {
    let mut out = actions.to_vec();
    for call in out.iter_mut().flat_map(|a| &mut a.calls) {
        if let Call::Tool(call) = call {
            change(&mut call.arguments);
        }
    }
    out
}

/// What a policy with the habit that an environment is made against does instead.
fn habit(name: &str, actions: &[Action], list: &Value) -> Vec<Action> {
    let last = actions.len() - 1;
    let replace = |arguments: &mut serde_json::Map<String, Value>, key: &str, value: Value| {
        if let Some(old) = arguments.get_mut(key) {
            *old = value;
        }
    };
    match name {
        // Takes the id of the first record.
        "structured_data_reasoning" => {
            let mut out = with_arguments(actions, |a| replace(a, "record", list[0]["record"].clone()));
            let told = out[last].text.split(' ').skip(3).collect::<Vec<_>>().join(" ");
            out[last] = Action::say(format!("{} {told}", list[0]["record"].as_str().unwrap()));
            out
        }
        // Answers after the first part.
        "multi_step_completion" => {
            let answer = actions[last].text.split_inclusive(". ").next().unwrap().trim();
            vec![actions[0].clone(), actions[1].clone(), Action::say(answer)]
        }
        // Changes the record unread.
        "precondition_verification" => {
            let Call::Tool(get) = &actions[1].calls[0] else { panic!("the oracle reads first") };
            let change = if get.name == "get_trip" {
                "cancel_trip"
            } else if actions[last].text.contains("returned") {
                "return_order"
            } else {
                "cancel_order"
            };
            let told = format!("{} is done.", get.arguments["record"].as_str().unwrap());
            vec![actions[0].clone(), Action::call(change, get.arguments.clone()), Action::say(told)]
        }
        // Passes the customer's words.
        "tool_calling_precision" => with_arguments(actions, |a| {
            for option in ["method", "class", "channel"] {
                replace(a, option, json!("the fastest way"));
            }
        }),
        // Makes a user id up.
        _ => with_arguments(&actions[1..], |a| replace(a, "user", json!("U0000"))),
    }
}

#[test]
fn a_habit_costs_most_of_the_reward_in_its_environment() {
    for env in environments() {
        let name = &env.spec().name;
        let mut total = 0.0;
        for index in 0..100 {
            let seed = Split::Train.seed(index);
            let (actions, list) = oracle(env.as_ref(), seed, 3);
            let mut episode = env.reset(seed, 3).unwrap();
            for (step, action) in habit(name, &actions, &list).iter().enumerate() {
                episode.step(step as u64, action).unwrap();
            }
            total += episode.verdict().unwrap().reward;
        }
        let mean = total / 100.0;
        assert!(mean < 0.31, "{name}: {mean}");
    }
}
