//! What a Python environment does when nothing goes wrong.

mod support;

use serde_json::json;
use support::{COUNTER, add, call, counter_with, load};
use trace_envs::{Action, Call, Check, EnvError, Environment, Message, Role, StepReply, ToolCall, Verdict};

fn tool(content: &str) -> Message {
    Message::new(Role::Tool, content)
}

#[test]
fn an_episode_runs_from_opening_to_verdict() {
    let env = load(COUNTER).unwrap();
    assert_eq!((env.spec().name.as_str(), env.spec().levels, env.spec().max_turns), ("counter", 2, 8));
    let mut episode = env.reset(5, 1).unwrap();
    assert_eq!(episode.opening().level, 1);
    assert_eq!(episode.opening().tools, env.spec().tools);
    assert_eq!(episode.opening().hint, None);
    let goal: i64 = {
        let text = &episode.opening().messages[1].content;
        text.strip_prefix("Count to ").unwrap().strip_suffix('.').unwrap().parse().unwrap()
    };

    let reply = episode.step(0, &Action::say("How far?")).unwrap();
    assert_eq!(reply, StepReply { messages: vec![Message::new(Role::User, format!("To {goal}."))], done: false });
    let reply = episode.step(1, &add(goal - 1)).unwrap();
    assert_eq!(reply, StepReply { messages: vec![tool(&json!({"count": goal - 1}).to_string())], done: false });
    assert_eq!(episode.verdict().unwrap().reward, 0.0);
    assert_eq!(episode.oracle().unwrap(), Some(add(1)));
    episode.step(2, &add(1)).unwrap();
    assert_eq!(episode.step(3, &Action::say("done")).unwrap(), StepReply { messages: vec![], done: true });
    let check = Check { name: "count".into(), score: 1.0, weight: 1.0, detail: String::new() };
    assert_eq!(episode.verdict().unwrap(), Verdict { reward: 1.0, checks: vec![check] });
    assert!(matches!(episode.step(4, &add(1)), Err(EnvError::Misuse(_))));
}

#[test]
fn a_repeated_step_returns_the_same_reply_without_acting_again() {
    let env = load(COUNTER).unwrap();
    let mut episode = env.reset(5, 1).unwrap();
    let first = episode.step(0, &add(1)).unwrap();
    assert_eq!(episode.step(0, &add(1)).unwrap(), first);
    assert_eq!(episode.step(1, &add(1)).unwrap().messages, vec![tool("{\"count\":2}")]);
    assert_eq!(episode.step(0, &add(7)).unwrap(), first);
}

#[test]
fn the_same_seed_and_level_give_the_same_episode_in_any_process() {
    let goals = |env: &dyn Environment, level| -> Vec<String> {
        (0..40).map(|seed| env.reset(seed, level).unwrap().opening().messages[1].content.clone()).collect()
    };
    let (first, second) = (load(COUNTER).unwrap(), load(COUNTER).unwrap());
    assert_eq!(goals(&first, 1), goals(&second, 1));
    assert_eq!(goals(&first, 2), goals(&second, 2));
    assert_ne!(goals(&first, 1), goals(&first, 2));
    let distinct: std::collections::HashSet<_> = goals(&first, 1).into_iter().collect();
    assert!(distinct.len() > 30);
}

#[test]
fn level_0_draws_from_the_mix_and_gives_the_episode_of_the_drawn_level() {
    let source = COUNTER.replace("\"levels\": 2,", "\"levels\": 2, \"mix\": [1, 3],");
    let env = load(&source).unwrap();
    let mut second = 0;
    for seed in 0..200 {
        let mixed = env.reset(seed, 0).unwrap().opening().clone();
        assert_eq!(*env.reset(seed, mixed.level).unwrap().opening(), mixed);
        second += u32::from(mixed.level == 2);
    }
    // 150 expected, standard deviation 6.
    assert!((125..175).contains(&second), "{second}");
    assert!(matches!(env.reset(0, 3), Err(EnvError::Misuse(_))));
}

#[test]
fn what_the_policy_gets_wrong_about_tools_is_an_observation_and_the_other_calls_run() {
    let env = load(COUNTER).unwrap();
    let mut episode = env.reset(1, 1).unwrap();
    let good =
        |n: i64| Call::Tool(ToolCall { name: "add".into(), arguments: json!({"n": n}).as_object().unwrap().clone() });
    let bad = |name: &str, arguments: serde_json::Value| {
        Call::Tool(ToolCall { name: name.into(), arguments: arguments.as_object().unwrap().clone() })
    };
    let action = Action {
        text: String::new(),
        calls: vec![
            good(1),
            Call::Malformed { raw: "{\"name\": add".into(), error: "expected a value at column 10".into() },
            bad("subtract", json!({"n": 1})),
            bad("add", json!({"n": [1, 2]})),
            good(2),
        ],
    };
    let texts: Vec<String> = episode.step(0, &action).unwrap().messages.into_iter().map(|m| m.content).collect();
    assert_eq!(
        texts,
        [
            "{\"count\":1}",
            "{\"error\":\"the call could not be read: expected a value at column 10\"}",
            "{\"error\":\"there is no tool subtract\"}",
            "{\"error\":\"n must be a whole number, not [1,2]\"}",
            "{\"count\":3}",
        ]
    );
    let only_bad = Action { text: "I add.".into(), calls: vec![bad("subtract", json!({}))] };
    let reply = episode.step(1, &only_bad).unwrap();
    assert_eq!((reply.messages.len(), reply.done), (1, false));
}

#[test]
fn the_state_keeps_what_was_said_and_called() {
    let body = "if state['said'] or state['calls']:\n    return {'reward': 1, 'checks': [{'name': 'log', 'score': 1, 'weight': 0, 'detail': str([state['said'], state['calls']])}]}";
    let env = load(&counter_with("def verdict(state):", body)).unwrap();
    let mut episode = env.reset(1, 1).unwrap();
    episode.step(0, &Action { text: "I add.".into(), ..add(2) }).unwrap();
    episode.step(1, &Action::say("So?")).unwrap();
    let detail = episode.verdict().unwrap().checks[0].detail.clone();
    assert_eq!(detail, "[['I add.', 'So?'], [{'name': 'add', 'arguments': {'n': 2}, 'result': {'count': 2}}]]");
}

#[test]
fn an_episode_offers_the_tools_that_its_state_names_and_carries_the_hint() {
    let two = COUNTER.replace(
        "\"tools\": [{",
        "\"tools\": [{\"name\": \"stop\", \"description\": \"\", \"parameters\": {\"type\": \"object\", \"properties\": {}}}, {",
    );
    let narrowed = two.replace("\"count\": 0,", "\"count\": 0, \"tools\": [\"add\"],")
        + "\ndef hint(state):\n    return f\"Hint: add {state['goal']}.\"\n";
    let env = load(&narrowed).unwrap();
    let mut episode = env.reset(1, 1).unwrap();
    let names: Vec<&str> = episode.opening().tools.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["add"]);
    assert!(episode.opening().hint.as_deref().unwrap().starts_with("Hint: add "));
    let reply = episode.step(0, &call("stop", json!({}))).unwrap();
    assert_eq!(reply.messages, [tool("{\"error\":\"there is no tool stop\"}")]);
}

#[test]
fn the_module_is_run_anew_for_each_call_so_that_episodes_share_nothing() {
    let shared = format!(
        "seen = []\n{}",
        counter_with("def call(state, tool, args):", "seen.append(1)\nstate['count'] = len(seen) - 1")
    );
    let env = load(&shared).unwrap();
    let (mut a, mut b) = (env.reset(1, 1).unwrap(), env.reset(1, 1).unwrap());
    for step in 0..3 {
        assert_eq!(a.step(step, &add(0)).unwrap(), b.step(step, &add(0)).unwrap());
    }
}

#[test]
fn a_call_that_raises_leaves_the_state_as_it_was() {
    let body = "state['count'] += 100\nif args['n'] < 0:\n    raise ValueError('negative')\nstate['count'] -= 100";
    let env = load(&counter_with("def call(state, tool, args):", body)).unwrap();
    let mut episode = env.reset(1, 1).unwrap();
    episode.step(0, &add(1)).unwrap();
    let error = episode.step(1, &add(-1)).unwrap_err();
    let EnvError::Step { step_id: 1, reason } = error else { panic!("{error}") };
    assert!(reason.contains("ValueError: negative") && reason.contains("test.py"), "{reason}");
    assert_eq!(episode.step(2, &add(1)).unwrap().messages, [tool("{\"count\":2}")]);
}

#[test]
fn an_episode_takes_no_more_turns_than_its_spec_says() {
    let env = load(COUNTER).unwrap();
    let mut episode = env.reset(1, 1).unwrap();
    for step in 0..8 {
        episode.step(step, &add(1)).unwrap();
    }
    assert!(matches!(episode.step(8, &add(1)), Err(EnvError::Misuse(_))));
    assert!(episode.verdict().is_ok());
}

#[test]
fn a_file_that_is_no_environment_is_refused_with_the_reason() {
    let cases = [
        ("def reset(:\n", "SyntaxError"),
        ("x = 1\n", "NameError: name 'reset' is not defined"),
        (&COUNTER.replace("def verdict", "def judge"), "NameError: name 'verdict' is not defined"),
        (&COUNTER.replace("\"levels\": 2,", ""), "missing field `levels`"),
        (&COUNTER.replace("\"levels\": 2,", "\"levels\": 0,"), "at least one level"),
        (&COUNTER.replace("\"levels\": 2,", "\"levels\": 2, \"leves\": 3,"), "unknown field `leves`"),
        (&COUNTER.replace("\"levels\": 2,", "\"levels\": 2, \"mix\": [1],"), "needs 2 weights"),
        (&COUNTER.replace("\"type\": \"object\"", "\"type\": \"array\""), "no object schema"),
        (&format!("import socket\n{COUNTER}"), "socket"),
    ];
    for (source, expected) in cases {
        let Err(EnvError::Load { name, reason }) = load(source) else { panic!("{expected}: loaded") };
        assert_eq!(name, "test.py");
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
}

#[test]
fn a_reset_or_verdict_that_is_none_is_an_error_of_the_environment() {
    let reset =
        |body: &str| load(&counter_with("def reset(rng, level):", body)).unwrap().reset(3, 1).map(drop).unwrap_err();
    for (body, expected) in [
        ("return {}", "must return a dict with \"messages\""),
        ("return {'messages': []}", "must begin with a message of the role \"system\""),
        ("return {'messages': [{'role': 'system', 'content': 5}]}", "state[\"messages\"] cannot be used"),
        ("return {'messages': [], 'seen': {1, 2}}", "state[\"seen\"] is a set; keep a sorted list"),
        ("return {'messages': [{'role': 'system', 'content': ''}], 'tools': ['fly']}", "names \"fly\""),
        ("return 5", "item assignment"),
        ("return {}['gone']", "KeyError"),
    ] {
        let EnvError::Reset { seed: 3, reason } = reset(body) else { panic!("{body}") };
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
    for body in [
        "return None",
        "return 1.0",
        "return {'reward': float('nan'), 'checks': []}",
        "return {'reward': 1.5, 'checks': []}",
    ] {
        let env = load(&counter_with("def verdict(state):", body)).unwrap();
        let result = env.reset(1, 1).unwrap().verdict();
        assert!(matches!(result, Err(EnvError::BadVerdict(_))), "{body}: {result:?}");
    }
}

#[test]
fn many_episodes_live_in_one_worker_at_a_time() {
    let env = load(COUNTER).unwrap();
    let mut episodes: Vec<_> = (0..200).map(|seed| env.reset(seed, 1).unwrap()).collect();
    for round in 0..3u64 {
        for episode in &mut episodes {
            let reply = episode.step(round, &add(1)).unwrap();
            assert_eq!(reply.messages, [tool(&json!({"count": round + 1}).to_string())]);
        }
    }
    assert_eq!(env.process_ids().len(), 1);
}
