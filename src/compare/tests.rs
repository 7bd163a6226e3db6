use super::*;
use crate::record::ArmResult;
use crate::record::evaluation::{CapabilityRate, RolloutCounts, TaskResult};
use crate::record::metrics::TrainMetric;

fn arm(name: &str, passed: &[u64]) -> ArmResult {
    let bootstrap = Bootstrap { samples: 100, confidence: 0.95, seed: 1 };
    let tasks = passed.iter().zip(0..).map(|(passed, i)| TaskResult { seed: 3 * i + 2, episodes: 2, passed: *passed });
    let figures = ArmResult::from_counts(tasks.collect(), 2, &bootstrap).unwrap();
    let capabilities = vec![CapabilityRate { capability: "care".into(), applicable: 10, present: passed[0] }];
    ArmResult { name: name.into(), capabilities, rollouts: 100, ..figures }
}

fn run(seed: u64, share: f64, base: &str, arms: Option<Vec<ArmResult>>) -> Run {
    let evaluation = arms.map(|arms| Evaluation {
        run: "r".into(),
        seed,
        environment: "desk".into(),
        tasks: 4,
        trials: 2,
        temperature: 1.0,
        confidence: 0.95,
        arms,
        differences: vec![],
        rollouts: RolloutCounts::default(),
        conversation: None,
    });
    let train = TrainMetric {
        learner: "care".into(),
        iteration: 1,
        rollouts: 32,
        left_out: 0,
        groups: 4,
        constant: 1,
        replaced: 0,
        informative: 3,
        reward: None,
        passed: None,
        loss: None,
        clipped: None,
        grad_norm: None,
        seconds: 1.0,
    };
    Run {
        dir: format!("runs/{seed}").into(),
        base: base.into(),
        share,
        metrics: vec![Metric::Train(train)],
        evaluation,
    }
}

#[test]
fn figures_are_means_over_runs_and_differences_are_paired_by_run_and_task() {
    let runs = [
        run(1, 1.0, "b", Some(vec![arm("base", &[0, 0, 2, 2]), arm("trace", &[2, 0, 2, 2])])),
        run(2, 1.0, "b", Some(vec![arm("base", &[0, 2, 2, 2]), arm("trace", &[1, 2, 2, 2])])),
    ];
    let group = &grouped(&runs)[0];
    assert_eq!(group.pass_rate("base").unwrap().value, 0.625);
    let difference = group.difference("trace", "base").unwrap();
    assert_eq!(difference.value, 0.1875);
    // Only the first task differs: a resample without it has no difference, and none is negative.
    assert!(difference.interval.low == 0.0 && difference.interval.high <= 0.75, "{difference:?}");
    assert_eq!(group.informative(), [("care".to_owned(), 6, 8)]);
    assert_eq!(group.capability("trace", "care"), Some((3, 20)));
}

#[test]
fn replicates_share_base_and_share_and_what_is_not_done_is_named() {
    let arms = || Some(vec![arm("base", &[0, 0]), arm("trace", &[2, 0])]);
    let runs = [
        run(1, 0.25, "b", arms()),
        run(1, 1.0, "b", arms()),
        run(2, 1.0, "b", arms()),
        run(3, 1.0, "b", None),
        run(1, 1.0, "other", arms()),
    ];
    let groups: Vec<(String, f64, usize)> =
        grouped(&runs).iter().map(|g| (g.base.display().to_string(), g.share, g.runs.len())).collect();
    assert_eq!(groups, [("b".to_owned(), 1.0, 2), ("b".to_owned(), 0.25, 1), ("other".to_owned(), 1.0, 1)]);
    let text = markdown(&runs);
    assert!(text.contains("| trace | 50.0 | "), "{text}");
    assert!(text.contains("| arm | 25 % | 100 % |"), "{text}");
    assert!(text.contains("Not done, and in no figure above: runs/3"), "{text}");
    assert_eq!(text.matches("by share of the rollouts").count(), 1, "one base has one share only");
}

#[test]
fn an_arm_that_one_run_lacks_is_not_averaged_over_the_others() {
    let runs = [
        run(1, 1.0, "b", Some(vec![arm("base", &[0]), arm("grpo", &[1]), arm("trace", &[1])])),
        run(2, 1.0, "b", Some(vec![arm("base", &[0]), arm("trace", &[1])])),
    ];
    assert_eq!(grouped(&runs)[0].arms(), ["base", "trace"]);
}
