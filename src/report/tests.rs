use super::*;
use crate::analyze::select::RunMeasure;
use crate::analyze::{CapabilityMeasure, Rule};
use crate::record::evaluation::{
    ArmDifference, ArmResult, CapabilityRate, Conversation, ConversationTurn, Piece, RolloutCounts, TaskResult,
};
use crate::record::metrics::{CalibrationMetric, DevMetric, GateMetric, TrainMetric};
use crate::stats::Bootstrap;

const EVIL: &str = "<script>alert('x')</script>\" onload=\"&";

/// A run in which every text is hostile.
fn hostile() -> Inputs {
    let bootstrap = Bootstrap { samples: 100, confidence: 0.95, seed: 1 };
    let arm = |name: &str, passed: u64, routed: bool| {
        let tasks = (0..20).map(|i| TaskResult { seed: 3 * i + 2, episodes: 2, passed: (i + passed) % 3 }).collect();
        let mut arm = ArmResult::from_counts(tasks, 2, &bootstrap).unwrap();
        arm.name = name.into();
        arm.routed = routed;
        arm.greedy = Some(arm.pass_rate);
        arm.adapters = vec![name.into()];
        arm.slots = vec![0.75, 0.25];
        arm.capabilities = vec![CapabilityRate { capability: EVIL.into(), applicable: 4, present: 3 }];
        arm
    };
    let (base, evil) = (arm("base", 0, false), arm(EVIL, 1, true));
    let difference: ArmDifference = evil.minus(&base, &bootstrap).unwrap();
    let measure = RunMeasure {
        attempt: 1,
        coverage: Some(0.3),
        error_rate_failed: Some(0.5),
        error_rate_passed: None,
        gap: None,
        passes: false,
    };
    Inputs {
        run: EVIL.into(),
        analysis: Some(Record {
            rule: Rule { rho: 0.1, delta: 0.2, keep: 8 },
            failed: 3,
            passed: 4,
            left_out: 1,
            capabilities: vec![CapabilityMeasure {
                name: EVIL.into(),
                description: EVIL.into(),
                runs: vec![measure],
                mean_coverage: Some(0.3),
                std_coverage: Some(0.0),
                mean_gap: None,
                std_gap: None,
                runs_passed: 0,
                kept: false,
            }],
            warnings: vec![EVIL.into()],
        }),
        selected: vec![],
        metrics: vec![
            Metric::Calibration(CalibrationMetric {
                capability: EVIL.into(),
                level: 0,
                groups: 2,
                rollouts: 8,
                left_out: 0,
                mean: Some(0.5),
                std: None,
                success: Some(0.25),
                all_success: 0.0,
                all_zero: 0.5,
                constant: 0.5,
                informative: 0.5,
                pass_at: vec![(1, 0.25)],
                rejected_for: vec![EVIL.into()],
            }),
            Metric::Train(TrainMetric {
                learner: EVIL.into(),
                iteration: 1,
                rollouts: 32,
                left_out: 0,
                groups: 4,
                constant: 1,
                replaced: 1,
                informative: 3,
                reward: Some(0.4),
                passed: Some(0.3),
                loss: None,
                clipped: None,
                grad_norm: None,
                seconds: 1.0,
            }),
            Metric::Dev(DevMetric {
                learner: EVIL.into(),
                iteration: 1,
                rollouts: 8,
                reward: Some(0.5),
                passed: Some(0.5),
                best: true,
            }),
            Metric::Gate(GateMetric {
                round: 1,
                rollouts: 8,
                wins: 2,
                tokens: 100,
                loss_first: 1.2,
                loss_last: 0.4,
                agreement: 0.9,
            }),
        ],
        evaluation: Some(Evaluation {
            run: EVIL.into(),
            seed: 1,
            environment: EVIL.into(),
            tasks: 20,
            trials: 2,
            temperature: 1.0,
            confidence: 0.95,
            arms: vec![base, evil],
            differences: vec![difference],
            rollouts: RolloutCounts { base: 1, calibrate: 2, train: 3, gate: 4 },
            conversation: Some(Conversation {
                seed: 2,
                reward: 1.0,
                slots: vec!["base".into(), EVIL.into()],
                turns: vec![
                    ConversationTurn { role: EVIL.into(), pieces: vec![Piece { text: EVIL.into(), slot: None }] },
                    ConversationTurn {
                        role: "assistant".into(),
                        pieces: vec![
                            Piece { text: EVIL.into(), slot: Some(1) },
                            Piece { text: " two".into(), slot: Some(9) },
                        ],
                    },
                ],
            }),
        }),
    }
}

#[test]
fn no_text_of_a_run_becomes_markup() {
    let page = render(&hostile());
    assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot; onload=&quot;&amp;"));
    assert!(!page.contains("<script") && !page.contains("onload=\""), "text became markup");
    let kept_tags = page.matches("&lt;script&gt;").count();
    assert!(kept_tags >= 15, "every place shows its text: {kept_tags}");
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let page = render(&hostile());
    for fetched in ["http://", "https://", "src=", "href=", "url(", "@import", "<link", "<img", "<iframe"] {
        assert!(!page.contains(fetched), "{fetched}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn every_section_is_there_when_its_data_is_and_no_number_is_broken() {
    let page = render(&hostile());
    for title in [
        "Pass rates on test tasks",
        "Which capabilities the failures lack",
        "Calibration of the environments",
        "Reward during training",
        "Share of informative groups",
        "Adapters and the checks that they should fix",
        "Gates",
        "One test conversation, token by token",
    ] {
        assert!(page.contains(&format!("<h2>{title}</h2>")), "{title}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf\""), "a number is broken");
    let balanced = |tag: &str| page.matches(&format!("<{tag}")).count() == page.matches(&format!("</{tag}>")).count();
    for tag in ["section", "div", "table", "tr", "td", "svg", "main"] {
        assert!(balanced(tag), "{tag} is not closed");
    }
}

#[test]
fn what_a_run_does_not_have_yet_is_left_out() {
    let page = render(&Inputs { run: "new".into(), ..Inputs::default() });
    assert!(page.contains("No step of this run has finished") && !page.contains("<svg"));
}

#[test]
fn inputs_come_from_the_files_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let whole = hostile();
    let path = |name: &str| folder.path().join(name);
    assert_eq!(Inputs::read("r", folder.path()).unwrap(), Inputs { run: "r".into(), ..Inputs::default() });
    crate::record::write_json(&path("capabilities/analysis.json"), &whole.analysis).unwrap();
    crate::record::write_json(&path("evaluation.json"), &whole.evaluation).unwrap();
    let mut log = MetricsLog::open(&path("metrics.jsonl")).unwrap();
    whole.metrics.iter().for_each(|metric| log.append(metric).unwrap());
    assert_eq!(Inputs::read(EVIL, folder.path()).unwrap(), whole);
    std::fs::write(path("evaluation.json"), "{").unwrap();
    assert!(Inputs::read("r", folder.path()).unwrap_err().to_string().contains("evaluation.json"));
}

#[test]
fn the_terminals_table_has_a_row_for_each_arm_and_the_difference_to_the_base() {
    let mut evaluation = hostile().evaluation.unwrap();
    evaluation.arms[1].name = "trace".into();
    evaluation.differences[0].arm = "trace".into();
    let table = table::pass_rates(&evaluation, false);
    let row = table.lines().find(|line| line.contains("trace")).unwrap();
    let points = evaluation.differences[0].difference.value * 100.0;
    assert!(row.contains(&format!("{points:+.1} (")), "{table}");
    assert!(table.contains("20 test tasks x 2 trials"));
}
