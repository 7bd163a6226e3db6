//! The rules that the desk holds.

use rand::RngExt;

use super::*;
use crate::seeds::Split;

fn run(episode: &mut dyn Episode, actions: &[Action]) -> Verdict {
    for (i, action) in actions.iter().enumerate() {
        episode.step(i as u64, action).expect("acts");
    }
    episode.verdict().expect("judges")
}

fn target(seed: u64) -> Task {
    Task::target(&mut SeedStream::keyed(&[0x6865_6c70, seed]))
}

fn episode_of(task: &Task) -> DeskEpisode {
    let tools = Tool::ALL.iter().map(|t| t.spec()).collect();
    DeskEpisode::new(task.clone(), &policy(&CLAUSES), tools, Reward::AllOrNothing)
}

#[test]
fn the_oracle_earns_one_and_all_its_process_checks_hold() {
    for index in 0..400 {
        let task = target(Split::Dev.seed(index));
        let verdict = run(&mut episode_of(&task), &script(&task, Lapses::NONE));
        let failed: Vec<_> = verdict.checks.iter().filter(|c| c.score < 1.0).collect();
        assert!(verdict.reward == 1.0 && failed.is_empty(), "seed index {index}: {failed:?} {task:?}");
    }
}

#[test]
fn each_lapse_fails_its_own_process_check_and_no_other() {
    let checks = ["right_record", "all_parts_attempted", "read_before_change", "codes_passed"];
    for (capability, own) in Capability::ALL.into_iter().zip(checks) {
        let (mut tasks, mut passed) = (0, 0);
        for index in 0..600 {
            let task = target(Split::Dev.seed(index));
            if task.demands.level(capability) == 0 {
                continue;
            }
            tasks += 1;
            let verdict = run(&mut episode_of(&task), &script(&task, Lapses::NONE.with(capability)));
            passed += usize::from(verdict.reward == 1.0);
            let failed: Vec<_> =
                verdict.checks.iter().filter(|c| c.weight == 0.0 && c.score < 1.0).map(|c| c.name.as_str()).collect();
            // A request that is rightly refused never comes to its code.
            let refused = task.parts.iter().all(|p| p.code.is_none() || !p.allowed(&task.records.records[p.record]));
            let spared = capability == Capability::ToolPrecision && refused;
            let due: &[&str] = if spared { &[] } else { &[own] };
            assert_eq!(failed, due, "{capability:?} {task:?}");
        }
        assert!(tasks > 50, "{capability:?} is exercised by only {tasks} of 600 tasks");
        let by_luck = f64::from(passed as u32) / f64::from(tasks);
        match capability {
            Capability::Precondition => assert!((0.1..0.4).contains(&by_luck), "passes by luck: {by_luck}"),
            Capability::ToolPrecision => assert!(by_luck < 0.4, "is refused: {by_luck}"),
            _ => assert!(by_luck < 0.05, "{capability:?} passes by luck: {by_luck}"),
        }
    }
}

#[test]
fn the_mix_of_tasks_is_the_stated_one() {
    let n = 4000;
    let mut counts = [0usize; 5];
    let mut hard = 0;
    let mut levels = 0;
    for index in 0..n {
        let demands = target(Split::Train.seed(index)).demands;
        counts[demands.count()] += 1;
        for capability in Capability::ALL {
            levels += usize::from(demands.level(capability) > 0);
            hard += usize::from(demands.level(capability) == 3);
        }
    }
    for (count, share) in counts.into_iter().zip([0.25, 0.35, 0.25, 0.15, 0.0]) {
        let measured = count as f64 / n as f64;
        assert!((measured - share).abs() < 0.03, "{counts:?}");
    }
    assert!((hard as f64 / levels as f64 - 0.75).abs() < 0.03);
}

#[test]
fn a_repeated_step_id_answers_the_same_and_acts_once() {
    let task = (0..).map(|i| target(Split::Train.seed(i))).find(|t| !t.expected().sent.is_empty()).expect("one sends");
    let mut episode = episode_of(&task);
    let actions = script(&task, Lapses::NONE);
    for (i, action) in actions.iter().enumerate() {
        let first = episode.step(i as u64, action).expect("acts");
        assert_eq!(episode.step(i as u64, action).expect("answers"), first);
    }
    assert_eq!(episode.verdict().expect("judges").reward, 1.0);
}

#[test]
fn level_1_is_the_same_mix_at_its_easiest_and_an_open_level_is_the_hard_one() {
    let desk = Helpdesk::new();
    let level = |asked| desk.reset(8, asked).expect("opens").opening().level;
    assert_eq!([level(0), level(1), level(2)], [2, 1, 2]);
    assert!(desk.reset(8, 3).is_err());
    for index in 0..200 {
        let demands = Task::easy(&mut SeedStream::keyed(&[5, index])).demands;
        assert!(Capability::ALL.iter().all(|&c| demands.level(c) <= 1), "{demands:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_episode_and_others_differ() {
    let desk = Helpdesk::new();
    let open = |seed| desk.reset(seed, 0).expect("opens").opening().clone();
    assert_eq!(open(7), open(7));
    let mut seen: Vec<String> = (0..200).map(|seed| open(seed).messages[1].content.clone()).collect();
    seen.sort();
    seen.dedup();
    assert!(seen.len() > 195, "only {} of 200 differ", seen.len());
}

#[test]
fn silence_and_blind_destruction_earn_nothing() {
    let mut earned = 0.0;
    for index in 0..200 {
        let task = target(Split::Dev.seed(index));
        earned += run(&mut episode_of(&task), &[Action::say("Done.")]).reward;
        let mut destroy: Vec<Action> = Vec::new();
        for record in &task.records.records {
            for tool in [Tool::CancelOrder, Tool::ReturnOrder, Tool::CancelTrip] {
                let args = [("record".to_string(), record.name().into())].into_iter().collect();
                destroy.push(Action::call(tool.name(), args));
            }
        }
        destroy.push(Action::say("All is done."));
        earned += run(&mut episode_of(&task), &destroy).reward;
    }
    assert_eq!(earned, 0.0);
}

#[test]
fn the_denser_reward_orders_episodes_and_pays_nothing_for_silence() {
    let desk = Helpdesk::mean_check();
    for index in 0..100 {
        let seed = Split::Dev.seed(index);
        let task = target(seed);
        let reward = |actions: &[Action]| run(&mut *desk.reset(seed, 0).expect("opens"), actions).reward;
        assert_eq!(reward(&script(&task, Lapses::NONE)), 1.0);
        assert_eq!(reward(&[Action::say("Done.")]), 0.0);
    }
}

#[test]
fn an_answer_that_recites_everything_is_not_an_answer() {
    let mut tried = 0;
    for index in 0..200 {
        let task = target(Split::Dev.seed(index));
        if task.expected() != task.records {
            continue;
        }
        tried += 1;
        let mut actions = script(&task, Lapses::NONE);
        let all = "pending shipped delivered flex basic cannot".to_string();
        let ids: Vec<&str> = task.records.records.iter().map(|r| r.id.as_str()).collect();
        let last = actions.last_mut().expect("an answer");
        last.text = format!("{} {all} {}", last.text, ids.join(" "));
        assert_eq!(run(&mut episode_of(&task), &actions).reward, 0.0, "{task:?}");
    }
    assert!(tried > 50);
}

#[test]
fn broken_calls_are_observations_and_the_others_still_run() {
    let task = target(Split::Train.seed(1));
    let mut episode = episode_of(&task);
    let list = serde_json::json!({"user": task.records.user});
    let action = Action {
        text: String::new(),
        calls: vec![
            Call::Malformed { raw: "{".into(), error: "the JSON ends early".into() },
            Call::Tool(crate::ToolCall { name: "fly".into(), arguments: Default::default() }),
            Call::Tool(crate::ToolCall {
                name: "list_orders".into(),
                arguments: list.as_object().expect("object").clone(),
            }),
        ],
    };
    let reply = episode.step(0, &action).expect("acts");
    assert_eq!(reply.messages.len(), 3);
    assert!(reply.messages[0].content.contains("error") && reply.messages[1].content.contains("error"));
    assert!(reply.messages[2].content.starts_with('['), "{}", reply.messages[2].content);
    let checks = episode.verdict().expect("judges").checks;
    let readable = checks.iter().find(|c| c.name == "calls_readable").expect("judged");
    assert_eq!(readable.score, 0.0);
}

#[test]
fn demonstrations_without_habits_always_earn_one_in_any_world() {
    let mut rng = SeedStream::keyed(&[3]);
    for i in 0..300 {
        let growth = f64::from(i) / 300.0;
        let world = if rng.random_bool(0.3) { DemoWorld::target() } else { DemoWorld::random(&mut rng, growth) };
        let demo = world.demo(&mut rng, growth, &Habits::NONE);
        assert_eq!(demo.reward, 1.0, "{demo:?}");
    }
}

#[test]
fn habits_pass_the_target_at_the_rate_they_imply() {
    let mut rng = SeedStream::keyed(&[4]);
    let habits = Habits { success: [0.7, 0.3, 0.05] };
    let world = DemoWorld::target();
    let n = 3000;
    let passed: f64 = (0..n).map(|_| world.demo(&mut rng, 1.0, &habits).reward).sum();
    let rate = passed / f64::from(n);
    assert!((0.25..0.45).contains(&rate), "{rate}");
}
