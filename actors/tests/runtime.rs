//! The runtime with a real, small policy: rollouts, learners, gates, and what kills do to them.

mod support;

use std::process::{Command, Stdio};
use std::time::Duration;

use support::*;
use tempfile::TempDir;
use trace_actors::log::{LogReader, Phase, RowFilter, UpdateLog, digest};
use trace_actors::plan::{Acting, AdapterShape, ArmSpec};
use trace_actors::rows::SegmentRow;
use trace_actors::{GateConfig, GateJob, LearnError, Runtime, TrainOutcome};
use trace_envs::Split;

async fn start(run: &TempDir) -> Runtime {
    Runtime::start(config(&model(), run.path())).await.unwrap()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn sampled_logprobs(row: &SegmentRow) -> Vec<f32> {
    row.columns.as_ref().unwrap().logprobs.iter().flatten().copied().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_configuration_and_seed_give_the_same_trajectories_and_adapters_bit_for_bit() {
    let mut seen = Vec::new();
    for _ in 0..2 {
        let run = TempDir::new().unwrap();
        let runtime = start(&run).await;
        let adapter = train_to(&runtime, 2, &run.path().join("adapter")).await;
        runtime.shut_down().await;
        seen.push((digest(run.path()).unwrap(), adapter));
    }
    assert_eq!(seen[0], seen[1]);
    let run = TempDir::new().unwrap();
    let other = trace_actors::RuntimeConfig { run_seed: 12, ..config(&model(), run.path()) };
    let runtime = Runtime::start(other).await.unwrap();
    let adapter = train_to(&runtime, 2, &run.path().join("adapter")).await;
    runtime.shut_down().await;
    assert_ne!((digest(run.path()).unwrap(), adapter), seen[0], "another seed gives another run");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learners_rows_are_sampled_under_its_versions_and_their_logprobs_are_its_own() {
    let run = TempDir::new().unwrap();
    let runtime = start(&run).await;
    runtime.open_learner(&learner_spec()).await.unwrap();
    for iteration in 0..2 {
        let plan = training_wave(iteration);
        let outcome = runtime.rollout(plan.clone()).await.unwrap();
        let rows = rows(&outcome);
        for row in &rows {
            let versions: Vec<u32> = row.columns.as_ref().unwrap().versions.iter().flatten().copied().collect();
            assert!(!versions.is_empty() && versions.iter().all(|v| u64::from(*v) == iteration));
            assert_eq!(row.adapter.as_deref(), Some("words"));
        }
        let scores = runtime.score(&Acting::Learner("words".into()), &outcome.batch, 1.0, 4096).await.unwrap();
        for (row, score) in rows.iter().zip(&scores) {
            assert!(largest_difference(&sampled_logprobs(row), score) < 1e-4, "{}", row.id);
        }
        let report = report(runtime.train("words", &plan.unit, &outcome.batch, &learner_config()).await.unwrap());
        assert!(report.steps > 0 && report.groups > 0, "{report:?}");
        assert_eq!(u64::from(report.version), iteration + 1);
        let after = runtime.score(&Acting::Learner("words".into()), &outcome.batch, 1.0, 4096).await.unwrap();
        assert_ne!(after, scores, "an update changes what the policy says");
    }
    let mut cooler = wave("base/0", Phase::Base, base(), Split::Train, 9);
    cooler.sampling.temperature = 0.5;
    let outcome = runtime.rollout(cooler).await.unwrap();
    let scores = runtime.score(&base(), &outcome.batch, 0.5, 4096).await.unwrap();
    for (row, score) in rows(&outcome).iter().zip(&scores) {
        assert!(row.adapter.is_none());
        assert!(largest_difference(&sampled_logprobs(row), score) < 1e-4, "log_softmax(z / T) is what is stored");
    }
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_is_consumed_once_and_updates_say_what_became_of_each_row() {
    let run = TempDir::new().unwrap();
    let runtime = start(&run).await;
    runtime.open_learner(&learner_spec()).await.unwrap();
    let mut batches = Vec::new();
    for iteration in 0..2 {
        let plan = training_wave(iteration);
        let outcome = runtime.rollout(plan.clone()).await.unwrap();
        let first = runtime.train("words", &plan.unit, &outcome.batch, &learner_config()).await.unwrap();
        let again = runtime.train("words", &plan.unit, &outcome.batch, &learner_config()).await.unwrap();
        assert_eq!(first, again);
        batches.push((plan.unit, outcome));
    }
    let (unit, outcome) = &batches[0];
    let before = runtime.train("words", unit, &outcome.batch, &learner_config()).await.unwrap();
    assert_eq!(before, TrainOutcome::ConsumedBefore);
    let status = runtime.learner_status("words").await.unwrap();
    assert_eq!(status.consumed, batches.iter().map(|(unit, _)| unit.clone()).collect::<Vec<_>>());
    runtime.shut_down().await;

    let updates = UpdateLog::read(run.path()).unwrap();
    let logged: Vec<String> = batches.iter().flat_map(|(_, outcome)| rows(outcome)).map(|r| r.id).collect();
    assert_eq!(updates.iter().map(|u| u.row.clone()).collect::<Vec<_>>(), logged);
    assert!(updates.iter().all(|u| u.used == u.reason.is_none() && u.staleness == Some(0)));
    assert!(updates.iter().any(|u| u.used));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_goes_on_where_its_checkpoint_left_off() {
    let (whole, halves) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let runtime = start(&whole).await;
    let expected = train_to(&runtime, 4, &whole.path().join("adapter")).await;
    runtime.shut_down().await;
    for iterations in [1, 2, 4] {
        let runtime = start(&halves).await;
        let adapter = train_to(&runtime, iterations, &halves.path().join("adapter")).await;
        runtime.shut_down().await;
        assert_eq!(adapter == expected, iterations == 4);
    }
    assert_eq!(digest(halves.path()).unwrap(), digest(whole.path()).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_can_be_closed_and_opened_again_and_refuses_another_shape() {
    let run = TempDir::new().unwrap();
    let runtime = start(&run).await;
    let before = train_to(&runtime, 1, &run.path().join("adapter")).await;
    assert!(matches!(runtime.open_learner(&learner_spec()).await, Err(LearnError::Open(..))));
    runtime.close_learner("words").await.unwrap();
    assert!(matches!(runtime.learner_status("words").await, Err(LearnError::Open(..))));
    let other =
        trace_actors::LearnerSpec { adapter: AdapterShape { rank: 8, ..learner_spec().adapter }, ..learner_spec() };
    let message = runtime.open_learner(&other).await.unwrap_err().to_string();
    assert!(message.contains("rank 4") && message.contains('8'), "{message}");
    let beyond = trace_actors::LearnerSpec {
        adapter: AdapterShape { first_layer: 9, ..learner_spec().adapter },
        ..learner_spec()
    };
    let message = runtime.open_learner(&beyond).await.unwrap_err().to_string();
    assert!(message.contains("blocks from 9 on") && message.contains("the model has"), "{message}");
    assert_eq!(runtime.open_learner(&learner_spec()).await.unwrap().version, 1);
    assert_eq!(runtime.export_adapter("words", &run.path().join("again")).await.unwrap(), before);
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_refuses_dev_and_test_seeds_and_greedy_rows_and_stays_as_it_was() {
    let run = TempDir::new().unwrap();
    let runtime = start(&run).await;
    runtime.open_learner(&learner_spec()).await.unwrap();
    for (split, unit) in [(Split::Dev, "dev"), (Split::Test, "test")] {
        let outcome = runtime.rollout(wave(unit, Phase::Evaluate, base(), split, 0)).await.unwrap();
        let error = runtime.train("words", unit, &outcome.batch, &learner_config()).await.unwrap_err();
        assert!(matches!(error, LearnError::Split { split: found, .. } if found == split), "{error}");
    }
    let mut greedy = training_wave(0);
    greedy.sampling.temperature = 0.0;
    let outcome = runtime.rollout(greedy).await.unwrap();
    let error = runtime.train("words", "greedy", &outcome.batch, &learner_config()).await.unwrap_err();
    assert!(matches!(error, LearnError::Sampling { .. }), "{error}");
    assert_eq!(runtime.learner_status("words").await.unwrap().version, 0);
    assert!(UpdateLog::read(run.path()).unwrap().is_empty());
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hinted_row_is_trained_on_its_hint_free_prompt_with_the_learners_own_logprobs() {
    let run = TempDir::new().unwrap();
    let runtime = start(&run).await;
    runtime.open_learner(&learner_spec()).await.unwrap();
    let mut plan = training_wave(0);
    plan.groups.iter_mut().for_each(|group| group.hints = vec![true; 4]);
    let outcome = runtime.rollout(plan.clone()).await.unwrap();
    let hinted = rows(&outcome);
    assert!(hinted.iter().all(|r| r.hint_span.is_some()));
    let without = runtime.score(&Acting::Learner("words".into()), &outcome.batch, 1.0, 4096).await.unwrap();
    let moved = hinted.iter().zip(&without).map(|(row, s)| largest_difference(&sampled_logprobs(row), s));
    assert!(moved.fold(0.0, f32::max) > 1e-3, "the hint makes a difference to this model");
    // One step of a learner that has not moved: every ratio is exp(new - old) = 1 where old is its own recomputation.
    let config = trace_actors::LearnerConfig { groups_per_step: 100, ..learner_config() };
    let report = report(runtime.train("words", &plan.unit, &outcome.batch, &config).await.unwrap());
    assert!((report.mean_ratio - 1.0).abs() < 1e-5, "{report:?}");
    assert!(report.hinted_rows > 0 && report.hinted_rows == report.rows_used);
    let better = hinted.iter().filter(|r| r.advantage.is_some_and(|a| a > 0.0)).count();
    assert_eq!(report.rows_used, better, "only where the advantage is positive");
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gates_are_trained_on_wins_and_the_composition_acts_and_is_logged_by_slot() {
    let run = TempDir::new().unwrap();
    let runtime = start(&run).await;
    let adapter = run.path().join("adapters/words/adapter");
    train_to(&runtime, 2, &adapter).await;
    let one = Acting::Arm(ArmSpec::adapter("words", 2, &adapter));
    let outcome = runtime.rollout(wave("gate/words", Phase::Gate, one, Split::Train, 5)).await.unwrap();
    let routed = ArmSpec::composition("trace", 1, vec![("words".to_owned(), adapter)], run.path().join("composition"));
    let job = GateJob {
        unit: "gates".into(),
        arm: routed.clone(),
        rows: outcome.batch.clone(),
        weights: vec![1.0; outcome.batch.num_rows()],
        config: GateConfig {
            tau: 0.5,
            prior: 0.0,
            context_weight: 0.2,
            lr: 0.02,
            passes: 6,
            steps: 10,
            max_states: 1_000,
            max_tokens_per_pass: 4096,
        },
        temperature: 1.0,
    };
    let report = runtime.train_gates(job.clone()).await.unwrap();
    assert_eq!(report.passes.len(), 6);
    assert!(report.passes[5].loss < report.passes[0].loss, "{report:?}");
    let wins = rows(&outcome).iter().filter(|r| r.reward >= Some(0.99)).count();
    assert_eq!(report.examples, wins);

    let plan = wave("evaluate/trace", Phase::Evaluate, Acting::Arm(routed.clone()), Split::Test, 0);
    let rows_of_trace = rows(&runtime.rollout(plan).await.unwrap());
    for row in &rows_of_trace {
        let columns = row.columns.as_ref().unwrap();
        let slots = columns.slots.as_ref().expect("gates acted");
        assert!(slots.iter().zip(&columns.action_mask).all(|(slot, sampled)| slot.is_some() == *sampled));
        assert!(slots.iter().flatten().all(|slot| *slot <= 1));
        assert_eq!(row.adapter.as_deref(), Some("trace"));
    }
    // Another round begins with new gates: the same wins give the same gates.
    assert_eq!(runtime.train_gates(job.clone()).await.unwrap(), report);
    let nowhere = GateJob { arm: ArmSpec { composition: None, ..routed }, ..job.clone() };
    let error = runtime.train_gates(nowhere).await.unwrap_err().to_string();
    assert!(error.contains("no folder"), "{error}");
    let test = runtime.rollout(wave("evaluate/base", Phase::Evaluate, base(), Split::Test, 0)).await.unwrap();
    let refused = runtime
        .train_gates(GateJob { weights: vec![1.0; test.batch.num_rows()], rows: test.batch, ..job })
        .await
        .unwrap_err();
    assert!(matches!(refused, LearnError::Split { .. }), "{refused}");
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_arm_that_cannot_be_loaded_and_a_context_beyond_the_model_are_said() {
    let run = TempDir::new().unwrap();
    let runtime = start(&run).await;
    let arm = Acting::Arm(ArmSpec::adapter("missing", 1, run.path().join("nowhere")));
    let error = runtime.rollout(wave("u", Phase::Base, arm, Split::Train, 0)).await.unwrap_err().to_string();
    assert!(error.contains("missing") && error.contains("nowhere"), "{error}");
    let closed = Acting::Learner("closed".into());
    let error = runtime.rollout(wave("u", Phase::Base, closed, Split::Train, 0)).await.unwrap_err().to_string();
    assert!(error.contains("its learner is not open"), "{error}");
    runtime.shut_down().await;
    let mut long = config(&model(), TempDir::new().unwrap().path());
    long.limits.max_context = 513;
    let error = Runtime::start(long).await.err().unwrap().to_string();
    assert!(error.contains("513") && error.contains("512"), "{error}");
}

const CHILD: &str = "TRACE_RUNTIME_TEST_CHILD";
const ITERATIONS: u64 = 5;

/// Not a test of its own: the process that the next test kills.
#[tokio::test(flavor = "multi_thread")]
async fn child_that_trains_until_it_is_killed() {
    let Ok(folders) = std::env::var(CHILD) else { return };
    let (model, run) = folders.split_once(':').unwrap();
    let (model, run) = (std::path::Path::new(model), std::path::Path::new(run));
    let runtime = Runtime::start(config(model, run)).await.unwrap();
    train_to(&runtime, ITERATIONS, &run.join("adapter")).await;
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_a_run_that_goes_on_ends_like_an_undisturbed_one() {
    let whole = TempDir::new().unwrap();
    let runtime = start(&whole).await;
    let begin = std::time::Instant::now();
    let expected = train_to(&runtime, ITERATIONS, &whole.path().join("adapter")).await;
    let took = begin.elapsed();
    runtime.shut_down().await;

    let run = TempDir::new().unwrap();
    let run_child = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_trains_until_it_is_killed"])
            .env(CHILD, format!("{}:{}", model().display(), run.path().display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    for kill in 1..=8u32 {
        let mut child = run_child();
        // Longer and longer: some die while they start, some while they sample, train, write.
        std::thread::sleep(Duration::from_millis(30) + took * kill / 6);
        let _ = child.kill();
        child.wait().unwrap();
    }
    assert!(run_child().wait().unwrap().success());
    assert_eq!(digest(run.path()).unwrap(), digest(whole.path()).unwrap());
    let rows: Vec<SegmentRow> =
        LogReader::open(run.path()).unwrap().rows(RowFilter::default()).map(|r| r.unwrap()).collect();
    assert_eq!(rows.len() as u64, 16 * ITERATIONS, "every rollout is logged once");
    assert_eq!(UpdateLog::read(run.path()).unwrap(), UpdateLog::read(whole.path()).unwrap());
    let runtime = start(&run).await;
    assert_eq!(train_to(&runtime, ITERATIONS, &run.path().join("again")).await, expected);
    runtime.shut_down().await;
}
