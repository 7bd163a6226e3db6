//! What a wave promises, with a scripted policy and environments that misbehave.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ractor::ActorCell;
use tempfile::TempDir;
use trace_envs::{Call, Environment, Role, Split};

use super::fakes::*;
use super::*;
use crate::batch::trajectory_rows;
use crate::log::{LogReader, Phase, RowFilter, digest};
use crate::plan::{Acting, ArmSpec, GroupPlan};
use crate::rows::{SamplingParams, SegmentRow, Status};

/// One chat for all tests: learning a tokenizer takes a moment.
fn plain_chat() -> Chat {
    static CHAT: OnceLock<Chat> = OnceLock::new();
    CHAT.get_or_init(|| chat(false)).clone()
}

fn limits() -> Limits {
    Limits { max_context: 2000, env_step_seconds: 5.0, env_episode_seconds: 20.0, ..Limits::default() }
}

struct Setting {
    env: Arc<dyn Environment>,
    chat: Chat,
    script: Arc<Script>,
    at_once: usize,
    spells: bool,
    logprob: f32,
    limits: Limits,
    turns: Arc<AtomicUsize>,
    intensity: Intensity,
    progress: Arc<dyn Progress>,
}

impl Setting {
    fn new(env: Arc<dyn Environment>) -> Self {
        Self {
            env,
            chat: plain_chat(),
            script: Arc::new(looks_up),
            at_once: 3,
            spells: false,
            logprob: -0.5,
            limits: limits(),
            turns: Arc::default(),
            intensity: Intensity::default(),
            progress: Arc::new(crate::progress::Silent),
        }
    }

    async fn pipeline(&self, dir: &Path) -> Pipeline {
        let env = Arc::clone(&self.env);
        let policy = ScriptedPolicy {
            chat: self.chat.clone(),
            script: Arc::clone(&self.script),
            at_once: self.at_once,
            spells: self.spells,
            logprob: self.logprob,
            turns: Arc::clone(&self.turns),
        };
        let parts = PipelineParts {
            run_dir: dir.to_owned(),
            run_id: "run-a".into(),
            run_seed: 1,
            chat: self.chat.clone(),
            limits: self.limits.clone(),
            lone: LoneRollout::Drop,
            intensity: self.intensity,
            env_source: Arc::new(move |_: &str| Ok(Arc::clone(&env))),
            env_threads: 4,
            env_tolerated_stuck: 3,
            metrics: Arc::default(),
            progress: Arc::clone(&self.progress),
        };
        Pipeline::start(parts, move || (policy.clone(), ())).await.unwrap()
    }

    /// The rows of a wave in a run directory of its own, and the run's digest.
    async fn rows(&self, plan: WavePlan) -> (Vec<SegmentRow>, String) {
        let dir = TempDir::new().unwrap();
        let pipeline = self.pipeline(dir.path()).await;
        let outcome = pipeline.rollout(plan).await.unwrap();
        pipeline.supervision.shut_down().await;
        (trajectory_rows(&outcome.batch).unwrap(), digest(dir.path()).unwrap())
    }
}

/// Seeds 0, 3, 6, ... with two rollouts each.
fn plan(groups: u64) -> WavePlan {
    WavePlan {
        unit: "train/counting/i0".into(),
        phase: Phase::Train,
        environment: "counting".into(),
        capability: Some("counting".into()),
        acting: Acting::Arm(ArmSpec::base()),
        iteration: 0,
        trials: false,
        sampling: SamplingParams::default(),
        groups: (0..groups).map(|g| GroupPlan::new(g, Split::Train.seed(g), 2, 2)).collect(),
    }
}

fn statuses(rows: &[SegmentRow]) -> BTreeMap<u64, Vec<Status>> {
    rows.iter().fold(BTreeMap::new(), |mut out, row| {
        out.entry(row.seed).or_insert_with(Vec::new).push(row.status);
        out
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_holds_what_was_said_sampled_and_judged() {
    let setting = Setting::new(Arc::new(CountingEnv::new()));
    let (rows, _) = setting.rows(plan(2)).await;
    assert_eq!(rows.len(), 4);
    let row = &rows[2];
    let tokenizer = setting.chat.tokenizer();
    let columns = row.columns.as_ref().unwrap();
    let said: Vec<(Role, &str, String)> = row
        .turns
        .iter()
        .map(|t| {
            let span = t.span.map_or(0..0, |s| s.start as usize..s.end as usize);
            (t.role, t.text.as_str(), tokenizer.decode(&columns.tokens[span]).unwrap())
        })
        .collect();
    let prompt = "<|im_start|>system\nYou count.<|im_end|>\n<|im_start|>user\nHow many for 3 at level \
                  2?<|im_end|>\n<|im_start|>assistant\n";
    let call = "<tool_call>\n{\"name\": \"count\", \"arguments\": {\"what\": \"all\"}}\n</tool_call><|im_end|>";
    let result = "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
    let expected = [
        (Role::System, "You count.", prompt),
        (Role::User, "How many for 3 at level 2?", prompt),
        (Role::Assistant, "", call),
        (Role::Tool, "3", result),
        (Role::Assistant, "3", "3<|im_end|>"),
    ];
    assert_eq!(said, expected.map(|(role, text, tokens)| (role, text, tokens.to_owned())));
    assert!(matches!(&row.turns[2].tool_calls[..], [Call::Tool(c)] if c.name == "count"));
    assert_eq!((row.status, row.reward, row.advantage), (Status::Completed, Some(1.0), Some(0.0)));
    assert_eq!((row.id.as_str(), row.split), ("train/counting/i0/g1/r0/s0", Some(Split::Train)));
    assert!(
        columns.versions.iter().zip(&columns.action_mask).all(|(v, m)| v.is_some() == *m && v.is_none_or(|v| v == 3))
    );
    assert_eq!(
        row.checks.iter().map(|c| (c.name.as_str(), c.score)).collect::<Vec<_>>(),
        [("right", 1.0), ("looked_up", 1.0)]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_ids_are_the_sampled_ids_also_where_their_text_encodes_to_others() {
    let say = |_: u64, _: &str| "level".to_owned();
    let setting = Setting { script: Arc::new(say), spells: true, ..Setting::new(Arc::new(CountingEnv::new())) };
    let row = setting.rows(plan(1)).await.0.remove(0);
    let columns = row.columns.unwrap();
    let sampled: Vec<i32> =
        columns.tokens.iter().zip(&columns.action_mask).filter(|(_, m)| **m).map(|(t, _)| *t).collect();
    let tokenizer = setting.chat.tokenizer();
    let text = tokenizer.decode(&sampled).unwrap();
    assert_eq!(text, "level<|im_end|>");
    let encoded = tokenizer.encode(&text).unwrap();
    assert_eq!(sampled.len(), "level".len() + 1, "letter by letter, and the end of the turn");
    assert!(encoded.len() < sampled.len(), "the text of these ids encodes to others");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rows_depend_on_nothing_but_the_plan() {
    let reference = Setting::new(Arc::new(CountingEnv::new())).rows(plan(6)).await;
    let mut few_places = Setting::new(UnevenEnv::shared());
    few_places.limits.max_live_episodes = 3;
    few_places.at_once = 1;
    let all_at_once = Setting { at_once: 100, ..Setting::new(UnevenEnv::shared()) };
    for other in [few_places, all_at_once] {
        assert_eq!(other.rows(plan(6)).await.1, reference.1);
    }
    let mut other_plan = plan(6);
    other_plan.groups[0].seed = Split::Train.seed(77);
    let other = Setting::new(Arc::new(CountingEnv::new())).rows(other_plan).await;
    assert_ne!(other.1, reference.1);
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_tool_arguments_execute_nothing_and_other_calls_still_run() {
    let script = |turn: u64, context: &str| match turn {
        0 => {
            "<tool_call>\n{\"name\": \"count\", \"arguments\": [1]}\n</tool_call>\n<tool_call>\n{\"name\": \"count\", \
              \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"cou\n</tool_call>"
                .to_owned()
        }
        _ => context.matches("<tool_response>").count().to_string(),
    };
    let setting = Setting { script: Arc::new(script), ..Setting::new(Arc::new(CountingEnv::new())) };
    let row = setting.rows(plan(2)).await.0.remove(2);
    let calls = &row.turns[2].tool_calls;
    assert!(matches!(&calls[..], [Call::Malformed { .. }, Call::Tool(_), Call::Malformed { .. }]), "{calls:?}");
    let results: Vec<&str> = row.turns[3..6].iter().map(|t| t.text.as_str()).collect();
    assert!(results[0].contains("error") && results[1] == "3" && results[2].contains("error"), "{results:?}");
    let spans: Vec<_> = row.turns[3..6].iter().map(|t| t.span).collect();
    assert!(spans[0].is_some() && spans.iter().all(|s| *s == spans[0]), "appended together");
    assert_eq!((row.status, row.reward), (Status::Completed, Some(1.0)), "3 results, and the number of seed 3 is 3");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_environment_costs_its_episode_and_no_other() {
    let mut setting = Setting::new(HangingEnv::at("step 1", 3, usize::MAX));
    setting.limits.env_step_seconds = 0.05;
    setting.limits.env_retries = 1;
    // Both rollouts of seed 3 hang, twice each, which is more stuck threads than are tolerated: one rollout only.
    let mut one = plan(3);
    one.groups[1].hints.pop();
    let (rows, _) = setting.rows(one).await;
    let found = statuses(&rows);
    assert_eq!(found[&3], vec![Status::EnvironmentFailed]);
    assert_eq!((&found[&0], &found[&6]), (&vec![Status::Completed; 2], &vec![Status::Completed; 2]));
    let failed = rows.iter().find(|r| r.seed == 3).unwrap();
    assert!(failed.error.as_ref().unwrap().contains("no return from"), "{:?}", failed.error);
    assert_eq!((failed.attempt, failed.reward), (1, None));
    assert!(failed.columns.as_ref().unwrap().action_mask.contains(&true), "what was sampled is kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_episode_has_a_deadline_in_total_that_no_single_reply_resets() {
    let mut setting = Setting::new(Arc::new(CountingEnv::new()));
    let slow: Arc<dyn Environment> = SlowEnv::taking(std::time::Duration::from_millis(60));
    setting.env = slow;
    setting.limits.env_episode_seconds = 0.1;
    let pipeline_dir = TempDir::new().unwrap();
    let pipeline = setting.pipeline(pipeline_dir.path()).await;
    let error = pipeline.rollout(plan(1)).await.unwrap_err().to_string();
    assert!(error.contains("which is all that an episode has") || error.contains("no return from"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_mid_episode_is_retried_with_the_same_seed_and_the_same_tokens() {
    let reference = Setting::new(Arc::new(CountingEnv::new())).rows(plan(3)).await.0;
    for call in ["reset", "step 0", "step 1", "verdict"] {
        let setting = Setting::new(PanickingEnv::at(call, 3, 2));
        let (mut rows, _) = setting.rows(plan(3)).await;
        let retried: u32 = rows.iter().map(|r| u32::from(r.attempt)).sum();
        assert!(retried >= 2, "{call}: begun anew");
        // Turns sampled twice would be counted twice: what was sampled is not sampled again.
        assert_eq!(setting.turns.load(Ordering::Relaxed), 12, "{call}");
        for (row, same) in rows.iter_mut().zip(&reference) {
            row.attempt = 0;
            assert_eq!((&row.columns, row.status, row.reward), (&same.columns, same.status, same.reward), "{call}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_that_dies_while_grading_gives_no_reward() {
    let setting = Setting::new(RefusingEnv::at("verdict", |seed| seed == 3));
    let rows = setting.rows(plan(2)).await.0;
    assert_eq!(statuses(&rows)[&3], vec![Status::EnvironmentFailed; 2]);
    assert!(
        rows.iter().filter(|r| r.seed == 3).all(|r| r.reward.is_none() && r.advantage.is_none() && r.checks.is_empty())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn where_every_reset_fails_the_run_stops_with_the_cause_and_nothing_is_logged() {
    let dir = TempDir::new().unwrap();
    let setting = Setting::new(ResetFailsEnv::on(|_| true));
    let pipeline = setting.pipeline(dir.path()).await;
    let error = pipeline.rollout(plan(40)).await.unwrap_err().to_string();
    assert!(error.contains("the database is down") && error.contains("counting"), "{error}");
    assert!(pipeline.under_way().is_empty());
    pipeline.supervision.shut_down().await;
    assert_eq!(LogReader::open(dir.path()).unwrap().units().count(), 0);

    let one = Setting::new(ResetFailsEnv::on(|seed| seed == 3));
    let rows = one.rows(plan(2)).await.0;
    assert_eq!(statuses(&rows)[&3], vec![Status::EnvironmentFailed; 2]);
    assert_eq!(statuses(&rows)[&0], vec![Status::Completed; 2]);
    assert!(rows[2].columns.is_none() && rows[2].turns.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_limit_turn_length_and_context_truncate_with_a_verdict() {
    let asks = |_: u64, _: &str| "How many?".to_owned();
    let by_turns = Setting { script: Arc::new(asks), ..Setting::new(Arc::new(CountingEnv::new())) };
    let row = by_turns.rows(plan(1)).await.0.remove(0);
    assert_eq!((row.status, row.reward), (Status::Truncated, Some(0.0)));
    assert_eq!(row.turns.iter().filter(|t| t.role == Role::Assistant).count(), 4, "the environment's turn limit");

    let mut by_length = Setting::new(Arc::new(CountingEnv::new()));
    by_length.limits.max_turn_tokens = 5;
    let row = by_length.rows(plan(1)).await.0.remove(0);
    assert_eq!((row.status, row.reward), (Status::Truncated, Some(0.0)));
    assert_eq!(row.turns.last().unwrap().finish_reason.as_deref(), Some("length"));
    assert_eq!(row.columns.unwrap().action_mask.iter().filter(|&&m| m).count(), 5);

    let whole =
        Setting::new(Arc::new(CountingEnv::new())).rows(plan(1)).await.0.remove(0).columns.unwrap().tokens.len();
    for room in [whole - 2, whole - 12, 10] {
        let mut by_context = Setting::new(Arc::new(CountingEnv::new()));
        by_context.limits.max_context = room;
        let row = by_context.rows(plan(1)).await.0.remove(0);
        assert_eq!(row.status, Status::Truncated, "room for {room} of {whole}");
        assert!(row.reward.is_some());
        let mask = row.columns.unwrap().action_mask;
        assert!(!mask[room.min(mask.len())..].contains(&true), "nothing is sampled beyond the room");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_without_numbers_for_logprobs_is_refused_with_the_reason() {
    for bad in [f32::NAN, f32::NEG_INFINITY] {
        let setting = Setting { logprob: bad, ..Setting::new(Arc::new(CountingEnv::new())) };
        let row = setting.rows(plan(1)).await.0.remove(0);
        assert_eq!((row.status, row.reward), (Status::PolicyFailed, None));
        assert!(row.error.as_ref().unwrap().contains("log-prob"), "{:?}", row.error);
        assert!(!row.columns.unwrap().action_mask.contains(&true));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_stands_in_its_span_and_taking_it_out_gives_the_prompt_without_it() {
    let mut hinted = plan(1);
    hinted.groups[0].hints = vec![true, false];
    let setting = Setting::new(Arc::new(CountingEnv::new()));
    let rows = setting.rows(hinted).await.0;
    let (with, without) = (rows[0].columns.as_ref().unwrap(), rows[1].columns.as_ref().unwrap());
    let span = rows[0].hint_span.unwrap();
    let mut taken_out = with.tokens.clone();
    let hint: Vec<i32> = taken_out.drain(span.start as usize..span.end as usize).collect();
    assert_eq!(setting.chat.tokenizer().decode(&hint).unwrap().trim(), "Ask the tool first.");
    assert_eq!(taken_out, without.tokens);
    assert_eq!(rows[1].hint_span, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_drops_old_thinking_begins_a_new_row_and_no_token_is_trained_twice() {
    let script = |turn: u64, context: &str| format!("<think>Hm {turn}.</think>{}", looks_up(turn, context));
    let setting = Setting { chat: chat(true), script: Arc::new(script), ..Setting::new(Arc::new(CountingEnv::new())) };
    let rows = setting.rows(plan(1)).await.0;
    let first: Vec<&SegmentRow> = rows.iter().filter(|r| r.rollout == 0).collect();
    assert_eq!(first.iter().map(|r| r.segment).collect::<Vec<_>>(), vec![0, 1]);
    let sampled = |row: &SegmentRow| {
        let c = row.columns.as_ref().unwrap();
        let ids: Vec<i32> = c.tokens.iter().zip(&c.action_mask).filter(|(_, m)| **m).map(|(t, _)| *t).collect();
        setting.chat.tokenizer().decode(&ids).unwrap()
    };
    assert!(sampled(first[0]).starts_with("<think>Hm 0.</think><tool_call>"));
    assert_eq!(sampled(first[1]), "<think>Hm 1.</think>0<|im_end|>");
    let second = first[1].columns.as_ref().unwrap();
    let prompt = setting.chat.tokenizer().decode(&second.tokens).unwrap();
    assert!(!prompt.contains("Hm 0."), "the old thinking is gone from the new prompt");
    assert!(first.iter().all(|r| r.reward == Some(1.0)));
    assert_eq!(first[1].turns.iter().map(|t| t.role).collect::<Vec<_>>(), vec![Role::Tool, Role::Assistant]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_is_sampled_once_and_read_back_afterwards() {
    let dir = TempDir::new().unwrap();
    let setting = Setting::new(Arc::new(CountingEnv::new()));
    let pipeline = setting.pipeline(dir.path()).await;
    let (first, same) = tokio::join!(pipeline.rollout(plan(2)), pipeline.rollout(plan(2)));
    assert!(matches!(same, Err(UnitError::UnderWay(_))));
    let first = first.unwrap();
    let sampled = setting.turns.load(Ordering::Relaxed);
    let again = pipeline.rollout(plan(2)).await.unwrap();
    assert_eq!((first.read_back, again.read_back), (false, true));
    assert_eq!(trajectory_rows(&again.batch).unwrap(), trajectory_rows(&first.batch).unwrap());
    assert_eq!(again.counts, first.counts);
    pipeline.supervision.shut_down().await;
    let pipeline = setting.pipeline(dir.path()).await;
    assert!(pipeline.rollout(plan(2)).await.unwrap().read_back);
    assert_eq!(setting.turns.load(Ordering::Relaxed), sampled);
}

/// Kills an actor when so many rollouts have been delivered.
#[derive(Default)]
struct Killer {
    victim: OnceLock<ActorCell>,
    at: u64,
    notes: Mutex<Vec<String>>,
}

impl Progress for Killer {
    fn event(&self, event: ProgressEvent<'_>) {
        match event {
            ProgressEvent::Advanced { done, .. } if done == self.at => {
                self.victim.get().inspect(|victim| victim.kill());
            }
            ProgressEvent::Noted { message } => self.notes.lock().unwrap().push(message.to_owned()),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_actor_can_die_in_mid_wave_and_the_result_is_that_of_an_undisturbed_run() {
    let reference = Setting::new(Arc::new(CountingEnv::new())).rows(plan(6)).await.1;
    for victim in ["generator", "normalizer", "log", "environments", "policy"] {
        for at in [1, 7, 12] {
            let killer = Arc::new(Killer { at, ..Killer::default() });
            let setting = Setting { progress: Arc::clone(&killer) as _, ..Setting::new(Arc::new(CountingEnv::new())) };
            let dir = TempDir::new().unwrap();
            let pipeline = setting.pipeline(dir.path()).await;
            let cell = match victim {
                "generator" => pipeline.generator.current().await.unwrap().get_cell(),
                "normalizer" => pipeline.normalizer.current().await.unwrap().get_cell(),
                "log" => pipeline.log.current().await.unwrap().get_cell(),
                "environments" => pipeline.environments.current().await.unwrap().get_cell(),
                _ => pipeline.policy.current().await.unwrap().get_cell(),
            };
            killer.victim.set(cell).unwrap();
            let outcome = pipeline.rollout(plan(6)).await.unwrap_or_else(|e| panic!("{victim} at {at}: {e}"));
            pipeline.supervision.shut_down().await;
            let reader = LogReader::open(dir.path()).unwrap();
            let rows: Vec<SegmentRow> = reader.rows(RowFilter::default()).map(|r| r.unwrap()).collect();
            assert_eq!(rows, trajectory_rows(&outcome.batch).unwrap(), "{victim} at {at}");
            let restarted = killer.notes.lock().unwrap().iter().any(|n| n.contains("is restarted"));
            assert!(restarted, "{victim} at {at} was restarted");
            if victim == "environments" {
                // Its episodes were begun anew, which the rows say.
                assert!(rows.iter().all(|r| r.reward == Some(1.0)), "at {at}");
            } else {
                assert_eq!(digest(dir.path()).unwrap(), reference, "{victim} at {at}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_episode_outlives_its_wave_also_where_the_generator_dies() {
    let env = Arc::new(CountingEnv::new());
    let killer = Arc::new(Killer { at: 5, ..Killer::default() });
    let setting = Setting { progress: Arc::clone(&killer) as _, ..Setting::new(Arc::clone(&env) as _) };
    let dir = TempDir::new().unwrap();
    let pipeline = setting.pipeline(dir.path()).await;
    killer.victim.set(pipeline.generator.current().await.unwrap().get_cell()).unwrap();
    pipeline.rollout(plan(6)).await.unwrap();
    let begin = std::time::Instant::now();
    while Arc::strong_count(&env.alive) > 1 {
        assert!(begin.elapsed() < Duration::from_secs(10), "{} episodes are left", Arc::strong_count(&env.alive) - 1);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    pipeline.supervision.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_actor_that_fails_too_often_stops_the_run_with_the_cause() {
    struct AlwaysPanics;
    impl Progress for AlwaysPanics {
        fn event(&self, event: ProgressEvent<'_>) {
            assert!(!matches!(event, ProgressEvent::Advanced { .. }), "a display that breaks");
        }
    }
    let setting = Setting {
        progress: Arc::new(AlwaysPanics),
        intensity: Intensity { restarts: 2, window: Duration::from_secs(60) },
        ..Setting::new(Arc::new(CountingEnv::new()))
    };
    let dir = TempDir::new().unwrap();
    let pipeline = setting.pipeline(dir.path()).await;
    let error = pipeline.rollout(plan(2)).await.unwrap_err();
    let message = error.to_string();
    assert!(message.contains("the rollout generator failed 3 times"), "{message}");
    assert!(message.contains("a display that breaks"), "{message}");
    let after = pipeline.rollout(plan(1)).await.unwrap_err();
    assert!(matches!(after, UnitError::Stopped(_)), "{after}");
    assert!(pipeline.supervision.cause().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_that_is_no_pure_function_is_marked_so() {
    let setting = Setting::new(ForgetfulEnv::shared());
    let dir = TempDir::new().unwrap();
    let pipeline = setting.pipeline(dir.path()).await;
    let error = pipeline.rollout(plan(1)).await.unwrap_err().to_string();
    assert!(error.contains("not a pure function"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_never_return_do_not_pile_up() {
    let mut setting = Setting::new(HangingEnv::at("reset", 3, usize::MAX));
    setting.limits.env_step_seconds = 0.03;
    let dir = TempDir::new().unwrap();
    let pipeline = setting.pipeline(dir.path()).await;
    let mut many = plan(2);
    many.groups[1].hints = vec![false; 8];
    let error = pipeline.rollout(many).await.unwrap_err().to_string();
    assert!(error.contains("never returned") && error.contains("hangs"), "{error}");
}
