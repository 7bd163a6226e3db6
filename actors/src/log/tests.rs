//! What the log promises, whatever happens while it writes.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use arrow::record_batch::RecordBatch;
use proptest::prelude::*;
use tempfile::TempDir;
use trace_envs::Split;

use super::*;
use crate::batch::{trajectory_batch, trajectory_rows};
use crate::rows::{SegmentRow, Status, UpdateRow};
use crate::samples::row;

fn unit(n: u64) -> RecordBatch {
    trajectory_batch(&[row(n, 0, 1.0), row(n, 1, 0.0)]).unwrap()
}

fn key(n: u64) -> String {
    format!("train/{n}")
}

fn filled(dir: &Path, units: u64) {
    let (mut log, _) = TrajectoryLog::open(dir).unwrap();
    for n in 0..units {
        assert_eq!(log.append(Phase::Train, &key(n), &unit(n)).unwrap(), Appended::Sealed);
    }
}

fn keys(dir: &Path) -> Vec<String> {
    LogReader::open(dir).unwrap().units().map(|u| u.key).collect()
}

fn part(dir: &Path, n: u64) -> PathBuf {
    dir.join(format!("trajectories/phase=train/part-{n:05}.parquet"))
}

fn manifest(dir: &Path) -> PathBuf {
    dir.join("trajectories/_manifest.jsonl")
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_tree(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

#[test]
fn an_acknowledged_unit_is_read_back_whole_also_after_reopening() {
    let dir = TempDir::new().unwrap();
    filled(dir.path(), 3);
    let (log, recovery) = TrajectoryLog::open(dir.path()).unwrap();
    assert!(recovery.is_clean(), "{recovery:?}");
    let found = log.read_unit(&key(1)).unwrap().unwrap();
    assert_eq!(trajectory_rows(&found).unwrap(), trajectory_rows(&unit(1)).unwrap());
    assert!(log.read_unit("train/9").unwrap().is_none());
    assert_eq!(log.segments().len(), 3);
}

#[test]
fn a_unit_counts_once_however_often_it_is_appended() {
    let dir = TempDir::new().unwrap();
    filled(dir.path(), 1);
    let (mut log, _) = TrajectoryLog::open(dir.path()).unwrap();
    assert_eq!(log.append(Phase::Train, &key(0), &unit(5)).unwrap(), Appended::AlreadyThere);
    assert_eq!(keys(dir.path()), vec![key(0)]);
    let kept = trajectory_rows(&log.read_unit(&key(0)).unwrap().unwrap()).unwrap();
    assert_eq!(kept, trajectory_rows(&unit(0)).unwrap(), "the first acknowledged is the one that counts");
}

#[test]
fn one_process_at_a_time_writes_a_log() {
    let dir = TempDir::new().unwrap();
    let (log, _) = TrajectoryLog::open(dir.path()).unwrap();
    assert!(matches!(TrajectoryLog::open(dir.path()), Err(LogError::Locked(_))));
    drop(log);
    assert!(TrajectoryLog::open(dir.path()).is_ok());
}

#[test]
fn a_row_that_contradicts_itself_does_not_reach_the_disk() {
    let dir = TempDir::new().unwrap();
    let (mut log, _) = TrajectoryLog::open(dir.path()).unwrap();
    let good = unit(1);
    let index = good.schema().index_of("logprobs").unwrap();
    let mut columns = good.columns().to_vec();
    columns[index] = arrow::array::new_null_array(good.column(index).data_type(), good.num_rows());
    let bad = RecordBatch::try_new(good.schema(), columns).unwrap();
    assert!(matches!(log.append(Phase::Train, "bad", &bad), Err(LogError::Row(_))));
    assert!(!log.contains("bad") && !part(dir.path(), 0).exists());
}

/// The states that a crash can leave are: a temporary file of any length, a sealed segment without a line in the
/// manifest, and a line of any length.
#[test]
fn killed_at_any_write_point_sealed_units_stay_and_the_open_one_is_there_once_or_not_at_all() {
    let dir = TempDir::new().unwrap();
    filled(dir.path(), 3);
    let sealed = fs::read(part(dir.path(), 2)).unwrap();
    let lines = fs::read_to_string(manifest(dir.path())).unwrap();
    let listed = lines.lines().take(2).map(|l| l.len() + 1).sum::<usize>();

    let check = |prepare: &dyn Fn(&Path), survives: bool| {
        let copy = TempDir::new().unwrap();
        copy_tree(dir.path(), copy.path());
        prepare(copy.path());
        let before = keys(copy.path());
        let (mut log, recovery) = TrajectoryLog::open(copy.path()).unwrap();
        assert_eq!(log.contains(&key(2)), survives, "{recovery:?}");
        let redo = log.append(Phase::Train, &key(2), &unit(2)).unwrap();
        assert_eq!(redo, if survives { Appended::AlreadyThere } else { Appended::Sealed });
        drop(log);
        assert_eq!(keys(copy.path()), vec![key(0), key(1), key(2)]);
        assert!(before.iter().all(|k| [key(0), key(1), key(2)].contains(k)));
        assert_eq!(digest(copy.path()).unwrap(), digest(dir.path()).unwrap());
        let names: Vec<_> = fs::read_dir(copy.path().join("trajectories/phase=train")).unwrap().collect();
        assert_eq!(names.len(), 3, "no temporary file stays");
    };

    for length in (0..sealed.len()).step_by(sealed.len() / 7).chain([sealed.len()]) {
        let half_file = |copy: &Path| {
            fs::remove_file(part(copy, 2)).unwrap();
            fs::write(copy.join("trajectories/phase=train/.part-00002.tmp"), &sealed[..length]).unwrap();
            fs::write(manifest(copy), &lines[..listed]).unwrap();
        };
        check(&half_file, false);
    }
    for length in (listed..lines.len()).step_by(11).chain([lines.len() - 1]) {
        check(&|copy: &Path| fs::write(manifest(copy), &lines[..length]).unwrap(), true);
    }
    check(&|copy: &Path| fs::remove_file(manifest(copy)).unwrap(), true);
}

#[test]
fn an_unlisted_segment_that_cannot_be_read_is_set_aside_and_said() {
    let dir = TempDir::new().unwrap();
    filled(dir.path(), 2);
    fs::write(part(dir.path(), 2), b"PAR1 not a segment").unwrap();
    fs::copy(part(dir.path(), 0), part(dir.path(), 3)).unwrap();
    let (mut log, recovery) = TrajectoryLog::open(dir.path()).unwrap();
    let aside: Vec<&str> = recovery.set_aside.iter().map(|(file, _)| file.as_str()).collect();
    assert_eq!(aside, vec!["phase=train/part-00002.parquet", "phase=train/part-00003.parquet"]);
    assert!(recovery.set_aside[1].1.contains("another segment"));
    log.append(Phase::Train, &key(2), &unit(2)).unwrap();
    drop(log);
    assert!(TrajectoryLog::open(dir.path()).unwrap().1.is_clean());
    assert_eq!(keys(dir.path()), vec![key(0), key(1), key(2)]);
}

#[test]
fn an_acknowledged_segment_that_is_lost_or_cut_is_an_error_that_names_it() {
    for damage in [
        |p: &Path| fs::remove_file(p).unwrap(),
        |p: &Path| {
            OpenOptions::new().write(true).open(p).unwrap().set_len(100).unwrap();
        },
    ] {
        let dir = TempDir::new().unwrap();
        filled(dir.path(), 2);
        damage(&part(dir.path(), 1));
        let message = TrajectoryLog::open(dir.path()).err().unwrap().to_string();
        assert!(message.contains("part-00001.parquet") && message.contains("damaged"), "{message}");
    }
}

#[test]
fn an_append_that_failed_can_be_repeated() {
    let dir = TempDir::new().unwrap();
    let (mut log, _) = TrajectoryLog::open(dir.path()).unwrap();
    // A file stands where the phase's folder should be.
    let blocked = dir.path().join("trajectories/phase=train");
    fs::write(&blocked, b"").unwrap();
    assert!(log.append(Phase::Train, &key(0), &unit(0)).is_err());
    assert!(!log.contains(&key(0)));
    fs::remove_file(&blocked).unwrap();
    assert_eq!(log.append(Phase::Train, &key(0), &unit(0)).unwrap(), Appended::Sealed);
    assert_eq!(keys(dir.path()), vec![key(0)]);
}

#[test]
fn the_digest_leaves_out_times_the_run_and_the_order_of_units_and_nothing_else() {
    let written = |order: &[u64], edit: &dyn Fn(&mut SegmentRow)| {
        let dir = TempDir::new().unwrap();
        let (mut log, _) = TrajectoryLog::open(dir.path()).unwrap();
        for &n in order {
            let mut row = row(n, 0, 1.0);
            edit(&mut row);
            log.append(Phase::Base, &key(n), &trajectory_batch(&[row]).unwrap()).unwrap();
        }
        drop(log);
        digest(dir.path()).unwrap()
    };
    let plain = written(&[1, 2], &|_| {});
    assert_eq!(plain, written(&[2, 1], &|_| {}));
    assert_eq!(
        plain,
        written(&[1, 2], &|r| {
            r.run = "another".into();
            r.started_at_us += 77;
            r.wall_ms += 3;
            r.turns.iter_mut().for_each(|t| (t.policy_ms, t.env_ms) = (Some(9.0), Some(9.0)));
        })
    );
    assert_ne!(plain, written(&[1], &|_| {}));
    assert_ne!(plain, written(&[1, 2], &|r| r.reward = Some(0.5)));
    assert_ne!(plain, written(&[1, 2], &|r| r.columns.as_mut().unwrap().logprobs[3] = Some(-0.2500001)));
    assert_ne!(plain, written(&[1, 2], &|r| r.turns[1].text.push('!')));
}

#[test]
fn a_filter_reads_the_rows_it_names() {
    let dir = TempDir::new().unwrap();
    let (mut log, _) = TrajectoryLog::open(dir.path()).unwrap();
    let adapted = SegmentRow { adapter: Some("counting".into()), ..row(3, 1, 0.0) };
    let mut cut = row(4, 0, 0.0);
    cut.status = Status::Truncated;
    log.append(Phase::Train, "a", &trajectory_batch(&[row(3, 0, 1.0), adapted]).unwrap()).unwrap();
    log.append(Phase::Evaluate, "b", &trajectory_batch(&[cut]).unwrap()).unwrap();
    let reader = LogReader::open(dir.path()).unwrap();
    let read = |filter: RowFilter| -> Vec<(u64, u16)> {
        reader.rows(filter).map(|r| r.unwrap()).map(|r| (r.seed, r.rollout)).collect()
    };
    assert_eq!(read(RowFilter::default()), vec![(3, 0), (3, 1), (4, 0)]);
    assert_eq!(read(RowFilter { phases: vec![Phase::Evaluate], ..RowFilter::default() }), vec![(4, 0)]);
    assert_eq!(read(RowFilter { unit_prefix: Some("a".into()), ..RowFilter::default() }), vec![(3, 0), (3, 1)]);
    assert_eq!(read(RowFilter { adapter: Some(None), ..RowFilter::default() }), vec![(3, 0), (4, 0)]);
    assert_eq!(read(RowFilter { statuses: vec![Status::Truncated], ..RowFilter::default() }), vec![(4, 0)]);
    assert_eq!(read(RowFilter { split: Some(Split::Train), ..RowFilter::default() }), vec![(3, 0), (3, 1)]);
    assert_eq!(read(RowFilter { id_contains: Some("r1".into()), ..RowFilter::default() }), vec![(3, 1)]);
    assert_eq!(read(RowFilter { passed: Some(true), ..RowFilter::default() }), vec![(3, 0)]);
    assert_eq!(read(RowFilter { passed: Some(false), ..RowFilter::default() }), vec![(3, 1), (4, 0)]);
    let unit = reader.units().next().unwrap();
    let narrow = reader.unit_batch(&unit, Some(&["reward", "status"])).unwrap();
    assert_eq!((narrow.num_columns(), narrow.num_rows()), (2, 2));
}

#[test]
fn the_newest_rows_are_taken_from_the_end_and_come_in_order() {
    let dir = TempDir::new().unwrap();
    let (mut log, _) = TrajectoryLog::open(dir.path()).unwrap();
    for (unit, first) in [("train/a/1", 0), ("train/b/1", 30), ("train/a/2", 60), ("train/a/3", 90)] {
        let rows: Vec<SegmentRow> =
            (0..4).map(|rollout| row(first, rollout, f32::from(u8::from(rollout != 2)))).collect();
        log.append(Phase::Train, unit, &trajectory_batch(&rows).unwrap()).unwrap();
    }
    let reader = LogReader::open(dir.path()).unwrap();
    let wins = RowFilter { unit_prefix: Some("train/a/".into()), passed: Some(true), ..RowFilter::default() };
    let newest = |filter: &RowFilter, most: usize| -> Vec<(u64, u16)> {
        let batches = reader.newest(filter, most).unwrap();
        batches.iter().flat_map(|b| trajectory_rows(b).unwrap()).map(|r| (r.seed, r.rollout)).collect()
    };
    assert_eq!(newest(&wins, 5), [(60, 1), (60, 3), (90, 0), (90, 1), (90, 3)]);
    assert_eq!(newest(&wins, 3), [(90, 0), (90, 1), (90, 3)]);
    assert_eq!(newest(&wins, 100).len(), 9);
    assert_eq!(newest(&wins, 0), []);
    let nothing = RowFilter { unit_prefix: Some("train/c/".into()), ..wins };
    assert_eq!(newest(&nothing, 5), []);
}

#[test]
fn updates_are_read_back_in_order_and_counted_once() {
    let dir = TempDir::new().unwrap();
    assert_eq!(UpdateLog::read(dir.path()).unwrap(), Vec::new());
    let update = |step| UpdateRow {
        row: format!("u/g1/r{step}/s0"),
        learner: "counting".into(),
        step,
        staleness: Some(0),
        used: true,
        reason: None,
    };
    let (mut log, _) = UpdateLog::open(dir.path()).unwrap();
    for step in [1, 2, 1] {
        log.append(&format!("counting/{step}"), &[update(step)]).unwrap();
    }
    assert_eq!(UpdateLog::read(dir.path()).unwrap(), vec![update(1), update(2)]);
}

const CHILD: &str = "TRACE_LOG_TEST_CHILD";

/// Not a test of its own: the process that the next test kills.
#[test]
fn child_that_appends_until_it_is_killed() {
    let Ok(dir) = std::env::var(CHILD) else { return };
    let (mut log, _) = TrajectoryLog::open(Path::new(&dir)).unwrap();
    for n in 0.. {
        log.append(Phase::Train, &key(n), &unit(n)).unwrap();
        println!("acknowledged {n}");
    }
}

#[test]
fn after_kill_9_every_acknowledged_unit_is_there_exactly_once() {
    let dir = TempDir::new().unwrap();
    let mut acknowledged = 0;
    for round in 0..6 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "log::tests::child_that_appends_until_it_is_killed", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // Keys that are there are acknowledged again, so the child passes the old ones quickly.
        let said = lines.filter_map(|l| l.strip_prefix("acknowledged ")?.parse::<u64>().ok());
        for n in said {
            acknowledged = acknowledged.max(n + 1);
            if n >= 4 * (round + 1) + round % 3 {
                std::thread::sleep(std::time::Duration::from_micros(350 * round));
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        TrajectoryLog::open(dir.path()).unwrap();
        let found = keys(dir.path());
        let expected: Vec<String> = (0..found.len() as u64).map(key).collect();
        assert_eq!(found, expected, "each once, in order, none missing");
        assert!(found.len() as u64 >= acknowledged, "{} units, {acknowledged} acknowledged", found.len());
    }
    assert!(acknowledged >= 24);
    for unit in LogReader::open(dir.path()).unwrap().rows(RowFilter::default()) {
        unit.unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_order_of_units_phases_and_reopenings_is_read_back(
        steps in prop::collection::vec((0u64..6, prop::sample::select(Phase::ALL.to_vec()), any::<bool>()), 1..12),
    ) {
        let dir = TempDir::new().unwrap();
        let mut expected: Vec<(String, Phase)> = Vec::new();
        let mut log = TrajectoryLog::open(dir.path()).unwrap().0;
        for (n, phase, reopen) in steps {
            let fresh = !expected.iter().any(|(k, _)| *k == key(n));
            let appended = log.append(phase, &key(n), &unit(n)).unwrap();
            prop_assert_eq!(appended == Appended::Sealed, fresh);
            if fresh {
                expected.push((key(n), phase));
            }
            if reopen {
                drop(log);
                log = TrajectoryLog::open(dir.path()).unwrap().0;
            }
        }
        let found: Vec<(String, Phase)> =
            LogReader::open(dir.path()).unwrap().units().map(|u| (u.key, u.phase)).collect();
        prop_assert_eq!(found, expected);
    }
}
