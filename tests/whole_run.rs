//! A whole run in small: it ends with a table, is the same when it is killed on the way, and is not done twice.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rand::RngExt;
use sha2::{Digest, Sha256};

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

    let mut random = rand::rng();
    for _ in 0..10 {
        let mut child = command(&killed).stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random.random_range(300..5000)));
        // SIGKILL; a run that is done by then is fine too.
        child.kill().unwrap();
        child.wait().unwrap();
    }
    finish(&killed);
    assert_eq!(digests(&killed), expected);
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
