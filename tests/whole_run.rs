//! A whole run in small: it ends with a table, is the same when it is killed on the way, and is not done twice.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rand::RngExt;
use sha2::{Digest, Sha256};
use trace_actors::log::{Phase, RowFilter};

/// `trace run` on the smoke configuration, in this directory.
fn command(run: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trace"));
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command.args(["run", "configs/smoke.toml", "--quiet", "--set"]).arg(format!("run.dir={}", run.display()));
    command
}

fn finish(run: &Path) -> Output {
    let output = command(run).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Everything that a run is judged by: trajectories, adapters, gates, analysis and evaluation.
fn digests(run: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::from([(PathBuf::from("trajectories"), trace_actors::log::digest(run).unwrap())]);
    let mut folders = vec![run.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(run).unwrap().to_owned();
            let judged = ["adapter_model.safetensors", "router.safetensors", "evaluation.json"]
                .iter()
                .any(|end| name.ends_with(end))
                || name.starts_with("capabilities") && path.is_file();
            if path.is_dir() {
                folders.push(path);
            } else if judged {
                let digest = Sha256::digest(std::fs::read(&path).unwrap());
                found.insert(name, digest.iter().map(|byte| format!("{byte:02x}")).collect());
            }
        }
    }
    found
}

/// Kills runs of `killed` at random moments, so many times, then lets it finish.
fn finish_in_spite_of(kills: u32, killed: &Path) {
    let mut random = rand::rng();
    for _ in 0..kills {
        let mut child = command(killed).stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random.random_range(300..5000)));
        // SIGKILL; a run that is done by then is fine too.
        child.kill().unwrap();
        child.wait().unwrap();
    }
    finish(killed);
}

#[test]
fn a_run_that_is_killed_ten_times_ends_as_an_undisturbed_one_and_is_not_done_twice() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, killed) = (folder.path().join("whole"), folder.path().join("killed"));
    let first = finish(&whole);
    let table = String::from_utf8_lossy(&first.stdout).into_owned();
    for shown in ["base", "best_single", "grpo", "trace", "report:", "next:"] {
        assert!(table.contains(shown), "{shown} is not in:\n{table}");
    }
    assert!(std::fs::read_to_string(whole.join("report.html")).unwrap().contains("<svg"));
    let expected = digests(&whole);
    assert!(expected.len() > 10, "{expected:?}");

    let again = finish(&whole);
    assert!(String::from_utf8_lossy(&again.stderr).contains("is done already"));
    assert_eq!(again.stdout, first.stdout);

    finish_in_spite_of(10, &killed);
    assert_eq!(digests(&killed), expected);
}

#[test]
#[ignore = "takes a quarter of an hour: make test-long"]
fn five_runs_killed_fifteen_times_each_end_as_an_undisturbed_one() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    finish(&whole);
    let expected = digests(&whole);
    for attempt in 0..5 {
        let killed = folder.path().join(format!("killed-{attempt}"));
        finish_in_spite_of(15, &killed);
        assert_eq!(digests(&killed), expected);
    }
}

#[test]
fn an_environment_that_calibration_rejects_stops_the_run_and_says_what_is_out_of_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let bounds = ["min_mean=0.0", "max_mean=0.01"].map(|bound| format!("synthesis.calibration.{bound}"));
    let stop = ["--set", "synthesis.calibration.on_reject=\"stop\"", "--set", &bounds[0], "--set", &bounds[1]];
    let output = command(&run).args(stop).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("calibration does not accept") && said.contains("above 0.01"), "{said}");
    assert!(said.contains("trace run"), "the way on is named: {said}");
}

#[test]
fn an_environment_without_a_difference_in_reward_cannot_be_proceeded_with() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    // At level 3 the base fails nearly always: a single group of two is without difference in at least one environment.
    let small = ["seeds=1", "rollouts=2", "levels=[3]"].map(|set| format!("synthesis.calibration.{set}"));
    let output = command(&run).args(small.iter().flat_map(|set| ["--set", set])).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing to learn in") && said.contains("synthesis.calibration.seeds"), "{said}");
}

#[test]
fn hints_are_sampled_with_logged_and_trained_without() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let hints = ["--set", "train.hints=\"on\"", "--set", "train.hint_share=0.5"];
    let output = command(&run).args(hints).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let reader = trace_actors::log::LogReader::open(&run).unwrap();
    let filter = RowFilter { phases: vec![Phase::Train], unit_prefix: Some("train/".into()), ..RowFilter::default() };
    let rows: Vec<_> = reader.rows(filter).map(Result::unwrap).filter(|row| row.capability.is_some()).collect();
    let hinted: Vec<_> = rows.iter().filter(|row| row.hint_span.is_some()).collect();
    assert_eq!(2 * hinted.len(), rows.len(), "half of every group");
    for row in &hinted {
        let span = row.hint_span.unwrap();
        let columns = row.columns.as_ref().unwrap();
        assert!(!columns.action_mask[span.start as usize..span.end as usize].contains(&true));
    }
    // A hinted row trains only where its advantage is positive.
    let used = trace_actors::log::UpdateLog::read(&run).unwrap();
    for row in &hinted {
        let update = used.iter().find(|update| update.row == row.id).unwrap();
        assert!(!update.used || row.advantage > Some(0.0), "{update:?} {:?}", row.advantage);
    }
}

#[test]
fn a_configuration_that_cannot_be_used_ends_with_exit_code_2_and_names_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let output = command(folder.path()).args(["--set", "train.kk=4"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("unknown key `kk`") && said.contains("`k`"), "{said}");
}

#[test]
fn what_the_model_cannot_do_is_said_before_anything_is_sampled() {
    for (set, said) in [
        ("train.first_layer=4", "train.first_layer = 4, but data/base has 4 blocks"),
        ("policy.max_context=5000", "policy.max_context = 5000, but data/base has 4096 positions"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output =
            command(folder.path()).args(["--set", set, "--set", "train.max_tokens_per_pass=8192"]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.split_whitespace().collect::<Vec<_>>().join(" ").contains(said), "{error}");
        assert!(!folder.path().join("trajectories").exists());
    }
}

#[test]
fn a_changed_key_on_resume_ends_with_exit_code_1_and_names_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let step = |seed: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trace"));
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        command.args(["rollout", "configs/smoke.toml", "--quiet", "--set", seed, "--set", "rollout.tasks=2", "--set"]);
        command.arg(format!("run.dir={}", run.display())).output().unwrap()
    };
    assert!(step("run.seed=1").status.success());
    let changed = step("run.seed=2");
    let said = String::from_utf8_lossy(&changed.stderr).into_owned();
    assert_eq!(changed.status.code(), Some(1), "{said}");
    assert!(said.contains("run.seed is 2 now"), "{said}");
}
