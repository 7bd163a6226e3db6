use proptest::prelude::*;

use super::labels::{label, label_runs};
use super::partition::{SixLists, Totals};
use super::select::{RunMeasure, run_measure};
use super::*;

const RULE: Rule = Rule { rho: 0.10, delta: 0.20, keep: 8 };
const SETTINGS: Settings = Settings { rule: RULE, runs: 10, examples: 8, seed: 1, left_out: 0 };

fn check(name: &str, score: f64) -> Check {
    Check { name: name.into(), score, weight: 0.0, detail: String::new() }
}

fn trajectory(task: usize, trial: u32, reward: f64, checks: &[(&str, f64)]) -> Trajectory {
    Trajectory {
        id: format!("t{task}-{trial}"),
        task: format!("t{task}"),
        trial,
        reward,
        checks: checks.iter().map(|(name, score)| check(name, *score)).collect(),
    }
}

fn evidence(capability: &str, checks: &[&str]) -> CapabilityEvidence {
    CapabilityEvidence {
        capability: capability.into(),
        description: format!("{capability} in a sentence"),
        checks: checks.iter().map(|name| (*name).into()).collect(),
    }
}

fn ids(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Two failed and two passed trajectories, and a valid label run of one capability over them.
fn small() -> (Vec<Trajectory>, CandidateFile, LabelRun) {
    let trajectories = vec![
        trajectory(0, 0, 0.0, &[]),
        trajectory(1, 0, 0.9, &[]),
        trajectory(2, 0, 1.0, &[]),
        trajectory(3, 0, 1.0 - 1e-7, &[]),
    ];
    let candidates = formats::candidates(&trajectories, &[evidence("cap", &[])], 0);
    let lists = SixLists {
        lacking_failed: ids(&["t0-0"]),
        na_failed: ids(&["t1-0"]),
        present_passed: ids(&["t2-0", "t3-0"]),
        ..SixLists::default()
    };
    let totals = Totals { total_failed: 2, total_passed: 2 };
    let run = LabelRun { attempt: 1, totals, trajectories: None, labels: [("cap".to_owned(), lists)].into() };
    (trajectories, candidates, run)
}

fn refused(change: impl FnOnce(&mut LabelRun)) -> LabelError {
    let (trajectories, candidates, mut run) = small();
    change(&mut run);
    from_labels(&trajectories, candidates, vec![run], &SETTINGS).expect_err("must be refused")
}

fn lists(run: &mut LabelRun) -> &mut SixLists {
    run.labels.get_mut("cap").unwrap()
}

#[test]
fn a_valid_run_is_taken() {
    let (trajectories, candidates, run) = small();
    let findings = from_labels(&trajectories, candidates, vec![run], &SETTINGS).unwrap();
    assert_eq!((findings.record.failed, findings.record.passed), (2, 2));
}

#[test]
fn a_missing_id_is_an_error_that_names_it() {
    let error = refused(|run| lists(run).na_failed.clear());
    assert_eq!(error.to_string(), "label run 1, cap: trajectory \"t1-0\" is in none of the six lists; add it to one");
}

#[test]
fn a_doubled_id_is_an_error_that_names_it_within_a_list_or_across() {
    let error = refused(|run| lists(run).present_failed.push("t0-0".into()));
    assert_eq!(
        error.to_string(),
        "label run 1, cap: trajectory \"t0-0\" is in lacking_failed and again in present_failed; keep one"
    );
    let error = refused(|run| lists(run).lacking_failed.push("t0-0".into()));
    assert!(matches!(error, LabelError::Doubled { first: "lacking_failed", second: "lacking_failed", .. }));
}

#[test]
fn an_unknown_id_is_an_error_that_names_it_and_its_list() {
    let error = refused(|run| lists(run).na_passed.push("t9-0".into()));
    assert!(error.to_string().contains("cap, na_passed: trajectory \"t9-0\" is not in the sample"), "{error}");
}

#[test]
fn an_id_outside_of_the_runs_own_list_of_trajectories_is_unknown_to_it() {
    let error = refused(|run| run.trajectories = Some(ids(&["t0-0", "t1-0", "t2-0"])));
    assert!(matches!(error, LabelError::Unknown { ref id, .. } if id == "t3-0"), "{error}");
    let error = refused(|run| run.trajectories = Some(ids(&["t0-0", "t7-0"])));
    assert!(matches!(error, LabelError::Unknown { ref id, .. } if id == "t7-0"), "{error}");
    let error = refused(|run| run.trajectories = Some(ids(&["t0-0", "t0-0"])));
    assert!(matches!(error, LabelError::Doubled { ref id, .. } if id == "t0-0"), "{error}");
}

#[test]
fn a_label_that_contradicts_the_outcome_is_refused() {
    let error = refused(|run| {
        lists(run).lacking_failed.clear();
        lists(run).lacking_passed.push("t0-0".into());
    });
    assert!(error.to_string().contains("\"t0-0\" is in lacking_passed, but its outcome is failed"), "{error}");
}

#[test]
fn every_candidate_is_labelled_and_nothing_else() {
    let error = refused(|run| run.labels.clear());
    assert!(matches!(error, LabelError::MissingCapability { ref capability, .. } if capability == "cap"));
    let error = refused(|run| {
        run.labels.insert("other".into(), SixLists::default());
    });
    assert!(matches!(error, LabelError::UnknownCapability { ref capability, .. } if capability == "other"));
}

#[test]
fn a_capability_that_a_file_labels_twice_is_refused() {
    let (_, _, run) = small();
    let one = serde_json::to_string(&run.labels["cap"]).unwrap();
    let text = format!(
        "{{\"attempt\":1,\"totals\":{{\"total_failed\":0,\"total_passed\":0}},\"labels\":{{\"cap\":{one},\"cap\":{one}}}}}"
    );
    let error = serde_json::from_str::<LabelRun>(&text).unwrap_err();
    assert!(error.to_string().contains("\"cap\" is labelled twice"), "{error}");
}

#[test]
fn totals_are_counted_and_a_disagreement_is_reported() {
    let (trajectories, candidates, mut run) = small();
    let correct = from_labels(&trajectories, candidates.clone(), vec![run.clone()], &SETTINGS).unwrap();
    run.totals = Totals { total_failed: 10, total_passed: 0 };
    let wrong = from_labels(&trajectories, candidates, vec![run], &SETTINGS).unwrap();
    assert_eq!(correct.record.capabilities, wrong.record.capabilities);
    assert_eq!(correct.record.warnings, Vec::<String>::new());
    assert_eq!(
        wrong.record.warnings,
        ["label run 1 states 10 failed and 0 passed trajectories, but its lists hold 2 and 2; the lists count"]
    );
}

#[test]
fn two_trajectories_of_one_id_are_refused() {
    let (mut trajectories, candidates, run) = small();
    trajectories.push(trajectories[0].clone());
    let error = from_labels(&trajectories, candidates, vec![run], &SETTINGS).unwrap_err();
    assert_eq!(error, LabelError::DoubledTrajectory { id: "t0-0".into() });
}

/// Lists with the given sizes, in the order of TRACE's six lists.
fn sized(sizes: [usize; 6]) -> SixLists {
    let make = |count: usize, prefix: &str| (0..count).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>();
    SixLists {
        lacking_failed: make(sizes[0], "a"),
        present_failed: make(sizes[1], "b"),
        na_failed: make(sizes[2], "c"),
        lacking_passed: make(sizes[3], "d"),
        present_passed: make(sizes[4], "e"),
        na_passed: make(sizes[5], "f"),
    }
}

#[test]
fn not_applicable_stays_in_coverage_and_leaves_the_error_rates() {
    assert_eq!(
        run_measure(3, &sized([3, 1, 6, 1, 3, 100]), RULE),
        RunMeasure {
            attempt: 3,
            coverage: Some(0.3),
            error_rate_failed: Some(0.75),
            error_rate_passed: Some(0.25),
            gap: Some(0.5),
            passes: true,
        }
    );
}

#[test]
fn an_empty_denominator_is_undefined_and_does_not_pass() {
    // The reference takes ER+ = 0 here, finds a gap of 1 and selects the capability.
    let measure = run_measure(1, &sized([9, 0, 1, 0, 0, 50]), RULE);
    assert_eq!((measure.error_rate_passed, measure.gap, measure.passes), (None, None, false));
    let measure = run_measure(1, &sized([0, 0, 5, 1, 1, 0]), RULE);
    assert_eq!(
        (measure.coverage, measure.error_rate_failed, measure.gap, measure.passes),
        (Some(0.0), None, None, false)
    );
    assert_eq!(run_measure(1, &sized([0, 0, 0, 1, 1, 0]), RULE).coverage, None);
}

#[test]
fn a_capability_never_applicable_among_passes_is_reported_and_not_selected() {
    let trajectories: Vec<Trajectory> = (0..40)
        .map(|task| match task % 2 {
            0 => trajectory(task, 0, 0.0, &[("c", 0.0)]),
            _ => trajectory(task, 0, 1.0, &[]),
        })
        .collect();
    let findings = from_process_checks(&trajectories, &[evidence("cap", &["c"])], &SETTINGS).unwrap();
    assert_eq!(findings.selected, vec![]);
    assert_eq!(findings.record.capabilities[0].mean_gap, None);
    assert_eq!(
        findings.record.warnings,
        [
            "cap applies to no passed trajectory in 10 of 10 label runs: its gap is undefined there, and these runs do not pass it"
        ]
    );
}

#[test]
fn thresholds_are_inclusive() {
    // Coverage 1/10 = rho, gap 0.3 - 0.1 = delta, though not in floating point.
    let exact = sized([3, 7, 20, 1, 9, 0]);
    assert!(run_measure(1, &exact, RULE).passes);
    assert!(!run_measure(1, &exact, Rule { rho: 0.11, ..RULE }).passes);
    assert!(!run_measure(1, &exact, Rule { delta: 0.21, ..RULE }).passes);
}

#[test]
fn a_capability_is_kept_at_k_runs_and_ranked_by_mean_gap() {
    let strong = sized([8, 2, 0, 0, 10, 0]);
    let fair = sized([5, 5, 0, 0, 10, 0]);
    let weak = sized([1, 9, 0, 0, 10, 0]);
    let candidates = CandidateFile {
        candidates: ["a_fair", "b_strong", "c_seven"]
            .iter()
            .map(|name| formats::Candidate {
                name: (*name).into(),
                description: String::new(),
                example_trajectories: vec![],
            })
            .collect(),
    };
    let runs: Vec<LabelRun> = (1..=10)
        .map(|attempt| LabelRun {
            attempt,
            labels: [
                ("a_fair".to_owned(), if attempt <= 8 { fair.clone() } else { weak.clone() }),
                ("b_strong".to_owned(), strong.clone()),
                ("c_seven".to_owned(), if attempt <= 7 { strong.clone() } else { weak.clone() }),
            ]
            .into(),
            ..LabelRun::default()
        })
        .collect();
    let mut measured = select::measure(&candidates, &runs, RULE);
    select::rank(&mut measured);
    let summary: Vec<(&str, u32, bool)> = measured.iter().map(|c| (c.name.as_str(), c.runs_passed, c.kept)).collect();
    assert_eq!(summary, [("b_strong", 10, true), ("a_fair", 8, true), ("c_seven", 7, false)]);
    let fair = &measured[1];
    assert!((fair.mean_gap.unwrap() - 0.42).abs() < 1e-12);
    assert!((fair.std_gap.unwrap() - 0.16).abs() < 1e-12, "population standard deviation");
}

#[test]
fn a_label_is_lacking_on_any_low_check_present_on_all_ones_and_na_without_a_check() {
    let capability = evidence("cap", &["a", "b"]);
    for (checks, expected) in [
        (vec![check("a", 1.0), check("b", 1.0)], Label::Present),
        (vec![check("a", 1.0), check("b", 0.5)], Label::Lacking),
        (vec![check("a", 1.0)], Label::Present),
        (vec![check("other", 0.0)], Label::Na),
        (vec![], Label::Na),
    ] {
        assert_eq!(label(&checks, &capability), expected, "{checks:?}");
    }
}

#[test]
fn label_runs_are_independent_halves_of_the_tasks_with_all_trials() {
    let trajectories: Vec<Trajectory> =
        (0..21).flat_map(|task| (0..3).map(move |trial| trajectory(task, trial, 0.0, &[]))).collect();
    let runs = label_runs(&trajectories, &[evidence("cap", &[])], 10, 5);
    let halves: Vec<Vec<String>> = runs.iter().map(|run| run.trajectories.clone().unwrap()).collect();
    for half in &halves {
        assert_eq!(half.len(), 11 * 3);
        for id in half {
            let task = id.split('-').next().unwrap();
            assert_eq!(half.iter().filter(|other| other.split('-').next() == Some(task)).count(), 3);
        }
    }
    let distinct: std::collections::BTreeSet<_> = halves.iter().collect();
    assert_eq!(distinct.len(), 10);
    assert_eq!(runs, label_runs(&trajectories, &[evidence("cap", &[])], 10, 5));
    assert_ne!(runs, label_runs(&trajectories, &[evidence("cap", &[])], 10, 6));
}

#[test]
fn examples_are_spread_over_tasks_and_prefer_trajectories_that_lack_little_else() {
    // Tasks 0..3 lack "other" as well and have many trials; tasks 3..12 lack only "cap".
    let trajectories: Vec<Trajectory> = (0..12)
        .flat_map(|task| (0..4).map(move |trial| (task, trial)))
        .map(|(task, trial)| {
            let other = if task < 3 { 0.0 } else { 1.0 };
            trajectory(task, trial, 0.0, &[("c", 0.0), ("o", other)])
        })
        .chain((12..24).map(|task| trajectory(task, 0, 1.0, &[("c", 1.0), ("o", 1.0)])))
        .collect();
    let evidence = [evidence("cap", &["c"]), evidence("other", &["o"])];
    let findings = from_process_checks(&trajectories, &evidence, &SETTINGS).unwrap();
    let cap = findings.selected.iter().find(|selected| selected.skill == "cap").unwrap();
    let tasks: std::collections::BTreeSet<usize> =
        cap.example_failed_cases.iter().map(|id| id[1..].split('-').next().unwrap().parse().unwrap()).collect();
    assert_eq!((cap.example_failed_cases.len(), tasks.len()), (8, 8), "{:?}", cap.example_failed_cases);
    assert!(tasks.iter().all(|task| *task >= 3), "{tasks:?}");
    let other = findings.selected.iter().find(|selected| selected.skill == "other").unwrap();
    assert_eq!(other.example_failed_cases.len(), 8, "a second trial of a task where tasks are few");
}

#[test]
fn files_have_the_fields_of_the_interchange_format() {
    let trajectories: Vec<Trajectory> = (0..40)
        .map(|task| {
            let lacks = task % 2 == 0;
            trajectory(task, 0, if lacks { 0.0 } else { 1.0 }, &[("c", if lacks { 0.5 } else { 1.0 })])
        })
        .collect();
    let findings = from_process_checks(&trajectories, &[evidence("cap", &["c"])], &SETTINGS).unwrap();
    let keys = |value: serde_json::Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    assert_eq!(
        keys(serde_json::to_value(&findings.selected[0]).unwrap()),
        [
            "skill",
            "description",
            "mean_cov",
            "std_cov",
            "mean_delta",
            "std_delta",
            "n_runs_passed",
            "n_runs_total",
            "passes_consistency",
            "example_failed_cases",
            "status"
        ]
    );
    let run = serde_json::to_value(&findings.runs[0]).unwrap();
    assert_eq!(
        keys(run["labels"]["cap"].clone()),
        ["lacking_failed", "present_failed", "na_failed", "lacking_passed", "present_passed", "na_passed"]
    );
    assert_eq!(keys(run["totals"].clone()), ["total_failed", "total_passed"]);
    assert_eq!(serde_json::to_value(findings.selected[0].status).unwrap(), "PENDING");
    let candidates = serde_json::to_value(&findings.candidates).unwrap();
    let example = &candidates["candidates"][0]["example_trajectories"][0];
    assert_eq!(keys(example.clone()), ["task_id", "reward", "note"]);
    assert_eq!(example["note"], "c scored 0.5");
}

proptest! {
    #[test]
    fn measures_stay_within_their_ranges_and_a_full_partition_validates(
        labels in prop::collection::vec((0usize..3, any::<bool>()), 1..60)
    ) {
        let trajectories: Vec<Trajectory> = labels.iter().enumerate().map(|(task, (label, passed))| {
            let checks: &[(&str, f64)] = match label { 0 => &[], 1 => &[("c", 1.0)], _ => &[("c", 0.0)] };
            trajectory(task, 0, if *passed { 1.0 } else { 0.0 }, checks)
        }).collect();
        let findings = from_process_checks(&trajectories, &[evidence("cap", &["c"])], &SETTINGS).unwrap();
        for run in &findings.record.capabilities[0].runs {
            for share in [run.coverage, run.error_rate_failed, run.error_rate_passed].into_iter().flatten() {
                prop_assert!((0.0..=1.0).contains(&share));
            }
            prop_assert!(run.gap.is_none_or(|gap| (-1.0..=1.0).contains(&gap)));
            prop_assert!(!run.passes || run.gap.is_some());
        }
        prop_assert_eq!(findings.record.failed + findings.record.passed, labels.len() as u64);
    }
}
